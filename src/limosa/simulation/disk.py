"""What does a simulated disk keep? All changes that were synced, and a prefix of the others.

Every change is made twice: to the live state at once, and to the durable state when a sync covers
it. A crash keeps the durable state and some prefix of the changes that were not synced.
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

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
from limosa.core.events import HeldReplica
from limosa.core.model.keys import Incarnation, PartitionId, Position
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.producers import Producers
from limosa.simulation.rows import SimulatedRow, SimulatedRows

FOREVER: Position = 2**62


class SimulatedView:
    """A snapshot of a replica, for as long as a reader keeps it."""

    def __init__(self, watermark: Position, rows: dict[str, SimulatedRow]) -> None:
        self.watermark = watermark
        self._rows = rows

    def find(self, key: str) -> tuple[Position, object]:
        row = self._rows.get(key)
        return (0, None) if row is None or row.value is None else (row.version, row.value)

    def scan(self) -> Iterator[list[SimulatedRow]]:
        """All rows, a few in each batch."""
        rows = [row for row in self._rows.values() if row.value is not None]
        yield from (rows[start : start + 2] for start in range(0, len(rows), 2))


class SimulatedReplica:
    """One replica's rows (committed or copied), and its log above the watermark."""

    def __init__(
        self, partition: PartitionId, replica: Replica, on_commit: Callable[[str, Entry], None]
    ) -> None:
        self.partition = partition
        self.replica = replica
        self.on_commit = on_commit
        self.epoch = 0
        self.begun = 0
        self.first: Position = 0
        self.watermark: Position = 0
        self.collected: Position = 0
        """Tombstones up to here may be collected, and no longer hide older rows."""
        self.entries: list[Entry] = []
        self.producers = Producers()
        self.rows: dict[str, SimulatedRow] = {}

    def copy(self) -> "SimulatedReplica":
        other = SimulatedReplica(self.partition, self.replica, self.on_commit)
        other.take(self)
        return other

    def take(self, other: "SimulatedReplica") -> None:
        """Take over the contents of another replica."""
        self.epoch, self.begun = other.epoch, other.begun
        self.first, self.watermark = other.first, other.watermark
        self.collected = other.collected
        self.entries = list(other.entries)
        self.producers.unite(other.producers.value(FOREVER))
        self.rows = dict(other.rows)

    def restored(self) -> HeldReplica:
        return HeldReplica(
            self.partition,
            self.replica,
            self.epoch,
            self.begun,
            self.first,
            self.watermark,
            tuple((entry.at, entry.bytes) for entry in self.entries),
            self.producers.value(FOREVER),
            raises=tuple(
                (entry.at, entry.producer, entry.floor)
                for entry in self.entries
                if entry.at > self.watermark and entry.producer
            ),
        )

    @property
    def last(self) -> Position:
        return max(self.watermark, self.entries[-1].at if self.entries else self.first)

    # --- changes

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
                self.entries.clear()
                self.rows.clear()
                self.producers = Producers()
                self.first = self.watermark = base
                self.collected = 0
                self.begun = epoch
            case ApplySlice(rows=all_rows, producers=producers):
                for rows in all_rows:
                    assert isinstance(rows, SimulatedRows)
                    for row in rows.rows:
                        self.put_copied(row)
                self.producers.unite(producers)
            case _:
                raise AssertionError(change)

    def put_copied(self, row: SimulatedRow) -> None:
        """Compare row versions: a copied row never replaces a newer one."""
        there = self.rows.get(row.key)
        if there is None or there.version < row.version:
            self.rows[row.key] = row

    def commit(self, to: Position) -> None:
        start = len(self.entries)
        while start and self.entries[start - 1].at > self.watermark:
            start -= 1
        for entry in self.entries[start:]:
            if entry.at > to:
                break
            self.on_commit(self.partition, entry)
            self.producers.settle(entry)
            if entry.collects:
                self.collect(entry.collects)
            if entry.rows is not None:
                assert isinstance(entry.rows, SimulatedRows)
                for row in entry.rows.rows:
                    self.put_logged(SimulatedRow(row.key, row.token, row.value, entry.at))
        self.watermark = max(self.watermark, to)

    def put_logged(self, row: SimulatedRow) -> None:
        self.put_copied(row)

    def collect(self, up_to: Position) -> None:
        self.collected = max(self.collected, up_to)
        for key, row in list(self.rows.items()):
            if row.value is None and row.version <= up_to:
                del self.rows[key]

    # --- reading

    def contents(self) -> dict[str, SimulatedRow]:
        """Committed or copied rows and tombstones."""
        return self.rows

    def view(self) -> SimulatedView:
        return SimulatedView(self.watermark, dict(self.rows))

    def newest(self, key: str) -> Position:
        """The version that a compare-and-set compares with, also of a row not committed yet."""
        for entry in reversed(self.entries):
            if entry.at <= self.watermark:
                break
            if entry.rows is not None:
                assert isinstance(entry.rows, SimulatedRows)
                for row in entry.rows.rows:
                    if row.key == key:
                        return 0 if row.value is None else entry.at
        return SimulatedView(self.watermark, self.rows).find(key)[0]

    def tail(self, after: Position, bytes_max: int) -> tuple[Entry, ...]:
        """The log above a position: at least one entry, then up to so many bytes."""
        found: list[Entry] = []
        for entry in self.entries:
            if entry.at > after:
                bytes_max -= entry.bytes
                if found and bytes_max < 0:
                    break
                found.append(entry)
        return tuple(found)

    def slice(self, number: int, slices: int) -> SimulatedRows:
        """Committed rows and tombstones, each with its version."""
        return SimulatedRows(
            tuple(row for row in self.rows.values() if (row.token >> 7) % slices == number)
        )

    def digest(self) -> int:
        return sum(row.fingerprint() for row in self.rows.values())


