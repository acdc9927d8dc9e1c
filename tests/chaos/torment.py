"""What have all runs in common? A cluster that is used while something happens, and a judgement."""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from limosa.client import Operator, TableHandle
from limosa.errors import LimosaError
from limosa.simulation.checkers.linearizability import ObservedOperation
from tests.chaos.cluster import TABLE, Cluster, bad_lines, stray_threads, wait_until_equal
from tests.chaos.history import History
from tests.chaos.judgement import Finding, Kind, judge_season
from tests.chaos.load import Load
from tests.chaos.proxy import STRANGER
from tests.chaos.surroundings import marked, stray_processes
from tests.waiting import left_after

OPERATION_SECONDS = 10.0
SLACK_SECONDS = 5.0
"""How much longer than its timeout an operation may take on a busy machine."""
SCAN_SECONDS_MAX = 60.0
HEALTH_SECONDS = 60.0
EQUAL_SECONDS = 10.0
STRANGERS_MAX = 0.1
"""Of all lines; some end before it is found out whose they are."""
WARM_OPERATIONS = 200
"""Before anything happens."""
STRAY_SECONDS = 15.0
"""How long a process may take to see that whoever started it is gone."""
COLUMNS = {"k": "string", "v": "string"}

Say = Callable[[str], None]


class Report(Struct):
    """What is known so far."""

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

    def find(self, kind: Kind, what: str) -> None:
        self.findings.append(Finding(kind, what))

    def as_json(self) -> dict[str, Any]:
        kinds = Counter(finding.kind for finding in self.findings)
        return {
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
            "judgements": self.judgements,
            "seconds": round(self.seconds, 1),
            "ok": self.ok,
        }


R = TypeVar("R", bound=Report)


