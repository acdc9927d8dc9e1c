"""Does a move on real Spark lose nothing, whoever of it is killed in the middle?

To start Spark takes seconds, so that one cluster goes through several things, one after another.
"""

import re
from pathlib import Path

import pytest

from limosa.pipeline import java
from limosa.pipeline.priority import group_name
from tests.pipeline.moving import ROWS, WRITTEN, MovingCluster, Writing
from tests.waiting import eventually

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(java.missing()), reason=java.missing()),
]

GONE_SECONDS = 30.0


def test_a_move_ends_well_while_rows_are_written_and_workers_and_java_are_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """F98, F102, F108, F117, S21, S22, S23, S37, S38: no write fails, every row is there
    once, only where it should be, and nothing is left of Spark."""
    directory = tmp_path_factory.mktemp("on spark")
    with MovingCluster(directory) as moving:
        _partitions_move_while_rows_are_written(moving)
        _a_worker_that_is_killed_is_another_try_of_its_task(moving)
        _when_java_is_killed_the_coordinator_lives_and_the_move_ends(moving)
    _nothing_is_left_of(moving)


@pytest.mark.slow
def test_a_move_ends_well_when_the_application_or_the_coordinator_is_killed(
    tmp_path: Path,
) -> None:
    """F117, S35: whatever they had started ends with them, and another one carries on."""
    with MovingCluster(tmp_path) as moving:
        moving.wait_until(moving.swap())
        _when_the_application_is_killed_java_goes_and_the_move_ends(moving)
        _when_the_coordinator_is_killed_another_one_carries_on(moving)
    _nothing_is_left_of(moving)


@pytest.mark.slow
def test_a_coordinator_that_stops_while_spark_starts_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with MovingCluster(tmp_path) as moving:
        moving.swap()
        eventually(lambda: moving.spark("java"), "Java comes up")
    _nothing_is_left_of(moving)


def _partitions_move_while_rows_are_written(moving: MovingCluster) -> None:
    with Writing(moving.connect) as writing:
        moving.wait_until(moving.swap())
    assert writing.failures == []
    assert len(writing.rows) > 10
    assert moving.rows() == WRITTEN | writing.rows
    eventually(lambda: len(moving.digests()) == 2, "old replicas are gone")
    assert sum(rows for rows, _ in moving.digests().values()) == ROWS + len(writing.rows)
    assert moving.log().count("Spark is ready") == 1
    told = moving.connection.agreed()["pipeline"]
    assert told.startswith("ready: ")
    assert "low CPU weight" in told or "niceness" in told
    (application,) = moving.spark("application")
    (machine,) = moving.spark("java")
    assert machine.parent == application.id


def _a_worker_that_is_killed_is_another_try_of_its_task(moving: MovingCluster) -> None:
    """Under the same session; Spark itself lives on."""
    before, digests, waves = moving.spark("java"), moving.digests(), len(_carried(moving))
    wanted = moving.swap_half()
    moving.kill("executor")
    moving.wait_until(wanted)
    _check(moving, digests)
    assert moving.spark("java") == before
    eventually(lambda: len(_carried(moving)) > waves, "the job ends")
    total = sum(rows for rows, _ in digests.values())
    assert sum(_carried(moving)[waves:]) < total, "what had landed was not carried again"


def _when_java_is_killed_the_coordinator_lives_and_the_move_ends(moving: MovingCluster) -> None:
    """What has landed stays, and the rest is carried by another one."""
    digests = moving.digests()
    before = {each.id for each in moving.spark("application") + moving.spark("executor")}
    wanted = moving.swap_half()
    moving.kill("java")
    moving.wait_until(wanted)
    _check(moving, digests)
    after = {each.id for each in moving.spark("application") + moving.spark("executor")}
    assert not before & after
    assert moving.log().count("Spark ended why=it died") == 1


def _when_the_application_is_killed_java_goes_and_the_move_ends(moving: MovingCluster) -> None:
    digests = moving.digests()
    (machine,) = moving.spark("java")
    wanted = moving.swap_half()
    moving.kill("application")
    moving.wait_until(wanted)
    _check(moving, digests)
    _is_gone(moving, machine.id)


def _when_the_coordinator_is_killed_another_one_carries_on(moving: MovingCluster) -> None:
    """Its Spark is not told to end, and ends."""
    digests = moving.digests()
    (machine,) = moving.spark("java")
    wanted = moving.swap_half()
    moving.cluster.kill("coordinator")
    moving.cluster.start_one("coordinator")
    moving.wait_until(wanted)
    _check(moving, digests)
    _is_gone(moving, machine.id)


def _check(moving: MovingCluster, digests: dict[str, tuple[int, str]]) -> None:
    """All that was there is there, and nowhere else."""
    eventually(lambda: moving.digests() == digests, "as before")
    assert moving.cluster.is_running("coordinator")


def _carried(moving: MovingCluster) -> list[int]:
    """How many rows each job says that it carried."""
    return [int(rows) for rows in re.findall(r"copies ended .*? rows=(\d+)", moving.log())]


def _is_gone(moving: MovingCluster, process: int) -> None:
    def is_there() -> bool:
        return any(stray.startswith(f"{process}:") for stray in moving.strays())

    eventually(lambda: not is_there(), "it has ended", GONE_SECONDS)


def _nothing_is_left_of(moving: MovingCluster) -> None:
    """No process, no cgroup, and none of Spark's files."""
    eventually(lambda: not moving.strays(), "all have ended", GONE_SECONDS)
    scratch = moving.cluster.directory / "spark-coordinator"
    assert not scratch.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{group_name(str(scratch))}"))
    left = [path for path in Path(moving.directory, "tmp").rglob("*") if path.is_file()]
    assert left == []
