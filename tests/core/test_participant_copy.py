"""Does copied data count only whole, under an open session, and once?"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    ApplySlice,
    LinkRows,
    ReadSlice,
    ShelveSlice,
)
from limosa.core.events import DigestTaken, Measured, RowsLinked, SliceRead, SliceShelved
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP_TARGET,
    READ_NEW,
    REBUILD_REPAIR,
    REPAIR,
    STREAMING,
    WRITE_BOTH,
)
from limosa.core.messages import (
    Chunk,
    Denied,
    End,
    Fetch,
    Fetched,
    Landed,
    Link,
    Look,
    Probed,
    Replicate,
)
from limosa.core.model.keys import WHOLE
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.producers import Applied
from tests.core.samples import A, B, C, D, P, moving, stable
from tests.core.stage import (
    ORDINARY,
    Stage,
    done,
    follower_on_stage,
    owner_on_stage,
    replicate,
    rows,
    sent,
    write,
)

SESSION = "t9@3"
ROWS = rows("k", "l", version=5)


def chunk(slice: int = 0, attempt: str = "one", number: int = 0) -> Chunk:
    return Chunk(P, "t9", SESSION, 3, slice, attempt, number, ROWS)


def end(slice: int = 0, slices: int = 1, attempt: str = "one", through: int = 5) -> End:
    return End(P, "t9", SESSION, 3, slice, slices, attempt, len(ROWS), ROWS.digest(), through, ())


def target(
    record: Partition | None = None, base: int = 0, settings: ParticipantSettings = ORDINARY
) -> Stage:
    """The replica that is being filled, begun in this epoch."""
    record = moving(STREAMING) if record is None else record
    stage = follower_on_stage(record, D, settings=settings)
    stage.say(replicate(D, base, how="begin"), "a")
    return stage


# --- the source


def test_a_slice_is_read_from_the_owner_under_its_session() -> None:
    stage = owner_on_stage(moving(STREAMING))
    stage.say(write(), "client")
    fetch = Fetch(P, "first", SESSION, 3, 1, 4)
    (reading,) = done(stage.say(fetch, "mover"), ReadSlice)
    assert (reading.slice, reading.slices) == (1, 4)
    at = stage.owner.held.last
    (fetched,) = sent(stage.tell(SliceRead(reading.ticket, ROWS, at)), Fetched)
    assert (fetched.slice, fetched.slices) == (1, 4)
    assert (fetched.rows, fetched.through) == (ROWS, at)
    assert fetched.producers == (("x", 0, ((1, (Applied(write().range, at),)),)),)


@pytest.mark.parametrize(
    ("record", "fetch"),
    [
        (moving(STREAMING), Fetch(P, "first", "t9@2", 3, 0, 1)),
        (moving(STREAMING), Fetch(P, "first", SESSION, 2, 0, 1)),
        (moving(WRITE_BOTH), Fetch(P, "first", SESSION, 3, 0, 1)),
        (moving(ALLOW), Fetch(P, "first", SESSION, 3, 0, 1)),
        (stable(), Fetch(P, "first", SESSION, 3, 0, 1)),
        (stable(), Fetch("q", "first", SESSION, 3, 0, 1)),
    ],
    ids=["session", "epoch", "too early", "not open yet", "no transition", "no partition"],
)
def test_a_slice_is_denied_outside_an_open_session(record: Partition, fetch: Fetch) -> None:
    stage = owner_on_stage(record)
    effects = stage.say(fetch, "mover")
    assert len(sent(effects, Denied)) == 1
    assert not done(effects, ReadSlice)


def test_a_slice_is_denied_by_whoever_does_not_own() -> None:
    stage = target()
    assert len(sent(stage.say(Fetch(P, "t9", SESSION, 3, 0, 1), "mover"), Denied)) == 1


@pytest.mark.parametrize(("slice", "slices"), [(0, 0), (-1, 4), (4, 4)])
def test_a_slice_that_there_can_not_be_is_denied(slice: int, slices: int) -> None:
    stage = owner_on_stage(moving(STREAMING))
    effects = stage.say(Fetch(P, "first", SESSION, 3, slice, slices), "mover")
    assert len(sent(effects, Denied)) == 1
    assert not done(effects, ReadSlice)


def test_a_slice_that_nobody_waits_for_is_ignored() -> None:
    assert owner_on_stage(moving(STREAMING)).tell(SliceRead(77, ROWS, 5)) == []


# --- the target


def test_a_slice_counts_when_it_is_whole_and_durable() -> None:
    stage = target()
    held = stage.brain.held[P, "t9"]
    assert stage.say(chunk(), "mover") == []
    (applied,) = done(stage.say(end(), "mover"), ApplySlice)
    assert applied.rows == (ROWS,)
    assert stage.copied("t9") is None
    assert held.permits == {applied.ticket: SESSION}
    assert sent(stage.store(), Landed) == [Landed(P, SESSION, 0, 1)]
    assert stage.copied("t9") == SESSION
    assert held.permits == {}


def test_the_copy_is_done_when_every_slice_has_landed() -> None:
    stage = target()
    for number in (1, 0):
        assert stage.copied("t9") is None
        stage.say(chunk(number), "mover")
        stage.say(end(number, slices=2), "mover")
        stage.store()
    assert stage.copied("t9") == SESSION


def test_slices_of_different_numbers_do_not_make_a_whole() -> None:
    """S25, F102: a coordinator's successor may cut the range into another number of slices, under
    the same session; slice 1 of 2 is another range than slice 1 of 3."""
    stage = target()
    for number, slices in ((0, 2), (1, 3), (2, 3)):
        stage.say(chunk(number), "mover")
        stage.say(end(number, slices=slices), "mover")
        stage.store()
        assert stage.copied("t9") is None
    assert stage.status().replicas[P][0].copying == (2, 3)
    stage.say(chunk(0, "two"), "mover")
    assert done(stage.say(end(0, 3, "two"), "mover"), ApplySlice)
    stage.store()
    assert stage.copied("t9") == SESSION
    assert stage.status().replicas[P][0].copying == (3, 3)


def test_the_coordinator_hears_what_is_free_and_what_replicas_take() -> None:
    """With whatever it hears of next; it is not told because of it."""
    stage = target()
    stage.say(Look(0), "coordinator")
    stage.now += 1.0
    assert stage.tell(Measured({"": 500}, {(P, "t9"): (3, 400), (P, "gone"): (1, 1)})) == []
    status = stage.status()
    assert status.free_bytes == {"": 500}
    assert [(each.rows, each.bytes) for each in status.replicas[P]] == [(3, 400)]
    stage = owner_on_stage()
    stage.tell(Measured({}, {(P, "first"): (3, 400)}, {P: (7.0, 8.0)}))
    assert [(each.rows, each.bytes) for each in stage.status().replicas[P]] == [(3, 400)]
    assert [each.rates for each in stage.status().replicas[P]] == [(7.0, 8.0)]


def test_what_comes_after_the_copy_is_whole_is_not_applied() -> None:
    """F102: a slice of a later moment would bring floors of producers that the position of the
    digests does not have."""
    stage = target()
    assert stage.status().replicas[P][0].copying is None
    stage.say(chunk(), "mover")
    stage.say(end(), "mover")
    stage.store()
    stage.say(chunk(1, "two"), "mover")
    effects = stage.say(end(1, 2, "two"), "mover")
    assert sent(effects, Landed) == [Landed(P, SESSION, 1, 2)]
    assert not done(effects, ApplySlice)


@pytest.mark.parametrize(("slice", "slices"), [(2, 2), (-1, 2), (0, 0)])
def test_a_slice_that_there_can_not_be_does_not_land(slice: int, slices: int) -> None:
    stage = target()
    stage.say(chunk(slice), "mover")
    (denied,) = sent(stage.say(end(slice, slices), "mover"), Denied)
    assert denied.why == f"there is no slice {slice} of {slices}"


def test_a_slice_that_landed_already_is_not_applied_again() -> None:
    stage = target()
    stage.say(chunk(), "mover")
    stage.say(end(), "mover")
    stage.store()
    stage.say(chunk(attempt="two"), "mover")
    effects = stage.say(end(attempt="two"), "mover")
    assert sent(effects, Landed) == [Landed(P, SESSION, 0, 1)]
    assert not done(effects, ApplySlice)


def test_a_doubled_chunk_counts_once() -> None:
    """The network may deliver a message twice; the chunks of an attempt are kept by number."""
    stage = target()
    first = replace(chunk(), rows=rows("k", version=5))
    second = replace(chunk(number=1), rows=rows("l", version=5))
    for each in (first, second, first, second):
        assert stage.say(each, "mover") == []
    (applied,) = done(stage.say(end(), "mover"), ApplySlice)
    assert applied.rows == (first.rows, second.rows)
    assert sent(stage.store(), Landed) == [Landed(P, SESSION, 0, 1)]


@pytest.mark.parametrize(
    ("chunks", "change", "why"),
    [
        ((), {}, "rows are missing"),
        ((chunk(attempt="two"),), {}, "rows are missing"),
        ((chunk(), chunk(number=1)), {}, "rows are missing"),
        ((chunk(),), {"count": 1}, "rows are missing"),
        ((chunk(),), {"digest": 1}, "the digest differs"),
        ((chunk(),), {"through": 3}, "the copy is older than where this replica begins"),
    ],
)
def test_a_slice_that_is_not_whole_does_not_count(
    chunks: tuple[Chunk, ...], change: dict[str, int], why: str
) -> None:
    stage = target(base=4)
    for each in chunks:
        stage.say(each, "mover")
    effects = stage.say(replace(end(), **change), "mover")
    assert [denied.why for denied in sent(effects, Denied)] == [why]
    assert not done(effects, ApplySlice)


def test_a_replica_that_was_filled_in_this_epoch_is_repaired_as_any_other() -> None:
    """It is read by now, so half of a batch must not be seen; that it was begun by the same owner
    says nothing any more."""
    stage = target(base=4)
    assert stage.brain.held[P, "t9"].begun == 3
    record = moving(REPAIR, kind="repair", targets=(A, B, D))
    stage.agree(replace(record, replicas=(A, B, D), in_sync=(A, B, D)))
    stage.read_topology()
    stage.say(chunk(), "mover")
    (denied,) = sent(stage.say(end(), "mover"), Denied)
    assert denied.why.startswith("the copy is ahead of this replica")
    stage.brain.held[P, "t9"].watermark = 9
    stage.say(chunk(), "mover")
    assert done(stage.say(end(), "mover"), ApplySlice)


def test_a_repair_does_not_bring_rows_that_are_not_committed_here_yet() -> None:
    stage = follower_on_stage(moving(STREAMING), D)
    stage.say(chunk(), "mover")
    (denied,) = sent(stage.say(end(), "mover"), Denied)
    assert denied.why.startswith("the copy is ahead of this replica")


LATER: dict[str, Callable[[], Partition]] = {
    "given up": lambda: moving(CLEANUP_TARGET),
    "switched": lambda: moving(READ_NEW, epoch=4),
    "a new epoch": lambda: moving(STREAMING, epoch=4),
    "ended": lambda: stable((*moving(STREAMING).replicas[:2], D)),
}


@pytest.mark.parametrize("case", LATER)
def test_chunks_of_a_closed_session_are_denied(case: str) -> None:
    stage = target()
    stage.say(chunk(), "mover")
    stage.agree(LATER[case]())
    for message in (chunk(), end()):
        effects = stage.say(message, "mover")
        assert [denied.why for denied in sent(effects, Denied)] == ["no open session"]
        assert not done(effects, ApplySlice)


@pytest.mark.parametrize("case", LATER)
def test_what_becomes_durable_after_its_session_was_closed_does_not_count(case: str) -> None:
    """And until then the barrier waits for its permit."""
    stage = target()
    stage.say(chunk(), "mover")
    stage.say(end(), "mover")
    stage.agree(LATER[case]())
    assert stage.status().busy == {P: 0}
    assert sent(stage.store(), Landed) == []
    assert stage.brain.held[P, "t9"].copied is None
    assert stage.status().busy == {}


def test_chunks_for_a_replica_that_is_not_here_are_denied() -> None:
    stage = follower_on_stage(moving(STREAMING))
    for message in (chunk(), end()):
        assert len(sent(stage.say(message, "mover"), Denied)) == 1


# --- large slices


LARGE = ParticipantSettings(shelved_bytes=1)


def shelving(stage: Stage) -> ShelveSlice:
    stage.say(chunk(), "mover")
    effects = stage.say(end(), "mover")
    assert not done(effects, ApplySlice)
    (effect,) = done(effects, ShelveSlice)
    return effect


def test_a_large_slice_goes_past_the_log_and_its_producers_follow() -> None:
    """Its rows rest first; then the log says that they are there, and only then has it landed."""
    stage = target(settings=LARGE)
    held = stage.brain.held[P, "t9"]
    effect = shelving(stage)
    assert (effect.slice, effect.slices, effect.rows) == (0, 1, (ROWS,))
    assert effect.digest == ROWS.digest()
    assert held.permits == {effect.ticket: SESSION}
    (applied,) = done(stage.tell(SliceShelved(effect.ticket)), ApplySlice)
    assert applied.rows == ()
    assert held.permits == {applied.ticket: SESSION}
    assert stage.copied("t9") is None, "not durable yet"
    assert sent(stage.store(), Landed) == [Landed(P, SESSION, 0, 1)]
    assert stage.copied("t9") == SESSION


def test_rows_that_are_not_worth_a_file_go_by_the_log() -> None:
    stage = target(settings=LARGE)
    effect = shelving(stage)
    (applied,) = done(stage.tell(SliceShelved(effect.ticket, (ROWS,))), ApplySlice)
    assert applied.rows == (ROWS,)


def test_the_chunks_of_a_slice_stay_in_their_order() -> None:
    """As they came from the source, however the network brought them: in the order of tokens."""
    stage = target(settings=LARGE)
    first, second = rows("k", version=5), rows("l", version=5)
    stage.say(replace(chunk(number=1), rows=second), "mover")
    stage.say(replace(chunk(), rows=first), "mover")
    (effect,) = done(stage.say(end(), "mover"), ShelveSlice)
    assert effect.rows == (first, second)


def test_a_slice_that_was_not_stored_is_denied() -> None:
    stage = target(settings=LARGE)
    effect = shelving(stage)
    effects = stage.tell(SliceShelved(effect.ticket, problem="the disk is full"))
    assert [denied.why for denied in sent(effects, Denied)] == ["the disk is full"]
    assert not done(effects, ApplySlice)
    assert not stage.brain.held[P, "t9"].permits


@pytest.mark.parametrize("case", LATER)
def test_what_rests_after_its_session_was_closed_does_not_count(case: str) -> None:
    """Until then the barrier waits for its permit."""
    stage = target(settings=LARGE)
    effect = shelving(stage)
    stage.agree(LATER[case]())
    assert stage.status().busy == {P: 0}
    assert not done(stage.tell(SliceShelved(effect.ticket)), ApplySlice)
    assert stage.brain.held[P, "t9"].copied is None
    assert stage.status().busy == {}


def test_what_rests_in_a_replica_that_was_emptied_meanwhile_does_not_count() -> None:
    """Nobody knows whether the rows came before or after that."""
    stage = target(settings=LARGE)
    effect = shelving(stage)
    stage.brain.held[P, "t9"].begin(0, 3)
    assert not done(stage.tell(SliceShelved(effect.ticket)), ApplySlice)


def test_a_slice_that_is_on_its_way_is_not_stored_twice() -> None:
    """A slow disk would have more to do because it is slow."""
    stage = target(settings=LARGE)
    effect = shelving(stage)
    stage.say(chunk(attempt="two"), "mover")
    assert stage.say(end(attempt="two"), "mover") == []
    stage.say(chunk(1, "three"), "mover")
    assert done(stage.say(end(1, 2, "three"), "mover"), ShelveSlice), "another one goes its way"
    stage.brain.held[P, "t9"].begin(0, 3)
    stage.say(chunk(attempt="four"), "mover")
    assert done(stage.say(end(attempt="four"), "mover"), ShelveSlice), "it is to be filled anew"
    assert not done(stage.tell(SliceShelved(effect.ticket)), ApplySlice)


def test_the_rows_of_a_repair_go_by_the_log_however_many_they_are() -> None:
    """A repair ends without a barrier, and its replicas are read; a slice that waited for its
    turn would bring back what was deleted and collected since."""
    record = moving(REBUILD_REPAIR, kind="rebuild", targets=(A, B, D))
    stage = follower_on_stage(record, B, settings=LARGE)
    stage.say(replicate(B, 0, how="match", probed=stage.brain.run()), "a")
    stage.brain.held[P, "first"].watermark = 9
    stage.say(replace(chunk(), to="first"), "mover")
    effects = stage.say(replace(end(), to="first"), "mover")
    assert done(effects, ApplySlice)
    assert not done(effects, ShelveSlice)


def test_what_is_durable_in_a_replica_that_was_emptied_since_has_not_landed() -> None:
    stage = target()
    stage.say(chunk(), "mover")
    stage.say(end(), "mover")
    stage.brain.held[P, "t9"].begin(0, 3)
    assert sent(stage.store(), Landed) == []
    assert stage.copied("t9") is None


def test_what_rests_in_a_replica_that_is_gone_does_not_count() -> None:
    stage = target(settings=LARGE)
    effect = shelving(stage)
    del stage.brain.held[P, "t9"]
    assert not done(stage.tell(SliceShelved(effect.ticket)), ApplySlice)
    assert stage.tell(SliceShelved(effect.ticket)) == [], "told twice"


# --- how far a copy must reach


def fetched_up_to(stage: Stage) -> int | None:
    (reading,) = done(stage.say(Fetch(P, "first", SESSION, 3, 0, 1), "mover"), ReadSlice)
    return reading.up_to


def probed(begun: int) -> Probed:
    return Probed(P, D, 3, 0, begun, 1)


def test_a_copy_may_leave_out_what_every_new_replica_was_sent() -> None:
    """What is committed after a new replica's log began is in that log."""
    stage = owner_on_stage(moving(STREAMING))
    assert fetched_up_to(stage) is None, "it was begun by nobody that this owner knows of"
    stage.say(write(), "client")
    stage.store()
    stage.acknowledge(B, C, D)
    base = stage.owner.held.watermark
    assert base
    stage.say(probed(begun=2), "d")
    stage.say(write("w.2", 2, 1), "client")
    stage.store()
    stage.acknowledge(B, C, D)
    assert stage.owner.held.watermark > base
    assert fetched_up_to(stage) == base
    stage.say(probed(begun=3), "d")
    assert fetched_up_to(stage) is None, "another run of it may have let go of some of its log"


