"""Do rows stay the same when files are shared between replicas?"""

import errno
from itertools import pairwise
from typing import Any

import pytest

from limosa.core.model.keys import WHOLE, TokenRange
from limosa.errors import BadInput, VolumeFailed
from limosa.storage.volume import StorageSettings
from limosa.tabular.digest import Digest
from limosa.tabular.rows import Batch, Bundle
from tests.storage.faulty_files import Moment, Operation, fails
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
    records,
    small_pieces,
    songs,
    table_digest,
    versioned,
)

ROOMY = StorageSettings()


def many(count: int, start: int = 0) -> Batch:
    return birds(*((f"bird {number}", number) for number in range(start, start + count)))


@pytest.fixture
def host() -> Host:
    return Host(ROOMY)


def filled(host: Host) -> Hand:
    """A replica with rows in segments, in memory, deleted ones, and one that is not committed."""
    hand = host.hand("whole")
    hand.put(many(100))
    host.flush("whole")
    hand.put(many(50, start=80))
    hand.put(gone(*(f"bird {number}" for number in range(0, 100, 7))))
    host.compact("whole")
    hand.put(many(10, start=1000))
    hand.append(many(10, start=2000))
    return hand


# ------------------------------------------------------------------------------------- splitting


def test_two_halves_are_the_whole(host: Host) -> None:
    filled(host)
    whole = host.view("whole")
    host.hand("left"), host.hand("right")
    host.adopt("whole", "left", LEFT)
    host.adopt("whole", "right", RIGHT)
    left, right = host.view("left"), host.view("right")
    assert in_view(left) | in_view(right) == in_view(whole)
    assert not in_view(left).keys() & in_view(right).keys()
    assert left.count(BIRDS) + right.count(BIRDS) == whole.count(BIRDS)
    assert table_digest(left, BIRDS) + table_digest(right, BIRDS) == table_digest(whole, BIRDS)
    assert table_digest(left, BIRDS) == table_digest(whole, BIRDS, LEFT)
    assert left.digest() + right.digest() == whole.digest()


def test_a_split_and_a_merge_give_the_same_rows(host: Host) -> None:
    filled(host)
    whole = host.view("whole")
    for name, held in (("left", LEFT), ("right", RIGHT), ("again", WHOLE)):
        host.hand(name)
        if held != WHOLE:
            host.adopt("whole", name, held)
    host.compact("left")
    host.adopt("left", "again")
    host.adopt("right", "again")
    assert host.view("again").digest() == whole.digest()
    host.compact("again")
    assert host.view("again").digest() == whole.digest()
    host.kill()
    assert host.view("again").digest() == whole.digest()
    assert in_view(host.view("again")) == in_view(whole)


def test_what_is_not_committed_is_not_adopted(host: Host) -> None:
    hand = host.hand("whole")
    hand.put(birds(("wren", 5)))
    hand.append(birds(("rook", 4)))
    host.hand("copy")
    host.adopt("whole", "copy")
    assert in_view(host.view("copy")) == {"wren": 5}


def test_what_was_committed_since_the_last_flush_is_adopted(host: Host) -> None:
    """Also if the watermark is all that changed, and is not in the log yet."""
    hand = host.hand("whole")
    hand.append(birds(("wren", 5)))
    host.volume.sync()
    host.flush("whole")
    hand.advance()
    host.hand("copy")
    host.adopt("whole", "copy")
    assert in_view(host.view("copy")) == {"wren": 5}


def test_adopting_twice_changes_nothing(host: Host) -> None:
    filled(host)
    host.hand("copy")
    host.adopt("whole", "copy")
    view, segments = host.view("copy"), host.segments("copy")
    host.adopt("whole", "copy")
    assert host.segments("copy") == segments
    assert host.view("copy").digest() == view.digest()
    host.compact("copy")
    host.adopt("whole", "copy")
    assert host.view("copy").digest() == view.digest()
    assert in_view(host.view("copy")) == in_view(view)


def test_newer_rows_of_the_target_stay(host: Host) -> None:
    old = host.hand("old")
    old.put(birds(("wren", 1), ("rook", 1)))
    target = host.hand("new")
    target.store_epoch(2)
    target.put(birds(("wren", 2)), gone("rook"))
    host.adopt("old", "new")
    assert in_view(host.view("new")) == {"wren": 2}
    host.compact("new")
    host.kill()
    assert in_view(host.view("new")) == {"wren": 2}


