"""How fast may copies read from and write to this node? Only as fast as clients' writes allow.

A copy needs processors and disks that writes need, too. A node therefore watches how long writes
take until they are committed. While nothing is copied, it learns what is usual. While something is
copied, and one write in ten takes more than twice the usual time (and more than a fixed time), the
node halves the rate of all copies that it takes part in; otherwise it lets the rate grow by and by.
A minimum remains, so that every copy ends.

    nothing is copied ──slice──▶ full speed ──writes are slow──▶ slowed: the rate is halved ◀─┐
           ▲                        ▲                                 │  │                    │
           └──── no slice ──────────┴──────── as fast as before ──────┘  └── writes are slow ─┘
                                              the rate grows while writes are quick
"""

from math import inf

from limosa.core.participant.settings import ParticipantSettings

PERIOD_SECONDS = 0.5
"""How often the times of writes are judged."""
SAMPLES_MAX = 1_000
"""Of the times of one period; further ones are not kept."""
SLOW_PLACE = 0.9
"""The time that is judged: one write in ten takes longer."""
NEW_SHARE = 0.3
"""Weight of one period against earlier ones, in what is usual."""
TOLERATED = 2.0
"""Writes may take so many times as long as usual."""
QUIET_SECONDS = 5.0
"""Longer than the longest pause between two slices of a slowed copy."""
PAUSE_SECONDS_MAX = 3.0
GROWN_PER_SECOND = 0.1
"""The rate grows by this share of the full speed."""


class CopyPace:
    """The copies that one node takes part in, and the writes that it commits. Time is given."""

    def __init__(self, settings: ParticipantSettings) -> None:
        self._settings = settings
        self.rate = 0.0
        """Bytes per second that all copies here may use together; 0: they are not slowed."""
        self.usual_seconds: float | None = None
        """How long writes took while nothing was copied; None: there were none."""
        self._full = 0.0
        """The rate of copies when they were first slowed."""
        self._times: list[float] = []
        self._bytes = 0
        self._since = -inf
        """Start of the present period."""
        self._copied_at = -inf
        self._next_at = -inf
        """When the next slice may start."""

    @property
    def bound_seconds(self) -> float:
        """Writes that take longer than this are slow."""
        return max(self._settings.slow_write_seconds, TOLERATED * (self.usual_seconds or 0.0))

    def committed(self, now: float, seconds: float) -> None:
        """A client's write was committed after so many seconds."""
        self._judge(now)
        if len(self._times) < SAMPLES_MAX:
            self._times.append(seconds)

    def copied(self, now: float, size: int, waits_seconds: float = 0.0) -> None:
        """So many bytes of a copy were read or stored here. Meanwhile the oldest write that is not
        committed yet has waited so long."""
        if now - self._copied_at > QUIET_SECONDS:
            self._begin_period(now)
            self.rate = self._full = 0.0
        if waits_seconds > self.bound_seconds:
            self._times.append(waits_seconds)
        self._copied_at = now
        self._bytes += size
        self._judge(now)
        if self.rate:
            self._next_at = max(self._next_at, now) + size / self.rate

    def pause_seconds(self, now: float) -> float:
        """How long a copy should wait before it asks for its next slice."""
        return min(max(0.0, self._next_at - now), PAUSE_SECONDS_MAX) if self.rate else 0.0

    def _judge(self, now: float) -> None:
        passed = now - self._since
        if passed < PERIOD_SECONDS:
            return
        times = sorted(self._times)
        slow = times[int(SLOW_PLACE * len(times))] if times else 0.0
        if now - self._copied_at > QUIET_SECONDS:
            self.rate = 0.0
            if times:
                usual = slow if self.usual_seconds is None else self.usual_seconds
                self.usual_seconds = usual + NEW_SHARE * (slow - usual)
        elif self._settings.slow_write_seconds and slow > self.bound_seconds:
            used = self._bytes / passed
            self._full = self._full or used
            self.rate = max(self._settings.copy_rate_min, min(used, self.rate or used) / 2)
        elif self.rate:
            self.rate += GROWN_PER_SECOND * self._full * passed
            if self.rate >= self._full:
                self.rate = self._full = 0.0
        self._begin_period(now)

    def _begin_period(self, now: float) -> None:
        self._since = now
        self._times.clear()
        self._bytes = 0
