"""Is everything well again, though a node is gone for good and the load goes on?"""

from typing import TYPE_CHECKING

from limosa.core.model.topology import Partition
from limosa.simulation.checkers.leftovers import is_open

if TYPE_CHECKING:
    from limosa.simulation.world import World


def not_well(world: "World") -> list[tuple[str, str]]:
    """Partitions that are not served, or lack a replica whose node runs: (what, partition)."""
    problems: list[tuple[str, str]] = []
    for name, record in world.agreed.topology.partitions.items():
        problems += [(problem, name) for problem in _of_partition(world, record)]
    return problems


def _of_partition(world: "World", record: Partition) -> list[str]:
    if world.gone and record.id not in world.survivors:
        return []
    if record.owner is None:
        return ["it has no owner"]
    owner = record.owner.replica.node
    if owner in world.gone:
        return [f"{owner} owns it"]
    if not is_open(world, owner, record.id):
        return ["its owner is not open"]
    if record.transition is not None:
        return []
    there = [replica for replica in record.replicas if replica.node not in world.gone]
    out = [replica.node for replica in there if replica not in record.in_sync]
    return [f"{', '.join(out)} not in sync"] if out else []
