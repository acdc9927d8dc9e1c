"""How long does work take? Each process does one thing at a time, and what comes meanwhile waits.

As in a real process, each link has a thread of its own, and all threads want the same lock: they
take turns. So does the thread that ticks. A thread handles its events in their order. Of the
clients' threads only one at a time waits for the lock, as in a real node.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from limosa.core.events import Received, Ticked
from limosa.core.messages import Replicate, Status, Write
from limosa.core.model.changes import Commit

TICKS = Ticked.__name__
CLIENTS = "clients"
"""The place of all clients among those who take turns."""
FRAME = 256
"""So many messages of a sender are handled in one turn: they arrive in one frame."""
TOGETHER = 8
"""So many writes of a client are handled in one turn: fewer than in a real node, where each takes
less time."""


class WorkSeconds(Struct, frozen=True):
    """How many seconds processes need for their work."""

    part: float = 0.006
    """A part that a client writes."""
    entry: float = 0.0005
    """An entry that is replicated."""
    message: float = 0.0002
    """Any message, besides what it holds, and any other event."""
    replica: float = 0.0001
    """The status of one replica."""
    transaction: float = 0.004
    """A transaction of the metastore, besides its operations."""
    operation: float = 0.0005
    """A guard or change of a transaction."""

    def of_event(self, event: Any) -> float:
        match event:
            case Received(message=Write()):
                return self.message + self.part
            case Received(message=Replicate(entries=entries)):
                return self.message + self.entry * len(entries)
            case Received(message=Status(replicas=replicas)):
                return self.message + self.replica * len(replicas)
            case _:
                return self.message

    def of_call(self, operations: int) -> float:
        """A call of the metastore; without operations it is a read."""
        return self.transaction + self.operation * operations if operations else self.message


Queues: TypeAlias = dict[str, deque[tuple[float, Callable[..., None], tuple[Any, ...]]]]
"""What waits: how long it takes, and whom to call with what."""


class TurnQueue:
    """Serves one event at a time; the senders of those that wait take turns, and so do clients
    among themselves."""

    def __init__(self, schedule: Callable[..., None]) -> None:
        self._schedule = schedule
        self._waiting: Queues = {}
        """By sender; whose turn comes next is first."""
        self._clients: Queues = {}
        """The same for clients, who share one place."""
        self._served = ""
        """Whose event is being handled; empty: nobody's."""
        self._left = 0
        """How many more events of the same sender may follow in its turn."""
        self._turns = 0

    def __len__(self) -> int:
        return sum(
            len(queue) for queues in (self._waiting, self._clients) for queue in queues.values()
        )

    def has(self, sender: str) -> bool:
        """Does an event of this sender wait, or is it being handled?"""
        return sender in self._queues_of(sender) or self._served == sender

    def put(self, sender: str, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call this when its turn has come and the seconds are over."""
        self._queues_of(sender).setdefault(sender, deque()).append((seconds, what, arguments))
        if is_client(sender):
            self._waiting.setdefault(CLIENTS, deque())
        if not self._served:
            self._begin()

    def clear(self) -> None:
        """Forget everything: the process has ended."""
        self._waiting.clear()
        self._clients.clear()
        self._turns += 1
        self._served = ""

    def _queues_of(self, sender: str) -> Queues:
        return self._clients if is_client(sender) else self._waiting

    def _begin(self) -> None:
        self._turns += 1
        if self._left and self._served in self._queues_of(self._served):
            self._left -= 1
        else:
            self._served = next(iter(self._waiting), "")
            if self._served == CLIENTS:
                self._served = next(iter(self._clients))
            self._left = (TOGETHER if is_client(self._served) else FRAME) - 1
        if self._served:
            queues = self._queues_of(self._served)
            queue = queues[self._served]
            seconds, what, arguments = queue.popleft()
            if not self._left or not queue:
                self._go_last(queues)
            self._schedule(seconds, self._end, self._turns, what, arguments)

    def _go_last(self, queues: Queues) -> None:
        """The turn has ended; what still waits has its next turn after all others."""
        queue = queues.pop(self._served)
        if queue:
            queues[self._served] = queue
        if queues is self._clients:
            del self._waiting[CLIENTS]
            if self._clients:
                self._waiting[CLIENTS] = deque()

    def _end(self, turn: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if turn == self._turns:
            what(*arguments)
        if turn == self._turns:  # otherwise the process has ended
            self._begin()


def is_client(sender: str) -> bool:
    return sender[:1] == "c"


def sender_of(event: Any) -> str:
    """Which thread delivers the event?"""
    if isinstance(event, Received):
        return event.sender
    return type(event).__name__


def size_of(together: list[Commit]) -> int:
    """The operations of a united commit."""
    guards = {key for commit in together for key in commit.guards}
    return len(guards) + sum(len(commit.changes) for commit in together)