class Torment(ABC, Generic[R]):
    """One run over one directory."""

    def __init__(
        self,
        directory: Path,
        report: R,
        seed: int,
        partitions: int,
        contenders: int,
        say: Say,
    ) -> None:
        self.directory = directory
        self.report = report
        self.seed = seed
        self.partitions = partitions
        self.contenders = contenders
        self.say = say
        self.history = History(OPERATION_SECONDS + SLACK_SECONDS, {"scan": SCAN_SECONDS_MAX})
        self._threads = set(threading.enumerate())

    # --- what a run is about

    @abstractmethod
    def make_cluster(self) -> Cluster: ...

    @abstractmethod
    def play(self, cluster: Cluster, connection: Operator, table: TableHandle, load: Load) -> None:
        """Let things happen, until all did or something was found."""

    def prepare(self, cluster: Cluster, connection: Operator) -> None:
        """Before anybody uses the table."""

    def judge_more(self, cluster: Cluster, connection: Operator) -> None:
        """What else must be true while nothing happens."""

    def judge_the_end(self) -> None:
        """What else must be true when everybody has stopped."""

    # --- all of it

    def run(self) -> R:
        """Until all has happened, or something was found."""
        started = time.monotonic()
        with marked(self.directory):
            cluster = self.make_cluster()
            try:
                with cluster:
                    self._use(cluster)
            except (LimosaError, TimeoutExpired) as error:  # somebody did not start, or not stop
                self.find("ill", f"{type(error).__name__}: {error}")
            finally:
                cluster.stop()
        for line in bad_lines(self.directory):
            self.find("surprise", line)
        for process in self._wait_for_strays():
            self.find("stray", process)
        for thread in stray_threads(self._threads):
            self.find("stray", f"thread {thread}")
        self.judge_the_end()
        report, history = self.report, self.history
        report.acked_rows, report.outcomes = history.acked_rows, history.outcomes
        report.errors, report.longest_seconds = history.errors, history.longest_seconds
        report.seconds = time.monotonic() - started
        return report

    def _wait_for_strays(self) -> list[str]:
        """A child of one that was killed ends a little later."""
        return left_after(lambda: stray_processes(self.directory), STRAY_SECONDS, 0.2)

    def find(self, kind: Kind, what: str) -> None:
        self.report.find(kind, what)

    def _use(self, cluster: Cluster) -> None:
        connection = cluster.connect("judge")
        try:
            table = connection.create_table(TABLE, COLUMNS, "k", partitions=self.partitions)
            self.prepare(cluster, connection)
            self.find_ailments(cluster)
            load = Load(
                lambda name: cluster.connect(name, OPERATION_SECONDS),
                TABLE,
                self.history,
                self.seed,
                self.contenders,
            )
            load.start()
            try:
                self._warm_up()
                self.play(cluster, connection, table, load)
            finally:
                for name in load.stop(OPERATION_SECONDS + SLACK_SECONDS):
                    self.find("hang", f"{name} does not stop")
        finally:
            connection.close()

    def _warm_up(self) -> None:
        """Nothing is shown before everybody is at work."""
        left_after(lambda: self.history.count < WARM_OPERATIONS, OPERATION_SECONDS, 0.05)

    def find_ailments(self, cluster: Cluster, seconds: float = HEALTH_SECONDS) -> None:
        for ailment in cluster.wait_until_healthy(seconds):
            self.find("ill", f"after {seconds:g}s {ailment}")

    def find_unwritable(self, cluster: Cluster, table: TableHandle, seconds_max: float) -> float:
        """Everything is in sync and takes writes soon; how long that took."""
        ended = time.monotonic()
        self.find_ailments(cluster, seconds_max)
        left = max(1.0, seconds_max - (time.monotonic() - ended))
        for refusal in left_after(lambda: self._refusals(table), left, 0.1):
            self.find("ill", f"a write to every partition fails: {refusal}")
        seconds = time.monotonic() - ended
        if seconds > seconds_max:
            self.find("ill", f"in sync and writable only after {seconds:.1f}s")
        return seconds

    def _refusals(self, table: TableHandle) -> list[str]:
        try:
            table.write(self._row_for_each())
        except LimosaError as error:
            return [str(error)]
        return []

    def _row_for_each(self) -> list[dict[str, str]]:
        """Rows for every partition."""
        return [{"k": f"p{each:04}", "v": "written"} for each in range(8 * self.partitions)]

    # --- judgement

    def judge(self, cluster: Cluster, connection: Operator, table: TableHandle, load: Load) -> None:
        started = time.monotonic()
        for name in load.pause(OPERATION_SECONDS + SLACK_SECONDS + SCAN_SECONDS_MAX):
            self.find("hang", f"{name} does not come to an end")
        self.find_ailments(cluster)
        if not self.report.ok:
            return
        values = self._read_all(table, load)
        operations = self.history.take()
        self.report.findings += judge_season(table, load.season, operations, values)
        for key in load.scanner.lost:
            self.find("lost", f"{key} was acknowledged before a scan, which did not see it")
        for key in load.scanner.resurrected:
            self.find("resurrected", f"{key} was deleted before a scan, which saw it")
        for slow in self.history.slow:
            self.find("hang", f"{slow.client}: {slow.what} took {slow.seconds:.1f}s")
        for problem in load.problems:
            self.find("ill", problem)
        for difference in wait_until_equal(cluster, connection, EQUAL_SECONDS):
            self.find("replicas", difference)
        for node in cluster.nodes:
            for surprise in connection.node_status(node)["surprises"]:
                self.find("surprise", f"{node}: {surprise}")
        self.judge_more(cluster, connection)
        self.report.judgements += 1
        bulk = len(load.season.acked)
        seconds = time.monotonic() - started
        self.say(f"      judged {len(operations)} operations, {bulk} bulk rows in {seconds:.1f}s")
        self._find_strangers(cluster)

    def _find_strangers(self, cluster: Cluster) -> None:
        """Whoever is not recognised is not cut off, and shows nothing."""
        callers = cluster.network.callers
        if callers[STRANGER] > STRANGERS_MAX * callers.total():
            self.find("ill", f"the network does not know who calls: {dict(callers)}")

    def _read_all(self, table: TableHandle, load: Load) -> dict[str, str | None]:
        """Every key of the season, for the last time; and every partition takes a write."""
        table.write(self._row_for_each())
        values: dict[str, str | None] = {}
        for key in [*load.season.keys, load.season.cursor]:
            invoked = time.monotonic()
            row = table.get(key)
            values[key] = None if row is None else row["v"]
            read = ObservedOperation(
                client="judge",
                key=key,
                kind="read",
                invoked=invoked,
                returned=time.monotonic(),
                result=values[key],
            )
            self.history.add([read])
        return values
