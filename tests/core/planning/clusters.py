"""Clusters to plan for, and what becomes of them when a plan is carried out."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from limosa.core.model.keys import WHOLE
from limosa.core.model.topology import Grant, Node, Partition, Replica, Zone
from limosa.core.planning.load import Load
from limosa.core.planning.plan import Plan
from limosa.core.planning.situation import Situation

ZONE = "z"


def nodes(*names: str, racks: str = "", volumes: tuple[str, ...] = ("",)) -> dict[str, Node]:
    """Nodes by name, in racks of one letter each."""
    where = racks or "r" * len(names)
    pairs = zip(names, where, strict=True)
    return {name: Node(name, rack=rack, volumes=volumes) for name, rack in pairs}


def partition(name: str, *held: str, zone: str = ZONE, volume: str = "") -> Partition:
    """On these nodes, owned by the first of them."""
    replicas = tuple(Replica(node, "first", volume) for node in held)
    return Partition(name, zone, WHOLE, replicas, replicas, 1, Grant(replicas[0], 1))


def situation(
    members: Mapping[str, Node],
    partitions: Iterable[Partition],
    loads: Mapping[str, Load] | None = None,
    zones: Iterable[Zone] = (Zone(ZONE),),
    down: Iterable[str] = (),
    draining: Iterable[str] = (),
    free_bytes: Mapping[str, Mapping[str, int]] | None = None,
    fixed: Mapping[str, str] | None = None,
) -> Situation:
    return Situation(
        members,
        {zone.id: zone for zone in zones},
        {record.id: record for record in partitions},
        frozenset(members) - set(down),
        loads or {},
        free_bytes or {},
        tuple(draining),
        fixed or {},
    )


def even(members: Mapping[str, Node], each: int, size: int = 1_000) -> Situation:
    """So many partitions of one size on each node, a replica each."""
    held = {f"{name}-{at:03d}": name for at in range(each) for name in members}
    records = [partition(name, node) for name, node in held.items()]
    return situation(members, records, dict.fromkeys(held, Load(size)), [Zone(ZONE, 1)])


def with_node(before: Situation, node: Node) -> Situation:
    return replace(before, nodes={**before.nodes, node.id: node}, live={*before.live, node.id})


def carried_out(before: Situation, plan: Plan) -> Situation:
    """The same moment, after all moves: each takes the place of one replica, and what it owns."""
    partitions = dict(before.partitions)
    free = {node: dict(volumes) for node, volumes in before.free_bytes.items()}
    for move in plan.moves:
        record = partitions[move.partition]
        (old,) = (each for each in record.replicas if each.node == move.source)
        new = Replica(move.target.node, "moved", move.target.volume)
        assert move.stays or new.node not in {each.node for each in record.replicas}
        replicas = tuple(new if each == old else each for each in record.replicas)
        assert record.owner is not None
        owner = new if record.owner.replica == old else record.owner.replica
        partitions[record.id] = replace(
            record, replicas=replicas, in_sync=replicas, owner=Grant(owner, 1)
        )
        for replica, size in ((old, move.bytes), (new, -move.bytes)):
            volumes = free.get(replica.node, {})
            if replica.volume in volumes:
                volumes[replica.volume] += size
    return replace(before, partitions=partitions, free_bytes=free)


def held_by(found: Situation, node: str) -> list[str]:
    return sorted(
        record.id
        for record in found.partitions.values()
        if node in {replica.node for replica in record.replicas}
    )


def counts(found: Situation) -> dict[str, int]:
    return {name: len(held_by(found, name)) for name in sorted(found.nodes)}


def racks_of(found: Situation, name: str) -> Counter[str]:
    """By datacenter and rack."""
    on = [found.nodes[each.node] for each in found.partitions[name].replicas]
    return Counter(node.datacenter + node.rack for node in on)


def bytes_on(found: Situation) -> dict[str, int]:
    total = dict.fromkeys(sorted(found.nodes), 0)
    for record in found.partitions.values():
        for replica in record.replicas:
            total[replica.node] += found.loads.get(record.id, Load()).bytes
    return total


def made(plan: object) -> Plan:
    """There is a plan."""
    assert isinstance(plan, Plan), str(plan)
    return plan
