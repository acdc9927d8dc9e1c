"""What does a replica's log know of itself?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.core.effects import AdvanceWatermark, TrimLog
from limosa.core.events import HeldReplica
from limosa.core.messages import Read
from limosa.core.model.rows import Entry
from limosa.core.participant.held import Held
from tests.core.samples import A, P


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
    entries = (Entry(11, 10, None, "x", 1), Entry(12, 11, None, "x", 2))
    stored = HeldReplica(P, A, 3, 2, 10, 11, entries, ())
    held = Held.restored(stored)
    assert (held.epoch, held.epoch_durable, held.begun, held.matched) == (3, 3, 2, 0)
    assert (held.first, held.last, held.durable, held.watermark) == (10, 12, 12, 11)
    assert held.producers.applied("x", 2)
    assert held.after(11) == entries[1:]


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
    held.landed.add(("s", 0))
    held.begin(2, epoch=5)
    assert (held.first, held.last, held.durable, held.watermark, held.begun) == (2, 2, 2, 2, 5)
    assert held.landed == set()
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
    trimmed = held.trim(kept)
    assert held.first == first
    assert trimmed == ([TrimLog(P, "first", 0, first)] if first else [])
    assert held.positions == [at for at in (1, 2, 3, 4, 5) if at > first]


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
    held.reads[2] = (51, Read("r", P, 1, 1, 50, ()), "client")
    held.permits[3] = "s"
    assert held.oldest_work("s") == 51
    assert held.oldest_work("another") == 0
    assert held.oldest_work(None) == 0
