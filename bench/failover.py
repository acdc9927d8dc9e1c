"""How long can't a partition be written to when its owner dies? Counted in leases.

Three nodes, three replicas, tables of 16 and of 1,000 partitions. A client always has one one-row
write under way to each of some partitions of the node that owns most; that node is killed with -9.
A partition is back when a write that was sent after the kill is acknowledged. `first` is the first
partition that is back, `all` the last; the worst kill counts. After each kill the node is started
again, and the next one waits until every replica is in sync. The last line is JSON.

    python bench/failover.py [--quick]
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
from msgspec import Struct

from limosa.client.connection import Connection
from limosa.client.table import TableHandle
from limosa.core.client import Finished
from limosa.core.participant.settings import ParticipantSettings
from limosa.errors import LimosaError
from limosa.tabular.rows import Batch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import BenchCluster, cpu_seconds, resident_megabytes
from bench._partitions import keys_by_partition, partitions_of, wait_until_healthy
from bench._report import Report, end_cleanly_when_told

# fmt: off
AIMS: dict[str, tuple[str, float]] = {
    "first_over_lease_16":    ("<=", 1.5),
    "all_over_lease_16":      ("<=", 1.5),
    "first_over_lease_1000":  ("<=", 1.5),
    "all_over_lease_1000":    ("<=", 1.5),
}
# fmt: on

KILLS = {16: 3, 1_000: 2}
SAMPLE_MAX = 64
LEASE_SECONDS = ParticipantSettings().lease_seconds
PAUSE_SECONDS = 0.01
BACK_SECONDS_MAX = 30.0
REST_SECONDS = 3.0
COLUMNS: dict[str, pa.DataType] = {"key": pa.int64(), "text": pa.string()}
SCHEMA = pa.schema(COLUMNS)


class Kill(Struct, frozen=True):
    """What one kill did, in seconds."""

    first: float
    all: float
    healthy: float
    """From the node's start to the moment at which all of its replicas are in sync again."""
    owned: int
    sampled: int


# ---------------------------------------------------------------- the writer


class Writer:
    """One write under way to each of some partitions, all the time."""

    def __init__(self, table: TableHandle, keys: Sequence[int]) -> None:
        self._table = table
        self._keys = keys
        self._idle = set(range(len(keys)))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acked: list[list[tuple[float, float]]] = [[] for _ in keys]
        """When each partition's writes were sent and acknowledged."""
        self.failed: Counter[str] = Counter()

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_SECONDS):
            for place in list(self._idle):
                self._idle.discard(place)
                self._write(place)

    def _write(self, place: int) -> None:
        sent = time.monotonic()
        row = pa.RecordBatch.from_pylist([{"key": self._keys[place], "text": "x"}], schema=SCHEMA)

        def done(future: "Future[Finished]") -> None:
            if future.exception() is not None:
                return  # the connection was closed
            finished = future.result()
            if finished.outcome == "done":
                self.acked[place].append((sent, time.monotonic()))
            else:
                self.failed[str(finished.value)] += 1
            self._idle.add(place)

        self._table.submit(Batch.of(self._table.definition, row)).add_done_callback(done)

    def back(self, since: float) -> list[float]:
        """When each partition was back; shorter than the sample while some are not."""
        found = ([end for sent, end in each if sent >= since] for each in self.acked)
        return [ends[0] for ends in found if ends]

    def wait_until_back(self, since: float) -> list[float]:
        deadline = time.monotonic() + BACK_SECONDS_MAX
        while len(back := self.back(since)) < len(self._keys):
            if time.monotonic() > deadline:
                away = len(self._keys) - len(back)
                raise TimeoutError(f"{away} partitions are not back; {dict(self.failed)}")
            time.sleep(0.005)
        return back

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(5.0)


# ---------------------------------------------------------------- one kill


def kill_once(cluster: BenchCluster, connection: Connection, table: TableHandle) -> Kill:
    partitions = partitions_of(connection, table)
    owners = Counter(each.owner.replica.node for each in partitions if each.owner is not None)
    (victim, owned), *_ = sorted(owners.items(), key=lambda item: (-item[1], item[0]))
    keys = [
        key
        for key, each in zip(keys_by_partition(partitions), partitions, strict=True)
        if each.owner is not None and each.owner.replica.node == victim
    ]
    places = np.linspace(0, len(keys) - 1, min(SAMPLE_MAX, len(keys))).astype(int)
    with Writer(table, [keys[place] for place in places]) as writer:
        writer.wait_until_back(time.monotonic())
        time.sleep(1.0)
        killed = time.monotonic()
        cluster.kill(victim)
        back = writer.wait_until_back(killed)
    started = time.monotonic()
    cluster.start_one(victim)
    wait_until_healthy(connection, table)
    healthy = time.monotonic() - started
    return Kill(min(back) - killed, max(back) - killed, healthy, owned, len(places))


def at_rest(report: Report, cluster: BenchCluster, count: int) -> None:
    """What everybody spends while nobody asks for anything."""
    names = [*cluster.coordinators, *cluster.nodes]
    pids = {name: cluster.processes[name].pid for name in names}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(REST_SECONDS)
    spent = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    for name in (cluster.coordinators[0], cluster.nodes[0]):
        report.note(f"{name}_{count}_cpu_at_rest", spent[name] / REST_SECONDS)
        report.note(f"{name}_{count}_resident_megabytes", resident_megabytes(pids[name]))


def measure(report: Report, root: Path, count: int, kills: int) -> None:
    with BenchCluster(root / str(count), 3) as cluster, cluster.connect() as connection:
        start = time.monotonic()
        table = connection.create_table("rows", SCHEMA, "key", partitions=count, replicas=3)
        report.note(f"create_{count}_seconds", time.monotonic() - start)
        wait_until_healthy(connection, table)
        at_rest(report, cluster, count)
        done = []
        for number in range(kills):
            done.append(kill_once(cluster, connection, table))
            print(f"  kill {number + 1} of {count}: {done[-1]}", flush=True)
        report.ratio(f"first_over_lease_{count}", max(each.first for each in done) / LEASE_SECONDS)
        report.ratio(f"all_over_lease_{count}", max(each.all for each in done) / LEASE_SECONDS)
        report.note(f"healthy_{count}_seconds", max(each.healthy for each in done))
        report.note(f"owned_{count}", min(each.owned for each in done))
        report.note(f"sampled_{count}", min(each.sampled for each in done))


# ---------------------------------------------------------------- running it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one kill of each")
    given = parser.parse_args()
    end_cleanly_when_told()
    report = Report("failover", AIMS)
    report.note("lease_seconds", LEASE_SECONDS)
    with tempfile.TemporaryDirectory(prefix="limosa-bench-") as root:
        for count, kills in KILLS.items():
            print(f"{count} partitions", flush=True)
            try:
                measure(report, Path(root), count, 1 if given.quick else kills)
            except (TimeoutError, LimosaError) as error:
                report.miss(f"all_over_lease_{count}", str(error))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
