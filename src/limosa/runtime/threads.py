"""What happens when a thread fails? Its process ends, and a supervisor starts it again.

Without one of its threads a process would keep its lease and not do its work. An error that
concerns only one request, stream, copy or volume is handled where it occurs; every other error ends
the process.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from limosa.runtime.journal import Journal


def vital_thread(
    target: Callable[[], None], name: str, failed: Callable[[Exception], None]
) -> threading.Thread:
    """A thread that the process can't do without."""

    def run() -> None:
        try:
            target()
        except Exception as error:
            failed(error)

    return threading.Thread(target=run, name=name, daemon=True)


class ProcessEnd:
    """Whether a process has failed, and why."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    def fail(self, error: BaseException | None) -> None:
        self.failure = self.failure or error or RuntimeError("a thread failed")
        self.ended.set()

    def watch_threads(self, journal: Journal) -> None:
        """From now on, an error that any thread of this process does not handle ends the process:
        also threads of libraries, and those that nobody remembers."""

        def hook(failed: threading.ExceptHookArgs) -> None:
            with suppress(Exception):
                name = "unknown" if failed.thread is None else failed.thread.name
                journal("a thread failed", thread=name, error=failed.exc_value)
            self.fail(failed.exc_value)

        threading.excepthook = hook
