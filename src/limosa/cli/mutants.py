"""`limosa mutants`: has the simulator teeth? Rules are removed, one at a time; each must be missed.

A mutant is found if a seed is clean without it and violated with it. An exception counts only if it
comes from a violated assertion: any other, and a run that does not end, may be a bug badly planted.
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

from limosa.cli.shared.jobs import JobsOption, cores
from limosa.simulation.run import run_seed
from limosa.simulation.swarm import TookTooLong, in_processes, named, run_guarded, within

CATALOGUE = "limosa.simulation.mutants"
"""Where MUTANTS, REDUNDANT and `planted` are. It is imported late: a worker plants by name."""

SEED_SECONDS_MAX = 10.0
COUNTED = 200
"""A search says how many of so many first seeds find the mutant."""
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
    """The seeds that found the mutant, with what was violated; and why others did not."""

    mutant: str
    seeds: tuple[tuple[int, str], ...] = ()
    instead: str = ""


def attempt(what: Attempt) -> Finds:
    """What a worker does."""
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
        # Something odd says more than something that just went well.
        instead = why_not if why_not and why_not != CLEAN else instead
    return Finds(what.mutant, tuple(found), instead)


def _violation(catalogue: str, mutant: str, seed: int) -> tuple[str, str]:
    """What the seed violates with the mutant planted, and else why not."""
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


class Verdict(Struct):
    """What is known of a mutant so far."""

    name: str
    rule: str
    seed: int | None = None
    violation: str = ""
    """What was violated; if it was not found, why not."""
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


def replay(chosen: Mapping[str, Any], jobs: int) -> Generator[Verdict, None, None]:
    """Each mutant's recorded seed; one without is not found."""
    attempts = (
        Attempt(CATALOGUE, name, range(mutant.seed, mutant.seed + 1) if mutant.seed >= 0 else ())
        for name, mutant in chosen.items()
    )
    with closing(in_processes(attempt, attempts, jobs, _lost)) as answers:
        for finds in answers:
            verdict = Verdict(finds.mutant, chosen[finds.mutant].breaks)
            verdict.add(finds, 0)
            yield verdict


def search(chosen: Mapping[str, Any], limit: int, jobs: int) -> Generator[Verdict, None, None]:
    """The first seed below the limit that finds each mutant, and how many of the first do.

    The mutants take turns, so the easy ones are known soon; a verdict comes when it is final.
    """
    counted = min(COUNTED, limit)
    verdicts = {name: Verdict(name, mutant.breaks) for name, mutant in chosen.items()}
    waiting = dict.fromkeys(chosen, 0)
    """How many slices of each are under way."""
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
        bool, typer.Option("--search", help="Search for seeds anew instead of replaying them.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="Plant this one only.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="With --search: how many seeds.", show_default=str(LIMIT)
        ),
    ] = None,
    jobs: JobsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the last line only.")] = False,
) -> None:
    """Plant bugs, one at a time, and check that the simulator finds each.

    Replays the seed that is recorded with each mutant. The last line is JSON: how many were
    planted, how many found, and which were missed. Exit code: 0 all were found, 1 some were
    missed, 2 bad input, 130 interrupted.

    \b
    Examples:
      limosa mutants
      limosa mutants --only ack_without_the_new_side
      limosa mutants --search --limit 500
    """
    catalogue = import_module(CATALOGUE)
    chosen, redundant = _chosen(catalogue.MUTANTS, catalogue.REDUNDANT, only, searching)
    if limit is not None and not searching:
        raise typer.BadParameter("--limit says how far to search: add --search, or leave it out.")
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
    """The mutants that count, and those that do not; a search looks at the latter only if asked."""
    if only is None:
        return counted, {} if searching else redundant
    if only not in counted and only not in redundant:
        known = ", ".join(sorted({*counted, *redundant}))
        raise typer.BadParameter(f"there is no mutant {only}. There are: {known}.")
    return (
        {name: mutant for name, mutant in counted.items() if name == only},
        {name: mutant for name, mutant in redundant.items() if name == only},
    )


def _judge(verdicts: Generator[Verdict, None, None], total: int) -> dict[str, Verdict]:
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


def _print_verdicts(verdicts: list[Verdict]) -> None:
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


def _short(verdict: Verdict) -> str:
    what = " ".join(verdict.violation.split())
    what = what if len(what) <= 80 else what[:79] + "…"
    return what if verdict.found else f"MISSED: {what}"


def _print_searched(verdicts: Mapping[str, Verdict], redundant: Mapping[str, Any]) -> None:
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
