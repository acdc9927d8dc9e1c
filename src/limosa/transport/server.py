"""How does a process listen? One Flight server: message streams, control calls and scans.

The service handles the messages. This module authenticates every caller, keeps tracebacks off the
wire, limits the number of streams, and stops reading from a caller whose answers pile up.
"""

import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa.errors import BadInput, Forbidden, Refused
from limosa.transport.failures import errors_sent, to_flight_error
from limosa.transport.keys import Keyring
from limosa.transport.links import Encode, StreamSender
from limosa.transport.security import (
    MIDDLEWARE,
    AuthenticationFactory,
    Security,
    check_bind,
    identity_of,
    scheme,
    server_arguments,
)
from limosa.transport.tokens import Identity, Sessions

PROTOCOL = 2
HELLO_BYTES_MAX = 8 << 20
LINKS_MAX = 800
"""Most open streams of clients; nodes and coordinators are not limited. See `CALLS_MAX`."""
ACTION_BYTES_MAX = 8 << 20
IN_FLIGHT_MAX = 1_024
IN_FLIGHT_BYTES_MAX = 64 << 20
STALL_SECONDS = 30.0


class Hello(msgspec.Struct, frozen=True):
    """The first message of a stream: who calls whom."""

    cluster: str
    """The cluster's name; empty: the caller does not know it."""
    kind: str
    """`client`, `node`, `coordinator` or `mover`."""
    name: str = ""
    to: str = ""
    """The node that the caller means to reach; empty: any node."""
    protocol: int = PROTOCOL
    sessions: Sessions = ()
    """Of a mover: the sessions that its token is for."""


class Inbound:
    """A stream that a caller opened to this process."""

    def __init__(self, link: StreamSender, hello: Hello, identity: Identity) -> None:
        self.link = link
        self.hello = hello
        self.identity = identity
        self.sessions = frozenset(hello.sessions)
        self._changed = threading.Condition(threading.Lock())
        self._under_way: dict[str, int] = {}
        self._bytes = 0

    @property
    def name(self) -> str:
        return self.link.name

    def check_session(self, partition: str, session: str) -> None:
        """Refuse a mover's message about a session that its token is not for."""
        if self.identity.has_role and (partition, session) not in self.sessions:
            raise Forbidden(
                f"the token of '{self.identity.subject}' is not for session {session[:200]} of "
                f"partition {partition[:200]}",
                "use the token that was made for this copy",
            )

    def take_up(self, sizes: Mapping[str, int]) -> None:
        """Count requests as in flight; blocks while this caller has too many in flight."""
        with self._changed:
            deadline = time.monotonic() + STALL_SECONDS
            while len(self._under_way) >= IN_FLIGHT_MAX or self._bytes > IN_FLIGHT_BYTES_MAX:
                if not self._changed.wait(deadline - time.monotonic()):
                    self._under_way.clear()  # their answers were lost
                    self._bytes = 0
            for request, size in sizes.items():
                self._bytes += size - self._under_way.get(request, 0)
                self._under_way[request] = size

    def settle(self, requests: Iterable[str]) -> None:
        """These requests are answered."""
        with self._changed:
            for request in requests:
                self._bytes -= self._under_way.pop(request, 0)
            self._changed.notify()


class Service(Protocol):
    """What the process does with the messages and calls that it receives."""

    cluster: str
    node: str

    def encoder(self, kind: str) -> Encode: ...

    def size_of(self, message: Any) -> int: ...

    def opened(self, inbound: Inbound) -> None: ...

    def received(self, inbound: Inbound, frame: pa.Buffer) -> None: ...

    def closed(self, inbound: Inbound) -> None: ...

    def act(self, identity: Identity, name: str, body: bytes) -> bytes: ...

    def scan(
        self, identity: Identity, ticket: bytes
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]: ...

    def log(self, what: str, **details: object) -> None: ...


