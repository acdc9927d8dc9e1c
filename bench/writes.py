"""What does a write through a real cluster cost, beside a bare log, a bare call, and others?

Rows of 120 bytes in batches of 1,000, half of them updates, all durable when they are acknowledged.
Client, nodes and peers are processes of their own on one machine. Contenders take turns in several
rounds, so that a noisy machine disturbs all alike; a ratio is the median of the rounds' ratios, and
latencies are those of all rounds together. Between two turns the nodes may finish what they put
off: that is counted as processor time, not as time. The last line is JSON.

    python bench/writes.py [--quick]
"""

import argparse
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa

from limosa.client.table import TableHandle
from limosa.core.client import Finished
from limosa.core.messages import Write
from limosa.core.model.keys import WHOLE
from limosa.protocol.wire import Encoder
from limosa.tabular.rows import Batch, Bundle

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import BenchCluster
from bench._echo import Echo
from bench._report import Report, end_cleanly_when_told
from bench._rows import NAME_BYTES, NOTE_BYTES, SCHEMA, batch_of
from bench._write_peers import PEERS, Peer, RawLog, Unavailable

# fmt: off
AIMS: dict[str, tuple[str, float]] = {
    "pipelined_over_raw_log":    (">=", 0.5),
    "pipelined_over_postgres":   (">=", 8.0),
    "pipelined_over_redis":      (">=", 10.0),
    "three_replicas_over_one":   (">=", 0.25),
    "put_p50_over_bare_call":    ("<=", 2.0),
    "put_p99_over_bare_call":    ("<=", 2.0),
    "get_p50_over_bare_call":    ("<=", 2.0),
    "get_p99_over_bare_call":    ("<=", 2.0),
}
# fmt: on

ROWS = 1_000
BASE = 100_000
"""Rows that are there before anything is measured: those that updates replace."""
WINDOW = 64
"""Batches that our client has under way at once; how many share a sync is counted in the node, and
the raw log, which prepares a group while it syncs another, is given groups of that size."""

LARGE_GROUP = 16
"""What a node could sync at once: one that syncs each batch alone has an easy own group."""


# ---------------------------------------------------------------- rows


