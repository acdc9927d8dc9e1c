"""How do rounds go? Load all the time, a fault or two each round, and now and then a judgement."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from limosa.client import Operator, TableHandle
from tests.chaos import torment
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Happening, Round, begin, plan
from tests.chaos.load import Load
from tests.chaos.small_cluster import SmallCluster, filled
from tests.chaos.torment import Torment

SEASON_ROUNDS = 10
"""After so many rounds everything is judged, and other keys are used."""
POKE_SECONDS = 0.1
"""So long before a fault ends, those ask who know nothing of it."""
CALM_SECONDS = 0.3
"""Before the next round."""
SYNC_SECONDS = 2.0
"""A disk that needs longer for a sync hangs."""
RECOVERY_SECONDS = 15.0
"""So long after the last fault of a round, everything is in sync and writable."""


class Options(Struct, frozen=True):
    rounds: int = 200
    seed: int = 0
    nodes: int = 3
    partitions: int = 8
    lease_seconds: float = 1.0
    contenders: int = 4


class Report(torment.Report):
    rounds: int = 0
    slowest_recovery: float = 0.0
    """Seconds from the last fault of a round until everything was in sync and writable."""

    def as_json(self) -> dict[str, Any]:
        slowest = round(self.slowest_recovery, 2)
        return {"rounds": self.rounds, "slowest_recovery_seconds": slowest, **super().as_json()}


class Chaos(Torment[Report]):
    """Rounds of faults."""

    def __init__(
        self, directory: Path, options: Options, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.options = options
        super().__init__(
            directory, Report(), options.seed, options.partitions, options.contenders, say
        )
        self._dice = Random(f"{options.seed} victims")

    def make_cluster(self) -> Cluster:
        return SmallCluster(
            self.directory,
            self.options.nodes,
            coordinators=2,
            lease_seconds=self.options.lease_seconds,
            arguments=["--sync-seconds", f"{SYNC_SECONDS:g}"],
        )

    def prepare(self, cluster: Cluster, connection: Operator) -> None:
        filled(connection, "ballast", 3)

    def play(self, cluster: Cluster, connection: Operator, table: TableHandle, load: Load) -> None:
        planned = plan(self.options.seed, self.options.rounds)
        for number, one in enumerate(planned, start=1):
            self._round(cluster, table, load, number, one)
            last = number == self.options.rounds
            if self.report.ok and (last or number % SEASON_ROUNDS == 0):
                self.judge(cluster, connection, table, load)
                load.begin_season()
            if not self.report.ok:
                self.say(f"round {number} found something")
                return

    # --- one round

    def _round(
        self, cluster: Cluster, table: TableHandle, load: Load, number: int, planned: Round
    ) -> None:
        started = time.monotonic()
        load.poke()
        happenings = self._begin(cluster, planned)
        begun = time.monotonic()
        for happening in sorted(happenings, key=lambda each: each.fault.seconds):
            time.sleep(max(0.0, begun + happening.fault.seconds - time.monotonic()))
            load.poke()
            time.sleep(POKE_SECONDS)
            for problem in happening.check():
                self.find("ill", f"{happening.fault} ({happening.victim}): {problem}")
            happening.undo()
        undone = time.monotonic()
        restarted = list(cluster.starting)
        cluster.wait_until_ready(restarted)
        starting = f", of which {time.monotonic() - undone:.1f}s to start" if restarted else ""
        seconds = self.find_unwritable(cluster, table, RECOVERY_SECONDS)
        self.report.slowest_recovery = max(self.report.slowest_recovery, seconds)
        for name in cluster.everybody:
            if not cluster.is_running(name):
                self.find("ill", f"{name} ended by itself: {cluster.last_words(name)}")
        self.report.rounds += 1
        self.report.faults.update(each.fault.kind for each in happenings)
        what = ", ".join(f"{each.fault} ({each.victim})" for each in happenings)
        self.say(f"{number:4}  {what}; healed after {time.monotonic() - started:.1f}s{starting}")
        time.sleep(CALM_SECONDS)

    def _begin(self, cluster: Cluster, planned: Round) -> list[Happening]:
        free = cluster.everybody
        happenings = []
        for fault in planned.faults:
            happening = begin(cluster, fault, self._dice, free)
            if happening is not None:
                free = [name for name in free if name != happening.victim]
                happenings.append(happening)
        return happenings
