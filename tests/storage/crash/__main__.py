"""`make crash`: is a store that was killed so often, and that rots so much, still worth its name?

Prints which failpoints were hit, and last one line of JSON. Exit code: 0 all is well, 1 something
was lost, revived, inconsistent, refused or not noticed, 130 interrupted.
"""

import argparse
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from limosa.simulation.swarm import in_processes
from tests.storage.crash import flips
from tests.storage.crash.rounds import (
    LABELS,
    ROUNDS_IN_CHAIN,
    Chain,
    Finding,
    Kill,
    Result,
    cells_of,
    dry_run,
    failpoint_kill,
    random_kill,
)

KINDS = ("lost", "revived", "inconsistent", "refused")
RANDOM = 0.25
"""How many of the kills are at no particular moment."""
COVERED_FROM = 100
"""With so many rounds, each failpoint has to be hit."""
EXTRA_ROUNDS = 60
"""So many more are tried for those that were not."""
DAMAGES_IN_CHUNK = 400
SHOWN = 20


class Planner:
    """Chooses the kills, the least used failpoint first."""

    def __init__(self, seen: dict[str, int], seed: int) -> None:
        self._seen = seen
        self._dice = Random(seed)
        self.cells = cells_of(seen.keys() | set(LABELS))
        self._order = self._dice.sample(self.cells, len(self.cells))
        self.hit: Counter[str] = Counter()
        self._tried: Counter[str] = Counter()

    def kills(self, count: int, share: float = RANDOM) -> list[Kill]:
        return [self._kill(share) for _ in range(count)]

    def _kill(self, share: float) -> Kill:
        if self._dice.random() < share:
            return random_kill(self._dice)
        cell = min(self._order, key=lambda each: (self.hit[each], self._tried[each]))
        self._tried[cell] += 1
        # One that was not reached is awaited earlier next time.
        seen = {} if self._tried[cell] > 1 + self.hit[cell] else self._seen
        return failpoint_kill(cell, seen, self._dice)

    @property
    def missed(self) -> list[str]:
        return [cell for cell in self.cells if not self.hit[cell]]


