"""Can every row that is accepted be replicated, read, scanned, moved and rebuilt?

On real nodes: a table of one partition with three replicas, and a fourth node to move one of them
to. Rows have the sizes at which something changes on their way, a kilobyte less and a kilobyte
more. A row above the limit is refused at once and for certain.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import limosa
from limosa.client import Operator, TableHandle
from limosa.core.model.intent import Placement
from limosa.core.model.requests import MovePartition, RebuildReplicas
from limosa.core.model.topology import Replica
from limosa.core.participant.settings import ParticipantSettings
from limosa.errors import BadInput, TooManyBytes
from limosa.pipeline import java
from limosa.runtime.local import LocalCluster
from limosa.storage.segment import BLOCK_BYTES
from limosa.tabular.sizes import (
    FRAME_BYTES_AIM,
    INLINE_KEY_BYTES,
    INLINE_ROW_BYTES,
    PIECE_BYTES,
    ROW_BYTES_MAX,
    row_bytes,
)
from limosa.transport.keys import read_secret
from limosa.transport.tokens import issue
from tests.transport import attacker
from tests.transport.attacker import Attacker, frame
from tests.waiting import eventually

KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
AT_ONCE_SECONDS = 1.0
MOVE_SECONDS = 60.0
THREADS = ["--pipeline", "threads"]
SETTINGS = ParticipantSettings()
LIMITS = sorted(
    {
        INLINE_KEY_BYTES,
        INLINE_ROW_BYTES,
        SETTINGS.shelved_bytes,
        FRAME_BYTES_AIM,
        BLOCK_BYTES,
        PIECE_BYTES,
        SETTINGS.replicate_bytes,
        ROW_BYTES_MAX,
    }
)
SIZES = [*(limit + change for limit in LIMITS for change in (-KILOBYTE, KILOBYTE))]
SIZES[-1] = ROW_BYTES_MAX
SCHEMA = {"id": "string", "size": "int64", "value": "binary"}


def row_of(id: str, size: int) -> dict[str, Any]:
    """A row of exactly so many bytes."""
    value = size - (4 + len(id.encode())) - 8 - 4
    return {"id": id, "size": size, "value": (id.encode() * (value // len(id) + 1))[:value]}


class Cluster:
    """Four nodes, and a table."""

    def __init__(self, cluster: LocalCluster, db: Operator) -> None:
        self.cluster = cluster
        self.db = db

    def table(self, name: str) -> TableHandle:
        return self.db.create_table(name, SCHEMA, "id", partitions=1, replicas=3)

    def record(self, name: str) -> Any:
        """Of a partition, or of a table with only one."""
        partitions = self.db.refresh().partitions
        return partitions.get(name) or partitions[f"{name}-0000"]

    def check_in_sync(self, name: str) -> None:
        eventually(lambda: len(self.record(name).in_sync) == 3, "three replicas are in sync")

    def check_equal(self, name: str) -> None:
        """All three replicas have the same rows."""
        self.check_in_sync(name)
        eventually(lambda: len(self.digests(name)) == 3 and len(set(self.digests(name))) == 1)

    def digests(self, name: str) -> list[tuple[int, str]]:
        return [
            (each["rows"], each["digest"])
            for node in self.cluster.nodes
            for each in self.db.node_digests(node)
            if each["partition"] == f"{name}-0000"
        ]

    def move(self, name: str, seconds: float = MOVE_SECONDS) -> None:
        """Move the owner's replica to the node that has none."""
        record = self.record(name)
        source = record.owner.replica.node
        (target,) = set(self.cluster.nodes) - {replica.node for replica in record.replicas}
        wish = MovePartition(record.id, source=source, target=Placement(target))
        self.db.submit(wish)
        eventually(lambda: self.has_moved(name, source), "the replica has moved", seconds)

    def has_moved(self, name: str, source: str) -> bool:
        record = self.record(name)
        nodes = {replica.node for replica in record.replicas}
        return record.transition is None and source not in nodes

    def rebuild(self, name: str) -> None:
        """Rebuild a replica that is not the owner's."""
        before = self.record(name)
        (other, *_) = [each for each in before.replicas if each != before.owner.replica]
        self.db.submit(RebuildReplicas(before.id, (other.node,)))
        eventually(lambda: self.is_rebuilt(name, other), "a replica is rebuilt", MOVE_SECONDS)

    def is_rebuilt(self, name: str, before: Replica) -> bool:
        record = self.record(name)
        return record.transition is None and before not in record.replicas


