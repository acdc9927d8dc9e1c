"""How is an answer printed? As a table for people, as one line of JSON for programs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from limosa.errors import BadInput, IllegalRequest, LimosaError, VolumeInUse

NOTHING = "–"
WIDE = 200
LAST_WIDTH = 40
NUMBER = frozenset("0123456789.,%– kMGTB")


def print_json(answer: Any) -> None:
    """One line on standard output."""
    typer.echo(msgspec.json.encode(answer).decode())


def print_answer(as_json: bool, answer: Any, *lines: str) -> None:
    """The answer for programs, or the lines for people."""
    if as_json:
        print_json(answer)
    else:
        typer.echo("\n".join(lines))


def labelled(facts: Mapping[str, str], width: int) -> list[str]:
    """A line for each fact that is known, with its name in a column of this width."""
    return [f"{name:<{width}} {value}" for name, value in facts.items() if value]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Numbers are right-aligned; only the last column is ever wrapped."""
    shown = [[NOTHING if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, name in enumerate(columns):
        is_number = bool(shown) and all(NUMBER.issuperset(row[place]) for row in shown)
        is_last = place == len(columns) - 1
        table.add_column(
            name,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=not is_last,
        )
    for row in shown:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False)
    needed = _needed_width([list(columns), *shown])
    console.width = max(needed, console.width if console.is_terminal else WIDE)
    console.print(table)


def _needed_width(rows: Sequence[Sequence[str]]) -> int:
    """The width at which only the last column is wrapped."""
    widths = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
    return sum(widths[:-1]) + min(widths[-1], LAST_WIDTH) + 3 * len(widths)


def place_of(address: str) -> str:
    """HOST:PORT, as `--cluster` takes it."""
    return address.rpartition("://")[2]


def tell(what: str) -> None:
    """Print a message on standard error: standard output is for the answer."""
    typer.echo(what, err=True)


def count(number: int, what: str, several: str = "") -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def size(number: float) -> str:
    """`12 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def exit_code(error: LimosaError) -> int:
    """2 if the command line is wrong whatever the cluster's state; 1 if the cluster refuses."""
    is_typed = isinstance(error, BadInput) and not isinstance(error, IllegalRequest | VolumeInUse)
    return 2 if is_typed else 1


def tell_error(error: LimosaError, as_json: bool) -> int:
    """Print the error with its advice; returns the exit code."""
    sys.stdout.flush()
    tell(f"Error: {error}")
    if as_json:
        print_error(error)
    return exit_code(error)


def print_error(error: LimosaError) -> None:
    described = {
        "code": type(error).__name__,
        "message": error.message,
        "advice": error.advice,
        "definite": error.definite,
    }
    print_json({"error": described})
