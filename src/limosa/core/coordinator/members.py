"""May this node join or leave? A node that has left keeps its row for ever.

The coordinator checks joins, so that two nodes can't join under one name. The commit that changes
the members also enables the features that every member supports.
"""

from collections.abc import Iterable
from typing import cast

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import checks
from limosa.core.coordinator.answers import RequestAnswer, check_name
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.catalogue import NODE
from limosa.core.model.changes import (
    CLUSTER_KEY,
    FEATURES_KEY,
    REBALANCE_KEY,
    Change,
    Put,
    Topology,
    intent_key,
    lease_key,
    node_key,
    partition_key,
    request_key,
    zone_key,
)
from limosa.core.model.intent import Intent
from limosa.core.model.keys import NodeId
from limosa.core.model.requests import JoinCluster, LedToNodes, RemoveNode, ReplaceNode, Request
from limosa.core.model.topology import Features, Node, NodeState
from limosa.core.planning.placement import data_nodes
from limosa.errors import IllegalRequest


def after(node: Node, *events: str, state: NodeState = "none") -> Node:
    """The node after these events of its life, if its machine allows them in this order."""
    for event in events:
        state = cast(NodeState, NODE.after(state, event))
    return replace(node, state=state)


def enabled(topology: Topology, *nodes: Node) -> Features:
    """The features that every member supports once these nodes are so; enabled features stay."""
    members = topology.nodes | {node.id: node for node in nodes}
    supported = [set(each.features) for each in members.values() if each.state != "left"]
    common = set.intersection(*supported) if supported else set()
    return Features(tuple(sorted(common | set(topology.features.enabled))))


def missing_features(topology: Topology, node: Node) -> str:
    """The enabled features that the node does not support, as a list for people."""
    return ", ".join(name for name in topology.features.enabled if name not in node.features)


def join(view: ClusterView, wish: JoinCluster, request: Request) -> RequestAnswer:
    node = wish.node
    topology = view.agreed.topology
    check_cluster(topology, wish.cluster, node)
    check_identity(topology.nodes.values(), node)
    check_alone(view, request, node)
    missing = missing_features(topology, node)
    if missing:
        why = f"{node.id} does not support what this cluster uses: {missing}"
        advice = "upgrade it, wipe its directory and join under a new name"
        rejected = after(node, "be rejected")
        return RequestAnswer((Put(rejected),), f"{why} ({advice})", state="refused")
    returns = node.id in topology.nodes
    member = after(node, "replace" if returns else "join", "succeed")
    changes = (Put(member), Put(enabled(topology, member)))
    return RequestAnswer(changes, "joined", LedToNodes((node.id,)))


def join_reads(view: ClusterView, wish: JoinCluster) -> list[str]:
    name = wish.node.id
    keys = [CLUSTER_KEY, FEATURES_KEY, node_key(name), *map(node_key, view.agreed.topology.nodes)]
    return keys + [request_key(other.id) for other in joins_of(view, name)]


def joins_of(view: ClusterView, node: NodeId) -> list[Request]:
    """All waiting requests to join under this name, the oldest first."""
    same = [
        each
        for each in view.waiting()
        if isinstance(each.what, JoinCluster) and each.what.node.id == node
    ]
    return sorted(same, key=lambda each: (view.agreed.revision_of(request_key(each.id)), each.id))


def check_cluster(topology: Topology, name: str, node: Node) -> None:
    cluster = topology.cluster
    if cluster is None:
        raise IllegalRequest("this metastore belongs to no cluster", "found one first")
    if cluster.name != name:
        raise IllegalRequest(
            f"this is the cluster {cluster.name}, not {name}", "look at the name and the metastore"
        )
    if cluster.machine and cluster.machine != node.machine:
        raise IllegalRequest(
            f"{node.id} is on another machine, and this cluster keeps its agreed state in a file, "
            "so all nodes must be on one machine",
            "start all nodes on the machine of the metastore's file",
        )


def check_identity(nodes: Iterable[Node], node: Node) -> None:
    """A name and a host id belong together, until an operator lets another directory have the
    name."""
    check_name("node", node.id)
    if not node.host:
        raise IllegalRequest(f"{node.id} has no host id", "make one, and keep it in its directory")
    for known in nodes:
        if known.id != node.id and known.host != node.host:
            continue
        if known.state == "left":
            raise IllegalRequest(
                f"{known.id} was removed", "wipe its directory and join under a new name"
            )
        if known.id != node.id:
            raise IllegalRequest(
                f"this directory belongs to {known.id}", "give every node its own directory"
            )
        if known.host == node.host:
            raise IllegalRequest(f"{node.id} is already a member", "start it without joining")
        if known.host:
            raise IllegalRequest(
                f"the name {node.id} is taken, by a node with another directory",
                f"start it from that directory; if it is lost, run `limosa node replace {node.id}`,"
                " or join under another name",
            )


