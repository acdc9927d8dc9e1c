"""How does one worker copy rows? It fetches a slice from the source and sends it to the targets.

A slice counts when its target has confirmed that it landed: durable, complete and under an open
session. Lost messages are retried, and a slice that arrives twice changes nothing. A few slices are
in flight at once, so that source, worker and target are all busy.
"""

import itertools
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing

import msgspec
from msgspec import Struct

from limosa.core.messages import Chunk, Denied, End, Fetch, Fetched, Landed, Message
from limosa.core.producers import ProducersValue
from limosa.pipeline.loads import CopyLoad, CopyTarget, LoadResult, Task
from limosa.protocol.peers import Dialer, NodeLinks
from limosa.tabular.rows import Bundle
from limosa.transport.links import Outbound
from limosa.transport.security import Security
from limosa.transport.tokens import Sessions

AT_ONCE = 4
SILENT_SECONDS = 10.0
"""After this time without an answer, a slice is requested again."""
ATTEMPTS_MAX = 5
BROKEN_SECONDS = 0.5
DENIED_SECONDS = 0.05
PATIENCE_SECONDS = 5.0
"""How long a denial is retried: a node may learn of the session a little later."""
LOOK_SECONDS = 0.05
ROOM_SECONDS = 0.002
PAUSE_SECONDS_MAX = 5.0
"""Longest pause between two slices, whatever a node asks for: every copy must end."""
EXPIRY_SECONDS = 30.0
"""So long before its permit ends, a worker begins no slice; the mover lets another task copy the
rest, with a new permit."""


class Access(Struct, frozen=True, array_like=True):
    """How a worker reaches nodes. Of certificates only the paths: private keys are not sent."""

    cluster: str
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None

    def dialer(self, name: str, token: str | None = None, sessions: Sessions = ()) -> Dialer:
        security = Security(
            certificate=self.certificate,
            key=self.key,
            authority=self.authority,
            cluster=self.cluster,
        )
        return Dialer(self.cluster, "mover", name, security, lambda: token, sessions)


class _Slice(Struct, eq=False):
    """One slice in flight."""

    load: CopyLoad
    number: int
    missing: set[str]
    """Targets where it has not landed yet."""
    attempts: int = 0
    due: float = 0.0
    """When it is requested again."""
    fetched: int = 0
    """Rows that were sent to the targets."""
    bytes: int = 0
    paid: int = 0
    """Bytes that were already counted against the bandwidth."""
    is_passed_on: bool = False
    """Sent to the targets in this attempt."""
    is_denied: bool = False
    """Denied in this attempt, so it was not lost."""
    denied_since: dict[tuple[str, bool], float] = {}
    """By node and whether it is denied as a target: a node may be the source, too."""


