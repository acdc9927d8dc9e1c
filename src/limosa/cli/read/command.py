"""Which rows does a table have? `limosa read` reads them partition by partition."""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import pyarrow as pa
import typer

from limosa.cli.read.conditions import condition_of, key_of
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.row_files import Format, errors_of, format_of
from limosa.cli.shared.row_writers import writer_of
from limosa.cli.shared.terminal import count, print_answer, tell
from limosa.client.table import TableHandle
from limosa.errors import BadInput

SHOWN_AT_MOST = 100


OutputShape: TypeAlias = Literal["table", "csv", "ndjson", "parquet", "arrow"]


@with_groups
def read(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    columns: Annotated[
        str | None, typer.Option(help="Only these columns, separated by commas.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help='A condition, like "price > 10"; rows must match all of them.'
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Read the row with this key; a,b for a key of two columns."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Maximum number of rows.")] = None,
    format: Annotated[
        OutputShape | None,
        typer.Option(
            "--format", help="The output format.", show_default="table, or by --output's suffix"
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Write to this file.")] = None,
    count_only: Annotated[
        bool, typer.Option("--count", help="Print only the number of rows.")
    ] = False,
    eventual: Annotated[
        bool,
        typer.Option("--eventual", help="Read from any replica, which may be slightly behind."),
    ] = False,
) -> None:
    """Read rows of a table, in no particular order.

    Each partition is read from one snapshot. Without --limit, the format `table` shows at most 100
    rows. --json is the same as --format ndjson.

    \b
    Examples:
      limosa read items --limit 10
      limosa read items --where "price > 99" --where "name is not null" --columns id,price
      limosa read items --key 4711 --json
      limosa read items --output items.parquet
      limosa read items --count
    """
    shape = _shape(format, output, target.as_json)
    if output is not None and shape is None:
        raise BadInput("the format table can't be written to a file", "choose another --format")
    if key and where:
        raise BadInput("--key and --where can't be combined", "omit one of them")
    with target.connect() as connection:
        handle = connection.table(table)
        wanted = _columns(handle, columns)
        conditions = [condition_of(handle.definition, each) for each in where or ()]
        if key:
            keys = [key_of(handle.definition, each) for each in key]
            parts: Iterator[pa.Table] = iter([handle.get_many(keys, eventual).select(wanted)])
        else:
            scanned = [handle.key[0]] if count_only else wanted
            parts = handle.scan_partitions(scanned, conditions, eventual)
        if count_only:
            rows = sum(part.num_rows for part in parts)
            print_answer(target.as_json, {"table": table, "rows": rows}, str(rows))
            return
        schema = pa.schema([handle.schema.field(name) for name in wanted])
        shown = limit if limit is not None or shape is not None else SHOWN_AT_MOST
        with errors_of(output or "standard output"), writer_of(shape, output, schema) as writer:
            done = 0
            for part in limited(parts, shown):
                writer.write(part.select(wanted).cast(schema))
                done += part.num_rows
    if output is not None:
        tell(f"{count(done, 'row')} written to {output}.")
    elif shape is None and limit is None and done == SHOWN_AT_MOST:
        tell(f"Only {done} rows are shown; see more with --limit N, or all with --format csv.")
    elif shape is None:
        tell(f"{count(done, 'row')}.")


def _shape(format: OutputShape | None, output: str | None, as_json: bool) -> Format | None:
    """None: a table."""
    if as_json and format not in (None, "ndjson"):
        raise BadInput("--json means --format ndjson", "omit one of them")
    if format is None and as_json:
        return Format.ndjson
    if format is None and output is not None:
        return format_of(output, None)
    return None if format in (None, "table") else Format(format)


def _columns(table: TableHandle, given: str | None) -> list[str]:
    names = list(table.definition.names)
    if given is None:
        return names
    wanted = [name.strip() for name in given.split(",")]
    unknown = [name for name in wanted if name not in names]
    if unknown or len(set(wanted)) != len(wanted):
        raise BadInput(
            f"there is no column {', '.join(unknown)}" if unknown else "a column is named twice",
            f"there are {', '.join(names)}",
        )
    return wanted


def limited(parts: Iterator[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """The first rows, up to the limit; later partitions are not read."""
    left = limit
    for part in parts if left != 0 else ():
        if left is None:
            yield part
            continue
        yield part.slice(0, left)
        left -= min(left, part.num_rows)
        if not left:
            return
