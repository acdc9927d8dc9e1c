"""Which writes and reads of volumes are under way? Each has a ticket, numbered within a run."""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from limosa.core.messages import Appending
from limosa.core.model.keys import LeaseId, PartitionId, Position, Revision
from limosa.core.model.topology import Replica
from limosa.core.participant.held import Held


class Tail(Struct, frozen=True, gc=False):
    """A part of the log that is being read from the volume, and the replica that needs it."""

    partition: PartitionId
    epoch: int
    revision: Revision
    to: Replica
    previous: Position
    how: Appending
    probed: LeaseId


class Tickets:
    """One sequence of numbers for all replicas of a node."""

    __slots__ = ("_last", "_then", "storing", "tails")

    def __init__(self) -> None:
        self._last = 0
        self.storing: deque[tuple[int, Held]] = deque()
        """Appends, and their replicas, that are not known to be durable."""
        self.tails: dict[int, Tail] = {}
        self._then: deque[tuple[int, Callable[[float], None]]] = deque()
        """Called once their ticket is durable."""

    def __next__(self) -> int:
        self._last += 1
        return self._last

    def appending(self, held: Held, revision: Revision) -> int:
        """An append up to the present end of the log; barriers wait for it, by its revision."""
        ticket = next(self)
        held.appending[ticket] = (revision, held.last)
        self.storing.append((ticket, held))
        return ticket

    def stored(self, up_to: int) -> list[Held]:
        """The replicas whose logs became durable, each once."""
        concerned: dict[Held, None] = {}
        while self.storing and self.storing[0][0] <= up_to:
            concerned[self.storing.popleft()[1]] = None
        return list(concerned)

    def when_stored(self, ticket: int, then: Callable[[float], None]) -> int:
        self._then.append((ticket, then))
        return ticket

    def follow_up(self, now: float, up_to: int) -> None:
        """Everything up to this ticket is durable: call what waited for it."""
        while self._then and self._then[0][0] <= up_to:
            self._then.popleft()[1](now)
