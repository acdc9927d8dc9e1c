"""How nodes are emptied, and when that is refused."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.model.topology import Node, Transition, Zone
from limosa.core.planning.load import Load
from limosa.core.planning.plan import Impossible, Plan
from limosa.core.planning.rebalance import plan_drain, plan_rebalance
from limosa.core.planning.situation import Situation
from tests.core.planning.clusters import (
    ZONE,
    carried_out,
    counts,
    even,
    held_by,
    made,
    nodes,
    partition,
    racks_of,
    situation,
)

ONE = [Zone(ZONE, 1)]


def refused(found: Situation) -> str:
    answers = {str(plan_drain(found)), str(plan_rebalance(found))}
    assert isinstance(plan_drain(found), Impossible)
    (words,) = answers
    return words


@given(st.integers(2, 7), st.integers(1, 20), st.integers(1, 3))
def test_drained_nodes_end_with_nothing_and_the_others_stay_even(
    count: int, each: int, drained: int
) -> None:
    """All that a leaving node holds gets another place; nothing is left behind."""
    names = [f"n{at}" for at in range(count)]
    leaving = names[: min(drained, count - 1)]
    found = replace(even(nodes(*names), each), draining=leaving)
    plan = made(plan_drain(found))
    after = counts(carried_out(found, plan))
    assert {move.source for move in plan.moves} == set(leaving)
    assert all(after[name] == 0 for name in leaving)
    staying = [after[name] for name in names if name not in leaving]
    assert max(staying) - min(staying) <= 1
    assert plan.empties
    assert made(plan_drain(carried_out(found, plan))).moves == ()


def test_a_drain_moves_nothing_else_and_a_rebalance_drains_first() -> None:
    records = [partition(f"p{at}", "a") for at in range(10)] + [partition("q", "c")]
    found = situation(nodes("a", "b", "c"), records, zones=ONE, draining=["c"])
    assert [move.partition for move in made(plan_drain(found)).moves] == ["q"]
    moves = made(plan_rebalance(found)).moves
    assert (moves[0].partition, moves[0].why) == ("q", "drain")
    assert {move.why for move in moves[1:]} == {"load"}


def test_one_source_has_many_targets() -> None:
    found = replace(even(nodes("a", "b", "c", "d"), 9), draining=["a"])
    plan = made(plan_drain(found))
    assert sorted(move.target.node for move in plan.moves) == ["b"] * 3 + ["c"] * 3 + ["d"] * 3


def test_the_last_node_cant_be_drained() -> None:
    for leaving in (["a"], ["a", "b"]):
        found = replace(even(nodes(*leaving), 3), draining=leaving)
        assert "no other node may hold data of z: let one join first" in refused(found)


def test_too_few_nodes_are_refused_with_the_reason() -> None:
    """S90: no target is an error, not an empty plan."""
    records = [partition("p", "a", "b", "c"), partition("q", "a", "b", "c")]
    found = situation(nodes("a", "b", "c"), records, draining=["a"])
    words = refused(found)
    assert "3 replicas need as many nodes, and only 2 that live would be left for z" in words
    assert words.startswith("a can't be drained")
    assert "(p and 1 more)" in words


def test_the_last_node_of_a_rack_that_is_needed_cant_be_drained() -> None:
    """S93: replicas would be in fewer racks."""
    members = nodes("a", "b", "c", "d", racks="rsts")
    found = situation(members, [partition("p", "a", "b", "c")], draining=["c"])
    assert "rack 't'" in refused(found)
    assert "fewer racks" in refused(found)
    wider = replace(
        found,
        nodes={**members, "e": Node("e", rack="t"), "f": Node("f", rack="u")},
        live={*members, "e", "f"},
    )
    after = carried_out(wider, made(plan_drain(wider)))
    assert racks_of(after, "p") == {"r": 1, "s": 1, "t": 1} or "u" in racks_of(after, "p")


def test_a_drain_prefers_racks_without_a_replica() -> None:
    members = nodes("a", "b", "c", "d", racks="rrrs")
    others = [partition("q", "d"), partition("s", "d")]
    zones = [Zone(ZONE, 2)]
    found = situation(members, [partition("p", "a", "b"), *others], zones=zones, draining=["a"])
    (move,) = made(plan_drain(found)).moves
    assert move.target.node == "d"


def test_a_drain_prefers_nodes_without_anything_of_the_zone() -> None:
    zones = [Zone("y", 1), Zone("z", 1)]
    records = [partition("z1", "a"), partition("z2", "b"), partition("y1", "c", zone="y")]
    loads = {"y1": Load(1_000)}
    found = situation(nodes("a", "b", "c"), records, loads, zones, draining=["a"])
    (move,) = made(plan_drain(found)).moves
    assert move.target.node == "c"


def test_a_drain_fails_if_only_nodes_that_are_down_could_take_it() -> None:
    """S87: nothing goes to a node that is down."""
    found = replace(even(nodes("a", "b"), 3), draining=["a"], live={"a"})
    words = refused(
        replace(
            found,
            partitions={
                name: record
                for name, record in found.partitions.items()
                if record.replicas[0].node == "a"
            },
        )
    )
    assert "only nodes that are down could take it, like b: start one" in words


def test_a_drain_does_not_overload_the_one_node_that_lives() -> None:
    """S87: it fails, with the reason, rather than to fill the only live node beyond its room."""
    records = [partition(f"p{at}", "a") for at in range(4)]
    loads = {record.id: Load(100) for record in records}
    members = nodes("a", "b", "down")
    small = situation(members, records, loads, ONE, ["down"], ["a"], free_bytes={"b": {"": 300}})
    assert "no node has 120 bytes free for it" in refused(small)
    large = replace(small, free_bytes={"b": {"": 480}})
    assert len(made(plan_drain(large)).moves) == 4


def test_a_node_that_is_down_cant_be_drained() -> None:
    """S92, S90: waiting would not help."""
    found = replace(even(nodes("a", "b"), 2), draining=["a"], live={"b"})
    assert "it is down, so nothing can be moved from it" in refused(found)
    empty = replace(found, partitions={})
    assert made(plan_drain(empty)).moves == ()


def test_a_drain_that_must_wait_for_something_is_not_complete() -> None:
    """The plan says what is left behind, so that nobody goes on without it."""
    stuck = replace(partition("q", "a"), transition=Transition("t", "move", "streaming", ()))
    found = situation(nodes("a", "b"), [partition("p", "a"), stuck], zones=ONE, draining=["a"])
    for plan in (plan_drain(found), plan_rebalance(found)):
        assert isinstance(plan, Plan)
        assert [move.partition for move in plan.moves] == ["p"]
        assert [(each.partition, each.left_on) for each in plan.skipped] == [("q", ("a",))]
        assert not plan.empties


def test_two_replicas_of_a_partition_leave_at_once() -> None:
    found = situation(nodes("a", "b", "c", "d"), [partition("p", "a", "b")], zones=[Zone(ZONE, 2)])
    found = replace(found, draining=["a", "b"])
    after = carried_out(found, made(plan_drain(found)))
    assert held_by(after, "c") == held_by(after, "d") == ["p"]
