"""Which partitions must the coordinator look at now? Those about which something new is known.

Looking at a partition too often only costs time. A partition that is missed here is found by the
regular look at all partitions, which goes round slowly if there are many. So correctness does not
depend on this module, and a partition about which nothing changes costs nearly nothing.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain, islice
from math import inf

from limosa.core.messages import WHOLE_STATUS, ReplicaStatus, Status
from limosa.core.model.changes import Agreed, intent_key
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.topology import Partition

AT_ONCE = 1_000
"""How many partitions are looked at for one event; the others follow with the next events, so that
statuses and outcomes of commits do not have to wait long."""
ROUND = 500
"""How many partitions each regular look includes."""
AGAIN_PER_SECOND = 1_000.0
"""How many partitions are looked at again in a second, at most, if there is nothing to repeat."""


NEVER = (-inf, -inf)


class Attention:
    """Partitions to look at: because something changed, or because a retry is due."""

    def __init__(self, again_seconds: float) -> None:
        self._again_seconds = again_seconds
        self._all = True
        self._new: dict[PartitionId, None] = {}
        """Partitions about which something new is known."""
        self._others: dict[PartitionId, None] = {}
        """Partitions to look at after those."""
        self._unsettled: dict[PartitionId, tuple[float, float]] = {}
        """Partitions that wait for something: when the coordinator last asked for it, and at which
        time it looks again, however many wait."""
        self._times: list[tuple[float, PartitionId]] = []
        """These times as a heap, the next one first; outdated entries are skipped."""
        self._waits: list[tuple[float, PartitionId]] = []
        """Partitions without a time soon, as a heap: the one that has waited longest first."""
        self._applying: dict[PartitionId, None] = {}
        """Partitions that may wait until a node has applied their record, or has ended older
        work."""
        self._round: Iterator[PartitionId] = iter(())
        """Partitions that the regular look has not included yet."""

    def draw_to_all(self) -> None:
        self._all = True

    def draw_to_next(self, agreed: Agreed) -> None:
        """The regular look: some partitions each time, until all had their turn."""
        names = list(islice(self._round, ROUND))
        if not names:
            self._round = iter(tuple(agreed.topology.partitions))
            names = list(islice(self._round, ROUND))
        self._others.update(dict.fromkeys(names))

    def draw_to(self, partition: PartitionId) -> None:
        self._new[partition] = None

    def draw_later_to(self, partition: PartitionId) -> None:
        """Nothing new is known about it."""
        self._others[partition] = None

    def keep(
        self, partition: PartitionId, asked_at: float, at: float = inf, applying: bool = False
    ) -> None:
        """The partition is not settled: look again after a while, even if nothing happens, and at
        this time, if there is something to repeat or to decide then."""
        if applying:
            self._applying[partition] = None
        else:
            self._applying.pop(partition, None)
        if self._unsettled.get(partition) == (asked_at, at):
            return
        self._unsettled[partition] = (asked_at, at)
        if asked_at < at < inf:
            heappush(self._times, (at, partition))
        if not asked_at < at <= asked_at + self._again_seconds:
            heappush(self._waits, (asked_at, partition))

    def is_kept(self, partition: PartitionId) -> bool:
        return partition in self._unsettled

    def let_go(self, partition: PartitionId) -> None:
        """The partition is settled until something happens."""
        self._unsettled.pop(partition, None)
        self._applying.pop(partition, None)

    def due(self, now: float) -> list[PartitionId]:
        """Partitions whose time has come, and those that were not looked at for a while; each is
        returned once. The more there are, the longer is the while."""
        seconds = max(self._again_seconds, len(self._unsettled) / AGAIN_PER_SECOND)
        found: list[PartitionId] = []
        for at, name in popped(self._times, now):
            if self._unsettled.get(name, NEVER)[1] == at:
                self._unsettled[name] = NEVER
                found.append(name)
        for asked_at, name in popped(self._waits, now - seconds):
            if self._unsettled.get(name, NEVER)[0] == asked_at:
                self._unsettled[name] = NEVER
                found.append(name)
        return found

    def take(self, agreed: Agreed) -> list[PartitionId]:
        """The partitions to look at now; each is returned once for each reason."""
        if self._all:
            self._all = False
            self._others.update(dict.fromkeys(agreed.topology.partitions))
            self._others.update(dict.fromkeys(self._unsettled))
        names = list(dict.fromkeys(islice(chain(self._new, self._others), AT_ONCE)))
        for name in names:
            self._new.pop(name, None)
            self._others.pop(name, None)
        return names

    def read(self, before: Agreed, after: Agreed) -> None:
        """The agreed state changed: find the partitions whose record or intent changed, or all of
        them if a lease did."""
        if after.leases != before.leases:
            self.draw_to_all()
            return
        self._new.update(dict.fromkeys(after.topology.changed_since(before.topology)))
        if after.intents is not before.intents:
            start = intent_key("")
            changed = (key for key in after.changed_since(before) if key.startswith(start))
            self._new.update((key.removeprefix(start), None) for key in changed)

    def hear(self, before: Status | None, said: Status, agreed: Agreed) -> None:
        """A node sent a new status, or what changed in it. Partitions that wait for a barrier
        depend on every node's generation."""
        if before is None or before.lease != said.lease:
            self.draw_to_all()
            return
        if before.generation != said.generation or before.busy != said.busy:
            self._new.update(dict.fromkeys(self._barriers(before, said, agreed)))
        for partition, replicas in said.replicas.items():
            known = before.replicas.get(partition, ())
            if known is replicas or known == replicas:
                continue
            if differ(known, replicas) or (partition in self._unsettled and grew(known, replicas)):
                self._new[partition] = None
        gone = said.gone
        if said.after == WHOLE_STATUS:
            gone = tuple(name for name in before.replicas if name not in said.replicas)
        self._new.update(dict.fromkeys(gone))

    def _barriers(self, before: Status, said: Status, agreed: Agreed) -> Iterator[PartitionId]:
        """Partitions in a transition or an election, or with a replica on the node, if the node has
        now applied their record, or has ended older work."""
        records, revision_of = agreed.topology.partitions, agreed.topology.revision_of
        for partition in self._applying:
            applied = before.generation < revision_of(partition) <= said.generation
            if applied or before.busy.get(partition) != said.busy.get(partition):
                record = records.get(partition)
                if record is not None and (is_changing(record) or is_on(record, said.node)):
                    yield partition


