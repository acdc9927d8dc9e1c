"""What does a client do now? It routes by its cached topology, and by a fresh one when told.

A write keeps its (producer, sequence) over every attempt, so that trying again is safe. Its outcome
is definite only if no attempt is left that may still take effect.
"""

from bisect import bisect_right
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.core import routing
from limosa.core.effects import Effect, ReadTopology, Send
from limosa.core.events import Received, Ticked, TopologyRead
from limosa.core.messages import (
    Answer,
    Found,
    Mismatched,
    Read,
    Redirect,
    Refuse,
    Wait,
    Write,
    Written,
)
from limosa.core.model.changes import Topology
from limosa.core.model.keys import PartitionId, Position, TokenRange, ZoneId
from limosa.core.model.rows import Rows
from limosa.core.model.topology import Partition


class Settings(Struct, frozen=True):
    attempt_seconds: float = 1.0
    again_seconds: float = 0.1
    operation_seconds: float = 6.0


class Asked(Struct, frozen=True, gc=False):
    """The application wants rows written (each with its token), or keys of one token read."""

    id: str
    zone: ZoneId
    rows: Rows | None = None
    expected: Position | None = None
    keys: tuple[str, ...] = ()
    token: int = 0
    eventual: bool = False
    choice: int = 0
    """Which of the readers an eventual read asks."""


class Finished(Effect, frozen=True, gc=False):
    """The application's answer."""

    id: str
    outcome: Literal["done", "mismatch", "failed", "unknown"]
    """`failed`: it surely did not happen. `unknown`: it may have, or may yet."""
    value: object = None


ClientEvent: TypeAlias = Asked | Received | TopologyRead | Ticked


class Part:
    """The rows of one operation that go to one partition."""

    __slots__ = ("after", "done", "id", "node", "partition", "range", "retry_at", "rows")

    def __init__(self, rows: Rows | None, held: TokenRange) -> None:
        self.rows = rows
        self.range = held
        self.partition: PartitionId | None = None
        self.id = ""
        """Of the attempt that is under way."""
        self.node = ""
        """Whom it was sent to."""
        self.after = 0
        """The sequence that must come first."""
        self.retry_at = 0.0
        self.done = False


class Operation:
    """What the application waits for."""

    __slots__ = ("asked", "attempts", "deadline", "maybe", "parts", "sequence", "value")

    def __init__(self, asked: Asked, sequence: int, deadline: float) -> None:
        self.asked = asked
        self.sequence = sequence
        self.deadline = deadline
        self.parts: list[Part] = []
        self.attempts = 0
        self.maybe = False
        """An attempt is unanswered, or was answered by one who may still commit it."""
        self.value: object = None


