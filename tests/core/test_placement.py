"""Where replicas go when a zone's replica count or its data nodes change."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.coordinator import requests
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import Commit, Put
from limosa.core.model.intent import Intent, Placement
from limosa.core.model.requests import FollowNodes, Request, SetReplicas
from limosa.core.model.topology import Node, Zone
from limosa.core.planning.placement import data_nodes, place
from limosa.simulation.world import ZONE, World, WorldShape
from tests.core import samples
from tests.core.samples import MEMBERS, P, cluster, put, seen, stable

NODES = ("n1", "n2", "n3", "n4")
MEMBERS_BY_NAME = {name: Node(name) for name in NODES}


def on(*nodes: str) -> tuple[Placement, ...]:
    return tuple(Placement(node) for node in nodes)


def test_only_normal_nodes_with_tokens_in_the_zones_datacenters_hold_data() -> None:
    nodes = [
        Node("a", datacenter="east"),
        Node("b", datacenter="west"),
        Node("c", datacenter="east", state="left"),
        Node("d", datacenter="east", tokens=False),
    ]
    assert data_nodes(Zone("z"), nodes) == ("a", "b")
    assert data_nodes(Zone("z", datacenters=("east",)), nodes) == ("a",)


def test_without_data_nodes_everything_stays() -> None:
    assert place(2, {}, {"p": on("n1", "n2")}) == {"p": on("n1", "n2")}


def test_new_places_go_to_the_nodes_that_hold_least() -> None:
    planned = place(2, MEMBERS_BY_NAME, {"p": on("n1"), "q": on("n1"), "r": on("n1")})
    assert planned == {"p": on("n1", "n2"), "q": on("n1", "n3"), "r": on("n1", "n4")}


@given(
    st.integers(1, 4),
    st.dictionaries(
        st.sampled_from("pqrs"),
        st.lists(st.sampled_from(NODES), unique=True, min_size=1, max_size=4),
    ),
)
def test_replicas_are_on_distinct_nodes_and_move_as_little_as_possible(
    count: int, current: dict[str, list[str]]
) -> None:
    before = {name: on(*nodes) for name, nodes in current.items()}
    after = place(count, MEMBERS_BY_NAME, before)
    for name, places in after.items():
        assert len(places) == count == len({each.node for each in places})
        assert len(set(places) & set(before[name])) == min(count, len(before[name]))


def test_new_places_go_to_racks_and_datacenters_that_have_none() -> None:
    """Before they go to the nodes that hold least."""
    racks = {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r1"}
    nodes = {name: Node(name, rack=rack) for name, rack in racks.items()}
    assert place(2, nodes, {"p": on("n1"), "q": on("n1")}) == {
        "p": on("n1", "n3"),
        "q": on("n1", "n3"),
    }
    nodes["n4"] = Node("n4", rack="r1", datacenter="west")
    assert place(2, nodes, {"p": on("n1")}) == {"p": on("n1", "n4")}


def asked(world: World, request: Request) -> Request:
    world.commit(Commit({}, (Put(request),), "asked"), "operator")
    world.run_until(world.now + 15)
    return world.agreed.requests[request.id]


def holders(world: World) -> set[frozenset[str]]:
    return {
        frozenset(replica.node for replica in record.replicas)
        for record in world.agreed.topology.partitions.values()
    }


def test_another_replica_count_becomes_pending_for_every_partition_and_is_reached() -> None:
    """F157: the replica count is a trigger; F158: one commit holds all of it."""
    world = World(5, WorldShape(replicas=2, partitions=2))
    world.run_until(2)
    answer = asked(world, Request("r1", SetReplicas(ZONE, 3)))
    assert (answer.state, answer.answer) == ("done", "accepted")
    assert all(len(nodes) == 3 for nodes in holders(world))
    assert asked(world, Request("r2", SetReplicas(ZONE, 1))).state == "done"
    assert all(len(nodes) == 1 for nodes in holders(world))
    assert not world.violations


def test_other_data_nodes_become_pending_for_every_partition_and_are_followed() -> None:
    """F157: the set of data nodes is a trigger."""
    world = World(6, WorldShape(replicas=2, partitions=2))
    world.run_until(2)
    leaving = replace(world.agreed.topology.nodes["n2"], tokens=False)
    world.commit(Commit({}, (Put(leaving),), "n2 holds no data any more"), "operator")
    assert asked(world, Request("r1", FollowNodes(ZONE))).state == "done"
    assert all("n2" not in nodes for nodes in holders(world))
    assert not world.violations


def test_an_impossible_request_about_a_zone_is_refused_and_changes_nothing_else() -> None:
    world = World(7, WorldShape(replicas=2, partitions=2))
    world.run_until(2)
    view = ClusterView(world.agreed, {}, 1, 0.0)
    for request, reason in (
        (Request("r1", SetReplicas("nowhere", 1)), "there is no zone"),
        (Request("r2", SetReplicas(ZONE, 5)), "5 replicas on 4 data nodes"),
        (Request("r3", SetReplicas(ZONE, 0)), "0 replicas"),
    ):
        (change,) = requests.answer(view, request).changes
        assert isinstance(change, Put)
        assert isinstance(change.record, Request)
        assert change.record.state == "refused"
        assert reason in change.record.answer


def test_partitions_of_other_zones_are_left_alone() -> None:
    world = World(8, WorldShape(replicas=2, partitions=2))
    world.run_until(2)
    other = replace(world.agreed.topology.partitions["p1"], zone="other")
    partitions = {**world.agreed.topology.partitions, "p1": other}
    topology = replace(world.agreed.topology, partitions=partitions)
    view = ClusterView(replace(world.agreed, topology=topology), {}, 1, 0.0)
    request = Request("r1", SetReplicas(ZONE, 3))
    commit = requests.answer(view, request)
    records = [change.record for change in commit.changes if isinstance(change, Put)]
    assert [record.partition for record in records if isinstance(record, Intent)] == ["p0"]


def test_new_replicas_go_to_volumes_that_their_nodes_have() -> None:
    """And those that stay keep theirs."""
    request = Request("r", SetReplicas(samples.ZONE, 3))
    members = tuple(replace(node, volumes=("one", "two")) for node in MEMBERS)
    intent = Intent(P, (Placement("a", "two"), Placement("b", "one")))
    agreed = cluster(stable(), intent, nodes=members, more=(request,))
    commit = requests.answer(seen(agreed), request)
    (planned,) = put(commit.changes, Intent)
    assert isinstance(planned, Intent)
    assert planned.pending is not None
    assert planned.pending.placements[:2] == intent.stable
    assert planned.pending.placements[2].volume in ("one", "two")
