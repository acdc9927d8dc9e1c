"""May a table be made or dropped, and what is agreed then?"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.coordinator import limits
from limosa.core.coordinator.situating import situation
from limosa.core.model.changes import (
    CONTROLS_KEY,
    COORDINATOR_KEY,
    Agreed,
    Put,
    intent_key,
    layout_key,
    lease_key,
    node_key,
    partition_key,
    request_key,
    table_key,
    zone_key,
)
from limosa.core.model.intent import Intent, Placement
from limosa.core.model.keys import WHOLE, TokenRange
from limosa.core.model.requests import CreateTable, DropTable, Request
from limosa.core.model.topology import (
    Grant,
    Layout,
    NamedTable,
    Node,
    Partition,
    Replica,
    Transition,
    Zone,
)
from limosa.core.planning.plan import Plan
from limosa.core.planning.rebalance import plan_rebalance
from limosa.core.planning.situation import Rules
from limosa.core.planning.spread import spread
from tests.core.asking import NODES, TRIGGER, answered, refused, wanting, world
from tests.core.samples import OFFICE, put, seen

ORDERS = NamedTable("orders", "orders", "i1", b"columns")
CREATE = Request("r", CreateTable(ORDERS, 4, 2))
DROP = Request("r", DropTable("orders", "i1"))


def made(agreed: Agreed, *requests_: Request) -> Agreed:
    for request in requests_:
        row, _, agreed = answered(agreed, request)
        assert row.state == "done"
    return agreed


# --- made


def test_a_table_with_a_zone_of_its_own_is_one_commit() -> None:
    row, commit, after = answered(world(), CREATE)
    assert (row.state, row.answer) == ("done", "created")
    assert put(commit.changes, Zone) == [Zone("orders", 2)]
    names = ("orders-0000", "orders-0001", "orders-0002", "orders-0003")
    quarters = (-(2**63), -(2**62), 0, 2**62)
    assert put(commit.changes, Layout) == [Layout("orders", TRIGGER, quarters, names)]
    assert after.topology.tables == {"orders": ORDERS}
    first = after.topology.partitions["orders-0000"]
    replicas = (Replica("a", "c77"), Replica("b", "c77"))
    assert first == Partition(
        "orders-0000", "orders", TokenRange(-(2**63), -(2**62)), replicas, replicas
    )
    assert after.intents["orders-0000"] == Intent(
        "orders-0000", (Placement("a"), Placement("b")), change=TRIGGER
    )
    assert list(after.intents) == list(after.topology.partitions) == list(names)
    assert after.topology.generation == TRIGGER + 1


def test_what_a_table_was_computed_from_guards_it() -> None:
    """F158: also that there is no such table, zone or layout."""
    _, commit, _ = answered(world(live=("a", "b")), CREATE)
    assert commit.guards == {
        request_key("r"): TRIGGER,
        table_key("orders"): 0,
        zone_key("orders"): 0,
        layout_key("orders"): 0,
        **{node_key(node): OFFICE for node in NODES},
        lease_key("a"): 50,
        lease_key("b"): 51,
        lease_key("c"): 0,
        COORDINATOR_KEY: OFFICE,
        CONTROLS_KEY: 0,
    }


def test_replicas_go_to_live_normal_nodes_with_tokens_only() -> None:
    """S33: a node without tokens holds nothing."""
    nodes = (Node("a"), Node("b", tokens=False), Node("c"), Node("d", state="left"), Node("e"))
    agreed = world(live=("a", "b", "c", "d"), nodes=nodes)
    after = made(agreed, wanting(CREATE, partitions=50))
    holders = {r.node for p in after.topology.partitions.values() for r in p.replicas}
    assert holders == {"a", "c"}


def test_a_table_of_an_existing_zone_shares_its_layout() -> None:
    """F138: all that is stored of it is its own row, which names the zone: partitions, replicas and
    layout are the zone's. The zone is chosen when the table is made: to make it again in another
    one, or with other numbers than the zone has, is refused."""
    second = Request("r2", CreateTable(replace(ORDERS, name="lines", id="i2")))
    before = made(world(), CREATE)
    row, commit, after = answered(before, second)
    assert row.state == "done"
    stored = [change.record for change in commit.changes if isinstance(change, Put)]
    zone = before.topology.zones["orders"]
    assert stored == [zone, NamedTable("lines", "orders", "i2", b"columns"), row]
    assert after.topology.partitions == before.topology.partitions
    assert after.topology.layouts == before.topology.layouts
    assert after.intents == before.intents
    assert {table.zone for table in after.topology.tables.values()} == {"orders"}
    third = replace(second, id="r3")
    made(before, wanting(third, partitions=4, count=2, min_in_sync=2))
    for more in ({"partitions": 8}, {"count": 3}, {"min_in_sync": 1}):
        words = refused(before, wanting(third, **more))
        assert "but the zone orders has" in words
    elsewhere = NamedTable("lines", "elsewhere", "i3", b"columns")
    for table in (elsewhere, replace(elsewhere, id="i2")):
        again = Request("r4", CreateTable(table, partitions=1, count=1))
        assert "there is a table lines already" in refused(after, again)
    fifth = Request("r5", CreateTable(replace(elsewhere, name="x", id="i2")))
    words = refused(after, fifth)
    assert "the table id i2 is taken" in words


def test_another_table_of_a_zone_is_noticed_by_whoever_counted_its_tables() -> None:
    """Else the zone could be dropped with a table that was made meanwhile."""
    second = Request("r2", CreateTable(replace(ORDERS, name="lines", id="i2")))
    before = made(world(), CREATE)
    _, dropping, _ = answered(before, replace(DROP, id="r3"))
    after = made(before, second)
    assert dropping.guards[zone_key("orders")] != after.revision_of(zone_key("orders"))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (wanting(CREATE, table=replace(ORDERS, name="7up")), "'7up' is not a valid table name"),
        (wanting(CREATE, table=replace(ORDERS, name="a/b")), "'a/b' is not a valid table name"),
        (wanting(CREATE, table=replace(ORDERS, name="x" * 65)), "is not a valid table name"),
        (wanting(CREATE, table=replace(ORDERS, name="orders\n")), "is not a valid table name"),
        (wanting(CREATE, table=replace(ORDERS, zone="")), "'' is not a valid zone name"),
        (wanting(CREATE, partitions=0), "0 partitions"),
        (wanting(CREATE, partitions=10_001), "10001 partitions"),
        (wanting(CREATE, count=0), "0 replicas"),
        (wanting(CREATE, count=8), "8 replicas"),
        (wanting(CREATE, count=4), "4 replicas, but 3 data nodes are alive"),
        (wanting(CREATE, min_in_sync=3), "3 of 2 replicas in sync"),
        (wanting(CREATE, min_in_sync=-1), "-1 of 2 replicas in sync"),
    ],
)
def test_a_table_that_can_not_be_is_refused_with_advice(request_: Request, words: str) -> None:
    assert words in refused(world(), request_)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (CREATE, "there is a table orders already"),
        (wanting(CREATE, table=replace(ORDERS, name="x")), "the table id i1 is taken"),
        (
            wanting(CREATE, table=replace(ORDERS, name="x", id="i2"), partitions=5),
            "5 partitions, but the zone orders has 4",
        ),
        (
            wanting(CREATE, table=replace(ORDERS, name="x", id="i2"), count=3),
            "3 replicas, but the zone orders has 2",
        ),
        (
            wanting(CREATE, table=replace(ORDERS, name="x", id="i2"), min_in_sync=1),
            "1 replicas in sync at least, but the zone orders has 2",
        ),
    ],
)
def test_a_table_that_does_not_fit_what_is_there_is_refused(request_: Request, words: str) -> None:
    assert words in refused(made(world(), CREATE), replace(request_, id="r2"))


def test_more_replicas_than_the_nodes_should_hold_are_refused_with_the_number_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "NODE_REPLICAS_MAX", 10)
    more = wanting(CREATE, table=replace(ORDERS, name="x", zone="x", id="i2"))
    full = made(world(), wanting(CREATE, partitions=10, count=3))
    assert refused(full, replace(more, id="r2")) == (
        "4 partitions of 2 replicas: each of 3 nodes would hold 13, and may hold 10 (add nodes)"
    )
    nearly_full = made(world(), wanting(CREATE, partitions=9, count=3))
    why = refused(nearly_full, replace(more, id="r2"))
    assert "(ask for at most 1 partitions, or add nodes)" in why


# --- spread


@given(st.integers(1, 8), st.integers(1, 7), st.integers(1, 60))
def test_replicas_and_turns_to_own_are_spread_evenly(nodes: int, count: int, wanted: int) -> None:
    count = min(nodes, count)
    members = {f"n{number}": Node(f"n{number}") for number in range(nodes)}
    names = [f"p{number:02}" for number in range(wanted)]
    places = spread(count, members, names, ())
    held = [sum(Placement(node) in each for each in places.values()) for node in members]
    first = [sum(each[0].node == node for each in places.values()) for node in members]
    assert max(held) - min(held) <= 1
    assert max(first) - min(first) <= 1
    assert all(len(set(each)) == count for each in places.values())


EVERYWHERE = (
    *(Node(f"e{n}", datacenter="east", rack=f"r{n % 2}") for n in range(4)),
    *(Node(f"w{n}", datacenter="west", rack=f"r{n % 2}") for n in range(4)),
)
"""Two datacenters with two racks of two nodes each; racks of one name are not the same rack."""


@pytest.mark.parametrize(("count", "racks", "datacenters"), [(2, 2, 2), (3, 3, 2), (4, 4, 2)])
def test_a_new_table_is_spread_over_racks_and_datacenters(
    count: int, racks: int, datacenters: int
) -> None:
    """From the beginning, and not only by a later rebalance, which finds nothing to separate."""
    request = wanting(CREATE, count=count, partitions=16)
    agreed = world(nodes=EVERYWHERE, live=tuple(node.id for node in EVERYWHERE))
    row, _, after = answered(agreed, request)
    assert row.state == "done"
    nodes = after.topology.nodes
    held: Counter[str] = Counter()
    for record in after.topology.partitions.values():
        on = [nodes[replica.node] for replica in record.replicas]
        held.update(node.id for node in on)
        assert len({(node.datacenter, node.rack) for node in on}) == racks
        assert len({node.datacenter for node in on}) == datacenters
        assert max(Counter(node.datacenter for node in on).values()) <= (count + 1) // 2
    assert max(held.values()) - min(held.values()) <= 2
    plan = plan_rebalance(situation(seen(after)), Rules())
    assert isinstance(plan, Plan)
    assert [move for move in plan.moves if move.why == "racks"] == []


def test_a_rack_with_few_nodes_holds_one_replica_of_everything() -> None:
    """Racks are told apart before nodes are loaded evenly."""
    members = {name: Node(name, rack="full" if name != "d" else "other") for name in "abcd"}
    places = spread(2, members, ["p0", "p1", "p2"], ())
    assert all("d" in {each.node for each in at} for at in places.values())


def test_when_a_node_dies_its_partitions_go_to_more_than_one() -> None:
    members = {name: Node(name) for name in NODES}
    places = spread(3, members, [f"p{number}" for number in range(12)], ())
    heirs = {each[1].node for each in places.values() if each[0].node == "a"}
    assert heirs == {"b", "c"}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_many_small_tables_are_spread_too(count: int) -> None:
    agreed = world()
    for number in range(6):
        table = NamedTable(f"t{number}", f"t{number}", f"i{number}", b"")
        request = Request(f"r{number}", CreateTable(table, 1, count))
        agreed = made(agreed, request)
    records = agreed.topology.partitions.values()
    held = [replica.node for record in records for replica in record.replicas]
    first = [record.replicas[0].node for record in records]
    assert {held.count(node) for node in NODES} == {2 * count}
    assert {first.count(node) for node in NODES} == {2}


def test_the_volumes_of_a_node_are_used_in_turn() -> None:
    members = {"a": Node("a", volumes=("v1", "v2")), "b": Node("b")}
    places = spread(2, members, ["p0", "p1", "p2"], ())
    assert [next(e.volume for e in each if e.node == "a") for each in places.values()] == [
        "v1",
        "v2",
        "v1",
    ]
    assert {e.volume for each in places.values() for e in each if e.node == "b"} == {""}


# --- dropped


def test_the_last_table_goes_with_its_zone() -> None:
    row, commit, after = answered(made(world(), CREATE), replace(DROP, id="r2"))
    assert (row.state, row.answer) == ("done", "dropped with its zone orders")
    topology = after.topology
    stores = (topology.tables, topology.zones, topology.layouts, topology.partitions)
    assert stores == ({}, {}, {}, {})
    assert after.intents == {}
    for name in ("orders-0000", "orders-0003"):
        assert commit.guards[partition_key(name)] == TRIGGER + 1
        assert commit.guards[intent_key(name)] == TRIGGER + 1
    for key in (table_key("orders"), zone_key("orders"), layout_key("orders")):
        assert commit.guards[key] == TRIGGER + 1


def test_a_table_that_is_not_the_last_goes_alone() -> None:
    other = Request("r2", CreateTable(replace(ORDERS, name="lines", id="i2")))
    before = made(world(), CREATE, other)
    _, commit, after = answered(before, replace(DROP, id="r3"))
    assert list(after.topology.tables) == ["lines"]
    assert after.topology.partitions == before.topology.partitions
    _, twin, _ = answered(before, Request("r4", DropTable("lines", "i2")))
    assert zone_key("orders") in twin.guards
    assert put(commit.changes, Zone), "of two that are dropped at once one comes too late"


def test_a_table_that_was_made_again_is_not_dropped_by_who_saw_the_old_one() -> None:
    again = wanting(replace(CREATE, id="r3"), table=replace(ORDERS, id="i2"))
    agreed = made(world(), CREATE, replace(DROP, id="r2"), again)
    assert "dropped and created again" in refused(agreed, replace(DROP, id="r4"))
    assert "there is no table" in refused(world(), DROP)


def test_a_table_is_not_dropped_under_a_transition() -> None:
    replicas = (Replica("a", "c1"),)
    change = Transition("t9", "repair", "repair", replicas, "t9@1")
    record = Partition(
        "p", "z", WHOLE, replicas, replicas, 1, Grant(replicas[0], 11), transition=change
    )
    table = NamedTable("orders", "z", "i1", b"")
    agreed = world(Zone("z", 1), Layout("z", 1, (-(2**63),), ("p",)), record, table)
    assert "p of the table's zone is in a repair" in refused(agreed, DROP)
