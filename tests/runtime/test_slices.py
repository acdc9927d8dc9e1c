"""Is a range divided without a rest?"""

from hypothesis import assume, given
from hypothesis import strategies as st

from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, WHOLE, TokenRange
from limosa.protocol.slices import slice_of

MANY = 64


@st.composite
def ranges(draw: st.DrawFn) -> TokenRange:
    ends = st.lists(st.integers(TOKEN_MIN, TOKEN_END), min_size=2, max_size=2, unique=True)
    return TokenRange(*sorted(draw(ends)))


def few_tokens() -> st.SearchStrategy[TokenRange]:
    starts = st.integers(TOKEN_MIN, TOKEN_END - 5 * MANY)
    return st.builds(
        lambda start, length: TokenRange(start, start + length),
        starts,
        st.integers(MANY, 5 * MANY),
    )


@given(st.one_of(ranges(), few_tokens(), st.just(WHOLE)), st.sampled_from([1, 2, 3, 16, MANY]))
def test_slices_are_the_range_without_gap_or_overlap(held: TokenRange, count: int) -> None:
    """A row in no slice would be missing from the copy; one of another range is none of it."""
    assume(held.end - held.start >= count)
    slices = [slice_of(held, number, count) for number in range(count)]
    assert slices[0].start == held.start
    assert slices[-1].end == held.end
    assert [each.end for each in slices[:-1]] == [each.start for each in slices[1:]]


@given(ranges())
def test_slices_of_a_range_are_about_equal(held: TokenRange) -> None:
    """A slice travels in one frame: one that held most of the partition would never arrive."""
    length = held.end - held.start
    assume(length >= MANY * MANY)
    for number in range(MANY):
        part = slice_of(held, number, MANY)
        assert part.end - part.start <= length // MANY + MANY
