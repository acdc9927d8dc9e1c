"""What is moved so that nodes become even, and what is left alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.model.intent import Placement
from limosa.core.model.topology import Node, Partition, Transition, Zone
from limosa.core.planning.load import Load, Weights
from limosa.core.planning.part import plan_part
from limosa.core.planning.plan import Arrival, Move, Plan, TooLarge
from limosa.core.planning.rebalance import plan_rebalance
from limosa.core.planning.situation import Rules, Situation
from tests.core.planning.clusters import (
    ZONE,
    bytes_on,
    carried_out,
    counts,
    even,
    held_by,
    made,
    nodes,
    partition,
    racks_of,
    situation,
    with_node,
)

ONE = [Zone(ZONE, 1)]


def planned(found: Situation, rules: Rules | None = None) -> Plan:
    return made(plan_rebalance(found, rules))


def sized(members: dict[str, Node], sizes: dict[str, list[int]], **more: object) -> Situation:
    """One partition of each size, one replica each."""
    held = {f"{node}{at}": (node, size) for node in sizes for at, size in enumerate(sizes[node])}
    records = [partition(name, node) for name, (node, _) in held.items()]
    loads = {name: Load(size) for name, (_, size) in held.items()}
    return situation(members, records, loads, ONE, **more)  # type: ignore[arg-type]


BYTES_ONLY = Rules(weights=Weights(replicas=0.0))


# ---------------------------------------------------------------- little is moved


@given(st.integers(1, 8), st.integers(1, 40))
def test_of_an_even_cluster_the_plan_is_empty(count: int, each: int) -> None:
    found = even(nodes(*(f"n{at}" for at in range(count))), each)
    plan = planned(found)
    assert plan.moves == ()
    assert plan.skipped == ()
    assert plan.before == plan.after


@given(st.integers(1, 8), st.integers(1, 40))
def test_a_new_node_gets_its_share_of_equal_partitions_and_nothing_else_moves(
    count: int, each: int
) -> None:
    """F59: adding node N+1 moves 1/(N+1) of the ranges, all of them to the new node."""
    before = even(nodes(*(f"n{at}" for at in range(count))), each)
    found = with_node(before, Node("new", rack="r"))
    plan = planned(found)
    share = count * each / (count + 1)
    assert {move.target.node for move in plan.moves} <= {"new"}
    assert share - 1 <= len(plan.moves) <= share + 1
    after = counts(carried_out(found, plan))
    assert max(after.values()) - min(after.values()) <= 2


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**32))
def test_a_new_node_gets_its_share_of_the_load_and_hardly_anything_else_moves(
    count: int, seed: int
) -> None:
    """F59, by load. A crumb may even out what two nodes gave too much."""
    sizes = np.random.default_rng(seed).integers(100, 300, 180).tolist()
    names = [f"n{at}" for at in range(count)]
    before = sized(nodes(*names), {name: sizes[at::count] for at, name in enumerate(names)})
    before = carried_out(before, planned(before))
    found = with_node(before, Node("new", rack="r"))
    plan = planned(found)
    to_new = sum(move.bytes for move in plan.moves if move.target.node == "new")
    assert to_new >= 0.95 * plan.bytes
    assert plan.bytes == pytest.approx(sum(sizes) / (count + 1), rel=0.05)


def test_a_difference_that_is_not_worth_a_move_stays() -> None:
    """A move must bring more than it costs."""
    found = sized(nodes("a", "b"), {"a": [100] * 51, "b": [100] * 50})
    assert planned(found).moves == ()
    assert planned(found, Rules(tolerance=0.0, worth=0.0)).moves == ()
    uneven = sized(nodes("a", "b"), {"a": [100] * 54, "b": [100] * 50})
    assert len(planned(uneven).moves) == 2


def test_the_order_of_two_nodes_is_never_turned_around() -> None:
    """One partition is moved to nobody: its new node would only be what its old one was."""
    assert planned(sized(nodes("a", "b"), {"a": [900], "b": []})).moves == ()
    assert planned(sized(nodes("a", "b"), {"a": [900, 100], "b": []})).moves != ()


def test_a_node_gives_what_it_has_in_excess_in_few_moves() -> None:
    """The largest partition that fits goes, not many small ones."""
    found = sized(nodes("a", "b"), {"a": [200, 1_000, *[10] * 100], "b": [1_000, *[10] * 80]})
    plan = planned(found, BYTES_ONLY)
    assert [move.partition for move in plan.moves] == ["a0"]


# ---------------------------------------------------------------- what load is


def test_bytes_are_evened_out_also_where_counts_are_even() -> None:
    found = sized(nodes("a", "b"), {"a": [900] * 10, "b": [100] * 10})
    after = carried_out(found, planned(found, BYTES_ONLY))
    assert max(bytes_on(after).values()) <= 1.2 * min(bytes_on(after).values())


def test_empty_partitions_are_spread_by_their_number() -> None:
    records = [partition(f"p{at}", "a") for at in range(20)]
    found = situation(nodes("a", "b"), records, zones=ONE)
    plan = planned(found)
    assert counts(carried_out(found, plan)) == {"a": 10, "b": 10}
    assert (plan.bytes, plan.before.replicas, plan.after.replicas) == (0, 2.0, 1.0)


def test_writes_load_every_replica_and_reads_the_owner() -> None:
    """The owner's replica of what is read goes, not its follower's."""
    records = [partition(f"p{at}", "a", "b") for at in range(8)]
    loads = {record.id: Load(reads=10.0) for record in records}
    found = situation(nodes("a", "b", "c"), records, loads, [Zone(ZONE, 2)])
    weights = Weights(replicas=0.0)
    plan = planned(found, Rules(weights=weights))
    assert {move.source for move in plan.moves} == {"a"}
    assert plan.before.reads == 3.0
    assert plan.after.reads == 1.5
    written = replace(found, loads={record.id: Load(writes=10.0) for record in records})
    plan = planned(written, Rules(weights=weights))
    assert {move.source for move in plan.moves} == {"a", "b"}
    assert plan.before.writes == 1.5


def test_partitions_larger_or_hotter_than_a_fair_share_are_named() -> None:
    records = [partition(f"p{at}", "ab"[at % 2]) for at in range(6)]
    loads = {record.id: Load(100, 1.0, 1.0) for record in records}
    loads["p0"] = Load(1_000, 1.0, 50.0)
    plan = planned(situation(nodes("a", "b"), records, loads, ONE))
    assert plan.too_large == (
        TooLarge("p0", "bytes", 1_000.0, 750.0),
        TooLarge("p0", "reads", 50.0, 27.5),
    )


def test_the_rest_is_evened_out_around_a_partition_that_is_too_large() -> None:
    """It has a node for itself, and the others share the rest."""
    found = sized(nodes("a", "b", "c"), {"a": [5_000, *[100] * 20], "b": [100] * 20, "c": []})
    after = bytes_on(carried_out(found, planned(found, BYTES_ONLY)))
    assert after["a"] <= 5_200
    assert after["b"] == pytest.approx(after["c"], rel=0.1)


def test_partitions_change_places_where_none_could_go_alone() -> None:
    found = sized(nodes("a", "b"), {"a": [500, 400], "b": [300, 200]})
    plan = planned(found, BYTES_ONLY)
    assert bytes_on(carried_out(found, plan)) == {"a": 700, "b": 700}
    assert len(plan.moves) == 2


# ---------------------------------------------------------------- racks, zones, volumes


def test_replicas_leave_a_rack_that_has_two_of_them() -> None:
    """Racks come first, also if that is less even."""
    members = nodes("a", "b", "c", racks="rrs")
    found = situation(members, [partition("p", "a", "b")], zones=[Zone(ZONE, 2)])
    plan = planned(found)
    assert [(move.target.node, move.why) for move in plan.moves] == [("c", "racks")]
    assert racks_of(carried_out(found, plan), "p") == {"r": 1, "s": 1}


def test_racks_that_are_too_few_are_used_as_well_as_possible() -> None:
    members = nodes("a", "b", "c", "d", racks="rrrs")
    found = situation(members, [partition("p", "a", "b", "c")])
    plan = planned(found)
    assert racks_of(carried_out(found, plan), "p") == {"r": 2, "s": 1}
    assert plan.skipped == ()


def test_a_rack_without_room_is_told_and_blocks_nothing_else() -> None:
    members = nodes("a", "b", "c", racks="rrs")
    records = [partition("p", "a", "b"), partition("q", "a", "b")]
    loads = {"p": Load(10), "q": Load(1_000)}
    found = situation(members, records, loads, [Zone(ZONE, 2)], free_bytes={"c": {"": 100}})
    plan = planned(found)
    assert [move.partition for move in plan.moves] == ["p"]
    (skipped,) = plan.skipped
    assert skipped.partition == "q"
    assert "share a rack" in skipped.why


def test_load_never_brings_two_replicas_into_one_rack() -> None:
    members = nodes("a", "b", "c", "d", racks="rrss")
    records = [partition(f"p{at}", "a", "c") for at in range(10)]
    found = situation(members, records, zones=[Zone(ZONE, 2)])
    after = carried_out(found, planned(found))
    assert counts(after) == {"a": 5, "b": 5, "c": 5, "d": 5}
    assert all(racks_of(after, record.id) == {"r": 1, "s": 1} for record in records)


def test_racks_of_unequal_size_are_even_inside() -> None:
    """A fair share is out of reach where one rack must hold a replica of everything."""
    members = nodes("a", "b", "c", racks="rrs")
    records = [partition(f"p{at}", "a", "c") for at in range(10)]
    found = situation(members, records, zones=[Zone(ZONE, 2)])
    assert counts(carried_out(found, planned(found))) == {"a": 5, "b": 5, "c": 10}


def test_a_zone_uses_every_node_before_it_uses_one_twice() -> None:
    """Also if load is even."""
    members = nodes("a", "b")
    zones = [Zone("y", 1), Zone("z", 1)]
    records = [partition("y1", "a", zone="y"), partition("y2", "a", zone="y")]
    records += [partition("z1", "b", zone="z"), partition("z2", "b", zone="z")]
    found = situation(members, records, zones=zones)
    plan = planned(found)
    after = carried_out(found, plan)
    assert {move.why for move in plan.moves} == {"zone"}
    on_a = [after.partitions[name].zone for name in held_by(after, "a")]
    assert sorted(on_a) == ["y", "z"]
    assert planned(after).moves == ()


def test_load_does_not_put_a_zones_partitions_together() -> None:
    """b is hot, but c, the least loaded, has one of the zone already."""
    zones = [Zone("y", 1), Zone("z", 1)]
    records = [partition("z1", "b"), partition("z2", "c"), partition("y1", "b", zone="y")]
    loads = {"z1": Load(10), "y1": Load(1_000), "z2": Load(1)}
    found = situation(nodes("b", "c"), records, loads, zones)
    moved = [move.partition for move in planned(found, BYTES_ONLY).moves]
    assert "z1" not in moved


def test_a_zone_that_cant_use_another_node_stays() -> None:
    """Its second replica would be beside the first, or in its rack; or it can't be moved."""
    members = nodes("a", "b", "c", racks="rst")
    records = [partition("p", "a", "b"), partition("q", "a", "b")]
    fixed = {"p": "by hand", "q": "by hand"}
    found = situation(members, records, zones=[Zone(ZONE, 2)], fixed=fixed)
    assert planned(found).moves == ()
    full = situation(
        members,
        records,
        {"p": Load(10), "q": Load(10)},
        [Zone(ZONE, 2)],
        free_bytes={"c": {"": 0}},
    )
    assert planned(full).moves == ()


