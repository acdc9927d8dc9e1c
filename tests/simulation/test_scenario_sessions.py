"""Does work of a closed session, of an older epoch or of a stale coordinator change nothing?"""

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from limosa.core.effects import ApplySlice
from limosa.core.events import CollectionDue
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP_TARGET,
    READ_NEW,
    REBUILD_REPAIR,
    STREAMING,
    WRITE_BOTH,
)
from limosa.core.messages import (
    Chunk,
    Denied,
    DropReplica,
    End,
    Fetch,
    Fetched,
    Message,
    Replicate,
    Seal,
)
from limosa.core.model.keys import WHOLE
from limosa.core.model.requests import RebuildReplicas
from limosa.simulation.workloads import rows_of
from tests.simulation.scenarios import Said, Scenario, said


def session_of(world: Scenario, partition: str = "p0") -> str | None:
    change = world.record(partition).transition
    return None if change is None else change.session


def sessions(world: Scenario, partition: str = "p0") -> list[str]:
    """Every session that was ever open, in its order."""
    found = [
        record.transition.session
        for _, record in world.records(partition)
        if record.transition is not None and record.transition.session is not None
    ]
    return list(dict.fromkeys(found))


def copies(each: Said) -> bool:
    return isinstance(each.message, Chunk | End)


def deliver(world: Scenario, all_of: list[Said]) -> list[Denied]:
    """Let old messages arrive again; the refusals."""
    heard = len(world.wire.said)
    for each in all_of:
        assert each.message is not None
        world.processes[each.to].receive(each.sender, each.message)
    world.run_for(0.01)
    answers = [each.message for each in world.wire.said[heard:]]
    return [answer for answer in answers if isinstance(answer, Denied)]


# ------------------------------------------------ one session per transition and epoch


def test_a_session_is_opened_for_each_transition_and_cleared_after_it() -> None:
    """F116: each move has a session of its own from write_both_read_old to the end of
    streaming; the record shows none before and after."""
    world = Scenario(partitions=2)
    for _ in range(3):
        world.move_owner("p0")
        world.move_owner("p1")
        world.until(lambda: world.is_quiet("p0") and world.is_quiet("p1"))
        assert session_of(world, "p0") is session_of(world, "p1") is None
    both = sessions(world, "p0") + sessions(world, "p1")
    assert len(both) == len(set(both)) == 6
    for _, record in world.records():
        change = record.transition
        if change is not None:
            assert (change.session is not None) == (change.stage in (WRITE_BOTH, STREAMING))
    world.conclude()


def test_a_failover_closes_the_session_and_opens_another() -> None:
    """F116: a session belongs to one transition at one epoch; chunks of the first one are
    refused."""
    world = Scenario()
    world.put_many(10)
    world.wire.holds = copies
    source, target = world.move_owner()
    world.until(lambda: len([e for e in world.wire.waiting if isinstance(e.message, End)]) >= 2)
    old, world.wire.waiting = world.wire.waiting, []
    world.nodes[source].crash()
    world.until(lambda: len(sessions(world)) == 2 and world.is_open("p0"))
    world.run_for(1.0)  # the target has what was committed meanwhile
    assert session_of(world) == sessions(world)[1] != sessions(world)[0]
    (stored,) = world.stored(target)
    before = dict(stored.rows)
    assert len(deliver(world, old)) == len(old)
    assert stored.rows == before
    world.wire.let_go()
    world.until_ended()
    assert target in world.replicas()
    world.conclude()


def test_retries_of_a_stage_reuse_its_session() -> None:
    """F117, S8: the mover dies, then the coordinator; the stage is entered again by a
    successor, with the same session, and what has landed counts; nothing deadlocks."""
    world = Scenario()
    rows = world.put_many(20)
    _, target = world.move_owner(hold_seconds=1.0)
    world.until(lambda: bool(said(world, Chunk)))
    world.mover.crash()
    first = session_of(world)
    world.in_office().crash()
    world.run_for(1.0)
    world.mover.start()
    before = len(world.wire.said)
    world.until_stage(READ_NEW)
    world.run_for(0.5)
    again = [e.message for e in world.wire.said[before:] if isinstance(e.message, Chunk | Fetch)]
    assert again
    assert {message.session for message in again} == {first}
    assert sessions(world) == [first]
    assert world.rows_at(target) == rows
    world.until_ended()
    world.conclude()


