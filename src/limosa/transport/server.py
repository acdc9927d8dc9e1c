"""How does a process listen? One Flight server: message streams, control calls and scans.

What is said is the service's business; here it is made sure that every caller is known, that no
handler leaks a traceback, that there are not too many streams, and that a slow reader is not read
from faster than it is answered.
"""

import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa.errors import BadInput, Forbidden, Refused, Unauthenticated
from limosa.transport.failures import to_flight_error
from limosa.transport.links import Encode, StreamSender
from limosa.transport.security import (
    Security,
    check_bind,
    identity_of,
    scheme,
    server_arguments,
)
from limosa.transport.tokens import Identity

PROTOCOL = 2
LINKS_MAX = 800
"""Open streams of clients; nodes and coordinators always get in. See also `CALLS_MAX`."""
ACTION_BYTES_MAX = 8 << 20
IN_FLIGHT_MAX = 1_024
IN_FLIGHT_BYTES_MAX = 64 << 20
STALL_SECONDS = 30.0


class Hello(msgspec.Struct, frozen=True):
    """The first thing said on a stream."""

    cluster: str
    """Its name; empty: the caller does not know it."""
    kind: str
    """`client`, `node` or `coordinator`."""
    name: str = ""
    to: str = ""
    """The node that the caller believes to talk to; empty: whoever it is."""
    protocol: int = PROTOCOL


class Inbound:
    """A stream that somebody opened to us."""

    def __init__(self, link: StreamSender, hello: Hello, identity: Identity) -> None:
        self.link = link
        self.hello = hello
        self.identity = identity
        self._changed = threading.Condition(threading.Lock())
        self._under_way: dict[str, int] = {}
        self._bytes = 0

    @property
    def name(self) -> str:
        return self.link.name

    def take_up(self, sizes: Mapping[str, int]) -> None:
        """Work for this caller begins; while too much of it is under way, nothing more is read."""
        with self._changed:
            deadline = time.monotonic() + STALL_SECONDS
            while len(self._under_way) >= IN_FLIGHT_MAX or self._bytes > IN_FLIGHT_BYTES_MAX:
                if not self._changed.wait(deadline - time.monotonic()):
                    self._under_way.clear()  # their answers were lost on the way
                    self._bytes = 0
            for request, size in sizes.items():
                self._bytes += size - self._under_way.get(request, 0)
                self._under_way[request] = size

    def settle(self, request: str) -> None:
        """It is answered."""
        with self._changed:
            self._bytes -= self._under_way.pop(request, 0)
            self._changed.notify()


class Service(Protocol):
    """What the process does with what it is told."""

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
        super().__init__(f"{before}:{port}", **server_arguments(security))
        self.address = f"{before}:{self.port}"
        # It listens from now on. `serve()` would only wait, and take the process's signals.

    # --- streams

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        inbound: Inbound | None = None
        try:
            inbound = self._greet(context, descriptor.command, writer)
            while not self._stopping:
                frame = _next_frame(reader)
                self._check_expiry(inbound.identity)
                if inbound.link.closed:
                    raise Refused("what was answered could not be sent", "connect again")
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
        try:
            hello = _hellos.decode(command or b"")
        except (ValueError, RecursionError):
            raise BadInput("a stream without a greeting", "speak Limosa's protocol") from None
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
                raise Refused(f"{LINKS_MAX} streams are open here already", "close some")
            self._links[f"{name}/{number}"] = inbound
        service.opened(inbound)
        return inbound

    def _check_hello(self, hello: Hello, identity: Identity) -> None:
        if hello.protocol != PROTOCOL:
            raise BadInput(f"protocol {hello.protocol}", f"this node speaks {PROTOCOL}")
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
            raise BadInput(f"a stream of kind {hello.kind[:20]!r}", "speak Limosa's protocol")
        if hello.kind == "node" and not identity.is_node(hello.name):
            raise Forbidden(
                f"{identity.subject} is not node {hello.name[:200]}",
                "a node's certificate or token bears its name",
            )
        if hello.kind == "coordinator" and identity.has_role:
            identity.must_be("coordinator")
        if hello.kind == "mover" and identity.has_role:
            identity.must_be("mover")

    def _check_expiry(self, identity: Identity) -> None:
        if identity.expires_at is not None and time.time() > identity.expires_at:
            raise Unauthenticated("the token has expired", "connect with a new one")

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
        try:
            identity = identity_of(context)
            if action.body is not None and action.body.size > ACTION_BYTES_MAX:
                raise BadInput(f"a call of {action.body.size} bytes", "calls are small: write")
            body = b"" if action.body is None else action.body.to_pybytes()
            return [flight.Result(pa.py_buffer(self._service.act(identity, action.type, body)))]
        except BaseException as error:
            raise self._told(error) from None

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            schema, batches = self._service.scan(identity_of(context), ticket.ticket)
        except BaseException as error:
            raise self._told(error) from None
        return flight.GeneratorStream(schema, self._guarded(batches))

    def _guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except GeneratorExit:
            raise
        except BaseException as error:
            raise self._told(error) from None

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        raise self._told(BadInput("Limosa takes no DoPut", "write by a stream of messages"))

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        raise self._told(BadInput("Limosa lists no flights", "ask for the topology"))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        raise self._told(BadInput("Limosa has no flight infos", "ask for the topology"))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """None of it: of an error here, pyarrow would send the traceback along."""
        return flight.SchemaResult(pa.schema([]))

    def list_actions(self, context: Any) -> list[Any]:
        return []

    def _told(self, error: BaseException) -> flight.FlightError:
        return to_flight_error(error, self._report)

    def _report(self, incident: str, error: BaseException) -> None:
        self._service.log("a handler failed", incident=incident, error=error)

    # --- the end

    def stop(self, seconds: float, goodbye: Callable[[Inbound], None]) -> bool:
        """Ask callers to go, and wait for that; False: some are still there."""
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
    """What was sent beside Flight's own rows; those are a stranger's, and nobody's here."""
    try:
        chunk = reader.read_chunk()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise BadInput("a message that is no frame", "speak Limosa's protocol") from None
    if chunk.app_metadata is None or chunk.data is not None:
        del chunk  # it may be large: Flight has inflated it
        pa.default_memory_pool().release_unused()
        raise BadInput("a message without a frame", "speak Limosa's protocol")
    frame: pa.Buffer = chunk.app_metadata
    return frame


def _make_room_for_connections() -> None:
    """Each takes a file descriptor, also of those who only hold the line; so do our files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_hellos = msgspec.msgpack.Decoder(Hello)
