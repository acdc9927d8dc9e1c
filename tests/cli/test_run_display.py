"""Is what one who waits for a run sees true, on a terminal and without one?"""

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from limosa.cli.demo.screen import open_screen
from limosa.cli.shared.run_display import SAY_SECONDS, Drawing, Watching, figures
from limosa.core.insight.progress import Progress
from limosa.core.insight.watching import Moving, WatchedRun
from limosa.core.model.runs import Estimate, Run, RunMove
from limosa.core.model.topology import Placement

RUN = Run("r7", "fill n4", 12, estimate=Estimate(bytes=200_000_000))
MOVE = RunMove("r7", 3, "items-0003", "n1", Placement("n4"), "COPYING", 1, 9)


def progress(**more: Any) -> Progress:
    made = Progress(
        RUN, "running", 12, 4, 3, 5, 0, 1_204, 100_000_000, 20.0, 5e6, 20.0, 0.0, (), ()
    )
    return replace(made, **more)


def moving(number: int = 3, **more: Any) -> Moving:
    move = replace(MOVE, number=number, partition=f"items-{number:04}")
    return replace(Moving(move, "move", "streaming", 12, 64, 12 / 64, "copy: n4"), **more)


def text_of(drawn: RenderableType, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(drawn)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_line_for_the_run_and_one_for_each_move() -> None:
    """F72: rows, bytes, rate, time left; of each move the stage, its share, what it waits for."""
    held = replace(MOVE, partition="items-0009", detail="held")
    some = (
        moving(),
        moving(4, stage="", kind="", slices=0, share=0.0, waits_for="its intent"),
        Moving(held, "move", "write_both_read_new", share=1.0, waits_for="the hold"),
    )
    seen = WatchedRun(progress(waits=("n4 is at its limit",)), some)
    lines = text_of(Drawing().of(seen))
    assert lines[0] == "r7  fill n4  running  20 s"
    assert lines[1].endswith("5 of 12 moves 1,204 rows, 100.0 MB, 5.0 MB/s, about 20 s left")
    assert [word.strip() for word in lines[2].split("  ") if word] == [
        "partition",
        "from → to",
        "stage",
        "copied",
        "waits for",
    ]
    first, second, third = (" ".join(line.split()) for line in lines[4:7])
    assert first == "items-0003 n1 → n4 streaming (3 of 6) 19 % (12 of 64) copy: n4"
    assert second == "items-0004 n1 → n4 not started – its intent"
    assert third == "items-0009 n1 → n4 write_both_read_new (4 of 6) 100 % held; the hold"
    assert lines[-1] == "waits for: n4 is at its limit"


@pytest.mark.parametrize("width", [40, 80])
def test_on_a_narrow_terminal_a_move_still_takes_one_line(width: int) -> None:
    some = tuple(moving(each, waits_for="a long story " * 20) for each in range(11))
    lines = text_of(Drawing().of(WatchedRun(progress(waits=("why " * 50,)), some)), width)
    assert len(lines) == 2 + 2 + 8 + 1 + 1
    assert lines[-2] == "… and 3 more in flight"


def test_the_rate_is_that_of_the_last_seconds_and_the_time_left_goes_by_it() -> None:
    now = [0.0]
    drawing = Drawing(lambda: now[0])
    lines: list[str] = []
    for second in range(20):
        now[0] = float(second)
        seen = WatchedRun(progress(bytes=100_000_000 + 1_000_000 * second))
        lines = text_of(drawing.of(seen))
    assert lines[1].endswith("119.0 MB, 1.0 MB/s, about 1 min 21 s left")


def test_what_nobody_knows_is_not_told() -> None:
    unknown = progress(run=replace(RUN, estimate=None), seconds_left=None)
    assert figures(unknown, 0.0) == "1,204 rows, 100.0 MB"
    by_moves = progress(run=replace(RUN, estimate=None), seconds_left=9.0)
    assert figures(by_moves, 1e6).endswith("1.0 MB/s, about 9.0 s left")


def test_without_a_terminal_a_line_is_said_for_each_change_and_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    nowhere = Console(file=io.StringIO())
    for quiet in (False, True):
        watching = Watching(quiet, nowhere, lambda: now[0])
        with watching.open():
            watching.show(WatchedRun(progress()))
            watching.show(WatchedRun(progress(rows=2_000)))
            watching.show(WatchedRun(progress(committed=6)))
            now[0] += SAY_SECONDS
            watching.show(WatchedRun(progress(committed=6)))
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (0 if quiet else 3)
        assert quiet or lines[0] == (
            "r7 running: 5 of 12 committed, 3 in flight, 4 pending; "
            "1,204 rows, 100.0 MB, 5.0 MB/s, about 20 s left"
        )


def test_on_a_terminal_the_table_is_drawn_and_the_cursor_comes_back() -> None:
    out = io.StringIO()
    watching = Watching(False, Console(file=out, force_terminal=True, width=120))
    with watching.open():
        watching.show(WatchedRun(progress(), (moving(),)))
    shown = out.getvalue()
    assert "streaming (3 of 6)" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


# --- the demo's


def test_the_demo_shows_the_same_table_below_its_rates() -> None:
    out = io.StringIO()
    with open_screen(Console(file=out, force_terminal=True, width=120)) as screen:
        screen.tell("n4 has joined")
        screen.show("9 rows/s", "a node joins", None)
        screen.show("10 rows/s", "fill n4", WatchedRun(progress(), (moving(),)))
    shown = out.getvalue()
    assert "n4 has joined" in shown
    assert "10 rows/s" in shown
    assert "streaming (3 of 6)" in shown


def test_without_a_terminal_the_demo_says_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open_screen(Console(file=io.StringIO())) as screen:
        screen.tell("n4 has joined")
        for number in range(8):
            screen.show(f"{number} rows/s", "fill n4", WatchedRun(progress(), (moving(),)))
    assert capsys.readouterr().err.splitlines() == [
        "n4 has joined",
        "3 rows/s   fill n4",
        "7 rows/s   fill n4",
    ]
