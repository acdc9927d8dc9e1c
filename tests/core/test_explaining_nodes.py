"""Can a person see where a node is, what it waits for, and what may be done?"""

from msgspec.structs import replace

from limosa.core.insight.explaining import about_run, status_about
from limosa.core.insight.explaining_nodes import NodeExplanation, explain_node
from limosa.core.insight.progress import NO_COORDINATOR
from limosa.core.machines.catalogue import STREAMING
from limosa.core.model.changes import COORDINATOR_KEY, Remove
from limosa.core.model.intent import Assignment, Placement
from limosa.core.model.requests import DrainNodes, PauseRun, ResumeRun, StartRun
from tests.core.running import Cluster, move, plan


def told(cluster: Cluster, node: str) -> NodeExplanation:
    found = explain_node(cluster.view(), node)
    assert all("limosa " in each or each.startswith(("start", "stop")) for each in found.may)
    return found


def test_what_a_node_holds_and_what_may_be_done_with_it() -> None:
    cluster = Cluster(2)
    cluster.say("a", {"p0": (10, 100), "p1": (20, 200)}, 5000)
    found = told(cluster, "a")
    assert (found.state, found.live, found.replicas, found.owned) == ("normal", True, 2, 2)
    assert (found.bytes, found.free_bytes) == (300, {"": 5000})
    assert found.load is not None
    assert found.load > 1
    assert (found.waits, found.next) == ((), "nothing is under way")
    assert any("drain a" in each for each in found.may)
    assert told(cluster, "b").bytes == 0


def test_what_comes_and_what_goes() -> None:
    cluster = Cluster(2)
    cluster.put(
        replace(
            cluster.agreed.intents["p0"],
            pending=Assignment("move", (Placement("b"),), trigger=1),
        )
    )
    cluster.stage("p0", STREAMING)
    assert told(cluster, "a").going == ("p0",)
    assert told(cluster, "b").coming == ("p0",)


def test_a_silent_node_is_to_be_started_or_removed() -> None:
    cluster = Cluster()
    cluster.kill("d")
    found = told(cluster, "d")
    assert not found.live
    assert found.waits == ("d is down: start or remove it",)
    assert found.load is None
    cluster.change(Remove(COORDINATOR_KEY))
    assert NO_COORDINATOR in told(cluster, "d").waits


def test_a_node_that_is_emptied_says_what_is_left_and_why_it_waits() -> None:
    """F94: what is left is looked up, not taken from the plan."""
    cluster = Cluster(2)
    drains = plan(move("p0", "a", "b"), move("p1", "a", "c"), drains=("a",), decommission=True)
    assert cluster.ask(DrainNodes(drains)).startswith("done")
    found = told(cluster, "a")
    assert found.state == "decommissioning"
    assert found.waits == ("2 replicas are still on it, for example of p0",)
    assert "then it leaves for good" in found.next
    cluster.ask(PauseRun())
    assert any("the run is paused" in why for why in told(cluster, "a").waits)
    cluster.ask(ResumeRun())
    cluster.settle()
    for name in ("p0", "p1"):
        cluster.complete(name)
    assert told(cluster, "a").waits == ()
    cluster.settle()
    found = told(cluster, "a")
    assert (found.state, found.next) == ("left", "nothing: it has left")
    assert found.may == ("stop it; its name can't be reused",)


def test_a_node_that_was_emptied_may_come_back_or_leave() -> None:
    cluster = Cluster(1)
    drains = plan(move("p0", "a", "b"), drains=("a",))
    cluster.ask(DrainNodes(drains))
    assert "then it stays, empty" in told(cluster, "a").next
    cluster.settle()
    cluster.complete("p0")
    cluster.settle()
    found = told(cluster, "a")
    assert (found.state, found.next) == (
        "decommissioning",
        "it stays empty, and nothing is placed on it",
    )
    assert any("undrain a" in each for each in found.may)


def test_of_runs_a_node_tells_the_moves_of_one() -> None:
    cluster = Cluster(2)
    cluster.ask(StartRun(plan(move("p0", "a", "b"))))
    first = cluster.agreed.rebalance.run
    cluster.settle()
    cluster.complete("p0")
    cluster.settle()
    cluster.ask(StartRun(plan(move("p1", "a", "b"))))
    second = cluster.agreed.rebalance.run
    assert list(about_run(cluster.agreed).moves) == [second]
    assert list(about_run(cluster.agreed, first).moves) == [first]
    assert list(about_run(cluster.agreed).runs) == [first, second]


def test_a_status_is_told_whole_or_of_one_partition() -> None:
    cluster = Cluster(2)
    cluster.say("a", {"p0": (1, 1), "p1": (1, 1)})
    status = cluster.statuses["a"]
    assert status_about(status, "") is status
    assert list(status_about(status, "p1").replicas) == ["p1"]
