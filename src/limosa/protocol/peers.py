"""How does a message find its way? To a caller by the stream that it opened, to a node by ours."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa.core.messages import Answer, Message
from limosa.core.model.changes import Topology
from limosa.protocol.wire import Decoder, Encoder, Goodbye, size_of
from limosa.transport.links import CHANNEL, Outbound, Stream
from limosa.transport.security import Security, call_options, client_arguments
from limosa.transport.server import Hello, Inbound

SILENT_SECONDS = 6.0

Token = Callable[[], str | None]
"""A fresh bearer token, or None where nobody asks for one."""


class Dialer:
    """Opens streams to nodes, as whoever this process is."""

    def __init__(
        self,
        cluster: str,
        kind: str,
        name: str,
        security: Security,
        token: Token,
    ) -> None:
        self.cluster = cluster
        self.kind = kind
        self.name = name
        self._security = security
        self.token = token
        self.alone: Callable[[], bool] = lambda: False
        """Does whoever uses it wait for one answer only?"""

    def client(self, node: str, address: str) -> flight.FlightClient:
        encrypted = address.startswith("grpc+tls")
        arguments = client_arguments(self._security, node or None) if encrypted else {}
        return flight.FlightClient(address, generic_options=CHANNEL, **arguments)

    def options(self, timeout_seconds: float | None = None) -> flight.FlightCallOptions:
        return call_options(self.token(), timeout_seconds)

    def open(self, node: str, address: str) -> Stream:
        hello = Hello(self.cluster, self.kind, self.name, node)
        return Stream(
            self.client(node, address),
            msgspec.msgpack.encode(hello),
            self.options(),
            node,
            Encoder(self.kind != "client", self.alone),
            size_of,
        )


class _Line:
    """To one node: one stream after the other, each understood by what was said on it."""

    def __init__(
        self, dialer: Dialer, node: str, address: str, received: Callable[[str, Message], None]
    ) -> None:
        self._dialer = dialer
        self._node = node
        self._address = address
        self._received = received
        self._decoder: Decoder

    def open(self) -> Stream:
        self._decoder = Decoder(lambda fingerprint: None, trusted=True)
        return self._dialer.open(self._node, self._address)

    def hear(self, frame: pa.Buffer) -> None:
        for message in self._decoder(frame):
            if isinstance(message, Message) and not isinstance(message, Goodbye):
                self._received(self._node, message)


class Peers:
    """Everybody whom this process can say something to."""

    def __init__(self, dialer: Dialer, received: Callable[[str, Message], None]) -> None:
        self._dialer = dialer
        self._received = received
        self._inbound: dict[str, Inbound] = {}
        self._outbound: dict[str, tuple[str, Outbound]] = {}
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closed = False

    def follow(self, topology: Topology) -> None:
        self._addresses = {node.id: node.address for node in topology.nodes.values()}

    # --- those who call us

    def add(self, inbound: Inbound) -> None:
        with self._lock:
            self._inbound[inbound.name] = inbound

    def remove(self, inbound: Inbound) -> None:
        with self._lock:
            if self._inbound.get(inbound.name) is inbound:
                del self._inbound[inbound.name]

    def heard(self, name: str) -> None:
        """A node said something, on the stream that it opened: ours is waited for no longer."""
        known = self._outbound.get(name)
        if known is not None:
            known[1].heard()

    def cut_silent(self) -> None:
        for _, outbound in list(self._outbound.values()):
            outbound.cut_if_silent(SILENT_SECONDS)

    # --- sending

    def send(self, to: str, message: Message) -> None:
        inbound = self._inbound.get(to)
        if inbound is not None and inbound.hello.kind != "node":
            if isinstance(message, Answer):
                inbound.settle(message.id)
            inbound.link.send(message)
            return
        outbound = self._link_to(to)
        if outbound is not None:
            outbound.send(message)

    def _link_to(self, node: str) -> Outbound | None:
        address = self._addresses.get(node)
        known = self._outbound.get(node)
        if known is not None and known[0] == address:
            return known[1]
        with self._lock:
            known = self._outbound.pop(node, None)
            if known is not None:
                threading.Thread(target=known[1].close, daemon=True).start()
            if not address or self._closed:
                return None
            line = _Line(self._dialer, node, address, self._received)
            outbound = Outbound(node, line.open, line.hear)
            self._outbound[node] = (address, outbound)
            return outbound

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links: list[Any] = [link for _, link in self._outbound.values()]
            self._outbound.clear()
        for link in links:
            link.close()
