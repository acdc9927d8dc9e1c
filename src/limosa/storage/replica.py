"""What does a volume hold of one replica? Its log, and its committed rows.

`apply` carries out a change in memory, after the volume has appended it to its log. The same
function replays the log after a crash, so a change has one meaning. Entries above the watermark
are only in the log: they can still be truncated.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from msgspec import structs

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    ApplySlice,
    BeginLog,
    StoreEpoch,
    TrimLog,
    TruncateLog,
    VolumeEffect,
)
from limosa.core.events import HeldReplica
from limosa.core.model.keys import Incarnation, NodeId, PartitionId, Position
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.producers import Producers
from limosa.errors import BadInput
from limosa.storage.log import Place
from limosa.storage.manifest import Manifest, SegmentName, TableManifest
from limosa.storage.memtable import Filter, Memtable, added
from limosa.storage.view import Ranged, TableView, View, has_key
from limosa.tabular.rows import Bundle
from limosa.tabular.schema import Table, newer

ReplicaKey: TypeAlias = tuple[PartitionId, Incarnation]
FOREVER: Position = 2**62
NO_FILE = 2**62


class Logged:
    """An entry of the log, and the place of its frame. Once its rows are in a segment, they are
    dropped from memory, and read from the frame when needed."""

    __slots__ = ("entry", "memtables", "place", "rowless", "size")

    def __init__(self, entry: Entry, place: Place) -> None:
        self.entry = entry
        self.place = place
        self.size = entry.bytes
        self.rowless = False
        self.memtables: tuple[Memtable, ...] | None = None

    def as_memtables(self) -> tuple[Memtable, ...]:
        """Its rows with their version, ready for lookups."""
        if self.memtables is None:
            rows = self.entry.rows
            batches = rows.batches if isinstance(rows, Bundle) else ()
            at = self.entry.at
            self.memtables = tuple(Memtable.at(batch, at) for batch in batches)
        return self.memtables

    def forget_rows(self) -> None:
        self.memtables = None
        if self.entry.rows is not None:
            self.entry = structs.replace(self.entry, rows=None)
            self.rowless = True


class StoredReplica:
    """One replica in memory; `view` leads to its segments."""

    def __init__(self, partition: PartitionId, incarnation: Incarnation, volume: str) -> None:
        self.partition = partition
        self.incarnation = incarnation
        self.volume = volume
        self.epoch = 0
        self.begun = 0
        self.first: Position = 0
        self.log: list[Logged] = []
        self.positions: list[Position] = []
        self.producers = Producers()
        self.view = View()
        self.beginnings = self.beginnings_at_rest = 0
        """How often the replica was emptied: files written for an earlier life are obsolete."""
        self.manifest: Manifest | None = None
        self.damaged = ""
        """Which file does not match its checksum; empty: none that is known."""
        self.considered: dict[str, tuple[tuple[Ranged, ...], Position]] = {}
        """Segments of each table for which no compaction job was found."""
        self.flushed_sequence = 0
        self.last_sequence = 0
        self._oldest_run = NO_FILE
        """The first log file with committed rows that are in no segment yet."""
        self._oldest_frozen = NO_FILE
        self._weight: tuple[int, int] | None = (0, 0)
        """Bytes and number of the log frames that its entries need; None: not counted yet."""
        self.counted = (0, 0, 0)
        """Its share of the volume's totals: see `Tally`."""

    @property
    def watermark(self) -> Position:
        return self.view.watermark

    @property
    def is_dirty(self) -> bool:
        """Some changes are only in the log."""
        is_watermark_newer = self.manifest is not None and self.manifest.watermark < self.watermark
        return self.last_sequence > self.flushed_sequence or is_watermark_newer

    def is_dirty_before(self, sequence: int) -> bool:
        """Some of these changes may be in the log up to this sequence."""
        return self.is_dirty and self.flushed_sequence < sequence

    def has_entries_in(self, file: int) -> bool:
        return any(logged.place.file == file for logged in self.log)

    def has_rows_in(self, file: int) -> bool:
        """The file has committed rows that are in no segment yet, though their entries may be
        trimmed: they were not committed at the time of the last flush."""
        return min(self._oldest_run, self._oldest_frozen) <= file

    def measured(self) -> tuple[int, int, int]:
        """Bytes of rows in memory; bytes and number of the log frames that its entries need."""
        if self._weight is None:
            places = {logged.place for logged in self.log}
            self._weight = (sum(place.size for place in places), len(places))
        return self.memory_bytes, *self._weight

    @property
    def memory_bytes(self) -> int:
        return sum(
            each.bytes
            for view in self.view.tables.values()
            for each in (*view.memtables, *view.frozen)
        )

    # --- changes

    def apply(self, change: VolumeEffect, place: Place) -> None:
        match change:
            case AppendEntries(entries=entries):
                for entry in entries:
                    self._append(entry, place)
                    self.producers.note(entry)
            case AdvanceWatermark(to=to):
                self._commit(to)
            case StoreEpoch(epoch=epoch):
                self.epoch = max(self.epoch, epoch)
            case TrimLog(to=to):
                self._trim(to)
            case TruncateLog(to=to):
                self._truncate(to)
                self.producers.forget_after(to)
            case BeginLog(base=base, epoch=epoch):
                self._begin(base, epoch)
            case ApplySlice(rows=rows, producers=producers):
                self._apply_slice(rows)
                self.producers.unite(producers)
            case _:
                raise AssertionError(change)

    def recall(self, change: VolumeEffect, place: Place) -> None:
        """Replay a change that the manifest includes: only entries of the log are restored."""
        match change:
            case AppendEntries(entries=entries):
                for entry in entries:
                    self._append(entry, place)
            case TruncateLog(to=to):
                self._truncate(to)
            case BeginLog():
                self.forget_log()

    def forget_log(self) -> None:
        self.log.clear()
        self.positions.clear()
        self._weight = None

    def forget_trimmed(self) -> None:
        """Drop entries that were trimmed but are still in the log's files."""
        self._trim(self.first)

    def move(self, file: int, place: Place) -> None:
        """Entries of a file were appended again: point them to their new place."""
        self._weight = None
        for logged in self.log:
            if logged.place.file == file:
                logged.place = place

    def carry(self, entries: Iterable[Entry], place: Place) -> None:
        """Restore entries that were appended again, because their log file was to be removed."""
        self._weight = None
        for entry in entries:
            at = bisect_right(self.positions, entry.at)
            if at and self.positions[at - 1] == entry.at:
                self.log[at - 1].place = place
            else:
                self.log.insert(at, Logged(entry, place))
                self.positions.insert(at, entry.at)

    def _append(self, entry: Entry, place: Place) -> None:
        if self._weight is not None and not (self.log and self.log[-1].place is place):
            self._weight = (self._weight[0] + place.size, self._weight[1] + 1)
        self.log.append(Logged(entry, place))
        self.positions.append(entry.at)

    def _trim(self, to: Position) -> None:
        index = bisect_right(self.positions, to)
        del self.log[:index], self.positions[:index]
        self._weight = None
        self.first = to

    def _truncate(self, to: Position) -> None:
        index = bisect_right(self.positions, to)
        del self.log[index:], self.positions[index:]
        self._weight = None

    def _begin(self, base: Position, epoch: int) -> None:
        self.forget_log()
        self.producers = Producers()
        self.first = base
        self.begun = epoch
        self.beginnings += 1
        self._oldest_run = self._oldest_frozen = NO_FILE
        self.view = View(watermark=base)

    def _commit(self, to: Position) -> None:
        view = self.view
        if to <= view.watermark:
            return
        start = bisect_right(self.positions, view.watermark)
        stop = bisect_right(self.positions, to)
        tables, collected = dict(view.tables), view.collected
        for logged in self.log[start:stop]:
            collected = max(collected, logged.entry.collects)
            self.producers.settle(logged.entry)
            self._oldest_run = min(self._oldest_run, logged.place.file)
            for memtable in logged.as_memtables():
                _add(tables, memtable)
            logged.memtables = None
        self.view = View(to, collected, tables)

    def _apply_slice(self, all_rows: Iterable[object]) -> None:
        tables = dict(self.view.tables)
        for rows in all_rows:
            assert isinstance(rows, Bundle)
            for batch in rows.batches:
                _add(tables, Memtable.of(batch))
        self.view = structs.replace(self.view, tables=tables)

    # --- reading

    def newest(self, table: Table, key: tuple[Any, ...]) -> Position:
        """The version that a compare-and-set compares with, including uncommitted rows."""
        token = table.token_of(key)
        comparable = table.comparable_key(key)
        start = bisect_right(self.positions, self.watermark)
        for logged in reversed(self.log[start:]):
            for memtable in reversed(logged.as_memtables()):
                if memtable.table.id == table.id:
                    for batch, row in reversed(memtable.find(token)):
                        if has_key(batch, row, comparable):
                            return 0 if batch.is_deleted(row) else logged.entry.at
        found = self.view.find(table, key)
        return 0 if found is None else found.version

    def behind(self, after: Position) -> Iterator[Logged]:
        """Entries after a position, lazily: the caller may need only a few of a long log."""
        return islice(self.log, bisect_right(self.positions, after), None)

    def restored(self, node: NodeId) -> HeldReplica:
        return HeldReplica(
            self.partition,
            Replica(node, self.incarnation, self.volume),
            self.epoch,
            self.begun,
            self.first,
            self.watermark,
            tuple((logged.entry.at, logged.size) for logged in self.log),
            self.producers.value(FOREVER),
            self.damaged,
            tuple(
                (logged.entry.at, logged.entry.producer, logged.entry.floor)
                for logged in self.behind(self.watermark)
                if logged.entry.producer
            ),
        )

    # --- segments and manifest

    def freeze(self, sequence: int) -> Manifest:
        """Set committed rows aside for new segments; return the manifest without them."""
        tables = {
            name: structs.replace(view, memtables=(), frozen=(*view.frozen, *view.memtables))
            for name, view in self.view.tables.items()
        }
        self.view = structs.replace(self.view, tables=tables)
        self._oldest_frozen = min(self._oldest_frozen, self._oldest_run)
        self._oldest_run = NO_FILE
        return self.describe(sequence)

    def thaw(self, manifest: Manifest, made: Mapping[str, Sequence[Ranged]]) -> None:
        """The rows that were set aside are in segments now, and the manifest names these."""
        tables = {
            name: structs.replace(
                view,
                frozen=(),
                segments=(*view.segments, *made.get(name, ())),
                filter=Filter(),
            )
            for name, view in self.view.tables.items()
        }
        self.view = structs.replace(self.view, tables=tables)
        self.rest(manifest)
        self.beginnings_at_rest = self.beginnings
        self._oldest_frozen = NO_FILE
        for logged in self.log[: bisect_right(self.positions, manifest.watermark)]:
            logged.forget_rows()

    def rest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.flushed_sequence = manifest.sequence

    def put_segments(self, table: str, segments: tuple[Ranged, ...]) -> None:
        view = structs.replace(self.view.tables[table], segments=segments)
        self.view = structs.replace(self.view, tables={**self.view.tables, table: view})

    def describe(self, sequence: int) -> Manifest:
        """The manifest of the current state and segments."""
        view = self.view
        return Manifest(
            self.partition,
            self.incarnation,
            self.volume,
            sequence,
            self.epoch,
            self.begun,
            self.first,
            view.watermark,
            view.collected,
            self.producers.value(FOREVER),
            tuple(describe_table(each) for _, each in sorted(view.tables.items())),
        )

    @classmethod
    def from_manifest(cls, manifest: Manifest, tables: dict[str, TableView]) -> "StoredReplica":
        replica = cls(manifest.partition, manifest.incarnation, manifest.volume)
        replica.epoch, replica.begun = manifest.epoch, manifest.begun
        replica.first = manifest.first
        replica.producers.unite(manifest.producers)
        replica.view = View(manifest.watermark, manifest.collected, tables)
        replica.manifest = manifest
        replica.flushed_sequence = replica.last_sequence = manifest.sequence
        return replica


