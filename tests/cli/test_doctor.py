"""Does the doctor see each illness, and only that one?"""

from typing import Any

import pytest
from msgspec.structs import replace

from limosa.admin.overview import Overview
from limosa.cli.doctor.checks import CHECKS, examine
from limosa.core.model.changes import Topology
from limosa.core.model.keys import WHOLE
from limosa.core.model.topology import Grant, Node, Partition, Replica, Zone

REPLICAS = tuple(Replica(node, "i1") for node in ("n1", "n2", "n3"))
PARTITION = Partition("p0", "z", WHOLE, REPLICAS, REPLICAS, 1, Grant(REPLICAS[0], 1))


def status(**changed: Any) -> dict[str, Any]:
    well = {
        "surprises": {},
        "troubles": [],
        "refused": [],
        "free_bytes": {"": 1 << 40},
        "time": 1000.0,
        "version": "1.0",
        "replicas": [],
    }
    return {**well, **changed}


def rotten(incarnation: str) -> dict[str, str]:
    return {"partition": "p0", "incarnation": incarnation, "damaged": "a file is damaged"}


def healthy() -> Overview:
    nodes = {name: Node(name) for name in ("n1", "n2", "n3")}
    topology = Topology(nodes=nodes, zones={"z": Zone("z")}, partitions={"p0": PARTITION})
    agreed = {"live": ["n1", "n2", "n3"], "coordinator": "c"}
    return Overview(topology, agreed, {name: status() for name in nodes}, {})


def ill(name: str) -> Overview:
    well = healthy()

    def with_status(**changed: Any) -> Overview:
        return replace(well, statuses={**well.statuses, "n2": status(**changed)})

    def with_partition(**changed: Any) -> Overview:
        partitions = {"p0": replace(PARTITION, **changed)}
        return replace(well, topology=replace(well.topology, partitions=partitions))

    match name:
        case "reachable":
            return replace(well, failures={"n2": "no answer in time"})
        case "coordinator":
            return replace(well, agreed={**well.agreed, "coordinator": None})
        case "nodes":
            return replace(well, agreed={**well.agreed, "live": ["n1", "n2"]})
        case "owners":
            return with_partition(owner=None)
        case "in sync":
            return with_partition(in_sync=REPLICAS[:2])
        case "load":
            return with_status(vitals={"lag_seconds": 2.5})
        case "coordination":
            late = {name: status(vitals={"asked_seconds": 12.0}) for name in well.statuses}
            return replace(well, statuses=late)
        case "churn":
            return with_status(vitals={"changes": 1_200, "restless": 100})
        case "partitions":
            many = {f"p{each}": replace(PARTITION, id=f"p{each}") for each in range(5_001)}
            return replace(well, topology=replace(well.topology, partitions=many))
        case "surprises":
            return with_status(surprises={"an odd message": 3})
        case "disks":
            return with_status(troubles=["no space left"])
        case "replicas":
            return with_status(refused=["p0/i1: damaged"])
        case "damage":
            return with_status(replicas=[rotten("i1")])
        case "secret":
            return with_status(keys=["the keys in secret are damaged"])
        case "free space":
            return with_status(free_bytes={"": 1 << 40, "slow": 5 << 20})
        case "clocks":
            return with_status(time=1005.0)
        case _:
            return with_status(version="0.9")


# fmt: off
ILLNESSES = {
    "reachable":    ("problem", "no answer from n2: no answer in time"),
    "coordinator":  ("problem", "no coordinator is active"),
    "nodes":        ("problem", "not live: n3"),
    "owners":       ("problem", "1 partition without an owner: p0"),
    "in sync":      ("warning", "1 partition with replicas out of sync: p0"),
    "load":         ("warning", "n2 is 2.5 s behind with its own work"),
    "coordination": ("warning", "c is behind: it took up no report of the nodes for 12 s"),
    "churn":        ("warning", "100 partitions lost replicas or owners again and again"),
    "partitions":   ("warning", "n1 holds 5,001 replicas of at most 10,000"),
    "surprises":    ("warning", "n2: an odd message (3 times)"),
    "disks":        ("problem", "n2: no space left"),
    "replicas":     ("problem", "n2: p0/i1: damaged"),
    "damage":       ("warning", "p0 on n2: a file is damaged"),
    "secret":       ("problem", "n2: the keys in secret are damaged"),
    "free space":   ("problem", "5.2 MB left on n2:slow"),
    "clocks":       ("warning", "5.0 s apart"),
    "versions":     ("warning", "nodes run 0.9, 1.0"),
}
# fmt: on


def advice_on_replicas(**changed: Any) -> str:
    overview = replace(healthy(), statuses={"n1": status(), "n2": status(**changed)})
    (found,) = [each for each in examine(overview) if each.check == "replicas"]
    assert found.verdict == "problem"
    return found.advice


def test_a_disk_that_does_not_answer_is_checked_and_nothing_is_erased() -> None:
    disk, file = "volume two: the disk has not answered for 10 s", "p0/i1: damaged"
    check = "check the disk, then restart the node"
    silent = advice_on_replicas(refused=[disk], refused_disks=[disk])
    assert check in silent
    assert "erase" not in silent
    both = advice_on_replicas(refused=[disk, file], refused_disks=[disk])
    assert check in both
    assert "erase its directory" in both
    damaged = advice_on_replicas(refused=[file])
    assert check not in damaged
    assert "erase its directory" in damaged


