"""What does a partition, a node or a run wait for, and what can I do? `limosa explain`."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from limosa.admin.moves import look_at
from limosa.cli.shared.move_progress import copy_words, landed_bytes, stage_words, took_words
from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.quantities import lasted, moment
from limosa.cli.shared.run_progress import COLUMNS
from limosa.cli.shared.run_progress import lines_of as run_lines
from limosa.cli.shared.run_progress import row_of as move_row
from limosa.cli.shared.terminal import count, labelled, print_json, print_table, size
from limosa.client.cluster_view import look
from limosa.core.insight.explaining import Explanation, Standing
from limosa.core.insight.explaining_nodes import NodeExplanation, explain_node
from limosa.core.insight.progress import Progress, progress
from limosa.core.model.keys import COUNTER_BITS, Position, epoch_of
from limosa.core.model.reports import Report
from limosa.core.model.topology import Replica
from limosa.errors import IllegalRequest

DIFFERENCES_SHOWN = 5


@with_groups
def explain(
    target: ClusterOptions,
    name: Annotated[
        str, typer.Argument(metavar="PARTITION|NODE|RUN", help="The name, like items-0003 or n2.")
    ],
) -> None:
    """Explain the state of a partition, a node or a run.

    Shows its stage, what it waits for, what comes next, and what you can do. The explanation is
    derived from the metastore and from the live nodes, by the same rules that the coordinator
    follows, so it also works while no coordinator runs.

    \b
    Examples:
      limosa explain items-0003
      limosa explain n2
      limosa explain r123 --json
    """
    with target.operate() as connection:
        view = look(connection, name)
        if name in view.agreed.runs:
            shown_run(target, progress(view, name))
            return
        if name in view.agreed.topology.nodes:
            shown_node(target, explain_node(view, name))
            return
        if name not in view.agreed.topology.partitions:
            raise IllegalRequest(
                f"there is no partition, node or run {name}",
                "see `limosa partitions`, `limosa nodes` and `limosa rebalance history`",
            )
        explanation = look_at(connection, name)
    if target.as_json:
        print_json(explanation)
        return
    typer.echo("\n".join([*lines_of(explanation, time.time()), ""]))
    print_table(
        ("replica", "side", "live", "in sync", "owner", "log", "committed", "rows", "bytes"),
        [replica_row(each) for each in explanation.replicas],
    )
    print_may(explanation.may)
    print_reports(explanation)


def shown_node(target: ClusterOptions, found: NodeExplanation) -> None:
    if target.as_json:
        print_json(found)
        return
    told = {
        "node": found.node,
        "state": f"{found.state}, {'live' if found.live else 'silent'}",
        "holds": f"{count(found.replicas, 'replica')}, {size(found.bytes)}; owns {found.owned:,}",
        "free": size(sum(found.free_bytes.values())) if found.free_bytes else "",
        "load": "" if found.load is None else f"{found.load:.2f} times the mean",
        "moving in": ", ".join(found.coming),
        "moving out": ", ".join(found.going),
        "next": found.next,
    }
    waits = [f"{'waits for':<13} {why}" for why in found.waits]
    typer.echo("\n".join(labelled(told, 13) + waits))
    print_may(found.may)


def lines_of(explanation: Explanation, now: float) -> list[str]:
    kind = f"{explanation.kind}: " if explanation.kind else ""
    told = {
        "partition": explanation.partition,
        "stage": f"{kind}{stage_words(explanation)}{since_words(explanation.since, now)}",
        "": explanation.holds,
        "rolling back": explanation.giving_up,
        "waits for": explanation.waits_for,
        "next": explanation.next,
        "copy": copy_line(explanation, now),
        "Spark": spark_line(explanation),
        "pause": pause_line(explanation),
        "owner": f"{explanation.owner or 'none'}, epoch {explanation.epoch}",
        "coordinator": explanation.coordinator or "none",
        "no answer": ", ".join(explanation.unheard),
    }
    return labelled(told, 13)


def since_words(since: float | None, now: float) -> str:
    return "" if since is None else f", since {clock(since)} ({lasted(max(0.0, now - since))})"


def clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def copy_line(explanation: Explanation, now: float) -> str:
    copy, since = explanation.copy, explanation.since
    if copy is None:
        return ""
    up = 0.0 if explanation.pipeline is None else explanation.pipeline.since
    passed = 0.0 if since is None else now - max(since, up)
    return copy_words(copy, landed_bytes(copy) / passed if passed > 0 else 0.0)


def spark_line(explanation: Explanation) -> str:
    return "" if explanation.pipeline is None else explanation.pipeline.words


def pause_line(explanation: Explanation) -> str:
    words = []
    if explanation.pause_seconds:
        words.append(f"{lasted(explanation.pause_seconds)} at the hand-over")
    if explanation.pause_seconds_max:
        words.append(f"at most {lasted(explanation.pause_seconds_max)} allowed")
    return ", ".join(words)


def replica_row(each: Standing) -> tuple[object, ...]:
    return (
        place(each.replica),
        each.side,
        _yes(each.live),
        _yes(each.in_sync),
        _yes(each.owner),
        _position(each.last),
        _position(each.watermark),
        None if each.last is None else f"{each.rows:,}",
        None if each.last is None else size(each.bytes),
    )


def place(replica: Replica) -> str:
    return f"{replica.node}:{replica.volume}" if replica.volume else replica.node


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _position(at: Position | None) -> str | None:
    """Epoch and counter, which are easier to read than the position's one number."""
    return None if at is None else f"{epoch_of(at)}/{at & (1 << COUNTER_BITS) - 1}"


