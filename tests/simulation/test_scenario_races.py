"""What if two decisions meet, or one is made twice?"""

from functools import partial

import pytest
from msgspec.structs import replace

from limosa.core.client import Finished
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.messages import Redirect, Write
from limosa.core.model.changes import Commit, intent_key, request_key
from limosa.core.model.requests import CancelChange, RemoveNode
from limosa.simulation.workloads import rows_of
from tests.simulation.scenarios import Scenario, said
from tests.simulation.test_scenario_runs import planned, run_of, start, until_idle

FORWARD = [ALLOW, WRITE_BOTH, STREAMING, READ_NEW, USE_NEW, CLEANUP, "stable"]


def another_coordinator(world: Scenario) -> None:
    """The one in office dies, and another one takes office."""
    old = world.in_office()
    old.crash()
    world.until(lambda: world.in_office() is not old and world.agreed.coordinator is not None)


def places(world: Scenario) -> list[set[str]]:
    """The nodes of the replicas, each time that they changed."""
    found: list[set[str]] = []
    for _, record in world.records():
        nodes = {replica.node for replica in record.replicas}
        if not found or found[-1] != nodes:
            found.append(nodes)
    return found


# ------------------------------------------------ old views


def test_a_coordinator_with_an_old_view_does_not_bring_back_an_old_set_of_replicas() -> None:
    """S16: it slept since the first move was pending. Another coordinator completed that one and a
    second one. Awake, the old coordinator commits nothing by its copy; it dies, and the next move
    goes on from what is agreed."""
    world = Scenario(nodes=5, replicas=1)
    rows = world.put_many(8)
    home = world.owner().name
    first, second, third = [name for name in world.nodes if name != home][:3]
    world.move(first)
    world.until_stage(STREAMING)
    old = world.in_office()
    assert old.brain.agreed.intents["p0"].pending is not None
    old.pause()
    world.until(lambda: world.in_office() is not old, 40.0)
    world.until_ended()
    world.move(second)
    world.until_ended()
    assert world.replicas() == {second}
    before, made = world.agreed, len(world.commits)
    assert old.brain.agreed.topology.partitions["p0"] != world.record()
    old.resume()
    world.run_for(3.0)
    assert not [why for by, why, done in world.commits[made:] if by == old.name and done]
    assert world.record() == before.topology.partitions["p0"]
    assert world.intent() == before.intents["p0"]
    old.crash()
    world.move(third)
    world.until_ended()
    assert places(world) == [{home}, {first}, {second}, {third}]
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("stage", [ALLOW, WRITE_BOTH, STREAMING, READ_NEW, USE_NEW, CLEANUP])
def test_of_two_compare_and_sets_at_different_stages_one_sees_the_other(
    stage: str, first: int
) -> None:
    """S46: one client knows the present stage, the other one only what was before the move, and one
    replica is a stage behind. Both replace the same version of a row at once: exactly one of them
    does, and the other one is told that the row is another one."""
    world = Scenario(live_moves=True, clients=2)
    world.put("k", "first")
    world.get("k", 1)
    seen = world.send_get("k")
    world.until(lambda: bool(seen))
    assert isinstance(seen[0].value, tuple)
    version = seen[0].value[0][0]
    informed, behind = world.clients
    late = next(name for name in sorted(world.replicas()) if name != world.owner().name)

    def fall_behind() -> None:
        world.wire.blind |= {late, behind.name}
        informed.crash()
        informed.start()  # it boots with the newest topology

    world.when(stage, fall_behind)
    world.move_owner(hold_seconds=0.2)
    world.until_stage(stage)
    world.until(lambda: informed.brain.topology.revision_of("p0") == world.revision())
    assert behind.brain.topology.revision_of("p0") < world.revision()
    assert not world.knows(late)
    answers: dict[int, Finished] = {}
    for number in (first, 1 - first):
        world.history.ask(
            world.clients[number], partial(answers.__setitem__, number),
            there="first", expected=version, rows=rows_of(("k", f"by {number}")),
        )  # fmt: skip
    world.run_for(0.3)
    world.wire.blind.clear()
    world.until(lambda: len(answers) == 2, 30.0)
    assert sorted(answer.outcome for answer in answers.values()) == ["done", "mismatch"]
    (winner,) = (number for number, answer in answers.items() if answer.outcome == "done")
    assert world.get("k") == world.get("k", 1) == f"by {winner}"
    world.until_ended()
    world.conclude()


