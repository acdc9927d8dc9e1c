"""How does the service describe itself? As OpenAPI, with every answer that a route may give."""

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from limosa.admin.problems import MEDIA_TYPE, ProblemBody
from limosa.admin.routing import RoleRoute

REFERENCE = "#/components/schemas/{name}"
SECURITY = "token"

ABOUT = """\
Look at a Limosa cluster, and change it.

A request carries a token: `Authorization: Bearer TOKEN`. `x-role` says which role a path needs:
viewer, operator or admin, each of which may do what those before it may. What takes long is
answered with 202 and an operation, which tells how far it is. `Idempotency-Key` makes it safe to
ask again. What goes wrong is told as a problem (RFC 9457) with advice."""

PROBLEMS = {
    401: "There is no token, or it is nobody's.",
    403: "The token's role is too low.",
    404: "There is no such thing.",
    409: "It contradicts the agreed state, or the Idempotency-Key belongs to something else.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "A parameter or the body is wrong.",
    500: "An error of the service's own.",
    503: "Not now: the cluster, the tokens or the audit log can't be used.",
    504: "The cluster did not answer in time; a change may have been asked for.",
}


def describe(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    ours = [route for route in routes if isinstance(route, RoleRoute)]
    document = get_openapi(
        title="Limosa admin", version=version("limosa"), description=ABOUT, routes=ours
    )
    typed = [route for route in ours if route.answers is not dict]
    schemas, components = msgspec.json.schema_components(
        [*(route.answers for route in typed), ProblemBody], ref_template=REFERENCE
    )
    schema_of = {route.unique_id: schema for route, schema in zip(typed, schemas, strict=False)}
    known = {**document["components"]["schemas"], **components}
    for name in ("HTTPValidationError", "ValidationError"):
        known.pop(name, None)  # the framework's own; ours are problems
    document["components"] = {
        "schemas": dict(sorted(known.items())),
        "responses": {str(status): _problem(status) for status in PROBLEMS},
        "securitySchemes": {SECURITY: {"type": "http", "scheme": "bearer"}},
    }
    for route in ours:
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            operation["security"] = [] if route.role == "open" else [{SECURITY: []}]
            schema = schema_of.get(route.unique_id, {"type": "object"})
            operation["responses"] = dict(_responses(route, schema))
    return document


def _responses(route: RoleRoute, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    content = {"application/json": {"schema": schema}}
    if route.changes:
        yield (
            "202",
            {
                "description": "It is asked for; the operation tells what comes of it.",
                "headers": {"Location": _header("Where the operation is.")},
                "content": content,
                "links": {
                    "operation": {
                        "operationId": "operation",
                        "parameters": {"operation": "$response.body#/operation"},
                    }
                },
            },
        )
    else:
        yield "200", {"description": "So it is.", "content": content}
    for status in statuses(route):
        yield str(status), {"$ref": f"#/components/responses/{status}"}


def _problem(status: int) -> dict[str, Any]:
    problem: dict[str, Any] = {
        "description": PROBLEMS[status],
        "content": {MEDIA_TYPE: {"schema": {"$ref": REFERENCE.format(name="ProblemBody")}}},
    }
    if status == 401:
        problem["headers"] = {"WWW-Authenticate": _header("What is asked for.")}
    if status == 503:
        problem["headers"] = {"Retry-After": _header("When to ask again, in seconds.")}
    return problem


def _header(what: str) -> dict[str, Any]:
    return {"description": what, "schema": {"type": "string"}}


def statuses(route: RoleRoute) -> list[int]:
    """The problems that a route may answer with."""
    found = {422, 500, 503, 504}
    dependant = route.dependant
    has_path = bool(dependant.path_params)
    if route.role != "open":
        found |= {401, 413}
    if route.role not in ("open", "viewer"):
        found.add(403)
    if has_path or any(each.name == "table" for each in dependant.query_params):
        found.add(404)
    if route.changes or route.body_field is not None:
        found.add(409)
    if route.body_field is not None:
        found.add(415)
    return sorted(found)
