"""What do many seeds show together? They run in several processes; their results are added up.

Workers are started with `spawn`, so they inherit nothing from their parent. Each worker has a pipe
to the parent: the parent notices and replaces a worker that dies, and workers end when the parent
dies. Workers ignore Ctrl-C; the parent handles it and ends them all.
"""

import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from time import monotonic
from types import FrameType
from typing import Generic, TypeVar

from msgspec import Struct

from limosa.runtime.signals import delayed
from limosa.simulation.faults import CELLS
from limosa.simulation.run import Result, run_seed

SEED_SECONDS_MAX = 60.0
_GOODBYE_SECONDS = 5.0
_CONTEXT = get_context("spawn")

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# --- results of many seeds


class SeedFailure(Struct, frozen=True):
    """A seed and its first violation."""

    seed: int
    violation: str
    partition: str


class SwarmSummary(Struct, frozen=True):
    """The results of all seeds of a swarm."""

    seeds: int
    operations: int
    moves: int
    faults: int
    violations: int
    cells_hit: int
    cells_total: int
    seeds_per_minute: float
    failed: tuple[SeedFailure, ...]
    missing_cells: tuple[tuple[str, str], ...]
    seconds: float


class SeedTally:
    """Adds up results, in any order."""

    def __init__(self) -> None:
        self.seeds = self.operations = self.moves = self.faults = self.violations = 0
        self.failed: list[SeedFailure] = []
        self._cells: set[tuple[str, str]] = set()
        self._began = monotonic()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.operations += result.operations
        self.moves += result.moves
        self.faults += result.faults
        self.violations += len(result.violations)
        self._cells.update(result.cells)
        if result.violations:
            self.failed.append(SeedFailure(result.seed, *result.violations[0]))

    def summary(self) -> SwarmSummary:
        seconds = monotonic() - self._began
        missing = tuple(cell for cell in CELLS if cell not in self._cells)
        return SwarmSummary(
            self.seeds,
            self.operations,
            self.moves,
            self.faults,
            self.violations,
            len(CELLS) - len(missing),
            len(CELLS),
            round(self.seeds * 60 / seconds, 1) if seconds else 0.0,
            tuple(sorted(self.failed, key=lambda failure: failure.seed)),
            missing,
            round(seconds, 3),
        )


def run_seeds(
    seeds: Iterable[int],
    jobs: int,
    seconds_max: float = SEED_SECONDS_MAX,
    real_storage: bool = False,
) -> Generator[Result, None, None]:
    """The result of each seed, as it becomes available. Every seed has one, whatever it does."""
    task = partial(run_guarded, seconds_max=seconds_max, real_storage=real_storage)
    return in_processes(task, seeds, jobs, _failed)


# --- one seed, whatever it does


class TookTooLong(BaseException):
    """A run exceeded its wall time. No `except Exception` of the run may swallow this."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the main thread when the time is over."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"took longer than {seconds:g} s of wall time")

    handler = signal.signal(signal.SIGALRM, over)
    # Raise repeatedly: an exception that is raised inside a destructor is lost.
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def run_guarded(
    seed: int, seconds_max: float = SEED_SECONDS_MAX, real_storage: bool = False
) -> Result:
    """Run the seed; an exception, or too much wall time, is a violation."""
    run = partial(run_seed, real_storage=True) if real_storage else run_seed
    try:
        with within(seconds_max):
            return run(seed)
    except TookTooLong as error:
        return _failed(seed, str(error))
    except Exception as error:
        return _failed(seed, f"raised {named(error)}")


def named(error: Exception) -> str:
    """The error, and where it was raised."""
    where, trace = "", error.__traceback__
    while trace is not None:
        where = f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}"
        trace = trace.tb_next
    said = f": {error}" if str(error) else ""
    return f"{type(error).__name__} at {where}{said}"


def _failed(seed: int, why: str) -> Result:
    return Result(seed, 0, 0, 0, ((why, ""),), ())


# --- a pool that loses nothing and leaves nothing behind


def in_processes(
    task: Callable[[Item], Answer],
    items: Iterable[Item],
    jobs: int,
    lost: Callable[[Item, str], Answer],
) -> Generator[Answer, None, None]:
    """The task's answer to each item, as it becomes available.

    The next item is drawn when a worker is free and the caller has taken all answers so far, so the
    caller may decide late what comes next. If a worker dies, `lost` answers its item. However the
    iteration ends, no worker is left.
    """
    remaining = iter(items)
    workers: dict[Connection, _Worker[Item, Answer]] = {}

    def give(item: Item, worker: _Worker[Item, Answer]) -> None:
        workers[worker.pipe] = worker
        worker.give(item)

    try:
        for item in islice(remaining, jobs):
            give(item, _Worker(task))
        while workers:
            for pipe in wait(list(workers)):
                worker = workers[pipe]  # type: ignore[index]
                yield worker.answer(lost)
                del workers[worker.pipe]
                for item in islice(remaining, 1):
                    give(item, worker if worker.lives else _Worker(task))
                if worker.pipe not in workers:
                    worker.end()
    finally:
        for worker in workers.values():
            worker.end()


class _Worker(Generic[Item, Answer]):
    """A process that answers one item at a time."""

    def __init__(self, task: Callable[[Item], Answer]) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.lives = True
        self._process = _CONTEXT.Process(target=_work, args=(task, theirs), daemon=True)
        with _ctrl_c_held():
            self._process.start()
        theirs.close()

    def give(self, item: Item) -> None:
        self._item = item
        # The death of a worker is noticed when it should answer.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(item)

    def answer(self, lost: Callable[[Item, str], Answer]) -> Answer:
        try:
            answer: Answer = self.pipe.recv()
            return answer
        except (EOFError, ConnectionResetError):
            self.lives = False
            self._process.join(_GOODBYE_SECONDS)
            return lost(self._item, f"its process died (exit code {self._process.exitcode})")

    def end(self) -> None:
        self.pipe.close()
        self._process.terminate()
        self._process.join(_GOODBYE_SECONDS)
        self._process.kill()
        self._process.join()
        self._process.close()


def _work(task: Callable[[Item], Answer], pipe: "Connection[Answer, Item]") -> None:
    """The loop of a worker, until its parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(task(pipe.recv()))


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """Processes that are started here ignore Ctrl-C; the parent handles it a moment later."""
    resource_tracker.ensure_running()  # otherwise `start` would do it, and unblock Ctrl-C
    with delayed(signal.SIGINT):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
