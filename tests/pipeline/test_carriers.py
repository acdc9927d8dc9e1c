"""Is it always told how a job ended, whatever becomes of the process that runs it?"""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from limosa.pipeline import application, carriers
from limosa.pipeline.application import Options
from limosa.pipeline.carriers import SparkCarrier, ThreadCarrier
from tests.pipeline import stub_application
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


class Ended:
    """How one job did."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self.times = 0
        self._results: Sequence[bytes] = ()
        self._why = ""

    def __call__(self, results: Sequence[bytes], why: str) -> None:
        self._results, self._why = results, why
        self.times += 1
        self._told.set()

    @property
    def is_told(self) -> bool:
        return self._told.is_set()

    @property
    def results(self) -> list[bytes]:
        assert self._told.wait(20.0)
        assert self._why == ""
        return list(self._results)

    @property
    def why(self) -> str:
        assert self._told.wait(20.0)
        assert list(self._results) == []
        return self._why


class Stage:
    """A carrier whose application is a stub, and what both say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notes = directory / "notes"
        self.scratch = directory / "data" / "spark"
        self.gate = directory / "gate"
        self.states: list[tuple[str, str]] = []
        self._made: list[SparkCarrier] = []

    def carrier(self, be: str = "ready") -> SparkCarrier:
        conf = {"be": be, "notes": str(self.notes), "gate": str(self.gate)}
        made = SparkCarrier(
            Options(str(self.scratch), conf=conf),
            lambda state, why: self.states.append((state, why)),
            lambda what, **_: None,
        )
        self._made.append(made)
        return made

    def run(self, carrier: SparkCarrier, job: str, work: str, *tasks: bytes) -> Ended:
        ended = Ended()
        carrier.run(job, work, b"", tasks, ended)
        return ended

    def noted(self) -> list[str]:
        """Without when it started."""
        return [line for line in self._lines() if not line.startswith("start")]

    def given(self) -> dict[str, object]:
        """The options of the last process that was started."""
        found: dict[str, object] = json.loads((self.directory / "options").read_text())
        return found

    def processes(self) -> list[int]:
        """All that were started."""
        return [int(line.split()[1]) for line in self._lines() if line.startswith("start")]

    def _lines(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def close(self) -> None:
        for carrier in self._made:
            carrier.close()
        for process in self.processes():
            eventually(lambda process=process: not is_running(process), "it ended")  # type: ignore[misc]


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.fixture
def stage(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(carriers, "AGAIN_SECONDS", (0.2, 0.4, 60.0))
    stub = SimpleNamespace(__name__=stub_application.__name__, ENVIRONMENT=application.ENVIRONMENT)
    monkeypatch.setattr(carriers, "application", stub)
    made = Stage(tmp_path)
    yield made
    made.close()


def wait_for_state(stage: Stage, state: str) -> None:
    eventually(lambda: stage.states[-1:] and stage.states[-1][0] == state, state)


# --- as it should be


def test_spark_starts_when_it_is_first_needed(stage: Stage) -> None:
    carrier = stage.carrier()
    assert stage.states == []
    ended = stage.run(carrier, "wave-1", "echo", b"one", b"two")
    assert ended.results == [b"one", b"two"]
    assert stage.states == [("starting", ""), ("ready", "3 tasks at once")]
    assert carrier.workers == 3


def test_spark_can_be_started_before_it_is_needed(stage: Stage) -> None:
    """So that no copy waits for Java; however often that is asked for, one is started."""
    carrier = stage.carrier()
    for _ in range(3):
        carrier.start()
    wait_for_state(stage, "ready")
    carrier.start()
    assert stage.run(carrier, "wave-1", "echo", b"x").results == [b"x"]
    assert len(stage.processes()) == 1


def test_a_spark_that_does_not_start_is_tried_again_later_also_if_nobody_needs_it(
    stage: Stage,
) -> None:
    carrier = stage.carrier("refuse")

    def failed_twice() -> bool:
        carrier.start()
        return stage.states.count(("failed", "there is no Java")) >= 2

    eventually(failed_twice)
    carrier.close()
    carrier.start()
    assert len(stage.processes()) == stage.states.count(("starting", ""))


def test_its_processes_get_a_group_of_their_own_which_goes_with_them(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "group"

    def make_group(scratch: str) -> str:
        assert scratch == str(stage.scratch)
        group.mkdir(exist_ok=True)
        return str(group)

    monkeypatch.setattr(carriers, "make_group", make_group)
    carrier = stage.carrier()
    assert stage.run(carrier, "wave-1", "echo").results == []
    assert stage.given()["group"] == str(group)
    carrier.close()
    assert not group.exists()


def test_when_it_is_idle_and_lacks_a_class_archive_another_process_makes_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "IDLE_SECONDS", 0.3)
    carrier = stage.carrier("bare")
    busy = stage.run(carrier, "wave-1", "wait")
    wait_for_state(stage, "ready")
    time.sleep(0.6)
    assert len(stage.processes()) == 1, "it is not idle"
    stage.gate.touch()
    assert busy.results == []
    eventually(lambda: len(stage.processes()) == 2, "another one starts")
    assert stage.given()["makes_archive"]
    carrier.close()
    assert not any(map(is_running, stage.processes()))


def test_what_is_ordered_before_it_is_ready_waits(stage: Stage) -> None:
    carrier = stage.carrier("late")
    waiting = [stage.run(carrier, f"wave-{n}", "echo", b"x") for n in range(3)]
    eventually(stage.processes, "it starts")
    assert not any(ended.is_told for ended in waiting)
    stage.gate.touch()
    assert [ended.results for ended in waiting] == [[b"x"]] * 3
    assert len(stage.processes()) == 1
    assert stage.noted() == ["run wave-0", "run wave-1", "run wave-2"]


def test_a_job_that_failed_is_told_and_the_next_one_runs(stage: Stage) -> None:
    carrier = stage.carrier()
    assert stage.run(carrier, "wave-1", "fail").why == "a task failed four times"
    assert stage.run(carrier, "wave-2", "echo").results == []
    assert len(stage.processes()) == 1


def test_a_job_is_cancelled_by_an_order(stage: Stage) -> None:
    """F118: whatever it still carries is denied by the nodes; this only saves the work."""
    carrier = stage.carrier()
    stage.run(carrier, "wave-1", "hang")
    wait_for_state(stage, "ready")
    carrier.cancel("wave-1")
    eventually(lambda: stage.noted() == ["run wave-1", "cancel wave-1"], "it is told")


def test_a_job_that_is_cancelled_before_spark_is_ready_never_runs(stage: Stage) -> None:
    carrier = stage.carrier("late")
    cancelled, other = (stage.run(carrier, job, "echo") for job in ("wave-1", "wave-2"))
    carrier.cancel("wave-1")
    assert cancelled.why == "it was cancelled"
    stage.gate.touch()
    assert other.results == []
    assert stage.noted() == ["run wave-2"]


# --- when it dies


def test_when_it_dies_while_it_starts_java_does_too(stage: Stage) -> None:
    """Java that finds its directory gone hangs for ever, and does not see that it is alone."""
    carrier = stage.carrier("leave Java")
    assert stage.run(carrier, "wave-1", "echo").why == "Spark ended: it ended with code 9"
    _, java = stage.processes()
    eventually(lambda: not is_running(java), "Java has ended as well")


def test_when_it_dies_every_job_is_told_and_the_next_need_starts_it_again(stage: Stage) -> None:
    """Java was killed: the coordinator lives on, and asks for its copies again."""
    carrier = stage.carrier()
    lost = stage.run(carrier, "wave-1", "hang")
    eventually(stage.noted)
    fatal = stage.run(carrier, "wave-2", "die")
    assert lost.why == fatal.why == "Spark ended: it died"
    wait_for_state(stage, "off")
    assert not stage.scratch.exists()
    assert len(stage.processes()) == 1, "nobody needs it yet"
    assert stage.run(carrier, "wave-3", "echo").why == "Spark does not start: it died"
    time.sleep(0.2)
    assert stage.run(carrier, "wave-4", "echo", b"x").results == [b"x"]
    assert len(stage.processes()) == 2
    assert stage.noted() == ["run wave-1", "run wave-2", "run wave-4"]
    assert lost.times == fatal.times == 1


def test_why_it_does_not_start_is_told_to_whoever_waits_for_it(stage: Stage) -> None:
    carrier = stage.carrier("refuse")
    assert stage.run(carrier, "wave-1", "echo").why == "Spark ended: there is no Java"
    assert stage.states == [("starting", ""), ("failed", "there is no Java")]
    assert not stage.scratch.exists()


def test_one_that_dies_without_a_word_is_told_by_its_code(stage: Stage) -> None:
    carrier = stage.carrier("die")
    assert stage.run(carrier, "wave-1", "echo").why == "Spark ended: it ended with code 9"


def test_it_is_started_again_later_and_later(stage: Stage) -> None:
    """A coordinator asks every few milliseconds, and a start takes a core for seconds."""
    carrier = stage.carrier("die")
    deadline = time.monotonic() + 3.0
    refusals = set()
    number = 0
    while time.monotonic() < deadline:
        number += 1
        refusals.add(stage.run(carrier, f"wave-{number}", "echo").why)
        time.sleep(0.01)
    assert len(stage.processes()) == 3
    assert refusals == {
        "Spark ended: it ended with code 9",
        "Spark does not start: it ended with code 9",
    }


def test_an_old_reason_is_not_given_for_a_new_failure(stage: Stage) -> None:
    carrier = stage.carrier("late")
    stage.gate.touch()
    assert stage.run(carrier, "wave-1", "die").why == "Spark ended: it died"
    stage.gate.unlink()
    wait_for_state(stage, "off")
    time.sleep(0.2)
    second = stage.run(carrier, "wave-2", "echo")
    eventually(lambda: len(stage.processes()) == 2)
    os.kill(stage.processes()[1], signal.SIGKILL)
    assert second.why == "Spark ended: it ended with code -9"


def test_one_that_is_never_ready_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "START_SECONDS", 1.0)
    carrier = stage.carrier("never")
    assert stage.run(carrier, "wave-1", "echo").why == "Spark ended: it was not ready after 1 s"
    wait_for_state(stage, "failed")


def test_one_that_was_ready_in_time_is_left_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "START_SECONDS", 2.0)
    carrier = stage.carrier()
    assert stage.run(carrier, "wave-1", "echo").results == []
    time.sleep(2.2)
    assert stage.run(carrier, "wave-2", "echo").results == []
    assert len(stage.processes()) == 1


