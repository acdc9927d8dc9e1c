"""Is everything well again, though a node is gone for good, or after an overload?"""

from typing import TYPE_CHECKING

from limosa.core.model.changes import Agreed
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


class Disturbance:
    """Watches what only failures may cause: nobody else loses a lease, the office, or its place
    among the replicas in sync, however busy all are."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.killed: set[str] = set()
        """Processes that fail, soon or later."""
        world.on_agreed = self._look

    def _look(self, before: Agreed, after: Agreed) -> None:
        for node, lease in before.leases.items():
            if node not in self.killed and after.leases.get(node) != lease:
                self._world.violate(f"{node} lost its lease by overload", "")
        office = before.coordinator
        if office is not None and office.holder not in self.killed and after.coordinator != office:
            self._world.violate(f"{office.holder} lost its office by overload", "")
        if after.topology.partitions is before.topology.partitions:
            return
        for name, record in after.topology.partitions.items():
            old = before.topology.partitions[name]
            if old is not record:
                out = [r.node for r in old.in_sync if r not in record.in_sync]
                for node in out:
                    if node not in self.killed:
                        self._world.violate(f"{node} was taken out by overload", name)
