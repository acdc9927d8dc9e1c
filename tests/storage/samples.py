"""Small tables, batches and replicas for tests of the storage engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from limosa.core import tokens as core_tokens
from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    ApplySlice,
    BeginLog,
    CreateReplica,
    DiscardReplica,
    StoreEpoch,
    TrimLog,
    TruncateLog,
    VolumeEffect,
)
from limosa.core.model.keys import WHOLE, Position, TokenRange, position
from limosa.core.model.rows import Entry
from limosa.core.producers import ProducersValue
from limosa.storage import flush, maintenance, segment, view
from limosa.storage.log import HEADER_BYTES
from limosa.storage.maintenance import Maintenance
from limosa.storage.replica import StoredReplica
from limosa.storage.view import View
from limosa.storage.volume import StorageSettings, Volume
from limosa.tabular import rows
from limosa.tabular.digest import Digest, digest
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Kind, Table
from tests.storage.faulty_files import Died, FaultyFiles, Plan, nothing_happens
from tests.storage.medium import MediumFiles


def table(
    id: str, *columns: tuple[str, pa.DataType], key: Sequence[str] = (), kind: Kind = "table"
) -> Table:
    """The first column is the key, unless told otherwise."""
    return Table(id, pa.schema(columns), tuple(key) or (columns[0][0],), kind)


BIRDS = table("birds", ("name", pa.string()), ("eggs", pa.int64()))
NESTS = table("nests", ("place", pa.int64()), ("height", pa.float64()))
SONGS = table("songs", ("name", pa.string()), ("tone", pa.int64()), kind="stream")

LEFT, RIGHT = TokenRange(WHOLE.start, 0), TokenRange(0, WHOLE.end)

TINY = StorageSettings(
    log_file_bytes=HEADER_BYTES + 3000,
    log_bytes_max=16_000,
    replica_memory_bytes=1500,
    memory_bytes=4000,
    piece_bytes=1500,
)
"""So little is kept anywhere that everything happens all the time."""

Row: TypeAlias = tuple[str, int | None]


def batch_of(table: Table, values: Iterable[Sequence[Any]]) -> Batch:
    """Rows, each with its values in the order of the table's columns."""
    columns = list(zip(*values, strict=True)) or [()] * len(table.physical)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, table.physical, strict=True)
    ]
    return Batch.of(table, pa.RecordBatch.from_arrays(arrays, schema=table.physical))


def birds(*values: Row) -> Batch:
    return batch_of(BIRDS, values)


def songs(*values: Row) -> Batch:
    return batch_of(SONGS, values)


def gone(*names: str) -> Batch:
    """Birds that are deleted."""
    return Batch.tombstones(BIRDS, keys_of(*names))


def keys_of(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"name": pa.array(names, pa.string())})


def versioned(batch: Batch, versions: Sequence[Position]) -> Batch:
    """Rows as they are copied from elsewhere."""
    numbers = np.array(versions, np.int64)
    return Batch(batch.table, batch.columns, batch.tokens, numbers, batch.deleted)


def in_view(view: View, table: Table = BIRDS) -> dict[Any, Any]:
    """The visible rows of a table with two columns, by key."""
    found = [row for batch in view.scan(table) for row in rows_of(batch)]
    assert len(dict(found)) == len(found), "a key came twice"
    return dict(found)


def records(view: View, offset: int = 0) -> list[tuple[str, int]]:
    first, found = view.read_from(SONGS, offset)
    assert first == offset
    return rows_of(found)


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*batch.to_pydict().values(), strict=True))


class Hand:
    """Does to one replica what the core would ask for, and counts its positions."""

    def __init__(self, write: Callable[[VolumeEffect], None], partition: str = "p1") -> None:
        self.write = write
        self.key = (partition, "r1")
        self.epoch = 1
        self.counter = 0
        self.last: Position = 0

    def create(self, volume: str = "v1") -> "Hand":
        self.write(CreateReplica(*self.key, 0, volume))
        self.begin()
        return self

    def begin(self) -> None:
        self.write(BeginLog(*self.key, 0, self.last, self.epoch))

    def store_epoch(self, epoch: int) -> None:
        self.epoch, self.counter = epoch, 0
        self.write(StoreEpoch(*self.key, 0, epoch))

    def entry(
        self, *batches: Batch, producer: str = "", sequence: int = 0, collects: Position = 0
    ) -> Entry:
        self.counter += 1
        at, previous = position(self.epoch, self.counter), self.last
        self.last = at
        bundle = Bundle(batches) if batches else None
        return Entry(at, previous, bundle, producer, sequence, collects=collects)

    def append(self, *batches: Batch, producer: str = "", sequence: int = 0) -> Position:
        """One entry, not committed."""
        entry = self.entry(*batches, producer=producer, sequence=sequence)
        self.write(AppendEntries(*self.key, 0, (entry,)))
        return entry.at

    def advance(self, to: Position | None = None) -> None:
        self.write(AdvanceWatermark(*self.key, 0, self.last if to is None else to))

    def put(self, *batches: Batch) -> Position:
        """One entry, committed."""
        at = self.append(*batches)
        self.advance(at)
        return at

    def collect(self, up_to: Position) -> None:
        self.write(AppendEntries(*self.key, 0, (self.entry(collects=up_to),)))
        self.advance()

    def trim(self, to: Position) -> None:
        self.write(TrimLog(*self.key, 0, to))

    def truncate(self, to: Position) -> None:
        self.write(TruncateLog(*self.key, 0, to))
        self.last = to

    def apply_slice(self, *batches: Batch, producers: ProducersValue = ()) -> None:
        self.write(ApplySlice(*self.key, 0, (Bundle(batches),), producers))

    def discard(self) -> None:
        self.write(DiscardReplica(*self.key, 0))


