"""Do copied rows get past the log whole, in the files they belong to, and without harm if late?"""

import errno
from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pytest

from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, WHOLE, TokenRange
from limosa.errors import BadInput, UnusableFile, VolumeFailed
from limosa.storage.view import NEW, SETTLED
from limosa.tabular.rows import Batch, Bundle
from tests.storage.faulty_files import Moment, Operation, fails, nothing_happens
from tests.storage.samples import (
    BIRDS,
    LEFT,
    NESTS,
    RIGHT,
    Hand,
    Host,
    batch_of,
    birds,
    gone,
    in_view,
    versioned,
)

MANY = 40


def copied(count: int = MANY, version: int = 5, held: TokenRange = WHOLE) -> Batch:
    """As a source gives them: of a range, by token."""
    batch = versioned(birds(*((f"bird {n}", n) for n in range(count))), [version] * count)
    batch = batch.where(batch.in_range(held))
    return batch.take(batch.tokens.argsort())


def shelve(
    host: Host,
    *batches: Batch,
    held: TokenRange = WHOLE,
    least: int = 0,
    digest: int | None = None,
    collected: int = 0,
) -> Bundle:
    rows = [Bundle(batches)]
    found = sum(each.digest() for each in rows) if digest is None else digest
    return host.maintenance.shelve(host.replica(), rows, held, found, collected, least)


def levels(host: Host) -> list[int]:
    return [ranged.level for ranged in host.view().tables["birds"].segments]


def test_copied_rows_rest_at_once_and_survive_the_power() -> None:
    host = Host()
    host.hand()
    assert len(shelve(host, copied())) == 0
    assert in_view(host.view()) == {f"bird {n}": n for n in range(MANY)}
    assert levels(host) == [SETTLED]
    assert host.replica().memory_bytes == 0
    host.lose_power()
    assert in_view(host.view()) == {f"bird {n}": n for n in range(MANY)}


def test_an_older_copied_row_does_not_replace_a_newer_one() -> None:
    host = Host()
    hand = host.hand()
    hand.put(birds(("bird 1", 100)))
    shelve(host, copied(version=hand.last - 1))
    assert in_view(host.view())["bird 1"] == 100
    host.compact()
    assert in_view(host.view())["bird 1"] == 100


def test_slices_settle_beside_each_other_and_a_second_copy_does_not() -> None:
    """Copying again changes nothing but the files; a merge makes one of both."""
    host = Host()
    host.hand()
    for held in (RIGHT, LEFT):
        shelve(host, copied(held=held), held=held)
    assert levels(host) == [SETTLED, SETTLED]
    digest = host.view().digest()
    shelve(host, copied(held=LEFT), held=LEFT)
    assert levels(host) == [SETTLED, SETTLED, NEW]
    assert host.view().digest() == digest
    host.compact()
    assert host.view().digest() == digest
    assert in_view(host.view()) == {f"bird {n}": n for n in range(MANY)}


def test_rows_of_several_orders_go_to_a_segment_each() -> None:
    """What is settled at the source, and then what is newer there."""
    host = Host()
    host.hand()
    shelve(host, copied(), copied(10, version=6))
    assert levels(host) == [SETTLED, NEW]
    found = host.view().find(BIRDS, ("bird 3",))
    assert found is not None
    assert found.version == 6


def test_few_rows_are_given_back() -> None:
    host = Host()
    host.hand()
    few = copied(2, version=6)
    left = shelve(host, copied(), few, least=few.bytes + 1)
    assert left.batches == (few,)
    assert levels(host) == [SETTLED]
    left = shelve(host, few, least=few.bytes + 1)
    assert left.batches == (few,)
    assert levels(host) == [SETTLED], "no file was made for nothing"


def test_rows_of_several_tables_and_in_no_order_rest_too() -> None:
    host = Host()
    host.hand()
    shuffled = copied().take(copied().tokens.argsort()[::-1].copy())
    nests = versioned(batch_of(NESTS, [(1, 2.0), (2, 3.0)]), [4, 4])
    shelve(host, shuffled, nests.take(nests.tokens.argsort()))
    assert len(in_view(host.view())) == MANY
    assert len(in_view(host.view(), NESTS)) == 2