def test_a_deleted_row_stays_deleted_though_its_tombstone_was_collected_before_the_split(
    host: Host,
) -> None:
    """S77"""
    hand = host.hand("whole")
    hand.put(birds(("wren", 1), ("rook", 1)))
    host.flush("whole")
    deleted = hand.put(gone("wren", "rook"))
    host.flush("whole")
    hand.collect(deleted)
    for name, held in (("left", LEFT), ("right", RIGHT)):
        child = host.hand(name)
        host.adopt("whole", name, held)
        assert in_view(host.view(name)) == {}
        host.compact(name)
        assert in_view(host.view(name)) == {}
        child.collect(deleted)
        host.compact(name)
        assert in_view(host.view(name)) == {}
        assert table_digest(host.view(name), BIRDS) == Digest.EMPTY


def test_what_is_collected_is_collected_in_a_copy_too(host: Host) -> None:
    """Else the digests of two equal replicas differ as long as the tombstone lies there."""
    hand = host.hand("one")
    hand.put(birds(("wren", 1), ("rook", 1)))
    hand.collect(hand.put(gone("wren")))
    host.hand("two")
    host.adopt("one", "two")
    assert host.view("two").collected == host.view("one").collected > 0
    assert host.view("two").digest() == host.view("one").digest()
    host.compact("one")
    assert host.view("two").digest() == host.view("one").digest()


def test_the_other_half_is_no_rows_of_a_half_even_where_its_blocks_are_shared(host: Host) -> None:
    with small_pieces():
        hand = host.hand("whole")
        hand.put(many(30))
        host.hand("left")
        host.adopt("whole", "left", LEFT)
        left = host.view("left")
        inside = {key for key, _ in in_view(host.view("whole")).items() if held_left(key)}
        assert in_view(left).keys() == inside
        assert all(
            (left.get(BIRDS, (key,)) is None) == (key not in inside)
            for key in in_view(host.view("whole"))
        )


def held_left(name: str) -> bool:
    return bool(LEFT.holds(int(birds((name, 0)).tokens[0])))


# ------------------------------------------------------------------------------------- space


def used(host: Host) -> int:
    return 2**50 - host.memory.free_bytes("v1")


