"""What does a client do next? It routes by its cached topology, and refreshes that when told to.

All attempts of a write have the same (producer, sequence), so that a retry is safe. The outcome of
a write is definite only if none of its attempts can take effect any more.
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


LARGE_BYTES = 4 << 20


class ClientSettings(Struct, frozen=True):
    attempt_seconds: float = 1.0
    again_seconds_min: float = 0.005
    """The pause before the first retry; it doubles with each further retry."""
    again_seconds: float = 0.1
    """The longest pause before a retry."""
    operation_seconds: float = 6.0
    patience_seconds: float = 0.0
    """How long a write waits for replicas that are missing, before it fails."""


class Asked(Struct, frozen=True, gc=False):
    """The application asks to write rows (each with its token), or to read keys of one token."""

    id: str
    zone: ZoneId
    rows: Rows | None = None
    expected: Position | None = None
    keys: object = ()
    table: str = ""
    token: int = 0
    eventual: bool = False
    choice: int = 0
    """Selects the replica that an eventual read asks."""


class Finished(Effect, frozen=True, gc=False):
    """The application's answer."""

    id: str
    outcome: OperationOutcome
    """`failed`: the write did not happen. `unknown`: it may have happened, or may happen yet."""
    value: object = None


ClientEvent: TypeAlias = Asked | Received | TopologyRead | Disconnected | Ticked


class Part(Struct, eq=False):
    """The rows of one operation that go to one partition."""

    rows: Rows | None
    range: TokenRange = WHOLE
    partition: PartitionId | None = None
    version: int = 0
    """The version of the layout by which the rows were split; 0: no layout was known yet."""
    id: str = ""
    """The id of the attempt that is under way; empty: none is."""
    node: NodeId = ""
    """The node that the last attempt was sent to."""
    after: int = 0
    """The sequence that must be written first."""
    entry: int = 0
    """The number of the last entry in the heap for this part; earlier entries do not count."""
    tries: int = 0
    """How often a node asked for a retry."""
    done: bool = False
    """The part is acknowledged, or was split again."""


class ClientOperation(Struct, eq=False):
    """A read or write that the application waits for."""

    asked: Asked
    number: int
    sequence: int
    deadline: float
    impatient_at: float | None = None
    """After a temporary refusal: the time from which such a refusal ends the operation."""
    parts: list[Part] = []
    left: int = 0
    """How many parts are not done."""
    version: int = 0
    """The version of the layout by which all parts were split; 0: there is no such version."""
    routed: dict[PartitionId, Part] = {}
    """The parts, by partition."""
    under_way: dict[str, Part] = {}
    """The parts whose attempts are unanswered, by attempt."""
    attempts: int = 0
    maybe: bool = False
    """An attempt may still be committed: it timed out, or a former owner has it in its log."""
    value: object = None
    earlier: "ClientOperation | None" = None
    later: "ClientOperation | None" = None
    """The unfinished writes before and after this one."""
    blocked: "list[tuple[ClientOperation, Part]]" = []
    """Parts of other operations that wait for this one."""

    def take(self, parts: list[Part]) -> None:
        """Replace the parts."""
        self.parts = parts
        self.left = sum(not part.done for part in parts)
        versions = {part.version for part in parts}
        self.version = versions.pop() if len(versions) == 1 else 0
        self.routed = {part.partition: part for part in parts if part.partition is not None}

    def touches(self, part: Part) -> bool:
        """Can unacknowledged rows of this operation lie in the range of that part?"""
        if self.version and self.version == part.version and part.partition is not None:
            mine = self.routed.get(part.partition)
            return mine is not None and not mine.done
        return any(not mine.done and _has_rows_in(mine, part.range) for mine in self.parts)


def _has_rows_in(part: Part, token_range: TokenRange) -> bool:
    """A part is never empty, so a part that lies within the range has rows there."""
    start, end = token_range.start, token_range.end
    if start <= part.range.start and part.range.end <= end:
        return True
    apart = end <= part.range.start or part.range.end <= start
    return not apart and part.rows is not None and bool(len(part.rows.within(token_range)))


class Lanes:
    """Which unfinished writes go to a partition, in the order of their sequences?

    The lanes give the answer only while all writes of a zone were split by the same layout.
    """

    __slots__ = ("_lanes", "_versions")

    def __init__(self) -> None:
        self._lanes: dict[PartitionId, list[tuple[int, Part]]] = {}
        self._versions: dict[ZoneId, dict[int, int]] = {}
        """The number of writes that were split by each version of a zone's layout."""

    def enter(self, operation: ClientOperation, parts: Iterable[Part]) -> None:
        versions = self._versions.setdefault(operation.asked.zone, {})
        versions[operation.version] = versions.get(operation.version, 0) + 1
        for part in parts:
            if part.partition is not None:
                lane = self._lanes.setdefault(part.partition, [])
                insort_right(lane, (operation.sequence, part), key=_sequence)

    def leave(self, operation: ClientOperation, parts: Iterable[Part]) -> None:
        """These parts of the operation are done."""
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
        """The sequence before the operation's in this lane, 0 if it is the first; None: the lanes
        can't tell, since writes of the zone were split by different layouts."""
        versions = self._versions[operation.asked.zone]
        if part.partition is None or len(versions) > 1 or part.version not in versions:
            return None
        lane = self._lanes[part.partition]
        start = stop = bisect_left(lane, operation.sequence, key=_sequence)
        while start and lane[start - 1][1].done:
            start -= 1
        del lane[start:stop]  # parts that are done are never looked up again
        return lane[start - 1][0] if start else 0


