"""Are runs started, steered and shown over HTTP? With runs that move nothing."""

import json
from typing import Any

import httpx
import pytest

from limosa.admin.runs import RunBody
from tests.admin.fakes import FIRST, FakeRuns, Stand

OLD = "/admin/rebalance"
MOVES = {"moves": [{"partition": FIRST, "from": "n1", "to": "n4"}]}


def runs(stand: Stand) -> FakeRuns:
    assert isinstance(stand.service.runs, FakeRuns)
    return stand.service.runs


def post(stand: Stand, path: str, body: Any = None, role: str = "admin") -> httpx.Response:
    return stand.call(role, "POST", path, **({} if body is None else {"json": body}))


@pytest.mark.parametrize("body", [{"add_node": "n4"}, {"remove_node": "n1"}, MOVES])
def test_the_five_routes_of_old(stand: Stand, body: dict[str, Any]) -> None:
    """Status, start with a node to add or remove or with moves, pause, resume, cancel."""
    assert stand.call("admin", "GET", f"{OLD}/status").json()["state"] == "IDLE"
    started = post(stand, f"{OLD}/start", body)
    assert started.status_code == 202
    assert started.headers["location"] == f"/v1/operations/{started.json()['operation']}"
    (wanted,) = runs(stand).wanted
    assert wanted.model_dump(by_alias=True, exclude_none=True) == body
    for what, state in (("pause", "PAUSED"), ("resume", "RUNNING"), ("cancel", "IDLE")):
        assert post(stand, f"{OLD}/{what}").status_code == 202
        assert stand.call("admin", "GET", f"{OLD}/status").json()["state"] == state


def test_the_status_tells_how_far_it_is(stand: Stand) -> None:
    """Total, completed, failed and what runs now."""
    told = stand.call("admin", "GET", f"{OLD}/status").json()
    assert told == {
        "state": "IDLE",
        "total": 3,
        "completed": 1,
        "failed": 0,
        "current": [FIRST],
        "run": None,
    }
    assert stand.call("viewer", "GET", "/v1/runs/current").json() == told
    (past,) = stand.call("admin", "GET", f"{OLD}/history").json()["runs"]
    assert (past["id"], past["state"], past["completed"]) == ("r1", "DONE", 3)
    assert stand.call("viewer", "GET", "/v1/runs").json() == {"runs": [past]}


def test_an_operator_drives_runs_but_takes_no_node_out(stand: Stand) -> None:
    refused = post(stand, "/v1/runs", {"remove_node": "n1"}, "operator")
    assert refused.status_code == 403
    assert runs(stand).state == "IDLE"
    plan = post(stand, "/v1/runs/plan", MOVES, "operator")
    assert plan.json()["moves"][0]["partition"] == FIRST
    assert runs(stand).state == "IDLE"
    assert post(stand, "/v1/runs", MOVES, "operator").status_code == 202
    for what in ("pause", "resume", "cancel"):
        assert post(stand, f"/v1/runs/current/{what}", role="operator").status_code == 202
    assert post(stand, "/v1/runs", {"remove_node": "n1"}).status_code == 202


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"add_node": "n4", "remove_node": "n1"},
        {"add_node": "n4", "moves": None},
        {"add_node": None},
        {"add_node": ""},
        {"add_node": 4},
        {"moves": []},
        {"moves": [{"partition": FIRST, "to": "n4"}]},
        {"drain": "n1"},
        [],
    ],
)
def test_a_run_is_for_one_thing(stand: Stand, body: Any) -> None:
    answer = post(stand, f"{OLD}/start", body)
    assert answer.status_code == 422
    assert runs(stand).state == "IDLE"
    assert stand.cluster.asked == []


def test_a_second_start_is_refused_and_disturbs_nothing(stand: Stand) -> None:
    assert post(stand, f"{OLD}/pause").status_code == 409
    post(stand, f"{OLD}/start", {"add_node": "n4"})
    answer = post(stand, f"{OLD}/start", {"remove_node": "n1"})
    assert answer.status_code == 409
    assert "under way already" in answer.json()["detail"]
    assert runs(stand).wanted == [RunBody(add_node="n4")]
    lines = [json.loads(line) for line in stand.audit.path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["refused", "asked", "answered", "refused"]
    assert lines[1]["before"]["state"] == "IDLE"
