"""Does a move go through its table, and is every acknowledged write where the table says, at
every moment?"""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.client import Finished
from limosa.core.events import CollectionDue
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    MACHINES,
    READ_NEW,
    REBUILD_REPAIR,
    REPAIR,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.machines.machine import END, Work
from limosa.core.messages import (
    Chunk,
    Fetch,
    Fetched,
    Found,
    Read,
    Refuse,
    Replicate,
    Wait,
    Write,
    Written,
)
from limosa.core.model.codec import decode, encode
from limosa.core.model.intent import Placement
from limosa.core.model.requests import CompleteMove, MoveToVolume, RebuildReplicas, ReverseMove
from limosa.core.model.topology import Partition
from limosa.simulation.disk import SimulatedReplica
from limosa.simulation.faults import inject
from tests.simulation.scenarios import Scenario, said

FORWARD = [ALLOW, WRITE_BOTH, STREAMING, READ_NEW, USE_NEW, CLEANUP]
BOTH_WRITTEN = [WRITE_BOTH, STREAMING, READ_NEW]


def only(records: list[tuple[int, Partition]], stage: str) -> list[Partition]:
    return [r for _, r in records if r.transition is not None and r.transition.stage == stage]


# ------------------------------------------------ the table


@pytest.mark.parametrize("kind", ["move", "rebuild", "volume_move", "repair"])
def test_the_stages_of_a_run_are_the_lines_of_its_table(kind: str) -> None:
    """F98: the trace of what was committed equals the forward edges of the table, for every
    kind."""
    world = Scenario()
    workloads = world.keep_busy(2.0)
    world.ask_for(kind)
    world.until_ended()
    machine = MACHINES[kind]
    expected, stage = [machine.first.name], machine.first
    while stage.next != END:
        stage = machine[stage.next]
        expected.append(stage.name)
    assert world.stages() == [*expected, "stable"]
    if kind == "move":
        assert world.stages() == [*FORWARD, "stable"]
    world.conclude(workloads)


@pytest.mark.parametrize("kind", MACHINES)
def test_the_record_has_kind_replicas_targets_and_session_in_each_stage(kind: str) -> None:
    """F97, F116: a change of each kind is completed, cancelled and reversed. In every stage of its
    table the stored row names the kind, the old and the new replicas, the stage and the session,
    and is read back from its bytes as it was written."""
    world = Scenario()
    world.put_many(5)
    seen: set[str] = set()
    for way in ("complete", "cancel", *(["reverse"] if FALLBACK in names_of(kind) else [])):
        before, begun = world.record(), len(world.records())
        world.run_for(1.0)
        wanted = world.ask_for(kind, hold_seconds=30.0 if way == "reverse" else 0.0)
        if way == "cancel":
            world.mover.pause()
            world.until_stage(REPAIR if kind == "repair" else WRITE_BOTH)
            world.cancel()
            world.mover.resume()
        elif way == "reverse":
            world.until(lambda: world.waits().startswith("held"))
            world.request(ReverseMove("p0"))
        world.until_ended()
        during = [record for _, record in world.records()[begun:] if record.transition is not None]
        for record in during:
            change = record.transition
            assert change is not None
            assert decode(encode(record)) == record
            assert (change.kind, record.replicas) == (kind, before.replicas)
            assert {(r.node, r.volume) for r in change.targets} == wanted
            assert (change.session is not None) == MACHINES[kind][change.stage].session
            seen.add(change.stage)
        after = world.record()
        assert after.transition is None
        change = during[-1].transition
        assert change is not None
        assert after.replicas == (change.targets if way == "complete" else before.replicas)
    assert seen == names_of(kind)
    world.conclude()


def names_of(kind: str) -> set[str]:
    return {stage.name for stage in MACHINES[kind].stages}


# ------------------------------------------------ where writes and reads go


