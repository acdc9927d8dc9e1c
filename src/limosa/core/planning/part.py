"""What if only some moves of a plan are made? The same moves, with figures of their own."""

from collections.abc import Sequence

from limosa.core.planning.board import Board
from limosa.core.planning.census import Census
from limosa.core.planning.plan import Move, Plan
from limosa.core.planning.rebalance import written
from limosa.core.planning.situation import Rules, Situation


def plan_part(situation: Situation, moves: Sequence[Move], rules: Rules | None = None) -> Plan:
    """A plan of these moves only, with its figures. A move that depends on a missing one is left
    out."""
    board = Board(Census(situation, rules or Rules()))
    numbers = {record.id: at for at, record in enumerate(board.census.records)}
    waiting, before = list(moves), -1
    while len(waiting) != before:  # one may become possible by another that comes after it
        before = len(waiting)
        waiting = [move for move in waiting if not made(board, numbers[move.partition], move)]
    return written(board, [])


def made(board: Board, partition: int, move: Move) -> bool:
    """Make the move on the board, if it is possible; returns whether it is."""
    census, number = board.census, board.nodes.number
    node = number[move.target.node]
    replica = partition * census.width + board.origins(partition).index(number[move.source])
    if not move.stays and not board.open_to(replica)[node]:
        return False
    volume = census.volumes.number[move.target.node, move.target.volume]
    board.put(replica, node, volume, move.why)
    return True
