"""Who is named owner, and who counts as in sync?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import ownership
from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.view import ClusterView
from limosa.core.invariants import broken
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP_TARGET,
    FALLBACK,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.messages import Status
from limosa.core.model.changes import Agreed, Commit, Put, apply
from limosa.core.model.topology import Grant, Partition, Replica, Zone
from tests.core.samples import (
    LEASES,
    NEW,
    NODES,
    OLD,
    ZONE,
    A,
    B,
    C,
    D,
    cluster,
    intends,
    moving,
    of,
    put,
    says,
    seen,
    stable,
    without_owner,
)

E = Replica("e", "t9")


def next_record(agreed: Agreed, commit: Commit | str | None) -> Partition:
    """What the commit makes of the partition; no invariant is broken by it."""
    assert isinstance(commit, Commit)
    assert broken(agreed, apply(agreed, commit.changes, 70)) == []
    (record,) = put(commit.changes, Partition)
    assert isinstance(record, Partition)
    return record


def elected(record: Partition, *statuses: Status, live: tuple[str, ...] = NODES) -> Partition | str:
    agreed = cluster(record, intends(), live)
    outcome = ownership.elect(seen(agreed, *statuses), record)
    return outcome if isinstance(outcome, str) else next_record(agreed, outcome)


def promised(*logs: tuple[Replica, int], epoch: int = 4) -> list[Status]:
    return [says(replica.node, of(replica, epoch, last)) for replica, last in logs]


ELECTING = stable(owner=None, epoch=4)


def test_the_log_that_reaches_furthest_is_elected() -> None:
    record = elected(ELECTING, *promised((A, 5), (B, 9), (C, 7)))
    assert isinstance(record, Partition)
    assert record.owner == Grant(B, LEASES["b"])
    assert record.epoch == 4


def test_of_equals_the_first_of_the_record_is_elected() -> None:
    """So owners are spread as the records spread them, and not by the names of nodes."""
    for replicas in ((A, B, C), (B, C, A), (C, A, B)):
        electing = stable(replicas, owner=None, epoch=4)
        record = elected(electing, *promised((A, 5), (B, 5), (C, 5)))
        assert isinstance(record, Partition)
        assert record.owner is not None
        assert record.owner.replica == replicas[0]


def test_a_longer_log_that_is_not_in_sync_is_not_elected() -> None:
    record = elected(stable(owner=None, epoch=4, in_sync=(A, B)), *promised((A, 5), (B, 4), (C, 9)))
    assert isinstance(record, Partition)
    assert record.owner is not None
    assert record.owner.replica == A


@pytest.mark.parametrize(
    "statuses",
    [
        promised((A, 5), (C, 7)),
        [*promised((A, 5), (C, 7)), says("b", of(B, 3, 9))],
        [*promised((A, 5), (C, 7)), says("b", of(B, 4, 9), lease=99)],
        [*promised((A, 5), (C, 7)), says("b", of(B, 4, 9), generation=0)],
        [*promised((A, 5), (C, 7)), says("b", generation=49)],
    ],
    ids=["silent", "older promise", "an earlier run", "not registered", "behind"],
)
def test_an_election_waits_for_the_promise_of_every_live_candidate(statuses: list[Status]) -> None:
    assert elected(ELECTING, *statuses) == "election: b has not promised epoch 4 yet"


def test_an_election_goes_on_without_a_live_candidate_that_does_not_promise_in_time() -> None:
    """S119: its disk may hang. Every candidate has all committed rows, so any of them will do."""
    agreed, memory = cluster(ELECTING, intends()), Memory(CoordinatorSettings())
    seconds = CoordinatorSettings().promise_seconds

    def outcome(record: Partition, now: float, *statuses: Status) -> Commit | str:
        return ownership.elect(seen(agreed, *statuses, now=now, memory=memory), record)

    heard = promised((A, 5), (C, 7))
    assert outcome(ELECTING, 100.0, *heard) == "election: b has not promised epoch 4 yet"
    assert isinstance(outcome(ELECTING, 99.9 + seconds, *heard), str)
    record = next_record(agreed, outcome(ELECTING, 100.0 + seconds, *heard))
    assert record == stable(owner=C, epoch=4)
    assert outcome(ELECTING, 100.0 + seconds) == "election: a has not promised epoch 4 yet"
    later = stable(owner=None, epoch=5)
    again = promised((A, 5), (C, 7), epoch=5)
    assert outcome(later, 200.0, *again) == "election: b has not promised epoch 5 yet"


def test_an_election_does_not_wait_for_the_dead_or_for_a_lost_replica() -> None:
    for live, more in ((("a", "c", "d"), []), (NODES, [says("b")])):
        record = elected(ELECTING, *promised((A, 5), (C, 7)), *more, live=live)
        assert isinstance(record, Partition)
        assert record.owner == Grant(C, LEASES["c"])


def test_a_node_with_two_replicas_of_a_partition_is_heard_for_the_right_one() -> None:
    beside = Replica("a", "t9", "v2")
    statuses = [says("a", of(beside, 4, 99), of(A, 4, 5)), *promised((B, 9), (C, 7))]
    record = elected(ELECTING, *statuses)
    assert isinstance(record, Partition)
    assert record.owner == Grant(B, LEASES["b"])


def test_with_nobody_to_elect_it_says_what_would_help() -> None:
    said = elected(ELECTING, live=("d",))
    words = "election: no replica that has every acknowledged row is alive: start one of a, b, c"
    assert said == words


def test_only_the_side_that_is_read_is_elected() -> None:
    record = without_owner(moving(READ_NEW, epoch=4))
    after = elected(record, *promised((A, 99), (B, 5), (C, 5), (D, 6)))
    assert isinstance(after, Partition)
    assert after.owner == Grant(D, LEASES["d"])


def test_when_the_new_side_is_gone_an_in_sync_old_replica_takes_it_back() -> None:
    """F104: an election in write_both_read_new, with nothing left but the old side."""
    record = without_owner(moving(READ_NEW, epoch=4, in_sync=(A, D)))
    after = elected(record, *promised((A, 5)), live=("a", "b", "c"))
    assert isinstance(after, Partition)
    assert after.transition is not None
    assert after.transition.stage == FALLBACK
    assert after.transition.giving_up
    assert after.owner is None


@pytest.mark.parametrize("in_sync", [(B, D), (A, D)])
def test_a_live_replica_that_is_out_of_sync_or_unheard_does_not_take_it_back(
    in_sync: tuple[Replica, ...],
) -> None:
    record = without_owner(moving(READ_NEW, targets=(D,), epoch=4, in_sync=in_sync))
    said = elected(record, live=("a",))
    assert isinstance(said, str)
    assert "is alive: start one" in said


def test_a_stage_without_a_way_back_waits_for_the_new_side() -> None:
    said = elected(without_owner(moving(USE_NEW, epoch=4)), *promised((A, 5)), live=("a",))
    assert isinstance(said, str)


def test_a_new_partition_waits_until_its_replicas_are_made() -> None:
    fresh = stable(owner=None, epoch=0)
    assert elected(fresh, says("a", of(A, 0))) == "b has not created its replica yet"
    assert elected(fresh, live=("d",)) == "none of its nodes is alive"
    record = elected(fresh, says("a", of(A, 0)), live=("a", "d"))
    assert isinstance(record, Partition)
    assert (record.epoch, record.owner) == (1, None)


def test_a_failover_is_a_new_epoch_without_an_owner() -> None:
    agreed = cluster(stable(), live=("b", "c"))
    after = next_record(agreed, ownership.fail_over(seen(agreed), stable()))
    assert after == stable(owner=None, epoch=4)


@pytest.mark.parametrize("stage", [WRITE_BOTH, STREAMING])
def test_a_failover_closes_the_session_and_opens_another(stage: str) -> None:
    record = moving(stage)
    agreed = cluster(record, intends(), live=("b", "c", "d"))
    after = next_record(agreed, ownership.fail_over(seen(agreed), record))
    assert after.transition is not None
    assert record.transition is not None
    assert (record.transition.session, after.transition.session) == ("t9@3", "t9@4")


def test_a_failover_in_a_stage_without_a_session_opens_none() -> None:
    record = moving(ALLOW)
    agreed = cluster(record, intends(), live=("b",))
    after = next_record(agreed, ownership.fail_over(seen(agreed), record))
    assert after.transition is not None
    assert after.transition.session is None


def after_failover(
    record: Partition,
    statuses: list[Status],
    live: tuple[str, ...] = ("b", "c", "d"),
    remembers: bool = True,
) -> tuple[Replica, ...]:
    """The owner's lease ends, and another one is elected: who is in sync then?"""
    memory = Memory(CoordinatorSettings())
    before = cluster(record, intends(), live=tuple(name for name in live if name != "a"))
    gone = next_record(before, ownership.fail_over(seen(before, memory=memory), record))
    agreed = cluster(gone, intends(), live)
    view = seen(agreed, *statuses, memory=memory if remembers else None)
    return next_record(agreed, ownership.elect(view, gone)).in_sync


