"""How is Ctrl-C postponed? A signal waits while a process is started that nobody would stop yet."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_back(*numbers: signal.Signals) -> Iterator[None]:
    """These signals are heard afterwards. Python tells the main thread of them, and no other.

    A mask would not do: libraries have threads of their own, and any of them may be told.
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
