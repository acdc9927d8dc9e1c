"""Does a volume hold what was written to it, whatever happens in whatever order?

Everything is done to a volume and to a dictionary, and then compared. Limits are tiny, so that a
few rows are flushed, merged and carried from one log file to the next all the time. Processes die
at any file operation, machines lose power, and changes come in the middle of maintenance.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
from limosa.core.producers import Producers
from limosa.storage.log import HEADER_BYTES
from limosa.storage.maintenance import Maintenance
from limosa.storage.replica import FOREVER, StoredReplica
from limosa.storage.view import View
from limosa.storage.volume import StorageSettings, Volume
from limosa.tabular.rows import Batch, Bundle, concat_columns
from limosa.tabular.schema import Table
from tests.storage.faulty_files import (
    Died,
    FaultyFiles,
    Moment,
    Operation,
    at_operation,
    die,
    nothing_happens,
)
from tests.storage.medium import MediumFiles
from tests.storage.samples import (
    BIRDS,
    LEFT,
    NESTS,
    RIGHT,
    SONGS,
    batch_of,
    colliding_tokens,
    records,
    small_pieces,
    table_digest,
)

ReplicaKey: TypeAlias = tuple[str, str]
RowKey: TypeAlias = tuple[str, Any]

REPLICAS: list[ReplicaKey] = [("p0", "a"), ("p1", "a"), ("p2", "b")]
TABLES = {"birds": BIRDS, "nests": NESTS, "songs": SONGS}
KEYS: dict[str, Sequence[Any]] = {
    "birds": [f"bird {number}" for number in range(12)],
    "nests": list(range(12)),
    "songs": ["wren", "rook"],
}
TINY = StorageSettings(
    log_file_bytes=HEADER_BYTES + 2000,
    log_bytes_max=14_000,
    replica_memory_bytes=600,
    memory_bytes=1500,
    piece_bytes=900,
)


# ------------------------------------------------------------------------------------- the model


class Row:
    """What a batch says of one key; no value is a tombstone."""

    def __init__(self, table: str, key: Any, value: Any, version: Position) -> None:
        self.table, self.key, self.value, self.version = table, key, value, version


def rows_in(batch: Batch, version: Position | None = None) -> list[Row]:
    keys, values = (column.to_pylist() for column in batch.columns.columns)
    gone = [False] * len(batch) if batch.deleted is None else batch.deleted.tolist()
    versions = [version] * len(batch) if version is not None else batch.versions.tolist()  # type: ignore[union-attr]
    return [
        Row(batch.table.id, key, None if is_gone else value, at)
        for key, value, is_gone, at in zip(keys, values, gone, versions, strict=True)
    ]


def batches_of(entry: Entry) -> tuple[Batch, ...]:
    return entry.rows.batches if isinstance(entry.rows, Bundle) else ()


class Adopted(VolumeEffect, frozen=True):
    """No change of the log, but of the replica: rows of another one."""

    rows: tuple[tuple[RowKey, tuple[Position, Any]], ...]
    records: tuple[tuple[str, int], ...]


class Model:
    """A replica, as `limosa.simulation.disk` means it, with streams."""

    def __init__(self) -> None:
        self.epoch = self.begun = 0
        self.first = self.watermark = self.collected = 0
        self.entries: list[Entry] = []
        self.producers = Producers()
        self.rows: dict[RowKey, tuple[Position, Any]] = {}
        self.records: list[tuple[str, int]] = []

    def copy(self) -> "Model":
        other = Model()
        other.__dict__.update(self.__dict__)
        other.entries, other.records = list(self.entries), list(self.records)
        other.rows = dict(self.rows)
        other.producers = Producers()
        other.producers.unite(self.producers.value(FOREVER))
        return other

    @property
    def last(self) -> Position:
        return max(self.first, self.watermark, *(entry.at for entry in self.entries[-1:]), 0)

    def apply(self, change: VolumeEffect) -> None:
        match change:
            case AppendEntries(entries=entries):
                for entry in entries:
                    self.entries.append(entry)
                    self.producers.note(entry)
            case AdvanceWatermark(to=to):
                self.commit(to)
            case StoreEpoch(epoch=epoch):
                self.epoch = max(self.epoch, epoch)
            case TrimLog(to=to):
                self.entries = [entry for entry in self.entries if entry.at > to]
                self.first = to
            case TruncateLog(to=to):
                self.entries = [entry for entry in self.entries if entry.at <= to]
                self.producers.forget_after(to)
            case BeginLog(base=base, epoch=epoch):
                begun = Model()
                begun.epoch, begun.begun = self.epoch, epoch
                begun.first = begun.watermark = base
                self.__dict__.update(begun.__dict__)
            case ApplySlice(rows=bundles, producers=producers):
                for bundle in bundles:
                    assert isinstance(bundle, Bundle)
                    for batch in bundle.batches:
                        for row in rows_in(batch):
                            self.put((row.table, row.key), row.version, row.value)
                self.producers.unite(producers)
            case Adopted(rows=rows, records=adopted):
                for key, (version, value) in rows:
                    self.put(key, version, value)
                if len(adopted) > len(self.records):
                    self.records = list(adopted)
            case _:
                raise AssertionError(change)

    def put(self, key: RowKey, version: Position, value: Any) -> None:
        there = self.rows.get(key)
        if there is None or there[0] <= version:
            self.rows[key] = (version, value)

    def commit(self, to: Position) -> None:
        for entry in self.entries:
            if self.watermark < entry.at <= to:
                self.collect(entry.collects)
                self.producers.settle(entry)
                for batch in batches_of(entry):
                    for row in rows_in(batch, entry.at):
                        if row.table == "songs":
                            self.records.append((row.key, row.value))
                        else:
                            self.put((row.table, row.key), row.version, row.value)
        self.watermark = max(self.watermark, to)

    def collect(self, up_to: Position) -> None:
        self.collected = max(self.collected, up_to)
        for key, (version, value) in list(self.rows.items()):
            if value is None and version <= up_to:
                del self.rows[key]

    def newest(self, key: RowKey) -> Position:
        for entry in reversed(self.entries):
            if entry.at <= self.watermark:
                break
            rows = [row for batch in batches_of(entry) for row in rows_in(batch, entry.at)]
            found = [row for row in rows if (row.table, row.key) == key]
            if found:
                return 0 if found[-1].value is None else entry.at
        version, value = self.rows.get(key, (0, None))
        return 0 if value is None else version

    def state(self) -> dict[str, Any]:
        return {
            "epochs": (self.epoch, self.begun),
            "positions": (self.first, self.watermark),
            "entries": [said(entry) for entry in self.entries],
            "producers": self.producers.value(FOREVER),
            "rows": dict(self.rows),
            "records": list(self.records),
        }

    def batch(self, table: Table) -> Batch:
        found = [(key, *row) for (name, key), row in self.rows.items() if name == table.id]
        batch = batch_of(table, [(key, value) for key, _, value in found])
        versions = np.array([version for _, version, _ in found], np.int64)
        deleted = np.array([value is None for _, _, value in found], np.bool_)
        return Batch(table, batch.columns, batch.tokens, versions, deleted)


def said(entry: Entry) -> tuple[Any, ...]:
    """All that an entry says, with its rows as values."""
    rows = None
    if entry.rows is not None:
        rows = [
            (row.table, row.key, row.value)
            for batch in batches_of(entry)
            for row in rows_in(batch, 0)
        ]
    found = (entry.range, entry.found, entry.collects, rows)
    return (entry.at, entry.previous, entry.producer, entry.sequence, entry.floor, *found)


def seen(volume: Volume, replica: StoredReplica) -> dict[str, Any]:
    """The same of the volume."""
    held = replica.restored("n1")
    entries = volume.tail(replica, 0)
    assert [at for at, _ in held.log] == [entry.at for entry in entries]
    rows = {}
    for table in (BIRDS, NESTS):
        last = WHOLE.start
        for batch in replica.view.batches(table, tombstones=True):
            assert batch.tokens.tolist() == sorted([last, *batch.tokens.tolist()])[1:]
            last = int(batch.tokens[-1]) if len(batch) else last
            for row in rows_in(batch):
                assert (row.table, row.key) not in rows, "a key came twice"
                rows[row.table, row.key] = (row.version, row.value)
    return {
        "epochs": (held.epoch, held.begun),
        "positions": (held.first, held.watermark),
        "entries": [said(entry) for entry in entries],
        "producers": held.producers,
        "rows": rows,
        "records": records(replica.view),
    }


# ------------------------------------------------------------------------------------- writing


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    """Some batches, perhaps several of one table, with keys that come twice."""
    batches = []
    for name in draw(st.lists(st.sampled_from(["birds", "birds", "nests", "songs"]), max_size=3)):
        table, keys = TABLES[name], KEYS[name]
        chosen = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=8))
        values = [(key, draw(st.integers(0, 99))) for key in chosen]
        batch = batch_of(table, values)
        if name != "songs" and draw(st.booleans()):
            batch = Batch.tombstones(table, batch.columns)
        batches.append(batch)
    return Bundle(batches)


def copied(table: Table, keys: Sequence[Any], versions: Sequence[Position]) -> Batch:
    """Rows of another replica: what they are follows from key and version."""
    values = [(key, hash((key, at)) % 1000) for key, at in zip(keys, versions, strict=True)]
    batch = batch_of(table, values)
    deleted = np.array([at // 2 % 3 == 0 for at in versions], np.bool_)
    gone = Batch.tombstones(table, batch.columns)
    rows = [
        gone.columns.slice(n, 1) if is_gone else batch.columns.slice(n, 1)
        for n, is_gone in enumerate(deleted.tolist())
    ]
    return Batch(table, concat_columns(rows), batch.tokens, np.array(versions, np.int64), deleted)


replicas = st.sampled_from(REPLICAS)
moments = st.sampled_from(["before", "middle", "after"])
operations = st.integers(1, 30)
ranges = st.sampled_from([WHOLE, LEFT, RIGHT, TokenRange(-(2**62), 2**62)])


class Kept:
    """A view that somebody still looks at, and what was to be seen in it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.digest = view.digest()
        self.rows = [view.count(table) for table in (BIRDS, NESTS)]
        self.records = records(view)

    def check(self) -> None:
        assert self.view.digest() == self.digest
        assert [self.view.count(table) for table in (BIRDS, NESTS)] == self.rows
        assert records(self.view) == self.records


