"""Does the simulator find bugs? `limosa mutants` plants them, one at a time.

A mutant is found if a seed is clean without it and has a violation with it. Of exceptions only
failed assertions count: others, and runs that do not end, may be mistakes in the mutant itself.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from msgspec import Struct
from rich.console import Console
from rich.progress import track
from rich.table import Table

from limosa.cli.shared.options import JobsOption, cores
from limosa.simulation.run import run_seed
from limosa.simulation.swarm import TookTooLong, in_processes, named, run_guarded, within

CATALOGUE = "limosa.simulation.mutants"
"""The module with MUTANTS, REDUNDANT and `planted`; workers import it by name."""

SEED_SECONDS_MAX = 10.0
COUNTED = 200
"""A search reports how many of the first COUNTED seeds find the mutant."""
LIMIT = 2000
SLICE = 20
CLEAN = "nothing was violated"


class Attempt(Struct, frozen=True):
    """Seeds to run with a mutant planted."""

    catalogue: str
    mutant: str
    seeds: Sequence[int]
    first_only: bool = True


class Finds(Struct, frozen=True):
    """The seeds that found the mutant, each with its violation; and why others did not."""

    mutant: str
    seeds: tuple[tuple[int, str], ...] = ()
    instead: str = ""


def attempt(what: Attempt) -> Finds:
    """Runs in a worker process."""
    found: list[tuple[int, str]] = []
    instead = CLEAN if what.seeds else "no seed is recorded: find one with --search"
    for seed in what.seeds:
        violation, why_not = _violation(what.catalogue, what.mutant, seed)
        if violation and not _is_clean(seed):
            violation, why_not = "", f"seed {seed} is violated without the mutant too"
        if violation:
            found.append((seed, violation))
            if what.first_only:
                break
        # An unusual reason is more informative than a clean run.
        instead = why_not if why_not and why_not != CLEAN else instead
    return Finds(what.mutant, tuple(found), instead)


def _violation(catalogue: str, mutant: str, seed: int) -> tuple[str, str]:
    """The violation with the mutant planted; if there is none, the reason."""
    planted = import_module(catalogue).planted
    try:
        with within(SEED_SECONDS_MAX), planted(mutant):
            violations = run_seed(seed).violations
    except AssertionError as error:
        return named(error), ""
    except TookTooLong as error:
        return "", str(error)
    except Exception as error:
        return "", f"raised {named(error)}"
    return (violations[0][0], "") if violations else ("", CLEAN)


@cache
def _is_clean(seed: int) -> bool:
    return not run_guarded(seed).violations


def _lost(what: Attempt, why: str) -> Finds:
    return Finds(what.mutant, (), why)


class MutantVerdict(Struct):
    """What is known about a mutant so far."""

    name: str
    rule: str
    seed: int | None = None
    violation: str = ""
    """The violation; if the mutant was not found, the reason."""
    counted: int = 0
    searched: int = 0

    @property
    def found(self) -> bool:
        return self.seed is not None

    def add(self, finds: Finds, counted: int) -> None:
        for seed, violation in finds.seeds:
            self.counted += seed < counted
            if self.seed is None or seed < self.seed:
                self.seed, self.violation = seed, violation
        if not self.found and (finds.instead != CLEAN or not self.violation):
            self.violation = finds.instead


def replay(chosen: Mapping[str, Any], jobs: int) -> Generator[MutantVerdict, None, None]:
    """Run each mutant's recorded seed; a mutant without one counts as not found."""
    attempts = (
        Attempt(CATALOGUE, name, range(mutant.seed, mutant.seed + 1) if mutant.seed >= 0 else ())
        for name, mutant in chosen.items()
    )
    with closing(in_processes(attempt, attempts, jobs, _lost)) as answers:
        for finds in answers:
            verdict = MutantVerdict(finds.mutant, chosen[finds.mutant].breaks)
            verdict.add(finds, 0)
            yield verdict


def search(
    chosen: Mapping[str, Any], limit: int, jobs: int
) -> Generator[MutantVerdict, None, None]:
    """The first seed below the limit that finds each mutant, and how many of the first do.

    The mutants take turns, so the easy ones are found early; a verdict is yielded once it is final.
    """
    counted = min(COUNTED, limit)
    verdicts = {name: MutantVerdict(name, mutant.breaks) for name, mutant in chosen.items()}
    waiting = dict.fromkeys(chosen, 0)
    """The number of slices in flight, by mutant."""
    ended: set[str] = set()

    def slices() -> Iterator[Attempt]:
        for start in range(0, limit, SLICE):
            for name, verdict in verdicts.items():
                if start < counted or not verdict.found:
                    waiting[name] += 1
                    verdict.searched = min(start + SLICE, limit)
                    seeds = range(start, verdict.searched)
                    yield Attempt(CATALOGUE, name, seeds, first_only=start >= counted)

    with closing(in_processes(attempt, slices(), jobs, _lost)) as answers:
        for finds in answers:
            verdict = verdicts[finds.mutant]
            waiting[verdict.name] -= 1
            verdict.add(finds, counted)
            over = verdict.searched >= (counted if verdict.found else limit)
            if over and not waiting[verdict.name] and verdict.name not in ended:
                ended.add(verdict.name)
                yield verdict


