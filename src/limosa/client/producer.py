"""How are single rows written quickly? Gathered into batches, and sent in the background.

A batch goes when it is full, when its first row has lingered long enough, or at a `flush`. Rows of
one producer are applied in the order in which they were sent, per key.

What is wrong with a row is told at once where that can be seen cheaply: `send` raises if it names
an unknown column, has no key, or has a value of a type that the column can't take, and then nothing
else is affected. A value of the right type that does not fit after all (2**70 as an int64) is
found when its batch is made. The other rows of the batch are written.

What goes wrong later is kept, and `send` never raises because of another row. Everything that is
sent ends, well or badly, in the order of sending, and then:

    flush   waits for the end of all that any thread had sent before the call, and raises the first
            failure among it that no flush has told of which was over before this one began
    close   takes no more rows, sends the rest, and is the last flush

So if two threads flush at the same time, both are told of a failure that both cover; a thread that
flushes after another one's flush is over is not told again. `failures` lists all of them.

Three locks are taken in this order only: `_sending` (whoever sends a batch, so that batches keep
their order; held while the session has no room, which is how senders are slowed down), the
session's own, and `_lock` (short; futures end under the session's lock and take it). The
application's `on_ack` is called by the producer's thread, which holds none of them then.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from types import NoneType, TracebackType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from msgspec import Struct

from limosa.client.rows import exact_array, in_pieces, to_arrow
from limosa.client.session import settle
from limosa.core.client import Finished
from limosa.errors import BadInput, InvalidKey, InvalidSchema, OutcomeUnknown, Refused
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table

Values: TypeAlias = tuple[Any, ...]
"""Of one row, in the order of the table's columns."""

FAILURES_MAX = 100
KINDS_MAX = 1_000
NAMED_MAX = 5


class WritableTable(Protocol):
    """What a producer needs of a table."""

    definition: Table

    def submit(self, batch: Batch) -> "Future[Finished]": ...


class WriteFailure(Struct, frozen=True):
    """Rows that were not written, or perhaps not (see `error.definite`)."""

    first: int
    """Of the batches that failed so, counted from 1 in the order of sending."""
    last: int
    rows: int
    """0: all of them are written, but `on_ack` raised."""
    error: BaseException


