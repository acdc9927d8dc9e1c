"""What does a situation look like in numbers? Counted once; the numbers do not change.

Nodes, zones and partitions are numbered in the order of their names, volumes in the order of their
nodes. A replica is its partition's number times `width`, plus its place in the record.
"""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from limosa.core.model.keys import NodeId
from limosa.core.model.topology import Partition, Replica
from limosa.core.planning.load import Load, MeasuredLoads, Whole, weigh
from limosa.core.planning.placement import data_nodes, rack_of
from limosa.core.planning.situation import Rules, Situation

Mask = NDArray[np.bool_]

NOBODY = -1
PLENTY = 1 << 62
UNMEASURED = Load()


class NodeCensus:
    """The nodes, and which zones they may hold data of."""

    def __init__(self, situation: Situation) -> None:
        nodes, zones = situation.nodes, situation.zones
        self.names: list[NodeId] = sorted(nodes)
        self.number = {name: at for at, name in enumerate(self.names)}
        self.rack_names = [nodes[name].rack for name in self.names]
        racks = [rack_of(nodes[name]) for name in self.names]
        number = {rack: at for at, rack in enumerate(sorted(set(racks)))}
        self.rack = whole(number[rack] for rack in racks)
        self.outside = np.arange(self.rack.max(initial=-1) + 1)[:, None] != self.rack
        """By rack: the nodes outside it."""
        self.live = self._mask(situation.live)
        self.draining = self._mask(situation.draining)
        self.filters = sorted({zone.datacenters for zone in zones.values()})
        """Zones that ask for the same datacenters use the same nodes."""
        one_of = {zone.datacenters: zone for zone in zones.values()}
        self.staying = np.zeros((len(self.filters), len(nodes)), bool)
        """By filter: the nodes that may hold data, without those that are drained."""
        for at, wanted in enumerate(self.filters):
            self.staying[at] = self._mask(data_nodes(one_of[wanted], nodes.values()))
        self.staying &= ~self.draining
        self.open = self.staying & self.live
        """By filter: those of them that live, so that replicas can move there."""
        self.usable: Mask = np.any(self.open, axis=0)

    def _mask(self, names: Iterable[NodeId]) -> Mask:
        mask = np.zeros(len(self.names), bool)
        mask[[self.number[name] for name in names if name in self.number]] = True
        return mask


class Volumes:
    """The volumes of replicas, and the free space of volumes."""

    def __init__(
        self, situation: Situation, rules: Rules, nodes: NodeCensus, replicas: list[Replica]
    ) -> None:
        self.number: dict[tuple[NodeId, str], int] = {}
        self.of_node: list[range] = []
        for name in nodes.names:
            first = len(self.number)
            for volume in situation.nodes[name].volumes:
                self.number[name, volume] = len(self.number)
            self.of_node.append(range(first, len(self.number)))
        free = [situation.free_bytes.get(node, {}).get(volume) for node, volume in self.number]
        sizes = [PLENTY if size is None else size - rules.free_bytes_kept for size in free]
        number = self.number
        self.of_replica = [
            number.setdefault((each.node, each.volume), len(number)) for each in replicas
        ]
        # Some may be on volumes that their nodes no longer have: nothing more goes there.
        self.free = whole(sizes + [0] * (len(number) - len(sizes)))
        self.places = list(number)


class Census:
    """Everything that planning needs, as columns."""

    def __init__(self, situation: Situation, rules: Rules) -> None:
        self.nodes = NodeCensus(situation)
        partitions = situation.partitions
        self.records: list[Partition] = [partitions[name] for name in sorted(partitions)]
        zones = {name: at for at, name in enumerate(sorted(situation.zones))}
        self.zone = whole(zones[record.zone] for record in self.records)
        filters = [self.nodes.filters.index(situation.zones[name].datacenters) for name in zones]
        self.filter = whole(filters)[self.zone]
        self.why_fixed = list(map(situation.why_fixed, self.records))
        self.movable = ~np.array(list(map(bool, self.why_fixed)), bool)
        self._place(situation, rules)
        self._measure(situation, rules)

    def _place(self, situation: Situation, rules: Rules) -> None:
        held = [record.replicas for record in self.records]
        replicas = list(chain.from_iterable(held))
        self.volumes = Volumes(situation, rules, self.nodes, replicas)
        self.held = whole(map(len, held))
        self.width = int(self.held.max(initial=1))
        real = np.arange(self.width) < self.held[:, None]
        number = self.nodes.number
        self.node = np.full(real.shape, NOBODY, np.int64)
        self.node[real] = [number[replica.node] for replica in replicas]
        self.volume = np.full(real.shape, NOBODY, np.int64)
        self.volume[real] = self.volumes.of_replica
        grants = [record.owner for record in self.records]
        owner = whole(NOBODY if each is None else number[each.replica.node] for each in grants)
        self.owns = real & (self.node == owner[:, None])

    def _measure(self, situation: Situation, rules: Rules) -> None:
        loads = [situation.loads.get(record.id, UNMEASURED) for record in self.records]
        self.measured = MeasuredLoads(
            self.held,
            np.array([load.bytes for load in loads], float),
            np.array([load.writes for load in loads], float),
            np.array([load.reads for load in loads], float),
        )
        every, owner = weigh(self.measured, rules.weights)
        self.weight = (every[:, None] + owner[:, None] * self.owns).ravel()
        self.need = np.ceil(self.measured.bytes * rules.room).astype(np.int64)


def whole(numbers: Iterable[int]) -> Whole:
    return np.array(list(numbers), np.int64)
