"""`limosa simulate`: does the protocol hold in many simulated clusters? One seed, one cluster."""

import json
from contextlib import closing
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from limosa.cli.shared.options import JobsOption, cores
from limosa.cli.shared.terminal import count
from limosa.simulation.story import story_of, told
from limosa.simulation.swarm import SeedTally, SwarmSummary, run_seeds

SEEDS = 100
STORIES_MAX = 3
NUMBERS = (
    *("seeds", "operations", "moves", "faults", "violations"),
    *("cells_hit", "cells_total", "seeds_per_minute"),
)


def simulate(
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of seeds to run.", show_default=str(SEEDS)),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The first seed.", show_default="0")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Run only this seed.")
    ] = None,
    story: Annotated[
        bool,
        typer.Option("--story", help="With --seed: print what happened, also without a violation."),
    ] = False,
    jobs: JobsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one line of JSON.")
    ] = False,
    require_all_cells: Annotated[
        bool,
        typer.Option(
            "--require-all-cells",
            help="Fail unless every fault hit every stage, and runs took every edge.",
        ),
    ] = False,
    storage: Annotated[
        Literal["fake", "real"],
        typer.Option(help="fake: rows in memory; real: the real log and segments (slower)."),
    ] = "fake",
) -> None:
    """Simulate clusters with faults, and check all guarantees.

    A seed determines a cluster, its workload and its faults; the same seed always gives the same
    run. Exit code: 0 no violation, 1 a violation (what happened is printed) or a required cell was
    not hit, 2 bad input, 130 interrupted.

    \b
    Examples:
      limosa simulate --seeds 1000 --json
      limosa simulate --first 5000 --seeds 1000 --jobs 4
      limosa simulate --seeds 5000 --require-all-cells
      limosa simulate --seeds 200 --storage real
      limosa simulate --seed 4711 --story
    """
    wanted = _wanted(seeds, first, seed, story)
    is_real = storage == "real"
    summary = _run(wanted, jobs or cores(), is_real)
    stories = [failure.seed for failure in summary.failed[:STORIES_MAX]]
    for number in [seed] if story and seed is not None else stories:
        typer.echo(told(story_of(number, real_storage=is_real)) + "\n")
    untold = len(summary.failed) - len(stories)
    if untold:
        typer.echo(f"{untold} more seeds failed; see one with `limosa simulate --seed N`.\n")
    typer.echo(json.dumps(as_object(summary)) if as_json else in_words(summary))
    if summary.violations or (require_all_cells and summary.missing_cells):
        raise typer.Exit(1)


def _wanted(seeds: int | None, first: int | None, seed: int | None, story: bool) -> range:
    if seed is None:
        if story:
            raise typer.BadParameter("--story is for one seed: name it with --seed.")
        start = first or 0
        return range(start, start + (seeds or SEEDS))
    if seeds is not None or first is not None:
        other = "--seeds" if seeds is not None else "--first"
        raise typer.BadParameter(f"--seed runs one seed only: leave out {other}, or --seed.")
    return range(seed, seed + 1)


def _run(wanted: range, jobs: int, real_storage: bool) -> SwarmSummary:
    tally = SeedTally()
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    results = run_seeds(wanted, min(jobs, len(wanted)), real_storage=real_storage)
    with (
        closing(results),
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        shown = bar.add_task("no violations", total=len(wanted))
        for result in results:
            tally.add(result)
            bar.update(shown, advance=1, description=_count(tally.violations))
    return tally.summary()


def as_object(summary: SwarmSummary) -> dict[str, Any]:
    """What `--json` prints; the two lists only if there is something in them."""
    found: dict[str, Any] = {name: getattr(summary, name) for name in NUMBERS}
    if summary.missing_cells:
        found["missing_cells"] = [list(cell) for cell in summary.missing_cells]
    if summary.failed:
        found["failed"] = [
            {"seed": failure.seed, "violation": failure.violation, "partition": failure.partition}
            for failure in summary.failed
        ]
    return found


def in_words(summary: SwarmSummary) -> str:
    lines = [
        f"{count(summary.seeds, 'seed')}: "
        f"{summary.operations:,} operations, {summary.moves:,} moves, {summary.faults:,} faults; "
        f"{summary.cells_hit} of {summary.cells_total} cells (stage × fault) hit; "
        f"{_count(summary.violations)}."
    ]
    if summary.seeds > 1:
        lines.append(f"{summary.seeds_per_minute:,.0f} seeds a minute.")
        # A few seeds miss most cells; only a short list is worth reading.
        if 0 < len(summary.missing_cells) <= 20:
            missing = ", ".join(f"{stage} × {fault}" for stage, fault in summary.missing_cells)
            lines.append(f"Not hit: {missing}.")
    return "\n".join(lines)


def _count(violations: int) -> str:
    return count(violations, "violation") if violations else "no violations"
