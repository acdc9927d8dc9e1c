"""Which bugs keep a cluster from recovering after an overload? See `mutants` and `overload`."""

from typing import Any

from limosa.core.participant.pairs import AwakeClock
from limosa.core.participant.returning import Returning
from limosa.simulation.planting import mutant, wrapping


@wrapping(Returning, "is_held_up", "a proposal stands unless a write waits in vain for its replica")
def proposal_withdrawn_by_time(is_held_up: Any, self: Any, *those: Any) -> bool:
    return bool(self.proposed) or is_held_up(self, *those)


@mutant("a node that is behind with its own work calls no other node silent")
def silence_ignores_own_lag(change: Any) -> None:
    def tick(self: AwakeClock, now: float) -> None:
        passed = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        self.now += passed

    change(AwakeClock, "tick", tick)