def test_an_election_takes_the_former_owner_out_so_that_writes_go_on_at_once() -> None:
    """The promises are younger than the end of its lease, as a report of the new owner would be."""
    heard = promised((B, 5), (C, 7))
    assert after_failover(stable(), heard) == (B, C)
    assert after_failover(stable(), heard, remembers=False) == (A, B, C)  # by a successor
    returned = [*heard, *promised((A, 5))]
    assert after_failover(stable(), returned, live=NODES) == (A, B, C)


def test_the_former_owner_stays_if_it_may_be_needed() -> None:
    """Then the new owner asks it first, and reports that it is silent."""
    assert after_failover(stable(in_sync=(A, B)), promised((B, 5))) == (A, B)
    damaged = [*promised((B, 5)), says("c", replace(of(C, 4, 7), damaged="its file"))]
    assert after_failover(stable(), damaged) == (A, B, C)
    in_transition = moving(ALLOW)
    assert A in after_failover(in_transition, promised((B, 5), (C, 7)))


# --- in sync


def all_hold(record: Partition, **owner: object) -> list[Status]:
    here = {replica.node: replica for replica in (*OLD, D)}
    assert record.owner is not None
    owns = record.owner.replica
    return [
        says(node, of(replica, **(owner if replica == owns else {})))  # type: ignore[arg-type]
        for node, replica in here.items()
    ]


