"""How is a change of a volume encoded in the log, and decoded?

A record is the head of a log frame: the change that the core asked for, without its rows. The rows
are the frame's bodies, as Arrow messages that can be used in place.
"""

from collections.abc import Iterable
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
from limosa.core.model.keys import Incarnation, PartitionId, Position
from limosa.core.model.rows import Entry
from limosa.core.producers import ProducersValue
from limosa.tabular.bodies import Bodies, BodyPart, LoggedEntry, log_entries, read_batch
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


class RecordReader:
    """Turns records back into the core's effects."""

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

    def bundle(self, parts: Iterable[BodyPart], bodies: pa.Buffer) -> Bundle:
        return Bundle(
            read_batch(self._tables[part.schema], part.extras, bodies.slice(part.at, part.size))
            for part in parts
        )