def test_every_write_goes_to_exactly_the_write_set_of_the_stage() -> None:
    """F51, F52, F99, S21: an acknowledged row is on the old replicas only, on both sides, or on
    the new ones only, as the table's column says; before the move it is on the replicas and
    nowhere else."""
    world = Scenario(nodes=5)
    assert world.put("stable", 0).outcome == "done"
    assert {n for n in world.nodes if world.has(n, "stable")} == world.replicas()
    world.wire.holds = lambda each: isinstance(each.message, Chunk)  # nothing comes by copy
    source, target = world.move_owner(hold_seconds=1.0)
    for stage in FORWARD:
        world.until_stage(stage)
        world.freeze()
        world.until(lambda: all(world.knows(node) for node in world.nodes))
        assert world.put(stage, 1).outcome == "done"
        holders = {node for node in world.nodes if world.has(node, stage)}
        assert holders == {replica.node for replica in routing.writers(world.record())}
        assert (source in holders) == (stage in (ALLOW, *BOTH_WRITTEN))
        assert (target in holders) == (stage != ALLOW)
        world.thaw()
        if stage == STREAMING:
            world.wire.let_go()
    world.until_ended()
    assert world.put("after", 2).outcome == "done"
    assert {n for n in world.nodes if world.has(n, "after")} == world.replicas()
    assert set(world.rows_at(target)) >= {"stable", *FORWARD}
    world.conclude()


def test_reads_and_writes_go_to_the_sides_that_the_stage_names() -> None:
    """F79: rows and answers are counted in each stage of a move, by nodes. In write_both_read_old
    writes go to the old and the new replicas, and only old ones are read; in write_both_read_new
    only new ones are read."""
    world = Scenario(nodes=5)
    world.put("row", 0)
    before = world.replicas()
    source, target = world.move_owner(hold_seconds=1.0)
    after = (before - {source}) | {target}
    written: dict[str, set[str]] = {}
    read: dict[str, set[str]] = {}
    for stage in FORWARD:
        world.until_stage(stage)
        world.freeze()
        world.until(lambda: all(world.knows(node) for node in world.nodes))
        world.clients[1].crash()
        world.clients[1].start()  # with the record of this stage
        assert world.put(stage, 1).outcome == "done"
        written[stage] = {node for node in world.nodes if world.has(node, stage)}
        heard = len(world.wire.said)
        assert world.get("row", client=1) == 0
        for choice in range(4):
            assert world.get("row", client=1, eventual=True, choice=choice) == 0
        answers = [e for e in world.wire.said[heard:] if isinstance(e.message, Found)]
        assert len(answers) == 5
        read[stage] = {each.sender for each in answers}
        world.thaw()
    world.until_ended()
    old, both, new = (before, before), (before | {target}, before), (before | {target}, after)
    expected = [old, both, both, new, (after, after), (after, after)]
    assert [(written[stage], read[stage]) for stage in FORWARD] == expected
    world.conclude()


def test_in_a_volume_move_reads_and_writes_may_use_different_volumes() -> None:
    """F113: counted by volumes of the owner's node, in each stage: reads use the old volume while
    both are written, and later the new one while both are written."""
    world = Scenario()
    world.put("row", 0)
    owner = world.owner().name
    rest = tuple(Placement(node) for node in sorted(world.replicas() - {owner}))
    world.request(MoveToVolume("p0", (Placement(owner, "v2"), *rest), hold_seconds=1.0))
    used: dict[str, tuple[object, set[str]]] = {}
    for stage in FORWARD:
        world.until_stage(stage)
        world.freeze()
        world.until(lambda: all(world.knows(node) for node in world.nodes))
        world.run_for(0.1)
        assert world.put(stage, 1).outcome == "done"
        written = {each.replica.volume for each in world.stored(owner) if has(each, stage)}
        used[stage] = (read_from(world, owner), written)
        world.thaw()
    world.until_ended()
    both = {"", "v2"}
    expected = [("", {""}), ("", both), ("", both), ("v2", both), ("v2", {"v2"}), ("v2", {"v2"})]
    assert [used[stage] for stage in FORWARD] == expected
    assert world.get("row") == 0
    world.conclude()