class Server(flight.FlightServerBase):
    """The process's one port."""

    def __init__(self, host: str, port: int, security: Security, service: Service) -> None:
        check_bind(host, security)
        self._service = service
        self._numbers = count(1)
        self._links: dict[str, Inbound] = {}
        self._lock = threading.Lock()
        self._stopping = False
        _make_room_for_connections()
        at = f"[{host}]" if ":" in host else host
        before = f"{scheme(security.serves_tls)}://{at}"
        arguments = server_arguments(security)
        self._authentication: AuthenticationFactory = arguments["middleware"][MIDDLEWARE]
        super().__init__(f"{before}:{port}", **arguments)
        self.address = f"{before}:{self.port}"
        # The server listens from here on. `serve()` would only block and take over signals.

    # --- streams

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        inbound: Inbound | None = None
        keys: Keyring | None = None
        try:
            inbound = self._greet(context, descriptor.command, writer)
            while not self._stopping:
                frame = _next_frame(reader)
                keys = self._authentication.check_again(inbound.identity, keys)
                if inbound.link.closed:
                    raise Refused("an answer could not be sent", "reconnect")
                self._service.received(inbound, frame)
                inbound.link.pump()
        except StopIteration:
            pass
        except BaseException as error:
            if not isinstance(error, flight.FlightCancelledError):
                raise self._told(error) from None
        finally:
            if inbound is not None:
                self._leave(inbound)

    def _greet(self, context: Any, command: bytes | None, writer: Any) -> Inbound:
        identity = identity_of(context)
        if command is not None and len(command) > HELLO_BYTES_MAX:
            raise BadInput(
                f"a greeting has {len(command)} bytes", f"send at most {HELLO_BYTES_MAX}"
            )
        try:
            hello = _hellos.decode(command or b"")
        except (ValueError, RecursionError):
            raise BadInput(
                "a stream without a valid greeting", "check the client's version"
            ) from None
        self._check_hello(hello, identity)
        number = next(self._numbers)
        name = hello.name if hello.kind == "node" else f"{hello.kind}:{number}"
        service = self._service
        inbound = Inbound(
            StreamSender(
                name,
                writer,
                service.encoder(hello.kind),
                service.size_of,
                reader_pumps=True,
            ),
            hello,
            identity,
        )
        with self._lock:
            clients = sum(each.hello.kind == "client" for each in self._links.values())
            if hello.kind == "client" and clients >= LINKS_MAX:
                raise Refused(f"{LINKS_MAX} client streams are open here already", "close some")
            self._links[f"{name}/{number}"] = inbound
        service.opened(inbound)
        return inbound

    def _check_hello(self, hello: Hello, identity: Identity) -> None:
        if hello.protocol != PROTOCOL:
            raise BadInput(
                f"protocol version {hello.protocol} is not supported", f"use version {PROTOCOL}"
            )
        if hello.cluster and hello.cluster != self._service.cluster:
            raise BadInput(
                f"this is a node of cluster {self._service.cluster}, not of {hello.cluster[:200]}",
                "check the address",
            )
        if hello.to and hello.to != self._service.node:
            raise BadInput(
                f"this is {self._service.node}, not {hello.to[:200]}", "refresh the topology"
            )
        if hello.kind not in ("client", "node", "coordinator", "mover"):
            raise BadInput(
                f"unknown kind of stream: {hello.kind[:20]!r}", "check the client's version"
            )
        if hello.kind == "node" and not identity.is_node(hello.name):
            raise Forbidden(
                f"{identity.subject} is not node {hello.name[:200]}",
                "use the certificate or token of that node",
            )
        if hello.kind == "client":
            identity.must_be("client", "admin")
        if hello.kind == "coordinator" and identity.has_role:
            identity.must_be("coordinator")
        if hello.kind == "mover" and identity.has_role:
            identity.must_be("mover")
            identity.must_be_for(hello.sessions)

    def _leave(self, inbound: Inbound) -> None:
        inbound.link.close()
        with self._lock:
            for key, known in list(self._links.items()):
                if known is inbound:
                    del self._links[key]
        self._service.closed(inbound)
        inbound.link.join(1.0)

    # --- calls

    def do_action(self, context: Any, action: Any) -> list[Any]:
        with errors_sent(self._report):
            identity = identity_of(context)
            if action.body is not None and action.body.size > ACTION_BYTES_MAX:
                raise BadInput(
                    f"a call has {action.body.size} bytes", f"send at most {ACTION_BYTES_MAX}"
                )
            body = b"" if action.body is None else action.body.to_pybytes()
            return [flight.Result(pa.py_buffer(self._service.act(identity, action.type, body)))]

    def do_get(self, context: Any, ticket: Any) -> Any:
        with errors_sent(self._report):
            identity = identity_of(context)
            schema, batches = self._service.scan(identity, ticket.ticket)
            return flight.GeneratorStream(schema, self._guarded(identity, batches))

    def _guarded(
        self, identity: Identity, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        with errors_sent(self._report):
            keys: Keyring | None = None
            for batch in batches:
                keys = self._authentication.check_again(identity, keys)
                yield batch

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        raise self._told(BadInput("DoPut is not supported", "write by a stream of messages"))

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        raise self._told(BadInput("ListFlights is not supported", "ask for the topology"))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        raise self._told(BadInput("GetFlightInfo is not supported", "ask for the topology"))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """An empty schema: pyarrow would send the traceback of an error raised here."""
        return flight.SchemaResult(pa.schema([]))

    def list_actions(self, context: Any) -> list[Any]:
        return []

    def _told(self, error: BaseException) -> flight.FlightError:
        return to_flight_error(error, self._report)

    def _report(self, incident: str, error: BaseException) -> None:
        self._service.log("a handler failed", incident=incident, error=error)

    # --- the end

    def stop(self, seconds: float, goodbye: Callable[[Inbound], None]) -> bool:
        """Ask callers to disconnect, and wait; False: some are still connected."""
        self._stopping = True
        with self._lock:
            inbounds = list(self._links.values())
        for inbound in inbounds:
            goodbye(inbound)
        ending = threading.Thread(target=self.shutdown, name="flight-shutdown", daemon=True)
        ending.start()
        ending.join(seconds)
        return not ending.is_alive()


def _next_frame(reader: Any) -> pa.Buffer:
    """The frame in a message's metadata. Flight's own rows are not used, and are refused."""
    try:
        chunk = reader.read_chunk()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise BadInput("a malformed Flight message", "check the client's version") from None
    if chunk.app_metadata is None or chunk.data is not None:
        del chunk  # may be large: Flight has decompressed it
        pa.default_memory_pool().release_unused()
        raise BadInput("a message without a frame", "check the client's version")
    frame: pa.Buffer = chunk.app_metadata
    return frame


def _make_room_for_connections() -> None:
    """Raise the limit of open files: every connection needs a descriptor, even an idle one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_hellos = msgspec.msgpack.Decoder(Hello)
