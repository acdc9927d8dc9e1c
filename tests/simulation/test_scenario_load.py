"""Are load reports mere advice, and does load keep a replica from returning?"""

from collections import Counter

import pytest

from limosa.core.client import Finished
from limosa.core.events import Measured
from limosa.core.messages import Status, Write
from limosa.core.model.changes import lease_key
from limosa.simulation.hosts import SimulatedNode
from tests.simulation.scenarios import Scenario, said


def measure(world: Scenario, node: SimulatedNode, size: int) -> None:
    """The node finds out that each of its replicas has so many bytes, and how it is used."""
    sizes = dict.fromkeys(node.disk.live, (size // 10, size))
    rates = {partition: (float(size), 2.0 * size) for partition, _ in sizes}
    node.deliver(node.run, Measured({"": 10**9 - size}, sizes, rates))


def test_a_minute_of_heartbeats_and_load_reports_leaves_the_generation_as_it_is() -> None:
    """F9, F44: nodes renew their leases and report other figures all the time. The coordinator in
    office has the newest of them, but neither generation nor any other revision of the metastore
    changes, and nothing is committed. A new coordinator starts without them, and hears new ones."""
    world = Scenario(nodes=4, partitions=3)
    rows = world.put_many(6)
    world.run_for(2.0)
    before, commits, states = world.agreed, len(world.commits), len(world.states)
    heard = len(world.wire.said)
    renewed = dict.fromkeys(world.nodes, 0)
    renew = world.metastore.renew

    def count(key: str, lease: int) -> bool:
        for name in world.nodes:
            renewed[name] += key == lease_key(name)
        return renew(key, lease)

    world.metastore.renew = count  # type: ignore[method-assign]
    for second in range(60):
        for node in world.nodes.values():
            measure(world, node, 1000 * (second + 1))
        world.run_for(1.0)
    assert all(times > 50 for times in renewed.values())
    reports = [each.message for each in world.wire.said[heard:] if isinstance(each.message, Status)]
    assert len({report.free_bytes[""] for report in reports if report.free_bytes}) >= 50
    assert world.agreed is before
    assert (len(world.commits), len(world.states)) == (commits, states)
    office = world.in_office()
    known = office.brain.statuses
    world.until(lambda: {each.free_bytes[""] for each in known.values()} == {10**9 - 60_000})
    sizes = {
        r.bytes for status in known.values() for held in status.replicas.values() for r in held
    }
    assert sizes == {60_000}
    office.crash()
    world.until(lambda: world.in_office() is not office)
    successor = world.in_office().brain
    assert not successor.statuses
    world.until(lambda: set(successor.statuses) == set(world.nodes))
    assert said(world, Status, to=world.in_office().name)
    assert world.agreed.topology.generation == before.topology.generation
    assert world.agreed.topology == before.topology
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


@pytest.mark.parametrize(("replicas", "slow_seconds"), [(3, 0.0), (2, 0.0), (3, 0.25)])
def test_a_replica_returns_while_clients_never_stop_writing(
    replicas: int, slow_seconds: float
) -> None:
    """S115, F195: a follower that was away is in sync again after a bounded time, although 300
    writes a second go on all the time, and even if its link is slow. Clients see a pause only."""
    shape = {"nodes": replicas, "replicas": replicas, "entries_kept": 10_000}
    world = Scenario(8, min_in_sync=1, **shape)  # the seed of messages as large as real ones
    owner = world.owner().name
    follower = next(name for name in sorted(world.replicas()) if name != owner)
    answers: list[list[Finished]] = []

    def write(number: int) -> None:
        if not world.healed:
            answers.append(world.send_put(f"k{number}", number, number % 2))
            world.schedule(0.0033, write, number + 1)

    write(0)
    world.nodes[follower].crash()
    world.until(lambda: len(world.record().in_sync) == replicas - 1)
    world.wire.slow[follower] = slow_seconds
    world.nodes[follower].start()
    world.until(lambda: len(world.record().in_sync) == replicas, seconds=4.0)
    world.run_for(0.5)
    world.healed = True
    world.until(lambda: all(answers))
    assert all(answer.outcome == "done" for each in answers for answer in each)
    world.run_for(1.5)
    assert len(world.record().in_sync) == replicas
    assert world.rows_at(follower) == world.rows_at(owner)
    assert len(world.rows_at(owner)) == len(answers)


@pytest.mark.parametrize("late_seconds", [1.5, 4.0])
def test_answers_that_take_longer_than_an_attempt_count(late_seconds: float) -> None:
    """S127: every answer reaches the client long after it sent another attempt. All writes and
    reads end well, none is repeated without end, and every row is there once."""
    world = Scenario(nodes=3, partitions=2)
    client = world.clients[0]
    world.wire.slow[client.name] = late_seconds
    began = len(world.wire.said)
    for number in range(10):
        assert world.put(f"k{number}", number).outcome == "done"
    found = world.send_get("k3")
    world.until(lambda: bool(found))
    assert found[0].outcome == "done"
    attempts = [each.message for each in world.wire.said[began:] if each.sender == client.name]
    writes = Counter(each.sequence for each in attempts if isinstance(each, Write))
    assert len(writes) == 10
    assert 1 < max(writes.values()) <= 3
    world.wire.slow.clear()
    assert {f"k{number}": world.get(f"k{number}") for number in range(10)} == {
        f"k{number}": number for number in range(10)
    }
    world.conclude()