def has(stored: SimulatedReplica, key: str) -> bool:
    rows = [row.key for e in stored.entries if e.rows is not None for row in e.rows.rows]  # type: ignore[attr-defined]
    return key in stored.rows or key in rows


def read_from(world: Scenario, node: str) -> object:
    """The volume that serves a read of one row: each says its own name for a moment."""
    world.run_for(0.1)
    kept = [(each, each.rows["row"]) for each in world.stored(node) if "row" in each.rows]
    for each, row in kept:
        each.rows["row"] = replace(row, value=each.replica.volume)
    asked = len(world.history.operations)
    found = world.get("row")
    del world.history.operations[asked:]
    for each, row in kept:
        each.rows["row"] = row
    return found


def test_a_rebuild_repairs_first_and_then_copies_from_one_replica() -> None:
    """F106: a row that one of the old replicas has lost is there again before the copy begins, and
    the new replica is filled from a single source, the owner."""
    world = Scenario()
    rows = world.put_many(12)
    world.run_for(1.0)
    owner = world.owner().name
    renewed, other = sorted(world.replicas() - {owner})
    (damaged,) = world.stored(other)
    del damaged.rows["k3"]
    at_streaming: list[tuple[dict[str, object], dict[str, object]]] = []
    began: list[int] = []

    def entered(record: Partition) -> None:
        if record.transition is not None and record.transition.stage == STREAMING:
            at_streaming.append((world.rows_at(other), made(world, renewed)))
            began.append(len(world.wire.said))

    world.on_stage = entered
    world.request(RebuildReplicas("p0", (renewed,)))
    world.until_ended()
    assert world.stages() == [ALLOW, WRITE_BOTH, REBUILD_REPAIR, *FORWARD[2:], "stable"]
    assert at_streaming == [(rows, {})]
    repair, copy = world.wire.said[: began[0]], world.wire.said[began[0] :]
    assert {e.to for e in repair if isinstance(e.message, Chunk)} == {other, renewed}
    assert {e.to for e in copy if isinstance(e.message, Fetch)} == {owner}
    assert {e.sender for e in copy if isinstance(e.message, Fetched)} == {owner}
    assert {e.to for e in copy if isinstance(e.message, Chunk)} == {renewed}
    assert world.rows_at(renewed) == rows
    world.conclude()


def made(world: Scenario, node: str) -> dict[str, object]:
    """The rows of the replica that is being filled there."""
    (new,) = routing.new_only(world.record())
    return {
        key: row.value
        for stored in world.stored(node)
        if stored.replica == new
        for key, row in stored.rows.items()
    }


def test_with_one_replica_a_write_goes_to_exactly_one_node() -> None:
    """F52: no migration, one replica: the row is on its owner and on no other node."""
    world = Scenario(replicas=1, nodes=3)
    world.put("a", 1)
    assert [n for n in world.nodes if world.has(n, "a")] == [world.owner().name]
    world.conclude()


def test_a_pending_replica_is_not_routed_to_before_it_is_ready_nor_a_leaving_one_after() -> None:
    """F110: by stage, from whom clients and owners ask: nothing of the data path reaches the
    new node before write_both_read_old, nor the old one from use_new on, and clients follow the
    owner."""
    world = Scenario(nodes=4)
    workloads = world.keep_busy(4.0, every=0.005)
    world.run_for(0.3)
    source, target = world.move_owner(hold_seconds=0.3)
    world.until_ended()
    world.run_for(0.5)
    revision_of = {
        stage: [r for r, record in world.records() if record in only(world.records(), stage)]
        for stage in FORWARD
    }
    to_target = [e.message for e in said(world, Replicate, to=target)]
    to_source = [e.message for e in said(world, Replicate, to=source)]
    assert to_target
    assert min(m.revision for m in to_target) >= revision_of[WRITE_BOTH][0]  # type: ignore[union-attr]
    assert max(m.revision for m in to_source) < revision_of[USE_NEW][0]  # type: ignore[union-attr]
    times = {stage: _entered(world, stage) for stage in FORWARD}
    served = {node: [e.at for e in said(world, Written, sender=node)] for node in (source, target)}
    assert max(served[source]) < times[READ_NEW] < min(served[target])
    asked = [e.at for e in said(world, Write, to=target)] + [
        e.at
        for e in said(world, Read, to=target)
        if not e.message.eventual  # type: ignore[union-attr]
    ]
    assert min(asked) > times[READ_NEW]
    eventual = [e for e in said(world, Found, sender=target) if e.at < times[READ_NEW]]
    assert not eventual
    world.conclude(workloads)


