"""Do `status`, `nodes`, `partitions`, `doctor`, `token` tell what is so, and errors what is not?"""

import socket
import time

import pytest

from tests.cli.running import Cluster, Limosa
from tests.waiting import eventually


@pytest.fixture
def table(limosa: Limosa) -> str:
    create = ("table", "create", "seen", "--column", "id:int64", "--key", "id")
    limosa(*create, "--partitions", "4")
    limosa.well("write", "seen", "-", "--format", "csv", stdin=b"id\n1\n2\n3\n")
    return "seen"


def test_the_status_is_told(limosa: Limosa, table: str) -> None:
    status = limosa.well("status", "--json").json
    assert status["cluster"] == "local"
    assert status["coordinator"] == "coordinator"
    assert status["nodes"] == {"members": ["n1", "n2", "n3"], "live": ["n1", "n2", "n3"]}
    assert table in status["tables"]
    assert status["partitions"]["without_owner"] == []
    assert status["partitions"]["total"] >= 4
    assert status["generation"] > 0
    said = limosa.well("status").text
    assert "3 of 3 live" in said
    assert "without an owner   none" in said


def test_the_nodes_are_listed(limosa: Limosa, cluster: Cluster, table: str) -> None:
    nodes = limosa.well("nodes", "--json").json["nodes"]
    assert [node["name"] for node in nodes] == ["n1", "n2", "n3"]
    assert {node["name"]: node["address"] for node in nodes} == cluster.ready["nodes"]
    for node in nodes:
        assert node["live"]
        assert node["state"] == "normal"
        assert node["replicas"] >= 4
        assert node["free"] > 0
    assert sum(node["owned"] for node in nodes) >= 4
    # A replica that is no owner counts a row when it hears that all have it.
    eventually(lambda: all(n["rows"] >= 3 for n in limosa.well("nodes", "--json").json["nodes"]))
    assert "n2" in limosa.well("nodes").text


def test_the_partitions_are_listed(limosa: Limosa, table: str) -> None:
    found = limosa.well("partitions", table, "--json").json["partitions"]
    assert [each["partition"] for each in found] == [f"seen-000{n}" for n in range(4)]
    assert sum(each["rows"] for each in found) >= 3
    assert found[0]["start"] == -(2**63)
    assert found[-1]["end"] == 2**63
    for each in found:
        assert each["owner"] in each["replicas"]
        assert each["in_sync"] == each["replicas"] == ["n1", "n2", "n3"]
        assert each["stage"] is None
    said = limosa.well("partitions", table).text
    assert "0.00 to 25.00 %" in said
    assert "4 partitions" in said
    assert len(limosa.well("partitions", "--json").json["partitions"]) >= 4


def test_the_doctor_finds_a_healthy_cluster_healthy(limosa: Limosa, table: str) -> None:
    answer = limosa.well("doctor", "--json").json
    assert answer["problems"] == 0
    assert [check["check"] for check in answer["checks"]] == [
        *("reachable", "coordinator", "nodes", "owners", "in sync"),
        *("load", "coordination", "churn", "partitions", "surprises", "disks"),
        *("replicas", "damage", "secret", "free space", "clocks", "versions"),
    ]
    assert "coordinator is active" in limosa.well("doctor").text


def test_a_live_node_is_not_removed(limosa: Limosa) -> None:
    ran = limosa("node", "remove", "n1", "--json")
    assert ran.code == 1
    assert "n1 is alive" in ran.json["error"]["message"]
    assert limosa("node", "remove", "n9").code == 1


# --- who asks


def test_a_token_opens_the_door_at_an_address(
    limosa: Limosa, cluster: Cluster, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = limosa.well("token", "make", "--subject", "ann", "--days", "2", "--json").json
    assert made["role"] == "client"
    assert 1.9 * 86_400 < made["expires_at"] - time.time() < 2.1 * 86_400
    token = limosa.well("token", "make", "--subject", "ann").text.strip()
    address = cluster.ready["nodes"]["n2"].removeprefix("grpc://")
    at = ("--cluster", address)
    assert limosa.well("read", table, "--count", *at, "--token", token).text == "3\n"
    monkeypatch.setenv("LIMOSA_TOKEN", token)
    assert limosa.well("read", table, "--count", *at).text == "3\n"
    ran = limosa("table", "drop", table, "--yes", *at, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "Forbidden"
    monkeypatch.delenv("LIMOSA_TOKEN")
    secret = ("--secret", cluster.ready["secret"])
    limosa.well("status", *at, *secret)
    other = limosa("status", *at, *secret, "--cluster-name", "other", "--json")
    assert other.code == 1
    assert "another cluster" in other.json["error"]["message"]


@pytest.mark.parametrize("token", [(), ("--token", "nonsense")])
def test_nobody_gets_in_without_a_token(
    limosa: Limosa, cluster: Cluster, token: tuple[str, ...]
) -> None:
    ran = limosa("status", "--cluster", cluster.ready["nodes"]["n1"], *token, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "Unauthenticated"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--role", "king"],
        ["--days", "0"],
        ["--days", "-1"],
        ["--secret", "/nowhere"],
        ["--cluster", "127.0.0.1:1"],
    ],
)
def test_no_token_is_made_of_bad_input(limosa: Limosa, arguments: list[str]) -> None:
    ran = limosa("token", "make", "--subject", "ann", *arguments)
    assert ran.code == 2
    assert ran.out == b""
    assert ran.error


def test_who_is_not_there_is_said_in_a_sentence(limosa: Limosa) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        ran = limosa("status", "--cluster", f"127.0.0.1:{port}", "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "OutcomeUnknown"
    assert "can't be reached" in ran.error


@pytest.mark.parametrize(
    ("cluster_option", "code", "sentence"),
    [
        ("nonsense", 2, "'nonsense' is not an address"),
        ("./nowhere", 1, "no cluster is running in ./nowhere"),
    ],
)
def test_a_cluster_that_can_t_be_found_is_said_so(
    limosa: Limosa, cluster_option: str, code: int, sentence: str
) -> None:
    ran = limosa("status", "--cluster", cluster_option)
    assert ran.code == code
    assert sentence in ran.error


def test_without_a_cluster_the_advice_is_to_start_one(
    limosa: Limosa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIMOSA_CLUSTER")
    ran = limosa("status")
    assert ran.code == 1
    assert "start one with `limosa up`" in ran.error


def test_what_was_typed_wrong_is_json_too(limosa: Limosa) -> None:
    ran = limosa("status", "--wrong", "--json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "BadInput"
    assert "No such option" in ran.err


def test_a_bug_is_a_sentence(limosa: Limosa, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(*given: object, **more: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("limosa.cli.status.look", burst)
    ran = limosa("status", "--json")
    assert ran.code == 1
    assert "ZeroDivisionError: planted" in ran.json["error"]["message"]
    assert "LIMOSA_TRACEBACK=1" in ran.error
    monkeypatch.setenv("LIMOSA_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        limosa("status")
