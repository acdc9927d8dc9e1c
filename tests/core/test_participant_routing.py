"""Was a request routed here rightly, and is what was said about the past recognised as such?"""

import pytest
from msgspec.structs import replace

from limosa.core.effects import AppendEntries, ReadTopology
from limosa.core.events import Ticked
from limosa.core.machines.catalogue import ALLOW, CLEANUP, READ_NEW, STREAMING, USE_NEW, WRITE_BOTH
from limosa.core.messages import (
    DropReplica,
    Look,
    Read,
    Redirect,
    Refuse,
    Seal,
    Status,
    Unheld,
    Verify,
    Wait,
)
from limosa.core.model.changes import Remove, apply, intent_key, partition_key
from limosa.core.model.keys import TOKEN_MIN
from limosa.core.model.topology import Layout, Replica
from limosa.core.participant.hosting import AHEAD_MAX
from limosa.core.participant.reading import Admitted
from tests.core.samples import A, B, D, P, moving, stable
from tests.core.stage import (
    Stage,
    done,
    follower_on_stage,
    owner_on_stage,
    probe,
    sent,
    write,
)


def read(revision: int = 50, eventual: bool = False, version: int = 1, epoch: int = 3) -> Read:
    return Read("r.1", P, version, epoch, revision, ("k",), eventual=eventual)


def test_a_write_of_a_stale_version_is_redirected_and_nothing_is_written() -> None:
    """F4: the answer names the present owner and the present version."""
    stage = owner_on_stage()
    stage.agree(Layout("z", 2, (TOKEN_MIN,), (P,)))
    before = stage.owner.held.last
    effects = stage.say(write(version=1), "client")
    assert sent(effects, Redirect) == [Redirect("w.1", "a", 2, stage.topology.generation)]
    assert not done(effects, AppendEntries)
    assert stage.owner.held.last == before
    assert isinstance(stage.brain.reading.admit(stage.now, read(version=1)), Redirect)


def test_a_write_of_a_newer_version_than_the_applied_one_waits() -> None:
    stage = owner_on_stage()
    effects = stage.say(write(version=2), "client")
    (answer,) = sent(effects, Wait)
    assert "has not applied yet" in answer.why
    assert done(effects, ReadTopology)
    assert not done(effects, AppendEntries)


def test_a_write_to_a_node_that_does_not_own_is_redirected_to_the_one_that_does() -> None:
    """F4."""
    stage = follower_on_stage()
    assert sent(stage.say(write(), "client"), Redirect) == [Redirect("w.1", "a", 1, 50)]


def test_a_write_to_a_partition_that_nobody_owns_yet_waits() -> None:
    stage = follower_on_stage(stable(owner=None))
    assert len(sent(stage.say(write(), "client"), Wait)) == 1


def test_a_write_for_a_newer_epoch_than_the_owner_knows_waits() -> None:
    stage = owner_on_stage()
    assert len(sent(stage.say(write(epoch=4), "client"), Wait)) == 1


def test_a_request_for_an_unknown_partition_is_redirected_to_nobody() -> None:
    stage = owner_on_stage()
    message = replace(write(version=0), partition="q")
    assert sent(stage.say(message, "client"), Redirect) == [Redirect("w.1", None, 0, 50)]
    eventual = replace(read(revision=0, eventual=True), partition="q")
    assert isinstance(stage.brain.reading.admit(stage.now, eventual), Redirect)


def test_with_too_few_replicas_in_sync_a_write_is_refused_with_the_numbers() -> None:
    stage = owner_on_stage(stable(in_sync=(A,)))
    effects = stage.say(write(), "client")
    (refused,) = sent(effects, Refuse)
    assert (refused.why, refused.code) == ("1 replicas in sync, 2 needed", "NotEnoughReplicas")
    assert not done(effects, AppendEntries)


# --- eventual reads and the fence


def test_an_eventual_read_is_served_by_any_complete_replica() -> None:
    stage = follower_on_stage()
    assert isinstance(stage.brain.reading.admit(stage.now, read(eventual=True)), Admitted)


