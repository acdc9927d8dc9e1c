"""Which of several rows with one key counts? The one with the highest version.

The version decides, never the age or the place of a row: a copied old row may arrive after a newer
one. Rows are matched by their full keys, since two keys may have the same token.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from limosa.core.model.keys import TOKEN_MIN, Position, TokenRange
from limosa.tabular.order import Indices, order_of
from limosa.tabular.rows import Batch, Flags, concat
from limosa.tabular.schema import Table


class Span(NamedTuple):
    """A number of bytes, spread evenly over a token range, since tokens are hashes."""

    first: int
    last: int
    bytes: int


class MergeSource(Protocol):
    """Rows of one table that can be read in the order of their tokens."""

    @property
    def min_version(self) -> Position: ...

    @property
    def max_version(self) -> Position: ...

    def find(self, token: int) -> list[tuple[Batch, int]]: ...

    def spans(self, token_range: TokenRange) -> list[Span]:
        """Roughly how its rows in a range are spread."""
        ...

    def within(self, token_range: TokenRange) -> list[Batch]:
        """Its rows in a range; no batch is empty."""
        ...


def sweep(
    table: Table, sources: Sequence[MergeSource], token_range: TokenRange, piece_bytes: int
) -> Iterator[list[Batch]]:
    """The newest row of every key in a range, piece by piece, in token order.

    A piece is a list of consecutive batches, so that rows that need no merging are not copied.
    """
    for part in cut(sources, token_range, piece_bytes):
        yield merged(table, sources, part)


def merged(table: Table, sources: Sequence[MergeSource], token_range: TokenRange) -> list[Batch]:
    # Older sources first: then rows of one key are mostly in the order of their versions.
    by_age = sorted(sources, key=attrgetter("max_version"))
    found = [batches for source in by_age if (batches := source.within(token_range))]
    if not found:
        return []
    if len(found) == 1 and is_sorted(found[0]):
        return found[0]
    return [newest(concat(table, [batch for batches in found for batch in batches]))]


def cut(
    sources: Sequence[MergeSource], token_range: TokenRange, piece_bytes: int
) -> list[TokenRange]:
    """Cut a range into parts of about `piece_bytes` each."""
    spans = [span for source in sources for span in source.spans(token_range)]
    count = -(-sum(span.bytes for span in spans) // piece_bytes)
    if count <= 1:
        return [token_range]
    firsts, lasts, sizes = (np.array(column, np.float64) for column in zip(*spans, strict=True))
    # A span counts as a few equal lumps along its tokens; each lump is placed at its end.
    lumps = max(8, 4 * count // len(spans))
    shares = (np.arange(lumps) + 1) / lumps
    places = (firsts[:, None] + (lasts - firsts)[:, None] * shares).ravel()
    order = np.argsort(places)
    below = np.cumsum(np.repeat(sizes / lumps, lumps)[order])
    wanted = np.searchsorted(below, (np.arange(1, count) - 1e-6) * (below[-1] / count))
    chosen = places[order][np.minimum(wanted, len(places) - 1)]
    inner = sorted(
        {int(token) for token in chosen if token_range.start < int(token) < token_range.end}
    )
    bounds = [token_range.start, *inner, token_range.end]
    return [TokenRange(start, end) for start, end in pairwise(bounds)]


def is_sorted(batches: Sequence[Batch]) -> bool:
    """Whether tokens ascend strictly across the batches."""
    last: int | None = None
    for batch in batches:
        tokens = batch.tokens
        if last is not None and last >= int(tokens[0]):
            return False
        if (tokens[1:] <= tokens[:-1]).any():
            return False
        last = int(tokens[-1])
    return True


def newest(batch: Batch) -> Batch:
    """Sorted by token, one row for each key; of equal versions the later row wins."""
    return batch.take(newest_rows(batch))


def newest_rows(batch: Batch) -> Indices:
    assert batch.versions is not None
    order = order_of(batch.tokens)
    tokens = batch.tokens[order]
    same = tokens[1:] == tokens[:-1]
    if not same.any():
        return order
    if (batch.versions[1:] < batch.versions[:-1]).any():
        versions = batch.versions[order]
        if (same & (versions[1:] < versions[:-1])).any():
            order = np.lexsort((batch.versions, batch.tokens))
    pairs = np.flatnonzero(same)
    equal = same_keys(batch, order[pairs], order[pairs + 1])
    keep = np.ones(len(order), np.bool_)
    keep[pairs] = False
    if not equal.all():
        _keep_collided(batch, order, same, pairs[~equal], keep)
    return order[keep]


def which_count(table: Table, batches: Sequence[Batch]) -> list[Flags | None]:
    """For each batch, which rows are the newest of their key; None: all of them.

    For callers that need neither an order nor a copy: only rows whose token occurs more than once
    are compared. Pass settled batches first and in token order: they are not sorted again.
    """
    beside = _beside([batch.tokens for batch in batches])
    if not beside.any():
        return [None] * len(batches)
    bounds = np.cumsum([0, *map(len, batches)])
    keys = _keys_of(table)
    parts = [
        Batch(keys, batch.columns.select(list(keys.names)), batch.tokens, batch.versions).take(
            np.flatnonzero(beside[start:stop])
        )
        for batch, (start, stop) in zip(batches, pairwise(bounds), strict=True)
        if beside[start:stop].any()
    ]
    rows = np.flatnonzero(beside)
    counts = ~beside
    counts[rows[newest_rows(concat(keys, parts))]] = True
    flags = [counts[start:stop] for start, stop in pairwise(bounds)]
    return [None if each.all() else each for each in flags]


def _beside(parts: Sequence[NDArray[np.int64]]) -> Flags:
    """Tokens that occur more than once among all arrays."""
    ordered = sum(map(len, parts[: _in_order(parts)]))
    tokens = np.concatenate(parts)
    lying, others = tokens[:ordered], tokens[ordered:]
    order = order_of(others)
    sought = others[order]
    again = _again(sought)
    beside = np.zeros(len(tokens), np.bool_)
    beside[:ordered] = _again(lying)
    if ordered:
        places = np.minimum(np.searchsorted(lying, sought), ordered - 1)
        found = lying[places] == sought
        beside[places[found]] = (
            True  # several equal tokens in one array are found within that array
        )
        again |= found
    beside[ordered + order[again]] = True
    return beside


def _again(tokens: NDArray[np.int64]) -> Flags:
    """Of sorted tokens, those with an equal neighbour."""
    same = tokens[1:] == tokens[:-1]
    flags = np.zeros(len(tokens), np.bool_)
    flags[1:] |= same
    flags[:-1] |= same
    return flags


def _in_order(parts: Sequence[NDArray[np.int64]]) -> int:
    """How many leading arrays are sorted, each behind the one before it."""
    last = TOKEN_MIN
    for number, tokens in enumerate(parts):
        if len(tokens):
            if tokens[0] < last or (tokens[1:] < tokens[:-1]).any():
                return number
            last = int(tokens[-1])
    return len(parts)


@lru_cache(256)
def _keys_of(table: Table) -> Table:
    """The key columns of a batch, which decide whether two rows have one key."""
    return Table(table.id, pa.schema([table.columns.field(name) for name in table.key]), table.key)


def same_keys(batch: Batch, some: Indices, others: Indices) -> Flags:
    """For each row, whether both keys are equal."""
    equal = np.ones(len(some), np.bool_)
    for name in batch.table.key:
        column = batch.columns.column(name)
        answer = pc.equal(column.take(some), column.take(others))
        equal &= answer.to_numpy(zero_copy_only=False)
    return equal


def _keep_collided(
    batch: Batch, order: Indices, same: Flags, unequal: Indices, keep: Flags
) -> None:
    """Several keys with one token are rare, so compare one by one; the last row of a key stays."""
    done = -1
    for pair in unequal.tolist():
        if pair < done:
            continue
        start, stop = pair, pair + 1
        while start and same[start - 1]:
            start -= 1
        while stop < len(order) and same[stop - 1]:
            stop += 1
        last = {
            tuple(read(int(order[at])) for read in batch.key_readers): at
            for at in range(start, stop)
        }
        keep[start:stop] = False
        keep[list(last.values())] = True
        done = stop
