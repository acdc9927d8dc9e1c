"""Is every row that a producer took written, or told of? With futures in hand, and for real."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from decimal import Decimal
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import limosa
from limosa.client import Connection
from limosa.client.producer import FAILURES_MAX, BadRows, Producer
from limosa.client.schema import schema_of
from limosa.core.client import Finished
from limosa.errors import BadInput, InvalidKey, InvalidSchema, OutcomeUnknown, Refused
from limosa.runtime.local import LocalCluster
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table
from tests.waiting import eventually

SECONDS = 10.0
NEVER = 3_600.0
TABLE = Table("t1", schema_of({"k": "int64", "n": "int64", "name": "string"}), ("k",))


class FakeTable:
    """Takes batches, and ends them when it is told to."""

    def __init__(self, definition: Table = TABLE, ends: bool = False) -> None:
        self.definition = definition
        self.ends = ends
        """Every batch at once."""
        self.batches: list[Batch] = []
        self.futures: list[Future[Finished]] = []
        self.room = threading.Event()
        self.room.set()
        self.error: Exception | None = None
        self._lock = threading.Lock()

    def submit(self, batch: Batch) -> "Future[Finished]":
        while not self.room.wait(0.05):
            pass
        if self.error is not None:
            raise self.error
        future: Future[Finished] = Future()
        with self._lock:
            self.batches.append(batch)
            self.futures.append(future)
        if self.ends:
            self.end(future)
        return future

    def end(self, future: "Future[Finished]", error: Exception | None = None) -> None:
        """As a session does: a lock is held that `submit` needs."""
        with self._lock:
            if error is None:
                future.set_result(Finished("1", "done", 1))
            else:
                future.set_exception(error)

    def written(self) -> list[Any]:
        """The keys of all rows, in the order in which they came."""
        return [key for batch in self.batches for key in batch.columns.column("k").to_pylist()]


class Call:
    """A call in a thread of its own, and how it ended."""

    def __init__(self, what: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._what = what
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._what()
        except BaseException as error:
            self.error = error

    def is_under_way(self) -> bool:
        """Still, a moment later."""
        self._thread.join(0.1)
        return self._thread.is_alive()

    def result(self) -> BaseException | None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "it hangs"
        return self.error


def until_waiting(producer: Producer, flushes: int) -> None:
    """So many flushes have begun and wait, so that what is sent now is sent after them."""
    eventually(lambda: len(vars(producer._progress)["_waiters"]) == flushes)


def lost(n: int = 0) -> OutcomeUnknown:
    return OutcomeUnknown(f"no answer {n}", "look")


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


# ------------------------------------------------------------------------------ what flush means


def test_each_of_two_flushes_waits_for_everything_that_was_sent_before(table: FakeTable) -> None:
    """The first one does not take away what the second one has to wait for."""
    producer = Producer(table, NEVER)
    producer.send({"k": 1})
    first = Call(producer.flush)
    eventually(lambda: table.futures)
    second = Call(producer.flush)
    until_waiting(producer, 2)
    producer.send({"k": 2})
    third = Call(producer.flush)
    eventually(lambda: len(table.futures) == 2)
    table.end(table.futures[1])
    assert first.is_under_way(), "a later batch is not the one it waits for"
    table.end(table.futures[0])
    assert [call.result() for call in (first, second, third)] == [None] * 3
    assert producer.acked == 2
    producer.close()


def test_a_flush_does_not_wait_for_what_is_sent_later(table: FakeTable) -> None:
    producer = Producer(table, NEVER)
    producer.send({"k": 1})
    flush = Call(producer.flush)
    until_waiting(producer, 1)
    producer.send_many([{"k": 2}])
    table.end(table.futures[0])
    assert flush.result() is None
    table.end(table.futures[1])
    producer.close()


def test_a_flush_waits_for_a_batch_that_is_only_just_being_sent(table: FakeTable) -> None:
    """There is no moment between `gathered` and `pending` in which a row is overlooked."""
    table.room.clear()
    producer = Producer(table, NEVER, batch_rows=2)
    producer.send({"k": 1})
    sender = Call(lambda: producer.send({"k": 2}))
    assert sender.is_under_way()
    flush = Call(producer.flush)
    assert flush.is_under_way()
    table.room.set()
    assert sender.result() is None
    assert flush.is_under_way()
    table.end(table.futures[0])
    assert flush.result() is None
    producer.close()


def test_an_error_is_raised_by_a_flush_and_by_no_send(table: FakeTable) -> None:
    producer = Producer(table, NEVER, batch_rows=1)
    producer.send({"k": 1})
    table.end(table.futures[0], lost())
    eventually(lambda: producer.failures)
    producer.send({"k": 2})
    producer.send_many([{"k": 3}])
    table.end(table.futures[1])
    table.end(table.futures[2])
    with pytest.raises(OutcomeUnknown, match="no answer"):
        producer.flush()
    assert [(failure.rows, failure.first) for failure in producer.failures] == [(1, 1)]
    producer.flush()
    assert not producer.failures
    assert producer.acked == 2
    producer.close()


def test_two_flushes_at_the_same_time_are_both_told(table: FakeTable) -> None:
    producer = Producer(table, NEVER, batch_rows=1)
    producer.send({"k": 1})
    producer.send({"k": 2})
    first = Call(producer.flush)
    until_waiting(producer, 1)
    table.end(table.futures[0], lost())
    eventually(lambda: producer.failures)
    second = Call(producer.flush)
    until_waiting(producer, 2)
    table.end(table.futures[1])
    assert isinstance(first.result(), OutcomeUnknown)
    assert isinstance(second.result(), OutcomeUnknown)
    producer.flush()
    producer.close()


def test_a_flush_leaves_the_failures_of_what_was_sent_later_to_the_next(table: FakeTable) -> None:
    producer = Producer(table, NEVER, batch_rows=1)
    producer.send({"k": 1})
    flush = Call(producer.flush)
    until_waiting(producer, 1)
    producer.send({"k": 2})
    table.end(table.futures[1], lost())
    table.end(table.futures[0])
    assert flush.result() is None
    with pytest.raises(OutcomeUnknown):
        producer.flush()
    producer.close()


def test_the_first_failure_in_the_order_of_sending_is_raised(table: FakeTable) -> None:
    producer = Producer(table, NEVER, batch_rows=1)
    for key in range(3):
        producer.send({"k": key})
    for place in (2, 1, 0):
        table.end(table.futures[place], lost(place))
    with pytest.raises(OutcomeUnknown, match="no answer 0"):
        producer.close()
    assert [str(each.error)[:11] for each in producer.failures] == [
        "no answer 0",
        "no answer 1",
        "no answer 2",
    ]


def test_failures_that_nobody_asks_for_take_little_memory(table: FakeTable) -> None:
    table.error = Refused("the connection is closed", "connect again")
    producer = Producer(table, NEVER, batch_rows=1)
    for key in range(3 * FAILURES_MAX):
        producer.send({"k": key})
    with pytest.raises(Refused, match="the connection is closed"):
        producer.flush()
    assert len(producer.failures) == FAILURES_MAX
    assert sum(failure.rows for failure in producer.failures) == 3 * FAILURES_MAX
    producer.flush()
    assert not producer.failures
    producer.close()


def test_a_flush_and_many_blocked_senders_do_not_hold_each_other_up(table: FakeTable) -> None:
    """The session has no room for a while: whoever sends waits, and nothing is lost."""
    table.ends = True
    table.room.clear()
    producer = Producer(table, 0.001, batch_rows=2)

    def send(first: int) -> None:
        for key in range(first, first + 20):
            producer.send({"k": key})

    senders = [Call(lambda first=first: send(first)) for first in (0, 100, 200)]  # type: ignore[misc]
    flush = Call(producer.flush)
    assert flush.is_under_way()
    assert not table.batches
    table.room.set()
    assert [call.result() for call in (*senders, flush)] == [None] * 4
    producer.close()
    for first in (0, 100, 200):
        mine = [key for key in table.written() if first <= key < first + 20]
        assert mine == list(range(first, first + 20))


# -------------------------------------------------------------------------------- what close means


def test_what_is_sent_is_either_refused_or_written_while_it_closes() -> None:
    """A `send` beside a `close` is not taken and then forgotten."""
    for _ in range(30):
        table = FakeTable(ends=True)
        producer = Producer(table, NEVER, batch_rows=7)
        taken: list[list[int]] = [[], []]

        def send(mine: list[int], first: int, producer: Producer = producer) -> None:
            for key in range(first, first + 100_000):
                if key % 10 == 9:
                    producer.send_many([{"k": key}])
                else:
                    producer.send({"k": key})
                mine.append(key)

        senders = [
            Call(lambda send=send, mine=mine, at=at: send(mine, at))  # type: ignore[misc]
            for mine, at in zip(taken, (0, 1_000_000), strict=True)
        ]
        eventually(lambda taken=taken: all(taken))  # type: ignore[misc]
        producer.close()
        assert all(isinstance(sender.result(), Refused) for sender in senders)
        assert sorted(table.written()) == sorted(taken[0] + taken[1])
        assert producer.acked == len(table.written())


def test_a_close_waits_for_rows_that_are_being_sent(table: FakeTable) -> None:
    producer = Producer(table, NEVER)
    table.room.clear()
    sender = Call(lambda: producer.send_many([{"k": 1}]))
    eventually(producer._sending.locked)
    assert sender.is_under_way()
    close = Call(producer.close)
    eventually(lambda: producer._closed)
    assert close.is_under_way()
    with pytest.raises(Refused, match="closed"):
        producer.send({"k": 2})
    table.room.set()
    assert sender.result() is None
    assert close.is_under_way()
    table.end(table.futures[0])
    assert close.result() is None
    assert producer.acked == 1


def test_a_second_close_does_nothing(table: FakeTable) -> None:
    table.error = Refused("the connection is closed", "connect again")
    producer = Producer(table, NEVER)
    producer.send({"k": 1})
    with pytest.raises(Refused, match="the connection is closed"):
        producer.close()
    producer.close()
    producer.flush()
    with pytest.raises(Refused, match="the producer is closed"):
        producer.send({"k": 1})
    with pytest.raises(Refused, match="the producer is closed"):
        producer.send_many([{"k": 1}])
    assert not any(thread is producer._thread for thread in threading.enumerate())


def test_what_broke_the_block_is_raised_rather_than_what_the_close_says(table: FakeTable) -> None:
    table.error = Refused("the connection is closed", "connect again")

    def work() -> None:
        with Producer(table, NEVER) as producer:
            producer.send({"k": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert "the connection is closed" in caught.value.__notes__[0]


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """A Ctrl-C, but by another signal: pytest has its own ideas about this one."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.get_ident()
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_flush_can_be_called_again(table: FakeTable) -> None:
    producer = Producer(table, NEVER)
    producer.send({"k": 1})
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
        producer.flush()
    table.end(table.futures[0], lost())
    with pytest.raises(OutcomeUnknown):
        producer.flush()
    producer.close()