class Pipe:
    """The loads of one task. `carry` returns when each load has landed or failed."""

    def __init__(
        self, task: Task, dialer: Dialer, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self._task = task
        self._is_over = is_over
        self._heard: queue.SimpleQueue[tuple[str, list[Message] | None]] = queue.SimpleQueue()
        """Messages of nodes; None: the connection broke."""
        self._waiting = deque(_slices(task.loads))
        self._under_way: dict[tuple[str, str, int], _Slice] = {}
        self._results = {
            (load.partition, load.session): LoadResult(load.partition, load.session)
            for load in task.loads
        }
        self._next_at = 0.0
        self._slowing: set[str] = set()
        """Nodes that asked for a pause with their last answer."""
        self._slowed = 0.0
        """Seconds that it waited for the sake of clients' writes."""
        self._ends_at = time.monotonic() + task.permit.seconds - EXPIRY_SECONDS
        self._links = NodeLinks(
            dialer,
            lambda node, messages: self._heard.put((node, messages)),
            lambda node: self._heard.put((node, None)),
        )

    def carry(self) -> list[LoadResult]:
        began = time.monotonic()
        with closing(self._links):
            while (self._waiting or self._under_way) and not self._is_over():
                self._go_on(time.monotonic())
                self._hear()
        results = list(self._results.values())
        for result in results:
            result.seconds = time.monotonic() - began
            result.slowed_seconds = self._slowed
        return results

    # --- asking

    def _go_on(self, now: float) -> None:
        for slice in list(self._under_way.values()):
            if now >= slice.due:
                self._ask(slice, now)
        if now > self._ends_at:
            self._waiting.clear()
        at_once = 1 if self._slowing else AT_ONCE  # no bursts beside slow writes
        while self._waiting and len(self._under_way) < at_once and now >= self._next_at:
            slice = self._waiting.popleft()
            if self._result(slice.load).failure:
                continue
            self._under_way[slice.load.partition, slice.load.session, slice.number] = slice
            if slice.load.again:
                self._ask_whether_landed(slice, now)
            else:
                self._ask(slice, now)
            self._pay(slice, now, _slice_bytes(slice.load))

    def _pay(self, slice: _Slice, now: float, size: int) -> None:
        """Count bytes against the bandwidth; the next slice starts when bandwidth is available.

        A slice is counted when it is requested, by an estimate. Otherwise slices would come in
        bursts, which users' writes would notice.
        """
        if self._task.bytes_per_second:
            owed = (size - slice.paid) / self._task.bytes_per_second
            self._next_at = max(self._next_at, now) + owed
            slice.paid = size

    def _ask(self, slice: _Slice, now: float) -> None:
        load = slice.load
        if slice.attempts >= ATTEMPTS_MAX:
            self._fail(load, f"slice {slice.number} was lost {slice.attempts} times")
            return
        slice.attempts += not slice.is_denied
        slice.is_denied = slice.is_passed_on = False
        slice.due = now + SILENT_SECONDS
        fetch = Fetch(
            load.partition,
            load.source.incarnation,
            load.session,
            load.epoch,
            slice.number,
            load.slices,
        )
        self._send(load.source.node, fetch)

    def _ask_whether_landed(self, slice: _Slice, now: float) -> None:
        """Send the end of a slice without its rows: denied, unless the slice has landed."""
        slice.due = now + SILENT_SECONDS
        for target in slice.load.targets:
            self._send(target.node, _end(slice, target, "", 1, 0, 0, ()))

    def _send(self, node: str, *said: Message) -> None:
        link = self._links.to(node, self._task.addresses[node])
        if link is not None:
            deadline = time.monotonic() + SILENT_SECONDS
            for message in said:
                self._wait_for_room(link, deadline)
                link.send(message)

    def _wait_for_room(self, link: Outbound, deadline: float) -> None:
        """Wait for a slow node: what does not fit into its outbox would be lost."""
        while not link.has_room and time.monotonic() < deadline and not self._is_over():
            time.sleep(ROOM_SECONDS)

    # --- hearing

    def _hear(self) -> None:
        try:
            said = [self._heard.get(timeout=LOOK_SECONDS)]
        except queue.Empty:
            self._links.cut_silent(SILENT_SECONDS / 2)
            return
        while not self._heard.empty():
            said.append(self._heard.get())
        now = time.monotonic()
        for sender, messages in said:
            if messages is None:
                self._broke(now, sender)
                continue
            for message in messages:
                if isinstance(message, Fetched | Landed | Denied):
                    key = (message.partition, message.session, message.slice)
                    slice = self._under_way.get(key)
                    if slice is not None and message.slices in (0, slice.load.slices):
                        self._take(now, sender, slice, message)

    def _broke(self, now: float, node: str) -> None:
        """Slices in flight at this node are lost."""
        for slice in self._under_way.values():
            if node == slice.load.source.node or node in slice.missing:
                slice.due = min(slice.due, now + BROKEN_SECONDS)

    def _take(
        self, now: float, sender: str, slice: _Slice, message: Fetched | Landed | Denied
    ) -> None:
        match message:
            case Fetched():
                slice.denied_since.pop((sender, False), None)
                self._pass_on(now, slice, message)
                self._wait_for_writes(now, sender, message.pause_seconds)
            case Landed():
                self._wait_for_writes(now, sender, message.pause_seconds)
                slice.missing.discard(sender)
                if not slice.missing:
                    self._pay(slice, now, 0)  # a slice that had landed before used no bandwidth
                    self._landed(slice)
            case Denied():
                self._denied(now, sender, slice, message.why)

    def _wait_for_writes(self, now: float, node: str, seconds: float) -> None:
        """A node is busy with clients' writes: ask for the next slice a little later."""
        (self._slowing.add if seconds else self._slowing.discard)(node)
        next_at = now + min(seconds, PAUSE_SECONDS_MAX)
        if seconds and next_at > self._next_at:
            self._slowed += next_at - max(self._next_at, now)
            self._next_at = next_at

    def _pass_on(self, now: float, slice: _Slice, fetched: Fetched) -> None:
        rows = fetched.rows
        assert isinstance(rows, Bundle)
        slice.fetched, slice.bytes = len(rows), rows.bytes
        slice.is_passed_on = True
        slice.due = now + SILENT_SECONDS
        self._pay(slice, now, slice.bytes)
        slice.paid = 0  # a repeated slice counts again
        attempt = secrets.token_hex(8)
        load = slice.load
        parts = [Bundle([batch]) for batch in rows.batches] or [Bundle()]
        for target in load.targets:
            if target.node not in slice.missing:
                continue
            head = (load.partition, target.incarnation, load.session, load.epoch, slice.number)
            chunks = [Chunk(*head, attempt, number, part) for number, part in enumerate(parts)]
            end = _end(
                slice,
                target,
                attempt,
                len(rows),
                fetched.digest,
                fetched.through,
                fetched.producers,
            )
            self._send(target.node, *chunks, end)

    def _landed(self, slice: _Slice) -> None:
        load = slice.load
        del self._under_way[load.partition, load.session, slice.number]
        result = self._result(load)
        result.slices += 1
        result.rows += slice.fetched
        result.bytes += slice.bytes

    def _denied(self, now: float, sender: str, slice: _Slice, why: str) -> None:
        if not slice.attempts:
            self._ask(slice, now)  # it has not landed yet
            return
        if sender != slice.load.source.node and not slice.is_passed_on:
            return  # the denial is of an earlier attempt
        since = slice.denied_since.setdefault((sender, slice.is_passed_on), now)
        if now - since > PATIENCE_SECONDS:
            self._fail(slice.load, why)
        else:
            slice.is_denied = True
            slice.due = now + DENIED_SECONDS

    def _fail(self, load: CopyLoad, why: str) -> None:
        """Give up on one load; the others continue."""
        self._result(load).failure = why
        for key, slice in list(self._under_way.items()):
            if slice.load is load:
                del self._under_way[key]

    def _result(self, load: CopyLoad) -> LoadResult:
        return self._results[load.partition, load.session]


def _slices(loads: Iterable[CopyLoad]) -> Iterable[_Slice]:
    """Slices of all loads in turn, so that different sources and targets are busy at once."""
    turns = [
        [
            _Slice(load, number, {target.node for target in load.targets})
            for number in range(load.first, load.last)
        ]
        for load in loads
    ]
    for turn in itertools.zip_longest(*turns):
        yield from (slice for slice in turn if slice is not None)


def _slice_bytes(load: CopyLoad) -> int:
    """The estimated bytes of one slice; 0: unknown."""
    return load.bytes // (load.last - load.first)


def _end(
    slice: _Slice,
    target: CopyTarget,
    attempt: str,
    count: int,
    digest: int,
    through: int,
    producers: ProducersValue,
) -> End:
    load = slice.load
    head = (load.partition, target.incarnation, load.session, load.epoch, slice.number)
    return End(*head, load.slices, attempt, count, digest, through, producers)


def run(access: bytes, task: bytes, name: str, again: bool = False) -> bytes:
    """Run an encoded task; returns its encoded result."""
    wanted = msgspec.msgpack.decode(task, type=Task)
    if again:
        loads = tuple(msgspec.structs.replace(load, again=True) for load in wanted.loads)
        wanted = msgspec.structs.replace(wanted, loads=loads)
    who = msgspec.msgpack.decode(access, type=Access)
    dialer = who.dialer(name, wanted.permit.token, wanted.sessions)
    return msgspec.msgpack.encode(Pipe(wanted, dialer).carry())