def changed(
    record: Partition, *statuses: Status, live: tuple[str, ...] = NODES
) -> tuple[ClusterView, Commit | None]:
    agreed = cluster(record, intends(), live)
    view = seen(agreed, *statuses)
    return view, ownership.change_in_sync(view, record)


def test_nothing_changes_while_everybody_is_well() -> None:
    assert changed(stable(), *all_hold(stable()))[1] is None
    assert changed(stable())[1] is None


@pytest.mark.parametrize("why", ["not hold the replica", "does not answer"])
def test_who_is_lost_or_silent_is_taken_out_by_a_commit(why: str) -> None:
    statuses = all_hold(stable())
    if why == "not hold the replica":
        statuses[1] = says("b")
    else:
        statuses = all_hold(stable(), silent=(B,))
    view, commit = changed(stable(), *statuses)
    assert next_record(view.agreed, commit) == stable(in_sync=(A, C))
    assert commit is not None
    assert why in commit.why


def test_who_is_gone_is_taken_out_only_on_a_report_of_the_owner_under_its_present_lease() -> None:
    """S114: if all nodes stop at once, the followers' leases may end first. Nobody reports them, so
    they stay in sync, and may be elected when they return."""
    gone = ("a", "d")
    assert changed(stable(), live=gone)[1] is None
    assert changed(stable(), *all_hold(stable())[:1], live=gone)[1] is None
    earlier = says("a", of(A, silent=(B, C)), lease=99)
    assert changed(stable(), earlier, live=gone)[1] is None
    view, commit = changed(stable(), *all_hold(stable(), silent=(B, C))[:1], live=gone)
    assert next_record(view.agreed, commit) == eligible((B, C), in_sync=(A,))