def test_the_healthy_are_healthy() -> None:
    assert {finding.verdict for finding in examine(healthy())} == {"ok"}
    assert len(ILLNESSES) == len(CHECKS)


@pytest.mark.parametrize("name", list(ILLNESSES))
def test_each_illness_is_found_by_its_check_alone(name: str) -> None:
    found = [finding for finding in examine(ill(name)) if finding.verdict != "ok"]
    verdict, what = ILLNESSES[name]
    assert [(finding.check, finding.verdict) for finding in found] == [(name, verdict)]
    assert what in found[0].what
    assert found[0].advice


def test_too_few_in_sync_is_a_problem() -> None:
    well = healthy()
    partition = replace(PARTITION, in_sync=REPLICAS[:1])
    sick = replace(well, topology=replace(well.topology, partitions={"p0": partition}))
    found = [finding for finding in examine(sick) if finding.verdict != "ok"]
    assert [(finding.check, finding.verdict) for finding in found] == [("in sync", "problem")]
    assert "can't be written to" in found[0].what


def test_damage_of_the_only_replica_in_sync_is_a_problem() -> None:
    """F193."""
    well = ill("damage")
    only = next(replica for replica in REPLICAS if replica.node == "n2")
    partition = replace(PARTITION, in_sync=(only,), replicas=(only,))
    statuses = {**well.statuses, "n2": status(replicas=[rotten(only.incarnation)])}
    topology = replace(well.topology, partitions={"p0": partition})
    found = examine(replace(well, topology=topology, statuses=statuses))
    (damage,) = [each for each in found if each.check == "damage"]
    assert damage.verdict == "problem"
    assert "the only replica in sync is damaged: p0 on n2" in damage.what
    assert "restore the file from a backup" in damage.advice


def test_a_dead_owner_owns_nothing() -> None:
    well = healthy()
    sick = replace(well, agreed={**well.agreed, "live": ["n2", "n3"]})
    bad = {finding.check for finding in examine(sick) if finding.verdict == "problem"}
    assert bad == {"nodes", "owners"}


def test_a_node_that_has_left_is_not_missed() -> None:
    well = healthy()
    nodes = {**well.topology.nodes, "n4": Node("n4", state="left")}
    assert well.members == ["n1", "n2", "n3"]
    after = replace(well, topology=replace(well.topology, nodes=nodes))
    assert {finding.verdict for finding in examine(after)} == {"ok"}


def advice_on(check: str, overview: Overview) -> str:
    (found,) = [each for each in examine(overview) if each.check == check]
    assert found.verdict != "ok"
    return found.advice


def with_vitals(overview: Overview, **vitals: dict[str, Any]) -> Overview:
    told = {
        node: {**each, "vitals": vitals.get(node, {})} for node, each in overview.statuses.items()
    }
    return replace(overview, statuses=told)


@pytest.mark.parametrize("in_sync", [REPLICAS[:2], REPLICAS[:1]])
def test_nobody_is_told_to_start_nodes_that_run(in_sync: tuple[Replica, ...]) -> None:
    well = healthy()
    partition = replace(PARTITION, in_sync=in_sync)
    behind = replace(well, topology=replace(well.topology, partitions={"p0": partition}))
    advice = advice_on("in sync", behind)
    assert "start" not in advice
    assert "all their nodes are live, and their replicas catch up" in advice

    overloaded = with_vitals(behind, n1={"lag_seconds": 7.0})
    advice = advice_on("in sync", overloaded)
    assert "start" not in advice
    for remedy in ("fewer clients", "fewer partitions", "add nodes"):
        assert remedy in advice

    dead = replace(behind, agreed={**behind.agreed, "live": ["n1", "n2"]})
    assert advice_on("in sync", dead) == "start the nodes that hold their replicas: n3"


def test_an_election_that_takes_long_is_no_reason_to_start_nodes_that_run() -> None:
    electing = ill("owners")
    assert "start" not in advice_on("owners", electing)
    dead = replace(electing, agreed={**electing.agreed, "live": ["n1", "n2"]})
    assert "start the nodes that hold their replicas: n3" in advice_on("owners", dead)


def test_a_coordinator_is_behind_only_if_all_nodes_that_keep_up_say_so() -> None:
    well = healthy()
    one = with_vitals(well, n2={"asked_seconds": 12.0})
    assert "check the network between them" in advice_on("coordination", one)
    late = {"lag_seconds": 9.0, "asked_seconds": 12.0}
    overloaded = with_vitals(well, n1=late, n2=late, n3=late)
    assert not [
        each for each in examine(overloaded) if each.check == "coordination" and each.advice
    ]
    unheard = {"asked_seconds": 0.5, "unheard_seconds": 30.0}
    deaf = with_vitals(well, n1=unheard, n2=unheard, n3={"lag_seconds": 9.0})
    assert "use fewer partitions" in advice_on("coordination", deaf).lower()


def test_the_advice_on_churn_depends_on_the_load() -> None:
    restless = {"restless": 3, "changes": 20}
    assert "comes and goes" in advice_on("churn", with_vitals(healthy(), n1=restless))
    late = {**restless, "lag_seconds": 3.0}
    assert "fewer partitions" in advice_on("churn", with_vitals(healthy(), n1=late))