def test_a_repair_leaves_nothing_out() -> None:
    """Nor does a copy in a stage that only repairs: the others' logs begin elsewhere."""
    stage = owner_on_stage(moving(STREAMING))
    stage.say(probed(begun=2), "d")
    assert stage.owner.copied_up_to() is not None
    stage.agree(moving(REBUILD_REPAIR, kind="rebuild"))
    assert stage.owner.copied_up_to() is None
    stage.agree(stable())
    assert stage.owner.copied_up_to() is None


def test_a_copy_that_reaches_to_where_the_log_began_is_not_too_old() -> None:
    """Also when much of that log was let go of since then."""
    stage = target(base=4)
    held = stage.brain.held[P, "t9"]
    held.first = 9
    stage.say(chunk(), "mover")
    assert done(stage.say(replace(end(), through=4), "mover"), ApplySlice)


# --- on another volume of the same node

BESIDE = Replica("b", "t9", "v2")
LINK = Link(P, "t9", SESSION, 3, "first")


def volumes(stage_name: str = STREAMING) -> Partition:
    return moving(stage_name, kind="volume_move", targets=(A, BESIDE, C))


def two_volumes(base: int = 0) -> Stage:
    """A follower beside its successor, which was begun in this epoch."""
    stage = follower_on_stage(volumes(ALLOW), B)
    stage.store()
    stage.agree(volumes())
    for replica in (B, BESIDE):
        stage.say(replicate(replica, base, how="begin"), "a")
    stage.store()
    return stage


