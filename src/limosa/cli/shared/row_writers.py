"""How are rows printed or saved? As a table for people, or in a file format for programs."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Protocol, cast

import msgspec
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from limosa.cli.shared.row_files import Format
from limosa.cli.shared.terminal import print_table
from limosa.errors import BadInput


class RowWriter(Protocol):
    """Accepts rows in portions."""

    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> None: ...


class NdjsonWriter:
    """One object per line; times are text in full precision."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._encoder = msgspec.json.Encoder()

    def write(self, rows: pa.Table) -> None:
        for batch in spelled(rows).to_batches(max_chunksize=10_000):
            self._stream.write(self._encoder.encode_lines(batch.to_pylist()))

    def close(self) -> None:
        self._stream.flush()


class TableWriter:
    """For people; the table is printed when all rows have arrived."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
        self._rows: list[tuple[object, ...]] = []

    def write(self, rows: pa.Table) -> None:
        columns = [column.to_pylist() for column in spelled(rows).columns]
        self._rows += zip(*columns, strict=True)

    def close(self) -> None:
        print_table(self._names, self._rows)


def spelled(rows: pa.Table) -> pa.Table:
    """Convert times to text: Python's datetime has no nanoseconds and a limited range of years."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.string()))
    return rows


@contextmanager
def writer_of(format: Format | None, path: str | None, schema: pa.Schema) -> Iterator[RowWriter]:
    """Write to a file, which appears when it is complete, or to standard output."""
    with ExitStack() as stack:
        if format is None:
            writer: RowWriter = TableWriter(schema)
        else:
            stream = _opened(format, path, stack)
            writer = _writer(format, stream, schema)
        yield writer
        writer.close()


def _opened(format: Format, path: str | None, stack: ExitStack) -> BinaryIO:
    if path is not None:
        return stack.enter_context(_replaced(path))
    if sys.stdout.isatty() and format in (Format.parquet, Format.arrow):
        raise BadInput(f"{format} can't be shown on a terminal", "name a file with --output")
    return cast(BinaryIO, sys.stdout.buffer)


@contextmanager
def _replaced(path: str) -> Iterator[BinaryIO]:
    draft = f"{path}.{os.getpid()}.part"
    try:
        with open(draft, "wb") as stream:
            yield stream
        os.replace(draft, path)
    except BaseException:
        if os.path.exists(draft):
            os.unlink(draft)
        raise


def _writer(format: Format, stream: Any, schema: pa.Schema) -> RowWriter:
    made: Any
    match format:
        case Format.csv:
            _check_flat(schema)
            made = arrow_csv.CSVWriter(stream, schema)
        case Format.parquet:
            made = parquet.ParquetWriter(stream, schema)
        case Format.arrow:
            made = pa.ipc.new_stream(stream, schema)
        case Format.ndjson:
            made = NdjsonWriter(stream)
    return cast(RowWriter, made)


def _check_flat(schema: pa.Schema) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            raise BadInput(
                f"column {field.name} is a list or a struct, which CSV can't represent",
                "use ndjson or parquet, or leave it out with --columns",
            )
