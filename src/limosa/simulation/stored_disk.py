"""Does the real storage do what a disk must? All of its answers are compared with a model.

The simulated disk is the model; beside it is a real `Store` on a file system in memory. The store's
limits are tiny, so that in one run logs are rotated and shortened, and rows are flushed and merged.
Maintenance is under way most of the time: each write or sync lets it do a few file operations, so
that changes and crashes happen in the middle of it.

After a crash, a replica has the result of some prefix of its changes, at least of all synced ones.

The dice are the disk's own, so that a seed without real storage draws the same numbers as before.
"""

from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import TypeVar

import numpy as np
import pyarrow as pa
from msgspec import structs

from limosa.core.effects import AppendEntries, ApplySlice, CreateReplica, VolumeEffect
from limosa.core.events import HeldReplica
from limosa.core.model.keys import WHOLE, Incarnation, PartitionId, Position
from limosa.core.model.rows import Entry, Rows
from limosa.simulation.disk import (
    FOREVER,
    SimulatedDisk,
    SimulatedReplica,
    SimulatedView,
    carry_out,
    ignore,
)
from limosa.simulation.fragile_files import Errand, FragileFiles, ProcessGone
from limosa.simulation.rows import SimulatedRow, SimulatedRows, token_of
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table

ReplicaKey = tuple[PartitionId, Incarnation]
Answer = TypeVar("Answer")
State = tuple[HeldReplica, tuple[Entry, ...], dict[str, SimulatedRow]]
Violate = Callable[[str, PartitionId], None]

TABLE = Table("rows", pa.schema({"key": pa.string(), "value": pa.string()}), ("key",))
DIRECTORIES = {"": "/first", "v2": "/second"}

# ---------------------------------------------------------------- rows of the model and of Arrow


@lru_cache(1024)
def to_bundle(rows: SimulatedRows, versioned: bool = False) -> Bundle:
    """Rows as Arrow columns. Their tokens are real ones; the simulator's follow from the key."""
    keys = [row.key for row in rows.rows]
    values = [None if row.value is None else repr(row.value) for row in rows.rows]
    columns = [pa.array(keys, pa.string()), pa.array(values, pa.string())]
    batch = Batch.of(TABLE, pa.RecordBatch.from_arrays(columns, schema=TABLE.physical))
    versions = np.array([row.version for row in rows.rows], np.int64) if versioned else None
    deleted = np.array([row.value is None for row in rows.rows], np.bool_)
    return Bundle(
        [Batch(TABLE, batch.columns, batch.tokens, versions, deleted if deleted.any() else None)]
    )


def from_batches(batches: Iterable[Batch]) -> Iterator[SimulatedRow]:
    for batch in batches:
        versions = [0] * len(batch) if batch.versions is None else batch.versions.tolist()
        deleted = [False] * len(batch) if batch.deleted is None else batch.deleted.tolist()
        rows = zip(batch.columns.to_pylist(), versions, deleted, strict=True)
        for columns, version, is_gone in rows:
            key, text = str(columns["key"]), columns["value"]
            assert is_gone == (text is None), "a tombstone has nothing but its key"
            yield SimulatedRow(key, token_of(key), None if is_gone else _value(text), version)


@lru_cache(1024)
def _value(text: str) -> object:
    return literal_eval(text)


def to_change(change: VolumeEffect) -> VolumeEffect:
    match change:
        case AppendEntries(entries=entries):
            stored = tuple(
                structs.replace(entry, rows=None if entry.rows is None else _bundle(entry.rows))
                for entry in entries
            )
            return structs.replace(change, entries=stored)
        case ApplySlice(rows=rows):
            return structs.replace(change, rows=tuple(_bundle(some, True) for some in rows))
        case _:
            return change


def _bundle(rows: Rows, versioned: bool = False) -> Bundle:
    assert isinstance(rows, SimulatedRows)
    return to_bundle(rows, versioned) if rows.rows else Bundle()