def popped(
    heap: list[tuple[float, PartitionId]], through: float
) -> Iterator[tuple[float, PartitionId]]:
    while heap and heap[0][0] <= through:
        yield heappop(heap)


def is_changing(record: Partition) -> bool:
    """In a transition or an election, which wait for all nodes."""
    return record.transition is not None or record.owner is None


def is_on(record: Partition, node: NodeId) -> bool:
    return any(replica.node == node for replica in record.replicas)


def grew(known: tuple[ReplicaStatus, ...], said: tuple[ReplicaStatus, ...]) -> bool:
    """Did a log or its watermark grow? Changes of mere measurements wait for the next look."""
    return any(
        old.last != new.last or old.watermark != new.watermark
        for old, new in zip(known, said, strict=True)
    )


def differ(known: tuple[ReplicaStatus, ...], said: tuple[ReplicaStatus, ...]) -> bool:
    """Did anything change besides the ends of logs? In normal operation nothing else does."""
    return len(known) != len(said) or any(
        old.replica != new.replica
        or old.epoch != new.epoch
        or old.open_epoch != new.open_epoch
        or old.sealed != new.sealed
        or old.copied != new.copied
        or old.digest != new.digest
        or old.silent != new.silent
        or old.caught_up != new.caught_up
        or old.unreachable != new.unreachable
        or old.damaged != new.damaged
        for old, new in zip(known, said, strict=True)
    )
