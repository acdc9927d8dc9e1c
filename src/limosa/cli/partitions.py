"""Which partitions are there, and which nodes hold each? `limosa partitions`."""

from typing import Annotated

import typer

from limosa.admin.overview import look, partition_facts, partitions_of
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.terminal import NOTHING, count, print_json, print_table
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN


@with_groups
def partitions(
    target: ClusterOptions,
    table: Annotated[str | None, typer.Argument(help="List only this table's partitions.")] = None,
) -> None:
    """List the partitions with their owners and replicas.

    The number of rows includes older versions that have not been merged yet.

    \b
    Examples:
      limosa partitions
      limosa partitions items --json
    """
    with target.operate() as connection:
        overview = look(connection)
    answer = [partition_facts(overview, each) for each in partitions_of(overview, table)]
    if target.as_json:
        print_json({"partitions": answer})
        return
    print_table(
        ("partition", "range", "owner", "replicas", "in sync", "epoch", "rows", "stage"),
        [
            (
                row.partition,
                _range(row.start, row.end),
                row.owner or NOTHING,
                " ".join(row.replicas),
                " ".join(row.in_sync),
                row.epoch,
                None if row.rows is None else f"{row.rows:,}",
                row.stage,
            )
            for row in answer
        ],
    )
    typer.echo(count(len(answer), "partition"))


def _range(start: int, end: int) -> str:
    """In percent of the token space: the tokens themselves have nineteen digits."""
    whole = TOKEN_END - TOKEN_MIN
    low, high = ((token - TOKEN_MIN) * 100 / whole for token in (start, end))
    return f"{low:.2f} to {high:.2f} %"
