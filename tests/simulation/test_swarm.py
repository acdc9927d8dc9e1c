"""Do many seeds in several processes give what each gives alone, whatever happens to a process?"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from limosa.simulation.faults import CELLS
from limosa.simulation.run import Result, run_seed
from limosa.simulation.swarm import SeedFailure, SeedTally, in_processes, run_guarded, run_seeds


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def die_on(number: int, dying: int) -> str:
    if number == dying:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{number} done"


def double(number: int) -> int:
    return number * 2


def lost(item: object, why: str) -> str:
    return f"{item} lost: {why}"


def unexpected(item: object, why: str) -> int:
    raise AssertionError(f"{item} was lost: {why}")


def result(seed: int, *violations: tuple[str, str], cells: int = 0) -> Result:
    return Result(seed, 10, 2, 3, violations, CELLS[:cells])


# --- seeds


@pytest.mark.processes
def test_processes_give_what_seeds_give_alone() -> None:
    found = {result.seed: result for result in run_seeds(range(8), jobs=2)}
    assert found == {seed: run_seed(seed) for seed in range(8)}


def test_an_exception_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(seed: int) -> Result:
        raise KeyError("gone")

    monkeypatch.setattr("limosa.simulation.swarm.run_seed", burst)
    ((what, partition),) = run_guarded(5).violations
    assert what.startswith(f"raised KeyError at {__name__}:")
    assert what.endswith(": 'gone'")
    assert partition == ""


def test_too_much_wall_time_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the run swallows every exception that it meets."""

    def endless(seed: int) -> Result:
        while True:
            try:
                time.sleep(5)
            except Exception:
                continue

    monkeypatch.setattr("limosa.simulation.swarm.run_seed", endless)
    assert run_guarded(5, 0.05).violations == (("took longer than 0.05 s of wall time", ""),)


def test_results_are_added_up_in_any_order() -> None:
    tally = SeedTally()
    tally.add(result(7, ("second", "p1"), ("third", "p0"), cells=2))
    tally.add(result(5, ("first", ""), cells=3))
    tally.add(result(6, cells=1))
    summary = tally.summary()
    assert (summary.seeds, summary.operations, summary.moves, summary.faults) == (3, 30, 6, 9)
    assert summary.violations == 3
    assert summary.failed == (SeedFailure(5, "first", ""), SeedFailure(7, "second", "p1"))
    assert (summary.cells_hit, summary.cells_total) == (3, len(CELLS))
    assert summary.missing_cells == CELLS[3:]
    assert summary.seconds >= 0


# --- processes


@pytest.mark.processes
def test_every_item_is_answered_once() -> None:
    answers = list(in_processes(double, range(50), 3, unexpected))
    assert sorted(answers) == [number * 2 for number in range(50)]


@pytest.mark.processes
def test_more_processes_than_items_are_not_started() -> None:
    assert list(in_processes(double, [4], 50, unexpected)) == [8]
    assert list(in_processes(double, [], 2, unexpected)) == []


@pytest.mark.processes
def test_the_item_of_a_process_that_died_is_answered_and_the_others_too() -> None:
    answers = set(in_processes(partial(die_on, dying=2), range(6), 2, lost))
    died = f"2 lost: its process died (exit code {-signal.SIGKILL})"
    assert answers == {died, *(f"{number} done" for number in (0, 1, 3, 4, 5))}


@pytest.mark.processes
def test_items_are_drawn_late() -> None:
    """Whoever asks decides by the answers so far what comes next."""
    seen: list[int] = []

    def items() -> Iterator[int]:
        number = 0
        while len(seen) < 5:
            yield number
            number += 1

    for answer in in_processes(double, items(), 1, unexpected):
        seen.append(answer)
    assert seen == [0, 2, 4, 6, 8]


@pytest.mark.processes
def test_no_process_stays_when_the_caller_stops_listening() -> None:
    with closing(in_processes(pid_after, [0.0, 300.0, 300.0], 2, unexpected)) as answers:
        pid = next(answers)
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
