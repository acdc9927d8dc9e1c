"""What does a live move cost, and those who write meanwhile?

A partition goes from node to node. Everything is a ratio of two measurements of one run.

    copy     Spark copies 5 million rows of 120 bytes; against the same copy without Spark, by a
             plain loop of one thread. Nobody writes
    stalls   the longest write and the 99th percentile, with a move and in equal windows without
             one; Spark's start is part of the move. A paced writer at half of what the cluster
             takes, and a writer at full speed; the default limit of the bandwidth
    cost     what a write takes without a move, while both sides are written, and after the move
    start    how long Spark takes to start with a class archive, against without one
    peers    500,000 keys and 5 million keys under a writer, beside Valkey, Redis and PostgreSQL,
             which have no limit of the bandwidth either
    small    64 partitions of 1,000 rows: what Spark costs each, alone and together

Contenders are processes of their own on one machine. The last line is JSON.

    python bench/move.py [--quick] [--rows 5000000] [--part copy --part stalls …]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TypeAlias
from unittest.mock import patch

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple

from limosa.client.table import TableHandle
from limosa.core.machines.catalogue import READ_NEW
from limosa.pipeline import carriers
from limosa.pipeline.application import Options
from limosa.pipeline.carriers import SparkCarrier

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import BenchCluster
from bench._move_peers import MOVERS, moved_by
from bench._move_writer import Moved, measure, value_of
from bench._moving import LOAD_ROWS, BatchWriter, Moving, fill
from bench._report import Report, end_cleanly_when_told
from bench._rows import SCHEMA

# fmt: off
AIMS: dict[str, tuple[str, float]] = {
    "copy_over_bare_copy":                  (">=", 0.6),
    "paced_longest_with_over_without":      ("<=", 2.0),
    "paced_p99_with_over_without":          ("<=", 2.0),
    "full_longest_with_over_without":       ("<=", 2.0),
    "full_p99_with_over_without":           ("<=", 2.0),
    "full_rate_with_over_without":          (">=", 0.6),
    "write_during_over_before":             ("<=", 2.0),
    "write_after_over_before":              ("<=", 1.2),
    "start_with_archive_over_without":      ("<=", 0.8),
    "keys_per_second_over_valkey":          (">=", 1.0),
    "stall_over_valkey":                    ("<=", 1.0),
    "keys_per_second_over_postgres":        (">=", 1.0),
    "stall_over_postgres":                  ("<=", 1.0),
    "keys_per_second_over_redis":           (">=", 1.0),
    "stall_over_redis":                     ("<=", 1.0),
    "keys_per_second_over_valkey_5m":       (">=", 2.0),
    "stall_over_valkey_5m":                 ("<=", 1.0),
    "keys_per_second_over_postgres_5m":     (">=", 2.0),
    "stall_over_postgres_5m":               ("<=", 1.0),
    "together_over_alone":                  ("<=", 0.25),
}
# fmt: on

PEER_KEYS = {"": 500_000, "_5m": 5_000_000}
SLOW_PEERS = ("redis",)
"""They take minutes to move 5 million keys."""
SMALL_PARTITIONS, SMALL_ROWS = 64, 1_000
STALL_ROWS = 2_000_000
COST_ROWS = 500_000
COLD_MOVES = 2
COST_SECONDS = 6.0
UNLIMITED = ("--bandwidth", "0")
Part: TypeAlias = Callable[[Report, Moving, int, bool], None]


def filled(moving: Moving, name: str, rows: int) -> tuple[TableHandle, str]:
    """A table of one partition, and the partition."""
    table = moving.connection.create_table(name, SCHEMA, "key", partitions=1, replicas=1)
    fill(table, rows, LOAD_ROWS)
    moving.cluster.settle(30.0)
    (partition,) = moving.partitions(table)
    return table, partition


def warm_up(moving: Moving) -> None:
    """A move of next to nothing starts Spark."""
    _, partition = filled(moving, "warm", 1_000)
    moving.move([partition])
    moving.connection.drop_table("warm")


# ---------------------------------------------------------------- the parts


def copy(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    _, partition = filled(moving, "large", rows)
    moving.move([partition])  # what was copied once is settled, and is copied quicker
    moving.cluster.settle(30.0)
    rates = {}
    for pipeline in ("threads", "spark"):
        moving.carry_by("--pipeline", pipeline, *UNLIMITED)
        warm_up(moving)
        seconds = []
        for _ in range(1 if quick else 3):
            moving.move([partition])
            seconds.append(moving.copied_in())
            moving.cluster.settle(30.0)
        rates[pipeline] = rows / min(seconds)
    report.note("bare_copy_rows_per_second", rates["threads"])
    report.note("copy_rows_per_second", rates["spark"])
    report.ratio("copy_over_bare_copy", rates["spark"] / rates["threads"])
    moving.connection.drop_table("large")


class Window(Struct, frozen=True):
    """What a writer saw for some time."""

    seconds: float
    longest: float
    p99: float
    rows_per_second: float


def middle(windows: Sequence[Window]) -> Window:
    """The median of each figure."""
    return Window(*map(statistics.median, zip(*map(astuple, windows), strict=True)))


def stalls(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    rows = min(rows, STALL_ROWS)
    table, partition = filled(moving, "written", rows)
    with BatchWriter(table, rows) as writer:
        time.sleep(1.0)
        start = perf_counter()
        time.sleep(2.0 if quick else 4.0)
        maximum = writer.rate(start, perf_counter())
    report.note("maximum_rows_per_second", maximum)
    for name, per_second in (("paced", maximum / 2), ("full", 0.0)):
        pairs = []
        for _ in range(1 if quick else COLD_MOVES):
            moving.carry_by("--pipeline", "spark")  # another one, whose Spark has not started
            moving.cluster.settle(30.0)
            with BatchWriter(table, rows, per_second) as writer:
                time.sleep(2.0)
                pairs.append(_with_and_without(moving, partition, writer))
        during, without = (middle(side) for side in zip(*pairs, strict=True))
        report.note(f"{name}_move_seconds", during.seconds)
        for window, word in ((during, "with"), (without, "without")):
            report.note(f"{name}_longest_{word}_ms", window.longest * 1e3)
            report.note(f"{name}_p99_{word}_ms", window.p99 * 1e3)
            report.note(f"{name}_rows_per_second_{word}", window.rows_per_second)
        report.ratio(f"{name}_longest_with_over_without", during.longest / without.longest)
        report.ratio(f"{name}_p99_with_over_without", during.p99 / without.p99)
        if not per_second:
            rate = during.rows_per_second / without.rows_per_second
            report.ratio("full_rate_with_over_without", rate)
    moving.connection.drop_table("written")


def _with_and_without(moving: Moving, partition: str, writer: BatchWriter) -> tuple[Window, Window]:
    """With a move and without one, in windows of one length."""
    start, end = moving.move([partition])
    time.sleep(2.0)
    quiet = perf_counter()
    time.sleep(end - start)

    def window(since: float, until: float) -> Window:
        longest, p99 = writer.longest(since, until), writer.part(0.99, since, until)
        return Window(until - since, longest, p99, writer.rate(since, until))

    return window(start, end), window(quiet, perf_counter())


def cost(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    """One write at a time. During the hold of a move both sides are written, and nothing else goes
    on."""
    moving.carry_by("--pipeline", "spark")
    warm_up(moving)
    rows = min(rows, COST_ROWS)
    table, partition = filled(moving, "cost", rows)
    seconds = 2.0 if quick else COST_SECONDS
    took = []
    with BatchWriter(table, rows, window=1) as writer:

        def watch() -> None:
            time.sleep(1.0)
            start = perf_counter()
            time.sleep(seconds)
            took.append(writer.part(0.5, start, perf_counter()))

        watch()
        moving.ask([partition], hold_seconds=seconds + 5.0)
        moving.wait_for_stage(partition, READ_NEW)
        watch()
        moving.wait_for_stage(partition, "")
        moving.cluster.settle(3.0)
        watch()
    for name, each in zip(("before", "during", "after"), took, strict=True):
        report.note(f"write_{name}_ms", each * 1e3)
    report.ratio("write_during_over_before", took[1] / took[0])
    report.ratio("write_after_over_before", took[2] / took[0])
    moving.connection.drop_table("cost")


def start(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    """Each time another Java, in a cache of its own; the second one finds the first one's."""
    with tempfile.TemporaryDirectory(prefix="limosa-bench-") as directory:
        root = Path(directory)
        with patch.dict("os.environ", {"XDG_CACHE_HOME": str(root / "cache")}):
            _spark_seconds(root)  # files that are read for the first time
            without = [_spark_seconds(root) for _ in range(1 if quick else 3)]
            with patch.object(carriers, "IDLE_SECONDS", 0.1):
                _spark_seconds(root, until_archived=True)
            archived = [_spark_seconds(root) for _ in range(1 if quick else 3)]
    report.note("start_without_archive_seconds", statistics.median(without))
    report.note("start_with_archive_seconds", statistics.median(archived))
    ratio = statistics.median(archived) / statistics.median(without)
    report.ratio("start_with_archive_over_without", ratio)


