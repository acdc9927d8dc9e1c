"""Does every token belong to exactly one partition, found by whichever way is quickest?"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from limosa.core.lookup import FIRST_TOKEN, LAST_TOKEN, Lookup
from limosa.errors import InvalidKey, InvalidLayout

TOKENS = st.integers(FIRST_TOKEN, LAST_TOKEN)


def even(count: int) -> list[int]:
    return [FIRST_TOKEN + place * 2**64 // count for place in range(count)]


def halved(starts: list[int], places: list[int]) -> list[int]:
    """The starts after splits in the middle, as resizes make them."""
    for place in places:
        at = place % len(starts)
        end = starts[at + 1] if at + 1 < len(starts) else 2**63
        if end - starts[at] > 1:
            starts = [*starts[: at + 1], (starts[at] + end) // 2, *starts[at + 1 :]]
    return starts


EVEN = st.one_of(st.integers(1, 300), st.sampled_from([2**bits for bits in range(11)])).map(even)
HALVED = st.builds(halved, EVEN, st.lists(st.integers(0, 500), max_size=40))
SCATTERED = st.sets(TOKENS, max_size=60).map(lambda more: sorted({FIRST_TOKEN, *more}))
CROWDED = st.builds(
    lambda at, size: sorted({FIRST_TOKEN, *(min(at + step, LAST_TOKEN) for step in range(size))}),
    TOKENS,
    st.integers(2, 100),
)
LAYOUTS = st.one_of(EVEN, HALVED, SCATTERED, CROWDED)


def searched(starts: list[int], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(np.array(starts, np.int64), tokens, side="right") - 1


def around(starts: list[int], more: list[int]) -> NDArray[np.int64]:
    """Every start and its neighbours, where a mistake would be."""
    near = [start + step for start in starts for step in (-1, 0, 1)]
    inside = [token for token in near if FIRST_TOKEN <= token <= LAST_TOKEN]
    return np.array([*inside, *more, FIRST_TOKEN, LAST_TOKEN, 0, -1], np.int64)


@given(LAYOUTS, st.lists(TOKENS))
def test_the_partition_is_the_one_that_a_binary_search_finds(
    starts: list[int], more: list[int]
) -> None:
    lookup = Lookup(starts)
    tokens = around(starts, more)

    found = lookup.partition_indexes(tokens)

    assert found.dtype == np.int64
    assert found.tolist() == searched(starts, tokens).tolist()
    assert found.tolist() == [lookup.partition_index(token) for token in tokens.tolist()]
    assert len(lookup) == len(starts)


@pytest.mark.parametrize(
    "starts",
    [
        even(1),
        even(2),
        even(4096),
        even(4095),
        halved(even(4096), [0, 0, 0, 7, 4100]),
        sorted({FIRST_TOKEN, *np.random.default_rng(1).integers(-(2**63), 2**63, 4095).tolist()}),
        sorted({FIRST_TOKEN, *np.random.default_rng(2).integers(-(2**63), 2**63, 70_000).tolist()}),
        [FIRST_TOKEN, *range(-2000, 2000)],
    ],
    ids=["one", "two", "even", "odd", "halved", "scattered", "huge", "crowded"],
)
def test_large_layouts_are_exact_too(starts: list[int]) -> None:
    random = np.random.default_rng(3).integers(FIRST_TOKEN, LAST_TOKEN, 10_000)
    tokens = around(starts, random.tolist())

    assert (Lookup(starts).partition_indexes(tokens) == searched(starts, tokens)).all()


def test_asking_does_not_change_the_tokens() -> None:
    tokens = np.array([5, -5, 0], np.int64)
    tokens.flags.writeable = False

    for starts in (even(4), even(3)):
        Lookup(starts).partition_indexes(tokens)

    assert tokens.tolist() == [5, -5, 0]


def test_no_tokens_are_held_by_no_partitions() -> None:
    batch = pa.record_batch({"a": pa.array([], pa.int64())})
    nothing = np.array([], np.int64)

    for starts in (even(1), even(4), even(3)):
        assert Lookup(starts).partition_indexes(nothing).tolist() == []
        assert Lookup(starts).split(batch, nothing) == []


@given(LAYOUTS, st.lists(TOKENS, min_size=1))
def test_a_split_gives_every_row_to_its_partition_in_order(
    starts: list[int], more: list[int]
) -> None:
    tokens = np.array(more, np.int64)
    batch = pa.record_batch({"token": tokens, "place": np.arange(len(tokens))})
    indexes = searched(starts, tokens)

    shares = Lookup(starts).split(batch, tokens)

    assert [share.partition for share in shares] == sorted({*indexes.tolist()})
    for share in shares:
        assert share.rows.tolist() == np.flatnonzero(indexes == share.partition).tolist()
        assert share.batch.equals(batch.take(share.rows))


def test_a_split_loses_no_row_for_want_of_a_token() -> None:
    batch = pa.record_batch({"a": [0, 1, 2]})

    with pytest.raises(InvalidKey, match="2 tokens for 3 rows"):
        Lookup(even(4)).split(batch, np.array([1, 2], np.int64))


def test_more_partitions_than_sixteen_bits_count_are_split_as_well() -> None:
    starts = even(2**17)
    tokens = np.array([starts[70_000], starts[4464], starts[70_000]], np.int64)
    batch = pa.record_batch({"a": [0, 1, 2]})

    shares = Lookup(starts).split(batch, tokens)

    assert [(share.partition, share.rows.tolist()) for share in shares] == [
        (4464, [1]),
        (70_000, [0, 2]),
    ]


def test_a_batch_of_one_partition_is_not_copied() -> None:
    batch = pa.record_batch({"a": [0, 1, 2]})

    (share,) = Lookup(even(1)).split(batch, np.array([3, 2, 1], np.int64))
    shared, own = (part.column(0).buffers()[1] for part in (share.batch, batch))

    assert shared is not None
    assert own is not None
    assert shared.address == own.address


@pytest.mark.parametrize(
    "starts",
    [
        [],
        [0],
        [FIRST_TOKEN + 1],
        [FIRST_TOKEN - 1, 0],
        [FIRST_TOKEN, 5, 5],
        [FIRST_TOKEN, 5, 4],
        [FIRST_TOKEN, 2**63],
    ],
    ids=repr,
)
def test_starts_that_do_not_tile_the_tokens_are_refused(starts: Any) -> None:
    with pytest.raises(InvalidLayout):
        Lookup(starts)