def test_an_interrupted_close_is_finished_in_the_background(table: FakeTable) -> None:
    producer = Producer(table, NEVER)
    producer.send({"k": 1})
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
        producer.close()
    producer.close()
    table.end(table.futures[0])
    eventually(lambda: producer.acked == 1)
    producer._thread.join(SECONDS)
    assert not producer._thread.is_alive()


def test_rows_whose_sending_was_interrupted_are_told_of(table: FakeTable) -> None:
    """They were taken, so the end of the block does not pass over them."""
    table.room.clear()

    def work() -> None:
        with Producer(table, NEVER, batch_rows=2) as producer, interrupted_after(0.1):
            producer.send({"k": 1})
            producer.send({"k": 2})

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert "interrupted while 2 rows were sent" in caught.value.__notes__[0]
    assert not table.batches


# ------------------------------------------------------------------------------------- single rows


COLUMNS: list[tuple[str, pa.DataType]] = [
    ("k", pa.float64()),
    ("price", pa.decimal128(6, 2)),
    ("flag", pa.bool_()),
    ("tags", pa.list_(pa.string())),
    ("n", pa.int64()),
    ("name", pa.string()),
]
VARIED = Table("t2", pa.schema(COLUMNS), ("k",))


@pytest.mark.parametrize(
    ("row", "kind", "match"),
    [
        ({"k": 1.0, "colour": "red"}, InvalidSchema, "colour"),
        ({"n": 1}, InvalidKey, "column k"),
        ({"k": None}, InvalidKey, "column k"),
        ({"k": float("nan")}, InvalidKey, "key column k is NaN"),
        ({"k": np.float64("nan")}, InvalidKey, "key column k is NaN"),
        ({"k": 1.0, "n": "text"}, InvalidSchema, "column n can't be converted to int64"),
        ({"k": 1.0, "n": 1.5}, InvalidSchema, "fraction"),
        ({"k": 1.0, "name": 5}, InvalidSchema, "column name"),
        ({"k": 1.0, "tags": 5}, InvalidSchema, "column tags"),
        ({"k": 1.0, "flag": 1}, InvalidSchema, "column flag"),
        ({"k": 1.0, "price": 0.5}, InvalidSchema, "column price"),
        ([1.0], BadInput, "a row is a list"),
    ],
)
def test_a_wrong_row_is_refused_at_once_and_no_other(
    row: Any, kind: type[BadInput], match: str
) -> None:
    table = FakeTable(VARIED, ends=True)
    with Producer(table, NEVER) as producer:
        producer.send({"k": 1.0, "n": 1})
        with pytest.raises(kind, match=match) as caught:
            producer.send(row)
        assert caught.value.advice
        producer.send({"k": 2})
        producer.flush()
        assert producer.acked == 2
    assert table.written() == [1.0, 2.0]


