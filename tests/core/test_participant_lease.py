"""When is a node alive, and what does it forget when it is not?"""

import pytest
from msgspec.structs import replace

from limosa.core.effects import (
    AcquireLease,
    CreateReplica,
    DiscardReplica,
    ReadTopology,
    StoreEpoch,
)
from limosa.core.events import (
    LeaseEnded,
    LeaseGranted,
    Started,
    Ticked,
    TopologyRead,
)
from limosa.core.messages import Read, Redirect, Wait, Written
from limosa.core.model.changes import Put, Topology, apply, lease_key, node_key
from limosa.core.model.topology import Grant, NodeLease, Replica
from limosa.core.participant.lease import Lease, registration
from limosa.core.participant.settings import ParticipantSettings
from tests.core.samples import LEASES, A, B, C, P, cluster, stable
from tests.core.stage import Stage, done, owner_on_stage, probe, sent, stored, write

SETTINGS = ParticipantSettings(lease_seconds=10.0, lease_margin=0.1, heartbeat_seconds=2.0)
READ = Read("r.1", P, 1, 3, 50, ("k",))


def test_a_lease_runs_from_the_sending_of_its_renewal_and_ends_a_margin_early() -> None:
    lease = Lease(11, 5)
    lease.registered = True
    assert not lease.holds(0.0)
    lease.extend(100.0, SETTINGS)
    assert lease.valid_until == pytest.approx(109.0)
    assert lease.holds(108.9)
    assert not lease.holds(109.0)


def test_a_renewal_that_was_sent_earlier_does_not_shorten_a_lease() -> None:
    lease = Lease(11, 5)
    lease.extend(100.0, SETTINGS)
    lease.extend(98.0, SETTINGS)
    assert lease.valid_until == pytest.approx(109.0)


def test_a_lease_does_not_hold_before_its_node_has_registered() -> None:
    lease = Lease(11, 5)
    lease.extend(100.0, SETTINGS)
    assert not lease.holds(100.0)


def test_a_node_without_a_lease_asks_for_one_again_and_again() -> None:
    stage = Stage("a", SETTINGS)
    assert done(stage.tell(Ticked()), AcquireLease)
    stage.now += 10.0
    assert not done(stage.tell(Ticked()), AcquireLease)
    stage.now += 0.1
    assert done(stage.tell(Ticked()), AcquireLease)


def test_a_lease_is_renewed_at_every_heartbeat_whatever_the_brain_is_busy_with() -> None:
    """No event of the brain is needed for it, except that the brain ticks now and then."""
    stage = Stage("a", SETTINGS)
    renewals = stage.brain.leasing.renewals
    assert renewals.due(stage.now) is None
    stage.tell(LeaseGranted(11, 5, stage.now))
    stage.tell(Ticked())
    due = [round(seconds / 2) for seconds in range(21) if renewals.due(stage.now + seconds / 2)]
    assert due == [2, 4, 6, 8, 10]
    assert stage.brain.lease is not None
    renewals.renewed(stage.now + 10.0, 11, stage.now + 8.0)
    assert stage.brain.lease.valid_until == pytest.approx(stage.now + 17.0)


def test_a_brain_that_hangs_or_is_over_loses_its_lease() -> None:
    stage = Stage("a", SETTINGS)
    renewals = stage.brain.leasing.renewals
    stage.tell(LeaseGranted(11, 5, stage.now))
    stage.tell(Ticked())
    assert renewals.due(stage.now + 10.1) is None
    stage.now += 10.2
    stage.tell(Ticked())
    assert renewals.due(stage.now) == 11
    stage.brain.is_over = True
    assert renewals.due(stage.now + 2.0) is None


def test_a_doubled_grant_of_a_lease_does_not_begin_another_run() -> None:
    """A run begins once, and its counters with it: two entries must not get one position."""
    stage = owner_on_stage()
    owner = stage.owner
    for late in (LEASES["a"], LEASES["a"] - 1):
        assert stage.tell(LeaseGranted(99, late, stage.now)) == []
    assert stage.owner is owner
    stage.tell(LeaseGranted(99, LEASES["a"] + 1, stage.now))
    assert stage.brain.owners == {}


def test_words_about_another_lease_change_nothing() -> None:
    stage = owner_on_stage()
    lease = stage.brain.lease
    assert lease is not None
    until = lease.valid_until
    stage.now += 1.0
    stage.brain.leasing.renewals.renewed(stage.now, 99, stage.now)
    assert stage.tell(LeaseEnded(99)) == []
    assert stage.brain.lease is lease
    assert lease.valid_until == until


def test_a_node_without_a_lease_has_none_to_renew_or_to_end() -> None:
    stage = Stage("a")
    stage.brain.leasing.renewals.renewed(stage.now, 11, 100.0)
    assert stage.tell(LeaseEnded(11)) == []
    assert stage.brain.lease is None


def test_the_end_of_a_lease_ends_ownership_and_begins_the_search_for_another() -> None:
    """Whoever waits is told: a write may have happened."""
    stage = owner_on_stage()
    stage.say(write(), "client")
    answers = sent(stage.tell(LeaseEnded(LEASES["a"])), Redirect)
    assert [(each.id, each.definite) for each in answers] == [("w.1", False)]
    assert stage.brain.owners == {}
    assert done(stage.tell(Ticked()), AcquireLease)


# --- which topology counts


