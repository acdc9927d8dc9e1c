"""May a run begin, pause, go on, be cancelled? What is refused changes nothing."""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import requests
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.model.changes import (
    CONTROLS_KEY,
    REBALANCE_KEY,
    intent_key,
    lease_key,
    node_key,
    partition_key,
    zone_key,
)
from limosa.core.model.intent import Assignment, Placement
from limosa.core.model.requests import (
    AnyWish,
    CancelRun,
    CreateTable,
    DrainNodes,
    DropTable,
    FollowNodes,
    JoinCluster,
    LockCluster,
    MovePartition,
    PauseRun,
    RemoveNode,
    RepairPartition,
    Request,
    ResumeRun,
    SetBalancing,
    StartRun,
    UndrainNodes,
    UnlockCluster,
    WithdrawRequest,
)
from limosa.core.model.runs import Controls, Estimate, Limits, RunMove, RunPlan
from limosa.core.model.topology import NamedTable, Node
from tests.core.running import ONE_AT_A_TIME, Cluster, move, plan

THREE = plan(move("p0", "a", "b"), move("p1", "a", "c"), move("p2", "a", "d"))


def started(some: RunPlan = THREE, **more: object) -> Cluster:
    cluster = Cluster(**more)  # type: ignore[arg-type]
    assert cluster.ask(StartRun(some)).startswith("done: started as run r")
    return cluster


# --- start


def test_a_start_writes_every_move_down_before_any_begins() -> None:
    """F65: the checkpoint holds all moves of the plan, each a record of its own (D7)."""
    estimate = Estimate(1 << 30, 60.0, 1 << 29, 0.02)
    some = replace(THREE, why="it is uneven", estimate=estimate, hold_seconds=5.0)
    cluster = started(some)
    run = cluster.run
    assert cluster.rebalance() == "running"
    assert (run.action, run.why, run.by, run.moves) == (
        *("some moves", "it is uneven"),
        *("operator", 3),
    )
    assert (run.estimate, run.hold_seconds, run.started) == (estimate, 5.0, cluster.now)
    assert cluster.moves() == [
        RunMove(run.id, 0, "p0", "a", Placement("b")),
        RunMove(run.id, 1, "p1", "a", Placement("c")),
        RunMove(run.id, 2, "p2", "a", Placement("d")),
    ]
    assert all(intent.pending is None for intent in cluster.agreed.intents.values())


def test_a_start_is_guarded_by_all_that_it_was_computed_from() -> None:
    cluster = Cluster()
    request = cluster.waiting(StartRun(THREE))
    guards = requests.answer(cluster.view(), request).guards
    assert {REBALANCE_KEY, CONTROLS_KEY, zone_key("z")} <= set(guards)
    for name, target in (("p0", "b"), ("p1", "c"), ("p2", "d")):
        assert {partition_key(name), intent_key(name)} <= set(guards)
        assert {node_key(target), lease_key(target), lease_key("a")} <= set(guards)


def test_a_second_start_is_refused_and_disturbs_nothing() -> None:
    """F58, S28: not even the words of the run that is under way."""
    cluster = started()
    other = plan(move("p0", "a", "d"), action="something else")
    before = (cluster.run, cluster.moves())
    for state in ("running", "paused", "cancelling"):
        words = cluster.refused(StartRun(other))
        assert f"run {before[0].id} is {state} already: some moves" in words
        assert (cluster.run, cluster.moves()) == before
        cluster.ask(PauseRun() if state == "running" else CancelRun())


