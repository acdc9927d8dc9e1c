"""Does `limosa simulate` keep what it promises to people and to scripts?"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limosa.cli.main import main
from limosa.simulation.faults import CELLS
from limosa.simulation.run import Result, run_seed
from limosa.simulation.story import Story, story_of
from limosa.simulation.swarm import run_guarded
from tests.waiting import eventually

NUMBERS = {
    *("seeds", "operations", "moves", "faults", "violations"),
    *("cells_hit", "cells_total", "seeds_per_minute"),
}
COMMAND = [sys.executable, "-c", "import sys; from limosa.cli.main import main; sys.exit(main())"]
SECONDS_MAX = 60.0

Output = pytest.CaptureFixture[str]


def last_object(output: str) -> dict[str, Any]:
    found = json.loads(output.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds run here, where something can be planted."""

    def run_seeds(
        seeds: Iterable[int], jobs: int, real_storage: bool = False
    ) -> Generator[Result, None, None]:
        yield from map(partial(run_guarded, real_storage=real_storage), seeds)

    monkeypatch.setattr("limosa.cli.simulate.run_seeds", run_seeds)


@pytest.fixture
def something_is_left(monkeypatch: pytest.MonkeyPatch, in_this_process: None) -> None:
    """Every seed ends with a violation in p0."""
    monkeypatch.setattr(
        "limosa.simulation.run.leftovers", lambda world: [("a planted leftover", "p0")]
    )


# --- what it prints


