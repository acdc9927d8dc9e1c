"""Is anything left behind? After healing, every operation has ended and nothing unnamed is held."""

from typing import TYPE_CHECKING

from limosa.core import routing

if TYPE_CHECKING:
    from limosa.simulation.hosts import SimulatedNode
    from limosa.simulation.world import World


def unfinished(world: "World") -> list[tuple[str, str]]:
    """Operations that have not ended: (what, partition)."""
    waiting: list[tuple[str, str]] = []
    agreed = world.agreed
    for name, record in agreed.topology.partitions.items():
        stage = routing.stage_of(record)
        if stage is not None:
            waiting.append((f"it is in {stage.name}", name))
        if record.owner is None:
            waiting.append(("it has no owner", name))
        elif not is_open(world, record.owner.replica.node, name):
            waiting.append(("its owner is not open", name))
        if len(record.replicas) != _wanted(world, record.zone):
            waiting.append(("its zone asks for another number of replicas", name))
        if len(record.in_sync) < len(record.replicas):
            waiting.append(("not all replicas are in sync", name))
        intent = agreed.intents[name]
        if intent.pending is not None or intent.planned is not None:
            waiting.append(("intent has something pending", name))
        if intent.cancel is not None:
            waiting.append(("a cancel is left", name))
        waiting += _busy(world, name)
    if agreed.rebalance.state != "idle":
        waiting.append((f"run {agreed.rebalance.run} is {agreed.rebalance.state}", ""))
    for request in agreed.requests.values():
        if request.state == "waiting":
            waiting.append((f"request {request.id}", request.partition))
    if world.mover.tasks:
        waiting.append((f"{len(world.mover.tasks)} copy tasks", ""))
    return waiting


def _wanted(world: "World", zone: str) -> int:
    """How many replicas each partition of a zone has, if there are enough nodes for them."""
    nodes = [node for node in world.agreed.topology.nodes.values() if node.state == "normal"]
    return min(world.agreed.topology.zones[zone].replica_count, len(nodes))


def running(world: "World") -> list["SimulatedNode"]:
    """All nodes but those that have left, or never joined."""
    return [node for node in world.nodes.values() if node.run]


def is_open(world: "World", node: str, partition: str) -> bool:
    """Does the owner on this node serve the partition?"""
    brain = world.nodes[node].brain
    owner = brain.owners.get(partition)
    return owner is not None and owner.open and owner.sealed is None


def _busy(world: "World", partition: str) -> list[tuple[str, str]]:
    for node in running(world):
        for (of, _), held in node.brain.held.items():
            if of == partition and (held.appending or held.permits):
                return [(f"{node.name} is busy", partition)]
            if of == partition and held.watermark < held.last:
                return [(f"{node.name} has rows that are not committed", partition)]
    return []


def leftovers(world: "World") -> list[tuple[str, str]]:
    """Data that the topology does not name, staged chunks, and replicas that differ."""
    problems: list[tuple[str, str]] = []
    known = world.agreed.topology.partitions
    for node in running(world):
        dropped = [partition for partition, _ in node.disk.live if partition not in known]
        problems += [(f"{node.name} still holds it, though it was dropped", p) for p in dropped]
    for name, record in world.agreed.topology.partitions.items():
        named = {(replica.node, replica.incarnation) for replica in record.replicas}
        contents = []
        for node in running(world):
            for (partition, incarnation), stored in node.disk.live.items():
                if partition != name:
                    continue
                if (node.name, incarnation) not in named:
                    problems.append((f"{node.name} still holds {incarnation}", name))
                rows = stored.contents()
                contents.append(
                    (node.name, {key: rows[key] for key in rows if rows[key].value is not None})
                )
            problems += [
                (f"{node.name} keeps staged chunks", name)
                for (partition, _), held in node.brain.held.items()
                if partition == name and held.chunks
            ]
        if len(contents) < len(named):
            problems.append(("a replica is missing", name))
        for node_name, rows in contents[1:]:
            if rows != contents[0][1]:
                differ = sorted(
                    key
                    for key in {**rows, **contents[0][1]}
                    if rows.get(key) != contents[0][1].get(key)
                )
                problems.append(
                    (f"{node_name} and {contents[0][0]} hold different rows: {differ}", name)
                )
    return problems
