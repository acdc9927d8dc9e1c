"""Do real processes do what the rows say? One cluster, one scenario after the other."""

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from limosa.client import Mismatch, Operator, TableHandle
from limosa.core.messages import Redirect, Wait, Write, Written
from limosa.core.model.topology import Partition
from limosa.errors import LimosaError
from limosa.protocol.wire import Decoder, Encoder
from tests.chaos.cluster import Cluster, digests, wait_until_equal
from tests.chaos.raw import Raw, partition_of, write_of
from tests.metastore.pausing import pause_between_commits
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

LEASE_SECONDS = 1.0
HEALTH_SECONDS = 40.0
COLUMNS = {"k": "string", "v": "int64"}


@pytest.fixture(scope="module")
def running(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, 3, coordinators=1, lease_seconds=LEASE_SECONDS) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """Everybody is well."""
    assert running.wait_until_healthy(HEALTH_SECONDS) == []
    return running


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Operator]:
    with cluster.connect("scenario", timeout_seconds=30.0) as connection:
        yield connection


@pytest.fixture
def table(connection: Operator, request: pytest.FixtureRequest) -> Iterator[TableHandle]:
    name = request.node.name.removeprefix("test_")[:40]
    yield connection.create_table(name, COLUMNS, "k", partitions=6)
    connection.drop_table(name)


def record(cluster: Cluster, table: TableHandle, key: str) -> Partition:
    """The key's partition as it is agreed upon now."""
    topology = cluster.agreed().topology
    return topology.partitions[partition_of(table, topology, key)]


def owner(cluster: Cluster, table: TableHandle, key: str) -> str:
    found = record(cluster, table, key).owner
    assert found is not None
    return found.replica.node


def has_another_owner(cluster: Cluster, table: TableHandle, key: str, old: str) -> bool:
    """Whether somebody else owns it: while a new owner is chosen, nobody does."""
    found = record(cluster, table, key).owner
    return found is not None and found.replica.node != old


def followers(cluster: Cluster, table: TableHandle, key: str) -> list[str]:
    first = owner(cluster, table, key)
    return [each.node for each in record(cluster, table, key).replicas if each.node != first]


def in_sync(cluster: Cluster, table: TableHandle, key: str) -> set[str]:
    return {replica.node for replica in record(cluster, table, key).in_sync}


# --- routing


