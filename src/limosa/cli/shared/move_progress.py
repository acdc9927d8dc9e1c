"""How far is the move of a partition? Polls until it has ended, and shows its progress."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from limosa.admin.moves import EndedChange, Wanted, ending, look_at, record_of
from limosa.cli.shared.quantities import lasted
from limosa.cli.shared.terminal import count, print_json, size, tell
from limosa.client.operator import Operator
from limosa.core.insight.explaining import CopyProgress, Explanation
from limosa.core.insight.watching import Moving
from limosa.core.machines.catalogue import MACHINES
from limosa.core.model.reports import Report
from limosa.errors import OutcomeUnknown, Refused

LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 60.0
"""How long to retry while the cluster does not answer."""
RATE_SECONDS = 10.0
BAR_WIDTH = 30
INTERRUPTED = 130

Ended = TypeVar("Ended")


# --- until it has ended


def poll(look: Callable[[], Ended | None], pause_seconds: float) -> Ended:
    """Look until there is an end; retries while the cluster does not answer."""
    heard_at = time.monotonic()
    while True:
        try:
            ended = look()
            if ended is not None:
                return ended
            heard_at = time.monotonic()
        except (OutcomeUnknown, Refused):
            if time.monotonic() - heard_at > PATIENCE_SECONDS:
                raise
        time.sleep(pause_seconds)


def follow(
    connection: Operator, partition: str, wanted: Wanted, show: Callable[[Explanation], None]
) -> EndedChange:
    """Show a change until it has ended."""

    def look() -> EndedChange | None:
        agreed = connection.state(partition)
        ended = ending(agreed, record_of(agreed, partition), wanted)
        if ended is None:
            show(look_at(connection, partition))
        return ended

    return poll(look, LOOK_SECONDS)


# --- how it looks


class Rate:
    """Bytes per second, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, now: float, done: float) -> None:
        if not done or (self._seen and done < self._seen[-1][1]):
            self._seen.clear()  # the copy has not begun, or started again in another session
        self._seen.append((now, done))
        while now - self._seen[0][0] > RATE_SECONDS and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        if not self._seen:
            return 0.0
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - began) if now > began else 0.0


def landed_bytes(copy: CopyProgress) -> float:
    """An estimate: all slices are about the same size."""
    return copy.bytes_all * copy.landed / copy.slices if copy.slices else 0.0


def copy_words(copy: CopyProgress, bytes_per_second: float = 0.0) -> str:
    """`12 of 64 slices, about 1,200 of 6,400 rows, 12.0 MB/s, 3.1 s left`."""
    if not copy.slices:
        return "no slice has been copied yet"
    words = [f"{copy.landed:,} of {count(copy.slices, 'slice')}"]
    if copy.rows_all:
        rows = copy.rows_all * copy.landed // copy.slices
        words.append(f"about {rows:,} of {count(copy.rows_all, 'row')}")
    if bytes_per_second > 0:
        left = copy.bytes_all - landed_bytes(copy)
        words.append(f"{size(bytes_per_second)}/s")
        words += [f"{lasted(left / bytes_per_second)} left"] if left > 0 else []
    if copy.slowed_to:
        words.append(f"slowed down to {size(copy.slowed_to)}/s for the sake of clients' writes")
    return ", ".join(words)


def stage_words(what: Explanation | Moving) -> str:
    """`streaming (3 of 6)`, or `dropping (rolling back)`."""
    if not what.kind:
        return what.stage
    forward = []
    machine, name = MACHINES[what.kind], MACHINES[what.kind].first.name
    names = [stage.name for stage in machine.stages]
    while name in names:
        forward.append(name)
        name = machine[name].next
    if what.stage not in forward:
        return f"{what.stage} (rolling back)"
    return f"{what.stage} ({forward.index(what.stage) + 1} of {len(forward)})"


def took_words(report: Report) -> str:
    """` in 3.1 s, with a pause of 12 ms`."""
    took = f" in {lasted(max(0.0, report.ended - report.began))}" if report.began else ""
    pause = f", with a pause of {lasted(report.pause_seconds)}" if report.pause_seconds else ""
    return took + pause


def on_errors() -> Console:
    """A console on standard error: the answer on standard output may be piped."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


class LiveDisplay:
    """A live display on a terminal, otherwise plain lines; nothing for programs (`quiet`)."""

    def __init__(self, quiet: bool, console: Console) -> None:
        self._quiet = quiet
        self._is_live = console.is_terminal and not quiet
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def open(self) -> AbstractContextManager[object]:
        return self._live if self._is_live else nullcontext()

    def until_ended(self, follow: Callable[[], Ended], goes_on: str, answer: Any) -> Ended:
        """Ctrl-C ends the command, not the move or the run: it tells that this goes on."""
        try:
            with self.open():
                return follow()
        except KeyboardInterrupt:
            pass
        tell(goes_on)
        if self._quiet:
            print_json(answer)
        raise typer.Exit(INTERRUPTED)


class ProgressDisplay(LiveDisplay):
    """Shows a move; without a terminal, one line per change."""

    def __init__(self, what: str, quiet: bool, console: Console) -> None:
        super().__init__(quiet, console)
        self._what = what
        self._rate = Rate()
        self._began = time.monotonic()
        self._said = ""

    def show(self, explanation: Explanation) -> None:
        if explanation.copy is not None:
            self._rate.note(time.monotonic(), landed_bytes(explanation.copy))
        if self._is_live:
            self._live.update(self.drawn(explanation), refresh=True)
        elif not self._quiet:
            self._say(f"{stage_words(explanation)}: {explanation.waits_for}")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            tell(line)

    def drawn(self, explanation: Explanation) -> Group:
        passed = lasted(time.monotonic() - self._began)
        lines: list[Text | Table] = [
            Text(f"{self._what}  {stage_words(explanation)}  {passed}", style="bold")
        ]
        copy = explanation.copy
        if copy is not None:
            grid = Table.grid(padding=(0, 1))
            bar = ProgressBar(max(copy.slices, 1), copy.landed, width=BAR_WIDTH)
            grid.add_row(bar, copy_words(copy, self._rate.per_second))
            lines.append(grid)
        lines.append(Text(f"waits for: {explanation.waits_for}"))
        return Group(*lines)
