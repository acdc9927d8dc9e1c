"""Whatever dies in whatever stage: is the end the right one, and is every acknowledged write
there?"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    MOVE,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.messages import DropReplica, End, Landed, Message, Replicate
from limosa.core.model.changes import Commit, lease_key
from limosa.core.model.requests import ReverseMove
from limosa.simulation.disk import SimulatedReplica
from limosa.simulation.faults import stop_keepers
from limosa.simulation.rows import SimulatedRow, token_of
from tests.simulation.scenarios import Scenario, said

STAGES = [stage.name for stage in MOVE.stages]
ROLLBACK = (FALLBACK, CLEANUP_TARGET)
BEFORE_SWITCH = (ALLOW, WRITE_BOTH, STREAMING)


def ends_new(stage: str, victim: str) -> bool:
    """The end that the table allows: a lost source never stops a move; a lost target gives it up as
    long as the old side still holds everything. The owner is the source before the switch."""
    if stage in ROLLBACK:
        return False
    source = victim == "source" or (victim == "owner" and stage in BEFORE_SWITCH)
    return source or stage in (USE_NEW, CLEANUP)


def lead_to(world: Scenario, stage: str, action: Callable[[], None]) -> tuple[str, str]:
    """Start a move of the owner's replica and act as soon as the stage is committed."""
    world.when(stage, action)
    source, target = world.move_owner(hold_seconds=0.2 if stage in (READ_NEW, FALLBACK) else 0.0)
    if stage == CLEANUP_TARGET:
        world.until_stage(STREAMING)
        world.cancel()
    elif stage == FALLBACK:
        world.until_stage(READ_NEW)
        world.request(ReverseMove("p0"))
    return source, target


def test_a_registration_that_arrives_late_does_not_replace_that_of_a_later_run() -> None:
    """S122: a node asks for a lease and crashes; its next run has registered when the question
    arrives."""
    world = Scenario()
    node = world.owner()
    former = world.metastore.revision_of(lease_key(node.name))
    node.crash()
    node.start()
    world.until(lambda: node.brain.lease is not None)
    lease = world.agreed.leases[node.name]
    assert world.metastore.register(node.name, former) is None
    assert world.agreed.leases[node.name] == lease
    assert world.metastore.renew(lease_key(node.name), lease.lease)
    world.conclude()


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("victim", ["source", "target", "owner"])
@pytest.mark.parametrize("stage", STAGES)
def test_killing_source_or_target_in_any_stage_ends_right_and_loses_nothing(
    stage: str, victim: str, replicas: int
) -> None:
    """S42, F104: source, target and present owner × all eight stages, forward and back, under
    continuous writes of all kinds; the node stays dead for longer than its lease, and then
    comes back."""
    world = Scenario(replicas=replicas, nodes=replicas + 2)
    world.put_many(10)
    workloads = world.keep_busy(20.0)
    world.run_for(0.2)
    before = world.replicas()
    killed: list[str] = []
    names: dict[str, str] = {}

    def kill() -> None:
        node = world.owner() if victim == "owner" else world.nodes[names[victim]]
        node.crash()
        killed.append(world.stage_name("p0"))
        world.schedule(5.0, node.start)

    names["source"] = world.owner().name
    names["target"] = next(n for n in world.nodes if n not in before)
    source, target = lead_to(world, stage, kill)
    assert (source, target) == (names["source"], names["target"])
    world.until(lambda: bool(killed))
    assert killed == [stage]
    world.until_ended()
    after = (before - {source}) | {target}
    assert world.replicas() == (after if ends_new(stage, victim) else before)
    if victim == "target" and stage in (*BEFORE_SWITCH, *ROLLBACK):
        assert world.stages()[-2:] == [CLEANUP_TARGET, "stable"]
    if victim != "source" and stage == READ_NEW:
        assert world.stages()[-3:] == [FALLBACK, CLEANUP_TARGET, "stable"]
    world.until(lambda: len(world.history.operations) > 100)  # it was busy indeed, and still is
    world.conclude(workloads)


