"""Which bugs keep a cluster from recovering after an overload? See `mutants` and `overload`."""

from typing import Any

from limosa.core.client import Client
from limosa.core.client.windows import Window
from limosa.core.coordinator.commits import CommitQueue
from limosa.core.model.changes import Commit
from limosa.core.participant.pairs import AwakeClock
from limosa.core.participant.returning import Returning
from limosa.simulation.planting import always, mutant, wrapping


@mutant("a client backs off: attempts take longer and longer, and less is under way to a slow node")
def client_without_back_off(change: Any) -> None:
    def constant(self: Client, part: Any) -> float:
        return self.settings.attempt_seconds

    change(Client, "_attempt_seconds", constant)
    change(Window, "_lower", always(None))


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


@mutant("of a united commit with a stale guard, only the stale parts leave")
def stale_union_exploded(change: Any) -> None:
    """Each part is tried again by itself."""
    stale, take = CommitQueue.stale, CommitQueue.take
    alone: dict[CommitQueue, int] = {}

    def explode(self: CommitQueue, keys: Any) -> list[Commit]:
        if len(self._under_way) == 1:
            return stale(self, ())
        alone[self] = len(self._under_way)
        self._put_back(self._end())
        return []

    def take_alone(self: CommitQueue, operations_max: int) -> list[Commit]:
        if left := alone.get(self, 0):
            alone[self] = left - 1
            self._again = 1
        return take(self, operations_max)

    change(CommitQueue, "stale", explode)
    change(CommitQueue, "take", take_alone)
