"""Does it really lose nothing? `limosa demo`: a cluster, load, a kill -9, and a verdict."""

import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import Console
from rich.live import Live
from rich.text import Text

from limosa.cli.connecting import AsJson
from limosa.cli.demonstration import (
    KEY,
    SCHEMA,
    Ledger,
    ReaderThread,
    Worker,
    WriterThread,
    await_equal_replicas,
    final_values,
)
from limosa.cli.showing import print_json, tell
from limosa.client.connection import Connection, connect
from limosa.errors import LimosaError, Refused
from limosa.runtime.local import LocalCluster

WRITERS, READERS = 4, 2
KEYS_PER_WRITER = 50_000
ROWS_PER_WRITE, ROWS_PER_READ = 5_000, 1_000
PARTITIONS, REPLICAS = 12, 3
KILL_AT, RESTART_AT = 0.35, 0.65
JOIN_SECONDS, CATCH_UP_SECONDS = 45.0, 60.0
SHOW_SECONDS = 0.5


class Verdict(Struct):
    """What `--json` prints."""

    ok: bool = False
    rows_acked: int = 0
    keys: int = 0
    lost: int = 0
    wrong: int = 0
    reads: int = 0
    longest_pause_seconds: float = 0.0
    replicas_equal: bool = False
    killed: str = ""
    seconds: float = 0.0
    rows_written_per_second: int = 0
    rows_read_per_second: int = 0
    examples: list[str] = []


