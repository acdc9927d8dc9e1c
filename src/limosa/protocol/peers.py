"""How does a message reach a node, or the caller of this process?

A `Dialer` opens streams under this process's name. `NodeLinks` keeps one link to each node, and is
the only place that does: nodes, coordinators, clients and movers all send through it. `Peers` adds
the streams that callers have opened, for a process that is called as well.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa.core.messages import Answer, Message
from limosa.core.model.changes import Topology
from limosa.protocol.wire import Decoder, Encoder, Goodbye, size_of
from limosa.tabular.schema import Table
from limosa.transport.links import CHANNEL, Outbound, Stream
from limosa.transport.lone import PendingAnswers
from limosa.transport.security import (
    Security,
    call_options,
    check_encrypted,
    client_arguments,
    scheme,
)
from limosa.transport.server import Hello, Inbound
from limosa.transport.tokens import Sessions

SILENT_SECONDS = 6.0

Token = Callable[[], str | None]
"""A fresh bearer token, or None where the cluster asks for none."""


class Dialer:
    """Opens streams to nodes under this process's name."""

    def __init__(
        self,
        cluster: str,
        kind: str,
        name: str,
        security: Security,
        token: Token,
        sessions: Sessions = (),
    ) -> None:
        self._sessions = sessions
        self.cluster = cluster
        self.kind = kind
        self.name = name
        self._security = security
        self.token = token

    def client(self, node: str, address: str) -> flight.FlightClient:
        check_encrypted(address, self._security)
        encrypted = address.startswith(scheme(True))
        arguments = client_arguments(self._security, node or None) if encrypted else {}
        return flight.FlightClient(address, generic_options=CHANNEL, **arguments)

    def options(self, timeout_seconds: float | None = None) -> flight.FlightCallOptions:
        return call_options(self.token(), timeout_seconds)

    def open(self, node: str, address: str, pending: PendingAnswers | None = None) -> Stream:
        hello = Hello(self.cluster, self.kind, self.name, node, sessions=self._sessions)
        return Stream(
            self.client(node, address),
            msgspec.msgpack.encode(hello),
            self.options(),
            node,
            Encoder(self.kind != "client", pending).frames,
            size_of,
        )


class NodeLinks:
    """One link to each node that this process sends to.

    A link is opened for its first message, reopened when its stream broke, replaced when the node's
    address changed, and cut when the node is silent for too long.
    """

    def __init__(
        self,
        dialer: Dialer,
        received: Callable[[str, list[Message]], None],
        lost: Callable[[str], None] = lambda node: None,
        tables: Callable[[int], Table | None] = lambda fingerprint: None,
        pending: PendingAnswers | None = None,
    ) -> None:
        self._dialer = dialer
        self._received = received
        """Told of the messages of each frame that a node sends."""
        self._lost = lost
        """Told of each node whose stream broke: what was under way there may be lost."""
        self._tables = tables
        self._pending = pending
        self._links: dict[str, tuple[str, Outbound]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def to(self, node: str, address: str | None) -> Outbound | None:
        """The link to a node; None without an address, or once closed."""
        known = self._links.get(node)
        if known is not None and known[0] == address:
            return known[1]
        with self._lock:
            known = self._links.get(node)
            if known is not None and known[0] == address:
                return known[1]
            if known is not None:
                del self._links[node]
                threading.Thread(target=known[1].close, daemon=True).start()
            if not address or self._closed:
                return None
            link = self._open(node, address)
            self._links[node] = (address, link)
            return link

    def _open(self, node: str, address: str) -> Outbound:
        decoder: Decoder

        def connect() -> Stream:
            nonlocal decoder
            decoder = Decoder(self._tables, trusted=True)  # it knows what its stream has defined
            return self._dialer.open(node, address, self._pending)

        def hear(frame: pa.Buffer) -> None:
            said = decoder(frame)
            self._received(node, [each for each in said if isinstance(each, Message)])
            if any(isinstance(each, Goodbye) for each in said):
                raise ConnectionError(f"{node} is stopping")

        return Outbound(node, connect, hear, lambda error: self._lost(node), self._pending)

    def heard(self, node: str) -> None:
        """The node is alive: it sent something on a stream of its own."""
        known = self._links.get(node)
        if known is not None:
            known[1].heard()

    def cut_silent(self, seconds: float) -> None:
        for _, link in list(self._links.values()):
            link.cut_if_silent(seconds)

    def cut_stuck(self, seconds: float) -> None:
        """Free callers that have been sending for so long."""
        for _, link in list(self._links.values()):
            link.cut_if_stuck(seconds)

    @property
    def are_idle(self) -> bool:
        return all(link.is_idle for _, link in list(self._links.values()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links = [link for _, link in self._links.values()]
            self._links.clear()
        for link in links:
            link.close()


class Flushed(Protocol):
    """A link whose outbox has messages that are not sent before it is flushed."""

    def flush(self) -> None: ...


class Peers:
    """The nodes that this process can send to, and the callers that it can answer."""

    def __init__(self, dialer: Dialer, received: Callable[[str, Message], None]) -> None:
        self._received = received
        self._inbound: dict[str, Inbound] = {}
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()
        self._links = NodeLinks(dialer, self._hear)

    def follow(self, topology: Topology) -> None:
        self._addresses = {node.id: node.address for node in topology.nodes.values()}

    def _hear(self, node: str, messages: list[Message]) -> None:
        for message in messages:
            if not isinstance(message, Goodbye):
                self._received(node, message)

    # --- callers

    def add(self, inbound: Inbound) -> None:
        with self._lock:
            self._inbound[inbound.name] = inbound

    def remove(self, inbound: Inbound) -> None:
        with self._lock:
            if self._inbound.get(inbound.name) is inbound:
                del self._inbound[inbound.name]

    def heard(self, name: str) -> None:
        """A node sent something on the stream that it opened: our link to it need not be cut."""
        self._links.heard(name)

    def cut_silent(self) -> None:
        self._links.cut_silent(SILENT_SECONDS)

    # --- sending

    def send(self, to: str, message: Message) -> None:
        link = self.put(to, (message,))
        if link is not None:
            link.flush()

    def put(self, to: str, messages: Sequence[Message]) -> "Flushed | None":
        """Put messages into the outbox of a link, which the caller flushes; None: there is none."""
        inbound = self._inbound.get(to)
        if inbound is not None and inbound.hello.kind != "node":
            inbound.settle(each.id for each in messages if isinstance(each, Answer))
            inbound.link.put(messages)
            return inbound.link
        link = self._links.to(to, self._addresses.get(to))
        if link is not None:
            link.put(messages)
        return link

    def close(self) -> None:
        self._links.close()
