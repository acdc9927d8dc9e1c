"""What does a caller get when a call fails? A problem (RFC 9457), with advice.

    401  no token, or not a valid one    409  conflict with the cluster's state or an operation
    403  the role is too low             413, 415, 422  the body, its type or its content is wrong
    404  no such path or object          500  a bug: an incident number; the log has the reason
    405  method not allowed              503  not available now    504  no answer in time

Internals are not disclosed: an answer contains no traceback, file path or text of a library.
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
    """One error in a request."""

    where: str
    what: str


class ProblemBody(Struct, frozen=True, omit_defaults=True):
    """The body of an error."""

    type: str
    title: str
    status: int
    detail: str
    advice: str
    instance: str
    """The path of the request."""
    errors: tuple[Fault, ...] = ()
    """The errors in the parameters and the body."""
    operation: str = ""
    """The operation that may have been requested."""
    incident: str = ""
    """The number under which the service's log has the reason."""


class Problem(HTTPException):
    """An error answer."""

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
    """Replace lone surrogates, which a path may contain and JSON can't."""
    return text.encode("utf-8", "replace").decode()


# --- kinds of problems


def not_found(what: str, name: str, where: str) -> Problem:
    return Problem(404, "not-found", f"there is no {what} {name}", f"see GET {where}")


def unauthenticated(detail: str, advice: str) -> Problem:
    headers = {"WWW-Authenticate": 'Bearer realm="limosa"'}
    return Problem(401, "unauthenticated", detail, advice, headers=headers)


def unavailable(detail: str, advice: str) -> Problem:
    return Problem(503, "unavailable", detail, advice, headers={"Retry-After": str(AGAIN_SECONDS)})


def too_late(operation: str = "") -> Problem:
    advice = "retry"
    if operation:
        advice = (
            f"the change may have been requested: see /v1/operations/{operation}; "
            "with the same Idempotency-Key it is safe to retry"
        )
    return Problem(504, "no-answer", "the cluster did not answer in time", advice)


def internal(incident: str) -> Problem:
    return Problem(
        500,
        "internal",
        "internal error",
        "the service's log has the reason under the incident number",
        incident=incident,
    )


def of_error(error: LimosaError) -> Problem:
    """Errors of the cluster; if it refuses a token, that is the service's, not the caller's."""
    advice = error.advice or "see the detail"
    match error:
        case UnknownTable():
            return Problem(404, "not-found", error.message, advice)
        case IllegalRequest() | IllegalTransition() | StaleGuard():
            return Problem(409, "conflict", error.message, advice)
        case UnusableFile():
            return unavailable(
                "a file of the service can't be used", "the service's log names the file"
            )
        case BadInput():
            return Problem(422, "bad-input", error.message, advice)
        case OutcomeUnknown():
            return too_late()
        case _:
            return unavailable(
                "the cluster is not available now", "retry; the service's log has the reason"
            )


def of_validation(errors: Sequence[Any]) -> Problem:
    """Does not repeat the values that were sent."""
    faults = [
        Fault(".".join(str(part) for part in each["loc"])[:200], str(each["msg"])[:300])
        for each in list(errors)[:20]
    ]
    first = faults[0] if faults else Fault("body", "can't be parsed")
    return Problem(
        422,
        "bad-input",
        f"{first.where}: {first.what}",
        "see /openapi.json for the valid parameters",
        errors=faults,
    )


def of_http(status: int, headers: Mapping[str, str] | None) -> Problem:
    """Errors of routing."""
    match status:
        case 404:
            return Problem(404, "not-found", "there is no such path", "see /openapi.json")
        case 405:
            return Problem(
                405,
                "method-not-allowed",
                "this path does not support this method",
                "see the header Allow",
                headers=headers,
            )
        case _:
            return of_validation([])
