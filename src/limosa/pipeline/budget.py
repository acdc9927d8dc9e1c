"""How fast may rows be copied? All waves together share one limit of bytes per second.

A wave is given a rate, and keeps to it but for its first slices, which go at once. So when it has
ended, what it took is compared with what its time allowed, and the next one waits for the rest:
many small partitions, one wave after the other, would know no limit otherwise.
"""

SHARE_MIN = 0.125


class Budget:
    """Of one mover. Time is an argument."""

    def __init__(self, bytes_per_second: float) -> None:
        self._always = bytes_per_second
        self._of_run = 0.0
        self._waves: dict[str, tuple[float, int]] = {}
        """Waves under way: their rate, and the period in which they began."""
        self._period = 0
        self._since = 0.0
        """When this period began: since then, something was carried or waited for all the time."""
        self._taken = 0
        """By waves that began in it, and have ended."""

    @property
    def allowed(self) -> float:
        """Bytes a second; 0: as fast as it goes."""
        limits = [each for each in (self._always, self._of_run) if each]
        return min(limits, default=0.0)

    def limit(self, now: float, bytes_per_second: float) -> None:
        """What a run allows, if that is less than what is allowed anyway; 0: all of it."""
        if bytes_per_second != self._of_run:
            self._of_run = bytes_per_second
            self._begin_period(now)  # what was owed was owed to the old limit

    def is_free(self, now: float) -> bool:
        """May another wave begin?"""
        return not self.allowed or now >= self._since + self._taken / self.allowed

    def begin(self, now: float, wave: str) -> float:
        """Its rate: what others have left, but never so little that it would take for ever."""
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
