"""What if a process of a local cluster dies or hangs? It is reported, and soon restarted."""

import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from limosa.errors import LimosaError

PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 30.0
CALM_SECONDS = 10.0
"""After a process has run for this long, its next restart has the shortest pause again."""


HANGS_SECONDS = 10.0
"""A process that should show that it works, and has not for this long, is killed."""


class Processes(Protocol):
    """The supervised processes: `runtime.local.LocalCluster`, or a test double."""

    processes: dict[str, Any]

    def start_one(self, name: str, wait: bool = True, port: int | None = None) -> None: ...

    def wait_until_ready(self, names: Sequence[str]) -> None: ...

    def has_beaten(self, name: str) -> bool | None: ...


class Supervisor:
    """Restarts processes that died or hang, whenever `look` is called; `look` does not block."""

    def __init__(
        self,
        cluster: Processes,
        report: Callable[[str], None],
        came_back: Callable[[], None] = lambda: None,
        restarts: bool = True,
        now: Callable[[], float] = time.monotonic,
        hangs_seconds: float = HANGS_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._report = report
        self._came_back = came_back
        self._restarts = restarts
        self._now = now
        self._hangs_seconds = hangs_seconds
        self._heard_at: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._started_at: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._starting: set[str] = set()
        self._gone: set[str] = set()

    @property
    def all_gone(self) -> bool:
        """No process runs, and none will be restarted."""
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
            elif self._restarts and self._hangs(name):
                self._report(f"{name} has hung for {self._hangs_seconds:.0f} s: it is killed.")
                del self._heard_at[name]
                process.kill()

    def _hangs(self, name: str) -> bool:
        has_beaten = self._cluster.has_beaten(name)
        if has_beaten is None:
            return False
        since = self._heard_at.setdefault(name, self._now())
        if has_beaten:
            self._heard_at[name] = self._now()
        return self._now() - since > self._hangs_seconds and not has_beaten

    def _mourn(self, name: str, what: str) -> None:
        self._heard_at.pop(name, None)
        if not self._restarts:
            self._gone.add(name)
            self._report(f"{what}. It is not restarted (--no-restart).")
            return
        ran = self._now() - self._started_at.get(name, -CALM_SECONDS)
        pause = PAUSE_SECONDS if ran >= CALM_SECONDS else self._next_pause(name)
        self._pauses[name] = pause
        self._due[name] = self._now() + pause
        self._report(f"{what}. It is restarted in {pause:.0f} s.")

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
        self._report(f"{name} has restarted.")
        self._came_back()


def is_readable(process: Any) -> bool:
    """Whether the process has printed something, or has ended."""
    return bool(select.select([process.stdout], [], [], 0)[0])


def ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
