"""Which of several rows with one key counts, and is a range cut where it should be?"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, WHOLE, TokenRange
from limosa.storage.memtable import Memtable
from limosa.tabular.merge import (
    Span,
    cut,
    merged,
    newest,
    newest_rows,
    same_keys,
    sweep,
    which_count,
)
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table
from tests.storage.samples import BIRDS, LEFT, RIGHT, batch_of, birds, versioned

# name, eggs, token, version, deleted
Row = tuple[str, int, int, int, bool]

rows = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.integers(0, 9),
        st.sampled_from([TOKEN_MIN, -1, 0, 1, TOKEN_END - 1]),
        st.integers(1, 6),
        st.booleans(),
    ),
    max_size=30,
)


def batch(values: Sequence[Row], table: Table = BIRDS) -> Batch:
    made = batch_of(table, [(name, eggs) for name, eggs, *_ in values])
    return Batch(
        table,
        made.columns,
        np.array([row[2] for row in values], np.int64),
        np.array([row[3] for row in values], np.int64),
        np.array([row[4] for row in values], np.bool_),
    )


def values(found: Batch) -> list[Row]:
    assert found.versions is not None
    assert found.deleted is not None
    columns = [found.columns.column(name).to_pylist() for name in ("name", "eggs")]
    numbers = [array.tolist() for array in (found.tokens, found.versions, found.deleted)]
    return list(zip(*columns, *numbers, strict=True))


def with_own_tokens(some: Sequence[Row]) -> list[Row]:
    """A key has one token, but a token has several keys."""
    tokens: dict[str, int] = {}
    return [(k, v, tokens.setdefault(k, token), *rest) for k, v, token, *rest in some]  # type: ignore[misc]


def expected(some: Sequence[Row]) -> set[Row]:
    best: dict[str, Row] = {}
    for row in some:
        if row[0] not in best or best[row[0]][3] <= row[3]:
            best[row[0]] = row
    return set(best.values())


@given(rows)
def test_of_each_key_the_highest_version_counts_and_of_equal_ones_the_later(
    some: list[Row],
) -> None:
    some = with_own_tokens(some)
    if some:
        found = values(newest(batch(some)))
        assert set(found) == expected(some)
        assert len(found) == len(expected(some))
        assert [row[2] for row in found] == sorted(row[2] for row in found)


@given(rows, st.lists(st.integers(0, 30), max_size=4))
def test_it_does_not_matter_how_rows_are_spread_over_sources(
    some: list[Row], cuts: list[int]
) -> None:
    some = with_own_tokens(some)
    bounds = [0, *sorted(cuts), len(some)]
    parts = [some[start:stop] for start, stop in pairwise(bounds)]
    sources = [Memtable.of(batch(part)) for part in parts if part]
    for piece_bytes in (20, 100, 10**9):  # a row has about 30 bytes
        pieces = list(sweep(BIRDS, sources, WHOLE, piece_bytes))
        found = [row for piece in pieces for each in piece for row in values(flagged(each))]
        assert set(found) == expected(some)
        assert len(found) == len(expected(some))
        assert [row[2] for row in found] == sorted(row[2] for row in found)
    for token_range in (LEFT, RIGHT):
        inside = {row for row in expected(some) if token_range.holds(row[2])}
        found = [
            row for each in merged(BIRDS, sources, token_range) for row in values(flagged(each))
        ]
        assert set(found) == inside


def flagged(each: Batch) -> Batch:
    deleted = np.zeros(len(each), np.bool_) if each.deleted is None else each.deleted
    return Batch(each.table, each.columns, each.tokens, each.versions, deleted)


def test_rows_that_come_newest_first_are_sorted_by_version() -> None:
    some = versioned(birds(("a", 3), ("a", 1), ("a", 2), ("b", 1)), [30, 10, 20, 5])
    assert sorted(newest_rows(some).tolist()) == [0, 3]


def test_rows_without_a_common_token_are_only_sorted() -> None:
    some = versioned(birds(("a", 1), ("b", 1), ("c", 1)), [1, 1, 1])
    assert some.tokens[newest_rows(some)].tolist() == sorted(some.tokens.tolist())


def test_keys_are_compared_by_all_of_their_columns() -> None:
    table = Table("t", BIRDS.columns, ("name", "eggs"))
    some = batch_of(table, [("a", 1), ("a", 2), ("a", 1)])
    first, second = np.array([0, 0, 1]), np.array([1, 2, 2])
    assert same_keys(some, first, second).tolist() == [False, True, False]


# ------------------------------------------------------------------------------------- cutting


class Spread:
    """A source of which only the spans matter."""

    min_version = max_version = 1

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def spans(self, token_range: TokenRange) -> list[Span]:
        return [
            Span(
                max(span.first, token_range.start), min(span.last, token_range.end - 1), span.bytes
            )
            for span in self._spans
            if span.last >= token_range.start and span.first < token_range.end
        ]

    def find(self, token: int) -> list[tuple[Batch, int]]:
        raise NotImplementedError

    def within(self, token_range: TokenRange) -> list[Batch]:
        raise NotImplementedError


tokens = st.one_of(
    st.sampled_from([TOKEN_MIN, TOKEN_MIN + 1, -1, 0, 1, TOKEN_END - 2, TOKEN_END - 1]),
    st.integers(TOKEN_MIN, TOKEN_END - 1),
)
spans = st.tuples(tokens, tokens, st.integers(0, 10**6)).map(
    lambda drawn: Span(min(drawn[:2]), max(drawn[:2]), drawn[2])
)
ranges = st.one_of(
    st.just(WHOLE),
    st.tuples(tokens, tokens).map(lambda t: TokenRange(min(t), max(t) + 1)),
)


@given(st.lists(spans, max_size=6), ranges, st.integers(1, 10**6))
@settings(max_examples=200)
def test_a_range_is_cut_into_parts_that_are_the_range(
    some: list[Span], token_range: TokenRange, piece_bytes: int
) -> None:
    total = sum(span.bytes for span in some)
    piece_bytes = max(piece_bytes, total // 1000)
    parts = cut([Spread(some)], token_range, piece_bytes)
    assert parts[0].start == token_range.start
    assert parts[-1].end == token_range.end
    assert all(one.end == other.start for one, other in pairwise(parts))


def test_evenly_spread_rows_are_cut_into_even_parts() -> None:
    parts = cut([Spread([Span(TOKEN_MIN, TOKEN_END - 1, 1000)])], WHOLE, 250)
    assert len(parts) == 4
    assert all(abs((part.end - part.start) - 2**62) < 2**40 for part in parts)


def test_what_fits_into_one_piece_is_not_cut() -> None:
    assert cut([Spread([Span(0, 10, 100)])], WHOLE, 100) == [WHOLE]
    assert cut([], WHOLE, 1) == [WHOLE]


def test_one_huge_row_is_one_part_and_its_neighbours_are_others() -> None:
    some = [Span(-(2**62), -(2**62), 100), Span(2**60, 2**60, 10_000), Span(2**62, 2**62, 100)]
    parts = cut([Spread(some)], WHOLE, 1000)
    assert 1 <= len(parts) <= 11


@given(rows.filter(bool), st.integers(1, 4), st.integers(0, 30))
def test_what_counts_is_what_a_merge_keeps(some: list[Row], count: int, ordered: int) -> None:
    """Without an order or a copy, and with keys of which several have one token; the first rows may
    lie in order, as settled ones do."""
    own = with_own_tokens(some)
    own = [*sorted(own[:ordered], key=lambda row: row[2]), *own[ordered:]]
    cuts = [len(own) * number // count for number in range(count + 1)]
    batches = [batch(own[start:stop]) for start, stop in pairwise(cuts) if start < stop]
    flags = which_count(BIRDS, batches)
    kept = [
        each if counts is None else each.where(counts)
        for each, counts in zip(batches, flags, strict=True)
    ]
    found = [row for each in kept for row in values(each)]
    assert len(found) == len(expected(own))
    assert set(found) == expected(own)


def test_a_run_with_rows_of_an_older_definition_last_keeps_the_newer_columns() -> None:
    """A client that has not seen the change writes after one that has."""
    columns: dict[str, pa.DataType] = {
        "name": pa.string(),
        "eggs": pa.int64(),
        "colour": pa.string(),
    }
    newer = BIRDS.evolved(pa.schema(columns))
    first = batch_of(newer, [("a", 1, "red")])
    last = batch_of(BIRDS, [("b", 2)])
    memtable = Memtable.united((Memtable.at(first, 1), Memtable.at(last, 2)))
    (found,) = memtable.within(WHOLE)
    rows = {row["name"]: row["colour"] for row in found.columns.to_pylist()}
    assert rows == {"a": "red", "b": None}