def _entered(world: Scenario, stage: str) -> float:
    """When a stage was first committed."""
    for at, agreed in world.states:
        change = agreed.topology.partitions["p0"].transition
        if change is not None and change.stage == stage:
            return at
    raise AssertionError(stage)


# ------------------------------------------------ what must be true to enter a stage


@pytest.mark.parametrize("unready", ["the target's disk", "target", "owner", "first", "second"])
def test_write_both_is_not_entered_before_every_replica_is_ready_for_writes(unready: str) -> None:
    """F100: each of the old and new replicas in turn does not see the transition, or the target's
    disk has not made its replica: the stage is not left, and a write that is acknowledged meanwhile
    is not sent to the target. When the next stage is committed, all of them have seen this one."""
    world = Scenario()
    owner = world.owner().name
    first, second = sorted(world.replicas() - {owner})
    target = next(n for n in world.nodes if n not in world.replicas())
    nodes = {"owner": owner, "first": first, "second": second}
    late = nodes.get(unready, target)
    late_ones = world.slow_disks if "disk" in unready else world.wire.blind
    world.until(lambda: all(world.knows(node) for node in world.nodes))
    late_ones.add(late)
    world.move_owner()
    world.run_for(1.0)
    assert world.put("early", 1).outcome == "done"
    world.until(lambda: late in world.waits())
    world.run_for(1.0)
    assert world.stage_name("p0") == ALLOW
    assert not said(world, Replicate, to=target)
    assert not world.has(target, "early")
    allowed = world.revision()
    unaware: list[str] = []

    def entered(record: Partition) -> None:
        if record.transition is not None and record.transition.stage == WRITE_BOTH:
            for name in (owner, first, second, target):
                if world.nodes[name].brain.topology.revision_of("p0") < allowed:
                    unaware.append(name)
            unaware.extend([] if world.stored(target) else ["nothing is stored"])

    world.on_stage = entered
    world.wire.blind.clear()
    world.hasten()
    world.until_ended()
    assert unaware == []
    assert world.stages() == [*FORWARD, "stable"]
    assert world.has(target, "early")
    world.conclude()


def test_streaming_is_entered_only_when_every_acknowledged_write_reaches_both_sides() -> None:
    """F101, F117: an owner that has not heard of write_both_read_old acks rows without the new
    side, so streaming is not entered and nothing is copied. Once it is entered, each acked row is
    on all old and new replicas, also while the copy is killed, twice, under one session. In the end
    no acked row is missing on the new replica."""
    world = Scenario()
    rows = world.put_many(20)
    before = world.replicas()
    source, target = world.move_owner(hold_seconds=5)
    world.until_stage(ALLOW)
    world.until(lambda: world.knows(source))
    world.wire.blind.add(source)
    world.until_stage(WRITE_BOTH)
    assert world.put("one-sided", 1).outcome == "done"
    rows["one-sided"] = 1
    assert not world.has(target, "one-sided")
    world.run_for(1.0)
    assert world.stage_name("p0") == WRITE_BOTH
    assert not said(world, Fetch)
    world.wire.blind.clear()
    world.until_stage(STREAMING)
    for round_ in range(2):
        world.until(lambda: any(isinstance(e.message, Chunk) for e in world.wire.said[-6:]))
        world.mover.crash()
        key = f"while-{round_}"
        assert world.put(key, round_).outcome == "done"
        rows[key] = round_
        assert world.stage_name("p0") == STREAMING
        assert all(world.has(node, key) for node in before | {target})
        world.mover.start()
        world.until(lambda: not any(isinstance(e.message, Chunk) for e in world.wire.said[-6:]))
    world.until_stage(READ_NEW)
    world.run_for(0.5)
    assert world.rows_at(target) == rows == world.rows_at(source)
    sessions = {r.transition.session for r in only(world.records(), STREAMING) if r.transition}
    assert len(sessions) == 1
    world.conclude()


