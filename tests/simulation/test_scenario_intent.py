"""Does a partition become what was asked for last, and is every request answered in words?"""

from itertools import pairwise

import pytest

from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP_TARGET,
    FALLBACK,
    READ_NEW,
    STREAMING,
    USE_NEW,
)
from limosa.core.messages import Seal
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    CancelChange,
    CompleteMove,
    RebuildReplicas,
    ReverseMove,
    SetReplicas,
)
from limosa.simulation.world import ZONE
from tests.simulation.scenarios import Scenario, said


def places(*nodes: str) -> tuple[Placement, ...]:
    return tuple(Placement(node) for node in nodes)


def streaming(world: Scenario) -> tuple[str, str]:
    """A move that is in the middle of its copy, and stays there while the mover is paused."""
    world.mover.pause()
    source, target = world.move_owner()
    world.until_stage(STREAMING)
    world.run_for(0.3)
    return source, target


def test_a_request_becomes_pending_and_then_a_transition() -> None:
    """F160: pending empty, stable ≠ new: pending = new and change = the request's revision."""
    world = Scenario(replicas=1)
    asked = world.move("n3")
    trigger = world.agreed.revisions[f"request/{asked}"]
    world.until(lambda: world.intent().pending is not None)
    intent = world.intent()
    assert intent.pending is not None
    assert intent.pending.placements == places("n3")
    assert intent.pending.trigger == intent.change == trigger
    assert world.answer(asked) == ("done", "accepted")
    world.until_ended()
    assert world.intent().stable == places("n3")
    change = {r.transition.id for _, r in world.records() if r.transition is not None}
    assert change == {f"t{trigger}"}
    world.conclude()


def test_a_second_move_is_planned_not_started_and_runs_by_itself_afterwards() -> None:
    """F161, F166: while one runs there is no second transition; three more requests leave the
    latest as planned; it starts in the very commit that ends the first."""
    world = Scenario(nodes=6, replicas=1)
    world.put_many(5)
    home = world.owner().name
    _, first = streaming(world)
    others = [name for name in world.nodes if name not in (home, first)][:3]
    for name in others:
        assert world.answer(world.move(name))[0] == "done"
        change = world.record().transition
        assert change is not None
        assert [replica.node for replica in change.targets] == [first]
    intent = world.intent()
    assert intent.pending is not None
    assert intent.pending.placements == places(first)
    assert intent.planned is not None
    assert intent.planned.placements == places(others[-1])
    assert intent.change == intent.planned.trigger
    world.mover.resume()
    world.until_ended()
    assert world.replicas() == {others[-1]}
    ends = [
        (before.intents["p0"], after.intents["p0"])
        for (_, before), (_, after) in pairwise(world.states)
        if before.topology.partitions["p0"].transition is not None
        and after.topology.partitions["p0"].transition is None
    ]
    assert len(ends) == 2
    (before, after), (_, last) = ends
    assert after.stable == places(first)
    assert after.pending == before.planned
    assert (after.planned, after.cancel) == (None, None)
    assert (last.pending, last.planned, last.stable) == (None, None, places(others[-1]))
    world.conclude()


def test_asking_for_what_is_pending_removes_the_plan() -> None:
    """F162: pending == new: planned is removed, and the move ends where the first request said."""
    world = Scenario(nodes=5, replicas=1)
    home = world.owner().name
    _, first = streaming(world)
    other = next(name for name in world.nodes if name not in (home, first))
    world.answer(world.move(other))
    assert world.intent().planned is not None
    world.answer(world.move(first))
    assert world.intent().planned is None
    world.mover.resume()
    world.until_ended()
    assert world.replicas() == {first}
    world.conclude()