@pytest.mark.processes
def test_the_last_line_is_one_object_with_the_promised_keys(capsys: Output) -> None:
    assert main(["simulate", "--seeds", "6", "--jobs", "2", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "", "a progress bar is for terminals"
    found = last_object(printed.out)
    assert set(found) == {*NUMBERS, "missing_cells"}
    results = [run_seed(seed) for seed in range(6)]
    assert found["seeds"] == 6
    assert found["operations"] == sum(result.operations for result in results)
    assert found["moves"] == sum(result.moves for result in results)
    assert found["faults"] == sum(result.faults for result in results)
    assert found["violations"] == 0
    assert found["cells_hit"] == len({cell for result in results for cell in result.cells})
    assert found["cells_total"] == len(CELLS) == found["cells_hit"] + len(found["missing_cells"])
    assert found["seeds_per_minute"] > 0


def test_first_names_the_first_seed(capsys: Output, in_this_process: None) -> None:
    assert main(["simulate", "--first", "7", "--seeds", "2", "--json"]) == 0
    found = last_object(capsys.readouterr().out)
    assert found["operations"] == run_seed(7).operations + run_seed(8).operations


@pytest.mark.thorough
def test_seeds_may_run_on_real_storage(capsys: Output, in_this_process: None) -> None:
    assert main(["simulate", "--seed", "7", "--storage", "real", "--json"]) == 0
    found = last_object(capsys.readouterr().out)
    assert found["operations"] == run_seed(7, real_storage=True).operations
    assert main(["simulate", "--seed", "7", "--storage", "real", "--story"]) == 0
    told = capsys.readouterr().out
    assert "Replay it with: limosa simulate --seed 7 --story --storage real" in told


def test_words_are_for_people(capsys: Output, in_this_process: None) -> None:
    assert main(["simulate", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 seeds: ")
    assert "no violations." in printed


def test_cells_that_were_not_hit_fail_if_they_are_required(
    capsys: Output, in_this_process: None
) -> None:
    assert main(["simulate", "--seeds", "1", "--require-all-cells", "--json"]) == 1
    assert last_object(capsys.readouterr().out)["missing_cells"]


def test_all_cells_are_enough(
    capsys: Output, in_this_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = run_seed(0).cells
    monkeypatch.setattr("limosa.simulation.swarm.CELLS", hit)
    assert main(["simulate", "--seed", "0", "--require-all-cells", "--json"]) == 0
    found = last_object(capsys.readouterr().out)
    assert set(found) == NUMBERS
    assert found["cells_hit"] == found["cells_total"] == len(hit)


# --- violations and stories


def test_a_violation_fails_and_is_told(capsys: Output, something_is_left: None) -> None:
    assert main(["simulate", "--first", "3", "--seeds", "5", "--json"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("VIOLATED in p0: a planted leftover") == 3, "three stories at most"
    for seed in (3, 4, 5):
        assert f"Replay it with: limosa simulate --seed {seed} --story" in printed
    assert "2 more seeds failed" in printed
    found = last_object(printed)
    assert found["violations"] == 5
    assert found["failed"][0] == {
        "seed": 3,
        "violation": "a planted leftover",
        "partition": "p0",
    }
    assert [failure["seed"] for failure in found["failed"]] == [3, 4, 5, 6, 7]


def seed_with_two_partitions() -> int:
    """Both of them with faults of their own."""

    def is_wanted(story: Story) -> bool:
        aimed_at = {where for _, where, what in story.lines if what.startswith("FAULT")}
        return aimed_at >= {"p0", "p1"}

    return next(seed for seed in range(100) if is_wanted(story_of(seed)))


def test_a_story_tells_the_partition_concerned(capsys: Output, something_is_left: None) -> None:
    """Of the other one only the faults are told."""
    seed = seed_with_two_partitions()
    assert main(["simulate", "--seed", str(seed)]) == 1
    printed = capsys.readouterr().out
    header, lines, footer, summary = printed.rstrip("\n").split("\n\n")
    assert header.startswith(f"Seed {seed}: ")
    assert " nodes, 2 partitions of " in header
    assert "Not shown: p1." in header
    places = {(line[12:16].strip(), line[16:].split()[0]) for line in lines.splitlines()}
    assert {who for place, who in places if place == "p1"} == {"FAULT"}
    assert {"FAULT", "VIOLATION:"} <= {who for place, who in places if place == "p0"}
    assert ("", "everything") in places, "what concerns all is told"
    times = [float(line[:10]) for line in lines.splitlines()]
    assert times == sorted(times)
    assert footer.splitlines()[0] == "VIOLATED in p0: a planted leftover"
    assert "1 violation." in summary


def test_a_clean_seed_is_told_if_asked(capsys: Output, in_this_process: None) -> None:
    assert main(["simulate", "--seed", str(seed_with_two_partitions()), "--story"]) == 0
    printed = capsys.readouterr().out
    assert "Nothing was violated" in printed
    assert " p0 " in printed
    assert " p1 " in printed


def test_a_seed_that_raises_is_told_up_to_there(
    capsys: Output, in_this_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def burst(world: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("limosa.simulation.run.leftovers", burst)
    assert main(["simulate", "--seed", "3"]) == 1
    printed = capsys.readouterr().out
    assert "everything heals" in printed
    assert "VIOLATED: raised ZeroDivisionError at tests.cli.test_simulate:" in printed


@pytest.mark.processes
def test_a_seed_replays_to_the_byte_whatever_hashes_are() -> None:
    """A run is replayed by its seed, also across PYTHONHASHSEED."""
    stories = [
        subprocess.run(
            [*COMMAND, "simulate", "--seed", "9", "--story"],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            timeout=SECONDS_MAX,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]
    assert stories[0] == stories[1]
    assert len(stories[0].splitlines()) > 100


# --- bad input


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "-3"], "--seeds"),
        (["--seeds", "0"], "greater than or equal to 1"),
        (["--seeds", "many"], "valid integer"),
        (["--seed", "-1"], "greater than or equal to 0"),
        (["--first", "-1"], "--first"),
        (["--jobs", "0"], "--jobs"),
        (["--seed", "1", "--seeds", "2"], "--seed runs one seed only: leave out --seeds"),
        (["--seed", "1", "--first", "2"], "--seed runs one seed only: leave out --first"),
        (["--story"], "--story is for one seed: name it with --seed."),
        (["--seeds", "5", "--story"], "--story is for one seed"),
        (["--sed", "5"], "No such option: --sed"),
        (["--storage", "paper"], "'paper' is not one of 'fake', 'real'"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, capsys: Output
) -> None:
    assert main(["simulate", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""


# --- interruptions


@contextmanager
def swarm_of_three() -> Iterator[subprocess.Popen[str]]:
    """A long swarm in a process group of its own, with its workers running."""
    command = [*COMMAND, "simulate", "--seeds", "1000000", "--jobs", "3"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            eventually(lambda: len(children.read_text().split()) >= 4)  # Three, and a tracker.
            yield process
        finally:
            if is_anybody_left(process.pid):
                os.killpg(process.pid, signal.SIGKILL)


def is_anybody_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.mark.processes
@linux
@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_ends_everything_with_130(whole_group: bool) -> None:
    """A terminal tells the whole group, `kill -INT` the parent only. Workers may be half up."""
    with swarm_of_three() as process:
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 130
        assert (output, errors) == ("", "")
        eventually(lambda: not is_anybody_left(process.pid))


@pytest.mark.processes
@linux
def test_workers_do_not_survive_their_parent() -> None:
    with swarm_of_three() as process:
        process.kill()
        process.wait(SECONDS_MAX)
        eventually(lambda: not is_anybody_left(process.pid))
