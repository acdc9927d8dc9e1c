"""Where is a lost replica rebuilt? In its place, on another volume of its node, or elsewhere."""

from collections import Counter

from limosa.core.coordinator.checks import free_bytes, no_room
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.intent import Placement
from limosa.core.model.keys import NodeId
from limosa.core.model.requests import RebuildReplicas
from limosa.core.model.topology import Partition, Replica
from limosa.core.planning.placement import data_nodes, least_shared


def rebuild(view: ClusterView, record: Partition, replica: Replica) -> RebuildReplicas | str:
    """The request that rebuilds a replica where there is room for it; or why it can't be rebuilt.

    A volume that its node can't use is left alone: its replicas go to the node's other volumes, and
    to other nodes if these have no room.
    """
    here = Placement(replica.node, replica.volume)
    found = room_on(view, record, replica.node, replica.volume)
    if found == here:
        return RebuildReplicas(record.id, (replica.node,))
    renewed: tuple[NodeId, ...] = (replica.node,)
    if isinstance(found, str):
        elsewhere = on_another_node(view, record)
        if elsewhere is None:
            return found
        found, renewed = elsewhere, ()
    stable = view.agreed.intents[record.id].stable
    places = tuple(found if each.node == replica.node else each for each in stable)
    return RebuildReplicas(record.id, renewed, placements=places)


def room_on(
    view: ClusterView, record: Partition, node: NodeId, first: str | None = None
) -> Placement | str:
    """A volume of the node that works and has room: the first choice, or the one with most free
    space; otherwise the problem of the last one that was considered."""
    problem = f"{node} has no volume that works"
    places = [Placement(node, volume) for volume in view.working_volumes(node)]
    for place in sorted(
        places, key=lambda each: (each.volume != first, -(free_bytes(view, each) or 0), each.volume)
    ):
        problem = no_room(view, record, place)
        if not problem:
            return place
    return problem


def on_another_node(view: ClusterView, record: Partition) -> Placement | None:
    """The live node that shares least with the nodes of the partition's other replicas."""
    topology = view.agreed.topology
    nodes = topology.nodes
    holding = {each.node for each in record.replicas}
    free: dict[NodeId, Placement] = {}
    for name in data_nodes(topology.zones[record.zone], nodes.values()):
        if name not in holding and view.status(name) is not None:
            place = room_on(view, record, name)
            if isinstance(place, Placement):
                free[name] = place
    if not free:
        return None
    load = Counter(each.node for other in topology.partitions.values() for each in other.replicas)
    held = [nodes[each.node] for each in record.replicas if each.node in nodes]
    best = least_shared(held, {name: nodes[name] for name in free}, load)
    return free[best]
