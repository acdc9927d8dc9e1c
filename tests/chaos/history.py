"""What did the clients ask for, and what were they told? Everything is written down.

Three outcomes: it was done; it surely was not (then it is counted, and is no part of the history);
or nobody knows, and then it may happen at any time later, or never.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.client import Mismatch
from limosa.errors import LimosaError
from limosa.simulation.checkers.linearizability import ObservedOperation

Outcome: TypeAlias = Literal["ok", "mismatch", "failed", "unknown"]


class Slow(Struct, frozen=True):
    """An operation that took longer than it was allowed to."""

    client: str
    what: str
    seconds: float


class Ended(Struct, frozen=True):
    """How one operation ended."""

    outcome: Outcome
    invoked: float
    returned: float
    value: object = None
    error: str = ""

    @property
    def known_at(self) -> float | None:
        """When it had happened at the latest; None: nobody knows."""
        return None if self.outcome == "unknown" else self.returned


class History:
    """Of all clients together."""

    def __init__(self, seconds_max: float, limits: Mapping[str, float] | None = None) -> None:
        self._seconds_max = seconds_max
        self._limits = dict(limits or {})
        """Of operations that may take longer."""
        self._lock = threading.Lock()
        self.operations: list[ObservedOperation] = []
        """Of single keys, since the last judgement."""
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.slow: list[Slow] = []
        self.longest_seconds = 0.0
        self.acked_rows = 0

    def run(self, client: str, what: str, work: Callable[[], object]) -> Ended:
        """Do it, and note how long it took and how it ended."""
        invoked = time.monotonic()
        outcome: Outcome = "ok"
        value: object = None
        error = ""
        try:
            value = work()
        except Mismatch as mismatch:
            outcome, value = "mismatch", mismatch.found
        except LimosaError as failure:
            outcome = "failed" if failure.definite else "unknown"
            error = f"{type(failure).__name__}: {failure.message}"
        ended = Ended(outcome, invoked, time.monotonic(), value, error)
        self.note(client, what, ended)
        return ended

    def note(self, client: str, what: str, ended: Ended) -> None:
        seconds = ended.returned - ended.invoked
        with self._lock:
            self.outcomes[ended.outcome] += 1
            self.longest_seconds = max(self.longest_seconds, seconds)
            if ended.error:
                self.errors[f"{what}, {ended.outcome}: {ended.error[:100]}"] += 1
            if seconds > self._limits.get(what, self._seconds_max):
                self.slow.append(Slow(client, what, seconds))

    def add(self, operations: Sequence[ObservedOperation], acked_rows: int = 0) -> None:
        with self._lock:
            self.operations += operations
            self.acked_rows += acked_rows

    def take(self) -> list[ObservedOperation]:
        """All of them; the next ones are of other keys."""
        with self._lock:
            taken, self.operations = self.operations, []
        return taken

    @property
    def count(self) -> int:
        return self.outcomes.total()
