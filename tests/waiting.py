"""How does a test wait for what other threads or processes do?"""

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 30.0
"""Far more than anything takes on an idle machine: who waits this long has found a mistake."""

PAUSE_SECONDS = 0.01


def eventually(
    holds: Callable[[], Found],
    what: str = "",
    seconds: float = SECONDS,
    pause_seconds: float = PAUSE_SECONDS,
    story: Callable[[], object] | None = None,
) -> Found:
    """The first true answer of `holds`. Without one, the test fails: it says what did not happen,
    what the last answer was, and the `story`, such as the log of a process."""
    found = _first(holds, bool, seconds, pause_seconds)
    if not found:
        told = "" if story is None else f"\n{story()}"
        expected = what or _source(holds)
        raise AssertionError(f"not within {seconds:g} s: {expected}; last: {found!r}{told}")
    return found


def left_after(
    find: Callable[[], Found], seconds: float, pause_seconds: float = PAUSE_SECONDS
) -> Found:
    """What is still found after so long; nothing, as soon as nothing is found."""
    return _first(find, lambda found: not found, seconds, pause_seconds)


def _first(
    ask: Callable[[], Found],
    is_wanted: Callable[[Found], bool],
    seconds: float,
    pause_seconds: float,
) -> Found:
    """The first answer that is wanted, or the last one."""
    deadline = time.monotonic() + seconds
    while not is_wanted(answer := ask()) and time.monotonic() < deadline:
        time.sleep(pause_seconds)
    return answer


def _source(function: Callable[[], object]) -> str:
    """The line of the test: the condition in the test's own words."""
    try:
        return " ".join(inspect.getsource(function).split())
    except (OSError, TypeError):
        return repr(function)
