"""Which partition holds a token?

A layout's partitions tile the token space, so a binary search of their sorted starts finds the
partition of a token. But with random tokens the branches of such a search are mispredicted. Tokens
are hashes and evenly distributed, so their top bits nearly determine the partition:

    2**k partitions of equal size            the top k bits are the partition
    every start is the start of a bucket     a table of the top bits gives the partition
    at most one start inside a bucket        the table gives the first of two, a comparison decides
    more starts inside a bucket              binary search for the few rows that are left

Each method is exact for the layouts that it is used for; they differ in speed only.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from limosa.errors import InvalidKey, InvalidLayout

FIRST_TOKEN: Final = -(2**63)
LAST_TOKEN: Final = 2**63 - 1

_SIGN: Final = np.uint64(2**63)

# 16 to 32 buckets for each partition: with random starts, about one row in 500 is left to the
# binary search. A larger table would not fit into the cache.
_MORE_BITS: Final = 4
_MOST_BITS: Final = 18


class Share(NamedTuple):
    """The rows of a batch that belong to one partition, in their order, and their indexes in it."""

    partition: int
    rows: NDArray[np.int64]
    batch: pa.RecordBatch


class Lookup:
    """The partitions of one layout, each identified by its index in the order of tokens."""

    __slots__ = ("_bounds", "_crowded", "_inside", "_lasts", "_shift", "_starts", "_table")

    def __init__(self, starts: Sequence[int]) -> None:
        self._bounds = _checked(starts)
        self._starts = np.array(self._bounds, dtype=np.int64)
        self._lasts = np.append(self._starts[1:] - 1, LAST_TOKEN)
        self._table: NDArray[np.int64] | None = None
        self._inside = self._crowded = False
        bits = (len(self) - 1).bit_length()
        if not bits or not np.array_equal(self._starts, _even_starts(bits)):
            bits = min(bits + _MORE_BITS, _MOST_BITS)
            firsts = _even_starts(bits)
            table = self._search(firsts)
            # The number of starts inside each bucket, after the bucket's own start.
            starts_inside = np.diff(table, append=len(self) - 1)
            starts_inside[:-1] -= self._starts[table[1:]] == firsts[1:]
            self._inside = bool(starts_inside.any())
            self._crowded = bool((starts_inside > 1).any())
            self._table = table
        self._shift = np.uint64(64 - bits)

    def __len__(self) -> int:
        return len(self._bounds)

    def partition_index(self, token: int) -> int:
        """The partition of one token."""
        return bisect_right(self._bounds, token) - 1

    def partition_indexes(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """The partition of each token."""
        # The sign bit is flipped, since negative tokens come first.
        buckets = tokens.view(np.uint64) ^ _SIGN
        buckets >>= self._shift
        indexes = buckets.view(np.int64)
        if self._table is None:
            return indexes
        indexes = self._table.take(indexes)
        if self._inside:
            indexes += tokens > self._lasts.take(indexes)
        if self._crowded:
            beyond = np.flatnonzero(tokens > self._lasts.take(indexes))
            indexes[beyond] = self._search(tokens[beyond])
        return indexes

    def split(self, batch: pa.RecordBatch, tokens: NDArray[np.int64]) -> list[Share]:
        """Each partition's share of a batch, in the order of tokens; rows keep their order."""
        if len(tokens) != batch.num_rows:
            raise InvalidKey(
                f"{len(tokens)} tokens for {batch.num_rows} rows", "hash the keys of this batch"
            )
        indexes = self.partition_indexes(tokens)
        # NumPy sorts 16-bit integers by radix, several times faster than wider ones.
        narrow = indexes.astype(np.uint16) if len(self) <= 2**16 else indexes
        rows = np.argsort(narrow, kind="stable")
        grouped = indexes[rows]
        cuts = [0, *(np.flatnonzero(np.diff(grouped)) + 1).tolist(), len(rows)]
        # One take, then slices: a take for each partition would cost more than everything else.
        taken = batch.take(rows) if len(cuts) > 2 else batch
        return [
            Share(int(grouped[start]), rows[start:stop], taken.slice(start, stop - start))
            for start, stop in pairwise(cuts)
            if start < stop
        ]

    def _search(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, tokens, side="right") - 1


def _even_starts(bits: int) -> NDArray[np.int64]:
    """The starts of 2**bits equal ranges."""
    places = np.arange(2**bits, dtype=np.uint64)
    return ((places << np.uint64(64 - bits)) ^ _SIGN).view(np.int64)


def _checked(starts: Sequence[int]) -> list[int]:
    bounds = [int(start) for start in starts]
    if not bounds or bounds[0] != FIRST_TOKEN:
        raise InvalidLayout("no partition holds the first token", "start the first at -2**63")
    if bounds[-1] > LAST_TOKEN or any(start >= following for start, following in pairwise(bounds)):
        raise InvalidLayout(
            "the starts do not rise within 64 bits", "sort them, without duplicates"
        )
    return bounds
