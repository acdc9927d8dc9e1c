"""What does a reader see? One moment of a replica, for as long as it likes.

A view is immutable, and so is all that it points to; writes and compaction make other views. Files
that are removed meanwhile stay readable for those who have them open.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from limosa.core.model.keys import WHOLE, Position, TokenRange
from limosa.core.tokens import token_of, tokens
from limosa.errors import BadInput
from limosa.storage.digest import Digest, digest, digests_by_bucket
from limosa.storage.memtable import Runs
from limosa.storage.merge import Source, Span, sweep
from limosa.storage.rows import Batch, additive_digest, concat_columns
from limosa.storage.schema import Table
from limosa.storage.segment import Segment

SCAN_BYTES = 8 << 20


class Ranged:
    """The part of a segment that counts in this replica."""

    __slots__ = ("file", "held", "level", "offset", "segment")

    def __init__(
        self, file: str, level: int, held: TokenRange, offset: int, segment: Segment
    ) -> None:
        self.file = file
        self.level = level
        self.held = held
        self.offset = offset
        self.segment = segment

    @property
    def min_version(self) -> Position:
        return self.segment.min_version

    @property
    def max_version(self) -> Position:
        return self.segment.max_version

    def find(self, token: int) -> list[tuple[Batch, int]]:
        return self.segment.find(token) if self.held.holds(token) else []

    def spans(self, held: TokenRange) -> list[Span]:
        both = overlap(self.held, held)
        return [] if both is None else self.segment.spans(both)

    def within(self, held: TokenRange) -> list[Batch]:
        both = overlap(self.held, held)
        return [] if both is None else self.segment.within(both)

    @property
    def rows(self) -> int:
        return len(self.segment) if self.held == WHOLE else self.segment.count(self.held)

    @property
    def bytes(self) -> int:
        """Its share of the file."""
        rows = len(self.segment)
        return self.segment.bytes * self.rows // rows if rows else 0


def overlap(some: TokenRange, other: TokenRange) -> TokenRange | None:
    start, end = max(some.start, other.start), min(some.end, other.end)
    return TokenRange(start, end) if start < end else None


class Found(Struct, frozen=True):
    """A row, where it lies."""

    version: Position
    batch: Batch
    row: int

    @property
    def is_deleted(self) -> bool:
        return self.batch.deleted is not None and bool(self.batch.deleted[self.row])

    def values(self, table: Table) -> dict[str, Any]:
        names = self.batch.columns.schema.names
        held = {
            name: column[self.row].as_py()
            for name, column in zip(names, self.batch.columns.columns, strict=True)
        }
        if self.batch.table.version == table.version:
            return held
        return {name: held.get(name) for name in table.physical.names}

    def columns(self, table: Table) -> pa.RecordBatch:
        return table.widen(self.batch.columns.slice(self.row, 1))


class TableView(Struct, frozen=True):
    """One table's or stream's rows."""

    table: Table
    runs: Runs = ()
    frozen: Runs = ()
    """Runs that are being made a segment."""
    segments: tuple[Ranged, ...] = ()
    next_offset: int = 0
    """Of a stream: where the next record goes."""

    @property
    def sources(self) -> list[Source]:
        return [*self.segments, *self.frozen, *self.runs]

    def find(self, key: Sequence[Any], token: int) -> Found | None:
        """The newest row of a key, a tombstone too. Newer places first, so that most can end."""
        best: Found | None = None
        for source in sorted(self.sources, key=_max_version, reverse=True):
            if best is not None and source.max_version < best.version:
                break
            for batch, row in source.find(token):
                assert batch.versions is not None
                version = int(batch.versions[row])
                newer = best is None or version >= best.version
                if newer and has_key(batch, row, key):
                    best = Found(version, batch, row)
        return best

    @property
    def rows(self) -> int:
        """Rows that are stored; a key that was written twice may count twice."""
        memory = sum(len(run) for run in (*self.runs, *self.frozen))
        return memory + sum(ranged.rows for ranged in self.segments)

    @property
    def bytes(self) -> int:
        memory = sum(run.bytes for run in (*self.runs, *self.frozen))
        return memory + sum(ranged.bytes for ranged in self.segments)


def _max_version(source: Source) -> Position:
    return source.max_version


def has_key(batch: Batch, row: int, key: Sequence[Any]) -> bool:
    for name, value in zip(batch.table.key, key, strict=True):
        if batch.columns.column(name)[row].as_py() != value:
            return False
    return True


class Size(Struct, frozen=True):
    """What the balancer asks for."""

    rows: int
    bytes: int


class View(Struct, frozen=True):
    """A replica at one moment: all rows that were committed by then, and no other."""

    watermark: Position = 0
    collected: Position = 0
    """Tombstones up to here are gone, wherever they still lie."""
    tables: Mapping[str, TableView] = {}

    # --- single rows

    def find(self, table: Table, key: Sequence[Any]) -> Found | None:
        """The row of a key; None: there is none, or it was deleted."""
        token = token_of(key, table.key_types)
        view = self.tables.get(table.id)
        found = None if view is None else view.find(key, token)
        return None if found is None or found.is_deleted else found

    def get(self, table: Table, key: Sequence[Any]) -> dict[str, Any] | None:
        found = self.find(table, key)
        return None if found is None else found.values(table)

    def get_many(self, table: Table, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Position]]:
        """The rows of those keys that are there, in the order of the keys, and their versions."""
        found = [f for f in self._find_many(table, keys) if f is not None]
        if not found:
            return _empty(table), []
        return _gather(table, found), [each.version for each in found]

    def _find_many(self, table: Table, keys: pa.RecordBatch) -> list[Found | None]:
        columns = [keys.column(name) for name in table.key]
        wanted = tokens(columns)
        view = self.tables.get(table.id)
        if view is None:
            return [None] * len(wanted)
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        found = [view.find(key, token) for key, token in zip(values, wanted.tolist(), strict=True)]
        return [None if each is None or each.is_deleted else each for each in found]

    # --- many rows

    def batches(
        self, table: Table, held: TokenRange = WHOLE, tombstones: bool = False
    ) -> Iterator[Batch]:
        """The newest row of every key, in the order of tokens, in the table's present columns."""
        view = self.tables.get(table.id)
        if view is None:
            return
        if table.kind == "stream":
            for batch in _records(view, 0):
                yield batch.where(batch.in_range(held))
            return
        for piece in sweep(view.table, view.sources, held, SCAN_BYTES):
            for batch in piece:
                yield self._visible(batch, tombstones)

    def _visible(self, batch: Batch, tombstones: bool) -> Batch:
        if batch.deleted is None:
            return batch
        if not tombstones:
            return batch.where(~batch.deleted)
        assert batch.versions is not None
        return batch.where(~(batch.deleted & (batch.versions <= self.collected)))

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        held: TokenRange = WHOLE,
    ) -> Iterator[pa.RecordBatch]:
        """Rows as Arrow batches, in the order of tokens; empty ones are left out."""
        if columns is not None:
            unknown = [name for name in columns if name not in table.physical.names]
            if unknown:
                raise BadInput(f"no such columns: {', '.join(unknown)}", "name the table's own")
        for batch in self.batches(table, held):
            rows = table.widen(batch.columns)
            if filter is not None:
                rows = rows.filter(filter)
            if columns is not None:
                rows = rows.select(list(columns))
            if rows.num_rows:
                yield rows

    # --- records

    def read_from(
        self, stream: Table, offset: int, rows_max: int = 65_536
    ) -> tuple[int, pa.RecordBatch]:
        """Records from an offset on, and the offset of the first of them."""
        view = self.tables.get(stream.id)
        wanted: list[pa.RecordBatch] = []
        missing = rows_max
        if view is not None and 0 <= offset < view.next_offset:
            for batch in _records(view, offset):
                part = batch.slice(0, min(missing, len(batch)))
                wanted.append(stream.widen(part.columns))
                missing -= len(part)
                if not missing:
                    break
        return offset, concat_columns(wanted) if wanted else _empty(stream)

    def next_offset(self, stream: Table) -> int:
        view = self.tables.get(stream.id)
        return 0 if view is None else view.next_offset

    # --- sums

    def digest(self) -> int:
        """Of all rows of all tables: what the core compares replicas by."""
        return sum(
            additive_digest(batch.hashes())
            for view in self.tables.values()
            for batch in self.batches(view.table, tombstones=True)
        )

    def digests(self, table: Table, buckets: int = 1024) -> list[Digest]:
        """By token bucket, so that a difference can be found and mended in small."""
        sums = [Digest.EMPTY] * buckets
        for batch in self.batches(table, tombstones=True):
            if len(batch):
                more = digests_by_bucket(batch.hashes(), batch.tokens, buckets)
                sums = [one + other for one, other in zip(sums, more, strict=True)]
        return sums

    def table_digest(self, table: Table, held: TokenRange = WHOLE) -> Digest:
        total = Digest.EMPTY
        for batch in self.batches(table, held, tombstones=True):
            total = total + digest(batch.hashes())
        return total

    def count(self, table: Table, held: TokenRange = WHOLE) -> int:
        """Exactly; reads tokens and tombstones of all rows."""
        return sum(len(batch) for batch in self.batches(table, held))

    @property
    def size(self) -> Size:
        """About; reads nothing."""
        views = self.tables.values()
        return Size(sum(view.rows for view in views), sum(view.bytes for view in views))


def _records(view: TableView, offset: int) -> Iterator[Batch]:
    """A stream's batches in order, from an offset on."""
    for ranged in view.segments:
        end = ranged.offset + len(ranged.segment)
        if end > offset:
            yield from ranged.segment.from_row(max(0, offset - ranged.offset))
    runs = (*view.frozen, *view.runs)
    start = view.next_offset - sum(len(run) for run in runs)
    for run in runs:
        skip = max(0, offset - start)
        if skip < len(run):
            yield run.batch.slice(skip, len(run)) if skip else run.batch
        start += len(run)


def _empty(table: Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.physical)


def _gather(table: Table, found: Sequence[Found]) -> pa.RecordBatch:
    """One batch of rows that lie in several: one take for each, not one slice for each row."""
    by_batch: dict[int, tuple[Batch, list[int], list[int]]] = {}
    for number, each in enumerate(found):
        known = by_batch.setdefault(id(each.batch), (each.batch, [], []))
        known[1].append(each.row)
        known[2].append(number)
    parts = [table.widen(batch.columns.take(rows)) for batch, rows, _ in by_batch.values()]
    order = np.argsort(np.concatenate([numbers for _, _, numbers in by_batch.values()]))
    return concat_columns(parts).take(order)