def test_where_it_can_not_be_started_at_all_that_is_told(stage: Stage) -> None:
    """The thread that asks is the one that keeps the coordinator in office."""
    stage.directory.joinpath("data").write_text("a file, where a directory is wanted")
    carrier = stage.carrier()
    assert stage.run(carrier, "wave-1", "echo").why.startswith("Spark does not start: ")
    assert [state for state, _ in stage.states] == ["failed"]
    stage.directory.joinpath("data").unlink()
    time.sleep(0.2)
    assert stage.run(carrier, "wave-2", "echo").results == []


def test_an_application_that_hangs_holds_nobody_up(stage: Stage) -> None:
    """Its orders are more than a pipe takes; whoever gives them keeps a coordinator in office."""
    carrier = stage.carrier()
    assert stage.run(carrier, "wave-1", "echo").results == []
    (process,) = stage.processes()
    os.kill(process, signal.SIGSTOP)
    began = time.monotonic()
    waiting = [stage.run(carrier, f"wave-{n}", "echo", b"x" * 1_000_000) for n in range(2, 5)]
    carrier.cancel("wave-2")
    carrier.close(0.3)
    assert time.monotonic() - began < 5.0
    assert [ended.why for ended in waiting] == ["Spark ended: it died"] * 3
    assert not is_running(process)


