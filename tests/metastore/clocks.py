"""By which clocks do the metastore's tests run?"""


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
