"""Which partitions must the coordinator look at now? Those about which something new is known.

Looking at a partition too often only costs time. A partition that is missed here is found by the
regular look at all partitions, which goes round slowly if there are many. So correctness does not
depend on this module, and a partition about which nothing changes costs nearly nothing.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from limosa.core.messages import WHOLE_STATUS, ReplicaStatus, Status
from limosa.core.model.changes import Agreed, intent_key
from limosa.core.model.keys import PartitionId

AT_ONCE = 1_000
"""How many partitions are looked at for one event; the others follow with the next events, so that
statuses and outcomes of commits do not have to wait long."""
ROUND = 500
"""How many partitions each regular look includes."""
AGAIN_PER_SECOND = 1_000.0
"""How many partitions that wait for something are looked at again in a second, at most."""


class Attention:
    """Partitions to look at: because something changed, or because a retry is due."""

    def __init__(self, again_seconds: float) -> None:
        self._again_seconds = again_seconds
        self._all = True
        self._new: dict[PartitionId, None] = {}
        self._unsettled: dict[PartitionId, float] = {}
        """Partitions that wait for something, and when the coordinator last asked for it."""
        self._retries: list[tuple[float, PartitionId]] = []
        """The same as a heap, the oldest first; outdated entries are skipped."""
        self._round: list[PartitionId] = []
        """Partitions that the regular look has not included yet, the next one last."""

    def draw_to_all(self) -> None:
        self._all = True

    def draw_to_next(self, agreed: Agreed) -> None:
        """The regular look: some partitions each time, until all had their turn."""
        if not self._round:
            self._round = list(agreed.topology.partitions)
            self._round.reverse()
        self._new.update(dict.fromkeys(reversed(self._round[-ROUND:])))
        del self._round[-ROUND:]

    def draw_to(self, partition: PartitionId) -> None:
        self._new[partition] = None

    def keep(self, partition: PartitionId, asked_at: float) -> None:
        """The partition is not settled: look again after a while, even if nothing happens."""
        if self._unsettled.get(partition) != asked_at:
            self._unsettled[partition] = asked_at
            heappush(self._retries, (asked_at, partition))

    def let_go(self, partition: PartitionId) -> None:
        """The partition is settled until something happens."""
        self._unsettled.pop(partition, None)

    def due(self, now: float) -> list[PartitionId]:
        """Partitions that wait, and were not looked at for a while; each is returned once. The more
        there are, the longer is the while."""
        seconds = max(self._again_seconds, len(self._unsettled) / AGAIN_PER_SECOND)
        found: list[PartitionId] = []
        while self._retries and now - self._retries[0][0] >= seconds:
            asked_at, partition = heappop(self._retries)
            if self._unsettled.get(partition) == asked_at:
                self._unsettled[partition] = -inf
                found.append(partition)
        return found

    def take(self, agreed: Agreed) -> list[PartitionId]:
        """The partitions to look at now; each is returned once for each reason."""
        if self._all:
            self._all = False
            self._new.update(dict.fromkeys(agreed.topology.partitions))
            self._new.update(dict.fromkeys(self._unsettled))
        names = list(self._new)
        if len(names) <= AT_ONCE:
            self._new = {}
            return names
        self._new = dict.fromkeys(names[AT_ONCE:])
        return names[:AT_ONCE]

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

    def _barriers(self, before: Status, said: Status, agreed: Agreed) -> Iterable[PartitionId]:
        """Partitions in a transition or an election, if the node has now applied their record, or
        has ended older work."""
        records, revision_of = agreed.topology.partitions, agreed.topology.revision_of
        for partition in self._unsettled:
            record = records.get(partition)
            if record is None or (record.transition is None and record.owner is not None):
                continue
            applied = before.generation < revision_of(partition) <= said.generation
            if applied or before.busy.get(partition) != said.busy.get(partition):
                yield partition


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
