"""Does a barrier wait for what it must, for nothing else, and is the fence what was captured
before it?"""

from itertools import pairwise

from msgspec.structs import replace

from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    MOVE,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.machines.machine import Work
from limosa.core.messages import Acked, Replicate, Unheld
from limosa.core.model.requests import CompleteMove
from limosa.simulation.rows import token_of
from tests.simulation.scenarios import Scenario, said


def keys_in(world: Scenario, partition: str, count: int) -> list[str]:
    """Names whose tokens lie in the partition."""
    held = world.record(partition).range
    names = (f"key{number}" for number in range(1000))
    return [name for name in names if held.holds(token_of(name))][:count]


def appending(world: Scenario, node: str) -> int:
    return sum(len(held.appending) for held in world.nodes[node].brain.held.values())


def test_a_barrier_waits_for_replica_side_writes_even_if_the_client_is_gone() -> None:
    """F114, S6: in write_both_read_new the leaving replica's disk hangs in the middle of a
    write; the client dies, the owner has the replica taken out: neither use_new nor cleanup
    comes before the disk has answered."""
    world = Scenario()
    world.put_many(3)
    source, target = world.move_owner(hold_seconds=10)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    world.slow_disks.add(source)
    world.send_put("slow", 1)
    world.until(lambda: appending(world, source) > 0)
    world.clients[0].crash()
    world.request(CompleteMove("p0"))
    world.run_for(5.0)
    assert not any(r.node == source for r in world.record().in_sync)
    assert world.stage_name("p0") == READ_NEW
    assert world.waits().startswith(f"barrier: {source} still works on requests from before")
    assert world.stored(source)
    world.hasten()
    world.until_ended()
    assert world.stages()[-4:] == [READ_NEW, USE_NEW, CLEANUP, "stable"]
    assert not world.stored(source)
    world.history.unanswered()
    assert world.get("slow", client=1) == 1
    assert target in world.replicas()


def test_a_barrier_waits_for_the_owners_own_slow_disk_too() -> None:
    """F114: the writes of an older generation that hang on the owner's volume hold
    write_both_read_old back; once durable they are on the write set of today, and only then
    acknowledged."""
    world = Scenario()
    world.put_many(3)
    owner = world.owner().name
    world.freeze()
    _, target = world.move_owner()
    world.slow_disks.add(owner)
    answers = world.send_put("slow", 1)
    world.until(lambda: appending(world, owner) > 0)
    world.thaw()
    world.run_for(2.0)
    assert world.stage_name("p0") != STREAMING
    assert "still works on requests" in world.waits()
    assert not answers
    world.hasten()
    world.until(lambda: bool(answers))
    world.until_ended()
    assert world.has(target, "slow")
    world.conclude()


def test_a_node_that_is_dead_does_not_block_a_barrier_but_a_live_one_does() -> None:
    """F119: a live node that applies nothing holds the barrier; once its lease has ended it must
    register anew, and does not."""
    world = Scenario(nodes=5)
    world.put_many(3)
    bystander = next(n for n in reversed(world.nodes) if n not in world.replicas())
    world.wire.blind.add(bystander)
    source, target = world.move_owner()
    assert bystander not in (source, target)
    world.run_for(5.0)
    assert world.waits().startswith(f"barrier: {bystander} has not applied")
    world.nodes[bystander].crash()
    world.until_ended()
    assert target in world.replicas()
    world.wire.blind.clear()
    world.conclude()


def test_a_long_read_of_another_partition_does_not_block_a_move() -> None:
    """F115, F123: a look-up of p1 that takes ten minutes, on nodes that hold p0 as well: p0
    goes through all its stages meanwhile; a barrier is about one partition."""
    world = Scenario(partitions=2, nodes=4)
    mine, other = keys_in(world, "p0", 1)[0], keys_in(world, "p1", 1)[0]
    world.put(mine, 1)
    world.put(other, 2)
    world.slow_reads.add("p1")
    for choice in range(3):
        world.send_get(other, eventual=True, choice=choice)
    world.until(lambda: world.hanging_reads() == 3)
    since = world.now
    world.move_owner("p0")
    world.until_ended("p0")
    assert world.now - since < 2.0
    assert world.get(mine) == 1
    world.run_for(600.0)
    world.move_owner("p0")
    since = world.now
    world.until_ended("p0")
    assert world.now - since < 2.0
    assert world.hanging_reads() >= 3
    world.conclude()


