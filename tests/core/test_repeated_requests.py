"""Does it matter if somebody asks twice for the same?"""

from collections.abc import Callable
from typing import NamedTuple, get_args

import pytest
from msgspec.structs import replace

from limosa.core.machines.catalogue import READ_NEW, STREAMING
from limosa.core.model.changes import Agreed
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    CancelRun,
    CompleteMove,
    CreateTable,
    DrainNodes,
    DropTable,
    FollowNodes,
    JoinCluster,
    LockCluster,
    MovePartition,
    MoveToVolume,
    PauseRun,
    RebuildReplicas,
    RemoveNode,
    RepairPartition,
    ReplaceNode,
    ResumeRun,
    ReverseMove,
    SetBalancing,
    SetPolicy,
    SetReplicas,
    StartRun,
    UndrainNodes,
    UnlockCluster,
    WithdrawRequest,
)
from limosa.core.model.runs import Policy
from limosa.core.model.topology import Cluster as ClusterRecord
from limosa.core.model.topology import NamedTable, Node
from tests.core.running import Cluster, move, plan

P = "p0"
MOVED = (Placement("b"), Placement("c"))


class Sample(NamedTuple):
    """A wish that is accepted, and what must be so before."""

    wish: AnyWish
    before: Callable[[Cluster], AnyWish | None] = lambda cluster: None
    """May return the wish, if some of it is known only then."""
    again: str = "done"
    """How the second request ends."""


def moving(stage: str) -> Callable[[Cluster], AnyWish | None]:
    def begin(cluster: Cluster) -> AnyWish | None:
        cluster.ask(MovePartition(P, MOVED, hold_seconds=60.0))
        cluster.stage(P, stage)
        pending = cluster.agreed.intents[P].pending
        assert pending is not None
        return CancelChange(P, pending.trigger) if stage == STREAMING else None

    return begin


def running(cluster: Cluster) -> None:
    cluster.ask(StartRun(plan(move(P, "a", "c"), move("p1", "a", "d"))))
    cluster.settle()


def paused(cluster: Cluster) -> None:
    running(cluster)
    cluster.ask(PauseRun())


def drained(cluster: Cluster) -> None:
    cluster.ask(DrainNodes(plan(drains=("d",))))
    cluster.settle()


def locked(cluster: Cluster) -> None:
    cluster.ask(LockCluster("backup"))


def lost(cluster: Cluster) -> None:
    cluster.kill("d")
    cluster.put(replace(cluster.agreed.topology.nodes["d"], host="h4"))


def waiting(cluster: Cluster) -> AnyWish:
    return WithdrawRequest(cluster.waiting(RepairPartition(P)).id)


TABLE = NamedTable("new", "new", "t2", b"")
SAMPLES = [
    Sample(MovePartition(P, MOVED)),
    Sample(RebuildReplicas(P, ("b",))),
    Sample(MoveToVolume(P, (Placement("a", "v2"), Placement("b")))),
    Sample(RepairPartition(P)),
    Sample(CancelChange(P), moving(STREAMING)),
    Sample(CompleteMove(P), moving(READ_NEW)),
    Sample(ReverseMove(P), moving(READ_NEW), "refused"),
    Sample(SetReplicas("z", 3)),
    Sample(FollowNodes("z")),
    Sample(CreateTable(TABLE, 2, 1), again="refused"),
    Sample(DropTable("t", "t1"), again="refused"),
    Sample(JoinCluster(Node("e", host="h"), "birds"), again="refused"),
    Sample(RemoveNode("d"), lambda cluster: cluster.kill("d"), "refused"),
    Sample(ReplaceNode("d"), lost),
    Sample(StartRun(plan(move(P, "a", "c"))), again="refused"),
    Sample(DrainNodes(plan(drains=("d",))), again="refused"),
    Sample(PauseRun(), running, "refused"),
    Sample(ResumeRun(), paused, "refused"),
    Sample(CancelRun(), running, "refused"),
    Sample(UndrainNodes(("d",)), drained, "refused"),
    Sample(SetBalancing(False)),
    Sample(SetPolicy(Policy(enabled=True))),
    Sample(LockCluster("backup"), again="refused"),
    Sample(UnlockCluster(), locked, "refused"),
    Sample(WithdrawRequest(""), waiting, "refused"),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.wish.kind)
def test_a_request_that_is_repeated_has_no_effect(sample: Sample) -> None:
    """F169: whoever did not hear the answer may ask again: the second request changes nothing but
    its own row and the number of the last trigger. A change that is under way is answered well; a
    refusal says that it is so already."""
    cluster = Cluster(homes=(("a", "b"),) * 3)
    cluster.put(ClusterRecord("birds", "id"))
    wish = sample.before(cluster) or sample.wish
    before = effects(cluster.agreed)
    assert cluster.ask(wish).startswith("done: ")
    after = effects(cluster.agreed)
    assert after != before or isinstance(wish, FollowNodes), "the first one has an effect"
    assert cluster.ask(wish).startswith(f"{sample.again}: ")
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
    assert {type(sample.wish) for sample in SAMPLES} == set(get_args(AnyWish))
