"""How does a node hold rows? As Arrow columns of one table, with tokens, versions and tombstones.

A `Batch` is what the log, the memtable, segments and copies hand to each other. `Bundle` is the
core's `Rows`: batches of several tables that belong together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from limosa.core.lookup import Lookup
from limosa.core.model.keys import Position, TokenRange
from limosa.core.model.rows import Rows, Starts
from limosa.core.tokens import tokens
from limosa.errors import BadInput
from limosa.tabular.digest import row_hashes
from limosa.tabular.order import Indices
from limosa.tabular.schema import Table, comparable_column
from limosa.tabular.sizes import pieces

Tokens: TypeAlias = NDArray[np.int64]
Versions: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Reader: TypeAlias = Callable[[int], Any]

TOKEN, VERSION, DELETED = "__token", "__version", "__deleted"
_COUNT_SHIFT = 128
SMALL_ROWS = 32
FEW_ROWS = 8
SMALL_BYTES = 64 << 10
"""The bytes of the parts of a larger batch are measured: a few of its rows may be far larger than
the others."""


class Batch:
    """Rows of one table, in any order.

    Without `versions`, the rows have the version of their log entry; without `deleted`, none is a
    tombstone. A tombstone has its key, and nulls elsewhere. Tokens and versions are computed on
    first use, usually not while a client waits for a write.
    """

    __slots__ = (
        "_bytes",
        "_digest",
        "_key_readers",
        "_readers",
        "_tokens",
        "_version",
        "_versions",
        "body",
        "columns",
        "deleted",
        "table",
    )

    def __init__(
        self,
        table: Table,
        columns: pa.RecordBatch,
        tokens: Tokens | None = None,
        versions: Versions | None = None,
        deleted: Flags | None = None,
    ) -> None:
        self.table = table
        self.columns = columns
        self.deleted = deleted
        self._tokens = tokens
        self._versions = versions
        self._version: Position | None = None
        self._bytes: int | None = None
        self._digest: int | None = None
        self._readers: list[Reader] | None = None
        self._key_readers: list[Reader] | None = None
        self.body: tuple[int, pa.Buffer] | None = None
        """The batch as the Arrow message in which it arrived, with its extra columns."""

    @classmethod
    def of(cls, table: Table, columns: pa.RecordBatch) -> "Batch":
        """Rows to be written; refused if they do not match the table."""
        return cls(table, table.align(columns))

    @classmethod
    def tombstones(cls, table: Table, keys: pa.RecordBatch) -> "Batch":
        """Keys to be deleted; other columns are ignored."""
        only = [name for name in keys.schema.names if name in table.key]
        batch = cls.of(table, keys.select(only))
        batch.deleted = np.ones(len(batch), np.bool_)
        return batch

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @property
    def tokens(self) -> Tokens:
        if self._tokens is None:
            self._tokens = self._few_tokens() if len(self) <= FEW_ROWS else None
            if self._tokens is None:
                self._tokens = tokens([self.columns.column(name) for name in self.table.key])
        return self._tokens

    def _few_tokens(self) -> Tokens | None:
        """Tokens of a few rows, without NumPy; None: Python can't represent the keys."""
        if not self.table.has_plain_key:
            return None
        columns = [self.columns.column(place) for place in self.table.key_places]
        try:
            keys = zip(*(column.to_pylist() for column in columns), strict=True)
            return np.array([self.table.token_of(key) for key in keys], np.int64)
        except (ValueError, OverflowError):
            return None

    @property
    def given_tokens(self) -> Tokens | None:
        """The tokens, if they were given or computed before."""
        return self._tokens

    @property
    def versions(self) -> Versions | None:
        if self._versions is None and self._version is not None:
            self._versions = np.full(len(self), self._version, np.int64)
        return self._versions

    @property
    def bytes(self) -> int:
        """Approximate bytes in memory or in a file."""
        if self._bytes is None:
            self._bytes = int(self.columns.nbytes) + 17 * len(self)
        return self._bytes

    def note_bytes(self, size: int) -> None:
        """Remember the size: for a small batch, asking Arrow is the slowest step of a write."""
        self._bytes = size

    def at(self, position: Position) -> "Batch":
        """The same rows with the position of their log entry as their version."""
        same = Batch(self.table, self.columns, self._tokens, None, self.deleted)
        same._version = position
        same._bytes = self._bytes
        return same

    def version_of(self, row: int) -> Position:
        if self._version is not None:
            return self._version
        assert self._versions is not None
        return int(self._versions[row])

    def is_deleted(self, row: int) -> bool:
        return self.deleted is not None and bool(self.deleted[row])

    def slice(self, start: int, stop: int) -> "Batch":
        """Consecutive rows, without a copy."""
        return Batch(
            self.table,
            self.columns.slice(start, stop - start),
            None if self._tokens is None else self._tokens[start:stop],
            None if self.versions is None else self.versions[start:stop],
            None if self.deleted is None else self.deleted[start:stop],
        )

    def in_pieces(self, bytes_max: int, rows_max: int) -> "Iterator[Batch]":
        """Consecutive rows of at most so many bytes, or single rows, without a copy."""
        for start, stop in pieces(self.columns, bytes_max, rows_max):
            yield self if stop - start == len(self) else self.slice(start, stop)

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

    def in_range(self, token_range: TokenRange) -> Flags:
        # The last token is 2**63 - 1, so the end of the token space does not fit into an int64.
        return (self.tokens >= token_range.start) & (self.tokens <= token_range.end - 1)

    def lies_in(self, token_range: TokenRange) -> bool:
        """Whether all rows are in the range."""
        tokens = self.tokens
        if len(tokens) == 1:
            return token_range.start <= tokens.item(0) < token_range.end
        return bool(tokens.min() >= token_range.start and tokens.max() <= token_range.end - 1)

    def split(self, lookup: Lookup) -> "list[tuple[int, Batch]]":
        """The rows of each partition, in the order of partitions; rows keep their order."""
        if len(self) == 1:
            return [(lookup.partition_index(int(self.tokens[0])), self)]
        shares = lookup.split(self.columns, self.tokens)
        if len(shares) == 1:
            return [(shares[0].partition, self)]
        parts = []
        for share in shares:
            part = Batch(
                self.table,
                share.batch,
                self.tokens[share.rows],
                None if self.versions is None else self.versions[share.rows],
                None if self.deleted is None else self.deleted[share.rows],
            )
            if self.bytes <= SMALL_BYTES:
                part.note_bytes(self.bytes * len(part) // len(self))  # about
            parts.append((share.partition, part))
        return parts

    def hashes(self) -> NDArray[np.uint64]:
        versions = np.zeros(len(self), np.int64) if self.versions is None else self.versions
        return row_hashes(self.table, self.columns, versions, self.deleted)

    def digest(self) -> int:
        """Count and exact sum in one number, so that digests of disjoint rows add up."""
        if self._digest is None:
            self._digest = additive_digest(self.hashes())
        return self._digest

    def key(self, row: int) -> tuple[Any, ...]:
        readers = [self.readers[place] for place in self.table.key_places]
        return tuple(read_row(self.table.key, readers, row).values())

    @property
    def readers(self) -> "list[Reader]":
        """A reader of single values for each column."""
        if self._readers is None:
            self._readers = [reader_of(column) for column in self.columns.columns]
        return self._readers

    @property
    def key_readers(self) -> "list[Reader]":
        """A reader for each key column, with values comparable to `Table.comparable_key`."""
        if self._key_readers is None:
            columns = (self.columns.column(place) for place in self.table.key_places)
            self._key_readers = [reader_of(comparable_column(column)) for column in columns]
        return self._key_readers


def read_row(names: Sequence[str], readers: Sequence[Reader], row: int) -> dict[str, Any]:
    """A row as Python values, by column name."""
    try:
        return dict(zip(names, [read(row) for read in readers], strict=True))
    except (ValueError, OverflowError, KeyError):
        bad = [name for name, read in zip(names, readers, strict=True) if not _reads(read, row)]
        # The message leaves the value out: it may be personal data.
        raise BadInput(
            f"column {bad[0]} has a value that Python can't represent",
            "read the row as Arrow, with get_many or a scan",
        ) from None


def _reads(read: Reader, row: int) -> bool:
    try:
        read(row)
    except (ValueError, OverflowError, KeyError):
        return False
    return True


def reader_of(column: Any) -> Reader:
    """Reads single values; for common types many times faster than Arrow's scalars."""
    if len(column) < SMALL_ROWS or column.null_count:
        return lambda row: column[row].as_py()
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.to_numpy().item  # type: ignore[no-any-return]
    if column.type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _text_reader(column)
    return lambda row: column[row].as_py()


def _text_reader(column: Any) -> Reader:
    _, offsets, content = column.buffers()
    decoded = column.type in (pa.string(), pa.large_string())
    wide = column.type in (pa.large_string(), pa.large_binary())
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)[column.offset :]
    data = memoryview(content) if content is not None else memoryview(b"")
    place = places.item
    if decoded:
        return lambda row: str(data[place(row) : place(row + 1)], "utf-8")
    return lambda row: bytes(data[place(row) : place(row + 1)])