def describe_table(view: TableView) -> TableManifest:
    in_memory = sum(len(each) for each in (*view.memtables, *view.frozen))
    names = tuple(name_of(ranged) for ranged in view.segments)
    return TableManifest(view.table.encode(), names, max(0, view.next_offset - in_memory))


def name_of(ranged: Ranged) -> SegmentName:
    return SegmentName(ranged.file, ranged.level, ranged.range, ranged.offset)


def _add(tables: dict[str, TableView], memtable: Memtable) -> None:
    table = memtable.table
    view = tables.get(table.id) or TableView(table)
    tables[table.id] = structs.replace(
        view,
        table=newer(view.table, table),
        memtables=added(view.memtables, memtable),
        next_offset=view.next_offset + len(memtable) if table.kind == "stream" else 0,
    )


def check_change(change: VolumeEffect, replica: StoredReplica) -> None:
    """Check a change before it is logged: a logged change is replayed at each start."""
    match change:
        case AppendEntries(entries=entries):
            for entry in entries:
                _check_rows(entry.rows, replica)
        case ApplySlice(rows=all_rows):
            for rows in all_rows:
                check_copied(rows, replica)


def _check_rows(rows: object, replica: StoredReplica) -> None:
    if rows is None:
        return
    assert isinstance(rows, Bundle), "a volume stores Arrow rows only"
    for batch in rows.batches:
        known = replica.view.tables.get(batch.table.id)
        if known is not None and known.table is not batch.table:
            known.table.check_kin(batch.table)


def check_copied(rows: object, replica: StoredReplica) -> None:
    assert isinstance(rows, Bundle)
    _check_rows(rows, replica)
    for batch in rows.batches:
        assert batch.versions is not None, "copied rows have versions"
        if batch.table.kind == "stream":
            raise BadInput(
                f"stream {batch.table.id} can't be copied by row version", "send its log instead"
            )