def test_rows_on_another_volume_are_linked_and_count_once_they_rest() -> None:
    """F107: a volume move copies by naming files again, on its node."""
    stage = two_volumes()
    (linking,) = done(stage.say(LINK, "coordinator"), LinkRows)
    assert (linking.incarnation, linking.source) == ("t9", "first")
    assert not done(stage.say(LINK, "coordinator"), LinkRows), "one at a time"
    (applied,) = done(stage.tell(RowsLinked(linking.ticket, 5)), ApplySlice)
    assert applied.rows == ()
    assert stage.brain.held[P, "t9"].copied is None, "not durable yet"
    stage.store()
    held = stage.brain.held[P, "t9"]
    assert held.copied == SESSION
    assert not held.permits
    assert not done(stage.say(LINK, "coordinator"), LinkRows), "it is there"


def test_producers_follow_linked_rows() -> None:
    stage = two_volumes()
    stage.brain.held[P, "first"].producers.unite((("x", 0, ((1, (Applied(WHOLE, 4),)),)),))
    (linking,) = done(stage.say(LINK, "coordinator"), LinkRows)
    (applied,) = done(stage.tell(RowsLinked(linking.ticket, 5)), ApplySlice)
    assert applied.producers == (("x", 0, ((1, (Applied(WHOLE, 4),)),)),)
    assert stage.brain.held[P, "t9"].producers.applied("x", 1)


