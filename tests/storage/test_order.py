"""Are rows put into the order that NumPy's own stable sort would give them?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from limosa.core.model.keys import TOKEN_END, TOKEN_MIN
from limosa.tabular.order import SMALL_ROWS, order_of

ROWS = 4 * SMALL_ROWS

bounds = st.tuples(st.integers(TOKEN_MIN, TOKEN_END - 1), st.integers(TOKEN_MIN, TOKEN_END - 1))


def shuffled(seed: int, low: int, high: int, kinds: int) -> NDArray[np.int64]:
    """Many tokens of a range, of so many different ones."""
    dice = np.random.default_rng(seed)
    some = dice.integers(low, high, kinds, dtype=np.int64, endpoint=True)
    return dice.choice(some, ROWS)


def check(tokens: NDArray[np.int64]) -> None:
    assert order_of(tokens).tolist() == np.argsort(tokens, kind="stable").tolist()


@given(st.integers(0, 2**32), bounds, st.integers(1, 2 * ROWS))
def test_whatever_range_the_tokens_are_of(seed: int, ends: tuple[int, int], kinds: int) -> None:
    check(shuffled(seed, min(ends), max(ends), kinds))


@pytest.mark.parametrize("shift", [0, 1, 31, 32, 33])
def test_tokens_that_differ_in_their_lowest_bits_only(shift: int) -> None:
    """Most of what is sorted by upper bits is not in order yet."""
    tokens = shuffled(1, 0, 1 << 12, ROWS)
    tokens[0], tokens[1] = TOKEN_END - 1, TOKEN_MIN >> shift
    check(tokens)


@pytest.mark.parametrize("runs", [1, 2, 7, 8, 9, 100])
def test_sorted_runs_one_after_the_other(runs: int) -> None:
    pieces = np.array_split(shuffled(1, TOKEN_MIN, TOKEN_END - 1, ROWS), runs)
    check(np.concatenate([np.sort(piece) for piece in pieces]))


@pytest.mark.parametrize("rows", [0, 1, 2, SMALL_ROWS - 1, SMALL_ROWS])
def test_few_rows(rows: int) -> None:
    check(shuffled(1, TOKEN_MIN, TOKEN_END - 1, ROWS)[:rows])


def test_rows_that_do_not_lie_side_by_side() -> None:
    check(shuffled(1, TOKEN_MIN, TOKEN_END - 1, ROWS)[::2])
