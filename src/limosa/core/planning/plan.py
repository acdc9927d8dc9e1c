"""What is a plan? Moves in their order, their cost and effect, and what is left out and why."""

from collections import Counter
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from limosa.core.model.intent import Placement
from limosa.core.model.keys import NodeId, PartitionId

Reason: TypeAlias = Literal["drain", "racks", "zone", "load", "volumes"]
"""Why a replica moves, the most pressing reason first: its node is drained; its rack holds another
replica; its node has several of its zone and another node none; its node, or its volume, has too
much load."""

PRESSING: tuple[Reason, ...] = get_args(Reason)

Dimension: TypeAlias = Literal["bytes", "writes", "reads"]


class Move(Struct, frozen=True):
    """Move one replica to another node or volume."""

    partition: PartitionId
    source: NodeId
    target: Placement
    bytes: int
    why: Reason

    @property
    def stays(self) -> bool:
        """Only the volume changes."""
        return self.source == self.target.node


class Skipped(Struct, frozen=True):
    """A partition that should be moved, but stays where it is."""

    partition: PartitionId
    why: str
    left_on: tuple[NodeId, ...] = ()
    """Drained nodes that keep a replica because of it: plan again later."""


class TooLarge(Struct, frozen=True):
    """A partition that exceeds a node's fair share: only a split can spread it."""

    partition: PartitionId
    dimension: Dimension
    amount: float
    fair_share: float


class Balance(Struct, frozen=True):
    """The load of the most loaded node, relative to the mean: 1 is even; 0: no load at all."""

    load: float = 0.0
    """The weighted sum."""
    bytes: float = 0.0
    writes: float = 0.0
    reads: float = 0.0
    replicas: float = 0.0


class Arrival(Struct, frozen=True):
    """Bytes that come to a volume, if nothing leaves it before."""

    place: Placement
    bytes: int


class Plan(Struct, frozen=True):
    """The most pressing moves first. Two moves of one partition are made one after the other: one
    may go to the place that the other has left."""

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
        """Does the plan leave nothing on the drained nodes?"""
        return not any(each.left_on for each in self.skipped)


class Unplaced(Struct, frozen=True):
    """A replica on a drained node, and why no other node can take it."""

    partition: PartitionId
    node: NodeId
    why: str


class Impossible(Struct, frozen=True):
    """There is no plan, since a drained node can't be emptied; nothing should be moved."""

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
