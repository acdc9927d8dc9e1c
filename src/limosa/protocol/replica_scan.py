"""How is one replica read on its own? By a scan of its keys, versions and hashes.

Rows come as their key, their version, whether they are deleted, and a hash of the whole row: all
that a comparison needs, in a fraction of the bytes.
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
"""How such a ticket begins; no scan does."""
MOMENT: Final = b"limosa"


class ReplicaScan(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Rows of one table in some ranges of tokens, of one replica."""

    partition: PartitionId
    incarnation: Incarnation
    table: bytes
    """Its definition, which must be of the asker's own time or older."""
    ranges: tuple[tuple[int, int], ...]
    at_least: Position = 0
    """With a lower watermark there are no rows, only the word how far the replica is."""

    def encode(self) -> bytes:
        return KIND + msgspec.msgpack.encode(self)


class ReplicaMoment(Struct, frozen=True, array_like=True):
    """When that was; it comes with the schema, before the first row."""

    watermark: Position
    collected: Position
    table: bytes
    """What the rows were hashed by: the newest definition that is known here."""


class Holding(Struct, frozen=True, array_like=True):
    """What a replica is made of, about."""

    watermark: Position
    rows: int
    range: tuple[int, int]
    """Of its partition."""
    tables: tuple[tuple[str, bytes], ...]
    """Names, or ids of those that were dropped, and definitions."""


class Named(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which replica is meant."""

    partition: PartitionId
    incarnation: Incarnation


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
