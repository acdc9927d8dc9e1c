"""Is the run that is proposed what a person wants, or a reason why there is none?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.proposing import filling, planned
from limosa.core.model.runs import RunPlan
from limosa.errors import IllegalRequest
from tests.core.running import Cluster


def measured(partitions: int = 4) -> Cluster:
    cluster = Cluster(partitions)
    cluster.say("a", {f"p{n}": (10, 1000) for n in range(partitions)}, 1 << 40)
    for node in "bcd":
        cluster.say(node, {}, 1 << 40)
    return cluster


def drain(*nodes: str) -> RunPlan:
    return RunPlan("drain", drains=nodes)


def test_a_drain_names_all_that_must_leave() -> None:
    plan, run = planned(measured().view(), drain("a"))
    assert {move.partition for move in run.moves} == {"p0", "p1", "p2", "p3"}
    assert run.estimate is not None
    assert run.estimate.bytes == plan.bytes == 4000


def test_only_what_goes_to_new_nodes_fills_them() -> None:
    """F59."""
    plan, run = filling(measured().view(), ["b"], RunPlan("fill b"))
    assert plan.moves
    assert {move.target.node for move in run.moves} == {"b"}


def test_the_figures_are_of_what_is_done() -> None:
    """F59: four partitions on `a`: one goes to `b`, the others stay though others have nothing."""
    view = measured().view()
    whole, _ = planned(view, RunPlan("spread"))
    plan, run = filling(view, ["b"], RunPlan("fill b"))
    assert (whole.before.bytes, whole.after.bytes) == (4.0, 1.0)
    assert (plan.before.bytes, plan.after.bytes) == (4.0, 3.0)
    assert [(each.place.node, each.bytes) for each in plan.arrivals] == [("b", 1000)]
    assert run.estimate is not None
    assert run.estimate.bytes == plan.bytes == 1000


def test_a_drain_that_can_not_be_is_refused_with_its_reason() -> None:
    """S86, S90."""
    cluster = measured()
    with pytest.raises(IllegalRequest, match="can't be drained"):
        planned(cluster.view(), drain("a", "b", "c", "d"))
    with pytest.raises(IllegalRequest, match="z is no member"):
        planned(cluster.view(), drain("z"))
    cluster.put(replace(cluster.agreed.topology.nodes["d"], state="left"))
    with pytest.raises(IllegalRequest, match="d is no member"):
        filling(cluster.view(), ["d"], RunPlan("fill d"))


def test_a_drain_waits_for_what_is_fixed_on_its_node() -> None:
    """S86: never a plan that would leave something behind."""
    cluster = measured()
    record = cluster.record("p0")
    cluster.put(replace(record, owner=None))
    with pytest.raises(IllegalRequest, match="p0 can't leave a: it has no owner"):
        planned(cluster.view(), drain("a"))
