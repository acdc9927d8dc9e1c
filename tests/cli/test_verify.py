"""Does `limosa verify` name exactly the rows that differ, also of a cluster that is in use?"""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from msgspec import Struct

import limosa as limosa_client
from limosa.cli.shared.options import ClusterOptions
from limosa.client.operator import Operator
from limosa.core.effects import ApplySlice, Compare
from limosa.core.model.intent import Placement
from limosa.core.model.keys import position
from limosa.core.model.requests import MovePartition
from limosa.core.model.topology import Partition, Replica
from limosa.errors import Forbidden, LimosaError
from limosa.pipeline import java
from limosa.pipeline.carriers import Done, ThreadCarrier
from limosa.pipeline.examining import FlightSource
from limosa.pipeline.loads import CopyTarget as ReplicaTarget
from limosa.pipeline.loads import Permit
from limosa.pipeline.mover import PipelineMover
from limosa.pipeline.pipe import Access
from limosa.pipeline.portions import Examination
from limosa.protocol.replica_scan import ReplicaScan
from limosa.runtime.local import LocalCluster
from limosa.storage.store import Store
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from limosa.transport.failures import from_flight_error
from limosa.transport.keys import read_secret
from limosa.transport.tokens import COMPARISON, Sessions, issue
from limosa.transport.tokens import check as check_token
from tests.cli.running import Limosa, Ran
from tests.waiting import eventually

ROWS = 2_000
THREADS = ("--pipeline", "threads")


# --- a healthy cluster


@pytest.fixture
def table(limosa: Limosa) -> str:
    create = ("table", "create", "checked", "--column", "id:int64", "--column", "v:string")
    limosa(*create, "--key", "id", "--partitions", "4")
    lines = "".join(f"{number},{number % 7}\n" for number in range(ROWS))
    limosa.well("write", "checked", "-", "--format", "csv", stdin=f"id,v\n{lines}".encode())
    return "checked"


def test_equal_replicas_are_said_to_be_equal(limosa: Limosa, table: str) -> None:
    said = limosa.well("verify", table, *THREADS, "--json").json
    assert said["equal"]
    assert (said["rows"], said["partitions"], said["replicas"]) == (ROWS, 4, 12)
    assert said["differences"] == said["lagging"] == said["errors"] == said["left_out"] == []
    assert (said["more"], said["unsettled"]) == (0, 0)
    text = limosa.well("verify", table, *THREADS).text
    assert text.startswith("checked: 2,000 rows of 4 partitions compared in ")
    assert text.endswith("all are equal.\n")


def test_a_table_without_other_replicas_has_nothing_to_compare(limosa: Limosa) -> None:
    create = ("table", "create", "single", "--column", "id:int64", "--key", "id")
    limosa(*create, "--partitions", "1", "--replicas", "1")
    ran = limosa.well("verify", "single", *THREADS)
    assert "there was nothing to compare" in ran.text
    assert ": the partition's only replica." in ran.err


def test_an_unknown_table_is_refused(limosa: Limosa) -> None:
    ran = limosa("verify", "nothing", *THREADS)
    assert ran.code == 2
    assert "there is no table 'nothing'" in ran.error


