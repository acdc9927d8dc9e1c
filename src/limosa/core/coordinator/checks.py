"""May a replica be placed there? The conditions of every move, whoever asks for it."""

from collections.abc import Iterable

from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import intent_key, lease_key, node_key, partition_key, zone_key
from limosa.core.model.intent import Assignment, Placement
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.runs import PlannedMove, RunMove
from limosa.core.model.topology import Node, Partition
from limosa.errors import IllegalRequest

ROOM = 1.2
"""Space that a copy may need, relative to its source."""


def replaced(
    partition: PartitionId, places: tuple[Placement, ...], source: NodeId, target: Placement
) -> tuple[Placement, ...]:
    """The placements after one replica has moved from `source` to `target`."""
    nodes = [each.node for each in places]
    if source not in nodes:
        raise IllegalRequest(
            f"{source or 'no node'} holds no replica of {partition}",
            f"name one of {', '.join(nodes)}",
        )
    if target.node in [node for node in nodes if node != source]:
        raise IllegalRequest(
            f"{target.node} holds a replica of {partition} already", "choose another node"
        )
    return tuple(target if each.node == source else each for each in places)


def check(
    view: ClusterView, record: Partition, new: Assignment, places: tuple[Placement, ...]
) -> None:
    zone = view.agreed.topology.zones[record.zone]
    nodes = [each.node for each in places]
    twice = [node for node in nodes if nodes.count(node) > 1]
    if twice:
        raise IllegalRequest(f"two replicas on one node, {twice[0]}", "name distinct nodes")
    if len(nodes) not in (zone.replica_count, replicas_left(view, record, new)):
        raise IllegalRequest(
            f"{len(nodes)} replicas, but the zone {zone.id} asks for {zone.replica_count}",
            "name as many nodes as the zone has replicas",
        )
    here = [Placement(replica.node, replica.volume) for replica in record.replicas]
    for each in new.placements:
        # A rebuild does not depend on the replicas that stay.
        if new.kind != "rebuild" or each not in here:
            check_place(view, each, each in here)
    for node in new.renewed:
        if node not in nodes:
            raise IllegalRequest(f"{node} holds no replica of {record.id}", "name a node that does")
        kept = [r for r in record.in_sync if r.node != node]
        if not kept:
            raise IllegalRequest(
                f"{node} holds the only in-sync replica", "it can't be rebuilt from others"
            )
    for each in places:
        if each not in here or each.node in new.renewed:
            check_volume(view, each)
            problem = no_room(view, record, each)
            if problem:
                raise IllegalRequest(problem, "choose another node or volume, or make room")
    if new.kind == "volume_move":
        before = {replica.node for replica in record.replicas}
        if before != set(nodes):
            raise IllegalRequest("a volume move can't change nodes", "ask for a move instead")


def replicas_left(view: ClusterView, record: Partition, new: Assignment) -> int:
    """How many replicas the partition has when `new` begins. The number differs from the zone's if
    a change of the replica count was given up."""
    pending = view.agreed.intents[record.id].pending
    waits = pending is not None and pending.trigger != new.trigger
    places = pending.placements if pending is not None and waits else ()
    return len(places or record.replicas)


def member(view: ClusterView, name: NodeId) -> Node:
    node = view.agreed.topology.nodes.get(name)
    if node is None or node.state == "left":
        raise IllegalRequest(f"{name} is not a member", "list them with `limosa nodes`")
    return node


def check_place(view: ClusterView, place: Placement, is_there: bool) -> None:
    """A replica that is there already may stay on a node that takes no new replicas."""
    node = member(view, place.node)
    if not node.tokens:
        raise IllegalRequest(f"{place.node} was started with --no-data", "choose another node")
    if node.state != "normal" and not is_there:
        raise IllegalRequest(
            f"{place.node} is {node.state}, and gets no new replicas", "choose another node"
        )
    if place.volume not in node.volumes:
        raise IllegalRequest(
            f"{place.node} has no volume {place.volume!r}",
            f"it has {', '.join(map(repr, node.volumes))}",
        )
    if not view.is_live(place.node):
        raise IllegalRequest(f"{place.node} is down", "start it, or choose another node")


def check_volume(view: ClusterView, place: Placement) -> None:
    """The node's own word counts: it may have lost the volume since it joined."""
    volumes = view.working_volumes(place.node)
    if place.volume not in volumes:
        raise IllegalRequest(
            f"{place.node} can't use its volume {place.volume!r}",
            f"choose one that works: {', '.join(map(repr, volumes)) or 'there is none'}",
        )


def place_reads(partition: PartitionId, places: Iterable[Placement]) -> list[str]:
    """The keys that decide whether a partition's replicas may be at these places."""
    keys = [partition_key(partition), intent_key(partition)]
    return keys + [key(each.node) for each in places for key in (node_key, lease_key)]


def move_reads(view: ClusterView, move: PlannedMove | RunMove) -> list[str]:
    """The keys that decide whether a run may make this move."""
    intent = view.agreed.intents.get(move.partition)
    places = (*(() if intent is None else intent.stable), move.target)
    record = view.agreed.topology.partitions.get(move.partition)
    zone = [] if record is None else [zone_key(record.zone)]
    return place_reads(move.partition, places) + zone


def no_room(view: ClusterView, record: Partition, place: Placement) -> str:
    """Why the replica does not fit there; empty if it fits, or if the sizes are unknown."""
    free, size = free_bytes(view, place), bytes_of(view, record)
    needed = int(size * ROOM) + view.settings.free_bytes_kept
    if free is None or not size or free >= needed:
        return ""
    return (
        f"{place.node} has {mebibytes(free)} free{on_volume(place)}, and {record.id} needs "
        f"{mebibytes(needed)}: it takes {mebibytes(size)}, and some must stay free"
    )


def no_room_for_all(view: ClusterView, coming: dict[Placement, int]) -> str:
    """Why all incoming replicas together do not fit on a volume; empty if they fit."""
    for place, size in sorted(coming.items()):
        free = free_bytes(view, place)
        needed = int(size * ROOM) + view.settings.free_bytes_kept
        if free is not None and size and free < needed:
            return (
                f"{place.node} has {mebibytes(free)} free{on_volume(place)}, and all that is to "
                f"come needs {mebibytes(needed)}"
            )
    return ""


def free_bytes(view: ClusterView, place: Placement) -> int | None:
    status = view.status(place.node)
    return None if status is None else status.free_bytes.get(place.volume)


def bytes_of(view: ClusterView, record: Partition) -> int:
    owner = view.owner_status(record)
    return 0 if owner is None else owner.bytes


def on_volume(place: Placement) -> str:
    return f" on its volume {place.volume}" if place.volume else ""


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