@pytest.mark.parametrize("victim", ["source", "target"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_short_outage_in_any_stage_loses_nothing(stage: str, victim: str) -> None:
    """S42: the same, but the process is back within its old lease: another run, so another
    epoch."""
    world = Scenario()
    world.put_many(10)
    workloads = world.keep_busy(4.0)
    before = world.replicas()
    names = {"source": world.owner().name}
    names["target"] = next(n for n in world.nodes if n not in before)

    def bounce() -> None:
        world.nodes[names[victim]].crash()
        world.schedule(0.1, world.nodes[names[victim]].start)

    source, target = lead_to(world, stage, bounce)
    world.until_ended()
    assert world.replicas() in (before, (before - {source}) | {target})
    if stage in ROLLBACK:
        assert world.replicas() == before
    if stage in (USE_NEW, CLEANUP):
        assert world.replicas() != before
    world.conclude(workloads)


@pytest.mark.parametrize("stage", STAGES)
def test_replacing_the_coordinator_in_any_stage_changes_nothing_of_the_end(stage: str) -> None:
    """S42, S8, S35: the one in office dies at every stage; its successor goes on from what is
    agreed."""
    world = Scenario()
    world.put_many(10)
    workloads = world.keep_busy(4.0)
    before = world.replicas()
    source, target = lead_to(world, stage, lambda: world.in_office().crash())
    world.until_ended()
    moved = (before - {source}) | {target}
    assert world.replicas() == (before if stage in ROLLBACK else moved)
    world.conclude(workloads)


def test_if_only_new_replicas_are_in_sync_a_failure_in_read_new_goes_forward() -> None:
    """F104: no in-sync old replica lives: use_new, not the fallback, which would lose what was
    acked without it; an old one that merely lives again does not count."""
    world = Scenario(replicas=1, nodes=3)
    world.put_many(5)
    source, target = world.move_owner(hold_seconds=15)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    world.network.cut(source, target)  # alive, but out of reach of its owner
    assert world.put("without-source", 1).outcome == "done"
    assert not any(r.node == source for r in world.record().in_sync)
    state, answer = world.answer(world.request(ReverseMove("p0")))
    assert state == "done", answer
    world.network.heal()
    world.until_ended()
    assert world.replicas() == {target}
    assert FALLBACK not in world.stages()
    assert world.get("without-source") == 1
    world.conclude()


# ------------------------------------------------ the rollback edge


def test_a_stage_whose_barrier_fails_takes_the_rollback_edge_and_no_other() -> None:
    """S5: the target dies while write_both_read_old waits for its barrier, which would pass
    once the target's lease has ended: the move goes back all the same, and is never in
    streaming."""
    world = Scenario()
    world.put_many(5)
    source, target = world.move_owner()
    world.until_stage(ALLOW)
    world.until(lambda: world.knows(target))
    world.wire.blind.add(target)
    world.until_stage(WRITE_BOTH)
    world.run_for(0.3)
    assert world.waits().startswith(f"barrier: {target} has not applied")
    world.nodes[target].crash()
    world.until_ended()
    assert world.stages() == [ALLOW, WRITE_BOTH, CLEANUP_TARGET, "stable"]
    assert source in world.replicas()
    world.conclude()


def test_a_failed_move_leaves_no_row_at_the_target() -> None:
    """S24: cancelled in the middle of the copy, under writes that go to both sides until the
    very end: no row, no log, no staged chunk stays there."""
    world = Scenario()
    world.put_many(30)
    workloads = world.keep_busy(3.0, every=0.004)
    world.wire.holds = lambda each: isinstance(each.message, End)
    _, target = world.move_owner()
    world.until_stage(STREAMING)
    world.run_for(0.3)
    assert world.stored(target)  # the writes of now, and chunks that are staged
    assert any(held.chunks for held in world.nodes[target].brain.held.values())
    world.cancel()
    world.until_ended()
    assert not world.stored(target)
    assert not world.nodes[target].brain.held
    world.run_for(1.0)
    world.wire.let_go()
    world.run_for(0.5)
    assert not world.stored(target)
    world.conclude(workloads)


def test_the_target_is_cleaned_only_after_everybody_stopped_writing_to_it() -> None:
    """S4: the owner has not heard that the move is given up, and goes on writing both sides.
    The target is not dropped before it has; with a follower down as well, no write fails."""
    world = Scenario(replicas=3, nodes=5)
    world.put_many(5)
    source, target = world.move_owner()
    world.mover.pause()
    world.until_stage(STREAMING)
    world.until(lambda: world.waits().startswith("copy"))
    world.run_for(0.3)
    follower = next(n for n in world.replicas() if n != source)
    world.nodes[follower].crash()
    world.until(lambda: all(r.node != follower for r in world.record().in_sync))
    world.run_for(0.1)
    world.wire.blind.add(source)
    world.cancel()
    world.until_stage(CLEANUP_TARGET)
    assert world.put("while", 1).outcome == "done"
    world.run_for(1.5)
    assert world.stage_name("p0") == CLEANUP_TARGET
    assert world.waits().startswith(f"barrier: {source} has not applied")
    assert world.stored(target)
    assert world.has(target, "while")
    assert world.put("still", 2).outcome == "done"
    world.wire.blind.clear()
    for number in range(20):
        assert world.put(f"revert-{number}", number).outcome == "done"
    world.mover.resume()
    world.until_ended()
    assert not world.stored(target)
    late = [e for e in said(world, Replicate, to=target) if e.message.entries]  # type: ignore[union-attr]
    assert late[-1].at < said(world, DropReplica, to=target)[0].at
    world.conclude()


# ------------------------------------------------ the coordinator dies at the worst moment


@pytest.mark.parametrize("saved", [False, True])
def test_a_coordinator_killed_between_copy_done_and_commit_costs_nothing(saved: bool) -> None:
    """S35: it has seen the copy done, verified and sealed, and dies as it commits: whether the
    commit was saved or not, its successor ends the move; no loss, no duplicate, no dual write
    left."""
    world = Scenario()
    rows = world.put_many(20)
    source, target = world.move_owner()
    died: list[float] = []

    def die(by: str, commit: Commit) -> bool:
        if died or READ_NEW not in commit.why or by == "operator":
            return False
        died.append(world.now)
        world.schedule(0.0, world.in_office().crash)
        world.schedule(8.0, world.in_office().start)
        return not saved

    world.loses = die
    world.until(lambda: bool(died))
    assert (world.stage_name("p0") == READ_NEW) == saved
    answers = world.send_put("meanwhile", 1)  # the owner is sealed: it waits, and is not lost
    world.until_ended()
    world.until(lambda: bool(answers))
    assert answers[0].outcome == "done"
    assert target in world.replicas()
    world.run_for(1.0)
    for node in world.replicas():
        assert world.rows_at(node) == {**rows, "meanwhile": 1}
    assert world.put("after", 2).outcome == "done"
    assert not world.has(source, "after")
    world.conclude()


def test_a_seal_of_a_hand_over_that_never_comes_is_lifted_by_a_commit() -> None:
    """S35: both coordinators stay away after the seal: the old owner asks to be unsealed, by a
    commit, and serves on; the move then ends when a coordinator is back."""
    world = Scenario()
    world.put_many(3)
    source, target = world.move_owner()
    gone: list[float] = []

    def die(by: str, commit: Commit) -> bool:
        if READ_NEW in commit.why and by != "operator" and not gone:
            gone.append(world.now)
            for coordinator in world.coordinators:
                world.schedule(0.0, coordinator.crash)
        return bool(gone) and world.now < gone[0] + 5 and by.startswith("k")

    world.loses = die
    world.until(lambda: bool(gone))
    answers = world.send_put("sealed", 1)
    world.run_for(0.5)
    assert not answers
    world.until(lambda: bool(answers))
    assert answers[0].outcome == "done"
    assert world.owner().name == source
    assert [by for by, commit, made in world.commits if made and "seal" in commit.why] == [source]
    world.run_for(3.0)
    for coordinator in world.coordinators:
        coordinator.start()
    world.until_ended()
    assert target in world.replicas()
    world.conclude()


def test_a_rebuild_that_is_cancelled_before_it_begins_is_asked_for_again() -> None:
    world = Scenario()
    rows = world.put_many(5)
    lost = next(node for node in world.replicas() if node != world.owner().name)
    cancels: list[str] = []

    def cancel_first(by: str, commit: Commit) -> bool:
        begins = "rebuild t" in commit.why and commit.why.endswith("begins")
        if begins and not cancels:
            cancels.append(world.cancel())
            return True
        return False

    world.loses = cancel_first
    world.nodes[lost].crash()
    world.nodes[lost].disk.wipe()
    world.nodes[lost].start()
    world.until(lambda: bool(cancels))
    assert world.answer(cancels[0]) == ("done", "cancelled before it began")
    world.until(lambda: world.is_quiet() and len(world.record().in_sync) == 3)
    assert len([name for name in world.agreed.requests if name.startswith("rebuild")]) == 2
    assert world.rows_at(lost) == rows
    world.conclude()


# ------------------------------------------------ verification


def never_written_again(stored: SimulatedReplica) -> str:
    """One of the many that were put first: a newer write would mend what is done to it."""
    return min(key for key in stored.rows if key[0] == "k" and key[1:].isdigit())


def change_a_row(stored: SimulatedReplica) -> None:
    key = never_written_again(stored)
    stored.rows[key] = replace(stored.rows[key], value="rotten")


def lose_a_row(stored: SimulatedReplica) -> None:
    del stored.rows[never_written_again(stored)]


def add_a_row(stored: SimulatedReplica) -> None:
    stored.rows["stranger"] = SimulatedRow("stranger", token_of("stranger"), 1, 1)


@pytest.mark.parametrize("harm", [change_a_row, lose_a_row, add_a_row])
@pytest.mark.parametrize("busy", [False, True])
def test_a_row_that_rots_on_the_target_is_found_and_the_move_goes_back(
    harm: Callable[[SimulatedReplica], None], busy: bool
) -> None:
    """F104, F102: a row is changed behind everybody's back on the target's disk while it is
    copied: digests differ, the move is given up with that reason, and the old side serves what
    was acked."""
    world = Scenario()
    rows = world.put_many(30)
    workloads = world.keep_busy(3.0) if busy else []
    _, target = world.move_owner()
    slices = world.mover.slices
    world.until(lambda: len(said(world, Landed, sender=target)) == slices)
    assert world.stage_name("p0") == STREAMING
    (stored,) = world.stored(target)
    harm(stored)
    world.until_ended()
    assert world.stages() == [ALLOW, WRITE_BOTH, STREAMING, CLEANUP_TARGET, "stable"]
    reasons = [c.why for _, c, made in world.commits if made and "given up" in c.why]
    assert reasons == [f"p0: given up: verification: {target} differs from the owner"]
    assert target not in world.replicas()
    assert not world.stored(target)
    assert all(world.get(key) == value for key, value in rows.items())
    world.move_owner()  # and once more, without harm
    world.until_ended()
    assert target in world.replicas()
    world.conclude(workloads)


def test_a_slice_that_was_torn_on_the_way_is_not_applied() -> None:
    """F118: fewer rows than the END says, or another digest: nothing of the slice is applied;
    the task tries again, and the move ends well."""
    world = Scenario()
    rows = world.put_many(30)
    spoiled: list[End] = []

    def spoil(message: Message) -> list[Message]:
        if not isinstance(message, End) or len(spoiled) == 4:
            return [message]
        worse = replace(message, digest=message.digest + 1)
        if len(spoiled) % 2:
            worse = replace(message, count=message.count + 1)
        spoiled.append(worse)
        return [worse]

    world.wire.twist = spoil
    _, target = world.move_owner(hold_seconds=1.0)
    world.until(lambda: len(spoiled) == 4)
    (stored,) = world.stored(target)
    assert not stored.rows
    world.until_stage(READ_NEW)
    world.run_for(0.5)
    assert world.rows_at(target) == rows
    world.until_ended()
    world.conclude()


def test_an_empty_replica_is_not_taken_for_one_that_has_the_rows() -> None:
    """A follower's disk is lost, and then everybody who has the rows stops for a while: nobody
    owns the partition until one of them is back, with all that was acknowledged."""
    world = Scenario(replicas=2)
    rows = world.put_many(12)
    owner = world.owner()
    lost = next(world.nodes[name] for name in world.replicas() if name != owner.name)
    lost.crash()
    lost.disk.wipe()
    stop_keepers(world, "p0", lost.name)
    lost.start()
    assert not owner.run
    world.run_for(3.9)
    grant = world.record().owner
    assert grant is None or grant.replica.node == owner.name
    assert not owner.run
    world.until(lambda: world.is_open("p0"))
    assert world.owner() is owner
    assert {key: world.get(key) for key in rows} == rows


def test_a_disk_that_hangs_does_not_hold_up_a_failover() -> None:
    """S119: the owner dies, and the disk of one of the two nodes that could take over hangs: its
    lease lives, and it promises nothing. The other one is elected, opens and serves."""
    world = Scenario(min_in_sync=1)
    rows = world.put_many(5)
    owner = world.owner().name
    hung, other = sorted(world.replicas() - {owner})
    world.slow_disks.add(hung)
    world.nodes[owner].crash()
    world.until(lambda: world.record().epoch > 1)
    began = world.now
    world.until(lambda: world.record().owner is not None, seconds=5.0)
    assert world.owner().name == other
    world.until(lambda: world.is_open("p0"), seconds=5.0)
    assert world.put("after", 1).outcome == "done"
    assert world.now - began < 8.0
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def stop_all(world: Scenario, last: str) -> None:
    """All nodes stop at once; the lease of one of them ends last."""
    for name, node in world.nodes.items():
        if name != last:
            node.crash()
    world.run_for(0.4)
    world.nodes[last].crash()
    world.run_for(8.0)
    assert world.agreed.leases == {}


@pytest.mark.parametrize("min_in_sync", [0, 1])
def test_when_all_nodes_stop_the_others_take_over_from_an_owner_that_never_returns(
    min_in_sync: int,
) -> None:
    """S114: the followers' leases end first, and while the owner's lease lives, nobody reports them
    as silent. They come back with every row, the owner's machine does not: one of them is elected,
    and clients can write."""
    world = Scenario(min_in_sync=min_in_sync)
    rows = world.put_many(8)
    owner = world.owner().name
    stop_all(world, owner)
    others = [name for name in world.nodes if name != owner]
    for name in others:
        world.nodes[name].start()
    world.until(lambda: world.is_open("p0") and len(world.record().in_sync) == 2, seconds=15.0)
    assert world.owner().name in others
    assert world.put("after", 1).outcome == "done"
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_replicas_that_left_too_few_in_sync_take_over_from_an_owner_that_never_returns() -> None:
    """S114: both followers stop under load, and the live owner has them taken out. It commits
    nothing without them, so they have every acknowledged row, and one of them is elected."""
    world = Scenario(nodes=3)
    rows = world.put_many(8)
    owner = world.owner().name
    followers = sorted(world.replicas() - {owner})
    for name in followers:
        world.nodes[name].crash()
    unknown = world.send_put("unknown", 1)
    world.until(lambda: len(world.record().in_sync) == 1)
    assert {replica.node for replica in world.record().eligible} == set(followers)
    assert {key: world.get(key) for key in rows} == rows
    assert world.put("refused", 1, client=1).outcome == "failed"
    world.nodes[owner].crash()
    world.run_for(4.0)
    for name in followers:
        world.nodes[name].start()
    world.until(lambda: world.is_open("p0") and len(world.record().in_sync) == 2, seconds=15.0)
    assert world.owner().name in followers
    assert world.record().eligible == ()
    assert world.put("after", 1).outcome == "done"
    assert {key: world.get(key) for key in rows} == rows
    world.until(lambda: bool(unknown))
    world.conclude()


def test_a_replica_that_left_while_others_went_on_is_never_elected() -> None:
    """S114: it missed acknowledged rows. When the others stop, it waits for one of them."""
    world = Scenario(nodes=3)
    world.put_many(4)
    owner = world.owner().name
    behind, other = sorted(world.replicas() - {owner})
    world.nodes[behind].crash()
    world.until(lambda: len(world.record().in_sync) == 2)
    rows = world.put_many(8, prefix="later")
    world.nodes[other].crash()
    world.send_put("unknown", 1)
    world.until(lambda: len(world.record().in_sync) == 1)
    assert [replica.node for replica in world.record().eligible] == [other]
    world.nodes[owner].crash()
    world.run_for(4.0)
    world.nodes[behind].start()
    world.run_for(10.0)
    assert world.record().owner is None
    assert world.waits().endswith(f"is alive: start one of {owner}, {other}")
    world.nodes[other].start()
    world.until(lambda: world.is_open("p0") and len(world.record().in_sync) == 2, seconds=15.0)
    assert world.owner().name == other
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_a_partition_moves_away_from_two_nodes_that_died_for_good() -> None:
    """S114: the owner alone commits nothing while the dead ones may be elected; a move that drops
    them ends that, although a write is in flight."""
    world = Scenario(nodes=5)
    rows = world.put_many(8)
    owner = world.owner().name
    dead = sorted(world.replicas() - {owner})
    for name in dead:
        world.nodes[name].crash()
    world.send_put("unknown", 1)
    world.until(lambda: len(world.record().in_sync) == 1)
    world.nodes[owner].crash()
    world.run_for(4.0)
    world.nodes[owner].start()
    world.until(lambda: world.record().owner is not None)
    fresh = [name for name in world.nodes if name not in {owner, *dead}]
    assert world.answer(world.move(owner, *fresh)) == ("done", "accepted")
    world.until_ended()
    assert world.replicas() == {owner, *fresh}
    assert world.put("after", 1).outcome == "done"
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def test_a_replica_that_a_move_would_drop_is_elected_if_the_others_die() -> None:
    """S114: the replicas that stay and the owner are lost, in this order. The replica that is left
    has every acknowledged row; it takes office, and serves once another one returns."""
    world = Scenario(nodes=4)
    rows = world.put_many(8)
    owner = world.owner().name
    stays, dropped = sorted(world.replicas() - {owner})
    (fresh,) = set(world.nodes) - world.replicas()
    world.slow_reads.add("p0")  # nothing is copied, so that the move does not end
    world.move(owner, stays, fresh)
    world.until_stage(STREAMING)
    for name in (stays, dropped):
        world.nodes[name].crash()
    world.send_put("unknown", 1)
    world.until(lambda: len(routing.electable(world.record())) == 1)
    assert {replica.node for replica in world.record().eligible} == {stays, dropped}
    world.nodes[owner].crash()
    world.run_for(4.0)
    world.nodes[dropped].start()
    world.until(lambda: world.record().owner is not None, seconds=15.0)
    assert world.owner().name == dropped
    assert {replica.node for replica in world.record().eligible} == {owner, stays}
    world.hasten()
    world.nodes[stays].start()
    world.until(lambda: world.is_open("p0") and not world.record().eligible, seconds=15.0)
    assert world.put("after", 1).outcome == "done"
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()
