"""How does a partition get as many replicas as its zone asks for, also after a failed attempt?

A request sets the replica count of a zone, and an intent for every partition. If a partition gives
its change up, the coordinator asks for the change again after a while; until then the partition
can be moved and rebuilt as before.
"""

from collections.abc import Iterable

from limosa.core import routing
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import COORDINATOR_KEY, Commit, Put, intent_key, request_key
from limosa.core.model.intent import Placement
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.requests import MovePartition, Request
from limosa.core.model.topology import Partition, Zone
from limosa.core.planning.placement import data_nodes, place
from limosa.core.planning.spread import on_volumes


def places(
    view: ClusterView, zone: Zone, nodes: Iterable[NodeId]
) -> dict[PartitionId, tuple[Placement, ...]]:
    """Where the replicas of the zone's partitions should be, with as little movement as possible.

    Which replicas are in sync is a preference, so the commit is not guarded by the records.
    """
    topology = view.agreed.topology
    members = {node: topology.nodes[node] for node in nodes}
    current = {
        name: intent.stable
        for name, intent in sorted(view.agreed.intents.items())
        if topology.partitions[name].zone == zone.id
    }
    ranked = {
        name: kept_first(view, topology.partitions[name], stable, zone.replica_count)
        for name, stable in current.items()
    }
    planned = place(zone.replica_count, members, ranked)
    chosen = on_volumes(planned, view.with_working_volumes())
    return {
        name: tuple(
            each if each in current[name] else new
            for each, new in zip(planned[name], chosen[name], strict=True)
        )
        for name in planned
    }


def kept_first(
    view: ClusterView, record: Partition, stable: tuple[Placement, ...], count: int
) -> tuple[Placement, ...]:
    """The places with those first that are kept if there are too many: the owner, then replicas
    that are in sync, then replicas on live nodes. The order is kept otherwise."""
    owner = () if record.owner is None else (record.owner.replica.node,)
    in_sync = [replica.node for replica in routing.electable(record)]

    def rank(place: Placement) -> tuple[bool, bool, bool]:
        node = place.node
        return node not in owner, node not in in_sync, not view.is_live(node)

    kept = sorted(stable, key=rank)[:count]
    return tuple(sorted(stable, key=lambda place: place not in kept))


def ask_again(view: ClusterView, record: Partition) -> Commit | str | None:
    """Ask for the replica count of the zone, if no change towards it is under way.

    A sentence says what the attempt waits for; None: the count is right.
    """
    zone = view.agreed.topology.zones[record.zone]
    count, wanted = len(record.replicas), zone.replica_count
    if count == wanted:
        return None
    why = f"it has {count} replicas, and its zone asks for {wanted}"
    intended = view.agreed.revision_of(intent_key(record.id))
    since = view.memory.seen_since(record.id, ("resize", intended), view.now)
    attempt = int((view.now - since) / view.settings.resize_seconds)
    if not attempt:
        return f"{why}: another attempt follows"
    name = f"resize-{record.id}-{intended}-{attempt}"
    asked = view.agreed.requests.get(name)
    if asked is not None:
        return f"{why}: {asked.answer or 'the request waits'}"
    nodes = data_nodes(zone, view.agreed.topology.nodes.values())
    here = [replica.node for replica in record.replicas]
    usable = [node for node in nodes if view.is_live(node) or node in here]
    if len(usable) < wanted:
        return f"{why}: {len(usable)} data nodes are alive"
    chosen = places(view, zone, usable)[record.id]
    down = [each.node for each in chosen if not view.is_live(each.node)]
    if down:
        return f"{why}: {down[0]} is down"
    request = Request(name, MovePartition(record.id, chosen), asked=view.wall)
    guards = {request_key(name): 0, COORDINATOR_KEY: view.coordinator}
    return Commit(guards, (Put(request),), f"{record.id}: {why}")
