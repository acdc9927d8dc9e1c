"""Is a process that died started again, later each time it does not help?"""

import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limosa.cli.up import supervisor
from limosa.cli.up.supervisor import Supervisor, ending
from limosa.errors import Refused
from limosa.metastore.agreed import AgreedStore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.runtime.clock import BootClock
from limosa.runtime.local import LocalCluster
from limosa.transport.keys import make_secret
from tests.waiting import eventually


class Process:
    """A process that says nothing and ends when it is told to."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.readable = False
        self.beats: bool | None = None
        self.killed = False
        self.stdout = self

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.killed = True


class Processes:
    """Processes that start at once, and may be unable to."""

    def __init__(self, *names: str) -> None:
        self.processes: dict[str, Any] = {name: Process() for name in names}
        self.started: list[str] = []
        self.broken = False

    def start_one(self, name: str, wait: bool = True, port: int | None = None) -> None:
        assert not wait
        self.started.append(name)
        self.processes[name] = Process()

    def wait_until_ready(self, names: Sequence[str]) -> None:
        if self.broken:
            raise Refused(f"{names[0]} did not start: no disk", "look at the log")

    def has_beaten(self, name: str) -> bool | None:
        beats: bool | None = self.processes[name].beats
        return beats


class Watched:
    """A supervisor, its clock and what it said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, restarts: bool = True) -> None:
        self.cluster = Processes("n1", "n2")
        self.said: list[str] = []
        self.came_back = 0
        self.now = 100.0
        monkeypatch.setattr(supervisor, "is_readable", lambda process: process.readable)
        self.supervisor = Supervisor(
            self.cluster, self.said.append, self._count, restarts, lambda: self.now
        )

    def _count(self) -> None:
        self.came_back += 1

    def look(self, later: float = 0.0) -> None:
        self.now += later
        self.supervisor.look()


def test_nothing_is_said_while_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.look()
    assert watched.said == []
    assert not watched.supervisor.all_gone


def test_who_died_is_started_again_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.cluster.processes["n1"].returncode = -9
    watched.look()
    assert watched.said == ["n1 was killed by SIGKILL. It is restarted in 1 s."]
    watched.look(0.9)
    assert watched.cluster.started == []
    watched.look(0.2)
    assert watched.cluster.started == ["n1"]
    watched.look(0.2)
    assert watched.came_back == 0, "it has not said that it is ready"
    watched.cluster.processes["n1"].readable = True
    watched.look()
    assert watched.said[-1] == "n1 has restarted."
    assert watched.came_back == 1


def test_the_pause_grows_until_it_has_run_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.cluster.broken = True
    watched.cluster.processes["n1"].returncode = 1
    pauses = []
    for _ in range(7):
        watched.look()
        pauses.append(watched.said[-1].rpartition(" in ")[2])
        watched.look(supervisor.PAUSE_SECONDS_MAX)
        watched.cluster.processes["n1"].readable = True
    assert pauses == ["1 s.", "2 s.", "4 s.", "8 s.", "16 s.", "30 s.", "30 s."]
    watched.cluster.broken = False
    watched.look()
    watched.cluster.processes["n1"].returncode = 0
    watched.look(supervisor.CALM_SECONDS)
    assert watched.said[-2:] == [
        "n1 has restarted.",
        "n1 ended with exit code 0. It is restarted in 1 s.",
    ]


def test_who_hangs_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S121: n1 shows that it works, until it does not; n2 never does, and is left alone."""
    watched = Watched(monkeypatch)
    process = watched.cluster.processes["n1"]
    for beats in (True, False, True):
        process.beats = beats
        watched.look(supervisor.HANGS_SECONDS)
        assert not process.killed
    process.beats = False
    watched.look(supervisor.HANGS_SECONDS - 0.1)
    assert not process.killed
    watched.look(0.2)
    assert process.killed
    assert not watched.cluster.processes["n2"].killed
    assert watched.said == ["n1 has hung for 10 s: it is killed."]
    process.returncode = -9
    watched.look()
    watched.look(1.0)
    assert watched.cluster.started == ["n1"]
    again = watched.cluster.processes["n1"]
    again.readable, again.beats = True, False
    watched.look()
    assert watched.said[-1] == "n1 has restarted."
    watched.look(1.0)
    watched.look(supervisor.HANGS_SECONDS - 0.1)
    assert not again.killed, "it has as much time as any other"


def test_who_hangs_is_left_alone_if_nobody_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, restarts=False)
    watched.cluster.processes["n1"].beats = False
    for _ in range(3):
        watched.look(supervisor.HANGS_SECONDS)
    assert not watched.cluster.processes["n1"].killed


@pytest.mark.processes
def test_a_stopped_coordinator_is_replaced_while_another_one_takes_office(tmp_path: Path) -> None:
    """S121: on real processes. The stopped one (SIGSTOP) still exists; a standby takes office as
    soon as its lease has ended, and the supervisor kills the stopped one and starts it again."""
    local = LocalCluster(tmp_path, 1, coordinators=2)
    said: list[str] = []
    with closing(SqliteMetastore(tmp_path / "metastore.db", BootClock())) as store:

        def holder() -> str:
            found = AgreedStore(store).read().coordinator
            return "" if found is None else found.holder

        try:
            make_secret(str(tmp_path / "secret"))
            for name in local.coordinators:
                local.start_one(name)
            supervised = Supervisor(local, said.append, hangs_seconds=4.0)

            def watched(holds: Callable[[], bool]) -> bool:
                supervised.look()
                return holds()

            eventually(lambda: watched(lambda: bool(holder())))
            first = holder()
            (second,) = set(local.coordinators) - {first}
            process = local.processes[first]
            local.pause(first)
            eventually(lambda: watched(lambda: holder() == second))
            eventually(lambda: watched(lambda: f"{first} has restarted." in said))
            assert said[0] == f"{first} has hung for 4 s: it is killed."
            assert process.poll() == -signal.SIGKILL
            assert local.is_running(first)
        finally:
            for running in local.processes.values():
                running.send_signal(signal.SIGCONT)
            local.nodes.clear()
            local.stop()


def test_nobody_is_started_again_if_so_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, restarts=False)
    watched.cluster.processes["n1"].returncode = 3
    watched.look()
    watched.look(100)
    assert watched.said == ["n1 ended with exit code 3. It is not restarted (--no-restart)."]
    gone = [watched.supervisor.all_gone]
    watched.cluster.processes["n2"].returncode = 0
    watched.look()
    gone.append(watched.supervisor.all_gone)
    assert gone == [False, True]
    assert watched.cluster.started == []


def test_an_unknown_signal_has_a_number() -> None:
    assert ending(-200) == "was killed by signal 200"