class SimulatedDisk:
    """One node's volumes."""

    def __init__(self, on_commit: Callable[[str, Entry], None]) -> None:
        self._on_commit = on_commit
        self.live: dict[tuple[PartitionId, Incarnation], SimulatedReplica] = {}
        self._durable: dict[tuple[PartitionId, Incarnation], SimulatedReplica] = {}
        self._journal: deque[VolumeEffect] = deque()

    def write(self, change: VolumeEffect, node: str) -> None:
        carry_out(self.live, change, node, self._on_commit)
        self._journal.append(change)

    def view(self, partition: PartitionId, incarnation: Incarnation) -> SimulatedView | None:
        stored = self.live.get((partition, incarnation))
        return None if stored is None else stored.view()

    def sync(self, ticket: int, node: str) -> None:
        """Make everything up to this ticket durable."""
        while self._journal and self._journal[0].ticket <= ticket:
            carry_out(self._durable, self._journal.popleft(), node, ignore)

    def kept(self, partition: PartitionId, incarnation: Incarnation) -> Position | None:
        """The end of the replica's log that a crash would leave; None: there is no replica."""
        stored = self._durable.get((partition, incarnation))
        return None if stored is None else stored.last

    def promised(self, partition: PartitionId, incarnation: Incarnation) -> int | None:
        """The epoch that a crash would leave; None: there is no replica."""
        stored = self._durable.get((partition, incarnation))
        return None if stored is None else stored.epoch

    def collected(self, partition: PartitionId, incarnation: Incarnation) -> Position:
        stored = self.live.get((partition, incarnation))
        return 0 if stored is None else stored.collected

    def shelve(self, change: ApplySlice, node: str) -> None:
        """Store a slice without the journal: it is durable at once, but not before its replica."""
        key = (change.partition, change.incarnation)
        if any(
            isinstance(each, CreateReplica | DiscardReplica | BeginLog)
            and (each.partition, each.incarnation) == key
            for each in self._journal
        ):
            SimulatedDisk.sync(self, FOREVER, node)
        for volumes in (self.live, self._durable):
            volumes[key].apply(change)

    def crash(self, dice: Random, node: str) -> None:
        """A prefix of the changes that were not synced survives; a torn write counts as lost."""
        for _ in range(dice.randint(0, len(self._journal))):
            carry_out(self._durable, self._journal.popleft(), node, ignore)
        self._journal.clear()
        self.live = {key: stored.copy() for key, stored in self._durable.items()}
        for stored in self.live.values():
            stored.on_commit = self._on_commit

    def wipe(self) -> None:
        self.live.clear()
        self._durable.clear()
        self._journal.clear()

    def close(self) -> None:
        """The run is over."""


def ignore(partition: str, entry: Entry) -> None:
    """The live state has reported the commit already."""


def carry_out(
    volumes: dict[tuple[PartitionId, Incarnation], SimulatedReplica],
    change: VolumeEffect,
    node: str,
    on_commit: Callable[[str, Entry], None],
) -> None:
    key = (change.partition, change.incarnation)
    if isinstance(change, CreateReplica):
        replica = Replica(node, change.incarnation, change.volume)
        volumes[key] = SimulatedReplica(change.partition, replica, on_commit)
    elif isinstance(change, DiscardReplica):
        volumes.pop(key, None)
    elif key in volumes:
        volumes[key].apply(change)
