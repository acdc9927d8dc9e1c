"""Which nodes should hold a partition? Those that hold it, if possible; else in other racks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from limosa.core.model.intent import Placement
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.topology import Node, Zone


def data_nodes(zone: Zone, nodes: Iterable[Node]) -> tuple[NodeId, ...]:
    """The nodes that may hold replicas of a zone."""
    return tuple(
        sorted(
            node.id
            for node in nodes
            if node.state == "normal"
            and node.tokens
            and (not zone.datacenters or node.datacenter in zone.datacenters)
        )
    )


def place(
    count: int,
    nodes: Mapping[NodeId, Node],
    current: Mapping[PartitionId, tuple[Placement, ...]],
) -> dict[PartitionId, tuple[Placement, ...]]:
    """`count` replicas of each partition on these nodes, with as little movement as possible.

    A new replica goes to the datacenter, then the rack, that has the fewest replicas of the
    partition; then to the node that holds least so far, the first one of equals. Without any node
    everything stays where it is: an empty filter must not wipe a zone.
    """
    if not nodes:
        return dict(current)
    kept = {
        partition: tuple(each for each in places if each.node in nodes)[:count]
        for partition, places in current.items()
    }
    load = dict.fromkeys(nodes, 0)
    for places in kept.values():
        for each in places:
            load[each.node] += 1
    planned = {}
    for partition, places in kept.items():
        for _ in range(count - len(places)):
            chosen = least_shared([nodes[each.node] for each in places], nodes, load)
            load[chosen] += 1
            places = (*places, Placement(chosen))
        planned[partition] = places
    return planned


def least_shared(
    held: Sequence[Node], nodes: Mapping[NodeId, Node], load: Mapping[NodeId, int]
) -> NodeId:
    """The best node for one more replica, beside the nodes that hold one already."""
    datacenters = Counter(node.datacenter for node in held)
    racks = Counter(rack_of(node) for node in held)
    free = [node for node in nodes.values() if node not in held]
    best = min(free, key=lambda n: (datacenters[n.datacenter], racks[rack_of(n)], load[n.id]))
    return best.id


def rack_of(node: Node) -> tuple[str, str]:
    """Racks with the same name in two datacenters are different racks."""
    return node.datacenter, node.rack
