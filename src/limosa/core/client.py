"""What does a client do next? It routes by its cached topology, and refreshes it when told.

A write keeps its (producer, sequence) over every attempt, so that trying again is safe. Its outcome
is definite only if no attempt is left that may still take effect.
"""

from bisect import bisect_left, bisect_right, insort_right
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.core import routing
from limosa.core.effects import Effect, ReadTopology, Send
from limosa.core.events import Disconnected, Received, Ticked, TopologyRead
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
from limosa.core.model.keys import WHOLE, NodeId, PartitionId, Position, TokenRange, ZoneId
from limosa.core.model.rows import Rows, Starts
from limosa.core.model.topology import Layout, Partition

OperationOutcome: TypeAlias = Literal["done", "mismatch", "failed", "unknown"]


class ClientSettings(Struct, frozen=True):
    attempt_seconds: float = 1.0
    again_seconds_min: float = 0.005
    """After the first refusal; twice as long after each further one."""
    again_seconds: float = 0.1
    """At most so long."""
    operation_seconds: float = 6.0
    patience_seconds: float = 0.0
    """How long a write waits for replicas that are missing, before it fails."""


class Asked(Struct, frozen=True, gc=False):
    """The application wants rows written (each with its token), or keys of one token read."""

    id: str
    zone: ZoneId
    rows: Rows | None = None
    expected: Position | None = None
    keys: object = ()
    table: str = ""
    token: int = 0
    eventual: bool = False
    choice: int = 0
    """Which of the readers an eventual read asks."""


class Finished(Effect, frozen=True, gc=False):
    """The application's answer."""

    id: str
    outcome: OperationOutcome
    """`failed`: it surely did not happen. `unknown`: it may have, or may yet."""
    value: object = None


ClientEvent: TypeAlias = Asked | Received | TopologyRead | Disconnected | Ticked


class Part:
    """The rows of one operation that go to one partition."""

    __slots__ = (
        "after",
        "done",
        "entry",
        "id",
        "node",
        "partition",
        "range",
        "rows",
        "tries",
        "version",
    )

    def __init__(self, rows: Rows | None, held: TokenRange = WHOLE) -> None:
        self.rows = rows
        self.range = held
        self.partition: PartitionId | None = None
        self.version = 0
        """Of the layout that it was split by; 0: there was none yet."""
        self.id = ""
        """Of the attempt that is under way."""
        self.node = ""
        """Whom it was sent to."""
        self.after = 0
        """The sequence that must come first."""
        self.entry = 0
        """Of what is due: only the last one that was made for this part counts."""
        self.tries = 0
        """How often it was told to come again."""
        self.done = False
        """It is written, or it was split again."""


class ClientOperation:
    """What the application waits for."""

    __slots__ = (
        "asked",
        "attempts",
        "blocked",
        "deadline",
        "earlier",
        "impatient_at",
        "later",
        "left",
        "maybe",
        "number",
        "parts",
        "routed",
        "sequence",
        "under_way",
        "value",
        "version",
    )

    def __init__(self, asked: Asked, number: int, sequence: int, deadline: float) -> None:
        self.asked = asked
        self.number = number
        self.sequence = sequence
        self.deadline = deadline
        self.impatient_at: float | None = None
        """Since a refusal that may pass: when it counts."""
        self.parts: list[Part] = []
        self.left = 0
        """How many of them are not done."""
        self.version = 0
        """Of the layout that all of them were split by; 0: there is no such one."""
        self.routed: dict[PartitionId, Part] = {}
        """Then, by their partition."""
        self.under_way: dict[str, Part] = {}
        self.attempts = 0
        self.maybe = False
        """An attempt is unanswered, or was answered by one who may still commit it."""
        self.value: object = None
        self.earlier: ClientOperation | None = None
        self.later: ClientOperation | None = None
        """The unfinished writes before and after it."""
        self.blocked: list[tuple[ClientOperation, Part]] = []
        """What waits for this one."""

    def take(self, parts: list[Part]) -> None:
        """These are its parts from now on."""
        self.parts = parts
        self.left = sum(not part.done for part in parts)
        versions = {part.version for part in parts}
        self.version = versions.pop() if len(versions) == 1 else 0
        self.routed = {part.partition: part for part in parts if part.partition is not None}

    def touches(self, part: Part) -> bool:
        """Some of its rows that are not acknowledged may lie in the range of that part."""
        if self.version and self.version == part.version and part.partition is not None:
            mine = self.routed.get(part.partition)
            return mine is not None and not mine.done
        return any(not mine.done and _has_rows_in(mine, part.range) for mine in self.parts)


