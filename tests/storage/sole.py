"""How does one process use a replica that it shares with nobody?

This is the owner's part of the protocol without followers: ordered positions, compare-and-set,
harmless retries, and commits as soon as the rows are on disk. For tests and benchmarks.
"""

import threading
from collections import deque
from typing import Any

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    BeginLog,
    CreateReplica,
    StoreEpoch,
    TrimLog,
)
from limosa.core.model.keys import Incarnation, PartitionId, Position, TokenRange, position
from limosa.core.model.rows import Entry
from limosa.core.producers import Producers
from limosa.storage.store import Store
from limosa.storage.view import View
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table

ENTRIES_KEPT = 64
"""No follower needs to catch up, but a log that is never trimmed only grows."""


class SoleOwner:
    """The owner and only replica of a partition, in one lifetime of one process."""

    def __init__(
        self, store: Store, partition: PartitionId, incarnation: Incarnation, volume: str = "v1"
    ) -> None:
        self.partition = partition
        self._store = store
        self._key = (partition, incarnation)
        self._ordering = threading.Lock()
        self._kept: deque[Position] = deque()
        self._counter = 0
        self._ticket = 0
        self.producers = Producers()
        held = {(h.partition, h.replica.incarnation): h for h in store.restored("sole")}
        before = held.get(self._key)
        if before is None:
            store.write(CreateReplica(*self._key, 0, volume))
            store.write(BeginLog(*self._key, 0, 0, 1))
            self._epoch, self._last = 1, 0
        else:
            self._epoch = before.epoch + 1
            self._last = before.log[-1][0] if before.log else before.watermark
            self.producers.unite(before.producers)
            self._kept.extend(at for at, _ in before.log)
        store.write(StoreEpoch(*self._key, 0, self._epoch))
        store.sync()
        # This replica is the whole write set: everything in its log is committed.
        self._commit(self._last)

    @property
    def view(self) -> View:
        return self._store.view(*self._key)

    def upsert(
        self, rows: Batch, producer: str = "", sequence: int = 0, floor: int = 0
    ) -> Position:
        """Write rows, durable and committed on return; returns their version."""
        return self.commit(self.append(Bundle([rows]), producer, sequence, floor))

    def delete(self, keys: Batch) -> Position:
        return self.upsert(keys)

    def put_if(self, rows: Batch, expected: Position) -> tuple[bool, Position]:
        """Write one row if its version is `expected` (0: no row); returns success and version."""
        with self._ordering:
            found = self._store.newest(*self._key, rows.table, rows.key(0))
            if found != expected:
                return False, found
            at = self._append(Entry(self._next(), self._last, Bundle([rows])))
        return True, self.commit(at)

    def append(
        self,
        rows: Bundle | None,
        producer: str = "",
        sequence: int = 0,
        floor: int = 0,
        token_range: TokenRange | None = None,
    ) -> Position:
        """Order rows without making them durable; a retry of an applied part changes nothing."""
        with self._ordering:
            if producer and rows is not None:
                if self.producers.is_past(producer, sequence):
                    return self._last
                applied = self.producers.applied(producer, sequence)
                rows = rows.outside([part.range for part in applied])
                if applied and not len(rows):
                    return max(part.at for part in applied)
            return self._append(
                Entry(self._next(), self._last, rows, producer, sequence, floor, token_range)
            )

    def collect(self, up_to: Position) -> Position:
        """Collect tombstones; the caller ensures that no older row can come back."""
        with self._ordering:
            at = self._append(Entry(self._next(), self._last, None, collects=up_to))
        return self.commit(at)

    def commit(self, at: Position) -> Position:
        self._store.sync()
        with self._ordering:
            self._commit(at)
        return at

    def newest(self, table: Table, key: tuple[Any, ...]) -> Position:
        return self._store.newest(*self._key, table, key)

    def _next(self) -> Position:
        self._counter += 1
        return position(self._epoch, self._counter)

    def _append(self, entry: Entry) -> Position:
        self._ticket += 1
        self._store.write(AppendEntries(*self._key, self._ticket, (entry,)))
        self.producers.record(entry)
        self._last = entry.at
        self._kept.append(entry.at)
        return entry.at

    def _commit(self, at: Position) -> None:
        self._store.write(AdvanceWatermark(*self._key, 0, at))
        self.producers.commit(at)
        if len(self._kept) > 2 * ENTRIES_KEPT:
            first = 0
            while len(self._kept) > ENTRIES_KEPT and self._kept[0] <= at:
                first = self._kept.popleft()
            self._store.write(TrimLog(*self._key, 0, first))
