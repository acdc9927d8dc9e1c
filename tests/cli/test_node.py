"""Do nodes lose their replicas, leave for good and hold no data, as processes?"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from limosa.client.operator import Operator, operate
from limosa.errors import Refused
from limosa.runtime.local import LocalCluster
from tests.cli.driving import Load, Typed, homes, made, rows_of
from tests.cli.running import Limosa
from tests.waiting import eventually

SECONDS = 60.0


@pytest.fixture(scope="module")
def local(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes; the rows of partitions that are copied are carried by threads."""
    directory = tmp_path_factory.mktemp("nodes")
    with LocalCluster(
        Path(directory),
        3,
        "nodes",
        arguments=["--lease-seconds", "1.5"],
        of_coordinators=["--pipeline", "threads"],
    ) as cluster:
        yield cluster


@pytest.fixture
def connection(local: LocalCluster) -> Iterator[Operator]:
    with connected(local, *local.nodes) as found:
        yield found


@pytest.fixture
def typed(
    local: LocalCluster,
    no_cluster: None,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Typed:
    return Typed(Limosa(capsysbinary, monkeypatch), local)


def connected(local: LocalCluster, *nodes: str) -> Operator:
    addresses = [local.addresses[node] for node in nodes]
    return operate(addresses, cluster_name=local.cluster, secret=local.secret)


def held_by(connection: Operator, node: str) -> dict[str, tuple[int, str]]:
    """The partitions that a node holds, with their rows and digests."""
    return {
        each["partition"]: (each["rows"], each["digest"]) for each in connection.node_digests(node)
    }


def in_sync(connection: Operator) -> bool:
    """Every replica is, and nothing is under way."""
    partitions = connection.refresh().partitions.values()
    return all(
        each.transition is None and set(each.in_sync) == set(each.replicas) for each in partitions
    )


def test_replicas_of_a_lost_disk_are_rebuilt(local: LocalCluster, connection: Operator) -> None:
    """A node is killed, and all that its volume held is gone: the node starts with nothing, and
    gets every replica anew while rows are written. Its replicas are equal to the others, and
    elected when those are gone."""
    expected = made(connection, "rebuilt", replicas=3, partitions=4)
    lost = "n2"
    assert len(held_by(connection, lost)) == 4
    with Load(connection, "rebuilt") as load:
        local.kill(lost)
        shutil.rmtree(local.directory / lost / "volume")
        local.start_one(lost)
        eventually(lambda: in_sync(connection), "all replicas are in sync", SECONDS, 0.1)
    assert load.failures == []
    assert all(here == ["n1", "n2", "n3"] for here in homes(connection, "rebuilt").values())
    assert rows_of(connection, "rebuilt") == expected | load.written
    eventually(lambda: held_by(connection, lost) == held_by(connection, "n1"), "replicas are equal")
    local.kill("n1")
    local.kill("n3")
    try:
        eventually(
            lambda: (
                {
                    each.owner.replica.node
                    for each in connection.refresh().partitions.values()
                    if each.owner is not None
                }
                == {lost}
            ),
            "the rebuilt replicas are elected",
            SECONDS,
            0.1,
        )
    finally:
        local.start_one("n1")
        local.start_one("n3")
    eventually(lambda: in_sync(connection), "all replicas are in sync", SECONDS, 0.1)
    assert rows_of(connection, "rebuilt") == expected | load.written
    connection.drop_table("rebuilt")


def test_a_node_without_data_serves_everybody_and_holds_nothing(
    local: LocalCluster, typed: Typed, connection: Operator
) -> None:
    """S33: it answers clients that know no other node, and owns nothing: not of new tables, not by
    a plan, and not when a node that holds data dies."""
    local.arguments.append("--no-data")
    front = local.add_node()
    local.arguments.remove("--no-data")
    with connected(local, front) as through:
        expected = made(through, "served", replicas=2)
        with Load(through, "served") as load:
            plan = typed.well("rebalance", "plan", "--json").json
            assert front not in {move["target"] for move in plan["moves"]}
            assert front in typed.refused("node", "add", front, "--yes")
            local.kill("n3")
            eventually(
                lambda: (
                    "n3"
                    not in {
                        each.owner and each.owner.replica.node
                        for each in connection.refresh().partitions.values()
                    }
                ),
                "the partitions of the dead node have other owners",
                SECONDS,
                0.1,
            )
            local.start_one("n3")
            eventually(lambda: in_sync(connection), "all replicas are in sync", SECONDS, 0.1)
        assert load.failures == []
        assert rows_of(through, "served") == expected | load.written
        assert all(front not in here for here in homes(through, "served").values())
        assert held_by(through, front) == {}
    connection.drop_table("served")


def test_a_decommissioned_node_is_emptied_leaves_and_does_not_come_back(
    local: LocalCluster, typed: Typed, connection: Operator
) -> None:
    """F94: under writes all that it holds goes to other nodes, and only then it has left. It can
    be stopped; neither with its directory nor with an empty one its name is used again."""
    leaving = local.add_node()
    expected = made(connection, "left", replicas=2)
    eventually(lambda: in_sync(connection), "all replicas are in sync", SECONDS, 0.1)
    assert any(leaving in here for here in homes(connection, "left").values())
    with Load(connection, "left") as load:
        ended = typed.well("node", "decommission", leaving, "--yes", "--wait", "--json").json
    assert ended["run"]["outcome"] == "done"
    assert load.failures == []
    assert all(leaving not in here for here in homes(connection, "left").values())
    assert connection.refresh().nodes[leaving].state == "left"
    eventually(lambda: held_by(connection, leaving) == {}, "its replicas are dropped")
    local.terminate(leaving)
    for emptied in (False, True):
        if emptied:
            shutil.rmtree(local.directory / leaving)
        with pytest.raises(Refused):
            local.start_one(leaving)
    assert connection.refresh().nodes[leaving].state == "left"
    assert rows_of(connection, "left") == expected | load.written
    connection.drop_table("left")
