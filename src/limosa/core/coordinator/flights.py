"""Which moves of the current run need attention? An index of moves by what they wait for.

The index depends on the agreed state alone, and is updated with its changes only.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from limosa.core.model.changes import Agreed
from limosa.core.model.keys import NodeId, Revision
from limosa.core.model.runs import RunMove

Pair = tuple[NodeId, NodeId]


class Flights:
    """The moves of one run: pending, in flight, failed."""

    def __init__(self, run: str = "") -> None:
        self.run = run
        self._known: dict[int, RunMove] = {}
        self.open: dict[int, RunMove] = {}
        """In flight; or committed, while the transition may not have ended."""
        self.failed: dict[int, RunMove] = {}
        """To be retried."""
        self.pending: dict[Pair, dict[int, RunMove]] = {}
        self.asked: dict[str, tuple[dict[str, Revision], float]] = {}
        """Proposed commits: their guards, and when they were proposed."""
        self._failed_at: dict[int, float] = {}

    def follow(self, agreed: Agreed) -> None:
        moves = agreed.moves.get(self.run, {})
        if moves is self._known:
            return
        for number, move in moves.items():
            before = self._known.get(number)
            if before is not move:
                self._take_out(before)
                self._put_in(move)
        self._known = moves

    def _take_out(self, move: RunMove | None) -> None:
        if move is None:
            return
        self.open.pop(move.number, None)
        self.failed.pop(move.number, None)
        self._failed_at.pop(move.number, None)
        bucket = self.pending.get(_pair(move), {})
        bucket.pop(move.number, None)
        if not bucket:
            self.pending.pop(_pair(move), None)

    def _put_in(self, move: RunMove) -> None:
        if move.state == "PENDING":
            self.pending.setdefault(_pair(move), {})[move.number] = move
        elif move.state == "FAILED":
            if not move.final:
                self.failed[move.number] = move
        else:
            self.open[move.number] = move

    def failed_since(self, move: RunMove, now: float) -> float:
        """When this coordinator first saw the failure; a successor waits for as long again."""
        return self._failed_at.setdefault(move.number, now)

    def close(self, move: RunMove) -> None:
        """The move's transition has ended."""
        self.open.pop(move.number, None)

    def to_begin(self, has_room: Callable[[NodeId, NodeId], bool]) -> Iterator[RunMove]:
        """Pending moves in the order of the plan, without those whose nodes are at their limits."""
        heap = []
        for pair, bucket in self.pending.items():
            numbers = iter(bucket)
            heap.append((next(numbers), pair, numbers))
        heapify(heap)
        while heap:
            number, pair, numbers = heappop(heap)
            if not has_room(*pair):
                continue
            yield self.pending[pair][number]
            later = next(numbers, None)
            if later is not None:
                heappush(heap, (later, pair, numbers))


def _pair(move: RunMove) -> Pair:
    return move.source, move.target.node