# ------------------------------------------------ nothing without an open session


@pytest.mark.parametrize("stage", [READ_NEW, "stable"])
def test_a_chunk_of_a_closed_session_changes_no_row(stage: str) -> None:
    """F118, F120, S1, S25: the chunks and ENDs of a copy arrive again after their session was
    closed, in write_both_read_new and after the end: each is refused, and no disk changes."""
    world = Scenario()
    world.put_many(20)
    world.move_owner(hold_seconds=2.0)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    old = [each for each in world.wire.said if copies(each)]
    assert old
    world.put("k3", None)
    if stage == "stable":
        world.until_ended()
    world.run_for(1.0)
    before = world.image()
    assert len(deliver(world, old)) == len(old)
    assert world.image() == before
    assert world.get("k3") is None
    world.conclude()


@pytest.mark.parametrize("session", ["", "t1@1", "nobody's"])
def test_work_with_an_invalid_session_is_refused(session: str) -> None:
    """S11, F118: a session that never was, in a stable partition, in streaming, and in a repair: no
    fetch is answered, no chunk is kept, no row is written."""
    world = Scenario()
    world.put_many(20)
    world.run_for(1.0)
    owner = world.owner().name
    follower = next(n for n in world.replicas() if n != owner)
    rows = rows_of(("k3", "invented"), ("new", "invented"))

    def attempt(to: str, incarnation: str) -> None:
        head = ("p0", incarnation, session, world.record().epoch, 0)
        chunk = Chunk(*head, "a", 0, rows)
        end = End(*head, 1, "a", 2, rows.digest(), 2**50, ())
        fetch = Fetch("p0", incarnation, session, world.record().epoch, 0, 1)
        before = world.image()[to, "p0", incarnation]
        refused = deliver(
            world,
            [Said(0, "mover", node, message, print, ())
             for node, message in ((to, chunk), (to, end), (owner, fetch))],
        )  # fmt: skip
        assert len(refused) == 3
        assert world.image()[to, "p0", incarnation] == before
        assert not any(held.chunks for held in world.nodes[to].brain.held.values())

    attempt(follower, "made")
    world.mover.pause()
    _, target = world.move_owner()
    world.until_stage(STREAMING)
    world.until(lambda: world.waits().startswith("copy"))
    world.run_for(0.5)
    attempt(target, world.stored(target)[0].replica.incarnation)
    world.mover.resume()
    world.until_ended()
    world.mover.pause()
    owner = world.owner().name
    renewed = next(n for n in sorted(world.replicas()) if n != owner)
    world.request(RebuildReplicas("p0", (renewed,)))
    world.until_stage(REBUILD_REPAIR)
    world.until(lambda: world.waits().startswith("copy"))
    world.run_for(0.5)
    for stored in world.stored(renewed):
        attempt(renewed, stored.replica.incarnation)
    world.mover.resume()
    world.until_ended()
    assert session not in {each.message.session for each in said(world, Fetched)}  # type: ignore[union-attr]
    assert world.get("new") is None
    world.conclude()


def test_nothing_is_copied_before_streaming_is_committed() -> None:
    """S9: the session is open since write_both_read_old, whose barrier still waits: a Fetch, a
    Chunk and an END that name it are refused, and the target has no row of them."""
    world = Scenario()
    world.put_many(10)
    source, target = world.move_owner()
    world.until_stage(ALLOW)
    world.until(lambda: world.knows(source))
    slow = next(n for n in world.replicas() if n != source)
    world.wire.blind.add(slow)  # the barrier of write_both_read_old can't pass
    world.until_stage(WRITE_BOTH)
    world.until(lambda: world.knows(source) and world.knows(target))
    world.run_for(0.1)
    session, epoch = session_of(world), world.record().epoch
    assert session is not None
    incarnation = world.stored(target)[0].replica.incarnation
    rows = rows_of(("k1", "early"))
    head = ("p0", incarnation, session, epoch, 0)
    early = [
        Said(0, "mover", source, Fetch("p0", "made", session, epoch, 0, 1), print, ()),
        Said(0, "mover", target, Chunk(*head, "a", 0, rows), print, ()),
        Said(0, "mover", target, End(*head, 1, "a", 1, rows.digest(), 2**50, ()), print, ()),
    ]
    assert len(deliver(world, early)) == 3
    assert not world.rows_at(target)
    assert not said(world, Fetched)
    world.wire.blind.clear()
    world.until_ended()
    assert world.get("k1") == 1
    world.conclude()


