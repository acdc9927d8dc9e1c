"""Which partitions must the coordinator look at now? Those about which something new is known.

Looking at a partition too often only costs time. A partition that is missed here is found by the
regular look at all partitions, so correctness does not depend on this module.
"""

from collections.abc import Iterable

from limosa.core.messages import ReplicaStatus, Status
from limosa.core.model.changes import Agreed
from limosa.core.model.keys import PartitionId


class Attention:
    """Partitions to look at: because something changed, or because a retry is due."""

    def __init__(self, again_seconds: float) -> None:
        self._again_seconds = again_seconds
        self._all = True
        self._new: dict[PartitionId, None] = {}
        self._unsettled: dict[PartitionId, float] = {}
        """Partitions that wait for something, and when the coordinator last asked for it."""

    def draw_to_all(self) -> None:
        self._all = True

    def draw_to(self, partition: PartitionId) -> None:
        self._new[partition] = None

    def keep(self, partition: PartitionId, asked_at: float) -> None:
        """The partition is not settled: look again after a while, even if nothing happens."""
        self._unsettled[partition] = asked_at

    def let_go(self, partition: PartitionId) -> None:
        """The partition is settled until something happens."""
        self._unsettled.pop(partition, None)

    def take(self, now: float, agreed: Agreed) -> list[PartitionId]:
        """The partitions to look at now; each is returned once for each reason."""
        if self._all:
            names = dict.fromkeys(agreed.topology.partitions)
            names.update(dict.fromkeys(self._unsettled))
        else:
            names = self._new
            for partition, asked_at in self._unsettled.items():
                if now - asked_at >= self._again_seconds:
                    names[partition] = None
        self._all, self._new = False, {}
        return list(names)

    def read(self, before: Agreed, after: Agreed) -> None:
        """The agreed state changed: find the partitions whose record or intent changed, or all of
        them if a lease did."""
        if after.leases != before.leases:
            self.draw_to_all()
            return
        if after.topology.revisions is not before.topology.revisions:
            self._new.update(dict.fromkeys(after.topology.changed_since(before.topology)))
        if after.intents is not before.intents:
            old = before.intents
            self._new.update(
                (name, None) for name, new in after.intents.items() if old.get(name) is not new
            )

    def hear(self, before: Status | None, after: Status, agreed: Agreed) -> None:
        """A node sent a new status. Partitions that wait for a barrier depend on every node's
        generation."""
        if before is None or before.lease != after.lease:
            self.draw_to_all()
            return
        if before.generation != after.generation or before.busy != after.busy:
            self._new.update(dict.fromkeys(self._changing(agreed)))
        for partition, said in after.replicas.items():
            known = before.replicas.get(partition, ())
            if known is said or known == said:
                continue
            if differ(known, said) or (self._is_unsettled(partition) and grew(known, said)):
                self._new[partition] = None
        self._new.update((name, None) for name in before.replicas if name not in after.replicas)

    def _is_unsettled(self, partition: PartitionId) -> bool:
        return partition in self._unsettled

    def _changing(self, agreed: Agreed) -> Iterable[PartitionId]:
        """Partitions in a transition or an election."""
        records = agreed.topology.partitions
        for partition in self._unsettled:
            record = records.get(partition)
            if record is not None and (record.transition is not None or record.owner is None):
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
