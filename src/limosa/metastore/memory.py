"""Where does the agreed state live in the simulator and in tests? In memory.

The `Metastore` port without a file. It is deterministic, its leases end by the given clock alone,
and it is fast: reading a prefix again before the next commit copies one dict.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping

import msgspec

from limosa.metastore.common import (
    StoreWatch,
    check_guards,
    check_kept,
    check_trim,
    check_watch,
    closed,
    lease_lost,
)
from limosa.ports import (
    LAST,
    Clock,
    KeyChange,
    KeyEntry,
    check_commit,
    check_key,
    check_prefix,
    check_ttl,
)


class _Lease(msgspec.Struct):
    ttl_seconds: float
    ends: float
    boot: str
    keys: set[str]


class MemoryMetastore:
    """The `Metastore` port in memory. Processes that share the agreed state share the object."""

    operations_max = 4_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._revision = 0
        self._entries: dict[str, KeyEntry] = {}
        self._keys: list[str] = []
        # `_history[i]` is what revision `_history_start + i` changed.
        self._history: list[list[KeyChange]] = []
        self._history_start = 1
        # Cached results of `read` at the current revision, by prefix.
        self._read_before: dict[str, dict[str, KeyEntry]] = {}
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        # No lease ends before this, so most operations need not check every lease.
        self._first_end = float("inf")
        self._boot = clock.boot_id()

    def read(self, prefix: str) -> tuple[int, dict[str, KeyEntry]]:
        check_prefix(prefix)
        with self._changed:
            self._catch_up()
            found = self._read_before.get(prefix)
            if found is None:
                first = bisect_left(self._keys, prefix)
                last = bisect_left(self._keys, prefix + LAST, lo=first)
                found = {key: self._entries[key] for key in self._keys[first:last]}
                self._read_before[prefix] = found
            return self._revision, found.copy()

    def get(self, key: str) -> KeyEntry | None:
        check_key(key)
        with self._changed:
            self._catch_up()
            return self._entries.get(key)

    def commit(
        self,
        guards: Mapping[str, int],
        puts: Mapping[str, bytes],
        deletes: Collection[str] = (),
        lease: int | None = None,
    ) -> int:
        check_commit(guards, puts, deletes)
        with self._changed:
            self._catch_up()
            if lease is not None:
                self._live(lease)
            check_guards(guards, self._revision_of)
            self._apply(puts, deletes, lease)
            return self._revision

    def watch(self, prefix: str, after_revision: int) -> StoreWatch:
        check_prefix(prefix)
        with self._changed:
            self._catch_up()
            check_watch(after_revision, self._revision, self._history_start)
            return StoreWatch(self._changed, self._changes, prefix, after_revision)

    def grant(self, ttl_seconds: float) -> int:
        check_ttl(ttl_seconds)
        with self._changed:
            self._catch_up()
            self._last_lease += 1
            ends = self._clock.now() + ttl_seconds
            self._leases[self._last_lease] = _Lease(ttl_seconds, ends, self._boot, set())
            self._first_end = min(self._first_end, ends)
            return self._last_lease

    def renew(self, lease: int) -> None:
        with self._changed:
            self._catch_up()
            live = self._live(lease)
            live.ends = self._clock.now() + live.ttl_seconds

    def revoke(self, lease: int) -> None:
        with self._changed:
            self._catch_up()
            if lease in self._leases:
                self._end(lease)

    def lease_left(self, lease: int) -> float:
        with self._changed:
            self._catch_up()
            live = self._leases.get(lease)
            # The clock advances: the lease may have ended since the due leases were ended.
            return max(0.0, live.ends - self._clock.now()) if live else 0.0

    def trim(self, before_revision: int) -> None:
        with self._changed:
            self._catch_up()
            check_trim(before_revision, self._revision)
            if before_revision > self._history_start:
                del self._history[: before_revision - self._history_start]
                self._history_start = before_revision

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _catch_up(self) -> None:
        """Ends the leases that are due; every operation starts here."""
        if self._closed:
            raise closed()
        now, boot = self._clock.now(), self._clock.boot_id()
        if now < self._first_end and boot == self._boot:
            return
        self._boot = boot
        # In the order of their ends, ties by id, so that every replay ends them in one order.
        due = sorted(
            (lease.boot == boot, lease.ends, id_)
            for id_, lease in self._leases.items()
            if lease.boot != boot or lease.ends <= now
        )
        for _, _, id_ in due:
            self._end(id_)
        self._first_end = min((lease.ends for lease in self._leases.values()), default=float("inf"))

    def _end(self, lease: int) -> None:
        self._apply({}, tuple(self._leases[lease].keys), None)
        del self._leases[lease]

    def _live(self, lease: int) -> _Lease:
        if (live := self._leases.get(lease)) is None:
            raise lease_lost(lease)
        return live

    def _revision_of(self, key: str) -> int:
        entry = self._entries.get(key)
        return entry.revision if entry else 0

    def _apply(
        self, puts: Mapping[str, bytes], deletes: Collection[str], lease: int | None
    ) -> None:
        """Makes the changes in one revision; without changes the revision stays."""
        present = {key for key in deletes if key in self._entries}
        if not puts and not present:
            return
        revision = self._revision + 1
        changes = [KeyChange(key, value, revision) for key, value in puts.items()]
        changes += [KeyChange(key, None, revision) for key in present]
        changes.sort(key=lambda change: change.key)
        for change in changes:
            self._set(change, lease)
        self._history.append(changes)
        self._revision = revision
        self._read_before.clear()
        self._changed.notify_all()

    def _set(self, change: KeyChange, lease: int | None) -> None:
        old = self._entries.get(change.key)
        if old and old.lease is not None:
            self._leases[old.lease].keys.discard(change.key)
        if change.value is None:
            del self._entries[change.key]
            del self._keys[bisect_left(self._keys, change.key)]
            return
        if old is None:
            insort(self._keys, change.key)
        if lease is not None:
            self._leases[lease].keys.add(change.key)
        created = old.created if old else change.revision
        self._entries[change.key] = KeyEntry(change.value, change.revision, created, lease)

    def _changes(self, prefix: str, after_revision: int) -> tuple[int, list[KeyChange]]:
        self._catch_up()
        check_kept(after_revision, self._history_start)
        return self._revision, [
            change
            for changes in self._history[after_revision + 1 - self._history_start :]
            for change in changes
            if change.key.startswith(prefix)
        ]
