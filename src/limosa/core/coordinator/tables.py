"""May this table be created or dropped, and which records result? One commit writes them all."""

from msgspec.structs import replace

from limosa.core.coordinator.answers import RequestAnswer, check_name
from limosa.core.coordinator.limits import check_numbers, check_room
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import (
    Change,
    Put,
    Remove,
    intent_key,
    layout_key,
    lease_key,
    node_key,
    partition_key,
    table_key,
    zone_key,
)
from limosa.core.model.intent import Intent, Placement
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, Revision, ZoneId
from limosa.core.model.requests import CreateTable, DropTable, LedToTable
from limosa.core.model.topology import Layout, Partition, Replica, Zone
from limosa.core.planning.placement import data_nodes
from limosa.core.planning.spread import spread
from limosa.errors import IllegalRequest


def create(view: ClusterView, wish: CreateTable, trigger: Revision) -> RequestAnswer:
    """A table in a zone that exists, or with a zone of its own."""
    table = wish.table
    check_name("table", table.name)
    check_name("zone", table.zone)
    tables = view.agreed.topology.tables.values()
    if any(other.name == table.name for other in tables):
        raise IllegalRequest(
            f"there is a table {table.name} already", "choose another name, or drop it first"
        )
    if any(other.id == table.id for other in tables):
        raise IllegalRequest(f"the table id {table.id} is taken", "use a new id")
    zone = view.agreed.topology.zones.get(table.zone)
    made = LedToTable(table.name, table.id)
    if zone is None:
        return RequestAnswer(
            (*new_zone(view, wish, table.zone, trigger), Put(table)), "created", made
        )
    check_fits(view, wish, zone)
    # The zone is written again, so that whoever counted its tables meanwhile has to count anew.
    return RequestAnswer((Put(zone), Put(table)), f"created in zone {zone.id}", made)


def create_reads(view: ClusterView, wish: CreateTable) -> list[str]:
    table = wish.table
    nodes = view.agreed.topology.nodes
    keys = [table_key(table.name), zone_key(table.zone), layout_key(table.zone)]
    return keys + [key(node) for node in nodes for key in (node_key, lease_key)]


def check_fits(view: ClusterView, wish: CreateTable, zone: Zone) -> None:
    """The zone decides what the wish leaves open; numbers that contradict the zone are refused."""
    has = sum(record.zone == zone.id for record in view.agreed.topology.partitions.values())
    for what, asked, there in (
        ("partitions", wish.partitions, has),
        ("replicas", wish.count, zone.replica_count),
        ("replicas in sync at least", wish.min_in_sync, zone.needed_in_sync()),
    ):
        if asked and asked != there:
            raise IllegalRequest(
                f"{asked} {what}, but the zone {zone.id} has {there}",
                "leave it open, or put the table into another zone",
            )


def new_zone(
    view: ClusterView, wish: CreateTable, name: ZoneId, trigger: Revision
) -> tuple[Change, ...]:
    """The records of a new zone: zone, layout, and a partition and an intent for each range."""
    check_numbers(wish)
    topology = view.agreed.topology
    zone = Zone(name, wish.count, wish.min_in_sync)
    nodes = {node: topology.nodes[node] for node in data_nodes(zone, topology.nodes.values())}
    live = {
        name: replace(node, volumes=volumes)
        for name, node in nodes.items()
        if view.is_live(name) and (volumes := view.working_volumes(name))
    }
    if wish.count > len(live):
        raise IllegalRequest(
            f"{wish.count} replicas, but {len(live)} data nodes are alive",
            "start more nodes, or ask for fewer replicas",
        )
    check_room(view, wish, live)
    names = tuple(f"{name}-{index:04d}" for index in range(wish.partitions))
    # A version that no earlier zone of this name had: what was routed by one is sent back.
    layout = Layout(name, trigger, even_starts(wish.partitions), names)
    places = spread(wish.count, live, names, topology.partitions.values())
    changes: list[Change] = [Put(zone), Put(layout)]
    for index, partition in enumerate(names):
        replicas = made_by(trigger, places[partition])
        record = Partition(partition, name, layout.range_of(index), replicas, replicas)
        changes += [Put(record), Put(Intent(partition, places[partition], change=trigger))]
    return tuple(changes)


def even_starts(partitions: int) -> tuple[int, ...]:
    width = TOKEN_END - TOKEN_MIN
    return tuple(TOKEN_MIN + index * width // partitions for index in range(partitions))


def made_by(trigger: Revision, places: tuple[Placement, ...]) -> tuple[Replica, ...]:
    """Incarnations named by the request's revision, which is unique."""
    return tuple(Replica(each.node, f"c{trigger}", each.volume) for each in places)


def drop(view: ClusterView, wish: DropTable) -> RequestAnswer:
    """Dropping the last table of a zone drops the zone; nodes discard replicas that no record
    names."""
    topology = view.agreed.topology
    table = topology.tables.get(wish.name)
    if table is None:
        raise IllegalRequest(f"there is no table {wish.name}", "list the tables")
    if table.id != wish.table_id:
        raise IllegalRequest(
            f"{wish.name} was dropped and created again meanwhile",
            "look at the table again",
        )
    dropped = LedToTable(table.name, table.id)
    gone: list[Change] = [Remove(table_key(table.name))]
    if sum(other.zone == table.zone for other in topology.tables.values()) > 1:
        # Written again, so that of two that are dropped at once one sees that it is the last.
        return RequestAnswer((*gone, Put(topology.zones[table.zone])), "dropped", dropped)
    for record in in_zone(view, table.zone):
        if record.transition is not None:
            raise IllegalRequest(
                f"{record.id} of the table's zone is in a {record.transition.kind}",
                "wait for its end, or cancel it",
            )
        gone += [Remove(partition_key(record.id)), Remove(intent_key(record.id))]
    gone += [Remove(layout_key(table.zone)), Remove(zone_key(table.zone))]
    return RequestAnswer(tuple(gone), f"dropped with its zone {table.zone}", dropped)


def drop_reads(view: ClusterView, wish: DropTable) -> list[str]:
    keys = [table_key(wish.name)]
    table = view.agreed.topology.tables.get(wish.name)
    if table is not None:
        keys += [zone_key(table.zone), layout_key(table.zone)]
        for record in in_zone(view, table.zone):
            keys += [partition_key(record.id), intent_key(record.id)]
    return keys


def in_zone(view: ClusterView, zone: ZoneId) -> list[Partition]:
    return [record for record in view.agreed.topology.partitions.values() if record.zone == zone]
