"""What does `limosa demo` show? Events line by line; rates and the current run change in place.

Without a terminal, the rates are printed as a line every few seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from limosa.cli.shared.move_progress import on_errors
from limosa.cli.shared.run_display import Drawing
from limosa.cli.shared.terminal import tell
from limosa.core.insight.watching import WatchedRun

LINES_BETWEEN = 4


class Screen:
    """Prints plain lines."""

    def __init__(self) -> None:
        self._shown = 0

    def tell(self, line: str) -> None:
        tell(line)

    def show(self, rates: str, doing: str, run: WatchedRun | None) -> None:
        self._shown += 1
        if self._shown % LINES_BETWEEN == 0:
            tell(f"{rates}   {doing}")


class LiveScreen(Screen):
    """Shows a live display on a terminal."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live
        self._drawing = Drawing()

    def tell(self, line: str) -> None:
        self._live.console.print(line)

    def show(self, rates: str, doing: str, run: WatchedRun | None) -> None:
        if run is None:
            self._live.update(Text(f"{rates}   {doing}"))
        else:
            self._live.update(Group(Text(rates), self._drawing.of(run)))


@contextmanager
def open_screen(console: Console | None = None) -> Iterator[Screen]:
    console = console or on_errors()
    if not console.is_terminal:
        yield Screen()
        return
    with Live(Text(""), console=console, transient=True) as live:
        yield LiveScreen(live)