def test_a_long_stream_of_one_partition_does_not_block_another() -> None:
    """F123, F115: p0 streams and streams; p1 completes all stages, twice, under its own
    sessions."""
    world = Scenario(partitions=2, nodes=4)
    world.put_many(40)
    world.wire.holds = lambda each: (
        getattr(each.message, "partition", "") == "p0"
        and type(each.message).__name__ in ("Chunk", "End")
    )
    world.move_owner("p0")
    world.until_stage(STREAMING, "p0")
    for _ in range(2):
        since = world.now
        world.move_owner("p1")
        world.until(lambda: world.stages("p1")[-1:] == ["stable"] and world.is_quiet("p1"))
        assert world.now - since < 2.0
    world.run_for(60.0)
    assert world.stage_name("p0") == STREAMING
    assert [s for s in world.stages("p1") if s == "stable"] == ["stable"] * 2
    assert world.put("k1", "still served").outcome == "done"
    world.wire.let_go()
    world.until_ended("p0")
    world.conclude()


def test_many_reads_that_refresh_their_view_never_hold_a_stage_back() -> None:
    """F115: a scan made of many short reads, each routed anew, goes on through a whole move; it
    sees every row, and the move does not wait for it."""
    world = Scenario()
    rows = world.put_many(60)
    world.move_owner()
    end = world.now + 10.0
    while not world.is_quiet():
        assert {key: world.get(key) for key in rows} == rows
        assert world.now < end
    assert world.stages()[-1] == "stable"
    world.conclude()


# ------------------------------------------------ fences


def test_the_fence_is_the_generation_that_was_captured_before_the_drain() -> None:
    """S3: the topology gets other generations while a barrier is under way; the fence rises to the
    revision that the barrier was about, never to a later one, and requests of today are served."""
    world = Scenario(nodes=5)
    world.put_many(5)
    _, target = world.move_owner()
    slow = next(n for n in world.nodes if n not in (target, *world.replicas()))
    world.mover.pause()
    world.until_stage(ALLOW)
    world.until(lambda: world.knows(slow))
    world.wire.blind.add(slow)
    world.until_stage(WRITE_BOTH)
    captured = world.revision()
    world.run_for(0.05)
    for _ in range(3):
        world.new_version()  # a higher generation, which has nothing to do with this barrier
    assert world.put("during", 1).outcome == "done"
    assert world.stage_name("p0") == WRITE_BOTH
    assert world.revision() == captured
    world.wire.blind.clear()
    world.until_stage(STREAMING)
    assert world.record().fence == captured
    assert world.agreed.topology.generation > captured
    world.mover.resume()
    world.until_ended()
    records = world.records()
    for (revision, before), (_, after) in pairwise(records):
        was, now = before.transition, after.transition
        if was is not None and (now is None or now.stage != was.stage):
            passed = Work.BARRIER in MOVE[was.stage].work
            assert after.fence == (revision if passed else before.fence)
    world.conclude()


def test_requests_in_flight_when_the_fence_rises_are_not_fenced() -> None:
    """S3: replication that left the owner in write_both_read_old is still on the wire when
    streaming is committed with its fence: it is taken, and the client is acked without a retry."""
    world = Scenario()
    world.put_many(5)
    source, _ = world.move_owner()
    world.mover.pause()
    follower = next(n for n in world.replicas() if n != source)
    world.until_stage(WRITE_BOTH)
    world.until(lambda: world.knows(source))
    revision = world.revision()
    world.wire.holds = lambda each: isinstance(each.message, Replicate) and each.to == follower
    answers = world.send_put("in-flight", 1)
    world.until(lambda: any(e.message.entries for e in world.wire.waiting))  # type: ignore[union-attr]
    world.until_stage(STREAMING)
    world.until(lambda: world.knows(follower))
    sent = next(e for e in world.wire.waiting if e.message.entries)  # type: ignore[union-attr]
    assert isinstance(sent.message, Replicate)
    assert sent.message.revision == revision
    assert world.record().fence == revision
    heard = len(world.wire.said)
    world.wire.let_go()
    world.until(lambda: bool(answers))
    replies = [e.message for e in world.wire.said[heard:] if e.sender == follower]
    assert any(isinstance(reply, Acked) for reply in replies)
    assert not any(isinstance(reply, Unheld) for reply in replies)
    assert answers[0].outcome == "done"
    world.run_for(0.5)
    # The same message, had it been sent before the fence, is refused.
    before = world.image()
    world.nodes[follower].receive(source, replace(sent.message, revision=revision - 1))
    world.run_for(0.01)
    refusal = said(world, Unheld, sender=follower)[-1].message
    assert isinstance(refusal, Unheld)
    assert refusal.why == "fenced"
    assert world.image() == before
    world.mover.resume()
    world.until_ended()
    world.conclude()