def test_a_copy_started_by_a_coordinator_of_the_past_does_nothing() -> None:
    """S9, F122: the old coordinator's copy job is still in the mover's hands when its successor has
    given the move up and started another: its fetches and chunks are all refused."""
    world = Scenario()
    world.put_many(10)
    world.wire.holds = lambda each: isinstance(each.message, Fetch | Chunk | End)
    world.move_owner()
    world.until(lambda: len(world.wire.waiting) >= 2)
    fetches, world.wire.waiting = world.wire.waiting, []
    world.in_office().pause()
    world.until(lambda: world.agreed.coordinator is not None
                and not world.in_office().paused, 10)  # fmt: skip
    world.cancel()
    world.until_ended()
    world.wire.holds = lambda each: False
    world.mover.pause()
    _, target = world.move_owner()
    world.until_stage(STREAMING)
    world.run_for(0.5)
    assert len(deliver(world, fetches)) == len(fetches)
    assert not world.rows_at(target)
    world.thaw()
    world.mover.resume()
    world.until_ended()
    world.conclude()


# ------------------------------------------------ barriers and permits


def test_a_barrier_waits_for_permits_of_closed_sessions() -> None:
    """F119, F118: a slice is being written to the target's slow disk when the session is
    closed: the barrier of cleanup_target waits for it, and passes once the disk has answered;
    it never counts."""
    world = Scenario()
    world.put_many(20)
    _, target = world.move_owner()
    world.until(lambda: len(said(world, End)) >= 2)
    world.slow_disks.add(target)
    world.until(lambda: permits(world, target) > 0)
    world.cancel()
    world.until_stage(CLEANUP_TARGET)
    world.run_for(4.0)
    assert world.stage_name("p0") == CLEANUP_TARGET
    assert world.waits().startswith(f"barrier: {target} still works")
    assert world.stored(target)
    world.hasten()
    world.until_ended()
    assert permits(world, target) == 0
    assert not world.stored(target)
    world.conclude()


def permits(world: Scenario, node: str) -> int:
    return sum(len(held.permits) for held in world.nodes[node].brain.held.values())


def test_holders_of_a_closed_session_do_not_hang_the_barrier() -> None:
    """S7: the mover crashed between its chunks and their END, and comes back before anybody
    noticed: what it left at the target is let go when the session closes, and the barrier
    passes at once."""
    world = Scenario()
    world.put_many(20)
    world.wire.holds = lambda each: isinstance(each.message, End)
    _, target = world.move_owner()
    world.until(lambda: any(held.chunks for held in world.nodes[target].brain.held.values()))
    world.mover.crash()
    world.mover.start()
    since = world.now
    world.cancel()
    world.until_ended()
    assert world.now - since < 1.0
    assert not any(held.chunks for held in world.nodes[target].brain.held.values())
    world.conclude()


# ------------------------------------------------ resurrection


def test_a_key_whose_stream_was_cut_stays_deleted() -> None:
    """F121, S1, S25: the nine steps: (1) K1 is written; (2) a move streams it; (3) the stream
    is cut, its last part waits somewhere; (4) the move goes back; (5) it is tried again, (6)
    and ends; (7) K1 is deleted; (8) the tombstone is collected; (9) the part of the first
    stream arrives. K1 stays deleted."""
    world = Scenario()
    world.put_many(10)
    assert world.put("K1", "alive").outcome == "done"
    world.wire.holds = copies
    source, target = world.move_owner()
    world.until(lambda: len([e for e in world.wire.waiting if isinstance(e.message, End)]) >= 2)
    parts, world.wire.waiting = world.wire.waiting, []
    assert any(
        row.key == "K1" for e in parts if isinstance(e.message, Chunk)
        for row in e.message.rows.rows  # type: ignore[attr-defined]
    )  # fmt: skip
    world.mover.crash()
    world.cancel()
    world.until_ended()
    assert source in world.replicas()
    assert not world.stored(target)
    world.wire.holds = lambda each: False
    world.mover.start()
    world.move(target, *sorted(world.replicas() - {source}))
    world.until_ended()
    assert target in world.replicas()
    assert world.put("K1", None).outcome == "done"
    world.run_for(1.0)
    for node in world.nodes.values():
        node.deliver(node.run, CollectionDue("p0"))
    world.run_for(1.0)
    assert not any("K1" in world.rows_at(node) for node in world.nodes)
    before = world.image()
    assert len(deliver(world, parts)) == len(parts)
    # Not even with the new incarnation's name on it.
    incarnation = next(r.incarnation for r in world.record().replicas if r.node == target)
    renamed = [replace(e, message=replace(e.message, to=incarnation)) for e in parts if e.message]
    assert len(deliver(world, renamed)) == len(parts)
    assert world.image() == before
    assert world.get("K1") is None
    world.conclude()


