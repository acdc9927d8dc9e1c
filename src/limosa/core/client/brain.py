"""What does a client do next? It routes by its cached topology, and refreshes that when told to.

All attempts of a write have the same (producer, sequence), so that a retry is safe. The answer to
any attempt counts, however late it arrives. The outcome of a write is definite only if none of its
attempts can take effect any more.
"""

from collections import deque
from heapq import heappop, heappush

from limosa.core.client.asked import Asked, ClientEvent, ClientSettings, Finished, OperationOutcome
from limosa.core.client.gathering import GATHERED_PART_BYTES_MAX, Gathering
from limosa.core.client.operations import ClientOperation, OperationGroup, Part, SentAttempt
from limosa.core.client.order import WriteOrder
from limosa.core.client.routes import ClientRoutes
from limosa.core.client.windows import PART_BYTES, Window
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
from limosa.core.model.keys import NodeId, ZoneId
from limosa.core.model.topology import Partition

LARGE_BYTES = 4 << 20
QUEUED_PARTS_MAX = 4_096
QUEUED_FACTOR = 100
"""So many times longer do small writes wait for others while parts wait for their nodes."""


class Client:
    """The brain of one client session, which is one producer: every session needs its own name."""

    def __init__(self, producer: str, settings: ClientSettings) -> None:
        self.producer = producer
        self.settings = settings
        self.operations: dict[str, ClientOperation] = {}
        self.out: list[Effect] = []
        self._routes = ClientRoutes()
        self._gathering = Gathering(settings.gather_parts)
        self._groups: dict[str, OperationGroup] = {}
        """Unfinished groups, by the id of their first operation."""
        self._begun = 0
        self._order = WriteOrder()
        self._windows: dict[NodeId, Window] = {}
        self._queued = 0
        """How many parts wait for room in a window."""
        self._freed: dict[Window, None] = {}
        """Windows that may have room for parts that wait."""
        self._passed: deque[tuple[OperationGroup, Part]] = deque()
        """Writes that were just sent, or are done, and that others wait for."""
        self._due: list[tuple[float, int, str, Part | None]] = []
        """A heap of times: when a part is retried, or (without a part) when a group times out.
        Entries of ended groups stay in it until they are due."""
        self._entries = 0
        self._refreshed_at = -1e9

    @property
    def topology(self) -> Topology:
        return self._routes.topology

    @property
    def is_full(self) -> bool:
        """So much waits for the nodes that the application should wait before it writes more."""
        return self._queued >= QUEUED_PARTS_MAX

    def handle(self, now: float, event: ClientEvent) -> list[Effect]:
        self.out = []
        match event:
            case Asked():
                self._ask(now, event)
            case Received(message=Answer() as answer):
                self._answered(now, answer)
            case TopologyRead(topology=topology):
                if topology.generation > self.topology.generation:
                    self._routes.topology = topology
                    self._route_again(now)
            case Disconnected(node=node):
                self._disconnected(now, node)
            case Ticked():
                self._send_due(now)
        self._send_waiting(now)
        return self.out

    # --- asking

    def _ask(self, now: float, asked: Asked) -> None:
        operation = self.operations[asked.id] = ClientOperation(asked)
        layout = self._routes.layout(asked.zone)
        if asked.rows is None or layout is None:
            self._begin(now, [operation])
            return
        is_small = asked.expected is None and len(asked.rows)
        may_wait = is_small and self._gathering.is_busy(asked.zone)
        if not may_wait or not self._gathering.fits(asked.zone, asked.rows):
            self._begin_held(now, asked.zone)
        if not may_wait:
            self._begin(now, [operation])
        elif self._gathering.hold(now, operation, asked.rows, len(layout.partitions)).is_full:
            self._begin_held(now, asked.zone)

    def _begin_held(self, now: float, zone: ZoneId) -> None:
        held = self._gathering.take(zone)
        if held:
            self._begin(now, held)

    def _begin(self, now: float, operations: list[ClientOperation]) -> None:
        """Send the operations: together, unless one partition would get too much at once."""
        self._begun += 1
        group = OperationGroup(operations, self._begun, len(operations))
        self._routes.split_group(group)
        if len(operations) > 1 and group.largest > GATHERED_PART_BYTES_MAX:
            middle = len(operations) // 2
            self._begin(now, operations[:middle])
            self._begin(now, operations[middle:])
            return
        group.wait_for_parts()
        self._groups[group.asked.id] = group
        self._schedule(now + self.settings.operation_seconds, group, None)
        if group.asked.rows is not None:
            self._order.add(group)
            self._enter(group, group.parts)
        for part in group.parts:
            self._send(now, group, part)
        if not group.parts:
            self._finish(operations[0], "done", 0)
            self._end(now, group)

    def _enter(self, group: OperationGroup, parts: list[Part]) -> None:
        self._order.enter(group, parts)
        self._gathering.began(group.asked.zone, len(parts))

    # --- time

    def _schedule(self, at: float, group: OperationGroup, part: Part | None) -> None:
        self._entries += 1
        if part is not None:
            part.entry = self._entries
        heappush(self._due, (at, self._entries, group.asked.id, part))

    def _send_due(self, now: float) -> None:
        parts: dict[int, tuple[OperationGroup, list[Part]]] = {}
        while self._due and self._due[0][0] <= now:
            _, entry, id, part = heappop(self._due)
            group = self._groups.get(id)
            if group is None:
                continue
            if part is None:
                self._time_out(now, group)
            elif not part.done and part.entry == entry:
                parts.setdefault(group.number, (group, []))[1].append(part)
        for _, (group, due) in sorted(parts.items(), key=lambda item: item[0]):
            if group.waiting:
                for part in due:
                    self._attempt_timed_out(now, part)
                self._send_parts(now, group, due)

    def _attempt_timed_out(self, now: float, part: Part) -> None:
        if part.id:
            part.timeouts += 1
            if part.window is not None:
                part.window.timed_out(now)

    def _attempt_seconds(self, part: Part) -> float:
        """How long an attempt may take: longer if the node takes long anyway, for large rows, and
        after each attempt without an answer. What is sent again too early only makes a node
        slower."""
        seconds = self.settings.attempt_seconds
        if part.window is not None:
            usual = min(2 * part.window.latency, self.settings.operation_seconds / 2)
            seconds = max(seconds, usual) * (1 + (part.size - PART_BYTES) // LARGE_BYTES)
        return seconds * float(2 ** min(part.timeouts, 20))

    def _time_out(self, now: float, group: OperationGroup) -> None:
        """Give up, unless parts were sent late because they waited for their turn, or still wait
        while their node accepts others."""
        moved_at = max(part.moved_at for part in group.parts if not part.done)
        deadline = moved_at + self.settings.operation_seconds
        if deadline > now:
            self._schedule(deadline, group, None)
        else:
            self._give_up(now, group, "no answer in time")

    # --- sending

    def _route_again(self, now: float) -> None:
        """The topology is newer: send parts that wait, and parts that went to a former owner."""
        for zone in list(self._gathering.held):
            self._begin_held(now, zone)
        for group in list(self._groups.values()):
            zone = group.asked.zone
            if group.version and self._routes.layout(zone) is None:
                self._give_up(now, group, f"its table was dropped, with zone {zone}")
                continue
            due = [p for p in group.parts if not p.done and self._is_elsewhere(group, p)]
            if due:
                self._send_parts(now, group, due)

    def _is_elsewhere(self, group: OperationGroup, part: Part) -> bool:
        """The part is not under way, or was sent to a node that is not asked any more."""
        return not part.id or self._routes.node(group.asked, part) != part.node

    def _disconnected(self, now: float, node: NodeId) -> None:
        """Retry what was sent to the node, by a fresh topology; it may have arrived, too."""
        for group in self._groups.values():
            lost = [id for id, attempt in group.under_way.items() if attempt.node == node]
            for id in lost:
                part = self._resolve(group, id)
                part.maybe |= part.rows is not None
                if part.id == id:
                    self._later(now, group, part)
                self._refresh(now)

    def _send_parts(self, now: float, group: OperationGroup, due: list[Part]) -> None:
        """Route parts again; an attempt that was not answered may still take effect."""
        for part in due:
            if part.id:
                self._refresh(now)
                self._leave_window(part)
        if any(self._routes.is_stale(group.asked.zone, part) for part in due):
            due = self._split_again(group, due)
        for part in due:
            self._send(now, group, part)

    def _split_again(self, group: OperationGroup, due: list[Part]) -> list[Part]:
        again: list[Part] = []
        for part in due:
            self._retire(group, part)
            part.pieces = self._routes.split(group.asked, part.rows, part.waiters)
            for piece in part.pieces:
                piece.take_over(part)
            for operation in part.waiters:
                operation.left += len(part.pieces) - 1
            again += part.pieces
            part.rows = None
        replaced = {id(part) for part in due}
        kept = [part for part in group.parts if id(part) not in replaced]
        if group.sequence:
            self._order.leave(group, due)
        group.take(kept + again)
        if group.sequence:
            self._enter(group, again)
        return again

    def _send(self, now: float, group: OperationGroup, part: Part) -> None:
        """Send the part, or let it wait: for a route, for an earlier write, for room."""
        record = self._route(now, group, part)
        if record is None:
            return
        if part.rows is None:
            self._transmit(now, group, part, record)
            return
        window = self._window(part.node)
        if part.queue is window:
            return
        self._leave_window(part)
        if window.first() is None and window.has_room(part.size):
            self._transmit(now, group, part, record)
            return
        self._entries += 1
        part.entry = self._entries
        self._queued += 1
        window.push(self._entries, group, part)
        self._freed[window] = None

    def _route(self, now: float, group: OperationGroup, part: Part) -> Partition | None:
        """The record of the part's partition, if the part may be sent to its node now."""
        node = self._routes.node(group.asked, part)
        if node is None:
            self._later(now, group, part)
            self._refresh(now)
            return None
        first = None if part.rows is None else self._order.must_follow(group, part)
        if first is not None:
            self._leave_window(part)
            self._schedule(now + self._attempt_seconds(part), group, part)
            self._block(first, group, part)
            return None
        part.node = node
        return self._routes.record(part)

    def _transmit(self, now: float, group: OperationGroup, part: Part, record: Partition) -> None:
        group.attempts += 1
        part.attempts += 1
        part.after = 0
        part.id = f"{group.asked.id}.{group.attempts}"
        part.open += 1
        group.under_way[part.id] = SentAttempt(part, part.node, now)
        if part.rows is not None:
            part.window = self._window(part.node)
            part.window.used += part.size
        self._schedule(now + self._attempt_seconds(part), group, part)
        self.out.append(Send(part.node, self._message(group, part, record)))
        if group.blocked:
            self._passed.append((group, part))

    def _message(self, group: OperationGroup, part: Part, record: Partition) -> Read | Write:
        asked = group.asked
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
            group.sequence,
            self._order.after(group, part),
            self._order.floor(group),
            part.range,
            part.rows,
            asked.expected,
        )

    def _window(self, node: NodeId) -> Window:
        window = self._windows.get(node)
        if window is None:
            window = self._windows[node] = Window(self.settings.window_bytes)
        return window

    def _leave_window(self, part: Part) -> None:
        """The newest attempt is not waited for any more, or the part does not wait for room."""
        part.id = ""
        if part.window is not None:
            part.window.used -= part.size
            self._freed[part.window] = None
            part.window = None
        if part.queue is not None:
            self._queued -= 1
            part.queue = None

    def _block(self, first: OperationGroup, group: OperationGroup, part: Part) -> None:
        """Send the part right behind the write that comes first."""
        part.after = first.sequence
        first.blocked.setdefault(part.partition, []).append((group, part))

    def _send_waiting(self, now: float) -> None:
        """Send the parts that waited for a write that was just sent, and so on; then what there is
        room for; then small writes that have waited for others."""
        while True:
            if self._passed:
                group, passed = self._passed.popleft()
                self._send_blocked(now, group, group.blocked.pop(passed.partition, []))
            elif self._freed:
                window, _ = self._freed.popitem()
                self._fill(now, window)
            else:
                patience = self.settings.gather_seconds * (QUEUED_FACTOR if self._queued else 1)
                zones = self._gathering.due(now - patience)
                if not zones:
                    return
                for zone in zones:
                    self._begin_held(now, zone)

    def _fill(self, now: float, window: Window) -> None:
        waiting = window.first()
        while waiting is not None and window.has_room(waiting[1].size):
            group, part = waiting
            self._leave_window(part)
            record = self._route(now, group, part)
            if record is not None:
                part.released_at = part.released_at if part.attempts else now
                self._transmit(now, group, part, record)
            waiting = window.first()

    def _send_blocked(
        self, now: float, first: OperationGroup, blocked: list[tuple[OperationGroup, Part]]
    ) -> None:
        """Send the parts that still wait for that write."""
        for group, part in blocked:
            waits = part.after == first.sequence and not (part.id or part.done)
            if waits and group.waiting:
                self._send_parts(now, group, [part])

    def _refresh(self, now: float) -> None:
        if now - self._refreshed_at >= self.settings.again_seconds / 2:
            self._refreshed_at = now
            self.out.append(ReadTopology())

    # --- answers

    def _answered(self, now: float, answer: Answer) -> None:
        group = self._groups.get(answer.id.rsplit(".", 1)[0])
        attempt = None if group is None else group.under_way.get(answer.id)
        if group is None or attempt is None:
            return
        part = attempt.part
        match answer:
            case Written(at=at):
                self._resolve(group, answer.id)
                self._window(attempt.node).answered(now, now - attempt.at, part.size)
                self._acknowledge(now, group, part, at)
            case Found(rows=rows):
                self._resolve(group, answer.id)
                self._acknowledge(now, group, part, rows)
            case Mismatched(found=found):
                self._finish(group.operations[0], "mismatch", found)
                self._end(now, group)
            case Redirect() | Wait() | Refuse():
                self._resolve(group, answer.id)
                part.maybe |= isinstance(answer, Redirect) and not answer.definite
                if part.id == answer.id:  # otherwise a newer attempt is under way, or will be
                    self._turned_away(now, group, part, answer)

    def _resolve(self, group: OperationGroup, id: str) -> Part:
        """The attempt is answered, or will not be."""
        part = group.under_way.pop(id).part
        part.open -= 1
        return part

    def _acknowledge(self, now: float, group: OperationGroup, part: Part, value: object) -> None:
        """The part is written, or read. If it was split again, all of its pieces are."""
        for leaf in part.leaves():
            if leaf.done:
                continue
            self._retire(group, leaf)
            leaf.written = True
            for operation in leaf.waiters:
                operation.left -= 1
                operation.value = value
                if not operation.left and not operation.ended:
                    group.waiting -= 1
                    self._finish(operation, "done", value)
        if not group.waiting:
            self._end(now, group)

    def _turned_away(
        self, now: float, group: OperationGroup, part: Part, answer: Redirect | Wait | Refuse
    ) -> None:
        """The newest attempt of the part was not accepted."""
        if isinstance(answer, Refuse):
            if answer.code == "NotEnoughReplicas" and self._has_patience(now, part):
                self._later(now, group, part)
            else:
                self._refused(now, group, part, answer)
            return
        self._later(now, group, part)
        first = self._order.get(answer.after) if isinstance(answer, Wait) else None
        if first is not None:
            self._block(first, group, part)
        self._refresh(now)

    def _has_patience(self, now: float, part: Part) -> bool:
        """May the write wait for missing replicas? Often they are back soon."""
        if part.impatient_at is None:
            part.impatient_at = now + self.settings.patience_seconds
        return now < part.impatient_at

    def _later(self, now: float, group: OperationGroup, part: Part) -> None:
        """Retry the part, after a pause that doubles each time."""
        self._leave_window(part)
        seconds = self.settings.again_seconds_min * 2 ** min(part.tries, 20)
        part.tries += 1
        self._schedule(now + min(seconds, self.settings.again_seconds), group, part)

    # --- the end

    def _refused(self, now: float, group: OperationGroup, part: Part, answer: Refuse) -> None:
        """The operations with rows in this part end; others of the group go on."""
        self._retire(group, part)
        ended = [each for each in part.waiters if not each.ended]
        for operation in ended:
            operation.ended = True
        group.waiting -= len(ended)
        for operation in ended:
            parts = group.parts_of(operation)
            for each in parts:
                if not each.done and all(waiter.ended for waiter in each.waiters):
                    self._retire(group, each)
            maybe = any(each.may_take_effect or not each.done for each in parts)
            self._finish(operation, "unknown" if maybe else "failed", answer)
        if not group.waiting:
            self._end(now, group)

    def _give_up(self, now: float, group: OperationGroup, why: str) -> None:
        for operation in group.operations:
            if not operation.ended:
                maybe = any(part.may_take_effect for part in group.parts_of(operation))
                self._finish(operation, "unknown" if maybe else "failed", why)
        self._end(now, group)

    def _finish(
        self, operation: ClientOperation, outcome: OperationOutcome, value: object = None
    ) -> None:
        operation.ended = True
        del self.operations[operation.asked.id]
        self.out.append(Finished(operation.asked.id, outcome, value))

    def _retire(self, group: OperationGroup, part: Part) -> None:
        """Nothing is left to do for the part; others may have waited for it."""
        self._leave_window(part)
        part.done = True
        if group.sequence:
            self._gathering.ended(group.asked.zone)
        if group.blocked:
            self._passed.append((group, part))

    def _end(self, now: float, group: OperationGroup) -> None:
        """All operations of the group have ended."""
        group.waiting = 0
        del self._groups[group.asked.id]
        for part in group.parts:
            if not part.done:
                self._retire(group, part)
            part.rows = None
        if group.sequence:
            self._order.remove(group)
        for partition in list(group.blocked):
            self._send_blocked(now, group, group.blocked.pop(partition))
