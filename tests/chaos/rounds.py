"""How does a run go? Load all the time, a fault or two each round, and now and then a judgement."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired
from typing import Any

from msgspec import Struct, field

from limosa.client import Connection, TableHandle
from limosa.errors import LimosaError
from limosa.simulation.checkers.linearizability import Operation
from tests.chaos.cluster import (
    TABLE,
    Cluster,
    bad_lines,
    stray_processes,
    stray_threads,
    wait_until_equal,
)
from tests.chaos.faults import Happening, Round, begin, plan
from tests.chaos.history import History
from tests.chaos.judgement import Finding, judge_season
from tests.chaos.load import Load
from tests.chaos.proxy import STRANGER

OPERATION_SECONDS = 10.0
SLACK_SECONDS = 5.0
"""How much longer than its timeout an operation may take on a busy machine."""
SCAN_SECONDS_MAX = 60.0
HEALTH_SECONDS = 60.0
EQUAL_SECONDS = 10.0
SEASON_ROUNDS = 10
"""After so many rounds everything is judged, and other keys are used."""
STRANGERS_MAX = 0.1
"""Of all lines; some end before it is found out whose they are."""
WARM_OPERATIONS = 200
"""Before the first round."""
POKE_SECONDS = 0.1
"""So long before a fault ends, those ask who know nothing of it."""
CALM_SECONDS = 0.3
"""Before the next round."""


class Options(Struct, frozen=True):
    rounds: int = 200
    seed: int = 0
    nodes: int = 3
    partitions: int = 8
    lease_seconds: float = 1.0
    contenders: int = 4


class Report(Struct):
    """What is known so far."""

    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    acked_rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    longest_seconds: float = 0.0
    judgements: int = 0
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        kinds = Counter(finding.kind for finding in self.findings)
        return {
            "rounds": self.rounds,
            "faults": dict(sorted(self.faults.items())),
            "acked_rows": self.acked_rows,
            "operations": self.outcomes.total(),
            "unknown": self.outcomes["unknown"],
            "failed": self.outcomes["failed"],
            "lost": kinds["lost"],
            "resurrected": kinds["resurrected"],
            "violations": kinds["violation"],
            "replicas_equal": not kinds["replicas"],
            "longest_pause_seconds": round(self.longest_seconds, 2),
            "surprises": kinds["surprise"],
            "hangs": kinds["hang"],
            "ill": kinds["ill"],
            "stray": kinds["stray"],
            "seconds": round(self.seconds, 1),
            "ok": self.ok,
        }


class Chaos:
    """One run over one directory."""

    def __init__(
        self, directory: Path, options: Options, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.directory = directory
        self.options = options
        self.report = Report()
        self._say = say
        self._dice = Random(f"{options.seed} victims")
        self._threads = set(threading.enumerate())
        self._history = History(OPERATION_SECONDS + SLACK_SECONDS, {"scan": SCAN_SECONDS_MAX})
        self._scanned = 0

    def run(self) -> Report:
        """Until its rounds are over, or something was found."""
        started = time.monotonic()
        options = self.options
        cluster = Cluster(self.directory, options.nodes, lease_seconds=options.lease_seconds)
        try:
            with cluster:
                self._run(cluster)
        except (LimosaError, TimeoutExpired) as error:  # somebody did not start, or not stop
            self._find("ill", f"{type(error).__name__}: {error}")
        finally:
            cluster.stop()
        for line in bad_lines(self.directory):
            self._find("surprise", line)
        for process in stray_processes(self.directory):
            self._find("stray", process)
        for thread in stray_threads(self._threads):
            self._find("stray", f"thread {thread}")
        report, history = self.report, self._history
        report.acked_rows, report.outcomes = history.acked_rows, history.outcomes
        report.errors, report.longest_seconds = history.errors, history.longest_seconds
        report.seconds = time.monotonic() - started
        return report

    def _find(self, kind: Any, what: str) -> None:
        self.report.findings.append(Finding(kind, what))

    def _run(self, cluster: Cluster) -> None:
        connection = cluster.connect("judge")
        try:
            columns = {"k": "string", "v": "string"}
            table = connection.create_table(TABLE, columns, "k", partitions=self.options.partitions)
            self._find_ailments(cluster)
            load = Load(
                lambda name: cluster.connect(name, OPERATION_SECONDS),
                TABLE,
                self._history,
                self.options.seed,
                self.options.contenders,
            )
            load.start()
            try:
                self._warm_up()
                self._rounds(cluster, connection, table, load)
            finally:
                for name in load.stop(OPERATION_SECONDS + SLACK_SECONDS):
                    self._find("hang", f"{name} does not stop")
        finally:
            connection.close()

    def _rounds(
        self, cluster: Cluster, connection: Connection, table: TableHandle, load: Load
    ) -> None:
        planned = plan(self.options.seed, self.options.rounds)
        for number, one in enumerate(planned, start=1):
            self._round(cluster, load, number, one)
            last = number == self.options.rounds
            if self.report.ok and (last or number % SEASON_ROUNDS == 0):
                self._judge(cluster, connection, table, load)
                load.begin_season()
            if not self.report.ok:
                self._say(f"round {number} found something")
                return

    def _warm_up(self) -> None:
        """Nothing is shown before everybody is at work."""
        deadline = time.monotonic() + OPERATION_SECONDS
        while self._history.count < WARM_OPERATIONS and time.monotonic() < deadline:
            time.sleep(0.05)

    # --- one round

    def _round(self, cluster: Cluster, load: Load, number: int, planned: Round) -> None:
        started = time.monotonic()
        load.poke()
        happenings = self._begin(cluster, planned)
        begun = time.monotonic()
        for happening in sorted(happenings, key=lambda each: each.fault.seconds):
            time.sleep(max(0.0, begun + happening.fault.seconds - time.monotonic()))
            load.poke()
            time.sleep(POKE_SECONDS)
            happening.undo()
        undone = time.monotonic()
        restarted = list(cluster.starting)
        cluster.wait_until_ready(restarted)
        starting = f", of which {time.monotonic() - undone:.1f}s to start" if restarted else ""
        if planned.heals:
            self._find_ailments(cluster)
        for name in cluster.everybody:
            if not cluster.is_running(name):
                self._find("ill", f"{name} ended by itself: {cluster.last_words(name)}")
        self.report.rounds += 1
        self.report.faults.update(each.fault.kind for each in happenings)
        what = ", ".join(f"{each.fault} ({each.victim})" for each in happenings)
        state = "healed" if planned.heals else "goes on"
        self._say(f"{number:4}  {what}; {state} after {time.monotonic() - started:.1f}s{starting}")
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

    def _find_ailments(self, cluster: Cluster) -> None:
        for ailment in cluster.wait_until_healthy(HEALTH_SECONDS):
            self._find("ill", f"after {HEALTH_SECONDS:g}s {ailment}")

    # --- judgement

    def _judge(
        self, cluster: Cluster, connection: Connection, table: TableHandle, load: Load
    ) -> None:
        started = time.monotonic()
        for name in load.pause(OPERATION_SECONDS + SLACK_SECONDS + SCAN_SECONDS_MAX):
            self._find("hang", f"{name} does not come to an end")
        self._find_ailments(cluster)
        if not self.report.ok:
            return
        values = self._read_all(table, load)
        operations = self._history.take()
        self.report.findings += judge_season(table, load.season, operations, values)
        for key in load.scanner.lost:
            self._find("lost", f"{key} was acknowledged before a scan, which did not see it")
        for key in load.scanner.resurrected:
            self._find("resurrected", f"{key} was deleted before a scan, which saw it")
        for slow in self._history.slow:
            self._find("hang", f"{slow.client}: {slow.what} took {slow.seconds:.1f}s")
        for problem in load.problems:
            self._find("ill", problem)
        for difference in wait_until_equal(cluster, connection, EQUAL_SECONDS):
            self._find("replicas", difference)
        for node in cluster.nodes:
            for surprise in connection.node_status(node)["surprises"]:
                self._find("surprise", f"{node}: {surprise}")
        self.report.judgements += 1
        bulk = len(load.season.acked)
        seconds = time.monotonic() - started
        self._say(f"      judged {len(operations)} operations, {bulk} bulk rows in {seconds:.1f}s")
        self._find_strangers(cluster)

    def _find_strangers(self, cluster: Cluster) -> None:
        """Whoever is not recognised is not cut off, and shows nothing."""
        callers = cluster.network.callers
        if callers[STRANGER] > STRANGERS_MAX * callers.total():
            self._find("ill", f"the network does not know who calls: {dict(callers)}")

    def _read_all(self, table: TableHandle, load: Load) -> dict[str, str | None]:
        """Every key of the season, for the last time; and every partition takes a write."""
        partitions = self.options.partitions
        table.write([{"k": f"p{each:04}", "v": "written"} for each in range(8 * partitions)])
        values: dict[str, str | None] = {}
        for key in [*load.season.keys, load.season.cursor]:
            invoked = time.monotonic()
            row = table.get(key)
            values[key] = None if row is None else row["v"]
            read = Operation(
                client="judge",
                key=key,
                kind="read",
                invoked=invoked,
                returned=time.monotonic(),
                result=values[key],
            )
            self._history.add([read])
        return values