def _has_rows_in(part: Part, held: TokenRange) -> bool:
    """A part has rows; if it lies within the range, so do they."""
    if held.start <= part.range.start and part.range.end <= held.end:
        return True
    apart = held.end <= part.range.start or part.range.end <= held.start
    return not apart and part.rows is not None and bool(len(part.rows.within(held)))


class Lanes:
    """Which unfinished writes go to a partition, in the order of their sequences?

    Right at a glance as long as all of a zone's writes were split by the same layout.
    """

    __slots__ = ("_lanes", "_versions")

    def __init__(self) -> None:
        self._lanes: dict[PartitionId, list[tuple[int, Part]]] = {}
        self._versions: dict[ZoneId, dict[int, int]] = {}
        """How many writes were split by which version of their zone's layout."""

    def enter(self, operation: ClientOperation, parts: Iterable[Part]) -> None:
        versions = self._versions.setdefault(operation.asked.zone, {})
        versions[operation.version] = versions.get(operation.version, 0) + 1
        for part in parts:
            if part.partition is not None:
                lane = self._lanes.setdefault(part.partition, [])
                insort_right(lane, (operation.sequence, part), key=_sequence)

    def leave(self, operation: ClientOperation, parts: Iterable[Part]) -> None:
        """The parts are done."""
        versions = self._versions[operation.asked.zone]
        versions[operation.version] -= 1
        if not versions[operation.version]:
            del versions[operation.version]
        for part in parts:
            lane = self._lanes.get(part.partition or "", [])
            first = next((n for n, (_, other) in enumerate(lane) if not other.done), len(lane))
            del lane[:first]
            if part.partition is not None and not lane:
                self._lanes.pop(part.partition, None)

    def before(self, operation: ClientOperation, part: Part) -> int | None:
        """The sequence that comes before it there, 0 if none does; None: it is not so simple."""
        versions = self._versions[operation.asked.zone]
        if part.partition is None or len(versions) > 1 or part.version not in versions:
            return None
        lane = self._lanes[part.partition]
        start = stop = bisect_left(lane, operation.sequence, key=_sequence)
        while start and lane[start - 1][1].done:
            start -= 1
        del lane[start:stop]  # nobody looks for those again
        return lane[start - 1][0] if start else 0


def _sequence(entry: tuple[int, Part]) -> int:
    return entry[0]


