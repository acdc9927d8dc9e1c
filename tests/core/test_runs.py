"""What does a run do next? Every step is computed from what is agreed, by whoever coordinates."""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import requests, run_ends, run_moves, run_starts
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.turns import deferred, topology_request_waits
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import MakeCommit
from limosa.core.events import AgreedRead, Elected, Ticked
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.model.changes import (
    CONTROLS_KEY,
    COORDINATOR_KEY,
    REBALANCE_KEY,
    Remove,
    intent_key,
    layout_key,
    partition_key,
    request_key,
    run_key,
    run_move_key,
    table_key,
)
from limosa.core.model.intent import Assignment, Intent, Placement
from limosa.core.model.keys import TOKEN_MIN
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    CancelRun,
    CreateTable,
    DrainNodes,
    DropTable,
    FollowNodes,
    JoinCluster,
    LockCluster,
    MovePartition,
    PauseRun,
    RebuildReplicas,
    RepairPartition,
    ResumeRun,
    SetBalancing,
    StartRun,
    UnlockCluster,
)
from limosa.core.model.runs import IN_FLIGHT, Limits, RunMove, RunPlan
from limosa.core.model.topology import Layout, NamedTable, Node, NodeLease, Zone
from tests.core.running import OFFICE, ONE_AT_A_TIME, Cluster, move, plan

THREE = plan(move("p0", "a", "b"), move("p1", "a", "c"), move("p2", "a", "d"))
SERIAL = replace(THREE, limits=ONE_AT_A_TIME)


def running(some: RunPlan = THREE, **more: object) -> Cluster:
    cluster = Cluster(**more)  # type: ignore[arg-type]
    assert cluster.ask(StartRun(some)).startswith("done")
    cluster.step()
    return cluster


# --- begin


def test_moves_begin_by_intent_in_their_order_as_far_as_the_limits_allow() -> None:
    """F61, F62: two may leave a at once, so the third waits."""
    cluster = running()
    assert cluster.states() == ["DUAL_WRITE", "DUAL_WRITE", "PENDING"]
    assert cluster.run.starts == 2
    first = cluster.moves()[0]
    pending = cluster.agreed.intents["p0"].pending
    assert pending is not None
    assert (pending.kind, pending.placements) == ("move", (Placement("b"),))
    assert pending.trigger == first.trigger == cluster.agreed.intents["p0"].change > 0
    assert (first.attempts, first.began) == (1, cluster.now)
    assert cluster.step() == [], "nothing more, until something happens"


def test_what_a_move_is_asked_with_comes_from_its_run() -> None:
    cluster = running(replace(THREE, hold_seconds=3.0, max_pause_seconds=0.5))
    pending = cluster.agreed.intents["p0"].pending
    assert pending is not None
    assert (pending.hold_seconds, pending.max_pause_seconds) == (3.0, 0.5)


def test_a_beginning_is_guarded_by_all_that_it_was_computed_from() -> None:
    """Of two who count at once what is in flight, only one begins another."""
    cluster = Cluster()
    cluster.ask(StartRun(THREE))
    run = cluster.run.id
    (commit,) = cluster.step()
    assert {COORDINATOR_KEY, REBALANCE_KEY, CONTROLS_KEY, run_key(run)} <= set(commit.guards)
    assert {run_move_key(run, 0), intent_key("p0"), partition_key("p0")} <= set(commit.guards)
    assert commit.guards[COORDINATOR_KEY] == OFFICE
    assert run_move_key(run, 2) not in commit.guards


def test_as_many_are_in_flight_as_may_be_until_the_last_has_begun() -> None:
    """F90: each that ends makes room for the next, at once."""
    moves = [move(f"p{number}", "a", "bcd"[number % 3]) for number in range(9)]
    cluster = running(plan(*moves, limits=Limits(2, 3)), partitions=9)
    for ended in range(9):
        in_flight = [each.partition for each in cluster.moves() if each.state in IN_FLIGHT]
        assert len(in_flight) == min(3, 9 - ended)
        cluster.complete(in_flight[0])
        cluster.settle()
    assert cluster.last_run().outcome == "done"


def test_a_busy_node_does_not_block_moves_of_others() -> None:
    """F93: the moves out of a wait for each other, that of c to d does not."""
    homes = (("a",), ("a",), ("a",), ("c",))
    some = plan(
        *(move(f"p{n}", "a", "b") for n in range(3)), move("p3", "c", "d"), limits=ONE_AT_A_TIME
    )
    cluster = running(some, homes=homes)
    assert cluster.states() == ["DUAL_WRITE", "PENDING", "PENDING", "DUAL_WRITE"]


