"""Who does what takes a while? A thread of its own, one thing after the other."""

import queue
import threading
from collections.abc import Callable


class Worker:
    def __init__(self, log: Callable[..., None], name: str = "worker") -> None:
        self._log = log
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        self._asked.put(work)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                work()
            except Exception as error:
                self._log("work failed", error=repr(error))

    def close(self) -> None:
        self._asked.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
