"""What time is it? A clock that keeps counting while the machine sleeps."""

import time
from pathlib import Path


class BootClock:
    """The time since the machine's boot."""

    def __init__(self) -> None:
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        return self._boot
