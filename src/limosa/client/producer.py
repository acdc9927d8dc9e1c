"""How are single rows written quickly? In batches, which are sent in the background.

A batch is sent when it is full, when its first row has waited for `linger_seconds`, or at a
`flush`. Rows of one producer with the same key are applied in the order of sending.

`send` raises at once for errors that are cheap to detect: an unknown column, no key, or a value
whose type the column does not accept. Other rows are not affected. A value of the right type that
does not fit (2**70 as an int64) is found when its batch is built; the other rows of the batch are
written.

Later failures are recorded; `send` never raises because of another row. Batches end, successfully
or not, in the order of sending, and then:

    flush   waits for the end of everything that any thread sent before the call, and raises the
            first failure among it, unless an earlier flush that had ended by then reported it
    close   accepts no more rows, sends the rest, and flushes

So if two threads flush at the same time, both report a failure that both cover; a thread that
flushes after another thread's flush has ended does not report it again. `failures` lists all.

There are three locks, always taken in this order: `_sending` (keeps batches in order; held while
the session has no room, which slows senders down), the session's lock, and `_lock` (held briefly;
futures end under the session's lock and take it). The producer's thread calls the application's
`on_ack` while it holds none of them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from types import NoneType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from msgspec import Struct

from limosa.client.rows import exact_array, in_pieces, to_arrow
from limosa.client.session import settle
from limosa.core.client import Finished
from limosa.errors import BadInput, InvalidKey, InvalidSchema, OutcomeUnknown, Refused
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table
from limosa.tabular.sizes import ROW_BYTES_MAX, check_rows, row_bytes, row_too_large

Values: TypeAlias = tuple[Any, ...]
"""The values of one row, in the order of the table's columns."""

FAILURES_MAX = 100
KINDS_MAX = 1_000
NAMED_MAX = 5


class WritableTable(Protocol):
    """What a producer needs of a table."""

    definition: Table

    def submit(self, batch: Batch) -> "Future[Finished]": ...


class WriteFailure(Struct, frozen=True):
    """Rows that were not written, or whose outcome is unknown (see `error.definite`)."""

    first: int
    """The first of the batches that failed in this way, counted from 1 in the order of sending."""
    last: int
    rows: int
    """0: all rows were written, but `on_ack` raised."""
    error: BaseException


