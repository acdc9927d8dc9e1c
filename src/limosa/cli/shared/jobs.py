"""How many processes simulate? An option of `limosa simulate` and `limosa mutants`."""

import os
from typing import Annotated

import typer

JobsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of processes.", show_default="all cores"),
]


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