def _entry(entry: Entry) -> Entry:
    if entry.rows is None:
        return entry
    assert isinstance(entry.rows, Bundle)
    return structs.replace(entry, rows=SimulatedRows(tuple(from_batches(entry.rows.batches))))


# ---------------------------------------------------------------- answers, compared with the model


class CheckedView(SimulatedView):
    """A view of the real storage; everything that it finds is compared with the model."""

    def __init__(self, model: SimulatedView, disk: "StoredDisk", key: ReplicaKey) -> None:
        self._model = model
        self._disk = disk
        self._key = key
        self._view = disk.store.view(*key)
        self.watermark = disk.agreed(
            "views the watermark", key, self._view.watermark, model.watermark
        )

    def find(self, key: str) -> tuple[Position, object]:
        found = self._view.find(TABLE, (key,))
        value = None if found is None else _value(found.values(TABLE)["value"])
        there = (0, None) if found is None else (found.version, value)
        return self._disk.agreed(f"reads {key}", self._key, there, self._model.find(key))

    def scan(self) -> Iterator[list[SimulatedRow]]:
        """As a node scans; a scan does not show the versions of rows."""
        seen: dict[str, object] = {}
        for batch in self._view.scan(TABLE, empty_too=True):
            rows = [
                SimulatedRow(str(row["key"]), token_of(str(row["key"])), _value(row["value"]))
                for row in batch.to_pylist()
            ]
            seen |= {row.key: row.value for row in rows}
            yield rows
        wanted = {row.key: row.value for batch in self._model.scan() for row in batch}
        self._disk.agreed("scans", self._key, seen, wanted)


class CheckedReplica(SimulatedReplica):
    """The model of a replica, which answers from the real storage and compares."""

    def __init__(self, model: SimulatedReplica, disk: "StoredDisk") -> None:
        super().__init__(model.partition, model.replica, disk.on_commit)
        self.take(model)
        self._disk = disk
        self._key = (model.partition, model.replica.incarnation)

    def restored(self) -> HeldReplica:
        there = self._disk.held().get(self._key)
        self._disk.agreed("holds", self._key, there, _plain(super().restored()))
        assert there is not None
        return there

    def contents(self) -> dict[str, SimulatedRow]:
        return self._disk.agreed("has rows", self._key, self._disk.rows(self._key), self.rows)

    def view(self) -> SimulatedView:
        return CheckedView(super().view(), self._disk, self._key)

    def newest(self, key: str) -> Position:
        there = self._disk.store.newest(*self._key, TABLE, (key,))
        return self._disk.agreed(f"compares {key}", self._key, there, super().newest(key))

    def tail(self, after: Position, bytes_max: int) -> tuple[Entry, ...]:
        there = self._disk.entries(self._key, after, bytes_max)
        self._disk.agreed("tells", self._key, there, super().tail(after, FOREVER)[: len(there)])
        assert there or not super().tail(after, 0), "an entry at least"
        return there

    def slice(self, number: int, slices: int) -> SimulatedRows:
        rows = SimulatedRows(tuple(self.contents().values()))
        watermark = self._disk.store.view(*self._key).watermark
        self._disk.agreed("has the watermark", self._key, watermark, self.watermark)
        return SimulatedRows(tuple(row for row in rows.rows if (row.token >> 7) % slices == number))

    def digest(self) -> int:
        rows = SimulatedRows(tuple(self.rows.values()))
        there = self._disk.store.view(*self._key).digest()
        return self._disk.agreed("digests", self._key, there, _bundle(rows, True).digest())


def _settings(dice: Random) -> StorageSettings:
    """Tiny limits: a log file has room for about ten changes, a segment for a few rows."""
    return StorageSettings(
        log_file_bytes=dice.choice((6, 12, 24)) << 10,
        log_bytes_max=dice.choice((20, 40, 100)) << 10,
        log_useful_max=0.95,
        replica_memory_bytes=dice.choice((200, 600, 2000)),
        memory_bytes=dice.choice((400, 1200, 8000)),
        piece_bytes=dice.choice((100, 400, 4000)),
    )


