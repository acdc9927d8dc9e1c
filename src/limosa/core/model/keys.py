"""Where does a token or a log entry lie? Ranges of tokens, and positions in a partition's log."""

from typing import TypeAlias

from msgspec import Struct

from limosa.errors import InvalidLayout

TOKEN_MIN = -(2**63)
TOKEN_END = 2**63

NodeId: TypeAlias = str
ZoneId: TypeAlias = str
PartitionId: TypeAlias = str
Incarnation: TypeAlias = str
SessionId: TypeAlias = str
Revision: TypeAlias = int
"""A revision of the metastore; the generation of a topology is a revision, too."""
LeaseId: TypeAlias = int
Position: TypeAlias = int
"""(epoch << 40) | counter: the version of the rows of a log entry, and its place in the log."""

ORIGIN: Position = 0
COUNTER_BITS = 40


def position(epoch: int, counter: int) -> Position:
    return (epoch << COUNTER_BITS) | counter


def epoch_of(at: Position) -> int:
    return at >> COUNTER_BITS


def transition_id(trigger: Revision) -> str:
    """The unique id of the transition that the assignment of this trigger leads to."""
    return f"t{trigger}"


class TokenRange(Struct, frozen=True, order=True):
    """A half-open range of tokens, never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not TOKEN_MIN <= self.start < self.end <= TOKEN_END:
            raise InvalidLayout(
                f"[{self.start}, {self.end}) is not a range of tokens",
                f"give a start below the end, between {TOKEN_MIN} and {TOKEN_END}",
            )

    def holds(self, token: int) -> bool:
        return self.start <= token < self.end


WHOLE = TokenRange(TOKEN_MIN, TOKEN_END)