def test_an_eventual_read_from_before_the_fence_is_redirected() -> None:
    """F103."""
    stage = follower_on_stage(stable(fence=45))
    assert isinstance(stage.brain.reading.admit(stage.now, read(44, eventual=True)), Redirect)
    assert isinstance(stage.brain.reading.admit(stage.now, read(45, eventual=True)), Admitted)


@pytest.mark.parametrize(
    ("stage_name", "serves_old", "serves_new"),
    [
        (ALLOW, True, False),
        (WRITE_BOTH, True, False),
        (STREAMING, True, False),
        (READ_NEW, True, True),
        (USE_NEW, False, True),
    ],
)
def test_in_each_stage_only_replicas_that_hold_everything_are_read(
    stage_name: str, serves_old: bool, serves_new: bool
) -> None:
    """F99 F102: the side that is read, and the one that was until now."""
    for replica, serves in ((A, serves_old), (D, serves_new)):
        stage = follower_on_stage(moving(stage_name, owner=B), replica)
        admitted = stage.brain.reading.admit(stage.now, read(eventual=True))
        assert isinstance(admitted, Admitted if serves else Redirect)


# --- what is about the past, and about the future


def test_a_message_of_an_older_epoch_is_refused() -> None:
    stage = follower_on_stage()
    (answer,) = sent(stage.say(probe(B, epoch=2), "c"), Unheld)
    assert (answer.why, answer.epoch, answer.replica) == ("stale epoch", 2, B)


def test_a_message_from_before_the_fence_is_refused() -> None:
    """F103: even one of the present epoch."""
    stage = follower_on_stage(stable(fence=45))
    (answer,) = sent(stage.say(probe(B, revision=44), "a"), Unheld)
    assert answer.why == "fenced"


def test_a_replica_that_is_not_here_is_lost_unless_this_run_dropped_it() -> None:
    stage = Stage("b")
    stage.register(stable())
    (answer,) = sent(stage.say(probe(B), "a"), Unheld)
    assert (answer.why, answer.replica) == ("lost", B)
    (answer,) = sent(stage.say(probe(Replica("b", "t1")), "a"), Unheld)
    assert (answer.why, answer.replica) == ("lost", Replica("b", "t1"))
    dropping = follower_on_stage(moving(CLEANUP), A)
    dropping.say(DropReplica(P, "first", 50), "coordinator")
    (answer,) = sent(dropping.say(probe(A), "d"), Unheld)
    assert (answer.why, answer.replica) == ("dropped", A)


def test_a_message_about_a_newer_record_waits_until_it_is_applied() -> None:
    stage = follower_on_stage()
    effects = stage.say(probe(B, revision=51), "a")
    assert effects == [ReadTopology()]
    effects = stage.agree(stable(in_sync=(A, B)))
    assert len(sent(effects, Unheld)) == 0
    assert len(effects) == 1


def test_a_message_about_a_partition_that_was_dropped_since_does_not_wait_for_ever() -> None:
    """Each answer would lead to another read of the topology, as fast as the metastore answers."""
    stage = follower_on_stage()
    stage.agreed = apply(stage.agreed, (Remove(partition_key(P)), Remove(intent_key(P))), 60)
    stage.read_topology()
    effects = stage.say(probe(B, revision=55), "a")
    assert done(effects, ReadTopology) == []
    assert done(stage.read_topology(), ReadTopology) == []


def test_one_read_of_the_topology_at_a_time_and_a_lost_one_is_asked_again() -> None:
    stage = follower_on_stage()
    for seconds, asked in ((0.0, 1), (0.2, 0), (0.2, 1), (0.1, 0)):
        stage.now += seconds
        assert len(done(stage.say(probe(B, revision=51), "a"), ReadTopology)) == asked
    assert done(stage.read_topology(), ReadTopology) == [ReadTopology()]


def test_only_the_latest_messages_about_newer_records_wait() -> None:
    stage = follower_on_stage()
    for number in range(2 * AHEAD_MAX):
        stage.say(probe(B, epoch=number, revision=51), "a")
    waiting = [received.message for received in stage.brain.hosting._ahead]
    assert len(waiting) == AHEAD_MAX + 1
    assert waiting[-1] == probe(B, epoch=2 * AHEAD_MAX - 1, revision=51)