def test_asking_to_stay_while_a_move_runs_brings_it_back_afterwards() -> None:
    """F161: stable == new but pending is another: planned, not forgotten; S37: there and back."""
    world = Scenario(replicas=1)
    world.put_many(5)
    home = world.owner().name
    _, first = streaming(world)
    world.answer(world.move(home))
    planned = world.intent().planned
    assert planned is not None
    assert planned.placements == places(home)
    world.mover.resume()
    world.until_ended()
    assert world.replicas() == {home}
    visited = [sorted(r.node for r in record.replicas) for _, record in world.records()]
    assert [first] in visited
    world.conclude()


def test_asking_for_what_is_already_so_changes_nothing() -> None:
    """F162: nothing pending, stable == new: no transition, no plan, only the change key."""
    world = Scenario(replicas=1)
    before = world.record()
    asked = world.move(world.owner().name)
    trigger = world.agreed.revisions[f"request/{asked}"]
    assert world.answer(asked)[0] == "done"
    world.run_for(1.0)
    assert world.record() == before
    assert world.intent().pending is world.intent().planned is None
    assert world.intent().change == trigger
    world.conclude()


def test_requests_that_pile_up_are_answered_in_their_order_and_the_latest_wins() -> None:
    """S17, F161: three moves are asked for while nobody coordinates: the first becomes pending,
    the last is where the partition ends; the second, overtaken, never runs."""
    world = Scenario(nodes=6, replicas=1)
    home = world.owner().name
    goals = [name for name in world.nodes if name != home][:3]
    world.freeze()
    asked = [world.move(goal) for goal in goals]
    triggers = [world.agreed.revisions[f"request/{name}"] for name in asked]
    assert triggers == sorted(triggers)
    world.mover.pause()
    world.thaw()
    for name in asked:
        assert world.answer(name)[0] == "done"
    assert world.intent().change == triggers[-1]
    world.mover.resume()
    world.until_ended()
    assert world.replicas() == {goals[-1]}
    visited = {r.node for _, record in world.records() for r in record.replicas}
    assert goals[1] not in visited
    world.conclude()


# ------------------------------------------------ cancel


@pytest.mark.parametrize("stage", [ALLOW, "write_both_read_old", STREAMING])
def test_a_cancel_before_the_switch_goes_back(stage: str) -> None:
    """F104: cancelled in each stage before the switch: cleanup_target, then in one commit
    stable unchanged, cancel removed, pending empty; nothing at the target."""
    world = Scenario()
    world.put_many(10)
    workloads = world.keep_busy(2.0)
    before = world.replicas()
    world.mover.pause()
    _, target = world.move_owner()
    world.until_stage(stage)
    assert world.answer(world.cancel()) == ("done", "will be cancelled")
    world.mover.resume()
    world.until_ended()
    assert world.stages()[-2:] == [CLEANUP_TARGET, "stable"]
    assert world.replicas() == before
    assert not world.stored(target)
    assert (world.intent().pending, world.intent().planned, world.intent().cancel) == (None,) * 3
    world.conclude(workloads)


def test_a_cancel_outlives_its_coordinator() -> None:
    """It is stored, so a successor finds it, and it wins over pending."""
    world = Scenario()
    world.put_many(5)
    before = world.replicas()
    streaming(world)
    asked = world.cancel()
    world.until(lambda: world.intent().cancel is not None)
    world.in_office().crash()
    world.mover.resume()
    world.until_ended()
    assert world.agreed.requests[asked].state == "done"
    assert world.replicas() == before
    assert READ_NEW not in world.stages()
    world.conclude()


def test_a_planned_change_runs_by_itself_after_a_cancel() -> None:
    """F166: cancelled: pending = planned in the same commit, and it starts without being asked
    again."""
    world = Scenario(nodes=5, replicas=1)
    home = world.owner().name
    _, first = streaming(world)
    other = next(name for name in world.nodes if name not in (home, first))
    world.answer(world.move(other))
    world.cancel()
    world.mover.resume()
    world.until_ended()
    assert world.replicas() == {other}
    assert first not in {r.node for _, record in world.records() for r in record.replicas}
    world.conclude()


