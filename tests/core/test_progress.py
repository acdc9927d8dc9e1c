"""How far is a run, and what does it wait for, in words that a person can act upon?"""

import pytest
from msgspec.structs import replace

from limosa.core.insight.explaining import NOTHING, about, explain
from limosa.core.insight.progress import NO_COORDINATOR, Progress, progress, waits_of
from limosa.core.machines.catalogue import READ_NEW, STREAMING
from limosa.core.model.changes import COORDINATOR_KEY, Remove
from limosa.core.model.requests import (
    CancelRun,
    FollowNodes,
    JoinCluster,
    LockCluster,
    MovePartition,
    PauseRun,
    RepairPartition,
    ResumeRun,
    SetBalancing,
    StartRun,
    UnlockCluster,
)
from limosa.core.model.runs import Estimate, Limits, RunPlan
from limosa.core.model.topology import Node
from limosa.errors import IllegalRequest
from tests.core.running import ONE_AT_A_TIME, Cluster, move, plan

THREE = plan(move("p0", "a", "b"), move("p1", "a", "c"), move("p2", "a", "d"))
SERIAL = replace(THREE, limits=ONE_AT_A_TIME)


def running(some: RunPlan = SERIAL, **more: object) -> Cluster:
    cluster = Cluster(**more)  # type: ignore[arg-type]
    assert cluster.ask(StartRun(some)).startswith("done")
    cluster.step()
    return cluster


def of(cluster: Cluster) -> Progress:
    return progress(cluster.view(), cluster.last_run().id)


def test_the_sums_match_and_what_is_completed_never_becomes_less() -> None:
    """F72: at every step of a run in which one move fails for good."""
    cluster = running(replace(THREE, limits=Limits(9, 9)))
    completed = 0
    seen = [of(cluster)]
    for _ in range(3):
        cluster.revert("p0")
        for _ in range(4):
            cluster.step()
            cluster.now += cluster.settings.retry_seconds
            seen.append(of(cluster))
    for name in ("p1", "p2"):
        cluster.stage(name, STREAMING)
        cluster.settle()
        seen.append(of(cluster))
        cluster.complete(name, pause_seconds=0.2)
        cluster.settle()
        seen.append(of(cluster))
    for each in seen:
        assert each.pending + each.in_flight + each.committed + each.failed == each.total == 3
        assert each.committed >= completed
        completed = each.committed
    last = seen[-1]
    assert (last.state, last.committed, last.failed, last.waits) == ("idle", 2, 1, ())
    assert (last.pause_seconds, last.seconds_left) == (0.2, None)
    assert last.run.outcome == "failed-in-part"


def test_rows_bytes_rate_and_time_left() -> None:
    """F72: by what was committed and what has arrived, against what was estimated."""
    cluster = running(replace(SERIAL, estimate=Estimate(bytes=3000)))
    cluster.stage("p0", STREAMING)
    cluster.settle()
    cluster.say("b", {"p0": (5, 500)})
    cluster.now += 10
    half = of(cluster)
    assert (half.rows, half.bytes, half.bytes_per_second) == (5, 500, 50.0)
    assert (half.seconds, half.seconds_left) == (10, 50.0)
    assert [each.partition for each in half.current] == ["p0"]


def test_without_an_estimate_the_time_left_is_told_by_moves() -> None:
    cluster = running()
    assert of(cluster).seconds_left is None, "no time has gone by"
    cluster.now += 10
    assert of(cluster).seconds_left is None, "nothing is known yet"
    cluster.complete("p0")
    cluster.settle()
    assert of(cluster).seconds_left == 20.0
    cluster.ask(PauseRun())
    assert of(cluster).seconds_left is None


def test_a_held_move_and_one_that_goes_back_say_so() -> None:
    """A held move is shown as COPYING, detail `held`."""
    cluster = running(replace(SERIAL, hold_seconds=60.0))
    assert [(each.state, each.detail) for each in of(cluster).current] == [("DUAL_WRITE", "")]
    cluster.stage("p0", READ_NEW)
    cluster.settle()
    assert [(each.state, each.detail) for each in of(cluster).current] == [("COPYING", "held")]
    assert of(cluster).held == ("p0",)
    cluster.stage("p0", READ_NEW, released=True)
    assert [each.detail for each in of(cluster).current] == [""]
    assert of(cluster).held == ()
    cluster.stage("p0", READ_NEW, giving_up="reversed by request", given_up_by="operator")
    assert [each.detail for each in of(cluster).current] == ["goes back: reversed by request"]