@pytest.mark.parametrize(
    ("limits", "begun"),
    [(Limits(1, 9), 1), (Limits(2, 9), 2), (Limits(9, 1), 1), (Limits(9, 9), 3)],
)
def test_limits_count_both_ways(limits: Limits, begun: int) -> None:
    some = plan(*(move(f"p{n}", "a", "b") for n in range(3)), limits=limits)
    assert running(some).run.starts == begun


def test_what_others_move_counts_too() -> None:
    """What is in flight is counted in the topology, whoever began it."""
    cluster = Cluster(4)
    cluster.ask(StartRun(SERIAL))
    cluster.ask(MovePartition("p3", source="a", target=Placement("b")))
    cluster.stage("p3", STREAMING)
    assert cluster.step() == []
    cluster.complete("p3")
    cluster.step()
    assert cluster.states()[0] == "DUAL_WRITE"


def test_a_move_waits_for_another_change_of_its_partition() -> None:
    """Somebody else came first: the run goes on with others meanwhile."""
    cluster = Cluster()
    cluster.ask(StartRun(THREE))
    cluster.ask(MovePartition("p0", source="a", target=Placement("c")))
    cluster.settle()
    assert cluster.states() == ["PENDING", "DUAL_WRITE", "DUAL_WRITE"]
    waits = cluster.waiting(RebuildReplicas("p2", ("a",)))
    assert run_starts.busy(cluster.view(), replace(cluster.moves()[0], partition="p2"))
    cluster.change(Remove(request_key(waits.id)))
    cluster.revert("p0")
    cluster.complete("p1")
    cluster.settle()
    assert cluster.states() == ["DUAL_WRITE", "COMMITTED", "DUAL_WRITE"]


def test_a_waiting_request_about_the_partition_comes_first() -> None:
    cluster = Cluster()
    cluster.ask(StartRun(THREE))
    request = cluster.waiting(RepairPartition("p0"))
    cluster.settle()
    assert cluster.states() == ["PENDING", "DUAL_WRITE", "DUAL_WRITE"]
    assert f"the request {request.id} about p0" in run_starts.busy(
        cluster.view(), cluster.moves()[0]
    )


def test_a_move_that_another_request_overtook_has_failed() -> None:
    """Nobody may guess what is wanted now."""
    cluster = Cluster()
    cluster.ask(StartRun(SERIAL))
    cluster.ask(MovePartition("p0", source="a", target=Placement("c")))
    cluster.complete("p0")
    cluster.settle()
    first = cluster.moves()[0]
    assert (first.state, first.final) == ("FAILED", True)
    assert "another request moved the replica: a holds no replica of p0" in first.detail


def test_a_trigger_is_newer_than_the_last_change() -> None:
    """Otherwise the intent would skip it: the move's record is written again first."""
    cluster = Cluster()
    cluster.ask(StartRun(SERIAL))
    cluster.ask(MovePartition("p0", source="a", target=Placement("a")))
    change = cluster.agreed.intents["p0"].change
    (commit,) = cluster.step()
    assert "looks at its next moves" in commit.why
    assert cluster.states()[0] == "PENDING"
    cluster.settle()
    assert cluster.states()[0] == "DUAL_WRITE"
    assert cluster.agreed.intents["p0"].change == cluster.moves()[0].trigger > change


def test_two_replicas_of_a_partition_go_one_after_the_other() -> None:
    some = plan(move("p0", "a", "c"), move("p0", "b", "a"))
    cluster = running(some, homes=(("a", "b"),))
    assert cluster.states() == ["DUAL_WRITE", "PENDING"]
    cluster.complete("p0")
    cluster.settle()
    assert cluster.states() == ["COMMITTED", "DUAL_WRITE"]
    cluster.complete("p0")
    cluster.settle()
    assert cluster.last_run().outcome == "done"
    assert {replica.node for replica in cluster.record("p0").replicas} == {"a", "c"}


# --- on its way


