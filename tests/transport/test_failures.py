"""Errors cross real Flight calls whole, and what is internal stays inside."""

import time
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from limosa import errors
from limosa.errors import (
    BadInput,
    Fenced,
    Forbidden,
    LimosaError,
    OutcomeUnknown,
    Redirected,
    Refused,
    StaleGuard,
    Unauthenticated,
)
from limosa.transport.failures import (
    WireFailure,
    errors_received,
    errors_sent,
    from_flight_error,
    to_flight_error,
)
from tests.transport.probe import BATCH, Probe, connected, facts, options, raising, serving

EVERY_CLASS = sorted(
    (
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, LimosaError)
    ),
    key=lambda kind: kind.__name__,
)


# ---------------------------------------------------------------------------- five ways to call


def act(client: flight.FlightClient) -> None:
    list(client.do_action(flight.Action("fail", b""), options()))


def get(client: flight.FlightClient) -> None:
    """The first batch arrives; the error comes after it."""
    reader = client.do_get(flight.Ticket(b""), options())
    assert reader.read_chunk().data == BATCH
    reader.read_chunk()


def put(client: flight.FlightClient) -> None:
    """An answer may just end; it is the writer's `close` that says why."""
    descriptor = flight.FlightDescriptor.for_command(b"")
    writer, reader = client.do_put(descriptor, BATCH.schema, options())
    assert isinstance(reader, flight.FlightMetadataReader)
    writer.write_batch(BATCH)
    answer = reader.read()
    if answer is not None:
        assert answer.to_pybytes() == b"taken"
        writer.done_writing()
        assert reader.read() is None
    writer.close()


def exchange(client: flight.FlightClient) -> None:
    """A stream of metadata alone, open both ways for many messages before it fails."""
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), options())
    for number in range(100):
        send(writer, b"%d" % number)
        assert receive(reader) == b"%d" % number
    send(writer, b"now")
    assert receive(reader) == b"now"
    reader.read_chunk()


def exchange_ahead(client: flight.FlightClient) -> None:
    """The error is found by a client that goes on sending and reads later."""
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), options())
    for message in (b"one", b"now", b"two"):
        send(writer, message)
    writer.done_writing()
    assert [receive(reader) for _ in range(2)] == [b"one", b"now"]
    reader.read_chunk()


def send(writer: flight.FlightStreamWriter, message: bytes) -> None:
    writer.write_metadata(pa.py_buffer(message))


def receive(reader: flight.FlightStreamReader) -> bytes:
    message = reader.read_chunk().app_metadata
    assert message is not None
    return message.to_pybytes()


WAYS = [act, get, put, exchange, exchange_ahead]
Way = Callable[[flight.FlightClient], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Probe]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Probe) -> Iterator[flight.FlightClient]:
    with connected(server) as client:
        yield client


def failed(way: Way, client: flight.FlightClient) -> LimosaError:
    with pytest.raises(LimosaError) as caught, errors_received():
        way(client)
    return caught.value


# ------------------------------------------------------------------------------------- together


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Redirected, BadInput, Unauthenticated, Forbidden, OutcomeUnknown])
def test_an_error_crosses_every_kind_of_call(
    server: Probe, client: flight.FlightClient, way: Way, kind: type[LimosaError]
) -> None:
    error = kind("the owner is node-2 → not me", "route again; größer")
    server.fail = raising(error)
    assert facts(failed(way, client)) == facts(error)
    assert server.reports == []


@pytest.mark.parametrize("kind", EVERY_CLASS)
def test_every_class_of_the_tree_arrives_as_itself(
    server: Probe, client: flight.FlightClient, kind: type[LimosaError]
) -> None:
    error = kind("what happened", "what to do")
    server.fail = raising(error)
    arrived = failed(act, client)
    assert facts(arrived) == facts(error)
    assert str(arrived) == "what happened (what to do)"


@pytest.mark.parametrize("way", WAYS)
def test_a_plain_exception_leaks_nothing(
    server: Probe, client: flight.FlightClient, way: Way
) -> None:
    error = ZeroDivisionError("/var/lib/limosa/private.key")
    server.fail = raising(error)
    server.reports.clear()
    with pytest.raises(flight.FlightServerError) as caught:
        way(client)
    text = str(caught.value) + caught.value.extra_info.decode("latin-1")
    for leak in ("Traceback", "private", ".py", "ZeroDivision", "/"):
        assert leak not in text
    ((incident, reported),) = server.reports
    server.reports.clear()
    assert incident in text
    assert reported is error
    arrived = from_flight_error(caught.value)
    assert isinstance(arrived, OutcomeUnknown)
    assert arrived.message == f"internal error {incident}"
    assert arrived.advice
    assert not arrived.definite


@pytest.mark.parametrize("text", ["m", "→", "\n", "\0", "\udcff", '"\\'])
def test_an_endless_message_is_cut_and_still_arrives(
    server: Probe, client: flight.FlightClient, text: str
) -> None:
    """Above 8 KB of headers gRPC drops some of them by chance, so once is not enough."""
    server.fail = raising(Fenced(text * 100_000, text * 100_000))
    for _ in range(20):
        arrived = failed(act, client)
        assert isinstance(arrived, Fenced)
        assert arrived.message.endswith("…")
        assert arrived.advice.endswith("…")


