"""What does a run of many moves cost, beside its moves one at a time, and when there are many?

    (a) 64 partitions on 3 nodes, a fourth is filled    beside its bytes at the single-move rate
    (b) small partitions, 64 and 1,024 of them          what one move of the run costs

On Spark, without a limit of bandwidth, with as many moves at once as a run has by default; nobody
writes meanwhile. Single moves are warm ones of the same partitions, and are made in the same
cluster right before. The last line is JSON.

    python bench/rebalance.py [--quick]
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

from limosa.client.cluster_view import look
from limosa.client.operator import Operator
from limosa.core.insight.progress import Progress, progress
from limosa.core.insight.proposing import filling
from limosa.core.model.intent import Placement
from limosa.core.model.requests import MovePartition, StartRun
from limosa.core.model.runs import RunPlan

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import BenchCluster
from bench._moving import LOAD_ROWS, fill
from bench._report import Report, end_cleanly_when_told
from bench._rows import SCHEMA

# fmt: off
AIMS: dict[str, tuple[str, float]] = {
    "run_over_its_bytes_at_the_single_rate":   ("<=", 1.3),
    "cost_a_move_at_1024_over_64":             ("<=", 1.5),
}
# fmt: on

PARTITIONS = 64
ROWS = 4_000_000
SMALL_ROWS = 50
SINGLES = 5
POLL_SECONDS = 0.05
LOOK_SECONDS = 2.0
"""At a run: what is measured is in its record, and each look asks every node for all it knows."""
SECONDS_MAX = 600.0
SPARK = ["--pipeline", "spark", "--bandwidth", "0"]


def partitions(connection: Operator, table: str) -> list[str]:
    zone = connection.refresh().tables[table].zone
    return list(connection.topology.layouts[zone].partitions)


def make(connection: Operator, name: str, count: int, rows: int) -> None:
    table = connection.create_table(name, SCHEMA, "key", partitions=count, replicas=1)
    fill(table, rows, LOAD_ROWS)


def warm_up(connection: Operator) -> None:
    """A move of next to nothing starts Spark."""
    make(connection, "warm", 1, 1_000)
    single_move(connection, partitions(connection, "warm")[0], ["n1", "n2", "n3"])
    connection.drop_table("warm")


def single_move(connection: Operator, partition: str, nodes: list[str]) -> float:
    """To the next node; how long it took."""
    (replica,) = connection.refresh().partitions[partition].replicas
    target = nodes[(nodes.index(replica.node) + 1) % len(nodes)]
    start = perf_counter()
    connection.submit(MovePartition(partition, source=replica.node, target=Placement(target)))
    while True:
        record = connection.refresh().partitions[partition]
        if record.transition is None and record.replicas[0].node == target:
            return perf_counter() - start
        if perf_counter() - start > SECONDS_MAX:
            raise TimeoutError(f"{partition} still moves")
        time.sleep(0.01)


def size_of(connection: Operator, partition: str) -> int:
    (replica,) = connection.refresh().partitions[partition].replicas
    held = connection.node_status(replica.node)["replicas"]
    return next(int(each["bytes"]) for each in held if each["partition"] == partition)


def run_to(connection: Operator, node: str) -> Progress:
    """Give a node that has just joined its share; when all of it is there."""
    plan, run = filling(look(connection), [node], RunPlan(f"fill {node}"))
    assert plan.moves, "there is nothing to move"
    name = connection.submit(StartRun(run)).run
    deadline = perf_counter() + SECONDS_MAX
    while perf_counter() < deadline:
        found = progress(look(connection, name), name)
        if found.run.outcome:
            assert found.run.outcome == "done", found.run
            return found
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"{name} has not ended")


class Scene:
    """Three nodes, Spark started."""

    def __init__(self, stack: ExitStack, root: Path) -> None:
        self.cluster = BenchCluster(root, 3)
        self.cluster.of_coordinators[:] = SPARK
        stack.enter_context(self.cluster)
        self.connection = stack.enter_context(self.cluster.connect(120.0))
        warm_up(self.connection)

    def fill_a_fourth(self) -> Progress:
        node = self.cluster.add_node()
        while node not in self.connection.agreed()["live"]:
            time.sleep(POLL_SECONDS)
        self.cluster.settle(10.0)
        return run_to(self.connection, node)


def bytes_at_the_single_rate(report: Report, root: Path, quick: bool) -> None:
    """(a)"""
    with ExitStack() as stack:
        scene = Scene(stack, root)
        connection = scene.connection
        make(connection, "items", PARTITIONS, ROWS // 10 if quick else ROWS)
        scene.cluster.settle(30.0)
        rates = []
        for name in partitions(connection, "items")[:SINGLES]:
            size = size_of(connection, name)
            rates.append(size / single_move(connection, name, ["n1", "n2", "n3"]))
        single = statistics.median(rates)
        ended = scene.fill_a_fourth()
        seconds = ended.run.ended - ended.run.started
        report.note("single_move_megabytes_per_second", single / 1e6)
        report.note("run_moves", ended.run.moves)
        report.note("run_megabytes", ended.bytes / 1e6)
        report.note("run_seconds", seconds)
        report.note("longest_hand_over_ms", ended.pause_seconds * 1e3)
        report.ratio("run_over_its_bytes_at_the_single_rate", seconds / (ended.bytes / single))


def cost_a_move(report: Report, root: Path, quick: bool) -> None:
    """(b)"""
    costs = {}
    for count in (64, 256 if quick else 1_024):
        with ExitStack() as stack:
            scene = Scene(stack, root / str(count))
            make(scene.connection, "small", count, count * SMALL_ROWS)
            ended = scene.fill_a_fourth()
            costs[count] = (ended.run.ended - ended.run.started) / ended.run.moves
            report.note(f"moves_of_{count}_partitions", ended.run.moves)
            report.note(f"move_ms_of_{count}_partitions", costs[count] * 1e3)
    few, many = costs.values()
    report.ratio("cost_a_move_at_1024_over_64", many / few)


PARTS = {"large": bytes_at_the_single_rate, "small": cost_a_move}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and rough")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    end_cleanly_when_told()
    report = Report("rebalance", AIMS)
    with tempfile.TemporaryDirectory(prefix="limosa-bench-") as directory:
        for name in given.parts or PARTS:
            print(name, flush=True)
            PARTS[name](report, Path(directory) / name, given.quick)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
