"""Do moves keep every promise while their parts are tormented? `make chaos MOVES=500` has more."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from limosa.core.machines.catalogue import (
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    READ_NEW,
    STREAMING,
    USE_NEW,
)
from limosa.runtime.coordinator import LEASE_SECONDS
from tests.chaos import moving, strikes
from tests.chaos.__main__ import main
from tests.chaos.moves import Moves, Options
from tests.chaos.moving import WAYS, Ended, Plan, Way, illegal_steps
from tests.chaos.strikes import KINDS, ON_SPARK, STAGES, Cell, Parts, Strike
from tests.chaos.surroundings import Process, descendants, marked, of_role, stray_processes


def struck(way: Way, stage: str, kind: str, seconds: float, deed_in: str = "") -> Plan:
    held_in = READ_NEW if way in moving.HELD else ""
    return Plan(way, deed_in or held_in, 0.2, Strike(Cell(stage, kind), 0.0, seconds, True))


LONG_SECONDS = 1.5 * LEASE_SECONDS
PLANS = (
    struck("through", STREAMING, "kill target", 0.5),
    struck("complete", STREAMING, "cut off source", 1.2),
    struck("through", STREAMING, "pause coordinator", LONG_SECONDS),
    struck("reverse", FALLBACK, "kill source", 0.2),
    struck("through", CLEANUP, "kill source", 0.2),
    struck("cancel", CLEANUP_TARGET, "pause target", 1.5, deed_in=STREAMING),
    struck("through", READ_NEW, "kill target", 0.2),
    struck("through", USE_NEW, "kill coordinator", 0.2),
)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_moves_whose_parts_are_killed_paused_and_cut_off_break_no_promise(tmp_path: Path) -> None:
    """F51, F61, F62, F64, F98, F102–F104, F108, S21, S23–S25, S35, S37–S39, S42, S43.

    Clients write, delete and read meanwhile (S21, S23). Source and target are killed, paused or cut
    off in stages before and after the switch (S39, S42, S43). A coordinator is paused beyond its
    lease, and wakes up with a copy that another one has carried on (S25), and one is killed (S35).
    One move is cancelled, one held and reversed, and partitions move on and back (S37, S38).

    Each move ends, done or reverted, by a legal way through the stages (F62, F98) and with its
    replicas where its report says. Then every acknowledged row is there and no deleted one is
    (F102), all replicas are equal and nobody holds another one, in memory or on disk (F108,
    S43); no transition, intent, copy, process or file is left (F64, S24, S25).
    """
    told: list[str] = []
    options = Options(moves=8, seed=3, pipeline="threads", partitions=5, rows=12_000)
    report = Moves(tmp_path, options, told.append, told.append, PLANS).run()
    assert report.ok, "\n".join([*told, *map(str, report.findings)])
    assert report.moves == 8
    assert report.ended["done"] + report.ended["reverted"] == 8
    assert report.faults.total() >= 4, told
    assert report.acked_rows > 500
    assert report.judgements == 1


# --- what is planned


def test_every_way_is_struck_only_in_stages_that_it_goes_through() -> None:
    dice, chosen = Random(1), Counter[Cell]()
    for _ in range(500):
        planned = moving.plan(dice, chosen, on_spark=True)
        if planned.strike is not None:
            chosen[planned.strike.cell] += 1
            assert planned.strike.cell.stage in WAYS[planned.way][1]
            low, high = KINDS[planned.strike.cell.kind][2]
            assert low <= planned.strike.seconds <= high
        assert (planned.hold_seconds > 0) == (planned.way in moving.HELD)
        if planned.way == "cancel" and planned.strike and planned.strike.cell.stage in STAGES[:3]:
            order = STAGES.index
            assert order(planned.deed_in) >= order(planned.strike.cell.stage), "or it is too early"


def test_cells_that_were_not_hit_are_preferred() -> None:
    """So that 500 moves, of which some are not struck in time, leave few cells out."""
    dice, chosen = Random(2), Counter[Cell]()
    for _ in range(400):
        chosen[strikes.plan(dice, chosen, on_spark=True).cell] += 1
    assert len(chosen) > 0.9 * len(STAGES) * len(KINDS)


def test_what_runs_on_spark_is_not_struck_where_there_is_none() -> None:
    dice = Random(3)
    for _ in range(200):
        assert strikes.plan(dice, Counter(), on_spark=False).cell.kind not in ON_SPARK


def test_restarts_of_spark_are_a_small_share() -> None:
    """Each takes seconds, in which no copy goes on."""
    shares = {kind: line[3] for kind, line in KINDS.items()}
    restarting = [kind for kind in shares if kind in ("kill application", "kill java")]
    assert sum(shares[kind] for kind in restarting) < 0.1 * sum(shares.values())


def test_a_strike_counts_for_every_move_that_its_victim_has_a_part_in() -> None:
    other = Parts("n2", "n3")
    assert strikes.same_for("kill source", "n2", other) == "kill source"
    assert strikes.same_for("kill source", "n3", other) == "kill target"
    assert strikes.same_for("cut off target", "n2", other) == "cut off source"
    assert strikes.same_for("kill source", "n1", other) is None
    assert strikes.same_for("cut source and target", "n2", other) is None
    assert strikes.same_for("kill coordinator", "coordinator", other) == "kill coordinator"


# --- what is counted


def test_a_step_that_no_table_has_is_found() -> None:
    """F98."""
    assert illegal_steps(list(STAGES[:6])) == []
    assert illegal_steps([STREAMING, USE_NEW]) == [], "a stage may pass unseen"
    assert illegal_steps([READ_NEW, FALLBACK]) == []
    assert illegal_steps([READ_NEW, STREAMING]) == [f"{READ_NEW} → {STREAMING}"]
    assert illegal_steps([FALLBACK, USE_NEW]) == [f"{FALLBACK} → {USE_NEW}"]


def test_reasons_are_counted_without_names_and_numbers() -> None:
    ended = Ended("reverted", "n3 has 12 MiB free, and rows-0003 needs 256 MiB")
    assert ended.reason == "a node has … MiB free, and it needs … MiB"


# --- whose processes are whose


def test_the_processes_of_spark_are_told_apart() -> None:
    family = [
        Process(10, 1, "python -m limosa.pipeline.application"),
        Process(11, 10, "/usr/lib/jvm/bin/java -cp … org.apache.spark.deploy.SparkSubmit"),
        Process(12, 11, "python -m pyspark.daemon"),
        Process(13, 12, "python -m pyspark.daemon"),
        Process(14, 12, "python -m pyspark.daemon"),
    ]
    assert [each.id for each in of_role("application", family)] == [10]
    assert [each.id for each in of_role("java", family)] == [11]
    assert [each.id for each in of_role("executor", family)] == [13, 14], "not who starts them"


@pytest.mark.processes
def test_a_process_is_found_again_when_its_parent_is_gone(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'])"
    with marked(tmp_path):
        parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        assert parent.stdin is not None
        with parent, parent.stdin:
            parent.wait()
            (stray,) = stray_processes(tmp_path)
            assert "input()" in stray
            assert not descendants(parent.pid)
    assert not stray_processes(tmp_path / "elsewhere")


def test_the_command_says_how_many_nodes_moves_take(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--moves", "5", "--nodes", "3"])
    assert end.value.code == 2
    assert "4 nodes" in capsys.readouterr().err