def test_a_run_that_is_not_there_is_an_error() -> None:
    with pytest.raises(IllegalRequest, match="there is no run r1"):
        progress(Cluster().view(), "r1")


def test_figures_of_a_dropped_partition_are_nothing() -> None:
    cluster = running()
    cluster.say("b", {})
    cluster.agreed = replace(
        cluster.agreed, topology=replace(cluster.agreed.topology, partitions={})
    )
    assert (of(cluster).rows, of(cluster).current[0].detail) == (0, "")


# --- what it waits for


def test_every_wait_of_a_run_has_its_sentence() -> None:
    cluster = running()
    assert of(cluster).waits == ("a is at its limit of 1 moves away from it at once",)
    cluster.complete("p0")
    cluster.ask(PauseRun())
    cluster.settle()
    assert of(cluster).waits == ("the run is paused; `resume` continues it",)
    cluster.ask(ResumeRun())
    cluster.ask(LockCluster("an audit"))
    assert of(cluster).waits == ("the cluster is locked: an audit",)
    cluster.ask(UnlockCluster())
    request = cluster.waiting(FollowNodes("z"))
    assert of(cluster).waits == (f"the request {request.id} (follow_nodes) is served first",)
    cluster.ask(CancelRun())
    assert of(cluster).waits == (
        "the run is being cancelled: moves in flight are reverted or completed",
    )
    cluster.change(Remove(COORDINATOR_KEY))
    assert of(cluster).waits[0] == NO_COORDINATOR


def test_the_nodes_that_are_at_their_limit_are_named() -> None:
    some = plan(*(move(f"p{n}", "a", "b") for n in range(3)), limits=Limits(1, 9))
    assert of(running(some)).waits == ("b is at its limit of 1 moves to it at once",)


def test_without_balancing_the_balancers_run_says_so() -> None:
    cluster = running(replace(SERIAL, by="balancer"))
    cluster.ask(SetBalancing(False))
    assert of(cluster).waits == ("balancing is off",)


def test_a_move_that_is_tried_again_says_why() -> None:
    cluster = running()
    cluster.revert("p0", "b died")
    cluster.step()
    assert of(cluster).waits[0] == (
        "the move of p0 failed (b died) and is tried again: 1 of 3 attempts are over"
    )


def test_a_change_that_comes_first_is_named() -> None:
    cluster = Cluster()
    cluster.ask(StartRun(plan(move("p0", "a", "b"))))
    assert waits_of(cluster.view(), cluster.run) == ()
    cluster.waiting(RepairPartition("p0"))
    assert waits_of(cluster.view(), cluster.run) == ("the request q2 about p0 comes first",)


# --- of one partition


def explained(cluster: Cluster, partition: str) -> str:
    view = cluster.view()
    view.agreed = about(view.agreed, partition)
    return explain(view, view.agreed.topology.partitions[partition], 0.0).waits_for


def test_a_partition_tells_what_its_move_waits_for() -> None:
    """From no more than what a node answers with."""
    cluster = running()
    run = cluster.run.id
    assert explained(cluster, "p2") == f"its turn in run {run}: it begins when its nodes have room"
    cluster.ask(PauseRun())
    assert (
        explained(cluster, "p2")
        == f"its turn in run {run}: the run is paused; `resume` continues it"
    )
    cluster.revert("p0", "b died")
    cluster.step()
    assert explained(cluster, "p0").startswith("the move of p0 failed (b died)")


def test_a_partition_whose_move_is_over_waits_for_nothing() -> None:
    cluster = running()
    cluster.revert("p0", "cancelled", "operator")
    cluster.settle()
    assert explained(cluster, "p0") == NOTHING
    cluster.complete("p1")
    cluster.settle()
    assert explained(cluster, "p1") == NOTHING
    cluster.ask(CancelRun())
    cluster.settle()
    assert explained(cluster, "p2") == NOTHING


def test_a_request_that_is_deferred_says_by_what() -> None:
    cluster = running()
    cluster.ask(LockCluster("an audit"))
    cluster.waiting(MovePartition("p2", source="a", target=None))
    assert explained(cluster, "p2") == (
        "the coordinator's answer to the request q3 (move): the cluster is locked: an audit"
    )
    cluster.waiting(JoinCluster(Node("e"), "x"))
    assert "q4" in about(cluster.agreed, "p2").requests