def test_a_client_that_is_redirected_routes_again_and_does_not_loop() -> None:
    """S60: its cache names an old owner, and that one names a node that is not the owner any more.
    The client does not follow the names from node to node: it reads the topology, sends its write
    to the present owner, and succeeds after one redirect."""
    world = Scenario(replicas=1, nodes=4)
    world.put("a", 1)
    home = world.owner().name
    second, third = [name for name in world.nodes if name != home][:2]
    world.move(second)
    world.until_ended()
    world.move(third)
    world.until_ended()
    world.wire.twist = lambda message: [
        replace(message, owner=second) if isinstance(message, Redirect) else message
    ]
    before = len(said(world, Write))
    answers = world.send_put("a", 2)
    world.until(lambda: bool(answers))
    assert answers[0].outcome == "done"
    routed = [each.to for each in said(world, Write)[before:]]
    assert routed[0] == home
    assert routed[-1] == third
    assert second not in routed
    assert len(said(world, Redirect)) == 1
    assert world.get("a") == 2
    world.conclude()


# ------------------------------------------------ a step that is done again


def test_leaving_can_be_repeated_for_a_node_that_is_gone() -> None:
    """S88: the node dies as soon as it holds nothing. Each commit of the run after that is lost
    once, and its coordinator with it: every successor does the step again for a node that is not
    there any more, and the run ends; a move afterwards does not wait for that node."""
    world = Scenario(nodes=4, replicas=1, partitions=4)
    plan = planned(world, "n2", drains=("n2",), decommission=True)
    assert plan.moves
    name = start(world, plan)
    gone: list[str] = []
    lost: set[str] = set()

    def holds() -> bool:
        return any(
            "n2" in {each.node for each in (*record.replicas, *record.in_sync)}
            or record.transition is not None
            for record in world.agreed.topology.partitions.values()
        )

    def lose_once(by: str, commit: Commit) -> bool:
        if holds() or by == "operator":
            return False
        if not gone:
            gone.append("n2")
            world.nodes["n2"].crash()
        if commit.why in lost or not any(c.name == by for c in world.coordinators):
            return False
        lost.add(commit.why)
        world.in_office().crash()
        return True

    world.loses = lose_once
    for _ in range(400):
        world.run_for(0.1)
        for coordinator in world.coordinators:
            if not coordinator.run:
                coordinator.start()
        if world.agreed.rebalance.state == "idle":
            break
    until_idle(world)
    world.loses = lambda by, commit: False
    assert gone
    assert lost
    assert run_of(world, name).outcome == "done"
    assert world.agreed.topology.nodes["n2"].state == "left"
    world.until(lambda: "n2" not in world.agreed.leases)
    state, words = world.answer(world.request(RemoveNode("n2")))
    assert (state, words) == ("refused", "n2 has left already (nothing to do)")
    assert world.agreed.topology.nodes["n2"].state == "left"
    world.move_owner()
    world.until_ended()


def test_a_request_whose_coordinator_dies_before_the_intent_is_worked_out_once() -> None:
    """S103: the trigger is agreed, the commit of its intent is lost with its coordinator. The next
    one works the same intent out; the first commit, which arrives late, is refused."""
    world = Scenario(replicas=1)
    home = world.owner().name
    goal = next(name for name in world.nodes if name != home)
    lost: list[tuple[str, Commit]] = []

    def lose_first(by: str, commit: Commit) -> bool:
        if by != "operator" and request_key(asked) in commit.guards and not lost:
            lost.append((by, commit))
            return True
        return False

    asked = "r001"
    world.loses = lose_first
    assert world.move(goal) == asked
    trigger = world.agreed.revision_of(request_key(asked))
    world.until(lambda: bool(lost))
    assert world.intent().pending is None
    assert world.agreed.requests[asked].state == "waiting"
    another_coordinator(world)
    assert world.answer(asked)[0] == "done"
    assert world.intent().change == trigger
    by, commit = lost[0]
    made, _ = world.commit(commit, by)
    assert not made
    world.until_ended()
    answered = [why for _, why, done in world.commits if done and request_key(asked) in why.guards]
    assert len(answered) == 1 + 1  # the question, and one answer
    assert world.stages() == FORWARD
    assert places(world) == [{home}, {goal}]
    world.conclude()