def test_values_of_unusual_types_are_taken_if_they_fit() -> None:
    table = FakeTable(VARIED, ends=True)
    with Producer(table, NEVER) as producer:
        producer.send({"k": np.float32(0.5), "n": np.int8(3), "price": 5, "tags": ("a", None)})
        producer.send({"k": 1, "n": 2.0, "price": Decimal("1.5"), "flag": np.True_})
    first, second = table.batches[0].columns.to_pylist()
    assert (first["k"], first["n"], first["tags"]) == (0.5, 3, ["a", None])
    assert (second["k"], second["n"], second["flag"]) == (1.0, 2, True)
    assert (first["price"], second["price"]) == (Decimal("5.00"), Decimal("1.50"))


def test_a_row_is_what_it_was_when_it_was_sent(table: FakeTable) -> None:
    table.ends = True
    row: dict[str, Any] = {"k": 1, "n": 1}
    with Producer(table, NEVER) as producer:
        producer.send(row)
        row.update(k=None, colour="red")
    assert table.written() == [1]


def test_a_value_that_does_not_fit_costs_its_own_row_only(table: FakeTable) -> None:
    """Its type is right, so it is seen late; 998 good rows around two bad ones are written."""
    table.ends = True
    producer = Producer(table, NEVER, batch_rows=1_000)
    producer.send_many([{"k": -1}])
    bad: dict[int, dict[str, Any]] = {17: {"n": 2**70}, 900: {"name": "\ud800"}}
    for key in range(1_000):
        producer.send({"k": key, "n": 1} | bad.get(key, {}))
    producer.send({"k": 5_000})
    with pytest.raises(BadRows) as caught:
        producer.flush()
    assert caught.value.places == [(18, "n"), (901, "name")]
    assert "row 18 (key 17): column n can't be converted to int64" in str(caught.value)
    assert "row 901 (key 900): column name" in str(caught.value)
    assert [failure.rows for failure in producer.failures] == [2]
    assert table.written() == [-1, *(key for key in range(1_000) if key not in bad), 5_000]
    assert producer.acked == 1_000
    producer.flush()
    producer.close()


