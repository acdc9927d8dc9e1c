"""Which volumes hang? Those whose oldest change has waited too long for its sync.

Only time in which the node ticks is counted: after a pause of the process, the news that a sync has
ended may come a little later than the first tick.
"""

from collections.abc import Collection

from limosa.core.participant.tickets import Tickets

TICK_SECONDS_MAX = 1.0
"""A longer time between two ticks counts as this."""


class SyncWatch:
    """Measures how long each volume's oldest change has been waiting."""

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets
        self._ticked_at: float | None = None
        self._awake_seconds = 0.0
        self._waiting: dict[str, tuple[int, float]] = {}
        """By volume: its oldest ticket that is not durable, and since when."""

    def tick(self, now: float, seconds_max: float, full: Collection[str] = ()) -> list[str]:
        """The volumes whose oldest change has been waiting for longer than allowed. On a full
        volume, changes wait for space, which is no failure."""
        passed = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        self._awake_seconds += min(passed, TICK_SECONDS_MAX)
        awake = self._awake_seconds
        waiting: dict[str, tuple[int, float]] = {}
        for volume, ticket in self._tickets.oldest().items():
            known, since = self._waiting.get(volume, (ticket, awake))
            goes_on = known == ticket and volume not in full
            waiting[volume] = (ticket, since if goes_on else awake)
        self._waiting = waiting
        return [volume for volume, (_, since) in waiting.items() if awake - since > seconds_max]