def test_a_cancel_of_something_else_or_too_late_is_refused_with_the_reason() -> None:
    """A cancel that names another trigger, or that comes after the switch, changes
    nothing."""
    world = Scenario()
    _, target = world.move_owner(hold_seconds=2.0)
    world.until_stage(STREAMING)
    state, why = world.answer(world.request(CancelChange("p0", 1)))
    assert state == "refused"
    assert "has no pending change of trigger 1" in why
    world.until_stage(READ_NEW)
    pending = world.intent().pending
    state, why = world.answer(world.cancel())
    assert state == "refused"
    assert "has switched already (write_both_read_new)" in why
    assert "reverse" in why
    assert world.intent().pending == pending
    assert world.intent().cancel is None
    world.until_ended()
    assert target in world.replicas()
    world.conclude()


# ------------------------------------------------ hold, reverse, complete


def test_a_held_move_goes_back_without_loss_when_it_is_reversed() -> None:
    """F104, F98: reverse during the hold takes the fallback edge, under writes that went to the
    new owner."""
    world = Scenario()
    world.put_many(10)
    workloads = world.keep_busy(4.0)
    before = world.replicas()
    source, target = world.move_owner(hold_seconds=30)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    assert world.owner().name == target
    for number in range(10):
        assert world.put(f"held-{number}", number).outcome == "done"
    assert world.answer(world.request(ReverseMove("p0"))) == ("done", "reversing")
    world.until_ended()
    assert world.stages()[-4:] == [READ_NEW, FALLBACK, CLEANUP_TARGET, "stable"]
    assert world.replicas() == before
    assert world.owner().name in before
    assert world.stored(source)
    assert not world.stored(target)
    for number in range(10):
        assert world.get(f"held-{number}") == number
    world.conclude(workloads)


def test_complete_ends_a_hold_and_nothing_else_does() -> None:
    """Held for as long as was asked, by the words of the wait; complete lets it go on at
    once."""
    world = Scenario()
    _, target = world.move_owner(hold_seconds=600)
    world.until_stage(READ_NEW)
    world.run_for(60.0)
    assert world.stage_name("p0") == READ_NEW
    assert "`complete` ends the hold, `reverse` reverts the move" in world.waits()
    assert world.answer(world.request(CompleteMove("p0"))) == ("done", "completing")
    since = world.now
    world.until_ended()
    assert world.now - since < 1.0
    assert target in world.replicas()
    world.conclude()


@pytest.mark.parametrize("kind", ["reverse", "complete"])
@pytest.mark.parametrize("stage", ["stable", STREAMING, USE_NEW])
def test_reverse_and_complete_apply_to_a_held_move_only(kind: str, stage: str) -> None:
    """In any other stage, and after use_new, they are refused with the reason, and change
    nothing."""
    world = Scenario()
    world.put_many(3)
    if stage != "stable":
        slow = next(n for n in world.replicas() if n != world.owner().name)
        if stage == STREAMING:
            world.mover.pause()
        world.move_owner(hold_seconds=0.5 if stage == USE_NEW else 0.0)
        if stage == USE_NEW:
            world.until_stage(READ_NEW)
            world.until(lambda: world.waits().startswith("held"))
            world.wire.blind.add(slow)  # it does not hear of use_new, which so can't be left
        world.until_stage(stage)
    before = world.record()
    wish = ReverseMove("p0") if kind == "reverse" else CompleteMove("p0")
    state, why = world.answer(world.request(wish))
    assert state == "refused"
    assert f"{kind} applies to a held move only" in why
    assert world.record() == before
    world.mover.resume()
    world.wire.blind.clear()
    world.conclude()


def test_a_move_to_a_node_that_is_no_member_or_does_not_live_is_refused() -> None:
    """An illegal request gets words that say what to do, and no transition."""
    world = Scenario(nodes=5)
    a, b = sorted(world.replicas())[:2]
    world.nodes["n5"].crash()
    world.until(lambda: "n5" not in world.agreed.leases)
    for nodes, reason in (
        ((a, b, "n9"), "n9 is not a member"),
        ((a, b, "n5"), "n5 is down"),
        ((a, b, b), "two replicas on one node"),
        ((a, b), "2 replicas, but the zone zone asks for 3"),
    ):
        state, why = world.answer(world.move(*nodes))
        assert state == "refused"
        assert reason in why
    assert world.stages() == []
    world.conclude()


