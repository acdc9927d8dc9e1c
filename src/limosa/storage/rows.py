"""What are rows on a node? Arrow columns of one table, with each row's token and what became of it.

A `Batch` is what the log, the memtable, segments and copies hand to each other. `Bundle` is the
core's `Rows`: batches of several tables that belong together.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from limosa.core.model.keys import Position, TokenRange
from limosa.core.tokens import tokens
from limosa.storage.digest import row_hashes
from limosa.storage.schema import Table

Tokens: TypeAlias = NDArray[np.int64]
Versions: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = NDArray[np.intp]

TOKEN, VERSION, DELETED = "__token", "__version", "__deleted"
_COUNT_SHIFT = 128


class Batch:
    """Rows of one table, in any order.

    Without `versions` the rows have the position of the log entry that they are in; without
    `deleted` none is a tombstone. A tombstone has its key, and nulls.
    """

    __slots__ = ("columns", "deleted", "table", "tokens", "versions")

    def __init__(
        self,
        table: Table,
        columns: pa.RecordBatch,
        tokens: Tokens,
        versions: Versions | None = None,
        deleted: Flags | None = None,
    ) -> None:
        self.table = table
        self.columns = columns
        self.tokens = tokens
        self.versions = versions
        self.deleted = deleted

    @classmethod
    def of(cls, table: Table, columns: pa.RecordBatch) -> "Batch":
        """Rows to be written; refused if they are not this table's."""
        aligned = table.align(columns)
        return cls(table, aligned, tokens([aligned.column(name) for name in table.key]))

    @classmethod
    def tombstones(cls, table: Table, keys: pa.RecordBatch) -> "Batch":
        """Keys to be deleted; other columns are not looked at."""
        only = [name for name in keys.schema.names if name in table.key]
        batch = cls.of(table, keys.select(only))
        batch.deleted = np.ones(len(batch), np.bool_)
        return batch

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bytes(self) -> int:
        """Roughly what it takes in memory or in a file."""
        return int(self.columns.nbytes) + 17 * len(self.tokens)

    def at(self, position: Position) -> "Batch":
        """The same rows, versioned by the log entry that they are in."""
        versions = np.full(len(self), position, np.int64)
        return Batch(self.table, self.columns, self.tokens, versions, self.deleted)

    def slice(self, start: int, stop: int) -> "Batch":
        """Neighbours, without a copy."""
        return Batch(
            self.table,
            self.columns.slice(start, stop - start),
            self.tokens[start:stop],
            None if self.versions is None else self.versions[start:stop],
            None if self.deleted is None else self.deleted[start:stop],
        )

    def take(self, rows: Indices) -> "Batch":
        return Batch(
            self.table,
            self.columns.take(rows),
            self.tokens[rows],
            None if self.versions is None else self.versions[rows],
            None if self.deleted is None else self.deleted[rows],
        )

    def where(self, wanted: Flags) -> "Batch":
        return self if wanted.all() else self.take(np.flatnonzero(wanted))

    def in_range(self, held: TokenRange) -> Flags:
        # The last token is 2**63 - 1, so that the end of the space is no int64.
        return (self.tokens >= held.start) & (self.tokens <= held.end - 1)

    def hashes(self) -> NDArray[np.uint64]:
        versions = np.zeros(len(self), np.int64) if self.versions is None else self.versions
        return row_hashes(self.table, self.columns, versions, self.deleted)

    def key(self, row: int) -> tuple[Any, ...]:
        return tuple(self.columns.column(name)[row].as_py() for name in self.table.key)

    def compacted(self) -> "Batch":
        """The same, without holding on to what it was sliced from."""
        return self.take(np.arange(len(self)))


def concat_columns(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several that have the same columns."""
    joined: pa.RecordBatch = pa.concat_batches(parts)  # type: ignore[attr-defined]
    return joined


def concat(table: Table, batches: Sequence[Batch]) -> Batch:
    """One batch of versioned rows, one after the other, in the table's present columns."""
    if len(batches) == 1:
        (only,) = batches
        if only.table is table or only.table.version == table.version:
            return only
    flagged = any(batch.deleted is not None for batch in batches)
    return Batch(
        table,
        concat_columns([table.widen(batch.columns) for batch in batches]),
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([_versions(batch) for batch in batches]),
        np.concatenate([deleted_of(batch) for batch in batches]) if flagged else None,
    )


def _versions(batch: Batch) -> Versions:
    assert batch.versions is not None, "rows without a version are nowhere but in the log"
    return batch.versions


def deleted_of(batch: Batch) -> Flags:
    return np.zeros(len(batch), np.bool_) if batch.deleted is None else batch.deleted


def additive_digest(hashes: NDArray[np.uint64]) -> int:
    upper, lower = hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)
    total = (int(upper.sum()) << 32) + int(lower.sum())
    return (len(hashes) << _COUNT_SHIFT) + total


class Bundle:
    """Batches that become visible together: what the core calls rows."""

    __slots__ = ("batches",)

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self.batches = tuple(batch for batch in batches if len(batch))

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def digest(self) -> int:
        """Count and exact sum in one number, so that digests of disjoint rows add up."""
        return sum(additive_digest(batch.hashes()) for batch in self.batches)

    def outside(self, ranges: Iterable[TokenRange]) -> "Bundle":
        ranges = list(ranges)
        if not ranges:
            return self
        return Bundle(
            batch.where(~np.logical_or.reduce([batch.in_range(held) for held in ranges]))
            for batch in self.batches
        )

    def within(self, held: TokenRange) -> "Bundle":
        return Bundle(batch.where(batch.in_range(held)) for batch in self.batches)
