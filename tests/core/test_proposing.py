"""Is the run that is proposed what a person wants, or a reason why there is none?"""

import pytest
from msgspec.structs import replace

from limosa.core.client import Asked, Client, ClientSettings
from limosa.core.coordinator import requests
from limosa.core.effects import Send
from limosa.core.events import TopologyRead
from limosa.core.insight.proposing import filling, planned
from limosa.core.model.changes import Put
from limosa.core.model.requests import CreateTable
from limosa.core.model.runs import RunPlan
from limosa.core.model.topology import NamedTable, Partition
from limosa.errors import IllegalRequest
from tests.core.running import Cluster
from tests.core.stage import rows


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


def uneven() -> Cluster:
    """`a` holds three partitions more than any other node."""
    return Cluster(homes=(("a",), ("a",), ("a",), ("a",), ("b",), ("c",), ("d",)))


def decided(cluster: Cluster) -> tuple[object, ...]:
    """What moves to even the cluster out, where a new table goes, and whom a client writes to."""
    plan, _ = planned(cluster.view(), RunPlan("spread"))
    table = NamedTable("new", "new", "t2", b"")
    create = cluster.waiting(CreateTable(table, 5, 2))
    made = requests.answer(cluster.view(), create)
    places = [
        change.record.replicas
        for change in made.changes
        if isinstance(change, Put) and isinstance(change.record, Partition)
    ]
    assert len(places) == 5
    client = Client("c", ClientSettings())
    client.handle(0.0, TopologyRead(cluster.agreed.topology, cluster.agreed.revision))
    writes = [
        effect.to
        for number in range(16)
        for effect in client.handle(
            0.0, Asked(f"w{number}", "z", rows(f"k{number}", token=(number - 8) << 60))
        )
        if isinstance(effect, Send)
    ]
    assert len(writes) == 16
    return [(move.partition, move.target) for move in plan.moves], places, writes


def test_without_fresh_load_reports_everything_is_decided_as_before() -> None:
    """F46: no node has reported yet; all reports were lost; or all of them are from before the
    nodes' present leases: then plans, places and routes are the same. (Fresh ones make a plan
    another one; they never change where a key is written.)"""
    never = decided(uneven())
    assert never[0]
    fresh = uneven()
    for node, heavy in (("a", 1), ("b", 1 << 20), ("c", 1), ("d", 1 << 30)):
        mine = [n for n in fresh.agreed.topology.partitions if fresh.named(n)[0].node == node]
        fresh.say(node, dict.fromkeys(mine, (10, heavy)), free_bytes=1 if node == "b" else 1 << 40)
    reported = decided(fresh)
    assert reported[0] != never[0]
    assert reported[1:] == never[1:]
    stale = uneven()
    stale.statuses = {
        node: replace(status, lease=status.lease - 1) for node, status in fresh.statuses.items()
    }
    assert decided(stale) == never
    fresh.statuses = {}
    assert decided(fresh)[0] == never[0]


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
    """S90."""
    cluster = measured()
    with pytest.raises(IllegalRequest, match="can't be drained"):
        planned(cluster.view(), drain("a", "b", "c", "d"))
    with pytest.raises(IllegalRequest, match="z is not a member"):
        planned(cluster.view(), drain("z"))
    cluster.put(replace(cluster.agreed.topology.nodes["d"], state="left"))
    with pytest.raises(IllegalRequest, match="d is not a member"):
        filling(cluster.view(), ["d"], RunPlan("fill d"))


def test_a_drain_waits_for_what_is_fixed_on_its_node() -> None:
    """There is never a plan that would leave something behind."""
    cluster = measured()
    record = cluster.record("p0")
    cluster.put(replace(record, owner=None))
    with pytest.raises(IllegalRequest, match="p0 can't leave a: it has no owner"):
        planned(cluster.view(), drain("a"))