def check_alone(view: ClusterView, request: Request, node: Node) -> None:
    first = (*joins_of(view, node.id), request)[0]
    if first.id != request.id:
        raise IllegalRequest(
            f"{node.id} already asks to join, by request {first.id}", "wait for its answer"
        )


def remove(view: ClusterView, wish: RemoveNode) -> RequestAnswer:
    """A stopped node that holds nothing leaves for good; its row stays."""
    topology = view.agreed.topology
    node = topology.nodes.get(wish.node)
    if node is None:
        raise IllegalRequest(f"there is no node {wish.node}", "list them with `limosa nodes`")
    if node.state == "left":
        raise IllegalRequest(f"{node.id} has left already", "nothing to do")
    if view.is_live(node.id):
        raise IllegalRequest(f"{node.id} is alive", "stop it first, or drain it")
    run = view.agreed.runs.get(view.agreed.rebalance.run)
    if run is not None and node.id in run.drains:
        raise IllegalRequest(
            f"{node.id} is being drained by {run.id}", "wait for its end, or cancel that run"
        )
    others = [each for each in topology.nodes.values() if each.id != node.id]
    if all(each.state == "left" for each in others):
        raise IllegalRequest(f"{node.id} is the last node", "let another one join first")
    holds = held_by(view, node.id)
    if holds:
        raise IllegalRequest(
            f"{node.id} holds or will hold {len(holds)} replicas, for example of {holds[0]}",
            "move them to other nodes first",
        )
    check_enough_stay(view, (node.id,))
    gone = after(node, "be removed", "succeed", state=node.state)
    changes: tuple[Change, ...] = (Put(gone), Put(enabled(topology, gone)))
    return RequestAnswer(changes, "removed", LedToNodes((node.id,)))


def check_enough_stay(view: ClusterView, leaving: tuple[NodeId, ...]) -> None:
    topology = view.agreed.topology
    others = [node for node in topology.nodes.values() if node.id not in leaving]
    if not any(node.tokens and node.state == "normal" for node in others):
        raise IllegalRequest(
            f"no data node is left without {', '.join(leaving)}", "let another one join first"
        )
    for zone in topology.zones.values():
        stay = data_nodes(zone, others)
        fewer = len(stay) < len(data_nodes(zone, topology.nodes.values()))
        if fewer and len(stay) < zone.replica_count:
            raise IllegalRequest(
                f"the zone {zone.id} has {zone.replica_count} replicas of everything, and "
                f"{len(stay)} of its data nodes stay",
                "let others join first, or ask for fewer replicas",
            )


def replace_disk(view: ClusterView, wish: ReplaceNode) -> RequestAnswer:
    """A stopped node's directory is lost. From now on, an empty directory may join under its name;
    the former directory can't be used any more."""
    node = checks.member(view, wish.node)
    if view.is_live(node.id):
        raise IllegalRequest(f"{node.id} is alive", "stop it first")
    if node.state != "normal":
        raise IllegalRequest(f"{node.id} is {node.state}", "wait for the end of that")
    for record in view.agreed.topology.partitions.values():
        complete = routing.candidates(record)
        if complete and all(replica.node == node.id for replica in complete):
            raise IllegalRequest(
                f"{node.id} holds the only replica of {record.id} that has all rows",
                "start it from its directory, or from a backup of it; or drop the table",
            )
    answer = f"an empty directory may join as {node.id}"
    return RequestAnswer((Put(replace(node, host="")),), answer, LedToNodes((node.id,)))


def replace_reads(view: ClusterView, wish: ReplaceNode) -> list[str]:
    """The in-sync sets of all partitions that the node may hold alone."""
    keys = [node_key(wish.node), lease_key(wish.node)]
    return keys + [partition_key(partition) for partition in held_by(view, wish.node)]


def remove_reads(view: ClusterView, wish: RemoveNode) -> list[str]:
    """A new replica needs an intent first, so intents tell which nodes will hold anything."""
    keys = [node_key(wish.node), lease_key(wish.node), FEATURES_KEY, REBALANCE_KEY]
    keys += map(node_key, view.agreed.topology.nodes)
    keys += map(zone_key, view.agreed.topology.zones)
    return keys + [intent_key(partition) for partition in view.agreed.intents]


def held_by(view: ClusterView, node: NodeId) -> list[str]:
    """The partitions that a node holds, or is meant to hold, a replica of."""
    records = view.agreed.topology.partitions.values()
    held = {
        record.id
        for record in records
        if any(replica.node == node for replica in routing.everywhere(record))
    }
    meant = {each.partition for each in view.agreed.intents.values() if names(each, node)}
    return sorted(held | meant)


def names(intent: Intent, node: NodeId) -> bool:
    later = [each.placements for each in (intent.pending, intent.planned) if each is not None]
    return any(place.node == node for places in (intent.stable, *later) for place in places)