def test_a_replica_count_that_was_given_up_blocks_no_later_move() -> None:
    """The zone asks for three replicas, and the node that was to hold the third one dies: the
    partition stays as it was, can be moved, and gets its third replica when asked again."""
    world = Scenario(replicas=2)
    world.put_many(5)
    world.mover.pause()
    assert world.answer(world.request(SetReplicas(ZONE, 3)))[0] == "done"
    world.until_stage(STREAMING)
    (third,) = {place.node for place in pending_places(world)} - world.replicas()
    world.nodes[third].crash()
    world.until_ended()
    assert len(world.replicas()) == 2
    world.mover.resume()
    (fourth,) = set(world.nodes) - world.replicas() - {third}
    kept = world.replicas() - {world.owner().name}
    assert world.answer(world.move(fourth, *kept)) == ("done", "accepted")
    world.until_ended()
    assert world.replicas() == {fourth, *kept}
    assert world.answer(world.request(SetReplicas(ZONE, 3)))[0] == "done"
    world.until_ended()
    assert len(world.replicas()) == 3
    world.conclude()


def test_a_replica_count_that_was_given_up_is_tried_again_by_the_cluster() -> None:
    """S117: one partition gives up its third replica. The change is retried, and until it
    succeeds it blocks neither a rebuild nor a move."""
    world = Scenario(replicas=2, nodes=5)
    rows = world.put_many(5)
    world.mover.pause()
    assert world.answer(world.request(SetReplicas(ZONE, 3)))[0] == "done"
    world.until_stage(STREAMING)
    (third,) = {place.node for place in pending_places(world)} - world.replicas()
    follower = next(name for name in sorted(world.replicas()) if name != world.owner().name)
    rebuild = world.request(RebuildReplicas("p0", (follower,)))
    assert world.answer(rebuild) == ("done", "accepted")
    world.nodes[third].crash()
    world.mover.resume()
    world.until_ended()
    assert len(world.replicas()) == 2
    rebuilt = [r for r in world.record().replicas if r.node == follower]
    assert rebuilt[0].incarnation != "first"
    free = next(name for name in sorted(world.nodes) if name not in {*world.replicas(), third})
    kept = world.replicas() - {follower}
    assert world.answer(world.move(free, *kept)) == ("done", "accepted")
    world.until_ended()
    assert world.replicas() == {free, *kept}
    world.until(lambda: len(world.record().replicas) == 3, seconds=25.0)
    assert {free, *kept} < world.replicas()
    assert third not in world.replicas()
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_a_partition_is_not_sealed_without_a_successor() -> None:
    """S116: the one replica that is to stay fails after the smaller count was accepted. No owner is
    sealed for it, writes go on, and the change is retried with a replica that is in sync."""
    world = Scenario(replicas=3)
    world.put_many(5)
    first = world.owner().name
    assert world.answer(world.request(SetReplicas(ZONE, 1)))[0] == "done"
    world.until_stage(ALLOW)
    world.nodes[first].crash()
    world.until(lambda: world.record().owner is not None and world.owner().name != first)
    world.until(lambda: world.is_open("p0"))
    while world.stage_name("p0") != "stable":
        assert world.put("during", world.now).outcome == "done"
        world.run_for(0.2)
    assert said(world, Seal) == []
    assert len(world.replicas()) == 3
    world.until(lambda: len(world.record().replicas) == 1, seconds=25.0)
    assert first not in world.replicas()
    assert said(world, Seal) == []
    world.conclude()


def pending_places(world: Scenario) -> tuple[Placement, ...]:
    pending = world.intent().pending
    assert pending is not None
    return pending.placements