def test_a_batch_of_bad_rows_only_is_not_sent(table: FakeTable) -> None:
    producer = Producer(table, NEVER)
    for key in range(9):
        producer.send({"k": key, "n": -(2**64)})
    with pytest.raises(BadRows, match="and 4 more"):
        producer.close()
    assert not table.batches


def test_rows_that_are_sent_together_are_checked_together(table: FakeTable) -> None:
    table.ends = True
    with Producer(table, NEVER) as producer:
        producer.send({"k": 1})
        with pytest.raises(InvalidKey):
            producer.send_many(pa.table({"k": pa.array([2, None], pa.int64())}))
        with pytest.raises(InvalidSchema):
            producer.send_many([{"k": 3}, {"k": 4, "n": 2**70}])
        producer.send_many([])
    assert table.written() == [1]


# ------------------------------------------------------------------------------- acknowledgements


def test_acknowledgements_come_once_and_in_the_order_of_sending(table: FakeTable) -> None:
    acked: list[int] = []
    producer = Producer(table, NEVER, on_ack=acked.append)
    for size in (1, 2, 3, 4):
        producer.send_many([{"k": key} for key in range(size)])
    table.end(table.futures[3])
    table.end(table.futures[1], lost())
    time.sleep(0.05)
    assert not acked
    table.end(table.futures[0])
    eventually(lambda: acked == [1])
    table.end(table.futures[2])
    with pytest.raises(OutcomeUnknown):
        producer.close()
    assert acked == [1, 3, 4]
    assert producer.acked == 8