@pytest.mark.parametrize(
    "link",
    [
        Link(P, "t9", "t9@2", 3, "first"),
        Link(P, "t9", SESSION, 2, "first"),
        Link(P, "t8", SESSION, 3, "first"),
        Link(P, "t9", SESSION, 3, "gone"),
    ],
    ids=["session", "epoch", "target", "source"],
)
def test_nothing_is_linked_outside_an_open_session(link: Link) -> None:
    """A late call changes nothing."""
    stage = two_volumes()
    assert not done(stage.say(link, "coordinator"), LinkRows)


def test_nothing_is_linked_to_a_replica_that_its_owner_has_not_begun() -> None:
    """What an owner begins, it empties."""
    stage = follower_on_stage(volumes(ALLOW), B)
    stage.store()
    stage.agree(volumes())
    assert not done(stage.say(LINK, "coordinator"), LinkRows)


@pytest.mark.parametrize("when", ["while they are linked", "before they count"])
def test_rows_that_were_linked_before_the_replica_was_emptied_do_not_count(when: str) -> None:
    stage = two_volumes()
    (linking,) = done(stage.say(LINK, "coordinator"), LinkRows)
    held = stage.brain.held[P, "t9"]
    if when == "while they are linked":
        held.begin(0, 4)
        assert not done(stage.tell(RowsLinked(linking.ticket, 5)), ApplySlice)
    else:
        stage.tell(RowsLinked(linking.ticket, 5))
        held.begin(0, 4)
    stage.store()
    assert stage.brain.held[P, "t9"].copied is None
    assert not stage.brain.held[P, "t9"].permits


