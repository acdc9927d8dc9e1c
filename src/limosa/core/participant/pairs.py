"""Which other nodes answer? That is a matter of two nodes, not of each partition that they share.

A node that has answered nothing for a while is asked, by one probe of any partition that has its
owner here and a replica there. While that node owes the answer, nothing else is sent to it again.
"""

from collections.abc import Iterator
from math import inf

from limosa.core.model.keys import LeaseId, NodeId, PartitionId
from limosa.core.participant.settings import ParticipantSettings


class Pair:
    """This node, as the owner of partitions, and another node that holds replicas of them."""

    __slots__ = ("_settings", "_told_at", "asked", "heard", "partitions", "run", "waiting")

    def __init__(self, now: float, settings: ParticipantSettings) -> None:
        self._settings = settings
        self.heard = now
        """When the other node last answered."""
        self.asked: float | None = None
        """When it was asked because it had sent nothing for long; None: it has answered since."""
        self.run: LeaseId = 0
        """The run of the other node that answered a probe last."""
        self.partitions: dict[PartitionId, None] = {}
        """The partitions that are owned here and have a replica there."""
        self.waiting: dict[PartitionId, None] = {}
        """Those whose owners have something to send as soon as the other node answers."""
        self._told_at = -inf

    def hear(self, now: float) -> list[PartitionId]:
        """The other node has answered; returns the partitions that waited for it."""
        self.heard, self.asked, self._told_at = now, None, -inf
        if not self.waiting:
            return []
        woken, self.waiting = list(self.waiting), {}
        return woken

    def began(self, run: LeaseId) -> bool:
        """This run of the other node answered a probe; True: another run did so before."""
        before, self.run = self.run, run
        return before not in (0, run)

    def next_to_ask(self, now: float) -> PartitionId | None:
        """The partition to probe, if the other node has sent nothing for long: each in its turn."""
        if not self.partitions or now - self.heard <= self._settings.idle_seconds_max:
            return None
        if self.asked is None:
            self.asked = now
        partition = next(iter(self.partitions))
        del self.partitions[partition]
        self.partitions[partition] = None
        return partition

    def is_silent(self, now: float) -> bool:
        return self.asked is not None and now - self.asked > self._settings.silence_seconds_max

    @property
    def was_told(self) -> bool:
        """Was the coordinator told that the other node is silent?"""
        return self._told_at > -inf

    def must_tell(self, now: float) -> bool:
        """Must the coordinator be told, perhaps again, that the other node is silent?"""
        if not self.is_silent(now) or now - self._told_at < self._settings.idle_seconds_max:
            return False
        self._told_at = now
        return True


class Pairs:
    """The pairs of this node, by the other node."""

    def __init__(self, settings: ParticipantSettings) -> None:
        self._settings = settings
        self._pairs: dict[NodeId, Pair] = {}

    def join(self, now: float, node: NodeId, partition: PartitionId) -> Pair:
        """A partition that is owned here has a replica on the other node."""
        pair = self._pairs.get(node)
        if pair is None:
            pair = self._pairs[node] = Pair(now, self._settings)
        if not pair.partitions:
            pair.hear(now)  # until now it had nothing to answer
        pair.partitions[partition] = None
        return pair

    def leave(self, node: NodeId, partition: PartitionId) -> None:
        pair = self._pairs[node]
        pair.partitions.pop(partition, None)
        pair.waiting.pop(partition, None)

    def __iter__(self) -> Iterator[tuple[NodeId, Pair]]:
        return iter(self._pairs.items())