def test_read_new_is_entered_only_when_the_new_side_holds_every_acknowledged_write() -> None:
    """F102: at the very commit of write_both_read_new every row that was acked until then is
    durable on the target; and every read in that stage returns them."""
    world = Scenario()
    world.put_many(20)
    _, target = world.move_owner(hold_seconds=1.0)
    acked: dict[str, object] = {}
    found: list[set[str]] = []

    def entered(record: Partition) -> None:
        if record.transition is not None and record.transition.stage == READ_NEW:
            found.append({key for key in acked if not world.has(target, key)})

    world.on_stage = entered
    number = 0
    while world.stage_name("p0") != READ_NEW:
        number += 1
        assert world.put(f"w{number}", number).outcome == "done"
        acked[f"w{number}"] = number
    assert found == [set()]
    for key, value in acked.items():
        assert world.get(key) == value
    assert world.owner().name == target
    world.conclude()


@pytest.mark.parametrize("viewed", [False, True])
def test_a_read_of_the_old_side_that_outlasts_a_move_is_refused_and_holds_nothing_up(
    viewed: bool,
) -> None:
    """F103: a read that the leaving replica was asked for before the switch, and that has its view
    or not, does not count after it: every read that succeeds then uses the new replicas."""
    world = Scenario()
    world.put("a", 1)
    owner = world.owner().name
    source = next(name for name in sorted(world.replicas()) if name != owner)
    target = next(name for name in world.nodes if name not in world.replicas())
    world.mover.pause()
    world.move(target, *sorted(world.replicas() - {source}))
    world.until_stage(STREAMING)
    world.until(lambda: world.knows(source))
    world.slow_reads.add("p0")
    choice = [r.node for r in world.record().replicas].index(source)
    world.clients[0].crash()
    world.clients[0].start()  # it knows the newest record
    answers = world.send_get("a", eventual=True, choice=choice)
    world.until(lambda: world.hanging_reads(source) > 0)
    if viewed:
        world.view_hanging(source)
    assert world.hanging_reads(source) == 1
    world.slow_reads.clear()  # only that one read hangs
    world.mover.resume()
    world.until_ended()
    assert not world.stored(source)
    assert world.hanging_reads(source) == 1, "nobody has waited for it"
    world.until(lambda: bool(answers))  # by another replica
    world.hasten()
    world.run_for(1.0)
    assert said(world, Found, sender=source) == []
    assert len(said(world, Wait, sender=source)) == 1
    assert world.get("a", client=1) == 1
    world.conclude()


def test_a_delayed_write_of_an_older_stage_is_not_applied_after_cleanup() -> None:
    """F103, F120: replication to the leaving replica, caught in the network in write_both_read_new,
    arrives during and after cleanup: no row of it appears anywhere."""
    world = Scenario()
    world.put("a", 1)
    source, target = world.move_owner(hold_seconds=5)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    assert world.put("b", 2).outcome == "done"
    late = [e for e in said(world, Replicate, to=source, sender=target) if e.message.entries]  # type: ignore[union-attr]
    assert late
    world.request(CompleteMove("p0"))
    for stage in (CLEANUP, "stable"):
        world.until_stage(stage)
        held = {node: world.rows_at(node) for node in world.nodes}
        for each in late:
            assert each.message is not None
            world.processes[source].receive(target, each.message)
        world.run_for(0.002)
        assert {node: world.rows_at(node) for node in world.nodes if world.stored(node)} == {
            node: rows for node, rows in held.items() if world.stored(node)
        }
    world.run_for(0.5)
    assert not world.stored(source)
    world.conclude()


