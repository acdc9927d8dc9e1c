"""What if a file of a replica is damaged? The node reports it, and the coordinator replaces it."""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import damage, damaged_owners, ownership
from limosa.core.coordinator.attention import differ
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.transitions import Waiting
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import DiscardReplica, Send, TrimLog
from limosa.core.events import LogLost, Received, ReplicaDamaged, Started
from limosa.core.invariants import broken
from limosa.core.machines.catalogue import ALLOW, READ_NEW, STREAMING
from limosa.core.messages import Acked, Read, Refuse, ReplicaStatus, Seal, Unheld, Wait
from limosa.core.model.changes import Commit, apply
from limosa.core.model.requests import RebuildReplicas, Request
from limosa.core.model.topology import Grant, Partition, Replica
from limosa.core.participant.reading import Admitted
from tests.core.samples import (
    LEASES,
    RECORD_REVISION,
    A,
    B,
    C,
    D,
    P,
    cluster,
    intends,
    moving,
    of,
    put,
    says,
    seen,
    stable,
)
from tests.core.stage import (
    Stage,
    done,
    entry,
    follower_on_stage,
    owner_on_stage,
    probe,
    replicate,
    sent,
    stored,
    write,
)

WHY = "a.segment is damaged"


def damaged(stage: Stage, replica: Replica) -> Stage:
    stage.tell(ReplicaDamaged(P, replica.incarnation, WHY))
    return stage


# --- a node


def test_a_node_reports_the_first_damage_at_once() -> None:
    """F193."""
    stage = follower_on_stage()
    stage.brain.changed.take()
    damaged(stage, B)
    assert stage.brain.changed
    (known,) = stage.status().replicas[P]
    assert known.damaged == WHY
    stage.tell(ReplicaDamaged(P, B.incarnation, "another file"))
    stage.tell(ReplicaDamaged(P, "not here", WHY))
    assert stage.status().replicas[P] == (known,)


def test_damage_that_a_start_finds_is_reported_too() -> None:
    (held,) = stored(B).held
    stage = Stage("b")
    stage.register(stable(), Started((replace(held, damaged=WHY),)))
    assert stage.status().replicas[P][0].damaged == WHY


def test_a_damaged_follower_acks_while_it_is_in_sync_and_is_lost_afterwards() -> None:
    """F193: its owner must not wait for it, nor propose it."""
    stage = damaged(follower_on_stage(), B)
    assert not sent(stage.say(probe(B), "a"), Unheld)
    stage.agree(stable(in_sync=(A, C)))
    refused = sent(stage.say(replicate(B, revision=stage.revision), "a"), Unheld)
    assert [each.why for each in refused] == ["lost"]
    assert not sent(stage.say(replicate(B, revision=stage.revision), "a"), Acked)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_damaged_replica_stays_while_another_one_is_made_beside_it(is_damaged: bool) -> None:
    """F193: its files are deleted only when the rebuilt replica is in sync."""
    stage = follower_on_stage(stable(in_sync=(A, C)))
    if is_damaged:
        damaged(stage, B)
    made = Replica("b", "t9")
    effects = stage.agree(moving(ALLOW, "rebuild", targets=(A, C, made), in_sync=(A, C)))
    assert bool(done(effects, DiscardReplica)) is not is_damaged


def test_a_damaged_owner_does_not_open_while_others_are_in_sync() -> None:
    """S120: so the coordinator may name another owner without a seal."""
    stage = Stage("a")
    stage.register(stable(), stored(A))
    damaged(stage, A)
    stage.acknowledge(B, C)
    assert not stage.is_open()
    stage.agree(stable(in_sync=(A,)))
    assert stage.is_open()


def test_a_damaged_owner_that_has_opened_says_so_even_without_a_lease() -> None:
    """S120: its lease may be renewed, and then it serves again."""
    stage = damaged(owner_on_stage(), A)
    stage.now += 100
    (known,) = stage.status().replicas[P]
    assert known.open_epoch == 3


def test_a_compare_and_set_of_a_damaged_row_waits() -> None:
    """S120."""
    stage = owner_on_stage()
    effects = stage.tell(Received("someone", write(expected=0), None))
    assert [type(answer) for answer in sent(effects, Wait)] == [Wait]
    assert stage.owner.held.last == 0
    stage.agree(stable(in_sync=(A,)))
    effects = stage.tell(Received("someone", write(expected=0, id="w.2"), None))
    (refused,) = sent(effects, Refuse)
    assert "only replica" in refused.why


