"""Does the pipeline start as soon as it is known that rows will be copied?"""

from typing import Any

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.readiness import pipeline_is_wanted
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.transitions import SPARK_STARTS, start
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import StartPipeline
from limosa.core.events import AgreedRead, Elected, Ticked
from limosa.core.model.changes import Commit
from limosa.core.model.intent import Assignment, Placement
from limosa.core.model.reports import Pipeline
from limosa.core.model.requests import (
    AnyWish,
    DrainNodes,
    LockCluster,
    MovePartition,
    RebuildReplicas,
    Request,
    SetReplicas,
    StartRun,
)
from limosa.core.model.runs import Rebalance, Run
from limosa.core.model.topology import TransitionKind
from tests.core.running import OFFICE, Cluster, move, plan


@pytest.mark.parametrize(
    ("wish", "wanted"),
    [
        (MovePartition("p0", source="a", target=Placement("b")), True),
        (StartRun(plan(move("p0", "a", "b"))), True),
        (DrainNodes(replace(plan(), drains=("a",))), True),
        (SetReplicas("t", 3), True),
        (RebuildReplicas("p0", ("a",)), True),
        (LockCluster("backup"), False),
    ],
)
def test_a_request_that_copies_rows_starts_it(wish: AnyWish, wanted: bool) -> None:
    cluster = Cluster()
    assert not pipeline_is_wanted(cluster.view())
    cluster.put(Request("r1", wish))
    assert pipeline_is_wanted(cluster.view()) is wanted
    cluster.put(Request("r1", wish, state="done"))
    assert not pipeline_is_wanted(cluster.view())


@pytest.mark.parametrize("state", ["running", "paused", "cancelling"])
def test_a_run_that_has_not_ended_keeps_it(state: str) -> None:
    cluster = Cluster()
    cluster.put(Rebalance(state, "r1"), Run("r1", "x", 0))  # type: ignore[arg-type]
    assert pipeline_is_wanted(cluster.view())


@pytest.mark.parametrize("always", [False, True])
def test_a_coordinator_in_office_starts_it_and_no_other_one(always: bool) -> None:
    cluster = Cluster()
    coordinator = Coordinator("x", CoordinatorSettings(pipeline_always=always))
    before = coordinator.handle(100.0, AgreedRead(cluster.agreed))
    assert before == []
    effects = coordinator.handle(100.0, Elected(OFFICE))
    effects += coordinator.handle(101.0, Ticked())
    assert any(isinstance(each, StartPipeline) for each in effects) is always


# --- a move begins when Spark is ready


def begins(cluster: Cluster, memory: Memory, kind: TransitionKind = "move") -> bool:
    """Would the coordinator begin the pending change of p0 now? Otherwise it starts Spark."""
    record = cluster.agreed.topology.partitions["p0"]
    wanted = Assignment(kind, (Placement("b"),), trigger=7)
    intent = replace(cluster.agreed.intents["p0"], pending=wanted)
    seen = (cluster.agreed, cluster.statuses, OFFICE, cluster.now, cluster.now)
    found = start(ClusterView(*seen, cluster.settings, memory), record, intent)
    if isinstance(found, Commit):
        return True
    assert found.why == SPARK_STARTS
    assert found.effects == (StartPipeline(),)
    return False


@pytest.mark.parametrize(
    ("state", "expected"),
    [("off", False), ("starting", False), ("ready", True), ("failed", True), (None, True)],
)
def test_a_move_begins_when_spark_is_ready_or_has_failed_or_is_not_needed(
    state: Any, expected: bool
) -> None:
    """F54: until rows can be copied, clients' writes do not go to both sides."""
    cluster = Cluster()
    if state is not None:
        cluster.put(Pipeline("one", state))
    assert begins(cluster, Memory(cluster.settings)) is expected


def test_a_move_does_not_wait_for_spark_for_ever() -> None:
    cluster = Cluster()
    memory = Memory(cluster.settings)
    cluster.put(Pipeline("one", "starting"))
    assert not begins(cluster, memory)
    cluster.now += cluster.settings.pipeline_seconds_max - 1.0
    assert not begins(cluster, memory)
    cluster.now += 1.0
    assert begins(cluster, memory)


def test_a_change_that_restores_replicas_does_not_wait_for_spark() -> None:
    cluster = Cluster()
    cluster.put(Pipeline("one", "starting"))
    assert begins(cluster, Memory(cluster.settings), "rebuild")
