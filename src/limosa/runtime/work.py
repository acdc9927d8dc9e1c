"""How does slow work run? On a thread of its own, one task after the other."""

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

NICENESS = 10
"""Lower priority: digests and slices use a processor for seconds, and writes come first."""


class BackgroundWorker:
    def __init__(self, log: Callable[..., None], name: str = "worker") -> None:
        self._log = log
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        self._asked.put(work)

    def _run(self) -> None:
        _stand_back()
        while (work := self._asked.get()) is not None:
            try:
                work()
            except Exception as error:
                self._log("work failed", error=repr(error))
            del work  # frees what it references: rows, and files that may be removed meanwhile

    def close(self) -> None:
        self._asked.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)


class VolumeWorkers:
    """A worker for each volume, so that a volume that hangs holds up no work on others."""

    def __init__(self, log: Callable[..., None], name: str = "worker") -> None:
        self._log = log
        self._name = name
        self._workers: dict[str | None, BackgroundWorker] = {}
        self._lock = threading.Lock()

    def do(self, volume: str | None, work: Callable[[], None]) -> None:
        """None: the replica is not here any more; the work will find that, and answer."""
        with self._lock:
            worker = self._workers.get(volume)
            if worker is None:
                name = f"{self._name}-{volume}" if volume else self._name
                worker = self._workers[volume] = BackgroundWorker(self._log, name)
        worker.do(work)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()


def _stand_back() -> None:
    """Lower the priority of this thread, where the system has one per thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(nice, 19))
