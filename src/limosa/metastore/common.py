"""What do all metastores have in common? Their watches, and what they refuse."""

import threading
import time
from collections.abc import Callable, Mapping

from limosa.errors import (
    HistoryTrimmed,
    IllegalRequest,
    LeaseLost,
    MetastoreUnavailable,
    StaleGuard,
)
from limosa.ports import KeyChange

POLL_SECONDS = 0.02
"""How long a waiting poll may miss a commit of another process, or that a lease has ended; a commit
of this process wakes the poll at once."""


class StoreWatch:
    """The `Watch` port over one store of this process."""

    def __init__(
        self,
        changed: threading.Condition,
        changes: Callable[[str, int], tuple[int, list[KeyChange]]],
        prefix: str,
        after_revision: int,
    ) -> None:
        self._changed = changed
        """The store's lock, which is notified after each commit."""
        self._changes = changes
        """The store's revision, and the changes of a prefix after a revision."""
        self._prefix = prefix
        self._revision = after_revision
        self._closed = False

    @property
    def revision(self) -> int:
        return self._revision

    def poll(self, timeout: float = 0.0) -> list[KeyChange]:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise MetastoreUnavailable("the watch is closed", "open another watch")
                self._revision, changes = self._changes(self._prefix, self._revision)
                left = deadline - time.monotonic()
                if changes or left <= 0:
                    return changes
                self._changed.wait(min(left, POLL_SECONDS))

    def nudge(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        self._closed = True
        self.nudge()


def check_watch(after_revision: int, revision: int, history_start: int) -> None:
    if not 0 <= after_revision <= revision:
        raise IllegalRequest(
            f"a watch after {after_revision}, but the store is at {revision}",
            "watch after a revision that was read from this store",
        )
    check_kept(after_revision, history_start)


def check_kept(after_revision: int, history_start: int) -> None:
    if after_revision < history_start - 1:
        raise HistoryTrimmed(
            f"changes after {after_revision} were requested, "
            f"but the history starts at {history_start}",
            "read, then watch from the revision of the read",
        )


def check_trim(before_revision: int, revision: int) -> None:
    if before_revision > revision + 1:
        raise IllegalRequest(
            f"trim before {before_revision}, but the store is at {revision}",
            "trim at most up to that revision",
        )


def check_guards(guards: Mapping[str, int], revision_of: Callable[[str], int]) -> None:
    stale = tuple(sorted(key for key in guards if revision_of(key) != guards[key]))
    if stale:
        raise StaleGuard(
            f"{', '.join(stale)} changed since they were read",
            "read again and retry",
            keys=stale,
        )


def lease_lost(lease: int) -> LeaseLost:
    return LeaseLost(f"lease {lease} has ended", "register again")


def closed() -> MetastoreUnavailable:
    return MetastoreUnavailable("the metastore is closed", "open it again")