def test_without_spark_it_is_refused_before_anything_begins(
    limosa: Limosa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words that install it."""
    monkeypatch.setattr(java, "missing", lambda: "PySpark is not installed")
    monkeypatch.setattr(ClusterOptions, "connect", lambda self: pytest.fail("it connects"))
    ran = limosa("verify", "checked")
    assert ran.code == 2
    assert java.INSTALL in ran.error
    assert "--pipeline threads" in ran.error


@pytest.mark.skipif(bool(java.missing()), reason="needs Spark")
def test_a_spark_that_does_not_start_is_said_so(limosa: Limosa, table: str) -> None:
    ran = limosa("verify", table, "--spark-master", "local[nothing]")
    assert ran.code == 1
    assert "the rows were not compared" in ran.error


# --- a cluster in which rows were changed behind everybody's back


class Damaged(Struct, frozen=True):
    cluster: LocalCluster
    differences: dict[int, str]
    """What is wrong, by the rows' ids."""

    def connect(self) -> Operator:
        return limosa_client.operate(self.cluster.addresses["n1"], secret=self.cluster.secret)

    @property
    def options(self) -> tuple[str, ...]:
        return options_of(self.cluster)


def options_of(cluster: LocalCluster) -> tuple[str, ...]:
    assert cluster.secret is not None
    return ("--cluster", cluster.addresses["n1"].rpartition("/")[2], "--secret", cluster.secret)


def records(connection: Operator) -> list[Partition]:
    return [record for _, record in sorted(connection.refresh().partitions.items())]


def held_by(records: list[Partition], node: str) -> dict[str, Replica]:
    return {r.id: replica for r in records for replica in r.replicas if replica.node == node}


def load(cluster: LocalCluster) -> None:
    with limosa_client.operate(cluster.addresses["n1"], secret=cluster.secret) as connection:
        table = connection.create_table(
            "t", {"id": "int64", "v": "string"}, "id", partitions=2, replicas=3
        )
        ids = np.arange(ROWS)
        table.write(pa.record_batch({"id": ids, "v": [f"v{number}" for number in ids]}))
        table.delete([5, 6])


def all_in_sync(connection: Operator) -> bool:
    return all(len(r.in_sync) == 3 and r.owner is not None for r in records(connection))


def has_all(connection: Operator, node: str) -> bool:
    """A replica that is no owner hears a little later that all have a row."""
    rows: int = sum(each["rows"] for each in connection.node_status(node)["replicas"])
    return rows >= ROWS


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    """While n2 is stopped a row there is changed, one is deleted, and one is made from nothing."""
    directory = tmp_path_factory.mktemp("damaged")
    with LocalCluster(directory, 3, of_coordinators=THREADS) as cluster:
        load(cluster)
        with limosa_client.operate(cluster.addresses["n1"], secret=cluster.secret) as connection:
            table = connection.table("t").definition
            eventually(lambda: all_in_sync(connection) and has_all(connection, "n2"), seconds=90.0)
            held = held_by(records(connection), "n2")
            cluster.terminate("n2")
            differences = damage(directory / "n2" / "volume", held, table)
            cluster.start_one("n2")
            eventually(lambda: all_in_sync(connection), seconds=90.0)
        yield Damaged(cluster, differences)


def damage(directory: Path, held: dict[str, Replica], table: Table) -> dict[int, str]:
    """In the first partition; what `verify` should say of each row."""
    partition, replica = min(held.items())
    with Store({"": str(directory)}) as store:
        view = store.view(partition, replica.incarnation)
        ids: list[Any] = [
            id for batch in view.batches(table) for id in batch.columns["id"].to_pylist()
        ]
        changed, deleted = sorted(ids)[:2]
        made = next(id for id in range(10**6, 10**7) if is_low(table, id))
        wrong = ((changed, "wrong"), (deleted, None), (made, "made"))
        for ticket, (id, value) in enumerate(wrong, 1):
            found = view.find(table, (id,))
            version = position(1, 1) if found is None else found.version
            columns = pa.record_batch({"id": [id], "v": pa.array([value], pa.string())})
            rows = Batch(
                table, table.align(columns), None, np.array([version]), np.array([value is None])
            )
            copied = (Bundle([rows]),)
            store.write(ApplySlice(partition, replica.incarnation, ticket, copied, ()))
        store.sync()
    return {changed: "differs at", deleted: "deleted at", made: "missing at"}


def is_low(table: Table, id: int) -> bool:
    """In the first of two partitions."""
    return table.token_of((id,)) < 0


def check(ran: Ran, wrong: Damaged) -> None:
    assert ran.code == 1
    told = {
        int(each.partition(":")[0].removeprefix("id=")): each for each in ran.json["differences"]
    }
    assert told.keys() == wrong.differences.keys()
    for id, words in wrong.differences.items():
        assert words in told[id]
        assert "n2" in told[id]
    assert (ran.json["more"], ran.json["errors"], ran.json["lagging"]) == (0, [], [])
    assert not ran.json["equal"]
    assert ran.json["replicas"] == 6


def test_exactly_the_rows_that_differ_are_named(limosa: Limosa, wrong: Damaged) -> None:
    """F102, F104: a changed row, a deleted one and one that is nowhere else."""
    check(limosa("verify", "t", *THREADS, "--json", *wrong.options), wrong)
    ran = limosa("verify", "t", *THREADS, *wrong.options)
    assert ran.code == 1
    assert ran.text.count("\n") == 4
    assert ran.text.endswith("3 rows differ.\n")


@pytest.mark.skipif(bool(java.missing()), reason="needs Spark")
def test_spark_names_the_same_rows(limosa: Limosa, wrong: Damaged) -> None:
    """The workers are other processes, and nothing of Spark's is left behind."""
    before = set(Path("/tmp").glob("limosa-verify-*"))
    ran = limosa("verify", "t", "--pipeline", "spark", "--json", *wrong.options)
    check(ran, wrong)
    assert set(Path("/tmp").glob("limosa-verify-*")) <= before


@pytest.mark.processes
def test_the_mover_tells_which_rows_of_a_move_differ(wrong: Damaged) -> None:
    """F104: for a verification whose digests differ; asking twice is asking once."""
    told: list[tuple[tuple[str, ...], int]] = []
    ended = threading.Event()

    def then(differences: tuple[str, ...], more: int) -> None:
        told.append((differences, more))
        ended.set()

    with wrong.connect() as connection:
        record = records(connection)[0]
        others = {replica.node: replica for replica in record.replicas}
        nodes = connection.topology.nodes.values()
        addresses = {node.id: node.address for node in nodes}
        (token,) = connection.comparison_tokens([record.id]).tokens
        asked: list[Sessions] = []

        def permitted(sessions: Sessions) -> Permit:
            asked.append(sessions)
            return Permit(token)

        mover = PipelineMover(ThreadCarrier(), Access(""), permitted, 0.0, lambda *_, **__: None)
        mover.follow(addresses)
        job = Compare(record.id, "s@1", others["n1"], (others["n2"], others["n3"]))
        mover.compare(job, then)
        mover.compare(job, then)
        assert ended.wait(30.0)
    assert asked == [((record.id, COMPARISON),)]
    ((differences, more),) = told
    assert more == 0
    assert len(differences) == 3
    assert all(each.startswith("t id=") and "n2" in each for each in differences)


# --- who may ask, and for what


def ask(wrong: Damaged, role: str, scan: ReplicaScan | bytes, sessions: Sessions = ()) -> pa.Table:
    assert wrong.cluster.secret is not None
    if role == "mover" and isinstance(scan, ReplicaScan):
        sessions = sessions or ((scan.partition, COMPARISON),)
    secret = read_secret(wrong.cluster.secret)
    token = issue(secret, "local", "me", role, 60.0, time.time(), sessions)
    dialer = Access("").dialer("me", token)
    client = dialer.client("n1", wrong.cluster.addresses["n1"])
    ticket = flight.Ticket(scan if isinstance(scan, bytes) else scan.encode())
    try:
        return client.do_get(ticket, dialer.options(10.0)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise from_flight_error(error) from None


@pytest.mark.processes
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"partition": "nowhere"}, "is not here"),
        ({"incarnation": "c999"}, "is not here"),
        ({"ranges": ()}, "0 token ranges"),
        ({"ranges": ((5, 5),)}, "is not a range of tokens"),
        ({"ranges": ((0, 2**64 - 1),)}, "is not a range of tokens"),
        ({"ranges": ((0, 10), (5, 20))}, "overlap"),
        ({"ranges": tuple((n, n + 1) for n in range(2_000))}, "2000 token ranges"),
        ({"table": b"nothing"}, "this is not the schema of a table"),
    ],
)
def test_what_makes_no_sense_is_refused(
    wrong: Damaged, change: dict[str, object], said: str
) -> None:
    with wrong.connect() as connection:
        table = connection.table("t").definition
        partition, replica = sorted(held_by(records(connection), "n1").items())[0]
    sound = ReplicaScan(partition, replica.incarnation, table.encode(), ((-(2**63), 2**63),))
    assert ask(wrong, "mover", sound).num_rows > ROWS // 4
    with pytest.raises(LimosaError, match=said):
        ask(wrong, "mover", msgspec.structs.replace(sound, **change))


