"""Is a batch from an untrusted sender safe to use?

Arrow trusts its input: with one wrong offset inside a column, the first use can crash the process,
and a compressed kilobyte may expand to a gigabyte. So a body is inspected before it is decoded, and
all of its values are validated before they are used.
"""

import struct
from typing import Any

import pyarrow as pa

from limosa.errors import BadInput

ROWS_MAX = 1_000_000

_ADVICE = "send an uncompressed Arrow record batch of the table's own columns"
_HEADER, _LENGTH, _BUFFERS, _COMPRESSION = 2, 0, 2, 3
"""Places of fields in Arrow's flat-buffer tables `Message` and `RecordBatch`."""


def sound_batch(body: pa.Buffer, schema: pa.Schema, trusted: bool = False) -> pa.RecordBatch:
    """The batch; raises `BadInput`. `trusted`: the node that sent it has checked it."""
    try:
        if trusted:
            return pa.ipc.read_record_batch(body, schema)
        message = pa.ipc.read_message(body)
        _check_header(message, schema)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
        raise BadInput(f"an invalid Arrow batch: {brief(error)}", _ADVICE) from None
    return batch


def check_uncompressed(body: pa.Buffer) -> None:
    """Refuse a compressed batch before it is decoded. No part of Limosa compresses rows."""
    try:
        _header_of(pa.ipc.read_message(body))
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
        raise BadInput(f"an invalid Arrow batch: {brief(error)}", _ADVICE) from None


def _header_of(message: pa.Message) -> "_Table":
    if message.type != "record batch":
        raise BadInput(f"a body is a {message.type}, not a record batch", _ADVICE)
    header = _Table.root(message.metadata).table(_HEADER)
    if header.has(_COMPRESSION):
        raise BadInput("a compressed batch", _ADVICE)
    return header


def _check_header(message: pa.Message, schema: pa.Schema) -> None:
    header = _header_of(message)
    rows = header.int64(_LENGTH)
    if not 0 <= rows <= ROWS_MAX:
        raise BadInput(f"a batch has {rows} rows", f"send at most {ROWS_MAX} at once")
    # Arrow accepts a buffer whose size is not a multiple of its numbers; NumPy does not.
    numbers = header.vector(_BUFFERS, 2)
    for width, size in zip(_widths(schema), numbers[1::2], strict=True):
        if size % width:
            raise BadInput(f"a buffer of {size} bytes for numbers of {width}", _ADVICE)


_known: dict[int, tuple[pa.Schema, list[int]]] = {}


def _widths(schema: pa.Schema) -> list[int]:
    """The width of the numbers in each buffer of a batch; cached, since schemas are few."""
    known = _known.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_known) > 1024:
            _known.clear()
        known = (schema, [width for field in schema for width in _widths_of(field.type)])
        _known[id(schema)] = known
    return known[1]


def _widths_of(of: Any) -> list[int]:
    if pa.types.is_struct(of):
        return [1, *(width for inner in of for width in _widths_of(inner.type))]
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        return [1, 4 if pa.types.is_list(of) else 8, *_widths_of(of.value_type)]
    if pa.types.is_string(of) or pa.types.is_binary(of):
        return [1, 4, 1]
    if pa.types.is_large_string(of) or pa.types.is_large_binary(of):
        return [1, 8, 1]
    return [1, max(1, of.bit_width // 8)]


def brief(error: BaseException) -> str:
    """The error as a short text that a caller may see."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


class _Table:
    """Reads single fields of a flatbuffer.

    Arrow has verified the whole buffer before; `struct` refuses reads outside of it anyway.
    """

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        (back,) = struct.unpack_from("<i", data, at)
        self._fields = at - back
        if self._fields < 0:
            raise ValueError("a table without fields")
        (self._size,) = struct.unpack_from("<H", data, self._fields)

    @classmethod
    def root(cls, buffer: pa.Buffer) -> "_Table":
        data = memoryview(buffer)
        (at,) = struct.unpack_from("<I", data, 0)
        return cls(data, at)

    def _place(self, number: int) -> int:
        slot = 4 + 2 * number
        if slot + 2 > self._size:
            return 0
        (place,) = struct.unpack_from("<H", self._data, self._fields + slot)
        return int(place)

    def has(self, number: int) -> bool:
        return self._place(number) != 0

    def table(self, number: int) -> "_Table":
        at = self._at + self._place(number)
        (forward,) = struct.unpack_from("<I", self._data, at)
        return _Table(self._data, at + forward)

    def vector(self, number: int, width: int) -> tuple[int, ...]:
        """The numbers of a list of structs with `width` numbers each."""
        if not self.has(number):
            return ()
        at = self._at + self._place(number)
        (forward,) = struct.unpack_from("<I", self._data, at)
        (count,) = struct.unpack_from("<I", self._data, at + forward)
        return struct.unpack_from(f"<{width * count}q", self._data, at + forward + 4)

    def int64(self, number: int) -> int:
        if not self.has(number):
            return 0
        (value,) = struct.unpack_from("<q", self._data, self._at + self._place(number))
        return int(value)
