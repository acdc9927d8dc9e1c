"""How does one worker compare replicas? Slice by slice: the lead's rows, then the others'.

A slice is a few megabytes of keys and hashes of each replica. Usually the hashes are equal, and the
slice is done. Keys that differ are read again after a moment: a row counts as different only if it
differed twice. Keys that `comparing` leaves open, because they are being written, are read again
up to a few times; a key that was being written each time counts as unsettled.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
from msgspec import Struct
from msgspec.structs import replace

from limosa.core.model.keys import NodeId, PartitionId, Position, TokenRange
from limosa.errors import LimosaError, OutcomeUnknown, Refused
from limosa.pipeline.comparing import (
    Candidate,
    Key,
    Moment,
    ReplicaRows,
    State,
    compare,
    sentence,
    version_words,
)
from limosa.pipeline.loads import CopyTarget
from limosa.pipeline.pipe import Access
from limosa.pipeline.portions import SLICE_ROWS, Examination, Portion, PortionLimits, PortionResult
from limosa.protocol.peers import Dialer
from limosa.protocol.replica_scan import HASH, Holding, Named, ReplicaScan, moment_of, schema_of
from limosa.protocol.slices import slice_of
from limosa.tabular.rows import DELETED, VERSION
from limosa.tabular.schema import Table, newer
from limosa.transport.failures import errors_received
from limosa.transport.security import call_options

SLICE_BYTES_MAX = 256 << 20
"""A larger slice, with long keys, is cut in two."""
CALL_SECONDS = 10.0
READ_SECONDS = 120.0
LOOK_SECONDS = 0.05
TOKENS_MAX = 32
"""For more tokens than this, single lookups were measured to take longer than reading the slice."""


class RowSource(Protocol):
    """Where rows of replicas come from."""

    def holding(self, target: CopyTarget, partition: PartitionId) -> Holding: ...

    def read(
        self,
        target: CopyTarget,
        partition: PartitionId,
        table: Table,
        ranges: Sequence[TokenRange],
        at_least: Position,
    ) -> ReplicaRows:
        """The rows; only the watermark and no rows if the replica is behind `at_least`."""
        ...


class PortionTooLarge(Exception):
    """A slice has more rows than a worker should hold in memory."""


# --- one portion


class _Row(Struct, eq=False):
    """A key that differs."""

    candidate: Candidate
    others: dict[NodeId, State | None] = {}


class Examiner:
    """Compares one portion."""

    def __init__(
        self,
        portion: Portion,
        source: RowSource,
        strict: bool = False,
        limits: PortionLimits = PortionLimits(),  # noqa: B008 - it is frozen
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._portion = portion
        self._source = source
        self._strict = strict
        self._limits = limits
        self._now = now
        self._sleep = sleep
        self._others = list(portion.others)
        """The replicas that are still compared."""
        self._rows = 0
        self._told: list[str] = []
        self._more = 0
        self._unsettled = 0
        self._lags: list[str] = []
        self._errors: list[str] = []

    def examine(self) -> PortionResult:
        began = self._now()
        lead = self._portion.lead.node
        try:
            self._examine_all()
        except LimosaError as error:
            self._errors.append(self._said(lead, error))
            self._others = []
        return PortionResult(
            self._portion.partition,
            self._rows,
            (lead, *(other.node for other in self._others)) if self._others else (),
            tuple(self._told),
            self._more,
            self._unsettled,
            tuple(self._lags),
            tuple(self._errors),
            seconds=self._now() - began,
        )

    def _examine_all(self) -> None:
        portion = self._portion
        known = [self._source.holding(portion.lead, portion.partition)]
        for other in list(self._others):
            try:
                known.append(self._source.holding(other, portion.partition))
            except LimosaError as error:
                self._drop(other, error)
        token_range = TokenRange(*known[0].range)
        slices = portion.slices or -(-max(each.rows for each in known) // SLICE_ROWS)
        slices = max(1, min(slices, token_range.end - token_range.start))
        last = portion.last if portion.slices else slices
        for name, table in self._tables(known):
            for number in range(portion.first, min(last, slices)):
                self._examine(name, table, slice_of(token_range, number, slices))

    def _tables(self, known: Iterable[Holding]) -> list[tuple[str, Table]]:
        """The tables, each with a name to show if there are several."""
        if self._portion.table:
            return [("", Table.decode(self._portion.table))]
        found: dict[str, tuple[str, Table]] = {}
        for holding in known:
            for name, definition in holding.tables:
                table = Table.decode(definition)
                if table.kind == "table":
                    before = found.get(table.id, ("", table))[1]
                    found[table.id] = (f"{name} ", newer(before, table))
        return [found[id] for id in sorted(found)]

    def _examine(self, name: str, table: Table, token_range: TokenRange) -> None:
        """Compare one slice; in two halves if it is too large."""
        if not self._others:
            return
        try:
            differing = self._rounds(table, token_range)
        except PortionTooLarge:
            middle = (token_range.start + token_range.end) // 2
            if middle == token_range.start:
                raise Refused(f"the rows of token {token_range.start} are too large") from None
            self._examine(name, table, TokenRange(token_range.start, middle))
            self._examine(name, table, TokenRange(middle, token_range.end))
            return
        for row in differing:
            if len(self._told) < self._limits.differences:
                candidate, lead = row.candidate, self._portion.lead.node
                words = f"{name}{candidate.words}"
                self._told.append(sentence(words, lead, candidate.lead, row.others))
            else:
                self._more += 1

    # --- one slice

    def _rounds(self, table: Table, token_range: TokenRange) -> list[_Row]:
        """The keys that differed twice."""
        differing: dict[Key, _Row] = {}
        suspects: dict[NodeId, dict[Key, Candidate]] = {}
        pause, counted = self._limits.pause_seconds, 0
        for number in range(self._limits.rounds):
            if number:
                self._sleep(pause)
                pause *= 2
            ranges = ranges_of(suspects.values(), token_range) if number else [token_range]
            lead = self._source.read(self._portion.lead, self._portion.partition, table, ranges, 0)
            counted = counted if number else lead.live
            before, suspects = suspects, {}
            for other in list(self._others):
                known = before.get(other.node)
                if number and known is None:
                    continue
                rows = self._await(other, lead, ranges)
                if rows is None:
                    continue
                if rows.table.version > lead.table.version:  # hashed with other columns
                    return self._rounds(rows.table, token_range)
                found = compare(lead, rows, known, self._strict)
                left = _settle(other.node, known, found, differing)
                if left:
                    suspects[other.node] = left
            if not suspects:
                break
        self._rows += counted
        self._unsettled += len({key for keys in suspects.values() for key in keys})
        return list(differing.values())

    def _await(
        self, other: CopyTarget, lead: ReplicaRows, ranges: Sequence[TokenRange]
    ) -> ReplicaRows | None:
        """The other's rows, once it has reached the lead's watermark; None: it is dropped."""
        portion, wanted = self._portion, lead.at.watermark
        deadline = self._now() + self._limits.lag_seconds
        try:
            while True:
                rows = self._source.read(other, portion.partition, lead.table, ranges, wanted)
                if rows.at.watermark >= wanted:
                    return rows
                if self._now() >= deadline:
                    break
                self._sleep(LOOK_SECONDS)
        except LimosaError as error:
            self._drop(other, error)
            return None
        self._others.remove(other)
        self._lags.append(
            f"{portion.partition}: {other.node} lags behind {portion.lead.node}: it is at "
            f"{version_words(rows.at.watermark)}, and did not reach {version_words(wanted)} within "
            f"{self._limits.lag_seconds:.0f} s"
        )
        return None

    def _drop(self, other: CopyTarget, error: LimosaError) -> None:
        self._others.remove(other)
        self._errors.append(self._said(other.node, error))

    def _said(self, node: NodeId, error: LimosaError) -> str:
        return f"{self._portion.partition} at {node}: {error}"


def _settle(
    node: NodeId,
    known: dict[Key, Candidate] | None,
    found: dict[Key, Candidate],
    differing: dict[Key, _Row],
) -> dict[Key, Candidate]:
    """Keys that differed before and still differ are certain; the others are read again."""
    suspects: dict[Key, Candidate] = {}
    for key, candidate in found.items():
        before = None if known is None else known.get(key)
        if candidate.verdict == "differs" and before is not None and before.verdict == "differs":
            row = differing.setdefault(key, _Row(candidate))
            row.others[node] = candidate.other
        else:
            suspects[key] = candidate
    return suspects


def ranges_of(
    suspects: Iterable[dict[Key, Candidate]], token_range: TokenRange
) -> list[TokenRange]:
    """The ranges to read again: single tokens, or the whole slice if they are many."""
    found = sorted({candidate.token for keys in suspects for candidate in keys.values()})
    if len(found) > TOKENS_MAX:
        return [TokenRange(max(token_range.start, found[0]), min(token_range.end, found[-1] + 1))]
    return [TokenRange(token, token + 1) for token in found]


# --- over the network


class FlightSource:
    """Reads replicas over Flight; a node that did not answer once is not called again."""

    def __init__(self, addresses: dict[NodeId, str], dialer: Dialer) -> None:
        self._addresses = addresses
        self._dialer = dialer
        self._clients: dict[NodeId, flight.FlightClient] = {}
        self._silent: dict[NodeId, str] = {}
        self.bytes = 0
        self.token = dialer.token()
        """Of the portion that is compared."""

    @contextmanager
    def _asking(self, node: NodeId) -> Iterator[None]:
        if node in self._silent:
            raise Refused(self._silent[node])
        try:
            with errors_received():
                yield
        except OutcomeUnknown as error:
            self._silent[node] = error.message
            raise

    def holding(self, target: CopyTarget, partition: PartitionId) -> Holding:
        named = msgspec.msgpack.encode(Named(partition, target.incarnation))
        with self._asking(target.node):
            options = call_options(self.token, CALL_SECONDS)
            (answer,) = self._client(target).do_action(flight.Action("replica", named), options)
        return msgspec.msgpack.decode(answer.body.to_pybytes(), type=Holding)

    def read(
        self,
        target: CopyTarget,
        partition: PartitionId,
        table: Table,
        ranges: Sequence[TokenRange],
        at_least: Position,
    ) -> ReplicaRows:
        wanted = tuple((each.start, each.end) for each in ranges)
        scan = ReplicaScan(partition, target.incarnation, table.encode(), wanted, at_least)
        with self._asking(target.node):
            reader = self._client(target).do_get(
                flight.Ticket(scan.encode()), call_options(self.token, READ_SECONDS)
            )
            moment = moment_of(reader.schema)
            batches: list[pa.RecordBatch] = []
            size = 0
            for chunk in reader:
                assert chunk.data is not None
                batches.append(chunk.data)
                size += chunk.data.nbytes
                if size > SLICE_BYTES_MAX:
                    reader.cancel()
                    raise PortionTooLarge
        self.bytes += size
        at = Moment(moment.watermark, moment.collected)
        return rows_of(target.node, at, Table.decode(moment.table), batches)

    def _client(self, target: CopyTarget) -> flight.FlightClient:
        client = self._clients.get(target.node)
        if client is None:
            address = self._addresses[target.node]
            client = self._clients[target.node] = self._dialer.client(target.node, address)
        return client

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def rows_of(
    node: NodeId, at: Moment, table: Table, batches: Sequence[pa.RecordBatch]
) -> ReplicaRows:
    """The rows of batches that a node has sent."""
    whole = pa.Table.from_batches(batches, schema_of(table)).combine_chunks()
    (batch,) = whole.to_batches() or [pa.RecordBatch.from_pylist([], schema=schema_of(table))]
    return ReplicaRows(
        node,
        at,
        table,
        batch.select(list(table.key)),
        batch.column(VERSION).to_numpy(),
        batch.column(DELETED).to_numpy(zero_copy_only=False),
        batch.column(HASH).to_numpy(),
    )


def run(access: bytes, task: bytes, name: str, again: bool = False) -> bytes:
    """Run a task of comparisons; a retry changes nothing."""
    wanted = msgspec.msgpack.decode(task, type=Examination)
    who = msgspec.msgpack.decode(access, type=Access)
    findings = []
    with closing(FlightSource(wanted.addresses, who.dialer(name))) as source:
        for portion in wanted.portions:
            source.bytes = 0
            source.token = portion.permit.token
            finding = Examiner(portion, source, wanted.strict, wanted.limits).examine()
            findings.append(replace(finding, bytes=source.bytes))
    return msgspec.msgpack.encode(findings)
