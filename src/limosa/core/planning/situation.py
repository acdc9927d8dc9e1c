"""What is a plan computed from? The agreed records, measured loads, and the operator's wishes."""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from limosa.core.model.keys import NodeId, PartitionId, ZoneId
from limosa.core.model.topology import Node, Partition, Zone
from limosa.core.planning.load import Load, Weights


class Situation(Struct, frozen=True):
    """One moment of a cluster."""

    nodes: Mapping[NodeId, Node]
    zones: Mapping[ZoneId, Zone]
    partitions: Mapping[PartitionId, Partition]
    live: AbstractSet[NodeId]
    loads: Mapping[PartitionId, Load] = {}
    free_bytes: Mapping[NodeId, Mapping[str, int]] = {}
    """By volume; a volume that is missing here has room for everything."""
    draining: Collection[NodeId] = ()
    """Nodes to empty."""
    fixed: Mapping[PartitionId, str] = {}
    """Partitions that can't be moved for reasons that their records do not show, and these
    reasons."""

    def why_fixed(self, record: Partition) -> str:
        """Why a partition can't be moved now; empty: it can."""
        if record.id in self.fixed:
            return self.fixed[record.id]
        if record.transition is not None:
            return f"it is changing already: {record.transition.kind}, {record.transition.stage}"
        for replica in record.replicas:
            if replica.node not in self.live:
                return f"{replica.node}, which holds a replica of it, is down"
        if record.owner is None:
            return "it has no owner at the moment"
        if len(record.in_sync) < len(record.replicas):
            return "not all of its replicas are in sync"
        return ""


class Rules(Struct, frozen=True):
    """What is worth a move, and how much space must stay free."""

    tolerance: float = 0.02
    """Nodes whose loads differ by less than this part of a fair share are even."""
    worth: float = 0.1
    """The difference between two nodes that is worth a move where racks, zones or large partitions
    prevent fair shares."""
    weights: Weights = Weights()
    room: float = 1.2
    """Space that a replica needs at its target, relative to its size."""
    free_bytes_kept: int = 0
    """Space that must stay free on the volume besides."""