def test_zones_use_only_nodes_of_their_datacenters() -> None:
    members = {
        name: Node(name, datacenter=where) for name, where in zip("abcd", "eeww", strict=True)
    }
    zones = [Zone("e", 1, datacenters=("e",)), Zone("all", 1)]
    records = [partition(f"e{at}", "a", zone="e") for at in range(8)]
    records += [partition(f"x{at}", "a", zone="all") for at in range(24)]
    found = situation(members, records, zones=zones)
    after = carried_out(found, planned(found))
    assert counts(after) == {"a": 8, "b": 8, "c": 8, "d": 8}
    assert {each.replicas[0].node for each in after.partitions.values() if each.zone == "e"} == {
        "a",
        "b",
    }


def test_the_volumes_of_a_node_become_even() -> None:
    members = nodes("a", volumes=("one", "two"))
    records = [partition(f"p{at}", "a", volume="one") for at in range(10)]
    loads = {record.id: Load(100) for record in records}
    found = situation(members, records, loads, ONE)
    plan = planned(found)
    assert {(move.source, move.target, move.why, move.stays) for move in plan.moves} == {
        ("a", Placement("a", "two"), "volumes", True)
    }
    assert len(plan.moves) == 5
    assert plan.arrivals == (Arrival(Placement("a", "two"), 500),)
    full = replace(found, free_bytes={"a": {"two": 250}})
    assert len(planned(full).moves) == 2


