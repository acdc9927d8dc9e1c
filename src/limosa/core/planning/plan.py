"""What is a plan? Moves in their order, their cost and effect, and what is left out and why."""

from collections import Counter
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from limosa.core.model.intent import Placement
from limosa.core.model.keys import NodeId, PartitionId

Reason: TypeAlias = Literal["drain", "racks", "zone", "load", "volumes"]
"""Why something moves, the most pressing first: its node is drained; a rack holds two replicas of
it; its node has more of its zone and another none; its node, or its volume, has too much."""

PRESSING: tuple[Reason, ...] = get_args(Reason)

Dimension: TypeAlias = Literal["bytes", "writes", "reads"]


class Move(Struct, frozen=True):
    """One replica leaves a node, or a volume, for another."""

    partition: PartitionId
    source: NodeId
    target: Placement
    bytes: int
    why: Reason

    @property
    def stays(self) -> bool:
        """It only changes the volume."""
        return self.source == self.target.node


class Skipped(Struct, frozen=True):
    """A partition that is left where it is, though it would be moved."""

    partition: PartitionId
    why: str
    left_on: tuple[NodeId, ...] = ()
    """Nodes that are drained and are not empty because of it: plan again when this has passed."""


class TooLarge(Struct, frozen=True):
    """A partition that alone has more than a node's fair share: only a split can spread it."""

    partition: PartitionId
    dimension: Dimension
    amount: float
    fair_share: float


class Balance(Struct, frozen=True):
    """The most that a node has, in parts of the mean: 1 is even. 0: there is nothing."""

    load: float = 0.0
    """All of it, weighted."""
    bytes: float = 0.0
    writes: float = 0.0
    reads: float = 0.0
    replicas: float = 0.0


class Arrival(Struct, frozen=True):
    """What comes to a volume, if nothing leaves it before all has come."""

    place: Placement
    bytes: int


class Plan(Struct, frozen=True):
    """What is most pressing comes first. Two moves of one partition are made one after the other,
    in their order: one may go where the other has left."""

    moves: tuple[Move, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    too_large: tuple[TooLarge, ...] = ()
    before: Balance = Balance()
    after: Balance = Balance()
    arrivals: tuple[Arrival, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(move.bytes for move in self.moves)

    @property
    def empties(self) -> bool:
        """Carried out, nothing is left on the nodes that are drained."""
        return not any(each.left_on for each in self.skipped)


class Unplaced(Struct, frozen=True):
    """A replica on a node that is drained, and why no other node can have it."""

    partition: PartitionId
    node: NodeId
    why: str


class Impossible(Struct, frozen=True):
    """There is no plan: a node that is drained can't be emptied. Nothing is to be moved."""

    unplaced: tuple[Unplaced, ...]

    def __str__(self) -> str:
        """Each reason once, with one example."""
        whys = Counter(each.why for each in self.unplaced)
        first = {each.why: each for each in reversed(self.unplaced)}
        return "; ".join(
            f"{first[why].node} can't be drained: {why} ({first[why].partition}"
            + (f" and {count - 1} more)" if count > 1 else ")")
            for why, count in whys.items()
        )