def concat_columns(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins batches that have the same columns."""
    joined: pa.RecordBatch = pa.concat_batches(parts)  # type: ignore[attr-defined]
    return joined


def concat(table: Table, batches: Sequence[Batch]) -> Batch:
    """Joins batches of versioned rows, with the table's current columns."""
    if len(batches) == 1:
        (only,) = batches
        if only.table is table or only.table.version == table.version:
            return only
    flagged = any(batch.deleted is not None for batch in batches)
    hash_together(batches)
    return Batch(
        table,
        concat_columns([table.widen(batch.columns) for batch in batches]),
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([_versions(batch) for batch in batches]),
        np.concatenate([deleted_of(batch) for batch in batches]) if flagged else None,
    )


def _versions(batch: Batch) -> Versions:
    assert batch.versions is not None, "only rows in the log have no version"
    return batch.versions


def hash_together(batches: Iterable[Batch]) -> None:
    """Compute the tokens of many small batches together: one call has a high fixed cost."""
    by_table: dict[int, list[Batch]] = {}
    for batch in batches:
        if batch.given_tokens is None:
            by_table.setdefault(batch.table.fingerprint, []).append(batch)
    for several in by_table.values():
        if len(several) > 1:
            names = several[0].table.key
            columns = [[batch.columns.column(name) for batch in several] for name in names]
            hashed = tokens([pa.concat_arrays(column) for column in columns])
            start = 0
            for batch in several:
                batch._tokens = hashed[start : start + len(batch)]
                start += len(batch)


def deleted_of(batch: Batch) -> Flags:
    return np.zeros(len(batch), np.bool_) if batch.deleted is None else batch.deleted


def additive_digest(hashes: NDArray[np.uint64]) -> int:
    upper, lower = hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)
    total = (int(upper.sum()) << 32) + int(lower.sum())
    return (len(hashes) << _COUNT_SHIFT) + total


