"""How are rows encoded? As bodies: Arrow messages that are used in place.

A log frame and a message on the wire have the same form: a small head that names its bodies, and
the bodies. So a node logs and forwards the very bytes that it received.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pyarrow as pa
from msgspec import Struct

from limosa.core.model.keys import Position, TokenRange
from limosa.core.model.rows import Entry
from limosa.errors import BadInput
from limosa.tabular.rows import DELETED, TOKEN, VERSION, Batch, Bundle
from limosa.tabular.schema import Table

Piece: TypeAlias = bytes | pa.Buffer

ALIGNMENT = 64
"""Every body starts at a multiple of this many bytes."""
BATCH_BYTES_MAX = 256 << 20
"""Arrow counts a text column's bytes in 31 bits, and a merge joins several batches. What clients
may write is far smaller (`sizes`)."""

_TOKENED, _VERSIONED, _FLAGGED = 1, 2, 4
ALL_EXTRAS = _TOKENED | _VERSIONED | _FLAGGED


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class BodyPart(Struct, array_like=True, frozen=True):
    """A reference to rows of one table: which body, and its columns besides the table's."""

    schema: int
    extras: int
    at: int
    size: int


class LoggedEntry(Struct, array_like=True, frozen=True):
    at: Position
    previous: Position
    producer: str
    sequence: int
    floor: int
    range: TokenRange | None
    found: Position | None
    collects: Position
    parts: tuple[BodyPart, ...] | None


class Bodies:
    """Collects the bodies of one frame."""

    def __init__(self, schema_of: Callable[[Table], int]) -> None:
        self._schema_of = schema_of
        self.pieces: list[Piece] = []
        self.size = 0

    def add(self, batch: Batch) -> BodyPart:
        if batch.body is not None:  # the received bytes can be used again
            extras, body = batch.body
        else:
            stored, extras = stored_columns(batch)
            body = stored.serialize()
        if len(body) > BATCH_BYTES_MAX:
            raise BadInput(
                f"a batch for {batch.table.id} has {len(body)} bytes",
                f"send at most {BATCH_BYTES_MAX} bytes at once",
            )
        batch.note_bytes(len(body))
        part = BodyPart(self._schema_of(batch.table), extras, self.size, len(body))
        self.pieces.append(body)
        self.size += padded(len(body))
        return part

    def add_bundle(self, rows: object) -> tuple[BodyPart, ...]:
        assert isinstance(rows, Bundle), "a volume stores Arrow rows only"
        return tuple(self.add(batch) for batch in rows.batches)


def stored_columns(batch: Batch) -> tuple[pa.RecordBatch, int]:
    """The table's columns and, if present, tokens, versions and tombstones."""
    if batch.given_tokens is None and batch.deleted is None and batch.versions is None:
        return batch.columns, 0
    arrays = list(batch.columns.columns)
    extras = 0
    if batch.given_tokens is not None:
        arrays.append(pa.array(batch.given_tokens))
        extras |= _TOKENED
    if batch.versions is not None:
        arrays.append(pa.array(batch.versions))
        extras |= _VERSIONED
    if batch.deleted is not None:
        arrays.append(pa.array(batch.deleted))
        extras |= _FLAGGED
    return pa.RecordBatch.from_arrays(arrays, schema=stored_schema(batch.table, extras)), extras


_schemas: dict[tuple[int, int], tuple[Table, pa.Schema]] = {}


def stored_schema(table: Table, extras: int = ALL_EXTRAS) -> pa.Schema:
    key = (id(table), extras)
    known = _schemas.get(key)
    if known is not None and known[0] is table:
        return known[1]
    schema = table.physical
    if extras & _TOKENED:
        schema = schema.append(pa.field(TOKEN, pa.int64(), nullable=False))
    if extras & _VERSIONED:
        schema = schema.append(pa.field(VERSION, pa.int64(), nullable=False))
    if extras & _FLAGGED:
        schema = schema.append(pa.field(DELETED, pa.bool_(), nullable=False))
    if len(_schemas) > 4096:
        _schemas.clear()
    _schemas[key] = (table, schema)
    return schema


def read_batch(table: Table, extras: int, body: pa.Buffer) -> Batch:
    """The rows of one body, without a copy."""
    stored = pa.ipc.read_record_batch(body, stored_schema(table, extras))
    batch = unpack(table, extras, stored)
    batch.note_bytes(body.size)
    return batch


def unpack(table: Table, extras: int, stored: pa.RecordBatch) -> Batch:
    if not extras:
        return Batch(table, stored)
    width = len(table.physical)
    columns = pa.RecordBatch.from_arrays(stored.columns[:width], schema=table.physical)
    rest = stored.columns[width:]
    tokens = rest.pop(0).to_numpy() if extras & _TOKENED else None
    versions = rest.pop(0).to_numpy() if extras & _VERSIONED else None
    deleted = rest.pop(0).to_numpy(zero_copy_only=False) if extras & _FLAGGED else None
    if deleted is not None and not deleted.any():
        deleted = None
    return Batch(table, columns, tokens, versions, deleted)


def log_entries(entries: Iterable[Entry], bodies: Bodies) -> tuple[LoggedEntry, ...]:
    return tuple(
        LoggedEntry(
            entry.at,
            entry.previous,
            entry.producer,
            entry.sequence,
            entry.floor,
            entry.range,
            entry.found,
            entry.collects,
            None if entry.rows is None else bodies.add_bundle(entry.rows),
        )
        for entry in entries
    )


def read_entry(
    entry: LoggedEntry,
    bundle: Callable[[Iterable[BodyPart], pa.Buffer], Bundle],
    bodies: pa.Buffer,
) -> Entry:
    """The entry with its rows, as `bundle` reads them from the bodies."""
    return Entry(
        entry.at,
        entry.previous,
        None if entry.parts is None else bundle(entry.parts, bodies),
        entry.producer,
        entry.sequence,
        entry.floor,
        entry.range,
        entry.found,
        entry.collects,
    )
