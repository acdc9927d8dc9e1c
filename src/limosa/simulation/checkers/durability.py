"""Does every promise survive a crash? Checked when an owner commits, and when one is elected."""

from typing import TYPE_CHECKING

from limosa.core import routing
from limosa.core.effects import AdvanceWatermark
from limosa.core.model.keys import PartitionId, Position, epoch_of
from limosa.core.model.topology import Partition

if TYPE_CHECKING:
    from limosa.simulation.hosts import SimulatedNode
    from limosa.simulation.world import World


def unsafe_commit(world: "World", node: "SimulatedNode", effect: AdvanceWatermark) -> str:
    """An owner commits what enough replicas, and all that could be elected, hold durably."""
    owner = node.brain.owners.get(effect.partition)
    if owner is None or owner.held.replica.incarnation != effect.incarnation:
        return ""
    record = owner.record
    agreed = world.agreed.topology.partitions.get(record.id, record)
    for replica in dict.fromkeys((*routing.writers(record), *routing.electable(agreed))):
        kept = world.nodes[replica.node].disk.kept(record.id, replica.incarnation)
        if kept is not None and kept < effect.to and replica.node not in world.wiped:
            return f"{node.name} commits {effect.to}; {replica.node} holds {kept} durably"
    return ""


def unsafe_ack(world: "World", node: "SimulatedNode", at: Position) -> tuple[str, PartitionId]:
    """An acknowledged row is durable on as many replicas as the zone requires."""
    owners = [
        owner
        for owner in node.brain.owners.values()
        if owner.epoch == epoch_of(at) and owner.held.watermark >= at
    ]
    if len(owners) != 1 or world.wiped:
        return "", ""  # a position does not name its partition
    (owner,) = owners
    record = owner.record
    replicas = routing.readers(record)
    kept = [world.nodes[r.node].disk.kept(record.id, r.incarnation) or 0 for r in replicas]
    there = sum(each >= at for each in kept)
    if there >= owner.needed:
        return "", ""
    return f"{at} is acknowledged, and durable on {there} of {owner.needed} replicas", record.id


def unsafe_election(world: "World", before: Partition, after: Partition) -> str:
    """An elected replica has promised its epoch durably: it accepts no older owner's rows."""
    if before.owner is not None or after.owner is None or before.epoch != after.epoch:
        return ""
    replica = after.owner.replica
    promised = world.nodes[replica.node].disk.promised(after.id, replica.incarnation)
    if promised is None or promised >= after.epoch:
        return ""
    return f"{replica.node} owns epoch {after.epoch}, and has durably promised {promised}"


def unsafe_return(world: "World", before: Partition, after: Partition) -> str:
    """A replica that returns to the in-sync set holds everything that is committed, durably."""
    disks = {name: node.disk for name, node in world.nodes.items()}
    here = [disks[r.node].live.get((after.id, r.incarnation)) for r in routing.readers(before)]
    committed = max((stored.watermark for stored in here if stored is not None), default=0)
    for replica in routing.may_return(before):
        kept = disks[replica.node].kept(after.id, replica.incarnation)
        if replica in after.in_sync and kept is not None and kept < committed:
            return f"{replica.node} is in sync again at {kept}; {committed} is committed"
    return ""