class Client:
    """The brain of one run of one client, which is one producer: another run needs another name."""

    def __init__(self, producer: str, settings: ClientSettings) -> None:
        self.producer = producer
        self.settings = settings
        self.topology = Topology()
        self.operations: dict[str, ClientOperation] = {}
        self.out: list[Effect] = []
        self._sequence = 0
        self._asked = 0
        self._writes: dict[int, ClientOperation] = {}
        """Unfinished ones, by their sequence."""
        self._lanes = Lanes()
        self._first: ClientOperation | None = None
        self._last: ClientOperation | None = None
        self._due: list[tuple[float, int, str, Part | None]] = []
        """A heap: when which part goes again, or an operation ends without an answer. What has
        ended stays in it for a while."""
        self._entries = 0
        self._starts: dict[ZoneId, tuple[Layout, Starts]] = {}
        self._refreshed_at = -1e9
        self._sent: deque[tuple[ClientOperation, Part]] = deque()
        """Writes that others wait for, and that are under way since a moment ago."""

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
                    self._route_again(now)
            case Disconnected(node=node):
                self._disconnected(now, node)
            case Ticked():
                self._send_due(now)
        self._send_followers(now)
        return self.out

    def next_due(self) -> float | None:
        """When there will be something to do if nothing else happens: tick then at the latest."""
        while self._due and not self._is_due(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _is_due(self, at: float, entry: int, id: str, part: Part | None) -> bool:
        operation = self.operations.get(id)
        if operation is None:
            return False
        return operation.deadline == at if part is None else not part.done and part.entry == entry

    def _ask(self, now: float, asked: Asked) -> None:
        self._asked += 1
        sequence = 0
        if asked.rows is not None:
            self._sequence += 1
            sequence = self._sequence
        operation = ClientOperation(
            asked, self._asked, sequence, now + self.settings.operation_seconds
        )
        self.operations[asked.id] = operation
        if sequence:
            self._link(operation)
        self._schedule(operation.deadline, operation, None)
        operation.take(self._split(asked, asked.rows))
        if sequence:
            self._lanes.enter(operation, operation.parts)
        for part in operation.parts:
            self._send(now, operation, part)
        if not operation.parts:
            self._finish(operation, "done", 0)

    def _link(self, operation: ClientOperation) -> None:
        self._writes[operation.sequence] = operation
        operation.earlier = self._last
        if self._last is None:
            self._first = operation
        else:
            self._last.later = operation
        self._last = operation

    def _unlink(self, operation: ClientOperation) -> None:
        del self._writes[operation.sequence]
        earlier, later = operation.earlier, operation.later
        operation.earlier = operation.later = None
        if earlier is None:
            self._first = later
        else:
            earlier.later = later
        if later is None:
            self._last = earlier
        else:
            later.earlier = earlier

    def _schedule(self, at: float, operation: ClientOperation, part: Part | None) -> None:
        self._entries += 1
        if part is not None:
            part.entry = self._entries
        heappush(self._due, (at, self._entries, operation.asked.id, part))

    def _split(self, asked: Asked, rows: Rows | None) -> list[Part]:
        """By the layout of now; rows that were routed by another one are split again."""
        layout = self.topology.layouts.get(asked.zone)
        if layout is None:
            return [Part(rows)]
        shares: Sequence[tuple[int, Rows | None]]
        if rows is None:
            shares = [(bisect_right(layout.starts, asked.token) - 1, None)]
        else:
            shares = rows.split(self._starts_of(layout))
        parts = []
        for index, share in shares:
            part = Part(share, layout.range_of(index))
            part.partition = layout.partitions[index]
            part.version = layout.version
            parts.append(part)
        return parts

    def _starts_of(self, layout: Layout) -> Starts:
        known = self._starts.get(layout.zone)
        if known is None or known[0] is not layout:
            known = self._starts[layout.zone] = (layout, Starts(layout.starts))
        return known[1]

    # --- sending

    def _send_due(self, now: float) -> None:
        parts: dict[int, tuple[ClientOperation, list[Part]]] = {}
        while self._due and self._due[0][0] <= now:
            entry = heappop(self._due)
            if not self._is_due(*entry):
                continue
            operation, part = self.operations[entry[2]], entry[3]
            if part is None:
                self._give_up(now, operation, "no answer in time")
            else:
                parts.setdefault(operation.number, (operation, []))[1].append(part)
        for _, (operation, due) in sorted(parts.items(), key=lambda item: item[0]):
            if operation.asked.id in self.operations:
                self._send_parts(now, operation, due)

    def _route_again(self, now: float) -> None:
        """By a newer topology: what waits, and what is on its way to somebody of the past."""
        for operation in list(self.operations.values()):
            zone = operation.asked.zone
            if operation.version and zone not in self.topology.layouts:
                self._give_up(now, operation, f"its table was dropped, with zone {zone}")
                continue
            due = [p for p in operation.parts if not p.done and self._is_elsewhere(operation, p)]
            if due:
                self._send_parts(now, operation, due)

    def _is_elsewhere(self, operation: ClientOperation, part: Part) -> bool:
        """It is not under way, or it is on its way to somebody who is not asked any more."""
        record = None if part.partition is None else self.topology.partitions.get(part.partition)
        return not part.id or record is None or self._node(operation.asked, record) != part.node

    def _disconnected(self, now: float, node: NodeId) -> None:
        """What was under way to it may have arrived. It goes again, by a fresh topology."""
        for operation in self.operations.values():
            lost = [part for part in operation.under_way.values() if part.node == node]
            for part in lost:
                operation.maybe |= part.rows is not None
                self._later(now, operation, part)
                self._refresh(now)

    def _give_up(self, now: float, operation: ClientOperation, why: str) -> None:
        maybe = operation.maybe or any(part.id or part.done for part in operation.parts)
        self._end(now, operation, "unknown" if maybe else "failed", why)

    def _send_parts(self, now: float, operation: ClientOperation, due: list[Part]) -> None:
        """Route them again; an attempt that was not answered may still take effect."""
        for part in due:
            if part.id:
                self._refresh(now)
                operation.maybe |= part.rows is not None
                self._forget_attempt(operation, part)
        layout = self.topology.layouts.get(operation.asked.zone)
        if any(layout is not None and part.version != layout.version for part in due):
            due = self._split_again(operation, due)
        for part in due:
            self._send(now, operation, part)

    def _split_again(self, operation: ClientOperation, due: list[Part]) -> list[Part]:
        again: list[Part] = []
        for part in due:
            part.done = True
            for each in self._split(operation.asked, part.rows):
                each.tries = part.tries
                again.append(each)
        replaced = {id(part) for part in due}
        kept = [part for part in operation.parts if id(part) not in replaced]
        if operation.sequence:
            self._lanes.leave(operation, due)
        operation.take(kept + again)
        if operation.sequence:
            self._lanes.enter(operation, again)
        return again

    def _send(self, now: float, operation: ClientOperation, part: Part) -> None:
        record = None if part.partition is None else self.topology.partitions.get(part.partition)
        node = None if record is None else self._node(operation.asked, record)
        if record is None or node is None:
            self._later(now, operation, part)
            self._refresh(now)
            return
        self._schedule(now + self.settings.attempt_seconds, operation, part)
        held_up = self._held_up_by(operation, part)
        if held_up is not None:
            part.after = held_up.sequence
            held_up.blocked.append((operation, part))
            return
        operation.attempts += 1
        part.node, part.after = node, 0
        part.id = f"{operation.asked.id}.{operation.attempts}"
        operation.under_way[part.id] = part
        message = self._read(operation, part, record)
        if part.rows is not None:
            message = self._write(operation, part, part.rows, record)
        self.out.append(Send(node, message))
        if operation.blocked:
            self._sent.append((operation, part))

    def _held_up_by(self, operation: ClientOperation, part: Part) -> ClientOperation | None:
        """Who comes first and is not under way: sent before it, this would only be sent back."""
        if part.rows is None:
            return None
        before = self._writes.get(self._after(operation, part))
        first = None if before is None else before.routed.get(part.partition or "")
        return before if first is not None and not (first.done or first.id) else None

    def _send_followers(self, now: float) -> None:
        """What waited for a write that is under way now goes right behind it, and so on."""
        while self._sent:
            operation, sent = self._sent.popleft()
            for other, part in operation.blocked:
                follows = part.partition == sent.partition and part.after == operation.sequence
                waits = follows and not (part.id or part.done)
                if waits and self.operations.get(other.asked.id) is other:
                    self._send_parts(now, other, [part])

    def _read(self, operation: ClientOperation, part: Part, record: Partition) -> Read | Write:
        asked = operation.asked
        return Read(
            part.id,
            record.id,
            part.version,
            record.epoch,
            self.topology.revision_of(record.id),
            asked.keys,
            asked.table,
            asked.eventual,
        )

    def _write(
        self, operation: ClientOperation, part: Part, rows: Rows, record: Partition
    ) -> Write:
        return Write(
            part.id,
            record.id,
            part.version,
            record.epoch,
            self.producer,
            operation.sequence,
            self._after(operation, part),
            self._floor(operation),
            part.range,
            rows,
            operation.asked.expected,
        )

    def _node(self, asked: Asked, record: Partition) -> str | None:
        if asked.eventual:
            readers = routing.readers(record)
            return readers[asked.choice % len(readers)].node
        return None if record.owner is None else record.owner.replica.node

    def _floor(self, operation: ClientOperation) -> int:
        """Nothing below this sequence is waited for any more."""
        return (self._first or operation).sequence

    def _after(self, operation: ClientOperation, part: Part) -> int:
        """The write before this one that touches the same range and is not acknowledged yet."""
        before = self._lanes.before(operation, part)
        if before is not None:
            return before
        other = operation.earlier
        while other is not None:
            if other.asked.zone == operation.asked.zone and other.touches(part):
                return other.sequence
            other = other.earlier
        return 0

    def _refresh(self, now: float) -> None:
        if now - self._refreshed_at >= self.settings.again_seconds / 2:
            self._refreshed_at = now
            self.out.append(ReadTopology())

    # --- answers

    def _answered(self, now: float, answer: Answer) -> None:
        operation = self.operations.get(answer.id.rsplit(".", 1)[0])
        part = None if operation is None else operation.under_way.get(answer.id)
        if operation is None or part is None:
            return
        match answer:
            case Written() | Found():
                self._forget_attempt(operation, part)
                part.done = True
                operation.left -= 1
                operation.value = answer.at if isinstance(answer, Written) else answer.rows
                if not operation.left:
                    self._end(now, operation, "done", operation.value)
            case Mismatched(found=found):
                self._end(now, operation, "mismatch", found)
            case Redirect(definite=definite):
                operation.maybe |= not definite
                self._later(now, operation, part)
                self._refresh(now)
            case Wait(after=after):
                self._later(now, operation, part)
                part.after = after
                awaited = self._writes.get(after)
                if awaited is not None:
                    awaited.blocked.append((operation, part))
                self._refresh(now)
            case Refuse(code="NotEnoughReplicas") if self._has_patience(now, operation):
                self._later(now, operation, part)
            case Refuse():
                others = any(each.done or each.id for each in operation.parts if each is not part)
                unknown = operation.maybe or others
                self._end(now, operation, "unknown" if unknown else "failed", answer)

    def _has_patience(self, now: float, operation: ClientOperation) -> bool:
        """A replica that was taken out is often back soon."""
        if operation.impatient_at is None:
            operation.impatient_at = now + self.settings.patience_seconds
        return now < operation.impatient_at

    def _later(self, now: float, operation: ClientOperation, part: Part) -> None:
        """Soon, and then less and less soon."""
        self._forget_attempt(operation, part)
        seconds = self.settings.again_seconds_min * 2 ** min(part.tries, 20)
        part.tries += 1
        self._schedule(now + min(seconds, self.settings.again_seconds), operation, part)

    def _forget_attempt(self, operation: ClientOperation, part: Part) -> None:
        operation.under_way.pop(part.id, None)
        part.id = ""

    def _end(
        self, now: float, operation: ClientOperation, outcome: OperationOutcome, value: object
    ) -> None:
        self._finish(operation, outcome, value)
        for other, part in operation.blocked:
            waits = part.after == operation.sequence and not (part.id or part.done)
            if waits and self.operations.get(other.asked.id) is other:
                self._send_parts(now, other, [part])

    def _finish(
        self, operation: ClientOperation, outcome: OperationOutcome, value: object = None
    ) -> None:
        del self.operations[operation.asked.id]
        for part in operation.parts:
            part.done, part.rows = True, None
        if operation.sequence:
            self._unlink(operation)
            self._lanes.leave(operation, operation.parts)
        self.out.append(Finished(operation.asked.id, outcome, value))
