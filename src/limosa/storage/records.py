"""How is a change of a volume encoded in the log, and decoded?

A record is the head of a log frame: the change that the core asked for, without its rows. The rows
are the frame's bodies, as Arrow messages that can be used in place.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple

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
from limosa.core.model.keys import Incarnation, PartitionId, Position
from limosa.core.model.rows import Entry
from limosa.core.producers import ProducersValue
from limosa.tabular.bodies import (
    Bodies,
    BodyPart,
    LoggedEntry,
    log_entries,
    read_batch,
    read_entry,
)
from limosa.tabular.rows import Bundle
from limosa.tabular.schema import Table


class LogRecord(Struct, array_like=True, tag=True, frozen=True):
    partition: PartitionId
    incarnation: Incarnation


class Created(LogRecord, array_like=True, tag=1, frozen=True):
    volume: str


class Discarded(LogRecord, array_like=True, tag=2, frozen=True):
    pass


class EpochStored(LogRecord, array_like=True, tag=3, frozen=True):
    epoch: int


class LogBegun(LogRecord, array_like=True, tag=4, frozen=True):
    base: Position
    epoch: int


class Appended(LogRecord, array_like=True, tag=5, frozen=True):
    entries: tuple[LoggedEntry, ...]
    committed: Position = 0
    """The watermark before this entry: it is often logged together with the next entry."""


class Truncated(LogRecord, array_like=True, tag=6, frozen=True):
    to: Position


class Trimmed(LogRecord, array_like=True, tag=7, frozen=True):
    to: Position


class Advanced(LogRecord, array_like=True, tag=8, frozen=True):
    to: Position


class SliceApplied(LogRecord, array_like=True, tag=9, frozen=True):
    parts: tuple[tuple[BodyPart, ...], ...]
    producers: ProducersValue


class CarriedEntries(LogRecord, array_like=True, tag=10, frozen=True):
    """Entries that are still needed, moved out of a log file that is to be removed."""

    entries: tuple[LoggedEntry, ...]


class SchemaDefined(Struct, array_like=True, tag=11, frozen=True):
    """The definition of a schema that bodies refer to; repeated in each log file that needs it."""

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
    | CarriedEntries
    | SchemaDefined
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    return _encoder.encode(record)


def decode(head: bytes) -> AnyRecord:
    record: AnyRecord = _decoder.decode(head)
    return record


# ---------------------------------------------------------------- changes to records and back

_RECORDS: dict[type[VolumeEffect], Callable[..., AnyRecord]] = {
    StoreEpoch: EpochStored,
    TrimLog: Trimmed,
    TruncateLog: Truncated,
    BeginLog: LogBegun,
    CreateReplica: Created,
    DiscardReplica: Discarded,
}
"""The record has the fields of the change, except its ticket."""
_CHANGES: dict[Any, Callable[..., VolumeEffect]] = {
    record: change for change, record in _RECORDS.items()
}


def to_record(change: VolumeEffect, bodies: Bodies, committed: Position = 0) -> AnyRecord:
    who = (change.partition, change.incarnation)
    match change:
        case AppendEntries(entries=entries):
            return Appended(*who, log_entries(entries, bodies), committed)
        case ApplySlice(rows=rows, producers=producers):
            return SliceApplied(*who, tuple(bodies.add_bundle(some) for some in rows), producers)
        case AdvanceWatermark(to=to):
            return Advanced(*who, to)
        case _:
            return _RECORDS[type(change)](*who, *astuple(change)[3:])


class RecordReader:
    """Turns records back into the core's effects."""

    def __init__(self, tables: dict[int, Table]) -> None:
        self._tables = tables

    def change(self, record: AnyRecord, bodies: pa.Buffer) -> VolumeEffect:
        assert not isinstance(record, CarriedEntries | SchemaDefined), record
        who = (record.partition, record.incarnation, 0)
        match record:
            case Appended(entries=entries):
                return AppendEntries(*who, self.entries(entries, bodies))
            case SliceApplied(parts=all_parts, producers=producers):
                rows = tuple(self.bundle(parts, bodies) for parts in all_parts)
                return ApplySlice(*who, rows, producers)
            case Advanced(to=to):
                return AdvanceWatermark(*who, to)
            case _:
                return _CHANGES[type(record)](*who, *astuple(record)[2:])

    def entries(self, logged: Iterable[LoggedEntry], bodies: pa.Buffer) -> tuple[Entry, ...]:
        return tuple(read_entry(entry, self.bundle, bodies) for entry in logged)

    def bundle(self, parts: Iterable[BodyPart], bodies: pa.Buffer) -> Bundle:
        return Bundle(
            read_batch(self._tables[part.schema], part.extras, bodies.slice(part.at, part.size))
            for part in parts
        )
