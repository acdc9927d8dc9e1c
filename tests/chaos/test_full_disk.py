"""What if the disks are full? Reads and leases go on, and all is well again when there is space."""

import time
from collections.abc import Iterator

import pytest

from limosa.client import Operator, TableHandle
from limosa.errors import DiskFull, LimosaError, OutcomeUnknown
from tests.chaos.cluster import wait_until_equal
from tests.chaos.small_cluster import ROWS, SmallCluster, filled, owner_of, record_of, row
from tests.chaos.small_node import FULL, QUOTA
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

HEALTH_SECONDS = 30.0
LEASE_SECONDS = 2.5
"""Long enough that a busy machine does not end a lease: only full disks are tried here."""
FULL_SECONDS = 2.2 * LEASE_SECONDS


@pytest.fixture(scope="module")
def running(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with SmallCluster(tmp_path_factory.mktemp("cluster"), lease_seconds=LEASE_SECONDS) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: SmallCluster) -> Iterator[SmallCluster]:
    assert running.wait_until_healthy(HEALTH_SECONDS) == []
    yield running
    for name in running.nodes:
        make_room(running, name)


@pytest.fixture
def connection(cluster: SmallCluster) -> Iterator[Operator]:
    with cluster.connect("full", timeout_seconds=5.0) as connection:
        yield connection


def fill(cluster: SmallCluster, node: str, how: str = FULL) -> None:
    (cluster.directory / node / how).touch()


def make_room(cluster: SmallCluster, node: str) -> None:
    for how in (FULL, QUOTA):
        (cluster.directory / node / how).unlink(missing_ok=True)


def runs(cluster: SmallCluster) -> dict[str, tuple[int, int]]:
    """The process and the lease of each node."""
    leases = cluster.agreed().leases
    return {
        name: (cluster.processes[name].pid, leases[name].lease)
        for name in cluster.nodes
        if cluster.is_running(name)
    }


def refusal_of(table: TableHandle, number: int) -> LimosaError | None:
    try:
        table.write([row(number)])
    except LimosaError as error:
        return error
    return None


def test_full_disks_refuse_writes_and_serve_reads(
    cluster: SmallCluster, connection: Operator
) -> None:
    """S129: all disks are full to the last byte, for several leases. No node and no lease ends, the
    refusal says why, and writes go on as soon as there is space."""
    table = filled(connection, "full", replicas=3)
    before, owner = runs(cluster), owner_of(cluster, table)
    for name in cluster.nodes:
        fill(cluster, name)
    refused = eventually(
        lambda: isinstance(error := refusal_of(table, -1), DiskFull) and error, "writes are refused"
    )
    assert "accepts no writes" in str(refused)
    assert "free space" in str(refused)
    until = time.monotonic() + FULL_SECONDS
    while time.monotonic() < until:
        assert table.get(7) == row(7)
        assert isinstance(refusal_of(table, -1), DiskFull)
        time.sleep(0.1)
    assert table.count() in (ROWS, ROWS + 1)
    assert runs(cluster) == before
    assert owner_of(cluster, table) == owner
    for name in cluster.nodes:
        make_room(cluster, name)
    eventually(lambda: refusal_of(table, -1) is None, "writes go on")
    assert cluster.wait_until_healthy(HEALTH_SECONDS) == []
    assert runs(cluster) == before
    assert table.count() == ROWS + 1
    assert wait_until_equal(cluster, connection, 10.0) == []
    connection.drop_table("full")


@pytest.mark.parametrize("victim", [pytest.param("owner", marks=pytest.mark.slow), "follower"])
def test_a_disk_that_is_full_though_it_said_otherwise_ends_nothing(
    cluster: SmallCluster, connection: Operator, victim: str
) -> None:
    """S129: a quota. The log of the node has a torn end for a moment; writes that were under way
    end as they should, or with an unknown outcome, and no acknowledged row is lost."""
    table = filled(connection, f"quota_{victim}", replicas=3)
    before, owner = runs(cluster), owner_of(cluster, table).node
    struck = next(name for name in cluster.nodes if (name == owner) == (victim == "owner"))
    fill(cluster, struck, QUOTA)
    acknowledged = []
    until = time.monotonic() + FULL_SECONDS
    number = ROWS
    while time.monotonic() < until:
        error = refusal_of(table, number)
        if error is None:
            acknowledged.append(number)
        else:
            assert isinstance(error, DiskFull | OutcomeUnknown)
        assert table.get(7) == row(7)
        number += 1
    if victim == "follower":
        assert acknowledged
        assert struck not in {each.node for each in record_of(cluster, table).in_sync}
    assert runs(cluster) == before
    make_room(cluster, struck)
    eventually(lambda: refusal_of(table, number) is None, "writes go on")
    assert cluster.wait_until_healthy(HEALTH_SECONDS) == []
    assert runs(cluster) == before
    assert all(table.get(each) == row(each) for each in acknowledged)
    assert wait_until_equal(cluster, connection, 10.0) == []
    connection.drop_table(f"quota_{victim}")