def test_rows_that_can_not_be_linked_are_reported_so_that_they_are_carried() -> None:
    """S25: the volumes are on two disks, or a file can't be read."""
    stage = two_volumes()
    (linking,) = done(stage.say(LINK, "coordinator"), LinkRows)
    assert not done(stage.tell(RowsLinked(linking.ticket, None)), ApplySlice)
    known = {each.replica: each.trouble for each in stage.status().replicas[P]}
    assert known == {B: "", BESIDE: "unlinkable"}


def test_rows_from_before_the_replica_began_are_not_enough() -> None:
    """What lies between would be in neither."""
    stage = two_volumes(base=7)
    (linking,) = done(stage.say(LINK, "coordinator"), LinkRows)
    assert not done(stage.tell(RowsLinked(linking.ticket, 6)), ApplySlice)
    (again,) = done(stage.say(LINK, "coordinator"), LinkRows)
    assert done(stage.tell(RowsLinked(again.ticket, 7)), ApplySlice)


def test_rows_that_were_linked_after_the_session_do_not_count() -> None:
    """Meanwhile the barrier waits for them."""
    stage = two_volumes()
    (first,) = done(stage.say(LINK, "coordinator"), LinkRows)
    stage.agree(volumes(CLEANUP_TARGET))
    assert stage.status().busy[P] == 0
    assert not done(stage.tell(RowsLinked(first.ticket, 5)), ApplySlice)
    assert P not in stage.status().busy
    stage = two_volumes()
    (second,) = done(stage.say(LINK, "coordinator"), LinkRows)
    stage.tell(RowsLinked(second.ticket, 5))
    stage.agree(volumes(CLEANUP_TARGET))
    stage.store()
    assert stage.brain.held[P, "t9"].copied is None


