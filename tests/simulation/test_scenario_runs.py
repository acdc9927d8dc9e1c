"""Is a run carried out as it was agreed, whoever coordinates, and does it end?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.view import ClusterView
from limosa.core.insight import proposing as planner
from limosa.core.insight.progress import Progress, progress
from limosa.core.machines.catalogue import READ_NEW, STREAMING
from limosa.core.messages import Chunk, Denied, End
from limosa.core.model.changes import Agreed, Commit, Put
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    CancelChange,
    CancelRun,
    DrainNodes,
    FollowNodes,
    JoinCluster,
    LockCluster,
    MovePartition,
    PauseRun,
    RemoveNode,
    ResumeRun,
    StartRun,
    UnlockCluster,
)
from limosa.core.model.runs import IN_FLIGHT, Limits, PlannedMove, Run, RunMove, RunPlan
from limosa.core.model.topology import Cluster, Features, Node
from tests.simulation.scenarios import Said, Scenario, said


def planned(world: Scenario, source: str, **more: object) -> RunPlan:
    """Everything that a node holds goes to nodes that have it not."""
    moves = []
    for number, (name, record) in enumerate(world.agreed.topology.partitions.items()):
        here = [replica.node for replica in record.replicas]
        free = [node for node in world.nodes if node not in (*here, source)]
        if source in here:
            moves.append(PlannedMove(name, source, Placement(free[number % len(free)])))
    limits = more.pop("limits", Limits(1, 1))
    return RunPlan(f"empty {source}", tuple(moves), limits, **more)  # type: ignore[arg-type]


def start(world: Scenario, plan: RunPlan) -> str:
    """The id of the run."""
    state, words = world.answer(world.request(DrainNodes(plan) if plan.drains else StartRun(plan)))
    assert state == "done", words
    return world.agreed.rebalance.run


def run_of(world: Scenario, name: str) -> Run:
    return world.agreed.runs[name]


def moves_of(world: Scenario, name: str) -> list[RunMove]:
    return [move for _, move in sorted(world.agreed.moves[name].items())]


def states(world: Scenario, name: str) -> list[str]:
    return [move.state for move in moves_of(world, name)]


def state_of(world: Scenario) -> str:
    return world.agreed.rebalance.state


def told(world: Scenario, name: str) -> Progress:
    brain = world.in_office().brain
    view = ClusterView(world.agreed, brain.statuses, brain.office or 0, world.now, world.now)
    return progress(view, name)


def until_idle(world: Scenario, seconds: float = 60.0) -> None:
    world.until(lambda: state_of(world) == "idle", seconds)


def until_committed(world: Scenario, name: str, count: int) -> None:
    world.until(lambda: states(world, name).count("COMMITTED") >= count)


def replace_coordinator(world: Scenario) -> None:
    """The one in office dies, and comes back when another one is."""
    old = world.in_office()
    old.crash()
    world.until(lambda: world.in_office() is not old and world.agreed.coordinator is not None)
    old.start()


def histories(world: Scenario, name: str) -> dict[int, list[str]]:
    """The states that each move had, in their order."""
    found: dict[int, list[str]] = {}
    for _, agreed in world.states:
        for number, move in agreed.moves.get(name, {}).items():
            seen = found.setdefault(number, [])
            if not seen or seen[-1] != move.state:
                seen.append(move.state)
    return found


def six_partitions(**shape: int) -> Scenario:
    return Scenario(**{"nodes": 4, "replicas": 1, "partitions": 6, "clients": 3} | shape)


def spread(world: Scenario) -> str:
    """A node that holds at least two partitions."""
    held = [r.node for record in world.agreed.topology.partitions.values() for r in record.replicas]
    return max(world.nodes, key=held.count)


# --- a run, whatever happens to it


def test_a_run_is_paused_its_coordinator_killed_resumed_and_cancelled_under_load() -> None:
    """F56, F57, F66, F72, S35: state and progress are right at each step, and no row is lost."""
    world = Scenario(nodes=3, replicas=1, partitions=9, clients=3)
    workloads = world.keep_busy(30.0)
    name = start(world, planned(world, "n1"))
    assert told(world, name).total == 3
    until_committed(world, name, 1)
    assert world.answer(world.request(PauseRun()))[0] == "done"
    in_flight = [m.number for m in moves_of(world, name) if m.state in IN_FLIGHT]
    replace_coordinator(world)
    world.run_for(3.0)
    paused = told(world, name)
    assert (paused.state, paused.in_flight) == ("paused", 0)
    assert paused.committed == 1 + len(in_flight), "what was in flight has ended, nothing began"
    assert paused.committed + paused.pending == 3
    assert paused.waits == ("the run is paused; `resume` continues it",)
    assert world.answer(world.request(ResumeRun()))[0] == "done"
    world.until(lambda: told(world, name).in_flight == 1)
    world.mover.pause()
    replace_coordinator(world)
    world.until(lambda: "COPYING" in states(world, name))
    before = told(world, name).committed
    assert world.answer(world.request(CancelRun()))[0] == "done"
    replace_coordinator(world)
    until_idle(world)
    run = run_of(world, name)
    assert (run.outcome, run.totals.committed) == ("cancelled", before)
    for move in moves_of(world, name):
        there = {replica.node for replica in world.record(move.partition).replicas}
        assert there == {move.target.node if move.state == "COMMITTED" else move.source}
    world.mover.resume()
    world.conclude(workloads)


@pytest.mark.parametrize("after", range(0, 44, 2))
def test_a_run_goes_on_from_every_commit_at_which_its_coordinator_may_die(after: int) -> None:
    """F65, F66, F61: killed after so many of its commits; nothing is moved twice."""
    world = Scenario(nodes=3, replicas=1, partitions=6)
    rows = world.put_many(8)
    name = start(world, planned(world, "n1", limits=Limits(2, 2)))
    made = 0

    def dies(by: str, commit: Commit) -> bool:
        nonlocal made
        made += by.startswith("k")
        return made > after + 1 and by == holder

    holder = world.in_office().name
    world.loses = dies
    world.until(lambda: made > after or state_of(world) == "idle")
    world.loses = lambda by, commit: False
    replace_coordinator(world)
    until_idle(world)
    run = run_of(world, name)
    assert (run.outcome, run.totals.committed) == ("done", 2)
    for number, seen in histories(world, name).items():
        assert seen == ["PENDING", "DUAL_WRITE", "COPYING", "COMMITTED"]
        assert moves_of(world, name)[number].attempts == 1
    for key, value in rows.items():
        assert world.get(key) == value
    world.conclude()


def test_committed_moves_are_not_copied_again_by_a_successor() -> None:
    """F66: nothing is sent to a target whose move was committed."""
    world = Scenario(nodes=3, replicas=1, partitions=9)
    world.put_many(12)
    name = start(world, planned(world, "n1"))
    until_committed(world, name, 1)
    (done,) = [m for m in moves_of(world, name) if m.state == "COMMITTED"]

    def chunks() -> int:
        sent = [each.message for each in said(world, Chunk, to=done.target.node)]
        return sum(isinstance(each, Chunk) and each.partition == done.partition for each in sent)

    before = chunks()
    replace_coordinator(world)
    until_idle(world)
    assert chunks() == before
    assert run_of(world, name).outcome == "done"
    world.conclude()


@pytest.mark.parametrize("while_paused", [False, True])
def test_start_and_cancel_in_quick_succession_leave_nothing_behind(while_paused: bool) -> None:
    """S36: five times under writes; also from a pause; a second cancel is refused."""
    world = Scenario(nodes=4, replicas=2, partitions=4, clients=3)
    workloads = world.keep_busy(20.0)
    for number in range(5):
        name = start(world, planned(world, f"n{number % 4 + 1}", limits=Limits(2, 2)))
        world.run_for(0.03 * number)
        assert state_of(world) == "running"
        if while_paused:
            world.answer(world.request(PauseRun()))
        first, second = world.request(CancelRun()), world.request(CancelRun())
        assert world.answer(first)[0] == "done"
        assert world.answer(second)[0] == "refused"
        until_idle(world)
        assert run_of(world, name).outcome == "cancelled"
        assert {world.stage_name(each) for each in world.agreed.topology.partitions} == {"stable"}
        assert all(intent.pending is None for intent in world.agreed.intents.values())
    world.conclude(workloads)


def test_a_second_start_changes_nothing_of_the_first() -> None:
    """F58, S28: while its moves are in flight."""
    world = six_partitions()
    plan = planned(world, spread(world))
    name = start(world, plan)
    world.until(lambda: "COPYING" in states(world, name))
    other = RunPlan("something else", plan.moves)
    state, words = world.answer(world.request(StartRun(other)))
    assert state == "refused"
    assert f"run {name} is running already: {plan.action}" in words
    until_idle(world)
    run = run_of(world, name)
    assert (run.action, run.outcome, run.moves) == (plan.action, "done", len(plan.moves))
    assert list(world.agreed.runs) == [name]
    world.conclude()


# --- failures


def test_a_move_that_never_succeeds_is_tried_three_times_and_the_others_go_on() -> None:
    """F63, F64, S29: attempts == 3; nothing of it is left at the target, all is at the source."""
    world = Scenario(nodes=3, replicas=1, partitions=6)
    world.put_many(20)
    plan = planned(world, "n1", limits=Limits(2, 2))
    lost = plan.moves[0].partition
    world.wire.twist = lambda message: (
        [] if isinstance(message, Chunk) and message.partition == lost else [message]
    )
    for coordinator in world.coordinators:
        coordinator.brain.settings = replace(coordinator.brain.settings, copy_silence_seconds=1.0)
    name = start(world, plan)
    until_idle(world, 90.0)
    bad, good = moves_of(world, name)
    assert (bad.state, bad.attempts, bad.final) == ("FAILED", 3, True)
    assert "nothing was copied" in bad.detail
    assert (good.state, good.attempts) == ("COMMITTED", 1)
    assert run_of(world, name).outcome == "failed-in-part"
    assert world.stored(bad.target.node, lost) == []
    assert world.replicas(lost) == {"n1"}
    assert histories(world, name)[0][-3:] == ["DUAL_WRITE", "COPYING", "FAILED"]
    world.conclude()


def test_a_move_that_somebody_cancels_is_not_tried_again() -> None:
    """The others go on."""
    world = Scenario(nodes=3, replicas=1, partitions=6)
    world.mover.pause()
    name = start(world, planned(world, "n1"))
    world.until(lambda: "COPYING" in states(world, name))
    (move,) = [m for m in moves_of(world, name) if m.state == "COPYING"]
    world.answer(world.request(CancelChange(move.partition, move.trigger)))
    world.until(lambda: states(world, name)[move.number] == "FAILED")
    world.mover.resume()
    until_idle(world)
    stopped = moves_of(world, name)[move.number]
    assert (stopped.attempts, stopped.final, stopped.detail) == (1, True, "cancelled")
    assert states(world, name).count("COMMITTED") == 1
    world.conclude()


# --- holds


def held(world: Scenario) -> str:
    name = start(world, planned(world, "n1", hold_seconds=600.0))
    world.until(lambda: any("held" in m.detail for m in told(world, name).current))
    assert [m.state for m in told(world, name).current] == ["COPYING"]
    return name


def test_a_held_move_of_a_cancelled_run_goes_back_without_loss() -> None:
    """F57: held is not committed."""
    world = Scenario(nodes=3, replicas=1, partitions=3)
    rows = world.put_many(10)
    name = held(world)
    more = world.put_many(5, "later")
    world.answer(world.request(CancelRun()))
    until_idle(world)
    assert states(world, name) == ["FAILED"]
    assert world.replicas(moves_of(world, name)[0].partition) == {"n1"}
    for key, value in (rows | more).items():
        assert world.get(key) == value
    world.conclude()


def test_a_held_move_goes_on_when_somebody_waits_for_it() -> None:
    """F91: a waiting topology request ends the hold; it is served when the move has ended."""
    world = Scenario(nodes=3, replicas=1, partitions=3)
    name = held(world)
    asked = world.request(FollowNodes("zone"))
    assert world.answer(asked)[0] == "done"
    assert states(world, name) == ["COMMITTED"]
    until_idle(world)
    world.conclude()


# --- who goes first


def starts(agreed: Agreed) -> int:
    return sum(run.starts for run in agreed.runs.values())


def test_no_move_begins_while_a_topology_request_waits() -> None:
    """F91, S74, D14: a node joins in the middle of a run, and the run then goes on."""
    world = Scenario(nodes=3, replicas=1, partitions=9)
    world.commit(Commit({}, (Put(Cluster("birds", "c1")), Put(Features())), "founded"), "operator")
    world.mover.pause()
    name = start(world, planned(world, "n1"))
    world.until(lambda: "COPYING" in states(world, name))
    asked = world.request(JoinCluster(Node("n9", host="h9"), "birds"))
    world.run_for(1.0)
    assert world.agreed.requests[asked].state == "waiting"
    assert told(world, name).waits == (f"the request {asked} (join) is served first",)
    before = starts(world.agreed)
    world.mover.resume()
    assert world.answer(asked) == ("done", "joined")
    assert starts(world.agreed) == before
    assert states(world, name).count("COMMITTED") == 1
    until_idle(world)
    assert run_of(world, name).outcome == "done"
    world.conclude()


def test_a_lock_stops_beginnings_until_it_is_cleared() -> None:
    """F87: through a change of coordinators, too."""
    world = Scenario(nodes=3, replicas=1, partitions=9)
    name = start(world, planned(world, "n1"))
    world.answer(world.request(LockCluster("an audit")))
    asked = world.request(FollowNodes("zone"))
    moved = world.request(MovePartition("p1", source="n2", target=Placement("n3")))
    world.until(lambda: told(world, name).in_flight == 0)
    before = starts(world.agreed)
    replace_coordinator(world)
    world.run_for(2.0)
    assert starts(world.agreed) == before
    assert {world.agreed.requests[each].state for each in (asked, moved)} == {"waiting"}
    assert world.answer(world.request(UnlockCluster()))[0] == "done"
    assert world.answer(asked)[0] == "done"
    assert world.answer(moved)[0] == "done"
    until_idle(world)
    assert run_of(world, name).outcome == "done"
    world.conclude()


def test_one_slow_move_does_not_delay_others() -> None:
    """F93: the copy of one partition stands still, all others arrive."""
    world = Scenario(nodes=3, replicas=1, partitions=9)
    plan = planned(world, "n1", limits=Limits(2, 2))
    slow = plan.moves[0].partition
    world.wire.holds = lambda each: (
        isinstance(each.message, Chunk) and each.message.partition == slow
    )
    name = start(world, plan)
    until_committed(world, name, len(plan.moves) - 1)
    assert states(world, name)[0] == "COPYING"
    world.wire.let_go()
    until_idle(world)
    assert run_of(world, name).outcome == "done"
    world.conclude()


# --- drains


@pytest.mark.parametrize("decommission", [True, False])
def test_a_node_is_drained_under_load_while_coordinators_die(decommission: bool) -> None:
    """F94: it holds nothing in the end, and only then it has left or is drained."""
    world = Scenario(nodes=4, replicas=2, partitions=6, clients=3)
    workloads = world.keep_busy(20.0)
    plan = planned(world, "n2", drains=("n2",), decommission=decommission)
    name = start(world, plan)
    for _ in range(3):
        world.run_for(0.4)
        replace_coordinator(world)
        assert world.agreed.topology.nodes["n2"].state in ("decommissioning", "left")
    until_idle(world)
    assert run_of(world, name).outcome == "done"
    assert world.agreed.topology.nodes["n2"].state == (
        "left" if decommission else "decommissioning"
    )
    for partition in world.agreed.topology.partitions:
        assert "n2" not in world.replicas(partition)
        assert world.stored("n2", partition) == []
    for _, agreed in world.states:
        holds = [
            record.id
            for record in agreed.topology.partitions.values()
            if any(replica.node == "n2" for replica in record.replicas)
        ]
        assert not holds or agreed.topology.nodes["n2"].state != "left"
    world.conclude(workloads)


def test_a_node_that_was_drained_and_stopped_is_removed() -> None:
    """A drained node stays a member, empty; once it is stopped, it can be removed for good."""
    world = Scenario(partitions=2, replicas=1)
    name = start(world, planned(world, "n2", drains=("n2",)))
    until_idle(world)
    assert run_of(world, name).words == "drained: n2"
    world.nodes["n2"].crash()
    world.until(lambda: "n2" not in world.agreed.leases)
    assert world.answer(world.request(RemoveNode("n2"))) == ("done", "removed")
    assert world.agreed.topology.nodes["n2"].state == "left"


def test_all_that_a_removed_node_held_has_other_owners_and_the_last_node_stays() -> None:
    """F60: nodes are planned to leave, and leave, until one is left: each owns and holds nothing
    afterwards. The last one can be neither drained nor removed, and serves everything."""
    world = Scenario(nodes=3, replicas=1, partitions=6)
    rows = world.put_many(12)
    for leaving in ("n1", "n2"):
        brain = world.in_office().brain
        view = ClusterView(world.agreed, brain.statuses, brain.office or 0, world.now, world.now)
        held = {
            name for name in world.agreed.topology.partitions if leaving in world.replicas(name)
        }
        assert held
        _, plan = planner.planned(view, RunPlan("leave", drains=(leaving,), decommission=True))
        assert {move.partition for move in plan.moves if move.source == leaving} == held
        name = start(world, plan)
        until_idle(world)
        assert run_of(world, name).outcome == "done"
        assert world.agreed.topology.nodes[leaving].state == "left"
        for partition in world.agreed.topology.partitions:
            assert leaving not in {world.owner(partition).name, *world.replicas(partition)}
            assert world.stored(leaving, partition) == []
    before = world.agreed.topology.nodes
    last = world.request(DrainNodes(RunPlan("leave", drains=("n3",), decommission=True)))
    assert world.answer(last)[0] == "refused"
    assert "no data node is left without n3" in world.answer(last)[1]
    world.nodes["n3"].crash()
    world.until(lambda: "n3" not in world.agreed.leases)
    state, why = world.answer(world.request(RemoveNode("n3")))
    assert (state, "n3 is the last node" in why) == ("refused", True)
    assert world.agreed.topology.nodes == before
    world.nodes["n3"].start()
    world.until(lambda: all(world.is_open(name) for name in world.agreed.topology.partitions))
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_two_nodes_that_share_a_partition_are_drained_together() -> None:
    """D14: its two replicas go one after the other."""
    world = Scenario(nodes=5, replicas=2, partitions=4)
    moves = []
    for name, record in world.agreed.topology.partitions.items():
        here = [replica.node for replica in record.replicas]
        free = [node for node in ("n3", "n4", "n5") if node not in here]
        leaving = [node for node in here if node in ("n1", "n2")]
        moves += [PlannedMove(name, a, Placement(b)) for a, b in zip(leaving, free, strict=False)]
    plan = RunPlan("two at once", tuple(moves), drains=("n1", "n2"), decommission=True)
    name = start(world, plan)
    until_idle(world)
    assert run_of(world, name).words == "left: n1, n2"
    world.conclude()


def test_a_cancelled_drain_gives_its_node_back() -> None:
    """F57."""
    world = Scenario(nodes=4, replicas=1, partitions=8)
    world.mover.pause()
    plan = planned(world, "n2", drains=("n2",), decommission=True)
    name = start(world, plan)
    world.until(lambda: world.stage_name(plan.moves[0].partition) == STREAMING)
    world.answer(world.request(CancelRun()))
    until_idle(world)
    world.mover.resume()
    assert run_of(world, name).words == "not drained, and normal again: n2"
    assert world.agreed.topology.nodes["n2"].state == "normal"
    world.conclude()


def test_a_switched_move_completes_though_its_run_is_cancelled() -> None:
    """F57: past the switch there is no way back."""
    world = Scenario(nodes=3, replicas=1, partitions=3)
    plan = planned(world, "n1")
    partition = plan.moves[0].partition
    cancelled: list[str] = []
    world.when(READ_NEW, lambda: cancelled.append(world.request(CancelRun())), partition)
    name = start(world, plan)
    until_idle(world)
    assert world.answer(cancelled[0])[0] in ("done", "refused")
    assert states(world, name) == ["COMMITTED"]
    assert world.replicas(partition) == {plan.moves[0].target.node}
    world.conclude()


# --- a disk that is full


def test_a_move_to_a_full_disk_is_given_up_and_planned_elsewhere_while_others_go_on() -> None:
    """S40: the target refuses every slice. The move is given up after a bounded number of attempts
    and leaves nothing there; the other moves of the run, and a request of an operator, go on. The
    next plan, which knows of the full disk, moves the partition to another node."""
    world = Scenario(nodes=4, replicas=1, partitions=6, clients=3, live_moves=True)
    rows = world.put_many(24)
    home = spread(world)
    here = [n for n, r in world.agreed.topology.partitions.items() if r.replicas[0].node == home]
    full, *others = [name for name in world.nodes if name != home]
    elsewhere = next(n for n in world.agreed.topology.partitions if n not in here)

    def refuses(said: Said) -> bool:
        if said.to != full or not isinstance(said.message, Chunk | End):
            return False
        each = said.message
        denied = Denied(each.partition, each.session, each.slice, "the disk is full")
        world.schedule(0.001, world.mover.receive, full, denied)
        return True

    world.wire.holds = refuses
    targets = [full, *others]
    moves = tuple(
        PlannedMove(name, home, Placement(targets[number % len(targets)]))
        for number, name in enumerate(here[:3])
    )
    name = start(world, RunPlan("empty", moves, Limits(9, 9)))
    target = next(n for n in others if n not in world.replicas(elsewhere))
    world.move(target, partition=elsewhere)
    world.until_ended(elsewhere)
    assert world.replicas(elsewhere) == {target}
    until_idle(world, 120.0)
    assert states(world, name) == ["FAILED", *["COMMITTED"] * (len(moves) - 1)]
    assert run_of(world, name).outcome == "failed-in-part"
    assert world.replicas(here[0]) == {home}
    assert world.rows_at(full, here[0]) == {}

    brain = world.in_office().brain
    volumes = world.agreed.topology.nodes[full].volumes
    statuses = {
        node: replace(
            status,
            free_bytes=dict.fromkeys(volumes, 0 if node == full else 1 << 40),
            replicas={
                of: tuple(replace(replica, bytes=1 << 20) for replica in held)
                for of, held in status.replicas.items()
            },
        )
        for node, status in brain.statuses.items()
    }
    view = ClusterView(world.agreed, statuses, brain.office or 0, world.now, world.now)
    _, plan = planner.planned(view, RunPlan("drain", drains=(home,)))
    assert here[0] in {move.partition for move in plan.moves}
    assert full not in {move.target.node for move in plan.moves}
    again = start(world, plan)
    until_idle(world, 60.0)
    assert run_of(world, again).outcome == "done"
    assert not world.replicas(here[0]) & {home, full}
    world.wire.waiting.clear()
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()