def _spark_seconds(root: Path, until_archived: bool = False) -> float:
    states: list[str] = []
    options = Options(str(root / "spark"))
    carrier = SparkCarrier(options, lambda state, _: states.append(state), lambda *_, **__: None)
    begun = perf_counter()
    try:
        carrier.start()
        while states[-1] == "starting":
            time.sleep(0.01)
        took = perf_counter() - begun
        assert states[-1] == "ready", states
        while until_archived and not list(root.rglob("*.jsa")):
            time.sleep(0.1)
    finally:
        carrier.close()
    return took


def small(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    moving.carry_by("--pipeline", "spark")
    warm_up(moving)
    table = moving.connection.create_table(
        "small", SCHEMA, "key", partitions=SMALL_PARTITIONS, replicas=1
    )
    fill(table, SMALL_PARTITIONS * SMALL_ROWS, LOAD_ROWS)
    names = moving.partitions(table)
    alone = []
    for name in names[:5]:
        begun, end = moving.move([name])
        alone.append(end - begun)
    together = []
    for _ in range(2 if quick else 4):
        begun, end = moving.move(names)
        together.append((end - begun) / len(names))
    report.note("move_alone_ms", statistics.median(alone) * 1e3)
    report.note("move_together_ms", statistics.median(together) * 1e3)
    report.ratio("together_over_alone", statistics.median(together) / statistics.median(alone))
    moving.connection.drop_table("small")


class OurPair:
    """Our nodes, as the peers are measured."""

    name, version, async_durability = "limosa", "", False

    def __init__(self, moving: Moving, keys: int) -> None:
        self._moving = moving
        self.expected_seconds = keys / 250_000
        columns: dict[str, str | pa.DataType] = {"key": "int64", "value": "string"}
        connection = moving.connection
        self._table = connection.create_table("pair", columns, "key", partitions=1, replicas=1)
        for first in range(0, keys, 500_000):
            some = range(first, min(first + 500_000, keys))
            self._table.write(pa.table({"key": list(some), "value": [value_of(0)] * len(some)}))
        moving.cluster.settle(30.0)

    def write(self, key: int, number: int) -> None:
        self._table.write([{"key": key, "value": value_of(number)}])

    def move(self) -> None:
        self._moving.move(self._moving.partitions(self._table))

    def check(self, written: Mapping[int, int]) -> None:
        for key, number in list(written.items())[:1000]:
            row = self._table.get(key)
            assert row is not None, key
            assert int(row["value"]) >= number, (key, number, row)
        self._moving.connection.drop_table("pair")


def peers(report: Report, moving: Moving, rows: int, quick: bool) -> None:
    moving.carry_by("--pipeline", "spark", *UNLIMITED)
    warm_up(moving)
    for suffix, keys in PEER_KEYS.items():
        _beside_peers(report, moving, suffix, keys // 10 if quick else keys)


def _beside_peers(report: Report, moving: Moving, suffix: str, keys: int) -> None:
    ours = measure(OurPair(moving, keys), keys)
    _note(report, ours, suffix)
    for name in MOVERS:
        if suffix and name in SLOW_PEERS:
            continue
        theirs = moved_by(name, keys)
        if isinstance(theirs, str):
            report.miss(f"keys_per_second_over_{name}{suffix}", theirs)
            report.miss(f"stall_over_{name}{suffix}", theirs)
            continue
        _note(report, theirs, suffix)
        rate = ours.keys_per_second / theirs.keys_per_second
        stall = ours.longest_stall_seconds / theirs.longest_stall_seconds
        report.ratio(f"keys_per_second_over_{name}{suffix}", rate)
        report.ratio(f"stall_over_{name}{suffix}", stall)


def _note(report: Report, moved: Moved, suffix: str) -> None:
    report.note(f"{moved.name}_keys_per_second{suffix}", moved.keys_per_second)
    report.note(f"{moved.name}_longest_stall_ms{suffix}", moved.longest_stall_seconds * 1e3)
    report.note(f"{moved.name}_quiet_stall_ms{suffix}", moved.quiet_longest_stall_seconds * 1e3)


@contextmanager
def two_nodes(root: Path) -> Iterator[Moving]:
    with ExitStack() as stack:
        cluster = BenchCluster(root / "cluster", 2)
        cluster.of_coordinators[:] = ["--pipeline", "threads", *UNLIMITED]
        stack.enter_context(cluster)
        yield Moving(cluster, stack.enter_context(cluster.connect(120.0)))


PARTS: dict[str, Part] = {
    "copy": copy,
    "stalls": stalls,
    "cost": cost,
    "start": start,
    "peers": peers,
    "small": small,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and rough")
    parser.add_argument("--rows", type=int, default=0, help="of the large partition")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), metavar="PART", help=", ".join(PARTS)
    )
    given = parser.parse_args()
    end_cleanly_when_told()
    report = Report("move", AIMS)
    rows = given.rows or (1_000_000 if given.quick else 5_000_000)
    with (
        tempfile.TemporaryDirectory(prefix="limosa-bench-") as directory,
        two_nodes(Path(directory)) as moving,
    ):
        for name in given.part or PARTS:
            print(name, flush=True)
            begun = perf_counter()
            PARTS[name](report, moving, rows, given.quick)
            report.note(f"{name}_part_seconds", perf_counter() - begun)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