def test_adopting_takes_hardly_any_space_and_compaction_gives_it_back(host: Host) -> None:
    hand = host.hand("whole")
    hand.put(many(3000))
    hand.trim(hand.last)
    host.compact("whole")
    before = used(host)
    segment = len(host.memory.read(host.segments("whole")[0]))
    bounds = [WHOLE.start, WHOLE.start // 2, 0, WHOLE.end // 2, WHOLE.end]
    quarters = [TokenRange(start, end) for start, end in pairwise(bounds)]
    for number, held in enumerate(quarters):
        host.hand(f"q{number}")
        host.adopt("whole", f"q{number}", held)
    assert used(host) - before < segment / 10
    hand.discard()
    host.maintenance.step()
    assert host.segments("whole") == []
    assert used(host) - before < segment / 10, "the quarters still need the file"
    for number in range(4):
        host.compact(f"q{number}")
    assert used(host) - before < segment / 10, "they need their own rows only"
    assert sum(host.view(f"q{number}").count(BIRDS) for number in range(4)) == 3000


def test_a_half_sheds_the_other_half_by_itself(host: Host) -> None:
    hand = host.hand("whole")
    hand.put(many(300))
    host.compact("whole")
    small = TokenRange(LEFT.start, LEFT.start // 2)
    host.hand("quarter")
    host.adopt("whole", "quarter", small)
    digest = host.view("quarter").digest()
    assert host.maintain() > 0
    (ranged,) = host.view("quarter").tables["birds"].segments
    assert len(ranged.segment) == host.view("quarter").count(BIRDS) < 150
    assert host.view("quarter").digest() == digest


# ------------------------------------------------------------------------------------- names


def test_a_segment_of_a_replica_that_begins_anew_is_another_one(host: Host) -> None:
    hand = host.hand("whole")
    hand.put(birds(("wren", 1)))
    host.hand("copy")
    host.adopt("whole", "copy")
    hand.begin()
    host.flush("whole")
    host.reopen()
    hand.put(birds(("wren", 2), ("rook", 2)))
    host.adopt("whole", "copy")
    assert in_view(host.view("copy")) == {"wren": 2, "rook": 2}


def test_a_segment_of_a_replica_that_was_made_again_is_another_one(host: Host) -> None:
    hand = host.hand("whole")
    hand.put(birds(("wren", 1)))
    host.hand("copy")
    host.adopt("whole", "copy")
    hand.discard()
    hand.create()
    hand.put(birds(("wren", 2), ("rook", 2)))
    host.adopt("whole", "copy")
    assert in_view(host.view("copy")) == {"wren": 2, "rook": 2}


# ------------------------------------------------------------------------------------- meanwhile


def meanwhile(host: Host, act: Any, label: str) -> list[str]:
    """Something that another thread does at one moment of maintenance."""
    seen: list[str] = []

    def plan(operation: Operation, moment: Moment) -> None:
        if not seen and operation.label.startswith(label) and moment == "before":
            seen.append(operation.label)
            act()

    host.files.arm(plan)
    return seen


@pytest.mark.parametrize("label", ["append flush", "link", "replace manifest", "sync_directory"])
def test_what_the_target_commits_while_it_adopts_is_kept(host: Host, label: str) -> None:
    host.hand("whole").put(birds(("wren", 1)))
    target = host.hand("copy")
    target.put(birds(("robin", 6)))
    seen = meanwhile(host, lambda: target.put(birds(("rook", 4)), songs(("rook", 4))), label)
    host.adopt("whole", "copy")
    assert seen
    expected = {"wren": 1, "robin": 6, "rook": 4}
    assert in_view(host.view("copy")) == expected
    assert records(host.view("copy")) == [("rook", 4)]
    host.flush("copy")
    host.kill()
    assert in_view(host.view("copy")) == expected
    assert records(host.view("copy")) == [("rook", 4)]


@pytest.mark.parametrize("label", ["append flush", "link", "replace manifest", "sync_directory"])
def test_a_target_that_begins_anew_while_it_adopts_has_what_it_adopts(
    host: Host, label: str
) -> None:
    host.hand("whole").put(birds(("wren", 1)))
    target = host.hand("copy")
    target.put(birds(("robin", 6)))
    seen = meanwhile(host, target.begin, label)
    host.adopt("whole", "copy")
    assert seen
    assert in_view(host.view("copy")) == {"wren": 1}
    host.kill()
    assert in_view(host.view("copy")) == {"wren": 1}


@pytest.mark.parametrize("label", ["append flush", "link", "replace manifest", "sync_directory"])
def test_records_that_come_while_a_stream_is_cloned_come_once(host: Host, label: str) -> None:
    source = host.hand("whole")
    source.put(songs(("wren", 1)))
    host.hand("copy")
    seen = meanwhile(host, lambda: source.put(songs(("rook", 2))), label)
    host.adopt("whole", "copy")
    assert seen
    found = records(host.view("copy"))
    assert found in ([("wren", 1)], [("wren", 1), ("rook", 2)])
    assert host.view("copy").next_offset(SONGS) == len(found)
    host.adopt("whole", "copy")
    assert records(host.view("copy")) == [("wren", 1), ("rook", 2)]


def test_a_stream_that_was_cloned_and_joined_is_cloned_again_without_a_change(host: Host) -> None:
    source = host.hand("whole")
    expected = []
    host.hand("copy")
    for number in range(20):
        source.put(songs(("wren", number)))
        expected.append(("wren", number))
        host.flush("whole")
        if number % 9 == 5:
            host.adopt("whole", "copy")
            host.maintain()
    for _ in range(2):
        host.adopt("whole", "copy")
        assert records(host.view("copy")) == expected
        assert host.view("copy").next_offset(SONGS) == 20
        host.compact("copy")
        host.compact("whole")
        assert records(host.view("copy")) == expected
        assert records(host.view("copy"), 13) == expected[13:]
        assert host.view("copy").digest() == host.view("whole").digest()
        host.reopen()


def test_a_stream_is_not_sliced(host: Host) -> None:
    host.hand("whole").put(songs(("wren", 1)))
    host.hand("left")
    with pytest.raises(BadInput, match="songs"):
        host.adopt("whole", "left", LEFT)
    assert host.view("left").next_offset(SONGS) == 0


def test_a_discarded_replica_can_be_no_source_or_target_and_does_no_harm(host: Host) -> None:
    hand = host.hand("whole")
    hand.put(birds(("wren", 1)))
    host.flush("whole")
    other = host.hand("other")
    other.put(birds(("rook", 1)))
    host.flush("other")
    discarded, kept = host.replica("whole"), host.replica("other")
    hand.discard()
    for source, target in ((discarded, kept), (kept, discarded)):
        with pytest.raises(BadInput, match="whole~r1 is gone"):
            host.maintenance.adopt(source, host.maintenance, target)
    host.maintenance.flush(discarded)
    host.maintenance.compact(discarded)
    assert in_view(host.view("other")) == {"rook": 1}
    assert host.segments("whole") == []
    other.put(birds(("robin", 1)))
    host.volume.sync()


# ------------------------------------------------------------------------------------- elsewhere


def test_a_copy_on_another_volume_is_independent() -> None:
    first = Host(ROOMY)
    second = Host(ROOMY, first.memory, "v2")
    filled(first)
    second.hand("copy")
    second.maintenance.adopt(first.replica("whole"), first.maintenance, second.replica("copy"))
    digest = first.view("whole").digest()
    assert second.view("copy").digest() == digest
    Hand(first.write, "whole").discard()
    first.maintain()
    second.compact("copy")
    second.kill()
    assert second.view("copy").digest() == digest


def test_an_adoption_without_room_can_be_tried_again(host: Host) -> None:
    filled(host)
    host.hand("copy").put(birds(("swift", 2)))
    host.files.arm(fails("link flush segment", errno.ENOSPC))
    with pytest.raises(VolumeFailed, match="free disk space"):
        host.adopt("whole", "copy")
    assert in_view(host.view("copy")) == {"swift": 2}
    host.files.arm(lambda operation, moment: None)
    host.adopt("whole", "copy")
    assert in_view(host.view("copy")) == {"swift": 2, **in_view(host.view("whole"))}


def test_an_adoption_that_fails_otherwise_puts_the_volume_out_of_use(host: Host) -> None:
    filled(host)
    host.hand("copy").put(birds(("swift", 2)))
    host.files.arm(fails("link merge segment", errno.EIO))
    with pytest.raises(VolumeFailed, match="v1 failed"):
        host.adopt("whole", "copy")
    with pytest.raises(VolumeFailed, match="v1 failed"):
        host.volume.sync()
    host.lose_power()
    assert in_view(host.view("copy")) == {"swift": 2}


def test_a_copy_by_slices_and_a_copy_by_files_are_the_same(host: Host) -> None:
    filled(host)
    host.hand("linked")
    host.adopt("whole", "linked")
    sliced = host.hand("sliced")
    whole = host.view("whole")
    for held in (RIGHT, LEFT):
        for batch in whole.batches(BIRDS, held, tombstones=True):
            sliced.apply_slice(batch)
    assert host.view("sliced").digest() == host.view("linked").digest() == whole.digest()
    assert Bundle(whole.batches(BIRDS, tombstones=True)).digest() == whole.digest()
    for half in (LEFT, RIGHT):
        of_half = table_digest(whole, BIRDS, half)
        assert table_digest(host.view("sliced"), BIRDS, half) == of_half


def test_many_small_replicas_are_merged_while_maintenance_goes_on() -> None:
    host = Host(TINY)
    with small_pieces():
        expected: dict[str, int] = {}
        for number in range(12):
            hand = host.hand(f"p{number}")
            hand.apply_slice(versioned(many(20, 10 * number), [number + 1] * 20))
            hand.put(many(5, 1000 + number))
            expected |= in_view(host.view(f"p{number}"))
        host.hand("all")
        for number in range(12):
            host.adopt(f"p{number}", "all")
            host.maintain()
        assert in_view(host.view("all")) == expected
        host.compact("all")
        host.kill()
        assert in_view(host.view("all")) == expected
