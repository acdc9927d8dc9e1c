"""How do changes become durable? Each volume has a thread that syncs all that arrived meanwhile."""

import threading
from collections.abc import Callable

from limosa.runtime.threads import vital_thread

SYNC_SECONDS = 0.02
"""Longest wait for a sync; usually a write wakes the sync thread, or syncs itself."""


class VolumeSyncer:
    """Syncs one volume. A volume that hangs holds up nobody but its own replicas."""

    def __init__(
        self,
        volume: str,
        sync: Callable[["VolumeSyncer"], int | None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.volume = volume
        self._sync = sync
        """Makes everything written to the volume durable; the last ticket of it, or None."""
        self._wanted = 0
        self._synced = 0
        self.turn = threading.Lock()
        """Held by the thread that syncs."""
        self._to_sync = threading.Condition(threading.Lock())
        self._stopping = threading.Event()
        self.thread = vital_thread(self._run, f"sync-{volume}" if volume else "sync", failed)

    def want(self, ticket: int, wake: bool) -> None:
        """A change was written. `wake`: the caller will not sync it itself."""
        with self._to_sync:
            self._wanted = ticket
            if wake:
                self._to_sync.notify()

    def sync_once(self) -> None:
        """Sync everything written so far; the caller has the turn."""
        if self._wanted > self._synced and not self._stopping.is_set():
            self._synced = self._sync(self) or self._synced

    def stop(self) -> None:
        self._stopping.set()
        with self._to_sync:
            self._to_sync.notify_all()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._to_sync:
                while self._wanted <= self._synced and not self._stopping.is_set():
                    self._to_sync.wait(SYNC_SECONDS)
            with self.turn:
                self.sync_once()
