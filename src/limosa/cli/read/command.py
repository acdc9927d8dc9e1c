"""Which rows are there? `limosa read`, partition by partition as they come."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import pyarrow as pa
import typer

from limosa.cli.read.conditions import condition_of, key_of
from limosa.cli.shared.options import Target, of_cluster
from limosa.cli.shared.row_files import Format, errors_of, format_of
from limosa.cli.shared.row_writers import writer_of
from limosa.cli.shared.terminal import count, print_json, tell
from limosa.client.table import TableHandle
from limosa.errors import BadInput

SHOWN_AT_MOST = 100


class Shape(StrEnum):
    """What rows are printed as."""

    table = "table"
    csv = "csv"
    ndjson = "ndjson"
    parquet = "parquet"
    arrow = "arrow"


@of_cluster
def read(
    target: Target,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    columns: Annotated[
        str | None, typer.Option(help="Some columns only, with commas between them.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help='A condition, like "price > 10"; all of them must hold.'),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="The row of this key; a,b for a key of two columns."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    format: Annotated[
        Shape | None,
        typer.Option(
            "--format", help="How to print them.", show_default="table, or by --output's suffix"
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Into this file.")] = None,
    count_only: Annotated[bool, typer.Option("--count", help="Only how many there are.")] = False,
    eventual: Annotated[
        bool, typer.Option("--eventual", help="Ask any replica: it may be a little behind.")
    ] = False,
) -> None:
    """Read rows, in no particular order.

    Every partition is read as it was at one moment. As a table at most 100 rows are shown unless
    --limit says otherwise. --json is --format ndjson.

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
        raise BadInput("a table is for eyes", "name another --format for the file")
    if key and where:
        raise BadInput("a key names its row already", "leave out --where, or --key")
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
            if target.as_json:
                print_json({"table": table, "rows": rows})
            else:
                typer.echo(str(rows))
            return
        schema = pa.schema([handle.schema.field(name) for name in wanted])
        shown = limit if limit is not None or shape is not None else SHOWN_AT_MOST
        with errors_of(output or "standard output"), writer_of(shape, output, schema) as writer:
            done = 0
            for part in limited(parts, shown):
                writer.write(part.select(wanted).cast(schema))
                done += part.num_rows
    if output is not None:
        tell(f"{count(done, 'row')} in {output}.")
    elif shape is None and limit is None and done == SHOWN_AT_MOST:
        tell(f"These are the first {done} rows; --limit N or --format csv gives more.")
    elif shape is None:
        tell(f"{count(done, 'row')}.")


def _shape(format: Shape | None, output: str | None, as_json: bool) -> Format | None:
    """None: a table."""
    if as_json and format not in (None, Shape.ndjson):
        raise BadInput("--json is --format ndjson", "leave one of them out")
    if format is None and as_json:
        return Format.ndjson
    if format is None and output is not None:
        return format_of(output, None)
    return None if format in (None, Shape.table) else Format(format.value)


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
    """The first so many rows; the rest is not asked for."""
    left = limit
    for part in parts if left != 0 else ():
        if left is None:
            yield part
            continue
        yield part.slice(0, left)
        left -= min(left, part.num_rows)
        if not left:
            return
