"""Do all replicas hold the same rows? `limosa verify` compares them on Spark."""

import queue
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from limosa.cli.shared.options import ClusterOptions, with_groups
from limosa.cli.shared.pipelines import PipelineChoice, SparkMaster, SparkSecret, check_installed
from limosa.cli.shared.terminal import count, print_json, tell
from limosa.client.operator import Operator
from limosa.core import routing
from limosa.core.model.topology import Partition
from limosa.errors import LimosaError, Refused
from limosa.pipeline.application import Options
from limosa.pipeline.carriers import Carrier, SparkCarrier, ThreadCarrier
from limosa.pipeline.loads import Permit
from limosa.pipeline.pipe import Access
from limosa.pipeline.portions import (
    EXAMINE,
    Examination,
    Portion,
    PortionResult,
    cut,
    portion_of,
    share_out,
    whole,
)
from limosa.pipeline.protection import secret_for

ATTEMPTS = 6
AGAIN_SECONDS = 1.0
"""A failover takes a few seconds."""
TASKS_UNDER_WAY = 2
"""Per worker, so that no worker waits for its next task."""
LOOK_SECONDS = 0.2
STOP_SECONDS = 1.0
"""Spark holds nothing that is needed afterwards."""
TOLD_MAX = 100

REMARKS_MAX = 20


@with_groups
def verify(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    pipeline: Annotated[
        PipelineChoice,
        typer.Option(
            "--pipeline",
            help="What compares the rows: auto is Spark; threads run within this command.",
        ),
    ] = "auto",
    spark_master: SparkMaster = "",
    spark_secret: SparkSecret = None,
) -> None:
    """Compare all replicas of a table, row by row.

    This is safe while the table is written and its partitions move: the command waits for replicas
    that are a little behind, and reads rows again that are being written. It skips replicas that
    are out of sync or still being copied, and lists them. The exit code is 1 if rows differ, or if
    some could not be compared.

    \b
    Examples:
      limosa verify items
      limosa verify items --json
      limosa verify items --spark-master spark://10.0.0.7:7077 --spark-secret spark-secret
      limosa verify items --pipeline threads
    """
    check_installed(pipeline)
    secret = "" if pipeline == "threads" else secret_for(spark_master, spark_secret)
    began = time.monotonic()
    with target.operate() as connection:
        definition = connection.table(table).definition.encode()
        zone = connection.topology.tables[table].zone
        with Bar() as bar, _carrier(pipeline, spark_master, secret, bar) as carrier:
            verification = Verification(connection, target, zone, definition, carrier, bar)
            verification.run()
            ended = time.monotonic()
            summary = verification.summary(table, ended - began, ended - bar.since)
    if target.as_json:
        print_json(summary)
    else:
        _print(summary)
    if not summary.equal:
        raise typer.Exit(1)


class VerifySummary(Struct, frozen=True):
    """The result, as `--json` prints it."""

    table: str
    equal: bool
    rows: int
    partitions: int
    replicas: int
    """The number of replicas that were compared, of all partitions together."""
    seconds: float
    rows_per_second: int
    """Excludes the time that Spark took to start."""
    differences: list[str]
    more: int
    """The number of further differences, which are not listed."""
    unsettled: int
    """Rows that were being written each time they were read."""
    lagging: list[str]
    errors: list[str]
    left_out: list[str]


