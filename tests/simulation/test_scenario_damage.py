"""What if a file of a replica is damaged? Another one takes over, and the replica is rebuilt."""

import pytest

from limosa.core.events import ReplicaDamaged
from limosa.core.machines.catalogue import MOVE
from limosa.core.model.topology import Replica
from tests.simulation.scenarios import Scenario
from tests.simulation.test_scenario_failures import lead_to


def replica_on(world: Scenario, node: str) -> Replica:
    return next(r for r in world.record().replicas if r.node == node)


def rot(world: Scenario, replica: Replica, found: bool) -> None:
    """A block of the replica is damaged, and a scrub finds it; or nobody has, until it is read."""
    node = world.nodes[replica.node]
    node.rotten.add(("p0", replica.incarnation))
    if found:
        node.deliver(node.run, ReplicaDamaged("p0", replica.incarnation, "rotten"))


def is_whole(world: Scenario, damaged: Replica) -> bool:
    """Every replica is in sync, and the damaged one is gone."""
    record = world.record()
    whole = world.is_quiet() and set(record.in_sync) == set(record.replicas)
    return whole and damaged not in record.replicas


@pytest.mark.parametrize("found", [True, False], ids=["scrubbed", "read"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_a_damaged_owner_loses_the_partition_and_is_rebuilt(replicas: int, found: bool) -> None:
    """S120, F193: under continuous writes, reads and compare-and-sets. Nothing fails, and the files
    of the damaged replica stay until another one is in sync in its place."""
    world = Scenario(replicas=replicas, nodes=replicas + 1)
    world.put_many(10)
    workloads = world.keep_busy(8.0)
    world.run_for(0.2)
    damaged = replica_on(world, world.owner().name)
    begun = world.now
    rot(world, damaged, found)
    world.until(lambda: world.owner().name != damaged.node, 2.0)
    assert world.now - begun < 1.0
    assert damaged not in world.record().in_sync
    key = ("p0", damaged.incarnation)
    world.until(lambda: key not in world.nodes[damaged.node].disk.live)
    rebuilt = world.record().transition
    assert rebuilt is not None
    assert all(target in world.record().in_sync for target in rebuilt.targets)
    world.until(lambda: is_whole(world, damaged))
    world.conclude(workloads)


def test_a_damaged_follower_is_taken_out_and_rebuilt() -> None:
    """F193: the owner stays the owner."""
    world = Scenario(replicas=3, nodes=4)
    world.put_many(10)
    workloads = world.keep_busy(4.0)
    owner = world.owner().name
    damaged = replica_on(world, next(n for n in sorted(world.replicas()) if n != owner))
    rot(world, damaged, found=True)
    world.until(lambda: damaged not in world.record().in_sync)
    world.until(lambda: is_whole(world, damaged))
    assert world.owner().name == owner
    world.conclude(workloads)


def test_the_only_copy_in_sync_is_kept_until_another_one_is() -> None:
    """F193: the only replica in sync is damaged. It stays the owner. When another node is back, it
    catches up, takes over, and the damaged replica is rebuilt."""
    world = Scenario(replicas=2, nodes=2)
    world.put_many(5)
    damaged = replica_on(world, world.owner().name)
    other = next(name for name in world.nodes if name != damaged.node)
    world.nodes[other].crash()
    world.until(lambda: world.record().in_sync == (damaged,))
    rot(world, damaged, found=True)
    world.run_for(5.0)
    assert world.owner().name == damaged.node
    assert world.is_open("p0")
    assert world.record().in_sync == (damaged,)
    world.nodes[other].start()
    world.until(lambda: world.owner().name == other)
    world.until(lambda: is_whole(world, damaged))
    world.conclude([])


def test_a_damaged_replica_is_elected_only_if_no_other_lives() -> None:
    """F193: and it gives the partition up as soon as a sound one is in sync again."""
    world = Scenario(replicas=3, nodes=3)
    world.put_many(5)
    world.run_for(1.0)  # the followers know that all rows are committed
    owner = world.owner()
    followers = [world.nodes[n] for n in sorted(world.replicas()) if n != owner.name]
    damaged = replica_on(world, followers[0].name)
    for node in (owner, followers[1]):
        node.crash()
    world.until(lambda: not {owner.name, followers[1].name} & set(world.agreed.leases))
    rot(world, damaged, found=True)
    world.until(lambda: world.record().owner is not None and world.owner() is followers[0])
    world.until(lambda: world.is_open("p0"))
    for node in (owner, followers[1]):
        node.start()
    world.until(lambda: world.owner().name != damaged.node)
    world.until(lambda: is_whole(world, damaged))
    world.conclude([])


@pytest.mark.parametrize("victim", ["source", "target", "owner"])
@pytest.mark.parametrize("stage", [stage.name for stage in MOVE.stages])
def test_damage_in_any_stage_of_a_move_loses_nothing(stage: str, victim: str) -> None:
    """S120: whichever side is damaged, the move ends, and every replica is whole afterwards."""
    world = Scenario(replicas=3, nodes=5)
    world.put_many(10)
    workloads = world.keep_busy(6.0)
    world.run_for(0.2)
    before = world.replicas()
    struck: list[Replica] = []
    names = {"source": world.owner().name}
    names["target"] = next(n for n in world.nodes if n not in before)

    def strike() -> None:
        name = world.owner().name if victim == "owner" else names[victim]
        held = [incarnation for _, incarnation in world.nodes[name].disk.live]
        if held:  # the target may not have created its replica yet
            struck.append(Replica(name, held[0]))
            rot(world, struck[0], found=True)

    lead_to(world, stage, strike)
    world.until_ended()
    for replica in struck:
        world.until(lambda replica=replica: is_whole(world, replica))  # type: ignore[misc]
    world.conclude(workloads)
