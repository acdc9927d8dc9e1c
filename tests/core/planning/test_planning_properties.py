"""What holds of every plan, whatever the cluster looks like."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.model.topology import Node, Zone
from limosa.core.planning.board import Board
from limosa.core.planning.census import Census
from limosa.core.planning.load import Load
from limosa.core.planning.part import plan_part
from limosa.core.planning.plan import Impossible, Plan
from limosa.core.planning.rebalance import plan_drain, plan_rebalance
from limosa.core.planning.situation import Rules, Situation
from tests.core.planning.clusters import carried_out, held_by, made, partition, racks_of, situation

pytestmark = pytest.mark.thorough


@dataclass(frozen=True)
class Kind:
    """Which difficulties a cluster has."""

    racks: int = 3
    volumes: int = 2
    datacenters: bool = True
    down: bool = True
    draining: bool = True
    fixed: bool = True
    full: bool = False
    zones: int = 3


@st.composite
def clusters(draw: st.DrawFn, kind: Kind) -> Situation:
    names = [f"n{at}" for at in range(draw(st.integers(1, 7)))]
    members = {}
    for name in names:
        rack = f"r{draw(st.integers(1, kind.racks))}"
        where = draw(st.sampled_from(("east", "west"))) if kind.datacenters else ""
        volumes = ("one", "two", "three")[: draw(st.integers(1, kind.volumes))]
        members[name] = Node(name, rack=rack, datacenter=where, volumes=volumes)
    zones = [
        Zone(
            f"z{at}",
            draw(st.integers(1, min(3, len(names)))),
            datacenters=draw(st.sampled_from(((), ("east",)))) if kind.datacenters else (),
        )
        for at in range(draw(st.integers(1, kind.zones)))
    ]
    records, loads = [], {}
    for at in range(draw(st.integers(0, 25))):
        zone = draw(st.sampled_from(zones))
        held = draw(st.permutations(names))[: zone.replica_count]
        records.append(partition(f"p{at}", *held, zone=zone.id, volume="one"))
        size = draw(st.sampled_from((0, 1, 10, 10, 10, 50, 200)))
        loads[f"p{at}"] = Load(size, draw(st.integers(0, 5)), draw(st.integers(0, 5)))
    some = st.lists(st.sampled_from(names), max_size=2, unique=True)
    sizes = st.fixed_dictionaries({name: st.integers(0, 900) for name in ("one", "two", "three")})
    return situation(
        members,
        records,
        loads,
        zones,
        down=draw(some) if kind.down else (),
        draining=draw(some) if kind.draining else (),
        free_bytes={name: draw(sizes) for name in names} if kind.full else {},
        fixed={"p0": "pinned", "p3": "pinned"} if kind.fixed else {},
    )


ANY = clusters(Kind())
FULL = clusters(Kind(full=True))
SOUND = clusters(Kind(down=False, draining=False, fixed=False, datacenters=False))
FLAT = clusters(Kind(racks=1, down=False, draining=False, fixed=False, datacenters=False))
MANY = settings(max_examples=100, deadline=None)


def open_nodes(found: Situation, zone: str) -> set[str]:
    wanted = found.zones[zone].datacenters
    return {
        name
        for name, node in found.nodes.items()
        if name in found.live
        and name not in found.draining
        and (not wanted or node.datacenter in wanted)
    }


def squares(found: Situation) -> int:
    """The more even, the less."""
    return sum(int(each) ** 2 for each in Board(Census(found, Rules())).load)


@MANY
@given(st.one_of(ANY, FULL))
def test_nothing_goes_where_it_may_not(found: Situation) -> None:
    """S87: never to a node that is down, drained or not the zone's; never two replicas together;
    never fewer racks; and nothing of what can't be moved."""
    for plan in (plan_rebalance(found), plan_drain(found)):
        if isinstance(plan, Impossible):
            continue
        after = carried_out(found, plan)
        fixed = {each.partition for each in plan.skipped if "share a rack" not in each.why}
        for move in plan.moves:
            assert move.partition not in fixed
            assert move.stays or move.target.node in open_nodes(
                found, found.partitions[move.partition].zone
            )
            assert move.target.volume in found.nodes[move.target.node].volumes
        for name, record in after.partitions.items():
            assert len({each.node for each in record.replicas}) == len(record.replicas)
            assert len(racks_of(after, name)) >= len(racks_of(found, name))


@MANY
@given(FULL)
def test_what_comes_has_room(found: Situation) -> None:
    """All that comes to a volume needs 1.2 times its bytes, before anything has left."""
    for plan in (plan_rebalance(found), plan_drain(found)):
        if isinstance(plan, Impossible):
            continue
        coming: Counter[tuple[str, str]] = Counter()
        for move in plan.moves:
            coming[move.target.node, move.target.volume] += move.bytes
        assert {
            (each.place.node, each.place.volume): each.bytes for each in plan.arrivals
        } == coming
        for (node, volume), size in coming.items():
            assert size * 1.2 <= found.free_bytes[node][volume]


