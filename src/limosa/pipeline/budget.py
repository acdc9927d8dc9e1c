"""How fast may rows be copied? All waves together share one limit of bytes per second.

A wave gets a rate and keeps to it, except for its first slices, which start at once. When a wave
has ended, its bytes are compared with what its time allowed, and the next wave waits for the
excess. Otherwise many small partitions, one wave after the other, would exceed the limit.
"""

SHARE_MIN = 0.125


class Budget:
    """The bandwidth of one mover. Time is an argument."""

    def __init__(self, bytes_per_second: float) -> None:
        self._always = bytes_per_second
        self._of_run = 0.0
        self._waves: dict[str, tuple[float, int]] = {}
        """Running waves: their rate, and the period in which they started."""
        self._period = 0
        self._since = 0.0
        """When this period started: since then, a wave was always running or waiting."""
        self._taken = 0
        """Bytes of waves that started in this period and have ended."""

    @property
    def allowed(self) -> float:
        """Bytes per second; 0: no limit."""
        limits = [each for each in (self._always, self._of_run) if each]
        return min(limits, default=0.0)

    def limit(self, now: float, bytes_per_second: float) -> None:
        """Set a run's limit, if it is lower than the coordinator's; 0: the coordinator's."""
        if bytes_per_second != self._of_run:
            self._of_run = bytes_per_second
            self._begin_period(now)  # an excess over the old limit no longer counts

    def is_free(self, now: float) -> bool:
        """May another wave start?"""
        return not self.allowed or now >= self._since + self._taken / self.allowed

    def begin(self, now: float, wave: str) -> float:
        """Start a wave; returns its rate: what other waves leave, but at least a minimum share."""
        if not self._waves and self.is_free(now):
            self._begin_period(now)
        left = self.allowed - sum(rate for rate, _ in self._waves.values())
        rate = max(left, self.allowed * SHARE_MIN)
        self._waves[wave] = (rate, self._period)
        return rate

    def end(self, wave: str, size: int) -> None:
        _, period = self._waves.pop(wave)
        if period == self._period:
            self._taken += size

    def _begin_period(self, now: float) -> None:
        self._period += 1
        self._since = now
        self._taken = 0