# ------------------------------------------------ what is left, and how often a row counts


@pytest.mark.parametrize("seed", range(4))
def test_after_everything_ended_only_the_current_replicas_hold_data(seed: int) -> None:
    """F108, F179: a full scan of all nodes after many moves, some cancelled, some hit by a
    crash: each partition's data is on its replicas only, one on a node."""
    world = Scenario(seed, nodes=5, partitions=2)
    workloads = world.keep_busy(6.0)
    for number in range(8):
        partition = f"p{number % 2}"
        if world.record(partition).owner is not None:
            world.move_owner(partition)
        world.run_for(0.15)
        if number % 3 == 0 and world.intent(partition).pending is not None:
            world.cancel(partition)
        if number == 5:
            inject(world, partition, "crash_owner")
        world.run_for(0.4)
    world.conclude(workloads)
    for partition in ("p0", "p1"):
        holders = {node: len(world.stored(node, partition)) for node in world.nodes}
        assert {node for node, count in holders.items() if count} == world.replicas(partition)
        assert max(holders.values()) == 1


def test_a_row_that_came_by_write_and_by_copy_counts_once() -> None:
    """S22: rows written after write_both_read_old and before the copy reads them reach the
    target twice; count and sum are exact at every moment from then on."""
    world = Scenario()
    world.put_many(10)
    source, target = world.move_owner(hold_seconds=5)
    world.mover.pause()
    world.until_stage(STREAMING)
    for number in range(10, 20):
        assert world.put(f"k{number}", number).outcome == "done"
    assert world.put("k3", 300).outcome == "done"
    world.run_for(0.5)
    assert len(world.rows_at(target)) == 11  # the eleven written twice-to-be
    world.mover.resume()
    world.until_stage(READ_NEW)
    world.run_for(0.5)
    copied = [row.key for e in said(world, Chunk, to=target) for row in e.message.rows.rows]  # type: ignore[union-attr]
    assert set(copied) == {f"k{i}" for i in range(20)}  # the copy carried all of them
    for node in (source, target):
        rows = world.rows_at(node)
        assert len(rows) == 20
        assert sum(v for v in rows.values() if isinstance(v, int)) == sum(range(20)) - 3 + 300
    world.conclude()


def test_a_write_that_the_new_side_does_not_get_is_not_acknowledged() -> None:
    """S23: the source has the row, the destination does not answer: no ack, until a commit has
    taken the destination out and given the move up; then the row is on the side that wins."""
    world = Scenario()
    source, target = world.move_owner()
    world.mover.pause()
    world.until_stage(STREAMING)
    world.until(lambda: world.waits().startswith("copy"))
    world.run_for(0.3)
    world.network.cut(source, target)
    answers = world.send_put("a", 1)
    while not answers:
        world.run_for(0.0005)
        if answers:
            assert not any(r.node == target for r in world.record().in_sync)
        assert world.has(source, "a") or world.stage_name("p0") == STREAMING
    assert answers[0].outcome == "done"
    assert CLEANUP_TARGET in world.stages()
    assert READ_NEW not in world.stages()
    world.mover.resume()
    world.until_ended()
    assert source in world.replicas()
    assert world.get("a") == 1
    world.conclude()


def test_a_write_that_the_old_side_does_not_get_is_not_acknowledged_either() -> None:
    """S23: the reverse: in write_both_read_new the leaving replica does not answer its new
    owner."""
    world = Scenario()
    source, target = world.move_owner(hold_seconds=10)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    world.network.cut(source, target)
    answers: list[Finished] = world.send_put("a", 1)
    world.run_for(0.8)
    assert not answers
    world.until(lambda: bool(answers))
    assert not any(r.node == source for r in world.record().in_sync)
    world.network.mend(source, target)
    world.until_ended()
    assert world.get("a") == 1
    world.conclude()


