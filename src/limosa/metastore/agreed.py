"""How are the core's records read and committed? Through any metastore.

The store follows a watch; if the watch's history was trimmed, the store reads everything again.
"""

from limosa.core.model.changes import (
    Agreed,
    Change,
    Commit,
    Put,
    Remove,
    apply_dated,
    key_of,
    with_mark,
)
from limosa.core.model.codec import decode, encode
from limosa.errors import HistoryTrimmed
from limosa.ports import Metastore, Watch


class AgreedStore:
    """The agreed state in one metastore, kept current by its watch."""

    def __init__(self, store: Metastore) -> None:
        self.store = store
        self._agreed = Agreed()
        self._watch: Watch | None = None

    def read(self, wait_seconds: float = 0.0) -> Agreed:
        """The newest agreed state; waits up to `wait_seconds` for a change."""
        if self._watch is None:
            return self._read_all()
        try:
            changes = self._watch.poll(wait_seconds)
        except HistoryTrimmed:
            return self._read_all()
        revision = self._watch.revision
        if changes or revision != self._agreed.revision:
            try:
                dated = [(_as_change(each.key, each.value), each.revision) for each in changes]
                self._agreed = apply_dated(self._agreed, dated, revision)
            except BaseException:
                self._watch = None  # the watch has moved on: its changes would be lost
                raise
        return self._agreed

    def nudge(self) -> None:
        """Tell a waiting `read`, from any thread, that there is probably a change."""
        watch = self._watch
        if watch is not None:
            watch.nudge()

    def _read_all(self) -> Agreed:
        revision, entries = self.store.read("")
        found = sorted(entries.values(), key=lambda entry: entry.revision)
        dated = [(Put(decode(entry.value)), entry.revision) for entry in found]
        self._watch = self.store.watch("", revision)
        self._agreed = apply_dated(Agreed(), dated, revision)
        return self._agreed

    def commit(self, commit: Commit, lease: int | None = None) -> int:
        """Make the commit, or raise `StaleGuard` with nothing changed."""
        changes = with_mark(commit)
        puts = {key_of(c.record): encode(c.record) for c in changes if isinstance(c, Put)}
        deletes = [c.key for c in changes if isinstance(c, Remove)]
        return self.store.commit(commit.guards, puts, deletes, lease)


def _as_change(key: str, value: bytes | None) -> Change:
    return Remove(key) if value is None else Put(decode(value))
