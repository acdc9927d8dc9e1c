"""What does a reader see? A snapshot of a replica, for as long as the reader keeps it.

A view is immutable, and so is everything that it refers to; writes and compaction make new views.
Removed files stay readable for views that have them open.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from limosa.core.model.keys import WHOLE, Position, TokenRange
from limosa.core.tokens import tokens
from limosa.errors import BadInput, InvalidKey
from limosa.storage.memtable import Filter, Memtable, Memtables
from limosa.storage.segment import Segment
from limosa.tabular.merge import MergeSource, Span, cut, sweep, which_count
from limosa.tabular.rows import Batch, Flags, concat, concat_columns, read_row
from limosa.tabular.schema import Table, comparable_column, newer

SCAN_BYTES = 8 << 20
READ_BYTES = 64 << 20
"""Approximate size of one read of records; a single record may be larger."""
GATHER_BYTES = 1 << 30
"""Limit for a get of many keys: an Arrow array can't hold 2 GB of text."""

NEW, GOING, SETTLED = 0, 1, 2
"""Levels of segments: new ones may overlap, going ones are swept, settled ones do not overlap."""


class Ranged(Struct, eq=False):
    """The part of a segment that counts in this replica."""

    file: str
    level: int
    range: TokenRange
    offset: int
    segment: Segment

    @property
    def min_version(self) -> Position:
        return self.segment.min_version

    @property
    def max_version(self) -> Position:
        return self.segment.max_version

    def find(self, token: int) -> list[tuple[Batch, int]]:
        token_range = self.range
        return self.segment.find(token) if token_range.start <= token < token_range.end else []

    def spans(self, token_range: TokenRange) -> list[Span]:
        both = overlap(self.range, token_range)
        return [] if both is None else self.segment.spans(both)

    def within(self, token_range: TokenRange) -> list[Batch]:
        both = overlap(self.range, token_range)
        return [] if both is None else self.segment.within(both)

    def digest(self, table: Table) -> int:
        """The digest of all its rows, whether they count or not. Blocks cache their digests, but
        their checksums are verified again."""
        self.segment.check_again(self.range)
        return sum(concat(table, [batch]).digest() for batch in self.within(WHOLE))

    @property
    def rows(self) -> int:
        return len(self.segment) if self.range == WHOLE else self.segment.about(self.range)

    @property
    def bytes(self) -> int:
        """Its share of the file."""
        return self.segment.bytes * self.rows // len(self.segment)

    @property
    def end(self) -> int:
        """The offset after the last record, if it is a stream's segment."""
        return self.offset + len(self.segment)


def overlap(some: TokenRange, other: TokenRange) -> TokenRange | None:
    start, end = max(some.start, other.start), min(some.end, other.end)
    return TokenRange(start, end) if start < end else None


class StoredRow(Struct, frozen=True):
    """A row, by its batch and index."""

    version: Position
    batch: Batch
    row: int
    present: Table
    """The newest definition that the view knows: columns that it lacks are not shown."""

    @property
    def is_deleted(self) -> bool:
        return self.batch.is_deleted(self.row)

    def values(self, table: Table) -> dict[str, Any]:
        """The values as Python objects; an error if Python can't represent one of them."""
        batch, stored = self.batch, self.batch.table
        if stored.version == table.version >= self.present.version:
            return read_row(stored.names, batch.readers, self.row)
        readers = dict(zip(stored.names, batch.readers, strict=True))
        seen = readers.keys() & newer(table, self.present).names
        names = [name for name in table.names if name in seen]
        values = read_row(names, [readers[name] for name in names], self.row)
        return {name: values.get(name) for name in table.names}

    def columns(self, table: Table) -> pa.RecordBatch:
        return shown(table, self.present, self.batch.columns.slice(self.row, 1))


def shown(table: Table, present: Table, columns: pa.RecordBatch) -> pa.RecordBatch:
    """Stored rows with the reader's columns; columns that were dropped since are null."""
    return table.widen(newer(table, present).widen(columns))


