"""Does a node that can't do what it has promised stop at once, and say nothing more?

Its brain believes that an effect is carried out when it is handed over. One that failed is
therefore the end of this run: anything said afterwards could be an ack of what is nowhere.
"""

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limosa
from limosa.client.table import TableHandle
from limosa.core.effects import (
    AcquireLease,
    AdvanceWatermark,
    AppendEntries,
    CreateReplica,
    Effect,
    ReadSlice,
    ReadTail,
    Send,
    StoreEpoch,
    VolumeEffect,
)
from limosa.core.events import LeaseEnded, NodeEvent, SliceRead, Stored, TailRead, Ticked
from limosa.core.messages import Answer, Found, Message, Read, Wait, Written
from limosa.core.model.changes import lease_key
from limosa.core.model.codec import encode
from limosa.core.model.requests import DropTable, Request
from limosa.core.model.topology import Node
from limosa.core.participant.brain import Participant
from limosa.errors import BadInput, OutcomeUnknown, Redirected, UnusableFile, VolumeFailed
from limosa.metastore.memory import MemoryMetastore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.protocol.peers import Dialer, Flushed, Peers
from limosa.protocol.scan import Scan
from limosa.protocol.wire import Keys
from limosa.runtime import service as service_module
from limosa.runtime.audit import AuditLog
from limosa.runtime.clock import BootClock
from limosa.runtime.journal import Journal
from limosa.runtime.node import NodeDriver, NodeSettings
from limosa.runtime.pipelines import PipelineConfig, mover_for
from limosa.runtime.processes import (
    CoordinatorConfig,
    CoordinatorProcess,
    NodeConfig,
    NodeProcess,
)
from limosa.runtime.service import NodeService
from limosa.storage.store import Store
from limosa.tabular.rows import Bundle
from limosa.transport.security import Security
from limosa.transport.tokens import Identity
from tests.waiting import eventually

PATIENCE_SECONDS = 8.0
OPEN = Security(insecure=True)
SLICES = 64


# ------------------------------------------------------------------------- a driver by itself


class Recorded(Peers):
    """Nobody is out there; what would be said to them is written down."""

    def __init__(self) -> None:
        super().__init__(Dialer("birds", "node", "n1", OPEN, lambda: None), lambda *_: None)
        self.sent: list[tuple[str, Message]] = []
        self.fails = False

    def put(self, to: str, messages: Sequence[Message]) -> None:
        if self.fails:
            raise RuntimeError("can't start new thread")
        self.sent += [(to, message) for message in messages]


class Scripted(Participant):
    """A brain that wants what the test tells it to want."""

    def __init__(self, wants: Callable[[NodeEvent], Sequence[Effect]]) -> None:
        super().__init__("n1", NodeSettings().participant)
        self._wants = wants
        self.heard: list[NodeEvent] = []

    def handle(self, now: float, event: NodeEvent) -> list[Effect]:
        self.heard.append(event)
        return list(self._wants(event))


class Bench:
    """A driver with a real store, and nothing else around it."""

    def __init__(self, directory: Path) -> None:
        clock = BootClock()
        metastore = MemoryMetastore(clock)
        self.peers = Recorded()
        self.store = Store({"": str(directory / "volume")})
        self.said: list[str] = []
        self.log: Callable[..., None] = lambda what, **_: self.said.append(what)
        self.failures: list[Exception] = []
        self.told = threading.Event()
        self.driver = NodeDriver(
            Node("n1"),
            self.store,
            lambda: metastore,
            clock,
            self.peers,
            NodeSettings(),
            lambda what, **details: self.log(what, **details),
            self._failed,
        )

    def _failed(self, error: Exception) -> None:
        self.failures.append(error)
        self.told.set()

    def script(self, wants: Callable[[NodeEvent], Sequence[Effect]]) -> Scripted:
        self.driver.brain = brain = Scripted(wants)
        return brain


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.driver.stop()