# --- the end


def test_closing_ends_it_and_leaves_nothing_behind(stage: Stage) -> None:
    carrier = stage.carrier()
    assert stage.run(carrier, "wave-1", "echo").results == []
    under_way = stage.run(carrier, "wave-2", "hang")
    assert list(stage.scratch.glob("*/blocks"))
    (process,) = stage.processes()
    carrier.close()
    assert not is_running(process)
    assert not stage.scratch.exists()
    assert under_way.why.startswith("Spark ended")
    assert stage.run(carrier, "wave-3", "echo").why == "the coordinator is stopping"
    carrier.cancel("wave-2")
    carrier.close()


@pytest.mark.parametrize("be", ["late", "cling"])
def test_one_that_does_not_end_by_itself_is_killed(stage: Stage, be: str) -> None:
    """It is still starting, or it hangs."""
    carrier = stage.carrier(be)
    stage.run(carrier, "wave-1", "hang")
    eventually(stage.processes)
    carrier.close(0.3)
    assert not is_running(stage.processes()[0])
    assert not stage.scratch.exists()


def test_one_that_was_never_needed_is_closed_at_once(stage: Stage) -> None:
    stage.carrier().close()
    assert stage.processes() == []
    assert not stage.scratch.exists()


def test_what_a_killed_coordinator_left_behind_is_deleted(stage: Stage) -> None:
    stage.scratch.mkdir(parents=True)
    stage.scratch.joinpath("old").touch()
    carrier = stage.carrier()
    assert stage.run(carrier, "wave-1", "echo").results == []
    assert not stage.scratch.joinpath("old").exists()