@pytest.mark.parametrize("held", [LEFT, RIGHT])
def test_rows_outside_of_their_slice_are_refused(held: TokenRange) -> None:
    host = Host()
    host.hand()
    with pytest.raises(BadInput, match="are outside their slice"):
        shelve(host, copied(), held=held)
    assert in_view(host.view()) == {}


def test_rows_with_another_digest_are_not_taken_in() -> None:
    """F102: it is worked out of what lies in the file, so the way and the writing are checked."""
    host = Host()
    host.hand()
    with pytest.raises(BadInput, match="digest"):
        shelve(host, copied(), digest=1)
    assert in_view(host.view()) == {}
    assert host.segments() == [], "and nothing is left behind"
    shelve(host, copied())
    assert len(in_view(host.view())) == MANY


def test_a_full_disk_takes_nothing_in_and_leaves_nothing_behind() -> None:
    host = Host()
    host.hand()
    host.flush()
    host.files.arm(fails("append copy segment", errno.ENOSPC))
    with pytest.raises(VolumeFailed, match="No space"):
        shelve(host, copied())
    host.files.arm(nothing_happens)
    assert host.segments() == []
    shelve(host, copied())
    assert len(in_view(host.view())) == MANY


def test_rows_from_before_a_collection_are_refused() -> None:
    """Whatever held them up: a tombstone that hides one of them may be gone by now."""
    host = Host()
    hand = host.hand()
    hand.put(birds(("bird 1", 1), ("bird 2", 2)))
    old = versioned(birds(("bird 1", 1)), [hand.last])
    at = hand.put(gone("bird 1"))
    hand.collect(at)
    host.compact()
    with pytest.raises(BadInput, match="were collected since"):
        shelve(host, old)
    assert set(in_view(host.view())) == {"bird 2"}
    shelve(host, copied(held=LEFT, version=hand.last), held=LEFT, collected=at)


def test_a_manifest_that_does_not_fit_leaves_nothing_behind() -> None:
    host = Host()
    host.hand()
    host.flush()
    host.files.arm(fails("append manifest", errno.ENOSPC, times=3))
    for _ in range(3):
        with pytest.raises(VolumeFailed, match="No space"):
            shelve(host, copied())
        assert host.segments() == []
    shelve(host, copied())
    assert len(host.segments()) == len(host.view().tables["birds"].segments) == 1


def test_a_manifest_that_is_there_keeps_its_files_whatever_fails_after_it() -> None:
    host = Host()
    host.hand()
    host.flush()
    host.files.arm(fails("replace manifest", errno.ENOSPC, moment="after"))
    with pytest.raises(VolumeFailed, match="No space"):
        shelve(host, copied())
    assert len(host.segments()) == 1
    host.lose_power()
    assert len(in_view(host.view())) in (0, MANY)
    assert host.volume.refused == {}


def test_rows_for_a_replica_that_is_gone_are_refused() -> None:
    host = Host()
    hand = host.hand()
    replica = host.replica()
    hand.discard()
    with pytest.raises(BadInput, match="is gone"):
        host.maintenance.shelve(replica, [Bundle([copied()])], WHOLE, copied().digest(), 0, 0)


@pytest.mark.parametrize("label", ["append copy segment", "replace manifest"])
def test_what_is_written_meanwhile_stays(label: str) -> None:
    """Dual writes go on while a slice is stored."""

    def plan(operation: Operation, moment: Moment) -> None:
        if operation.label == label and moment == "after" and hand.counter < 3:
            hand.put(birds((f"bird {hand.counter}", 1000)))

    host = Host()
    hand = host.hand()
    hand.put(birds(("before", 1)))
    host.flush()
    host.files.arm(plan)
    shelve(host, copied(version=1))
    host.files.arm(nothing_happens)
    rows = in_view(host.view())
    assert len(rows) == MANY + 1
    assert 1000 in rows.values()
    host.volume.sync()
    host.lose_power()
    assert in_view(host.view()) == rows


def test_a_replica_that_begins_anew_meanwhile_is_flushed_first() -> None:
    def plan(operation: Operation, moment: Moment) -> None:
        if operation.label == "append copy segment" and not begun:
            begun.append(True)
            hand.begin()

    host = Host()
    hand = host.hand()
    hand.put(birds(("before", 1)))
    begun: list[bool] = []
    host.flush()
    host.files.arm(plan)
    shelve(host, copied())
    assert set(in_view(host.view())) == {f"bird {n}" for n in range(MANY)}


