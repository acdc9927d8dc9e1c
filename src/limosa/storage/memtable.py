"""Which rows are newer than any segment, and where is the row of a key?

Rows come in batches and stay in them. Neighbouring batches form a memtable; a table has only a few
memtables, so that a lookup has few places to search. A memtable is sorted by its first lookup. Only
tiny batches are copied together: by the first reader, or when there are many of them. A writer does
neither, since clients wait for it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import chain
from threading import Lock
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from limosa.core.model.keys import Position, TokenRange
from limosa.tabular.merge import Span, newest
from limosa.tabular.order import order_of
from limosa.tabular.rows import Batch, Tokens, concat, hash_together
from limosa.tabular.schema import Table

UNITE_MEMTABLES = 8
MEMTABLE_ROWS_MAX = 262_144
FILTER_BYTES_A_ROW = 8
TINY_ROWS = 256
TINY_BYTES = 1 << 20
"""Batches with fewer rows than this, on average, are copied together, up to this size."""
TINY_BATCHES_MAX = 64
"""So many tiny batches are copied together even if nobody reads them: each takes some kilobytes,
however few its rows are."""

NOTHING: list[tuple[Batch, int]] = []


class TokenIndex:
    """The rows of a memtable by token; rows of equal tokens in the order in which they came."""

    __slots__ = ("batches", "one_by_one", "rows", "tokens")

    def __init__(self, members: tuple[Batch, ...]) -> None:
        hash_together(members)
        tokens = np.concatenate([batch.tokens for batch in members])
        lengths = [len(batch) for batch in members]
        numbers = np.repeat(np.arange(len(members), dtype=np.int32), lengths)
        rows = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        order = order_of(tokens)
        self.tokens: Tokens = tokens[order]
        self.one_by_one = self.tokens.data
        """The same tokens, for lookups of a single token: faster than NumPy."""
        self.batches: NDArray[np.int32] = numbers[order]
        self.rows: NDArray[np.int32] = rows[order]


class Filter:
    """Says that a token is in no memtable, faster than a search in each of them.

    Memtables are added at their first lookup and never removed. So views of different times share
    the filter; tokens of newer memtables only cause needless searches.
    """

    __slots__ = ("_learned", "_learning", "_marks", "_rows", "probe")

    def __init__(self) -> None:
        self._learning = Lock()
        self._learned: list[Tokens] = []
        self._rows = 0
        self._marks = np.zeros(1, np.uint8)
        self.probe: tuple[int, Callable[[int], int]] = (0, _no)
        """Lookup of a token's lowest bits: 0 means that the token is in no memtable."""

    def learn(self, memtables: Iterable["Memtable"]) -> None:
        with self._learning:
            unknown = [memtable for memtable in memtables if memtable.filter is not self]
            batches = [batch for each in unknown for batch in each.parts]
            hash_together(batches)
            more = [batch.tokens for batch in batches]
            self._learned += more
            self._rows += sum(map(len, more))
            size = self.probe[0] + 1
            if size < FILTER_BYTES_A_ROW * self._rows:
                while size < 2 * FILTER_BYTES_A_ROW * self._rows:
                    size *= 2
                self._mark(np.zeros(size, np.uint8), self._learned)
            else:
                self._mark(self._marks, more)
            for memtable in unknown:
                memtable.filter = self

    def _mark(self, marks: NDArray[np.uint8], tokens: Iterable[Tokens]) -> None:
        for some in tokens:
            marks[some & (len(marks) - 1)] = 1
        self._marks = marks
        self.probe = (len(marks) - 1, marks.item)


def _no(place: int) -> int:
    return 0