# ------------------------------------------------ tombstones


def test_a_tombstone_is_not_collected_while_a_replica_is_being_filled() -> None:
    """S2: slices arrive out of order; the older value of a deleted key reaches the pending
    replica after its tombstone. Nobody collects meanwhile, and the key stays deleted."""
    world = Scenario()
    world.put_many(20)
    world.wire.holds = lambda each: isinstance(each.message, Chunk)
    source, target = world.move_owner()
    world.until(lambda: len(world.wire.waiting) >= 4)  # both slices, read before the delete
    assert world.put("k3", None).outcome == "done"
    for node in world.nodes.values():
        node.deliver(node.run, CollectionDue("p0"))
    world.run_for(1.0)
    assert world.rows_at(source)["k3"] is None
    assert (
        world.rows_at(target)["k3"] is None
    )  # the tombstone is there, waiting for what it shadows
    world.wire.waiting.reverse()
    world.wire.let_go()
    world.until_ended()
    world.run_for(0.5)
    assert all(world.rows_at(node)["k3"] is None for node in world.replicas())
    for node in world.nodes.values():
        node.deliver(node.run, CollectionDue("p0"))
    world.run_for(0.5)
    assert not any("k3" in world.rows_at(node) for node in world.replicas())
    assert world.get("k3") is None
    world.conclude()


# ------------------------------------------------ back and forth


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("replicas", [1, 3])
def test_moving_there_and_back_again_with_writes_and_deletes_is_exact(
    seed: int, replicas: int
) -> None:
    """S37: A→B, B→A at once, three times over, while keys are written and deleted; collections in
    between. Data exact, nothing of an earlier round is back, and every incarnation is a new one."""
    world = Scenario(seed, replicas=replicas, nodes=replicas + 1)
    world.put_many(10)
    workloads = world.keep_busy(5.0)
    incarnations: list[str] = []
    home = world.owner().name
    for _ in range(6):
        _, target = world.move_owner()
        world.put(f"during-{len(incarnations)}", 1)
        world.put(f"k{len(incarnations)}", None)
        world.until_ended()
        incarnations += [r.incarnation for r in world.record().replicas if r.node == target]
        for node in world.nodes.values():
            node.deliver(node.run, CollectionDue("p0"))
    assert len(set(incarnations)) == 6
    assert home in world.replicas()
    world.conclude(workloads)
    for number in range(6):
        assert world.get(f"k{number}") is None


def test_no_write_fails_during_a_move_and_the_pause_of_the_hand_over_is_short() -> None:
    """Clients wait or are redirected; nothing fails, nothing is left unknown."""
    world = Scenario()
    world.put_many(10)
    world.move_owner()
    slowest = 0.0
    number = 0
    while number < 40 or (world.stages()[-1] != "stable" and number < 400):
        since = world.now
        assert world.put(f"w{number}", number, client=number % 2).outcome == "done"
        slowest = max(slowest, world.now - since)
        number += 1
    assert world.stages()[-1] == "stable"
    assert slowest < 0.5
    assert not said(world, Refuse)
    world.conclude()


def test_every_stage_with_a_barrier_is_left_after_every_node_has_reported_it() -> None:
    """F103: in the table, each stage whose neighbours read or write differently ends by a
    barrier, a seal or a drop; and the record's fence rises with each barrier that was passed."""
    world = Scenario()
    world.move_owner()
    world.until_ended()
    records = world.records()
    for (revision, before), (_, after) in pairwise(records):
        stage = routing.stage_of(before)
        if stage is not None and (after.transition is None or after.transition.stage != stage.name):
            has_barrier = Work.BARRIER in stage.work
            assert after.fence == (revision if has_barrier else before.fence)
    world.conclude()