class BadRows(InvalidSchema):
    """Values that did not fit their columns; the rows around them were sent."""

    def __init__(self, places: list[tuple[int, str]], what: list[str]) -> None:
        self.places = places
        """The position of each bad row among all that were sent, from 0, and its first bad column.
        """
        more = len(places) - NAMED_MAX
        named = "; ".join(what[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
        super().__init__(f"rows that can't be written: {named}", "mend them, and send them again")


class Producer:
    """For one table; may be used by several threads."""

    def __init__(
        self,
        table: WritableTable,
        linger_seconds: float = 0.005,
        batch_rows: int = 1_000,
        on_ack: Callable[[int], None] | None = None,
    ) -> None:
        """`on_ack` is told how many rows are durable, once per batch and in the order of sending.

        It may send. It can't flush or close, which would wait for itself. What it raises is
        raised by the next flush.
        """
        self._table = table
        self._form = _Form(table.definition)
        self._linger = linger_seconds
        self._batch_rows = batch_rows
        self._on_ack = on_ack
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Something for the thread to do."""
        self._progress = threading.Condition(self._lock)
        """Something has ended."""
        self._rows: list[Values] = []
        self._first_at = 0.0
        self._taken = 0
        """Rows that were ever handed over; those in `_rows` are the last of them."""
        self._pending: deque[tuple[int, Future[Finished]]] = deque()
        self._sent = 0
        """Batches that ever became pending."""
        self._ended = 0
        """The first so many of them are over, and `on_ack` knows."""
        self._told = 0
        """The first so many were covered by flushes that are over."""
        self._covering: list[int] = []
        """For each flush that is not over: how many were told when it began."""
        self._failures: list[WriteFailure] = []
        self._closed = False
        self.acked = 0
        """Rows that are durable."""
        self._thread = threading.Thread(target=self._run, name="limosa-producer", daemon=True)
        self._thread.start()

    # --- for the application

    def send(self, row: Mapping[str, Any]) -> None:
        """Add one row; it is sent soon. Raises if this row is wrong."""
        values = self._form.values(row)
        with self._lock:
            self._check_open()
            if not self._rows:
                self._first_at = time.monotonic()
                self._work.notify()
            self._rows.append(values)
            self._taken += 1
            is_full = len(self._rows) >= self._batch_rows
        if is_full:
            self._send_gathered(self._batch_rows)

    def send_many(self, rows: Any) -> None:
        """Add rows in whatever form; they are sent at once, behind what was sent before.

        Raises if any of these rows is wrong; then none of them is sent.
        """
        table = self._table.definition
        batches = [Batch.of(table, piece) for piece in in_pieces(to_arrow(table, rows))]
        count = sum(map(len, batches))
        with self._sending:
            with self._lock:
                self._check_open()
                gathered, position = self._take()
                self._taken += count
            self._send(len(gathered), self._form.batches(gathered, position))
            self._send(count, batches)

    def flush(self) -> None:
        """Wait until everything that was sent before is durable, or raise why it is not."""
        failure = self._cover()
        if failure is not None:
            raise failure.error.with_traceback(None)

    def close(self) -> None:
        """Take no more rows, flush, and stop. Again: nothing happens."""
        self._check_thread()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._work.notify()
        failure = self._cover()
        self._thread.join()
        if failure is not None:
            raise failure.error.with_traceback(None)

    @property
    def failures(self) -> tuple[WriteFailure, ...]:
        """What failed, in the order of sending: what the last flush covered, and what came since.

        If there are very many, the last one stands for all that are not listed.
        """
        with self._lock:
            return tuple(self._failures)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as failure:  # a Ctrl-C must stay one
            error.add_note(f"Besides, the producer failed: {failure}")

    # --- sending

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("the producer is closed", "make another")

    def _take(self) -> tuple[list[Values], int]:
        """Under both locks: the rows that are gathered, and the position of the first of them."""
        rows, self._rows = self._rows, []
        return rows, self._taken - len(rows)

    def _send_gathered(self, least: int = 1) -> None:
        """Afterwards, what was gathered before is pending."""
        with self._sending:
            with self._lock:
                if len(self._rows) < least:  # somebody else was quicker
                    return
                rows, position = self._take()
            self._send(len(rows), self._form.batches(rows, position))

    def _send(self, count: int, batches: Iterable[Batch | BadRows]) -> None:
        """While sending: each of so many rows becomes pending, whatever happens."""
        left = count
        try:
            for batch in batches:
                if isinstance(batch, BadRows):
                    rows, future = len(batch.places), _failed(batch)
                else:
                    rows, future = len(batch), self._table.submit(batch)
                self._await(rows, future)
                left -= rows
        except Exception as error:
            self._await(left, _failed(error))
        except BaseException:  # a Ctrl-C, at any moment
            if left:
                advice = "look what is there, or write them again"
                unknown = OutcomeUnknown(f"interrupted while {left} rows were sent", advice)
                self._await(left, _failed(unknown))
            raise

    def _await(self, rows: int, future: "Future[Finished]") -> None:
        with self._lock:
            self._pending.append((rows, future))
            self._sent += 1
        future.add_done_callback(self._wake)

    def _wake(self, future: "Future[Finished]") -> None:
        """Under the session's lock: no place for anything else."""
        with self._lock:
            self._work.notify()

    # --- flushing

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise Refused("on_ack would wait for itself", "flush or close in another thread")

    def _cover(self) -> WriteFailure | None:
        """Wait for the end of what was sent until now; the first failure that is not told yet."""
        self._check_thread()
        with self._lock:
            told = self._told
            self._covering.append(told)
        try:
            self._send_gathered()
            with self._lock:
                through = self._sent
                self._work.notify()
                while self._ended < through:
                    self._progress.wait()
                covered = [f for f in self._failures if f.last > told and f.first <= through]
                self._told = max(self._told, through)
                over = min(self._covering)
                self._failures = [failure for failure in self._failures if failure.last > over]
        finally:
            with self._lock:
                self._covering.remove(told)
        return covered[0] if covered else None

    # --- the producer's thread

    def _run(self) -> None:
        while True:
            if self._wait_for_work():
                self._send_gathered()
            self._end_first()
            if self._is_over():
                return

    def _wait_for_work(self) -> bool:
        """Are there rows that have lingered long enough? If not, there is something else to do."""
        with self._lock:
            while True:
                left = None
                if self._rows:
                    left = self._first_at + self._linger - time.monotonic()
                    if left <= 0 or self._closed:
                        return True
                if self._pending[0][1].done() if self._pending else self._closed:
                    return False
                self._work.wait(left)

    def _end_first(self) -> None:
        """If the first batch that is pending has an outcome, it is over."""
        with self._lock:
            if not self._pending or not self._pending[0][1].done():
                return
            rows, future = self._pending.popleft()
        failed, error = self._outcome(rows, future)
        with self._lock:
            self._ended += 1
            if error is not None:
                self._keep(WriteFailure(self._ended, self._ended, failed, error))
            self._progress.notify_all()

    def _outcome(self, rows: int, future: "Future[Finished]") -> tuple[int, BaseException | None]:
        """How many rows failed, and why; those that did not are acknowledged."""
        try:
            settle(future)
        except Exception as error:
            return rows, error.with_traceback(None)
        self.acked += rows
        try:
            if self._on_ack is not None:
                self._on_ack(rows)
        except BaseException as error:  # whatever it is, this thread has to go on
            return 0, error.with_traceback(None)
        return 0, None

    def _keep(self, failure: WriteFailure) -> None:
        if len(self._failures) >= FAILURES_MAX:
            last = self._failures.pop()
            rows = last.rows + failure.rows
            failure = WriteFailure(last.first, failure.last, rows, last.error)
        self._failures.append(failure)

    def _is_over(self) -> bool:
        """Nothing is left, and nothing can come."""
        with self._lock:
            if not self._closed or self._pending:
                return False
        with self._sending, self._lock:  # who holds it may have begun before the close
            return not self._rows and not self._pending


def _failed(error: Exception) -> "Future[Finished]":
    future: Future[Finished] = Future()
    future.set_exception(error)
    return future


class _Form:
    """What do the rows of a table look like, as Python's values?"""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known = frozenset(table.names)
        self._types = [field.type for field in table.physical]
        self._expected = [_expected(of) for of in self._types]
        self._keys = frozenset(table.key_places)
        self._float_keys = [at for at in table.key_places if pa.types.is_floating(self._types[at])]
        self._sound: set[tuple[type, ...]] = set()
        """The types of rows that were looked at closely: most rows are like one before."""

    def values(self, row: Mapping[str, Any]) -> Values:
        """The values of a row, unless something is plainly wrong with it."""
        if type(row) is not dict and not isinstance(row, Mapping):
            raise BadInput(f"a row that is a {type(row).__name__}", "make each row a dict")
        if not row.keys() <= self._known:
            unknown = ", ".join(sorted(str(name) for name in row.keys() - self._known))
            raise InvalidSchema(
                f"table {self._table.id} has no columns {unknown}", "leave them out of the row"
            )
        values = tuple(map(row.get, self._table.names))
        kinds = tuple(map(type, values))
        if kinds not in self._sound:
            self._look_closely(values, kinds)
        for place in self._float_keys:
            if values[place] != values[place]:
                raise InvalidKey(
                    f"NaN as key column {self._table.names[place]}",
                    "NaN equals nothing, so no get would find it: drop the row",
                )
        return values

    def _look_closely(self, values: Values, kinds: tuple[type, ...]) -> None:
        is_usual = True
        for place, kind in enumerate(kinds):
            if kind in self._expected[place] or (kind is NoneType and place not in self._keys):
                continue
            is_usual = False
            wrong = self._wrong(place, values[place])
            if wrong is not None:
                raise wrong
        if is_usual:
            if len(self._sound) >= KINDS_MAX:
                self._sound.clear()
            self._sound.add(kinds)

    def _wrong(self, place: int, value: Any) -> BadInput | None:
        """What is wrong with one value."""
        name, of = self._table.names[place], self._types[place]
        try:
            array = exact_array([value], of)
        except Exception as error:  # an object of the application may raise anything
            return InvalidSchema(
                f"column {name} can't be made {of}: {error}", "mend the value, or convert it first"
            )
        if place in self._keys and array.null_count:
            return InvalidKey(f"no key column {name}, or a null", "a key column has no nulls")
        return None

    def batches(self, rows: list[Values], position: int) -> Iterator[Batch | BadRows]:
        """The rows as batches, but for those that can't be; the first one has that position."""
        bad: dict[int, tuple[int, BadInput]] = {}
        try:
            arrow = self._arrow(rows)
        except Exception:
            bad = self._bad(rows)
            if not bad:
                raise
            arrow = self._arrow([row for at, row in enumerate(rows) if at not in bad])
        if bad:
            yield self._bad_rows(rows, bad, position)
        for piece in in_pieces(arrow):
            yield Batch.of(self._table, piece)

    def _arrow(self, rows: list[Values]) -> pa.Table:
        columns = [list(map(itemgetter(place), rows)) for place in range(len(self._types))]
        arrays = list(map(exact_array, columns, self._types))
        if any(arrays[place].null_count for place in self._keys):
            raise InvalidKey("null keys", "a key column has no nulls")
        return pa.Table.from_arrays(arrays, schema=self._table.physical)

    def _bad(self, rows: list[Values]) -> dict[int, tuple[int, BadInput]]:
        """By their place, rows that are wrong: the first bad column, and why."""
        bad = {}
        for at, row in enumerate(rows):
            for place, value in enumerate(row):
                wrong = None
                if value is not None or place in self._keys:
                    wrong = self._wrong(place, value)
                if wrong is not None:
                    bad[at] = place, wrong
                    break
        return bad

    def _bad_rows(
        self, rows: list[Values], bad: dict[int, tuple[int, BadInput]], position: int
    ) -> BadRows:
        places, what = [], []
        for at, (place, wrong) in bad.items():
            places.append((position + at, self._table.names[place]))
            key = ", ".join(f"{rows[at][each]!r:.40}" for each in self._table.key_places)
            what.append(f"row {position + at} (key {key}): {wrong.message}")
        return BadRows(places, what)


def _expected(of: pa.DataType) -> frozenset[type]:
    """Types of values that most probably fit; what has another one is tried out at once."""
    return next((kinds for is_a, kinds in _EXPECTED if is_a(of)), frozenset())


_EXPECTED: list[tuple[Callable[[pa.DataType], bool], frozenset[type]]] = [
    (pa.types.is_integer, frozenset({int})),
    (pa.types.is_floating, frozenset({float, int})),
    (pa.types.is_boolean, frozenset({bool})),
    (pa.types.is_string, frozenset({str})),
    (pa.types.is_large_string, frozenset({str})),
    (pa.types.is_binary, frozenset({bytes})),
    (pa.types.is_large_binary, frozenset({bytes})),
    (pa.types.is_fixed_size_binary, frozenset({bytes})),
    (pa.types.is_decimal, frozenset({Decimal})),
    (pa.types.is_date, frozenset({date})),
    (pa.types.is_timestamp, frozenset({datetime})),
    (pa.types.is_struct, frozenset({dict})),
    (pa.types.is_list, frozenset({list})),
    (pa.types.is_large_list, frozenset({list})),
]
