"""Does the service work on a real cluster, over a real socket?"""

import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import limosa
from limosa.admin import tokens
from limosa.admin.process import AdminConfig, AdminProcess
from limosa.admin.service import AdminSettings
from limosa.client.operator import Operator
from limosa.core.model.requests import RemoveNode, Request
from limosa.errors import BadInput, Refused
from limosa.runtime.local import LocalCluster
from tests.transport.certificates import Authority
from tests.waiting import eventually

THREADS = ("--pipeline", "threads")


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, 2, of_coordinators=THREADS) as running:
        yield running


def connector(cluster: LocalCluster) -> Any:
    def reach() -> Operator:
        return limosa.operate(
            list(cluster.addresses.values()), cluster_name=cluster.cluster, secret=cluster.secret
        )

    return reach


def nowhere() -> Operator:
    raise Refused("no cluster runs here")


@contextmanager
def serving(directory: Path, connect: Any, **more: Any) -> Iterator[AdminProcess]:
    config = AdminConfig(
        bind="127.0.0.1:0",
        directory=str(directory),
        connect=connect,
        settings=AdminSettings(follow_seconds=0.2),
        **more,
    )
    process = AdminProcess(config, lambda what, **details: None)
    try:
        yield process
    finally:
        process.stop()


class Person:
    """Somebody with a token."""

    def __init__(self, process: AdminProcess, directory: Path, role: str) -> None:
        token = tokens.add(directory / tokens.FILE, f"{role}-{time.monotonic_ns()}", role)
        headers = {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(
            base_url=process.url, headers=headers, timeout=30, trust_env=False
        )

    def __enter__(self) -> "Person":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def change(self, method: str, path: str, body: Any = None, key: str = "") -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return self.client.request(method, path, json=body, headers=headers)

    def follow(self, answer: httpx.Response) -> Any:
        """To the end of the operation."""
        assert answer.status_code == 202, answer.text
        where = answer.headers["location"]

        def ended() -> Any:
            told = self.get(where)
            return told if told["state"] not in ("waiting", "running") else None

        return eventually(ended, "the operation ends", 60.0, 0.1, lambda: self.get(where))


def audit(directory: Path) -> list[dict[str, Any]]:
    file = directory / "audit.ndjson"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_table_is_made_moved_and_dropped(cluster: LocalCluster, tmp_path: Path) -> None:
    """One story over HTTP: an operation each, followed to its end, and written down."""
    with (
        serving(tmp_path, connector(cluster)) as process,
        Person(process, tmp_path, "admin") as admin,
        Person(process, tmp_path, "viewer") as viewer,
        limosa.operate(list(cluster.addresses.values()), secret=cluster.secret) as db,
    ):
        assert viewer.get("/readyz") == {"status": "ok"}
        assert viewer.get("/v1/topology")["nodes"]["live"] == ["n1", "n2"]
        columns = {"id": "int64", "v": "string"}
        body = {"name": "birds", "columns": columns, "key": ["id"], "partitions": 2, "replicas": 1}
        first = admin.change("POST", "/v1/tables", body, key="make")
        assert admin.follow(first)["answer"] == "created"
        again = admin.change("POST", "/v1/tables", body, key="make")
        assert again.json()["operation"] == first.json()["operation"]
        assert (
            admin.change("POST", "/v1/tables", {**body, "replicas": 2}, "make").status_code == 409
        )
        birds = db.table("birds")
        birds.write([{"id": id, "v": f"v{id}"} for id in range(500)])

        partition = viewer.get("/v1/partitions?table=birds")["partitions"][0]
        name = partition["partition"]
        owner = partition["owner"]
        other = "n2" if owner == "n1" else "n1"
        assert (
            viewer.change("POST", f"/v1/partitions/{name}/move", {"to": other}).status_code == 403
        )
        moved = admin.change("POST", f"/v1/partitions/{name}/move", {"to": other})
        ended = admin.follow(moved)
        assert (ended["state"], ended["why"]) == ("done", "")
        now = viewer.get(f"/v1/partitions/{name}")
        assert (now["owner"], now["replicas"], now["stage"]) == (other, [other], None)
        explained = viewer.get(f"/v1/partitions/{name}/explain")
        assert explained["reports"][0]["outcome"] == "done"
        assert birds.count() == 500

        for path, status in (
            (f"/v1/partitions/{name}/cancel", 409),
            ("/v1/partitions/birds-9999/cancel", 404),
        ):
            assert admin.change("POST", path).status_code == status
        refused = admin.change("POST", f"/v1/partitions/{name}/move", {"to": "n9"})
        assert (refused.status_code, refused.json()["detail"]) == (409, "n9 is not a member")
        assert admin.change("DELETE", "/v1/nodes/n1").status_code == 409

        assert admin.follow(admin.change("DELETE", "/v1/tables/birds"))["state"] == "done"
        assert viewer.client.get("/v1/tables/birds").status_code == 404
        _wait_for_end(tmp_path, 3)
        lines = audit(tmp_path)
        of_move = [line for line in lines if line["operation"] == moved.json()["operation"]]
        asked, answered, end = of_move
        assert (asked["event"], answered["event"], end["event"]) == ("asked", "answered", "ended")
        assert [each["node"] for each in asked["before"]["replicas"]] == [owner]
        assert [each["node"] for each in end["after"]["replicas"]] == [other]
        assert answered["status"] == 202
        assert sum(line["event"] == "refused" for line in lines) >= 5
        # The node that was asked over Flight knows for whom, and so does the request's record.
        written = [line for node in cluster.nodes for line in audit(cluster.directory / node)]
        of_move = [line for line in written if line["operation"] == moved.json()["operation"]]
        assert [line["event"] for line in of_move] == ["asked", "answered"]
        author = f"{asked['subject']} via client@{os.uname().nodename}"
        assert {line["author"] for line in of_move} == {author}
        assert of_move[0]["body"]["partition"] == name
        row = db.request_state(moved.json()["operation"])
        assert row is not None
        assert row.author == author


def test_a_run_is_started_followed_and_looked_back_at(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """F70, F71, F72: the five routes on a real cluster; what can't be is refused at once."""
    old = "/admin/rebalance"
    with (
        serving(tmp_path, connector(cluster)) as process,
        Person(process, tmp_path, "admin") as admin,
        Person(process, tmp_path, "operator") as operator,
        limosa.operate(list(cluster.addresses.values()), secret=cluster.secret) as db,
    ):
        table = db.create_table("runs", {"id": "int64"}, "id", partitions=4, replicas=1)
        table.write([{"id": number} for number in range(400)])
        assert admin.get(f"{old}/status")["state"] == "IDLE"
        for path in ("pause", "resume", "cancel"):
            refused = admin.change("POST", f"{old}/{path}")
            assert (refused.status_code, refused.json()["detail"]) == (409, "no run is under way")
        homes = {
            each["partition"]: each["owner"]
            for each in operator.get("/v1/partitions?table=runs")["partitions"]
        }
        moves = [
            {"partition": name, "from": owner, "to": "n2" if owner == "n1" else "n1"}
            for name, owner in homes.items()
        ]
        assert operator.change("POST", f"{old}/start", {"moves": moves}).status_code == 403
        planned = operator.change("POST", "/v1/runs/plan", {"moves": moves}).json()
        assert len(planned["moves"]) == 4
        started = admin.change("POST", f"{old}/start", {"moves": moves}, key="go")
        ended = admin.follow(started)
        assert (ended["state"], ended["why"]) == ("done", "")
        again = admin.change("POST", f"{old}/start", {"moves": moves}, key="go")
        assert again.json()["operation"] == started.json()["operation"], "and nothing moves twice"
        (run,) = admin.get(f"{old}/history")["runs"]
        assert (run["state"], run["total"], run["completed"], run["failed"]) == ("DONE", 4, 4, 0)
        assert operator.get("/v1/runs/current")["state"] == "IDLE"
        now = operator.get("/v1/partitions?table=runs")["partitions"]
        assert all(each["owner"] != homes[each["partition"]] for each in now)
        assert table.count() == 400
        for body, why in (
            ({"add_node": "n9"}, "n9 is not a member"),
            ({"moves": [{**moves[0], "partition": "never"}]}, "there is no partition never"),
        ):
            refused = admin.change("POST", f"{old}/start", body)
            assert (refused.status_code, refused.json()["detail"]) == (409, why)
        db.drop_table("runs")


def test_a_locked_cluster_begins_nothing_and_what_waits_is_aborted(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """F87: over HTTP as from the shell; and a move that is held is given up by its operation."""
    with (
        serving(tmp_path, connector(cluster)) as process,
        Person(process, tmp_path, "operator") as operator,
        limosa.operate(list(cluster.addresses.values()), secret=cluster.secret) as db,
    ):
        db.create_table("held", {"id": "int64"}, "id", partitions=1, replicas=1)
        (held,) = operator.get("/v1/partitions?table=held")["partitions"]
        path = f"/v1/partitions/{held['partition']}/move"
        body = {"to": "n2" if held["owner"] == "n1" else "n1", "hold_seconds": 600}

        locked = operator.follow(operator.change("POST", "/v1/lock", {"why": "backup"}))
        assert (locked["answer"], operator.get("/v1/lock")["why"]) == ("locked", "backup")
        waiting = operator.change("POST", path, body)
        time.sleep(1.0)
        told = operator.get(waiting.headers["location"])
        assert (told["state"], told["answered"]) == ("waiting", 0.0)
        assert abs(told["asked"] - time.time()) < 30.0
        aborted = operator.follow(operator.change("POST", f"{waiting.headers['location']}/abort"))
        assert aborted["kind"] == "withdraw"
        assert operator.get(waiting.headers["location"])["answer"] == "withdrawn"
        assert operator.follow(operator.change("DELETE", "/v1/lock"))["answer"] == "unlocked"

        moving = operator.change("POST", path, body)
        where = moving.headers["location"]
        eventually(
            lambda: operator.get(where)["stage"] == "write_both_read_new",
            "reads switch",
            story=lambda: operator.get(where),
        )
        late = operator.change("POST", f"{where}/abort")
        assert late.status_code == 409, "the new replica is read by now: it is reversed instead"
        assert operator.change("POST", path.replace("/move", "/reverse")).status_code == 202
        assert operator.follow(moving)["state"] == "reverted"
        db.drop_table("held")


def _wait_for_end(directory: Path, count: int) -> None:
    eventually(
        lambda: sum(line["event"] == "ended" for line in audit(directory)) >= count,
        f"{count} operations end",
        story=lambda: audit(directory),
    )


def test_two_services_are_one(cluster: LocalCluster, tmp_path: Path) -> None:
    """What one was asked for is known to the other, and asked for once."""
    with (
        serving(tmp_path, connector(cluster)) as one,
        serving(tmp_path, connector(cluster)) as other,
        Person(one, tmp_path, "admin") as here,
    ):
        body = {"name": "once", "columns": {"id": "int64"}, "key": ["id"], "replicas": 1}
        first = here.change("POST", "/v1/tables", body, key="k")
        here.follow(first)
        there = httpx.post(
            f"{other.url}/v1/tables",
            json=body,
            headers={**here.client.headers, "Idempotency-Key": "k"},
            trust_env=False,
        )
        assert there.status_code == 202
        assert there.json()["operation"] == first.json()["operation"]


def test_a_request_that_is_asked_for_again_is_the_same_row(cluster: LocalCluster) -> None:
    with connector(cluster)() as connection:
        assert connection.request_state("nobody-1") is None
        first = connection.ask(Request("gone-1", RemoveNode("n9"), fingerprint="a"))
        other = connection.ask(Request("gone-1", RemoveNode("n8"), fingerprint="b"))
        assert (first.about, other.about, other.fingerprint) == ("n9", "n9", "a")

        def answered() -> Request | None:
            row = connection.request_state("gone-1")
            return None if row is None or row.state == "waiting" else row

        row = eventually(answered, "the request is answered")
        assert row is not None
        assert row.state == "refused"
        assert row.trigger > 0
        with pytest.raises(BadInput):
            connection.ask(Request("no word", RemoveNode("n9")))


@pytest.mark.processes
def test_a_service_outlives_its_cluster(tmp_path: Path) -> None:
    """It starts without one, says so, and finds it when it is there; also the next one."""
    reachable: list[LocalCluster] = []

    def connect() -> Operator:
        if not reachable:
            return nowhere()
        connection: Operator = connector(reachable[0])()
        return connection

    (tmp_path / "admin").mkdir()
    with (
        serving(tmp_path / "admin", connect) as process,
        Person(process, tmp_path / "admin", "viewer") as viewer,
    ):
        assert viewer.client.get("/livez").status_code == 200
        assert viewer.client.get("/readyz").status_code == 503
        assert viewer.client.get("/v1/nodes").status_code == 503
        with LocalCluster(tmp_path / "data", 1) as running:
            reachable.append(running)
            assert viewer.get("/v1/nodes")["nodes"][0]["live"] is True
        reachable.clear()
        began = time.monotonic()
        assert viewer.client.get("/v1/nodes").status_code in (503, 504)
        assert time.monotonic() - began < 16


def test_another_address_needs_tls(tmp_path: Path) -> None:
    config = AdminConfig(bind="0.0.0.0:0", directory=str(tmp_path), connect=nowhere)
    with pytest.raises(BadInput, match="opens Limosa to other machines, without TLS"):
        AdminProcess(config, lambda what, **details: None)


@pytest.mark.parametrize("bind", ["", "8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", ":80"])
def test_an_address_that_is_none(tmp_path: Path, bind: str) -> None:
    config = AdminConfig(bind=bind, directory=str(tmp_path), connect=nowhere)
    with pytest.raises(BadInput):
        AdminProcess(config, lambda what, **details: None)


def test_a_port_that_is_taken_and_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        config = AdminConfig(bind=bind, directory=str(tmp_path), connect=nowhere)
        with pytest.raises(Refused, match="used by another process"):
            AdminProcess(config, lambda what, **details: None)
    config = AdminConfig(bind="127.0.0.1:0", directory=str(tmp_path / "no"), connect=nowhere)
    with pytest.raises(BadInput, match="no directory"):
        AdminProcess(config, lambda what, **details: None)


def test_it_serves_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost", "127.0.0.1")
    context = ssl.create_default_context(cafile=authority.path)
    with serving(tmp_path, nowhere, certificate=certificate, key=key) as process:
        assert process.url.startswith("https://")
        answer = httpx.get(f"{process.url}/livez", verify=context, trust_env=False)
        assert answer.json() == {"status": "ok"}


@pytest.mark.processes
def test_a_cluster_goes_on_without_its_admin_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('it broke')"]
    monkeypatch.setattr(LocalCluster, "_admin_command", lambda self, name: broken)
    with LocalCluster(tmp_path, 1, admin=True) as running:
        assert "it broke" in running.admin_trouble
        assert running.admin_url == ""
        assert sorted(running.processes) == ["coordinator", "n1"]
