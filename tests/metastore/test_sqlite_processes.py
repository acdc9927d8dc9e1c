"""Does the SQLite metastore stay whole among processes that compete, and that are killed?"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import IO, Any

import pytest

from limosa.metastore.sqlite import SqliteMetastore
from limosa.ports import KeyChange
from limosa.runtime.clock import BootClock
from tests.metastore.clocks import FakeClock
from tests.metastore.worker import GROUP
from tests.waiting import eventually

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60.0


def start(*job: str | Path, stdout: int | IO[Any] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "tests.metastore.worker", *map(str, job)]
    return subprocess.Popen(command, cwd=ROOT, stdout=stdout, text=True)


def run(*job: str | Path) -> list[str]:
    with start(*job, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0
    return output.split()


@contextmanager
def killed_at_the_end(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(SECONDS_MAX)


def test_processes_lose_no_update_and_a_watcher_no_change(tmp_path: Path) -> None:
    """F158: of concurrent conditional commits each sees the one before; the file is made by all."""
    processes, times = 4, 50
    path = tmp_path / "metastore.db"
    writers = [start("increment", path, "n", str(times)) for _ in range(processes)]
    seen: list[KeyChange] = []
    with killed_at_the_end(writers), closing(SqliteMetastore(path, BootClock())) as store:
        watch = store.watch("", 0)
        deadline = time.monotonic() + SECONDS_MAX
        while watch.revision < processes * times and time.monotonic() < deadline:
            seen += watch.poll(timeout=0.5)
        assert [writer.wait(SECONDS_MAX) for writer in writers] == [0] * processes
    assert seen == [KeyChange("n", b"%d" % n, n) for n in range(1, processes * times + 1)]


def test_killed_writers_leave_every_commit_whole_or_undone(tmp_path: Path) -> None:
    """S98: an agreed-state change is half applied and its process dies: all of it, or nothing."""
    path = tmp_path / "metastore.db"
    logs: list[Path] = []

    def start_writer() -> subprocess.Popen[str]:
        logs.append(tmp_path / f"writer-{len(logs)}.log")
        with logs[-1].open("wb") as log:
            return start("write_groups", path, f"writer-{len(logs)}", stdout=log)

    store = SqliteMetastore(path, BootClock())
    writers = [start_writer() for _ in range(3)]
    with killed_at_the_end(writers), closing(store):
        for kill in range(12):
            # Kills come at different distances, and each time all three are at work again.
            target = store.read("none")[0] + 15 + kill
            eventually(lambda: store.read("none")[0] >= target)  # noqa: B023
            eventually(lambda: logs[-1].stat().st_size > 0)
            victim = writers.pop(0)
            victim.kill()
            victim.wait(SECONDS_MAX)
            writers.append(start_writer())
    with closing(SqliteMetastore(path, BootClock())) as store:
        revision, entries = store.read("")
        history = store.watch("", 0).poll()
    committed = check_history(history)
    assert list(committed) == list(range(1, revision + 1))
    assert {key: entry.value.decode() for key, entry in entries.items()} == dict.fromkeys(
        [*GROUP, f"last/{committed[revision]}"], committed[revision]
    )
    for log in logs:
        for line in log.read_text().splitlines():
            acknowledged, value = line.split()
            assert committed[int(acknowledged)] == value


def check_history(history: list[KeyChange]) -> dict[int, str]:
    """The value that each revision gave to all keys; no revision may have a part of a commit."""
    committed: dict[int, str] = {}
    last: str | None = None
    for revision, changes in groupby(history, lambda change: change.revision):
        found = {change.key: change.value for change in changes}
        value = (found["group/0"] or b"").decode()
        expected: dict[str, bytes | None] = dict.fromkeys([*GROUP, f"last/{value}"], value.encode())
        if last is not None:
            expected[f"last/{last}"] = None
        assert found == expected
        committed[revision] = last = value
    assert len(set(committed.values())) == len(committed)
    return committed


def test_a_process_that_dies_before_any_statement_leaves_all_or_nothing(tmp_path: Path) -> None:
    """S98: the same, killed at every step from the making of the file on."""
    steps, code = map(int, run("die_everywhere", tmp_path))
    assert code == 0
    revisions = []
    for step in range(1, steps + 1):
        with closing(SqliteMetastore(tmp_path / f"{step}.db", FakeClock())) as store:
            revision, entries = store.read("")
            history = [(c.revision, c.key, c.value) for c in store.watch("", 0).poll()]
        values = {key: entry.value for key, entry in entries.items()}
        changes: list[list[tuple[int, str, bytes | None]]] = [
            [(1, "a", b"1"), (1, "b", b"1"), (1, "c", b"1")],
            [(2, "a", b"2"), (2, "b", b"2"), (2, "c", None)],
            [(3, "a", None), (3, "b", None)],
        ]
        states: list[dict[str, bytes]] = [
            {},
            {"a": b"1", "b": b"1", "c": b"1"},
            {"a": b"2", "b": b"2"},
            {},
        ]
        assert values == states[revision]
        assert history == list(chain(*changes[:revision]))
        revisions.append(revision)
    assert revisions == sorted(revisions)
    assert set(revisions) == {0, 1, 2, 3}


def test_a_full_disk_stops_commits_and_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "metastore.db"
    acknowledged, error, revision = run("fill_the_disk", path)
    assert error in ("MetastoreUnavailable", "OutcomeUnknown")
    assert revision == acknowledged
    with closing(SqliteMetastore(path, BootClock())) as store:
        kept, entries = store.read("")
        # Only an unknown outcome may turn out to have happened.
        assert kept - int(acknowledged) in ((0, 1) if error == "OutcomeUnknown" else (0,))
        assert len(entries) == 2 * kept
        assert store.commit({}, {"more": b""}) == kept + 1