def test_what_comes_goes_to_the_volume_with_the_least_load_that_has_room() -> None:
    members = {**nodes("a"), **nodes("b", volumes=("one", "two", "three"))}
    records = [partition(f"p{at}", "a") for at in range(8)]
    loads = {record.id: Load(100) for record in records}
    free = {"b": {"one": 10_000, "two": 10_000, "three": 100}}
    plan = planned(situation(members, records, loads, ONE, free_bytes=free))
    assert sorted(move.target.volume for move in plan.moves) == ["one", "one", "two", "two"]
    assert [each.bytes for each in plan.arrivals] == [200, 200]


def test_nothing_goes_to_a_volume_that_its_node_no_longer_has() -> None:
    members = nodes("a", "b", volumes=("new",))
    records = [partition(f"p{at}", "a", volume="gone") for at in range(4)]
    plan = planned(situation(members, records, {}, ONE))
    assert {move.target.volume for move in plan.moves} == {"new"}


# ---------------------------------------------------------------- what stays


def changing(record: Partition) -> Partition:
    return replace(record, transition=Transition("t", "move", "streaming", ()))


def test_what_cant_be_moved_is_named_and_blocks_nothing() -> None:
    """It is changing, a node of it is down, it has no owner, is not in sync, or was pinned."""
    records = [partition(f"p{at}", "a") for at in range(8)]
    stuck = [
        changing(partition("q1", "a")),
        partition("q2", "a", "down"),
        replace(partition("q3", "a"), owner=None),
        replace(partition("q4", "a"), in_sync=()),
        partition("q5", "a"),
    ]
    found = situation(
        nodes("a", "b", "down"),
        [*records, *stuck],
        zones=ONE,
        down=["down"],
        fixed={"q5": "it was pinned"},
    )
    plan = planned(found)
    assert {move.target.node for move in plan.moves} == {"b"}
    assert len(plan.moves) == 6
    assert [(each.partition, each.why.split(",")[0]) for each in plan.skipped] == [
        ("q1", "it is changing already: move"),
        ("q2", "down"),
        ("q3", "it has no owner at the moment"),
        ("q4", "not all of its replicas are in sync"),
        ("q5", "it was pinned"),
    ]
    assert plan.empties


