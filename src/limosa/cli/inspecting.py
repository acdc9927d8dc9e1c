"""How is the cluster? `limosa status`, `limosa nodes`, `limosa partitions`."""

from typing import Annotated

import typer

from limosa.admin.overview import look, node_facts, partition_facts, partitions_of, status_of
from limosa.cli.connecting import ClusterOptions, of_cluster
from limosa.cli.showing import NOTHING, count, place_of, print_json, print_table, size
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN

NAMED_AT_MOST = 5


@of_cluster
def status(target: ClusterOptions) -> None:
    """Is everything well? The cluster in a few lines.

    \b
    Examples:
      limosa status
      limosa status --cluster 127.0.0.1:4711 --json
    """
    with target.connect() as connection:
        overview = look(connection, ask_nodes=False)
    answer = status_of(overview)
    if target.as_json:
        print_json(answer)
        return
    partitions = answer.partitions
    silent = [node for node in answer.nodes.members if node not in answer.nodes.live]
    lines = {
        "cluster": f"{answer.cluster} ({answer.id})",
        "coordinator": answer.coordinator or "none in office",
        "nodes": f"{len(overview.live)} of {len(overview.members)} live"
        + (f"; silent: {', '.join(silent)}" if silent else ""),
        "tables": ", ".join(answer.tables) or "none",
        "partitions": f"{partitions.total:,}",
        "without an owner": _some(partitions.without_owner),
        "not fully in sync": _some(partitions.not_in_sync),
        "changing": _some(partitions.changing),
        "generation": str(answer.generation),
    }
    for name, value in lines.items():
        typer.echo(f"{name:<18} {value}")


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    more = ", …" if len(names) > NAMED_AT_MOST else ""
    return f"{len(names):,} ({', '.join(names[:NAMED_AT_MOST])}{more})"


@of_cluster
def nodes(target: ClusterOptions) -> None:
    """List the nodes, and what each of them holds.

    Rows are counted as they are stored, with older versions that are not merged yet.

    \b
    Examples:
      limosa nodes
      limosa nodes --json
    """
    with target.connect() as connection:
        overview = look(connection)
    answer = [node_facts(overview, name) for name in sorted(overview.topology.nodes)]
    if target.as_json:
        print_json({"nodes": answer})
        return
    columns = ("name", "state", "live", "address", "rack", "replicas", "owned", "rows", "bytes")
    print_table(
        (*columns, "free"),
        [
            (
                row.name,
                row.state,
                "yes" if row.live else "no",
                place_of(row.address),
                row.rack,
                row.replicas,
                row.owned,
                None if row.rows is None else f"{row.rows:,}",
                None if row.bytes is None else size(row.bytes),
                None if row.free is None else size(row.free),
            )
            for row in answer
        ],
    )


@of_cluster
def partitions(
    target: ClusterOptions,
    table: Annotated[str | None, typer.Argument(help="Of this table only.")] = None,
) -> None:
    """List the partitions: who owns each, who holds it, what changes.

    Rows are counted as they are stored, with older versions that are not merged yet.

    \b
    Examples:
      limosa partitions
      limosa partitions items --json
    """
    with target.connect() as connection:
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
    """In hundredths of the token space: tokens themselves have nineteen digits."""
    whole = TOKEN_END - TOKEN_MIN
    low, high = ((token - TOKEN_MIN) * 100 / whole for token in (start, end))
    return f"{low:.2f} to {high:.2f} %"
