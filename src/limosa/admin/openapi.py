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
Inspect and change a Limosa cluster.

A request carries a token: `Authorization: Bearer TOKEN`. `x-role` is the role that a path needs:
viewer, operator or admin, each of which includes the rights of those before it. A change is
answered with 202 and an operation, which reports its progress. With an `Idempotency-Key` it is
safe to retry. Errors are problems (RFC 9457) with advice."""

PROBLEMS = {
    401: "The token is missing or not valid.",
    403: "The token's role is too low.",
    404: "The path, or the named object, does not exist.",
    409: "The change conflicts with the cluster's state, or the key was used for another request.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "A parameter or the body is not valid.",
    500: "An internal error of the service.",
    503: "The cluster, the tokens or the audit log are not available now.",
    504: "The cluster did not answer in time; the change may have been requested.",
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
        known.pop(name, None)  # the framework's; this service answers with problems instead
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
                "description": "The change is requested; the operation reports its progress.",
                "headers": {"Location": _header("The path of the operation.")},
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
        yield "200", {"description": "Success.", "content": content}
    for status in statuses(route):
        yield str(status), {"$ref": f"#/components/responses/{status}"}


def _problem(status: int) -> dict[str, Any]:
    problem: dict[str, Any] = {
        "description": PROBLEMS[status],
        "content": {MEDIA_TYPE: {"schema": {"$ref": REFERENCE.format(name="ProblemBody")}}},
    }
    if status == 401:
        problem["headers"] = {"WWW-Authenticate": _header("The authentication scheme.")}
    if status == 503:
        problem["headers"] = {"Retry-After": _header("Seconds to wait before a retry.")}
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