@pytest.mark.parametrize(
    ("stage", "state"),
    [
        (ALLOW, "DUAL_WRITE"),
        (WRITE_BOTH, "DUAL_WRITE"),
        (STREAMING, "COPYING"),
        (READ_NEW, "COPYING"),
        (USE_NEW, "COMMITTED"),
        (CLEANUP, "COMMITTED"),
        (FALLBACK, "DUAL_WRITE"),
        (CLEANUP_TARGET, "DUAL_WRITE"),
    ],
)
def test_a_move_is_as_far_as_its_transition(stage: str, state: str) -> None:
    """F62: step by step, whatever was missed meanwhile."""
    cluster = running(SERIAL)
    cluster.stage("p0", stage)
    seen = ["DUAL_WRITE"]
    while cluster.step():
        seen.append(cluster.states()[0])
    assert seen == ["DUAL_WRITE", "COPYING", "COMMITTED"][: len(seen)]
    assert seen[-1] == state


def test_a_move_that_goes_back_stays_what_it_was_until_it_has_ended() -> None:
    """F64: it has failed when nothing of it is left."""
    cluster = running(SERIAL)
    cluster.stage("p0", STREAMING)
    cluster.settle()
    cluster.stage("p0", CLEANUP_TARGET)
    assert cluster.step() == []
    cluster.revert("p0")
    cluster.step()
    assert cluster.states()[0] == "FAILED"


def test_a_run_ends_with_its_figures_when_all_is_cleaned_up() -> None:
    """F61, F72: rows, bytes and the longest pause, of what was committed."""
    cluster = running(SERIAL)
    cluster.say("a", {"p0": (5, 500)})
    for number, name in enumerate(("p0", "p1", "p2")):
        cluster.stage(name, USE_NEW, pause_seconds=0.1 * number)
        target = cluster.moves()[number].target.node
        grant = replace(
            cluster.record(name),
            owner=replace(
                cluster.record(name).owner,  # type: ignore[type-var]
                replica=cluster.named(name)[-1],
                lease=cluster.agreed.leases[target].lease,
            ),
        )
        cluster.put(grant)
        cluster.say(target, {name: (10 + number, 1000)})
        cluster.settle()
        assert cluster.states()[number] == "COMMITTED"
        assert cluster.rebalance() == "running", "its old replica is not dropped yet"
        cluster.complete(name)
        cluster.settle()
    run = cluster.last_run()
    assert cluster.rebalance() == "idle"
    assert cluster.agreed.rebalance.run == ""
    assert (run.outcome, run.ended) == ("done", cluster.now)
    totals = run.totals
    assert (totals.committed, totals.failed, totals.never_started) == (3, 0, 0)
    assert (totals.rows, totals.bytes) == (33, 3000)
    assert totals.pause_seconds == pytest.approx(0.2)


@pytest.mark.parametrize("report", [True, False])
def test_how_an_attempt_ended_is_looked_up(report: bool) -> None:
    """In its report, or, when that was forgotten, in where the replicas are."""
    cluster = running(SERIAL)
    cluster.complete("p0", report=report)
    cluster.settle()
    assert cluster.states()[:2] == ["COMMITTED", "DUAL_WRITE"]
    cluster.revert("p1", report=report)
    cluster.step()
    assert cluster.states()[1] == "FAILED"
    assert cluster.moves()[1].detail == (
        "the target died" if report else "the transition was given up"
    )


def test_a_replica_that_did_not_leave_has_not_moved() -> None:
    """S27: every move is looked at for itself."""
    cluster = running(plan(move("p0", "a", "c")), homes=(("a", "b"),))
    intent = cluster.agreed.intents["p0"]
    everywhere = (*intent.stable, Placement("c"))
    cluster.put(replace(intent, stable=everywhere, pending=None))
    assert not run_moves.has_landed(cluster.view(), cluster.moves()[0], None)


def test_a_move_of_one_table_touches_no_other() -> None:
    """S26: what is moved is a partition of one zone, never a key or a name that two may share."""
    cluster = Cluster(1)
    record = replace(cluster.record("p0"), id="q0", zone="y")
    cluster.put(
        Zone("y", 1), Layout("y", 1, (TOKEN_MIN,), ("q0",)), NamedTable("u", "y", "u1", b"")
    )
    cluster.put(record, Intent("q0", (Placement("a"),)))
    before = (cluster.record("q0"), cluster.agreed.intents["q0"])
    cluster.ask(StartRun(plan(move("p0", "a", "b"))))
    cluster.settle()
    cluster.complete("p0")
    cluster.settle()
    assert cluster.last_run().outcome == "done"
    assert (cluster.record("q0"), cluster.agreed.intents["q0"]) == before


# --- failures