def mutants(
    searching: Annotated[
        bool,
        typer.Option("--search", help="Search for seeds instead of replaying the recorded ones."),
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="Plant only this mutant.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="With --search: number of seeds.", show_default=str(LIMIT)
        ),
    ] = None,
    jobs: JobsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the last line only.")] = False,
) -> None:
    """Plant bugs, and check that the simulator finds each.

    The command replays the seed that is recorded for each mutant. The last line is JSON: how many
    mutants were planted and found, and which were missed. Exit code: 0 all found, 1 some missed,
    2 bad input, 130 interrupted.

    \b
    Examples:
      limosa mutants
      limosa mutants --only ack_without_the_new_side
      limosa mutants --search --limit 500
    """
    catalogue = import_module(CATALOGUE)
    chosen, redundant = _chosen(catalogue.MUTANTS, catalogue.REDUNDANT, only, searching)
    if limit is not None and not searching:
        raise typer.BadParameter("--limit is for searches: add --search, or omit it.")
    wanted = {**chosen, **redundant} if searching else chosen
    running = (
        search(wanted, limit or LIMIT, jobs or cores())
        if searching
        else replay(wanted, jobs or cores())
    )
    judged = _judge(running, len(wanted))
    verdicts = {name: judged[name] for name in wanted}
    if not as_json:
        _print_verdicts([verdicts[name] for name in chosen])
        if searching:
            _print_searched(verdicts, redundant)
        elif redundant:
            typer.echo("\nNot counted, because other rules make these redundant:")
            for name, mutant in redundant.items():
                typer.echo(f"  {name}: {mutant.argument}")
    missed = [name for name in chosen if not verdicts[name].found]
    last = {"planted": len(chosen), "found": len(chosen) - len(missed), "missed": missed}
    typer.echo(json.dumps(last))
    if missed or (searching and any(verdicts[name].found for name in redundant)):
        raise typer.Exit(1)


def _chosen(
    counted: Mapping[str, Any], redundant: Mapping[str, Any], only: str | None, searching: bool
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The mutants that count, and the redundant ones, which a search includes only by name."""
    if only is None:
        return counted, {} if searching else redundant
    if only not in counted and only not in redundant:
        known = ", ".join(sorted({*counted, *redundant}))
        raise typer.BadParameter(f"there is no mutant {only}. There are: {known}.")
    return (
        {name: mutant for name, mutant in counted.items() if name == only},
        {name: mutant for name, mutant in redundant.items() if name == only},
    )


def _judge(verdicts: Generator[MutantVerdict, None, None], total: int) -> dict[str, MutantVerdict]:
    console = Console(stderr=True)
    with closing(verdicts):
        shown = track(
            verdicts,
            "mutants",
            total=total,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        return {verdict.name: verdict for verdict in shown}


def _print_verdicts(verdicts: list[MutantVerdict]) -> None:
    rows = [(v.name, v.rule, "–" if v.seed is None else str(v.seed), _short(v)) for v in verdicts]
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        width = max((len(row[0]) for row in rows), default=0)
        for name, rule, seed, what in rows:
            typer.echo(f"{name:<{width}} {seed:>5}  {what}  (breaks: {rule})")
        return
    table = Table("mutant", "rule that it breaks", "seed", "what was violated")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _short(verdict: MutantVerdict) -> str:
    what = " ".join(verdict.violation.split())
    what = what if len(what) <= 80 else what[:79] + "…"
    return what if verdict.found else f"MISSED: {what}"


def _print_searched(verdicts: Mapping[str, MutantVerdict], redundant: Mapping[str, Any]) -> None:
    typer.echo("")
    for name, verdict in verdicts.items():
        first = min(COUNTED, verdict.searched)
        if not verdict.found:
            typer.echo(f"{name}: none of {verdict.searched} seeds finds it")
        elif name in redundant:
            typer.echo(f"{name}: seed {verdict.seed} finds it: it is not redundant, and must count")
        else:
            typer.echo(f"{name}: {verdict.counted} of the first {first} seeds find it")
    typer.echo("")
    for name, verdict in verdicts.items():
        if verdict.found:
            typer.echo(f'"{name}": {verdict.seed},')