# --- eligible


def eligible(
    replicas: tuple[Replica, ...],
    in_sync: tuple[Replica, ...],
    owner: Replica | None = A,
    epoch: int = 3,
) -> Partition:
    return replace(stable(in_sync=in_sync, owner=owner, epoch=epoch), eligible=replicas)


def test_who_leaves_too_few_in_sync_stays_eligible_and_who_left_before_does_not() -> None:
    """S114: a replica that left while enough stayed in sync may miss acknowledged rows."""
    record = stable(in_sync=(A, C))
    view, commit = changed(record, *all_hold(record, silent=(C,)))
    assert next_record(view.agreed, commit) == eligible((C,), in_sync=(A,))


def test_who_is_lost_or_damaged_is_not_eligible() -> None:
    record = stable(in_sync=(A, C))
    statuses = all_hold(record)
    statuses[2] = says("c")
    view, commit = changed(record, *statuses)
    assert next_record(view.agreed, commit) == stable(in_sync=(A,))
    record = eligible((B, C), in_sync=(A,))
    statuses[1] = says("b", replace(of(B), damaged="its file"))
    view, commit = changed(record, *statuses)
    assert next_record(view.agreed, commit) == stable(in_sync=(A,))
    assert commit is not None
    assert commit.why == "p: fewer replicas are eligible"


def test_a_closed_owner_opens_alone_if_all_that_are_left_are_needed() -> None:
    """Whoever is elected would have to wait for the others, perhaps for ever. While a third replica
    may return, the owner waits: then it or the others can be lost for good."""
    record = stable(in_sync=(A, C))
    closed = says("a", replace(of(A, last=5, silent=(C,)), watermark=4))
    for others in ((), (says("b"),)):
        view, commit = changed(record, closed, *others, live=("a", "b", "d"))
        assert next_record(view.agreed, commit) == eligible((C,), in_sync=(A,))
    waiting = eligible((C,), in_sync=(A,))
    assert changed(waiting, closed, live=("a", "b", "d"))[1] is None
    view, commit = changed(waiting, closed, says("b"), live=("a", "b", "d"))
    assert next_record(view.agreed, commit) == stable(in_sync=(A,))


def test_a_closed_owner_does_not_wait_for_a_replica_that_must_be_rebuilt() -> None:
    """S114: its log no longer reaches back to that replica, and only an open owner can fill it."""
    waiting = eligible((C,), in_sync=(A,))
    statuses = (says("a", replace(BEHIND, unreachable=(B,))), says("b", of(B)))
    view, commit = changed(waiting, *statuses, live=("a", "b", "d"))
    assert next_record(view.agreed, commit) == stable(in_sync=(A,))
    unchanged = (says("a", BEHIND), says("b", of(B)))
    assert changed(waiting, *unchanged, live=("a", "b", "d"))[1] is None


BEHIND = replace(of(A, last=5), watermark=4)


@pytest.mark.parametrize(
    "status",
    [
        says("a", BEHIND, generation=49),
        says("a", of(A, last=5)),
        says("a", replace(BEHIND, open_epoch=3)),
        says("a", BEHIND, lease=99),
    ],
    ids=["before the election", "all is committed", "open", "an earlier run"],
)
def test_an_owner_is_closed_only_if_it_says_so_of_this_record(status: Status) -> None:
    """S114: otherwise another replica that has every row could not be elected any more."""
    waiting = eligible((C,), in_sync=(A,))
    assert changed(waiting, status, says("b"), live=("a", "b", "d"))[1] is None


