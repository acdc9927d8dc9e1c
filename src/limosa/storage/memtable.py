"""Which rows are newer than any segment, and where is one of them?

Rows come in batches and stay as they came; a batch is sorted when somebody first looks for a row in
it. Many small batches are put together into fewer large ones, so that a look-up has few places to
look at, and each row is copied only a few times.
"""

from typing import TypeAlias

import numpy as np

from limosa.core.model.keys import Position, TokenRange
from limosa.storage.merge import Span
from limosa.storage.rows import Batch, Indices, Tokens, concat

MERGE_RUNS = 8
RUN_ROWS_MAX = 262_144
RUN_BYTES_MAX = 32 << 20


class Run:
    """Versioned rows in memory, sorted by token on demand."""

    __slots__ = ("_index", "batch", "max_version", "min_version")

    def __init__(self, batch: Batch) -> None:
        assert batch.versions is not None
        self.batch = batch
        self.min_version: Position = int(batch.versions.min())
        self.max_version: Position = int(batch.versions.max())
        self._index: tuple[Tokens, Indices] | None = None

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def bytes(self) -> int:
        return self.batch.bytes

    @property
    def sorted(self) -> tuple[Tokens, Indices]:
        """Tokens in order, and the row of each; equal tokens keep the order of their rows."""
        index = self._index
        if index is None:
            order = np.argsort(self.batch.tokens, kind="stable")
            index = self._index = (self.batch.tokens[order], order)
        return index

    def find(self, token: int) -> list[tuple[Batch, int]]:
        """Rows with this token, later ones last."""
        tokens, order = self.sorted
        at = int(tokens.searchsorted(token))
        found = []
        while at < len(tokens) and tokens[at] == token:
            found.append((self.batch, int(order[at])))
            at += 1
        return found

    def spans(self, held: TokenRange) -> list[Span]:
        tokens, _ = self.sorted
        start, stop = span(tokens, held)
        if start == stop:
            return []
        size = self.bytes * (stop - start) // len(self)
        return [Span(int(tokens[start]), int(tokens[stop - 1]), size)]

    def within(self, held: TokenRange) -> list[Batch]:
        """Rows of a range, sorted by token."""
        tokens, order = self.sorted
        start, stop = span(tokens, held)
        return [self.batch.take(order[start:stop])] if start < stop else []


Runs: TypeAlias = tuple[Run, ...]


def span(tokens: Tokens, held: TokenRange) -> tuple[int, int]:
    """Where a range begins and ends among sorted tokens."""
    start = int(tokens.searchsorted(held.start))
    return start, int(tokens.searchsorted(held.end - 1, side="right"))


def find_sorted(batch: Batch, token: int) -> list[tuple[Batch, int]]:
    """Rows of a batch that is sorted by token."""
    tokens = batch.tokens
    at = int(tokens.searchsorted(token))
    found = []
    while at < len(tokens) and tokens[at] == token:
        found.append((batch, at))
        at += 1
    return found


def added(runs: Runs, run: Run) -> Runs:
    """One run more, or a few less: neighbours that are no larger than the new one are united."""
    level = _level(run)
    start, rows, size = len(runs), len(run), run.bytes
    while start and _level(runs[start - 1]) <= level:
        start -= 1
        rows += len(runs[start])
        size += runs[start].bytes
    together = (*runs[start:], run)
    if len(together) < MERGE_RUNS or rows > RUN_ROWS_MAX or size > RUN_BYTES_MAX:
        return (*runs, run)
    newest = max((each.batch.table for each in together), key=lambda table: table.version)
    return (*runs[:start], Run(concat(newest, [each.batch for each in together])))


def _level(run: Run) -> int:
    return (len(run).bit_length() - 1) // 3