class Report:
    """What is known so far."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.unseen: list[str] = []
        self.flips = self.cuts = 0
        self.broken: list[str] = []
        """Why a chain did not come to its end."""

    @property
    def findings(self) -> list[Finding]:
        return [finding for result in self.results for finding in result.findings]

    def as_json(self, planner: Planner, enough: bool) -> dict[str, Any]:
        kinds = Counter(finding.kind for finding in self.findings)
        labels: dict[str, dict[str, int]] = {}
        for cell in planner.cells:
            label, moment = cell.split(":")
            labels.setdefault(label, {})[moment] = planner.hit[cell]
        bad = [*self.findings, *self.unseen, *self.broken, *([] if enough else planner.missed)]
        return {
            "rounds": sum(result.rounds for result in self.results),
            "kills_random": sum(result.at_random for result in self.results),
            "kills_at_failpoints": planner.hit.total(),
            "labels": labels,
            "acked_rows": sum(result.acked_rows for result in self.results),
            **{kind: kinds[kind] for kind in KINDS},
            "broken": len(self.broken),
            "flips": self.flips,
            "flips_undetected": len(self.unseen),
            "truncations": self.cuts,
            "ok": not bad,
        }


# ------------------------------------------------------------------------------------- rounds


def run_chains(
    planner: Planner, report: Report, options: Any, progress: Progress, task: TaskID
) -> None:
    stop = threading.Event()
    pool = ThreadPoolExecutor(options.jobs)
    seeds = iter(range(options.seed, sys.maxsize))
    under_way: dict[Future[Result], int] = {}
    left, extra = options.rounds, EXTRA_ROUNDS if options.rounds >= COVERED_FROM else 0

    def next_chain() -> bool:
        nonlocal left, extra
        if report.findings or report.broken:
            return False
        if left > 0:
            kills = planner.kills(min(left, ROUNDS_IN_CHAIN))
            left -= len(kills)
        elif extra > 0 and planner.missed:
            kills = planner.kills(min(len(planner.missed), ROUNDS_IN_CHAIN), share=0.0)
            extra -= len(kills)
        else:
            return False
        seed = next(seeds)
        under_way[pool.submit(Chain(seed, kills, stop).run)] = seed
        return True

    try:
        while True:
            while len(under_way) < options.jobs and next_chain():
                pass
            if not under_way:
                break
            done, _ = wait(under_way, return_when=FIRST_COMPLETED, timeout=0.5)
            for future in done:
                _take(future, under_way.pop(future), planner, report)
            rounds = sum(result.rounds for result in report.results)
            progress.update(task, completed=rounds, total=max(rounds, options.rounds))
    finally:
        stop.set()
        pool.shutdown(wait=True)


def _take(future: "Future[Result]", seed: int, planner: Planner, report: Report) -> None:
    error = future.exception()
    if error is not None:
        report.broken.append(f"seed {seed}: {type(error).__name__}: {error}")
        return
    report.results.append(future.result())
    planner.hit.update(future.result().at_failpoints)


def replay(seed: int, kills: Sequence[Kill], report: Report, planner: Planner) -> None:
    """The same choices; what the threads make of them differs each time."""
    result = Chain(seed, kills).run()
    report.results.append(result)
    planner.hit.update(result.at_failpoints)


# ------------------------------------------------------------------------------------- flips


def run_damages(report: Report, options: Any, progress: Progress, task: TaskID) -> None:
    dice = Random(options.seed)
    damages: list[flips.Damage] = [*flips.every_flip(), *flips.every_cut()]
    if options.flips is not None:
        damages = dice.sample(damages, min(options.flips, len(damages)))
    dice.shuffle(damages)  # so that the time that is left can be told
    report.flips = sum(isinstance(damage, flips.Flip) for damage in damages)
    report.cuts = len(damages) - report.flips
    progress.update(task, total=len(damages))
    with closing(in_processes(flips.try_all, _chunks(damages), options.jobs, _lost)) as answers:
        for unseen in answers:
            report.unseen += unseen
            progress.advance(task, DAMAGES_IN_CHUNK)


def _lost(chunk: Sequence[flips.Damage], why: str) -> list[str]:
    return [f"a process that tried {chunk[0]} and {len(chunk) - 1} others: {why}"]


def _chunks(damages: Sequence[flips.Damage]) -> Iterator[Sequence[flips.Damage]]:
    for start in range(0, len(damages), DAMAGES_IN_CHUNK):
        yield damages[start : start + DAMAGES_IN_CHUNK]


# ------------------------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500, help="how many kills")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each chain has one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--flips", type=int, help="only so many damages, by chance; else all")
    parser.add_argument(
        "--kill", action="append", default=[], metavar="KILL", help="replay one chain: its kills"
    )
    options: Any = parser.parse_args(arguments)
    report = Report()
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            planner = _run(options, report, progress)
    except KeyboardInterrupt:
        return 130
    enough = options.rounds < COVERED_FROM or bool(options.kill) or not planner.missed
    _print(report, planner, enough)
    summary = report.as_json(planner, enough)
    print(json.dumps(summary))
    return 0 if summary["ok"] else 1


def _run(options: Any, report: Report, progress: Progress) -> Planner:
    if options.kill:
        planner = Planner({}, options.seed)
        replay(options.seed, [Kill.parse(kill) for kill in options.kill], report, planner)
        return planner
    rounds = progress.add_task("kills", total=options.rounds)
    damages = progress.add_task("flips and cuts", total=None)
    planner = Planner(dry_run(options.seed) if options.rounds else {}, options.seed)
    run_chains(planner, report, options, progress, rounds)
    if options.flips != 0:
        run_damages(report, options, progress, damages)
    return planner


def _print(report: Report, planner: Planner, enough: bool) -> None:
    for cell in planner.cells:
        if planner.hit[cell]:
            print(f"{planner.hit[cell]:6}  {cell.replace(':', ', ')}")
    if not enough:
        print(f"never hit: {', '.join(planner.missed)}")
    for result in report.results:
        if result.findings:
            print(f"\nseed {result.seed}; the store and its journals: {result.directory}")
            for finding in result.findings[:SHOWN]:
                print(f"  {finding.kind}: {finding.what}")
            kills = " ".join(f"--kill='{kill}'" for kill in result.kills[: result.rounds])
            print(f"replay: python -m tests.storage.crash --seed {result.seed} {kills}")
    for problem in [*report.broken[:SHOWN], *report.unseen[:SHOWN]]:
        print(problem)


if __name__ == "__main__":
    sys.exit(main())
