"""How does a driver use the metastore without blocking? Other threads make the calls.

`Heartbeat` keeps a lease on a connection that is used for nothing else. `Watcher` keeps the agreed
state current and makes commits. Both report by events.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from limosa.core.model.changes import Agreed, Commit
from limosa.errors import LeaseLost, LimosaError, StaleGuard
from limosa.metastore.agreed import AgreedStore
from limosa.ports import Clock, Metastore

Log = Callable[..., None]
TROUBLE_SECONDS = 0.2


class Heartbeat:
    """Grants and renews leases, one after the other."""

    def __init__(self, open_store: Callable[[], Metastore], clock: Clock, log: Log) -> None:
        self._open = open_store
        self._clock = clock
        self._log = log
        self._asked: queue.SimpleQueue[Callable[[Metastore], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def acquire(
        self,
        ttl_seconds: float,
        register: Callable[[Metastore, int], int],
        then: Callable[[int, int, float], None],
    ) -> None:
        """Acquire a lease and register under it; reports lease, revision and time of sending."""

        def work(store: Metastore) -> None:
            sent_at = self._clock.now()
            lease = store.grant(ttl_seconds)
            then(lease, register(store, lease), sent_at)

        self._asked.put(work)

    def renew(self, lease: int, then: Callable[[bool, float], None]) -> None:
        def work(store: Metastore) -> None:
            sent_at = self._clock.now()
            try:
                store.renew(lease)
            except LeaseLost:
                then(False, sent_at)
            else:
                then(True, sent_at)

        self._asked.put(work)

    def revoke(self, lease: int) -> None:
        """End the lease now, so that others need not wait until it expires."""
        self._asked.put(lambda store: store.revoke(lease))

    def _run(self) -> None:
        store: Metastore | None = None
        while True:
            work = self._asked.get()
            if work is None:
                break
            try:
                store = store or self._open()
                work(store)
            except StaleGuard:
                pass  # another process holds the key: it is asked for again later
            except LimosaError as error:
                self._log("the metastore does not answer", error=str(error))
            except Exception as error:
                self._log("heartbeat failed", error=repr(error))
        if store is not None:
            store.close()

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(5.0)


class Watcher:
    """Follows the agreed state and makes commits, one after the other."""

    WAIT_SECONDS = 0.25

    def __init__(
        self,
        open_store: Callable[[], Metastore],
        read: Callable[[Agreed, bool], None],
        log: Log,
    ) -> None:
        self._open = open_store
        self._read = read
        self._log = log
        self._wanted = False
        self._stopping = False
        self._store: Metastore | None = None
        self._agreed_store: AgreedStore | None = None
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._writer = threading.Thread(target=self._write, name="commits", daemon=True)
        self._commits: queue.SimpleQueue[Callable[[AgreedStore], None] | None] = queue.SimpleQueue()

    def start(self) -> None:
        self._thread.start()
        self._writer.start()

    def look(self) -> None:
        """Report the newest state, even if it has not changed."""
        self._wanted = True
        agreed_store = self._agreed_store
        if agreed_store is not None:
            agreed_store.nudge()

    def commit(self, commit: Commit) -> None:
        """Make a commit; its result shows in the state. A stale commit is dropped."""

        def work(store: AgreedStore) -> None:
            with suppress(StaleGuard):
                store.commit(commit)

        self._commits.put(work)

    def do(self, work: Callable[[AgreedStore], None]) -> None:
        """Run other work with the store on the thread that commits."""
        self._commits.put(work)

    def _run(self) -> None:
        agreed_store: AgreedStore | None = None
        last: int | None = None
        while not self._stopping:
            try:
                if agreed_store is None:
                    self._store = self._open()
                    self._agreed_store = agreed_store = AgreedStore(self._store)
                wanted, self._wanted = self._wanted, False
                agreed = agreed_store.read(0.0 if wanted or last is None else self.WAIT_SECONDS)
                if wanted or agreed.revision != last:
                    last = agreed.revision
                    self._read(agreed, wanted)
            except LimosaError as error:
                if not self._stopping:
                    self._log("the metastore does not answer", error=str(error))
                    threading.Event().wait(TROUBLE_SECONDS)
            except Exception as error:
                self._log("following the metastore failed", error=repr(error))
                threading.Event().wait(TROUBLE_SECONDS)
        if self._store is not None:
            self._store.close()

    def _opened(self) -> AgreedStore | None:
        try:
            return AgreedStore(self._open())
        except LimosaError as error:
            self._log("the metastore does not answer", error=str(error))
            threading.Event().wait(TROUBLE_SECONDS)
            return None

    def _write(self) -> None:
        store: AgreedStore | None = None
        while True:
            work = self._commits.get()
            if work is None:
                break
            try:
                while store is None and not self._stopping:
                    store = self._opened()
                if store is not None:
                    work(store)
            except LimosaError as error:
                self._log("a commit was not made", error=str(error))
            except Exception as error:
                self._log("a commit failed", error=repr(error))
        if store is not None:
            store.store.close()

    def close(self) -> None:
        self._stopping = True
        self._commits.put(None)
        for thread in (self._thread, self._writer):
            if thread.is_alive():
                thread.join(5.0)
