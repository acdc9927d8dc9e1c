"""Where do the partitions of a new zone go? Replicas, owners and volumes are spread evenly."""

from collections import Counter
from collections.abc import Iterable, Mapping

from limosa.core.model.intent import Placement
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.topology import Node, Partition
from limosa.core.planning.placement import place


def spread(
    count: int,
    nodes: Mapping[NodeId, Node],
    new: Iterable[PartitionId],
    old: Iterable[Partition],
) -> dict[PartitionId, tuple[Placement, ...]]:
    """`count` replicas of each new partition on these nodes.

    Datacenters and racks come first, then the balance of the zone; among equals, the node with
    fewer replicas of other zones is chosen, so that many small tables are spread, too.
    """
    held: Counter[NodeId] = Counter()
    owned: Counter[NodeId] = Counter()
    for record in old:
        held.update(replica.node for replica in record.replicas)
        owned.update(replica.node for replica in record.replicas[:1])
    order = sorted(nodes, key=lambda node: (held[node], node))
    planned = place(count, {node: nodes[node] for node in order}, dict.fromkeys(new, ()))
    return on_volumes(take_turns(planned, owned), nodes)


def take_turns(
    planned: Mapping[PartitionId, tuple[Placement, ...]], owned: Mapping[NodeId, int]
) -> dict[PartitionId, tuple[Placement, ...]]:
    """The first replica tends to become the owner, and the second one its successor: nodes take
    turns at both."""
    first: Counter[NodeId] = Counter()
    second: Counter[tuple[NodeId, NodeId]] = Counter()
    turns = {}
    for partition, places in planned.items():
        ranked = sorted(places, key=lambda each: (first[each.node], owned.get(each.node, 0)))
        leader = ranked[0]
        rest = sorted(ranked[1:], key=lambda each: second[leader.node, each.node])
        first[leader.node] += 1
        second.update((leader.node, each.node) for each in rest[:1])
        turns[partition] = (leader, *rest)
    return turns


def on_volumes(
    planned: Mapping[PartitionId, tuple[Placement, ...]], nodes: Mapping[NodeId, Node]
) -> dict[PartitionId, tuple[Placement, ...]]:
    """The replicas of a node use its volumes in turn."""
    used: Counter[NodeId] = Counter()
    placed = {}
    for partition, places in planned.items():
        chosen = []
        for each in places:
            volumes = nodes[each.node].volumes
            chosen.append(Placement(each.node, volumes[used[each.node] % len(volumes)]))
            used[each.node] += 1
        placed[partition] = tuple(chosen)
    return placed
