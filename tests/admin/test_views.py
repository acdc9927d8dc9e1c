"""Is the cluster shown as it is, and are wrong questions answered clearly?"""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from limosa.admin import app, tokens
from limosa.admin.problems import of_error
from limosa.admin.service import AdminSettings
from limosa.core.model.changes import COORDINATOR_KEY, Remove, apply
from limosa.errors import (
    BadInput,
    Forbidden,
    LimosaError,
    MetastoreUnavailable,
    OutcomeUnknown,
    Refused,
    Unauthenticated,
)
from tests.admin.fakes import FIRST, Stand


def seen(stand: Stand, path: str, status: int = 200, role: str = "viewer") -> Any:
    answer = stand.call(role, "GET", path)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["advice"]
        assert problem["instance"] == path.partition("?")[0]
        assert "Traceback" not in answer.text
    return answer.json()


def test_the_topology_in_brief(stand: Stand) -> None:
    told = seen(stand, "/v1/topology")
    assert told["cluster"] == "birds"
    assert told["coordinator"] == "coordinator"
    assert told["nodes"] == {
        "members": ["n1", "n2", "n3", "n4", "n5"],
        "live": ["n1", "n2", "n3", "n4"],
    }
    assert told["partitions"]["total"] == 2


def test_nodes_one_and_all(stand: Stand) -> None:
    told = {each["name"]: each for each in seen(stand, "/v1/nodes")["nodes"]}
    assert (told["n1"]["live"], told["n1"]["replicas"], told["n1"]["rows"]) == (True, 2, 0)
    assert told["n3"]["failure"] == "n3 does not say"
    assert told["n3"]["rows"] is None
    assert told["n5"]["live"] is False
    assert seen(stand, "/v1/nodes/n1") == told["n1"]
    assert "no node n9" in seen(stand, "/v1/nodes/n9", 404)["detail"]


def test_tables_one_and_all(stand: Stand) -> None:
    (items,) = seen(stand, "/v1/tables")["tables"]
    assert (items["name"], items["key"], items["partitions"]) == ("items", ["id"], 2)
    assert seen(stand, "/v1/tables/items") == items
    assert "no table other" in seen(stand, "/v1/tables/other", 404)["detail"]


def test_partitions_a_page_at_a_time(stand: Stand) -> None:
    first = seen(stand, "/v1/partitions?table=items&limit=1")
    assert [each["partition"] for each in first["partitions"]] == [FIRST]
    second = seen(stand, f"/v1/partitions?after={first['next']}&limit=1")
    assert [each["partition"] for each in second["partitions"]] == ["items-0001"]
    assert second["next"] is None
    assert seen(stand, f"/v1/partitions/{FIRST}") == first["partitions"][0]
    assert "no table other" in seen(stand, "/v1/partitions?table=other", 404)["detail"]
    assert "no partition items-9" in seen(stand, "/v1/partitions/items-9", 404)["detail"]


def test_a_partition_is_explained(stand: Stand) -> None:
    told = seen(stand, f"/v1/partitions/{FIRST}/explain")
    assert (told["stage"], told["waits_for"], told["owner"]) == ("stable", "nothing", "n1")
    assert told["unheard"] == ["n1", "n2", "n3", "n4"]
    seen(stand, "/v1/partitions/items-9/explain", 404)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/partitions?limit=0",
        "/v1/partitions?limit=x",
        "/v1/partitions?after=%00",
        "/v1/partitions?table=a%20b",
        "/v1/operations?state=lost",
        "/v1/partitions?tabel=items",
        "/v1/nodes?limit=1",
        "/livez?x=%ff",
        "/v1/nodes/a%20b",
        "/v1/tables/%ff",
        "/v1/partitions/%0A",
    ],
)
def test_a_wrong_parameter_is_named(stand: Stand, path: str) -> None:
    answer = stand.call("viewer", "GET", path)
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["where"].startswith(("query.", "path."))


def test_a_method_that_a_path_does_not_take(stand: Stand) -> None:
    answer = stand.call("admin", "PATCH", "/v1/tables/items")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, GET"
    assert answer.json()["type"] == "urn:limosa:problem:method-not-allowed"


# --- tokens


