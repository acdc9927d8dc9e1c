"""Does a cluster under load lose rows? `limosa demo` moves partitions, kills a node, and checks."""

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer
from msgspec import Struct

from limosa.cli.demo.ledger import (
    KEY,
    SCHEMA,
    DemoWorker,
    Ledger,
    ReaderThread,
    WriterThread,
    await_equal_replicas,
    fill,
    final_values,
)
from limosa.cli.demo.screen import open_screen
from limosa.cli.demo.script import Script
from limosa.cli.shared.options import AsJson
from limosa.cli.shared.pipelines import PipelineChoice, check_installed
from limosa.cli.shared.terminal import count, print_answer, tell
from limosa.client.operator import Operator, operate
from limosa.errors import Refused
from limosa.runtime.local import LocalCluster

WRITERS, READERS = 4, 2
KEYS_PER_WRITER = 150_000
ROWS_PER_FILL, ROWS_PER_WRITE, ROWS_PER_READ = 50_000, 5_000, 1_000
PARTITIONS, REPLICAS = 12, 3
JOIN_SECONDS, CATCH_UP_SECONDS = 45.0, 60.0
SHOW_SECONDS = 0.5
SPARK_SECONDS_MAX = 60.0


class DemoVerdict(Struct):
    """The result, as `--json` prints it."""

    ok: bool = False
    rows_acked: int = 0
    keys: int = 0
    lost: int = 0
    wrong: int = 0
    reads: int = 0
    joined: str = ""
    drained: str = ""
    pipeline: str = ""
    moves: int = 0
    moved_megabytes: float = 0.0
    megabytes_per_second: float = 0.0
    longest_hand_over_seconds: float = 0.0
    longest_pause_without_move_seconds: float = 0.0
    longest_pause_with_move_seconds: float = 0.0
    longest_pause_seconds: float = 0.0
    replicas_equal: bool = False
    killed: str = ""
    seconds: float = 0.0
    rows_written_per_second: int = 0
    rows_read_per_second: int = 0
    examples: list[str] = []


