"""What is agreed, as records? Reads and commits of the core's records through any metastore.

A watch is a hint: the state is re-read whenever the history between two looks is gone.
"""

from msgspec.structs import replace

from limosa.core.model.changes import Agreed, Change, Commit, Put, Remove, apply, key_of, with_mark
from limosa.core.model.codec import decode, encode
from limosa.errors import HistoryTrimmed
from limosa.ports import Metastore, Watch


class AgreedStore:
    """The agreed state in one metastore, kept current by its watch."""

    def __init__(self, store: Metastore) -> None:
        self.store = store
        self._agreed = Agreed()
        self._watch: Watch | None = None

    def read(self) -> Agreed:
        """Everything, at the newest revision."""
        if self._watch is None:
            return self._read_all()
        try:
            changes = self._watch.poll()
        except HistoryTrimmed:
            return self._read_all()
        agreed = self._agreed
        for change in changes:
            record: Change = Remove(change.key)
            if change.value is not None:
                record = Put(decode(change.value))
            agreed = apply(agreed, (record,), change.revision)
        if agreed.revision != self._watch.revision:
            agreed = replace(agreed, revision=self._watch.revision)
        self._agreed = agreed
        return agreed

    def _read_all(self) -> Agreed:
        revision, entries = self.store.read("")
        agreed = Agreed()
        for entry in sorted(entries.values(), key=lambda entry: entry.revision):
            agreed = apply(agreed, (Put(decode(entry.value)),), entry.revision)
        self._watch = self.store.watch("", revision)
        self._agreed = replace(agreed, revision=revision)
        return self._agreed

    def commit(self, commit: Commit, lease: int | None = None) -> int:
        """Make it, or raise `StaleGuard` with nothing changed."""
        changes = with_mark(commit)
        puts = {key_of(c.record): encode(c.record) for c in changes if isinstance(c, Put)}
        deletes = [c.key for c in changes if isinstance(c, Remove)]
        return self.store.commit(commit.guards, puts, deletes, lease)