def test_whoever_is_told_of_an_acknowledgement_may_send(table: FakeTable) -> None:
    """Even a batch that is full at once."""
    table.ends = True

    def more(count: int) -> None:
        if producer.acked < 50:
            producer.send({"k": producer.acked})

    producer = Producer(table, NEVER, batch_rows=1, on_ack=more)
    producer.send({"k": 0})
    eventually(lambda: producer.acked == 50)
    assert Call(producer.close).result() is None
    assert table.written() == list(range(50))


def test_whoever_is_told_of_an_acknowledgement_may_not_wait_for_it(table: FakeTable) -> None:
    table.ends = True
    refused: list[str] = []

    def wait(count: int) -> None:
        for what in (producer.flush, producer.close):
            with pytest.raises(Refused, match="on_ack must not flush") as caught:
                what()
            refused.append(caught.value.advice)

    producer = Producer(table, NEVER, on_ack=wait)
    producer.send({"k": 0})
    assert Call(producer.close).result() is None
    assert len(refused) == 2


def test_an_error_of_the_application_is_raised_by_the_flush(table: FakeTable) -> None:
    table.ends = True
    producer = Producer(table, NEVER, on_ack=lambda count: [][count])
    producer.send({"k": 0})
    with pytest.raises(IndexError):
        producer.flush()
    assert producer.acked == 1
    assert producer.failures[0].rows == 0
    producer._on_ack = None
    producer.send({"k": 1})
    producer.close()
    assert producer.acked == 2


# ------------------------------------------------------------------------------- the background


def test_rows_that_linger_are_sent_and_acknowledged_without_a_flush(table: FakeTable) -> None:
    table.ends = True
    producer = Producer(table, 0.01)
    for key in range(3):
        producer.send({"k": key})
        eventually(lambda key=key: producer.acked == key + 1)  # type: ignore[misc]
    producer.close()


