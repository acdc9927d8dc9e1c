"""What does a failed or hanging disk cost in a whole cluster? Its own replicas, and for a while."""

import pytest

from limosa.simulation.hosts import VOLUMES
from tests.simulation.scenarios import Scenario

HANGS_SECONDS = 10.0
"""After so long a sync that does not end is a failure (`sync_seconds_max`)."""


def places(world: Scenario) -> set[tuple[str, str]]:
    return {(replica.node, replica.volume) for replica in world.record().replicas}


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_failed_volume_is_rebuilt_on_another_volume_of_its_node(is_owner: bool) -> None:
    """S118: the node goes on, and so does the partition; nothing is lost."""
    world = Scenario(replicas=3, nodes=3)
    rows = world.put_many(12)
    node = world.owner()
    if not is_owner:
        node = next(n for n in world.nodes.values() if n is not node)
    starts = node.starts
    lease = world.agreed.leases[node.name]
    node.lose_volume("")
    world.put("after", 1)
    world.until(lambda: (node.name, "v2") in places(world) and world.is_quiet())
    assert places(world) == {(n, "v2" if n == node.name else "") for n in world.nodes}
    assert set(world.record().in_sync) == set(world.record().replicas)
    assert (node.starts, world.agreed.leases[node.name]) == (starts, lease), "it did not restart"
    assert {key: world.rows_at(node.name)[key] for key in rows} == rows
    world.conclude()


def test_a_node_with_a_second_failed_volume_is_rebuilt_elsewhere() -> None:
    """S118: no volume of the node works; the fourth node takes the replica."""
    world = Scenario(replicas=3, nodes=4)
    world.put_many(12)
    node = world.owner()
    for volume in VOLUMES:
        node.lose_volume(volume)
    world.until(lambda: node.name not in world.replicas() and world.is_quiet(), 60.0)
    assert len(world.record().in_sync) == 3
    world.conclude()


@pytest.mark.parametrize("volumes", [VOLUMES, ("",)])
def test_an_owner_whose_disk_hangs_is_replaced_in_bounded_time(volumes: tuple[str, ...]) -> None:
    """S119: a node with another volume gives up the volume that hangs; a node without one ends its
    run. A client sees a pause, and no error."""
    world = Scenario(replicas=3, nodes=3)
    world.put_many(12)
    node = world.owner()
    node.brain.volumes = volumes
    starts = node.starts
    node.hangs = True
    pending = world.send_put("during", 1)
    world.until(
        lambda: (
            (owner := world.record().owner) is not None
            and owner.replica.node != node.name
            and bool(pending)
        ),
        HANGS_SECONDS + 8.0,
    )
    node.hangs = False
    assert (node.starts > starts or not node.run) == (volumes != VOLUMES)
    world.until(lambda: len(world.record().in_sync) == 3 and world.is_quiet(), 60.0)
    world.conclude()
