"""What if a process of a local cluster dies? It is reported, and started again after a pause."""

import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from limosa.errors import LimosaError

PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 30.0
CALM_SECONDS = 10.0
"""Who has run for this long is forgiven its earlier deaths."""


class Processes(Protocol):
    """What is looked after: `runtime.local.LocalCluster`, or a stand-in."""

    processes: dict[str, Any]

    def start_one(self, name: str, wait: bool = True, port: int | None = None) -> None: ...

    def wait_until_ready(self, names: Sequence[str]) -> None: ...


class Supervisor:
    """Call `look` now and then; it never waits."""

    def __init__(
        self,
        cluster: Processes,
        report: Callable[[str], None],
        came_back: Callable[[], None] = lambda: None,
        restarts: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._report = report
        self._came_back = came_back
        self._restarts = restarts
        self._now = now
        self._pauses: dict[str, float] = {}
        self._started_at: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._starting: set[str] = set()
        self._gone: set[str] = set()

    @property
    def all_gone(self) -> bool:
        """Nobody runs, and nobody will."""
        return len(self._gone) == len(self._cluster.processes)

    def look(self) -> None:
        for name, process in list(self._cluster.processes.items()):
            if name in self._gone:
                continue
            if name in self._due:
                if self._now() >= self._due[name]:
                    self._restart(name)
            elif name in self._starting:
                if is_readable(process):
                    self._greet(name)
            elif process.poll() is not None:
                self._mourn(name, f"{name} {ending(process.returncode)}")

    def _mourn(self, name: str, what: str) -> None:
        if not self._restarts:
            self._gone.add(name)
            self._report(f"{what}. It is not started again (--no-restart).")
            return
        ran = self._now() - self._started_at.get(name, -CALM_SECONDS)
        pause = PAUSE_SECONDS if ran >= CALM_SECONDS else self._next_pause(name)
        self._pauses[name] = pause
        self._due[name] = self._now() + pause
        self._report(f"{what}. It is started again in {pause:.0f} s.")

    def _next_pause(self, name: str) -> float:
        return min(PAUSE_SECONDS_MAX, 2 * self._pauses.get(name, PAUSE_SECONDS / 2))

    def _restart(self, name: str) -> None:
        del self._due[name]
        self._started_at[name] = self._now()
        try:
            self._cluster.start_one(name, wait=False)
        except (LimosaError, OSError) as error:
            self._mourn(name, f"{name} can't be started: {error}")
            return
        self._starting.add(name)

    def _greet(self, name: str) -> None:
        self._starting.discard(name)
        try:
            self._cluster.wait_until_ready([name])
        except LimosaError as error:
            self._mourn(name, str(error))
            return
        self._report(f"{name} runs again.")
        self._came_back()


def is_readable(process: Any) -> bool:
    """Has it said something, or ended?"""
    return bool(select.select([process.stdout], [], [], 0)[0])


def ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
