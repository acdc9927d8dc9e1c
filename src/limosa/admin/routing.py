"""How is a route declared? With its role and its answers; a route without a role is refused.

    @routes.get("/v1/nodes", role="viewer", answers=Nodes)
    def nodes(caller: Calling) -> Nodes: ...

A handler is a plain function: it runs in a thread, may block, and returns a value that is encoded
in that thread. Its exceptions become problems.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from msgspec import Struct
from starlette.responses import Response

from limosa.admin.gate import CALLER
from limosa.admin.problems import Fault, Problem
from limosa.admin.roles import ROLES, Role
from limosa.admin.service import Caller
from limosa.errors import BadInput

Handler = TypeVar("Handler", bound=Callable[..., Any])
Access: TypeAlias = Role | Literal["open"]
"""`open`: no token is needed."""

ROLE = "x-role"
ANSWERS = "x-answers"


class Accepted(Struct, frozen=True):
    """The change is requested; its operation reports the progress."""

    operation: str
    state: str
    next: str
    """The path of the operation."""


class Declared(Struct, frozen=True):
    """One route."""

    method: str
    path: str
    role: Access
    answers: Any
    handler: Callable[..., Any]
    name: str


class Routes:
    """A group of routes."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.all: list[Declared] = []

    def get(
        self, path: str, *, role: Access, answers: Any, name: str = ""
    ) -> Callable[[Handler], Handler]:
        return self._declare("GET", path, role, answers, name)

    def post(
        self, path: str, *, role: Role, answers: Any = Accepted, name: str = ""
    ) -> Callable[[Handler], Handler]:
        return self._declare("POST", path, role, answers, name)

    def delete(self, path: str, *, role: Role) -> Callable[[Handler], Handler]:
        return self._declare("DELETE", path, role, Accepted)

    def _declare(
        self, method: str, path: str, role: Access, answers: Any, name: str = ""
    ) -> Callable[[Handler], Handler]:
        """The operation's name is by default that of its handler."""

        def declare(handler: Handler) -> Handler:
            known_as = name or handler.__name__
            self.all.append(Declared(method, path, role, answers, handler, known_as))
            return handler

        return declare


class RoleRoute(APIRoute):
    """Checks the role before anything else, and turns exceptions into problems."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        extra = options.get("openapi_extra") or {}
        role = extra.get(ROLE)
        if role not in (*ROLES, "open"):
            raise BadInput(f"the route {path} declares no role", f"one of {', '.join(ROLES)}")
        self.role: Access = role
        self.answers: Any = options["openapi_extra"].pop(ANSWERS, None)
        self.changes = self.answers is Accepted
        super().__init__(path, _in_thread(endpoint, self.changes), **options)

    def _check_query(self, request: Request) -> None:
        """Refuse unknown parameters: a misspelled filter must not select everything."""
        known = _query_names(self.dependant)
        unknown = sorted(set(request.query_params) - known)
        if unknown:
            faults = [
                Fault(f"query.{name}"[:200], "there is no such parameter") for name in unknown
            ]
            advice = f"there are: {', '.join(sorted(known)) or 'none'}"
            detail = f"{faults[0].where}: {faults[0].what}"
            raise Problem(422, "bad-input", detail, advice, errors=faults[:20])

    def fits(self, path: str) -> bool:
        return self.path_regex.match(path) is not None

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            caller: Caller = request.scope[CALLER]
            caller.route = self.path
            service = caller.service
            try:
                if self.role != "open":
                    caller.must_be(self.role)
                self._check_query(request)
                if self.body_field is not None:
                    _check_media_type(request)
                async with asyncio.timeout(service.settings.deadline_seconds):
                    return await inner(request)
            except Exception as error:
                problem = service.problem_of(error, caller)
            if self.changes:
                await service.in_thread(caller.note_refusal, problem)
            return problem.response(caller.path)

        return handle


def _query_names(dependant: Dependant) -> set[str]:
    """The query parameters of a handler and its dependencies."""
    names = {each.alias for each in dependant.query_params}
    return names.union(*(_query_names(each) for each in dependant.dependencies))


def _check_media_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise Problem(
            415,
            "unsupported-media-type",
            f"the type of the body is {given[:100] or 'missing'}",
            "send JSON, with the header `Content-Type: application/json`",
        )


def _in_thread(handler: Callable[..., Any], changes: bool) -> Callable[..., Any]:
    """Wrap a handler for the framework, with the same parameters and one more."""
    own = inspect.signature(handler)
    calling = inspect.Parameter("limosa_caller", inspect.Parameter.KEYWORD_ONLY, annotation=Calling)

    async def run(limosa_caller: Caller, **values: Any) -> Response:
        return await limosa_caller.service.in_thread(
            partial(_respond, handler, values, limosa_caller, changes)
        )

    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.parameters.values()
    ]
    run.__name__ = handler.__name__
    run.__doc__ = handler.__doc__
    run.__signature__ = inspect.Signature([*parameters, calling])  # type: ignore[attr-defined]
    return run


def _respond(
    handler: Callable[..., Any], values: dict[str, Any], caller: Caller, changes: bool
) -> Response:
    answer = handler(**values)
    headers = {"Location": answer.next} if changes else {}
    data = msgspec.json.encode(answer)
    return Response(data, 202 if changes else 200, headers, "application/json")


async def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope[CALLER]
    return caller


Calling: TypeAlias = Annotated[Caller, Depends(caller_of)]