def test_a_move_is_tried_three_times_and_the_others_go_on() -> None:
    """F63: attempts == 3, state FAILED, the others COMMITTED; S29: the run says so."""
    cluster = running(replace(THREE, limits=Limits(9, 9)))
    for attempt in (1, 2, 3):
        assert cluster.moves()[0].attempts == attempt
        cluster.revert("p0")
        cluster.settle()
        first = cluster.moves()[0]
        assert (first.state, first.final, first.detail) == (
            *("FAILED", attempt == 3),
            "the target died",
        )
        assert cluster.step() == [], "it waits for a while"
        cluster.now += cluster.settings.retry_seconds
        cluster.settle()
    for name in ("p1", "p2"):
        cluster.complete(name)
        cluster.settle()
    assert cluster.states() == ["FAILED", "COMMITTED", "COMMITTED"]
    run = cluster.last_run()
    assert run.outcome == "failed-in-part"
    assert (run.totals.committed, run.totals.failed) == (2, 1)
    assert {replica.node for replica in cluster.record("p0").replicas} == {"a"}


def test_a_move_that_can_not_begin_has_failed_and_is_tried_again() -> None:
    """S90: it does not wait for ever for what does not come."""
    cluster = Cluster()
    cluster.ask(StartRun(replace(THREE, limits=Limits(9, 9))))
    cluster.kill("b")
    for attempt in (1, 2, 3):
        cluster.step()
        first = cluster.moves()[0]
        assert (first.state, first.attempts, first.final) == ("FAILED", attempt, attempt == 3)
        assert "b is down" in first.detail
        cluster.step()
        cluster.now += cluster.settings.retry_seconds
        cluster.step()
    assert cluster.states()[1] == "DUAL_WRITE"


@pytest.mark.parametrize("why", ["cancelled", "reversed by request"])
def test_what_a_person_stopped_is_not_tried_again(why: str) -> None:
    cluster = running()
    cluster.stage("p0", STREAMING)
    cluster.settle()
    cluster.revert("p0", why, "operator")
    cluster.now += 1000
    cluster.settle()
    first = cluster.moves()[0]
    assert (first.state, first.final, first.detail, first.attempts) == ("FAILED", True, why, 1)


def test_a_move_that_was_cancelled_before_it_began_is_not_tried_again() -> None:
    cluster = running()
    trigger = cluster.moves()[0].trigger
    words = cluster.ask(CancelChange("p0", trigger))
    assert words == "done: cancelled before it began"
    cluster.settle()
    first = cluster.moves()[0]
    assert (first.state, first.final, first.detail) == ("FAILED", True, "cancelled")


def drop_all(cluster: Cluster) -> None:
    keys = [layout_key("z"), table_key("t")]
    for name in ("p0", "p1", "p2"):
        keys += [partition_key(name), intent_key(name)]
    cluster.change(*map(Remove, keys))


def test_moves_of_a_dropped_table_have_failed() -> None:
    """The partition is gone: whether its move was under way or not."""
    cluster = running()
    drop_all(cluster)
    cluster.settle()
    assert {(each.state, each.final, each.detail) for each in cluster.moves()} == {
        ("FAILED", True, "the partition is gone")
    }
    assert cluster.last_run().outcome == "failed-in-part"


def make_again(cluster: Cluster) -> None:
    """The table, and with it its zone; its partitions get the names that they would always get."""
    tables = cluster.agreed.topology.tables
    id = tables["t"].id
    assert cluster.ask(DropTable("t", id)).startswith("done")
    again = NamedTable("t", "z", f"{id} again", b"")
    assert cluster.ask(CreateTable(again, 2, 1)).startswith("done")


@pytest.mark.parametrize("succeeded", [False, True])
@pytest.mark.parametrize("limits", [ONE_AT_A_TIME, Limits()])
def test_a_partition_that_was_dropped_and_made_again_is_not_moved(
    limits: Limits, succeeded: bool
) -> None:
    """Nobody planned to move this one, whether the move of the first had begun or not."""
    cluster = Cluster()
    make_again(cluster)
    moves = [
        move(name, intent.stable[0].node, "d") for name, intent in cluster.agreed.intents.items()
    ]
    assert cluster.ask(StartRun(plan(*moves, limits=limits))).startswith("done")
    cluster.step()
    make_again(cluster)
    if succeeded:
        cluster.succeed()
    cluster.settle()
    assert {(each.state, each.final, each.detail) for each in cluster.moves()} == {
        ("FAILED", True, "the partition was dropped and created again")
    }
    assert all(intent.pending is None for intent in cluster.agreed.intents.values())
    assert cluster.last_run().outcome == "failed-in-part"
    again = [move(name, i.stable[0].node, "d") for name, i in cluster.agreed.intents.items()]
    assert cluster.ask(StartRun(plan(*again))).startswith("done")
    cluster.step()
    assert cluster.states() == ["DUAL_WRITE", "DUAL_WRITE"]


