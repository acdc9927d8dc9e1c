"""Which nodes are there, and what does each hold? `limosa nodes`."""

from limosa.admin.overview import look, node_facts
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.terminal import place_of, print_json, print_table, size


@with_groups
def nodes(target: ClusterOptions) -> None:
    """List the nodes and what each of them holds.

    The number of rows includes older versions that have not been merged yet.

    \b
    Examples:
      limosa nodes
      limosa nodes --json
    """
    with target.operate() as connection:
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
