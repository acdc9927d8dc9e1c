"""What does a replica's log know of itself?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.core.effects import AdvanceWatermark, TrimLog
from limosa.core.events import HeldReplica
from limosa.core.model.keys import WHOLE
from limosa.core.model.rows import Entry
from limosa.core.participant.held import Held
from limosa.core.producers import Applied
from tests.core.samples import A, P

EACH_BYTES = Entry(1, 0, None, "x", 1).bytes


def held_with(*positions: int, first: int = 0) -> Held:
    held = Held(P, A)
    held.first = held.last = held.durable = first
    previous = first
    for at in positions:
        held.append(Entry(at, previous, None, "x", at))
        previous = at
    held.durable = held.last
    return held


@given(st.sets(st.integers(10, 40)), st.integers(0, 50))
def test_the_nearest_position_is_the_last_that_is_not_behind(
    positions: set[int], asked: int
) -> None:
    held = held_with(*sorted(positions), first=9)
    known = [at for at in (9, *sorted(positions)) if at <= asked]
    assert held.nearest(asked) == (known[-1] if known else None)


def test_a_replica_that_restarts_has_its_log_epoch_and_watermark_and_nothing_else() -> None:
    achieved = (("x", 0, ((2, (Applied(WHOLE, 12),)),)),)
    stored = HeldReplica(P, A, 3, 2, 10, 11, ((11, 70), (12, 80)), achieved)
    held = Held.restored(stored)
    assert (held.epoch, held.epoch_durable, held.begun, held.matched) == (3, 3, 2, 0)
    assert (held.first, held.last, held.durable, held.watermark) == (10, 12, 12, 11)
    assert held.producers.applied("x", 2)
    assert (held.positions, held.sizes, held.bytes) == ([11, 12], [70, 80], 150)
    assert (held.after(11, 1000), held.after(12, 1000)) == (None, ())


def test_a_cut_log_forgets_entries_producers_and_what_was_on_its_way() -> None:
    held = held_with(1, 2, 3)
    held.appending[7] = (50, 3)
    held.truncate(2)
    assert (held.last, held.durable, held.positions) == (2, 2, [1, 2])
    assert held.producers.applied("x", 3) == ()
    assert held.stored(7)
    assert held.durable == 2


def test_what_becomes_durable_after_a_new_beginning_is_not_the_old_log() -> None:
    held = held_with(1, 2, 3)
    held.appending[7] = (50, 3)
    held.landed["s", 2] = {0}
    held.begin(2, epoch=5)
    assert (held.first, held.last, held.durable, held.watermark, held.begun) == (2, 2, 2, 2, 5)
    assert held.landed == {}
    assert held.stored(7)
    assert held.durable == 2
    assert not held.stored(99)


@pytest.mark.parametrize(
    ("kept", "watermark", "durable", "first"),
    [(1, 9, 9, 4), (2, 9, 9, 3), (3, 9, 9, 0), (1, 2, 9, 2), (1, 9, 1, 1), (1, 0, 9, 0)],
    ids=["all but one", "all but two", "short enough", "uncommitted", "not durable", "none"],
)
def test_only_committed_and_durable_entries_are_let_go_of(
    kept: int, watermark: int, durable: int, first: int
) -> None:
    held = held_with(1, 2, 3, 4, 5)
    held.watermark, held.durable = watermark, durable
    trimmed = held.trim(kept, 10**6)
    assert held.first == first
    assert trimmed == ([TrimLog(P, "first", 0, first)] if first else [])
    assert held.positions == [at for at in (1, 2, 3, 4, 5) if at > first]


@pytest.mark.parametrize(
    ("bytes_kept", "watermark", "first"),
    [(5, 9, 0), (4, 9, 3), (2, 9, 4), (0, 9, 4), (4, 2, 2), (0, 0, 0)],
    ids=["just enough", "half", "little", "the last stays", "uncommitted", "nothing committed"],
)
def test_a_log_of_too_many_bytes_is_let_go_of_by_half(
    bytes_kept: int, watermark: int, first: int
) -> None:
    held = held_with(1, 2, 3, 4, 5)
    held.watermark = watermark
    held.trim(100, bytes_kept * EACH_BYTES)
    assert held.first == first
    assert held.positions == [at for at in (1, 2, 3, 4, 5) if at > first]
    assert held.bytes == sum(held.sizes) == held.recent_bytes == len(held.recent) * EACH_BYTES
    assert [entry.at for entry in held.recent] == held.positions


def test_only_the_end_of_the_log_is_kept_with_its_rows() -> None:
    held = Held(P, A, recent_bytes_max=3 * EACH_BYTES)
    for at in range(1, 8):
        held.append(Entry(at, at - 1, None, "x", at))
    assert [entry.at for entry in held.recent] == [5, 6, 7]
    assert held.after(3, 1000) is None
    for position, found in ((4, (5, 6, 7)), (6, (7,)), (7, ()), (9, ())):
        entries = held.after(position, 1000)
        assert entries is not None
        assert tuple(entry.at for entry in entries) == found
    held.recent_bytes_max = 1
    held.append(Entry(8, 7, None, "x", 8))
    assert [entry.at for entry in held.recent] == [8]
    assert held.recent_bytes == EACH_BYTES


@pytest.mark.parametrize(("bytes_max", "count"), [(0, 1), (1, 1), (2, 2), (3, 3), (99, 3)])
def test_so_many_bytes_are_sent_at_once_and_one_entry_at_least(bytes_max: int, count: int) -> None:
    entries = held_with(1, 2, 3, 4).after(1, bytes_max * EACH_BYTES)
    assert entries is not None
    assert [entry.at for entry in entries] == [2, 3, 4][:count]


def test_a_log_that_is_cut_deeper_than_what_is_recent_has_nothing_recent() -> None:
    held = Held(P, A, recent_bytes_max=1)
    for at in (1, 2, 3):
        held.append(Entry(at, at - 1, None, "x", at))
    held.truncate(1)
    assert (list(held.recent), held.recent_bytes, held.bytes) == ([], 0, EACH_BYTES)
    assert held.after(0, 1000) is None
    held.append(Entry(9, 1, None))
    assert held.after(1, 1000) == (Entry(9, 1, None),)


def test_the_watermark_stops_where_a_digest_is_wanted() -> None:
    held = held_with(1, 2, 3)
    held.check = ("s", 2)
    assert held.advance(1) == [AdvanceWatermark(P, "first", 0, 1, False)]
    assert held.advance(3) == [
        AdvanceWatermark(P, "first", 0, 2, True),
        AdvanceWatermark(P, "first", 0, 3, False),
    ]
    assert held.advance(3) == []


def test_a_digest_of_the_past_is_not_taken() -> None:
    held = held_with(1, 2, 3)
    held.watermark = 3
    held.check = ("s", 2)
    assert held.advance(3) == []


def test_the_oldest_work_is_what_a_barrier_waits_for() -> None:
    held = held_with(1)
    assert held.oldest_work(None) is None
    held.appending[1] = (52, 1)
    held.appending[2] = (51, 2)
    held.permits[3] = "s"
    assert held.oldest_work("s") == 51
    assert held.oldest_work("another") == 0
    assert held.oldest_work(None) == 0


def test_a_digest_is_wanted_once_and_not_of_what_is_past() -> None:
    """A wish that can't be met any more would be waited for, for ever."""
    held = Held(P, A)
    held.watermark = 5
    wished = []
    for position in (4, 5):
        held.wish(("s", position))
        wished.append(held.checking)
    assert wished == [None, 5]
    assert [step.digest for step in held.advance(5)] == [True]
    assert held.advance(5) == []
    held.check = None
    held.wish(("s", 5))
    assert held.checking is None
