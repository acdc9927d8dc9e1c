"""How does a client talk to the cluster? One state machine, one stream to each node, any threads.

Operations are handed to the state machine (`core.client`) under a lock. The messages that it emits
are put into the links' outboxes in that order, and sent after the lock is released.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa.core.client import Asked, Client, ClientEvent, ClientSettings, Finished
from limosa.core.effects import Effect, ReadTopology, Send
from limosa.core.events import Disconnected, Received, Ticked, TopologyRead
from limosa.core.messages import Message, Refuse
from limosa.core.model.changes import Topology
from limosa.errors import LimosaError, OutcomeUnknown, Refused, Unauthenticated
from limosa.protocol.peers import Dialer, NodeLinks
from limosa.protocol.wire import Goodbye
from limosa.tabular.tables import KnownTables
from limosa.transport.failures import error_named, from_flight_error
from limosa.transport.links import Outbound
from limosa.transport.lone import AnswerFuture, PendingAnswers

TICK_SECONDS = 0.01
OPERATIONS_MAX = 256
BYTES_MAX = 64 << 20
CALL_SECONDS = 5.0
TOPOLOGY_SECONDS = 0.7
SILENT_SECONDS = 3.0
UNAUTHENTICATED_SECONDS = 2.0
SCAN_SILENT_SECONDS = 5.0
SCAN_SECONDS_MAX = 3_600.0

_topologies = msgspec.msgpack.Decoder(Topology)


class Session:
    """What all operations of a client share: links, topology, and operations in flight."""

    def __init__(
        self, addresses: Mapping[str, str], dialer: Dialer, settings: ClientSettings, name: str = ""
    ) -> None:
        self._dialer = dialer
        self._seeds = dict(addresses)
        self.tables = KnownTables()
        self.producer = f"{name or 'client'}-{secrets.token_hex(8)}"
        self._brain = Client(self.producer, settings)
        self._numbers = count(1)
        self._futures = PendingAnswers()
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._ended: deque[tuple[AnswerFuture[Finished], Finished]] = deque()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._blocked = 0
        """How many callers wait for room."""
        self._links = NodeLinks(
            dialer,
            self._hear,
            lambda node: self._deliver(Disconnected(node)),
            self.tables.by_fingerprint,
            self._futures,
        )
        self._calls: dict[str, flight.FlightClient] = {}
        self._closed = threading.Event()
        self._busy = threading.Event()
        self._wanted = threading.Event()
        self._good: str | None = None
        self._refreshing = threading.Lock()
        self._unauthenticated: tuple[float, Unauthenticated] | None = None
        """Since when, and why, no node accepts this client's token."""
        self.refresh()
        self._threads = [
            threading.Thread(target=self._tick, name="limosa-client", daemon=True),
            threading.Thread(target=self._follow, name="limosa-topology", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- operations

    @property
    def topology(self) -> Topology:
        return self._brain.topology

    def ask(self, zone: str, size: int = 0, **what: Any) -> "Future[Finished]":
        """Start an operation; blocks while too much is in flight, or waits for the nodes."""
        future: AnswerFuture[Finished] = AnswerFuture()
        with self._lock:
            while not self._has_room(writes="rows" in what):
                self._blocked += 1
                self._room.wait(1.0)
                self._blocked -= 1
                self._check_open()
            self._check_open()
            self._check_authenticated()
            id = f"{next(self._numbers)}"
            self._futures[id] = future
            self._sizes[id] = size
            self._bytes += size
            send_here = self._futures.may_send_here(size)
            links = self._handle(Asked(id, zone, **what))
            if not self._busy.is_set():
                self._busy.set()
            future.turns = next(iter(links)).turns if send_here and len(links) == 1 else None
        self._settle(links, send_here)
        return future

    def _has_room(self, writes: bool) -> bool:
        full = len(self._futures) >= OPERATIONS_MAX or self._bytes > BYTES_MAX
        return not full and not (writes and self._brain.is_full)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Refused("the connection is closed", "connect again")

    def _check_authenticated(self) -> None:
        """Refuse an operation that would wait in vain. A new token may be on its way, so a refusal
        must last, and the nodes are asked again."""
        refusal = self._unauthenticated
        if refusal is not None and time.monotonic() - refusal[0] > UNAUTHENTICATED_SECONDS:
            self._wanted.set()
            raise refusal[1]

    def _deliver(self, event: ClientEvent) -> None:
        with self._lock:
            links = self._handle(event)
        self._settle(links)

    def _settle(self, links: set[Outbound], send_here: bool = False) -> None:
        """Without the lock: flush the links, and complete the futures of ended operations."""
        for link in links:
            if send_here:
                link.pump_as_caller()
            else:
                link.wake()
        while self._ended:
            future, finished = self._ended.popleft()
            future.end(finished)

    def _handle(self, event: ClientEvent) -> set[Outbound]:
        """Under the lock; returns the links that have something to send."""
        links: set[Outbound] = set()
        for effect in self._brain.handle(time.monotonic(), event):
            self._carry_out(effect, links)
        if self._blocked and self._has_room(writes=False):
            self._room.notify_all()
        return links

    def _carry_out(self, effect: Effect, links: set[Outbound]) -> None:
        match effect:
            case Send(to=to, message=message):
                record = self._brain.topology.nodes.get(to)
                link = self._links.to(to, None if record is None else record.address)
                if link is not None:
                    link.send(message, quiet=True)
                    links.add(link)
            case ReadTopology():
                self._wanted.set()
            case Finished():
                future = self._futures.pop(effect.id, None)
                self._bytes -= self._sizes.pop(effect.id, 0)
                if future is not None:
                    self._ended.append((future, effect))

    def _hear(self, node: str, messages: list[Message]) -> None:
        links: set[Outbound] = set()
        with self._lock:
            for message in messages:
                if not isinstance(message, Goodbye):
                    links |= self._handle(Received(node, message))
        self._settle(links)

    # --- the topology

    def refresh(self) -> Topology:
        """Ask the nodes, one after another, for the newest topology; raises if none answers."""
        with self._refreshing:
            known = self._brain.topology.generation
            failure: LimosaError | None = None
            for node, address in self._known_nodes():
                try:
                    body = self._call(node, address, "topology", _bytes(known), TOPOLOGY_SECONDS)
                except LimosaError as error:
                    failure = error
                    if not isinstance(error, Refused | OutcomeUnknown):
                        raise
                    continue
                self._good = node
                self._unauthenticated = None
                topology = _topologies.decode(body) if body else self._brain.topology
                if topology.generation > self._brain.topology.generation:
                    self.tables.follow(topology)
                    self._deliver(TopologyRead(topology, topology.generation))
                return self._brain.topology
            if isinstance(failure, Unauthenticated):
                since = self._unauthenticated[0] if self._unauthenticated else time.monotonic()
                self._unauthenticated = (since, failure)
            raise failure or Refused("no node is known", "connect with a node's address")

    def _known_nodes(self) -> list[tuple[str, str]]:
        members = [each for each in self._brain.topology.nodes.values() if each.state != "left"]
        nodes = {node.id: node.address for node in members if node.address} or self._seeds
        everybody = sorted(nodes.items())
        secrets.SystemRandom().shuffle(everybody)
        everybody.sort(key=lambda item: item[0] != self._good)
        return everybody + [item for item in self._seeds.items() if item not in everybody]

    def _follow(self) -> None:
        while not self._closed.is_set():
            if not self._wanted.wait(0.5):
                continue
            self._wanted.clear()
            try:
                self.refresh()
            except Exception:  # retried with another node
                self._good = None
            self._closed.wait(0.005)

    def _tick(self) -> None:
        while not self._closed.is_set():
            if self._busy.wait(0.5):
                self._deliver(Ticked())
                with self._lock:
                    if not self._futures and self._links.are_idle:
                        self._busy.clear()
                self._links.cut_silent(SILENT_SECONDS)
                self._links.cut_stuck(self._brain.settings.operation_seconds)
                self._closed.wait(TICK_SECONDS)

    # --- calls

    def call(self, name: str, body: bytes = b"", seconds: float = CALL_SECONDS) -> bytes:
        """Ask any node."""
        failure: LimosaError | None = None
        deadline = time.monotonic() + seconds
        for node, address in self._known_nodes():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                return self._call(node, address, name, body, left)
            except OutcomeUnknown as error:
                failure = error
        raise failure or Refused("no node is known", "connect with a node's address")

    def call_node(self, node: str, name: str, body: bytes = b"", seconds: float = 60.0) -> bytes:
        address = self._brain.topology.nodes[node].address
        return self._call(node, address, name, body, seconds)

    def _call(self, node: str, address: str, name: str, body: bytes, seconds: float) -> bytes:
        self._check_open()
        action = flight.Action(name, body)
        try:
            client = self._caller(node, address)
            results = list(client.do_action(action, self._dialer.options(seconds)))
        except (pa.ArrowException, OSError) as error:
            raise from_flight_error(error) from None
        return results[0].body.to_pybytes() if results else b""

    def _caller(self, node: str, address: str) -> flight.FlightClient:
        client = self._calls.get(address)
        if client is None:
            client = self._calls[address] = self._dialer.client(_node_id(node), address)
        return client

    def scan(self, node: str, ticket: bytes) -> pa.Table:
        """Read a whole scan."""
        record = self._brain.topology.nodes.get(node)
        if record is None or not record.address:
            raise Refused(f"the address of {node} is not known", "refresh the topology")
        self._check_open()
        try:
            client = self._caller(node, record.address)
            options = self._dialer.options(SCAN_SECONDS_MAX)
            scan = TimedScan(partial(client.do_get, flight.Ticket(ticket), options), self._closed)
            return scan.read_all()
        except (pa.ArrowException, OSError) as error:
            raise from_flight_error(error) from None

    # --- the end

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._busy.set()
        self._wanted.set()
        self._links.close()
        for thread in self._threads:
            thread.join(2.0)
        with self._room:
            waiting = list(self._futures.values())
            self._futures.clear()
            self._room.notify_all()
        for future in waiting:
            future.set_exception(
                OutcomeUnknown("the connection was closed", "read to find out what was written")
            )
        self._calls.clear()


class TimedScan:
    """A scan with a timeout, which also ends when the connection is closed.

    A separate thread reads, so that the caller can abandon it: a Flight call can't be cancelled
    before its first answer.
    """

    def __init__(
        self, begin: Callable[[], flight.FlightStreamReader], closed: threading.Event
    ) -> None:
        self._begin = begin
        self._closed = closed
        self._heard_at = time.monotonic()
        self._reader: flight.FlightStreamReader | None = None
        self._given_up = False
        self._result: Future[pa.Table] = Future()

    def read_all(self) -> pa.Table:
        threading.Thread(target=self._read, name="limosa-scan", daemon=True).start()
        while not self._closed.is_set():
            wait([self._result], 0.2)
            if self._result.done():
                return self._result.result()
            if time.monotonic() - self._heard_at > SCAN_SILENT_SECONDS:
                break
        self._given_up = True
        if self._reader is not None:
            self._reader.cancel()
        raise Refused("the scan timed out", "retry")

    def _read(self) -> None:
        try:
            self._reader = reader = self._begin()
            batches: list[pa.RecordBatch] = []
            while not self._given_up:
                self._heard_at = time.monotonic()
                try:
                    batch = reader.read_chunk().data
                except StopIteration:
                    break
                batches += [] if batch is None else [batch]
            self._result.set_result(pa.Table.from_batches(batches, reader.schema))
        except Exception as error:
            self._result.set_exception(error)
        finally:
            if self._given_up and self._reader is not None:
                self._reader.cancel()


def outcome_error(finished: Finished) -> LimosaError:
    """The error that the application gets for an operation that did not succeed."""
    answer = finished.value
    if isinstance(answer, Refuse):
        message, code, advice = answer.why, answer.code, answer.advice
    else:
        message, code, advice = str(answer), "Refused", ""
    if finished.outcome == "unknown":
        return OutcomeUnknown(message, advice or "the write may have happened: read to find out")
    return error_named(code, message, advice)


class Mismatch(Refused):
    """The row has another version than expected; nothing was written."""

    def __init__(self, found: int) -> None:
        self.found = found
        what = f"version {found}" if found else "no such row"
        super().__init__(f"found {what}", "read the row again, and retry")


def settle_read(future: "Future[Finished]") -> object:
    """The result of a read; a read without an answer is `Refused`, as it changed nothing."""
    finished = future.result()
    if finished.outcome == "done":
        return finished.value
    error = outcome_error(finished)
    raise Refused(error.message, "retry") if isinstance(error, OutcomeUnknown) else error


def settle(future: "Future[Finished]") -> Finished:
    """Wait for the end of an operation; raises if it did not succeed."""
    finished = future.result()
    if finished.outcome == "done":
        return finished
    if finished.outcome == "mismatch":
        raise Mismatch(int(finished.value))  # type: ignore[call-overload]
    raise outcome_error(finished)


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _node_id(node: str) -> str:
    """Empty for a seed, of which only the address is known."""
    return "" if "://" in node else node
