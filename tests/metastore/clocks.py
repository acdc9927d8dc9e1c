"""By which clocks do the metastore's tests run?"""

import time
from pathlib import Path


class FakeClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.boot = "first"

    def now(self) -> float:
        return self.seconds

    def boot_id(self) -> str:
        return self.boot

    def advance(self, seconds: float) -> None:
        self.seconds += seconds

    def reboot(self, boot: str) -> None:
        """Another boot, whose clock starts near zero, so that old ends look far away."""
        self.boot = boot
        self.seconds = 1.0


class BootClock:
    """The machine's own clock, for tests with real processes."""

    def __init__(self) -> None:
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        return self._boot