class Client:
    """The brain of one run of one client, which is one producer: another run needs another name."""

    def __init__(self, producer: str, settings: Settings) -> None:
        self.producer = producer
        self.settings = settings
        self.topology = Topology()
        self.operations: dict[str, Operation] = {}
        self.out: list[Effect] = []
        self._sequence = 0
        self._refreshed_at = -1e9

    def handle(self, now: float, event: ClientEvent) -> list[Effect]:
        self.out = []
        match event:
            case Asked():
                self._ask(now, event)
            case Received(message=Answer() as answer):
                self._answered(now, answer)
            case TopologyRead(topology=topology):
                if topology.generation > self.topology.generation:
                    self.topology = topology
                    self._send_due(now, refreshed=True)
            case Ticked():
                self._send_due(now, refreshed=False)
        return self.out

    def _ask(self, now: float, asked: Asked) -> None:
        sequence = 0
        if asked.rows is not None:
            self._sequence += 1
            sequence = self._sequence
        operation = Operation(asked, sequence, now + self.settings.operation_seconds)
        self.operations[asked.id] = operation
        operation.parts = self._split(operation, asked.rows, None)
        for part in operation.parts:
            self._send(now, operation, part)

    def _split(
        self, operation: Operation, rows: Rows | None, held: TokenRange | None
    ) -> list[Part]:
        """By the layout of now; rows that were routed by another one are split again."""
        layout = self.topology.layouts.get(operation.asked.zone)
        if layout is None:
            return [Part(rows, held or TokenRange(-(2**63), 2**63))]
        if rows is None:
            index = bisect_right(layout.starts, operation.asked.token) - 1
            parts = [Part(None, layout.range_of(index))]
            parts[0].partition = layout.partitions[index]
            return parts
        parts = []
        for index, partition in enumerate(layout.partitions):
            mine = rows.within(layout.range_of(index))
            if len(mine):
                part = Part(mine, layout.range_of(index))
                part.partition = partition
                parts.append(part)
        return parts

    # --- sending

    def _send_due(self, now: float, refreshed: bool) -> None:
        for operation in list(self.operations.values()):
            if now >= operation.deadline:
                self._give_up(operation)
                continue
            due = [
                part
                for part in operation.parts
                if not part.done
                and (now >= part.retry_at or (refreshed and self._is_elsewhere(operation, part)))
            ]
            if any(part.id for part in due):
                self._refresh(now)
            if due:
                self._send_parts(now, operation, due)

    def _is_elsewhere(self, operation: Operation, part: Part) -> bool:
        """It is not under way, or it is on its way to somebody who is not asked any more."""
        record = None if part.partition is None else self.topology.partitions.get(part.partition)
        return not part.id or record is None or self._node(operation.asked, record) != part.node

    def _give_up(self, operation: Operation) -> None:
        maybe = operation.maybe or any(part.id or part.done for part in operation.parts)
        self._finish(operation, "unknown" if maybe else "failed", "no answer in time")

    def _send_parts(self, now: float, operation: Operation, due: list[Part]) -> None:
        """Route them again; an attempt that was not answered may still take effect."""
        parts = [part for part in operation.parts if part not in due]
        again = []
        for part in due:
            operation.maybe |= part.rows is not None and bool(part.id)
            again += self._split(operation, part.rows, part.range)
        operation.parts = parts + again
        for part in again:
            self._send(now, operation, part)

    def _send(self, now: float, operation: Operation, part: Part) -> None:
        part.retry_at = now + self.settings.attempt_seconds
        record = None if part.partition is None else self.topology.partitions.get(part.partition)
        node = None if record is None else self._node(operation.asked, record)
        if record is None or node is None:
            part.retry_at = now + self.settings.again_seconds
            self._refresh(now)
            return
        operation.attempts += 1
        part.node, part.after = node, 0
        part.id = f"{operation.asked.id}.{operation.attempts}"
        version = self.topology.layouts[operation.asked.zone].version
        if part.rows is None:
            revision = self.topology.revision_of(record.id)
            asked = operation.asked
            self.out.append(
                Send(
                    node,
                    Read(
                        part.id,
                        record.id,
                        version,
                        record.epoch,
                        revision,
                        asked.keys,
                        asked.eventual,
                    ),
                )
            )
            return
        self.out.append(
            Send(
                node,
                Write(
                    part.id,
                    record.id,
                    version,
                    record.epoch,
                    self.producer,
                    operation.sequence,
                    self._after(operation, part),
                    self._floor(),
                    part.range,
                    part.rows,
                    operation.asked.expected,
                ),
            )
        )

    def _node(self, asked: Asked, record: Partition) -> str | None:
        if asked.eventual:
            readers = routing.readers(record)
            return readers[asked.choice % len(readers)].node
        return None if record.owner is None else record.owner.replica.node

    def _floor(self) -> int:
        """Nothing below this sequence is waited for any more."""
        return min(op.sequence for op in self.operations.values() if op.sequence)

    def _after(self, operation: Operation, part: Part) -> int:
        """The write before this one that touches the same range and is not acknowledged yet."""
        earlier = [
            other.sequence
            for other in self.operations.values()
            if 0 < other.sequence < operation.sequence
            and any(
                mine.rows is not None and not mine.done and len(mine.rows.within(part.range))
                for mine in other.parts
            )
        ]
        return max(earlier, default=0)

    def _refresh(self, now: float) -> None:
        if now - self._refreshed_at >= self.settings.again_seconds / 2:
            self._refreshed_at = now
            self.out.append(ReadTopology())

    # --- answers

    def _answered(self, now: float, answer: Answer) -> None:
        operation = self.operations.get(answer.id.rsplit(".", 1)[0])
        if operation is None:
            return
        part = next((p for p in operation.parts if p.id == answer.id and not p.done), None)
        if part is None:
            return
        match answer:
            case Written() | Found():
                part.done = True
                operation.value = answer.at if isinstance(answer, Written) else answer.rows
                if all(each.done for each in operation.parts):
                    self._finish(operation, "done", operation.value)
                    self._send_next(now, operation.sequence)
            case Mismatched(found=found):
                self._finish(operation, "mismatch", found)
            case Redirect(definite=definite):
                operation.maybe |= not definite
                self._later(now, part)
                self._refresh(now)
            case Wait(after=after):
                self._later(now, part)
                part.after = after
                self._refresh(now)
            case Refuse(why=why):
                others = any(each.done or each.id for each in operation.parts if each is not part)
                unknown = operation.maybe or others
                self._finish(operation, "unknown" if unknown else "failed", why)

    def _send_next(self, now: float, sequence: int) -> None:
        """What had to wait for this sequence goes at once."""
        for operation in list(self.operations.values()):
            due = [part for part in operation.parts if part.after == sequence and not part.id]
            if sequence and due:
                self._send_parts(now, operation, due)

    def _later(self, now: float, part: Part) -> None:
        part.id = ""
        part.retry_at = now + self.settings.again_seconds

    def _finish(self, operation: Operation, outcome: str, value: object = None) -> None:
        del self.operations[operation.asked.id]
        self.out.append(Finished(operation.asked.id, outcome, value))  # type: ignore[arg-type]