def read(eventual: bool = False) -> Read:
    return Read("r.1", P, 1, 3, RECORD_REVISION, None, "t", eventual)


def test_a_read_of_a_damaged_row_waits_for_another_owner_if_there_can_be_one() -> None:
    """S120, F193."""
    stage = damaged(owner_on_stage(), A)
    reading = stage.brain.reading
    admitted = reading.admit(stage.now, read())
    assert isinstance(admitted, Admitted)
    assert isinstance(reading.unreadable(admitted), Wait)
    stage.agree(stable(in_sync=(A,)))
    refused = reading.unreadable(admitted)
    assert isinstance(refused, Refuse)
    assert WHY in refused.why
    stage.brain.topology = replace(stage.brain.topology, partitions={})
    assert isinstance(reading.unreadable(admitted), Wait)


def test_an_eventual_read_goes_to_a_sound_replica() -> None:
    stage = damaged(follower_on_stage(), B)
    assert not isinstance(stage.brain.reading.admit(stage.now, read(eventual=True)), Admitted)
    stage = damaged(follower_on_stage(stable(in_sync=(B,), owner=B)), B)
    admitted = stage.brain.reading.admit(stage.now, read(eventual=True))
    assert isinstance(admitted, Admitted)


def test_a_log_that_cant_be_read_begins_later() -> None:
    """F193: the rows are stored, so the replica is not damaged; a replica that needs the lost
    entries is copied instead."""
    entries = tuple(entry(at, at - 1) for at in range(1, 6))
    stage = follower_on_stage(entries=entries)
    held = stage.brain.held[P, B.incarnation]
    (trimmed,) = done(stage.tell(LogLost(P, B.incarnation, 3)), TrimLog)
    assert (trimmed.to, held.first, held.positions) == (3, 3, [4, 5])
    assert held.bytes == sum(held.sizes)
    assert not done(stage.tell(LogLost(P, B.incarnation, 3)), TrimLog)
    assert not stage.tell(LogLost(P, "not here", 3))
    assert stage.status().replicas[P][0].damaged == ""


def test_recent_entries_of_a_lost_part_are_forgotten_too() -> None:
    stage = owner_on_stage()
    for number in range(1, 5):
        stage.say(write(id=f"w.{number}", sequence=number))
    stage.store()
    stage.acknowledge(B, C)
    held = stage.owner.held
    assert len(held.recent) == 4
    stage.tell(LogLost(P, A.incarnation, held.positions[1]))
    assert [each.at for each in held.recent] == held.positions
    assert held.recent_bytes == sum(each.bytes for each in held.recent)


# --- the coordinator


def rotten(replica: Replica, open_epoch: int = 0, **more: object) -> ReplicaStatus:
    return replace(of(replica, open_epoch=open_epoch), damaged=WHY, **more)


def view_of(record: Partition, *known: ReplicaStatus) -> ClusterView:
    statuses = [says(each.replica.node, each) for each in known]
    return seen(cluster(record, intends()), *statuses)


def record_in(view: ClusterView, commit: object) -> Partition:
    """The record that a commit makes; no invariant is broken by it."""
    assert isinstance(commit, Commit)
    assert broken(view.agreed, apply(view.agreed, commit.changes, 70)) == []
    (record,) = put(commit.changes, Partition)
    assert isinstance(record, Partition)
    return record


def test_a_damaged_follower_is_taken_out() -> None:
    """F193."""
    view = view_of(stable(), of(A, open_epoch=3), rotten(B), of(C))
    after = record_in(view, ownership.change_in_sync(view, stable()))
    assert after.in_sync == (A, C)


def test_of_two_damaged_replicas_both_stay() -> None:
    """F193: neither can be spared, and neither takes over."""
    record = stable(in_sync=(A, B))
    view = view_of(record, rotten(A, 3), rotten(B), of(C))
    assert ownership.change_in_sync(view, record) is None
    assert damaged_owners.hand_over(view, record) is None


def test_a_damaged_replica_does_not_return() -> None:
    record = stable(in_sync=(A, C))
    owner = replace(of(A, open_epoch=3), caught_up=((B, RECORD_REVISION),))
    view = view_of(record, owner, rotten(B), of(C))
    assert ownership.change_in_sync(view, record) is None


