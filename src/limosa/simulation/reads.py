"""How does a simulated node answer reads? As a real one does: admitted, viewed, answered.

`core.participant.reading` decides, as in production. Any time may pass between two steps. A step
may also happen in the middle of an event: after the brain has decided, and before its effects have
changed the volume, as in a thread of a real node.
"""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from limosa.core.events import Ticked
from limosa.core.messages import Found, Read, Wait
from limosa.core.participant.reading import Admitted, complete_replicas
from limosa.simulation.rows import ScanOf, SimulatedRow

if TYPE_CHECKING:
    from limosa.simulation.disk import SimulatedView
    from limosa.simulation.hosts import SimulatedNode

SLOW_SECONDS = 0.6


class ReadUnderWay:
    """One read, and its progress."""

    def __init__(self, client: str, message: Read) -> None:
        self.client = client
        self.message = message
        self.admitted: Admitted | None = None
        self.view: SimulatedView | None = None
        self.batches: Iterator[list[SimulatedRow]] | None = None
        self.found: dict[str, tuple[int, object]] = {}

    @property
    def partition(self) -> str:
        return self.message.partition


class NodeReads:
    """The reads of one node in one run, each like a thread beside the event loop."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node
        self._dice = Random(f"reads {node.world.seed} {node.name} {node.starts}")
        self._racing: list[ReadUnderWay] = []
        """Reads that wait to be admitted in the middle of an event."""

    def begin(self, client: str, message: Read) -> None:
        """Admit the read now, or in the middle of an event, often if an owner is about to open."""
        read = ReadUnderWay(client, message)
        owner = self._node.brain.owners.get(message.partition)
        if self._dice.random() < (0.1 if owner is None or owner.open else 0.9):
            self._racing.append(read)
        else:
            self._admit(read)

    def race(self) -> None:
        """Called in the middle of an event: admit some of the waiting reads now."""
        if self._racing:
            racing, self._racing = self._racing, []
            for read in racing:
                if self._dice.random() < 0.5:
                    self._admit(read, at_once=self._dice.random() < 0.5)
                else:
                    self._racing.append(read)

    def _admit(self, read: ReadUnderWay, at_once: bool = False) -> None:
        node = self._node
        admitted = node.brain.reading.admit(node.now, read.message)
        if not isinstance(admitted, Admitted):
            node.send(read.client, admitted)
            if isinstance(admitted, Wait):
                node.later(0.0, lambda _: node.on_event(Ticked()), read)
            return
        read.admitted = admitted
        dice = node.world.dice
        slow = dice.random() < 0.05
        delay = SLOW_SECONDS * dice.random() if slow else 0.0003 * dice.random()
        if at_once:
            self.view(read)
        else:
            node.later(delay, self.view, read)
        if node.on_read is not None:
            happen, node.on_read = node.on_read, None
            happen()

    def view(self, read: ReadUnderWay) -> None:
        """Take the view: the answer shows this moment, however long the rest takes."""
        assert read.admitted is not None
        read.view = self._node.disk.view(*read.admitted.replica)
        if isinstance(read.message.keys, ScanOf):
            self._scan(read)
        elif self._dice.random() < 0.1:
            self._node.later(SLOW_SECONDS * self._dice.random(), self.answer, read)
        else:
            self.answer(read)

    def answer(self, read: ReadUnderWay) -> None:
        assert isinstance(read.message.keys, tuple) and read.admitted is not None
        if self._node.finds_damage(*read.admitted.replica):
            self._node.send(read.client, self._node.brain.reading.unreadable(read.admitted))
            return
        if read.view is not None:
            read.found = {key: read.view.find(key) for key in read.message.keys}
        if self._may_answer(read):
            self._reply(read)

    def _scan(self, read: ReadUnderWay) -> None:
        """Check the view once; then send batches, at the speed of the reader."""
        if self._may_answer(read):
            assert read.view is not None
            read.batches = read.view.scan()
            self._next_batch(read)

    def _next_batch(self, read: ReadUnderWay) -> None:
        assert read.batches is not None
        batch = next(read.batches, None)
        if batch is None:
            self._reply(read)
            return
        read.found |= {row.key: (row.version, row.value) for row in batch}
        delay = SLOW_SECONDS if self._dice.random() < 0.1 else 0.01
        self._node.later(delay * self._dice.random(), self._next_batch, read)

    def _may_answer(self, read: ReadUnderWay) -> bool:
        node, admitted = self._node, read.admitted
        assert admitted is not None
        through = None if read.view is None else read.view.watermark
        refusal = node.brain.reading.check(node.now, admitted, through)
        if refusal is not None:
            node.send(read.client, refusal)
            return False
        record = node.brain.topology.partitions.get(read.partition)
        if admitted.replica not in node.disk.live:
            node.world.violate(f"{node.name} answers from a dropped replica", read.partition)
        elif record is None or admitted.held.replica not in complete_replicas(record):
            node.world.violate(
                f"{node.name} answers from a replica that lacks rows", read.partition
            )
        return True

    def _reply(self, read: ReadUnderWay) -> None:
        keys = read.message.keys
        assert isinstance(keys, tuple)
        rows = tuple(read.found.get(key, (0, None)) for key in keys)
        self._node.send(read.client, Found(read.message.id, rows))
