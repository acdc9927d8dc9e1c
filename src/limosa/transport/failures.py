"""How does an error cross the wire?

A Flight error has a text and some bytes. The bytes (`extra_info`) carry what Limosa needs: the
error's class, its message and advice, and whether the operation surely did not happen. What went
wrong inside a server stays there: the client gets a number, the server's log the traceback.

Learned from pyarrow 26, and the reason for the care taken here:

- The class `FlightError` itself loses its bytes on the way; its subclasses keep them.
- Anything but a Flight error arrives with the server's traceback, file names and all.
- Text and bytes travel as HTTP headers. Above 8 KB in sum gRPC drops them *now and then*, above
  16 KB always; and the text counts up to four times. So all of it is cut to length.
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

# Told of every error that is not for the client's eyes: the number that the client got, and it.
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
    """What the server raises, so that the client can tell what happened, and no more."""
    if isinstance(error, LimosaError):
        return _packed(error)
    if isinstance(error, flight.FlightCancelledError):
        return flight.FlightCancelledError("the call was cancelled")
    incident = secrets.token_hex(6)
    if report is not None:
        # A log that fails must not put its own traceback on the wire.
        with suppress(Exception):
            report(incident, error)
    return _packed(
        OutcomeUnknown(f"internal error {incident}", "the server's log has it under this number")
    )


@contextmanager
def errors_sent(report: Report | None = None) -> Iterator[None]:
    """Around what a handler does, and inside the generator that it returns."""
    try:
        yield
    except Exception as error:
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
    """A class that only this room knows travels as its nearest ancestor in `errors`."""
    return next(base.__name__ for base in kind.__mro__ if _classes.get(base.__name__) is base)


def _cut(text: str, length: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= length:
        return data.decode()
    return data[: length - len("…".encode())].decode("utf-8", "ignore") + "…"


# ------------------------------------------------------------------------------------ receiving


def from_flight_error(error: BaseException) -> LimosaError:
    """What the server meant; what it did not say is told from the kind of the error.

    Whatever says nothing definite may have happened, also a call that never reached a server:
    Flight does not tell these apart.
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
            return OutcomeUnknown(f"no answer in time: {text}", "try again")
        case flight.FlightCancelledError():
            return OutcomeUnknown(f"the call was cancelled: {text}", "try again")
        case flight.FlightUnavailableError():
            return OutcomeUnknown(
                f"the server can't be reached: {text}",
                "is it running there, with TLS on both sides or on none, and with certificates "
                "that fit? Then try again",
            )
        case _:
            return OutcomeUnknown(f"the call failed: {text}", "try again")


@contextmanager
def errors_received() -> Iterator[None]:
    """Around what a client asks of a server, and around reading what it answers."""
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
        return None  # of another program


def _unpacked(failure: WireFailure) -> LimosaError:
    kind = _classes.get(failure.code)
    if kind is None or (kind.definite and not failure.definite):
        # Of a newer server. That it may have happened weighs more than what it is called.
        kind = Refused if failure.definite else OutcomeUnknown
    return kind(failure.message, failure.advice)


def error_named(code: str, message: str, advice: str = "") -> LimosaError:
    """The error of that class, if it is one that a message and advice make; else a refusal."""
    kind = _classes.get(code, Refused)
    return kind(message, advice)


def _text(error: BaseException) -> str:
    """Its first line, without what Flight and a foreign server's traceback add to it."""
    lines = str(error).partition(". Detail: ")[0].splitlines()
    return _cut(lines[0], TEXT_LENGTH_MAX) if lines else type(error).__name__
