"""How are the rows of a file read? In batches, so that a file may be larger than the memory.

    Parquet    with the file's own types
    CSV        names in the first line; an empty field without quotes is null
    NDJSON     one object per line; times and decimals as text, binary as base64
    Arrow      a stream or a file

CSV and NDJSON are read with the types of the table; if there is no table yet, types are inferred
from the first megabytes.
"""

import base64
import csv
import errno
import io
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from limosa.client.rows import exact_array
from limosa.errors import BadInput, LimosaError, UnusableFile

ROWS_AT_ONCE = 65_536
BLOCK_BYTES = 8 << 20
SPOOLED_BYTES = 64 << 20

Types = Mapping[str, pa.DataType]


class Format(StrEnum):
    """The formats of files."""

    parquet = "parquet"
    csv = "csv"
    ndjson = "ndjson"
    arrow = "arrow"


SUFFIXES = {
    ".parquet": Format.parquet,
    ".pq": Format.parquet,
    ".csv": Format.csv,
    ".tsv": Format.csv,
    ".ndjson": Format.ndjson,
    ".jsonl": Format.ndjson,
    ".json": Format.ndjson,
    ".arrow": Format.arrow,
    ".arrows": Format.arrow,
    ".feather": Format.arrow,
}


class RowFile:
    """An open file: its columns, and its rows in batches."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        rows: int | None = None,
        nulls: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.schema = schema
        self.batches = batches
        self.rows = rows
        """The number of rows, if the file records it."""
        self.nulls = nulls or {}
        """The number of nulls by column, if the file records it."""


def format_of(path: str, given: Format | None) -> Format:
    if given is not None:
        return given
    found = SUFFIXES.get(Path(path).suffix.lower())
    if found is None:
        raise BadInput(
            f"the format of {path} is not known from its suffix",
            f"name it with --format {'|'.join(Format)}",
        )
    return found


@contextmanager
def open_source(path: str, given: Format | None, types: Types | None) -> Iterator[RowFile]:
    """`-` is standard input. Errors contain the file's name."""
    name = "standard input" if path == "-" else path
    if path == "-" and given is None:
        raise BadInput(
            "the format of standard input is not known", f"name it with --format {'|'.join(Format)}"
        )
    format = format_of(path, given)
    with ExitStack() as stack, errors_of(name):
        stream = _opened(path, stack)
        if format is Format.parquet:
            source = _parquet(name, _seekable(stream, stack))
        elif format is Format.arrow:
            source = _arrow(name, _seekable(stream, stack))
        elif format is Format.csv:
            delimiter = "\t" if path.lower().endswith(".tsv") else ","
            source = _csv(name, stream, types, delimiter)
        else:
            source = _ndjson(name, stream, types)
        names = source.schema.names
        repeated = sorted({each for each in names if names.count(each) > 1})
        if repeated:
            raise BadInput(f"{name}: two columns are named {repeated[0]}", "rename one of them")
        yield source


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Raise errors of files as bad input, with the file's name."""
    try:
        yield
    except LimosaError:
        raise
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # the reader of our output has gone
        # Arrow raises OSError too, e.g. for a file without Parquet's magic bytes.
        raise UnusableFile(f"{name} can't be read: {error.strerror or _first(error)}") from None
    except (pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{name}: {_first(error)}", "correct the file") from None


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _opened(path: str, stack: ExitStack) -> BinaryIO:
    if path == "-":
        return cast(BinaryIO, sys.stdin.buffer)
    return stack.enter_context(open(path, "rb"))


def _seekable(stream: BinaryIO, stack: ExitStack) -> BinaryIO:
    """Parquet is read from its end, so a pipe is first copied to a temporary file."""
    if stream.seekable():
        return stream
    file = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115
    aside = cast(BinaryIO, stack.enter_context(file))
    while block := stream.read(BLOCK_BYTES):
        aside.write(block)
    aside.seek(0)
    return aside


# --- formats that know their types


def _parquet(name: str, stream: BinaryIO) -> RowFile:
    file = parquet.ParquetFile(stream)
    batches = file.iter_batches(ROWS_AT_ONCE)
    nulls = _parquet_nulls(file.metadata)
    return RowFile(name, file.schema_arrow, batches, file.metadata.num_rows, nulls)


def _parquet_nulls(metadata: Any) -> dict[str, int]:
    nulls: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            statistics = column.statistics
            if statistics is not None and statistics.has_null_count:
                name = column.path_in_schema
                nulls[name] = nulls.get(name, 0) + statistics.null_count
    return nulls


def _arrow(name: str, stream: Any) -> RowFile:
    try:
        reader: Any = pa.ipc.open_file(stream)
    except pa.ArrowInvalid:
        stream.seek(0)
        reader = pa.ipc.open_stream(stream)
        return RowFile(name, reader.schema, iter(reader))
    batches = (reader.get_batch(each) for each in range(reader.num_record_batches))
    return RowFile(name, reader.schema, batches)


# --- CSV


def _csv(name: str, stream: BinaryIO, types: Types | None, delimiter: str) -> RowFile:
    header = _header(name, stream, delimiter)
    nested = [each for each in header if types and pa.types.is_nested(types.get(each, pa.null()))]
    if nested:
        raise BadInput(
            f"{name}: column {nested[0]} is a list or a struct, which CSV can't represent",
            "use NDJSON or Parquet",
        )
    with _csv_errors(name, header):
        try:
            reader = arrow_csv.open_csv(
                stream,
                arrow_csv.ReadOptions(
                    use_threads=False, block_size=BLOCK_BYTES, column_names=header
                ),
                arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types=None if types is None else dict(types),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" not in str(error):
                raise
            known = types or {}
            schema = pa.schema([(each, known.get(each, pa.string())) for each in header])
            return RowFile(name, schema, iter(()), 0)
    return RowFile(name, reader.schema, _csv_batches(name, header, reader))


def _csv_batches(name: str, header: list[str], reader: Any) -> Iterator[pa.RecordBatch]:
    with _csv_errors(name, header):
        yield from reader


def _header(name: str, stream: BinaryIO, delimiter: str) -> list[str]:
    """The names in the first line, which may go on in further lines within quotes."""
    text = stream.readline().decode("utf-8-sig")
    while text.count('"') % 2 and (more := stream.readline()):
        text += more.decode()
    names = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    if not names or not all(names):
        raise BadInput(f"{name}: the first line does not name the columns", "add a header line")
    return names


@contextmanager
def _csv_errors(name: str, header: list[str]) -> Iterator[None]:
    """Arrow counts columns from 0; people know them by name."""
    try:
        yield
    except pa.ArrowInvalid as error:
        what = _first(error)
        start, _, rest = what.partition("In CSV column #")
        number, _, problem = rest.partition(": ")
        if start or not number.isdigit():
            raise
        raise BadInput(
            f"{name}: column {header[int(number)]}: {problem}",
            "correct the value, or create the table with another type",
        ) from None


# --- NDJSON


def _ndjson(name: str, stream: BinaryIO, types: Types | None) -> RowFile:
    blocks = _objects(name, stream)
    first = next(blocks, [])
    names = list(dict.fromkeys(key for row in first for key in row))
    if types is None:
        types = {each: _inferred(name, each, first) for each in names}
    # Columns that the table does not have are refused by `check_columns`.
    schema = pa.schema([(each, types.get(each, pa.null())) for each in names])
    return RowFile(name, schema, _as_batches(name, chain([first], blocks), types))


def _objects(name: str, stream: BinaryIO) -> Iterator[list[dict[str, Any]]]:
    """A few thousand lines at a time; errors contain the line number."""
    decoder = msgspec.json.Decoder()
    done = 0
    while lines := stream.readlines(BLOCK_BYTES):
        rows = []
        for line in lines:
            done += 1
            if line.isspace():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadInput(
                    f"{name}: line {done} is not JSON: {error}", "write one object per line"
                ) from None
            if not isinstance(row, dict):
                raise BadInput(f"{name}: line {done} is not an object", "write one object per line")
            rows.append(row)
        yield rows


def _inferred(name: str, column: str, rows: list[dict[str, Any]]) -> pa.DataType:
    try:
        found: pa.DataType = pa.array([row.get(column) for row in rows]).type
        return found
    except (pa.ArrowException, OverflowError) as error:
        raise BadInput(
            f"{name}: column {column}: {_first(error)}",
            "give all of its values the same type, or create the table first",
        ) from None


def _as_batches(
    name: str, blocks: Iterator[list[dict[str, Any]]], known: Types
) -> Iterator[pa.RecordBatch]:
    starts = ((rows, start) for rows in blocks for start in range(0, len(rows), ROWS_AT_ONCE))
    for rows, start in starts:
        some = rows[start : start + ROWS_AT_ONCE]
        columns = dict.fromkeys(key for row in some for key in row)
        unknown = [each for each in columns if each not in known]
        if unknown:
            raise BadInput(
                f"{name}: the table has no column {unknown[0]}", "remove it from the file"
            )
        arrays = [_column(name, each, some, known[each]) for each in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(name: str, column: str, rows: list[dict[str, Any]], wanted: pa.DataType) -> Any:
    values = [row.get(column) for row in rows]
    try:
        if pa.types.is_temporal(wanted) or pa.types.is_decimal(wanted):
            return pa.array([_text(each) for each in values], pa.string()).cast(wanted)
        if pa.types.is_binary(wanted) or pa.types.is_large_binary(wanted):
            values = [None if each is None else base64.b64decode(each) for each in values]
        return exact_array(values, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadInput(
            f"{name}: column {column} can't be converted to {wanted}: {_first(error)}",
            "correct the values, or create the table with another type",
        ) from None


def _text(value: Any) -> str | None:
    """Numbers as text too: times and decimals are parsed from text."""
    return None if value is None else str(value)


# --- types of a new table

_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.timestamp("ms"),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.null(): pa.string(),
}


def plain_schema(schema: pa.Schema, key: Sequence[str], name: str) -> pa.Schema:
    """The file's schema with types that tables support, widened where needed.

    Columns other than keys are nullable: the next file may have nulls where this one has none.
    """
    if not schema.names:
        raise BadInput(f"{name} has no columns", "create the table with --column first")
    fields: list[pa.Field[Any]] = [
        pa.field(
            field.name,
            plain_type(field.type),
            nullable=field.nullable or field.name not in key,
        )
        for field in schema
    ]
    return pa.schema(fields)


def plain_type(of: pa.DataType) -> pa.DataType:
    if isinstance(of, pa.DictionaryType):
        return plain_type(of.value_type)
    if isinstance(of, pa.ListType | pa.FixedSizeListType):
        return pa.list_(plain_type(of.value_type))
    return _WIDER.get(of, of)
