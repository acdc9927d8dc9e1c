"""Tables that come and go while a cluster runs."""

from collections import Counter
from math import ceil

import pytest

from limosa.core.model.changes import Commit, Put
from limosa.core.model.requests import CreateTable, DropTable, Request
from limosa.core.model.topology import NamedTable
from limosa.simulation.world import World, WorldShape

ORDERS = NamedTable("orders", "orders", "i1", b"columns")
CREATE = Request("create", CreateTable(ORDERS, 6, 2))


def asked(world: World, request: Request, seconds: float = 5.0) -> Request:
    world.commit(Commit({}, (Put(request),), "asked"), "operator")
    world.run_until(world.now + seconds)
    answer = world.agreed.requests[request.id]
    assert answer.state == "done", answer.answer
    return answer


def owners(world: World) -> list[str]:
    records = world.agreed.topology.partitions.values()
    mine = [record for record in records if record.zone == "orders"]
    assert all(record.owner is not None for record in mine)
    return [record.owner.replica.node for record in mine if record.owner is not None]


def held(world: World) -> list[tuple[str, str, str]]:
    """What is on disks of the table's partitions: node, partition, incarnation."""
    return sorted(
        (name, partition, incarnation)
        for name, node in world.nodes.items()
        for partition, incarnation in node.disk.live
        if partition.startswith("orders")
    )


def test_a_new_table_is_served_by_all_nodes_and_a_dropped_one_leaves_nothing() -> None:
    """F140: and the table that is made again is another one."""
    world = World(11, WorldShape(nodes=3, replicas=2, partitions=1))
    world.run_until(2)
    asked(world, CREATE)
    assert sorted(owners(world)) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    first = held(world)
    assert len(first) == 12
    asked(world, Request("drop", DropTable("orders", "i1")))
    assert held(world) == []
    again = NamedTable("orders", "orders", "i2", b"columns")
    asked(world, Request("again", CreateTable(again, 6, 2)))
    assert sorted(owners(world)) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    second = held(world)
    assert len(second) == 12
    assert {incarnation for *_, incarnation in first}.isdisjoint(
        incarnation for *_, incarnation in second
    )
    assert not world.violations


@pytest.mark.parametrize(
    ("nodes", "partitions", "count"), [(3, 3, 1), (3, 3, 2), (4, 4, 3), (5, 7, 2), (4, 10, 3)]
)
def test_owners_and_followers_are_on_distinct_nodes_before_a_node_gets_a_second_one(
    nodes: int, partitions: int, count: int
) -> None:
    """F43: nobody owns or holds two more than another node. Three partitions on three nodes have
    three owners; the loss of a node takes the owner of one in so many partitions, rounded up."""
    world = World(11, WorldShape(nodes=nodes, replicas=1, partitions=1))
    world.run_until(2)
    create = Request("create", CreateTable(ORDERS, partitions, count))
    asked(world, create)
    before = owners(world)
    holders = [node for node, *_ in held(world)]
    followers = list((Counter(holders) - Counter(before)).elements())
    assert len(followers) == partitions * (count - 1)
    for places in (before, holders, followers):
        each = [places.count(node) for node in world.nodes]
        assert max(each) - min(each) <= 1
    world.nodes["n1"].crash()
    world.run_until(world.now + 10)
    hit = [name for name in before if name == "n1"]
    assert 1 <= len(hit) <= ceil(partitions / nodes)
    if count > 1:
        after = owners(world)
        assert [was for was, now in zip(before, after, strict=True) if was != now] == hit
    assert not world.violations


def test_when_a_node_dies_its_partitions_are_owned_by_more_than_one() -> None:
    world = World(12, WorldShape(nodes=3, replicas=3, partitions=1))
    world.run_until(2)
    asked(world, Request("create", CreateTable(ORDERS, 12, 3)))
    before = owners(world)
    world.nodes["n1"].crash()
    world.run_until(world.now + 10)
    heirs = {now for was, now in zip(before, owners(world), strict=True) if was == "n1"}
    assert heirs == {"n2", "n3"}
    assert not world.violations


def test_a_table_that_is_dropped_and_made_again_at_once_begins_empty() -> None:
    """Nodes may see both at once: what they held is of another incarnation."""
    world = World(13, WorldShape(nodes=3, replicas=2, partitions=1))
    world.run_until(2)
    asked(world, CREATE)
    before = held(world)
    drop = Request("drop", DropTable("orders", "i1"))
    table = NamedTable("orders", "orders", "i2", b"columns")
    again = Request("again", CreateTable(table, 6, 2))
    for request in (drop, again):
        world.commit(Commit({}, (Put(request),), "asked"), "operator")
    world.run_until(world.now + 5)
    assert world.agreed.topology.tables["orders"] == table
    assert sorted(owners(world)) == ["n1", "n1", "n2", "n2", "n3", "n3"]
    assert len(held(world)) == 12
    assert not set(before) & set(held(world))
    assert not world.violations