def test_a_failover_of_an_owner_that_was_started_again_keeps_who_is_eligible() -> None:
    """S114: what it says under its new lease is not about its time as the owner."""
    record = replace(eligible((C,), in_sync=(A,)), owner=Grant(A, 99))
    agreed = cluster(record, live=("a", "b", "d"))
    view = seen(agreed, says("a", BEHIND), says("b"))
    after = next_record(agreed, ownership.fail_over(view, record))
    assert after == eligible((C,), in_sync=(A,), owner=None, epoch=4)


def test_once_enough_are_in_sync_again_nobody_is_eligible() -> None:
    record = eligible((B, C), in_sync=(A,))
    view, commit = changed(record, *all_hold(record, caught_up=((B, 50),)))
    assert next_record(view.agreed, commit) == stable(in_sync=(A, B))


def test_while_too_few_are_in_sync_the_others_stay_eligible() -> None:
    record = eligible((B, C), in_sync=(A,))
    assert changed(record, *all_hold(record))[1] is None
    agreed = apply(cluster(record), (Put(Zone(ZONE, 3, 3)),), 60)
    view = seen(agreed, *all_hold(record, caught_up=((B, 50),), open_epoch=3))
    commit = ownership.change_in_sync(view, record)
    assert next_record(agreed, commit) == eligible((C,), in_sync=(A, B))


def test_if_fewer_are_needed_by_now_a_commit_says_so() -> None:
    """The owner goes by the record alone, so it can't run ahead of this commit."""
    record = eligible((B, C), in_sync=(A,))
    agreed = apply(cluster(record), (Put(Zone(ZONE, 3, 1)),), 60)
    commit = ownership.change_in_sync(seen(agreed, *all_hold(record)), record)
    assert next_record(agreed, commit) == stable(in_sync=(A,))


def test_an_eligible_replica_is_elected_and_is_in_sync_then() -> None:
    """S114: the owner never returns."""
    record = eligible((B, C), in_sync=(A,), owner=None, epoch=4)
    after = elected(record, *promised((B, 5), (C, 7)), live=("b", "c", "d"))
    assert after == eligible((B, A), in_sync=(C,), owner=C, epoch=4)


def test_after_an_election_all_others_that_have_every_row_are_eligible() -> None:
    """S114: a dead owner does not count among those in sync, so that the next death leaves a
    replica that can be elected. Who was in sync is eligible, too."""
    five = (*OLD, D, E)
    record = replace(stable(five, in_sync=(A, B), owner=None, epoch=4), eligible=(C, D))
    agreed = apply(cluster(record, live=("b", "c", "d")), (Put(Zone(ZONE, 5)),), 51)
    commit = ownership.elect(seen(agreed, *promised((B, 7), (C, 5), (D, 5))), record)
    after = next_record(agreed, commit)
    assert (after.in_sync, after.eligible) == ((B,), (C, D, A))


def test_if_the_elected_replica_is_damaged_those_in_sync_stay() -> None:
    """They may have the rows that it can't read."""
    record = eligible((C,), in_sync=(A,), owner=None, epoch=4)
    damaged = says("c", replace(of(C, 4, 7), damaged="its file"))
    after = elected(record, damaged, live=("c", "d"))
    assert after == stable(in_sync=(A, C), owner=C, epoch=4)


@pytest.mark.parametrize("promises", [True, False])
def test_a_replica_that_a_move_made_and_that_misses_an_election_gives_the_move_up(
    promises: bool,
) -> None:
    """F104: as if it were taken out. The rest of the old side stays in sync, for the way back."""
    moved = moving(READ_NEW, targets=(B, C, D), in_sync=(A, D), epoch=4)
    record = replace(without_owner(moved), eligible=(B, C))
    more = promised((D, 4)) if promises else []
    live = ("a", "b", "d") if promises else ("a", "b")
    after = elected(record, *promised((B, 5)), *more, live=live)
    assert isinstance(after, Partition)
    assert after.transition is not None
    assert (after.in_sync, after.eligible) == ((A, B), (C, D))
    gone = "" if promises else "d did not take part in the election"
    assert (after.transition.stage, after.transition.giving_up) == (READ_NEW, gone)