def test_a_topology_from_before_the_lease_does_not_register_a_node() -> None:
    """It may be older than what an earlier run of this node acted on."""
    stage = Stage("a")
    topology = cluster(stable()).topology
    assert stage.tell(TopologyRead(topology, 50)) == []
    stage.tell(LeaseGranted(11, 60, stage.now))
    assert stage.tell(TopologyRead(topology, 59)) == []
    assert stage.topology.generation == 0
    stage.tell(TopologyRead(topology, 60))
    assert stage.topology.generation == 50
    assert stage.brain.lease is not None
    assert stage.brain.lease.registered


def test_an_older_topology_than_the_applied_one_is_ignored() -> None:
    stage = owner_on_stage()
    owner = stage.owner
    for older in (Topology(), cluster(stable(owner=B)).topology):
        assert stage.tell(TopologyRead(older, 99)) == []
    assert stage.owner is owner
    assert stage.topology is stage.agreed.topology


def test_a_node_that_registers_drops_what_the_topology_does_not_name() -> None:
    """F179: another incarnation, and a partition that is no more."""
    stage = Stage("a")
    leftover = Replica("a", "t1")
    (ours,) = stored(A).held
    (theirs,) = stored(leftover).held
    gone = type(theirs)("gone", leftover, 3, 0, 0, 0, (), ())
    effects = stage.register(stable(), Started((ours, theirs, gone)))
    dropped = {(e.partition, e.incarnation) for e in done(effects, DiscardReplica)}
    assert dropped == {(P, "t1"), ("gone", "t1")}
    assert set(stage.brain.held) == {(P, "first")}
    assert stage.status().busy == {P: 0, "gone": 0}
    stage.store()
    assert stage.status().busy == {}


def test_a_replica_that_was_used_before_is_not_made_from_nothing() -> None:
    stage = Stage("b")
    assert not done(stage.register(stable()), CreateReplica)
    assert stage.status().replicas == {}


def test_a_replica_of_a_new_partition_is_made_and_told_of_once_it_is_durable() -> None:
    stage = Stage("b")
    effects = stage.register(stable(owner=None, epoch=0))
    assert [e.volume for e in done(effects, CreateReplica)] == [""]
    assert stage.status().replicas == {}
    stage.store()
    assert [known.replica for known in stage.status().replicas[P]] == [B]


def test_a_node_that_is_not_registered_answers_no_owner_and_tells_no_generation() -> None:
    stage = Stage("b")
    assert stage.say(probe(B, revision=0)) == []
    stage.tell(LeaseGranted(12, 60, stage.now))
    assert stage.say(probe(B, revision=0)) == []
    assert stage.status().generation == 0


# --- serving needs the lease


def test_an_owner_whose_lease_is_over_serves_nothing_and_acknowledges_nothing() -> None:
    stage = owner_on_stage()
    assert sent(stage.say(write(), "client"), Wait) == []
    stage.store()
    stage.now += 3.0
    assert sent(stage.acknowledge(B, C), Written) == []
    (refusal,) = sent(stage.say(write("w.2", 2), "client"), Wait)
    assert refusal.why == "its owner is not open yet"
    assert isinstance(stage.brain.reading.admit(stage.now, READ), Wait)


def test_a_renewed_lease_lets_the_owner_acknowledge_what_is_durable_everywhere() -> None:
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    stage.now += 3.0
    stage.acknowledge(B, C)
    stage.renew(stage.now - 0.1)
    assert [answer.id for answer in sent(stage.tell(Ticked()), Written)] == ["w.1"]


def test_a_late_answer_to_a_renewal_does_not_extend_a_lease_into_the_past() -> None:
    """An owner whose lease has lapsed answers nothing, though a renewal succeeded long ago."""
    stage = owner_on_stage()
    stage.say(write(), "client")
    stage.store()
    stage.now += 3.0
    stage.acknowledge(B, C)
    stage.renew(stage.now - 2.8)
    assert sent(stage.tell(Ticked()), Written) == []


def test_a_refresh_reads_the_newest_topology_now_and_then() -> None:
    stage = owner_on_stage(settings=ParticipantSettings(refresh_seconds=1.0))
    stage.now += 0.5
    assert not done(stage.tell(Ticked()), ReadTopology)
    stage.now += 0.5
    assert done(stage.tell(Ticked()), ReadTopology)


def test_an_owner_that_missed_what_happened_meanwhile_is_one_no_more() -> None:
    """S13: what counts is who serves here and whom the newest record names, not the differences
    that were seen: those in between may all have been missed."""
    stage = owner_on_stage()
    assert stage.is_open()
    record = stage.topology.partitions[P]
    elected = replace(record, epoch=record.epoch + 1, owner=None)
    taken = replace(elected, owner=Grant(B, LEASES["b"]))
    stage.agreed = apply(stage.agreed, (Put(elected),), stage.agreed.revision + 1)
    effects = stage.agree(taken)  # the record without an owner was never seen here
    assert stage.brain.owners == {}
    assert done(effects, StoreEpoch)
    (redirect,) = sent(stage.say(write(epoch=record.epoch), "client"), Redirect)
    assert redirect.owner == "b"
    back = replace(taken, epoch=taken.epoch + 2, owner=Grant(A, LEASES["a"] - 1))
    stage.agree(back)  # to this node, but to another run of it
    assert stage.brain.owners == {}
    assert sent(stage.say(write(epoch=back.epoch), "client"), Wait)


def test_a_registration_is_guarded_by_the_nodes_row_and_by_its_former_lease() -> None:
    """A node that was removed, or whose key another run has written, does not register."""
    for previous in (0, 5):
        commit = registration("a", 7, row=3, previous=previous)
        assert commit.guards == {node_key("a"): 3, lease_key("a"): previous}
        assert commit.changes == (Put(NodeLease("a", 7)),)
