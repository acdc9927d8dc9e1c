"""How is a change of a volume written down, and read back?

A record is the head of a log frame: what the core asked for, with rows left out; those are the
frame's bodies, as Arrow messages that can be used where they lie in the file.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    ApplySlice,
    BeginLog,
    CreateReplica,
    DiscardReplica,
    StoreEpoch,
    TrimLog,
    TruncateLog,
    VolumeEffect,
)
from limosa.core.model.keys import Incarnation, PartitionId, Position, TokenRange
from limosa.core.model.rows import Entry
from limosa.core.producers import ProducersValue
from limosa.errors import BadInput
from limosa.storage.files import Piece
from limosa.storage.log import padded
from limosa.storage.rows import DELETED, TOKEN, VERSION, Batch, Bundle
from limosa.storage.schema import Table

BATCH_BYTES_MAX = 256 << 20
"""Arrow counts a text column's bytes in 31 bits, and several batches are merged at once."""

_TOKENED, _VERSIONED, _FLAGGED = 1, 2, 4
ALL_EXTRAS = _TOKENED | _VERSIONED | _FLAGGED


class Part(Struct, array_like=True, frozen=True):
    """Rows of one table: which body, and which columns it has beside the table's own."""

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
    parts: tuple[Part, ...] | None


class Record(Struct, array_like=True, tag=True, frozen=True):
    partition: PartitionId
    incarnation: Incarnation


class Created(Record, array_like=True, tag=1, frozen=True):
    volume: str


class Discarded(Record, array_like=True, tag=2, frozen=True):
    pass


class EpochStored(Record, array_like=True, tag=3, frozen=True):
    epoch: int


class LogBegun(Record, array_like=True, tag=4, frozen=True):
    base: Position
    epoch: int


class Appended(Record, array_like=True, tag=5, frozen=True):
    entries: tuple[LoggedEntry, ...]
    committed: Position = 0
    """Up to where the log was committed before; it often goes with the next entry."""


class Truncated(Record, array_like=True, tag=6, frozen=True):
    to: Position


class Trimmed(Record, array_like=True, tag=7, frozen=True):
    to: Position


class Advanced(Record, array_like=True, tag=8, frozen=True):
    to: Position


class SliceApplied(Record, array_like=True, tag=9, frozen=True):
    parts: tuple[tuple[Part, ...], ...]
    producers: ProducersValue


class Carried(Record, array_like=True, tag=10, frozen=True):
    """Entries of the log that are still needed, out of a file that is not."""

    entries: tuple[LoggedEntry, ...]


class SchemaDefined(Struct, array_like=True, tag=11, frozen=True):
    """What bodies that name this schema are made of; repeated in each file that needs it."""

    schema: int
    table: bytes


