"""Is applying a change a pure function, for every kind of record?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.model.changes import (
    CLUSTER_KEY,
    COORDINATOR_KEY,
    FEATURES_KEY,
    MARK_KEY,
    PIPELINE_KEY,
    Agreed,
    Change,
    Commit,
    Put,
    Remove,
    apply,
    apply_dated,
    change_key,
    intent_key,
    key_of,
    layout_key,
    lease_key,
    merged,
    node_key,
    partition_key,
    report_key,
    request_key,
    table_key,
    united,
    with_mark,
)
from limosa.core.model.codec import encode
from limosa.core.model.intent import Intent
from limosa.core.model.keys import TOKEN_MIN
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.requests import MovePartition, Request
from limosa.core.model.topology import (
    Cluster,
    CoordinatorLease,
    Features,
    Layout,
    Mark,
    NamedTable,
    Node,
    NodeLease,
    Record,
    Zone,
)
from tests.core.samples import OLD, cluster, placed, stable

TOPOLOGY: list[tuple[Record, str]] = [
    (Node("n", volumes=("", "v2")), node_key("n")),
    (Zone("y"), "topology/zone/y"),
    (NamedTable("orders/eu", "y", "i1", b"columns"), table_key("orders/eu")),
    (Layout("y", 2, (TOKEN_MIN,), ("p",)), layout_key("y")),
    (stable(), partition_key("p")),
    (Cluster("birds", "c1"), CLUSTER_KEY),
    (Features(("streams",)), FEATURES_KEY),
]
OTHER: list[tuple[Record, str]] = [
    (Intent("p", placed(*OLD)), intent_key("p")),
    (Report("p", "t9", "move", "done"), report_key("p", "t9")),
    (Pipeline("k1", "ready"), PIPELINE_KEY),
    (Request("r1", MovePartition("p")), request_key("r1")),
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
        case NamedTable():
            return topology.tables.get("orders/eu")
        case Layout():
            return topology.layouts.get("y")
        case Intent():
            return agreed.intents.get("p")
        case Report():
            return agreed.reports.get("report/p/t9")
        case Pipeline():
            return agreed.pipeline
        case Request():
            return agreed.requests.get("r1")
        case NodeLease():
            return agreed.leases.get("n")
        case CoordinatorLease():
            return agreed.coordinator
        case Cluster():
            return topology.cluster
        case Features():
            return topology.features if topology.features.enabled else None
        case _:
            return topology.partitions.get("p")


def written_down(agreed: Agreed) -> list[object]:
    """All of it, as it is now: another look at the same value must give the same."""
    topology = agreed.topology
    stores = (
        *(topology.nodes, topology.zones, topology.tables, topology.layouts, topology.partitions),
        *(agreed.intents, agreed.requests, agreed.leases, agreed.reports),
    )
    records = [{name: encode(record) for name, record in store.items()} for store in stores]
    counters = (dict(topology.revisions), dict(agreed.revisions), topology.generation)
    alone = (agreed.coordinator, agreed.pipeline, topology.cluster, topology.features)
    return [records, counters, agreed.revision, alone]


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


def written(name: str) -> Change:
    return Put(replace(stable(), id=name))


def intended(name: str) -> Change:
    return Put(Intent(name, ()))


def removed(name: str) -> Change:
    return Remove(partition_key(name))


def test_an_unknown_key_has_revision_zero() -> None:
    agreed = cluster(stable())
    assert agreed.revision_of("topology/node/nobody") == 0
    assert agreed.topology.revision_of("nothing") == 0
    assert agreed.topology.revision_of("p") == 50


# --- several commits as one


def commit(guards: dict[str, int], *names: str) -> Commit:
    return Commit(guards, tuple(Put(Node(name)) for name in names), f"about {names}")


def test_commits_that_do_not_contradict_each_other_become_one() -> None:
    first = commit({node_key("a"): 3, COORDINATOR_KEY: 40}, "a")
    second = commit({node_key("b"): 4, COORDINATOR_KEY: 40}, "b")
    together = merged([first, second], 10, 10)
    assert together == [first, second]
    assert united(together) == Commit(
        {node_key("a"): 3, node_key("b"): 4, COORDINATOR_KEY: 40},
        (Put(Node("a")), Put(Node("b"))),
        "about ('a',) (and 1 more)",
    )
    assert united([first]) == first
    assert merged([], 10, 10) == []


def test_as_many_become_one_as_the_metastore_takes_at_once() -> None:
    """Each has a guard of its own, and one that all share; their changes need a mark, too."""
    commits = [commit({node_key(name): 3, COORDINATOR_KEY: 40}, name) for name in "abcd"]
    assert merged(commits, 3, 10) == commits[:2]
    assert merged(commits, 4, 10) == commits[:3]
    assert merged(commits, 4, 2) == commits[:2]
    large = commit({}, *"abc")
    assert merged([large, commits[3]], 3, 10) == [large], "it can't be divided"
    assert merged([commits[3], large], 4, 10) == [commits[3]]


FIRST = commit({node_key("a"): 3, "lease/x": 7}, "a")


@pytest.mark.parametrize(
    "second",
    [
        commit({"lease/x": 8}, "b"),
        commit({}, "a"),
        commit({node_key("a"): 3}, "b"),
        Commit({}, (Remove("lease/x"),), "one changes what the other was computed from"),
    ],
    ids=["another revision", "one key twice", "it was computed from that", "that from it"],
)
def test_a_commit_that_contradicts_an_earlier_one_is_left_for_the_next_round(
    second: Commit,
) -> None:
    third = commit({"lease/x": 7}, "c")
    assert merged([FIRST, second, third], 10, 10) == [FIRST, third]


@given(
    st.lists(
        st.builds(
            lambda guards, names: commit({node_key(n): 5 for n in {*guards, *names}}, *names),
            st.sets(st.sampled_from("abcde")),
            st.sets(st.sampled_from("abcde"), min_size=1).map(sorted),
        ),
        max_size=6,
    )
)
def test_made_as_one_is_as_made_one_after_the_other(commits: list[Commit]) -> None:
    """Of those that are made together none would have been stale after the others, in any order."""
    agreed = apply(Agreed(), tuple(Put(Node(name)) for name in "abcde"), 5)
    together = merged(commits, 100, 100)
    assert bool(together) == bool(commits)
    after = agreed
    for order in (together, together[::-1]):
        after = agreed
        for number, each in enumerate(order):
            assert all(after.revision_of(key) == value for key, value in each.guards.items())
            after = apply(after, each.changes, 6 + number)
    if together:
        assert apply(agreed, united(together).changes, 6).topology.nodes == after.topology.nodes


def test_changes_of_several_commits_keep_their_own_revisions() -> None:
    before = cluster(stable())
    changes: list[tuple[Change, int]] = [
        (Put(Node("n")), 90),
        (Put(Mark("one")), 90),
        (Put(NodeLease("n", 3)), 91),
        (Remove(node_key("n")), 92),
        (Put(Node("m")), 92),
        (Put(Mark("two")), 92),
        (Put(Request("r1", MovePartition("p"))), 93),
    ]
    after = apply_dated(before, changes, 95)
    step = before
    for change, revision in changes:
        step = apply(step, (change,), revision)
    assert written_down(replace(step, revision=95)) == written_down(after)
    assert (after.revision, after.topology.generation) == (95, 92)
    assert after.topology.changed_since(before.topology) == []


def test_a_thousand_changes_copy_each_store_once() -> None:
    """What a commit costs grows with the commit, not with its square."""
    many = [Put(replace(stable(), id=f"p{number}")) for number in range(1000)]
    after = apply(Agreed(), many, 5)
    assert len(after.topology.partitions) == len(after.topology.revisions) == 1000
    assert apply(after, (), 6).topology is after.topology


def test_partitions_that_changed_came_or_went_are_told_apart_from_the_others() -> None:
    before = apply(Agreed(), [Put(replace(stable(), id=name)) for name in "abc"], 5)
    changes = (Put(replace(stable(), id="b")), Remove(partition_key("c")), Put(Node("a")))
    after = apply(before, (*changes, Put(replace(stable(), id="d"))), 6)
    assert sorted(after.topology.changed_since(before.topology)) == ["b", "c", "d"]
    assert after.topology.changed_since(after.topology) == []


@given(
    st.lists(
        st.lists(
            st.sampled_from(
                [change(name) for name in "abc" for change in (written, intended, removed)]
            ),
            max_size=3,
        ),
        max_size=5,
    )
)
def test_changes_are_found_quickly_after_the_state_before_and_after_any_earlier_one(
    commits: list[list[Change]],
) -> None:
    """The revisions name what changed since the state before; after an earlier one, all of them
    are compared. Both find every change."""
    states = [apply(Agreed(), [written("a"), intended("b")], 5)]
    for number, changes in enumerate(commits):
        states.append(apply(states[-1], changes, 6 + number))
    for place, before in enumerate(states):
        for after in states[place:]:
            old, new = before.topology, after.topology
            records = {n for n in "abc" if old.revision_of(n) != new.revision_of(n)}
            keys = before.revisions | after.revisions
            others = {k for k in keys if before.revisions.get(k) != after.revisions.get(k)}
            assert records <= set(new.changed_since(old))
            assert others <= set(after.changed_since(before))


def test_how_a_state_came_about_is_not_part_of_its_value() -> None:
    at_once = apply(Agreed(), [written("a"), written("b")], 5)
    steps = apply(apply(Agreed(), [written("a")], 5), [written("b")], 5)
    assert at_once == steps