def test_a_replica_that_is_neither_in_sync_nor_eligible_is_not_elected() -> None:
    record = eligible((C,), in_sync=(A,), owner=None, epoch=4)
    said = elected(record, *promised((B, 9)), live=("b", "d"))
    assert said == (
        "election: no replica that has every acknowledged row is alive: start one of a, c"
    )


def test_a_failover_keeps_who_is_eligible() -> None:
    record = eligible((B, C), in_sync=(A,))
    agreed = cluster(record, live=("b", "c"))
    after = next_record(agreed, ownership.fail_over(seen(agreed), record))
    assert after == eligible((B, C), in_sync=(A,), owner=None, epoch=4)


def test_who_will_be_dropped_by_a_transition_is_eligible_while_it_is_read() -> None:
    """S114: if the owner and those that stay die, it is elected."""
    record = replace(moving(STREAMING, targets=(A, B, D)), in_sync=(A, C, D))
    view, commit = changed(record, *all_hold(record, silent=(C,)))
    after = next_record(view.agreed, commit)
    assert (after.in_sync, after.eligible) == ((A, D), (C,))
    gone = without_owner(replace(after, epoch=4))
    chosen = elected(gone, *promised((C, 5)), live=("c", "d"))
    assert isinstance(chosen, Partition)
    assert chosen.owner == Grant(C, LEASES["c"])
    assert (chosen.in_sync, chosen.eligible) == ((D, C), (A,))


@pytest.mark.parametrize("others", [(B,), (C,), (B, C)])
def test_who_will_be_dropped_by_a_transition_may_return_if_too_few_are_in_sync(
    others: tuple[Replica, ...],
) -> None:
    """S114: the owner commits nothing before."""
    record = replace(moving(STREAMING, targets=(A, B, D), in_sync=(A, D)), eligible=others)
    view, commit = changed(record, *all_hold(record, caught_up=((C, 50),)))
    after = next_record(view.agreed, commit)
    assert (after.in_sync, after.eligible) == ((A, D, C), ())


@pytest.mark.parametrize("live", [("a", "d"), ("a", "c", "d")])
def test_a_closed_owner_opens_alone_if_a_transition_drops_dead_replicas(
    live: tuple[str, ...],
) -> None:
    """Otherwise a partition could never be moved away from nodes that died for good. A live replica
    is waited for, though it will be dropped."""
    record = replace(moving(STREAMING, targets=(A, D, E), in_sync=(A, D, E)), eligible=(B, C))
    view, commit = changed(record, says("a", BEHIND), live=live)
    if "c" in live:
        assert commit is None
    else:
        assert next_record(view.agreed, commit).eligible == ()


@pytest.mark.parametrize("eligible", [(B, C), (C,), (B,)])
def test_a_closed_owner_waits_during_a_move_as_at_any_time(eligible: tuple[Replica, ...]) -> None:
    """S114: if the owner is lost for good, those that were down are elected when they return."""
    record = replace(moving(STREAMING, targets=(A, B, D), in_sync=(A, D)), eligible=eligible)
    assert changed(record, says("a", BEHIND), live=("a", "d"))[1] is None


@pytest.mark.parametrize("damaged", [False, True])
def test_silent_replicas_leave_together_unless_the_owner_is_damaged(damaged: bool) -> None:
    owner = replace(of(A, silent=(B, C)), damaged="its file" if damaged else "")
    view, commit = changed(stable(), says("a", owner), says("b", of(B)), says("c", of(C)))
    after = next_record(view.agreed, commit)
    assert after.in_sync == ((A, C) if damaged else (A,))


def test_the_owner_is_never_taken_out_by_this() -> None:
    statuses = all_hold(stable(), silent=(A,))
    statuses[0] = says("a")
    assert changed(stable(), *statuses)[1] is None


