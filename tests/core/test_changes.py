"""Is applying a change a pure function, for every kind of record?"""

import pytest

from limosa.core.model.changes import (
    COORDINATOR_KEY,
    MARK_KEY,
    Agreed,
    Change,
    Commit,
    Put,
    Remove,
    apply,
    change_key,
    intent_key,
    key_of,
    layout_key,
    lease_key,
    node_key,
    partition_key,
    request_key,
    with_mark,
)
from limosa.core.model.codec import encode
from limosa.core.model.intent import Intent, Request
from limosa.core.model.keys import TOKEN_MIN
from limosa.core.model.topology import (
    CoordinatorLease,
    Layout,
    Mark,
    Node,
    NodeLease,
    Record,
    Table,
    Zone,
)
from tests.core.samples import OLD, cluster, placed, stable

TOPOLOGY: list[tuple[Record, str]] = [
    (Node("n", volumes=("", "v2")), node_key("n")),
    (Zone("y"), "topology/zone/y"),
    (Table("orders/eu", "y", ("id",)), "topology/table/orders/eu"),
    (Layout("y", 2, (TOKEN_MIN,), ("p",)), layout_key("y")),
    (stable(), partition_key("p")),
]
OTHER: list[tuple[Record, str]] = [
    (Intent("p", placed(*OLD)), intent_key("p")),
    (Request("r1", "move", "p"), request_key("r1")),
    (NodeLease("n", 7), lease_key("n")),
    (CoordinatorLease("one", 8), COORDINATOR_KEY),
]


def found(agreed: Agreed, record: Record) -> object:
    topology = agreed.topology
    match record:
        case Node():
            return topology.nodes.get("n")
        case Zone():
            return topology.zones.get("y")
        case Table():
            return topology.tables.get("orders/eu")
        case Layout():
            return topology.layouts.get("y")
        case Intent():
            return agreed.intents.get("p")
        case Request():
            return agreed.requests.get("r1")
        case NodeLease():
            return agreed.leases.get("n")
        case CoordinatorLease():
            return agreed.coordinator
        case _:
            return topology.partitions.get("p")


def written_down(agreed: Agreed) -> list[object]:
    """All of it, as it is now: another look at the same value must give the same."""
    topology = agreed.topology
    stores = (
        *(topology.nodes, topology.zones, topology.tables, topology.layouts, topology.partitions),
        *(agreed.intents, agreed.requests, agreed.leases),
    )
    records = [{name: encode(record) for name, record in store.items()} for store in stores]
    counters = (dict(topology.revisions), dict(agreed.revisions), topology.generation)
    return [records, counters, agreed.revision, agreed.coordinator]


@pytest.mark.parametrize(("record", "key"), TOPOLOGY + OTHER)
def test_a_record_is_put_and_removed_under_its_key(record: Record, key: str) -> None:
    assert key_of(record) == key
    before = Agreed()
    with_it = apply(before, (Put(record),), 5)
    assert found(with_it, record) == record
    assert with_it.revision_of(key) == with_it.revision == 5
    without = apply(with_it, (Remove(key),), 6)
    assert found(without, record) is None
    assert without.revision_of(key) == 0
    assert without.revision == 6


@pytest.mark.parametrize(("record", "key"), TOPOLOGY + OTHER)
def test_the_old_state_stays_as_it_was(record: Record, key: str) -> None:
    before = cluster(stable(), more=tuple(each for each, _ in TOPOLOGY + OTHER))
    shown = written_down(before)
    apply(before, (Put(record), Remove(key), Put(record)), 90)
    apply(before, (Remove(key),), 91)
    assert written_down(before) == shown


@pytest.mark.parametrize(("record", "key"), TOPOLOGY + OTHER)
def test_removing_what_is_not_there_changes_nothing_else(record: Record, key: str) -> None:
    after = apply(Agreed(), (Remove(key),), 5)
    assert found(after, record) is None
    assert after.revision_of(key) == 0


@pytest.mark.parametrize(("record", "key"), TOPOLOGY)
def test_the_generation_is_the_revision_of_the_last_topology_change(
    record: Record, key: str
) -> None:
    agreed = apply(Agreed(), (Put(record),), 5)
    assert agreed.topology.generation == 5
    agreed = apply(agreed, tuple(Put(other) for other, _ in OTHER), 6)
    assert (agreed.topology.generation, agreed.revision) == (5, 6)
    agreed = apply(agreed, (Remove(key),), 7)
    assert agreed.topology.generation == 7


def test_the_mark_moves_the_generation_and_nothing_else() -> None:
    before = cluster(stable())
    after = apply(before, (Put(Mark("because")),), 90)
    assert key_of(Mark()) == MARK_KEY
    assert after.topology.generation == after.revision_of(MARK_KEY) == 90
    assert after.topology.partitions == before.topology.partitions
    gone = apply(after, (Remove(MARK_KEY),), 91)
    assert gone.revision_of(MARK_KEY) == 0


def test_a_commit_is_applied_as_a_whole_and_in_its_order() -> None:
    """F158."""
    changes: tuple[Change, ...] = (
        Put(Node("n", state="bootstrapping")),
        Put(Node("n")),
        Put(Intent("p", placed(*OLD))),
        Remove(lease_key("a")),
    )
    after = apply(cluster(stable()), changes, 90)
    assert after.topology.nodes["n"].state == "normal"
    assert "a" not in after.leases
    assert {after.revision_of(key) for key in (node_key("n"), intent_key("p"))} == {90}


def test_a_commit_that_touches_the_topology_also_writes_the_mark() -> None:
    commit = Commit({}, (Put(Node("n")), Remove("intent/p")), "because")
    assert commit.touches_topology()
    assert [change_key(change) for change in with_mark(commit)] == [
        "topology/node/n",
        "intent/p",
        MARK_KEY,
    ]
    removal = Commit({}, (Remove("topology/node/n"),), "because")
    assert with_mark(removal)[-1] == Put(Mark("because"))


def test_a_commit_beside_the_topology_leaves_the_generation_alone() -> None:
    commit = Commit({}, (Put(NodeLease("n", 3)), Remove("intent/p")), "because")
    assert not commit.touches_topology()
    assert with_mark(commit) == commit.changes


def test_an_unknown_key_has_revision_zero() -> None:
    agreed = cluster(stable())
    assert agreed.revision_of("topology/node/nobody") == 0
    assert agreed.topology.revision_of("nothing") == 0
    assert agreed.topology.revision_of("p") == 50
