"""Is the cluster well, in a few lines? `limosa status`."""

from limosa.admin.overview import look, status_of
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.terminal import labelled, print_answer

NAMED_AT_MOST = 5


@with_groups
def status(target: ClusterOptions) -> None:
    """Show the state of the cluster in a few lines.

    \b
    Examples:
      limosa status
      limosa status --cluster 127.0.0.1:4711 --json
    """
    with target.operate() as connection:
        overview = look(connection)
    answer = status_of(overview)
    partitions = answer.partitions
    silent = [node for node in answer.nodes.members if node not in answer.nodes.live]
    lines = {
        "cluster": f"{answer.cluster} ({answer.id})",
        "coordinator": answer.coordinator or "none",
        "Spark": answer.spark,
        "locked": answer.locked,
        "nodes": f"{len(overview.live)} of {len(overview.members)} live"
        + (f"; silent: {', '.join(silent)}" if silent else ""),
        "tables": ", ".join(answer.tables) or "none",
        "partitions": f"{partitions.total:,}",
        "without an owner": _some(partitions.without_owner),
        "not fully in sync": _some(partitions.not_in_sync),
        "damaged": _some([f"{each.partition} on {each.node}" for each in answer.damaged]),
        "changing": _some(partitions.changing),
        "generation": str(answer.generation),
    }
    print_answer(target.as_json, answer, *labelled(lines, 18))


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    more = ", …" if len(names) > NAMED_AT_MOST else ""
    return f"{len(names):,} ({', '.join(names[:NAMED_AT_MOST])}{more})"
