"""What does a benchmark of moves need? A writer, and two nodes between which partitions move."""

import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from time import perf_counter

import numpy as np
import pyarrow as pa

from bench._cluster import BenchCluster
from bench._rows import batch_of
from limosa.client.operator import Operator
from limosa.client.table import TableHandle
from limosa.core.client import Finished
from limosa.core.model.intent import Placement
from limosa.core.model.requests import MovePartition
from limosa.tabular.rows import Batch

BATCH_ROWS = 1_000
LOAD_ROWS = 20_000
WINDOW = 64
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

    def __init__(
        self, table: TableHandle, rows: int, per_second: float = 0.0, window: int = WINDOW
    ) -> None:
        self._table = table
        self._window = window
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
            self._take(under_way, self._window - 1)
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

    def took(self, start: float, end: float) -> list[float]:
        """Seconds of the writes that ended or ran in this time, in order of their length."""
        known = list(self.acknowledged)
        return sorted(took for at, took in known if at > start and at - took < end)

    def longest(self, start: float, end: float) -> float:
        return max(self.took(start, end), default=0.0)

    def part(self, share: float, start: float, end: float) -> float:
        """So many of all writes took at most this long."""
        took = self.took(start, end)
        return took[int(share * len(took))] if took else 0.0


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
        start = perf_counter()
        places = self.ask(partitions)
        deadline = start + MOVE_SECONDS_MAX
        while not all(self._is_at(name, place) for name, place in places.items()):
            if perf_counter() > deadline:
                raise TimeoutError(f"a move took more than {MOVE_SECONDS_MAX:.0f} s")
            time.sleep(POLL_SECONDS)
            self.connection.refresh()
        return start, perf_counter()

    def ask(self, partitions: Sequence[str], hold_seconds: float = 0.0) -> dict[str, str]:
        """Begin to move each to the other node; where each will be."""
        nodes = self.cluster.nodes
        places = {}
        askers = []
        for name in partitions:
            (replica,) = self.connection.topology.partitions[name].replicas
            places[name] = nodes[1 - nodes.index(replica.node)]
            way = (name, replica.node, places[name], hold_seconds)
            askers.append(threading.Thread(target=self._ask, args=way))
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        return places

    def _ask(self, partition: str, source: str, target: str, hold_seconds: float) -> None:
        self.connection.submit(
            MovePartition(
                partition, source=source, target=Placement(target), hold_seconds=hold_seconds
            )
        )

    def wait_for_stage(self, partition: str, stage: str) -> None:
        """Until its transition is in this stage; empty: until it has ended."""
        deadline = perf_counter() + MOVE_SECONDS_MAX
        while perf_counter() < deadline:
            change = self.connection.refresh().partitions[partition].transition
            if (change.stage if change is not None else "") == stage:
                return
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"{partition} did not reach {stage or 'its end'}")

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
