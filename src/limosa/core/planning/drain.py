"""How is a node emptied? Its replicas go to many targets, or the plan says why they can't."""

import numpy as np

from limosa.core.planning.board import Board
from limosa.core.planning.census import NOBODY, Mask
from limosa.core.planning.plan import Unplaced


def drain(board: Board) -> list[Unplaced]:
    """Move every movable replica away from the drained nodes, the heaviest first, each to the least
    loaded node that may hold it. Returns the replicas that no node may hold."""
    census, nodes = board.census, board.nodes
    drained = np.flatnonzero(nodes.draining).tolist()
    unplaced = [
        Unplaced(census.records[replica // census.width].id, nodes.names[node], DOWN)
        for node in drained
        if not nodes.live[node]
        for replica in board.on_node[node]
    ]
    leaving = np.concatenate([NONE, *(board.movable_on(node) for node in drained)])
    for replica in leaving[np.argsort(-census.weight[leaving], kind="stable")].tolist():
        target = board.least_loaded(best_places(board, replica))
        if target == NOBODY:
            node = nodes.names[board.node[replica]]
            record = census.records[replica // census.width]
            unplaced.append(Unplaced(record.id, node, why_nowhere(board, replica)))
        else:
            board.move(replica, target, "drain")
    return unplaced


NONE = np.empty(0, np.int64)
DOWN = "it is down, so nothing can be moved from it: start it, or remove it"


def best_places(board: Board, replica: int) -> Mask:
    """Prefer racks without a replica of the partition; then nodes without a replica of its zone."""
    may = board.open_to(replica)
    partition = replica // board.census.width
    zone = board.count_in_zone(board.census.zone[partition])
    for better in (board.outside(board.racks_of(partition)), zone == 0):
        if (may & better).any():
            may &= better
    return may


def why_nowhere(board: Board, replica: int) -> str:
    """Why no node can take the replica, in words."""
    census, nodes = board.census, board.nodes
    partition = replica // census.width
    record, wanted = census.records[partition], census.filter[partition]
    staying, live = nodes.staying[wanted], nodes.open[wanted]
    if not staying.any():
        return f"no other node may hold data of {record.zone}: let one join first"
    if not live.any():
        return f"only nodes that are down could take it, like {first(board, staying)}: start one"
    held = board.holders(partition)
    free = live.copy()
    free[held] = False
    if not free.any():
        return (
            f"{len(held)} replicas need as many nodes, and only {live.sum()} that live would be "
            f"left for {record.zone}: let another one join first"
        )
    rack = nodes.rack_names[board.node[replica]]
    if not (free & (board.room >= census.need[partition])).any():
        return (
            f"no node has {census.need[partition]:,} bytes free for it: "
            "make room, or let another node join first"
        )
    return (
        f"without a node of rack {rack!r} that lives and has room, its replicas would be in fewer "
        "racks: let a node of that rack, or of a new one, join first"
    )


def first(board: Board, among: Mask) -> str:
    return board.nodes.names[int(np.argmax(among))]