Settled: TypeAlias = tuple[list[int], list[tuple[int, Segment]]]


class SegmentOrder:
    """Settled segments by their first token, and where each ends: each token is in at most one.

    Views of one table share it, because writes do not change segments.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[tuple[Ranged, ...], Settled] = ((), ([], []))

    def of(self, segments: tuple[Ranged, ...]) -> Settled:
        known, settled = self._known
        if known is not segments:
            found = [ranged for ranged in segments if ranged.level == SETTLED]
            found.sort(key=lambda ranged: ranged.range.start)
            starts = [ranged.range.start for ranged in found]
            settled = (starts, [(ranged.range.end, ranged.segment) for ranged in found])
            self._known = (segments, settled)
        return settled


class TableView(Struct, frozen=True, dict=True):
    """One table's or stream's rows."""

    table: Table
    memtables: Memtables = ()
    frozen: Memtables = ()
    """Memtables that are being written to a segment."""
    segments: tuple[Ranged, ...] = ()
    next_offset: int = 0
    """The offset of a stream's next record."""
    filter: Filter = field(default_factory=Filter)
    order: "SegmentOrder" = field(default_factory=lambda: SegmentOrder())

    @property
    def sources(self) -> list[MergeSource]:
        return [*self.segments, *self.frozen, *self.memtables]

    @cached_property
    def _in_memory(self) -> list[Memtable]:
        """The last written first: of rows with equal versions, the last written one counts."""
        return [*reversed(self.memtables), *reversed(self.frozen)]

    @cached_property
    def _unsettled(self) -> list[Ranged]:
        found = [ranged for ranged in self.segments if ranged.level != SETTLED]
        return sorted(found, key=attrgetter("max_version"), reverse=True)

    @cached_property
    def _settled(self) -> Settled:
        return self.order.of(self.segments)

    def find(self, key: Sequence[Any], token: int) -> StoredRow | None:
        """The newest row of a comparable key, which may be a tombstone."""
        spot = self.spot(key, token)
        return None if spot is None else StoredRow(spot[0].version_of(spot[1]), *spot, self.table)

    def spot(self, key: Sequence[Any], token: int) -> tuple[Batch, int] | None:
        """The place of that row. Newer sources come first, since a hit rules out most others."""
        best: tuple[Batch, int] | None = None
        highest = -1
        if self._in_memory:
            mask, may_have = self._learned.probe
            for memtable in self._in_memory if may_have(token & mask) else ():
                if memtable.max_version > highest and (found := memtable.find(token)):
                    best, highest = _newest_of(found, key, best, highest)
        for ranged in self._unsettled:
            if ranged.max_version > highest:
                best, highest = _newest_of(ranged.find(token), key, best, highest)
        starts, settled = self._settled
        at = bisect_right(starts, token) - 1
        if at >= 0:
            end, segment = settled[at]
            if token < end and (best is None or segment.max_version > highest):
                found = segment.find(token)
                if best is None and len(found) == 1:  # almost always
                    return found[0] if has_key(*found[0], key) else None
                best, highest = _newest_of(found, key, best, highest)
        return best

    @cached_property
    def _learned(self) -> Filter:
        """The filter that tells whether a token may be in memory."""
        self.filter.learn(self._in_memory)
        return self.filter

    @property
    def rows(self) -> int:
        """The number of stored rows; a key that was written twice may count twice."""
        memory = sum(len(each) for each in (*self.memtables, *self.frozen))
        return memory + sum(ranged.rows for ranged in self.segments)

    @property
    def bytes(self) -> int:
        memory = sum(each.bytes for each in (*self.memtables, *self.frozen))
        return memory + sum(ranged.bytes for ranged in self.segments)


