"""Which other nodes answer? That is a matter of two nodes, not of each partition that they share.

A node that has answered nothing for a while is asked, by one probe of any partition that has its
owner here and a replica there. While that node owes the answer, nothing else is sent to it again.

Silence is measured by a clock that slows down while this node is behind with its own work, because
then answers may have arrived and wait here.
"""

from collections.abc import Iterator
from math import inf

from limosa.core.model.keys import LeaseId, NodeId, PartitionId
from limosa.core.participant.settings import ParticipantSettings


class AwakeClock:
    """Counts the seconds in which this node was not behind with its own work."""

    __slots__ = ("_tick_seconds_max", "_ticked_at", "now")

    def __init__(self, settings: ParticipantSettings) -> None:
        self._tick_seconds_max = settings.tick_seconds_max
        self._ticked_at: float | None = None
        self.now = 0.0

    def tick(self, now: float) -> None:
        passed = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        self.now += min(passed, self._tick_seconds_max)


class Pair:
    """This node, as the owner of partitions, and another node that holds replicas of them."""

    __slots__ = (
        "_progress",
        "_settings",
        "_told_at",
        "asked",
        "clock",
        "heard",
        "partitions",
        "required",
        "run",
        "waiting",
    )

    def __init__(self, clock: AwakeClock, settings: ParticipantSettings) -> None:
        self._settings = settings
        self.clock = clock
        self.heard = clock.now
        """When the other node last answered."""
        self._progress: dict[str, float] = {}
        """By volume: when a replica there last acknowledged more than before, or a new owner."""
        self.asked: float | None = None
        """When it was asked because it had sent nothing for long; None: it has answered since."""
        self.run: LeaseId = 0
        """The run of the other node that answered last."""
        self.partitions: dict[PartitionId, None] = {}
        """The partitions that are owned here and have a replica there."""
        self.required: dict[PartitionId, None] = {}
        """Those of them whose writes wait for a replica there."""
        self.waiting: dict[PartitionId, None] = {}
        """Those whose owners have something to send as soon as the other node answers."""
        self._told_at = -inf

    def hear(self) -> list[PartitionId]:
        """The other node has answered; returns the partitions that waited for it."""
        self.heard, self.asked, self._told_at = self.clock.now, None, -inf
        if not self.waiting:
            return []
        woken, self.waiting = list(self.waiting), {}
        return woken

    def began(self, run: LeaseId) -> bool:
        """This run of the other node answered; True: another run did so before. 0: it did not say
        which run it is."""
        before, self.run = self.run, run or self.run
        return before not in (0, self.run)

    def changed(self, partition: PartitionId) -> None:
        """The partition has another record, which the other node may not have read yet: a probe of
        it would wait there. So it is asked about last."""
        self.partitions.pop(partition, None)
        self.partitions[partition] = None

    def require(self, partition: PartitionId, is_required: bool) -> None:
        """Do writes to the partition wait for a replica on the other node?"""
        if is_required:
            self.required[partition] = None
        else:
            self.required.pop(partition, None)

    def progressed(self, volume: str) -> None:
        self._progress[volume] = self.clock.now

    def is_late(self, volume: str, since: float) -> bool:
        """Has a replica on this volume owed an acknowledgement for too long? The other node may
        have much to do: while others on the volume make progress, the replica gets more time."""
        last = max(since, self._progress.get(volume, since))
        return (
            self.clock.now - last > self._settings.silence_seconds_max
            or self.clock.now - since > self._settings.stuck_seconds_max
        )

    def next_to_ask(self) -> PartitionId | None:
        """The partition to probe, if the other node has sent nothing for long: each in its turn."""
        now = self.clock.now
        if not self.partitions or now - self.heard <= self._settings.idle_seconds_max:
            return None
        if self.asked is None:
            self.asked = now
        partition = next(iter(self.partitions))
        self.changed(partition)
        return partition

    def is_silent(self) -> bool:
        longest = self._settings.silence_seconds_max
        return self.asked is not None and self.clock.now - self.asked > longest

    def must_tell(self) -> bool:
        """Must the coordinator be told, perhaps again, that the other node is silent?"""
        now = self.clock.now
        if not self.is_silent() or now - self._told_at < self._settings.idle_seconds_max:
            return False
        self._told_at = now
        return True


class Pairs:
    """The pairs of this node, by the other node."""

    def __init__(self, settings: ParticipantSettings) -> None:
        self._settings = settings
        self.clock = AwakeClock(settings)
        self._pairs: dict[NodeId, Pair] = {}

    def join(self, node: NodeId, partition: PartitionId) -> Pair:
        """A partition that is owned here has a replica on the other node."""
        pair = self._pairs.get(node)
        if pair is None:
            pair = self._pairs[node] = Pair(self.clock, self._settings)
        if not pair.partitions:
            pair.hear()  # until now it had nothing to answer
        pair.partitions[partition] = None
        return pair

    def leave(self, node: NodeId, partition: PartitionId) -> None:
        pair = self._pairs[node]
        pair.partitions.pop(partition, None)
        pair.required.pop(partition, None)
        pair.waiting.pop(partition, None)

    def __iter__(self) -> Iterator[tuple[NodeId, Pair]]:
        return iter(self._pairs.items())