AnyRecord: TypeAlias = (
    Created
    | Discarded
    | EpochStored
    | LogBegun
    | Appended
    | Truncated
    | Trimmed
    | Advanced
    | SliceApplied
    | Carried
    | SchemaDefined
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    return _encoder.encode(record)


def decode(head: bytes) -> AnyRecord:
    record: AnyRecord = _decoder.decode(head)
    return record


# ---------------------------------------------------------------- rows to bodies and back


class Bodies:
    """The bodies of one frame, as they are put together."""

    def __init__(self, schema_of: Callable[[Table], int]) -> None:
        self._schema_of = schema_of
        self.pieces: list[Piece] = []
        self._size = 0

    def add(self, batch: Batch) -> Part:
        if batch.body is not None:  # as it came: nothing need be put together again
            extras, body = batch.body
        else:
            stored, extras = stored_columns(batch)
            body = stored.serialize()
        if len(body) > BATCH_BYTES_MAX:
            raise BadInput(
                f"a batch of {len(body)} bytes for {batch.table.id}",
                f"send at most {BATCH_BYTES_MAX} bytes at once",
            )
        batch.note_bytes(len(body))
        part = Part(self._schema_of(batch.table), extras, self._size, len(body))
        self.pieces.append(body)
        self._size += padded(len(body))
        return part

    def add_bundle(self, rows: object) -> tuple[Part, ...]:
        assert isinstance(rows, Bundle), "a volume stores Arrow rows only"
        return tuple(self.add(batch) for batch in rows.batches)


def stored_columns(batch: Batch) -> tuple[pa.RecordBatch, int]:
    """The table's columns and, where there are such, tokens, versions and tombstones."""
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
    """The rows of one body, where they lie."""
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


# ---------------------------------------------------------------- changes to records and back


def to_record(change: VolumeEffect, bodies: Bodies, committed: Position = 0) -> AnyRecord:
    who = (change.partition, change.incarnation)
    match change:
        case AppendEntries(entries=entries):
            return Appended(*who, log_entries(entries, bodies), committed)
        case AdvanceWatermark(to=to):
            return Advanced(*who, to)
        case StoreEpoch(epoch=epoch):
            return EpochStored(*who, epoch)
        case TrimLog(to=to):
            return Trimmed(*who, to)
        case TruncateLog(to=to):
            return Truncated(*who, to)
        case BeginLog(base=base, epoch=epoch):
            return LogBegun(*who, base, epoch)
        case ApplySlice(rows=rows, producers=producers):
            return SliceApplied(*who, tuple(bodies.add_bundle(some) for some in rows), producers)
        case CreateReplica(volume=volume):
            return Created(*who, volume)
        case DiscardReplica():
            return Discarded(*who)
        case _:
            raise AssertionError(change)


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


class Reader:
    """Turns records back into what the core asked for."""

    def __init__(self, tables: dict[int, Table]) -> None:
        self._tables = tables

    def change(self, record: AnyRecord, bodies: pa.Buffer) -> VolumeEffect:
        match record:
            case Appended(partition=partition, incarnation=incarnation, entries=entries):
                return AppendEntries(partition, incarnation, 0, self.entries(entries, bodies))
            case Advanced(partition=partition, incarnation=incarnation, to=to):
                return AdvanceWatermark(partition, incarnation, 0, to)
            case EpochStored(partition=partition, incarnation=incarnation, epoch=epoch):
                return StoreEpoch(partition, incarnation, 0, epoch)
            case Trimmed(partition=partition, incarnation=incarnation, to=to):
                return TrimLog(partition, incarnation, 0, to)
            case Truncated(partition=partition, incarnation=incarnation, to=to):
                return TruncateLog(partition, incarnation, 0, to)
            case LogBegun(partition=partition, incarnation=incarnation, base=base, epoch=epoch):
                return BeginLog(partition, incarnation, 0, base, epoch)
            case SliceApplied(partition=partition, incarnation=incarnation, producers=producers):
                rows = tuple(self.bundle(parts, bodies) for parts in record.parts)
                return ApplySlice(partition, incarnation, 0, rows, producers)
            case Created(partition=partition, incarnation=incarnation, volume=volume):
                return CreateReplica(partition, incarnation, 0, volume)
            case Discarded(partition=partition, incarnation=incarnation):
                return DiscardReplica(partition, incarnation, 0)
            case _:
                raise AssertionError(record)

    def entries(self, logged: Iterable[LoggedEntry], bodies: pa.Buffer) -> tuple[Entry, ...]:
        return tuple(
            Entry(
                entry.at,
                entry.previous,
                None if entry.parts is None else self.bundle(entry.parts, bodies),
                entry.producer,
                entry.sequence,
                entry.floor,
                entry.range,
                entry.found,
                entry.collects,
            )
            for entry in logged
        )

    def bundle(self, parts: Iterable[Part], bodies: pa.Buffer) -> Bundle:
        return Bundle(
            read_batch(self._tables[part.schema], part.extras, bodies.slice(part.at, part.size))
            for part in parts
        )
