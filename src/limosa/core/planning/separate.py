"""Which replicas are too close? Those of a partition in one rack; those of a zone on one node."""

import numpy as np

from limosa.core.planning.board import Board
from limosa.core.planning.census import NOBODY

NO_OTHER_RACK = "two of its replicas share a rack, and no node of another rack has room for one"


def separate_racks(board: Board) -> list[int]:
    """Spread each partition's replicas over as many racks as possible; returns the partitions that
    can't be."""
    there = [set(board.nodes.rack[mask].tolist()) for mask in board.nodes.open]
    stuck = []
    for partition in sharing(board):
        reachable = there[board.census.filter[partition]]
        while is_crowded(board.racks_of(partition), reachable):
            if not leave_rack(board, partition):
                stuck.append(partition)
                break
    return stuck


def sharing(board: Board) -> list[int]:
    """Movable partitions with two replicas in one rack."""
    census = board.census
    node = board.node.reshape(-1, census.width)
    racks = np.sort(np.where(node == NOBODY, NOBODY, board.nodes.rack[node]), axis=1)
    twice = (racks[:, 1:] == racks[:, :-1]) & (racks[:, 1:] != NOBODY)
    found: list[int] = np.flatnonzero(twice.any(axis=1) & census.movable).tolist()
    return found


def is_crowded(racks: list[int], reachable: set[int]) -> bool:
    return len(set(racks)) < len(racks) and not reachable <= set(racks)


def leave_rack(board: Board, partition: int) -> bool:
    """Move one replica from a rack with several to a rack with none: from the most loaded node, and
    if possible without undoing the spread of its zone."""
    held, racks = board.holders(partition), board.racks_of(partition)
    other = board.outside(racks)
    shared = [at for at, rack in enumerate(racks) if racks.count(rack) > 1]
    for at in sorted(shared, key=lambda at: (-board.load[held[at]], at)):
        replica = partition * board.census.width + at
        may = board.open_to(replica) & other
        spread = may & board.keeps_zone_spread(replica)
        target = board.least_loaded(spread if spread.any() else may)
        if target != NOBODY:
            board.move(replica, target, "racks")
            return True
    return False


def separate_zones(board: Board) -> None:
    """No node holds two replicas of a zone while another node that may hold one has none."""
    for zone in doubled(board):
        while use_another_node(board, zone):
            pass


def doubled(board: Board) -> list[int]:
    """Zones that use one node twice and another node not at all."""
    census, nodes = board.census, board.nodes
    size = len(nodes.names)
    zone = np.repeat(census.zone, census.width)
    open_here = nodes.open[np.repeat(census.filter, census.width), board.node]
    counted = (board.node != NOBODY) & open_here
    keys, times = np.unique(zone[counted] * size + board.node[counted], return_counts=True)
    zones = int(census.zone.max(initial=-1)) + 1
    used = np.bincount(keys // size, minlength=zones)
    twice = np.bincount(keys[times > 1] // size, minlength=zones) > 0
    there = np.zeros(zones, np.int64)
    there[census.zone] = nodes.open.sum(axis=1)[census.filter]
    return [int(each) for each in np.flatnonzero(twice & (used < there))]


def use_another_node(board: Board, zone: int) -> bool:
    """Move the lightest movable replica away from the node that holds most of the zone."""
    census = board.census
    counts = board.count_in_zone(zone)
    unused = counts == 0
    order = np.lexsort((-board.load, -counts))
    for node in order[np.flatnonzero((counts[order] > 1) & board.nodes.usable[order])].tolist():
        held = board.movable_on(node)
        held = held[census.zone[held // census.width] == zone]
        for replica in held[np.argsort(census.weight[held], kind="stable")].tolist():
            target = board.least_loaded(board.open_to(replica) & unused)
            if target != NOBODY:
                board.move(replica, target, "zone")
                return True
    return False