class Memtable:
    """Versioned rows in memory."""

    __slots__ = (
        "_index",
        "_joined",
        "_sorted",
        "bytes",
        "filter",
        "length",
        "max_version",
        "min_version",
        "parts",
    )

    def __init__(
        self,
        parts: tuple[Batch, ...],
        min_version: Position,
        max_version: Position,
        length: int,
        size: int,
    ) -> None:
        self.parts = parts
        """The rows as they came, or copied together."""
        self.min_version = min_version
        self.max_version = max_version
        self.length = length
        self.bytes = size
        self._joined = len(parts) == 1
        self.filter: Filter | None = None
        """The filter that contains this memtable's tokens."""
        self._index: TokenIndex | None = None
        self._sorted: Batch | None = None
        """All rows as one sorted batch, made at the first read of a range: reading many small
        batches piece by piece takes far longer."""

    @classmethod
    def at(cls, batch: Batch, position: Position) -> "Memtable":
        """A memtable of the rows of one log entry."""
        return cls((batch.at(position),), position, position, len(batch), batch.bytes)

    @classmethod
    def of(cls, batch: Batch) -> "Memtable":
        """A memtable of rows that already have versions."""
        versions = batch.versions
        assert versions is not None
        return cls((batch,), int(versions.min()), int(versions.max()), len(batch), batch.bytes)

    @classmethod
    def united(cls, memtables: "Memtables") -> "Memtable":
        """The rows of neighbouring memtables."""
        united = cls(
            tuple(chain.from_iterable(each.parts for each in memtables)),
            min(each.min_version for each in memtables),
            max(each.max_version for each in memtables),
            sum(each.length for each in memtables),
            sum(each.bytes for each in memtables),
        )
        if len(united.parts) >= TINY_BATCHES_MAX:
            united.join_tiny()
        if all(each.filter is memtables[-1].filter for each in memtables):
            united.filter = memtables[-1].filter
        return united

    def join_tiny(self) -> None:
        """Copy the rows together if their batches are tiny. Threads that do it at the same time get
        the same rows in the same order."""
        if self.length < TINY_ROWS * len(self.parts) and self.bytes <= TINY_BYTES:
            newest_table = max((batch.table for batch in self.parts), key=lambda t: t.version)
            self.parts = (concat(newest_table, self.parts),)
        self._joined = True

    def __len__(self) -> int:
        return self.length

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The rows in batches that are worth reading one by one."""
        if not self._joined:
            self.join_tiny()
        return self.parts

    @property
    def table(self) -> Table:
        return self.parts[-1].table

    @property
    def index(self) -> TokenIndex:
        index = self._index
        if index is None:
            index = self._index = TokenIndex(self.batches)
        return index

    def find(self, token: int) -> list[tuple[Batch, int]]:
        """Rows with this token, later ones last."""
        index = self._index or self.index
        tokens, count = index.one_by_one, self.length
        at = bisect_left(tokens, token)
        found = NOTHING
        while at < count and tokens[at] == token:
            found = [*found, (self.batches[index.batches.item(at)], index.rows.item(at))]
            at += 1
        return found

    def spans(self, token_range: TokenRange) -> list[Span]:
        tokens = self.index.tokens
        start, stop = span(tokens, token_range)
        if start == stop:
            return []
        size = self.bytes * (stop - start) // len(self)
        return [Span(int(tokens[start]), int(tokens[stop - 1]), size)]

    def within(self, token_range: TokenRange) -> list[Batch]:
        """The rows of a range, sorted by token."""
        if len(self.batches) == 1:
            index = self.index
            start, stop = span(index.tokens, token_range)
            return [self.batches[0].take(index.rows[start:stop])] if start < stop else []
        sorted_out = self._sorted
        if sorted_out is None:
            newest_table = max((batch.table for batch in self.batches), key=lambda t: t.version)
            sorted_out = self._sorted = newest(concat(newest_table, self.batches))
        start, stop = span(sorted_out.tokens, token_range)
        return [sorted_out.slice(start, stop)] if start < stop else []


Memtables: TypeAlias = tuple[Memtable, ...]


def span(tokens: Tokens, token_range: TokenRange) -> tuple[int, int]:
    """The first and last index of a range among sorted tokens."""
    start = int(tokens.searchsorted(token_range.start))
    return start, int(tokens.searchsorted(token_range.end - 1, side="right"))


def span_of(tokens: Tokens, token: int) -> tuple[int, int]:
    """The first and last index of one token among sorted tokens; equal if it is missing."""
    start = end = int(tokens.searchsorted(token))
    count = len(tokens)
    while end < count and tokens.item(end) == token:
        end += 1
    return start, end


def added(memtables: Memtables, memtable: Memtable) -> Memtables:
    """Adds a memtable, and unites it with neighbours that are no larger than it, as long as there
    are enough of them."""
    while True:
        level = _level(memtable)
        start, rows = len(memtables), len(memtable)
        while start and _level(memtables[start - 1]) <= level:
            start -= 1
            rows += len(memtables[start])
        if len(memtables) - start + 1 < UNITE_MEMTABLES or rows > MEMTABLE_ROWS_MAX:
            return (*memtables, memtable)
        memtable = Memtable.united((*memtables[start:], memtable))
        memtables = memtables[:start]


def _level(memtable: Memtable) -> int:
    return (memtable.length.bit_length() - 1) // 3