def test_a_partition_that_was_made_again_where_another_was_to_go_has_not_been_moved() -> None:
    cluster = Cluster(nodes=("a", "b"))
    cluster.kill("b")
    make_again(cluster)
    cluster.put(NodeLease("b", 99))
    cluster.ask(StartRun(plan(move("z-0000", "a", "b"), move("z-0001", "a", "b"))))
    cluster.step()
    assert cluster.states() == ["DUAL_WRITE", "DUAL_WRITE"]
    cluster.kill("a")
    make_again(cluster)
    cluster.settle()
    assert cluster.states() == ["FAILED", "FAILED"]


def test_what_is_gone_can_not_be_rolled_back() -> None:
    cluster = running()
    cluster.ask(CancelRun())
    drop_all(cluster)
    cluster.settle()
    assert cluster.last_run().outcome == "cancelled"
    assert cluster.states() == ["FAILED", "FAILED", "PENDING"]


# --- pause


def test_a_pause_lets_what_is_in_flight_finish_and_begins_nothing() -> None:
    """F56: the completed count is frozen; a resume completes the rest."""
    cluster = running(SERIAL)
    cluster.ask(PauseRun())
    cluster.complete("p0")
    cluster.settle()
    cluster.succeed()
    cluster.settle()
    assert cluster.states() == ["COMMITTED", "PENDING", "PENDING"]
    cluster.ask(ResumeRun())
    for name in ("p1", "p2"):
        cluster.settle()
        cluster.complete(name)
    cluster.settle()
    assert cluster.last_run().outcome == "done"


def test_a_pause_while_the_last_move_runs_ends_with_it() -> None:
    """S36."""
    cluster = running(plan(move("p0", "a", "b")))
    cluster.ask(PauseRun())
    cluster.complete("p0")
    cluster.settle()
    assert cluster.rebalance() == "idle"
    assert cluster.last_run().outcome == "done"


# --- cancel


def test_a_cancel_keeps_what_is_committed_and_rolls_the_rest_back() -> None:
    """F57, D16: what was committed stays where it went, what was pending never begins."""
    cluster = running(SERIAL)
    cluster.complete("p0")
    cluster.settle()
    cluster.stage("p1", STREAMING)
    cluster.settle()
    cluster.ask(CancelRun())
    cluster.settle()
    intent = cluster.agreed.intents["p1"]
    assert intent.cancel == cluster.moves()[1].trigger
    assert cluster.rebalance() == "cancelling"
    cluster.revert("p1", "cancelled", "operator")
    cluster.settle()
    assert cluster.rebalance() == "idle"
    assert cluster.states() == ["COMMITTED", "FAILED", "PENDING"]
    assert cluster.moves()[1].detail == "its run was cancelled"
    run = cluster.last_run()
    assert run.outcome == "cancelled"
    assert (run.totals.committed, run.totals.failed, run.totals.never_started) == (1, 1, 1)
    assert [r.node for r in cluster.record("p0").replicas] == ["b"]
    assert [r.node for r in cluster.record("p1").replicas] == ["a"]


def test_a_cancel_takes_back_what_has_not_begun() -> None:
    cluster = running(SERIAL)
    begun = cluster.agreed.intents["p0"]
    assert begun.pending is not None
    cluster.ask(CancelRun())
    cluster.settle()
    assert cluster.agreed.intents["p0"] == replace(begun, pending=None)
    assert cluster.rebalance() == "idle"
    assert cluster.states() == ["FAILED", "PENDING", "PENDING"]


@pytest.mark.parametrize(
    ("stage", "hold", "more", "back"),
    [
        (READ_NEW, 0.0, {}, False),
        (READ_NEW, 9.0, {}, True),
        (READ_NEW, 9.0, {"released": True}, False),
        (READ_NEW, 9.0, {"giving_up": "reversed", "given_up_by": "operator"}, False),
        (USE_NEW, 9.0, {}, False),
        (CLEANUP_TARGET, 9.0, {}, False),
    ],
)
def test_what_has_switched_completes_unless_it_is_held(
    stage: str, hold: float, more: dict[str, object], back: bool
) -> None:
    """F57: a held move has not committed, so it goes back; the others can't any more."""
    cluster = running(replace(SERIAL, hold_seconds=hold))
    cluster.stage("p0", stage, **more)
    cluster.settle()
    cluster.ask(CancelRun())
    cluster.settle()
    change = cluster.record("p0").transition
    assert change is not None
    assert (change.giving_up == "its run was cancelled") == back
    assert cluster.agreed.intents["p0"].cancel is None
    if stage == USE_NEW:
        cluster.complete("p0")
        cluster.settle()
        assert cluster.states() == ["COMMITTED", "PENDING", "PENDING"]


