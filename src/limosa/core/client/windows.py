"""How much may be under way to a node?

A window limits the writes that a node has not answered yet, in bytes; a part counts its rows and a
fixed amount, so the window limits the number of parts as well. Other parts wait in the client,
the oldest operation first.

The limit follows the latency of the node's answers: it grows a little while parts wait and answers
are quick, and shrinks at once when they take long. So a node that is behind gets less. If it got
repeats instead, it would fall behind further.
"""

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limosa.core.client.operations import OperationGroup, Part

PART_BYTES = 16 << 10
"""What a part costs besides its rows: nodes spend about as much time on it as on these bytes."""
WINDOW_BYTES_MIN = 4 * PART_BYTES
WINDOW_BYTES_MAX = 32 << 20
"""Several attempts of all parts in a full window fit into a link's outbox."""
GROWTH_BYTES = 512 << 10
"""By how much a window grows while as many bytes as it has are answered; a small one doubles."""
LATENCY_SECONDS_AIM = 0.25
LATENCY_RATIO_AIM = 3.0
"""Where even the quickest answers take long, an answer may take so many times as long as those."""


class Window:
    """The writes that are under way to one node, and those that wait for room."""

    __slots__ = ("_lowered_at", "_queue", "best", "latency", "limit", "progress_at", "used")

    def __init__(self, limit: int) -> None:
        self.limit = float(limit)
        self.used = 0
        self.latency = 0.0
        """The smoothed latency of answers, in seconds; 0: there was none yet."""
        self.best = 1e9
        """The latency of the quickest answers; slowly forgotten."""
        self.progress_at = -1e9
        """When the node last acknowledged a write."""
        self._lowered_at = -1e9
        self._queue: list[tuple[int, int, OperationGroup, Part]] = []
        """A heap. Parts that do not wait for this window any more are skipped."""

    def has_room(self, size: int) -> bool:
        """One part may always be under way, however large."""
        return not self.used or self.used + size <= self.limit

    def push(self, entry: int, group: "OperationGroup", part: "Part") -> None:
        part.queue = self
        heappush(self._queue, (group.number, entry, group, part))

    def first(self) -> "tuple[OperationGroup, Part] | None":
        """The part that is sent next."""
        queue = self._queue
        while queue and queue[0][3].queue is not self:
            heappop(queue)
        return queue[0][2:] if queue else None

    def answered(self, now: float, seconds: float, size: int) -> None:
        """The node acknowledged a write that was sent so many seconds ago."""
        self.progress_at = now
        self.latency += (seconds - self.latency) / 8 if self.latency else seconds
        self.best = min(seconds, self.best + (seconds - self.best) / 512)
        if self.latency > max(LATENCY_SECONDS_AIM, LATENCY_RATIO_AIM * self.best):
            self._lower(now, 0.7)
        elif self._queue:
            growth = min(self.limit, GROWTH_BYTES) * size / self.limit
            self.limit = min(WINDOW_BYTES_MAX, self.limit + growth)

    def timed_out(self, now: float) -> None:
        """An attempt was not answered in time."""
        self._lower(now, 0.5)

    def _lower(self, now: float, factor: float) -> None:
        """At most once in the time that an answer takes: only then the effect is seen."""
        if now - self._lowered_at >= max(self.latency, LATENCY_SECONDS_AIM):
            self._lowered_at = now
            self.limit = min(self.limit, max(WINDOW_BYTES_MIN, self.limit * factor))