class Bundle:
    """Batches that become visible together; the core's `Rows`."""

    __slots__ = ("batches",)

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self.batches = tuple(batch for batch in batches if len(batch))

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    @property
    def bytes(self) -> int:
        """Approximate bytes in memory or in a file."""
        return sum(batch.bytes for batch in self.batches)

    def digest(self) -> int:
        return sum(batch.digest() for batch in self.batches)

    def outside(self, ranges: Iterable[TokenRange]) -> "Bundle":
        ranges = list(ranges)
        if not ranges:
            return self
        return Bundle(
            batch.where(~np.logical_or.reduce([batch.in_range(each) for each in ranges]))
            for batch in self.batches
        )

    def within(self, token_range: TokenRange) -> "Bundle":
        return Bundle(batch.where(batch.in_range(token_range)) for batch in self.batches)

    def split(self, starts: Starts) -> "list[tuple[int, Bundle]]":
        """The rows of each partition; if one partition gets all rows, this bundle itself."""
        if len(starts.starts) == 1:
            return [(0, self)] if self.batches else []
        lookup = _lookup_of(starts)
        shares: dict[int, list[Batch]] = {}
        for batch in self.batches:
            for index, part in batch.split(lookup):
                shares.setdefault(index, []).append(part)
        if len(shares) == 1:
            return [(index, self) for index in shares]
        return [(index, Bundle(parts)) for index, parts in sorted(shares.items())]

    def places(self, starts: Starts) -> list[int]:
        if len(starts.starts) == 1:
            return [0] if self.batches else []
        lookup = _lookup_of(starts)
        found: set[int] = set()
        for batch in self.batches:
            found.update(lookup.partition_indexes(batch.tokens).tolist())
        return sorted(found)

    def joins(self, other: Rows) -> bool:
        """Rows of one table, by the same definition of its columns."""
        assert isinstance(other, Bundle)
        tables = {batch.table.fingerprint for batch in self.batches + other.batches}
        return len(tables) == 1 and all(
            batch.versions is None for batch in self.batches + other.batches
        )

    def joined(self, others: Sequence[Rows]) -> "Bundle":
        batches = list(self.batches)
        for each in others:
            assert isinstance(each, Bundle)
            batches += each.batches
        tokens = [batch.given_tokens for batch in batches]
        known = [each for each in tokens if each is not None]
        flagged = any(batch.deleted is not None for batch in batches)
        joined = Batch(
            batches[0].table,
            concat_columns([batch.columns for batch in batches]),
            np.concatenate(known) if len(known) == len(batches) else None,
            None,
            np.concatenate([deleted_of(batch) for batch in batches]) if flagged else None,
        )
        joined.note_bytes(sum(batch.bytes for batch in batches))
        return Bundle([joined])


def _lookup_of(starts: Starts) -> Lookup:
    if not isinstance(starts.prepared, Lookup):
        starts.prepared = Lookup(starts.starts)
    return starts.prepared
