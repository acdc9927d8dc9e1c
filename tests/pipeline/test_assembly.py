"""Is Spark used where it is installed, and is it said what to do where it is not?"""

import io
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

import limosa
from limosa.client import Operator
from limosa.core.client import Asked, Client, ClientSettings
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import Send
from limosa.core.events import TopologyRead
from limosa.core.messages import Read
from limosa.core.model.changes import Agreed, Put, Topology, apply
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    MovePartition,
    RebuildReplicas,
    RepairPartition,
    Request,
    SetReplicas,
)
from limosa.core.model.topology import Layout
from limosa.errors import BadInput, Forbidden, IllegalRequest
from limosa.pipeline import java
from limosa.pipeline.carriers import SparkCarrier, ThreadCarrier
from limosa.pipeline.mover import PipelineMover
from limosa.runtime.journal import Journal
from limosa.runtime.pipelines import PipelineConfig, mover_for, settings_for
from limosa.runtime.processes import (
    CoordinatorConfig,
    CoordinatorProcess,
    NodeConfig,
    NodeProcess,
)
from limosa.transport.keys import make_secret, read_secret
from limosa.transport.security import Security
from limosa.transport.tokens import check
from tests.waiting import eventually

OPEN = Security(insecure=True)
LACKS = "PySpark is not installed"

Kind = Literal["auto", "spark", "threads"]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "missing", lambda: LACKS)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "missing", lambda: "")


def config(tmp_path: Path, kind: Kind) -> PipelineConfig:
    return PipelineConfig(kind=kind, scratch=str(tmp_path / "spark"))


def make(tmp_path: Path, kind: Kind, security: Security = OPEN) -> PipelineMover:
    journal = Journal("test", stream=io.StringIO())
    made = mover_for(config(tmp_path, kind), security, "birds", "c", journal)(lambda *_: None)
    assert isinstance(made, PipelineMover)
    return made


# --- by itself


@pytest.mark.usefixtures("without")
def test_without_spark_moves_are_refused_with_what_to_do(tmp_path: Path) -> None:
    settings = settings_for(config(tmp_path, "auto"), CoordinatorSettings())
    assert settings.moves_refused == f"partitions move on Spark, and {LACKS}"
    assert java.INSTALL in settings.moves_advice
    assert isinstance(make(tmp_path, "auto")._carrier, ThreadCarrier), "for lost replicas"


@pytest.mark.usefixtures("without")
def test_who_insists_on_spark_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=LACKS) as refused:
        settings_for(config(tmp_path, "spark"), CoordinatorSettings())
    assert java.INSTALL in str(refused.value)


@pytest.mark.usefixtures("without")
def test_who_asks_for_threads_may_move(tmp_path: Path) -> None:
    assert settings_for(config(tmp_path, "threads"), CoordinatorSettings()) == CoordinatorSettings()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("kind", "carrier"),
    [("auto", SparkCarrier), ("spark", SparkCarrier), ("threads", ThreadCarrier)],
)
def test_spark_is_used_where_it_is_installed_and_wanted(
    tmp_path: Path, kind: Kind, carrier: type
) -> None:
    assert settings_for(config(tmp_path, kind), CoordinatorSettings()) == CoordinatorSettings()
    made = make(tmp_path, kind)
    assert isinstance(made._carrier, carrier)
    made.close()
    assert not (tmp_path / "spark").exists(), "it was not needed, and not started"


def test_a_task_calls_nodes_as_a_mover(tmp_path: Path) -> None:
    """And the secret itself does not travel."""
    path = tmp_path / "secret"
    make_secret(str(path))
    mover = make(tmp_path, "threads", Security(secret=str(path)))
    sessions = (("p1", "t@1"), ("p2", "t@1"))
    permit = mover._permit(sessions)
    secret = read_secret(str(path))
    path.unlink()
    assert permit.token is not None
    identity = check(secret, "birds", permit.token, time.time())
    assert (identity.subject, identity.role) == ("c-mover", "mover")
    assert identity.expires_at is not None
    assert identity.expires_at <= time.time() + 15 * 60, "it lives for minutes"
    assert permit.seconds == pytest.approx(identity.expires_at - identity.issued_at)
    identity.must_be_for(sessions)
    for others in ((), sessions[:1], (*sessions, ("p3", "t@1")), (("p1", "t@2"), ("p2", "t@1"))):
        with pytest.raises(Forbidden, match="other sessions"):
            identity.must_be_for(others)
    assert str(path).encode() not in mover._access


def test_a_secret_that_can_not_be_read_ends_the_start(tmp_path: Path) -> None:
    """And not, much later, the thread that keeps a coordinator in office."""
    with pytest.raises(BadInput):
        make(tmp_path, "threads", Security(secret=str(tmp_path / "nowhere")))


# --- with nodes