def test_a_call_that_no_server_answers_may_have_happened(server: Probe) -> None:
    with serving() as gone:
        client = connected(gone)
        with client as open_client:
            act(open_client)
            gone.shutdown()
            assert isinstance(failed(act, open_client), OutcomeUnknown)


def test_a_call_that_takes_too_long_may_have_happened(
    server: Probe, client: flight.FlightClient
) -> None:
    server.fail = lambda: time.sleep(0.5)
    with pytest.raises(OutcomeUnknown, match="timeout"), errors_received():
        list(client.do_action(flight.Action("x", b""), flight.FlightCallOptions(timeout=0.1)))


def test_a_call_that_its_client_cancels_may_have_happened(
    server: Probe, client: flight.FlightClient
) -> None:
    server.fail = lambda: time.sleep(0.5)
    reader = client.do_get(flight.Ticket(b""), options())
    reader.read_chunk()
    reader.cancel()
    with pytest.raises(OutcomeUnknown, match="cancelled"), errors_received():
        reader.read_chunk()


def test_a_foreign_server_is_understood_as_far_as_it_goes() -> None:
    """A plain Flight server knows nothing of our errors; an action it lacks is no crash."""
    with (
        flight.FlightServerBase("grpc://127.0.0.1:0") as foreign,
        flight.FlightClient(f"grpc://127.0.0.1:{foreign.port}") as client,
    ):
        arrived = failed(act, client)
    assert isinstance(arrived, OutcomeUnknown)
    assert "Traceback" not in str(arrived)


# ---------------------------------------------------------------------------------------- alone


def packed(code: str, definite: bool) -> flight.FlightError:
    data = msgspec.msgpack.encode(WireFailure(code, "what", "advice", definite))
    return flight.FlightServerError("text", extra_info=data)  # type: ignore[call-arg]


def test_an_unknown_code_of_a_newer_server_keeps_its_definiteness() -> None:
    assert facts(from_flight_error(packed("Tired", True))) == (Refused, "what", "advice", True)
    unknown = (OutcomeUnknown, "what", "advice", False)
    assert facts(from_flight_error(packed("Tired", False))) == unknown
    assert facts(from_flight_error(packed("Fenced", False))) == unknown
    assert type(from_flight_error(packed("OutcomeUnknown", True))) is OutcomeUnknown


@pytest.mark.parametrize("code", ["Exception", "ClassVar", "__builtins__", ""])
def test_a_code_names_nothing_but_our_errors(code: str) -> None:
    assert type(from_flight_error(packed(code, True))) is Refused


@pytest.mark.parametrize("data", [b"\xff", b"\x80", b"{}", b"\x93\x01\x02\x03", b"\xc1" * 9])
def test_bytes_of_another_program_are_ignored(data: bytes) -> None:
    error = flight.FlightUnauthenticatedError("no", extra_info=data)  # type: ignore[call-arg]
    arrived = from_flight_error(error)
    assert isinstance(arrived, Unauthenticated)
    assert arrived.message == "no"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (flight.FlightUnauthenticatedError("no. Detail: Unauthenticated"), Unauthenticated),
        (flight.FlightUnauthorizedError("no. Detail: Unauthorized"), Forbidden),
        (flight.FlightUnavailableError("no"), OutcomeUnknown),
        (flight.FlightTimedOutError("no"), OutcomeUnknown),
        (flight.FlightCancelledError("no"), OutcomeUnknown),
        (flight.FlightInternalError("no"), OutcomeUnknown),
        (flight.FlightServerError(""), OutcomeUnknown),
        (pa.ArrowInvalid("no"), OutcomeUnknown),
        (OSError("no"), OutcomeUnknown),
    ],
)
def test_errors_without_our_bytes_are_told_by_their_kind(
    error: Exception, kind: type[LimosaError]
) -> None:
    arrived = from_flight_error(error)
    assert type(arrived) is kind
    assert "Detail" not in str(arrived)


def test_our_own_errors_stay_what_they_are() -> None:
    error = StaleGuard("moved on", keys=("a",))
    assert from_flight_error(error) is error


def test_a_class_that_only_one_room_knows_travels_as_its_ancestor() -> None:
    class Tired(Fenced):
        pass

    arrived = from_flight_error(to_flight_error(Tired("so", "sleep")))
    assert facts(arrived) == (Fenced, "so", "sleep", True)


def test_a_client_that_left_is_no_internal_error() -> None:
    reports: list[str] = []
    error = to_flight_error(
        flight.FlightCancelledError("/secret"), lambda incident, error: reports.append(incident)
    )
    assert isinstance(error, flight.FlightCancelledError)
    assert "/secret" not in str(error)
    assert reports == []


def test_a_log_that_fails_is_not_told_to_the_client() -> None:
    def report(incident: str, error: BaseException) -> None:
        raise OSError("/var/log is full")

    assert "full" not in str(to_flight_error(ValueError("x"), report))


def test_the_end_of_a_generator_is_no_error() -> None:
    def generator() -> Iterator[int]:
        with errors_sent():
            yield 1

    numbers = generator()
    assert next(numbers) == 1
    numbers.close()  # type: ignore[attr-defined]


def test_a_mistake_of_the_client_itself_passes_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), errors_received():
        _ = 1 // 0
