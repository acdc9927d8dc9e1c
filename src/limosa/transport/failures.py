"""How does an error cross the wire?

A Flight error has a text and some bytes. The bytes (`extra_info`) carry what Limosa needs: the
error's class, its message and advice, and whether the operation surely did not happen. Internal
errors stay on the server: the client gets an incident number, the server's log the traceback.

How pyarrow 26 behaves, which is why this module is needed:

- The class `FlightError` itself loses its bytes on the way; its subclasses keep them.
- Anything but a Flight error arrives with the server's traceback, file names and all.
- Text and bytes travel as HTTP headers. gRPC drops them *sometimes* above 8 KB in total, and always
  above 16 KB; the text counts up to four times. So text and bytes are truncated.
- A failed call may raise an `ArrowInvalid`, an `ArrowKeyError` or a plain `OSError` as well.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from limosa import errors
from limosa.errors import Forbidden, LimosaError, OutcomeUnknown, Refused, Unauthenticated

# In bytes of UTF-8; see above.
TEXT_LENGTH_MAX = 500
MESSAGE_LENGTH_MAX = 1200
ADVICE_LENGTH_MAX = 600

# Receives every error that is hidden from the client, with the incident number it was given.
Report: TypeAlias = Callable[[str, BaseException], None]

_classes: dict[str, type[LimosaError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, LimosaError)
}


class WireFailure(msgspec.Struct, frozen=True):
    """A `LimosaError`, as it travels."""

    code: str
    message: str
    advice: str
    definite: bool


_decoder = msgspec.msgpack.Decoder(WireFailure)


# -------------------------------------------------------------------------------------- sending


def to_flight_error(error: BaseException, report: Report | None = None) -> flight.FlightError:
    """The error that the server raises: it tells the client what happened, and nothing more."""
    if isinstance(error, LimosaError):
        return _packed(error)
    if isinstance(error, flight.FlightCancelledError):
        return flight.FlightCancelledError("the call was cancelled")
    incident = secrets.token_hex(6)
    if report is not None:
        # A failure to log must not send the logger's traceback to the client.
        with suppress(Exception):
            report(incident, error)
    return _packed(
        OutcomeUnknown(f"internal error {incident}", "look for this number in the server's log")
    )


@contextmanager
def errors_sent(report: Report | None = None) -> Iterator[None]:
    """Wraps the work of a handler, and the body of a generator that it returns."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        raise to_flight_error(error, report) from None


def _packed(error: LimosaError) -> flight.FlightError:
    failure = WireFailure(
        _code(type(error)),
        _cut(error.message, MESSAGE_LENGTH_MAX),
        _cut(error.advice, ADVICE_LENGTH_MAX),
        error.definite,
    )
    # The stubs know neither of the two arguments.
    return _flight_class(error)(  # type: ignore[call-arg]
        _cut(str(error), TEXT_LENGTH_MAX), extra_info=msgspec.msgpack.encode(failure)
    )


def _flight_class(error: LimosaError) -> type[flight.FlightError]:
    match error:
        case Unauthenticated():
            return flight.FlightUnauthenticatedError
        case Forbidden():
            return flight.FlightUnauthorizedError
        case _:
            return flight.FlightServerError


def _code(kind: type[LimosaError]) -> str:
    """A class that is private to this package travels as its nearest ancestor in `errors`."""
    return next(base.__name__ for base in kind.__mro__ if _classes.get(base.__name__) is base)


def _cut(text: str, length: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= length:
        return data.decode()
    return data[: length - len("…".encode())].decode("utf-8", "ignore") + "…"


# ------------------------------------------------------------------------------------ receiving


def from_flight_error(error: BaseException) -> LimosaError:
    """The server's error; if Limosa's bytes are missing, it is derived from the Flight class.

    Unless the error says that the call did not happen, its outcome is unknown. This includes calls
    that never reached a server, since Flight can't tell them apart.
    """
    if isinstance(error, LimosaError):
        return error
    failure = _failure(error)
    if failure is not None:
        return _unpacked(failure)
    text = _text(error)
    match error:
        case flight.FlightUnauthenticatedError():
            return Unauthenticated(text, "send a token or a certificate of this cluster")
        case flight.FlightUnauthorizedError():
            return Forbidden(text)
        case flight.FlightTimedOutError():
            return OutcomeUnknown(f"timeout: {text}", "retry")
        case flight.FlightCancelledError():
            return OutcomeUnknown(f"the call was cancelled: {text}", "retry")
        case flight.FlightUnavailableError():
            return OutcomeUnknown(
                f"the server can't be reached: {text}",
                "check that it is running, that both sides use TLS or neither does, and that the "
                "certificates match; then retry",
            )
        case _:
            return OutcomeUnknown(f"the call failed: {text}", "retry")


@contextmanager
def errors_received() -> Iterator[None]:
    """Wraps a client's calls to a server, and the reading of answers."""
    try:
        yield
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise from_flight_error(error) from None


def _failure(error: BaseException) -> WireFailure | None:
    if not isinstance(error, flight.FlightError) or not error.extra_info:
        return None
    try:
        return _decoder.decode(error.extra_info)
    except msgspec.DecodeError:
        return None  # another program's bytes


def _unpacked(failure: WireFailure) -> LimosaError:
    kind = _classes.get(failure.code)
    if kind is None or (kind.definite and not failure.definite):
        # From a newer server. Whether the call may have happened matters more than the class name.
        kind = Refused if failure.definite else OutcomeUnknown
    return kind(failure.message, failure.advice)


def error_named(code: str, message: str, advice: str = "") -> LimosaError:
    """The error of that class if message and advice suffice to build it, otherwise `Refused`."""
    kind = _classes.get(code, Refused)
    return kind(message, advice)


def _text(error: BaseException) -> str:
    """The first line of the text, without what Flight and a server's traceback add."""
    lines = str(error).partition(". Detail: ")[0].splitlines()
    return _cut(lines[0], TEXT_LENGTH_MAX) if lines else type(error).__name__
