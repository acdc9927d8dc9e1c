"""Can a layout or a token range be built wrong?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.core.model.keys import (
    TOKEN_END,
    TOKEN_MIN,
    WHOLE,
    TokenRange,
    epoch_of,
    position,
)
from limosa.core.model.topology import Layout, Zone
from limosa.errors import BadInput, InvalidLayout

BOUNDS = st.integers(TOKEN_MIN, TOKEN_END)


def refused(error: InvalidLayout, *words: str) -> None:
    """An error of the drawn tree, that says where and what to do."""
    assert isinstance(error, BadInput)
    assert error.definite
    assert error.advice
    for word in words:
        assert word in error.message


@pytest.mark.parametrize(
    ("starts", "partitions", "words"),
    [
        ((), (), ("0 starts for 0 partitions",)),
        ((TOKEN_MIN, 0), ("p",), ("2 starts for 1 partitions",)),
        ((-5,), ("p",), ("below -5",)),
        ((TOKEN_MIN, 7, 7), ("p", "q", "r"), ("q overlaps", "token 7")),
        ((TOKEN_MIN, 7, 3), ("p", "q", "r"), ("q overlaps", "token 3")),
        ((TOKEN_MIN, TOKEN_END), ("p", "q"), ("q overlaps", str(TOKEN_END))),
        ((TOKEN_MIN, 0), ("p", "p"), ("named twice",)),
    ],
)
def test_a_layout_that_does_not_tile_the_tokens_can_not_be_built(
    starts: tuple[int, ...], partitions: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidLayout) as caught:
        Layout("z", 1, starts, partitions)
    refused(caught.value, *words)


@given(st.sets(st.integers(TOKEN_MIN + 1, TOKEN_END - 1), max_size=20), BOUNDS)
def test_every_token_lies_in_exactly_one_range_of_a_layout(more: set[int], token: int) -> None:
    starts = (TOKEN_MIN, *sorted(more))
    layout = Layout("z", 1, starts, tuple(f"p{n}" for n in range(len(starts))))
    holding = [n for n in range(len(starts)) if layout.range_of(n).holds(token)]
    assert len(holding) == (1 if token < TOKEN_END else 0)


@given(BOUNDS, BOUNDS)
def test_a_range_holds_its_start_but_not_its_end_or_does_not_exist(start: int, end: int) -> None:
    if start < end:
        held = TokenRange(start, end)
        assert held.holds(start)
        assert held.holds(end - 1)
        assert not held.holds(end)
        assert not held.holds(start - 1)
    else:
        with pytest.raises(InvalidLayout) as caught:
            TokenRange(start, end)
        refused(caught.value, f"[{start}, {end})")


@pytest.mark.parametrize(("start", "end"), [(TOKEN_MIN - 1, 0), (0, TOKEN_END + 1)])
def test_a_range_beyond_the_tokens_does_not_exist(start: int, end: int) -> None:
    with pytest.raises(InvalidLayout) as caught:
        TokenRange(start, end)
    refused(caught.value, "is not a range of tokens")


def test_the_whole_range_holds_every_token() -> None:
    assert WHOLE.holds(TOKEN_MIN)
    assert WHOLE.holds(TOKEN_END - 1)


@given(st.integers(0, 2**20), st.integers(0, 2**40 - 1))
def test_a_position_orders_by_epoch_and_then_by_counter(epoch: int, counter: int) -> None:
    assert epoch_of(position(epoch, counter)) == epoch
    assert position(epoch + 1, 0) > position(epoch, counter)


@pytest.mark.parametrize(
    ("replicas", "min_in_sync", "needed"), [(1, 0, 1), (2, 0, 2), (3, 0, 2), (5, 0, 3), (3, 1, 1)]
)
def test_a_zone_needs_a_majority_in_sync_unless_it_says_otherwise(
    replicas: int, min_in_sync: int, needed: int
) -> None:
    assert Zone("z", replicas, min_in_sync).needed_in_sync() == needed
