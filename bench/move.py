"""What does a live move cost, and those who write meanwhile?

One partition of 10 million rows of 120 bytes goes from node to node. The baseline is the copy
alone: the same nodes, the target storing durably, a plain loop, no Spark, nobody writing.

    (a) a writer at a tenth of its maximum      the whole move, verified and handed over
    (b) a writer at full speed                  what is left to it, with the default bandwidth limit
    (c) 5 warm moves                            the longest write, beside equal windows without one
    (d) as many keys as others move             beside Valkey, Redis and PostgreSQL, no limit either
    (e) 64 partitions of 1,000 rows             what Spark costs each, alone and together

Contenders are processes of their own on one machine. The last line is JSON.

    python bench/move.py [--quick] [--rows 10000000]
"""

import argparse
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from limosa.client.operator import Operator
from limosa.client.table import TableHandle
from limosa.core.client import Finished
from limosa.core.model.intent import Placement
from limosa.core.model.requests import MovePartition
from limosa.tabular.rows import Batch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import BenchCluster
from bench._move_peers import MOVERS, moved_by
from bench._move_writer import Moved, measure, value_of
from bench._report import Report, end_cleanly_when_told
from bench._rows import SCHEMA, batch_of

# fmt: off
AIMS: dict[str, tuple[str, float]] = {
    "move_over_baseline":               (">=", 0.6),
    "foreground_during_over_before":    (">=", 0.6),
    "stall_with_move_over_without":     ("<=", 2.0),
    "keys_per_second_over_valkey":      (">=", 5.0),
    "stall_over_valkey":                ("<=", 1.0),
    "keys_per_second_over_redis":       (">=", 5.0),
    "stall_over_redis":                 ("<=", 1.0),
    "keys_per_second_over_postgres":    (">=", 5.0),
    "stall_over_postgres":              ("<=", 1.0),
    "together_over_alone":              ("<=", 0.25),
}
# fmt: on

BATCH_ROWS = 1_000
LOAD_ROWS = 20_000
WINDOW = 64
PEER_KEYS = 500_000
SMALL_PARTITIONS, SMALL_ROWS = 64, 1_000
WARM_MOVES = 5
POLL_SECONDS = 0.01
MOVE_SECONDS_MAX = 600.0


# ---------------------------------------------------------------- rows


class Rows:
    def __init__(self) -> None:
        self._dice = np.random.default_rng(1)

    def new(self, first: int, count: int) -> pa.RecordBatch:
        return batch_of(self._dice, np.arange(first, first + count))

    def updates(self, of: int) -> pa.RecordBatch:
        """Of rows that are there, no key twice."""
        step = of // BATCH_ROWS
        return batch_of(
            self._dice, self._dice.integers(0, step, BATCH_ROWS) + np.arange(BATCH_ROWS) * step
        )


# ---------------------------------------------------------------- writers