@pytest.mark.parametrize(
    ("some", "words"),
    [
        (None, "the run has no plan"),
        (plan(), "the plan has no moves"),
        (plan(move("p9", "a", "b")), "there is no partition p9"),
        (plan(move("p0", "x", "b")), "x holds no replica of p0"),
        (plan(move("p0", "", "b")), "no node holds no replica of p0"),
        (plan(move("p0", "a", "x")), "x is not a member"),
        (plan(move("p0", "a", "b", "v9")), "b has no volume 'v9'"),
        (plan(move("p0", "a", "b"), move("p0", "a", "c")), "two moves of the replica of p0 on a"),
        (replace(THREE, limits=Limits(0, 1)), "use at least 1 move"),
        (replace(THREE, limits=Limits(1, 0)), "use at least 1 move"),
        (replace(THREE, limits=Limits(1, 1, -1)), "-1 bytes a second"),
        (replace(THREE, hold_seconds=-1.0), "durations must not be negative"),
        (replace(THREE, max_pause_seconds=-1.0), "durations must not be negative"),
        (replace(THREE, drains=("a",)), "request a drain instead"),
    ],
)
def test_a_plan_is_refused_as_a_whole(some: RunPlan | None, words: str) -> None:
    """F55: bad input changes nothing, whichever of its moves it is about."""
    if some is not None and some.moves and some.limits == Limits():
        some = replace(some, moves=(move("p2", "a", "d"), *some.moves))
    assert words in Cluster().refused(StartRun(some))


def test_a_target_that_holds_a_replica_already_is_refused() -> None:
    cluster = Cluster(homes=(("a", "b"),))
    words = cluster.refused(StartRun(plan(move("p0", "a", "b"))))
    assert "b holds a replica of p0 already" in words


def test_two_replicas_of_one_partition_may_go_in_one_run() -> None:
    """One after the other: each is checked as it will be when the other has gone."""
    cluster = Cluster(homes=(("a", "b"),))
    both = plan(move("p0", "a", "c"), move("p0", "b", "a"))
    assert cluster.ask(StartRun(both)).startswith("done")
    other = Cluster(homes=(("a", "b"),))
    words = other.refused(StartRun(plan(move("p0", "a", "c"), move("p0", "b", "c"))))
    assert "c holds a replica of p0 already" in words


def test_a_partition_that_is_changing_is_refused() -> None:
    cluster = Cluster()
    pending = Assignment("move", (Placement("b"),), trigger=cluster.agreed.revision)
    cluster.put(replace(cluster.agreed.intents["p1"], pending=pending))
    assert "another change of p1 is under way" in cluster.refused(StartRun(THREE))


def test_a_dead_node_that_must_hold_something_is_refused_up_front() -> None:
    """S92."""
    cluster = Cluster()
    cluster.kill("c")
    assert "c is down" in cluster.refused(StartRun(THREE))


def test_a_dead_node_that_must_give_something_is_refused_up_front() -> None:
    """S92: nobody else has it; where another one has, the dead one need not give."""
    cluster = Cluster()
    cluster.kill("a")
    assert "no in-sync replica of p0 is alive: a is down" in cluster.refused(StartRun(THREE))
    copied = Cluster(homes=(("a", "b"),))
    copied.kill("a")
    assert copied.ask(StartRun(plan(move("p0", "a", "c")))).startswith("done")


def test_what_does_not_fit_is_refused_one_by_one_and_all_together() -> None:
    keeps = CoordinatorSettings(free_bytes_kept=100)
    cluster = Cluster(settings=keeps)
    cluster.say("a", {"p0": (1, 1 << 20), "p1": (1, 1 << 20), "p2": (1, 1 << 20)})
    cluster.say("d", free_bytes=1 << 20)
    assert "p2 needs" in cluster.refused(StartRun(THREE))
    cluster.say("d", free_bytes=3 << 20)
    assert cluster.ask(StartRun(THREE)).startswith("done")
    other = Cluster(settings=keeps)
    other.statuses = {}
    other.say("a", {"p0": (1, 1 << 20), "p1": (1, 1 << 20), "p2": (1, 1 << 20)})
    other.say("d", free_bytes=3 << 20)
    all_there = plan(*(move(name, "a", "d") for name in ("p0", "p1", "p2")))
    assert "all that is to come needs 4 MiB" in other.refused(StartRun(all_there))