def test_a_failed_move_of_a_cancelled_run_is_not_tried_again() -> None:
    cluster = running(SERIAL)
    cluster.revert("p0")
    cluster.step()
    cluster.ask(CancelRun())
    cluster.now += 1000
    cluster.settle()
    assert cluster.states() == ["FAILED", "PENDING", "PENDING"]
    assert cluster.rebalance() == "idle"


# --- nodes


EMPTIES_A = plan(
    move("p0", "a", "c"), move("p2", "a", "d"), action="drain a", drains=("a",), decommission=True
)
TWO_REPLICAS = (("a", "b"), ("b", "c"), ("c", "a"))


def draining(some: RunPlan = EMPTIES_A) -> Cluster:
    cluster = Cluster(homes=TWO_REPLICAS)
    assert cluster.ask(DrainNodes(some)).startswith("done")
    cluster.settle()
    return cluster


@pytest.mark.parametrize("decommission", [True, False])
def test_a_node_that_is_empty_has_left_or_is_drained(decommission: bool) -> None:
    """F94, F81."""
    cluster = draining(replace(EMPTIES_A, decommission=decommission))
    cluster.complete("p0")
    cluster.settle()
    assert cluster.agreed.topology.nodes["a"].state == "decommissioning"
    cluster.complete("p2")
    cluster.settle()
    run = cluster.last_run()
    expected = ("left", "left: a") if decommission else ("decommissioning", "drained: a")
    assert (cluster.agreed.topology.nodes["a"].state, run.words) == expected
    assert run.outcome == "done"


@pytest.mark.parametrize("decommission", [True, False])
@pytest.mark.parametrize("moves", [0, 1])
def test_a_leave_does_not_begin_without_a_plan_for_all_that_the_node_holds(
    decommission: bool, moves: int
) -> None:
    """S86: the plan of a drain has no move, or none for the last replica: it is refused, and the
    node stays a member that holds what it held."""
    some = replace(EMPTIES_A, moves=EMPTIES_A.moves[:moves], decommission=decommission)
    cluster = Cluster(homes=TWO_REPLICAS)
    before = cluster.agreed.topology
    assert f"the plan leaves {2 - moves} replica" in cluster.refused(DrainNodes(some))
    cluster.settle()
    assert cluster.agreed.topology.nodes == before.nodes
    assert cluster.agreed.topology.partitions == before.partitions


def test_a_drain_never_ends_with_something_left_behind() -> None:
    """F94, S86: all moves are committed, but somebody put another replica there."""
    cluster = draining()
    cluster.complete("p0")
    cluster.complete("p2")
    intent = cluster.agreed.intents["p1"]
    late = Assignment("move", (Placement("a"), Placement("c")), trigger=cluster.agreed.revision)
    cluster.put(replace(intent, planned=late))
    cluster.settle()
    run = cluster.last_run()
    assert cluster.states() == ["COMMITTED", "COMMITTED"]
    assert run.outcome == "failed-in-part"
    assert run.words == "not drained, and normal again: a (a holds a replica of p1)"
    assert cluster.agreed.topology.nodes["a"].state == "normal"


def test_a_drain_that_fails_in_part_brings_its_nodes_back() -> None:
    """F73, F81, S29: membership waits for all moves."""
    cluster = draining()
    cluster.complete("p0")
    for _ in range(3):
        cluster.revert("p2")
        cluster.settle()
        cluster.now += cluster.settings.retry_seconds
        cluster.settle()
    assert cluster.last_run().outcome == "failed-in-part"
    assert cluster.agreed.topology.nodes["a"].state == "normal"


def test_a_cancelled_drain_brings_its_nodes_back() -> None:
    cluster = draining()
    cluster.complete("p0")
    cluster.settle()
    cluster.ask(CancelRun())
    cluster.settle()
    cluster.revert("p2", "cancelled", "operator") if cluster.agreed.intents["p2"].pending else None
    cluster.settle()
    run = cluster.last_run()
    assert (run.outcome, run.words) == ("cancelled", "not drained, and normal again: a")
    assert cluster.agreed.topology.nodes["a"].state == "normal"


