"""Does a move under load keep what it promises, and say what it did?

A copy that differs, a mover that is silent or cuts differently, a hand-over that would take too
long, a second move of the same partition, a volume move that can't go back.
"""

import pytest

from limosa.core.effects import ShelveSlice
from limosa.core.events import Received, SliceShelved
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.messages import Chunk, Denied, End, Fetched, Landed
from limosa.core.model.intent import Placement
from limosa.core.model.reports import Report
from limosa.core.model.requests import CompleteMove, MovePartition, MoveToVolume, ReverseMove
from limosa.core.participant.held import Held
from limosa.simulation.rows import SimulatedRows
from tests.simulation.scenarios import Scenario, said

BACK = [ALLOW, WRITE_BOTH, STREAMING, CLEANUP_TARGET, "stable"]
FORWARD = [ALLOW, WRITE_BOTH, STREAMING, READ_NEW, USE_NEW, CLEANUP, "stable"]


def last_report(world: Scenario) -> Report:
    return max(world.agreed.reports.values(), key=lambda report: report.ended)


# ------------------------------------------------ a copy that differs


@pytest.mark.parametrize("seed", [1, 2])
def test_a_spoilt_copy_is_never_read_and_the_report_names_its_rows(seed: int) -> None:
    """F102, F104: a row of the copy is missing (or another one): the move goes back, nothing of it
    is left, and the next one is sound."""
    world = Scenario(seed)
    rows = world.put_many(12)
    before = world.replicas()
    world.spoils.add("p0")
    source, target = world.move_owner()
    world.until_ended()
    assert world.stages() == BACK
    assert world.replicas() == before
    assert world.rows_at(target) == {}
    report = last_report(world)
    assert report.why == f"verification: {target} differs from the owner"
    assert (report.outcome, report.kind, report.pause_seconds) == ("reverted", "move", 0.0)
    assert len(report.differences) == 1
    assert report.differences[0].split()[2] in rows
    assert report.began < report.ended
    world.move_owner()
    world.until_ended()
    assert world.replicas() == before - {source} | {target}
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_what_differed_is_given_up_by_the_next_coordinator_too() -> None:
    """F102, S35: the one that saw it dies at once; what it saw is agreed by then."""
    world = Scenario()
    world.put_many(12)
    before = world.replicas()
    world.spoils.add("p0")
    world.move_owner()
    world.until(lambda: "their rows are compared" in world.waits())
    world.in_office().crash()
    world.until_ended()
    assert world.stages() == BACK
    assert world.replicas() == before
    assert last_report(world).differences
    world.conclude()


def test_a_copy_that_differs_is_dropped_though_nobody_can_say_in_what() -> None:
    """F102: rows are waited for as long as the settings say, and no longer."""
    world = Scenario()
    world.put_many(12)
    world.spoils.add("p0")
    for coordinator in world.coordinators:
        coordinator._compare = lambda run, asked: None  # type: ignore[method-assign]
    world.move_owner()
    world.until_ended()
    assert world.stages() == BACK
    assert last_report(world).differences == ()
    world.conclude()


