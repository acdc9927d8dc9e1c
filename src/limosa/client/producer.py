"""How are single rows written quickly? Gathered into batches, and sent in the background.

A batch goes when it is full or when its first row has lingered long enough. Rows of one producer
are applied in the order in which they were sent, per key. `flush` waits until all of them are
durable; errors are raised by the next `send` or `flush`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol

from limosa.client.rows import in_pieces, to_arrow
from limosa.client.session import settle
from limosa.core.client import Finished
from limosa.errors import LimosaError, Refused
from limosa.storage.rows import Batch
from limosa.storage.schema import Table


class Target(Protocol):
    """What a producer needs of a table."""

    definition: Table

    def submit(self, batch: Batch) -> "Future[Finished]": ...


class Producer:
    """For one table; may be used by several threads."""

    def __init__(
        self,
        table: Target,
        linger_seconds: float = 0.005,
        batch_rows: int = 1_000,
        on_ack: Callable[[int], None] | None = None,
    ) -> None:
        self._table = table
        self._linger = linger_seconds
        self._batch_rows = batch_rows
        self._on_ack = on_ack
        self._rows: list[dict[str, Any]] = []
        self._first_at = 0.0
        self._pending: deque[tuple[int, Future[Finished]]] = deque()
        self._error: LimosaError | None = None
        self._lock = threading.Lock()
        self._gathered = threading.Condition(self._lock)
        self._closed = False
        self.acked = 0
        """Rows that are durable."""
        self._thread = threading.Thread(target=self._run, name="limosa-producer", daemon=True)
        self._thread.start()

    def send(self, row: dict[str, Any]) -> None:
        """Add one row; it is sent soon."""
        with self._gathered:
            self._check()
            if not self._rows:
                self._first_at = time.monotonic()
                self._gathered.notify()
            self._rows.append(row)
            if len(self._rows) >= self._batch_rows:
                self._send()

    def send_many(self, rows: Any) -> None:
        """Add rows in whatever form; they are sent at once, behind what was sent before."""
        arrow = to_arrow(self._table.definition, rows)
        with self._gathered:
            self._check()
            self._send()
            for batch in in_pieces(arrow):
                self._submit(Batch.of(self._table.definition, batch))

    def _send(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            arrow = to_arrow(self._table.definition, rows)
            for batch in in_pieces(arrow):
                self._submit(Batch.of(self._table.definition, batch))

    def _submit(self, batch: Batch) -> None:
        future = self._table.submit(batch)
        self._pending.append((len(batch), future))
        while self._pending and self._pending[0][1].done():
            self._settle(*self._pending.popleft())

    def _settle(self, count: int, future: "Future[Finished]") -> None:
        try:
            settle(future)
        except LimosaError as error:
            self._error = self._error or error
            return
        self.acked += count
        if self._on_ack is not None:
            self._on_ack(count)

    def _check(self) -> None:
        if self._closed:
            raise Refused("the producer is closed", "make another")
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def flush(self) -> None:
        """Wait until everything that was sent is durable."""
        with self._gathered:
            if not self._closed:
                self._send()
            pending = list(self._pending)
            self._pending.clear()
        for count, future in pending:
            self._settle(count, future)
        with self._gathered:
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def _run(self) -> None:
        while True:
            with self._gathered:
                while not self._rows and not self._closed:
                    self._gathered.wait()
                if self._closed:
                    return
                left = self._first_at + self._linger - time.monotonic()
                if left <= 0:
                    try:
                        self._send()
                    except LimosaError as error:
                        self._error = self._error or error
                    continue
            time.sleep(left)

    def close(self) -> None:
        """Flush, and stop."""
        try:
            self.flush()
        finally:
            with self._gathered:
                self._closed = True
                self._gathered.notify_all()
            self._thread.join(2.0)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
