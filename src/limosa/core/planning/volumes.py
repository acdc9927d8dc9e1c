"""How do a node's volumes become even? Replicas move from the fullest to the emptiest."""

import numpy as np

from limosa.core.planning.board import Board
from limosa.core.planning.situation import Rules


def balance_volumes(board: Board, rules: Rules) -> None:
    for node in np.flatnonzero(board.nodes.usable).tolist():
        volumes = board.census.volumes.of_node[node]
        if len(volumes) > 1:
            worth = int(board.load[node] / len(volumes) * rules.worth)
            while narrow(board, node, volumes, worth):
                pass


def narrow(board: Board, node: int, volumes: range, worth: int) -> bool:
    """The heaviest replica that does not reverse the order of two volumes."""
    census = board.census
    order = sorted(volumes, key=lambda each: (board.volume_load[each], each))
    held = board.movable_on(node)
    for source in reversed(order):
        there = held[board.volume[held] == source]
        for replica in there[np.argsort(-census.weight[there], kind="stable")].tolist():
            need, weight = census.need[replica // census.width], census.weight[replica]
            most = board.volume_load[source] - max(worth + 1, 2 * weight)
            wide = [each for each in order if board.free[each] >= need]
            if wide and board.volume_load[wide[0]] <= most:
                board.put(replica, node, wide[0], "volumes")
                return True
    return False
