"""Are a cluster's runs planned, asked for and told as the coordinator sees them?"""

import pytest
from msgspec.structs import replace

from limosa.admin.runs import MoveOfRun, RunBody, Runs
from limosa.core.coordinator.requests import answer
from limosa.core.messages import Status
from limosa.core.model.changes import Agreed, Topology
from limosa.core.model.requests import CancelRun, DrainNodes, PauseRun, Request, ResumeRun, StartRun
from limosa.core.model.runs import Limits
from limosa.errors import IllegalRequest
from tests.core.running import Cluster


def move(partition: str, source: str, to: str) -> MoveOfRun:
    return MoveOfRun.model_validate({"partition": partition, "from": source, "to": to})


MOVES = RunBody(moves=[move("p0", "a", "b"), move("p1", "a", "c")])


class Reached:
    """What is agreed about a small cluster, as a connection gives it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def topology(self) -> Topology:
        return self.cluster.agreed.topology

    def refresh(self) -> Topology:
        return self.topology

    def runs(self, run: str = "") -> Agreed:
        return self.cluster.agreed

    def node_facts(self, node: str, partition: str = "") -> Status | None:
        return self.cluster.statuses.get(node)


def scene(partitions: int = 4) -> tuple[Cluster, Runs]:
    cluster = Cluster(partitions)
    cluster.say("a", {f"p{n}": (10, 1000) for n in range(partitions)}, 1 << 40)
    for node in "bcd":
        cluster.say(node, {}, 1 << 40)
    return cluster, Runs(Reached(cluster))  # type: ignore[arg-type]


def served(cluster: Cluster, request: Request) -> str:
    cluster.put(request)
    cluster.commit(answer(cluster.view(), request))
    answered = cluster.agreed.requests[request.id]
    return f"{answered.state}: {answered.answer}"


def test_a_plan_for_a_new_node_a_leaving_one_and_named_moves() -> None:
    """F70: start takes add_node, remove_node or a list of moves; a plan changes nothing."""
    cluster, runs = scene()
    before = cluster.agreed
    to_b = runs.plan(RunBody(add_node="b"))
    assert to_b.moves
    assert {move.target for move in to_b.moves} == {"b"}
    assert to_b.bytes == 1000 * len(to_b.moves)
    away = runs.plan(RunBody(remove_node="a"))
    assert {move.source for move in away.moves} == {"a"}
    assert len(away.moves) == 4
    assert [move.target for move in runs.plan(MOVES).moves] == ["b", "c"]
    assert cluster.agreed is before


def test_a_run_is_asked_for_and_told_until_it_has_ended() -> None:
    """F70, F72."""
    cluster, runs = scene()
    assert runs.status().state == "IDLE"
    assert served(cluster, runs.start("one", MOVES)).startswith("done: started as run ")
    cluster.settle()
    told = runs.status()
    assert (told.state, told.total, told.completed, told.failed) == ("RUNNING", 2, 0, 0)
    assert set(told.current) == {"p0", "p1"}
    assert served(cluster, runs.turn("two", PauseRun())).startswith("done")
    assert runs.status().state == "PAUSED"
    assert [each.state for each in runs.history()] == ["PAUSED"]
    assert served(cluster, runs.turn("three", ResumeRun())).startswith("done")
    cluster.complete("p0")
    cluster.settle()
    told = runs.status()
    assert (told.completed, told.current) == (1, ("p1",))
    assert told.run is not None
    assert [move.state for move in told.run.moves] == ["COMMITTED", "DUAL_WRITE"]
    assert served(cluster, runs.turn("four", CancelRun())).startswith("done")
    cluster.settle()
    assert runs.status().state == "IDLE"
    (past,) = runs.history()
    assert (past.state, past.total, past.completed, past.failed) == ("CANCELLED", 2, 1, 1)
    assert past.ended >= past.started


def test_removing_a_node_drains_it_and_lets_it_leave() -> None:
    cluster, runs = scene(1)
    request = runs.start("one", RunBody(remove_node="a"))
    assert isinstance(request.what, DrainNodes)
    assert request.what.plan is not None
    assert request.what.plan.decommission
    assert served(cluster, request).startswith("done")


def test_what_would_be_refused_is_refused_at_once_in_the_coordinators_words() -> None:
    """F55, F58: no request is even sent."""
    cluster, runs = scene()
    for wish in (PauseRun(), ResumeRun(), CancelRun()):
        with pytest.raises(IllegalRequest, match="no run is under way"):
            runs.turn("x", wish)
    with pytest.raises(IllegalRequest, match="z is not a member"):
        runs.start("x", RunBody(add_node="z"))
    with pytest.raises(IllegalRequest, match="there is no partition p9"):
        runs.start("x", RunBody(moves=[move("p9", "a", "b")]))
    cluster.kill("d")
    with pytest.raises(IllegalRequest, match="the plan has no moves"):
        runs.start("x", RunBody(add_node="d"))
    served(cluster, runs.start("one", MOVES))
    with pytest.raises(IllegalRequest, match="is running already"):
        runs.start("two", MOVES)


def test_the_limits_are_the_usual_ones() -> None:
    _, runs = scene()
    request = runs.start("one", MOVES)
    assert isinstance(request.what, StartRun)
    assert request.what.plan is not None
    assert replace(request.what.plan.limits) == Limits()