class House:
    """A coordinator and two nodes, in this process."""

    def __init__(self, directory: Path, kind: Kind, ending: ExitStack) -> None:
        self._directory = directory
        self._journal = Journal("test", stream=io.StringIO())
        carrying = config(directory, kind)
        coordinator = CoordinatorProcess(
            CoordinatorConfig(
                name="c",
                cluster="birds",
                metastore=self.metastore,
                security=OPEN,
                settings=settings_for(carrying, CoordinatorSettings()),
            ),
            mover_for(carrying, OPEN, "birds", "c", self._journal),
            self._journal,
        )
        ending.callback(coordinator.stop)
        self.nodes = {name: self._node(name, ending) for name in ("n1", "n2")}
        self.connection = limosa.operate(self.nodes["n1"].server.address)
        ending.callback(self.connection.close)
        self.table = self.connection.create_table(
            "birds", {"id": "int64", "eggs": "int64"}, "id", partitions=1, replicas=1
        )
        self.table.write([{"id": number, "eggs": number} for number in range(500)])

    @property
    def metastore(self) -> str:
        return str(self._directory / "metastore.db")

    def _node(self, name: str, ending: ExitStack) -> NodeProcess:
        data = str(self._directory / name)
        made = NodeProcess(
            NodeConfig(
                name=name, cluster="birds", metastore=self.metastore, data=data, security=OPEN
            ),
            self._journal,
        )
        ending.callback(made.stop)
        return made

    def move(self) -> str:
        """To the other node; returns that."""
        (record,) = self.connection.refresh().partitions.values()
        (source,) = (replica.node for replica in record.replicas)
        (target,) = set(self.nodes) - {source}
        self.connection.submit(MovePartition(record.id, source=source, target=Placement(target)))
        return target

    def holder(self) -> str | None:
        """Of the one replica; None: on its way."""
        (record,) = self.connection.refresh().partitions.values()
        return None if record.transition is not None else record.replicas[0].node


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.usefixtures("without")
def test_where_spark_is_missing_a_move_is_refused_up_front(
    tmp_path: Path, ending: ExitStack
) -> None:
    house = House(tmp_path, "auto", ending)
    before = house.holder()
    with pytest.raises(IllegalRequest, match=LACKS) as refused:
        house.move()
    assert java.INSTALL in str(refused.value)
    assert house.holder() == before


@pytest.mark.usefixtures("without")
def test_where_threads_are_asked_for_a_move_is_made(tmp_path: Path, ending: ExitStack) -> None:
    """F98: there and back again, and every row is there."""
    house = House(tmp_path, "threads", ending)
    for _ in range(2):
        target = house.move()
        eventually(lambda target=target: house.holder() == target, "it has moved")  # type: ignore[misc]
        rows = {row["id"]: row["eggs"] for row in house.table.scan().to_pylist()}
        assert rows == {number: number for number in range(500)}


@pytest.mark.usefixtures("without")
def test_tables_of_one_zone_are_changed_together(tmp_path: Path, ending: ExitStack) -> None:
    """F139: two tables share a zone. A move copies both and drops both at the source; another
    replica count, a repair and a rebuild are about both; and once the zone's layout has other
    partitions, both are routed by it."""
    house = House(tmp_path, "threads", ending)
    operator = house.connection
    songs = operator.create_table("songs", {"id": "int64", "notes": "int64"}, "id", zone="birds")
    songs.write([{"id": number, "notes": -number} for number in range(300)])
    (partition,) = operator.refresh().partitions

    def held(node: str) -> list[int]:
        """Rows of each replica there, of all tables."""
        return [replica["rows"] for replica in operator.node_digests(node)]

    def is_whole() -> bool:
        eggs = {row["id"]: row["eggs"] for row in house.table.scan().to_pylist()}
        notes = {row["id"]: row["notes"] for row in songs.scan().to_pylist()}
        return eggs == {n: n for n in range(500)} and notes == {n: -n for n in range(300)}

    target = house.move()
    (source,) = set(house.nodes) - {target}
    eventually(lambda: house.holder() == target, "it has moved")
    eventually(lambda: (held(source), held(target)) == ([], [800]), "both tables are there")
    assert is_whole()

    operator.request(Request("more", SetReplicas("birds", 2)))
    for number, request in enumerate(
        (
            None,
            Request("repair", RepairPartition(partition)),
            Request("rebuild", RebuildReplicas(partition, (source,))),
        )
    ):
        if request is not None:
            operator.request(request)
        eventually(lambda n=number: reports(operator, partition) == ["done"] * (n + 2), "it ends")  # type: ignore[misc]
        eventually(lambda: held(source) == held(target) == [800], "both tables are on both nodes")
        assert is_whole()

    topology = split(operator.refresh(), partition)
    client = Client("c", ClientSettings())
    client.handle(0.0, TopologyRead(topology, topology.generation))
    for table in topology.tables.values():
        asked = [Asked(f"{table.id}{t}", table.zone, table=table.id, token=t) for t in (-1, 1)]
        sent = [effect for each in asked for effect in client.handle(0.0, each)]
        reads = [each.message for each in sent if isinstance(each, Send)]
        assert [each.partition for each in reads if isinstance(each, Read)] == ["low", "high"]


def reports(operator: Operator, partition: str) -> list[str]:
    """How each change of the partition ended."""
    return [report.outcome for report in operator.state(partition).reports.values()]


def split(topology: Topology, partition: str) -> Topology:
    """The zone's one partition is two."""
    record = topology.partitions[partition]
    layout = topology.layouts[record.zone]
    names = ("low", "high")
    halves = Layout(layout.zone, layout.version + 1, (layout.starts[0], 0), names)
    changes = [Put(replace(record, id=n, range=halves.range_of(i))) for i, n in enumerate(names)]
    agreed = Agreed(topology.generation, topology)
    return apply(agreed, (*changes, Put(halves)), topology.generation + 1).topology
