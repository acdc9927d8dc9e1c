"""Which segments are merged, which tombstones go, and does it ever end?"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.core.model.keys import WHOLE, TokenRange
from limosa.storage import compaction
from limosa.storage.compaction import (
    NEW_OF_A_SIZE,
    STREAM_SEGMENTS,
    WAITING_DEPTH_MAX,
    Job,
    as_neighbours,
    can_wait,
    oldest_beside,
    plan,
    replaced,
    without_collected,
)
from limosa.storage.memtable import Memtable
from limosa.storage.segment import Segment, write_segment
from limosa.storage.view import GOING, NEW, SETTLED, Ranged, TableView, overlap
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import Batch
from tests.storage.faulty_files import Moment, Operation, nothing_happens
from tests.storage.medium import MediumFiles
from tests.storage.samples import (
    BIRDS,
    LEFT,
    RIGHT,
    SONGS,
    TINY,
    Hand,
    Host,
    birds,
    gone,
    in_view,
    small_pieces,
    songs,
    table_digest,
    versioned,
)

ROOMY = StorageSettings()


def segment(
    batch: Batch,
    level: int = NEW,
    token_range: TokenRange = WHOLE,
    name: str = "s",
    offset: int = 0,
) -> Ranged:
    files = MediumFiles()
    order = np.argsort(batch.tokens, kind="stable")
    assert write_segment(files, name, batch.table, [batch.take(order)])
    return Ranged(name, level, token_range, offset, Segment(files, name))


def some_birds(count: int, version: int = 1, start: int = 0) -> Batch:
    rows = birds(*((f"bird {number}", number) for number in range(start, start + count)))
    return versioned(rows, [version] * count)


def view_of(*segments: Ranged) -> TableView:
    return TableView(BIRDS, segments=segments)


# ------------------------------------------------------------------------------------- plans


def test_nothing_is_done_without_a_reason() -> None:
    assert plan(view_of(), 0, 1000) is None
    assert plan(view_of(segment(some_birds(10))), 0, 1000) is None
    assert plan(view_of(segment(some_birds(10), SETTLED)), 0, 1000, full=True) is None


def test_new_segments_that_are_not_much_smaller_are_swept() -> None:
    new = [segment(some_birds(10)), segment(some_birds(10, 2))]
    settled = segment(some_birds(15), SETTLED)
    job = plan(view_of(settled, *new), 0, 10**6)
    assert job == Job((*new, settled), WHOLE, SETTLED, is_sweep=True)


def test_few_new_rows_wait_beside_many_settled_ones() -> None:
    new = [segment(some_birds(2)), segment(some_birds(2, 2))]
    settled = segment(some_birds(500), SETTLED)
    assert plan(view_of(settled, *new), 0, 10**6) is None
    job = plan(view_of(settled, *new), 0, 10**6, full=True)
    assert job is not None
    assert job.is_sweep


def test_many_new_ones_of_a_size_are_united() -> None:
    new = [segment(some_birds(2, version)) for version in range(NEW_OF_A_SIZE)]
    settled = segment(some_birds(2000), SETTLED)
    assert plan(view_of(settled, *new), 0, 10**6) == Job(tuple(new), WHOLE, NEW)


def test_a_sweep_that_was_begun_goes_on_before_all_else() -> None:
    going = segment(some_birds(10), GOING, RIGHT)
    settled = segment(some_birds(1000), SETTLED, LEFT)
    job = plan(view_of(settled, going), 0, 10**6)
    assert job == Job((going,), RIGHT, SETTLED, is_sweep=True)


def test_a_segment_of_which_little_counts_is_written_anew() -> None:
    quarter = TokenRange(WHOLE.start, WHOLE.start // 2)
    job = plan(view_of(segment(some_birds(100), SETTLED, quarter)), 0, 10**6)
    assert job is not None
    assert (job.range, job.level) == (quarter, SETTLED)


@pytest.mark.parametrize(
    ("collected", "beside", "is_shed"), [(9, 0, False), (10, 0, True), (10, 5, False)]
)
def test_a_segment_of_dead_tombstones_is_written_anew(
    collected: int, beside: int, is_shed: bool
) -> None:
    dead = versioned(gone(*(f"bird {number}" for number in range(10))), [10] * 10)
    segments = [segment(dead, SETTLED)]
    if beside:
        segments.append(segment(some_birds(1, beside), NEW))
    assert (plan(view_of(*segments), collected, 10**6) is not None) == is_shed


def test_a_stream_joins_neighbours_that_fit_into_a_piece() -> None:
    def records(count: int) -> list[Ranged]:
        return [segment(versioned(songs(("a", n)), [n + 1]), offset=n) for n in range(count)]

    few, many = records(STREAM_SEGMENTS - 1), records(STREAM_SEGMENTS + 3)
    assert plan(TableView(SONGS, segments=tuple(few)), 0, 10**6) is None
    job = plan(TableView(SONGS, segments=tuple(many)), 0, 10**6)
    assert job is not None
    assert job.inputs == tuple(many[:STREAM_SEGMENTS])
    assert plan(TableView(SONGS, segments=tuple(many)), 0, 10) is None


# ------------------------------------------------------------------------------------- tombstones


def test_a_tombstone_stays_while_something_older_lies_beside() -> None:
    dead = versioned(gone("a", "b", "c"), [3, 5, 7])
    kept = without_collected(dead, collected=6, oldest=5)
    assert kept.versions is not None
    assert kept.versions.tolist() == [5, 7]
    assert len(without_collected(dead, collected=9, oldest=2**62)) == 0
    assert without_collected(dead, collected=2, oldest=2**62) is dead
    rows = some_birds(3)
    assert without_collected(rows, collected=9, oldest=2**62) is rows


def test_the_oldest_beside_is_of_the_range_and_not_of_the_inputs() -> None:
    one = segment(some_birds(20, 1), token_range=LEFT)
    other = segment(some_birds(20, 5), token_range=LEFT)
    memory = Memtable.of(some_birds(20, 7))
    view = TableView(BIRDS, segments=(one, other), memtables=(memory,))
    assert oldest_beside(view, (one,), LEFT) == 5
    assert oldest_beside(view, (one, other), LEFT) == 7
    assert oldest_beside(view, (one, other, memory), LEFT) == 2**62
    assert oldest_beside(view, (), RIGHT) == 7


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_an_older_row_never_comes_back_whatever_is_merged_first(
    order: tuple[int, int, int],
) -> None:
    """A row, its newer version and its tombstone come in any order, in segments of their own."""
    host = Host(ROOMY)
    hand = host.hand()
    batches = [
        versioned(birds(("wren", 1)), [10]),
        versioned(birds(("wren", 2)), [20]),
        versioned(gone("wren"), [30]),
    ]
    hand.put(birds(*((f"bird {number}", number) for number in range(300))))
    host.compact()
    for number in order:
        hand.apply_slice(batches[number])
        host.flush()
        host.maintenance.step()
    hand.collect(hand.last)
    for act in (host.flush, host.maintenance.step, host.compact, host.kill):
        act()
        assert "wren" not in in_view(host.view())
        assert host.view().get(BIRDS, ("wren",)) is None
    assert all(
        ranged.segment.index.tombstones == 0 for ranged in host.view().tables["birds"].segments
    ), "it is gone for good"


def test_a_tombstone_is_kept_as_long_as_it_is_not_collected() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    deleted = hand.put(gone("wren"))
    host.compact()
    assert table_digest(host.view(), BIRDS).count == 1
    hand.apply_slice(versioned(birds(("wren", 1)), [deleted - 1]))
    assert in_view(host.view()) == {}
    host.compact()
    assert in_view(host.view()) == {}


# ------------------------------------------------------------------------------------- afterwards


def test_a_sweep_leaves_the_rest_of_new_segments_to_the_next_piece() -> None:
    new, settled, late = (
        segment(some_birds(10), NEW),
        segment(some_birds(10), SETTLED, LEFT),
        segment(some_birds(10)),
    )
    made = segment(some_birds(10), SETTLED, LEFT, "made")
    job = Job((new, settled), LEFT, SETTLED, is_sweep=True)
    found = replaced(view_of(settled, new, late), job, [made])
    assert [(each.file, each.level, each.range) for each in found] == [
        ("made", SETTLED, LEFT),
        ("s", GOING, RIGHT),
        ("s", NEW, WHOLE),
    ]
    assert found[1].segment is new.segment
    assert found[2] is late


def test_what_was_made_of_a_streams_segments_is_where_they_were() -> None:
    each = [segment(versioned(songs(("a", n)), [n + 1]), offset=n, name=f"{n}") for n in range(4)]
    made = segment(versioned(songs(("a", 1), ("a", 2)), [2, 3]), offset=1, name="made")
    job = Job((each[1], each[2]), WHOLE, NEW)
    found = replaced(TableView(SONGS, segments=tuple(each)), job, [made])
    assert [ranged.file for ranged in found] == ["0", "made", "3"]
    assert [r.file for r in replaced(TableView(SONGS, segments=tuple(each)), job, [])] == ["0", "3"]


def test_adopted_segments_stay_settled_only_where_there_is_room() -> None:
    mine = segment(some_birds(10), SETTLED, LEFT)
    right, left = (segment(some_birds(10), SETTLED, half) for half in (RIGHT, LEFT))
    going = segment(some_birds(10), GOING, RIGHT)
    levels = [ranged.level for ranged in as_neighbours([mine], [right, left, going])]
    assert levels == [SETTLED, NEW, NEW]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)), min_size=1, max_size=10),
    st.integers(300, 3000),
    st.booleans(),
)
@settings(max_examples=20)
def test_compaction_ends_and_leaves_settled_segments_that_do_not_overlap(
    puts: list[tuple[int, int]], piece_bytes: int, full: bool
) -> None:
    with small_pieces(3, piece_bytes // 3):
        host = Host(StorageSettings(piece_bytes=piece_bytes))
        hand = host.hand()
        for start, count in puts:
            hand.put(birds(*((f"bird {n}", start) for n in range(start, start + count))))
            hand.put(gone(f"bird {start}"))
            host.flush()
        rows, digest = in_view(host.view()), host.view().digest()
        host.maintain()
        check_levels(host)
        if full:
            host.compact()
            assert all(r.level == SETTLED for r in host.view().tables["birds"].segments)
            assert host.view().tables["birds"].rows == len(rows) + tombstones(host)
        assert (in_view(host.view()), host.view().digest()) == (rows, digest)
        host.kill()
        check_levels(host)
        assert (in_view(host.view()), host.view().digest()) == (rows, digest)


def tombstones(host: Host) -> int:
    view = host.view()
    return table_digest(view, BIRDS).count - view.count(BIRDS)


def check_levels(host: Host) -> None:
    """Settled ones do not overlap, and no more new ones lie about than are allowed to."""
    segments = host.view().tables["birds"].segments
    settled = sorted((r.range for r in segments if r.level == SETTLED), key=lambda h: h.start)
    for one, other in pairwise(settled):
        assert overlap(one, other) is None
    assert not [r for r in segments if r.level == GOING]
    assert compaction.plan(host.view().tables["birds"], 0, host.settings.piece_bytes) is None


def test_what_is_copied_is_merged_later() -> None:
    """What is merged has to be hashed anew, so the comparison would take far longer."""
    host = Host(ROOMY)
    hand = host.hand()
    copied = {"p1"}
    host.maintenance.is_copied = copied.__contains__
    for eggs in range(3 * NEW_OF_A_SIZE):
        hand.put(birds(("wren", eggs), (f"rook {eggs}", eggs)))
        host.flush()
    assert not host.maintenance.step()
    assert len(host.segments()) == 3 * NEW_OF_A_SIZE
    copied.clear()
    assert host.maintenance.step()
    host.maintain()
    assert len(host.segments()) < NEW_OF_A_SIZE


def test_what_is_copied_for_long_is_merged_nevertheless() -> None:
    """Or a copy that never ends would slow reads down for ever."""
    host = Host(ROOMY)
    hand = host.hand()
    host.maintenance.is_copied = lambda partition: True
    for eggs in range(2 * WAITING_DEPTH_MAX):
        hand.put(birds(("wren", eggs)))
        host.flush()
        host.maintain()
        assert len(host.segments()) <= WAITING_DEPTH_MAX


def test_copied_slices_beside_each_other_can_wait() -> None:
    """Many of them, but a read looks at one."""
    slices = 4 * WAITING_DEPTH_MAX
    width = (WHOLE.end - WHOLE.start) // slices
    starts = [WHOLE.start + number * width for number in range(slices)]
    beside = [segment(some_birds(1), NEW, TokenRange(at, at + width)) for at in starts]
    assert can_wait(view_of(*beside))
    over = [segment(some_birds(1, version)) for version in range(WAITING_DEPTH_MAX - 1)]
    assert can_wait(view_of(*over))
    assert not can_wait(view_of(*over, *beside))


def test_every_interrupted_sweep_is_resumed() -> None:
    with small_pieces(3, 300):
        host = Host(TINY)
        hand = host.hand()
        for number in range(6):
            hand.put(birds(*((f"bird {n}", number) for n in range(0, 60, number + 1))))
            host.flush()
        rows = in_view(host.view())
        for _ in range(100):
            done = not host.maintenance.step()
            host.kill()
            assert in_view(host.view()) == rows
            if done:
                break
        else:
            raise AssertionError("it does not come to an end")
        host.compact()
        assert len(host.segments()) > 1
        assert in_view(host.view()) == rows


# ------------------------------------------------------------------------------------- meanwhile


@pytest.mark.parametrize("work", ["flush", "compact"])
@pytest.mark.parametrize("what", ["begin", "discard", "recreate", "commit", "slice", "delete"])
def test_what_comes_at_any_moment_of_maintenance_is_kept(work: str, what: str) -> None:
    """Another thread writes before each single file operation."""
    number, is_over = 0, False
    while not is_over:
        number += 1
        host = Host(ROOMY)
        hand = host.hand()
        for eggs in range(3):
            hand.put(birds(("wren", eggs), ("rook", eggs)), songs(("wren", eggs)))
            if work == "compact":
                host.flush()
        view, rows = host.view(), in_view(host.view())
        expected: dict[str, int] = {}

        def interfere(hand: Hand = hand, expected: dict[str, int] = expected) -> None:
            if what == "begin":
                hand.begin()
            elif what in ("discard", "recreate"):
                hand.discard()
                if what == "recreate":
                    hand.create()
            else:
                expected |= {"wren": 2, "rook": 2}
            if what == "slice":
                hand.apply_slice(versioned(birds(("wren", 9), ("swift", 9)), [1, 1]))
                expected |= {"swift": 9}
            elif what == "delete":
                hand.put(gone("wren"))
                del expected["wren"]
            elif what != "discard":
                hand.put(birds(("robin", 6)), songs(("robin", 6)))
                expected |= {"robin": 6}

        def plan(operation: Operation, moment: Moment, number: int = number) -> None:
            if (operation.number, moment) == (number, "before"):
                interfere()

        host.files.arm(plan)
        replica = host.replica()
        {"flush": host.maintenance.flush, "compact": host.maintenance.compact}[work](replica)
        is_over = len(host.files.trace) < number
        host.files.arm(nothing_happens)
        if is_over:
            continue
        assert in_view(view) == rows, "who looks at it sees no change"
        for act in (host.volume.sync, host.kill, host.maintain, host.kill):
            if what == "discard":
                assert host.volume.replicas == {}
            else:
                assert in_view(host.view()) == expected, number
            act()
    assert number > 9
