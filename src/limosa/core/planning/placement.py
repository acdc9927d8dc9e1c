"""Where should replicas be? Where they are, as far as possible; else spread over distinct nodes."""

from collections.abc import Iterable, Mapping

from limosa.core.model.intent import Placement
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.topology import Node, Zone


def data_nodes(zone: Zone, nodes: Iterable[Node]) -> tuple[NodeId, ...]:
    """Who may hold replicas of a zone."""
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
    count: int, nodes: tuple[NodeId, ...], current: Mapping[PartitionId, tuple[Placement, ...]]
) -> dict[PartitionId, tuple[Placement, ...]]:
    """So many replicas of each partition on these nodes, with as little movement as possible.

    New places go to the nodes that hold least so far; ties are broken by the order of the nodes.
    Without any node everything stays where it is: an empty filter must not wipe a zone.
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
        free = [node for node in nodes if node not in {each.node for each in places}]
        for _ in range(count - len(places)):
            chosen = min(free, key=load.__getitem__)
            free.remove(chosen)
            load[chosen] += 1
            places = (*places, Placement(chosen))
        planned[partition] = places
    return planned
