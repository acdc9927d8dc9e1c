"""Who may do what? Every route with every role, generated from the description."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from limosa.admin.app import add, bare_app, check_roles, document
from limosa.admin.roles import ROLES, allows
from limosa.admin.routing import ROLE, RoleRoute, Routes
from limosa.errors import BadInput
from tests.admin.fakes import FIRST, FakeRuns, Stand

NOBODY, STRANGER = "nobody", "stranger"
VALUES = {"node": "n5", "table": "items", "partition": FIRST, "operation": "make"}
DESCRIBED = document()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DESCRIBED["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


CELLS = [
    pytest.param(method, path, operation, who, id=f"{who}-{method}-{path}")
    for method, path, operation in operations()
    for who in (NOBODY, STRANGER, *ROLES)
]


@pytest.mark.parametrize(("method", "path", "operation", "who"), CELLS)
def test_each_role_gets_what_is_its_own(
    stand: Stand, method: str, path: str, operation: dict[str, Any], who: str
) -> None:
    """F71: no token, a wrong one, or too low a role: 401 or 403, and nothing changes."""
    needs = operation[ROLE]
    before = stand.cluster.now
    headers = {"Authorization": "Bearer limosa_wrong"} if who == STRANGER else {}
    body: dict[str, Any] = {"json": {}} if "requestBody" in operation else {}
    answer = stand.call(who, method, path.format(**VALUES), headers=headers, **body)
    if needs == "open":
        assert answer.status_code == 200
    elif who in (NOBODY, STRANGER):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
    elif allows(who, needs):  # type: ignore[arg-type]
        assert answer.status_code in (200, 202, 409, 422)
    else:
        assert answer.status_code == 403
        assert f"needs {needs}" in answer.json()["detail"]
    assert str(answer.status_code) in operation["responses"]
    if answer.status_code != 202:
        assert stand.cluster.now is before
        assert stand.cluster.asked == []
        assert isinstance(stand.service.runs, FakeRuns)
        assert stand.service.runs.state == "IDLE"


def test_the_matrix_has_no_hole() -> None:
    """F71: every route of the application is in the description, with its role."""
    described = {(method, path) for method, path, _ in operations()}
    served = {
        (method, route.path)
        for route in bare_app().routes
        if isinstance(route, RoleRoute)
        for method in route.methods or ()
    }
    assert described == served
    assert len(CELLS) == len(described) * 5
    assert all(operation[ROLE] in (*ROLES, "open") for _, _, operation in operations())
    is_open = {path for _, path, operation in operations() if operation[ROLE] == "open"}
    assert is_open == {"/livez", "/readyz"}


def test_the_rebalance_routes_of_old_are_for_administrators() -> None:
    """F71: the five, and the history."""
    of_old = {path: each for _, path, each in operations() if path.startswith("/admin/")}
    names = ("status", "history", "start", "pause", "resume", "cancel")
    assert set(of_old) == {f"/admin/rebalance/{name}" for name in names}
    assert all(each[ROLE] == "admin" for each in of_old.values())


def test_whoever_looks_is_a_viewer_and_whoever_changes_is_not() -> None:
    for method, path, operation in operations():
        if path.startswith("/v1/"):
            assert (operation[ROLE] == "viewer") == (method == "GET"), path


def test_a_route_without_a_role_can_not_be_added() -> None:
    app = FastAPI()
    with pytest.raises(BadInput, match="declares no role"):
        app.router.add_api_route("/new", lambda: None, route_class_override=RoleRoute)
    group = Routes("new")
    group.get("/new", role="everybody", answers=dict)(dict)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="/new declares no role"):
        add(app, group)


def test_an_application_with_a_route_of_another_kind_does_not_start() -> None:
    app = bare_app()
    check_roles(app.routes)
    app.router.add_route("/backdoor", lambda request: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(BadInput, match="/backdoor declares no role"):
        check_roles(app.routes)


def test_what_does_not_exist_is_refused_without_a_token_too(stand: Stand) -> None:
    for path in ("/", "/nowhere", "/docs", "/livez/", "/v1", "//livez", "/livez%2f..%2fv1/nodes"):
        assert stand.call(NOBODY, "GET", path).status_code == 401, path
        assert stand.call("admin", "GET", path).status_code == 404, path
