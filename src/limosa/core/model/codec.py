"""How are records encoded? As readable JSON, by one codec, for the metastore and for messages."""

import msgspec

from limosa.core.model import legacy
from limosa.core.model.changes import AnyRecord
from limosa.core.model.topology import Record
from limosa.errors import BadInput

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
