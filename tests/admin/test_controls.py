"""Can the cluster be locked over HTTP, and what was asked for be taken back?"""

from typing import Any

import pytest
from msgspec.structs import replace

from limosa.admin.operations import Follower
from limosa.core.coordinator.aborting import aborting
from limosa.core.model.requests import LedToRun, MovePartition, Request, StartRun
from limosa.core.model.runs import Rebalance, Run
from limosa.errors import IllegalRequest
from tests.admin.fakes import FIRST, Stand
from tests.admin.test_changes import MOVE, audit, operation, post

WHY = {"why": "backup until noon"}


def lock_of(stand: Stand) -> Any:
    return stand.call("viewer", "GET", "/v1/lock").json()


def test_the_cluster_is_locked_and_unlocked(stand: Stand) -> None:
    """F87: whoever looks is told why; the same again is refused and changes nothing."""
    follower = Follower(0.0)
    stand.service.asked = follower.add
    assert lock_of(stand) == {"locked": False, "why": ""}
    locked = operation(stand, post(stand, "/v1/lock", WHY, key="k1"))
    assert (locked["state"], locked["answer"]) == ("done", "locked")
    assert lock_of(stand) == {"locked": True, **WHY}
    again = post(stand, "/v1/lock", WHY, key="k1")
    assert operation(stand, again) == locked
    second = post(stand, "/v1/lock", {"why": "another reason"})
    assert second.status_code == 409
    assert "locked already: backup until noon" in second.json()["detail"]
    assert lock_of(stand) == {"locked": True, **WHY}

    unlocked = operation(stand, stand.call("operator", "DELETE", "/v1/lock"))
    assert (unlocked["state"], unlocked["answer"]) == ("done", "unlocked")
    assert lock_of(stand) == {"locked": False, "why": ""}
    assert stand.call("operator", "DELETE", "/v1/lock").status_code == 409

    follower.look()
    lines = audit(stand)
    assert [(line["event"], line["route"]) for line in lines[:3]] == [
        ("asked", "POST /v1/lock"),
        ("answered", "POST /v1/lock"),
        ("answered", "POST /v1/lock"),
    ]
    assert (lines[0]["body"], lines[0]["before"]["locked"]) == (WHY, "")
    ended = [line for line in lines if line["event"] == "ended"]
    assert [line["after"]["locked"] for line in ended] == ["", ""]


@pytest.mark.parametrize(
    "body", [{}, {"why": ""}, {"why": "a\nb"}, {"why": "x" * 201}, {"why": 1}, {"reason": "x"}, []]
)
def test_a_lock_says_why(stand: Stand, body: Any) -> None:
    assert post(stand, "/v1/lock", body).status_code == 422
    assert stand.cluster.asked == []


# --- abort


def abort(stand: Stand, id: str) -> Any:
    return post(stand, f"/v1/operations/{id}/abort")


def test_what_waits_is_withdrawn(stand: Stand) -> None:
    follower = Follower(0.0)
    stand.cluster.answers = False
    first = post(stand, MOVE, {"to": "n4"}).json()["operation"]
    stand.cluster.answers = True
    stand.service.asked = follower.add
    told = operation(stand, abort(stand, first))
    assert (told["kind"], told["about"], told["state"]) == ("withdraw", first, "done")
    answered = stand.call("viewer", "GET", f"/v1/operations/{first}").json()
    assert (answered["state"], answered["answer"]) == ("refused", "withdrawn")
    late = abort(stand, first)
    assert late.status_code == 409
    assert "has ended: refused, withdrawn" in late.json()["detail"]
    follower.look()
    asked = next(line for line in audit(stand) if line["route"].endswith("/abort"))
    assert asked["before"]["state"] == "waiting"
    (ended,) = [line for line in audit(stand) if line["event"] == "ended"]
    assert ended["after"]["answer"] == "withdrawn"


def test_a_move_that_came_of_it_is_given_up(stand: Stand) -> None:
    """The move of that operation, and no later one."""
    first = post(stand, MOVE, {"to": "n4"}).json()["operation"]
    assert operation(stand, abort(stand, first))["kind"] == "cancel"
    assert stand.cluster.now.intents[FIRST].pending is None
    post(stand, MOVE, {"to": "n4"})
    assert abort(stand, first).status_code == 409
    assert stand.cluster.now.intents[FIRST].pending is not None


def test_a_run_that_came_of_it_is_cancelled(stand: Stand) -> None:
    stand.cluster.put(
        Request("run-1", StartRun(None), state="done", led_to=LedToRun("r7"), trigger=7),
        Run("r7", "fill n4", 3),
        Rebalance("running", "r7"),
    )
    assert operation(stand, abort(stand, "run-1"))["kind"] == "cancel_run"
    assert stand.cluster.now.rebalance.state == "cancelling"
    stand.cluster.put(Rebalance("running", "r8"))
    other = abort(stand, "run-1")
    assert other.status_code == 409
    assert "r7 is not the current run" in other.json()["detail"]


def test_what_is_not_known_can_not_be_aborted(stand: Stand) -> None:
    missing = abort(stand, "never")
    assert missing.status_code == 404
    ended = abort(stand, "make")
    assert ended.status_code == 409
    assert "make has ended: done, created" in ended.json()["detail"]
    assert stand.cluster.asked == []


def test_one_that_was_refused_leaves_nothing_to_abort(stand: Stand) -> None:
    """Not even if a change of the same partition is under way."""
    post(stand, MOVE, {"to": "n4"})
    pending = stand.cluster.now.intents[FIRST].pending
    assert pending is not None
    refused = Request(
        "q", MovePartition(FIRST), state="refused", answer="no", trigger=pending.trigger
    )
    with pytest.raises(IllegalRequest, match="q has ended: refused, no"):
        aborting(stand.cluster.now, refused, "a")
    dropped = replace(refused, state="done", what=MovePartition("gone-0000"))
    with pytest.raises(IllegalRequest, match="q has ended: done"):
        aborting(stand.cluster.now, dropped, "a")