def test_an_idle_producer_costs_nothing(table: FakeTable) -> None:
    """Neither before the first row nor while a batch is under way does its thread wake up."""
    waits: list[float | None] = []
    producer = Producer(table, 0.001)
    wait = producer._work.wait

    def counted(seconds: float | None = None) -> bool:
        waits.append(seconds)
        return wait(seconds)

    producer._work.wait = counted  # type: ignore[assignment, method-assign]
    producer.send({"k": 1})
    eventually(lambda: table.futures)
    time.sleep(0.2)
    assert len(waits) <= 5
    assert waits[-1] is None
    table.end(table.futures[0])
    producer.close()


# ------------------------------------------------------------------------------------- for real


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1, secret=False) as running:
        yield running


@pytest.fixture
def db(cluster: LocalCluster) -> Iterator[Connection]:
    with limosa.connect(cluster.addresses["n1"].removeprefix("grpc://")) as connection:
        yield connection


def test_a_producer_gathers_rows(db: Connection) -> None:
    """Single rows in the order in which they were sent; `flush` means durable."""
    table = db.create_table("gathered", {"k": "int64", "n": "int64"}, "k", partitions=2)
    acked: list[int] = []
    with table.producer(linger_seconds=0.002, batch_rows=50, on_ack=acked.append) as producer:
        for n in range(500):
            producer.send({"k": n % 10, "n": n})
        producer.flush()
        assert sum(acked) == producer.acked == 500
        assert {row["k"]: row["n"] for row in table.scan().to_pylist()} == {
            key: 490 + key for key in range(10)
        }
        producer.send_many(pa.table({"k": [77], "n": [1]}))
        producer.send({"k": 78, "n": 2})
    assert table.get(77) == {"k": 77, "n": 1}
    assert table.get(78) == {"k": 78, "n": 2}
    with pytest.raises(Refused, match="closed"):
        producer.send({"k": 1})


def test_a_producer_tells_of_what_went_wrong(db: Connection) -> None:
    table = db.create_table("mistaken", {"k": "int64"}, "k", partitions=1)
    producer = table.producer(linger_seconds=0.001)
    with pytest.raises(InvalidSchema, match="colour"):
        producer.send({"k": 1, "colour": "red"})
    producer.send({"k": 2})
    producer.send({"k": 2**63})
    producer.send({"k": 3})
    with pytest.raises(BadRows, match=r"row 1 \(key 9223372036854775808\): column k"):
        producer.close()
    assert table.count() == 2


def test_four_threads_write_exactly_what_they_send(db: Connection) -> None:
    """Each flushes now and then, and finds its rows; of each key, the last one sent is there."""
    table = db.create_table("shared", {"k": "int64", "n": "int64"}, "k", partitions=4)
    acked: list[int] = []

    def send(thread: int) -> None:
        for n in range(500):
            producer.send({"k": thread * 1_000 + n % 100, "n": n})
            if n % 125 == 124:
                producer.flush()
                found = table.get(thread * 1_000 + n % 100)
                assert found is not None
                assert found["n"] == n

    with table.producer(linger_seconds=0.002, batch_rows=64, on_ack=acked.append) as producer:
        calls = [Call(lambda thread=thread: send(thread)) for thread in range(4)]  # type: ignore[misc]
        assert [call.result() for call in calls] == [None] * 4
    assert sum(acked) == producer.acked == 2_000
    assert not producer.failures
    assert {row["k"]: row["n"] for row in table.scan().to_pylist()} == {
        thread * 1_000 + key: 400 + key for thread in range(4) for key in range(100)
    }


def test_a_connection_that_is_closed_first(cluster: LocalCluster) -> None:
    """Nothing hangs; what was not sent is told of, and a producer without rows closes in peace."""
    connection = limosa.connect(cluster.addresses["n1"])
    table = connection.create_table("left_behind", {"k": "int64"}, "k", partitions=1)
    idle, busy = table.producer(), table.producer(linger_seconds=NEVER)
    busy.send({"k": 1})
    connection.close()
    assert Call(idle.close).result() is None
    busy.send({"k": 2})
    error = Call(busy.close).result()
    assert isinstance(error, Refused)
    assert "the connection is closed" in error.message
    assert [failure.rows for failure in busy.failures] == [2]
