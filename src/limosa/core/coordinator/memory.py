"""What does a coordinator remember of what it saw? Nothing that a successor needs.

A successor counts anew: it holds for as long again, waits for as long again, and knows nothing of a
pause that began before it.
"""

from typing import NamedTuple

from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.model.keys import PartitionId, Revision, SessionId

NEW_SHARE = 0.3
"""How much a new measurement counts against all earlier ones."""
HALVED_SECONDS = 60.0
"""After so long, half of it is forgotten."""


class SealAsked(NamedTuple):
    """A seal that was asked for: for which revision, when, and what was in flight then."""

    revision: Revision
    at: float
    commit_seconds: float


class HandOver(NamedTuple):
    """The epoch that it begins, the seal before it, and, once its owner is open, its pause."""

    epoch: int
    seal: SealAsked
    pause_seconds: float = 0.0


class Comparison(NamedTuple):
    """What a session's rows differ in, as far as it was told."""

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
        """What a hand-over cost, besides what was in flight, and when that was."""
        self._held: dict[PartitionId, tuple[str, float]] = {}
        self._seals: dict[PartitionId, SealAsked] = {}
        self._hand_overs: dict[PartitionId, HandOver] = {}
        self._copies: dict[PartitionId, tuple[object, float]] = {}
        self.balance_looked_at: float | None = None
        """When the loads of all nodes were last compared."""
        self._comparisons: dict[PartitionId, Comparison] = {}

    def forget(self, partition: PartitionId) -> None:
        """It was dropped."""
        for known in (self._held, self._seals, self._hand_overs, self._copies, self._comparisons):
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
        """The seal is asked for, for the first time."""
        self._seals[partition] = seal

    def handing_over(self, partition: PartitionId, revision: Revision, epoch: int) -> None:
        seal = self._seals.get(partition)
        if seal is not None and seal.revision == revision:
            self._hand_overs[partition] = HandOver(epoch, seal)

    def opened(self, partition: PartitionId, epoch: int, now: float) -> None:
        """The owner of this epoch serves: if its hand-over was ours, that was the pause."""
        known = self._hand_overs.get(partition)
        if known is None or known.epoch != epoch or known.pause_seconds:
            return
        pause = now - known.seal.at
        self._hand_overs[partition] = known._replace(pause_seconds=pause)
        cost = max(0.0, pause - known.seal.commit_seconds)
        before = self.hand_over_seconds(now)
        self._lately = (before + NEW_SHARE * (cost - before), now)

    def hand_over_seconds(self, now: float) -> float:
        """What one will cost: as lately. It is forgotten by and by, or one slow hand-over would
        forbid all later ones, and with them a better measurement."""
        seconds, at = self._lately
        remembered: float = 0.5 ** (max(0.0, now - at) / HALVED_SECONDS)
        return self._usual_seconds + (seconds - self._usual_seconds) * remembered

    def pause_seconds(self, partition: PartitionId, epoch: int) -> float:
        """How long the hand-over to this epoch took; 0: nobody here knows."""
        known = self._hand_overs.get(partition)
        return known.pause_seconds if known is not None and known.epoch == epoch else 0.0

    # --- copies

    def silent_since(self, partition: PartitionId, progress: object, now: float) -> float:
        """Since when a copy has been where it is."""
        known, since = self._copies.get(partition, (None, now))
        if known != progress:
            since = now
            self._copies[partition] = (progress, since)
        return since

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
