"""How do the rows of a file get into a table? `limosa write`, a batch at a time."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from limosa.cli.shared.options import ClusterOptions, Partitions, Replicas, with_groups
from limosa.cli.shared.row_files import Format, RowFile, errors_of, open_source, plain_schema
from limosa.cli.shared.terminal import count, print_answer, tell
from limosa.cli.write.columns import check_columns, fitted
from limosa.client.requests import PARTITIONS
from limosa.client.rows import in_pieces
from limosa.client.session import settle
from limosa.client.table import TableHandle
from limosa.core.client import Finished
from limosa.errors import (
    BadInput,
    Forbidden,
    InvalidKey,
    LimosaError,
    OutcomeUnknown,
    Refused,
    Unauthenticated,
)
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table

BYTES_UNDER_WAY = 32 << 20
"""Enough for large parts even where there are many partitions: see `core.client.gathering`."""
PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""How long to retry while the cluster accepts no writes."""


@with_groups
def write(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    file: Annotated[str, typer.Argument(help="The file with the rows; - for standard input.")],
    format: Annotated[
        Format | None,
        typer.Option("--format", help="The file's format.", show_default="by its suffix"),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the table, with the file's columns.")
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="With --create: a key column; repeat the option for several."),
    ] = None,
    partitions: Partitions = None,
    replicas: Replicas = None,
) -> None:
    """Write the rows of a file to a table.

    A row replaces the row with the same key. The file is sent in batches; errors in its columns,
    types or first rows are found before anything is written. After a later error the command
    reports how many rows were acknowledged; it is safe to write the file again.

    A row may have 16 MiB. A larger one is an error; store large objects elsewhere.

    In CSV, an empty field without quotes is null. In NDJSON, times and decimals are text, and
    binary is base64.

    \b
    Examples:
      limosa write items items.parquet
      limosa write items items.csv --create --key id --partitions 32
      generate-rows | limosa write items - --format ndjson
    """
    if not create and (key or partitions is not None or replicas is not None):
        raise BadInput(
            "--key, --partitions and --replicas are for new tables", "add --create, or omit them"
        )
    if create and not key:
        raise BadInput("a new table needs a key", "name its key columns with --key")
    with target.connect() as connection:
        # Columns and types are checked first; only then a new table is created.
        known = None if create else connection.table(table)
        types = None if known is None else _types(known.definition)
        with open_source(file, format, types) as source:
            if known is None:
                definition = Table(
                    "new", plain_schema(source.schema, key or (), source.name), tuple(key or ())
                )
            else:
                definition = known.definition
            check_columns(definition, source.schema.names, source.name)
            _check_nulls(definition, source)
            batches = _fitted(source, definition)
            first = next(batches, None)
            if known is None:
                known = connection.create_table(
                    table,
                    definition.columns,
                    definition.key,
                    partitions=partitions or PARTITIONS,
                    replicas=replicas,
                )
            summary = _send(known, source, batches if first is None else chain([first], batches))
    told = (
        f"{count(summary['rows'], 'row')} written to {table} in {summary['seconds']:.1f} s "
        f"({summary['rows_per_second']:,.0f} rows/s)."
    )
    print_answer(target.as_json, {"table": table, "created": create, **summary}, told)


def _types(table: Table) -> dict[str, pa.DataType]:
    return {name: table.physical.field(name).type for name in table.names}


def _check_nulls(table: Table, source: RowFile) -> None:
    """From the file's metadata, without reading its rows."""
    for name in table.key:
        nulls = source.nulls.get(name, 0)
        if nulls:
            raise InvalidKey(
                f"{source.name}: the key column {name} is null in {count(nulls, 'row')}",
                "every row needs a key",
            )


def _fitted(source: RowFile, table: Table) -> Iterator[pa.RecordBatch]:
    done = 0
    with errors_of(source.name):
        for batch in source.batches:
            yield fitted(table, batch, source.name, done)
            done += batch.num_rows


def _send(table: TableHandle, source: RowFile, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
    began = time.monotonic()
    with _progress(source.rows) as advance:
        sender = Sender(table, advance)
        try:
            for batch in batches:
                sender.send(batch)
            sender.finish()
        except KeyboardInterrupt:
            tell(f"Interrupted: {_so_far(sender)}.")
            raise
        except LimosaError as error:
            if isinstance(error, BadInput):  # an error in the file: finish the batches before it
                with suppress(LimosaError):
                    sender.finish()
            error.message += f"; {_so_far(sender)}"
            error.args = (f"{error.message} ({error.advice})",)
            raise
    seconds = time.monotonic() - began
    return {
        "rows": sender.acked,
        "seconds": round(seconds, 3),
        "rows_per_second": round(sender.acked / seconds) if seconds else 0,
    }


def _so_far(sender: "Sender") -> str:
    return f"{count(sender.count_acked(), 'row')} acknowledged; others may have been written too"


class Sender:
    """Keeps several batches in flight, and counts the acknowledged rows.

    A batch that the cluster can't accept (a node died, too few replicas are in sync) is retried
    with all batches after it, so that of two rows with the same key the later one wins.
    """

    def __init__(self, table: TableHandle, advance: Callable[[int], None]) -> None:
        self._table = table
        self._advance = advance
        self._under_way: deque[tuple[Batch, Future[Finished]]] = deque()
        self._bytes = 0
        self._failing_since: float | None = None
        self.acked = 0

    def send(self, batch: pa.RecordBatch) -> None:
        for piece in in_pieces(pa.Table.from_batches([batch])):
            self._submit(Batch.of(self._table.definition, piece))
            while self._bytes > BYTES_UNDER_WAY and len(self._under_way) > 1:
                self._settle()
            while self._under_way and self._under_way[0][1].done():
                self._settle()

    def finish(self) -> None:
        while self._under_way:
            self._settle()

    def count_acked(self) -> int:
        """Includes batches whose answer has arrived but was not awaited."""
        for batch, future in self._under_way:
            if future.done() and future.exception() is None and future.result().outcome == "done":
                self.acked += len(batch)
        self._under_way.clear()
        return self.acked

    def _submit(self, batch: Batch) -> None:
        self._under_way.append((batch, self._table.submit(batch)))
        self._bytes += batch.bytes

    def _settle(self) -> None:
        batch, future = self._under_way[0]
        try:
            settle(future)
        except (Unauthenticated, Forbidden):
            raise
        except (Refused, OutcomeUnknown) as error:
            self._send_again(error)
            return
        self._failing_since = None
        self._under_way.popleft()
        self._bytes -= batch.bytes
        self.acked += len(batch)
        self._advance(len(batch))

    def _send_again(self, error: LimosaError) -> None:
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > PATIENCE_SECONDS:
            raise error
        wait([future for _, future in self._under_way])
        time.sleep(PAUSE_SECONDS)
        batches = [batch for batch, _ in self._under_way]
        self._under_way.clear()
        self._bytes = 0
        for batch in batches:
            self._submit(batch)


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.completed:,.0f} rows"),
        TextColumn("{task.fields[rate]:,.0f} rows/s"),
        TimeElapsedColumn(),
    )
    began = time.monotonic()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        shown = bar.add_task("rows", total=total, rate=0.0)
        done = 0

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            rate = done / max(0.001, time.monotonic() - began)
            bar.update(shown, advance=rows, rate=rate)

        yield advance