class Rows:
    """Batches of which half of the rows replace others, and half are new; no key twice in one."""

    def __init__(self) -> None:
        self._dice = np.random.default_rng(1)
        self._next = BASE

    def base(self) -> Iterator[pa.RecordBatch]:
        for first in range(0, BASE, ROWS):
            yield batch_of(self._dice, np.arange(first, first + ROWS))

    def batches(self, count: int) -> list[pa.RecordBatch]:
        return [self._mixed() for _ in range(count)]

    def _mixed(self) -> pa.RecordBatch:
        half = ROWS // 2
        old = self._dice.integers(0, BASE // half, half) + np.arange(half) * (BASE // half)
        new = np.arange(self._next, self._next + half)
        self._next += half
        return batch_of(self._dice, self._dice.permutation(np.concatenate([old, new])))


# ---------------------------------------------------------------- pipelined writes


class Ours:
    """One table of one cluster, written to in a pipeline."""

    def __init__(self, cluster: BenchCluster, table: TableHandle, base: Sequence[Any]) -> None:
        self.cluster = cluster
        self.table = table
        self.rates: list[float] = []
        self.groups: list[float] = []
        self.client_cpu = self.nodes_cpu = 0.0
        self._send(base)
        self.cluster.settle()

    def take_turn(self, batches: Sequence[pa.RecordBatch]) -> None:
        syncs = self.cluster.syncs("n1")
        nodes, client, start = self.cluster.nodes_cpu_seconds(), process_time(), perf_counter()
        self._send(batches)
        self.rates.append(len(batches) * ROWS / (perf_counter() - start))
        self.client_cpu += process_time() - client
        self.groups.append(len(batches) / (self.cluster.syncs("n1") - syncs))
        self.cluster.settle()
        self.nodes_cpu += self.cluster.nodes_cpu_seconds() - nodes

    def _send(self, batches: Sequence[pa.RecordBatch]) -> None:
        under_way: deque[Future[Finished]] = deque()
        for batch in batches:
            if len(under_way) == WINDOW:
                _check(under_way.popleft())
            under_way.append(self.table.submit(Batch.of(self.table.definition, batch)))
        for future in under_way:
            _check(future)

    def report(self, report: Report, name: str, rows: int) -> None:
        report.note(f"{name}_rows_per_second", statistics.median(self.rates))
        report.note(f"{name}_batches_a_sync", statistics.median(self.groups))
        report.note(f"{name}_client_cpu_per_mrows", self.client_cpu / rows * 1e6)
        report.note(f"{name}_nodes_cpu_per_mrows", self.nodes_cpu / rows * 1e6)


def _check(future: "Future[Finished]") -> None:
    finished = future.result()
    assert finished.outcome == "done", finished


def rate_of(peer: Peer, batches: Sequence[pa.RecordBatch]) -> float:
    prepared = [peer.prepare(batch) for batch in batches]
    start = perf_counter()
    peer.write(prepared)
    return len(batches) * ROWS / (perf_counter() - start)


def start_peers(report: Report, stack: ExitStack) -> dict[str, Peer]:
    peers = {}
    for name, start in PEERS.items():
        try:
            peers[name] = stack.enter_context(start())
        except (Unavailable, OSError) as error:
            report.miss(f"pipelined_over_{name}", str(error))
    return peers


def pipelined(report: Report, root: Path, clusters: "Clusters", quick: bool) -> None:
    """Each round gives the same new batches to everybody; the peers, which are slow, to some."""
    rows = Rows()
    base = list(rows.base())
    rounds, count = (3, 60) if quick else (7, 300)
    ratios: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        peers = start_peers(report, stack)
        for peer in peers.values():
            rate_of(peer, base)
        raw = RawLog(root)
        stack.callback(raw.close)
        ours = {name: Ours(*place, base) for name, place in clusters.tables().items()}
        for number in range(rounds + 1):
            batches = rows.batches(count)
            for name, one in ours.items():
                one.take_turn(batches)
                group = max(1, round(one.groups[-1]))
                rate = count * ROWS / raw.seconds(batches, group)
                rates.setdefault(f"raw_log_beside_{name}", []).append(rate)
                ratios.setdefault(name, []).append(one.rates[-1] / rate)
            single = ours["one_partition"].rates[-1]
            rate = count * ROWS / raw.seconds(batches, LARGE_GROUP)
            rates.setdefault("raw_log_in_sixteens", []).append(rate)
            ratios.setdefault("large_groups", []).append(single / rate)
            for name, peer in peers.items():
                rates.setdefault(name, []).append(rate_of(peer, batches[: count // 10]))
                ratios.setdefault(name, []).append(single / rates[name][-1])
            three = ours["three_replicas"].rates[-1]
            ratios.setdefault("replicas", []).append(three / single)
            if not number:  # everybody warms up
                _forget(ours, ratios, rates)
    report.ratio("pipelined_over_raw_log", statistics.median(ratios["one_partition"]))
    report.note(
        "pipelined_8_partitions_over_raw_log", statistics.median(ratios["eight_partitions"])
    )
    report.note("pipelined_over_raw_log_in_sixteens", statistics.median(ratios["large_groups"]))
    for name in peers:
        report.ratio(f"pipelined_over_{name}", statistics.median(ratios[name]))
    report.ratio("three_replicas_over_one", statistics.median(ratios["replicas"]))
    for name, one in ours.items():
        one.report(report, name, rounds * count * ROWS)
    for name, found in rates.items():
        report.note(f"{name}_rows_per_second", statistics.median(found))


def _forget(
    ours: dict[str, Ours], ratios: dict[str, list[float]], rates: dict[str, list[float]]
) -> None:
    ratios.clear()
    rates.clear()
    for one in ours.values():
        one.rates.clear()
        one.groups.clear()
        one.client_cpu = one.nodes_cpu = 0.0


# ---------------------------------------------------------------- single rows


def single_rows(report: Report, root: Path, clusters: "Clusters", quick: bool) -> None:
    """One thread; a call's message is as long as the frame of a one-row write."""
    dice = np.random.default_rng(2)
    _, table = clusters.tables()["eight_partitions"]
    message = pa.py_buffer(frame_of_one_row(table))

    def put() -> None:
        table.write([one_row(int(dice.integers(0, BASE)))])

    def get() -> None:
        assert table.get(int(dice.integers(0, BASE))) is not None

    with Echo(root) as echo:
        acts: dict[str, Callable[[], None]] = {
            "put": put,
            "get": get,
            "bare_call": lambda: echo.call(message),
            "durable_call": lambda: echo.durable_call(message),
            "action": lambda: echo.action(message),
        }
        taken = take_turns(acts, blocks=4 if quick else 40, length=50)
    for percent in (50, 99):
        micros = {name: float(np.percentile(times, percent)) for name, times in taken.items()}
        for name in ("put", "get"):
            report.ratio(f"{name}_p{percent}_over_bare_call", micros[name] / micros["bare_call"])
        report.note(f"put_p{percent}_over_durable_call", micros["put"] / micros["durable_call"])
        for name in acts:
            report.note(f"{name}_p{percent}_microseconds", micros[name])
    report.note("call_bytes", message.size)


def take_turns(
    acts: dict[str, Callable[[], None]], blocks: int, length: int
) -> dict[str, list[float]]:
    """Microseconds of each act, a block of each in turn; the first block is for warming up."""
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for block in range(blocks + 1):
        for name, act in acts.items():
            for _ in range(length):
                start = perf_counter()
                act()
                if block:
                    taken[name].append((perf_counter() - start) * 1e6)
    return taken


def one_row(key: int) -> dict[str, Any]:
    text = {"name": "n" * NAME_BYTES, "note": "t" * NOTE_BYTES}
    return {"key": key, "moment": 1 << 40, "amount": 7, "price": 0.5, **text}


def frame_of_one_row(table: TableHandle) -> bytes:
    columns = pa.RecordBatch.from_pylist([one_row(1)], schema=SCHEMA)
    rows = Bundle([Batch.of(table.definition, columns)])
    write = Write("1000", "p-0001", 1, 1, f"client-{'0' * 16}", 1000, 0, 999, WHOLE, rows)
    return Encoder(define=False)([write])


# ---------------------------------------------------------------- running it


class Clusters:
    """One of one node, one of three."""

    def __init__(self, stack: ExitStack, root: Path) -> None:
        single = stack.enter_context(BenchCluster(root / "one", 1))
        triple = stack.enter_context(BenchCluster(root / "three", 3))
        one, three = (stack.enter_context(each.connect()) for each in (single, triple))

        def create(connection: Any, name: str, partitions: int, replicas: int) -> TableHandle:
            table: TableHandle = connection.create_table(
                name, SCHEMA, "key", partitions=partitions, replicas=replicas
            )
            return table

        self._tables = {
            "one_partition": (single, create(one, "one_partition", 1, 1)),
            "eight_partitions": (single, create(one, "eight_partitions", 8, 1)),
            "three_replicas": (triple, create(three, "three_replicas", 1, 3)),
        }

    def tables(self) -> dict[str, tuple[BenchCluster, TableHandle]]:
        return self._tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and rough")
    given = parser.parse_args()
    end_cleanly_when_told()
    report = Report("writes", AIMS)
    with tempfile.TemporaryDirectory(prefix="limosa-bench-") as directory, ExitStack() as stack:
        root = Path(directory)
        clusters = Clusters(stack, root)
        for part in (pipelined, single_rows):
            print(part.__name__.replace("_", " "), flush=True)
            part(report, root, clusters, given.quick)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
