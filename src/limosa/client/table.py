"""What can be done with a table? Write, compare and set, get, scan, delete."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from limosa.client.producer import Producer
from limosa.client.rows import in_pieces, key_values, keys_to_arrow, plain_row, to_arrow
from limosa.client.session import Session, settle, settle_read
from limosa.core import routing
from limosa.core.client import Finished
from limosa.core.lookup import Lookup
from limosa.core.tokens import tokens
from limosa.errors import (
    BadInput,
    InvalidKey,
    InvalidSchema,
    OutcomeUnknown,
    Refused,
    TooManyBytes,
    UnknownTable,
)
from limosa.protocol.scan import TICKET_BYTES_MAX, Scan, too_long
from limosa.protocol.wire import FoundRow, FoundRows, Keys
from limosa.tabular import sizes
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.sizes import INLINE_KEY_BYTES, check_rows

Where = Sequence[tuple[str, str, Any]]
_PLAIN = (int, str, bytes, bool)
SCANS_AT_ONCE = 4
SCAN_SECONDS = 30.0


class Row(Struct, frozen=True):
    """A row and its version, which `put_if` compares."""

    values: dict[str, Any]
    version: int


class TableHandle:
    """One table; may be used by several threads."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = name
        named, self.definition = session.tables.named(name)
        self._zone = named.zone
        self._lookup: tuple[int, Lookup] | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.definition.columns

    @property
    def key(self) -> tuple[str, ...]:
        return self.definition.key

    # --- writing

    def write(self, rows: Any) -> int:
        """Insert rows, or replace those with the same key; returns the number of rows.

        When it returns, all rows are durable on every in-sync replica. Rows are written in batches
        of at most 65,536 rows and 8 MiB; the rows of a batch become visible atomically in each
        partition, but not across partitions. If it raises, some rows may have been written; it is
        safe to write all of them again. A row may have 16 MiB; if one has more, `TooManyBytes` is
        raised and nothing is written.
        """
        single = plain_row(self.definition, rows)
        if single is not None:
            row = Batch.of(self.definition, single)
            row.note_bytes(single.get_total_buffer_size())
            settle(self.submit(row))
            return 1
        written = 0
        under_way: list[tuple[int, Future[Finished]]] = []
        pieces = list(in_pieces(to_arrow(self.definition, rows)))
        for batch in pieces:  # before the first one is sent
            check_rows(self.name, batch, batch.nbytes)
        for batch in pieces:
            under_way.append((batch.num_rows, self.submit(Batch.of(self.definition, batch))))
            while under_way and under_way[0][1].done():
                written += _settled(*under_way.pop(0))
        return written + sum(_settled(*each) for each in under_way)

    def submit(self, batch: Batch, expected: int | None = None) -> "Future[Finished]":
        """Send rows that are already checked; the future has the outcome."""
        self._check_known()
        check_rows(self.name, batch.columns, batch.bytes)
        return self._session.ask(
            self._zone, size=batch.bytes, rows=Bundle([batch]), expected=expected
        )

    def delete(self, keys: Any) -> int:
        """Delete rows by their keys; missing keys are ignored."""
        if isinstance(keys, dict | tuple | str | bytes) or not hasattr(keys, "__iter__"):
            keys = [keys]
        batch = keys_to_arrow(self.definition, keys)
        pending = [
            self.submit(Batch.tombstones(self.definition, piece))
            for piece in in_pieces(pa.Table.from_batches([batch]))
        ]
        for future in pending:
            settle(future)
        return batch.num_rows

    def put_if(self, row: Any, expected_version: int) -> int:
        """Write a row if its version is the expected one (0: it must not exist).

        Returns the new version, or raises `Mismatch` with the version that was found.
        """
        rows = to_arrow(self.definition, row)
        if rows.num_rows != 1:
            raise BadInput(f"put_if got {rows.num_rows} rows", "write one row at a time")
        batch = Batch.of(self.definition, rows.combine_chunks().to_batches()[0])
        version: Any = settle(self.submit(batch, expected_version)).value
        return int(version)

    def producer(self, **settings: Any) -> Producer:
        """A producer, which collects single rows into batches and sends them in the background."""
        return Producer(self, **settings)

    # --- reading

    def get(self, key: Any, eventual: bool = False) -> dict[str, Any] | None:
        """The row with this key, or None."""
        row = self.get_row(key, eventual)
        return None if row is None else row.values

    def get_row(self, key: Any, eventual: bool = False) -> Row | None:
        """The row with this key and its version, or None."""
        self._check_known()
        table = self.definition
        values = key_values(table, key)
        try:
            token = table.token_of(values)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidKey(
                f"this is not a key of {self.name}: {error}", "use the types of the key columns"
            ) from None
        if all(type(value) in _PLAIN for value in values) and _are_short(values):
            keys = Keys(table, values)
        else:
            keys = Keys(table, None, keys_to_arrow(table, [values]))
        found = settle_read(self._ask(keys, token, eventual))
        if isinstance(found, FoundRow):
            return Row(dict(zip(table.names, found.values, strict=True)), found.version)
        if not isinstance(found, FoundRows):
            return None
        return Row(found.rows.to_pylist()[0], found.versions[0])

    def get_many(self, keys: Any, eventual: bool = False) -> pa.Table:
        """The rows with these keys, in no particular order; missing keys are left out."""
        self._check_known()
        table = self.definition
        batch = keys_to_arrow(table, keys)
        if not batch.num_rows:
            return table.columns.empty_table()
        shares = self._layout().split(batch, tokens(list(batch.columns)))
        waiting = deque(piece for share in shares for piece in sizes.in_pieces(share.batch))
        found: list[pa.RecordBatch] = []
        while waiting:
            asked = [(some, self._ask_many(some, eventual)) for some in waiting]
            waiting.clear()
            for some, future in asked:
                try:
                    part = settle_read(future)
                except TooManyBytes:
                    middle = some.num_rows // 2
                    waiting += [some.slice(0, middle), some.slice(middle)]
                    continue
                found += [part.rows] if isinstance(part, FoundRows) else []
        if not found:
            return table.columns.empty_table()
        return pa.Table.from_batches(found).cast(table.columns)

    def _ask_many(self, keys: pa.RecordBatch, eventual: bool) -> "Future[Finished]":
        """Ask for the rows of several keys of one partition."""
        (token,) = tokens([column.slice(0, 1) for column in keys.columns]).tolist()
        return self._ask(Keys(self.definition, None, keys), token, eventual, keys.nbytes)

    def _ask(self, keys: Keys, token: int, eventual: bool, size: int = 0) -> "Future[Finished]":
        return self._session.ask(
            self._zone,
            size,
            keys=keys,
            table=self.definition.id,
            token=token,
            eventual=eventual,
            choice=_choice(),
        )

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where = (),
        eventual: bool = False,
    ) -> pa.Table:
        """All rows, or those that match every condition (column, operator, value).

        Each partition is read as it was at one moment; different partitions at different moments.
        """
        parts = list(self.scan_partitions(columns, where, eventual))
        if parts:
            return pa.concat_tables(parts)
        names = self.definition.names if columns is None else columns
        return pa.schema([self.schema.field(name) for name in names]).empty_table()

    def scan_partitions(
        self,
        columns: Sequence[str] | None = None,
        where: Where = (),
        eventual: bool = False,
    ) -> Iterator[pa.Table]:
        """Like `scan`, but one partition at a time, in no particular order."""
        self._check_known()
        self._check_columns(columns)
        layout = self._session.topology.layouts[self._zone]
        pool = ThreadPoolExecutor(SCANS_AT_ONCE, thread_name_prefix="limosa-scan")
        try:
            waiting = list(layout.partitions)
            running: set[Future[pa.Table]] = set()
            names = None if columns is None else list(columns)
            while waiting or running:
                while waiting and len(running) < SCANS_AT_ONCE:
                    again = partial(self._scan_once, waiting.pop(0), names, list(where), eventual)
                    running.add(pool.submit(self._scan_one, again))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _scan_one(self, scan_once: Callable[[], pa.Table]) -> pa.Table:
        """Scan the current owner, and retry for a while."""
        deadline = time.monotonic() + SCAN_SECONDS
        pause = 0.01
        while True:
            try:
                return scan_once()
            except (Refused, OutcomeUnknown):
                if time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(0.2, pause * 2)
            with suppress(Refused, OutcomeUnknown):
                self._session.refresh()

    def _scan_once(
        self,
        partition: str,
        columns: list[str] | None,
        where: list[tuple[str, str, Any]],
        eventual: bool,
    ) -> pa.Table:
        topology = self._session.topology
        record = topology.partitions.get(partition)
        if record is None:
            raise UnknownTable(f"partition {partition} does not exist", "was the table dropped?")
        node = None if record.owner is None else record.owner.replica.node
        if eventual:
            readers = routing.readers(record)
            node = readers[_choice() % len(readers)].node
        if node is None:
            raise Refused(f"{partition} has no owner now", "retry")
        scan = Scan(
            self.definition.fingerprint,
            partition,
            topology.layouts[self._zone].version,
            record.epoch,
            topology.revision_of(partition),
            columns,
            where,
            eventual,
        )
        ticket = msgspec.msgpack.encode(scan)
        if len(ticket) > TICKET_BYTES_MAX:
            raise too_long(len(ticket))
        return self._session.scan(node, ticket)

    def count(self) -> int:
        """The number of rows; reads all keys."""
        return sum(part.num_rows for part in self.scan_partitions([self.key[0]]))

    # --- checks

    def _check_known(self) -> None:
        _, definition = self._session.tables.named(self.name)
        if definition.id != self.definition.id:
            raise UnknownTable(
                f"table {self.name} was dropped and created again", "open it again by its name"
            )
        if definition.fingerprint != self.definition.fingerprint:
            raise InvalidSchema(
                f"the columns of table {self.name} have changed", "open it again by its name"
            )

    def _check_columns(self, columns: Sequence[str] | None) -> None:
        unknown = [name for name in columns or () if name not in self.definition.names]
        if unknown or (columns is not None and not columns):
            raise BadInput(
                f"no such columns: {', '.join(unknown) or 'none named'}",
                f"there are {', '.join(self.definition.names)}",
            )

    def _layout(self) -> Lookup:
        layout = self._session.topology.layouts[self._zone]
        if self._lookup is None or self._lookup[0] != layout.version:
            self._lookup = (layout.version, Lookup(layout.starts))
        return self._lookup[1]


def _settled(rows: int, future: "Future[Finished]") -> int:
    settle(future)
    return rows


def _are_short(values: Sequence[object]) -> bool:
    """Longer keys travel beside the head of a message. A character has up to four bytes."""
    length = sum(len(each) for each in values if isinstance(each, str | bytes))
    return 4 * length <= INLINE_KEY_BYTES


def _choice() -> int:
    return random.getrandbits(30)