@MANY
@given(ANY)
def test_a_plan_that_was_carried_out_leaves_nothing_to_plan(found: Situation) -> None:
    """Nothing goes to and fro."""
    plan = plan_rebalance(found)
    if isinstance(plan, Plan):
        again = made(plan_rebalance(carried_out(found, plan)))
        assert again.moves == ()


@settings(max_examples=50, deadline=None)
@given(FULL)
def test_where_room_is_scarce_planning_comes_to_an_end(found: Situation) -> None:
    """What leaves makes room, so that more can go; but not for ever."""
    for _ in range(12):
        plan = plan_rebalance(found)
        if isinstance(plan, Impossible) or not plan.moves:
            return
        found = carried_out(found, plan)
    raise AssertionError("it did not end")


@MANY
@given(st.one_of(ANY, FULL))
def test_a_drain_empties_its_nodes_or_says_why_not(found: Situation) -> None:
    """S90: no plan leaves something behind silently."""
    for plan in (plan_drain(found), plan_rebalance(found)):
        if isinstance(plan, Impossible):
            assert plan.unplaced
            assert {each.node for each in plan.unplaced} <= set(found.draining)
            assert all(each.why for each in plan.unplaced)
            continue
        after = carried_out(found, plan)
        told = {(each.partition, node) for each in plan.skipped for node in each.left_on}
        left = {(name, node) for node in found.draining for name in held_by(after, node)}
        assert left == told
        assert plan.empties == (not left)


@MANY
@given(ANY)
def test_a_drain_moves_only_what_must_go(found: Situation) -> None:
    plan = plan_drain(found)
    if isinstance(plan, Plan):
        assert {move.source for move in plan.moves} <= set(found.draining)
        leaving = sum(len(held_by(found, node)) for node in found.draining)
        assert len(plan.moves) <= leaving


@MANY
@given(SOUND)
def test_replicas_are_in_as_many_racks_as_there_are(found: Situation) -> None:
    after = carried_out(found, made(plan_rebalance(found)))
    racks = len({node.rack for node in found.nodes.values()})
    for name, record in after.partitions.items():
        assert len(racks_of(after, name)) == min(racks, len(record.replicas))


@MANY
@given(FLAT)
def test_a_zone_uses_every_node_before_it_uses_one_twice(found: Situation) -> None:
    after = carried_out(found, made(plan_rebalance(found)))
    for zone in found.zones:
        held = Counter(
            replica.node
            for record in after.partitions.values()
            if record.zone == zone
            for replica in record.replicas
        )
        assert max(held.values(), default=0) < 2 or len(held) == len(found.nodes)


@MANY
@given(FLAT)
def test_each_move_for_load_makes_it_more_even_and_empties_nobody(found: Situation) -> None:
    """F69 (D5): who stays a member keeps something; the most that a node has never grows."""
    plan = made(plan_rebalance(found))
    if {move.why for move in plan.moves} - {"load"}:
        return
    after = carried_out(found, plan)
    assert (squares(after) < squares(found)) if plan.moves else (after == found)
    assert plan.after.load <= plan.before.load
    for name in found.nodes:
        assert bool(held_by(after, name)) or not held_by(found, name)


@MANY
@given(ANY)
def test_a_replica_is_moved_at_most_once(found: Situation) -> None:
    plan = plan_rebalance(found)
    if isinstance(plan, Plan):
        made_once = Counter((move.partition, move.source) for move in plan.moves)
        assert set(made_once.values()) <= {1}


@settings(max_examples=50, deadline=None)
@given(ANY)
def test_the_same_cluster_gets_the_same_plan(found: Situation) -> None:
    """In whatever order its records come."""
    turned = replace(
        found,
        nodes=dict(reversed([*found.nodes.items()])),
        zones=dict(reversed([*found.zones.items()])),
        partitions=dict(reversed([*found.partitions.items()])),
    )
    assert plan_rebalance(turned) == plan_rebalance(found)


@MANY
@given(st.one_of(ANY, FULL), st.data())
def test_a_part_of_a_plan_tells_what_it_alone_leads_to(
    found: Situation, data: st.DataObject
) -> None:
    """F59: it can be carried out, brings no two replicas together, and its figures are true."""
    whole = plan_rebalance(found)
    if isinstance(whole, Impossible):
        return
    nodes = data.draw(st.sets(st.sampled_from(sorted(found.nodes))))
    wanted = [move for move in whole.moves if move.target.node in nodes]
    part = plan_part(found, wanted)
    assert set(part.moves) <= set(wanted)
    after = carried_out(found, part)
    assert plan_part(after, []).after == part.after
    assert part.before == whole.before
    for name in after.partitions:
        assert len(racks_of(after, name)) >= len(racks_of(found, name))
    all_of_it = plan_part(found, whole.moves)
    assert (set(all_of_it.moves), all_of_it.after) == (set(whole.moves), whole.after)