def test_the_last_replica_that_could_take_over_is_not_taken_out_for_its_silence() -> None:
    """F193: perhaps the damaged owner can't read what it would send."""
    record = stable(in_sync=(A, B))
    view = view_of(record, rotten(A, 3, silent=(B,)), of(B), of(C))
    assert damage.is_last_taker(view, record, B)
    assert ownership.change_in_sync(view, record) is None
    view = view_of(stable(), rotten(A, 3, silent=(B,)), of(B), of(C))
    assert record_in(view, ownership.change_in_sync(view, stable())).in_sync == (A, C)


def test_a_damaged_owner_is_sealed_before_another_takes_over() -> None:
    """S120."""
    view = view_of(stable(), rotten(A, 3), of(B), of(C))
    waiting = damaged_owners.hand_over(view, stable())
    assert isinstance(waiting, Waiting)
    assert waiting.effects == (Send("a", Seal(P, RECORD_REVISION)),)
    earlier = rotten(A, 3, sealed=(RECORD_REVISION - 1, 9))
    assert isinstance(
        damaged_owners.hand_over(view_of(stable(), earlier, of(B), of(C)), stable()), Waiting
    )
    sealed = rotten(A, 3, sealed=(RECORD_REVISION, 9))
    view = view_of(stable(), sealed, of(B, last=8), of(C, last=9))
    after = record_in(view, damaged_owners.hand_over(view, stable()))
    assert after.owner == Grant(C, LEASES["c"])
    assert (after.epoch, after.in_sync) == (4, (B, C))


def test_a_damaged_owner_that_never_opened_needs_no_seal() -> None:
    """S120: it stays closed, if it knows the record."""
    view = view_of(stable(), rotten(A), of(B), of(C))
    after = record_in(view, damaged_owners.hand_over(view, stable()))
    assert after.owner == Grant(B, LEASES["b"])
    statuses = [says(each.replica.node, each) for each in (rotten(A), of(B), of(C))]
    statuses[0] = replace(statuses[0], generation=RECORD_REVISION - 1)
    view = seen(cluster(stable(), intends()), *statuses)
    assert isinstance(damaged_owners.hand_over(view, stable()), Waiting)


def test_a_damaged_owner_on_the_new_side_gives_the_move_up() -> None:
    """S120: like a new replica that is taken out."""
    record = moving(READ_NEW)
    sealed = rotten(D, 3, sealed=(RECORD_REVISION, 9))
    view = view_of(record, of(A), of(B), of(C), sealed)
    after = record_in(view, damaged_owners.hand_over(view, record))
    assert after.transition is not None
    assert "damaged" in after.transition.giving_up
    record = moving(STREAMING)
    sealed = rotten(A, 3, sealed=(RECORD_REVISION, 9))
    view = view_of(record, sealed, of(B), of(C), of(D))
    after = record_in(view, damaged_owners.hand_over(view, record))
    assert after.transition is not None
    assert not after.transition.giving_up
    assert after.transition.session == "t9@4"


def test_a_sound_replica_is_elected_before_a_damaged_one() -> None:
    """F193: though its log is shorter: every log in sync holds all acknowledged writes."""
    record = stable(owner=None, epoch=4)
    logs = (replace(rotten(A), epoch=4, last=9), of(B, 4, 5), of(C, 4, 7))
    view = view_of(record, *logs)
    after = record_in(view, ownership.elect(view, record))
    assert after.owner == Grant(C, LEASES["c"])
    alone = stable(owner=None, epoch=4, in_sync=(A,))
    view = view_of(alone, *logs)
    assert record_in(view, ownership.elect(view, alone)).owner == Grant(A, LEASES["a"])


def test_a_damaged_replica_is_rebuilt() -> None:
    """F193: the coordinator asks for it like an operator."""
    record = stable(in_sync=(A, C))
    known = (of(A, open_epoch=3), rotten(B), of(C))
    view = seen(cluster(record), *(says(each.replica.node, each) for each in known))
    commit = Coordinator("x", CoordinatorSettings()).next_step(view, record)
    assert isinstance(commit, Commit)
    (request,) = put(commit.changes, Request)
    assert isinstance(request, Request)
    assert isinstance(request.what, RebuildReplicas)
    assert request.what.renewed == ("b",)


def test_the_coordinator_hands_over_before_it_goes_on_with_a_move() -> None:
    record = moving(STREAMING)
    view = view_of(record, rotten(A, 3), of(B), of(C), of(D))
    waiting = Coordinator("x", CoordinatorSettings()).next_step(view, record)
    assert isinstance(waiting, Waiting)
    assert "damaged" in waiting.why


def test_damage_draws_the_coordinators_attention() -> None:
    assert differ((of(A),), (rotten(A),))
