"""How is a table created, described or dropped? `limosa table …`."""

import sys
from typing import Annotated

import pyarrow as pa
import typer

from limosa.cli.shared.options import ClusterOptions, Partitions, Replicas, Yes, with_groups
from limosa.cli.shared.terminal import count, labelled, print_answer, print_json, print_table, tell
from limosa.client.connection import Description
from limosa.client.requests import PARTITIONS
from limosa.client.schema import schema_of
from limosa.errors import BadInput

table = typer.Typer(help="Create, describe or drop a table.", no_args_is_help=True)


@table.command()
@with_groups
def create(
    target: ClusterOptions,
    name: Annotated[str, typer.Argument(help="The table's name.")],
    key: Annotated[
        list[str], typer.Option("--key", help="A key column; repeat the option for several.")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME:TYPE", help="A column; repeat the option for each."),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="FILE", help="Take the columns of this file.")
    ] = None,
    partitions: Partitions = None,
    replicas: Replicas = None,
    min_in_sync: Annotated[
        int,
        typer.Option(min=0, help="Replicas that must be in sync for writes; 0: a majority."),
    ] = 0,
    zone: Annotated[
        str | None,
        typer.Option(help="Share the partitions of this zone.", show_default="its own zone"),
    ] = None,
) -> None:
    """Create a table, and wait until it can be written.

    Types: bool, int8 to int64, float32, float64, string, binary, date32, timestamp (microseconds,
    UTC), timestamp[us] (without a time zone).

    \b
    Examples:
      limosa table create items --column id:int64 --column name:string --key id
      limosa table create items --like items.parquet --key id --partitions 32 --replicas 3
    """
    schema = _columns(column or [], like, key)
    with target.connect() as connection:
        connection.create_table(
            name,
            schema,
            key,
            partitions=PARTITIONS if partitions is None else partitions,
            replicas=replicas,
            min_in_sync=min_in_sync,
            zone=zone,
        )
        description = connection.describe(name)
    copies, of = count(description.replicas, "replica"), count(description.partitions, "partition")
    told = f"Created the table {name}: {of} of {copies} each."
    print_answer(target.as_json, description, told)


def _columns(given: list[str], like: str | None, key: list[str]) -> pa.Schema:
    if bool(given) == (like is not None):
        raise BadInput(
            "the columns come either from --column or from --like",
            "use --column NAME:TYPE for each, or --like FILE",
        )
    if like is not None:
        from limosa.cli.shared.row_files import open_source, plain_schema

        with open_source(like, None, None) as source:
            return plain_schema(source.schema, key, like)
    types = {}
    for each in given:
        name, colon, wanted = each.partition(":")
        if not colon or not name or not wanted:
            raise BadInput(f"{each!r} is not a column", "write NAME:TYPE, like id:int64")
        if name in types:
            raise BadInput(f"the column {name} is given twice", "give each column another name")
        types[name] = wanted
    return schema_of(types)


@table.command()
@with_groups
def describe(
    target: ClusterOptions, name: Annotated[str, typer.Argument(help="The table's name.")]
) -> None:
    """Show a table's columns, partitions and replicas.

    \b
    Examples:
      limosa table describe items
    """
    with target.connect() as connection:
        description = connection.describe(name)
    if target.as_json:
        print_json(description)
    else:
        _print(description)


def _print(description: Description) -> None:
    lines = {
        "table": description.name,
        "id": description.id,
        "zone": description.zone,
        "partitions": f"{description.partitions:,}",
        "replicas": f"{description.replicas} ({description.min_in_sync} must be in sync)",
    }
    typer.echo("\n".join([*labelled(lines, 12), ""]))
    places = {name: str(place + 1) for place, name in enumerate(description.key)}
    print_table(
        ("column", "type", "key"),
        [(name, of, places.get(name, "")) for name, of in description.columns.items()],
    )


@table.command()
@with_groups
def drop(
    target: ClusterOptions,
    name: Annotated[str, typer.Argument(help="The table's name.")],
    yes: Yes = False,
) -> None:
    """Drop a table and all of its rows.

    \b
    Examples:
      limosa table drop items
      limosa table drop items --yes
    """
    with target.connect() as connection:
        connection.describe(name)
        if not yes and not _confirmed(name):
            tell("Nothing was changed.")
            raise typer.Exit(1)
        connection.drop_table(name)
    told = f"Dropped the table {name} and all of its rows."
    print_answer(target.as_json, {"dropped": name}, told)


def _confirmed(name: str) -> bool:
    if not is_terminal():
        raise BadInput(
            f"dropping {name} deletes all of its rows, and needs confirmation", "add --yes"
        )
    return typer.confirm(f"Drop the table {name} and all of its rows?", err=True)


def is_terminal() -> bool:
    return sys.stdin.isatty()