class BatchWriter:
    """A thread that writes batches of updates, paced or as fast as it goes."""

    def __init__(self, table: TableHandle, rows: int, per_second: float = 0.0) -> None:
        self._table = table
        dice = Rows()
        self._batches = [dice.updates(rows) for _ in range(64)]
        self._per_second = per_second / BATCH_ROWS
        self._stopping = threading.Event()
        self.acknowledged: list[tuple[float, float]] = []
        """When, and how long each took."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "BatchWriter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        under_way: deque[tuple[float, Future[Finished]]] = deque()
        start, sent = perf_counter(), 0
        while not self._stopping.is_set():
            if self._per_second:
                ahead = sent / self._per_second - (perf_counter() - start)
                if ahead > 0:
                    self._take(under_way, 0)
                    time.sleep(ahead)
            self._take(under_way, WINDOW - 1)
            batch = Batch.of(self._table.definition, self._batches[sent % len(self._batches)])
            under_way.append((perf_counter(), self._submit(batch)))
            sent += 1
        self._take(under_way, 0)

    def _submit(self, batch: Batch) -> "Future[Finished]":
        begun = perf_counter()
        future = self._table.submit(batch)
        future.add_done_callback(
            lambda _: self.acknowledged.append((perf_counter(), perf_counter() - begun))
        )
        return future

    def _take(self, under_way: "deque[tuple[float, Future[Finished]]]", left: int) -> None:
        while len(under_way) > left:
            _, future = under_way.popleft()
            finished = future.result()
            assert finished.outcome == "done", finished

    def rate(self, start: float, end: float) -> float:
        return sum(start <= at < end for at, _ in self.acknowledged) * BATCH_ROWS / (end - start)

    def longest(self, start: float, end: float) -> float:
        """The longest that a write took, of those that ended or ran in this time."""
        return max(
            (took for at, took in self.acknowledged if at > start and at - took < end), default=0.0
        )


# ---------------------------------------------------------------- a cluster that moves


class Moving:
    """Two nodes, and the ways to carry rows between them."""

    def __init__(self, cluster: BenchCluster, connection: Operator) -> None:
        self.cluster = cluster
        self.connection = connection

    def carry_by(self, *options: str) -> None:
        """Restart the coordinator with another pipeline."""
        self.cluster.of_coordinators[:] = options
        for name in self.cluster.coordinators:
            self.cluster.terminate(name)
            self.cluster.start_one(name)

    def partitions(self, table: TableHandle) -> list[str]:
        zone = self.connection.topology.tables[table.name].zone
        return list(self.connection.topology.layouts[zone].partitions)

    def move(self, partitions: Sequence[str]) -> tuple[float, float]:
        """Each to the other node; when it began, and when the last was done."""
        nodes = self.cluster.nodes
        start = perf_counter()
        places = {}
        askers = []
        for name in partitions:
            (replica,) = self.connection.topology.partitions[name].replicas
            places[name] = nodes[1 - nodes.index(replica.node)]
            way = (name, replica.node, places[name])
            askers.append(threading.Thread(target=self._ask, args=way))
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        deadline = start + MOVE_SECONDS_MAX
        while not all(self._is_at(name, place) for name, place in places.items()):
            if perf_counter() > deadline:
                raise TimeoutError(f"a move took more than {MOVE_SECONDS_MAX:.0f} s")
            time.sleep(POLL_SECONDS)
            self.connection.refresh()
        return start, perf_counter()

    def _ask(self, partition: str, source: str, target: str) -> None:
        self.connection.submit(MovePartition(partition, source=source, target=Placement(target)))

    def _is_at(self, partition: str, node: str) -> bool:
        record = self.connection.topology.partitions[partition]
        return record.transition is None and [r.node for r in record.replicas] == [node]

    def copied_in(self) -> float:
        """Seconds of the last copy, without all that comes before and after."""
        log = (self.cluster.directory / "logs" / "coordinator.log").read_text()
        found: list[str] = re.findall(r"copies ended .*?seconds=([\d.]+)", log)
        return float(found[-1])


def fill(table: TableHandle, rows: int, each: int) -> None:
    dice = Rows()
    under_way: deque[Future[Finished]] = deque()
    for first in range(0, rows, each):
        if len(under_way) == 8:
            assert under_way.popleft().result().outcome == "done"
        batch = dice.new(first, min(each, rows - first))
        under_way.append(table.submit(Batch.of(table.definition, batch)))
    for future in under_way:
        assert future.result().outcome == "done"


# ---------------------------------------------------------------- the parts


def large(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    """(a), (b) and (c)."""
    table = moving.connection.create_table("large", SCHEMA, "key", partitions=1, replicas=1)
    fill(table, rows, LOAD_ROWS)
    moving.cluster.settle(30.0)
    (partition,) = moving.partitions(table)

    seconds = []
    for _ in range(1 if quick else 2):
        moving.move([partition])
        seconds.append(moving.copied_in())
        moving.cluster.settle(30.0)
    baseline = rows / min(seconds)
    report.note("baseline_rows_per_second", baseline)

    with BatchWriter(table, rows) as writer:
        time.sleep(1.0)
        start = perf_counter()
        time.sleep(2.0 if quick else 5.0)
        maximum = writer.rate(start, perf_counter())
    report.note("writer_maximum_rows_per_second", maximum)
    moving.cluster.settle(30.0)

    moving.carry_by("--pipeline", "spark", "--bandwidth", "0")
    warm_up(moving)
    with BatchWriter(table, rows, maximum / 10) as writer:
        time.sleep(1.0)
        rates = []
        for _ in range(1 if quick else 2):
            start, end = moving.move([partition])
            rates.append(rows / (end - start))
            report.note("copy_alone_over_baseline", rows / moving.copied_in() / baseline)
            time.sleep(1.0)
    report.note("move_rows_per_second", max(rates))
    report.ratio("move_over_baseline", max(rates) / baseline)
    moving.cluster.settle(30.0)

    moving.carry_by("--pipeline", "spark")
    warm_up(moving)
    with BatchWriter(table, rows) as writer:
        time.sleep(2.0)
        start = perf_counter()
        time.sleep(5.0 if quick else 10.0)
        before = writer.rate(start, perf_counter())
        start, end = moving.move([partition])
        during = writer.rate(start, end)
    report.note("foreground_before_rows_per_second", before)
    report.note("two_replicas_over_one", two_replicas(moving, rows // 10, quick) / before)
    report.note("foreground_move_seconds", end - start)
    report.ratio("foreground_during_over_before", during / before)
    moving.cluster.settle(30.0)

    with_move, without = [], []
    with BatchWriter(table, rows, maximum / 10) as writer:
        time.sleep(2.0)
        for _ in range(2 if quick else WARM_MOVES):
            start, end = moving.move([partition])
            with_move.append(writer.longest(start, end))
            moving.cluster.settle(3.0)
            quiet = perf_counter()
            time.sleep(end - start)
            without.append(writer.longest(quiet, perf_counter()))
    report.note("longest_write_with_move_ms", statistics.median(with_move) * 1e3)
    report.note("longest_write_without_ms", statistics.median(without) * 1e3)
    report.ratio(
        "stall_with_move_over_without", statistics.median(with_move) / statistics.median(without)
    )
    moving.connection.drop_table("large")


def two_replicas(moving: Moving, rows: int, quick: bool) -> float:
    """What a writer gets whose rows always go to both nodes: during a move it can't get more."""
    table = moving.connection.create_table("twice", SCHEMA, "key", partitions=1, replicas=2)
    fill(table, rows, LOAD_ROWS)
    moving.cluster.settle(30.0)
    with BatchWriter(table, rows) as writer:
        time.sleep(2.0)
        start = perf_counter()
        time.sleep(5.0 if quick else 10.0)
        rate = writer.rate(start, perf_counter())
    moving.connection.drop_table("twice")
    return rate