# --- at the source


def told(host: Host, up_to: int, held: TokenRange = WHOLE) -> dict[str, list[int]]:
    """The versions that a copy gets of each key, in their order."""
    found: dict[str, list[int]] = {}
    for batch in host.view().copied(BIRDS, held, up_to):
        assert batch.versions is not None
        for row, version in enumerate(batch.versions.tolist()):
            found.setdefault(batch.key(row)[0], []).append(version)
    return found


def puts(hand: Hand, *names: Sequence[str]) -> list[int]:
    return [hand.put(birds(*((name, 1) for name in some))) for some in names]


def test_what_is_settled_is_given_as_it_lies_and_then_what_is_newer() -> None:
    host = Host()
    hand = host.hand()
    first, second = puts(hand, ["a", "b", "c"], ["c", "d"])
    host.compact()
    (third,) = puts(hand, ["a", "e"])
    expected = {"a": [first, third], "b": [first], "c": [second], "d": [second], "e": [third]}
    assert told(host, third) == expected
    host.flush()
    assert told(host, third) == expected
    halves = [told(host, third, held) for held in (LEFT, RIGHT)]
    assert {**halves[0], **halves[1]} == expected
    assert not set(halves[0]) & set(halves[1])


def test_what_was_written_since_may_be_left_out() -> None:
    host = Host()
    hand = host.hand()
    (first,) = puts(hand, ["a", "b"])
    host.compact()
    puts(hand, ["a", "c"])
    assert told(host, first) == {"a": [first], "b": [first]}


def test_a_collected_tombstone_does_not_give_back_what_it_hides() -> None:
    """The row still lies in a segment, and nobody would send its tombstone along."""
    host = Host()
    hand = host.hand()
    puts(hand, ["a", "b"])
    host.compact()
    at = hand.put(gone("a"))
    hand.collect(at)
    assert list(told(host, hand.last)) == ["b"]
    host.flush()
    assert list(told(host, hand.last)) == ["b"]
    hand.put(birds(("c", 1)))
    assert sorted(told(host, hand.last)) == ["b", "c"]


def test_of_a_table_that_is_not_there_nothing_is_given() -> None:
    host = Host()
    host.hand()
    assert list(host.view().copied(BIRDS, WHOLE, 9)) == []


# --- digests


@pytest.mark.parametrize("seed", range(20))
def test_a_digest_is_that_of_all_rows_that_count(seed: int) -> None:
    """However they are spread over files and memory, and however often it is asked for."""
    dice = Random(seed)
    host = Host()
    hand = host.hand()
    for _ in range(12):
        names = [f"bird {dice.randrange(20)}" for _ in range(dice.randrange(1, 9))]
        hand.put(
            dice.choice((birds, birds, _dead))(*((name, dice.randrange(99)) for name in names))
        )
        if dice.random() < 0.15:
            hand.collect(hand.last)
        dice.choice((host.flush, host.compact, host.maintain, lambda: None))()
        view = host.view()
        expected = sum(batch.digest() for batch in view.batches(BIRDS, tombstones=True))
        assert view.digest() == expected
        assert view.digest() == expected, "remembered"


def _dead(*values: tuple[str, int]) -> Batch:
    return gone(*dict(values))


def test_a_digest_notices_what_changed_behind_its_back() -> None:
    """Also in a block that was read, and whose digest is known."""
    host = Host()
    hand = host.hand()
    hand.put(birds(*((f"bird {n}", n) for n in range(MANY))))
    host.compact()
    host.view().digest()
    ranged, *_ = host.view().tables["birds"].segments
    block = ranged.segment.index.blocks[0]
    content = bytearray(ranged.segment._content.to_pybytes())
    content[block.at + block.size // 2] ^= 1
    ranged.segment._content = pa.py_buffer(bytes(content))
    with pytest.raises(UnusableFile, match="checksum"):
        host.view().digest()


def test_the_last_token_belongs_to_the_last_slice() -> None:
    host = Host()
    host.hand()
    whole = TokenRange(TOKEN_MIN, TOKEN_END)
    shelve(host, copied(), held=whole)
    assert len(in_view(host.view())) == MANY