def test_who_has_caught_up_at_this_revision_is_put_back() -> None:
    record = stable(in_sync=(A, B))
    view, commit = changed(record, *all_hold(record, caught_up=((C, 50),)))
    assert next_record(view.agreed, commit) == stable(in_sync=(A, B, C))


def test_who_had_caught_up_at_an_older_revision_is_not() -> None:
    record = stable(in_sync=(A, B))
    assert changed(record, *all_hold(record, caught_up=((C, 49),)))[1] is None


def test_who_had_caught_up_and_is_silent_by_now_is_not() -> None:
    """It would be taken out again at once."""
    record = stable(in_sync=(A, B))
    assert changed(record, *all_hold(record, caught_up=((C, 50),), silent=(C,)))[1] is None


def test_who_does_not_hold_its_replica_is_not() -> None:
    record = stable(in_sync=(A, B))
    statuses = all_hold(record, caught_up=((C, 50),))
    statuses[2] = says("c")
    assert changed(record, *statuses)[1] is None


def test_who_is_left_behind_by_a_transition_is_not_put_back() -> None:
    record = moving(STREAMING, in_sync=(B, C, D), owner=B)
    statuses = [says("b", of(B, caught_up=((A, 50),))), *all_hold(record)[2:]]
    assert changed(record, *statuses)[1] is None


@pytest.mark.parametrize("stage", [WRITE_BOTH, STREAMING])
def test_taking_out_what_a_transition_makes_gives_the_transition_up(stage: str) -> None:
    """F104: in the same commit, so that nothing is acknowledged in between."""
    record = moving(stage)
    view, commit = changed(record, *all_hold(record, silent=(D,)), live=("a", "b", "c"))
    after = next_record(view.agreed, commit)
    assert after.transition is not None
    assert after.transition.stage == CLEANUP_TARGET
    assert after.transition.session is None
    assert "d is taken out" in after.transition.giving_up
    assert set(after.in_sync) == set(OLD)


def test_once_the_new_side_is_read_taking_out_only_prepares_to_give_up() -> None:
    record = moving(READ_NEW, owner=B)
    view, commit = changed(record, *all_hold(record, silent=(D,)), live=("a", "b", "c"))
    after = next_record(view.agreed, commit)
    assert after.transition is not None
    assert (after.transition.stage, bool(after.transition.giving_up)) == (READ_NEW, True)
    assert set(after.in_sync) == set(OLD)


def test_where_there_is_no_way_back_it_is_only_taken_out() -> None:
    record = moving(USE_NEW, owner=B)
    view, commit = changed(record, *all_hold(record, silent=(D,)), live=("a", "b", "c"))
    after = next_record(view.agreed, commit)
    assert after == moving(USE_NEW, owner=B, in_sync=(B, C))


def test_an_old_replica_can_be_taken_out_without_giving_up() -> None:
    record = moving(STREAMING)
    view, commit = changed(record, *all_hold(record, silent=(B,)), live=("a", "c", "d"))
    after = next_record(view.agreed, commit)
    assert after == moving(STREAMING, in_sync=(A, C, D))


def test_entering_a_stage_counts_on_the_new_side_only_under_a_session() -> None:
    """Nobody waits for the new side before it is prepared."""
    record = moving(ALLOW)
    assert set(record.in_sync) == set(OLD)
    both = ownership.enter(record, WRITE_BOTH)
    assert set(both.in_sync) == {*OLD, *NEW}
    assert both.transition is not None
    assert both.transition.session == "t9@3"
    again = ownership.enter(both, STREAMING)
    assert again.in_sync == both.in_sync
    back = ownership.given_up(again, "because", "cluster")
    assert set(back.in_sync) == set(OLD)
    assert back.transition is not None
    assert back.transition.stage == CLEANUP_TARGET
    assert back.transition.giving_up == "because"
    assert back.transition.given_up_by == "cluster"