def print_may(sentences: Sequence[str]) -> None:
    typer.echo("\nYou can")
    for sentence in sentences:
        typer.echo(f"  {sentence}")


def print_reports(explanation: Explanation) -> None:
    if not explanation.reports:
        return
    typer.echo("\nEarlier")
    for report in explanation.reports:
        typer.echo(f"  {report_line(report)}")
        for each in report.differences[:DIFFERENCES_SHOWN]:
            typer.echo(f"    {each}")
        more = max(0, len(report.differences) - DIFFERENCES_SHOWN) + report.differences_more
        if more:
            typer.echo(f"    and {count(more, 'more difference')}")


def report_line(report: Report) -> str:
    """`12:03:04 move from n1 to n3: done in 3.1 s, with a pause of 12 ms`."""
    went = [place(each) for each in report.sources if each not in report.targets]
    came = [place(each) for each in report.targets if each not in report.sources]
    moved = f" from {', '.join(went)}" if went else ""
    moved += f" to {', '.join(came)}" if came else ""
    when = moment(report.ended)
    why = f": {report.why}" if report.why else ""
    return f"{when}  {report.kind}{moved}: {report.outcome}{why}{took_words(report)}"


# --- runs


def shown_run(target: ClusterOptions, found: Progress) -> None:
    if target.as_json:
        print_json(found)
        return
    typer.echo("\n".join(run_lines(found)))
    if found.current:
        typer.echo("")
        print_table(COLUMNS, [move_row(each) for each in found.current])
    print_may(may(found))


def may(found: Progress) -> list[str]:
    run = found.run.id
    if found.run.outcome:
        return [f"list its moves: limosa rebalance status {run} --moves"]
    turns = {
        "running": [f"pause it: limosa rebalance pause {run}"],
        "paused": [f"resume it: limosa rebalance resume {run}"],
    }
    out = turns.get(found.state, [])
    if found.state != "cancelling":
        out.append(f"cancel it: limosa rebalance cancel {run}")
    if found.held:
        out.append("end the holds: limosa rebalance complete, or reverse")
    return [*out, f"watch it: limosa rebalance status {run} --wait"]
