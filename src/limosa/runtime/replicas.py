"""What does one replica hold? Its own rows, for those who compare it with another replica.

Unlike a scan, this does not ask the participant: any replica answers, whether owner, follower or
still being copied, with rows up to its own watermark. All rows come from one view, so they are of
one moment, whatever is written or merged meanwhile; the node's lock is not taken.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from limosa.core.model.changes import Topology
from limosa.core.model.keys import PartitionId, TokenRange
from limosa.errors import BadInput
from limosa.protocol.replica_scan import (
    KIND,
    MOMENT,
    RANGES_MAX,
    SIZE_MAX,
    Holding,
    Named,
    ReplicaMoment,
    ReplicaScan,
    schema_of,
)
from limosa.storage.store import Store
from limosa.storage.view import View
from limosa.tabular.rows import Batch, deleted_of
from limosa.tabular.schema import Table, newer

_scans = msgspec.msgpack.Decoder(ReplicaScan)
_names = msgspec.msgpack.Decoder(Named)


def holding(
    store: Store, topology: Topology, body: bytes, check: Callable[[PartitionId], None]
) -> bytes:
    """Answers the call `replica`; `check` refuses partitions that the caller may not compare."""
    try:
        named = _names.decode(body[:SIZE_MAX])
    except (ValueError, RecursionError):
        raise BadInput("malformed name of a replica", "check the client's version") from None
    check(named.partition)
    record = topology.partitions.get(named.partition)
    if record is None:
        raise BadInput(f"there is no partition {named.partition[:200]!r}", "refresh the topology")
    view = store.view(named.partition, named.incarnation)
    names = {named.id: named.name for named in topology.tables.values()}
    tables = tuple(
        (names.get(id, id), each.table.encode()) for id, each in sorted(view.tables.items())
    )
    token_range = (record.range.start, record.range.end)
    known = Holding(view.watermark, view.size.rows, token_range, tables)
    return msgspec.msgpack.encode(known)


def read_replica(
    store: Store, ticket: bytes, check: Callable[[PartitionId], None]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Answers a `ReplicaScan`; raises before the first row if it can't be answered."""
    if len(ticket) > SIZE_MAX:
        raise BadInput(f"a ticket has {len(ticket)} bytes", f"use at most {SIZE_MAX}")
    try:
        scan = _scans.decode(ticket.removeprefix(KIND))
    except (ValueError, RecursionError):
        raise BadInput("malformed ticket of a replica scan", "check the client's version") from None
    check(scan.partition)
    ranges = _checked(scan.ranges)
    wanted = Table.decode(scan.table)
    if wanted.kind != "table":
        raise BadInput(f"{wanted.id} is a stream", "compare tables: records have no single key")
    view = store.view(scan.partition, scan.incarnation)
    stored = view.tables.get(wanted.id)
    if stored is not None:
        stored.table.check_kin(wanted)
    table = wanted if stored is None else newer(wanted, stored.table)
    moment = ReplicaMoment(view.watermark, view.collected, table.encode())
    schema = schema_of(table)
    known = schema.with_metadata({MOMENT: msgspec.msgpack.encode(moment)})
    late = view.watermark < scan.at_least
    return known, iter(()) if late else _rows(view, table, ranges, schema)


def _checked(given: Sequence[tuple[int, int]]) -> list[TokenRange]:
    """Check that ranges are in order and disjoint, so that no row is sent twice."""
    if not 0 < len(given) <= RANGES_MAX:
        raise BadInput(f"a replica scan has {len(given)} token ranges", f"give 1 to {RANGES_MAX}")
    ranges = [TokenRange(start, end) for start, end in given]
    for before, after in pairwise(ranges):
        if before.end > after.start:
            raise BadInput(
                "token ranges overlap or are out of order", "give disjoint ranges in order"
            )
    return ranges


def _rows(
    view: View, table: Table, ranges: Sequence[TokenRange], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for token_range in ranges:
        for batch in view.batches(table, token_range, tombstones=True):
            if len(batch):
                yield _slim(table, batch, schema)


def _slim(table: Table, batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    versions = batch.versions
    assert versions is not None
    keys = [batch.columns.column(name) for name in table.key]
    rest = [pa.array(np.ascontiguousarray(each)) for each in (versions, deleted_of(batch))]
    return pa.RecordBatch.from_arrays([*keys, *rest, pa.array(batch.hashes())], schema=schema)