def test_nothing_goes_to_nodes_that_are_down_leaving_or_hold_no_data() -> None:
    """F88: a node that holds no data by choice never gets a replica."""
    members = {
        **nodes("a", "b", "down"),
        "none": Node("none", tokens=False),
        "left": Node("left", state="left"),
    }
    records = [partition(f"p{at}", "a") for at in range(9)]
    plan = planned(situation(members, records, zones=ONE, down=["down"]))
    assert {move.target.node for move in plan.moves} == {"b"}
    lone = situation(nodes("a", "down"), records, zones=ONE, down=["down"])
    assert planned(lone).moves == ()


def test_only_as_much_goes_to_a_node_as_it_has_room_for() -> None:
    """A replica needs 1.2 times its bytes, and what is to stay free is not counted."""
    found = sized(nodes("a", "b"), {"a": [100] * 10, "b": []}, free_bytes={"b": {"": 400}})
    assert len(planned(found).moves) == 3
    assert len(planned(found, Rules(free_bytes_kept=200)).moves) == 1
    assert planned(found).arrivals == (Arrival(Placement("b"), 300),)


def test_a_cluster_without_anything_needs_nothing() -> None:
    assert planned(situation({}, [], zones=[])) == Plan()
    assert planned(situation(nodes("a"), [], zones=[])) == Plan()


def test_a_move_says_what_why_and_where_to() -> None:
    found = sized(nodes("a", "b"), {"a": [100, 100], "b": []})
    (move,) = planned(found).moves
    assert move == Move("a1", "a", Placement("b"), 100, "load")
    assert not move.stays


def test_a_move_that_needs_another_is_not_made_without_it() -> None:
    """F59: `b` takes a replica only once its other one has left; the order does not matter."""
    found = situation(nodes("a", "b", "c"), [partition("p", "a", "b")])
    leaves = Move("p", "b", Placement("c"), 0, "load")
    comes = Move("p", "a", Placement("b"), 0, "load")
    assert plan_part(found, [comes]).moves == ()
    assert plan_part(found, [comes, leaves]).moves == (leaves, comes)
