"""How does a run of overloads go? Bursts of far more writes than the nodes can take, and kills.

The usual clients go on all the time, and their histories are judged as ever. In each burst, other
processes write as fast as they can, to all partitions at once; meanwhile nodes and the coordinator
are killed and start again. When all of that has ended, everything is in sync and writable soon.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from limosa.client import Operator, TableHandle
from tests.chaos import burst, torment
from tests.chaos.burst import Burst
from tests.chaos.cluster import TABLE, Cluster
from tests.chaos.faults import Fault, Happening, begin
from tests.chaos.load import Load
from tests.chaos.torment import OPERATION_SECONDS, SLACK_SECONDS, Torment

RECOVERY_SECONDS = 10.0
"""So long after a burst, everything is in sync and writable."""
SEASON_BURSTS = 4
"""After so many everything is judged, and other keys are used."""
POLL_SECONDS = 0.02
KILLS = ("kill owner", "kill follower", "kill coordinator")
HOW_MANY = (0, 1, 1, 1, 2, 2)
"""Kills of one burst, each as likely as the others."""


class Options(Struct, frozen=True):
    bursts: int = 20
    seed: int = 0
    nodes: int = 4
    partitions: int = 200
    lease_seconds: float = 3.0
    contenders: int = 3
    processes: int = 3
    writers: int = 10
    """Of each process."""
    rows: int = 100
    """Of each batch, for all partitions together."""
    seconds: float = 8.0
    """How long a burst lasts."""


class Strike(Struct, frozen=True):
    """Somebody is killed after so many seconds."""

    after: float
    fault: Fault


class Report(torment.Report):
    bursts: int = 0
    burst_rows: int = 0
    slowest_recovery: float = 0.0
    """Seconds from the end of a burst until everything was in sync and writable."""

    def as_json(self) -> dict[str, Any]:
        return {
            "bursts": self.bursts,
            "burst_rows": self.burst_rows,
            "slowest_recovery_seconds": round(self.slowest_recovery, 2),
            **super().as_json(),
        }


def plan(seed: int, bursts: int, seconds: float) -> list[tuple[Strike, ...]]:
    """The same seed gives the same kills; whoever is killed starts again before the burst ends."""
    dice = Random(f"{seed} bursts")
    planned = []
    for _ in range(bursts):
        kinds = dice.sample(KILLS, dice.choice(HOW_MANY))
        planned.append(tuple(_strike(kind, dice, seconds) for kind in kinds))
    return planned


def _strike(kind: str, dice: Random, seconds: float) -> Strike:
    after = round(seconds * (0.1 + 0.4 * dice.random()), 2)
    return Strike(after, Fault(kind, round(seconds * 0.3 * dice.random(), 2), False))


class OverloadCluster(Cluster):
    """Without proxies: they would be overloaded first."""

    has_proxies = False


class Overload(Torment[Report]):
    """Bursts of writes, and kills."""

    def __init__(
        self, directory: Path, options: Options, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.options = options
        super().__init__(
            directory, Report(), options.seed, options.partitions, options.contenders, say
        )
        self._dice = Random(f"{options.seed} victims")
        self._unknown: dict[str, list[str]] = {}
        """Values of all bursts whose outcome is unknown, by slot."""

    def make_cluster(self) -> Cluster:
        return OverloadCluster(
            self.directory,
            self.options.nodes,
            coordinators=2,
            lease_seconds=self.options.lease_seconds,
            of_coordinators=["--pipeline", "threads"],
        )

    def play(self, cluster: Cluster, connection: Operator, table: TableHandle, load: Load) -> None:
        options = self.options
        planned = plan(options.seed, options.bursts, options.seconds)
        for number, strikes in enumerate(planned, start=1):
            self._burst(cluster, table, load, number, strikes)
            last = number == options.bursts
            if self.report.ok and (last or number % SEASON_BURSTS == 0):
                self.judge(cluster, connection, table, load)
                load.begin_season()
            if not self.report.ok:
                self.say(f"burst {number} found something")
                return

    # --- one burst

    def _burst(
        self,
        cluster: Cluster,
        table: TableHandle,
        load: Load,
        number: int,
        strikes: tuple[Strike, ...],
    ) -> None:
        processes = [self._start(number, each) for each in range(self.options.processes)]
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()  # all of its writers are connected
            struck = self._strike(cluster, load, strikes)
            bursts = self._end(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        cluster.wait_until_ready(list(cluster.starting))
        seconds = self.find_unwritable(cluster, table, RECOVERY_SECONDS)
        for name in cluster.everybody:
            if not cluster.is_running(name):
                self.find("ill", f"{name} ended by itself: {cluster.last_words(name)}")
        self._judge_rows(table, bursts)
        report, rows = self.report, sum(each.rows for each in bursts)
        report.bursts += 1
        report.burst_rows += rows
        report.slowest_recovery = max(report.slowest_recovery, seconds)
        report.faults.update(each.fault.kind for each in struck)
        for each in bursts:
            self.history.outcomes.update(each.outcomes)
            self.history.errors.update(each.errors)
        what = ", ".join(f"{each.fault} ({each.victim})" for each in struck) or "nobody killed"
        self.say(f"{number:4}  {what}; {rows} rows; in sync and writable after {seconds:.1f}s")

    def _start(self, number: int, process: int) -> "subprocess.Popen[str]":
        options = self.options
        command = [sys.executable, "-m", "tests.chaos.burst", str(self.directory), TABLE]
        command += [str(number), str(process), f"{options.seconds:g}"]
        command += [str(options.writers), str(options.rows)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _strike(self, cluster: Cluster, load: Load, strikes: tuple[Strike, ...]) -> list[Happening]:
        """Kill and start again, each at its time; returns when all of them start again."""
        began = time.monotonic()
        waiting = sorted(strikes, key=lambda each: each.after)
        struck: list[Happening] = []
        down: list[tuple[float, Happening]] = []
        while waiting or down:
            now = time.monotonic() - began
            if waiting and waiting[0].after <= now:
                strike = waiting.pop(0)
                free = [name for name in cluster.everybody if cluster.is_running(name)]
                happening = begin(cluster, strike.fault, self._dice, free)
                if happening is not None:
                    struck.append(happening)
                    down.append((now + strike.fault.seconds, happening))
            for each in [each for each in down if each[0] <= now]:
                down.remove(each)
                load.poke()
                each[1].undo()
            time.sleep(POLL_SECONDS)
        return struck

    def _end(self, processes: "list[subprocess.Popen[str]]") -> list[Burst]:
        """What the writers report. They end soon after the burst: a call may wait for room as long
        as an operation may take, and then for its answer."""
        deadline = self.options.seconds + 2 * OPERATION_SECONDS + SLACK_SECONDS
        bursts = []
        for process in processes:
            try:
                told, _ = process.communicate(timeout=deadline)
                bursts.append(msgspec.json.decode(told, type=Burst))
            except subprocess.TimeoutExpired:
                self.find("hang", "the writers of a burst do not end")
            except msgspec.DecodeError:
                self.find("ill", f"the writers of a burst failed with code {process.returncode}")
        return bursts

    def _judge_rows(self, table: TableHandle, bursts: list[Burst]) -> None:
        """Every key of the burst holds what was acknowledged last, or something unknown."""
        if not self.report.ok:
            return
        for each in bursts:
            for slot, known in each.slots.items():
                known.unknown = [*self._unknown.get(slot, ()), *known.unknown]
                self._unknown[slot] = known.unknown
        found = table.scan(where=[("k", ">=", burst.PREFIX), ("k", "<", burst.END)])
        pairs = zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)
        rows = {str(key): str(value) for key, value in pairs}
        for problem in burst.judge(bursts, rows, self.options.rows):
            self.find("lost", problem)