def test_a_clients_topology_is_the_metastores(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """F1."""
    with cluster.connect("fresh") as fresh:
        known, agreed = fresh.topology, cluster.agreed().topology
        assert known.generation == agreed.generation
        assert known.partitions == agreed.partitions
        assert known.layouts == agreed.layouts
        assert known.nodes == agreed.nodes
        assert known.tables == agreed.tables


def test_every_write_carries_the_version_that_it_was_routed_under(
    cluster: Cluster,
    connection: Operator,
    table: TableHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F3."""
    frames: list[bytes] = []
    encode = Encoder.frames

    def recorded(self: Encoder, said: Any) -> list[bytes]:
        made = encode(self, said)
        frames.extend(made)
        return made

    monkeypatch.setattr(Encoder, "frames", recorded)
    table.write([{"k": f"{number}", "v": number} for number in range(100)])
    monkeypatch.undo()
    definition = table.definition
    decoder = Decoder(lambda fingerprint: definition, trusted=False)
    said = [each for frame in frames for each in decoder(pa.py_buffer(frame))]
    writes = [each for each in said if isinstance(each, Write)]
    topology = connection.topology
    layout = topology.layouts[topology.tables[table.name].zone]
    assert {write.partition for write in writes} == set(layout.partitions)
    assert {write.version for write in writes} == {layout.version}


def test_a_write_of_a_stale_version_is_redirected_and_writes_nothing(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """F4."""
    table.write({"k": "a", "v": 1})
    topology = connection.refresh()
    first = owner(cluster, table, "a")
    version = topology.layouts[topology.tables[table.name].zone].version
    with Raw(cluster, first, table) as stream:
        row = {"k": "a", "v": 2}
        answer = stream.ask(write_of(table, topology, row, 1, version=version - 1))
        assert isinstance(answer, Redirect)
        assert (answer.owner, answer.version) == (first, version)
        assert answer.definite
        assert (table.get("a"), table.count()) == ({"k": "a", "v": 1}, 1)
        assert isinstance(stream.ask(write_of(table, topology, row, 2)), Written)
    assert table.get("a") == {"k": "a", "v": 2}


def test_a_write_to_a_follower_is_redirected_and_its_stream_goes_on(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """F5."""
    table.write({"k": "a", "v": 1})
    topology = connection.refresh()
    other = followers(cluster, table, "a")[0]
    here = next(f"{each}" for each in range(1_000) if owner(cluster, table, f"{each}") == other)
    with Raw(cluster, other, table) as stream:
        answer = stream.ask(write_of(table, topology, {"k": "a", "v": 2}, 1))
        assert isinstance(answer, Redirect)
        assert answer.owner == owner(cluster, table, "a")
        assert answer.version == topology.layouts[topology.tables[table.name].zone].version
        assert answer.definite
        assert (table.get("a"), table.count()) == ({"k": "a", "v": 1}, 1)
        right = stream.ask(write_of(table, topology, {"k": here, "v": 3}, 2))
        assert isinstance(right, Written)
    assert table.get(here) == {"k": here, "v": 3}


# --- the hot path


def test_a_hundred_thousand_rows_leave_the_metastore_alone(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """F50."""
    before = cluster.agreed().revision
    keys = pa.array([f"{number:06}" for number in range(100_000)])
    values = pa.array(range(100_000), pa.int64())
    rows = pa.table({"k": keys, "v": values})
    for start in range(0, 100_000, 5_000):
        assert table.write(rows.slice(start, 5_000)) == 5_000
    assert table.count() == 100_000
    assert cluster.agreed().revision == before


def test_a_table_of_one_replica_has_its_rows_on_their_owner_only(
    cluster: Cluster, connection: Operator
) -> None:
    """F52."""
    table = connection.create_table("alone", COLUMNS, "k", partitions=3, replicas=1)
    try:
        table.write([{"k": f"{number}", "v": number} for number in range(300)])
        mine = set(cluster.agreed().topology.layouts["alone"].partitions)
        held = {
            name: nodes
            for name, nodes in digests(connection, cluster.nodes).items()
            if name in mine
        }
        assert held.keys() == mine
        for name, nodes in held.items():
            assert list(nodes) == [cluster.owner_of(name)]
        assert sum(each["rows"] for nodes in held.values() for each in nodes.values()) == 300
    finally:
        connection.drop_table("alone")


def test_many_writers_lose_nothing_and_double_nothing(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """S34."""
    writers, rounds, rows = 6, 15, 20
    problems: list[str] = []
    table.write({"k": "counter", "v": 0})

    def write(writer: int) -> None:
        for number in range(rounds):
            names = [f"{writer}-{number}-{row}" for row in range(rows)]
            table.write([{"k": name, "v": writer} for name in names])
            count_up(table, problems)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert problems == []
    assert table.get("counter") == {"k": "counter", "v": writers * rounds}
    assert table.count() == writers * rounds * rows + 1
    assert wait_until_equal(cluster, connection, 10.0) == []


def count_up(table: TableHandle, problems: list[str]) -> None:
    """Until nobody was quicker."""
    try:
        while True:
            row = table.get_row("counter")
            assert row is not None
            with suppress(Mismatch):
                table.put_if({"k": "counter", "v": row.values["v"] + 1}, row.version)
                return
    except LimosaError as error:
        problems.append(str(error))


# --- failures


def test_an_owner_that_slept_through_its_lease_is_refused_when_it_wakes(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """F35, S12."""
    table.write({"k": "a", "v": 1})
    topology = connection.refresh()
    old = owner(cluster, table, "a")
    with Raw(cluster, old, table) as stream:
        assert isinstance(stream.ask(write_of(table, topology, {"k": "a", "v": 2}, 1)), Written)
        pause_between_commits(cluster.processes[old].pid, cluster.metastore)
        try:
            # It lies in the old owner's socket until that wakes up.
            stream.send(write_of(table, topology, {"k": "a", "v": 666}, 2))
            eventually(lambda: has_another_owner(cluster, table, "a", old))
            table.write({"k": "a", "v": 3})
        finally:
            cluster.resume(old)
        answer = stream.receive()
        assert isinstance(answer, Redirect | Wait)
        eventually(lambda: cluster.ailments() == [])
        late = stream.ask(write_of(table, topology, {"k": "a", "v": 667}, 3))
        assert isinstance(late, Redirect)
        assert late.owner == owner(cluster, table, "a") != old
    assert table.get("a") == {"k": "a", "v": 3}
    table.write({"k": "a", "v": 4})
    assert table.get("a") == {"k": "a", "v": 4}
    assert wait_until_equal(cluster, connection, 10.0) == []


def test_an_owner_that_is_back_before_it_is_missed_gets_another_epoch(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """S14."""
    table.write([{"k": f"{number}", "v": number} for number in range(500)])
    before = record(cluster, table, "a")
    first = owner(cluster, table, "a")
    cluster.kill(first)
    cluster.start_one(first)
    table.write({"k": "a", "v": 1})  # by the handle and the stream of before
    eventually(lambda: cluster.ailments() == [])
    assert record(cluster, table, "a").epoch > before.epoch
    assert table.count() == 501
    assert table.get("a") == {"k": "a", "v": 1}
    assert wait_until_equal(cluster, connection, 10.0) == []


def test_what_was_acknowledged_is_read_at_once_also_across_a_failover(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """S32."""
    with cluster.connect("reader", timeout_seconds=30.0) as other:
        reader = other.table(table.name)
        first = owner(cluster, table, "a")
        number = 0

        def write_and_read(seconds: float) -> None:
            nonlocal number
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                number += 1
                table.write({"k": "a", "v": number})
                assert reader.get("a") == {"k": "a", "v": number}
                assert table.get("a") == {"k": "a", "v": number}

        write_and_read(0.5)
        cluster.kill(first)
        write_and_read(3 * LEASE_SECONDS)
        assert owner(cluster, table, "a") != first
        cluster.start_one(first)
        write_and_read(1.0)


def test_a_paused_follower_is_taken_out_and_catches_up_from_where_it_was(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """S66."""
    table.write([{"k": f"{number}", "v": 0} for number in range(100)])
    other = followers(cluster, table, "a")[0]
    before = {each.node: each.incarnation for each in record(cluster, table, "a").replicas}
    pause_between_commits(cluster.processes[other].pid, cluster.metastore)
    try:
        table.write([{"k": f"{number}", "v": 1} for number in range(100)])
        assert other not in in_sync(cluster, table, "0")
        table.write([{"k": f"new {number}", "v": 1} for number in range(100)])
    finally:
        cluster.resume(other)
    eventually(lambda: cluster.ailments() == [])
    after = {each.node: each.incarnation for each in record(cluster, table, "a").replicas}
    assert before == after  # it was not made anew
    assert table.count() == 200
    assert wait_until_equal(cluster, connection, 10.0) == []


def test_a_follower_whose_disk_refuses_does_not_count(
    cluster: Cluster, connection: Operator, table: TableHandle
) -> None:
    """S66, S67."""
    text = "x" * 1_000
    wide = connection.create_table("wide", {"k": "string", "v": "string"}, "k", partitions=1)
    try:
        wide.write([{"k": f"{number}", "v": text} for number in range(100)])
        other = followers(cluster, wide, "0")[0]
        pid = cluster.processes[other].pid
        # From now on no file of this process grows beyond that.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
        for start in range(100, 1_000, 100):
            rows = [{"k": f"{number}", "v": text} for number in range(start, start + 100)]
            wide.write(rows)
        eventually(lambda: not cluster.is_running(other))
        assert other not in in_sync(cluster, wide, "0")
        assert cluster.processes[other].returncode == 1
        assert wide.count() == 1_000
        cluster.start_one(other)
        eventually(lambda: cluster.ailments() == [])
        assert wait_until_equal(cluster, connection, 10.0) == []
        assert wide.count() == 1_000
    finally:
        connection.drop_table("wide")
