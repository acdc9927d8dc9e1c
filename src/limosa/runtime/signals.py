"""How is Ctrl-C postponed? A signal waits while a process is started that nobody would stop yet."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def delayed(*numbers: signal.Signals) -> Iterator[None]:
    """Postpones these signals until the block ends. Python handles signals in the main thread only.

    A signal mask would not work: the kernel may deliver a signal to any thread of a library.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before: dict[signal.Signals, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, lambda number, _: heard.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for told in heard:
            signal.raise_signal(told)
