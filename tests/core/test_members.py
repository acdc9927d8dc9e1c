"""May a node come in, or go out?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.members import enabled
from limosa.core.model.changes import (
    CLUSTER_KEY,
    CONTROLS_KEY,
    COORDINATOR_KEY,
    FEATURES_KEY,
    REBALANCE_KEY,
    Agreed,
    Put,
    apply,
    intent_key,
    lease_key,
    node_key,
    partition_key,
    request_key,
    zone_key,
)
from limosa.core.model.intent import Assignment, Intent, Placement
from limosa.core.model.keys import WHOLE
from limosa.core.model.requests import JoinCluster, RemoveNode, ReplaceNode, Request
from limosa.core.model.runs import Rebalance, Run
from limosa.core.model.topology import (
    Cluster,
    Features,
    Layout,
    Node,
    NodeLease,
    Partition,
    Record,
    Replica,
    Zone,
)
from tests.core.asking import TRIGGER, answered, refused, wanting, world
from tests.core.samples import OFFICE, put

BIRDS = Cluster("birds", "c1")
NEWCOMER = Node("d", "host:1", host="h4", features=("streams", "tables"))
JOIN = Request("r", JoinCluster(NEWCOMER, "birds"))
MEMBERS = tuple(
    Node(name, host=host, features=("tables",))
    for name, host in (("a", "h1"), ("b", "h2"), ("c", "h3"))
)


def founded(*more: Record, nodes: tuple[Node, ...] = MEMBERS, machine: str = "") -> Agreed:
    return world(replace(BIRDS, machine=machine), Features(("tables",)), *more, nodes=nodes)


# --- in


def test_a_node_that_may_join_is_normal_in_one_commit() -> None:
    """F145 F146: with its answer; F140: the topology has a row of it, and the common state."""
    row, commit, after = answered(founded(), JOIN)
    assert (row.state, row.answer) == ("done", "joined")
    assert after.topology.nodes["d"] == replace(NEWCOMER, state="normal")
    assert sorted(after.topology.nodes) == ["a", "b", "c", "d"]
    assert after.topology.cluster == BIRDS
    assert after.topology.features.enabled == ("tables",)
    assert commit.guards == {
        request_key("r"): TRIGGER,
        CLUSTER_KEY: 60,
        FEATURES_KEY: 61,
        node_key("d"): 0,
        **{node_key(node.id): OFFICE for node in MEMBERS},
        COORDINATOR_KEY: OFFICE,
        CONTROLS_KEY: 0,
    }


def test_a_node_does_not_choose_its_own_state() -> None:
    _, _, after = answered(founded(), wanting(JOIN, node=replace(NEWCOMER, state="rebuilding")))
    assert after.topology.nodes["d"].state == "normal"


LEFT = (*MEMBERS[:2], replace(MEMBERS[2], state="left"))


@pytest.mark.parametrize(
    ("node", "words", "advice"),
    [
        (replace(NEWCOMER, id="d/e"), "'d/e' is not a valid node name", "letters"),
        (replace(NEWCOMER, host=""), "d has no host id", "keep it in its directory"),
        (replace(NEWCOMER, id="a", host="h1"), "a is already a member", "start it without joining"),
        (replace(NEWCOMER, id="a"), "the name a is taken", "another name"),
        (replace(NEWCOMER, host="h1"), "this directory belongs to a", "its own directory"),
        (replace(NEWCOMER, id="c", host="h3"), "c was removed", "wipe its directory"),
        (replace(NEWCOMER, id="c"), "c was removed", "join under a new name"),
        (replace(NEWCOMER, host="h3"), "c was removed", "join under a new name"),
    ],
)
def test_a_node_that_may_not_join_is_told_why(node: Node, words: str, advice: str) -> None:
    """F145: a member, or a removed one; S19."""
    answer = refused(founded(nodes=LEFT), wanting(JOIN, node=node))
    assert words in answer
    assert advice in answer


def test_a_node_joins_the_cluster_that_it_means() -> None:
    """F145: a bad parameter."""
    answer = refused(founded(), wanting(JOIN, cluster="fishes"))
    assert "this is the cluster birds, not fishes" in answer
    assert "belongs to no cluster" in refused(world(), JOIN)


def test_a_cluster_in_a_file_stays_on_its_machine() -> None:
    answer = refused(founded(machine="m1"), wanting(JOIN, node=replace(NEWCOMER, machine="m2")))
    assert "so all nodes must be on one machine" in answer
    assert "start all nodes on the machine of the metastore" in answer
    row, _, _ = answered(founded(machine="m1"), wanting(JOIN, node=replace(NEWCOMER, machine="m1")))
    assert row.state == "done"


def test_a_second_request_to_join_under_one_name_is_refused() -> None:
    """F145: a duplicate. The first one is answered as if there were no other."""
    elsewhere = Request("r9", JoinCluster(replace(NEWCOMER, id="e", host="h5"), "birds"))
    first = replace(JOIN, id="r8")
    agreed = founded(elsewhere, first)
    assert "d already asks to join, by request r8" in refused(agreed, JOIN)
    row, commit, _ = answered(agreed, elsewhere)
    assert row.state == "done"
    assert request_key("r8") not in commit.guards
    row, _, _ = answered(founded(replace(first, state="refused")), JOIN)
    assert row.state == "done"


# --- features


def test_a_node_that_can_not_do_what_is_used_ends_as_left_with_the_reason() -> None:
    """F146: recorded and refused, in one commit."""
    old = replace(NEWCOMER, features=("streams",))
    row, commit, after = answered(founded(), wanting(JOIN, node=old))
    assert row.state == "refused"
    assert "d does not support what this cluster uses: tables" in row.answer
    assert put(commit.changes, Node) == [replace(old, state="left")]
    assert after.topology.features.enabled == ("tables",)
    again = wanting(replace(JOIN, id="r2"), node=NEWCOMER)
    assert "d was removed" in refused(after, again)


def test_a_feature_is_on_only_when_every_node_has_it() -> None:
    """F144: a mixed cluster does without it; once all are upgraded it is on, and stays on."""
    _, _, mixed = answered(founded(nodes=MEMBERS[:1]), JOIN)
    assert mixed.topology.features.enabled == ("tables",)
    upgraded = replace(MEMBERS[0], features=("streams", "tables"))
    assert enabled(mixed.topology, upgraded).enabled == ("streams", "tables")
    later = apply(mixed, (Put(Features(("streams", "tables"))),), 90)
    assert enabled(later.topology, MEMBERS[0]).enabled == ("streams", "tables")


def test_who_has_left_does_not_hold_a_feature_back() -> None:
    """F144."""
    nodes = (
        replace(MEMBERS[0], features=("streams", "tables")),
        replace(MEMBERS[1], state="left"),
    )
    _, _, after = answered(founded(nodes=nodes), JOIN)
    assert after.topology.features.enabled == ("streams", "tables")


def test_without_members_only_what_was_enabled_is() -> None:
    assert enabled(founded().topology, NEWCOMER).enabled == ("tables",)
    alone = replace(founded().topology, nodes={})
    assert enabled(alone, replace(NEWCOMER, state="left")).enabled == ("tables",)


# --- out

REMOVE = Request("r", RemoveNode("c"))


def dead(*more: Record, nodes: tuple[Node, ...] = MEMBERS) -> Agreed:
    """The node c is a member, and does not live."""
    agreed = founded(*more, nodes=nodes)
    return replace(
        agreed,
        leases={name: agreed.leases[name] for name in ("a", "b")},
        revisions={key: value for key, value in agreed.revisions.items() if key != lease_key("c")},
    )


def test_a_dead_node_that_holds_nothing_has_left_for_good() -> None:
    """S19: its row stays."""
    row, commit, after = answered(dead(), REMOVE)
    assert (row.state, row.answer) == ("done", "removed")
    assert after.topology.nodes["c"] == replace(MEMBERS[2], state="left")
    assert commit.guards[lease_key("c")] == 0
    assert commit.guards[node_key("c")] == OFFICE
    assert "c has left already" in refused(after, replace(REMOVE, id="r2"))


def test_a_removed_node_does_not_hold_a_feature_back() -> None:
    """F144."""
    able = tuple(replace(node, features=("streams", "tables")) for node in MEMBERS[:2])
    _, _, after = answered(dead(nodes=(*able, MEMBERS[2])), REMOVE)
    assert after.topology.features.enabled == ("streams", "tables")


def test_a_node_that_lives_is_not_removed() -> None:
    """S20."""
    answer = refused(founded(), REMOVE)
    assert "c is alive" in answer
    assert "stop it first, or drain it" in answer


def test_a_node_that_is_unknown_or_the_last_one_is_not_removed() -> None:
    assert "there is no node x" in refused(dead(), wanting(REMOVE, node="x"))
    left = tuple(replace(node, state="left") for node in MEMBERS[:2])
    assert "c is the last node" in refused(dead(nodes=(*left, MEMBERS[2])), REMOVE)


def test_a_node_whose_life_does_not_allow_it_is_not_removed() -> None:
    joining = replace(MEMBERS[2], state="bootstrapping")
    answer = refused(dead(nodes=(*MEMBERS[:2], joining)), REMOVE)
    assert "a node that is bootstrapping can't be removed" in answer


DRAINED = replace(MEMBERS[2], state="decommissioning")


def test_a_drained_node_that_was_stopped_is_removed() -> None:
    row, commit, after = answered(dead(nodes=(*MEMBERS[:2], DRAINED)), REMOVE)
    assert (row.state, row.answer) == ("done", "removed")
    assert after.topology.nodes["c"] == replace(MEMBERS[2], state="left")
    assert commit.guards[REBALANCE_KEY] == 0


def test_a_node_is_not_removed_while_a_run_drains_it() -> None:
    """The run ends by what became of the node: it is asked to end first."""
    drain = (Rebalance("running", "r5"), Run("r5", "drain c", 0, drains=("c",)))
    answer = refused(dead(*drain, nodes=(*MEMBERS[:2], DRAINED)), REMOVE)
    assert "c is being drained by r5" in answer
    row, _, _ = answered(dead(Rebalance("running", "r5"), Run("r5", "others", 0)), REMOVE)
    assert row.state == "done"


def test_a_node_that_holds_replicas_is_not_removed() -> None:
    replicas = (Replica("a", "c1"), Replica("c", "c1"))
    record = Partition("p", "z", WHOLE, replicas, replicas[:1])
    zone = (Zone("z", 2), Layout("z", 1, (-(2**63),), ("p",)))
    intent = Intent("p", (Placement("a"), Placement("c")))
    agreed = dead(*zone, record, intent)
    assert "c holds or will hold 1 replicas, for example of p" in refused(agreed, REMOVE)


def test_a_node_is_not_removed_if_a_zone_needs_it_for_its_replicas() -> None:
    """Its partitions may have fewer replicas yet, because attempts to make more have failed."""
    replicas = (Replica("a", "c1"),)
    record = Partition("p", "z", WHOLE, replicas, replicas)
    made = (Layout("z", 1, (-(2**63),), ("p",)), record, Intent("p", (Placement("a"),)))
    answer = refused(dead(Zone("z", 3), *made), REMOVE)
    assert "the zone z has 3 replicas of everything, and 2 of its data nodes stay" in answer
    row, commit, _ = answered(dead(Zone("z", 2), *made), REMOVE)
    assert row.state == "done"
    assert zone_key("z") in commit.guards


@pytest.mark.parametrize("where", ["pending", "planned"])
def test_a_node_that_is_meant_to_hold_replicas_is_not_removed(where: str) -> None:
    replicas = (Replica("a", "c1"),)
    record = Partition("p", "z", WHOLE, replicas, replicas)
    zone = (Zone("z", 1), Layout("z", 1, (-(2**63),), ("p",)))
    move = Assignment("move", (Placement("c"),), trigger=9)
    intent = replace(Intent("p", (Placement("a"),)), **{where: move})
    agreed = dead(*zone, record, intent)
    assert "c holds or will hold" in refused(agreed, REMOVE)
    _, commit, _ = answered(dead(*zone, record, replace(intent, **{where: None})), REMOVE)
    assert commit.guards[intent_key("p")] == 65


def test_a_lease_alone_makes_no_member() -> None:
    """S19: whoever was removed and lives on is not used."""
    agreed = apply(founded(nodes=LEFT), (Put(NodeLease("c", 99)),), 70)
    request = Request("r", RemoveNode("c"))
    assert "c has left already" in refused(agreed, request)


# --- in again

REPLACE = Request("r", ReplaceNode("c"))
AGAIN = Request("j", JoinCluster(replace(NEWCOMER, id="c", host="h9"), "birds"))


def held_on_c(*in_sync: int) -> tuple[Record, ...]:
    replicas = (Replica("a", "c1"), Replica("c", "c1"))
    record = Partition("p", "z", WHOLE, replicas, tuple(replicas[each] for each in in_sync))
    intent = Intent("p", (Placement("a"), Placement("c")))
    return (Zone("z", 2), Layout("z", 1, (-(2**63),), ("p",)), record, intent)


def test_an_empty_directory_may_take_the_place_of_one_that_is_lost() -> None:
    """S128: the node joins under its name, the former directory does not, and nobody else does
    afterwards."""
    agreed = dead(*held_on_c(0, 1))
    assert "limosa node replace c" in refused(agreed, AGAIN)
    row, commit, after = answered(agreed, REPLACE)
    assert (row.state, row.answer) == ("done", "an empty directory may join as c")
    assert commit.guards[lease_key("c")] == 0
    assert commit.guards[partition_key("p")] == after.topology.revision_of("p")
    assert after.topology.nodes["c"].host == ""
    row, _, after = answered(after, AGAIN)
    assert row.answer == "joined"
    assert after.topology.nodes["c"] == replace(NEWCOMER, id="c", host="h9", state="normal")
    assert "is taken" in refused(after, wanting(replace(AGAIN, id="k"), node=MEMBERS[2]))


@pytest.mark.parametrize("in_sync", [(), (0,)])
def test_a_node_without_a_replica_in_sync_can_be_replaced(in_sync: tuple[int, ...]) -> None:
    row, _, _ = answered(dead(*held_on_c(*in_sync)), REPLACE)
    assert row.state == "done"


def test_a_node_that_lives_or_changes_or_holds_the_only_copy_is_not_replaced() -> None:
    """S128: rows would be lost."""
    assert "c is alive" in refused(founded(), REPLACE)
    assert "x is not a member" in refused(dead(), wanting(REPLACE, node="x"))
    assert "c is decommissioning" in refused(dead(nodes=(*MEMBERS[:2], DRAINED)), REPLACE)
    answer = refused(dead(*held_on_c(1)), REPLACE)
    assert "c holds the only replica of p that has all rows" in answer
    assert "drop the table" in answer
