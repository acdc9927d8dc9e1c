"""How does a driver use the metastore without blocking? Other threads make the calls.

`Heartbeat` keeps a lease on a connection that is used for nothing else. `Watcher` keeps the agreed
state current and makes commits. Both report by events.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from limosa.core.model.changes import Agreed, Commit
from limosa.errors import LimosaError, StaleGuard
from limosa.metastore import leases
from limosa.metastore.agreed import AgreedStore
from limosa.ports import Clock, Metastore
from limosa.runtime.threads import vital_thread

Log = Callable[..., None]
Failed = Callable[[Exception], None]
"""Told of an error that the thread can't continue after: it ends the process."""
Work = Callable[[Metastore], None]
TROUBLE_SECONDS = 0.2
REGULAR_SECONDS = 0.1
"""How often a thread looks whether regular work is due."""


class StoreThread:
    """Does work with a metastore of its own, one piece after the other.

    Work that the metastore refuses or does not answer is dropped: whoever wants it asks again.
    """

    def __init__(
        self,
        open_store: Callable[[], Metastore],
        log: Log,
        failed: Failed,
        name: str,
        refused: str,
        regular: Callable[[], Work | None] | None = None,
    ) -> None:
        self._open = open_store
        self._log = log
        self._refused = refused
        """What the log says if the metastore refuses the work."""
        self._regular = regular
        """Returns the regular work that is due now, if any."""
        self._asked: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = vital_thread(self._run, name, failed)
        self._thread.start()

    def do(self, work: Work) -> None:
        self._asked.put(work)

    def _next(self) -> Work | None:
        """The next piece of work; None: there is no more."""
        if self._regular is None:
            return self._asked.get()
        while (due := self._regular()) is None:
            with suppress(queue.Empty):
                return self._asked.get(timeout=REGULAR_SECONDS)
        return due

    def _run(self) -> None:
        store: Metastore | None = None
        while (work := self._next()) is not None:
            try:
                store = store or self._open()
                work(store)
            except LimosaError as error:
                self._log(self._refused, error=str(error))
        if store is not None:
            store.close()

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(5.0)


class Heartbeat:
    """Grants and renews leases of one key, one after the other.

    The thread renews a lease whenever `due` names it, and waits for nobody. Then `renewed` is told
    the lease, whether it is alive, and when the renewal was sent.
    """

    def __init__(
        self,
        key: str,
        open_store: Callable[[], Metastore],
        clock: Clock,
        log: Log,
        failed: Failed,
        due: Callable[[float], int | None],
        renewed: Callable[[int, bool, float], None],
    ) -> None:
        self._key = key
        self._clock = clock

        def regular() -> Work | None:
            lease = due(clock.now())
            return None if lease is None else self._renewal(lease, partial(renewed, lease))

        self._thread = StoreThread(
            open_store,
            log,
            failed,
            "heartbeat",
            "the metastore does not answer",
            regular,
        )

    def acquire(
        self,
        ttl_seconds: float,
        register: Callable[[Metastore, int, int], int],
        then: Callable[[int, int, float], None],
    ) -> None:
        """Acquire a lease and register under it; reports lease, revision and time of sending.

        `register` gets the lease, and the revision that the key had before.
        """

        def work(store: Metastore) -> None:
            sent_at = self._clock.now()
            previous = leases.revision_of(store, self._key)
            lease = store.grant(ttl_seconds)
            with suppress(StaleGuard):  # another process holds the key: it is asked for again later
                then(lease, register(store, lease, previous), sent_at)

        self._thread.do(work)

    def _renewal(self, lease: int, then: Callable[[bool, float], None]) -> Work:
        def work(store: Metastore) -> None:
            sent_at = self._clock.now()
            then(leases.renew(store, self._key, lease), sent_at)

        return work

    def revoke(self, lease: int) -> None:
        """End the lease now, so that others need not wait until it expires."""
        self._thread.do(lambda store: store.revoke(lease))

    def close(self) -> None:
        self._thread.close()


class Watcher:
    """Follows the agreed state and makes commits, one after the other."""

    WAIT_SECONDS = 0.25

    def __init__(
        self,
        open_store: Callable[[], Metastore],
        read: Callable[[Agreed, bool], None],
        log: Log,
        failed: Failed,
    ) -> None:
        self._open = open_store
        self._read = read
        self._log = log
        self._wanted = False
        self._stopping = False
        self._store: Metastore | None = None
        self._agreed_store: AgreedStore | None = None
        self._thread = vital_thread(self._run, "watcher", failed)
        self._writer = StoreThread(
            self._open_for_commits, log, failed, "commits", "a commit was not made"
        )

    def start(self) -> None:
        self._thread.start()

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

        self.do(work)

    def do(self, work: Callable[[AgreedStore], None]) -> None:
        """Run other work with the store on the thread that commits."""
        self._writer.do(lambda store: work(AgreedStore(store)))

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
        if self._store is not None:
            self._store.close()

    def _open_for_commits(self) -> Metastore:
        """Retry, so that no commit is lost while the metastore can't be opened."""
        while True:
            try:
                return self._open()
            except LimosaError as error:
                if self._stopping:
                    raise
                self._log("the metastore does not answer", error=str(error))
                threading.Event().wait(TROUBLE_SECONDS)

    def close(self) -> None:
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._writer.close()