def test_a_drained_node_leaves_by_another_drain() -> None:
    cluster = draining(replace(EMPTIES_A, decommission=False))
    cluster.complete("p0")
    cluster.complete("p2")
    cluster.settle()
    again = plan(action="decommission a", drains=("a",), decommission=True)
    assert cluster.ask(DrainNodes(again)).startswith("done")
    cluster.settle()
    assert cluster.agreed.topology.nodes["a"].state == "left"


# --- who goes first


def test_a_lock_holds_what_would_begin_and_what_runs_goes_on() -> None:
    """F87: set it, ask: it waits; clear it: it runs."""
    cluster = running(SERIAL)
    cluster.ask(LockCluster("an audit"))
    cluster.complete("p0")
    cluster.settle()
    assert cluster.states() == ["COMMITTED", "PENDING", "PENDING"]
    held: tuple[AnyWish, ...] = (
        MovePartition("p9"),
        StartRun(None),
        JoinCluster(Node("e"), "x"),
        CreateTable(NamedTable("t", "t", "i", b"")),
    )
    for wish in held:
        request = cluster.waiting(wish)
        assert deferred(cluster.view(), request) == "the cluster is locked: an audit"
    served: tuple[AnyWish, ...] = (
        RebuildReplicas("p9"),
        CancelChange("p9"),
        PauseRun(),
        UnlockCluster(),
        CancelRun(),
    )
    for wish in served:
        assert deferred(cluster.view(), cluster.waiting(wish)) == ""
    assert topology_request_waits(cluster.view()) is None
    cluster.ask(UnlockCluster())
    for request in cluster.agreed.requests.values():
        cluster.change(Remove(request_key(request.id)))
    cluster.settle()
    assert cluster.states() == ["COMMITTED", "DUAL_WRITE", "PENDING"]


def test_a_waiting_topology_request_stops_new_moves_and_is_served_before_them() -> None:
    """F91, S74, D14: running moves end, the request is served, the run goes on."""
    cluster = running(SERIAL)
    join = cluster.waiting(JoinCluster(Node("e", host="h"), "x"))
    run = cluster.run.id
    assert deferred(cluster.view(), join) == f"the move of p0 in run {run} must end first"
    cluster.complete("p0")
    cluster.settle()
    assert cluster.states() == ["COMMITTED", "PENDING", "PENDING"]
    assert deferred(cluster.view(), join) == ""
    cluster.commit(requests.answer(cluster.view(), join))
    cluster.settle()
    assert cluster.states() == ["COMMITTED", "DUAL_WRITE", "PENDING"]


def test_nobody_waits_for_moves_that_may_wait_for_ever() -> None:
    """S74: one that may pause writes for so long only waits for a moment that may not come."""
    cluster = running(replace(SERIAL, max_pause_seconds=0.01))
    assert deferred(cluster.view(), cluster.waiting(FollowNodes("z"))) == ""
    assert topology_request_waits(cluster.view()) is not None
    cluster.complete("p0")
    cluster.settle()
    assert cluster.states()[1] == "PENDING"


def test_without_balancing_the_balancers_run_does_not_go_on() -> None:
    """F143: toggled, no new moves; toggled back, it goes on. An operator's run is not stopped."""
    for by, goes_on in (("balancer", "PENDING"), ("operator", "DUAL_WRITE")):
        cluster = running(replace(SERIAL, by=by))
        cluster.ask(SetBalancing(False))
        cluster.complete("p0")
        cluster.settle()
        assert cluster.states()[1] == goes_on
        cluster.ask(SetBalancing(True))
        cluster.settle()
        assert cluster.states()[1] == "DUAL_WRITE"


# --- successors and history


def test_a_successor_skips_what_is_committed_and_goes_on_with_the_rest() -> None:
    """F66: nothing that was committed is moved again; pending and failed moves are."""
    cluster = running(SERIAL)
    cluster.complete("p0")
    cluster.settle()
    cluster.revert("p1")
    cluster.step()
    before = cluster.moves()[0]
    cluster.succeed()
    cluster.step()
    cluster.now += cluster.settings.retry_seconds
    cluster.settle()
    assert cluster.moves()[0] is before
    assert cluster.agreed.intents["p0"].pending is None
    while cluster.agreed.rebalance.run:
        cluster.succeed()
        for name, intent in cluster.agreed.intents.items():
            if intent.pending is not None:
                cluster.complete(name)
        cluster.settle()
    assert cluster.last_run().outcome == "done"