class Host:
    """One volume and its maintenance on a file system in memory, which outlives them."""

    def __init__(
        self,
        settings: StorageSettings = TINY,
        memory: MediumFiles | None = None,
        directory: str = "v1",
    ) -> None:
        self.memory = memory or MediumFiles()
        self.settings = settings
        self.directory = directory
        self.open()

    def open(self, plan: Plan = nothing_happens) -> None:
        self.files = FaultyFiles(self.memory, plan)
        self.volume = Volume(self.files, self.directory, "v1", self.settings)
        self.maintenance = Maintenance(self.volume)

    def reopen(self) -> None:
        self.volume.close()
        self.open()

    def kill(self) -> None:
        """Only the process: what it had written stays, though it is no more durable."""
        self.memory.crash(Random(0), process_only=True)
        self.open()

    def lose_power(self, seed: int = 0) -> None:
        self.memory.crash(Random(seed))
        self.open()

    def dies(self, act: Callable[[], object], plan: Plan) -> None:
        """The process ends in the middle of something."""
        self.files.arm(plan)
        with pytest.raises(Died):
            act()

    def write(self, change: VolumeEffect) -> None:
        self.volume.write(change)

    def hand(self, partition: str = "p1") -> Hand:
        return Hand(self.write, partition).create()

    def replica(self, partition: str = "p1") -> StoredReplica:
        return self.volume.replicas[partition, "r1"]

    def view(self, partition: str = "p1") -> View:
        return self.replica(partition).view

    def flush(self, partition: str = "p1") -> None:
        self.maintenance.flush(self.replica(partition))

    def compact(self, partition: str = "p1") -> None:
        self.maintenance.compact(self.replica(partition))

    def maintain(self, steps_max: int = 200) -> int:
        """All there is to do; how many steps that were."""
        for steps in range(steps_max):
            if not self.maintenance.step():
                return steps
        raise AssertionError("maintenance does not come to an end")

    def adopt(self, source: str, target: str, held: TokenRange = WHOLE) -> None:
        self.maintenance.adopt(self.replica(source), self.maintenance, self.replica(target), held)

    def fill_log(self, partition: str = "filler") -> None:
        """So much of another replica that the log must be shortened soon."""
        hand = self.hand(partition)
        while sum(self.volume.log.sizes.values()) <= self.settings.log_bytes_max:
            hand.put(birds(*((f"{hand.counter}-{number}", number) for number in range(40))))
            hand.trim(hand.last)
            self.volume.sync()

    def segments(self, partition: str = "p1") -> list[str]:
        return [
            path
            for path in self.memory.paths()
            if f"/{partition}~" in path and path.endswith(".segment")
        ]


@contextmanager
def small_pieces(rows_of_a_block: int = 4, piece_bytes: int = 400) -> Iterator[None]:
    """Segments of many blocks, and merges and scans in many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "BLOCK_ROWS", rows_of_a_block)
        patch.setattr(maintenance, "MERGE_BYTES", piece_bytes)
        patch.setattr(flush, "PIECE_BYTES", piece_bytes)
        patch.setattr(view, "SCAN_BYTES", piece_bytes)
        yield


@contextmanager
def colliding_tokens(kept_bits: int = 2) -> Iterator[None]:
    """Only a few tokens exist, so that most keys share theirs with others."""

    def squashed(columns: Sequence[core_tokens.Column]) -> NDArray[np.int64]:
        shift = np.int64(64 - kept_bits)
        return (core_tokens.tokens(columns) >> shift) << shift

    def squashed_one(table: Table, key: Sequence[Any]) -> int:
        token = core_tokens.token_of(key, table.key_types)
        return token >> (64 - kept_bits) << (64 - kept_bits)

    with pytest.MonkeyPatch.context() as patch:
        for module in (rows, view):
            patch.setattr(module, "tokens", squashed)
        patch.setattr(Table, "token_of", squashed_one)
        yield


def table_digest(view: View, table: Table, token_range: TokenRange = WHOLE) -> Digest:
    """The digest of the table's rows in a range, with tombstones."""
    batches = view.batches(table, token_range, tombstones=True)
    return sum((digest(batch.hashes()) for batch in batches), Digest.EMPTY)