@pytest.mark.parametrize("stage", [ALLOW, STREAMING, READ_NEW, CLEANUP])
def test_a_successor_goes_on_with_queued_changes(stage: str) -> None:
    """S106: one change is pending and another one planned when the coordinator dies, and again when
    the second one has just begun: both are carried out, each once, in their order."""
    world = Scenario(replicas=1, nodes=5)
    rows = world.put_many(5)
    home = world.owner().name
    first, second = [name for name in world.nodes if name != home][:2]
    world.move(first)
    world.until_stage(ALLOW)
    assert world.answer(world.move(second))[0] == "done"
    assert world.intent().planned is not None
    world.until_stage(stage)
    another_coordinator(world)
    for coordinator in world.coordinators:
        if not coordinator.run:
            coordinator.start()
    world.until(lambda: world.intent().planned is None)
    another_coordinator(world)
    world.until_ended()
    assert places(world) == [{home}, {first}, {second}]
    assert world.stages() == FORWARD * 2
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


# ------------------------------------------------ cancel and completion


def test_if_a_cancel_comes_first_the_completion_is_refused() -> None:
    """S112: the coordinator's next step is on its way when the cancel is stored with the pending
    change: the step was made for another revision of it, and is refused. The move goes back."""
    world = Scenario(replicas=1)
    home = world.owner().name
    steps: list[tuple[str, Commit]] = []
    pending = world.agreed.revision_of(intent_key("p0"))

    def lose_switch(by: str, commit: Commit) -> bool:
        if READ_NEW in commit.why and world.stage_name("p0") == STREAMING:
            steps.append((by, commit))
            return True
        return False

    world.loses = lose_switch
    world.move(next(name for name in world.nodes if name != home))
    world.until(lambda: bool(steps))
    pending = world.agreed.revision_of(intent_key("p0"))
    cancel = world.cancel()
    assert world.answer(cancel) == ("done", "will be cancelled")
    assert world.agreed.revision_of(intent_key("p0")) > pending
    world.loses = lambda by, commit: False
    made, _ = world.commit(steps[0][1], steps[0][0])
    assert not made
    world.until_ended()
    assert world.stages()[-2:] == [CLEANUP_TARGET, "stable"]
    assert world.replicas() == {home}
    world.conclude()


def test_if_the_completion_comes_first_the_cancel_is_refused() -> None:
    """S112: the cancel names the change that was pending when it was asked for. That one has been
    completed meanwhile; the one that is pending now has another revision, and goes on."""
    world = Scenario(replicas=1, nodes=5)
    home = world.owner().name
    first, second = [name for name in world.nodes if name != home][:2]
    world.move(first)
    world.until(lambda: world.intent().pending is not None)
    pending = world.intent().pending
    assert pending is not None
    world.until_ended()
    world.mover.pause()
    world.move(second)
    world.until_stage(STREAMING)
    state, why = world.answer(world.request(CancelChange("p0", pending.trigger)))
    assert (state, f"no pending change of trigger {pending.trigger}" in why) == ("refused", True)
    assert world.intent().cancel is None
    world.mover.resume()
    world.until_ended()
    assert places(world) == [{home}, {first}, {second}]
    world.conclude()


# ------------------------------------------------ who was away


def test_a_node_that_was_down_when_its_replica_was_dropped_drops_it_when_it_is_back() -> None:
    """S113: the replica moves away while its node is down. The node's disk keeps it until the node
    starts; then nothing of it is left, and nobody is served by it."""
    world = Scenario(replicas=2, nodes=4)
    rows = world.put_many(10)
    away = next(name for name in sorted(world.replicas()) if name != world.owner().name)
    world.run_for(1.0)
    world.nodes[away].crash()
    world.until(lambda: len(world.record().in_sync) == 1)
    goal = next(name for name in world.nodes if name not in world.replicas())
    world.move(world.owner().name, goal)
    world.until_ended()
    assert away not in world.replicas()
    assert world.stored(away)
    world.nodes[away].start()
    world.until(lambda: not world.stored(away))
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()