@pytest.mark.parametrize("revision", [49, 50])
def test_a_drop_counts_for_exactly_this_revision_and_for_nothing_that_is_written(
    revision: int,
) -> None:
    """F103: a call that names another revision does nothing."""
    leaving = follower_on_stage(moving(CLEANUP), A)
    leaving.say(DropReplica(P, "first", revision), "coordinator")
    assert ((P, "first") in leaving.brain.held) == (revision == 49)
    staying = follower_on_stage(moving(CLEANUP), B)
    staying.say(DropReplica(P, "first", revision), "coordinator")
    assert (P, "first") in staying.brain.held
    staying.say(DropReplica(P, "t1", revision), "coordinator")
    assert (P, "first") in staying.brain.held


def test_a_look_refreshes_only_what_is_behind_and_is_answered() -> None:
    stage = follower_on_stage()
    effects = stage.say(Look(50), "coordinator")
    assert sent(effects, Status)
    assert not done(effects, ReadTopology)
    assert done(stage.say(Look(51), "coordinator"), ReadTopology)
    quiet = Stage("b")
    assert quiet.say(Look(0), "coordinator") == []


def test_whoever_looked_last_is_told_of_changes() -> None:
    stage = follower_on_stage()
    stage.say(Look(50), "coordinator")
    stage.now += 0.03
    effects = stage.agree(stable(in_sync=(A, B)))
    (status,) = sent(effects, Status)
    assert status.generation == 51


def test_changes_are_told_together_but_a_look_is_answered_at_once() -> None:
    stage = follower_on_stage()
    stage.say(Look(50), "coordinator")
    assert sent(stage.agree(stable(in_sync=(A, B))), Status) == []
    assert sent(stage.agree(stable()), Status) == []
    stage.now += 0.03
    (status,) = sent(stage.tell(Ticked()), Status)
    assert status.generation == 52
    assert sent(stage.tell(Ticked()), Status) == []
    stage.agree(stable(in_sync=(A, B)))
    (status,) = sent(stage.say(Look(53), "coordinator"), Status)
    assert status.generation == 53
    stage.now += 0.03
    assert sent(stage.tell(Ticked()), Status) == []


@pytest.mark.parametrize("message", [Seal(P, 50), Verify(P, "t9@3")])
def test_a_call_for_an_owner_does_nothing_where_there_is_none(message: Seal | Verify) -> None:
    stage = follower_on_stage()
    assert stage.say(message, "coordinator") == []


# --- a seal


def sealed() -> Stage:
    stage = owner_on_stage(moving(STREAMING))
    stage.say(Seal(P, stage.revision), "coordinator")
    assert stage.owner.sealed == stage.revision
    return stage


def test_a_sealed_owner_serves_nothing() -> None:
    stage = sealed()
    assert len(sent(stage.say(write(), "client"), Wait)) == 1
    assert isinstance(stage.brain.reading.admit(stage.now, read()), Wait)


def test_a_seal_for_another_revision_is_not_made() -> None:
    stage = owner_on_stage(moving(STREAMING))
    stage.say(Seal(P, stage.revision - 1), "coordinator")
    assert stage.owner.sealed is None


def test_any_commit_lifts_the_seal() -> None:
    stage = sealed()
    stage.agree(moving(STREAMING, in_sync=(A, B, D)))
    assert stage.owner.sealed is None
    assert sent(stage.say(write(), "client"), Wait) == []


def test_a_former_owner_redirects_those_who_wait_and_says_that_it_may_have_happened() -> None:
    stage = owner_on_stage(moving(STREAMING))
    stage.say(write(), "writer")
    effects = stage.agree(moving(READ_NEW, epoch=4))
    answers = sent(effects, Redirect)
    assert [(answer.id, answer.owner, answer.definite) for answer in answers] == [
        ("w.1", "d", False),
    ]
    assert stage.brain.owners == {}


def test_an_owner_of_an_earlier_run_does_not_own() -> None:
    """An epoch is granted to one run of one process."""
    stage = Stage("a")
    record = stable()
    assert record.owner is not None
    other = replace(record, owner=replace(record.owner, lease=99))
    stage.register(other)
    assert stage.brain.owners == {}
