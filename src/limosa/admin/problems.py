"""What does a caller get when a call fails? A problem (RFC 9457), with advice.

    401  no token, or nobody's           409  it contradicts the agreed state, or another operation
    403  the role is too low             413, 415, 422  the body, its type, or what it says is wrong
    404  no such path or thing           500  a bug: a number here, the reason in the service's log
    405  not this method                 503  not now        504  no answer: it may have happened

What went wrong inside stays inside: an answer holds no traceback, path or text of a library.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import HTTPException
from msgspec import Struct
from starlette.responses import Response

from limosa.errors import (
    BadInput,
    IllegalRequest,
    IllegalTransition,
    LimosaError,
    OutcomeUnknown,
    StaleGuard,
    UnknownTable,
    UnusableFile,
)

MEDIA_TYPE = "application/problem+json"
AGAIN_SECONDS = 1


class Fault(Struct, frozen=True):
    """One thing that is wrong with what was sent."""

    where: str
    what: str


class ProblemBody(Struct, frozen=True, omit_defaults=True):
    """What an answer that is no success says."""

    type: str
    title: str
    status: int
    detail: str
    advice: str
    instance: str
    """The path that was asked for."""
    errors: tuple[Fault, ...] = ()
    """What is wrong with the parameters and the body, one by one."""
    operation: str = ""
    """The operation that may have been asked for."""
    incident: str = ""
    """Under which the service's log has the reason."""


class Problem(HTTPException):
    """An answer that is no success."""

    def __init__(
        self,
        status: int,
        name: str,
        detail: str,
        advice: str,
        *,
        errors: Sequence[Fault] = (),
        operation: str = "",
        incident: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.name = name
        self.advice = advice
        self.errors = tuple(errors)
        self.operation = operation
        self.incident = incident

    def response(self, path: str) -> Response:
        body = ProblemBody(
            f"urn:limosa:problem:{self.name}",
            HTTPStatus(self.status_code).phrase,
            self.status_code,
            _plain(self.detail),
            _plain(self.advice),
            _plain(path),
            tuple(Fault(_plain(each.where), _plain(each.what)) for each in self.errors),
            self.operation,
            self.incident,
        )
        data = msgspec.json.encode(body)
        return Response(data, self.status_code, dict(self.headers or {}), MEDIA_TYPE)


def _plain(text: str) -> str:
    """JSON has no half of a surrogate pair, and a path may hold one."""
    return text.encode("utf-8", "replace").decode()


# --- which there are


def not_found(what: str, name: str, where: str) -> Problem:
    return Problem(404, "not-found", f"there is no {what} {name}", f"see GET {where}")


def unauthenticated(detail: str, advice: str) -> Problem:
    headers = {"WWW-Authenticate": 'Bearer realm="limosa"'}
    return Problem(401, "unauthenticated", detail, advice, headers=headers)


def unavailable(detail: str, advice: str) -> Problem:
    return Problem(503, "unavailable", detail, advice, headers={"Retry-After": str(AGAIN_SECONDS)})


def too_late(operation: str = "") -> Problem:
    advice = "try again"
    if operation:
        advice = (
            f"it may have been asked for: look at /v1/operations/{operation}; "
            "with the same Idempotency-Key it is safe to ask again"
        )
    return Problem(504, "no-answer", "the cluster did not answer in time", advice)


def internal(incident: str) -> Problem:
    return Problem(
        500,
        "internal",
        "an error of the service's own",
        "its log has the reason under the incident's number",
        incident=incident,
    )


def of_error(error: LimosaError) -> Problem:
    """What the cluster says. Who is refused there is this service, and not its caller."""
    advice = error.advice or "look at the detail"
    match error:
        case UnknownTable():
            return Problem(404, "not-found", error.message, advice)
        case IllegalRequest() | IllegalTransition() | StaleGuard():
            return Problem(409, "conflict", error.message, advice)
        case UnusableFile():
            return unavailable(
                "a file that this service needs can't be used", "the service's log says which"
            )
        case BadInput():
            return Problem(422, "bad-input", error.message, advice)
        case OutcomeUnknown():
            return too_late()
        case _:
            return unavailable(
                "the cluster does not serve this now", "try again; the service's log says why"
            )


def of_validation(errors: Sequence[Any]) -> Problem:
    """Without repeating what was sent."""
    faults = [
        Fault(".".join(str(part) for part in each["loc"])[:200], str(each["msg"])[:300])
        for each in list(errors)[:20]
    ]
    first = faults[0] if faults else Fault("body", "it can't be read")
    return Problem(
        422,
        "bad-input",
        f"{first.where}: {first.what}",
        "see /openapi.json for what is taken here",
        errors=faults,
    )


def of_http(status: int, headers: Mapping[str, str] | None) -> Problem:
    """What the routing says."""
    match status:
        case 404:
            return Problem(404, "not-found", "there is no such path", "see /openapi.json")
        case 405:
            return Problem(
                405,
                "method-not-allowed",
                "this path does not take this method",
                "see the header Allow",
                headers=headers,
            )
        case _:
            return of_validation([])
