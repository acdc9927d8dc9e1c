"""How is a move measured under a writer? Its seconds, and the longest stall with and without it."""

import random
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from time import perf_counter
from types import TracebackType
from typing import Protocol

import numpy as np
from msgspec import Struct

VALUE_BYTES = 120
QUIET_SECONDS_MIN = 2.0
QUIET_SECONDS_MAX = 20.0
ACKNOWLEDGED_SECONDS_MAX = 30.0
JOIN_SECONDS_MAX = 5.0
_POLL_SECONDS = 0.001


class Moved(Struct, frozen=True):
    """What one system's move of all its keys cost, and its writer meanwhile.

    A stall is the time between two acknowledged writes. `quiet` is the end of the time before the
    move: as long as the move if `quiet_seconds` says so, shorter if the move took unusually long.
    """

    name: str
    version: str
    keys: int
    seconds: float
    longest_stall_seconds: float
    quiet_longest_stall_seconds: float
    quiet_seconds: float
    async_durability: bool
    """Are writes acknowledged before they are on a disk?"""

    @property
    def keys_per_second(self) -> float:
        return self.keys / self.seconds


def value_of(number: int) -> str:
    """What a write with this number writes; what is loaded has number 0."""
    return f"{number:0{VALUE_BYTES}}"


class Pair(Protocol):
    """A source that has all keys, and a target that has none."""

    name: str
    version: str
    async_durability: bool
    expected_seconds: float
    """Rather too many: for so long the writer is watched before the move."""

    def write(self, key: int, number: int) -> None:
        """To this key, wherever it is now; returns when the write is acknowledged."""
        ...

    def move(self) -> None:
        """All keys; returns when the target serves them, and the source serves none."""
        ...

    def check(self, written: Mapping[int, int]) -> None:
        """Every key is at the target, with the last number that was acknowledged, if any."""
        ...


def measure(pair: Pair, keys: int) -> Moved:
    with Writer(pair.write, keys) as writer:
        opened = writer.wait_for_next()
        expected = min(pair.expected_seconds, QUIET_SECONDS_MAX)
        time.sleep(max(QUIET_SECONDS_MIN, expected))
        start = perf_counter()
        pair.move()
        end = writer.wait_for_next()
    pair.check(writer.written)
    quiet_start = max(opened, start - (end - start))
    return Moved(
        name=pair.name,
        version=pair.version,
        keys=keys,
        seconds=end - start,
        longest_stall_seconds=writer.longest_stall(start, end),
        quiet_longest_stall_seconds=writer.longest_stall(quiet_start, start),
        quiet_seconds=start - quiet_start,
        async_durability=pair.async_durability,
    )


class Writer:
    """A thread that writes keys at random, one at a time, and notes when each is acknowledged."""

    def __init__(self, write: Callable[[int, int], None], keys: int) -> None:
        self._write = write
        self._keys = keys
        self.written: dict[int, int] = {}
        self._acknowledged = array("d")
        self._stopping = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A write that hangs is not waited for: it ends with its server."""
        self._stopping.set()
        self._thread.join(JOIN_SECONDS_MAX)

    def _run(self) -> None:
        dice = random.Random(1)
        try:
            while not self._stopping.is_set():
                key, number = dice.randrange(self._keys), len(self._acknowledged) + 1
                self._write(key, number)
                self._acknowledged.append(perf_counter())
                self.written[key] = number
        except Exception as error:
            self._failed = error

    def wait_for_next(self) -> float:
        """When a write that begins from now on is acknowledged: the next may have begun before."""
        wanted = len(self._acknowledged) + 1
        deadline = perf_counter() + ACKNOWLEDGED_SECONDS_MAX
        while len(self._acknowledged) <= wanted:
            if self._failed is not None:
                raise self._failed
            if perf_counter() > deadline:
                raise TimeoutError(f"no write in {ACKNOWLEDGED_SECONDS_MAX:.0f} seconds")
            time.sleep(_POLL_SECONDS)
        return self._acknowledged[wanted]

    def longest_stall(self, start: float, end: float) -> float:
        """Of those of which some is between these two moments, also if the rest is outside."""
        moments = np.array(self._acknowledged[:])
        before, after = moments[:-1], moments[1:]
        within = (after > start) & (before < end)
        return float(np.max((after - before)[within]))