def demo(
    seconds: Annotated[
        float, typer.Option(min=4.0, help="Duration of the load, in addition to the moves.")
    ] = 16.0,
    nodes: Annotated[int, typer.Option(min=3, max=10, help="Number of nodes at the start.")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster's directory.")] = False,
    pipeline: Annotated[
        PipelineChoice, typer.Option("--pipeline", help="What copies the rows; auto is Spark.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Change and break a cluster under load, and check its rows.

    Writers write increasing numbers to their keys, and readers check every value that they read.
    Meanwhile a node joins and is filled on Spark, another node is drained, and the node that owns
    most partitions is killed with kill -9 and restarted. At the end all acknowledged rows must be
    present, no wrong value may have been read, all replicas must be equal, and the drained node
    must be empty. The exit code is 0 if all of this holds, else 1.

    \b
    Examples:
      limosa demo
      limosa demo --seconds 60 --nodes 5 --json
    """
    check_installed(pipeline)
    directory = tempfile.mkdtemp(prefix="limosa-demo-")
    lease_seconds = max(1.0, min(3.0, seconds / 7))
    local = LocalCluster(
        directory,
        nodes,
        "demo",
        arguments=["--lease-seconds", f"{lease_seconds:.1f}"],
        of_coordinators=["--pipeline", pipeline, "--keep-spark-running"],
    )
    try:
        with _terminated_as_interrupted(), _cleaned_up(local, keep):
            tell(f"Starting {nodes} nodes in {directory} …")
            local.start()
            verdict = _run(local, seconds)
            verdict.pipeline = "threads" if pipeline == "threads" else "Spark"
    finally:
        if keep:
            tell(f"The cluster is kept; start it with: limosa up --data {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print_answer(as_json, verdict, in_words(verdict))
    if not verdict.ok:
        raise typer.Exit(1)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    def heard(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _cleaned_up(local: LocalCluster, keep: bool) -> Iterator[None]:
    """A cluster that will be deleted is killed: it need not shut down cleanly."""
    try:
        yield
    finally:
        if not keep:
            for process in list(local.processes.values()):
                with suppress(ProcessLookupError):
                    process.kill()
        local.stop()


def _run(local: LocalCluster, seconds: float) -> DemoVerdict:
    with operate(
        list(local.addresses.values()),
        cluster_name=local.cluster,
        secret=local.secret,
        name="demo",
    ) as connection:
        table = connection.create_table(
            "numbers", SCHEMA, KEY, partitions=PARTITIONS, replicas=REPLICAS
        )
        ledger = Ledger(WRITERS * KEYS_PER_WRITER)
        fill(table, ledger, ROWS_PER_FILL)
        _await_spark(connection)
        writers: list[DemoWorker] = [
            WriterThread(
                table,
                ledger,
                number,
                range(number * KEYS_PER_WRITER, (number + 1) * KEYS_PER_WRITER),
                ROWS_PER_WRITE,
            )
            for number in range(WRITERS)
        ]
        readers: list[DemoWorker] = [
            ReaderThread(table, ledger, 1000 + number, ROWS_PER_READ) for number in range(READERS)
        ]
        verdict = DemoVerdict()
        began = time.monotonic()
        _load(local, connection, writers, readers, seconds, verdict)
        verdict.seconds = round(time.monotonic() - began, 1)
        tell("Checking every row and every replica …")
        judge(verdict, writers, readers)
        values = final_values(table, ledger)
        lost, invented = ledger.lost_rows(values), ledger.invented_rows(values)
        verdict.lost = len(lost)
        verdict.wrong += len(invented)
        verdict.keys = int((ledger.acked > 0).sum())
        differ = await_equal_replicas(connection, REPLICAS, CATCH_UP_SECONDS)
        verdict.replicas_equal = not differ
        verdict.examples += (lost + invented + differ)[:10]
        verdict.ok = not (verdict.lost or verdict.wrong or differ or verdict.examples)
        return verdict


def _await_spark(connection: Operator) -> None:
    """Spark starts with the cluster; under load it would take several times as long."""
    deadline = time.monotonic() + SPARK_SECONDS_MAX
    while time.monotonic() < deadline:
        pipeline = connection.runs().pipeline
        if pipeline is None or pipeline.state != "starting":
            return
        time.sleep(SHOW_SECONDS)


def _load(
    local: LocalCluster,
    connection: Operator,
    writers: list[DemoWorker],
    readers: list[DemoWorker],
    seconds: float,
    verdict: DemoVerdict,
) -> None:
    workers = [*writers, *readers]
    for worker in workers:
        worker.start()
    began = time.monotonic()
    with open_screen() as screen:
        script = Script(
            local,
            connection,
            seconds,
            lambda what: screen.tell(f"{time.monotonic() - began:5.1f} s  {what}"),
        )
        script.start()
        before = (0.0, 0, 0)
        while not script.is_over:
            time.sleep(SHOW_SECONDS)
            passed = time.monotonic() - began
            before, rates = _rates((writers, readers), passed, before)
            screen.show(rates, script.doing, script.run)
    for worker in workers:
        worker.stop()
    hanging = [worker for worker in workers if not worker.join(JOIN_SECONDS)]
    if script.failure is not None:
        raise script.failure
    if hanging:
        raise Refused("a reader or writer does not end", "run again with --keep, and see the logs")
    _judge_script(verdict, script, writers)


def _judge_script(verdict: DemoVerdict, script: Script, writers: list[DemoWorker]) -> None:
    """Record what happened to the cluster, and how long writers had to pause."""

    def longest(window: tuple[float, float]) -> float:
        return round(max(worker.counts.longest_pause(*window) for worker in writers), 3)

    moves = script.moves
    verdict.joined, verdict.drained, verdict.killed = script.joined, script.drained, script.killed
    verdict.moves = moves.count
    verdict.moved_megabytes = round(moves.bytes / 1e6, 1)
    verdict.megabytes_per_second = round(moves.bytes / 1e6 / max(0.001, moves.seconds), 1)
    verdict.longest_hand_over_seconds = round(moves.longest_pause_seconds, 3)
    verdict.longest_pause_without_move_seconds = longest(script.quiet)
    verdict.longest_pause_with_move_seconds = longest(script.moving)
    verdict.examples += moves.failed


def _rates(
    sides: tuple[list[DemoWorker], list[DemoWorker]], passed: float, before: tuple[float, int, int]
) -> tuple[tuple[float, int, int], str]:
    written, seen = (sum(worker.counts.rows for worker in side) for side in sides)
    period = max(0.001, passed - before[0])
    line = (
        f"{passed:5.1f} s  {(written - before[1]) / period:>9,.0f} rows/s acknowledged  "
        f"{(seen - before[2]) / period:>9,.0f} rows/s read"
    )
    return (passed, written, seen), line


def judge(verdict: DemoVerdict, writers: list[DemoWorker], readers: list[DemoWorker]) -> None:
    """Record what the readers and writers saw."""
    verdict.rows_acked = sum(worker.counts.rows for worker in writers)
    verdict.reads = sum(worker.counts.rows for worker in readers)
    verdict.wrong = sum(worker.counts.wrong for worker in readers)
    verdict.longest_pause_seconds = round(
        max(worker.counts.longest_pause() for worker in writers), 2
    )
    for worker in (*writers, *readers):
        verdict.examples += worker.counts.examples
        if worker.counts.failure:
            verdict.examples.append(worker.counts.failure)
    seconds = max(0.001, verdict.seconds)
    verdict.rows_written_per_second = round(verdict.rows_acked / seconds)
    verdict.rows_read_per_second = round(verdict.reads / seconds)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def in_words(verdict: DemoVerdict) -> str:
    lines = [
        f"acknowledged   {verdict.rows_acked:,} rows ({verdict.rows_written_per_second:,} a second)"
        f" to {verdict.keys:,} keys",
        f"read           {verdict.reads:,} rows ({verdict.rows_read_per_second:,} a second)",
        f"joined         {verdict.joined}, which was filled; {verdict.drained} was drained",
        f"moved          {verdict.moves} replicas on {verdict.pipeline}, verified: "
        f"{verdict.moved_megabytes:,.0f} MB at {verdict.megabytes_per_second:,.0f} MB/s",
        f"hand-over      {verdict.longest_hand_over_seconds * 1e3:,.0f} ms at most",
        f"killed         {verdict.killed}, with kill -9; it was restarted",
        f"longest pause  of a writer: {_ms(verdict.longest_pause_without_move_seconds)} before the "
        f"moves, {_ms(verdict.longest_pause_with_move_seconds)} during the moves, "
        f"{_ms(verdict.longest_pause_seconds)} at the kill",
        f"lost           {count(verdict.lost, 'row')}",
        f"wrong          {count(verdict.wrong, 'value')}",
        f"replicas       {'all equal' if verdict.replicas_equal else 'DIFFERENT'}",
        *verdict.examples,
        "Nothing was lost." if verdict.ok else "FAILED: see above.",
    ]
    return "\n".join(lines)