def test_what_is_full_is_named_with_its_volume() -> None:
    cluster = Cluster(2, settings=CoordinatorSettings(free_bytes_kept=0))
    cluster.say("a", {"p0": (1, 1 << 20), "p1": (1, 1 << 20)})
    cluster.say("b", free_bytes=0)
    status = cluster.statuses["b"]
    cluster.statuses["b"] = replace(status, free_bytes={"v2": 2 << 20})
    both = plan(move("p0", "a", "b", "v2"), move("p1", "a", "b", "v2"))
    assert "2 MiB free on its volume v2" in cluster.refused(StartRun(both))


def test_where_moves_are_refused_runs_are() -> None:
    cluster = Cluster(
        settings=CoordinatorSettings(moves_refused="there is no Spark", moves_advice="get one")
    )
    assert cluster.refused(StartRun(THREE)) == "refused: there is no Spark (get one)"


def test_a_replica_may_go_to_another_volume_of_its_node() -> None:
    cluster = started(plan(move("p0", "a", "a", "v2")))
    cluster.step()
    pending = cluster.agreed.intents["p0"].pending
    assert pending is not None
    assert (pending.kind, pending.placements) == ("volume_move", (Placement("a", "v2"),))


# --- pause, resume, cancel

WRONG: list[tuple[tuple[AnyWish, ...], AnyWish, str]] = [
    ((), PauseRun(), "no run is under way"),
    ((), ResumeRun(), "no run is under way"),
    ((), CancelRun(), "no run is under way"),
    ((StartRun(THREE),), ResumeRun(), "is running"),
    ((StartRun(THREE), PauseRun()), PauseRun(), "is paused already"),
    ((StartRun(THREE), CancelRun()), PauseRun(), "is being cancelled"),
    ((StartRun(THREE), CancelRun()), ResumeRun(), "is being cancelled"),
    ((StartRun(THREE), CancelRun()), CancelRun(), "is being cancelled already"),
    ((StartRun(THREE), PauseRun(), CancelRun()), ResumeRun(), "is being cancelled"),
]


@pytest.mark.parametrize(("before", "wish", "words"), WRONG)
def test_a_call_that_the_machine_does_not_draw_is_refused(
    before: tuple[AnyWish, ...], wish: AnyWish, words: str
) -> None:
    """F55: pause in PAUSED, resume in IDLE or RUNNING, cancel in IDLE or CANCELLING."""
    cluster = Cluster()
    for each in before:
        cluster.ask(each)
    assert words in cluster.refused(wish)


def test_one_may_say_which_run_is_meant() -> None:
    cluster = started()
    assert "r1 is not the current run" in cluster.refused(PauseRun("r1"))
    run = cluster.run.id
    assert cluster.ask(PauseRun(run)) == (f"done: run {run} is paused; moves in flight finish")
    assert cluster.rebalance() == "paused"
    assert cluster.ask(ResumeRun()) == f"done: run {run} is resumed"
    assert cluster.rebalance() == "running"


# --- switches


def test_a_lock_is_set_and_cleared_by_hand() -> None:
    """F87."""
    cluster = Cluster()
    assert "the cluster is not locked" in cluster.refused(UnlockCluster())
    assert cluster.ask(LockCluster("an audit")) == "done: locked"
    assert cluster.agreed.controls == Controls("an audit")
    assert "locked already: an audit" in cluster.refused(LockCluster())
    assert cluster.ask(UnlockCluster()) == "done: unlocked"
    assert cluster.ask(LockCluster()) == "done: locked"
    assert cluster.agreed.controls == Controls("by an operator")


def test_without_balancing_the_balancer_begins_nothing() -> None:
    """F143: an operator's run begins all the same."""
    cluster = Cluster()
    assert cluster.ask(SetBalancing(False)) == "done: balancing is off"
    assert "balancing is off" in cluster.refused(StartRun(replace(THREE, by="balancer")))
    assert cluster.ask(StartRun(THREE)).startswith("done")
    assert cluster.ask(SetBalancing(True)) == "done: balancing is on"


# --- drains

TWO_REPLICAS = (("a", "b"), ("b", "c"), ("c", "a"))
EMPTIES_A = (move("p0", "a", "c"), move("p2", "a", "d"))


def drain(*moves: object, drains: tuple[str, ...] = ("a",), **more: object) -> RunPlan:
    return plan(*moves, action="drain", drains=drains, **more)  # type: ignore[arg-type]