def test_a_slice_that_was_accepted_but_not_yet_applied_can_not_come_back_either() -> None:
    """F121, S1: the destination itself was paused between taking the END and applying the rows:
    the barrier of cleanup_target holds everything until the rows are dropped, so the retry
    starts clean."""
    world = Scenario()
    world.put_many(10)
    source, target = world.move_owner()
    world.until(lambda: len(said(world, End)) >= 2)
    world.slow_disks.add(target)
    world.until(lambda: permits(world, target) > 0)
    world.cancel()
    world.run_for(3.0)
    assert world.stage_name("p0") == CLEANUP_TARGET
    world.put("k3", None)
    world.hasten()
    world.until_ended()
    assert not world.stored(target)
    world.move(target, *sorted(world.replicas() - {source}))
    world.until_ended()
    assert target in world.replicas()
    world.run_for(1.0)
    for node in world.nodes.values():
        node.deliver(node.run, CollectionDue("p0"))
    world.run_for(1.0)
    assert not any("k3" in world.rows_at(node) for node in world.nodes)
    world.conclude()


def test_messages_of_the_past_are_refused_after_the_barrier() -> None:
    """F120, F109, S17: everything that was said in a first move (replication, copies, seals,
    drops) is said again, in reverse order, when a second one is under way and when it has
    ended: no disk changes, nobody is sealed, nothing is dropped. A third move is refused while the
    second runs: the partition never has two transitions."""
    world = Scenario()
    world.put_many(10)
    world.move_owner(hold_seconds=0.2)
    world.until_ended()
    kinds = Chunk | End | Fetch | Seal | DropReplica | Replicate
    old = [each for each in world.wire.said if isinstance(each.message, kinds)][::-1]
    assert {type(each.message) for each in old} == {Chunk, End, Fetch, Seal, DropReplica, Replicate}
    world.mover.pause()
    world.move_owner()
    world.until_stage(STREAMING)
    world.until(lambda: world.waits().startswith("copy"))
    world.run_for(1.5)
    running = world.record()
    state, why = world.answer(world.move(*sorted(world.nodes)[1:], after_pending=False))
    assert (state, "is being moved already" in why) == ("refused", True)
    assert (world.record(), world.intent().planned) == (running, None)
    for ended in (False, True):
        if ended:
            world.mover.resume()
            world.until_ended()
            world.run_for(1.5)
        before, held = world.image(), {n: list(p.brain.held) for n, p in world.nodes.items()}
        deliver(world, old)
        assert world.image() == before
        assert {n: list(p.brain.held) for n, p in world.nodes.items()} == held
        owner = world.owner().brain.owners["p0"]
        assert owner.open
        assert owner.sealed is None
    changes = [record.transition and record.transition.id for _, record in world.records()]
    for was, now in pairwise(changes):
        assert was == now or None in (was, now), "one ends before another begins"
    assert len(set(changes) - {None}) == 2
    world.conclude()


# ------------------------------------------------ stale coordinators


def test_a_stale_coordinator_can_not_commit_anything() -> None:
    """F122: what the coordinator in office asks the metastore for is stuck in the network;
    another takes over and moves on; then the first one's commits arrive, and each fails on its
    guards."""
    world = Scenario()
    world.put_many(5)
    stale = world.in_office()
    source, target = world.move_owner(hold_seconds=1.0)
    world.until_stage(STREAMING)
    world.wire.holds = lambda each: each.sender == stale.name and each.to == "metastore"
    world.until(lambda: world.in_office() is not stale and world.stage_name("p0") == READ_NEW)
    assert world.wire.waiting
    assert stale.brain.office is not None
    made_before = len(world.commits)
    revision = world.agreed.revision
    asks, world.wire.waiting = world.wire.waiting, []
    for ask in asks:
        ask.arrive(*ask.arguments)
    by_stale = [(commit.why, made) for by, commit, made in world.commits[made_before:]]
    assert by_stale
    assert not any(made for _, made in by_stale)
    assert world.agreed.revision == revision
    world.wire.let_go()
    world.until_ended()
    assert target in world.replicas()
    assert source not in world.replicas()
    world.conclude()