@pytest.mark.processes
def test_only_admins_and_movers_may_ask(wrong: Damaged) -> None:
    with wrong.connect() as connection:
        table = connection.table("t").definition
        partition, replica = sorted(held_by(records(connection), "n1").items())[0]
    sound = ReplicaScan(partition, replica.incarnation, table.encode(), ((-(2**63), 2**63),))
    assert ask(wrong, "admin", sound).num_rows
    for role in ("client", "node", "coordinator"):
        with pytest.raises(LimosaError, match="admin or mover"):
            ask(wrong, role, sound)
    with pytest.raises(LimosaError, match="malformed ticket of a replica scan"):
        ask(wrong, "admin", b"replica:what?")
    for others in ((("nowhere", COMPARISON),), ((partition, "t@1"),)):
        with pytest.raises(Forbidden, match="for other sessions"):
            ask(wrong, "mover", sound, others)


@pytest.mark.processes
@pytest.mark.parametrize("role", ["admin", "client"])
def test_no_task_of_a_verification_gets_the_operators_token(
    wrong: Damaged, limosa: Limosa, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """Each portion has a mover's token for its own partition, which lives for minutes; also for an
    operator who has a token and not the secret. Who may not compare gets none."""
    assert wrong.cluster.secret is not None
    secret = read_secret(wrong.cluster.secret)
    own = issue(secret, "local", "ann", role, 60.0, time.time())
    given: list[tuple[bytes, Sequence[bytes]]] = []
    run = ThreadCarrier.run

    def noted(
        self: ThreadCarrier, job: str, work: str, access: bytes, tasks: Sequence[bytes], done: Done
    ) -> None:
        given.append((access, tasks))
        run(self, job, work, access, tasks, done)

    monkeypatch.setattr(ThreadCarrier, "run", noted)
    address = wrong.cluster.addresses["n1"]
    words = ("verify", "t", "--pipeline", "threads", "--cluster", address, "--token", own)
    ran = limosa(*words)
    assert ran.code == 1
    if role == "client":
        assert "needs admin" in ran.error
        assert not given
        return
    assert b"differ" in ran.out
    assert given
    now = time.time()
    for access, tasks in given:
        assert own.encode() not in b"".join((access, *tasks))
        for each in tasks:
            for portion in msgspec.msgpack.decode(each, type=Examination).portions:
                assert portion.permit.token is not None
                identity = check_token(secret, "local", portion.permit.token, now)
                assert (identity.role, identity.subject) == ("mover", "compare:ann")
                assert identity.expires_at is not None
                assert identity.expires_at < now + 15 * 60
                identity.must_be_for(((portion.partition, COMPARISON),))


@pytest.mark.processes
def test_a_replica_that_is_not_so_far_says_how_far_it_is(wrong: Damaged) -> None:
    with wrong.connect() as connection:
        table = connection.table("t").definition
        partition, replica = sorted(held_by(records(connection), "n3").items())[0]
        (token,) = connection.comparison_tokens([partition]).tokens
        source = FlightSource(wrong.cluster.addresses, Access("").dialer("me", token))
        target = ReplicaTarget("n3", replica.incarnation)
        whole = [records(connection)[0].range]
        all_rows = source.read(target, partition, table, whole, 0)
        late = source.read(target, partition, table, whole, all_rows.at.watermark + 1)
        source.close()
    assert len(all_rows) > ROWS // 4
    assert (len(late), late.at) == (0, all_rows.at)


# --- while it lives


@pytest.mark.slow
def test_a_cluster_that_is_written_to_while_a_partition_moves_is_equal(
    limosa: Limosa, tmp_path: Path
) -> None:
    """F67, F102, F115, S37: rows are written and deleted while a partition moves there and back,
    and is compared all the time: nothing differs, and no comparison holds up the move."""
    with LocalCluster(tmp_path / "live", 3, of_coordinators=THREADS) as cluster:
        connection = limosa_client.operate(cluster.addresses["n1"], secret=cluster.secret)
        table = connection.create_table(
            "t", {"id": "int64", "v": "string"}, "id", partitions=1, replicas=2
        )
        stopping = threading.Event()

        def write() -> None:
            chance = np.random.default_rng(1)
            while not stopping.is_set():
                ids = np.unique(chance.integers(0, 5_000, 200))
                table.write(pa.record_batch({"id": ids, "v": [f"{chance.random()}"] * len(ids)}))
                table.delete([int(id) for id in ids[:10]])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            (record,) = records(connection)
            old = record.replicas[0].node
            new = next(node for node in ("n1", "n2", "n3") if node not in nodes_of(record))
            for source, target in ((old, new), (new, old)):
                place = Placement(target, "")
                connection.submit(MovePartition(record.id, source=source, target=place))
                for _ in range(2):
                    said = limosa("verify", "t", *THREADS, "--json", *options_of(cluster)).json
                    assert said["differences"] == []
                    assert said["equal"], said
                eventually(lambda now=target: has_moved(connection, now), seconds=60.0)  # type: ignore[misc]
        finally:
            stopping.set()
            writer.join()
            connection.close()


def nodes_of(record: Partition) -> set[str]:
    return {replica.node for replica in record.replicas}


def has_moved(connection: Operator, node: str) -> bool:
    (record,) = records(connection)
    return record.transition is None and node in nodes_of(record)
