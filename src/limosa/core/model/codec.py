"""How are records encoded? As readable JSON, by one codec, for the metastore and for messages."""

from typing import TypeAlias

import msgspec

from limosa.core.model import legacy
from limosa.core.model.intent import Intent
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.requests import Request
from limosa.core.model.runs import Controls, Rebalance, Run, RunMove
from limosa.core.model.topology import (
    Cluster,
    CoordinatorLease,
    Features,
    Layout,
    Mark,
    NamedTable,
    Node,
    NodeLease,
    Partition,
    Record,
    Zone,
)
from limosa.errors import BadInput

AnyRecord: TypeAlias = (
    Cluster
    | Features
    | Node
    | Zone
    | NamedTable
    | Layout
    | Partition
    | Intent
    | Request
    | NodeLease
    | CoordinatorLease
    | Report
    | Pipeline
    | Rebalance
    | Run
    | RunMove
    | Controls
    | Mark
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(AnyRecord)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> Record:
    """Rows of version 0.1.0 are decoded, too."""
    try:
        return legacy.completed(_decoder.decode(data))
    except msgspec.DecodeError as error:
        try:
            return legacy.decode_flat(data)
        except msgspec.DecodeError:
            raise BadInput(
                f"this is not a record of Limosa: {error}",
                "the key was written by something else, or by a newer version",
            ) from error