def test_old_runs_are_forgotten_with_their_moves() -> None:
    settings = CoordinatorSettings(runs_kept=2, run_moves_kept=100)
    cluster = Cluster(settings=settings)
    for number in range(4):
        cluster.ask(StartRun(plan(move("p0", "a", "b"), action=f"run {number}")))
        cluster.ask(CancelRun())
        cluster.settle()
    cluster.ask(StartRun(THREE))
    commit = run_ends.forget_old(cluster.view())
    assert commit is not None
    cluster.commit(commit)
    assert [run.action for run in cluster.agreed.runs.values()] == ["run 2", "run 3", "some moves"]
    assert set(cluster.agreed.moves) == set(cluster.agreed.runs)
    assert run_ends.forget_old(cluster.view()) is None


def test_many_moves_are_kept_of_the_last_run_only() -> None:
    cluster = Cluster(settings=CoordinatorSettings(run_moves_kept=4))
    for _ in range(2):
        cluster.ask(StartRun(THREE))
        cluster.ask(CancelRun())
        cluster.settle()
    commit = run_ends.forget_old(cluster.view())
    assert commit is not None
    cluster.commit(commit)
    assert len(cluster.agreed.runs) == 1
    assert len(cluster.moves()) == 3


# --- the brain


def commits(cluster: Cluster, coordinator: Coordinator, now: float) -> list[str]:
    """What it wants to be committed."""
    effects = coordinator.handle(now, AgreedRead(cluster.agreed))
    effects += coordinator.handle(now, Ticked())
    return [each.commit.why for each in effects if isinstance(each, MakeCommit)]


def test_a_coordinator_asks_once_for_each_state_and_again_after_a_while() -> None:
    """S89: what appears is seen when it is agreed, and again after a while if nothing came."""
    cluster = Cluster()
    cluster.ask(StartRun(THREE))
    coordinator = Coordinator("one", CoordinatorSettings(rebuilds=False))
    coordinator.handle(0.0, AgreedRead(cluster.agreed))
    effects = coordinator.handle(0.0, Elected(OFFICE))
    wanted = [each.commit for each in effects if isinstance(each, MakeCommit)]
    (begin,) = [each for each in wanted if "moves begin" in each.why]
    assert not [why for why in commits(cluster, coordinator, 0.1) if "begin" in why]
    assert [why for why in commits(cluster, coordinator, 5.0) if "begin" in why] == [begin.why]
    cluster.commit(begin)
    cluster.complete("p0")
    assert f"p0: {cluster.run.id}: COPYING" in commits(cluster, coordinator, 5.1)


def test_a_request_that_is_deferred_delays_nothing_else() -> None:
    """An unlock behind it is served, and its partition is looked after."""
    cluster = Cluster()
    cluster.ask(LockCluster())
    cluster.waiting(FollowNodes("z"))
    cluster.waiting(MovePartition("p0", source="a", target=Placement("b")))
    cluster.waiting(UnlockCluster())
    cluster.kill("a")
    coordinator = Coordinator("one", CoordinatorSettings(rebuilds=False))
    coordinator.handle(0.0, AgreedRead(cluster.agreed))
    effects = coordinator.handle(0.0, Elected(OFFICE))
    wanted = [each.commit.why for each in effects if isinstance(each, MakeCommit)]
    assert "cluster: unlock done: unlocked" in wanted
    assert "p0: the owner is gone; epoch 2 elects" in wanted
    assert not [why for why in wanted if "follow_nodes" in why or "move" in why]


def test_the_work_of_a_step_does_not_grow_with_the_moves_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a thousand moves only those are looked at that are in flight, or may begin."""
    homes = (("a",),) * 400
    some = plan(*(move(f"p{n}", "a", "b") for n in range(400)), limits=Limits(2, 2))
    cluster = running(some, homes=homes)
    looked: list[str] = []
    original = run_starts.busy

    def counting(view: ClusterView, each: RunMove) -> str:
        looked.append(each.partition)
        return original(view, each)

    monkeypatch.setattr(run_starts, "busy", counting)
    cluster.complete("p0")
    cluster.settle()
    assert cluster.run.starts == 3
    assert len(looked) < 5
    assert len(cluster.flights.open) == 2