class Verification:
    """Splits the table into portions, has them compared, and retries portions that failed."""

    def __init__(
        self,
        connection: Operator,
        target: ClusterOptions,
        zone: str,
        table: bytes,
        carrier: Carrier,
        bar: "Bar",
    ) -> None:
        self._connection = connection
        self._access = Access("", target.authority, target.certificate, target.private_key)
        self._zone = zone
        self._table = table
        self._carrier = carrier
        self._bar = bar
        self._ended: queue.SimpleQueue[tuple[Sequence[Portion], int, Sequence[bytes], str]]
        self._ended = queue.SimpleQueue()
        self._findings: list[PortionResult] = []
        self._failed: list[tuple[Portion, PortionResult]] = []
        self._left_out: set[tuple[str, str, str]] = set()
        """Node, why, and partition."""
        self._job = 0

    def run(self) -> None:
        planned = self._plan()
        self._bar.update(total=sum(rows for _, rows in planned))
        self._carry_out(planned)
        for _ in range(ATTEMPTS - 1):
            if self._failed:
                time.sleep(AGAIN_SECONDS)
                self._carry_out(self._plan_again())

    # --- planning

    def _plan(self) -> list[tuple[Portion, int]]:
        topology = self._connection.refresh()
        partitions = topology.layouts[self._zone].partitions
        records = [topology.partitions[partition] for partition in partitions]
        sizes = self._sizes(records)
        planned = []
        for record in records:
            self._note_left_out(record)
            portion = portion_of(record, self._table)
            rows = sizes.get((record.id, portion.lead.incarnation), 0)
            if portion.others:
                parts = cut(portion, rows)
                planned += [(part, rows // len(parts)) for part in parts]
        return planned

    def _plan_again(self) -> list[tuple[Portion, int]]:
        """The same slices, on the nodes that hold them now."""
        topology = self._connection.refresh()
        failed, self._failed = self._failed, []
        planned = []
        for before, finding in failed:
            record = topology.partitions.get(before.partition)
            now = None if record is None else portion_of(record, self._table)
            if record is None or now is None or not now.others:
                self._findings.append(finding)
            else:
                self._note_left_out(record)
                planned.append((replace(before, lead=now.lead, others=now.others), 0))
        return planned

    def _sizes(self, records: Sequence[Partition]) -> dict[tuple[str, str], int]:
        """Approximate numbers of rows; replicas of nodes that do not answer are missing."""
        sizes: dict[tuple[str, str], int] = {}
        for node in sorted({portion_of(record).lead.node for record in records} - {""}):
            with suppress(LimosaError, KeyError):
                for held in self._connection.node_status(node)["replicas"]:
                    sizes[held["partition"], held["incarnation"]] = held["rows"]
        return sizes

    def _note_left_out(self, record: Partition) -> None:
        compared = whole(record)
        for replica in routing.everywhere(record):
            if replica not in compared:
                is_new = replica in routing.new_only(record)
                why = "still being copied" if is_new else "out of sync"
                self._left_out.add((replica.node, why, record.id))
        if len(compared) == 1:
            self._left_out.add((compared[0].node, "the partition's only replica", record.id))

    # --- carrying out

    def _carry_out(self, planned: Sequence[tuple[Portion, int]]) -> None:
        waiting = share_out(planned, self._carrier.workers)
        under_way = 0
        while waiting or under_way:
            while waiting and under_way < TASKS_UNDER_WAY * self._carrier.workers:
                self._begin(*waiting.pop(0))
                under_way += 1
            with suppress(queue.Empty):
                self._end(*self._ended.get(timeout=LOOK_SECONDS))
                under_way -= 1

    def _begin(self, portions: Sequence[Portion], rows: int) -> None:
        topology = self._connection.topology
        addresses = {node.id: node.address for node in topology.nodes.values()}
        task = Examination(tuple(self._permitted(portions)), addresses)
        self._job += 1
        self._carrier.run(
            f"verify-{self._job}",
            EXAMINE,
            msgspec.msgpack.encode(self._access),
            [msgspec.msgpack.encode(task)],
            lambda results, why: self._ended.put((portions, rows, results, why)),
        )

    def _permitted(self, portions: Sequence[Portion]) -> list[Portion]:
        """With tokens for these partitions: no task gets the operator's own token."""
        partitions = sorted({portion.partition for portion in portions})
        made = self._connection.comparison_tokens(partitions)
        tokens = dict(zip(partitions, made.tokens, strict=False))
        return [
            replace(portion, permit=Permit(tokens.get(portion.partition))) for portion in portions
        ]

    def _end(
        self, portions: Sequence[Portion], rows: int, results: Sequence[bytes], why: str
    ) -> None:
        if why:
            raise Refused(f"the rows were not compared: {why}", "try --pipeline threads")
        findings = msgspec.msgpack.decode(results[0], type=list[PortionResult])
        for portion, finding in zip(portions, findings, strict=True):
            if finding.errors:
                self._failed.append((portion, finding))
            else:
                self._findings.append(finding)
        self._bar.update(advance=rows)

    # --- the result

    def summary(self, table: str, seconds: float, comparing_seconds: float) -> VerifySummary:
        findings = [*self._findings, *(finding for _, finding in self._failed)]
        differences = [each for finding in findings for each in finding.differences]
        told = differences[:TOLD_MAX]
        more = len(differences) - len(told) + sum(finding.more for finding in findings)
        lagging = sorted({each for finding in findings for each in finding.lags})
        errors = sorted({each for finding in findings for each in finding.errors})
        rows = sum(finding.rows for finding in findings)
        replicas = {(each.partition, node) for each in findings for node in each.nodes}
        left_out = Counter((node, why) for node, why, _ in self._left_out)
        return VerifySummary(
            table,
            not (differences or more or lagging or errors),
            rows,
            len({partition for partition, _ in replicas}),
            len(replicas),
            round(seconds, 3),
            round(rows / max(0.001, comparing_seconds)),
            told,
            more,
            sum(finding.unsettled for finding in findings),
            lagging,
            errors,
            [
                f"{count(number, 'replica')} at {node}: {why}"
                for (node, why), number in sorted(left_out.items())
            ],
        )


# --- progress and Spark


class Bar:
    """The progress bar, on a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} rows"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._shown = self._bar.add_task("comparing", total=None)
        self.since = time.monotonic()
        """When the current phase began."""

    def say(self, what: str) -> None:
        self.since = time.monotonic()
        self._bar.update(self._shown, description=what)

    def update(self, **what: Any) -> None:
        self._bar.update(self._shown, **what)

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


@contextmanager
def _carrier(pipeline: PipelineChoice, master: str, secret: str, bar: Bar) -> Iterator[Carrier]:
    if pipeline == "threads":
        yield ThreadCarrier()
        return
    words = {"starting": "starting Spark", "ready": "comparing"}
    with tempfile.TemporaryDirectory(prefix="limosa-verify-") as directory:
        options = Options(str(Path(directory) / "spark"), master, {}, "limosa-verify", secret)
        spark = SparkCarrier(
            options,
            lambda state, detail: bar.say(words.get(state, f"Spark: {state}")),
            lambda what, **details: None,
        )
        try:
            yield spark
        finally:
            spark.close(STOP_SECONDS)


def _print(summary: VerifySummary) -> None:
    for each in summary.differences:
        typer.echo(each)
    if summary.more:
        typer.echo(f"… and {count(summary.more, 'row')} more")
    remarks = [*summary.left_out, *summary.errors, *summary.lagging]
    for remark in remarks[:REMARKS_MAX]:
        tell(f"Not compared: {remark}.")
    if len(remarks) > REMARKS_MAX:
        tell(f"… and {len(remarks) - REMARKS_MAX} more; --json lists all.")
    if summary.unsettled:
        tell(f"Not compared: {count(summary.unsettled, 'row')} that were being written.")
    typer.echo(
        f"{summary.table}: {count(summary.rows, 'row')} of "
        f"{count(summary.partitions, 'partition')} compared in {summary.seconds:.1f} s "
        f"({count(summary.replicas, 'replica')}, {summary.rows_per_second:,} rows/s): "
        f"{_verdict(summary)}."
    )


def _verdict(summary: VerifySummary) -> str:
    differing = len(summary.differences) + summary.more
    if differing:
        return f"{count(differing, 'row')} {'differs' if differing == 1 else 'differ'}"
    if not summary.replicas:
        return "there was nothing to compare"
    return "all are equal" if summary.equal else "the compared rows are equal"