# --- threads


def join(access: bytes, task: bytes, name: str, again: bool) -> bytes:
    return b"/".join([access, task, name.encode(), str(again).encode()])


def fail(access: bytes, task: bytes, name: str, again: bool) -> bytes:
    raise ValueError("the rows are blue")


def carried_by_threads(work: Callable[..., bytes] | str, *tasks: bytes) -> Ended:
    named = work if isinstance(work, str) else f"{__name__}:{work.__name__}"
    ended = Ended()
    ThreadCarrier().run("wave-1", named, b"me", tasks, ended)
    return ended


def test_threads_carry_task_by_task() -> None:
    ended = carried_by_threads(join, b"a", b"b")
    assert ended.results == [b"me/a/wave-1-0/False", b"me/b/wave-1-1/False"]


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (fail, "ValueError: the rows are blue"),
        ("limosa.nowhere:run", "ModuleNotFoundError: No module named 'limosa.nowhere'"),
        ("limosa.pipeline.pipe:walk", "AttributeError: .* has no attribute 'walk'"),
    ],
)
def test_an_error_of_a_thread_is_told(work: Callable[..., bytes] | str, why: str) -> None:
    assert re.fullmatch(why, carried_by_threads(work, b"a").why)


GATE = threading.Event()


def wait(access: bytes, task: bytes, name: str, again: bool) -> bytes:
    assert GATE.wait(20.0)
    return task


def test_threads_are_neither_cancelled_nor_waited_for() -> None:
    """Nodes deny what a cancelled job still carries, so the job just ends, and is told about."""
    GATE.clear()
    carrier, ended = ThreadCarrier(), Ended()
    carrier.run("wave-1", f"{__name__}:wait", b"", (b"a", b"b"), ended)
    carrier.cancel("wave-1")
    carrier.close()
    assert not ended.is_told
    GATE.set()
    assert ended.results == [b"a", b"b"]
    assert ended.times == 1