def _newest_of(
    found: Sequence[tuple[Batch, int]],
    key: Sequence[Any],
    best: tuple[Batch, int] | None,
    highest: Position,
) -> tuple[tuple[Batch, int] | None, Position]:
    """The newer of the known row and a source's row; of equal versions, the source's last row."""
    lowest = highest + 1
    for spot in found:
        batch, row = spot
        version = batch.version_of(row)
        if version >= lowest and has_key(batch, row, key):
            best, highest, lowest = spot, version, version
    return best, highest


def has_key(batch: Batch, row: int, key: Sequence[Any]) -> bool:
    """Does the row have this comparable key?"""
    readers = batch.key_readers
    if len(readers) == 1:
        return bool(readers[0](row) == key[0])
    return all(read(row) == value for read, value in zip(readers, key, strict=True))


class Size(NamedTuple):
    """The size of a replica, for the planner."""

    rows: int
    bytes: int


class View(Struct, frozen=True):
    """A snapshot of a replica: all rows that were committed by then, and no others."""

    watermark: Position = 0
    collected: Position = 0
    """Tombstones up to this position count as dropped, even if they are still stored."""
    tables: Mapping[str, TableView] = {}

    # --- single rows

    def find(self, table: Table, key: Sequence[Any]) -> StoredRow | None:
        """The row of a key; None: it does not exist, or was deleted."""
        view = self.tables.get(table.id)
        token = table.token_of(key)
        found = None if view is None else view.find(table.comparable_key(key), token)
        return None if found is None or found.is_deleted else found

    def get(self, table: Table, key: Sequence[Any]) -> dict[str, Any] | None:
        view = self.tables.get(table.id)
        token = table.token_of(key)
        spot = None if view is None else view.spot(table.comparable_key(key), token)
        if view is None or spot is None:
            return None
        batch, row = spot
        if batch.deleted is not None and batch.deleted[row]:
            return None
        if batch.table.version == table.version == view.table.version:
            return read_row(table.names, batch.readers, row)
        return StoredRow(batch.version_of(row), batch, row, view.table).values(table)

    def get_many(self, table: Table, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Position]]:
        """The existing rows of these keys, in the order of the keys, and their versions."""
        found = [f for f in self._find_many(table, keys) if f is not None]
        if not found:
            return _empty(table), []
        return _gather(table, found), [each.version for each in found]

    def _find_many(self, table: Table, keys: pa.RecordBatch) -> list[StoredRow | None]:
        columns = _key_columns(table, keys)
        wanted = tokens(columns)
        view = self.tables.get(table.id)
        if view is None:
            return [None] * len(wanted)
        values = zip(*(comparable_column(column).to_pylist() for column in columns), strict=True)
        found = [view.find(key, token) for key, token in zip(values, wanted.tolist(), strict=True)]
        return [None if each is None or each.is_deleted else each for each in found]

    # --- many rows

    def batches(
        self, table: Table, token_range: TokenRange = WHOLE, tombstones: bool = False
    ) -> Iterator[Batch]:
        """The newest row of every key, sorted by token, in the table's present columns."""
        view = self.tables.get(table.id)
        if view is None:
            return
        # A column that the reader knows to be dropped is neither shown nor counted.
        present = newer(table, view.table)
        if table.kind == "stream":
            for batch in records(view, 0):
                yield concat(present, [batch.where(batch.in_range(token_range))])
            return
        for piece in sweep(present, view.sources, token_range, SCAN_BYTES):
            for batch in piece:
                yield self._visible(concat(present, [batch]), tombstones)

    def copied(self, table: Table, token_range: TokenRange, up_to: Position) -> Iterator[Batch]:
        """Rows of a range for another replica, including tombstones, not sorted as a whole.

        First settled segments as they are, then the newest version of every other row; so a row may
        be followed by a newer one of its key. Rows written after `up_to` may be missing.
        """
        view = self.tables.get(table.id)
        if view is None or table.kind == "stream" or self._has_collected(view):
            # Without a collected tombstone, the row that it hides would come back.
            yield from self.batches(table, token_range, tombstones=True)
            return
        sources = [source for source in view.sources if source.min_version <= up_to]
        settled = [each for each in sources if isinstance(each, Ranged) and each.level == SETTLED]
        for ranged in sorted(settled, key=lambda each: each.range.start):
            for batch in ranged.within(token_range):
                yield concat(view.table, [batch])
        others = [each for each in sources if not isinstance(each, Ranged) or each.level != SETTLED]
        for piece in sweep(view.table, others, token_range, SCAN_BYTES):
            for batch in piece:
                yield concat(view.table, [batch])

    def _has_collected(self, view: TableView) -> bool:
        """Collected tombstones may still be stored somewhere."""
        if not self.collected:
            return False
        at_rest = any(ranged.segment.index.tombstones for ranged in view.segments)
        memtables = (*view.frozen, *view.memtables)
        return at_rest or any(
            batch.deleted is not None for each in memtables for batch in each.parts
        )

    def _visible(self, batch: Batch, tombstones: bool) -> Batch:
        if batch.deleted is None:
            return batch
        if not tombstones:
            return batch.where(~batch.deleted)
        gone = self._gone(batch)
        return batch if gone is None else batch.where(~gone)

    def scan(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        token_range: TokenRange = WHOLE,
        empty_too: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Rows as Arrow batches, sorted by token; empty batches only with `empty_too`."""
        if columns is not None:
            unknown = [name for name in columns if name not in table.physical.names]
            if unknown:
                raise BadInput(
                    f"no such columns: {', '.join(unknown)}", "use the table's column names"
                )
        for batch in self.batches(table, token_range):
            rows = table.widen(batch.columns)
            if filter is not None:
                rows = rows.filter(filter)
            if columns is not None:
                rows = rows.select(list(columns))
            if rows.num_rows or empty_too:
                yield rows

    # --- records

    def read_from(
        self, stream: Table, offset: int, rows_max: int = 65_536
    ) -> tuple[int, pa.RecordBatch]:
        """Records from an offset on (at least one, if any), and the offset of the first."""
        view = self.tables.get(stream.id)
        wanted: list[pa.RecordBatch] = []
        missing, room = rows_max, READ_BYTES
        if view is not None and 0 <= offset < view.next_offset:
            for batch in records(view, offset):
                part = batch.columns.slice(0, min(missing, len(batch)))
                size = part.nbytes
                if size > room:
                    part = part.slice(0, max(_fitting(part, room), 0 if wanted else 1))
                wanted.append(shown(stream, view.table, part))
                missing, room = missing - len(part), room - size
                if not missing or room <= 0:
                    break
        return offset, concat_columns(wanted) if wanted else _empty(stream)

    def next_offset(self, stream: Table) -> int:
        view = self.tables.get(stream.id)
        return 0 if view is None else view.next_offset

    # --- sums

    def digest(self) -> int:
        """The digest of all rows of all tables, by which the core compares replicas."""
        return sum(map(self._digest_of, self.tables.values()))

    def _digest_of(self, view: TableView) -> int:
        """The digest of all segments and of memory, without rows that do not count."""
        if view.table.kind == "stream":
            return sum(batch.digest() for batch in self.batches(view.table, tombstones=True))
        total = sum(ranged.digest(view.table) for ranged in view.segments)
        settled_first = sorted(
            view.segments, key=lambda each: (each.level != SETTLED, each.range.start)
        )
        for part in cut(view.sources, WHOLE, SCAN_BYTES):
            at_rest = [batch for ranged in settled_first for batch in ranged.within(part)]
            found = [
                batch for each in (*view.frozen, *view.memtables) for batch in each.within(part)
            ]
            counts = self._which_count(view.table, [*at_rest, *found])
            of_rest, of_found = counts[: len(at_rest)], counts[len(at_rest) :]
            hidden = [
                batch.where(~flags)
                for batch, flags in zip(at_rest, of_rest, strict=True)
                if flags is not None
            ]
            more = [
                batch if flags is None else batch.where(flags)
                for batch, flags in zip(found, of_found, strict=True)
            ]
            # Concatenated, because hashing many small batches takes several times as long.
            total -= concat(view.table, hidden).digest() if hidden else 0
            total += concat(view.table, more).digest() if more else 0
        return total

    def _which_count(self, table: Table, found: Sequence[Batch]) -> list[Flags | None]:
        """Which rows are the newest of their keys and not collected tombstones; None: all."""
        out: list[Flags | None] = []
        for batch, flags in zip(found, which_count(table, found) if found else (), strict=True):
            gone = self._gone(batch)
            if gone is not None and gone.any():
                flags = ~gone if flags is None else flags & ~gone
            out.append(flags)
        return out

    def _gone(self, batch: Batch) -> Flags | None:
        """Which rows are collected tombstones: some replicas still store them, others don't."""
        if batch.deleted is None:
            return None
        assert batch.versions is not None
        return batch.deleted & (batch.versions <= self.collected)

    def count(self, table: Table, token_range: TokenRange = WHOLE) -> int:
        """The exact count; reads tokens and tombstones of all rows."""
        return sum(len(batch) for batch in self.batches(table, token_range))

    @property
    def size(self) -> Size:
        """An estimate; reads nothing."""
        views = self.tables.values()
        return Size(sum(view.rows for view in views), sum(view.bytes for view in views))


def records(view: TableView, offset: int) -> Iterator[Batch]:
    """A stream's batches in order, from an offset on."""
    for ranged in view.segments:
        if ranged.end > offset:  # adopted segments may overlap with earlier ones
            yield from ranged.segment.from_row(max(0, offset - ranged.offset))
            offset = ranged.end
    memtables = (*view.frozen, *view.memtables)
    start = view.next_offset - sum(len(each) for each in memtables)
    for batch in (batch for each in memtables for batch in each.batches):
        skip = max(0, offset - start)
        if skip < len(batch):
            yield batch.slice(skip, len(batch)) if skip else batch
        start += len(batch)


def _key_columns(table: Table, keys: pa.RecordBatch) -> list[Any]:
    """The key columns, which must have the table's types: other types have other tokens."""
    types = dict(zip(keys.schema.names, keys.schema.types, strict=True))
    for name, wanted in zip(table.key, table.key_types, strict=True):
        if types.get(name) != wanted:
            raise InvalidKey(f"key column {name} is not of type {wanted}", "send every key column")
    return [keys.column(name) for name in table.key]


def _empty(table: Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.physical)


def _gather(table: Table, found: Sequence[StoredRow]) -> pa.RecordBatch:
    """Collect rows from several batches: one `take` per batch, not one slice per row."""
    by_batch: dict[int, tuple[Batch, list[int], list[int]]] = {}
    for number, each in enumerate(found):
        known = by_batch.setdefault(id(each.batch), (each.batch, [], []))
        known[1].append(each.row)
        known[2].append(number)
    parts, room = [], GATHER_BYTES
    for batch, rows, _ in by_batch.values():
        parts.append(shown(table, found[0].present, _take(batch, rows, room)))
        room -= parts[-1].nbytes
    order = np.argsort(np.concatenate([numbers for _, _, numbers in by_batch.values()]))
    return concat_columns(parts).take(order)


def _take(batch: Batch, rows: list[int], room: int) -> pa.RecordBatch:
    """Take rows from a batch; refuse more bytes than an Arrow array can hold."""
    size = batch.bytes * max(Counter(rows).values())  # at most
    if size > room:
        size = sum(batch.columns.slice(row, 1).nbytes for row in rows)
    if size > room:
        raise BadInput(
            f"the rows of these keys have more than {GATHER_BYTES} bytes",
            "ask for fewer keys at once",
        )
    return batch.columns.take(rows)


def _fitting(part: pa.RecordBatch, room: int) -> int:
    """How many of the first rows fit into so many bytes."""
    sizes = range(part.num_rows + 1)
    return bisect_right(sizes, room, key=lambda rows: part.slice(0, rows).nbytes) - 1
