"""What should move? Drained nodes are emptied; then racks, load, zones and volumes are evened."""

from collections import Counter

import numpy as np

from limosa.core.model.intent import Placement
from limosa.core.planning.balance import balance
from limosa.core.planning.board import Board
from limosa.core.planning.census import Census
from limosa.core.planning.drain import drain
from limosa.core.planning.figures import balance_of, too_large
from limosa.core.planning.plan import PRESSING, Arrival, Impossible, Move, Plan, Skipped
from limosa.core.planning.separate import NO_OTHER_RACK, separate_racks, separate_zones
from limosa.core.planning.situation import Rules, Situation
from limosa.core.planning.volumes import balance_volumes


def plan_drain(situation: Situation, rules: Rules | None = None) -> Plan | Impossible:
    """Only the moves that empty the drained nodes."""
    rules = rules or Rules()
    board = Board(Census(situation, rules))
    unplaced = drain(board)
    return Impossible(tuple(unplaced)) if unplaced else written(board, [])


def plan_rebalance(situation: Situation, rules: Rules | None = None) -> Plan | Impossible:
    """Empty the drained nodes, then make the rest more even. The plan is empty if the cluster is
    even enough; so it is after a plan was carried out."""
    rules = rules or Rules()
    board = Board(Census(situation, rules))
    unplaced = drain(board)
    if unplaced:
        return Impossible(tuple(unplaced))
    crowded: list[int] = []
    before = -1
    while board.steps != before:  # it ends: no step undoes what an earlier one reached
        before = board.steps
        crowded = separate_racks(board)
        balance(board, rules)
        separate_zones(board)
        balance_volumes(board, rules)
    return written(board, crowded)


def node_loads(situation: Situation, rules: Rules | None = None) -> dict[str, float]:
    """The load of each node that balancing uses, relative to their mean."""
    census = Census(situation, rules or Rules())
    board = Board(census)
    usable = np.flatnonzero(census.nodes.usable).tolist()
    mean = float(board.load[usable].mean()) if usable else 0.0
    return {census.nodes.names[at]: float(board.load[at]) / (mean or 1.0) for at in usable}


def written(board: Board, crowded: list[int]) -> Plan:
    census, nodes = board.census, board.nodes
    moves = in_order(sorted(moves_of(board), key=lambda move: PRESSING.index(move.why)))
    arrivals: Counter[Placement] = Counter()
    for move in moves:
        arrivals[move.target] += move.bytes
    return Plan(
        tuple(moves),
        skipped(board, crowded),
        too_large(census),
        balance_of(census, census.node.ravel(), nodes.usable | nodes.draining),
        balance_of(census, board.node, nodes.usable),
        tuple(Arrival(place, size) for place, size in sorted(arrivals.items())),
    )


def moves_of(board: Board) -> list[Move]:
    census = board.census
    made = []
    for replica, why in board.moved.items():
        if board.volume[replica] != census.volume.flat[replica]:
            partition = replica // census.width
            source = board.nodes.names[census.node.flat[replica]]
            size = int(census.measured.bytes[partition])
            name = census.records[partition].id
            made.append(Move(name, source, board.place_of(replica), size, why))
    return made


def in_order(moves: list[Move]) -> list[Move]:
    """A move to a place that another replica of the partition leaves comes after that replica's
    move."""
    waiting = {(move.partition, move.source): move for move in moves}
    ordered: list[Move] = []
    for move in moves:
        behind: list[Move] = []
        next_one: Move | None = waiting.pop((move.partition, move.source), None)
        while next_one is not None:
            behind.append(next_one)
            next_one = waiting.pop((next_one.partition, next_one.target.node), None)
        ordered += reversed(behind)
    return ordered


def skipped(board: Board, crowded: list[int]) -> tuple[Skipped, ...]:
    census, nodes = board.census, board.nodes
    whys = {at: census.why_fixed[at] for at in np.flatnonzero(~census.movable).tolist()}
    whys |= dict.fromkeys(crowded, NO_OTHER_RACK)
    left = {
        at: tuple(nodes.names[node] for node in board.holders(at).tolist() if nodes.draining[node])
        for at in whys
    }
    return tuple(Skipped(census.records[at].id, whys[at], left[at]) for at in sorted(whys))
