"""How far is a run? Polls until it has ended, and describes its progress in words."""

from collections.abc import Callable

from limosa.cli.shared.move_progress import poll
from limosa.cli.shared.plans import words
from limosa.cli.shared.quantities import lasted
from limosa.cli.shared.terminal import count, labelled, size
from limosa.client.cluster_view import watch
from limosa.client.operator import Operator
from limosa.core.insight.progress import Progress
from limosa.core.insight.watching import WatchedRun
from limosa.core.model.runs import RunMove

LOOK_SECONDS = 0.5
"""Each poll asks every node for its status."""


def follow(connection: Operator, run: str, show: Callable[[WatchedRun], None]) -> Progress:
    """Show a run until it has ended."""

    def look() -> Progress | None:
        found = watch(connection, run)
        if found.progress.run.outcome:
            return found.progress
        show(found)
        return None

    return poll(look, LOOK_SECONDS)


def lines_of(progress: Progress) -> list[str]:
    """The run's description, without its moves."""
    run = progress.run
    told = {
        "run": f"{run.id}: {run.action}",
        "requested by": f"{run.by}{f' ({run.why})' if run.why else ''}",
        "state": state_words(progress),
        "moves": moves_words(progress),
        "copied": copied_words(progress),
        "time": time_words(progress),
        "longest pause": lasted(progress.pause_seconds) if progress.pause_seconds else "",
        "estimate": estimate_words(progress),
        "limits": limits_words(progress),
    }
    return labelled(told, 14) + [f"{'waits for':<14} {why}" for why in progress.waits]


def state_words(progress: Progress) -> str:
    run = progress.run
    if not run.outcome:
        return progress.state
    return f"{run.outcome}{f': {run.words}' if run.words else ''}"


def moves_words(progress: Progress) -> str:
    """`5 of 12 committed, 2 in flight, 5 pending`."""
    parts = [f"{progress.committed:,} of {progress.total:,} committed"]
    parts += [f"{progress.in_flight:,} in flight"] if progress.in_flight else []
    parts += [f"{progress.failed:,} failed"] if progress.failed else []
    never = "never started" if progress.run.outcome else "pending"
    parts += [f"{progress.pending:,} {never}"] if progress.pending else []
    return ", ".join(parts)


def copied_words(progress: Progress) -> str:
    rate = f", {size(progress.bytes_per_second)}/s" if progress.bytes_per_second else ""
    return f"{count(progress.rows, 'row')}, {size(progress.bytes)}{rate}"


def time_words(progress: Progress) -> str:
    left = progress.seconds_left
    return lasted(progress.seconds) + ("" if left is None else f", about {lasted(left)} left")


def estimate_words(progress: Progress) -> str:
    estimate = progress.run.estimate
    if estimate is None:
        return ""
    took, pause = lasted(estimate.seconds), lasted(estimate.pause_seconds)
    return f"{size(estimate.bytes)} in {took}, pauses of {pause}"


def limits_words(progress: Progress) -> str:
    limits = progress.run.limits
    rate = f", {size(limits.bytes_per_second)}/s" if limits.bytes_per_second else ""
    return f"{limits.moves_in} moves to and {limits.moves_out} away from a node at a time{rate}"


def row_of(move: RunMove) -> tuple[object, ...]:
    return (
        move.number,
        move.partition,
        move.source,
        words(move.target),
        move.state,
        move.attempts,
        f"{move.rows:,}",
        size(move.bytes),
        lasted(move.pause_seconds) if move.pause_seconds else None,
        move.detail,
    )


COLUMNS = ("move", "partition", "from", "to", "state", "tries", "rows", "size", "pause", "detail")
