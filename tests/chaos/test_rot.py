"""What if a bit on a disk flips while a node runs? Nobody loses a row, and nobody is called."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from limosa.cli.main import main
from limosa.client import Operator, TableHandle
from limosa.core.model.topology import Replica
from limosa.errors import Refused
from tests.chaos.cluster import wait_until_equal
from tests.chaos.rot import damage, files_of, named_in, toggle
from tests.chaos.small_cluster import ROWS, SmallCluster, filled, owner_of, record_of, row
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

HEALTH_SECONDS = 30.0


@pytest.fixture(scope="module")
def running(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: SmallCluster) -> SmallCluster:
    assert running.wait_until_healthy(HEALTH_SECONDS) == []
    return running


@pytest.fixture
def connection(cluster: SmallCluster) -> Iterator[Operator]:
    with cluster.connect("rot", timeout_seconds=15.0) as connection:
        yield connection


def flip(cluster: SmallCluster, partition: str, replica: Replica) -> tuple[Path, int]:
    """Flip a bit in the first block of a segment that nobody has read yet: the file, and where."""
    directory = files_of(cluster, partition, replica)
    (name, *_) = eventually(lambda: named_in(directory), "rows are flushed")
    path = directory / name
    return path, damage(path)


def asked(cluster: SmallCluster, command: str) -> Any:
    """What a command says as JSON."""
    out = io.StringIO()
    with redirect_stdout(out):
        main([command, "--cluster", str(cluster.directory), "--json"])
    return json.loads(out.getvalue().splitlines()[-1])


def verdict(cluster: SmallCluster) -> tuple[str, str]:
    found = next(each for each in asked(cluster, "doctor")["checks"] if each["check"] == "damage")
    return found["verdict"], found["what"]


def test_a_damaged_owner_hands_over_and_is_rebuilt(
    cluster: SmallCluster, connection: Operator
) -> None:
    """S120, F193: reads, a scan and a compare-and-set of damaged rows wait and succeed; no node
    ends; the owner is another one, and the damaged replica is made anew by itself."""
    table = filled(connection, "owned", replicas=3)
    before = record_of(cluster, table)
    owner = owner_of(cluster, table)
    pids = {name: cluster.processes[name].pid for name in cluster.nodes}
    path, _ = flip(cluster, before.id, owner)
    for number in range(0, ROWS, 100):
        known = table.get_row(number)
        assert known is not None
        assert known.values == row(number)
        table.put_if({"k": number, "v": "new"}, known.version)
    assert table.count() == ROWS
    assert owner_of(cluster, table) != owner
    assert cluster.wait_until_healthy(HEALTH_SECONDS) == []
    after = record_of(cluster, table)
    assert owner not in after.replicas
    assert {replica.node for replica in after.replicas} == set(cluster.nodes)
    eventually(lambda: not path.exists(), "the damaged file is deleted")
    assert wait_until_equal(cluster, connection, 10.0) == []
    assert {name: cluster.processes[name].pid for name in cluster.nodes} == pids
    assert all(cluster.is_running(name) for name in cluster.nodes)
    assert verdict(cluster)[0] == "ok"
    connection.drop_table("owned")


def test_a_scrub_finds_damage_that_nobody_reads(
    cluster: SmallCluster, connection: Operator
) -> None:
    """F193: a follower's segment is damaged, and no client reads. The replica is rebuilt."""
    table = filled(connection, "unread", replicas=3)
    before = record_of(cluster, table)
    owner = owner_of(cluster, table)
    follower = next(each for each in before.replicas if each != owner)
    flip(cluster, before.id, follower)
    eventually(lambda: follower not in record_of(cluster, table).replicas, seconds=HEALTH_SECONDS)
    assert cluster.wait_until_healthy(HEALTH_SECONDS) == []
    assert owner_of(cluster, table) == owner
    assert wait_until_equal(cluster, connection, 10.0) == []
    connection.drop_table("unread")


def test_the_only_copy_is_kept_and_named_until_its_file_is_restored(
    cluster: SmallCluster, connection: Operator
) -> None:
    """F193: a table of one replica. Rows of other blocks are read on; `status` and `doctor` name
    the damage, also after a restart, until the operator did what `doctor` advises."""
    table = filled(connection, "alone", replicas=1)
    partition, owner = record_of(cluster, table).id, owner_of(cluster, table)
    path, at = flip(cluster, partition, owner)
    eventually(lambda: asked(cluster, "status")["damaged"], "the scrub finds it")
    kept = {"only": True, "node": owner.node, "partition": partition}
    (named,) = asked(cluster, "status")["damaged"]
    assert named.items() >= kept.items()
    assert str(path) in named["why"]
    assert verdict(cluster)[0] == "problem"
    assert str(path) in verdict(cluster)[1]
    outcomes = [outcome(table, number) for number in range(0, ROWS, 50)]
    assert any("damaged" in each for each in outcomes)
    assert all(each == "read" or str(path) in each for each in outcomes)
    table.write([{"k": -1, "v": "goes on"}])
    assert table.get(-1) == {"k": -1, "v": "goes on"}
    assert cluster.is_running(owner.node)
    cluster.terminate(owner.node)
    cluster.start_one(owner.node)
    assert cluster.wait_until_healthy(HEALTH_SECONDS) == []
    assert asked(cluster, "status")["damaged"][0].items() >= kept.items()
    assert owner_of(cluster, table) == owner
    cluster.terminate(owner.node)
    toggle(path, at)  # restored from a backup
    cluster.start_one(owner.node)
    assert cluster.wait_until_healthy(HEALTH_SECONDS) == []
    assert asked(cluster, "status")["damaged"] == []
    assert verdict(cluster)[0] == "ok"
    assert table.count() == ROWS + 1
    connection.drop_table("alone")


def test_a_damaged_log_file_is_removed_and_a_restart_finds_every_row(
    cluster: SmallCluster, connection: Operator
) -> None:
    """F193: a start would refuse the whole volume, here with the only copy of the rows. The running
    node finds the damage first, and its rows are elsewhere."""
    table = filled(connection, "logged", replicas=1)
    table.write([row(number) for number in range(ROWS, 2 * ROWS)])
    node = owner_of(cluster, table).node
    logs = cluster.directory / node / "volume" / "log"
    damaged = eventually(lambda: sorted(logs.iterdir())[:-1], "a log file is complete")[-1]
    toggle(damaged, damaged.stat().st_size // 2)
    eventually(lambda: not damaged.exists(), "the damaged file is removed", HEALTH_SECONDS)
    assert cluster.is_running(node)
    cluster.terminate(node)
    cluster.start_one(node)
    assert cluster.wait_until_healthy(HEALTH_SECONDS) == []
    assert table.count() == 2 * ROWS
    assert asked(cluster, "status")["damaged"] == []
    connection.drop_table("logged")


def outcome(table: TableHandle, number: int) -> str:
    try:
        found = table.get(number)
    except Refused as error:
        return str(error)
    assert found == row(number)
    return "read"
