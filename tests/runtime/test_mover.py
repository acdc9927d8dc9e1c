"""Does a copy get on, whatever became of the others? And is a range divided without a rest?"""

from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from limosa.core.effects import StartCopy
from limosa.core.messages import Denied, Fetch, Landed, Message
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, WHOLE, TokenRange
from limosa.core.model.topology import Replica
from limosa.runtime import mover
from limosa.runtime.mover import AT_ONCE, FORGOTTEN_SECONDS, SLICES, PlainMover, slice_of

TARGET = Replica("n3", "c2")
ASKED_AGAIN_SECONDS = 0.3


@st.composite
def ranges(draw: st.DrawFn) -> TokenRange:
    ends = st.lists(st.integers(TOKEN_MIN, TOKEN_END), min_size=2, max_size=2, unique=True)
    return TokenRange(*sorted(draw(ends)))


def few_tokens() -> st.SearchStrategy[TokenRange]:
    starts = st.integers(TOKEN_MIN, TOKEN_END - 5 * SLICES)
    return st.builds(
        lambda start, length: TokenRange(start, start + length),
        starts,
        st.integers(SLICES, 5 * SLICES),
    )


@given(st.one_of(ranges(), few_tokens(), st.just(WHOLE)), st.sampled_from([1, 2, 3, 16, SLICES]))
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
    assume(length >= SLICES * SLICES)
    for number in range(SLICES):
        part = slice_of(held, number, SLICES)
        assert part.end - part.start <= length // SLICES + SLICES


class Scene:
    """A mover, a clock that the test moves, and what the mover says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(mover, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.sent: list[tuple[str, Message]] = []
        self.said: list[str] = []
        self.mover = PlainMover(
            lambda to, message: self.sent.append((to, message)),
            lambda what, **_: self.said.append(what),
        )

    def fetched_from(self, node: str) -> list[int]:
        """Which slices, in their order."""
        return [
            message.slice for to, message in self.sent if to == node and isinstance(message, Fetch)
        ]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def copy(partition: str, source: str) -> StartCopy:
    return StartCopy(partition, f"s-{partition}@1", 1, Replica(source, "c1"), (TARGET,))


def test_copies_that_nobody_asks_for_any_more_do_not_hold_up_others(scene: Scene) -> None:
    """Their source has died, their sessions are over; a healthy partition waits behind them."""
    for number in range(20):
        scene.mover.begin(copy(f"p{number}", "dead"))
    assert len(scene.fetched_from("dead")) == AT_ONCE
    assert scene.fetched_from("alive") == []
    began = scene.now
    while not scene.fetched_from("alive"):
        scene.now += ASKED_AGAIN_SECONDS
        assert scene.now < began + 2 * FORGOTTEN_SECONDS, "it waits for those that are over"
        scene.mover.begin(copy("q", "alive"))
    assert scene.fetched_from("alive") == list(range(AT_ONCE))
    assert {partition for partition, *_ in scene.mover._tasks} == {"q"}


def test_a_copy_that_is_asked_for_again_and_again_goes_on(scene: Scene) -> None:
    """It takes far longer than what is forgotten."""
    job = copy("p", "n1")
    began = scene.now
    for slice in range(SLICES):
        scene.mover.begin(job)
        assert slice in scene.fetched_from("n1")
        scene.mover.received("n3", Landed("p", job.session, slice))
        scene.now += ASKED_AGAIN_SECONDS
    assert scene.now - began > 2 * FORGOTTEN_SECONDS
    assert set(scene.fetched_from("n1")) == set(range(SLICES))


def test_a_copy_that_was_denied_makes_room_for_the_next(scene: Scene) -> None:
    scene.mover.begin(copy("p", "n1"))
    scene.mover.begin(copy("q", "n2"))
    for slice in range(SLICES):
        scene.mover.received("n1", Denied("p", "s-p@1", slice, "not the owner"))
    assert scene.fetched_from("n2") == list(range(AT_ONCE))
    assert set(scene.said) == {"a copy was denied"}
