"""Does the pipeline start as soon as it is known that rows will be copied?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.readiness import pipeline_is_wanted
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import StartPipeline
from limosa.core.events import AgreedRead, Elected, Ticked
from limosa.core.model.intent import Placement
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
