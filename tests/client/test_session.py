"""Does everything that a client asks come to an end, whatever becomes of the nodes it asks?

A node that is paused (SIGSTOP) is the worst of them: its kernel takes what it is sent until the
window is full, and nothing ever comes back, nor breaks.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from msgspec.structs import replace

import limosa
from limosa.client import Connection
from limosa.client import session as session_module
from limosa.client import table as table_module
from limosa.client.rows import to_arrow
from limosa.client.session import Session, settle
from limosa.client.table import TableHandle
from limosa.core import invariants
from limosa.core.client import Client, ClientSettings, Finished
from limosa.core.model.changes import Agreed, Put, Remove, Topology, apply, node_key
from limosa.core.model.requests import DrainNodes, JoinCluster, RemoveNode, Request, UndrainNodes
from limosa.core.model.runs import RunPlan
from limosa.core.model.topology import Cluster as ClusterRecord
from limosa.core.model.topology import NamedTable, Node
from limosa.errors import LimosaError, OutcomeUnknown, Refused
from limosa.protocol.peers import Dialer
from limosa.runtime.local import LocalCluster
from limosa.simulation.rows import SimulatedRow, SimulatedRows
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table
from limosa.transport.links import Outbound
from limosa.transport.security import Security
from tests.core.asking import answered, refused, world
from tests.metastore.pausing import pause_between_commits
from tests.waiting import eventually

TIMEOUT_SECONDS = 1.0
SLACK_SECONDS = 3.0
"""For a busy machine. What hangs, hangs for ever."""
PATIENCE_SECONDS = 10.0
MEBIBYTE = 1 << 20
WINDOW_BYTES_MAX = 6 * MEBIBYTE
"""More than a paused node's kernel and gRPC's window take."""


class Attempt:
    """Something that may hang, on a thread of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.result: object = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def ends_within(self, seconds: float) -> "Attempt":
        self.wait(seconds)
        assert not self._thread.is_alive(), f"it still hangs after {seconds} s"
        return self


# ------------------------------------------------------------------------------ paused nodes


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("session"), nodes=1, secret=False) as running:
        yield running


@pytest.fixture
def db(cluster: LocalCluster) -> Iterator[Connection]:
    address = cluster.addresses["n1"]
    with limosa.connect(address, timeout_seconds=TIMEOUT_SECONDS) as connection:
        yield connection


@pytest.fixture
def table(db: Connection) -> Iterator[TableHandle]:
    """One row is in it."""
    schema = {"id": "int64", "what": "binary"}
    made = db.create_table("birds", schema, "id", partitions=1)
    made.write({"id": 1, "what": b"one"})
    yield made
    if not db._session._closed.is_set():
        db.drop_table("birds")


@contextmanager
def paused(cluster: LocalCluster, node: str) -> Iterator[None]:
    pause_between_commits(cluster.processes[node].pid, cluster.metastore)
    try:
        yield
    finally:
        cluster.resume(node)


@pytest.mark.parametrize("size", [100, 4 * MEBIBYTE])
def test_a_write_to_a_paused_owner_ends_in_time_and_so_does_all_else(
    cluster: LocalCluster, table: TableHandle, size: int
) -> None:
    """A batch that does not fit into the window blocks whoever writes it to the network: that must
    be neither the application nor the thread that keeps the client's time."""
    row = {"id": 2, "what": os.urandom(size)}
    with paused(cluster, "n1"):
        write = Attempt(lambda: table.write(row))
        read = Attempt(lambda: table.get(1))
        for attempt in (write, read):
            attempt.ends_within(TIMEOUT_SECONDS + SLACK_SECONDS)
        again = Attempt(lambda: table.get(1)).ends_within(TIMEOUT_SECONDS + SLACK_SECONDS)
        assert isinstance(write.error, OutcomeUnknown), "it may still arrive"
        assert isinstance(read.error, Refused)
        assert isinstance(again.error, Refused)
    eventually(lambda: _is_there(table, 1), "it serves again")
    table.write(row)
    assert table.get(2) == row


