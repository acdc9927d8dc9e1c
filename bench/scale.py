"""What do more partitions cost? 10 to 10,000 of them beside 16, on four nodes with three replicas.

    create      a table is created and dropped again and again: revisions that one creation takes
    idle        CPU and memory while nobody asks for anything; a look at the whole cluster
    write       5M rows by `limosa write`; no replica may leave, no coordinator may lose its office
                (the table has some rows already, so that connections and caches are warm)
    moves       CPU that one move costs (rows are copied by threads: Spark's start is no part of it)
    kill        one node is killed (-9): until every partition is owned again (the aim), and takes
                writes (new owners of idle partitions first notice that the killed node is silent)
    overload    30 s of 32 writers: until every replica is in sync and every partition takes writes

Each count has a cluster of its own. A part that fails is reported, and the next one begins when the
cluster is well again. The last line is JSON.

    python bench/scale.py [--quick] [--counts 16,1000] [--parts write,kill]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from limosa.cli.generate import SCHEMA
from limosa.client.cluster_view import look
from limosa.client.operator import Operator
from limosa.client.table import TableHandle
from limosa.core.client import Finished
from limosa.core.model.intent import Placement
from limosa.core.model.requests import MovePartition
from limosa.core.participant.settings import ParticipantSettings
from limosa.errors import LimosaError
from limosa.tabular.rows import Batch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import NAME, BenchCluster, cpu_seconds, resident_megabytes
from bench._partitions import keys_by_partition, partitions_of, wait_until_healthy
from bench._report import Report, end_cleanly_when_told

LEASE_SECONDS = ParticipantSettings().lease_seconds

# fmt: off
AIMS: dict[str, tuple[str, float]] = {
    "create_10000_revisions_over_100":          ("<=", 1.0),
    "idle_cpu_10000_over_16":                   ("<=", 3.0),
    "write_1000_over_16":                       (">=", 0.25),
    "write_4000_over_16":                       (">=", 0.15),
    "write_10000_over_16":                      (">=", 0.08),
    "changes_of_the_topology_during_writes":    ("<=", 0.0),
    "offices_lost":                             ("<=", 0.0),
    "kill_4000_over_lease_and_1s":              ("<=", 1.0),
    "kill_10000_over_lease_and_3s":             ("<=", 1.0),
    "well_after_overload_1000_over_5s":         ("<=", 1.0),
    "well_after_overload_10000_over_10s":       ("<=", 1.0),
    "move_10000_over_16":                       ("<=", 1.5),
}
# fmt: on

NODES = 4
COUNTS = (16, 10, 100, 1_000, 4_000, 10_000)
ROWS = 5_000_000
WARM_ROWS = 200_000
WRITE_SECONDS_MAX = 150.0
SETTLE_SECONDS_MAX = 10.0
CREATIONS = 20
REST_SECONDS = 5.0
MOVES = 12
OVERLOAD_SECONDS = 30.0
WRITERS = 32
OVERLOAD_PROCESSES = 2
SAMPLE = 64
WELL_SECONDS_MAX = 60.0
KILL_LIMITS = {4_000: 1.0, 10_000: 3.0}
OVERLOAD_LIMITS = {1_000: 5.0, 10_000: 10.0}
KEY = "id"


class Failed(Exception):
    """A part could not be measured, for this reason."""


class Scene:
    """One cluster with one table."""

    def __init__(self, stack: ExitStack, root: Path, count: int, files: dict[str, Path]) -> None:
        self.count = count
        self.files = files
        self.cluster = BenchCluster(root, NODES)
        self.cluster.of_coordinators[:] = ["--pipeline", "threads", "--bandwidth", "0"]
        stack.enter_context(self.cluster)
        self.connection: Operator = stack.enter_context(self.cluster.connect(120.0))
        self.table = self.create("items")

    def create(self, name: str) -> TableHandle:
        table = self.connection.create_table(name, SCHEMA, KEY, partitions=self.count, replicas=3)
        wait_until_healthy(self.connection, table, WELL_SECONDS_MAX)
        return table

    def write(self, rows: str) -> float:
        """Rows a second."""
        addresses = ",".join(self.cluster.addresses.values())
        command = [
            sys.executable,
            "-m",
            "limosa",
            "write",
            "items",
            str(self.files[rows]),
            "--json",
        ]
        command += ["--cluster", addresses, "--cluster-name", NAME]
        command += ["--secret", str(self.cluster.secret)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_SECONDS_MAX)
        if ran.returncode:
            raise Failed(f"`limosa write` failed: {ran.stderr.strip()[-300:]}")
        return float(json.loads(ran.stdout)["rows_per_second"])

    def cpu(self) -> float:
        names = [*self.cluster.coordinators, *self.cluster.nodes]
        return sum(cpu_seconds(self.cluster.processes[name].pid) for name in names)

    def generation(self) -> int:
        return self.connection.refresh().generation

    def offices_lost(self) -> int:
        """How often the coordinator had to take its office again."""
        log = (self.cluster.directory / "logs" / "coordinator.log").read_text()
        return log.count("became the active coordinator") - 1

    def wait_until_writable(self) -> float:
        """One row into some partitions, the first and the last one among them."""
        start = time.monotonic()
        keys = keys_by_partition(partitions_of(self.connection, self.table))
        places = np.linspace(0, len(keys) - 1, min(SAMPLE, len(keys))).astype(int)
        while True:
            asked = [self.table.submit(self._row(keys[place])) for place in places]
            ended: list[Finished] = [future.result() for future in asked]
            if all(each.outcome == "done" for each in ended):
                return time.monotonic() - start
            if time.monotonic() - start > WELL_SECONDS_MAX:
                raise Failed(f"no writes after {WELL_SECONDS_MAX:.0f} s: {ended[0].value}")

    def _row(self, key: int) -> Batch:
        row = {"id": key, "name": "x", "price": 1.0, "at": None}
        batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
        return Batch.of(self.table.definition, batch)


# ---------------------------------------------------------------- the parts


def create(report: Report, scene: Scene, quick: bool, found: dict[str, float]) -> None:
    worst, slowest = 0, 0.0
    for _ in range(2 if quick or scene.count < 10_000 else CREATIONS):
        before, start = scene.generation(), time.monotonic()
        scene.create("again")
        slowest = max(slowest, time.monotonic() - start)
        worst = max(worst, scene.generation() - before)
        scene.connection.drop_table("again")
    report.note(f"create_{scene.count}_revisions", worst)
    report.note(f"create_{scene.count}_seconds", slowest)
    if scene.count == 10_000:
        report.ratio("create_10000_revisions_over_100", worst / 100)


def idle(report: Report, scene: Scene, quick: bool, found: dict[str, float]) -> None:
    scene.cluster.settle(SETTLE_SECONDS_MAX)
    names = (scene.cluster.coordinators[0], scene.cluster.nodes[0])
    pids = [scene.cluster.processes[name].pid for name in names]
    before, each_before = scene.cpu(), [cpu_seconds(pid) for pid in pids]
    time.sleep(REST_SECONDS)
    spent = (scene.cpu() - before) / REST_SECONDS
    for name, pid, cpu in zip(("coordinator", "node"), pids, each_before, strict=True):
        report.note(f"idle_{name}_{scene.count}_cpu", (cpu_seconds(pid) - cpu) / REST_SECONDS)
        report.note(f"idle_{name}_{scene.count}_megabytes", resident_megabytes(pid))
    report.note(f"idle_{scene.count}_cpu", spent)
    replicas = scene.count * 3 / NODES
    megabytes = resident_megabytes(pids[1])
    if scene.count == 16:
        found["megabytes"] = megabytes
    elif "megabytes" in found:
        kilobytes = (megabytes - found["megabytes"]) * 1024 / replicas
        report.note(f"idle_{scene.count}_kilobytes_a_replica", kilobytes)
    start = time.monotonic()
    look(scene.connection)
    report.note(f"look_{scene.count}_seconds", time.monotonic() - start)
    _compare(report, "idle_cpu", scene.count, spent, found)


def write(report: Report, scene: Scene, quick: bool, found: dict[str, float]) -> None:
    scene.write("warm")
    scene.cluster.settle(SETTLE_SECONDS_MAX)
    generation = scene.generation()
    rate = scene.write("all")
    report.note(f"write_{scene.count}_rows_per_second", rate)
    _compare(report, "write", scene.count, rate, found)
    changes = scene.generation() - generation
    found["changes"] = found.get("changes", 0.0) + changes
    report.note(f"write_{scene.count}_changes_of_the_topology", changes)


def moves(report: Report, scene: Scene, quick: bool, found: dict[str, float]) -> None:
    """Some partitions move a replica to the node that has none of theirs, one after the other."""
    scene.cluster.settle(SETTLE_SECONDS_MAX)
    start = time.monotonic()
    at_rest = scene.cpu()
    time.sleep(2.0)
    rest = (scene.cpu() - at_rest) / (time.monotonic() - start)
    start, before = time.monotonic(), scene.cpu()
    for record in partitions_of(scene.connection, scene.table)[:MOVES]:
        here = [replica.node for replica in record.replicas]
        target = next(node for node in scene.cluster.nodes if node not in here)
        scene.connection.submit(MovePartition(record.id, source=here[-1], target=Placement(target)))
        _wait_for_move(scene, record.id, target)
    seconds = time.monotonic() - start
    done = min(MOVES, scene.count)
    cost = (scene.cpu() - before - rest * seconds) / done
    report.note(f"move_{scene.count}_cpu_seconds", cost)
    report.note(f"move_{scene.count}_seconds", seconds / done)
    _compare(report, "move", scene.count, max(cost, 1e-6), found)


def _wait_for_move(scene: Scene, partition: str, target: str) -> None:
    """Asks for this one partition only: what an answer costs is a part of the figure."""
    deadline = time.monotonic() + WELL_SECONDS_MAX
    while time.monotonic() < deadline:
        record = scene.connection.state(partition).topology.partitions[partition]
        if record.transition is None and target in [each.node for each in record.replicas]:
            return
        time.sleep(0.02)
    raise Failed(f"{partition} still moves")


def kill(report: Report, scene: Scene, quick: bool, found: dict[str, float]) -> None:
    scene.cluster.settle(SETTLE_SECONDS_MAX)
    victim = scene.cluster.nodes[-1]
    start = time.monotonic()
    scene.cluster.kill(victim)
    try:
        _measure_failover(report, scene, victim, start)
    finally:
        scene.cluster.start_one(victim)
    healthy = wait_until_healthy(scene.connection, scene.table, WELL_SECONDS_MAX)
    report.note(f"kill_{scene.count}_healthy_again_seconds", healthy)


def _measure_failover(report: Report, scene: Scene, victim: str, start: float) -> None:
    while True:
        records = partitions_of(scene.connection, scene.table)
        away = sum(each.owner is None or each.owner.replica.node == victim for each in records)
        if not away:
            break
        if time.monotonic() - start > WELL_SECONDS_MAX:
            raise Failed(f"{away} partitions have no owner")
        time.sleep(0.05)
    owned = time.monotonic() - start
    scene.wait_until_writable()
    writable = time.monotonic() - start
    report.note(f"kill_{scene.count}_owned_seconds", owned)
    report.note(f"kill_{scene.count}_writable_seconds", writable)
    if scene.count in KILL_LIMITS:
        more = KILL_LIMITS[scene.count]
        name = f"kill_{scene.count}_over_lease_and_{more:.0f}s"
        report.ratio(name, owned / (LEASE_SECONDS + more))


def overload(report: Report, scene: Scene, quick: bool, found: dict[str, float]) -> None:
    script = str(Path(__file__).with_name("_overload.py"))
    seconds = OVERLOAD_SECONDS / 3 if quick else OVERLOAD_SECONDS
    addresses = json.dumps(list(scene.cluster.addresses.values()))
    command = [sys.executable, script, addresses, str(scene.cluster.secret), scene.table.name]
    command += [str(seconds), str(WRITERS // OVERLOAD_PROCESSES)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for _ in range(OVERLOAD_PROCESSES)
    ]
    try:
        written = [int(process.communicate(timeout=seconds + 60.0)[0]) for process in processes]
    except ValueError:
        raise Failed("the writers failed") from None
    finally:
        for process in processes:
            process.kill()
    report.note(f"overload_{scene.count}_rows_per_second", sum(written) / seconds)
    start = time.monotonic()
    wait_until_healthy(scene.connection, scene.table, WELL_SECONDS_MAX)
    scene.wait_until_writable()
    well = time.monotonic() - start
    report.note(f"well_after_overload_{scene.count}_seconds", well)
    if scene.count in OVERLOAD_LIMITS:
        limit = OVERLOAD_LIMITS[scene.count]
        report.ratio(f"well_after_overload_{scene.count}_over_{limit:.0f}s", well / limit)


def _compare(report: Report, what: str, count: int, value: float, found: dict[str, float]) -> None:
    """Beside the same figure of 16 partitions."""
    if count == 16:
        found[what] = value
    elif what in found:
        name = f"{what}_{count}_over_16"
        (report.ratio if name in AIMS else report.note)(name, value / found[what])


FAILURES = (Failed, TimeoutError, subprocess.TimeoutExpired, LimosaError)
PARTS: dict[str, Callable[[Report, Scene, bool, dict[str, float]], None]] = {
    "create": create,
    "idle": idle,
    "write": write,
    "moves": moves,
    "kill": kill,
    "overload": overload,
}


# ---------------------------------------------------------------- running it


def measure(report: Report, root: Path, files: dict[str, Path], given: argparse.Namespace) -> None:
    found: dict[str, float] = {}
    lost = 0
    for count in given.counts:
        print(f"{count} partitions", flush=True)
        began = time.monotonic()
        with ExitStack() as stack:
            try:
                lost += measure_parts(
                    report, Scene(stack, root / str(count), count, files), given, found
                )
            except FAILURES as error:
                report.note(f"given_up_{count}", 1.0)
                lost += 1
                print(f"  {count} partitions: {error}", flush=True)
        report.note(f"all_of_{count}_seconds", time.monotonic() - began)
    if "write" in given.parts:
        report.ratio("changes_of_the_topology_during_writes", found.get("changes", 0.0))
    report.ratio("offices_lost", lost)


def measure_parts(
    report: Report, scene: Scene, given: argparse.Namespace, found: dict[str, float]
) -> int:
    """How often the coordinator lost its office; raises if the cluster does not recover."""
    for part in given.parts:
        if not measure_part(report, scene, part, given.quick, found):
            wait_until_healthy(scene.connection, scene.table, WELL_SECONDS_MAX)
    return scene.offices_lost()


def measure_part(
    report: Report, scene: Scene, part: str, quick: bool, found: dict[str, float]
) -> bool:
    """False: the part failed."""
    try:
        PARTS[part](report, scene, quick, found)
    except FAILURES as error:
        report.note(f"failed_{part}_{scene.count}", 1.0)
        print(f"  {part}: {error}", flush=True)
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows, fewer rounds")
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="partition counts")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts to measure")
    given = parser.parse_args()
    given.counts = [int(each) for each in given.counts.split(",")]
    given.parts = [each for each in given.parts.split(",") if each in PARTS]
    end_cleanly_when_told()
    report = Report("scale", AIMS)
    with tempfile.TemporaryDirectory(prefix="limosa-bench-") as root:
        counts = {"warm": WARM_ROWS, "all": ROWS // 5 if given.quick else ROWS}
        files = {name: Path(root) / f"{name}.parquet" for name in counts}
        for name, count in counts.items():
            command = [sys.executable, "-m", "limosa", "generate", str(count), str(files[name])]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        measure(report, Path(root), files, given)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
