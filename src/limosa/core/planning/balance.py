"""How does load become even? Partitions move from the most loaded node to the least loaded one.

First each node gives away only what exceeds its fair share, so that little is moved. Where racks,
zones or large partitions prevent fair shares, nodes whose loads differ much are still brought
closer together.
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from limosa.core.planning.board import FULL, Board
from limosa.core.planning.census import NOBODY
from limosa.core.planning.load import fair_level, sums
from limosa.core.planning.situation import Rules

SWAP_TARGETS = 8
SWAPS_TRIED = 16
"""For one node, and for two nodes. A swap costs two moves, so the search is short."""


def balance(board: Board, rules: Rules) -> None:
    """Zones that may use few nodes come first; other zones adapt to them."""
    for wanted in np.argsort(board.nodes.open.sum(axis=1), kind="stable").tolist():
        if board.nodes.open[wanted].sum() > 1:
            scope = Scope(board, rules, wanted)
            scope.give_excess()
            scope.narrow_gaps()


class Scope:
    """The nodes that a group of zones may use, and the replicas of these zones."""

    def __init__(self, board: Board, rules: Rules, wanted: int) -> None:
        self.board = board
        self.wanted = wanted
        self.open = board.nodes.open[wanted]
        census = board.census
        size = len(self.open)
        free = np.repeat(census.movable & (census.filter == wanted), census.width)
        free &= (board.node != NOBODY) & self.open[board.node]
        at, weight = board.node[free], census.weight[free]
        fixed = np.where(self.open, board.load - sums(at, weight, size), 0)
        total = int(board.load[self.open].sum())
        lumps = np.concatenate((fixed[self.open], weight))
        self.level = fair_level(total, int(self.open.sum()), lumps)
        large = weight > self.level
        self.goal = np.maximum(self.level, fixed + sums(at[large], weight[large], size))
        """The load that each node can get down to."""
        self.even = int(self.level * rules.tolerance)
        self.worth = int(self.level * rules.worth)
        self._ladders: dict[int, Ladder] = {}

    def give_excess(self) -> None:
        """Nodes above their goal give to nodes below a fair share, until the loads are even."""
        load = self.board.load
        giving = self.open.copy()
        while True:
            excess = np.where(giving, load - self.goal, -FULL)
            source = int(np.argmax(excess))
            least = int(load[self.open].min())
            if excess[source] <= 0 or excess[source] + self.level - least <= self.even:
                return
            giving[source] = self._gives(source, int(excess[source]), least)

    def _gives(self, source: int, excess: int, least: int) -> bool:
        """The heaviest replica that fits the source's excess and a target's gap; else the lightest
        that does not reverse their order."""
        load, ladder = self.board.load, self._ladder(source)
        most = min(excess, self.level - least) + self.even // 2
        half = int(load[source] - least) // 2
        for at in ladder.around(min(most, half), half):
            target = self._target_of(ladder.replicas[at])
            if target == NOBODY:
                continue
            lack = self.level - int(load[target])
            half = int(load[source] - load[target]) // 2
            if lack > 0 and excess + lack > self.even and ladder.weights[at] <= half:
                self._move(source, at, target)
                return True
        return False

    def narrow_gaps(self) -> None:
        """Bring nodes closer whose loads differ enough to be worth a move, whatever their fair
        share."""
        load = self.board.load
        giving = self.open.copy()
        while True:
            most = np.where(giving, load, -1)
            source = int(np.argmax(most))
            gap = int(most[source] - load[self.open].min())
            if gap <= self.worth:
                return
            giving[source] = self._comes_nearer(source, gap) or self._swaps(source)

    def _comes_nearer(self, source: int, widest: int) -> bool:
        """The heaviest replica that leaves the source near its goal; else the lightest."""
        load, ladder = self.board.load, self._ladder(source)
        excess = max(0, int(load[source] - self.goal[source])) + self.worth // 2
        for at in ladder.around(min(excess, widest // 2), widest // 2):
            target = self._target_of(ladder.replicas[at])
            if target == NOBODY:
                continue
            gap = int(load[source] - load[target])
            if gap > self.worth and ladder.weights[at] <= gap // 2:
                self._move(source, at, target)
                return True
        return False

    def _swaps(self, source: int) -> bool:
        """Swap two replicas where no single replica is light enough to move."""
        load = self.board.load
        order = np.argsort(np.where(self.open, load, FULL), kind="stable")[:SWAP_TARGETS]
        for target in order.tolist():
            gap = int(load[source] - load[target])
            if gap > self.worth and self._swaps_with(source, target, gap // 2):
                return True
        return False

    def _swaps_with(self, source: int, target: int, most: int) -> bool:
        """The lightest pair whose weights differ enough, but do not reverse the order of the
        nodes."""
        ours, theirs = self._ladder(source), self._ladder(target)
        more = np.subtract.outer(ours.weights, theirs.weights)
        given, taken = np.nonzero((more <= most) & (more > most // 2))
        both = np.array(ours.weights)[given] + np.array(theirs.weights)[taken]
        for at in np.argsort(both, kind="stable")[:SWAPS_TRIED].tolist():
            one, other = ours.replicas[given[at]], theirs.replicas[taken[at]]
            if self._may_go(one, target) and self._may_go(other, source):
                self.board.move(one, target, "load")
                self.board.move(other, source, "load")
                self._ladders.clear()
                return True
        return False

    # ------------------------------------------------------------ one replica

    def _target_of(self, replica: int) -> int:
        board = self.board
        return board.least_loaded(board.open_to(replica) & board.keeps_zone_spread(replica))

    def _may_go(self, replica: int, node: int) -> bool:
        board = self.board
        return bool(board.open_to(replica)[node] and board.keeps_zone_spread(replica)[node])

    def _move(self, source: int, at: int, target: int) -> None:
        ladder = self._ladders[source]
        self.board.move(ladder.replicas.pop(at), target, "load")
        ladder.weights.pop(at)
        self._ladders.pop(target, None)

    def _ladder(self, node: int) -> "Ladder":
        if node not in self._ladders:
            census = self.board.census
            held = self.board.movable_on(node)
            held = held[census.filter[held // census.width] == self.wanted]
            rising = held[np.argsort(census.weight[held], kind="stable")]
            self._ladders[node] = Ladder(rising.tolist(), census.weight[rising].tolist())
        return self._ladders[node]


class Ladder(NamedTuple):
    """Replicas that can leave a node, the lightest first."""

    replicas: list[int]
    weights: list[int]

    def around(self, weight: int, most: int) -> list[int]:
        """Replicas up to a weight, the heaviest first; then heavier ones, the lightest first."""
        near, end = bisect_right(self.weights, weight), bisect_right(self.weights, most)
        return [*range(near - 1, -1, -1), *range(near, end)]