def test_a_lone_read_does_not_send_the_large_write_of_another_thread(
    cluster: LocalCluster, table: TableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is queued after the read was found to be lone and before its caller sends it. The
    owner is paused: the thread that sends the write blocks."""
    pump, queued = Outbound.pump_as_caller, threading.Event()
    about_to_send = threading.Event()

    def late(link: Outbound) -> None:
        about_to_send.set()
        assert queued.wait(PATIENCE_SECONDS)
        pump(link)

    with paused(cluster, "n1"):
        monkeypatch.setattr(Outbound, "pump_as_caller", late)
        read = Attempt(lambda: table.get(1))
        assert about_to_send.wait(PATIENCE_SECONDS)
        monkeypatch.setattr(Outbound, "wake", lambda link: queued.set())
        write = Attempt(lambda: table.write({"id": 2, "what": os.urandom(4 * MEBIBYTE)}))
        assert queued.wait(PATIENCE_SECONDS)
        monkeypatch.undo()
        for attempt in (read, write):
            attempt.ends_within(TIMEOUT_SECONDS + SLACK_SECONDS)
        assert isinstance(read.error, Refused)
        assert isinstance(write.error, OutcomeUnknown)
    eventually(lambda: _is_there(table, 1), "it serves again")


def test_small_writes_that_fill_the_window_of_a_paused_owner_end_in_time(
    cluster: LocalCluster, table: TableHandle
) -> None:
    """The caller of each one sends it. When the window is full, a caller would send for ever."""
    hasty = limosa.connect(cluster.addresses["n1"], timeout_seconds=0.002)
    rows, ended = hasty.table("birds"), 0
    eventually(lambda: _is_there(rows, 1), "it is connected")

    def fill() -> None:
        nonlocal ended
        for number in range(2, 2 + WINDOW_BYTES_MAX // 16_000):
            with pytest.raises((OutcomeUnknown, Refused)):
                rows.write({"id": number, "what": os.urandom(16_000)})
            ended += 1

    with paused(cluster, "n1"):
        filling = Attempt(fill)
        while filling.is_alive:
            before = ended
            filling.wait(PATIENCE_SECONDS)
            assert ended > before, "a write hangs"
        assert filling.error is None
        Attempt(hasty.close).ends_within(SLACK_SECONDS)
    eventually(lambda: _is_there(table, 1), "it serves again")


def _is_there(table: TableHandle, id: int) -> bool:
    try:
        return table.get(id) is not None
    except Refused:
        return False


def hurry_scans(monkeypatch: pytest.MonkeyPatch, silent: float, all_in_all: float) -> None:
    monkeypatch.setattr(session_module, "SCAN_SILENT_SECONDS", silent)
    monkeypatch.setattr(table_module, "SCAN_SECONDS", all_in_all)


def test_a_scan_of_a_paused_owner_ends_with_an_error(
    cluster: LocalCluster, table: TableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry_scans(monkeypatch, 0.5, 1.0)
    assert table.count() == 1
    with paused(cluster, "n1"):
        scan = Attempt(table.scan).ends_within(2 * 1.0 + SLACK_SECONDS)
        assert isinstance(scan.error, Refused | OutcomeUnknown)
    monkeypatch.undo()
    assert table.scan().num_rows == 1


def test_a_scan_ends_with_its_connection(
    cluster: LocalCluster, table: TableHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However patient it is: nobody is there any more to hear its rows."""
    db = limosa.connect(cluster.addresses["n1"])
    assert db.table("birds").count() == 1
    options, begun = db._session._dialer.options, threading.Event()

    def noting(timeout_seconds: float | None = None) -> flight.FlightCallOptions:
        begun.set()
        return options(timeout_seconds)

    monkeypatch.setattr(db._session._dialer, "options", noting)
    with paused(cluster, "n1"):
        scan = Attempt(lambda: db._session.scan("n1", b"whatever"))
        assert begun.wait(PATIENCE_SECONDS)
        closing = Attempt(db.close)
        closing.ends_within(SLACK_SECONDS)
        scan.ends_within(SLACK_SECONDS)
        assert isinstance(scan.error, LimosaError)


@pytest.mark.processes
def test_a_scan_is_answered_by_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paused one loses its lease within seconds; the scan goes to whoever has it then."""
    hurry_scans(monkeypatch, 0.5, 20.0)
    with (
        LocalCluster(tmp_path / "cluster", nodes=3, secret=False) as cluster,
        limosa.connect(list(cluster.addresses.values())) as db,
    ):
        table = db.create_table("birds", {"id": "int64"}, "id", partitions=2, replicas=3)
        table.write([{"id": number} for number in range(50)])
        owner = db.refresh().partitions[db.topology.layouts["birds"].partitions[0]].owner
        assert owner is not None
        with paused(cluster, owner.replica.node):
            scan = Attempt(table.scan).ends_within(15.0)
            assert scan.error is None
            assert isinstance(scan.result, pa.Table)
            assert scan.result.num_rows == 50


# ----------------------------------------------------------------------------------- futures


def submit(table: TableHandle, id: int) -> "Future[Finished]":
    (batch,) = to_arrow(table.definition, [{"id": id, "what": b"new"}]).to_batches()
    return table.submit(Batch.of(table.definition, batch))


def test_what_is_under_way_cannot_be_taken_back(
    cluster: LocalCluster, db: Connection, table: TableHandle
) -> None:
    """A cancelled future that ends after all would end the thread that keeps the time instead."""
    with paused(cluster, "n1"):
        future = submit(table, 2)
        assert not future.cancel()
        ended = Attempt(lambda: settle(future)).ends_within(TIMEOUT_SECONDS + SLACK_SECONDS)
        assert isinstance(ended.error, OutcomeUnknown)
        assert all(thread.is_alive() for thread in db._session._threads)
        read = Attempt(lambda: table.get(1)).ends_within(TIMEOUT_SECONDS + SLACK_SECONDS)
        assert isinstance(read.error, Refused)
    eventually(lambda: _is_there(table, 1), "it serves again")


def test_who_is_told_of_an_end_may_ask_for_more(cluster: LocalCluster, table: TableHandle) -> None:
    """A done-callback that reads gets its answer: who hears answers does not wait for it."""
    heard: list[object] = []
    done = threading.Event()

    def callback(future: "Future[Finished]") -> None:
        try:
            heard.append(table.get(2))
            heard.append(submit(table, 3).result().outcome)
        except LimosaError as error:
            heard.append(error)
        done.set()

    with paused(cluster, "n1"):  # it is not over before the callback is there
        submit(table, 2).add_done_callback(callback)
    assert done.wait(TIMEOUT_SECONDS * 2 + SLACK_SECONDS), "it hangs"
    assert heard == [{"id": 2, "what": b"new"}, "done"]


def test_who_is_told_of_an_end_may_wait_for_what_others_are_told_of(
    cluster: LocalCluster, table: TableHandle
) -> None:
    """A callback that goes on with a write of the same kind, and waits for it, is no knot."""
    heard: list[str] = []
    done = threading.Event()

    def last(future: "Future[Finished]") -> None:
        heard.append("last")
        done.set()

    def first(future: "Future[Finished]") -> None:
        following = submit(table, 3)
        following.add_done_callback(last)
        heard.append(following.result(TIMEOUT_SECONDS + SLACK_SECONDS).outcome)

    with paused(cluster, "n1"):
        submit(table, 2).add_done_callback(first)
    assert done.wait(TIMEOUT_SECONDS + SLACK_SECONDS), "it hangs"
    eventually(lambda: sorted(heard) == ["done", "last"], "both are told")


# ---------------------------------------------------------------------------------- topology

BIRDS = Table("t1", pa.schema([("id", pa.int64())]), ("id",))
NESTS = Table("t2", pa.schema([("id", pa.int64())]), ("id",))
GOOD = "grpc://127.0.0.1:1"
MALFORMED = "grpc://bad host:70000000"


def named(name: str, table: Table) -> NamedTable:
    return NamedTable(name, name, table.id, table.encode())


def topology(generation: int, *records: NamedTable, addresses: Sequence[str] = (GOOD,)) -> Topology:
    agreed = Agreed()
    nodes = [Node(f"n{number + 1}", address) for number, address in enumerate(addresses)]
    for record in (*nodes, *records):
        agreed = apply(agreed, (Put(record),), generation)
    assert agreed.topology.generation == generation
    return agreed.topology


class Switchboard(Dialer):
    """Connects with nobody; whoever can be dialled at all gives the answer of the moment."""

    def __init__(self, answer: Topology) -> None:
        super().__init__("birds", "client", "test", Security(), lambda: None)
        self.answer = msgspec.msgpack.encode(answer)
        self.asked = 0

    def client(self, node: str, address: str) -> Any:
        if address == MALFORMED:
            return super().client(node, address)
        return self

    def do_action(self, action: object, options: object) -> list[flight.Result]:
        self.asked += 1
        return [flight.Result(pa.py_buffer(self.answer))]


@contextmanager
def session_with(switchboard: Switchboard) -> Iterator[Session]:
    session = Session({GOOD: GOOD}, switchboard, ClientSettings())
    try:
        yield session
    finally:
        session.close()


def follows(session: Session, wanted: Topology) -> bool:
    return session.topology.generation == wanted.generation


class Outage(Switchboard):
    """Nobody answers; whom a session turns to is written down."""

    def __init__(self, answer: Topology) -> None:
        super().__init__(answer)
        self.dialled: set[str] = set()
        self.is_down = False

    def client(self, node: str, address: str) -> Any:
        self.dialled.add(address)
        return self

    def do_action(self, action: object, options: object) -> list[flight.Result]:
        if self.is_down:
            raise flight.FlightUnavailableError("down")
        return super().do_action(action, options)


def test_a_node_that_has_left_stays_on_record_and_is_not_called() -> None:
    """F76: it is named by its id: nothing removes its row, nobody joins under its name, and the
    topology still has it. But a session that tries every address that it knows leaves it out."""
    nodes = [Node(name, f"grpc://{name}:1", host=f"h{name}") for name in ("a", "b", "c")]
    agreed = world(ClusterRecord("birds", "id"), nodes=tuple(nodes), live=("a", "b"))
    row, _, agreed = answered(agreed, Request("r", RemoveNode("c")))
    assert row.state == "done"
    left = agreed.topology.nodes["c"]
    assert left == replace(nodes[2], state="left")
    for request in (
        Request("r2", RemoveNode("c")),
        Request("r3", JoinCluster(nodes[2], "birds")),
        Request("r4", JoinCluster(replace(nodes[2], host="another"), "birds")),
        Request("r5", UndrainNodes(("c",))),
        Request("r6", DrainNodes(RunPlan("drain", drains=("c",)))),
    ):
        refused(agreed, request)
    forgotten = apply(agreed, (Remove(node_key("c")),), agreed.revision + 1)
    assert invariants.broken(agreed, forgotten) == ["the record of c was deleted"]
    switchboard = Outage(agreed.topology)
    with session_with(switchboard) as session:
        eventually(lambda: follows(session, agreed.topology), "it knows the topology")
        assert session.topology.nodes["c"] == left
        switchboard.is_down = True
        with pytest.raises(OutcomeUnknown):
            session.call("topology")
    assert switchboard.dialled == {GOOD, "grpc://a:1", "grpc://b:1"}


def test_a_node_that_is_behind_does_not_take_tables_back() -> None:
    """Any node is asked; one that has not followed yet must not make a table unknown again."""
    switchboard = Switchboard(topology(7, named("birds", BIRDS), named("nests", NESTS)))
    with session_with(switchboard) as session:
        assert session.tables.names == ["birds", "nests"]
        for generation in (6, 7):
            switchboard.answer = msgspec.msgpack.encode(topology(generation, named("birds", BIRDS)))
            assert session.refresh().generation == 7
            assert session.tables.names == ["birds", "nests"]
            assert set(session.topology.tables) == {"birds", "nests"}
        switchboard.answer = msgspec.msgpack.encode(topology(8, named("nests", NESTS)))
        assert session.refresh().generation == 8
        assert session.tables.names == ["nests"]


def test_an_address_that_is_none_ends_nobody() -> None:
    """What a node advertises is what an operator typed; the next node is asked instead."""
    switchboard = Switchboard(topology(7, addresses=(MALFORMED, GOOD)))
    with session_with(switchboard) as session:
        for by_hand in (True, False, True, False):
            newer = topology(session.topology.generation + 1, addresses=(MALFORMED, GOOD))
            switchboard.answer = msgspec.msgpack.encode(newer)
            session._good = "n1"  # which is asked first, then
            session.refresh() if by_hand else session._wanted.set()
            eventually(partial(follows, session, newer), "it follows")
        assert all(thread.is_alive() for thread in session._threads)


def test_an_answer_that_is_none_does_not_end_the_thread_that_asks() -> None:
    switchboard = Switchboard(topology(7))
    with session_with(switchboard) as session:
        switchboard.answer, asked = b"\xc1", switchboard.asked
        session._wanted.set()
        eventually(lambda: switchboard.asked > asked, "it asks")
        switchboard.answer = msgspec.msgpack.encode(topology(8))
        session._wanted.set()
        eventually(lambda: session.topology.generation == 8, "it asks again")


# --------------------------------------------------------------------------------- room


def test_writes_wait_while_too_much_waits_for_the_nodes_and_reads_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write that can't be sent yet must not time out in the client: its caller waits."""
    full = [True]
    monkeypatch.setattr(Client, "is_full", property(lambda self: full[0]))
    with session_with(Switchboard(topology(7))) as session:
        session.ask("unknown", keys=("k",))
        rows = {"rows": SimulatedRows((SimulatedRow("k", 0, "v"),))}
        writer = threading.Thread(target=session.ask, args=("unknown", 10), kwargs=rows)
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        full[0] = False
        writer.join(5.0)
        assert not writer.is_alive()


# --------------------------------------------------------------------------------- the order


class Slow:
    """A stream whose outbox takes its time with the first message; so others could overtake it."""

    def __init__(self) -> None:
        self.link = self
        self.sent: list[int] = []
        self.first = threading.Event()
        self.overtaken = threading.Event()
        self.ended = threading.Event()

    def put(self, messages: Sequence[int]) -> None:
        if not self.first.is_set():
            self.first.set()
            self.overtaken.wait(0.3)
        else:
            self.overtaken.set()
        self.sent += messages

    def flush(self) -> None:
        """Nothing is sent."""

    def pump_as_caller(self) -> None:
        """Nothing is sent from here."""

    def wake(self) -> None:
        """Nor from elsewhere."""

    def read(self) -> pa.Buffer:
        self.ended.wait()
        raise StopIteration

    def cancel(self) -> None:
        self.ended.set()

    def close(self) -> None:
        self.ended.set()


def test_what_was_said_while_a_link_connects_stays_before_what_is_said_later() -> None:
    """A producer's writes that overtake each other are all sent back to be sent again."""
    stream, connected = Slow(), threading.Event()

    def connect() -> Any:
        connected.wait()
        return stream

    outbound = Outbound("n1", connect, lambda frame: None)
    try:
        for number in range(3):
            outbound.send(number)
        connected.set()
        assert stream.first.wait(PATIENCE_SECONDS)
        for number in range(3, 6):
            outbound.send(number, quiet=True)
        eventually(lambda: len(stream.sent) == 6, "all of them")
        assert stream.sent == list(range(6))
    finally:
        outbound.close()