@pytest.mark.parametrize("seed", range(5))
def test_two_coordinators_that_both_believe_in_their_office_do_no_harm(seed: int) -> None:
    """F122: one is paused again and again for longer than its lease, in the middle of moves."""
    world = Scenario(seed)
    workloads = world.keep_busy(12.0)
    for _ in range(3):
        world.move_owner()
        world.run_for(0.03 + 0.01 * seed)
        chosen = world.in_office()
        chosen.pause()
        world.schedule(3.6, chosen.resume)
        world.run_for(4.2)
        world.until_ended()
    assert len({by for by, _, made in world.commits if made and by.startswith("k")}) == 2
    world.conclude(workloads)


# ------------------------------------------------ reordered words


def test_a_late_report_does_not_count_after_a_later_one() -> None:
    """S17: what a node said earlier arrives later: the coordinator keeps the newer word. The
    same for a report of an earlier run of the node."""
    world = Scenario()
    world.put_many(3)
    chosen = world.owner().name
    world.move_owner(hold_seconds=2.0)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    coordinator = world.in_office()
    reports = [e for e in world.wire.said if e.sender == chosen and e.to == coordinator.name]
    known = coordinator.brain.statuses[chosen]
    assert len(reports) > 3
    for each in reports[::-1]:
        assert each.message is not None
        coordinator.receive(chosen, each.message)
        assert coordinator.brain.statuses[chosen] is known
    world.until_ended()
    world.conclude()


@pytest.mark.parametrize("kind", [Chunk, End, Fetch, Fetched])
def test_every_message_of_a_copy_may_arrive_twice(kind: type) -> None:
    """S22, F117: Chunks, ENDs, Fetches or answers are doubled by the network for a while: rows
    count once, and the move ends."""
    world = Scenario()
    rows = world.put_many(30)
    doubled: list[Message] = []

    def twice(message: Message) -> list[Message]:
        if isinstance(message, kind) and len(doubled) < 6:
            doubled.append(message)
            return [message, message]
        return [message]

    world.wire.twist = twice
    _, target = world.move_owner(hold_seconds=1.0)
    world.until_stage(READ_NEW)
    world.run_for(0.5)
    assert doubled
    assert world.rows_at(target) == rows
    world.until_ended()
    world.conclude()


def test_a_landed_slice_is_applied_once() -> None:
    """S22: an END that arrives again after its slice has landed is answered, and nothing is
    stored."""
    world = Scenario()
    world.put_many(10)
    stored: list[ApplySlice] = []
    _, target = world.move_owner()
    write: Callable[..., None] = world.nodes[target].disk.write

    def count(change: object, node: str) -> None:
        if isinstance(change, ApplySlice):
            stored.append(change)
        write(change, node)

    world.nodes[target].disk.write = count  # type: ignore[method-assign]

    def again(message: Message) -> list[Message]:
        if isinstance(message, End):
            world.schedule(0.006, world.nodes[target].receive, "mover", message)
        return [message]

    world.wire.twist = again
    world.until_ended()
    assert len(stored) == world.mover.slices
    world.conclude()


def test_no_session_covers_more_than_its_own_partition() -> None:
    """F118: a chunk of p0's open session that names p1 is refused."""
    world = Scenario(partitions=2)
    world.put_many(20)
    world.mover.pause()
    _, target = world.move_owner("p0")
    world.until_stage(STREAMING)
    world.run_for(0.5)
    session = session_of(world)
    assert session is not None
    rows = rows_of(("k1", "stray")).within(WHOLE)
    follower = next(n for n in world.replicas("p1") if n != world.owner("p1").name)
    head = ("p1", "made", session, world.record("p1").epoch, 0)
    before = world.image()
    refused = deliver(
        world,
        [
            Said(0, "mover", follower, Chunk(*head, "a", 0, rows), print, ()),
            Said(0, "mover", follower, End(*head, 1, "a", 1, rows.digest(), 0, ()), print, ()),
        ],
    )
    assert len(refused) == 2
    assert world.image() == before
    assert target
    world.mover.resume()
    world.conclude()