def test_a_digest_that_can_not_be_taken_is_reported() -> None:
    """S45: a damaged file must not keep a move waiting for ever."""
    stage = target()
    stage.say(chunk(), "mover")
    stage.say(end(through=0), "mover")
    stage.store()
    effects = stage.say(replicate(D, 0, check=(SESSION, 0)), "a")
    (advance,) = [each for each in done(effects, AdvanceWatermark) if each.digest]
    assert stage.status().replicas[P][0].checking == 0
    stage.tell(DigestTaken(P, "t9", advance.to, None))
    known = stage.status().replicas[P][0]
    assert (known.checking, known.trouble) == (None, "unreadable")


# --- copies yield to writes


def test_a_node_whose_writes_are_slow_asks_copies_to_wait_and_reports_their_rate() -> None:
    """F199: a write waits for its replicas for more than a second; the next slice is delayed."""
    stage = owner_on_stage(moving(STREAMING))
    stage.say(write(), "client")
    pauses = []
    for number in range(3):
        (reading,) = done(stage.say(Fetch(P, "first", SESSION, 3, number, 4), "mover"), ReadSlice)
        stage.now += 0.6
        (fetched,) = sent(stage.tell(SliceRead(reading.ticket, ROWS, 5)), Fetched)
        pauses.append(fetched.pause_seconds)
    assert pauses[0] == 0.0
    assert all(each > 0.0 for each in pauses[1:])
    known = stage.status().replicas[P][0]
    assert known.copy_rate == int(ORDINARY.copy_rate_min)


