"""How far is a run? One look at it, or look after look until it has ended."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from msgspec import to_builtins
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from limosa.cli.durations import lasted
from limosa.cli.following import PATIENCE_SECONDS
from limosa.cli.plans import words
from limosa.cli.showing import count, size, tell
from limosa.client.connection import Connection
from limosa.client.rebalancing import progress_of
from limosa.core.coordinator.progress import Progress
from limosa.core.model.runs import RunMove
from limosa.errors import OutcomeUnknown, Refused

LOOK_SECONDS = 0.5
"""Each look asks every node for all it knows."""
BAR_WIDTH = 30
MOVES_SHOWN = 8
WAITS_SHOWN = 3


def follow(connection: Connection, run: str, show: Callable[[Progress], None]) -> Progress:
    """Until the run has ended; a cluster that does not answer for a while is asked again."""
    heard_at = time.monotonic()
    while True:
        try:
            found = progress_of(connection, run)
            assert found is not None
            if found.run.outcome:
                return found
            show(found)
            heard_at = time.monotonic()
        except (OutcomeUnknown, Refused):
            if time.monotonic() - heard_at > PATIENCE_SECONDS:
                raise
        time.sleep(LOOK_SECONDS)


def facts(progress: Progress) -> dict[str, Any]:
    described: dict[str, Any] = to_builtins(progress)
    return described


def lines_of(progress: Progress) -> list[str]:
    """What a person reads of a run, without its moves."""
    run = progress.run
    told = {
        "run": f"{run.id}: {run.action}",
        "asked for by": f"{run.by}{f' ({run.why})' if run.why else ''}",
        "state": state_words(progress),
        "moves": moves_words(progress),
        "copied": copied_words(progress),
        "time": time_words(progress),
        "longest pause": lasted(progress.pause_seconds) if progress.pause_seconds else "",
        "thought before": estimate_words(progress),
        "limits": limits_words(progress),
    }
    lines = [f"{name:<14} {value}" for name, value in told.items() if value]
    return lines + [f"{'waits for':<14} {why}" for why in progress.waits]


def state_words(progress: Progress) -> str:
    run = progress.run
    if not run.outcome:
        return progress.state
    return f"{run.outcome}{f': {run.words}' if run.words else ''}"


def moves_words(progress: Progress) -> str:
    """`5 of 12 committed, 2 in flight, 5 to begin`."""
    parts = [f"{progress.committed:,} of {progress.total:,} committed"]
    parts += [f"{progress.in_flight:,} in flight"] if progress.in_flight else []
    parts += [f"{progress.failed:,} failed"] if progress.failed else []
    never = "never begun" if progress.run.outcome else "to begin"
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
    return f"{limits.moves_in} to a node and {limits.moves_out} away from one at once{rate}"


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


class Watching:
    """What a person who waits sees: on a terminal a few lines that change, else a line a change."""

    def __init__(self, quiet: bool, console: Console) -> None:
        self._quiet = quiet
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._said = ""

    def open(self) -> AbstractContextManager[object]:
        return self._live if self._is_live else nullcontext()

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._quiet

    def show(self, progress: Progress) -> None:
        if self._is_live:
            self._live.update(drawn(progress), refresh=True)
        elif not self._quiet:
            self._say(f"{progress.run.id} {progress.state}: {moves_words(progress)}")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            tell(line)


def drawn(progress: Progress) -> Group:
    run = progress.run
    whole = 0 if run.estimate is None else run.estimate.bytes
    head = Text(f"{run.id}  {run.action}  {progress.state}  {time_words(progress)}", style="bold")
    grid = Table.grid(padding=(0, 1))
    done, total = (progress.bytes, whole) if whole else (progress.committed, progress.total)
    grid.add_row(
        ProgressBar(max(1, total), min(done, total), width=BAR_WIDTH), copied_words(progress)
    )
    lines: list[Text | Table] = [head, grid, Text(moves_words(progress))]
    current = Table.grid(padding=(0, 2))
    for move in progress.current[:MOVES_SHOWN]:
        way = f"{move.source} → {words(move.target)}"
        current.add_row(f"  {move.partition}", way, move.state, move.detail)
    lines.append(current)
    lines += [Text(f"waits for: {why}") for why in progress.waits[:WAITS_SHOWN]]
    return Group(*lines)