def demo(
    seconds: Annotated[float, typer.Option(min=4.0, help="How long the load lasts.")] = 20.0,
    nodes: Annotated[int, typer.Option(min=3, max=10, help="How many.")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster's directory.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a cluster, load it, kill a node in the middle, and check that nothing was lost.

    Writers give their keys increasing numbers; readers check every value that they see. The node
    that owns most partitions is killed with kill -9, and started again later. In the end every
    acknowledged row must be there, no wrong value may have been read, and all replicas must be
    equal. Exit code: 0 so it was, 1 it was not.

    \b
    Examples:
      limosa demo
      limosa demo --seconds 60 --nodes 5 --json
    """
    directory = tempfile.mkdtemp(prefix="limosa-demo-")
    lease_seconds = max(1.0, min(3.0, seconds / 7))
    local = LocalCluster(
        directory, nodes, "demo", arguments=["--lease-seconds", f"{lease_seconds:.1f}"]
    )
    try:
        with _terminated_as_interrupted(), _cleaned_up(local, keep):
            tell(f"Starting {nodes} nodes in {directory} …")
            local.start()
            verdict = _run(local, seconds)
    finally:
        if keep:
            tell(f"The directory is kept: limosa up --data {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if as_json:
        print_json(verdict)
    else:
        typer.echo(in_words(verdict))
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
    """What is thrown away need not be closed in order."""
    try:
        yield
    finally:
        if not keep:
            for process in list(local.processes.values()):
                with suppress(ProcessLookupError):
                    process.kill()
        local.stop()


def _run(local: LocalCluster, seconds: float) -> Verdict:
    with connect(
        list(local.addresses.values()),
        cluster_name=local.cluster,
        secret=local.secret,
        name="demo",
    ) as connection:
        table = connection.create_table(
            "numbers", SCHEMA, KEY, partitions=PARTITIONS, replicas=REPLICAS
        )
        ledger = Ledger(WRITERS * KEYS_PER_WRITER)
        writers: list[Worker] = [
            WriterThread(
                table,
                ledger,
                number,
                range(number * KEYS_PER_WRITER, (number + 1) * KEYS_PER_WRITER),
                ROWS_PER_WRITE,
            )
            for number in range(WRITERS)
        ]
        readers: list[Worker] = [
            ReaderThread(table, ledger, 1000 + number, ROWS_PER_READ) for number in range(READERS)
        ]
        verdict = Verdict()
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


def _load(
    local: LocalCluster,
    connection: Connection,
    writers: list[Worker],
    readers: list[Worker],
    seconds: float,
    verdict: Verdict,
) -> None:
    workers = [*writers, *readers]
    for worker in workers:
        worker.start()
    began = time.monotonic()
    kill_at, restart_at = KILL_AT * seconds, RESTART_AT * seconds
    restarting: threading.Thread | None = None
    with _screen() as show:
        before = (0.0, 0, 0)
        while (passed := time.monotonic() - began) < seconds:
            if not verdict.killed and passed >= kill_at:
                verdict.killed = busiest(connection)
                local.kill(verdict.killed)
                show(
                    f"{passed:5.1f} s  kill -9 {verdict.killed}, the owner of most partitions", True
                )
            if restarting is None and passed >= restart_at:
                restarting = threading.Thread(
                    target=_restart, args=(local, verdict.killed), daemon=True
                )
                restarting.start()
                show(f"{passed:5.1f} s  {verdict.killed} is started again", True)
            time.sleep(SHOW_SECONDS)
            before = _show_rates(show, (writers, readers), time.monotonic() - began, before)
    for worker in workers:
        worker.stop()
    hanging = [worker for worker in workers if not worker.join(JOIN_SECONDS)]
    if restarting is not None:
        restarting.join(JOIN_SECONDS)
    if hanging or not verdict.killed or not local.is_running(verdict.killed):
        raise Refused("a worker hangs, or the node did not come back", "keep the logs with --keep")


def _restart(local: LocalCluster, name: str) -> None:
    with suppress(LimosaError):  # whether it runs is looked at later
        local.start_one(name)


def _show_rates(
    show: Callable[[str, bool], None],
    sides: tuple[list[Worker], list[Worker]],
    passed: float,
    before: tuple[float, int, int],
) -> tuple[float, int, int]:
    written, seen = (sum(worker.counts.rows for worker in side) for side in sides)
    period = max(0.001, passed - before[0])
    show(
        f"{passed:5.1f} s  {(written - before[1]) / period:>9,.0f} rows/s acknowledged  "
        f"{(seen - before[2]) / period:>9,.0f} rows/s read",
        False,
    )
    return (passed, written, seen)


@contextmanager
def _screen() -> Iterator[Callable[[str, bool], None]]:
    """Events stay; rates are drawn over each other on a terminal, else a line every few seconds."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Live(Text(""), console=console, transient=True) as live:

            def draw(line: str, stays: bool) -> None:
                if stays:
                    live.console.print(line)
                else:
                    live.update(Text(line))

            yield draw
        return
    shown = Counter[str]()

    def say(line: str, stays: bool) -> None:
        shown["rates"] += not stays
        if stays or shown["rates"] % 4 == 0:
            tell(line)

    yield say


def busiest(connection: Connection) -> str:
    """The node that owns most partitions."""
    owners = [
        each.owner.replica.node for each in connection.refresh().partitions.values() if each.owner
    ]
    return Counter(sorted(owners)).most_common(1)[0][0]


def judge(verdict: Verdict, writers: list[Worker], readers: list[Worker]) -> None:
    """What the threads saw."""
    verdict.rows_acked = sum(worker.counts.rows for worker in writers)
    verdict.reads = sum(worker.counts.rows for worker in readers)
    verdict.wrong = sum(worker.counts.wrong for worker in readers)
    verdict.longest_pause_seconds = round(
        max(worker.counts.longest_pause_seconds for worker in writers), 2
    )
    for worker in (*writers, *readers):
        verdict.examples += worker.counts.examples
        if worker.counts.failure:
            verdict.examples.append(worker.counts.failure)
    seconds = max(0.001, verdict.seconds)
    verdict.rows_written_per_second = round(verdict.rows_acked / seconds)
    verdict.rows_read_per_second = round(verdict.reads / seconds)


def in_words(verdict: Verdict) -> str:
    lines = [
        f"acknowledged   {verdict.rows_acked:,} rows ({verdict.rows_written_per_second:,} a second)"
        f" of {verdict.keys:,} keys",
        f"read           {verdict.reads:,} rows ({verdict.rows_read_per_second:,} a second)",
        f"killed         {verdict.killed}, with kill -9; it came back",
        f"longest pause  {verdict.longest_pause_seconds:.2f} s of any writer",
        f"lost           {verdict.lost}",
        f"wrong          {verdict.wrong}",
        f"replicas       {'all equal' if verdict.replicas_equal else 'DIFFERENT'}",
        *verdict.examples,
        "Nothing was lost." if verdict.ok else "THIS WENT WRONG: see above.",
    ]
    return "\n".join(lines)
