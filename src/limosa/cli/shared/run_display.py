"""How is a run shown while somebody waits for its end?

On a terminal as a live table: a line for the run, and one for each move in flight. Otherwise as a
line whenever a move starts or ends, and at least every few seconds.
"""

import time
from collections.abc import Callable

from rich import box
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from limosa.cli.shared.move_progress import LiveDisplay, Rate, stage_words
from limosa.cli.shared.plans import words
from limosa.cli.shared.quantities import lasted
from limosa.cli.shared.run_progress import moves_words
from limosa.cli.shared.terminal import NOTHING, count, size, tell
from limosa.core.insight.progress import Progress
from limosa.core.insight.watching import Moving, WatchedRun

BAR_WIDTH = 20
MOVES_SHOWN = 8
WAITS_SHOWN = 3
SAY_SECONDS = 10.0
"""A line is printed at least this often, even if no move starts or ends."""
NOT_BEGUN = "not started"


class Watching(LiveDisplay):
    """Shows a run until it has ended."""

    def __init__(
        self, quiet: bool, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(quiet, console)
        self._now = now
        self._drawing = Drawing(now)
        self._said = ("", 0.0)

    def show(self, watched: WatchedRun) -> None:
        if self._is_live:
            self._live.update(self._drawing.of(watched), refresh=True)
        elif not self._quiet:
            self._say(watched.progress)

    def _say(self, progress: Progress) -> None:
        line = f"{progress.run.id} {progress.state}: {moves_words(progress)}"
        said, at = self._said
        if line != said or self._now() - at >= SAY_SECONDS:
            self._said = (line, self._now())
            tell(f"{line}; {figures(progress, progress.bytes_per_second)}")


class Drawing:
    """Draws the live table; remembers the recent rate of copying."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._rate = Rate()

    def of(self, watched: WatchedRun) -> Group:
        progress = watched.progress
        self._rate.note(self._now(), float(progress.bytes))
        rate = self._rate.per_second or progress.bytes_per_second
        lines: list[Text | Table] = [headline(progress), whole_line(progress, rate)]
        if watched.moving:
            lines.append(table_of(watched.moving[:MOVES_SHOWN]))
        more = len(watched.moving) - MOVES_SHOWN
        lines += [Text(f"… and {more:,} more in flight")] if more > 0 else []
        lines += [_one_line(f"waits for: {why}") for why in progress.waits[:WAITS_SHOWN]]
        return Group(*lines)


def headline(progress: Progress) -> Text:
    run = progress.run
    passed = lasted(progress.seconds)
    return _one_line(f"{run.id}  {run.action}  {progress.state}  {passed}", style="bold")


def whole_line(progress: Progress, rate: float) -> Table:
    """The progress bar, and the run's figures."""
    estimate = progress.run.estimate
    whole = 0 if estimate is None else estimate.bytes
    done, total = (progress.bytes, whole) if whole else (progress.committed, progress.total)
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(max(1, total), min(done, total), width=BAR_WIDTH),
        Text(f"{progress.committed:,} of {count(progress.total, 'move')}"),
        _one_line(figures(progress, rate)),
    )
    return line


def figures(progress: Progress, rate: float) -> str:
    """`1,204 rows, 61.2 MB, 12.1 MB/s, about 10 s left`."""
    parts = [count(progress.rows, "row"), size(progress.bytes)]
    parts += [f"{size(rate)}/s"] if rate > 0 else []
    left = seconds_left(progress, rate)
    parts += [] if left is None else [f"about {lasted(left)} left"]
    return ", ".join(parts)


def seconds_left(progress: Progress, rate: float) -> float | None:
    """At the rate that is shown, if the total number of bytes is known."""
    estimate = progress.run.estimate
    left = 0 if estimate is None else estimate.bytes - progress.bytes
    if progress.seconds_left is None or left <= 0 or rate <= 0:
        return progress.seconds_left
    return left / rate


def table_of(moves: tuple[Moving, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=True)
    for name in ("partition", "from → to", "stage", "copied"):
        table.add_column(name, no_wrap=True)
    table.add_column("waits for", no_wrap=True, overflow="ellipsis", ratio=1)
    for each in moves:
        move = each.move
        way = f"{move.source} → {words(move.target)}"
        cells = (move.partition, way, stage_of(each), copied(each), waits_of(each))
        table.add_row(*map(Text, cells))
    return table


def stage_of(moving: Moving) -> str:
    return stage_words(moving) or NOT_BEGUN


def copied(moving: Moving) -> str:
    """`19 % (12 of 64)`: slices."""
    if not moving.slices:
        return "100 %" if moving.share else NOTHING
    return f"{moving.share * 100:.0f} % ({moving.landed:,} of {moving.slices:,})"


def waits_of(moving: Moving) -> str:
    detail, why = moving.move.detail, moving.waits_for
    return f"{detail}; {why}" if detail and why else detail or why


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
