"""How is one replica read on its own? By a scan of its keys, versions and hashes.

A row travels as its key, its version, its deletion mark and a hash of the whole row: all that a
comparison needs, in a fraction of the bytes.
"""

from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from limosa.core.model.keys import Incarnation, PartitionId, Position
from limosa.tabular.rows import DELETED, VERSION
from limosa.tabular.schema import Table

HASH: Final = "__hash"
RANGES_MAX: Final = 1_024
SIZE_MAX: Final = 1 << 20

KIND: Final = b"replica:"
"""Prefix of a replica scan's ticket; no client's scan begins with it."""
MOMENT: Final = b"limosa"


class ReplicaScan(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Rows of one table in some token ranges of one replica."""

    partition: PartitionId
    incarnation: Incarnation
    table: bytes
    """The table's encoded definition: the caller's, or an older version."""
    ranges: tuple[tuple[int, int], ...]
    at_least: Position = 0
    """A replica with a lower watermark sends no rows, only its moment."""

    def encode(self) -> bytes:
        return KIND + msgspec.msgpack.encode(self)


class ReplicaMoment(Struct, frozen=True, array_like=True):
    """The moment of the view; it travels with the schema, before the first row."""

    watermark: Position
    collected: Position
    table: bytes
    """The definition that the rows were hashed by: the newest that the node knows."""


class Holding(Struct, frozen=True, array_like=True):
    """Rough contents of a replica."""

    watermark: Position
    rows: int
    range: tuple[int, int]
    """The partition's token range."""
    tables: tuple[tuple[str, bytes], ...]
    """Names of tables (ids of dropped ones) and their definitions."""


class Named(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The name of a replica."""

    partition: PartitionId
    incarnation: Incarnation


class ComparisonTokens(Struct, frozen=True, array_like=True):
    """Tokens that compare replicas, each for one partition; none where no tokens are used."""

    tokens: tuple[str, ...] = ()


_moments = msgspec.msgpack.Decoder(ReplicaMoment)


def is_replica_scan(ticket: bytes) -> bool:
    return ticket.startswith(KIND)


def schema_of(table: Table) -> pa.Schema:
    return pa.schema(
        [
            *(table.physical.field(name) for name in table.key),
            pa.field(VERSION, pa.int64(), nullable=False),
            pa.field(DELETED, pa.bool_(), nullable=False),
            pa.field(HASH, pa.uint64(), nullable=False),
        ]
    )


def moment_of(schema: pa.Schema) -> ReplicaMoment:
    return _moments.decode((schema.metadata or {}).get(MOMENT, b""))
