"""A small Flight server that tells who called and fails as it is told, for tests of security."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa.errors import LimosaError
from limosa.transport.failures import errors_sent
from limosa.transport.security import (
    Security,
    check_bind,
    client_arguments,
    identity_of,
    scheme,
    server_arguments,
)
from limosa.transport.tokens import Identity

HOST = "127.0.0.1"
BATCH = pa.record_batch({"n": pa.array([1, 2, 3])})
TOO_LONG_SECONDS = 30.0

Fail = Callable[[], None]


class Probe(flight.FlightServerBase):
    """Every handler asks who calls, answers once, then does what `fail` does."""

    def __init__(self, security: Security, clock: Callable[[], float]) -> None:
        check_bind(HOST, security)
        super().__init__(
            f"{scheme(security.serves_tls)}://{HOST}:0", **server_arguments(security, clock)
        )
        self.fail: Fail = lambda: None
        self.calls = 0
        self.reports: list[tuple[str, BaseException]] = []

    def _report(self, incident: str, error: BaseException) -> None:
        self.reports.append((incident, error))

    def _identity(self, context: flight.ServerCallContext) -> Identity:
        self.calls += 1
        return identity_of(context)

    def do_action(  # type: ignore[override]
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[flight.Result]:
        with errors_sent(self._report):
            identity = self._identity(context)
            if action.type == "administrate":
                identity.must_be("admin")
            yield flight.Result(msgspec.json.encode(identity))
            self.fail()

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        with errors_sent(self._report):
            self._identity(context)
            return flight.GeneratorStream(BATCH.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with errors_sent(self._report):
            yield BATCH
            self.fail()

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with errors_sent(self._report):
            self._identity(context)
            for _ in reader:
                writer.write(pa.py_buffer(b"taken"))
            self.fail()

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Sends every message back; `fail` comes after the message "now"."""
        with errors_sent(self._report):
            self._identity(context)
            for chunk in reader:
                assert chunk.data is None
                message = chunk.app_metadata
                assert message is not None
                writer.write_metadata(message)
                if message.to_pybytes() == b"now":
                    self.fail()


@contextmanager
def serving(
    security: Security | None = None, clock: Callable[[], float] = lambda: 1_000_000.0
) -> Iterator[Probe]:
    """A server, down again at the end. Clients go first: it waits for their open streams."""
    with Probe(security or Security(), clock) as server:
        yield server


@contextmanager
def connected(
    server: Probe, security: Security | None = None, name: str | None = None, **more: Any
) -> Iterator[flight.FlightClient]:
    security = security or Security()
    location = f"{scheme(security.calls_tls)}://{HOST}:{server.port}"
    with ExitStack() as stack:
        yield stack.enter_context(
            flight.FlightClient(location, **client_arguments(security, name), **more)
        )


def options(*headers: tuple[str, str]) -> flight.FlightCallOptions:
    encoded: list[Any] = [(name.encode(), value.encode()) for name, value in headers]
    return flight.FlightCallOptions(timeout=TOO_LONG_SECONDS, headers=encoded)


def who_am_i(
    client: flight.FlightClient,
    call_options: flight.FlightCallOptions | None = None,
    action: str = "who",
) -> Identity:
    results = list(client.do_action(flight.Action(action, b""), call_options or options()))
    return msgspec.json.decode(results[0].body.to_pybytes(), type=Identity)


def raising(error: BaseException) -> Fail:
    def fail() -> None:
        raise error

    return fail


def facts(error: LimosaError) -> tuple[type[LimosaError], str, str, bool]:
    """What of an error must survive the wire."""
    return type(error), error.message, error.advice, error.definite
