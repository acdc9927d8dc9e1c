"""Does the coordinator look where something happened, and forget nothing?"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.coordinator import requests
from limosa.core.coordinator.attention import (
    AGAIN_PER_SECOND,
    AT_ONCE,
    ROUND,
    Attention,
    differ,
)
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.transitions import Waiting
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import Effect, MakeCommit
from limosa.core.events import AgreedRead, Elected, Received, Ticked
from limosa.core.machines.catalogue import ALLOW, READ_NEW, STREAMING
from limosa.core.messages import ReplicaStatus, Status
from limosa.core.model.changes import (
    Agreed,
    Commit,
    Put,
    Remove,
    apply,
    intent_key,
    lease_key,
    partition_key,
)
from limosa.core.model.intent import Intent
from limosa.core.model.keys import WHOLE
from limosa.core.model.requests import RepairPartition, Request
from limosa.core.model.topology import Grant, Node, NodeLease, Partition, Record, Replica
from tests.core.samples import (
    LEASES,
    NODES,
    OFFICE,
    OLD,
    A,
    B,
    C,
    D,
    P,
    cluster,
    intends,
    moving,
    of,
    placed,
    stable,
)

RARELY = CoordinatorSettings(look_seconds=1e9)
"""All are looked at only when it begins: the rest is attention."""


class Counting(Coordinator):
    """Counts what is looked at."""

    def __init__(self, settings: CoordinatorSettings = RARELY) -> None:
        super().__init__("one", settings)
        self.looked: list[str] = []

    def next_step(
        self, view: ClusterView, record: Partition, held_since: float | None = None
    ) -> Commit | Waiting | None:
        self.looked.append(record.id)
        return super().next_step(view, record, held_since)

    def tell(self, now: float, event: object) -> list[str]:
        self.looked = []
        self.handle(now, event)  # type: ignore[arg-type]
        return self.looked


def many(*records: Record) -> Agreed:
    """Three more partitions like the one."""
    agreed = cluster(stable(), more=records)
    for number, name in enumerate("qrs"):
        changes = (Put(replace(stable(), id=name)), Put(Intent(name, placed(*OLD))))
        agreed = apply(agreed, changes, 60 + number)
    return agreed


def status(node: str, sequence: int, generation: int = 70, **of_p: object) -> Status:
    replica = next((replica for replica in OLD if replica.node == node), None)
    if replica is None:
        return Status(node, LEASES[node], sequence, generation, {}, {})
    held: dict[str, tuple[ReplicaStatus, ...]] = {name: (of(replica),) for name in "pqrs"}
    held["p"] = (replace(of(replica), **of_p),)
    return Status(node, LEASES[node], sequence, generation, {}, held)


def settled(*records: Record, settings: CoordinatorSettings = RARELY) -> Counting:
    coordinator = Counting(settings)
    coordinator.handle(100.0, AgreedRead(many(*records)))
    coordinator.handle(100.0, Elected(OFFICE))
    for node in NODES:
        coordinator.handle(100.0, Received(node, status(node, 1)))
    assert coordinator.waits == {}
    return coordinator


def test_while_nothing_happens_nothing_is_looked_at() -> None:
    coordinator = settled()
    assert coordinator.tell(100.1, Ticked()) == []
    assert coordinator.tell(100.1, AgreedRead(coordinator.agreed)) == []
    assert coordinator.tell(100.1, Received("a", status("a", 2))) == []
    assert coordinator.tell(500.0, Ticked()) == []


def test_a_log_that_grows_is_no_reason_to_look() -> None:
    coordinator = settled()
    assert coordinator.tell(100.1, Received("a", status("a", 2, last=9, watermark=9))) == []


@pytest.mark.parametrize(
    "news",
    [
        {"epoch": 4},
        {"open_epoch": 3},
        {"sealed": (50, 1)},
        {"copied": "t9@3"},
        {"digest": ("t9@3", 1, 1)},
        {"silent": (B,)},
        {"caught_up": ((B, 50),)},
        {"unreachable": (B,)},
        {"replica": Replica("a", "other")},
    ],
    ids=lambda news: next(iter(news)),
)
def test_what_a_node_says_anew_of_a_partition_is_looked_at(news: dict[str, object]) -> None:
    coordinator = settled()
    said = status("a", 2)
    said.replicas["p"] = (replace(of(A), **news),)
    assert coordinator.tell(100.1, Received("a", said)) == ["p"]


def test_a_replica_that_is_not_named_any_more_is_looked_at() -> None:
    coordinator = settled()
    said = status("b", 2)
    less = replace(said, replicas={name: said.replicas[name] for name in "pqs"})
    assert coordinator.tell(100.1, Received("b", less)) == ["r"]
    assert coordinator.tell(100.2, Received("b", replace(said, sequence=3))) == ["r"]
    assert differ((of(A),), (of(A), of(B)))


def test_another_record_or_intent_is_looked_at() -> None:
    coordinator = settled()
    record = apply(coordinator.agreed, (Put(replace(stable(), id="q", fence=1)),), 70)
    assert coordinator.tell(100.1, AgreedRead(record)) == ["q"]
    intent = apply(record, (Put(Intent("r", placed(*OLD), change=9)),), 71)
    assert coordinator.tell(100.2, AgreedRead(intent)) == ["r"]
    other = apply(intent, (Put(Node("a", address="elsewhere")),), 72)
    assert coordinator.tell(100.3, AgreedRead(other)) == []


def test_when_a_node_comes_or_goes_all_are_looked_at() -> None:
    coordinator = settled()
    gone = apply(coordinator.agreed, (Remove(lease_key("d")),), 70)
    assert coordinator.tell(100.1, AgreedRead(gone)) == ["p", "q", "r", "s"]
    back = apply(gone, (Put(NodeLease("d", 99)),), 71)
    assert coordinator.tell(100.2, AgreedRead(back)) == ["p", "q", "r", "s"]
    run = replace(status("d", 1), lease=99)
    assert coordinator.tell(100.3, Received("d", run)) == ["p", "q", "r", "s"]


def test_all_are_looked_at_now_and_then() -> None:
    """Whatever was forgotten costs that long, and not more."""
    coordinator = settled(settings=CoordinatorSettings(look_seconds=1.0))
    assert coordinator.tell(100.9, Ticked()) == []
    assert coordinator.tell(101.0, Ticked()) == ["p", "q", "r", "s"]
    assert coordinator.tell(101.1, Ticked()) == []


def test_what_waits_for_a_barrier_is_looked_at_when_any_node_has_come_further() -> None:
    coordinator = settled()
    changing = (Put(replace(moving(ALLOW), id="q")), Put(replace(intends(), partition="q")))
    missing = Put(replace(stable(in_sync=(A, B)), id="r"))
    agreed = apply(coordinator.agreed, (*changing, missing), 80)
    assert coordinator.tell(100.1, AgreedRead(agreed)) == ["q", "r"]
    assert sorted(coordinator.waits) == ["q", "r"]
    assert coordinator.tell(100.2, Received("d", status("d", 2, generation=80))) == ["q"]
    busy = replace(status("d", 3, generation=80), busy={"q": 70})
    assert coordinator.tell(100.3, Received("d", busy)) == ["q"]
    assert coordinator.tell(100.4, Received("a", status("a", 2, last=9))) == []


def test_what_waits_is_looked_at_again_after_a_while() -> None:
    coordinator = settled()
    agreed = apply(coordinator.agreed, (Put(replace(stable(in_sync=(A, B)), id="r")),), 80)
    assert coordinator.tell(101.0, AgreedRead(agreed)) == ["r"]
    assert coordinator.tell(101.3, Ticked()) == []
    assert coordinator.tell(101.5, Ticked()) == ["r"]


def test_while_an_election_runs_a_log_that_grows_counts() -> None:
    coordinator = settled()
    electing = replace(stable(owner=None, epoch=4), id="p")
    agreed = apply(coordinator.agreed, (Put(electing),), 80)
    assert coordinator.tell(100.1, AgreedRead(agreed)) == ["p"]
    assert coordinator.tell(100.2, Received("b", status("b", 2, last=9))) == ["p"]


def test_a_dropped_partition_is_forgotten() -> None:
    coordinator = settled()
    electing = apply(coordinator.agreed, (Put(stable(owner=None, epoch=4)),), 80)
    coordinator.tell(100.1, AgreedRead(electing))
    assert P in coordinator.waits
    assert P in coordinator._effects_at
    gone = apply(electing, (Remove(partition_key(P)), Remove(intent_key(P))), 81)
    assert coordinator.tell(100.2, AgreedRead(gone)) == []
    assert coordinator.waits == {}
    assert P not in coordinator._effects_at
    assert coordinator.tell(200.0, Ticked()) == []


def test_a_partition_that_was_dropped_before_anybody_looked_is_not_waited_for() -> None:
    """Also when it waits for a barrier, and a node has come further."""
    attention = Attention(0.4)
    attention.take(Agreed())
    attention.keep("gone", 100.0)
    before, after = status("d", 1, generation=70), status("d", 2, generation=71)
    attention.hear(before, after, cluster(moving(STREAMING)))
    assert attention.take(Agreed()) == []
    attention.draw_to_all()
    assert attention.take(Agreed()) == ["gone"], "so that it is forgotten"


def test_a_partition_whose_request_is_not_answered_yet_stays_in_mind() -> None:
    coordinator = settled()
    request = Request("r", RepairPartition(P))
    agreed = apply(coordinator.agreed, (Put(request), Put(stable(owner=None, epoch=4))), 80)
    assert coordinator.tell(100.1, AgreedRead(agreed)) == []
    refused = apply(agreed, (Put(replace(request, state="refused")),), 81)
    assert coordinator.tell(100.2, AgreedRead(refused)) == [P]


def test_an_answer_is_computed_once_for_each_state_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = settled()
    agreed = apply(coordinator.agreed, (Put(Request("r", RepairPartition(P))),), 80)
    asked: list[float] = []

    def commits(now: float, event: object) -> int:
        effects: list[Effect] = coordinator.handle(now, event)  # type: ignore[arg-type]
        return sum(isinstance(effect, MakeCommit) for effect in effects)

    real = requests.answer

    def answer(view: ClusterView, request: Request) -> Commit:
        asked.append(view.now)
        return real(view, request)

    monkeypatch.setattr(requests, "answer", answer)
    assert commits(100.1, AgreedRead(agreed)) == 1
    assert commits(100.2, Ticked()) == 0
    assert asked == [100.1]
    assert commits(100.6, Ticked()) == 1
    assert commits(100.7, Elected(OFFICE)) == 0
    assert asked == [100.1, 100.6, 100.7]


# --- nothing is forgotten

SAID = st.tuples(
    st.sampled_from("abc"),
    st.booleans(),
    st.sampled_from(
        [
            None,
            {},
            {"epoch": 4, "last": 3},
            {"last": 8},
            {"silent": (B,)},
            {"silent": (B, C), "open_epoch": 3},
            {"caught_up": ((C, 50),)},
            {"unreachable": (C,)},
        ]
    ),
)
AGREED = st.sampled_from(
    [
        Put(stable()),
        Put(stable(in_sync=(A, B))),
        Put(stable(owner=None, epoch=4)),
        Put(replace(stable(), id="q", owner=Grant(B, LEASES["b"]), epoch=4)),
        Put(intends()),
        Put(moving(ALLOW)),
        Put(NodeLease("c", 13)),
        Put(NodeLease("c", 93)),
        Remove(lease_key("b")),
        Put(NodeLease("b", 12)),
        Remove(partition_key("q")),
    ]
)


@settings(max_examples=150)
@given(st.lists(SAID | AGREED, max_size=12))
def test_what_is_not_looked_at_has_nothing_to_do(events: list[object]) -> None:
    """After any events, a partition that is let go would be left alone by a full look, too. Some
    nodes apply what is agreed late, and some lose their replica."""
    coordinator = settled()
    agreed = coordinator.agreed
    generations = dict.fromkeys("abc", 70)
    for number, event in enumerate(events):
        now = 100.1 + number / 100
        if isinstance(event, tuple):
            node, applies, news = event
            generations[node] = max(generations[node], agreed.revision * applies)
            said = status(node, 2 + number, generations[node], **(news or {}))
            if news is None:
                del said.replicas[P]
            coordinator.tell(now, Received(node, said))
        else:
            agreed = apply(agreed, (event,), 100 + number)  # type: ignore[arg-type]
            coordinator.tell(now, AgreedRead(agreed))
        view = ClusterView(agreed, coordinator.statuses, OFFICE, now)
        for name, record in agreed.topology.partitions.items():
            if not coordinator._attention.is_kept(name):
                assert Coordinator("other", RARELY).next_step(view, record) is None


# --- at scale


def thousands(count: int) -> tuple[Counting, dict[str, dict[str, tuple[ReplicaStatus, ...]]]]:
    """A coordinator that has just come into office, and what the nodes hold."""
    agreed = cluster(stable())
    changes: list[Put] = []
    for number in range(count - 1):
        record = Partition(f"x{number}", "z", WHOLE, OLD, OLD, 3, Grant(A, LEASES["a"]))
        changes += [Put(record), Put(Intent(record.id, placed(*OLD)))]
    agreed = apply(agreed, changes, 60)
    coordinator = Counting(CoordinatorSettings(look_seconds=1.0))
    coordinator.handle(100.0, AgreedRead(agreed))
    coordinator.handle(100.0, Elected(OFFICE))
    return coordinator, {
        replica.node: {name: (of(replica),) for name in agreed.topology.partitions}
        for replica in OLD
    }


def test_a_report_of_one_replica_costs_one_look_however_many_there_are() -> None:
    coordinator, held = thousands(2 * AT_ONCE)
    for node in NODES:
        first = Status(node, LEASES[node], 1, 70, {}, held.get(node, {}))
        coordinator.handle(100.0, Received(node, first))
    while coordinator.tell(100.0, Ticked()):
        pass
    for sequence in range(2, 10):
        changed = (of(A, open_epoch=sequence),)
        said = Status("a", LEASES["a"], sequence, 70, {}, {"x7": changed}, after=sequence - 1)
        assert coordinator.tell(100.1, Received("a", said)) == ["x7"]


def test_one_event_does_not_lead_to_more_looks_than_others_can_wait_for() -> None:
    """The others follow with the next events, and none is forgotten."""
    coordinator, _ = thousands(2 * AT_ONCE + 3)
    looked = list(coordinator.looked)
    assert len(looked) == AT_ONCE
    while more := coordinator.tell(100.0, Ticked()):
        assert len(more) <= AT_ONCE
        looked += more
    assert sorted(looked) == sorted(coordinator.agreed.topology.partitions)


def test_the_regular_look_goes_round_in_parts() -> None:
    coordinator, held = thousands(2 * ROUND + 7)
    for node in NODES:
        first = Status(node, LEASES[node], 1, 70, {}, held.get(node, {}))
        coordinator.handle(100.0, Received(node, first))
    while coordinator.tell(100.0, Ticked()):
        pass
    looked: list[str] = []
    for second, expected in ((101, ROUND), (102, 7), (103, ROUND), (104, ROUND), (105, 7)):
        found = coordinator.tell(float(second), Ticked())
        assert len(found) == expected
        looked += found if second > 102 else []
        assert coordinator.tell(second + 0.5, Ticked()) == []
    assert sorted(looked) == sorted(coordinator.agreed.topology.partitions)


def test_the_more_partitions_wait_the_longer_are_the_pauses_between_looks() -> None:
    attention = Attention(0.4)
    for number in range(int(3 * AGAIN_PER_SECOND)):
        attention.keep(f"x{number}", 100.0)
    assert attention.due(102.9) == []
    assert len(attention.due(103.0)) == 3 * AGAIN_PER_SECOND
    assert attention.due(103.0) == [], "each once, until the coordinator has asked again"
    attention.keep("x1", 103.0)
    attention.keep("x2", 103.0)
    attention.let_go("x2")
    attention.keep("x1", 103.0)
    assert attention.due(106.0) == ["x1"]


def test_what_must_be_repeated_or_decided_at_a_time_does_not_wait_longer() -> None:
    attention = Attention(0.4)
    for number in range(int(3 * AGAIN_PER_SECOND)):
        attention.keep(f"x{number}", 100.0)
    attention.keep("x1", 100.0, 100.4)
    attention.keep("x2", 100.0, 101.0)
    attention.keep("x3", 100.0, 100.5)
    attention.keep("x3", 100.1, 100.5)
    attention.keep("x4", 100.0, 200.0)
    attention.keep("x5", 100.0, 100.5)
    attention.let_go("x5")
    attention.keep("x6", 100.0, 90.0)
    assert attention.due(100.4) == ["x1"]
    assert attention.due(100.9) == ["x3"]
    assert attention.due(101.0) == ["x2"]
    assert len(attention.due(103.0)) == 3 * AGAIN_PER_SECOND - 4
    attention.keep("x4", 103.0, 200.0)
    assert attention.due(199.0) == ["x4"]
    attention.keep("x4", 199.0, 200.0)
    assert attention.due(200.0) == ["x4"], "by the time, not because it has waited"


def test_news_are_looked_at_before_everything_else() -> None:
    coordinator, held = thousands(2 * AT_ONCE + 3)
    for node in NODES:
        first = Status(node, LEASES[node], 1, 70, {}, held.get(node, {}))
        coordinator.handle(100.0, Received(node, first))
    last = f"x{2 * AT_ONCE}"
    said = Status("a", LEASES["a"], 2, 70, {}, {last: (of(A, open_epoch=9),)}, after=1)
    looked = coordinator.tell(100.1, Received("a", said))
    assert looked[0] == last
    while more := coordinator.tell(100.1, Ticked()):
        looked += more
    assert looked.count(last) == 1


def crowd(*records: Record) -> Counting:
    """Some partitions, and thousands that wait for a replica to come back."""
    waiting = [
        Put(replace(stable(in_sync=(A, B)), id=f"x{number}"))
        for number in range(int(2 * AGAIN_PER_SECOND))
    ]
    coordinator = Counting()
    agreed = apply(cluster(stable()), [*waiting, *map(Put, records)], 60)
    names = agreed.topology.partitions
    coordinator.handle(100.0, AgreedRead(agreed))
    coordinator.handle(100.0, Elected(OFFICE))
    for replica in (*OLD, D):
        held: dict[str, tuple[ReplicaStatus, ...]]
        held = {name: (of(replica, open_epoch=3 if replica in (A, D) else 0),) for name in names}
        said = Status(replica.node, LEASES[replica.node], 1, 60, {}, held)
        coordinator.handle(100.0, Received(replica.node, said))
    while coordinator.tell(100.0, Ticked()):
        pass
    return coordinator


def test_a_call_is_repeated_soon_although_thousands_of_partitions_wait() -> None:
    coordinator = crowd(moving(STREAMING), intends())
    assert coordinator.waits[P].startswith("copy to d")
    assert coordinator.tell(100.3, Ticked()) == []
    assert coordinator.tell(100.5, Ticked()) == [P]
    assert coordinator.tell(101.0, Ticked()) == [P]


def test_an_election_ends_in_time_although_thousands_of_partitions_wait() -> None:
    coordinator = crowd(stable(owner=None, epoch=4))
    assert coordinator.tell(100.1, Ticked()) == []
    promise: dict[str, tuple[ReplicaStatus, ...]] = {P: (of(B, epoch=4),)}
    said = Status("b", LEASES["b"], 2, 60, {}, promise, after=1)
    assert coordinator.tell(100.2, Received("b", said)) == [P]
    seconds = coordinator.settings.promise_seconds
    looked = [
        name for tenth in range(30) for name in coordinator.tell(100.2 + tenth / 10, Ticked())
    ]
    assert looked.count(P) <= 2
    assert P in coordinator.tell(100.2 + seconds, Ticked())
    assert P not in coordinator.waits


def test_a_hold_ends_in_time_although_thousands_of_partitions_wait() -> None:
    coordinator = crowd(moving(READ_NEW, hold_seconds=1.5), intends())
    assert coordinator.waits[P].startswith("held for another")
    assert coordinator.tell(101.4, Ticked()) == []
    assert coordinator.tell(101.5, Ticked()) == [P]
    assert not coordinator.waits.get(P, "").startswith("held")


@pytest.mark.parametrize(("node", "why"), [("a", "b takes over"), ("c", "c is taken out")])
def test_a_replica_is_missed_as_soon_as_its_node_has_applied_the_record(
    node: str, why: str
) -> None:
    """Its node reported the loss before it had read the newest record."""
    coordinator = settled()
    agreed = apply(coordinator.agreed, (Put(replace(stable(), fence=5)),), 80)
    assert coordinator.tell(100.1, AgreedRead(agreed)) == [P]
    lost = Status(node, LEASES[node], 2, 79, {}, {}, after=1, gone=(P,))
    assert coordinator.tell(100.2, Received(node, lost)) == [P]
    assert coordinator.waits == {P: f"{node} reports no replica, and has not applied generation 80"}
    other = Status("d", LEASES["d"], 2, 80, {}, {}, after=1)
    assert coordinator.tell(100.21, Received("d", other)) == [], "no replica of it is there"
    applied = Status(node, LEASES[node], 3, 80, {}, {}, after=2)
    (commit,) = [
        effect.commit
        for effect in coordinator.handle(100.22, Received(node, applied))
        if isinstance(effect, MakeCommit)
    ]
    assert commit.why.startswith(f"p: {why}")
    assert coordinator.waits == {}