def running(directory: Path, *of_coordinators: str) -> Iterator[Cluster]:
    with (
        LocalCluster(directory, 4, of_coordinators=list(of_coordinators)) as cluster,
        limosa.operate(
            list(cluster.addresses.values()), cluster_name=cluster.cluster, secret=cluster.secret
        ) as db,
    ):
        yield Cluster(cluster, db)


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from running(tmp_path_factory.mktemp("sizes") / "data", *THREADS)


def check_reads(table: TableHandle, rows: list[dict[str, Any]]) -> None:
    ids = [row["id"] for row in rows]
    for row in rows:
        assert table.get(row["id"]) == row
    assert Counter(table.get_many(ids).column("id").to_pylist()) == Counter(ids)
    scanned = {row["id"]: row for row in table.scan().to_pylist()}
    assert all(scanned[row["id"]] == row for row in rows)


def test_a_row_of_every_size_up_to_the_limit_gets_everywhere(cluster: Cluster) -> None:
    """F194, S124: written, replicated to three replicas, got, scanned, moved, and copied anew."""
    table = cluster.table("everywhere")
    rows = [row_of(f"row {number}", size) for number, size in enumerate(SIZES)]
    (batch,) = pa.Table.from_pylist(rows, schema=table.schema).to_batches()
    assert row_bytes(batch).tolist() == SIZES
    for row in rows[::2]:
        began = time.monotonic()
        assert table.write([row]) == 1
        assert time.monotonic() - began < 10 * AT_ONCE_SECONDS
    assert table.write(rows[1::2]) == len(rows[1::2])
    cluster.check_equal("everywhere")
    check_reads(table, rows)
    cluster.move("everywhere")
    cluster.check_equal("everywhere")
    check_reads(table, rows)
    cluster.rebuild("everywhere")
    cluster.check_equal("everywhere")
    check_reads(table, rows)
    cluster.db.drop_table("everywhere")


def test_a_row_above_the_limit_is_refused_at_once_and_for_certain(cluster: Cluster) -> None:
    """F194, S124: with the limit, and what to do. Nothing of its batch is written."""
    table = cluster.table("refused")
    for size in (ROW_BYTES_MAX + 1, ROW_BYTES_MAX + KILOBYTE, 83_885_620, 100 * MEGABYTE):
        large = row_of("large", size)
        writes: list[Callable[[], int]] = [
            partial(table.write, large),
            partial(table.write, [row_of("small", 100), large]),
            partial(table.put_if, large, 0),
        ]
        for write in writes:
            began = time.monotonic()
            with pytest.raises(
                TooManyBytes, match=f"{size:,} bytes, and a row may have 16,777,216"
            ):
                write()
            assert time.monotonic() - began < AT_ONCE_SECONDS
    assert table.count() == 0
    with pytest.raises(TooManyBytes), table.producer() as producer:
        producer.send_many([row_of("small", 100), row_of("large", ROW_BYTES_MAX + KILOBYTE)])
    cluster.check_in_sync("refused")
    cluster.db.drop_table("refused")


def test_a_producer_writes_the_other_rows(cluster: Cluster) -> None:
    """F194."""
    table = cluster.table("produced")
    producer = table.producer(linger_seconds=60.0)
    producer.send(row_of("small", 100))
    producer.send(row_of("large", ROW_BYTES_MAX + KILOBYTE))
    producer.send(row_of("nearly", ROW_BYTES_MAX - KILOBYTE))
    with pytest.raises(BadInput, match=r"row 1 \(key 'large'\): a row for .* 16,778,240 bytes"):
        producer.close()
    assert set(table.scan(["id"]).column("id").to_pylist()) == {"nearly", "small"}
    cluster.db.drop_table("produced")