@pytest.mark.parametrize("collected", [False, True])
def test_a_slice_that_waits_for_its_turn_is_refused_after_a_collection(
    collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tombstone that hides one of its rows may be gone."""
    world = Scenario()
    node = world.owner()
    ((partition, incarnation), stored) = next(iter(node.disk.live.items()))
    answers: list[object] = []
    hear = node.on_event

    def listen(event: object) -> None:
        if isinstance(event, SliceShelved):
            answers.append(event.problem)
        hear(event)

    monkeypatch.setattr(node, "on_event", listen)
    node.carry_out(ShelveSlice(partition, incarnation, 10**9, 0, 1, (SimulatedRows(()),), 0))
    if collected:
        stored.collect(stored.watermark + 1)
    world.run_for(4.0)
    assert answers == (["copied rows from before a collection"] if collected else [""])


# ------------------------------------------------ a mover that is silent, or another one


def test_slices_of_two_movers_are_not_taken_for_one_copy() -> None:
    """S25, S123, F102: the second one cuts the range into another number of slices, under the same
    session; nothing is missing at the end."""
    world = Scenario(live_moves=True)
    rows = world.put_many(30)
    assert world.mover.slices == 3
    kept = {3: 0, 2: 1}
    world.wire.holds = lambda said: (
        isinstance(said.message, Chunk) and said.message.slice != kept[world.mover.slices]
    )
    _, target = world.move_owner()

    def held() -> list[Held]:
        return [each for (_, _), each in world.nodes[target].brain.held.items()]

    world.until(lambda: any(each.landed for each in held()))
    world.mover.crash()
    world.mover.start()
    assert world.mover.slices == 2
    world.until(lambda: any(len(each.landed) == 2 for each in held()))
    assert [each.copied for each in held()] == [None]
    assert world.stage_name("p0") == STREAMING
    world.wire.let_go()
    world.until_ended()
    assert world.stages() == FORWARD
    assert {key: world.rows_at(target)[key] for key in rows} == rows
    world.conclude()


def test_answers_about_another_cut_of_the_same_session_change_nothing() -> None:
    """S123: the rows of slice 0 of 2 are not sent on as slice 0 of 3, and slice 0 of 3 has not
    landed because slice 0 of 2 has."""
    world = Scenario(live_moves=True)
    rows = world.put_many(30)
    world.wire.holds = lambda said: isinstance(said.message, Fetched | Chunk | End)
    _, target = world.move_owner()
    world.until(lambda: bool(world.mover.tasks))
    (job,) = {id(task.job): task.job for task in world.mover.tasks.values()}.values()
    head = (job.partition, job.session, 0)
    before = set(world.mover.tasks)
    late = SimulatedRows(())
    sent = len(said(world, Chunk))
    for sender, message in (
        (job.source.node, Fetched(*head, late, 0, (), late.digest(), 2)),
        (target, Landed(*head, 2)),
        (target, Denied(*head, "another cut", 2)),
    ):
        world.mover.on_event(Received(sender, message))
    assert set(world.mover.tasks) == before
    assert len(said(world, Chunk)) == sent
    world.wire.let_go()
    world.until_ended()
    assert world.stages() == FORWARD
    assert {key: world.rows_at(target)[key] for key in rows} == rows
    world.conclude()


@pytest.mark.parametrize("seed", range(3, 8))
def test_a_mover_that_dies_between_slices_and_garbles_some_leaves_a_whole_copy(seed: int) -> None:
    """S25, F118: what is garbled has another digest, and is not taken in; others go on."""
    world = Scenario(seed, live_moves=True, unruly_mover=True)
    rows = world.put_many(30)
    moves = 0
    while moves < 4 or not (world.mover.starts > 1 or "garbled" in str(world.wire.said)):
        _, target = world.move_owner()
        world.until_ended(seconds=60.0)
        moves += 1
        assert moves < 20
    assert not world.mismatches
    world.healed = True
    _, target = world.move_owner()
    world.until_ended()
    assert world.stages()[-1] == "stable"
    assert {key: world.rows_at(target)[key] for key in rows} == rows
    world.conclude()


def test_a_move_whose_mover_is_dead_ends_in_bounded_time() -> None:
    """S25: nothing is copied, nothing is said; the move goes back, and what comes late has no
    effect."""
    world = Scenario(live_moves=True)
    rows = world.put_many(12)
    world.wire.holds = lambda said: isinstance(said.message, Chunk)
    _, target = world.move_owner()
    world.until_stage(STREAMING)
    began = world.now
    world.until_ended()
    assert world.now - began < 8.0
    assert world.stages() == BACK
    assert last_report(world).why == "nothing was copied for 4 s"
    world.wire.let_go()
    world.run_for(1.0)
    assert world.rows_at(target) == {}
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_a_rebuild_whose_mover_is_dead_is_tried_again_but_not_all_the_time() -> None:
    """S91, S105: each attempt that copies nothing ends as failed, never as done, and the next one
    comes after a pause. The attempt can be cancelled, and another partition moves meanwhile. With
    the mover back, the rebuild is repeated until the replica is in sync."""
    world = Scenario(live_moves=True, partitions=2)
    world.put_many(12)
    follower = next(n for n in sorted(world.replicas()) if n != world.owner().name)
    world.wire.holds = lambda said: (
        isinstance(said.message, Chunk) and (said.message.partition == "p0")
    )
    world.nodes[follower].crash()
    world.nodes[follower].disk.wipe()
    world.nodes[follower].start()
    world.until(lambda: world.stage_name("p0") != "stable")
    began = world.now
    world.move_owner("p1")
    world.until_ended("p1")
    world.run_for(max(0.0, began + 20.0 - world.now))
    rebuilds = [name for name in world.agreed.requests if name.startswith("rebuild-p0")]
    assert 2 <= len(rebuilds) <= 6
    world.until(lambda: world.waits("p0").startswith("copy"))
    assert world.answer(world.cancel("p0")) == ("done", "will be cancelled")
    world.until(lambda: world.stage_name("p0") == "stable")
    ended = [each for each in world.agreed.reports.values() if each.partition == "p0"]
    assert {(each.kind, each.outcome) for each in ended} == {("rebuild", "reverted")}
    assert follower not in {replica.node for replica in world.record("p0").in_sync}
    world.wire.let_go()
    world.until(lambda: len(world.record("p0").in_sync) == 3 and world.is_quiet("p0"), 40.0)
    assert last_report(world).outcome == "done"
    world.conclude()


# ------------------------------------------------ pauses


def test_a_report_says_when_it_was_and_how_long_writes_paused() -> None:
    world = Scenario()
    workloads = world.keep_busy(3.0)
    source, target = world.move_owner(max_pause_seconds=0.5)
    world.until_ended()
    report = last_report(world)
    assert (report.outcome, report.why, report.differences) == ("done", "", ())
    assert source in {replica.node for replica in report.sources}
    assert target in {replica.node for replica in report.targets}
    assert 0.0 < report.pause_seconds < 0.5
    assert 0.0 < report.began < report.ended <= world.now
    world.conclude(workloads)


def test_a_move_that_would_pause_writes_for_too_long_waits_and_can_be_cancelled() -> None:
    """F104: it never gives up by itself; meanwhile both sides are written."""
    world = Scenario()
    rows = world.put_many(5)
    before = world.replicas()
    _, target = world.move_owner(max_pause_seconds=0.001)
    world.until(lambda: "it would pause writes for about" in world.waits())
    assert world.waits().endswith("and at most 1 ms are allowed")
    world.run_for(10.0)
    assert world.stage_name("p0") == STREAMING
    assert world.put("late", 1).outcome == "done"
    assert world.has(target, "late")
    assert world.answer(world.cancel()) == ("done", "will be cancelled")
    world.until_ended()
    assert world.replicas() == before
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


# ------------------------------------------------ a second move


def test_a_second_move_is_refused_and_the_same_one_is_under_way() -> None:
    """F67: the refusal names the move that is under way, and nothing changes."""
    world = Scenario(nodes=6, replicas=1)
    world.put_many(5)
    _, target = world.move_owner(hold_seconds=600)
    world.until_stage(STREAMING)
    other = next(n for n in world.nodes if n not in (target, *world.replicas()))
    state, answer = world.answer(world.move(other, after_pending=False))
    assert state == "refused"
    assert answer.startswith("p0 is being moved already (")
    same = world.answer(world.move(target, hold_seconds=600, after_pending=False))
    assert same == ("done", "under way already")
    world.until_stage(READ_NEW)
    state, answer = world.answer(world.move(other, after_pending=False))
    assert (state, READ_NEW in answer) == ("refused", True)
    assert world.intent().planned is None
    world.request(CompleteMove("p0"))
    world.until_ended()
    assert world.replicas() == {target}
    world.conclude()


def test_a_move_that_waits_behind_a_held_one_ends_the_hold() -> None:
    """A move that is planned behind a held one does not wait for ten minutes."""
    world = Scenario(nodes=6, replicas=1)
    rows = world.put_many(5)
    _, target = world.move_owner(hold_seconds=600)
    world.until(lambda: world.waits().startswith("held for another"))
    other = next(n for n in world.nodes if n not in (target, *world.replicas()))
    assert world.answer(world.move(other))[0] == "done"
    world.until_ended()
    assert world.replicas() == {other}
    assert [report.outcome for report in world.agreed.reports.values()] == ["done", "done"]
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_a_move_may_name_the_replica_that_goes_and_where_to() -> None:
    world = Scenario()
    source = world.owner().name
    target = next(n for n in world.nodes if n not in world.replicas())
    before = world.replicas()
    for wrong in (target, ""):
        wish = MovePartition("p0", source=wrong, target=Placement(target))
        state, answer = world.answer(world.request(wish))
        assert (state, "holds no replica of p0" in answer) == ("refused", True)
    taken = next(n for n in sorted(before) if n != source)
    state, answer = world.answer(
        world.request(MovePartition("p0", source=source, target=Placement(taken)))
    )
    assert (state, answer.startswith(f"{taken} holds a replica of p0 already")) == ("refused", True)
    world.request(MovePartition("p0", source=source, target=Placement(target)))
    world.until_ended()
    assert world.replicas() == before - {source} | {target}
    world.conclude()


# ------------------------------------------------ back to where it was


def test_a_volume_move_never_goes_back_once_the_new_side_is_read() -> None:
    """S45: the node restarts in write_both_read_new; it goes on from there."""
    world = Scenario()
    rows = world.put_many(8)
    owner = world.owner().name
    rest = tuple(Placement(n) for n in sorted(world.replicas() - {owner}))
    world.request(MoveToVolume("p0", (Placement(owner, "v2"), *rest), hold_seconds=3.0))
    world.until_stage(READ_NEW)
    state, answer = world.answer(world.request(ReverseMove("p0")))
    assert (state, answer.startswith("a volume move can't be reversed")) == ("refused", True)
    world.nodes[owner].crash()
    world.run_for(4.0)
    world.nodes[owner].start()
    world.until_ended()
    assert CLEANUP_TARGET not in world.stages()
    assert (owner, "v2") in {(r.node, r.volume) for r in world.record().replicas}
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_a_replica_that_left_and_comes_back_knows_nothing_of_its_first_time() -> None:
    """S38, S37: it was the owner, and is made anew; what changed while it was away is there."""
    world = Scenario()
    world.put_many(6)
    source, target = world.move_owner()
    world.until_ended()
    first = {r.incarnation for r in world.record().replicas}
    after = {f"k{number}": f"new {number}" for number in range(6)}
    for key, value in after.items():
        assert world.put(key, value).outcome == "done"
    others = sorted(world.replicas() - {target})
    world.move(source, *others)
    world.until_ended()
    (back,) = [r for r in world.record().replicas if r.node == source]
    assert back.incarnation not in first
    world.until(lambda: {k: world.rows_at(source).get(k) for k in after} == after)
    assert {key: world.get(key) for key in after} == after
    world.conclude()
