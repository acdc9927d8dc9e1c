"""Does it matter if somebody asks twice for the same?"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.requests import SERVICES
from limosa.core.machines.catalogue import READ_NEW, STREAMING
from limosa.core.model.changes import Agreed
from limosa.core.model.intent import Placement
from limosa.core.model.runs import Policy
from limosa.core.model.topology import Cluster as ClusterRecord
from limosa.core.model.topology import NamedTable, Node
from tests.core.running import Cluster, move, plan

P = "p0"
MOVED = (Placement("b"), Placement("c"))


class Sample(NamedTuple):
    """A request that is accepted, and what must be so before."""

    words: dict[str, Any]
    before: Callable[[Cluster], dict[str, Any] | None] = lambda cluster: None
    """May add words that are known only then."""
    again: str = "done"
    """How the second one ends."""


def moving(stage: str) -> Callable[[Cluster], dict[str, Any] | None]:
    def begin(cluster: Cluster) -> dict[str, Any] | None:
        cluster.ask("move", partition=P, placements=MOVED, hold_seconds=60.0)
        cluster.stage(P, stage)
        pending = cluster.agreed.intents[P].pending
        assert pending is not None
        return {"cancels": pending.trigger} if stage == STREAMING else None

    return begin


def running(cluster: Cluster) -> None:
    cluster.ask("start_run", run=plan(move(P, "a", "c"), move("p1", "a", "d")))
    cluster.settle()


def paused(cluster: Cluster) -> None:
    running(cluster)
    cluster.ask("pause_run")


def drained(cluster: Cluster) -> None:
    cluster.ask("drain_nodes", run=plan(drains=("d",)))
    cluster.settle()


def locked(cluster: Cluster) -> None:
    cluster.ask("lock", name="backup")


def waiting(cluster: Cluster) -> dict[str, Any]:
    return {"name": cluster.waiting("repair", partition=P).id}


TABLE = NamedTable("new", "new", "t2", b"")
SAMPLES: dict[str, Sample] = {
    "move": Sample({"partition": P, "placements": MOVED}),
    "rebuild": Sample({"partition": P, "renewed": ("b",)}),
    "volume_move": Sample(
        {"partition": P, "placements": (Placement("a", "v2"), Placement("b"))},
    ),
    "repair": Sample({"partition": P}),
    "cancel": Sample({"partition": P}, moving(STREAMING)),
    "complete": Sample({"partition": P}, moving(READ_NEW)),
    "reverse": Sample({"partition": P}, moving(READ_NEW), "refused"),
    "set_replicas": Sample({"zone": "z", "count": 3}),
    "follow_nodes": Sample({"zone": "z"}),
    "create_table": Sample({"table": TABLE, "partitions": 2, "count": 1}, again="refused"),
    "drop_table": Sample({"name": "t", "table_id": "t1"}, again="refused"),
    "join": Sample({"node": Node("e", host="h"), "cluster": "birds"}, again="refused"),
    "remove_node": Sample({"name": "d"}, lambda cluster: cluster.kill("d"), "refused"),
    "start_run": Sample({"run": plan(move(P, "a", "c"))}, again="refused"),
    "drain_nodes": Sample({"run": plan(drains=("d",))}, again="refused"),
    "pause_run": Sample({}, running, "refused"),
    "resume_run": Sample({}, paused, "refused"),
    "cancel_run": Sample({}, running, "refused"),
    "undrain_nodes": Sample({"names": ("d",)}, drained, "refused"),
    "set_balancing": Sample({"on": False}),
    "set_policy": Sample({"policy": Policy(enabled=True)}),
    "lock": Sample({"name": "backup"}, again="refused"),
    "unlock": Sample({}, locked, "refused"),
    "withdraw": Sample({}, waiting, "refused"),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_request_that_is_repeated_has_no_effect(kind: str) -> None:
    """F169: whoever did not hear the answer may ask again: the second request changes nothing but
    its own row and the number of the last trigger. A change that is under way is answered well; a
    refusal says that it is so already."""
    sample = SAMPLES[kind]
    cluster = Cluster(homes=(("a", "b"),) * 3)
    cluster.put(ClusterRecord("birds", "id"))
    words = {**sample.words, **(sample.before(cluster) or {})}
    before = effects(cluster.agreed)
    assert cluster.ask(kind, **words).startswith("done: ")
    after = effects(cluster.agreed)
    assert after != before or kind == "follow_nodes", "the first one has an effect"
    assert cluster.ask(kind, **words).startswith(f"{sample.again}: ")
    assert effects(cluster.agreed) == after


def effects(agreed: Agreed) -> list[object]:
    """All that is agreed but requests, and what counts them."""
    topology = agreed.topology
    fields = ("nodes", "zones", "tables", "layouts", "partitions", "features", "cluster")
    intents = {name: replace(intent, change=0) for name, intent in agreed.intents.items()}
    withdrawn = [r.id for r in agreed.requests.values() if r.answer == "withdrawn"]
    runs = (agreed.runs, agreed.moves, agreed.rebalance, agreed.controls, agreed.reports)
    return [*(getattr(topology, name) for name in fields), intents, withdrawn, *runs]


def test_every_kind_of_request_is_repeated() -> None:
    assert set(SAMPLES) == set(SERVICES)