def test_a_node_gets_nothing_new_from_the_commit_on_that_begins_its_drain() -> None:
    cluster = Cluster(homes=TWO_REPLICAS)
    assert cluster.ask(DrainNodes(drain(*EMPTIES_A))).startswith("done")
    assert cluster.agreed.topology.nodes["a"].state == "decommissioning"
    words = cluster.refused(MovePartition("p1", source="b", target=Placement("a")))
    assert "a is decommissioning, and gets no new replicas" in words
    assert cluster.ask(MovePartition("p2", source="c", target=Placement("d"))) == (
        "done: accepted"
    ), "another replica may go, while one is still there"


@pytest.mark.parametrize(
    ("some", "words"),
    [
        (drain(*EMPTIES_A, drains=()), "no node is named"),
        (drain(*EMPTIES_A, drains=("a", "a")), "a node is named twice"),
        (drain(*EMPTIES_A, drains=("x",)), "x is not a member"),
        (drain(EMPTIES_A[0]), "the plan leaves 1 replicas on a, for example of p2"),
        (drain(*EMPTIES_A, drains=("a", "b", "c")), "and 1 of its data nodes stay"),
        (drain(*EMPTIES_A, drains=("a", "b", "c", "d")), "no data node is left without a, b, c, d"),
    ],
)
def test_what_can_not_be_emptied_is_refused(some: RunPlan, words: str) -> None:
    """S93: the last data node, or so many that a zone has too few left."""
    assert words in Cluster(homes=TWO_REPLICAS).refused(DrainNodes(some))


def test_a_node_that_holds_nothing_by_choice_may_go_even_from_a_zone_that_lacks_nodes() -> None:
    cluster = Cluster(homes=(("a", "b"),), nodes=("a", "b", "e"))
    cluster.put(replace(cluster.agreed.topology.nodes["e"], tokens=False))
    cluster.put(replace(cluster.agreed.topology.zones["z"], replica_count=3))
    assert cluster.ask(DrainNodes(drain(drains=("e",)))).startswith("done")


def test_who_has_left_is_not_drained() -> None:
    cluster = Cluster(homes=TWO_REPLICAS)
    cluster.put(Node("e", state="left"))
    assert "e is not a member" in cluster.refused(DrainNodes(drain(drains=("e",))))


def test_a_drained_node_may_take_part_again() -> None:
    cluster = Cluster(homes=TWO_REPLICAS)
    assert "no node is named" in cluster.refused(UndrainNodes(()))
    assert "d is normal" in cluster.refused(UndrainNodes(("d",)))
    assert "x is not a member" in cluster.refused(UndrainNodes(("x",)))
    cluster.ask(DrainNodes(drain(drains=("d",))))
    words = cluster.refused(UndrainNodes(("d",)))
    assert f"d is being drained by {cluster.run.id}" in words
    cluster.settle()
    assert cluster.last_run().words == "drained: d"
    assert cluster.ask(UndrainNodes(("d", "d"))).startswith("done: normal again: d")
    assert cluster.agreed.topology.nodes["d"].state == "normal"


def test_limits_are_at_least_one() -> None:
    """With nothing in flight, at least one move is always accepted."""
    cluster = started(replace(THREE, limits=ONE_AT_A_TIME))
    cluster.step()
    assert cluster.states() == ["DUAL_WRITE", "PENDING", "PENDING"]


def test_requests_are_described_by_what_they_are_about() -> None:
    wishes: dict[AnyWish, str] = {
        RepairPartition("p"): "p",
        FollowNodes("z"): "z",
        CreateTable(NamedTable("t", "z", "i", b"")): "t",
        DropTable("t", "i"): "t",
        JoinCluster(Node("n"), "birds"): "n",
        RemoveNode("n"): "n",
        WithdrawRequest("r"): "r",
        PauseRun("r1"): "r1",
        PauseRun(): "cluster",
        LockCluster("an audit"): "cluster",
    }
    assert {wish: Request("q", wish).about for wish in wishes} == wishes