class StoredDisk(SimulatedDisk):
    """One node's volumes, on real storage."""

    def __init__(
        self, on_commit: Callable[[str, Entry], None], node: str, dice: Random, violate: Violate
    ) -> None:
        super().__init__(on_commit)
        self.on_commit = on_commit
        self._node = node
        self._dice = dice
        self._violate = violate
        self._settings = _settings(dice)
        self._files = FragileFiles(dice)
        self.store = self._open()

    def _open(self) -> Store:
        return Store(DIRECTORIES, self._files, self._settings)

    # --- changes

    def write(self, change: VolumeEffect, node: str) -> None:
        self.store.write(to_change(change))
        super().write(change, node)
        if isinstance(change, CreateReplica):
            key = (change.partition, change.incarnation)
            self.live[key] = CheckedReplica(self.live[key], self)
        self._maintain(0.2)

    def shelve(self, change: ApplySlice, node: str) -> None:
        while self._files.errand is not None:  # wait for the maintenance under way
            self._go_on()
        rows = [_bundle(some, True) for some in change.rows]
        # The real store first flushes a replica that is not at rest, which makes more durable.
        self.store.sync()
        SimulatedDisk.sync(self, FOREVER, node)
        digest = sum(some.digest() for some in rows)
        place = (change.partition, change.incarnation)
        self.store.shelve(place, rows, WHOLE, digest, self.store.view(*place).collected)
        super().shelve(change, node)

    def sync(self, ticket: int, node: str) -> None:
        """A sync of the log makes all writes durable, also those after the ticket."""
        self.store.sync()
        super().sync(FOREVER, node)
        self._maintain(0.5)
        chance = self._dice.random()
        if chance < 0.03:
            self._crash()  # without an effect, because everything is durable
        elif chance < 0.06:
            self._check()

    def wipe(self) -> None:
        super().wipe()
        self._end_errand()
        self._files = FragileFiles(self._dice)
        self.store = self._open()

    def close(self) -> None:
        self._end_errand()

    # --- maintenance

    def _maintain(self, chance: float) -> None:
        """Let maintenance do a few file operations, or all of them; start it if it does not run."""
        if self._dice.random() < chance:
            for _ in range(self._dice.choice((1, 1, 2, 4, 30))):
                if not self._go_on():
                    break

    def _go_on(self) -> bool:
        """False: the maintenance ended, perhaps because there was nothing to do."""
        if self._files.errand is None:
            self._files.errand = Errand(self.store.maintain)
        errand = self._files.errand
        try:
            errand.go_on()
        finally:
            if errand.is_over:
                self._files.errand = None
        return not errand.is_over

    def _end_errand(self) -> None:
        """Let the maintenance fail at its next file operation, until it has ended."""
        self._files.left = 0
        while self._files.errand is not None:
            self._go_on()

    # --- crashes

    def crash(self, dice: Random, node: str) -> None:
        self._crash()

    def _crash(self) -> None:
        """Crash, often in the middle of an operation, and sometimes again during the restart."""
        chance = self._dice.random()
        if chance < 0.4:
            self._interrupted(self.store.sync)
        elif chance < 0.6:
            self._interrupted(self._go_on)
        self._end_errand()
        self._files.die()
        while self._dice.random() < 0.2:
            self._interrupted(self._open)
            self._files.die()
        self.store = self._open()
        for refusal in self.store.refused:
            self._violate(f"{self._node} refuses {refusal.what}: {refusal.why}", "")
        self._survive()

    def _interrupted(self, act: Callable[[], object]) -> None:
        self._files.left = self._dice.choice((0, 1, 2, 3, 5, 10, 20))
        with suppress(ProcessGone):
            act()

    def _survive(self) -> None:
        """The store must have the result of a prefix of the changes; the model continues there."""
        unsynced: dict[ReplicaKey, list[VolumeEffect]] = {}
        for change in self._journal:
            unsynced.setdefault((change.partition, change.incarnation), []).append(change)
        found = self.held()
        for key in sorted({*unsynced, *self._durable, *found}):
            there = self._state_of(key, found[key]) if key in found else None
            model = self._after_some(key, unsynced.get(key, ()), there)
            self._durable.pop(key, None)
            if model is not None and there is not None:
                self._durable[key] = model
        self._journal.clear()
        self.live = {key: CheckedReplica(model, self) for key, model in self._durable.items()}

    def _after_some(
        self, key: ReplicaKey, unsynced: Iterable[VolumeEffect], there: State | None
    ) -> SimulatedReplica | None:
        """The synced model, with as many of the changes as lead to the state of the store."""
        volumes = {key: self._durable[key].copy()} if key in self._durable else {}
        states = [_state(volumes.get(key))]
        for change in unsynced:
            if states[-1] == there:
                break
            carry_out(volumes, change, self._node, ignore)
            states.append(_state(volumes.get(key)))
        if states[-1] != there:
            synced, written = _apart(there, states[0]), _apart(there, states[-1])
            self._violate(
                f"{self._node} was never so in {key[1]}: {synced} (synced), {written} (written)",
                key[0],
            )
        return volumes.get(key)

    # --- the contents of the real store

    def held(self) -> dict[ReplicaKey, HeldReplica]:
        return {
            (held.partition, held.replica.incarnation): _plain(held)
            for held in self.store.restored(self._node)
        }

    def entries(
        self, key: ReplicaKey, after: Position = 0, bytes_max: int = FOREVER
    ) -> tuple[Entry, ...]:
        return tuple(map(_entry, self.store.tail(*key, after, bytes_max)))

    def _state_of(self, key: ReplicaKey, held: HeldReplica) -> State:
        return held, self.entries(key), self.rows(key)

    def rows(self, key: ReplicaKey) -> dict[str, SimulatedRow]:
        view = self.store.view(*key)
        return {row.key: row for row in from_batches(view.batches(TABLE, tombstones=True))}

    def agreed(self, what: str, key: ReplicaKey, there: Answer, wanted: Answer) -> Answer:
        if there != wanted:
            self._violate(f"{self._node} {what} in {key[1]}: {_apart(there, wanted)}", key[0])
        return there

    def _check(self) -> None:
        wanted = {key: _state(model) for key, model in self.live.items()}
        there = {key: self._state_of(key, held) for key, held in self.held().items()}
        for key in sorted({*wanted, *there}):
            self.agreed("has", key, there.get(key), wanted.get(key))