def warm_up(moving: Moving) -> None:
    """A move of next to nothing starts Spark."""
    table = moving.connection.create_table("warm", SCHEMA, "key", partitions=1, replicas=1)
    fill(table, 1_000, 1_000)
    moving.move(moving.partitions(table))
    moving.connection.drop_table("warm")


def small(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    """(e)"""
    table = moving.connection.create_table(
        "small", SCHEMA, "key", partitions=SMALL_PARTITIONS, replicas=1
    )
    fill(table, SMALL_PARTITIONS * SMALL_ROWS, LOAD_ROWS)
    names = moving.partitions(table)
    alone = []
    for name in names[:5]:
        start, end = moving.move([name])
        alone.append(end - start)
    together = []
    for _ in range(2 if quick else 4):
        start, end = moving.move(names)
        together.append((end - start) / len(names))
    report.note("move_alone_ms", statistics.median(alone) * 1e3)
    report.note("move_together_ms", statistics.median(together) * 1e3)
    report.ratio("together_over_alone", statistics.median(together) / statistics.median(alone))
    moving.connection.drop_table("small")


class OurPair:
    """Our nodes, as the peers are measured."""

    name, version, async_durability, expected_seconds = "limosa", "", False, 3.0

    def __init__(self, moving: Moving, keys: int) -> None:
        self._moving = moving
        columns: dict[str, str | pa.DataType] = {"key": "int64", "value": "string"}
        connection = moving.connection
        self._table = connection.create_table("pair", columns, "key", partitions=1, replicas=1)
        rows = {"key": list(range(keys)), "value": [value_of(0)] * keys}
        self._table.write(pa.table(rows))

    def write(self, key: int, number: int) -> None:
        self._table.write([{"key": key, "value": value_of(number)}])

    def move(self) -> None:
        self._moving.move(self._moving.partitions(self._table))

    def check(self, written: Mapping[int, int]) -> None:
        for key, number in list(written.items())[:1000]:
            row = self._table.get(key)
            assert row is not None, key
            assert int(row["value"]) >= number, (key, number, row)


def peers(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    """(d)"""
    moving.carry_by("--pipeline", "spark", "--bandwidth", "0")
    warm_up(moving)
    keys = PEER_KEYS // 10 if quick else PEER_KEYS
    ours = measure(OurPair(moving, keys), keys)
    _note(report, ours)
    for name in MOVERS:
        theirs = moved_by(name, keys)
        if isinstance(theirs, str):
            report.miss(f"keys_per_second_over_{name}", theirs)
            report.miss(f"stall_over_{name}", theirs)
            continue
        _note(report, theirs)
        report.ratio(f"keys_per_second_over_{name}", ours.keys_per_second / theirs.keys_per_second)
        report.ratio(
            f"stall_over_{name}", ours.longest_stall_seconds / theirs.longest_stall_seconds
        )


def _note(report: Report, moved: Moved) -> None:
    report.note(f"{moved.name}_keys_per_second", moved.keys_per_second)
    report.note(f"{moved.name}_longest_stall_ms", moved.longest_stall_seconds * 1e3)
    report.note(f"{moved.name}_quiet_stall_ms", moved.quiet_longest_stall_seconds * 1e3)


@contextmanager
def two_nodes(root: Path) -> Iterator[Moving]:
    with ExitStack() as stack:
        cluster = BenchCluster(root / "cluster", 2)
        cluster.of_coordinators[:] = ["--pipeline", "threads", "--bandwidth", "0"]
        stack.enter_context(cluster)
        yield Moving(cluster, stack.enter_context(cluster.connect(120.0)))


PARTS = {"large": large, "small": small, "peers": peers}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and rough")
    parser.add_argument("--rows", type=int, default=0, help="of the large partition")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    end_cleanly_when_told()
    report = Report("move", AIMS)
    rows = given.rows or (1_000_000 if given.quick else 10_000_000)
    with (
        tempfile.TemporaryDirectory(prefix="limosa-bench-") as directory,
        two_nodes(Path(directory)) as moving,
    ):
        for number, name in enumerate(given.parts or PARTS):
            if number == 0 and name != "large":
                moving.carry_by("--pipeline", "spark")
                warm_up(moving)
            print(name, flush=True)
            PARTS[name](report, moving, rows, given.quick)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
