"""What does a node hold, what comes and goes, what does it wait for, and what may be done?"""

from msgspec import Struct

from limosa.core import routing
from limosa.core.coordinator.members import held_by
from limosa.core.coordinator.run_starts import stopped
from limosa.core.coordinator.situating import rules, situation
from limosa.core.coordinator.view import ClusterView
from limosa.core.insight.progress import NO_COORDINATOR
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.runs import Run
from limosa.core.model.topology import Node
from limosa.core.planning.rebalance import node_loads


class NodeExplanation(Struct, frozen=True):
    node: NodeId
    state: str
    live: bool
    replicas: int
    bytes: int
    owned: int
    free_bytes: dict[str, int]
    load: float | None
    """Relative to the mean of all nodes that balancing uses; None: this node is not one of them."""
    coming: tuple[PartitionId, ...]
    """Partitions of which a replica is moving to the node; `going`: away from it."""
    going: tuple[PartitionId, ...]
    waits: tuple[str, ...]
    next: str
    may: tuple[str, ...]


def explain_node(view: ClusterView, name: NodeId) -> NodeExplanation:
    topology = view.agreed.topology
    node = topology.nodes[name]
    status = view.status(name)
    records = topology.partitions.values()
    here = [] if status is None else [each for of in status.replicas.values() for each in of]
    changing = [record for record in records if record.transition is not None]
    run = view.agreed.runs.get(view.agreed.rebalance.run)
    emptied = run if run is not None and name in run.drains else None
    return NodeExplanation(
        name,
        node.state,
        view.is_live(name),
        len(held_by(view, name)),
        sum(each.bytes for each in here),
        sum(r.owner is not None and r.owner.replica.node == name for r in records),
        {} if status is None else status.free_bytes,
        node_loads(situation(view), rules(view)).get(name),
        tuple(r.id for r in changing if any(e.node == name for e in routing.new_only(r))),
        tuple(r.id for r in changing if any(e.node == name for e in routing.old_only(r))),
        waits(view, node, emptied),
        what_next(view, node, emptied),
        what_may(view, node, emptied),
    )


def waits(view: ClusterView, node: Node, emptied: Run | None) -> tuple[str, ...]:
    out = [] if view.agreed.coordinator is not None else [NO_COORDINATOR]
    if node.state != "left" and not view.is_live(node.id):
        out.append(f"{node.id} is down: start or remove it")
    if emptied is not None:
        left = held_by(view, node.id)
        if left:
            out.append(f"{len(left)} replicas are still on it, for example of {left[0]}")
        why = stopped(view, emptied)
        if why:
            out.append(f"run {emptied.id}: {why}")
    return tuple(out)


def what_next(view: ClusterView, node: Node, emptied: Run | None) -> str:
    if emptied is not None:
        then = "it leaves for good" if emptied.decommission else "it stays, empty"
        return f"run {emptied.id} empties it; then {then}"
    return {
        "decommissioning": "it stays empty, and nothing is placed on it",
        "left": "nothing: it has left",
    }.get(node.state, "nothing is under way")


def what_may(view: ClusterView, node: Node, emptied: Run | None) -> tuple[str, ...]:
    name = node.id
    if node.state == "left":
        return ("stop it; its name can't be reused",)
    if emptied is not None:
        return (
            f"watch it: limosa rebalance status {emptied.id} --wait",
            f"let it stay: limosa rebalance cancel {emptied.id}",
        )
    if not view.is_live(name):
        return ("start it", f"remove it, if it holds nothing: limosa node remove {name}")
    if node.state == "decommissioning":
        return (
            f"let it take replicas again: limosa node undrain {name}",
            f"let it leave for good: limosa node decommission {name}",
        )
    return (
        f"give it its share of the load: limosa node add {name}",
        f"empty it: limosa node drain {name}",
        f"let it leave for good: limosa node decommission {name}",
    )
