"""Is what is asked for put once, written down, and refused if it can't be?"""

import json
import os
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from limosa.admin import operations
from limosa.admin.operations import Follower, operation_of
from limosa.core.machines.catalogue import READ_NEW
from limosa.core.model.changes import Remove, apply, partition_key
from limosa.core.model.intent import completed
from limosa.core.model.reports import Report
from limosa.core.model.requests import MovePartition
from limosa.core.model.topology import Replica, Transition
from limosa.errors import OutcomeUnknown
from tests.admin.fakes import ANSWERED, ASKED, FIRST, Stand
from tests.waiting import eventually

MOVE = f"/v1/partitions/{FIRST}/move"
TABLE = {"name": "birds", "columns": {"id": "int64", "name": "string"}, "key": ["id"]}


def audit(stand: Stand) -> list[dict[str, Any]]:
    if not stand.audit.path.exists():
        return []
    return [json.loads(line) for line in stand.audit.path.read_text().splitlines()]


def post(stand: Stand, path: str, body: Any = None, role: str = "operator", key: str = "") -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    given = {} if body is None else {"json": body}
    return stand.call(role, "POST", path, headers=headers, **given)


def operation(stand: Stand, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert answer.headers["location"] == told["next"] == f"/v1/operations/{told['operation']}"
    found: dict[str, Any] = stand.call("viewer", "GET", told["next"]).json()
    assert found["operation"] == told["operation"]
    return found


# --- each change


def test_a_table_is_made_and_dropped(stand: Stand) -> None:
    made = operation(stand, post(stand, "/v1/tables", {**TABLE, "partitions": 4, "replicas": 1}))
    assert (made["state"], made["answer"], made["about"]) == ("done", "created", "birds")
    assert stand.call("viewer", "GET", "/v1/tables/birds").json()["partitions"] == 4
    dropped = operation(stand, stand.call("admin", "DELETE", "/v1/tables/birds"))
    assert dropped["state"] == "done"
    assert stand.call("viewer", "GET", "/v1/tables/birds").status_code == 404


def test_a_move_is_followed_to_its_end(stand: Stand) -> None:
    """What is agreed upon has only begun."""
    answer = post(stand, MOVE, {"to": "n4"})
    assert answer.json()["state"] == "running"
    cluster = stand.cluster
    (request,) = cluster.asked
    assert isinstance(request.what, MovePartition)
    assert request.what.source == "n1"
    assert request.what.target is not None
    assert request.what.target.node == "n4"
    told = operation(stand, answer)
    assert (told["state"], told["stage"]) == ("running", "not started")

    name = f"t{cluster.now.requests[request.id].trigger}"
    record = cluster.now.topology.partitions[FIRST]
    new = Replica("n4", name)
    transition = Transition(name, "move", "streaming", (new, *record.replicas[1:]))
    cluster.put(replace(record, transition=transition))
    told = operation(stand, answer)
    assert (told["state"], told["stage"]) == ("running", "streaming")

    cluster.put(
        replace(record, replicas=(new, *record.replicas[1:]), transition=None),
        completed(cluster.now.intents[FIRST]),
        Report(FIRST, name, "move", "reverted", why="a node died"),
    )
    told = operation(stand, answer)
    assert (told["state"], told["why"]) == ("reverted", "a node died")

    cluster.now = apply(cluster.now, [Remove(partition_key(FIRST))], cluster.now.revision + 1)
    told = operation(stand, answer)
    assert (told["state"], told["why"]) == ("replaced", "the partition was dropped")


def test_a_move_is_cancelled_and_one_that_is_held_is_ended(stand: Stand) -> None:
    post(stand, MOVE, {"to": "n4", "from": "n2", "hold_seconds": 60, "max_pause_seconds": 0.05})
    asked = stand.cluster.asked[0].what
    assert isinstance(asked, MovePartition)
    assert (asked.source, asked.hold_seconds, asked.max_pause_seconds) == ("n2", 60, 0.05)
    told = operation(stand, post(stand, f"/v1/partitions/{FIRST}/cancel"))
    assert told["answer"] == "cancelled before it began"

    record = stand.cluster.now.topology.partitions[FIRST]
    for what, words in (("complete", "completing"), ("reverse", "reversing")):
        transition = Transition("t1", "move", READ_NEW, record.replicas)
        stand.cluster.put(replace(record, transition=transition))
        told = operation(stand, post(stand, f"/v1/partitions/{FIRST}/{what}"))
        assert (told["state"], told["answer"]) == ("done", words)


def test_a_node_that_is_gone_is_removed(stand: Stand) -> None:
    told = operation(stand, stand.call("admin", "DELETE", "/v1/nodes/n5"))
    assert (told["state"], told["about"]) == ("done", "n5")
    assert stand.call("viewer", "GET", "/v1/nodes/n5").json()["state"] == "left"


# --- what is refused


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", MOVE, {"to": "n9"}, 409, "n9 is not a member"),
        ("POST", MOVE, {"to": "n5"}, 409, "n5 is down"),
        ("POST", MOVE, {"to": "n2"}, 409, "n2 holds a replica"),
        ("POST", MOVE, {"to": "n1"}, 409, "n1 holds a replica"),
        ("POST", MOVE, {"to": "n4", "from": "n4"}, 409, "n4 holds no replica"),
        ("POST", MOVE, {"to": "n4", "volume": "x"}, 409, "no volume 'x'"),
        ("POST", MOVE, {}, 422, "body.to: Field required"),
        ("POST", MOVE, {"to": "n4", "hold_seconds": -1}, 422, "hold_seconds"),
        ("POST", MOVE, {"to": "n4", "hold_seconds": "1"}, 422, "hold_seconds"),
        ("POST", MOVE, {"to": "n4", "max_pause": 1}, 422, "max_pause"),
        ("POST", MOVE, {"to": "../n4"}, 422, "body.to"),
        ("POST", MOVE, [], 422, "body"),
        ("POST", "/v1/partitions/items-9/move", {"to": "n4"}, 404, "no partition items-9"),
        ("POST", f"/v1/partitions/{FIRST}/cancel", None, 409, "no move"),
        ("POST", f"/v1/partitions/{FIRST}/complete", None, 409, "not held"),
        ("POST", f"/v1/partitions/{FIRST}/reverse", None, 409, "not held"),
        ("POST", "/v1/partitions/items-9/cancel", None, 404, "no partition items-9"),
        ("POST", "/v1/partitions/items-9/reverse", None, 404, "no partition items-9"),
        ("POST", "/v1/tables", {**TABLE, "name": "items"}, 409, "a table items already"),
        ("POST", "/v1/tables", {**TABLE, "replicas": 5}, 409, "5 replicas, but 4"),
        ("POST", "/v1/tables", {**TABLE, "key": ["nothing"]}, 422, "nothing"),
        ("POST", "/v1/tables", {**TABLE, "columns": {"id": "complex"}}, 422, "columns"),
        ("POST", "/v1/tables", {**TABLE, "partitions": 0}, 422, "partitions"),
        ("POST", "/v1/tables", {**TABLE, "name": "a/b"}, 422, "name"),
        ("DELETE", "/v1/tables/other", None, 404, "no table other"),
        ("DELETE", "/v1/nodes/n9", None, 404, "no node n9"),
        ("DELETE", "/v1/nodes/n1", None, 409, "n1 is alive"),
    ],
)
def test_a_wrong_change_is_refused_clearly_and_changes_nothing(
    stand: Stand, method: str, path: str, body: Any, status: int, words: str
) -> None:
    before = stand.cluster.now
    given = {} if body is None else {"json": body}
    answer = stand.call("admin", method, path, **given)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]
    assert answer.json()["advice"]
    assert stand.cluster.now is before
    (line,) = audit(stand)
    assert (line["event"], line["status"], line["subject"]) == ("refused", status, "anna")
    assert line["operation"] is None


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"to": "n4"}', "text/plain", 415),
        (b'{"to": "n4"}', "", 415),
        (b'{"to": "n4"}', "application/x-www-form-urlencoded", 415),
        (b'{"to": "n4"', "application/json", 422),
        (b"", "application/json", 422),
        (b"\xff\xfe", "application/json", 422),
        (b"[" * 100_000, "application/json; charset=utf-8", 422),
        (b'{"to": "\\ud800"}', "application/json", 422),
        (b'{"to": "n4", "\\ud800": 1}', "application/json", 422),
        (b'{"to": "n4", "hold_seconds": NaN}', "application/json", 422),
        (b'{"to": "n4", "hold_seconds": 1e999}', "application/json", 422),
        (b'{"to": ' + b"9" * 5000 + b"}", "application/json", 422),
        (b" " * (1 << 20) + b"{}", "application/json", 413),
    ],
    ids=range(13),
)
def test_a_body_that_is_none(stand: Stand, content: bytes, kind: str, status: int) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = stand.call("operator", "POST", MOVE, content=content, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert stand.cluster.asked == []


def test_a_body_without_a_length_is_counted_as_it_comes(stand: Stand) -> None:
    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    headers = {"Content-Type": "application/json"}
    answer = stand.call("operator", "POST", MOVE, content=chunks(), headers=headers)
    assert answer.status_code == 413
    assert stand.cluster.asked == []


def test_a_viewer_who_tries_is_written_down(stand: Stand) -> None:
    """F71: refused by name, and before anything that was sent is looked at."""
    answer = post(stand, MOVE, {"to": "n4"}, role="viewer")
    assert answer.status_code == 403
    (line,) = audit(stand)
    assert (line["event"], line["subject"], line["role"]) == ("refused", "vera", "viewer")
    assert (line["status"], line["body"]) == (403, None)
    assert line["route"] == "POST /v1/partitions/{partition}/move"


# --- once


def test_the_same_key_again_is_the_same_operation(stand: Stand) -> None:
    first = post(stand, MOVE, {"to": "n4"}, key="k1")
    again = post(stand, MOVE, {"to": "n4", "hold_seconds": 0}, key="k1")
    assert again.status_code == 202
    assert again.json() == first.json()
    assert len(stand.cluster.asked) == 1
    assert [line["event"] for line in audit(stand)] == ["asked", "answered", "answered"]


def test_the_same_key_for_something_else_is_refused(stand: Stand) -> None:
    post(stand, "/v1/tables", {**TABLE, "replicas": 1}, key="k1")
    other = post(stand, "/v1/tables", {**TABLE, "replicas": 2}, key="k1")
    assert other.status_code == 409
    assert "another body" in other.json()["detail"]
    assert "new key" in other.json()["advice"]
    assert len(stand.cluster.asked) == 1


def test_a_key_belongs_to_its_subject_and_path(stand: Stand) -> None:
    ids = {
        post(stand, MOVE, {"to": "n4"}, key="k1").json()["operation"],
        post(stand, MOVE, {"to": "n4"}, key="k1", role="admin").json()["operation"],
        post(stand, "/v1/partitions/items-0001/move", {"to": "n4"}, key="k1").json()["operation"],
        post(stand, MOVE, {"to": "n4"}, key="k2").json()["operation"],
        post(stand, MOVE, {"to": "n4"}).json()["operation"],
    }
    assert len(ids) == 5


def test_who_was_overtaken_by_the_same_key_is_told(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once, through two services: neither sees the other's row, and one row is put."""
    first = post(stand, "/v1/tables", {**TABLE, "replicas": 1}, key="k1").json()["operation"]
    real = stand.cluster.request_state
    monkeypatch.setattr(stand.cluster, "request_state", lambda id: None)
    body = {**TABLE, "name": "other", "replicas": 1}
    assert post(stand, "/v1/tables", body, key="k1").status_code == 409
    monkeypatch.setattr(stand.cluster, "request_state", real)
    assert stand.cluster.now.requests[first].about == TABLE["name"]
    assert "other" not in stand.cluster.now.topology.tables


def test_a_dropped_table_is_dropped_once(stand: Stand) -> None:
    def drop() -> httpx.Response:
        return stand.call("admin", "DELETE", "/v1/tables/items", headers={"Idempotency-Key": "k"})

    assert operation(stand, drop())["state"] == "done"
    assert operation(stand, drop())["state"] == "done"
    assert len(stand.cluster.asked) == 1


@pytest.mark.parametrize("key", ["a b", "ä".encode(), "x" * 201, "\x7f"])
def test_a_key_is_plain_text(stand: Stand, key: Any) -> None:
    headers = {"Idempotency-Key": key}
    answer = stand.call("operator", "POST", MOVE, json={"to": "n4"}, headers=headers)
    assert answer.status_code == 422
    assert stand.cluster.asked == []


# --- the audit log


def test_each_change_is_written_down_from_before_to_after(stand: Stand) -> None:
    follower = Follower(0.0)
    stand.service.asked = follower.add
    post(stand, "/v1/tables", {**TABLE, "replicas": 1}, key="k1")
    stand.call("admin", "DELETE", "/v1/tables/birds")
    stand.call("admin", "DELETE", "/v1/nodes/n5")
    follower.look()
    follower.look()
    lines = audit(stand)
    events = [line["event"] for line in lines]
    assert events == ["asked", "answered"] * 3 + ["ended"] * 3
    made, _, dropped, _, removed, _, made_end, dropped_end, removed_end = lines
    assert (made["subject"], made["role"], made["before"]) == ("olga", "operator", None)
    assert made["body"]["name"] == "birds"
    assert made["operation"] == made_end["operation"]
    assert dropped["before"]["name"] == "birds"
    assert dropped_end["after"] is None
    assert (removed["before"]["state"], removed_end["after"]["state"]) == ("normal", "left")
    assert (removed_end["state"], removed_end["answer"]) == ("done", "removed")


def test_an_operation_is_followed_until_it_has_ended(stand: Stand) -> None:
    times = iter(range(100))
    follower = Follower(0.5, now=lambda: float(next(times)))
    stand.service.asked = follower.add
    stand.cluster.answers = False
    answer = post(stand, MOVE, {"to": "n4"})
    assert answer.json()["state"] == "waiting"
    follower.look()
    stand.cluster.failure = OutcomeUnknown("no answer")
    follower.look()
    stand.cluster.failure = None
    assert [line["event"] for line in audit(stand)] == ["asked", "answered"]
    stand.cluster.answer(answer.json()["operation"])
    follower.look()
    post(stand, f"/v1/partitions/{FIRST}/cancel")
    stand.cluster.answer(stand.cluster.asked[-1].id)
    follower.look()
    ends = [line for line in audit(stand) if line["event"] == "ended"]
    assert {line["state"] for line in ends} == {"done", "reverted"}
    assert ends[0]["after"]["id"] == FIRST


def test_an_operation_that_is_forgotten_is_followed_no_longer(stand: Stand) -> None:
    follower = Follower(0.0)
    stand.service.asked = follower.add
    post(stand, MOVE, {"to": "n4"})
    stand.cluster.now = replace(stand.cluster.now, requests={})
    follower.look()
    assert audit(stand)[-1]["state"] == "unknown"
    assert stand.call("viewer", "GET", "/v1/operations/op-1").status_code == 404


def test_what_can_not_be_written_down_does_not_happen(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stand.cluster.now
    monkeypatch.setattr(stand.audit, "path", stand.directory / "nowhere" / "audit.ndjson")
    answer = post(stand, MOVE, {"to": "n4"})
    assert answer.status_code == 503
    assert stand.cluster.now is before
    assert str(stand.directory) not in answer.text
    assert any("audit log" in str(details) for _, details in stand.lines)


def test_what_has_happened_is_not_denied_because_the_disk_filled_up(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    written: list[int] = []

    def write(file: int, data: bytes) -> int:
        written.append(file)
        if len(written) > 1:
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    answer = post(stand, MOVE, {"to": "n4"})
    monkeypatch.undo()
    assert answer.status_code == 202
    assert [line["event"] for line in audit(stand)] == ["asked"]
    assert any(what == "not in the audit log" for what, _ in stand.lines)


def test_who_gets_no_answer_is_told_where_to_look(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been asked for: the operation is named, and the same key is safe."""

    def lost(request: object) -> None:
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(stand.cluster, "ask", lost)
    answer = post(stand, MOVE, {"to": "n4"}, key="k1")
    assert answer.status_code == 504
    problem = answer.json()
    assert problem["operation"] in problem["advice"]
    asked, answered = audit(stand)
    assert asked["operation"] == answered["operation"] == problem["operation"]
    assert answered["status"] == 504
    monkeypatch.undo()
    assert post(stand, MOVE, {"to": "n4"}, key="k1").json()["operation"] == problem["operation"]


def test_operations_are_listed_the_latest_first(stand: Stand) -> None:
    stand.cluster.answers = False
    last = post(stand, MOVE, {"to": "n4"}).json()["operation"]
    told = stand.call("viewer", "GET", "/v1/operations").json()["operations"]
    assert [each["operation"] for each in told] == [last, "make"]
    assert (told[0]["kind"], told[0]["about"], told[0]["state"]) == ("move", FIRST, "waiting")
    assert (told[0]["asked"], told[0]["answered"]) == (ASKED, 0.0)
    assert (told[1]["asked"], told[1]["answered"]) == (0.0, ANSWERED)
    waiting = stand.call("viewer", "GET", "/v1/operations?state=waiting&limit=5").json()
    assert [each["operation"] for each in waiting["operations"]] == [last]
    stand.cluster.answer(last)
    one = stand.call("viewer", "GET", f"/v1/operations/{last}").json()
    assert (one["state"], one["asked"], one["answered"]) == ("running", ASKED, ANSWERED)


def test_a_coordinator_has_the_last_word(stand: Stand) -> None:
    """What was sound when it was asked for may be refused when it is answered."""
    stand.cluster.answers = False
    answer = stand.call("admin", "DELETE", "/v1/nodes/n5")
    stand.cluster.now = replace(
        stand.cluster.now, leases={**stand.cluster.now.leases, "n5": stand.cluster.now.leases["n1"]}
    )
    row = stand.cluster.now.requests[answer.json()["operation"]]
    assert operation_of(stand.cluster, row).state == "waiting"
    stand.cluster.answer(row.id)
    told = operation(stand, answer)
    assert (told["state"], "n5 is alive" in told["answer"]) == ("refused", True)


def test_more_than_can_be_followed_are_not(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "FOLLOWED_MAX", 2)
    follower = Follower(0.0)
    stand.service.asked = follower.add
    for name in ("a", "b", "c"):
        post(stand, "/v1/tables", {**TABLE, "name": name, "replicas": 1})
    follower.look()
    assert sum(line["event"] == "ended" for line in audit(stand)) == 2
    assert any(what == "no longer followed" for what, _ in stand.lines)


def test_a_follower_goes_on_whatever_happens(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(0.01)
    stand.service.asked = follower.add
    stand.cluster.failure = None
    monkeypatch.setattr(operations, "operation_of", lambda cluster, row: 1 / 0)
    post(stand, MOVE, {"to": "n4"})
    follower.start()
    eventually(lambda: any(what == "polling operations failed" for what, _ in stand.lines))
    monkeypatch.undo()
    post(stand, f"/v1/partitions/{FIRST}/cancel")
    eventually(lambda: sum(line["event"] == "ended" for line in audit(stand)) == 2)
    follower.stop()