def _state(model: SimulatedReplica | None) -> State | None:
    if model is None:
        return None
    return _plain(SimulatedReplica.restored(model)), tuple(model.entries), dict(model.rows)


def _plain(held: HeldReplica) -> HeldReplica:
    """Without what the storage may decide: when it forgets sequences below a producer's floor, and
    how many bytes an entry takes."""
    producers = tuple(
        (producer, floor, tuple(known for known in sequences if known[0] >= floor))
        for producer, floor, sequences in held.producers
    )
    log = tuple((at, 0) for at, _ in held.log)
    return structs.replace(held, producers=producers, log=log)


def _apart(there: object, wanted: object) -> str:
    """The difference between two answers, in a short text."""
    match there, wanted:
        case (HeldReplica(), *_), (HeldReplica(), *_):
            parts = zip(there, wanted, strict=True)
            return "; ".join(_apart(one, other) for one, other in parts if one != other)
        case HeldReplica(), HeldReplica():
            names = [n for n in there.__struct_fields__ if getattr(there, n) != getattr(wanted, n)]
            return "; ".join(
                f"{name}: {_apart(getattr(there, name), getattr(wanted, name))}" for name in names
            )
        case tuple(), tuple():
            more, less = (
                [x for x in there if x not in wanted],
                [x for x in wanted if x not in there],
            )
            return f"{more} too much, {less} missing"
        case dict(), dict():
            keys = sorted(key for key in {*there, *wanted} if there.get(key) != wanted.get(key))
            return ", ".join(f"{there.get(key)} for {wanted.get(key)}" for key in keys)
        case _:
            return f"{there} for {wanted}"
