"""Which tables are there? `limosa tables`."""

from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.terminal import print_json, print_table


@with_groups
def tables(target: ClusterOptions) -> None:
    """List the tables.

    \b
    Examples:
      limosa tables
      limosa tables --json
    """
    with target.connect() as connection:
        described = [connection.describe(name) for name in connection.tables()]
    if target.as_json:
        print_json({"tables": described})
        return
    print_table(
        ("table", "key", "columns", "partitions", "replicas", "needed in sync", "zone"),
        [
            (
                *(each.name, ", ".join(each.key), len(each.columns)),
                *(each.partitions, each.replicas, each.min_in_sync, each.zone),
            )
            for each in described
        ],
    )
