"""Does the cluster spread its load by itself only when it should, and what would that cost?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import balancer
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.requests import answer
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.situating import (
    BYTES_PER_SECOND,
    PAUSE_SECONDS,
    as_run,
    estimate,
    loads,
    situation,
)
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import AskForLoad, MakeCommit
from limosa.core.events import (
    AgreedRead,
    CoordinatorEvent,
    Elected,
    LoadTold,
    Received,
    Ticked,
)
from limosa.core.model.changes import Commit, Put
from limosa.core.model.intent import Assignment, Placement
from limosa.core.model.requests import Request, SetPolicy, StartRun, WithdrawRequest
from limosa.core.model.runs import Controls, Limits, Policy, Rebalance, Run, RunPlan, Totals
from limosa.core.planning.load import Load
from limosa.core.planning.plan import Move, Plan
from tests.core.running import OFFICE, Cluster, move, plan

EAGER = Policy(enabled=True, interval_seconds=10.0, cooldown_seconds=30.0)


class Watched(Cluster):
    """All partitions are on a, each of a megabyte; one coordinator sees it for a while."""

    def __init__(
        self,
        policy: Policy = EAGER,
        partitions: int = 8,
        homes: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        super().__init__(partitions, homes)
        self.memory = Memory(self.settings)
        self.put(Controls(policy=policy))
        for node in ("a", "b", "c", "d"):
            here = [
                name
                for name, record in self.agreed.topology.partitions.items()
                if record.replicas[0].node == node
            ]
            self.say(node, dict.fromkeys(here, (1000, 1 << 20)), 1 << 40)

    def view(self) -> ClusterView:
        seen = (self.agreed, self.statuses, OFFICE, self.now, self.now)
        return ClusterView(*seen, self.settings, self.memory)

    def looks(self, after: float = 11.0) -> Commit | AskForLoad | None:
        self.now += after
        return balancer.begin(self.view())


def test_the_most_loaded_node_gives_and_the_least_loaded_one_takes() -> None:
    """F69: the policy asks for moves from max to min, and does not empty a node."""
    cluster = Watched()
    assert cluster.looks(0.0) is None, "the nodes were hardly heard of yet"
    commit = cluster.looks()
    assert isinstance(commit, Commit)
    (put,) = commit.changes
    assert isinstance(put, Put)
    request = put.record
    assert isinstance(request, Request)
    assert isinstance(request.what, StartRun)
    run = request.what.plan
    assert run is not None
    assert run.by == "balancer"
    assert {each.source for each in run.moves} == {"a"}
    assert 0 < len(run.moves) < 8
    assert "a has" in run.why
    cluster.commit(commit)
    cluster.commit(answer(cluster.view(), request))
    assert cluster.rebalance() == "running"
    assert cluster.looks() is None, "one at a time"


@pytest.mark.parametrize(
    "calm",
    [
        lambda c: c.put(Controls(policy=replace(EAGER, enabled=False))),
        lambda c: c.put(Controls(policy=EAGER, balancing=False)),
        lambda c: c.put(Controls(policy=EAGER, locked="backup")),
        lambda c: c.put(Rebalance("paused", "r1"), Run("r1", "x", 0)),
        lambda c: c.put(Run("r0", "x", 0, started=90.0, ended=105.0, outcome="done")),
        lambda c: [c.kill(node) for node in ("b", "c", "d")],
    ],
    ids=["off", "balancing off", "locked", "paused", "cooldown", "alone"],
)
def test_otherwise_nothing_is_begun(calm: object) -> None:
    """F68, F143."""
    cluster = Watched()
    cluster.looks(0.0)
    calm(cluster)  # type: ignore[operator]
    assert cluster.looks() is None


def test_a_cluster_that_is_even_enough_is_left_alone() -> None:
    """F68: one node may have up to so many times what another has."""
    homes = (("a",), ("a",), ("b",), ("c",), ("d",))
    cluster = Watched(replace(EAGER, ratio=2.5), homes=homes)
    cluster.looks(0.0)
    assert cluster.looks() is None
    cluster.put(Controls(policy=replace(EAGER, ratio=1.5)))
    cluster.looks()
    assert cluster.looks() is None, "another move would turn the order around"


def test_between_two_looks_nothing_is_computed() -> None:
    """F68: every so often, not all the time."""
    cluster = Watched()
    cluster.looks(0.0)
    assert cluster.looks(9.0) is None
    assert cluster.memory.balance_looked_at == 100.0


def test_after_the_cooldown_it_looks_again() -> None:
    cluster = Watched()
    cluster.looks(0.0)
    cluster.put(Run("r0", "x", 0, started=90.0, ended=105.0, outcome="done"))
    assert cluster.looks(11.0) is None
    assert cluster.looks(30.0) is not None


def test_what_can_not_be_moved_is_not_asked_for() -> None:
    """S90: nothing to be done is nothing to be asked for, again and again."""
    cluster = Watched()
    cluster.looks(0.0)
    for name in cluster.agreed.topology.partitions:
        intent = cluster.agreed.intents[name]
        assigned = Assignment("move", (Placement("b"),), trigger=1)
        cluster.put(replace(intent, pending=assigned))
    assert cluster.looks() is None


def test_a_node_that_can_not_be_emptied_does_not_stop_the_coordinator() -> None:
    cluster = Watched()
    cluster.looks(0.0)
    nodes = cluster.agreed.topology.nodes
    cluster.put(replace(nodes["a"], state="decommissioning"))
    for name in ("b", "c", "d"):
        cluster.say(name, {}, 0)
    assert cluster.looks() is None


def test_the_coordinator_asks_by_itself() -> None:
    """With the whole brain around it."""
    cluster = Watched()
    brain = Coordinator("one", CoordinatorSettings())
    brain.statuses.update(cluster.statuses)
    brain.handle(100.0, AgreedRead(cluster.agreed), 100.0)
    brain.handle(100.0, Elected(OFFICE), 100.0)
    brain.statuses.update(cluster.statuses)
    brain.handle(101.0, Ticked(), 101.0)
    brain.statuses.update(cluster.statuses)
    effects = brain.handle(112.0, Ticked(), 112.0)
    whys = [each.commit.why for each in effects if isinstance(each, MakeCommit)]
    assert any(why.startswith("the balancer asks for") for why in whys)


# --- the switch


def test_a_policy_is_set_and_refused_if_it_makes_no_sense() -> None:
    cluster = Cluster()
    assert cluster.ask(SetPolicy(EAGER)).startswith("done: automatic runs are on")
    assert cluster.agreed.controls.policy == EAGER
    assert cluster.ask(SetPolicy(Policy())) == "done: automatic runs are off"
    for wrong in (
        replace(EAGER, ratio=1.0),
        replace(EAGER, interval_seconds=0.0),
        replace(EAGER, cooldown_seconds=-1.0),
    ):
        cluster.refused(SetPolicy(wrong))


# --- what the planner is told


def test_the_planner_is_told_what_is_known() -> None:
    cluster = Watched(partitions=2)
    cluster.put(replace(cluster.agreed.topology.nodes["d"], state="decommissioning"))
    pending = Assignment("move", (Placement("b"),), trigger=1)
    cluster.put(replace(cluster.agreed.intents["p1"], pending=pending))
    now = situation(cluster.view(), ("c", "d"))
    assert now.loads == {"p0": Load(1 << 20), "p1": Load(1 << 20)}
    assert set(now.draining) == {"c", "d"}
    assert list(now.fixed) == ["p1"]
    assert now.live == {"a", "b", "c", "d"}
    assert now.free_bytes["b"] == {"": 1 << 40}
    cluster.statuses.clear()
    assert loads(cluster.view()) == {}


def test_rates_count_once_there_are_some() -> None:
    """One read in an idle cluster is not all of its load."""
    cluster = Watched(partitions=1)
    status = cluster.statuses["a"]
    for rates, counted in (((999.0, 999.0), (0.0, 0.0)), ((2000.0, 1000.0), (2000.0, 1000.0))):
        (held,) = status.replicas["p0"]
        said = {"p0": (replace(held, rates=rates),)}
        cluster.statuses["a"] = replace(status, replicas=said)
        assert loads(cluster.view()) == {"p0": Load(1 << 20, *counted)}


# --- what it costs


def moves(*sizes: int) -> Plan:
    return Plan(tuple(Move(f"p{n}", "a", Placement("b"), s, "load") for n, s in enumerate(sizes)))


def test_an_estimate_goes_by_what_is_usual_until_a_run_has_ended() -> None:
    cluster = Cluster()
    some = moves(BYTES_PER_SECOND, BYTES_PER_SECOND, BYTES_PER_SECOND)
    found = estimate(cluster.view(), some, Limits())
    assert found.bytes == 3 * BYTES_PER_SECOND
    assert found.seconds == pytest.approx(3.0 + 0.45)
    assert found.peak_bytes == 2 * BYTES_PER_SECOND, "two at once"
    assert found.pause_seconds == PAUSE_SECONDS
    totals = Totals(1, bytes=2 * BYTES_PER_SECOND, pause_seconds=0.2)
    cluster.put(Run("r1", "x", 1, started=10.0, ended=14.0, outcome="done", totals=totals))
    found = estimate(cluster.view(), some, Limits())
    assert found.seconds == pytest.approx(6.0 + 0.45), "the last one had half of that rate"
    assert found.pause_seconds == 0.2
    slow = estimate(cluster.view(), some, Limits(bytes_per_second=BYTES_PER_SECOND // 4))
    assert slow.seconds == pytest.approx(12.0 + 0.45)


def test_a_run_that_took_no_time_says_nothing_of_the_rate() -> None:
    cluster = Cluster()
    totals = Totals(1, bytes=1 << 30)
    cluster.put(Run("r1", "x", 1, started=14.0, ended=14.0, outcome="done", totals=totals))
    found = estimate(cluster.view(), moves(BYTES_PER_SECOND), Limits())
    assert found.seconds == pytest.approx(1.3)


def test_nothing_costs_nothing() -> None:
    found = estimate(Cluster().view(), Plan(), Limits())
    assert (found.bytes, found.seconds, found.peak_bytes, found.pause_seconds) == (0, 0, 0, 0)


def test_a_plan_becomes_a_run_with_its_estimate() -> None:
    like = RunPlan("fill b", limits=Limits(3, 4), hold_seconds=5.0, max_pause_seconds=0.1)
    run = as_run(Cluster().view(), moves(7), like)
    assert run.moves == (move("p0", "a", "b"),)
    assert (run.action, run.limits, run.hold_seconds) == ("fill b", Limits(3, 4), 5.0)
    assert run.estimate is not None
    assert run.estimate.bytes == 7


# --- requests that are not wanted any more


def test_a_request_that_waits_can_be_withdrawn() -> None:
    cluster = Cluster()
    waiting = cluster.waiting(StartRun(plan(move("p0", "a", "b"))))
    assert cluster.ask(WithdrawRequest(waiting.id)) == f"done: {waiting.id} is withdrawn"
    answered = cluster.agreed.requests[waiting.id]
    assert (answered.state, answered.answer) == ("refused", "withdrawn")
    assert answered.what == StartRun(None)
    assert answered.answered == cluster.now
    assert "was answered already" in cluster.refused(WithdrawRequest(waiting.id))
    assert "there is no request" in cluster.refused(WithdrawRequest("never"))


# --- where the load comes from


HOMES = tuple((node,) for node in "aabbccdd")


class Asked(Watched):
    """Every node has as much as any other, as far as is measured; a load source is asked."""

    def __init__(self) -> None:
        super().__init__(homes=HOMES)
        self.settings = replace(self.settings, load_source=True)


def of(node: str, cluster: Cluster) -> list[str]:
    records = cluster.agreed.topology.partitions
    return [name for name, record in records.items() if record.replicas[0].node == node]


def test_the_policy_asks_a_replaceable_source_for_the_load_and_relieves_the_most_loaded() -> None:
    """F69: the nodes are even by the measured figures, so the default source begins nothing. The
    other source says that c has the most and b the least: replicas leave c, which keeps some, and
    go to b. It was told the measured figures, and it was asked once per interval."""
    even = Watched(homes=HOMES)
    even.looks(0.0)
    assert even.looks() is None

    cluster = Asked()
    assert cluster.looks(0.0) is None
    question = cluster.looks()
    assert isinstance(question, AskForLoad)
    assert question.measured == loads(cluster.view())
    assert {load.bytes for load in question.measured.values()} == {1 << 20}
    assert cluster.looks(5.0) is None, "it is asked once per interval"
    told = dict.fromkeys(of("a", cluster) + of("d", cluster), 2.0)
    told |= dict.fromkeys(of("c", cluster), 6.0)
    cluster.memory.load_told = told
    commit = cluster.looks(0.1)
    assert isinstance(commit, Commit)
    (put,) = commit.changes
    assert isinstance(put, Put)
    assert isinstance(put.record, Request)
    assert isinstance(put.record.what, StartRun)
    run = put.record.what.plan
    assert run is not None
    assert "c has" in run.why
    assert "b only" in run.why
    assert [(each.source, each.target.node) for each in run.moves] == [("c", "b")]
    assert cluster.looks(0.1) is None, "an answer counts once"


def test_an_answer_of_the_load_source_that_comes_too_late_is_dropped() -> None:
    cluster = Asked()
    cluster.looks(0.0)
    assert isinstance(cluster.looks(), AskForLoad)
    cluster.put(Controls(policy=EAGER, locked="backup"))
    cluster.memory.load_told = dict.fromkeys(of("c", cluster), 6.0)
    assert cluster.looks(0.1) is None
    cluster.put(Controls(policy=EAGER))
    assert cluster.looks(0.1) is None


def test_a_coordinator_asks_the_load_source_and_uses_its_answer() -> None:
    """F69."""
    cluster = Asked()
    coordinator = Coordinator("x", cluster.settings)
    said: list[object] = []

    def handle(event: CoordinatorEvent) -> None:
        effects = coordinator.handle(cluster.now, event, cluster.now)
        said.extend(e for e in effects if isinstance(e, AskForLoad | MakeCommit))

    handle(AgreedRead(cluster.agreed))
    handle(Elected(OFFICE))
    for status in cluster.statuses.values():
        handle(Received(status.node, status))
    cluster.now += 11.0
    handle(Ticked())
    assert [type(each) for each in said] == [AskForLoad]
    cluster.now += 0.5
    handle(LoadTold(dict.fromkeys(of("c", cluster), 6.0)))
    assert [type(each) for each in said] == [AskForLoad, MakeCommit]