def test_without_any_token_the_advice_says_how_to_make_one(stand: Stand) -> None:
    for name in ("vera", "olga", "anna"):
        tokens.remove(stand.service.tokens.path, name)
    problem = seen(stand, "/v1/nodes", 401)
    assert "limosa admin-token add" in problem["advice"]
    assert stand.call("nobody", "GET", "/livez").status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "bearer limosa_x",
        "Bearer \xff",
        "limosa_x",
        "Bearer a b",
    ],
)
def test_a_token_that_is_none(stand: Stand, header: str) -> None:
    headers = {"Authorization": header.encode("latin-1")}
    answer = stand.call("nobody", "GET", "/v1/nodes", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["advice"]


def test_of_two_tokens_none_counts(stand: Stand) -> None:
    token = stand.tokens["admin"]
    headers = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer limosa_x")]
    identify = stand.service.identify
    with pytest.raises(Exception, match="not valid"):
        identify([value for _, value in headers])


def test_whoever_guesses_fills_no_log(stand: Stand) -> None:
    for _ in range(30):
        stand.call("nobody", "GET", "/v1/nodes", headers={"Authorization": "Bearer limosa_x"})
    told = [what for what, _ in stand.lines if what == "refused tokens"]
    assert 1 <= len(told) <= 10


def test_tokens_that_can_not_be_read_let_nobody_in(stand: Stand) -> None:
    stand.service.tokens.path.chmod(0o644)
    problem = seen(stand, "/v1/nodes", 503)
    assert str(stand.directory) not in str(problem)
    assert any(str(stand.directory) in str(details) for _, details in stand.lines)


# --- a cluster in trouble


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Refused("no cluster runs from /secret/path", "start one"), 503),
        (MetastoreUnavailable("/secret/path is busy"), 503),
        (Unauthenticated("the token is for another cluster"), 503),
        (Forbidden("you may not"), 503),
        (OutcomeUnknown("no answer from /secret/path"), 504),
        (RuntimeError("a bug in /secret/path"), 500),
    ],
)
def test_trouble_inside_stays_inside(stand: Stand, failure: Exception, status: int) -> None:
    """That the service is refused by the cluster is not the caller's fault: no 401, no 403."""
    stand.cluster.failure = failure
    problem = seen(stand, "/v1/topology", status)
    assert "secret" not in str(problem)
    assert any(str(failure) in str(details) for _, details in stand.lines)
    if status == 500:
        assert any(problem["incident"] == details.get("incident") for _, details in stand.lines)
    if status == 503:
        assert stand.call("viewer", "GET", "/v1/topology").headers["retry-after"] == "1"


def test_every_error_has_a_status() -> None:
    """Whatever the cluster may raise, its caller learns what kind of thing happened."""
    kinds: list[type[LimosaError]] = [LimosaError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds:
        if kind.__module__ == "limosa.errors":
            problem = of_error(kind("what", "do this"))
            assert problem.status_code in (404, 409, 422, 503, 504)
    assert of_error(BadInput("no advice")).advice


def test_a_cluster_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    stand = Stand(tmp_path, settings=AdminSettings(deadline_seconds=0.2))
    stand.cluster.delay_seconds = 1.0
    began = time.monotonic()
    seen(stand, "/v1/topology", 504)
    assert time.monotonic() - began < 0.9
    stand.service.close()


def test_nobody_waits_for_another_ones_slow_answer(tmp_path: Path) -> None:
    """Handlers are in threads: while ten wait for the cluster, /livez answers at once."""
    stand = Stand(tmp_path)
    stand.cluster.delay_seconds = 0.5
    threads = [
        threading.Thread(target=lambda: stand.call("viewer", "GET", "/v1/tables"))
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    assert stand.call("nobody", "GET", "/livez").status_code == 200
    assert time.monotonic() - began < 0.45
    for thread in threads:
        thread.join()
    stand.service.close()


# --- health


def test_a_service_is_ready_if_somebody_coordinates(stand: Stand) -> None:
    assert seen(stand, "/readyz", role="nobody") == {"status": "ok"}
    stand.cluster.now = apply(stand.cluster.now, [Remove(COORDINATOR_KEY)], 99)
    stand.service.readiness._looked_at = None
    assert "no coordinator" in seen(stand, "/readyz", 503, "nobody")["detail"]
    stand.cluster.failure = Refused("no cluster runs from /secret/path")
    assert "no coordinator" in seen(stand, "/readyz", 503, "nobody")["detail"]  # for a second
    stand.service.readiness._looked_at = None
    problem = seen(stand, "/readyz", 503, "nobody")
    assert "can't be reached" in problem["detail"]
    assert "secret" not in str(problem)
    assert seen(stand, "/livez", role="nobody") == {"status": "ok"}


def test_strangers_who_ask_for_readiness_do_not_queue(stand: Stand) -> None:
    stand.cluster.delay_seconds = 0.5
    first = threading.Thread(target=stand.service.readiness.trouble)
    first.start()
    time.sleep(0.1)
    began = time.monotonic()
    assert "not been checked yet" in seen(stand, "/readyz", 503, "nobody")["detail"]
    assert time.monotonic() - began < 0.4
    first.join()
    assert seen(stand, "/readyz", role="nobody") == {"status": "ok"}


def test_a_websocket_is_not_let_in(stand: Stand) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/v1/nodes", "headers": []}
    asyncio.run(app.build(stand.service)(scope, receive, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