def test_a_few_large_rows_among_many_small_ones_are_cut_by_bytes(cluster: Cluster) -> None:
    """F194: in one call, to several partitions; and a move whose slices differ as much."""
    db = cluster.db
    table = db.create_table("mixed", SCHEMA, "id", partitions=2, replicas=3)
    sizes = [ROW_BYTES_MAX - KILOBYTE if each % 2_000 == 1_000 else 200 for each in range(6_000)]
    rows = [row_of(f"{number}", size) for number, size in enumerate(sizes)]
    assert table.write(pa.Table.from_pylist(rows, schema=table.schema)) == len(rows)
    large = [row for row in rows if row["size"] > 200]
    assert len(large) == 3
    assert table.count() == len(rows)
    found = table.get_many([row["id"] for row in rows])
    assert found.num_rows == len(rows)
    cluster.move(db.topology.layouts["mixed"].partitions[0])
    check_reads(table, large)
    db.drop_table("mixed")


def test_long_keys_are_read_as_well(cluster: Cluster) -> None:
    """F194: a key may be as long as a row."""
    table = cluster.table("keys")
    rows = []
    for size in (INLINE_KEY_BYTES // 4, INLINE_KEY_BYTES // 4 + 1, ROW_BYTES_MAX - KILOBYTE):
        rows.append({"id": "k" * size, "size": 0, "value": b""})
    assert table.write(rows) == len(rows)
    check_reads(table, rows)
    assert table.delete([row["id"] for row in rows]) == len(rows)
    assert table.count() == 0
    cluster.check_equal("keys")
    cluster.db.drop_table("keys")


def test_an_owner_refuses_what_another_client_sends(cluster: Cluster) -> None:
    """F194, S124: for certain, and the stream goes on. Also for clients of the version before."""
    table = cluster.table("foreign")
    record = cluster.record("foreign")
    owner = record.owner.replica.node
    assert cluster.cluster.secret is not None
    secret, name = read_secret(cluster.cluster.secret), cluster.cluster.cluster
    token = issue(secret, name, "another", "client", 600.0, time.time())
    peer = Attacker(cluster.cluster.addresses[owner], token)
    talk = peer.open()
    layout = cluster.db.topology.layouts["foreign"]
    attacker.versions[record.id] = layout.version

    def ask(*rows: dict[str, Any], sequence: int) -> list[Any]:
        (batch,) = pa.Table.from_pylist(list(rows), schema=table.schema).to_batches()
        body = table.definition.align(batch).serialize().to_pybytes()
        said = attacker.write(
            table.definition, record.id, body, epoch=record.epoch, sequence=sequence
        )
        return talk.ask(frame([said], [body]))

    began = time.monotonic()
    answer = ask(row_of("a", ROW_BYTES_MAX + KILOBYTE), sequence=1)
    assert (answer[0], answer[3]) == ("Refuse", "TooManyBytes")
    assert "16,778,240 bytes, and a row may have 16,777,216" in answer[2]
    three = [row_of(each, ROW_BYTES_MAX - KILOBYTE) for each in "abc"]
    answer = ask(*three, sequence=2)
    assert (answer[0], answer[3]) == ("Refuse", "TooManyBytes")
    assert "a write may have 33,554,432" in answer[2]
    for size in (70_000_000, 83_885_620, 90_000_000):
        answer = ask(row_of("a", size), sequence=3)
        assert (answer[0], answer[3]) == ("Refuse", "TooManyBytes")
    assert time.monotonic() - began < 10 * AT_ONCE_SECONDS
    assert ask(row_of("a", ROW_BYTES_MAX - KILOBYTE), sequence=4)[0] == "Written"
    talk.cancel()
    assert table.count() == 1
    cluster.check_equal("foreign")
    cluster.db.drop_table("foreign")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_rows_of_every_size_move_on_spark(tmp_path: Path) -> None:
    """F194."""
    for cluster in running(tmp_path / "data", "--pipeline", "spark"):
        table = cluster.table("spark")
        rows = [row_of(f"row {number}", size) for number, size in enumerate(SIZES)]
        assert table.write(rows) == len(rows)
        cluster.move("spark", seconds=300.0)
        cluster.check_equal("spark")
        check_reads(table, rows)