ACK = Send("client:1", Written("w.1", 7))
NOWHERE = StoreEpoch("birds-0000", "c1", 1, 3)


def test_a_store_takes_nothing_for_a_replica_that_it_does_not_know(tmp_path: Path) -> None:
    """It would be said to be durable with the next sync, and be nowhere."""
    with Store({"": str(tmp_path / "volume")}) as store:
        with pytest.raises(BadInput, match="replica c1 of birds-0000 is not here"):
            store.write(NOWHERE)
        assert store.sync() == 0, "what was not taken is not durable"
        store.write(CreateReplica("birds-0000", "c1", 1, ""))
        store.write(StoreEpoch("birds-0000", "c1", 2, 3))
        assert store.sync() == 2


def failing_write(bench: Bench) -> Effect:
    return NOWHERE


def failing_send(bench: Bench) -> Effect:
    """Peers open links as they need them, and a process may have too many threads."""
    bench.peers.fails = True
    return Send("n2", Written("w.0", 6))


def failing_lease(bench: Bench) -> Effect:
    def acquire(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    bench.driver._heartbeat.acquire = acquire  # type: ignore[assignment]
    return AcquireLease()


def failing_digest(bench: Bench) -> Effect:
    """The write is done, what comes with it is not."""
    bench.store.write(CreateReplica("birds-0000", "c1", 1, ""))

    def view(*_: object) -> None:
        raise BadInput("it is not here")

    bench.store.view = view  # type: ignore[assignment]
    return AdvanceWatermark("birds-0000", "c1", 2, 0, digest=True)


@pytest.mark.parametrize("failing", [failing_write, failing_send, failing_lease, failing_digest])
def test_after_an_effect_that_failed_no_other_is_carried_out(
    bench: Bench, failing: Callable[[Bench], Effect]
) -> None:
    """An ack that outran its failed write would be of a row that nobody has."""
    failed = failing(bench)
    brain = bench.script(lambda event: [failed, ACK])
    with suppress(RuntimeError, BadInput):  # whoever delivers may be told, or not
        bench.driver.deliver(Ticked())
    bench.peers.fails = False
    assert bench.driver.is_over
    assert bench.peers.sent == []
    eventually(lambda: len(bench.failures) == 1, "the process is told")
    bench.driver.deliver_all([Ticked(), Ticked()])
    assert len(brain.heard) == 1, "nor is anything begun"
    assert bench.peers.sent == []


def test_an_effect_that_a_worker_carries_out_fails_by_itself_only(bench: Bench) -> None:
    """A tail that can't be read is answered without entries: the brain waits for that."""
    brain = bench.script(
        lambda event: [ReadTail("birds-0000", "c1", 1, 0, 100)] if event == Ticked() else []
    )
    bench.driver.deliver(Ticked())
    eventually(lambda: TailRead(1, ()) in brain.heard, "an answer")
    assert not bench.driver.is_over


@pytest.mark.parametrize("error", [VolumeFailed("EIO"), RuntimeError("ours"), BadInput("ours")])
def test_a_thread_that_syncs_in_vain_ends_the_run(bench: Bench, error: Exception) -> None:
    """Without it the node would keep its lease, and make nothing durable."""
    create = CreateReplica("birds-0000", "c1", 1, "")
    bench.script(lambda event: [create] if event == LeaseEnded(9) else [])

    def sync(name: str) -> int:
        raise error

    bench.store.sync_volume = sync  # type: ignore[method-assign]
    bench.driver.start()
    bench.driver.deliver(LeaseEnded(9))
    eventually(lambda: bench.failures == [error], "the process is told")
    assert bench.driver.is_over


@pytest.mark.parametrize("event", [Ticked(), Stored(1, "")])
def test_a_thread_that_meets_a_mistake_of_ours_ends_the_run(bench: Bench, event: NodeEvent) -> None:
    """A node that ticks or syncs no more is worse than none: others would wait for it."""
    create = CreateReplica("birds-0000", "c1", 1, "")

    def wants(heard: NodeEvent) -> Sequence[Effect]:
        if heard == event:
            raise ZeroDivisionError("ours")
        return [create] if heard == LeaseEnded(9) else []

    bench.script(wants)
    bench.driver.start()
    bench.driver.deliver(LeaseEnded(9))
    eventually(lambda: bool(bench.failures), "the process is told")
    assert isinstance(bench.failures[0], ZeroDivisionError)
    assert bench.driver.is_over


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_ends_nobody() -> None:
    """The disk of the logs is full: a coordinator would stop its commits, and stay in office."""
    for stream in (Full(), io.StringIO()):
        for json in (False, True):
            journal = Journal("n1", stream=stream, json=json)
            journal("before", error=ValueError("x"))
            stream.close()
            journal("after")


def test_a_run_is_over_even_if_that_can_not_be_logged(bench: Bench) -> None:
    def log(what: str, **_: object) -> None:
        raise OSError(28, "No space left on device")

    bench.log = log
    bench.script(lambda event: [NOWHERE, ACK])
    with suppress(OSError):
        bench.driver.deliver(Ticked())
    assert bench.driver.is_over
    assert bench.peers.sent == []
    bench.log = lambda what, **_: None
    eventually(lambda: len(bench.failures) == 1, "the process is told")


def test_a_request_that_nobody_answered_may_still_happen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It lies where a coordinator will find it: to say that it did not happen would be a lie."""
    monkeypatch.setattr(service_module, "REQUEST_SECONDS", 0.05)
    audit = AuditLog(tmp_path / "audit.ndjson")
    service = NodeService(bench.driver, "birds", lambda what, **_: None, audit)
    request = Request("drop-1", DropTable("birds", "t1"))
    admin = Identity("alice", "admin")
    with pytest.raises(OutcomeUnknown, match="no coordinator answered") as caught:
        service.act(admin, "request", encode(request))
    assert not caught.value.definite
    asked, answered = map(msgspec.json.decode, audit.path.read_text().splitlines())
    assert (asked["event"], asked["author"], asked["operation"]) == ("asked", "alice", "drop-1")
    assert (answered["event"], answered["state"]) == ("answered", "unknown")


# ------------------------------------------------------------------------------- a whole node


class House:
    """A coordinator and nodes, in this process."""

    def __init__(self, directory: Path, ending: ExitStack) -> None:
        self.directory = directory
        self._ending = ending
        self.journal = Journal("test", stream=io.StringIO())
        config = CoordinatorConfig(
            name="c", cluster="birds", metastore=self.metastore, security=OPEN
        )
        carrying = PipelineConfig(kind="threads", scratch=str(directory / "spark"))
        mover = mover_for(carrying, OPEN, "birds", "c", self.journal)
        self.coordinator = CoordinatorProcess(config, mover, self.journal)
        ending.callback(self.coordinator.stop)

    @property
    def metastore(self) -> str:
        return str(self.directory / "metastore.db")

    def node(self, volumes: Sequence[str] = ()) -> NodeProcess:
        made = NodeProcess(
            NodeConfig(
                name="n1",
                cluster="birds",
                metastore=self.metastore,
                data=str(self.directory / "n1"),
                volumes={name: str(self.directory / f"volume-{name}") for name in volumes},
                security=OPEN,
            ),
            self.journal,
        )
        self._ending.callback(made.stop)
        return made

    def table(
        self, node: NodeProcess, timeout_seconds: float = 30.0, partitions: int = 1
    ) -> TableHandle:
        """One row is in it: 1 → 10."""
        connection = limosa.connect(node.server.address, timeout_seconds=timeout_seconds)
        self._ending.callback(connection.close)
        table = connection.create_table(
            "birds", {"id": "int64", "eggs": "int64"}, "id", partitions=partitions, replicas=1
        )
        table.write({"id": 1, "eggs": 10})
        return table


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as ending:
        yield House(tmp_path, ending)


def read(node: NodeProcess, table: TableHandle, eventual: bool = False) -> Answer:
    """As the thread of a client's stream does it."""
    topology = node.driver.brain.topology
    (record,) = topology.partitions.values()
    asked = Read(
        "r.1",
        record.id,
        topology.layouts[record.zone].version,
        record.epoch,
        topology.revision_of(record.id),
        Keys(table.definition, (1,)),
        table.definition.id,
        eventual,
    )
    return node.driver.reader.read(asked)


def scan(node: NodeProcess, table: TableHandle) -> int:
    topology = node.driver.brain.topology
    (record,) = topology.partitions.values()
    asked = Scan(
        table.definition.fingerprint,
        record.id,
        topology.layouts[record.zone].version,
        record.epoch,
        topology.revision_of(record.id),
    )
    return sum(batch.num_rows for batch in node.driver.reader.scan(asked, table.definition))


def test_a_node_with_a_damaged_volume_offers_only_the_others(house: House) -> None:
    """A replica that was placed on the damaged one would be written to nowhere, and acked."""
    first = house.node("ab")
    assert first.driver.node.volumes == ("a", "b")
    first.stop()
    (house.directory / "volume-b" / "VOLUME").write_bytes(b"garbage")
    second = house.node("ab")
    assert second.driver.node.volumes == ("a",)
    assert [refusal.what for refusal in second.store.refused] == ["volume b"]
    eventually(
        lambda: second.driver.agreed.topology.nodes["n1"].volumes == ("a",),
        "so does everybody know it",
    )
    table = house.table(second)
    assert table.count() == 1
    assert {held.replica.volume for held in second.driver.brain.held.values()} == {"a"}


def test_a_node_without_a_usable_volume_does_not_start(tmp_path: Path) -> None:
    """And lets go of its directories: whoever mends them can start it again."""
    for name in "ab":
        Store({name: str(tmp_path / f"volume-{name}")}).close()
        (tmp_path / f"volume-{name}" / "VOLUME").write_bytes(b"garbage")
    config = NodeConfig(
        name="n1",
        cluster="birds",
        metastore=str(tmp_path / "metastore.db"),
        data=str(tmp_path / "n1"),
        volumes={name: str(tmp_path / f"volume-{name}") for name in "ab"},
        security=OPEN,
    )
    for _ in range(2):
        with pytest.raises(UnusableFile, match=r"no volume can be used: .*damaged.*damaged"):
            NodeProcess(config, Journal("n1", stream=io.StringIO()))


def break_sync(store: Store, error: Exception) -> None:
    def sync(name: str) -> int:
        raise error

    store.sync_volume = sync  # type: ignore[method-assign]


def break_writes_of(kind: type[VolumeEffect]) -> Callable[[Store, Exception], None]:
    def breaks(store: Store, error: Exception) -> None:
        real = store.write

        def write(change: VolumeEffect) -> None:
            if isinstance(change, kind):
                raise error
            real(change)

        store.write = write  # type: ignore[method-assign]

    return breaks


@pytest.mark.parametrize(
    ("breaks", "error"),
    [
        pytest.param(break_sync, VolumeFailed("EIO"), id="sync"),
        pytest.param(break_writes_of(AppendEntries), RuntimeError("ours"), id="append"),
        pytest.param(break_writes_of(AdvanceWatermark), VolumeFailed("EIO"), id="watermark"),
    ],
)
def test_when_a_disk_fails_nothing_is_acked_and_nothing_is_read(
    house: House, breaks: Callable[[Store, Exception], None], error: Exception
) -> None:
    """The brain may have moved a watermark that the view never got: a read would show the old
    row after the new one was acked, and an ack would be of a row that is not durable."""
    node = house.node()
    table = house.table(node, timeout_seconds=0.6)
    assert isinstance(read(node, table), Found)
    said: list[Message] = []
    put = node.driver.peers.put

    def noting(to: str, messages: Sequence[Message]) -> Flushed | None:
        said.extend(messages)
        return put(to, messages)

    node.driver.peers.put = noting  # type: ignore[method-assign]
    breaks(node.store, error)
    with pytest.raises(OutcomeUnknown):
        table.write({"id": 1, "eggs": 42})
    assert node.driver.is_over
    assert not [message for message in said if isinstance(message, Written)]
    for eventual in (False, True):
        assert isinstance(read(node, table, eventual=eventual), Wait)
    with pytest.raises(Redirected):
        scan(node, table)
    assert node.end.ended.wait(PATIENCE_SECONDS)
    assert node.end.failure is error


def test_a_node_that_stops_answers_nothing_once_its_lease_is_given_back(house: House) -> None:
    """Another one may own its partitions by then, and have acked newer rows."""
    node = house.node()
    table = house.table(node)
    assert isinstance(read(node, table), Found)
    assert scan(node, table) == 1
    answers: list[Answer] = []
    revoke = node.driver._heartbeat.revoke

    def revoking(lease: int) -> None:
        revoke(lease)
        answers.extend([read(node, table), read(node, table, eventual=True)])
        with pytest.raises(Redirected):
            scan(node, table)

    node.driver._heartbeat.revoke = revoking  # type: ignore[method-assign]
    node.stop()
    assert len(answers) == 2
    assert not [answer for answer in answers if isinstance(answer, Found)]
    assert node.driver.brain.lease is None


def test_slices_divide_what_a_partition_holds(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of all tokens would put a partition, which is a small part of them, into one or two:
    each is a single frame, and a partition of 80 MiB could never be copied."""
    node = house.node()
    table = house.table(node, partitions=8)
    table.write([{"id": number, "eggs": 0} for number in range(2_000)])
    read: list[SliceRead] = []
    deliver = node.driver.deliver

    def noting(event: NodeEvent) -> None:
        read.append(event) if isinstance(event, SliceRead) else deliver(event)

    monkeypatch.setattr(node.driver, "deliver", noting)
    for partition, incarnation in list(node.driver.brain.held):
        rows = node.store.view(partition, incarnation).count(table.definition)
        read.clear()
        for number in range(SLICES):
            node.driver._read_slice(ReadSlice(partition, incarnation, number, number, SLICES))
        bundles = [each.rows for each in read]
        assert all(isinstance(bundle, Bundle) for bundle in bundles)
        sizes = [len(bundle) for bundle in bundles]
        assert sum(sizes) == rows, "each row once"
        assert max(sizes) < rows / 12, "and in slices of about the same size"


class Crowded:
    """A lock that a tick waits for: when the lease is over, it is the next to have it."""

    def __init__(self, driver: NodeDriver) -> None:
        self._lock = threading.Lock()
        self._driver = driver
        self.ticked = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._driver.brain.lease is None and not self.ticked:
            self.ticked = True
            self._driver.deliver(Ticked())


def test_a_node_that_stops_does_not_take_another_lease(house: House) -> None:
    """A tick between the end of its lease and the end of its run must not begin the next one:
    the others would wait until that lease runs out, and clients with them."""
    node = house.node()
    crowded: Any = Crowded(node.driver)
    node.driver._lock = crowded
    node.stop()
    assert crowded.ticked
    with closing(SqliteMetastore(house.metastore, BootClock())) as metastore:
        assert metastore.get(lease_key("n1")) is None


def test_a_node_whose_lock_is_taken_for_long_keeps_its_lease(house: House) -> None:
    """Renewals, and the extension of the lease by them, wait for nothing that the brain does."""
    driver = house.node().driver
    lease = driver.brain.lease
    assert lease is not None
    with driver._lock:
        until = lease.valid_until
        eventually(lambda: lease.valid_until > until, "the lease is extended", PATIENCE_SECONDS)
