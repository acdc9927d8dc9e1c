"""Which writes and reads of volumes are under way? Each has a ticket, numbered within a run."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from limosa.core.messages import Appending
from limosa.core.model.keys import LeaseId, PartitionId, Position, Revision
from limosa.core.model.topology import Replica
from limosa.core.participant.held import Held

Queue = TypeVar("Queue")


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

    __slots__ = ("_last", "_storing", "_then", "tails")

    def __init__(self) -> None:
        self._last = 0
        self._storing: dict[str, deque[tuple[int, Held]]] = {}
        """By volume: appends, and their replicas, that are not known to be durable."""
        self.tails: dict[int, Tail] = {}
        self._then: dict[str, deque[tuple[int, Callable[[float], None]]]] = {}
        """By volume: called once their ticket is durable."""

    def __next__(self) -> int:
        self._last += 1
        return self._last

    def appending(self, held: Held, revision: Revision) -> int:
        """An append up to the present end of the log; barriers wait for it, by its revision."""
        ticket = next(self)
        held.appending[ticket] = (revision, held.last)
        self._storing.setdefault(held.replica.volume, deque()).append((ticket, held))
        return ticket

    def stored(self, up_to: int, volume: str | None = None) -> list[Held]:
        """The replicas whose logs became durable, each once."""
        concerned: dict[Held, None] = {}
        for waiting in _of(self._storing, volume):
            while waiting and waiting[0][0] <= up_to:
                concerned[waiting.popleft()[1]] = None
        return list(concerned)

    def when_stored(self, ticket: int, volume: str, then: Callable[[float], None]) -> int:
        self._then.setdefault(volume, deque()).append((ticket, then))
        return ticket

    def follow_up(self, now: float, up_to: int, volume: str | None = None) -> None:
        """Everything up to this ticket is durable: call what waited for it."""
        for waiting in _of(self._then, volume):
            while waiting and waiting[0][0] <= up_to:
                waiting.popleft()[1](now)

    def oldest(self) -> dict[str, int]:
        """By volume: the first ticket that is not known to be durable."""
        found: dict[str, int] = {}
        for waiting in (self._storing, self._then):
            for volume, queue in waiting.items():
                if queue:
                    found[volume] = min(queue[0][0], found.get(volume, queue[0][0]))
        return found

    def forget(self, volume: str) -> None:
        """Nothing more becomes durable there."""
        self._storing.pop(volume, None)
        self._then.pop(volume, None)


def _of(waiting: dict[str, Queue], volume: str | None) -> list[Queue]:
    if volume is None:
        return list(waiting.values())
    return [waiting[volume]] if volume in waiting else []