class BadRows(InvalidSchema):
    """Values that do not fit their columns; the other rows were sent."""

    def __init__(self, places: list[tuple[int, str]], what: list[str]) -> None:
        self.places = places
        """The position of each bad row among all sent rows, from 0, and its first bad column."""
        more = len(places) - NAMED_MAX
        named = "; ".join(what[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
        super().__init__(
            f"some rows can't be written: {named}", "correct them, and send them again"
        )


class Producer:
    """Writes single rows to a table; may be used by several threads."""

    def __init__(
        self,
        table: WritableTable,
        linger_seconds: float = 0.005,
        batch_rows: int = 1_000,
        on_ack: Callable[[int], None] | None = None,
    ) -> None:
        """`on_ack` is called with the number of durable rows, once per batch, in order of sending.

        `on_ack` may send, but not flush or close: it would wait for itself. The next flush raises
        what `on_ack` raised.
        """
        self._table = table
        self._form = _Form(table.definition)
        self._linger = linger_seconds
        self._batch_rows = batch_rows
        self._on_ack = on_ack
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Notified when the thread has something to do."""
        self._progress = threading.Condition(self._lock)
        """Notified when a batch has ended."""
        self._rows: list[Values] = []
        self._first_at = 0.0
        self._taken = 0
        """Number of rows accepted so far; those in `_rows` are the last of them."""
        self._pending: deque[tuple[int, Future[Finished]]] = deque()
        self._sent = 0
        """Number of batches sent so far."""
        self._ended = 0
        """How many of them, from the first, have ended and were passed to `on_ack`."""
        self._told = 0
        """How many of them, from the first, were covered by flushes that have ended."""
        self._covering: list[int] = []
        """For each running flush: the value of `_told` when it began."""
        self._failures: list[WriteFailure] = []
        self._closed = False
        self.acked = 0
        """Number of durable rows."""
        self._thread = threading.Thread(target=self._run, name="limosa-producer", daemon=True)
        self._thread.start()

    # --- for the application

    def send(self, row: Mapping[str, Any]) -> None:
        """Add one row, which is sent soon. Raises if this row is invalid."""
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
        """Add rows in any form that `write` accepts; they are sent at once, after earlier rows.

        Raises if any of these rows is invalid; then none of them is sent.
        """
        table = self._table.definition
        batches = [Batch.of(table, piece) for piece in in_pieces(to_arrow(table, rows))]
        for batch in batches:
            check_rows(table.id, batch.columns, batch.bytes)
        count = sum(map(len, batches))
        with self._sending:
            with self._lock:
                self._check_open()
                gathered, position = self._take()
                self._taken += count
            self._send(len(gathered), self._form.batches(gathered, position))
            self._send(count, batches)

    def flush(self) -> None:
        """Wait until all rows sent before are durable; raises the first failure."""
        _raise(self._cover())

    def close(self) -> None:
        """Accept no more rows, flush, and stop. A second call does nothing."""
        self._check_thread()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._work.notify()
        failure = self._cover()
        self._thread.join()
        _raise(failure)

    @property
    def failures(self) -> tuple[WriteFailure, ...]:
        """The failures that the last flush covered, and later ones, in the order of sending.

        If there are very many, the last one stands for all that are not listed.
        """
        with self._lock:
            return tuple(self._failures)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as failure:  # a Ctrl-C must stay one
            if error is None:
                raise
            error.add_note(f"Besides, the producer failed: {failure}")

    # --- sending

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("the producer is closed", "open another one")

    def _take(self) -> tuple[list[Values], int]:
        """Under both locks: the collected rows, and the position of the first of them."""
        rows, self._rows = self._rows, []
        return rows, self._taken - len(rows)

    def _send_gathered(self, least: int = 1) -> None:
        """Send the rows that were collected so far."""
        with self._sending:
            with self._lock:
                if len(self._rows) < least:  # somebody else was quicker
                    return
                rows, position = self._take()
            self._send(len(rows), self._form.batches(rows, position))

    def _send(self, count: int, batches: Iterable[Batch | BadRows]) -> None:
        """Under `_sending`: make all of these rows pending, whatever happens."""
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
        """Called under the session's lock, so it must do nothing else."""
        with self._lock:
            self._work.notify()

    # --- flushing

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise Refused("on_ack must not flush or close", "flush or close in another thread")

    def _cover(self) -> WriteFailure | None:
        """Wait for the end of everything sent so far; returns the first unreported failure."""
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
        """Wait for work; True if rows have waited long enough to be sent."""
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
        """Finish the first pending batch if it has an outcome."""
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
        """The number of rows that failed, and why; the others are acknowledged."""
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
        """Whether the producer is closed and nothing is left to send."""
        with self._lock:
            if not self._closed or self._pending:
                return False
        with self._sending, self._lock:  # who holds it may have begun before the close
            return not self._rows and not self._pending


def _raise(failure: WriteFailure | None) -> None:
    if failure is not None:
        raise failure.error.with_traceback(None)


def _failed(error: Exception) -> "Future[Finished]":
    future: Future[Finished] = Future()
    future.set_exception(error)
    return future


class _Form:
    """Checks the Python values of rows against the table's columns."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known = frozenset(table.names)
        self._types = [field.type for field in table.physical]
        self._expected = [_expected(of) for of in self._types]
        self._keys = frozenset(table.key_places)
        self._float_keys = [at for at in table.key_places if pa.types.is_floating(self._types[at])]
        self._sound: set[tuple[type, ...]] = set()
        """Types of rows that were checked before: most rows are like an earlier one."""

    def values(self, row: Mapping[str, Any]) -> Values:
        """The values of a row; raises if it is obviously invalid."""
        if type(row) is not dict and not isinstance(row, Mapping):
            raise BadInput(f"a row is a {type(row).__name__}", "make each row a dict")
        if not row.keys() <= self._known:
            unknown = ", ".join(sorted(str(name) for name in row.keys() - self._known))
            raise InvalidSchema(
                f"table {self._table.id} has no columns {unknown}", "remove them from the row"
            )
        values = tuple(map(row.get, self._table.names))
        kinds = tuple(map(type, values))
        if kinds not in self._sound:
            self._look_closely(values, kinds)
        for place in self._float_keys:
            if values[place] != values[place]:
                raise InvalidKey(
                    f"key column {self._table.names[place]} is NaN",
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
        """Why a value is invalid, or None."""
        name, of = self._table.names[place], self._types[place]
        try:
            array = exact_array([value], of)
        except Exception as error:  # an object of the application may raise anything
            return InvalidSchema(
                f"column {name} can't be converted to {of}: {error}",
                "correct the value, or convert it first",
            )
        if place in self._keys and array.null_count:
            return InvalidKey(
                f"key column {name} is missing or null", "key columns must not be null"
            )
        return None

    def batches(self, rows: list[Values], position: int) -> Iterator[Batch | BadRows]:
        """Build batches of the valid rows; `position` is that of the first row."""
        bad: dict[int, tuple[int, BadInput]] = {}
        try:
            arrow = self._arrow(rows)
        except Exception:
            bad = self._bad(rows)
            if not bad:
                raise
            arrow = self._arrow([row for at, row in enumerate(rows) if at not in bad])
        if arrow.nbytes > ROW_BYTES_MAX:
            large = self._large(rows, bad)
            if large:
                bad |= large
                arrow = self._arrow([row for at, row in enumerate(rows) if at not in bad])
        if bad:
            yield self._bad_rows(rows, bad, position)
        for piece in in_pieces(arrow):
            yield Batch.of(self._table, piece)

    def _large(
        self, rows: list[Values], known: Mapping[int, object]
    ) -> dict[int, tuple[int, BadInput]]:
        """The rows that are too large, by their place: their first column, and why."""
        found: dict[int, tuple[int, BadInput]] = {}
        for at, row in enumerate(rows):
            if at not in known:
                (batch,) = self._arrow([row]).to_batches()
                size = int(row_bytes(batch)[0])
                if size > ROW_BYTES_MAX:
                    found[at] = 0, row_too_large(self._table.id, size)
        return found

    def _arrow(self, rows: list[Values]) -> pa.Table:
        columns = [list(map(itemgetter(place), rows)) for place in range(len(self._types))]
        arrays = list(map(exact_array, columns, self._types))
        if any(arrays[place].null_count for place in self._keys):
            raise InvalidKey("null keys", "a key column has no nulls")
        return pa.Table.from_arrays(arrays, schema=self._table.physical)

    def _bad(self, rows: list[Values]) -> dict[int, tuple[int, BadInput]]:
        """The invalid rows by their place: the first bad column, and why."""
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
    """Types of values that are expected to fit; values of other types are converted at once."""
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
