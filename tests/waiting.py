"""How does a test wait for what other threads or processes do?"""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 30.0
"""Far more than anything takes on an idle machine: who waits this long has found a mistake."""

PAUSE_SECONDS = 0.01


def eventually(
    holds: Callable[[], Found],
    what: str,
    seconds: float = SECONDS,
    pause_seconds: float = PAUSE_SECONDS,
    story: Callable[[], object] | None = None,
) -> Found:
    """The first true answer of `holds`. Without one, the test fails: it says what did not happen,
    what the last answer was, and the `story`, such as the log of a process."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() >= deadline:
            told = "" if story is None else f"\n{story()}"
            raise AssertionError(f"not within {seconds:g} s: {what}; last: {found!r}{told}")
        time.sleep(pause_seconds)
    return found


def left_after(
    find: Callable[[], Found], seconds: float, pause_seconds: float = PAUSE_SECONDS
) -> Found:
    """What is still found after so long; nothing, as soon as nothing is found."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(pause_seconds)
    return found