def _sequence(entry: tuple[int, Part]) -> int:
    return entry[0]


class Client:
    """The brain of one client session, which is one producer: every session needs its own name."""

    def __init__(self, producer: str, settings: ClientSettings) -> None:
        self.producer = producer
        self.settings = settings
        self.topology = Topology()
        self.operations: dict[str, ClientOperation] = {}
        self.out: list[Effect] = []
        self._sequence = 0
        self._asked = 0
        self._writes: dict[int, ClientOperation] = {}
        """Unfinished writes, by sequence."""
        self._lanes = Lanes()
        self._first: ClientOperation | None = None
        self._last: ClientOperation | None = None
        self._due: list[tuple[float, int, str, Part | None]] = []
        """A heap of times: when a part is retried, or (without a part) when an operation times out.
        Entries of ended operations stay in it until they are due."""
        self._entries = 0
        self._starts: dict[ZoneId, tuple[Layout, Starts]] = {}
        self._refreshed_at = -1e9
        self._sent: deque[tuple[ClientOperation, Part]] = deque()
        """Writes that were just sent and that others wait for."""

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
        """The parts of an operation, or of a part that an older layout split, by today's layout."""
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
            name = layout.partitions[index]
            parts.append(Part(share, layout.range_of(index), name, layout.version))
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
        """The topology is newer: send parts that wait, and parts that went to a former owner."""
        for operation in list(self.operations.values()):
            zone = operation.asked.zone
            if operation.version and zone not in self.topology.layouts:
                self._give_up(now, operation, f"its table was dropped, with zone {zone}")
                continue
            due = [p for p in operation.parts if not p.done and self._is_elsewhere(operation, p)]
            if due:
                self._send_parts(now, operation, due)

    def _is_elsewhere(self, operation: ClientOperation, part: Part) -> bool:
        """The part is not under way, or was sent to a node that is not asked any more."""
        record = None if part.partition is None else self.topology.partitions.get(part.partition)
        return not part.id or record is None or self._node(operation.asked, record) != part.node

    def _disconnected(self, now: float, node: NodeId) -> None:
        """Retry what was sent to the node, by a fresh topology; it may have arrived, too."""
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
        """Route parts again; an attempt that was not answered may still take effect."""
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
        self._schedule(now + self._attempt_seconds(part), operation, part)
        first = self._must_follow(operation, part)
        if first is not None:
            part.after = first.sequence
            first.blocked.append((operation, part))
            return
        operation.attempts += 1
        part.node, part.after = node, 0
        part.id = f"{operation.asked.id}.{operation.attempts}"
        operation.under_way[part.id] = part
        self.out.append(Send(node, self._message(operation, part, record)))
        if operation.blocked:
            self._sent.append((operation, part))

    def _attempt_seconds(self, part: Part) -> float:
        """How long an attempt may take. Large rows take longer; if they were sent again too early,
        they would only be slower."""
        size = 0 if part.rows is None else part.rows.bytes
        return self.settings.attempt_seconds * (1 + size // LARGE_BYTES)

    def _must_follow(self, operation: ClientOperation, part: Part) -> ClientOperation | None:
        """The write that must be sent first and is not under way; the owner would refuse the part
        until then."""
        if part.rows is None:
            return None
        before = self._writes.get(self._after(operation, part))
        first = None if before is None else before.routed.get(part.partition or "")
        return before if first is not None and not (first.done or first.id) else None

    def _send_followers(self, now: float) -> None:
        """Send the parts that waited for a write that was just sent, and so on."""
        while self._sent:
            operation, sent = self._sent.popleft()
            self._send_blocked(now, operation, sent.partition)

    def _send_blocked(
        self, now: float, operation: ClientOperation, partition: PartitionId | None = None
    ) -> None:
        """Send the parts that wait for the operation: all of them, or those of one partition."""
        for other, part in operation.blocked:
            follows = partition in (None, part.partition) and part.after == operation.sequence
            waits = follows and not (part.id or part.done)
            if waits and self.operations.get(other.asked.id) is other:
                self._send_parts(now, other, [part])

    def _message(self, operation: ClientOperation, part: Part, record: Partition) -> Read | Write:
        asked = operation.asked
        if part.rows is None:
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
            part.rows,
            asked.expected,
        )

    def _node(self, asked: Asked, record: Partition) -> str | None:
        if asked.eventual:
            readers = routing.readers(record)
            return readers[asked.choice % len(readers)].node
        return None if record.owner is None else record.owner.replica.node

    def _floor(self, operation: ClientOperation) -> int:
        """The client waits for no sequence below this one."""
        return (self._first or operation).sequence

    def _after(self, operation: ClientOperation, part: Part) -> int:
        """The sequence of the last earlier write that touches the same range and is not
        acknowledged; 0: there is none."""
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
        """May the write wait for missing replicas? Often they are back soon."""
        if operation.impatient_at is None:
            operation.impatient_at = now + self.settings.patience_seconds
        return now < operation.impatient_at

    def _later(self, now: float, operation: ClientOperation, part: Part) -> None:
        """Retry the part, after a pause that doubles each time."""
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
        self._send_blocked(now, operation)

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
