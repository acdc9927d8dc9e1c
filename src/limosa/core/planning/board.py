"""Where is every replica in the plan so far, and where may it go? Plans move replicas here."""

from collections.abc import Iterable

import numpy as np

from limosa.core.model.intent import Placement
from limosa.core.planning.census import NOBODY, Census, Mask
from limosa.core.planning.load import Whole, sums
from limosa.core.planning.plan import PRESSING, Reason

FULL = 1 << 62
"""More than any load."""


class Board:
    """The replicas of a plan in progress: it offers only allowed moves, and does not judge them."""

    def __init__(self, census: Census) -> None:
        self.census = census
        self.nodes = census.nodes
        self.node = census.node.ravel().copy()
        self.volume = census.volume.ravel().copy()
        size = len(self.nodes.names)
        real = np.flatnonzero(self.node != NOBODY)
        self.load = sums(self.node[real], census.weight[real], size)
        places = len(census.volumes.places)
        self.volume_load = sums(self.volume[real], census.weight[real], places)
        self.free = census.volumes.free.copy()
        self.room = np.array([self._room_of(node) for node in range(size)], np.int64)
        """The most free space on one volume of each node."""
        by_node = real[np.argsort(self.node[real], kind="stable")]
        bounds = np.searchsorted(self.node[by_node], np.arange(1, size))
        self.on_node: list[list[int]] = [held.tolist() for held in np.split(by_node, bounds)]
        self._in_zone = np.split(
            np.argsort(census.zone, kind="stable"),
            np.cumsum(np.bincount(census.zone, minlength=1))[:-1],
        )
        self._counts: dict[int, Whole] = {}
        self.moved: dict[int, Reason] = {}
        """Moved replicas and the most pressing reason, in the order of their last moves."""
        self.touched: set[int] = set()
        """Their partitions."""
        self.steps = 0

    # ------------------------------------------------------------ questions

    def holders(self, partition: int) -> Whole:
        width = self.census.width
        held = self.node[partition * width : (partition + 1) * width]
        return held[: self.census.held[partition]]

    def count_in_zone(self, zone: int) -> Whole:
        """How many replicas of a zone each node holds."""
        known = self._counts.get(zone)
        if known is not None:
            return known
        by_partition = self.node.reshape(-1, self.census.width)
        held = by_partition[self._in_zone[zone]].ravel()
        size = len(self.nodes.names)
        counts = np.bincount(held[held != NOBODY], minlength=size)
        if held.size * 4 > size:  # small zones are counted again: there may be very many of them
            self._counts[zone] = counts
        return counts

    def movable_on(self, node: int) -> Whole:
        held = np.array(self.on_node[node], np.int64)
        movable: Whole = held[self.census.movable[held // self.census.width]]
        return movable

    def racks_of(self, partition: int) -> list[int]:
        racks: list[int] = self.nodes.rack[self.holders(partition)].tolist()
        return racks

    def outside(self, racks: Iterable[int]) -> Mask:
        """The nodes outside these racks."""
        mask: Mask = self.nodes.outside[list(racks)].all(axis=0)
        return mask

    def open_to(self, replica: int) -> Mask:
        """The nodes that a replica may move to: allowed, alive, with room, without another replica
        of the partition, and not in a rack that has one, unless the replica's own rack has another
        one as well."""
        partition = replica // self.census.width
        may: Mask = self.nodes.open[self.census.filter[partition]].copy()
        may &= self.room >= self.census.need[partition]
        may[self.holders(partition)] = False
        if partition in self.touched:
            may[[node for node in self._left(partition) if self._circles(replica, node)]] = False
        others = self.racks_of(partition)
        own = others.pop(replica % self.census.width)
        if others and own not in others:
            may &= self.outside(others)
        return may

    def origins(self, partition: int) -> list[int]:
        """Where the partition's replicas were before the plan."""
        found: list[int] = self.census.node[partition, : self.census.held[partition]].tolist()
        return found

    def _left(self, partition: int) -> list[int]:
        held = self.holders(partition)
        return [node for node in self.origins(partition) if node not in held]

    def _circles(self, replica: int, target: int) -> bool:
        """Would each replica of the partition move to where the next one was? Then no move could be
        first."""
        partition, slot = divmod(replica, self.census.width)
        origins, now = self.origins(partition), self.holders(partition).tolist()
        at = target
        while at in origins and at != origins[slot]:
            at = now[origins.index(at)]
        return at == origins[slot] != target

    def keeps_zone_spread(self, replica: int) -> Mask:
        """The nodes to which the replica can move without undoing the spread of its zone."""
        zone = self.census.zone[replica // self.census.width]
        counts = self.count_in_zone(zone)
        if counts[self.node[replica]] > 1:
            return np.ones(len(counts), bool)
        unused: Mask = counts == 0
        return unused

    def least_loaded(self, among: Mask) -> int:
        """The least loaded of these nodes, the first among equals; `NOBODY` if there is none."""
        best = int(np.argmin(np.where(among, self.load, FULL)))
        return best if among[best] else NOBODY

    # ------------------------------------------------------------ moves

    def move(self, replica: int, node: int, why: Reason) -> None:
        """Move the replica to the least loaded volume with room on the node."""
        need = self.census.need[replica // self.census.width]
        volumes = self.census.volumes.of_node[node]
        wide = [each for each in volumes if self.free[each] >= need]
        self.put(replica, node, min(wide, key=self.volume_load.__getitem__), why)

    def put(self, replica: int, node: int, volume: int, why: Reason) -> None:
        partition = replica // self.census.width
        source, weight = int(self.node[replica]), self.census.weight[replica]
        self._leave(replica)
        self.node[replica], self.volume[replica] = node, volume
        self.volume_load[volume] += weight
        if volume != self.census.volume.flat[replica]:
            self.free[volume] -= self.census.need[partition]
        self.room[node] = self._room_of(node)
        if node != source:
            self.load[source] -= weight
            self.load[node] += weight
            self.on_node[source].remove(replica)
            self.on_node[node].append(replica)
            counts = self._counts.get(int(self.census.zone[partition]))
            if counts is not None:
                counts[source] -= 1
                counts[node] += 1
        self.moved[replica] = min(why, self.moved.pop(replica, why), key=PRESSING.index)
        self.touched.add(partition)
        self.steps += 1

    def _leave(self, replica: int) -> None:
        """Free the replica's space where the plan had put it; its original space is not free
        yet."""
        volume = self.volume[replica]
        self.volume_load[volume] -= self.census.weight[replica]
        if volume != self.census.volume.flat[replica]:
            self.free[volume] += self.census.need[replica // self.census.width]
            self.room[self.node[replica]] = self._room_of(self.node[replica])

    def _room_of(self, node: int) -> int:
        held = self.census.volumes.of_node[node]
        return int(self.free[held.start : held.stop].max())

    def place_of(self, replica: int) -> Placement:
        node, volume = self.census.volumes.places[self.volume[replica]]
        return Placement(node, volume)
