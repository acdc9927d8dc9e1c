"""What is the HTTP service made of? Its routes, behind the gate.

A route without a declared role is not added, and an application with one does not start.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from limosa.admin import changes, controls, health, operations, rebalance, views
from limosa.admin.gate import CALLER, Gate
from limosa.admin.openapi import describe
from limosa.admin.routing import ANSWERS, ROLE, RoleRoute, Routes
from limosa.admin.service import AdminService, Caller
from limosa.errors import BadInput


def build(service: AdminService) -> ASGIApp:
    """The application, behind the gate."""
    app = bare_app()
    check_roles(app.routes)
    open_paths = {
        route.path for route in app.routes if isinstance(route, RoleRoute) and route.role == "open"
    }
    return Gate(app, service, open_paths)


def bare_app() -> FastAPI:
    """All routes, without the gate."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = RoleRoute
    app.add_exception_handler(HTTPException, partial(_not_routed, app))
    for room in (health, views, operations, changes, controls, rebalance):
        add(app, room.routes)
    add(app, _description_of(app))
    return app


def add(app: FastAPI, group: Routes) -> None:
    for each in group.all:
        app.router.add_api_route(
            each.path,
            each.handler,
            methods=[each.method],
            name=each.name,
            operation_id=each.name,
            summary=each.name.replace("_", " ").capitalize(),
            tags=[group.tag],
            response_model=None,
            openapi_extra={ROLE: each.role, ANSWERS: each.answers},
            route_class_override=RoleRoute,
        )


def check_roles(routes: Iterable[BaseRoute]) -> None:
    """Every route must declare a role, however it was added."""
    for route in routes:
        if not isinstance(route, RoleRoute):
            path = getattr(route, "path", "?")
            raise BadInput(f"the route {path} declares no role", "declare it with `Routes`")


def document() -> dict[str, Any]:
    """The OpenAPI description, as stored in docs/openapi.json."""
    return describe(bare_app().routes)


def _description_of(app: FastAPI) -> Routes:
    group = Routes("description")
    kept: dict[str, Any] = {}

    @group.get("/openapi.json", role="viewer", answers=dict)
    def openapi() -> dict[str, Any]:
        """This description."""
        if not kept:
            kept.update(describe(app.routes))
        return kept

    return group


async def _not_routed(app: FastAPI, request: Request, error: Exception) -> Response:
    caller: Caller = request.scope[CALLER]
    problem = caller.service.problem_of(error, caller)
    if problem.status_code == 405:
        problem.headers = {"Allow": ", ".join(methods_of(app.routes, caller.path))}
    return problem.response(caller.path)


def methods_of(routes: Iterable[BaseRoute], path: str) -> list[str]:
    """The methods of all routes of a path; the framework lists only those of the first route."""
    fitting = [each for each in routes if isinstance(each, RoleRoute) and each.fits(path)]
    return sorted({method for each in fitting for method in each.methods or ()})
