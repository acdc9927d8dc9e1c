"""What if a disk of a node hangs or is damaged? Failover ends soon, and other disks go on."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from limosa.admin.overview import look
from limosa.cli.doctor.checks import examine
from limosa.client import Operator, TableHandle
from limosa.core.model.topology import Partition
from limosa.errors import Refused
from tests.chaos.cluster import Cluster
from tests.chaos.hanging_node import HANGS
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

COLUMNS = {"k": "int64", "v": "int64"}
LEASE_SECONDS = 1.0
SYNC_SECONDS = 1.0
PARTITIONS = 4
VOLUMES = ("one", "two")
HEALTH_SECONDS = 30.0
ADVICE = "check the disk, then restart the node"


class HangingCluster(Cluster):
    """Nodes whose disks can hang; n1 has two volumes."""

    def __init__(self, directory: Path) -> None:
        carrying = ["--pipeline", "threads"]
        super().__init__(directory, 3, 1, LEASE_SECONDS, of_coordinators=carrying)

    def _command(self, name: str, port: int | None) -> list[str]:
        command = super()._command(name, port)
        if name in self.nodes:
            command[2] = "tests.chaos.hanging_node"
            command += ["--sync-seconds", str(SYNC_SECONDS)]
        if name == "n1":
            for volume in VOLUMES:
                command += ["--volume", f"{volume}={self.volume(name, volume)}"]
        return command

    def volume(self, node: str, volume: str) -> Path:
        return self.directory / node / (volume or "volume")


@pytest.fixture(scope="module")
def running(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HangingCluster]:
    with HangingCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: HangingCluster) -> HangingCluster:
    assert running.wait_until_healthy(HEALTH_SECONDS) == []
    return running


@pytest.fixture
def connection(cluster: HangingCluster) -> Iterator[Operator]:
    with cluster.connect("hanging", timeout_seconds=30.0) as connection:
        yield connection


def partitions(cluster: HangingCluster, table: TableHandle) -> list[Partition]:
    topology = cluster.agreed().topology
    zone = topology.tables[table.name].zone
    return [each for each in topology.partitions.values() if each.zone == zone]


def owned_by(cluster: HangingCluster, table: TableHandle, node: str) -> list[Partition]:
    return [
        each
        for each in partitions(cluster, table)
        if each.owner is not None and each.owner.replica.node == node
    ]


def volumes_of(cluster: HangingCluster, table: TableHandle, node: str) -> set[str]:
    return {
        replica.volume
        for each in partitions(cluster, table)
        for replica in each.replicas
        if replica.node == node
    }


def write_all(table: TableHandle, value: int) -> float:
    """Write rows of all partitions; the seconds that it took."""
    began = time.monotonic()
    table.write([{"k": number, "v": value} for number in range(100)])
    return time.monotonic() - began


def is_whole(cluster: HangingCluster, table: TableHandle) -> bool:
    return all(
        each.transition is None and set(each.in_sync) == set(each.replicas)
        for each in partitions(cluster, table)
    )


def test_a_disk_that_hangs_costs_its_own_replicas_only(
    cluster: HangingCluster, connection: Operator
) -> None:
    """S118, S119: the node lives, its other volume goes on, and the replicas of the volume that
    hangs are rebuilt there."""
    table = connection.create_table("one", COLUMNS, "k", partitions=PARTITIONS, replicas=3)
    write_all(table, 1)
    process = cluster.processes["n1"].pid
    owned = owned_by(cluster, table, "n1")
    hangs = (
        next(each.owner.replica.volume for each in owned if each.owner is not None)
        if owned
        else VOLUMES[0]
    )
    (other,) = set(VOLUMES) - {hangs}
    (cluster.volume("n1", hangs) / HANGS).touch()
    try:
        assert write_all(table, 2) < SYNC_SECONDS + LEASE_SECONDS + 8.0
        eventually(
            lambda: volumes_of(cluster, table, "n1") == {other} and is_whole(cluster, table),
            "its replicas are rebuilt on the other volume",
            60.0,
        )
        assert write_all(table, 3) < 5.0
        assert cluster.processes["n1"].pid == process
        assert cluster.is_running("n1")
        cluster.terminate("n1")
        cluster.start_one("n1")
        eventually(lambda: is_whole(cluster, table), "it starts without the volume", 60.0)
        (found,) = [each for each in examine(look(connection)) if each.check == "replicas"]
        assert ADVICE in found.advice
        assert "erase" not in found.advice
        assert volumes_of(cluster, table, "n1") == {other}
    finally:
        (cluster.volume("n1", hangs) / HANGS).unlink()
    assert {row["v"] for row in table.scan().to_pylist()} == {3}
    cluster.terminate("n1")
    cluster.start_one("n1")
    eventually(lambda: is_whole(cluster, table), "the volume is used again", 60.0)


def test_a_volume_that_is_refused_at_the_start_does_not_end_its_node(
    cluster: HangingCluster, connection: Operator
) -> None:
    """S118: its replicas are rebuilt on the volume that works. To make them on the refused volume
    would end the node, which would be started again, and end again."""
    table = connection.create_table("zero", COLUMNS, "k", partitions=PARTITIONS, replicas=3)
    write_all(table, 1)
    cluster.terminate("n1")
    refused = cluster.volume("n1", "two")
    (refused / "VOLUME").write_bytes(b"garbage")
    cluster.start_one("n1")
    process = cluster.processes["n1"]
    try:
        eventually(
            lambda: volumes_of(cluster, table, "n1") == {"one"} and is_whole(cluster, table),
            "its replicas are rebuilt on the volume that works",
            60.0,
        )
        assert process.poll() is None
        assert {row["v"] for row in table.scan().to_pylist()} == {1}
    finally:
        cluster.terminate("n1")
        shutil.rmtree(refused)
        cluster.start_one("n1")


def test_a_node_whose_only_disk_hangs_ends_and_another_one_takes_over(
    cluster: HangingCluster, connection: Operator
) -> None:
    """S119: writes go on after a bounded time, and the node is well when its disk is."""
    table = connection.create_table("two", COLUMNS, "k", partitions=PARTITIONS, replicas=3)
    write_all(table, 1)
    victim = next(name for name in ("n2", "n3") if owned_by(cluster, table, name))
    mark = cluster.volume(victim, "") / HANGS
    mark.touch()
    try:
        assert write_all(table, 2) < SYNC_SECONDS + LEASE_SECONDS + 8.0
        eventually(lambda: not cluster.is_running(victim), "the node ends", 30.0)
        assert cluster.processes[victim].returncode == 1
        log = (cluster.directory / "logs" / f"{victim}.log").read_text()
        assert re.search(rf"a sync has not ended for 1 s.*{ADVICE}", log)
        with pytest.raises(Refused) as did_not_start:
            cluster.start_one(victim)
        said = str(did_not_start.value)
        assert "the disk has not answered for 1 s" in said
        assert ADVICE in said
        assert "backup" not in said
    finally:
        mark.unlink()
    cluster.start_one(victim)
    eventually(lambda: is_whole(cluster, table), "all replicas are in sync again", 60.0)
    assert {row["v"] for row in table.scan().to_pylist()} == {2}