# ------------------------------------------------------------------------------------- the machine


class VolumeMachine(RuleBasedStateMachine):
    """One volume and three replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.patches.enter_context(small_pieces(3, 300))
        self.memory = MediumFiles()
        self.models: dict[ReplicaKey, Model] = {}
        self.durable: dict[ReplicaKey, Model] = {}
        self.journal: list[tuple[ReplicaKey, VolumeEffect]] = []
        self.kept: list[Kept] = []
        self.counter = 0
        self.open()

    def teardown(self) -> None:
        self.patches.close()

    def open(self) -> None:
        self.files = FaultyFiles(self.memory)
        self.volume = Volume(self.files, "v1", "v1", TINY)
        assert self.volume.refused == {}
        self.maintenance = Maintenance(self.volume)

    # --- both do the same

    def write(self, change: VolumeEffect) -> None:
        self.volume.write(change)
        self.note(change)

    def note(self, change: VolumeEffect) -> None:
        key = (change.partition, change.incarnation)
        carry_out(self.models, key, change)
        self.journal.append((key, change))

    def settle(self) -> None:
        """What there is now stays."""
        self.durable = {key: model.copy() for key, model in self.models.items()}
        self.journal.clear()

    # --- changes

    @initialize()
    def start(self) -> None:
        for key in REPLICAS[:2]:
            self.create(key)

    @rule(key=replicas)
    def create(self, key: ReplicaKey) -> None:
        self.write(CreateReplica(*key, 0, "v1"))
        self.write(BeginLog(*key, 0, 0, 1))

    @rule(key=replicas, data=st.data(), count=st.integers(1, 3), commit=st.booleans())
    def append(self, key: ReplicaKey, data: st.DataObject, count: int, commit: bool) -> None:
        if key in self.models:
            entries = [data.draw(bundles()) for _ in range(count)]
            self.write(AppendEntries(*key, 0, self.entries(key, entries, data)))
            if commit:
                self.write(AdvanceWatermark(*key, 0, self.models[key].last))

    @rule(key=replicas, days=st.integers(1, 9), rest=st.sampled_from(["flush", "step", "nothing"]))
    def work_for_days(self, key: ReplicaKey, days: int, rest: str) -> None:
        """Much of the same: what takes many segments or many log files to happen."""
        for day in range(days):
            if key not in self.models:
                return
            birds = batch_of(BIRDS, [(name, day) for name in KEYS["birds"][day : day + 4]])
            rows = Bundle([birds, batch_of(SONGS, [("rook", day)])])
            self.write(AppendEntries(*key, 0, self.entries(key, [rows])))
            self.write(AdvanceWatermark(*key, 0, self.models[key].last))
            if rest == "flush":
                self.flush(key)
            elif rest == "step":
                self.volume.sync()
                self.maintenance.step()

    def entries(
        self, key: ReplicaKey, all_rows: Sequence[Bundle | None], data: st.DataObject | None = None
    ) -> tuple[Entry, ...]:
        model = self.models[key]
        previous, made = model.last, []
        for rows in all_rows:
            at = self.next_position(model)
            producer = data.draw(st.sampled_from(["", "x", "y"])) if data else ""
            floor = max(0, self.counter - 9) if producer == "y" else 0
            made.append(Entry(at, previous, rows, producer, self.counter, floor))
            previous = at
        return tuple(made)

    def next_position(self, model: Model) -> Position:
        """Even ones; copied rows have odd ones. Never the same one twice, on no replica."""
        self.counter += 1
        return position(max(1, model.epoch), 2 * self.counter)

    @rule(key=replicas, count=st.integers(0, 5))
    def advance(self, key: ReplicaKey, count: int) -> None:
        if key in self.models:
            model = self.models[key]
            open_ones = [entry.at for entry in model.entries if entry.at > model.watermark]
            if open_ones[:count]:
                self.write(AdvanceWatermark(*key, 0, open_ones[:count][-1]))

    @rule(key=replicas, data=st.data())
    def truncate(self, key: ReplicaKey, data: st.DataObject) -> None:
        if key in self.models:
            model = self.models[key]
            open_ones = [entry.at for entry in model.entries if entry.at > model.watermark]
            self.write(
                TruncateLog(*key, 0, data.draw(st.sampled_from([model.watermark, *open_ones])))
            )

    @rule(key=replicas, count=st.integers(0, 8))
    def trim(self, key: ReplicaKey, count: int) -> None:
        if key in self.models:
            model = self.models[key]
            done = [entry.at for entry in model.entries if entry.at <= model.watermark]
            if done[:count]:
                self.write(TrimLog(*key, 0, done[:count][-1]))

    @rule(key=replicas)
    def trim_all(self, key: ReplicaKey) -> None:
        self.trim(key, 1000)

    @rule(key=replicas)
    def store_epoch(self, key: ReplicaKey) -> None:
        if key in self.models:
            self.write(StoreEpoch(*key, 0, max(1, self.models[key].epoch) + 1))

    @rule(key=replicas)
    def begin(self, key: ReplicaKey) -> None:
        if key in self.models:
            model = self.models[key]
            self.write(BeginLog(*key, 0, model.last, max(1, model.epoch)))

    @rule(key=replicas, table=st.sampled_from([BIRDS, NESTS]), data=st.data(), to=replicas)
    def apply_slice(
        self, key: ReplicaKey, table: Table, data: st.DataObject, to: ReplicaKey
    ) -> None:
        if key in self.models:
            model = self.models[key]
            lowest = max(model.collected, position(1, 0))
            highest = max(model.last, lowest) + 20
            keys = data.draw(st.lists(st.sampled_from(KEYS[table.id]), max_size=8, unique=True))
            versions = [data.draw(st.integers(lowest, highest)) // 2 * 2 + 1 for _ in keys]
            other = self.models.get(to)
            producers = other.producers.value(other.watermark) if other else ()
            rows = (Bundle([copied(table, keys, versions)] if keys else []),)
            self.write(ApplySlice(*key, 0, rows, producers))

    @rule(key=replicas, share=st.integers(0, 3))
    def collect(self, key: ReplicaKey, share: int) -> None:
        if key in self.models:
            model = self.models[key]
            versions = sorted(version for version, _ in model.rows.values())
            up_to = versions[len(versions) * share // 4] if versions else 0
            if up_to <= model.watermark:
                (entry,) = self.entries(key, [None])
                at = entry.at
                entry = Entry(at, entry.previous, None, collects=up_to)
                self.write(AppendEntries(*key, 0, (entry,)))
                self.write(AdvanceWatermark(*key, 0, at))

    @rule(key=replicas, again=st.booleans())
    def discard(self, key: ReplicaKey, again: bool) -> None:
        self.write(DiscardReplica(*key, 0))
        if again:
            self.create(key)

    # --- durability and maintenance

    @rule()
    def sync(self) -> None:
        self.volume.sync()
        self.settle()

    @rule(steps=st.integers(1, 12))
    def maintain(self, steps: int) -> None:
        for _ in range(steps):
            if not self.maintenance.step():
                break
        assert self.maintenance.trouble is None

    @rule()
    def maintain_to_the_end(self) -> None:
        for _ in range(300):
            if not self.maintenance.step():
                return
        raise AssertionError("maintenance does not come to an end")

    @rule(key=replicas)
    def flush(self, key: ReplicaKey) -> None:
        if key in self.models:
            self.maintenance.flush(self.volume.replicas[key])
            assert self.volume.replicas[key].memory_bytes == 0

    @rule(key=replicas)
    def compact(self, key: ReplicaKey) -> None:
        if key in self.models:
            self.maintenance.compact(self.volume.replicas[key])
            for view in self.volume.replicas[key].view.tables.values():
                assert view.table.kind == "stream" or all(r.level == 2 for r in view.segments)

    def adoption(self, source: ReplicaKey, target: ReplicaKey, held: TokenRange) -> Adopted | None:
        """What is adopted, if it makes sense."""
        if source == target or source not in self.models or target not in self.models:
            return None
        giver, taker = self.models[source], self.models[target]
        if giver.collected or taker.collected:
            return None  # tombstones that are gone here and not there
        if taker.records != giver.records[: len(taker.records)]:
            return None
        if held != WHOLE and "songs" in self.volume.replicas[source].view.tables:
            return None
        rows = [
            (key, row)
            for key, row in giver.rows.items()
            if held.holds(int(batch_of(TABLES[key[0]], [(key[1], 0)]).tokens[0]))
        ]
        return Adopted(*target, 0, tuple(rows), tuple(giver.records))

    def adopt_now(self, source: ReplicaKey, target: ReplicaKey, held: TokenRange) -> None:
        replicas = self.volume.replicas
        self.maintenance.adopt(replicas[source], self.maintenance, replicas[target], held)

    @rule(giver=replicas, taker=replicas, held=ranges)
    def adopt(self, giver: ReplicaKey, taker: ReplicaKey, held: TokenRange) -> None:
        adopted = self.adoption(giver, taker, held)
        if adopted is not None:
            self.adopt_now(giver, taker, held)
            self.note(adopted)
            self.check_rows()
            self.adopt_now(giver, taker, held)

    def slice_of(self, key: ReplicaKey) -> ApplySlice:
        """Copied rows, past the log: all that came before them is durable."""
        self.sync()
        versions = [self.models[key].last + 1] * 5
        return ApplySlice(*key, 0, (Bundle([copied(BIRDS, KEYS["birds"][2:7], versions)]),), ())

    def shelve_now(self, change: ApplySlice) -> None:
        replica = self.volume.replicas[change.partition, change.incarnation]
        rows = [some for some in change.rows if isinstance(some, Bundle)]
        digest = sum(some.digest() for some in rows)
        collected = replica.view.collected
        assert not len(self.maintenance.shelve(replica, rows, WHOLE, digest, collected, 0))

    @rule(key=replicas)
    def shelve(self, key: ReplicaKey) -> None:
        if key in self.models:
            change = self.slice_of(key)
            self.shelve_now(change)
            self.note(change)
            self.check_rows()
            self.shelve_now(change)
            self.settle()

    # --- in the middle of it

    def some_work(
        self, work: str, key: ReplicaKey, other: ReplicaKey
    ) -> tuple[Callable[[], object], VolumeEffect | None]:
        if work == "shelve" and key in self.models:
            change = self.slice_of(key)
            return lambda: self.shelve_now(change), change
        if work == "adopt":
            adopted = self.adoption(key, other, WHOLE)
            if adopted is not None:
                return lambda: self.adopt_now(key, other, WHOLE), adopted
        replica = self.volume.replicas.get(key)
        if work == "flush" and replica is not None:
            return lambda: self.maintenance.flush(replica), None
        if work == "compact" and replica is not None:
            return lambda: self.maintenance.compact(replica), None
        if work == "sync":
            return self.volume.sync, None
        return self.maintenance.step, None

    @rule(
        work=st.sampled_from(["step", "flush", "compact", "sync"]),
        what=st.sampled_from(["append", "commit", "begin", "discard", "recreate", "slice", "trim"]),
        number=operations,
        key=replicas,
        other=replicas,
    )
    def meanwhile(
        self, work: str, what: str, number: int, key: ReplicaKey, other: ReplicaKey
    ) -> None:
        """Another thread writes while this one works."""
        act, _ = self.some_work(work, key, other)
        rows = Bundle([batch_of(BIRDS, [(key, 1) for key in KEYS["birds"][:5]])])

        def interfere() -> None:
            if what in ("append", "commit") and other in self.models:
                self.write(AppendEntries(*other, 0, self.entries(other, [rows])))
                if what == "commit":
                    self.write(AdvanceWatermark(*other, 0, self.models[other].last))
            elif what == "begin":
                self.begin(other)
            elif what == "trim":
                self.trim_all(other)
            elif what == "slice" and other in self.models:
                version = self.models[other].last + 1
                batch = copied(BIRDS, KEYS["birds"][3:6], [version] * 3)
                self.write(ApplySlice(*other, 0, (Bundle([batch]),), ()))
            elif what in ("discard", "recreate"):
                self.discard(other, what == "recreate")

        def plan(operation: Operation, moment: Moment) -> None:
            if operation.number == number and moment == "before":
                interfere()

        self.files.arm(plan)
        act()
        self.files.arm(nothing_happens)

    @rule(
        work=st.sampled_from(["step", "flush", "compact", "sync", "adopt", "shelve"]),
        number=operations,
        moment=moments,
        key=replicas,
        other=replicas,
        power=st.booleans(),
        seed=st.integers(0, 99),
    )
    def die_in(
        self,
        work: str,
        number: int,
        moment: Moment,
        key: ReplicaKey,
        other: ReplicaKey,
        power: bool,
        seed: int,
    ) -> None:
        act, adopted = self.some_work(work, key, other)
        self.files.arm(at_operation(number, moment, die))
        try:
            act()
        except Died:
            if adopted is not None:
                self.note(adopted)
            self.recover(Random(seed), power)
        else:
            self.files.arm(nothing_happens)
            if adopted is not None:
                self.note(adopted)

    @rule(number=operations, moment=moments, power=st.booleans(), seed=st.integers(0, 99))
    def die_while_it_starts(self, number: int, moment: Moment, power: bool, seed: int) -> None:
        self.memory.crash(Random(seed), process_only=not power)
        files = FaultyFiles(self.memory, at_operation(number, moment, die))
        try:
            volume = Volume(files, "v1", "v1", TINY)
            Maintenance(volume)
        except Died:
            pass
        self.recover(Random(seed + 1), not power)

    @rule()
    def reopen(self) -> None:
        self.volume.close()
        self.settle()
        self.open()

    @rule()
    def kill(self) -> None:
        self.recover(Random(0), power=False)

    @rule(seed=st.integers(0, 99))
    def lose_power(self, seed: int) -> None:
        self.recover(Random(seed), power=True)

    def recover(self, dice: Random, power: bool) -> None:
        """What came back is what was synced, and a prefix of the rest: one of them for all."""
        self.memory.crash(dice, process_only=not power)
        self.open()
        cuts = set(range(len(self.journal) + 1))
        keys = {*self.durable, *(key for key, _ in self.journal), *self.volume.replicas}
        found: dict[ReplicaKey, Model] = {}
        for key in sorted(keys):
            cuts &= self.recover_one(key, found)
            assert cuts, "replicas of one log came back from different moments"
        self.models = found
        self.settle()

    def recover_one(self, key: ReplicaKey, found: dict[ReplicaKey, Model]) -> set[int]:
        """Where the log may have ended, by this replica."""
        own = [(n, change) for n, (changed, change) in enumerate(self.journal) if changed == key]
        replica = self.volume.replicas.get(key)
        state = None if replica is None else seen(self.volume, replica)
        models = {key: self.durable[key].copy()} if key in self.durable else {}
        cuts: set[int] = set()
        states = []
        for done in range(len(own) + 1):
            model = models.get(key)
            states.append(None if model is None else model.state())
            if states[-1] == state:
                lowest = max((n + 1 for n, c in own[:done] if is_logged(c)), default=0)
                highest = min((n for n, c in own[done:] if is_logged(c)), default=len(self.journal))
                cuts |= set(range(lowest, highest + 1))
                if model is not None:
                    found[key] = model.copy()
                else:
                    found.pop(key, None)
            if done < len(own):
                carry_out(models, key, own[done][1])
        assert cuts, f"{key} came back as {state}, which is none of {states}"
        return cuts

    # --- what always holds

    @rule(key=replicas)
    def keep_view(self, key: ReplicaKey) -> None:
        if key in self.models:
            self.kept = [*self.kept[-2:], Kept(self.volume.replicas[key].view)]

    @precondition(lambda self: self.kept)
    @rule()
    def look_again(self) -> None:
        for kept in self.kept:
            kept.check()

    @invariant()
    def check_rows(self) -> None:
        assert self.volume.replicas.keys() == self.models.keys()
        for key, model in self.models.items():
            replica = self.volume.replicas[key]
            assert seen(self.volume, replica) == model.state()
            assert replica.view.collected == model.collected or not model.collected

    @invariant()
    def check_totals(self) -> None:
        """Counting what changed gives the same as counting everything."""
        tally, held = self.volume.tally, self.volume.replicas
        tally.count()
        places = [{each.place for each in replica.log} for replica in held.values()]
        assert tally.memory_bytes == sum(replica.memory_bytes for replica in held.values())
        assert tally.log_bytes == sum(place.size for some in places for place in some)
        assert tally.log_frames == sum(map(len, places))
        assert tally.sizes == {key: replica.view.size for key, replica in held.items()}

    @rule(key=replicas, held=ranges)
    def read(self, key: ReplicaKey, held: TokenRange) -> None:
        if key not in self.models:
            return
        model, replica = self.models[key], self.volume.replicas[key]
        view = replica.view
        assert (view.digest(), view.next_offset(SONGS)) == with_records(model, view)
        for table in (BIRDS, NESTS):
            for value in KEYS[table.id]:
                version, expected = model.rows.get((table.id, value), (0, None))
                found = view.get(table, (value,))
                name = table.value_names[0]
                assert (None if found is None else found[name]) == expected
                assert replica.newest(table, (value,)) == model.newest((table.id, value)), version
            inside = [
                value
                for (name, value), (_, found) in model.rows.items()
                if name == table.id and found is not None
                if held.holds(int(batch_of(table, [(value, 0)]).tokens[0]))
            ]
            assert view.count(table, held) == len(inside)
            halves = table_digest(view, table, LEFT) + table_digest(view, table, RIGHT)
            assert halves == table_digest(view, table)
        for offset in range(len(model.records) + 2):
            assert records(view, offset) == model.records[offset:]


def with_records(model: Model, view: View) -> tuple[int, int]:
    """The model's digest; what a stream adds to it is the engine's own."""
    rows = Bundle(model.batch(table) for table in (BIRDS, NESTS)).digest()
    return rows + Bundle(view.batches(SONGS)).digest(), len(model.records)


def carry_out(models: dict[ReplicaKey, Model], key: ReplicaKey, change: VolumeEffect) -> None:
    if isinstance(change, CreateReplica):
        models[key] = Model()
    elif isinstance(change, DiscardReplica):
        models.pop(key, None)
    elif key in models:
        models[key].apply(change)


def is_logged(change: VolumeEffect) -> bool:
    """Watermarks are logged later than they were told, and adopted files are not."""
    return not isinstance(change, AdvanceWatermark | Adopted)


class CollidingMachine(VolumeMachine):
    """The same, with four tokens for all keys."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(colliding_tokens())
            super().__init__()
            self.patches.push(stack.pop_all())


EFFORT = settings(
    max_examples=80,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)

TestVolume = VolumeMachine.TestCase
TestVolume.settings = EFFORT
TestCollidingTokens = CollidingMachine.TestCase
TestCollidingTokens.settings = EFFORT

for each in (TestVolume, TestCollidingTokens):
    pytest.mark.thorough(each)
