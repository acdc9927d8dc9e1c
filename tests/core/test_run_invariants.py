"""Is each invariant of runs tripped by the commit that breaks it, and by that one only?"""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from limosa.core import invariants
from limosa.core.invariants import broken
from limosa.core.machines.catalogue import READ_NEW
from limosa.core.model.changes import Agreed, Change, Put, Remove, apply, run_move_key
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    CancelRun,
    DrainNodes,
    LockCluster,
    PauseRun,
    SetBalancing,
    StartRun,
)
from limosa.core.model.runs import Controls, Rebalance, Run, RunMove, RunPlan
from limosa.core.model.topology import Node, Replica
from tests.core.running import ONE_AT_A_TIME, Cluster, move, plan

Invariant = Callable[[Agreed, Agreed], Iterable[str]]
Bad = Callable[[Cluster], tuple[Change, ...]]

SERIAL = plan(
    move("p0", "a", "b"), move("p1", "a", "c"), move("p2", "a", "d"), limits=ONE_AT_A_TIME
)


def idle() -> Cluster:
    return Cluster()


def begun(some: RunPlan = SERIAL) -> Cluster:
    """The first move is in flight, the others wait."""
    cluster = Cluster()
    assert cluster.ask(DrainNodes(some) if some.drains else StartRun(some)).startswith("done")
    cluster.step()
    return cluster


def paused() -> Cluster:
    cluster = begun()
    cluster.ask(PauseRun())
    return cluster


def locked() -> Cluster:
    cluster = begun()
    cluster.ask(LockCluster())
    return cluster


def unbalanced() -> Cluster:
    cluster = begun(replace(SERIAL, by="balancer"))
    cluster.ask(SetBalancing(False))
    return cluster


def committed() -> Cluster:
    cluster = begun()
    cluster.complete("p0")
    cluster.settle()
    return cluster


def failed() -> Cluster:
    cluster = begun()
    cluster.revert("p0", "cancelled", "operator")
    cluster.step()
    return cluster


def ended() -> Cluster:
    cluster = begun()
    cluster.ask(CancelRun())
    cluster.settle()
    return cluster


def draining() -> Cluster:
    return begun(replace(SERIAL, drains=("a",)))


def change_move(number: int, **what: object) -> Bad:
    return lambda cluster: (Put(replace(cluster.moves()[number], **what)),)


def end_with(outcome: str) -> Bad:
    """It is idle, and the run has this outcome."""
    return lambda cluster: (Put(Rebalance()), Put(replace(cluster.run, outcome=outcome)))


def put(*records: Rebalance | Run | Controls | Node) -> Bad:
    return lambda cluster: tuple(map(Put, records))


def start_again(cluster: Cluster) -> tuple[Change, ...]:
    return (Put(Rebalance("running", "r9")), Put(replace(cluster.run, id="r9", moves=0)))


def leave(cluster: Cluster) -> tuple[Change, ...]:
    return (Put(replace(cluster.agreed.topology.nodes["a"], state="left")),)


def come_back(cluster: Cluster) -> tuple[Change, ...]:
    record = cluster.record("p0")
    more = (*record.replicas, Replica("e", "late"))
    places = tuple(Placement(each.node) for each in more)
    return Put(replace(record, replicas=more)), Put(
        replace(cluster.agreed.intents["p0"], stable=places)
    )


def with_one_that_left() -> Cluster:
    cluster = Cluster()
    cluster.put(Node("e", state="left"))
    return cluster


def forget_a_move(cluster: Cluster) -> tuple[Change, ...]:
    return (Remove(run_move_key(cluster.run.id, 2)),)