def test_an_owner_without_a_copy_reports_no_rate() -> None:
    stage = owner_on_stage(stable())
    stage.brain.pace.rate = 1e6
    assert stage.status().replicas[P][0].copy_rate == 0


def test_a_commit_tells_how_long_the_write_took() -> None:
    """F199: from the write to its commit, whatever partition it is of."""
    stage = owner_on_stage(stable())
    for number in range(1, 4):
        stage.say(write(f"w.{number}", number), "client")
        stage.now += 0.6
        stage.store()
        stage.acknowledge(*stage.owner.peers)
    assert stage.brain.pace.usual_seconds == pytest.approx(0.6)


def test_a_target_whose_writes_are_slow_asks_copies_to_wait_too() -> None:
    """F199."""
    stage = target()
    stage.brain.pace.copied(stage.now, 0)
    stage.brain.pace.rate = 1e3
    stage.say(chunk(), "mover")
    stage.say(end(), "mover")
    (landed,) = sent(stage.store(), Landed)
    assert 0.0 < landed.pause_seconds <= 3.0
    (again,) = sent(stage.say(end(), "mover"), Landed)
    assert again.pause_seconds == 0.0, "it had landed before"


# --- what it costs those who write


def work_of_a_write(record: Partition) -> tuple[int, int]:
    """What an owner asks for because of one write: to be stored, and to be sent."""
    effects = owner_on_stage(record).say(write(), "client")
    return len(done(effects, AppendEntries)), len(sent(effects, Replicate))


def test_without_a_move_a_write_costs_nothing_more_and_with_one_about_double() -> None:
    """F54: the same work as ever, and during the dual write one replica more to write to. (What it
    takes in time is told by `make bench NAME=move`, in its part `cost`.)"""
    alone = replace(stable(), replicas=(A,), in_sync=(A,))
    moved = moving(STREAMING, targets=(D,))
    moved = replace(moved, replicas=(A,), in_sync=(A, D))
    assert work_of_a_write(alone) == (1, 0)
    assert work_of_a_write(moved) == (1, 1)
    assert work_of_a_write(stable()) == (1, 2)
    assert work_of_a_write(moving(STREAMING)) == (1, 3)
