"""What does somebody ask for, and may it be? Requests become intent, and intent transitions.

A request that contradicts the agreed state is refused, with the reason, and changes nothing else.
"""

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.view import View
from limosa.core.machines.catalogue import READ_NEW
from limosa.core.machines.machine import Side
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Change,
    Commit,
    Put,
    intent_key,
    lease_key,
    node_key,
    partition_key,
    request_key,
    zone_key,
)
from limosa.core.model.intent import (
    Assignment,
    Intent,
    Placement,
    Request,
    assign,
    cancelled,
    with_cancel,
)
from limosa.core.model.topology import Partition
from limosa.core.planning.placement import data_nodes, place
from limosa.errors import IllegalRequest


def answer(view: View, request: Request) -> Commit:
    """One commit that does what is asked for, or refuses it."""
    key = request_key(request.id)
    about_zone = request.kind == "set_replicas" or request.kind == "follow_nodes"
    try:
        act = serve_zone if about_zone else serve
        changes, words = act(view, request, view.agreed.revision_of(key))
        state = replace(request, state="done", answer=words)
    except IllegalRequest as refusal:
        changes, state = (), replace(request, state="refused", answer=str(refusal))
    keys = [key, partition_key(request.partition), intent_key(request.partition)]
    for each in request.placements:
        keys += [node_key(each.node), lease_key(each.node)]
    if about_zone:
        keys = [key, zone_key(request.zone), *map(intent_key, view.agreed.intents)]
        keys += [node_key(node) for node in view.agreed.topology.nodes]
    guards = {name: view.agreed.revision_of(name) for name in keys}
    guards[COORDINATOR_KEY] = view.coordinator
    why = f"{request.partition or request.zone}: {request.kind} {state.state}: {state.answer}"
    return Commit(guards, (*changes, Put(state)), why)


def serve_zone(view: View, request: Request, trigger: int) -> tuple[tuple[Change, ...], str]:
    """Another replica count or other data nodes: an intent for every partition, in one commit.

    (Another partition count is a repartition: an operation of its own.)
    """
    topology = view.agreed.topology
    zone = topology.zones.get(request.zone)
    if zone is None:
        raise IllegalRequest(f"there is no zone {request.zone}", "list the zones")
    if request.kind == "set_replicas":
        zone = replace(zone, replica_count=request.count)
    nodes = data_nodes(zone, topology.nodes.values())
    if not 1 <= zone.replica_count <= len(nodes):
        raise IllegalRequest(
            f"{zone.replica_count} replicas on {len(nodes)} data nodes",
            "ask for at least one, and at most one a node",
        )
    current = {
        name: intent.stable
        for name, intent in sorted(view.agreed.intents.items())
        if topology.partitions[name].zone == zone.id
    }
    changes: list[Change] = [Put(zone)]
    for name, places in place(zone.replica_count, nodes, current).items():
        new = Assignment("move", places, trigger=trigger)
        changes.append(Put(assign(view.agreed.intents[name], new)))
    return tuple(changes), "accepted"


def serve(view: View, request: Request, trigger: int) -> tuple[tuple[Change, ...], str]:
    record = view.agreed.topology.partitions.get(request.partition)
    intent = view.agreed.intents.get(request.partition)
    if record is None or intent is None:
        raise IllegalRequest(f"there is no partition {request.partition}", "list the partitions")
    if request.kind == "cancel":
        return cancel(record, intent, request)
    if request.kind == "reverse" or request.kind == "complete":
        return end_hold(record, request)
    assert request.kind != "set_replicas"
    assert request.kind != "follow_nodes"
    new = Assignment(
        request.kind, request.placements, request.renewed, request.hold_seconds, trigger
    )
    check(view, record, new, request.placements or intent.stable)
    after = assign(intent, new)
    return (Put(after),), "accepted" if after.change == trigger else "a newer request was served"


def check(view: View, record: Partition, new: Assignment, places: tuple[Placement, ...]) -> None:
    zone = view.agreed.topology.zones[record.zone]
    nodes = [each.node for each in places]
    if len(set(nodes)) != len(nodes):
        raise IllegalRequest("two replicas on one node", "name distinct nodes")
    if len(nodes) != zone.replica_count:
        raise IllegalRequest(
            f"{len(nodes)} replicas, but the zone {zone.id} asks for {zone.replica_count}",
            "name as many nodes as the zone has replicas",
        )
    for each in new.placements:
        check_place(view, each)
    for node in new.renewed:
        if node not in nodes:
            raise IllegalRequest(f"{node} holds no replica of it", "name a node that does")
        kept = [r for r in record.in_sync if r.node != node]
        if not kept:
            raise IllegalRequest(
                f"{node} holds the only good replica", "it can't be rebuilt from others"
            )
    if new.kind == "volume_move":
        before = {replica.node for replica in record.replicas}
        if before != set(nodes):
            raise IllegalRequest("a volume move stays on its nodes", "ask for a move instead")


def check_place(view: View, place: Placement) -> None:
    node = view.agreed.topology.nodes.get(place.node)
    if node is None or node.state == "left":
        raise IllegalRequest(f"{place.node} is no member", "list the nodes")
    if not node.tokens:
        raise IllegalRequest(f"{place.node} holds no data by choice", "choose another node")
    if place.volume not in node.volumes:
        raise IllegalRequest(
            f"{place.node} has no volume {place.volume!r}",
            f"it has {', '.join(map(repr, node.volumes))}",
        )
    if not view.is_live(place.node):
        raise IllegalRequest(f"{place.node} does not live", "start it, or choose another node")


def cancel(record: Partition, intent: Intent, request: Request) -> tuple[tuple[Change, ...], str]:
    """Stored only for the change that the caller saw; refused once the new side is read."""
    stage = routing.stage_of(record)
    after = with_cancel(intent, request.cancels)
    if stage is None:
        return (Put(cancelled(intent)),), "cancelled before it began"
    if stage.reads is Side.OLD and not stage.given_up:
        raise IllegalRequest(f"{record.id} is on its way back already ({stage.name})", "wait")
    if stage.reads is Side.NEW:
        raise IllegalRequest(
            f"{record.id} has switched already ({stage.name})",
            "it will complete; while it is held, `reverse` takes it back",
        )
    return (Put(after),), "will be cancelled"


def end_hold(record: Partition, request: Request) -> tuple[tuple[Change, ...], str]:
    change = record.transition
    stage = routing.stage_of(record)
    if change is None or stage is None or stage.name != READ_NEW:
        where = "in no transition" if stage is None else stage.name
        raise IllegalRequest(
            f"{record.id} is not held in {READ_NEW} (it is {where})",
            f"{request.kind} applies to a held move only",
        )
    if request.kind == "complete":
        return (Put(replace(record, transition=replace(change, released=True))),), "completing"
    if not stage.given_up:
        raise IllegalRequest("a volume move never goes back", "wait for its end, then move it back")
    reversing = replace(change, giving_up="reversed by request")
    return (Put(replace(record, transition=reversing)),), "reversing"