CASES: list[tuple[Invariant, Callable[[], Cluster], Bad, str]] = [
    # the invariant, the state before, the bad commit, and what is said
    (
        invariants.nodes_that_left_hold_nothing,
        draining,
        leave,
        "a has left, and holds a replica of",
    ),
    (
        invariants.nodes_that_left_hold_nothing,
        with_one_that_left,
        come_back,
        "e has left, and holds a replica of p0",
    ),
    (
        invariants.one_run_at_a_time,
        begun,
        start_again,
        "have not ended, but the rebalance is running",
    ),
    (
        invariants.one_run_at_a_time,
        begun,
        put(Rebalance()),
        "have not ended, but the rebalance is idle []",
    ),
    (invariants.the_checkpoint_holds_all_moves, begun, forget_a_move, "has 3 moves, and not all"),
    (
        invariants.a_rebalance_follows_its_life,
        idle,
        put(Rebalance("paused", "r1"), Run("r1", "", 0)),
        "the rebalance went from idle to paused",
    ),
    (invariants.a_rebalance_follows_its_life, begun, start_again, "r9 began before"),
    (
        invariants.a_run_stays_what_it_was,
        begun,
        lambda cluster: (Put(replace(cluster.run, action="another")),),
        "was changed",
    ),
    (
        invariants.a_run_stays_what_it_was,
        ended,
        lambda cluster: (Put(replace(cluster.last_run(), words="another")),),
        "was changed",
    ),
    (invariants.moves_follow_their_life, begun, change_move(1, state="COPYING"), "went from PEND"),
    (invariants.moves_follow_their_life, begun, change_move(1, source="b"), "is another move"),
    (invariants.moves_follow_their_life, begun, change_move(0, attempts=4), "was tried 4 times"),
    (
        invariants.moves_follow_their_life,
        begun,
        lambda cluster: (Put(RunMove(cluster.run.id, 9, "p0", "a", Placement("b"), "COMMITTED")),),
        "began as COMMITTED",
    ),
    (
        invariants.moves_begin_only_when_they_may,
        paused,
        change_move(1, state="DUAL_WRITE"),
        "p1 began, but",
    ),
    (
        invariants.moves_begin_only_when_they_may,
        locked,
        change_move(1, state="DUAL_WRITE"),
        "p1 began, though the cluster is locked",
    ),
    (
        invariants.moves_begin_only_when_they_may,
        unbalanced,
        change_move(1, state="DUAL_WRITE"),
        "p1 began, though balancing is off",
    ),
    (
        invariants.runs_keep_their_limits,
        begun,
        change_move(1, state="DUAL_WRITE"),
        "2 moves away from a at once, and 1 are allowed",
    ),
    (
        invariants.committed_means_switched,
        begun,
        change_move(0, state="COMMITTED"),
        "p0 in r18 is committed, and did not switch",
    ),
    (
        invariants.failed_means_ended,
        begun,
        change_move(0, state="FAILED"),
        "failed, and is still under way",
    ),
    (
        invariants.moves_that_an_operator_stopped_are_not_retried,
        failed,
        change_move(0, state="PENDING"),
        "was stopped by an operator, and is retried",
    ),
    (invariants.an_ended_run_leaves_no_work, begun, end_with("cancelled"), "of p0 has not"),
    (
        invariants.an_ended_run_leaves_no_work,
        committed,
        end_with("failed-in-part"),
        "failed-in-part, and its move of p2 was not made",
    ),
    (invariants.an_ended_run_leaves_no_work, failed, end_with("done"), "of p0 is FAILED"),
    (
        invariants.an_ended_run_leaves_no_work,
        draining,
        end_with("cancelled"),
        "was cancelled, and a is still being emptied",
    ),
]
TRIPPED = {case[0] for case in CASES}


@pytest.mark.parametrize(("invariant", "before", "bad", "words"), CASES)
def test_a_commit_that_breaks_it_is_found(
    invariant: Invariant, before: Callable[[], Cluster], bad: Bad, words: str
) -> None:
    """F55, F58, F62, F63, F65, F87, F94, F143: and S28, S36."""
    cluster = before()
    after = apply(cluster.agreed, bad(cluster), cluster.agreed.revision + 1)
    problems = list(invariant(cluster.agreed, after))
    assert any(words in each for each in problems), problems
    assert set(problems) <= set(broken(cluster.agreed, after))


def test_a_move_in_its_new_place_is_not_committed_before_nobody_reads_the_old_one() -> None:
    """F62: COMMITTED means use_new."""
    cluster = begun()
    cluster.stage("p0", READ_NEW)
    bad = change_move(0, state="COMMITTED")(cluster)
    after = apply(cluster.agreed, bad, cluster.agreed.revision + 1)
    assert list(invariants.committed_means_switched(cluster.agreed, after)) == [
        f"p0 in {cluster.run.id} is committed, and did not switch"
    ]
