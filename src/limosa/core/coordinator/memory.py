"""What does a coordinator remember of what it saw? Nothing that a successor needs.

A successor starts holds and timeouts again, and does not know the length of a pause that began
before its time.
"""

from typing import NamedTuple

from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.model.keys import PartitionId, Revision, SessionId
from limosa.core.model.topology import Replica

NEW_SHARE = 0.3
"""Weight of a new measurement against all earlier ones."""
HALVED_SECONDS = 60.0
"""Half-life of a measurement."""


class SealAsked(NamedTuple):
    """A requested seal: its revision, when it was requested, and what was in flight then."""

    revision: Revision
    at: float
    commit_seconds: float


class HandOver(NamedTuple):
    """A hand-over: the epoch that it begins, its seal, and its pause once the new owner is open."""

    epoch: int
    seal: SealAsked
    pause_seconds: float = 0.0


class Comparison(NamedTuple):
    """The differences that were found between a session's rows and their source."""

    session: SessionId
    since: float
    differences: tuple[str, ...] = ()
    more: int = 0
    ended: bool = False


class Memory:
    """What one coordinator saw, by partition."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._usual_seconds = settings.hand_over_seconds
        self._lately = (settings.hand_over_seconds, 0.0)
        """The recent cost of a hand-over beyond the writes in flight, and when it was measured."""
        self._held: dict[PartitionId, tuple[str, float]] = {}
        self._seals: dict[PartitionId, SealAsked] = {}
        self._hand_overs: dict[PartitionId, HandOver] = {}
        self._copies: dict[PartitionId, tuple[object, float]] = {}
        self._seen: dict[PartitionId, tuple[object, float]] = {}
        self._former: dict[PartitionId, tuple[int, Replica]] = {}
        self.balance_looked_at: float | None = None
        """When the loads of all nodes were last compared."""
        self.load_told: dict[PartitionId, float] | None = None
        """What the load source told, until the balancer has used it."""
        self._comparisons: dict[PartitionId, Comparison] = {}

    def forget(self, partition: PartitionId) -> None:
        """It was dropped."""
        for known in (
            self._held,
            self._seals,
            self._hand_overs,
            self._copies,
            self._seen,
            self._former,
            self._comparisons,
        ):
            known.pop(partition, None)

    def held_since(self, partition: PartitionId, transition: str, now: float) -> float:
        held, since = self._held.get(partition, ("", now))
        if held != transition:
            since = now
            self._held[partition] = (transition, since)
        return since

    # --- hand-overs

    def is_sealing(self, partition: PartitionId, revision: Revision) -> bool:
        seal = self._seals.get(partition)
        return seal is not None and seal.revision == revision

    def sealing(self, partition: PartitionId, seal: SealAsked) -> None:
        """The seal is requested for the first time."""
        self._seals[partition] = seal

    def handing_over(self, partition: PartitionId, revision: Revision, epoch: int) -> None:
        seal = self._seals.get(partition)
        if seal is not None and seal.revision == revision:
            self._hand_overs[partition] = HandOver(epoch, seal)

    def opened(self, partition: PartitionId, epoch: int, now: float) -> None:
        """The owner of this epoch serves: if this coordinator saw the seal, the pause is known
        now."""
        known = self._hand_overs.get(partition)
        if known is None or known.epoch != epoch or known.pause_seconds:
            return
        pause = now - known.seal.at
        self._hand_overs[partition] = known._replace(pause_seconds=pause)
        cost = max(0.0, pause - known.seal.commit_seconds)
        before = self.hand_over_seconds(now)
        self._lately = (before + NEW_SHARE * (cost - before), now)

    def hand_over_seconds(self, now: float) -> float:
        """The expected cost of a hand-over: a decaying average. Without the decay, one slow
        hand-over would forbid all later ones, and with them a better measurement."""
        seconds, at = self._lately
        remembered: float = 0.5 ** (max(0.0, now - at) / HALVED_SECONDS)
        return self._usual_seconds + (seconds - self._usual_seconds) * remembered

    def pause_seconds(self, partition: PartitionId, epoch: int) -> float:
        """How long the hand-over to this epoch took; 0: unknown."""
        known = self._hand_overs.get(partition)
        return known.pause_seconds if known is not None and known.epoch == epoch else 0.0

    # --- copies

    def silent_since(self, partition: PartitionId, progress: object, now: float) -> float:
        """Since when a copy has made no progress."""
        known, since = self._copies.get(partition, (None, now))
        if known != progress:
            since = now
            self._copies[partition] = (progress, since)
        return since

    # --- elections, and changes that were given up

    def owner_gone(self, partition: PartitionId, epoch: int, owner: Replica) -> None:
        """The lease of the owner has ended, and this epoch begins."""
        self._former[partition] = (epoch, owner)

    def former_owner(self, partition: PartitionId, epoch: int) -> Replica | None:
        """Whose lease ended before this epoch began; None: unknown."""
        known = self._former.get(partition)
        return known[1] if known is not None and known[0] == epoch else None

    def seen_since(self, partition: PartitionId, state: object, now: float) -> float:
        """Since when this coordinator has seen the partition in this state without a break."""
        known, since = self._seen.get(partition, (None, now))
        if known != state:
            since = now
            self._seen[partition] = (state, since)
        return since

    def known_since(self, partition: PartitionId, state: object) -> float | None:
        """The same; None: this coordinator has not seen it in this state."""
        known, since = self._seen.get(partition, (None, 0.0))
        return since if known == state else None

    # --- rows that differ

    def comparing(self, partition: PartitionId, session: SessionId, now: float) -> Comparison:
        known = self._comparisons.get(partition)
        if known is None or known.session != session:
            known = self._comparisons[partition] = Comparison(session, now)
        return known

    def compared(
        self, partition: PartitionId, session: SessionId, differences: tuple[str, ...], more: int
    ) -> None:
        known = self._comparisons.get(partition)
        if known is not None and known.session == session:
            self._comparisons[partition] = known._replace(
                differences=differences, more=more, ended=True
            )
