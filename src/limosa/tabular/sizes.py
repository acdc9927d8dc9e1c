"""How large may a row, a write and a message be? One budget from the client to every reader.

What is accepted must pass through everything that comes after it. So there is one limit for a row,
one for a write, and every message between processes is at least as large as what it has to carry:

    client → owner      `Write`: the rows of one write for one partition. The client cuts batches
                        by bytes into pieces of `PIECE_BYTES`, or of a single row. The owner
                        refuses a row above `ROW_BYTES_MAX`, and a write above `WRITE_BYTES_MAX`.
    owner → log         A frame of a log file has no limit of its own.
    owner → replica     `Replicate`: up to `replicate_bytes` of entries (8 MiB), or one entry. An
                        entry is one write with the very bytes that the owner received.
    owner → reader      `Found`: up to `FOUND_BYTES_MAX`, or one row. A client that asks for more
                        rows at once is refused, and asks again for fewer keys.
    scan → reader       Batches of `PIECE_BYTES`, or of a single row.
    segment             Blocks of 4 MiB, or of a single row.
    source → mover      `Fetched`: a slice in parts of `PART_BYTES_MAX`, or of a single batch, which
                        has `PIECE_BYTES` or a single row.
    mover → target      `Chunk`: one such batch.

A frame gathers messages until they have `FRAME_BYTES_AIM` of rows; the last one of them may be of
any size. So a frame holds less than

    FRAME_BYTES_AIM + WRITE_BYTES_MAX (nothing above is larger) + the head of its messages

which a frame of a client (`CLIENT_FRAME_BYTES_MAX`, with a head of `CLIENT_HEAD_BYTES_MAX`) and of
any other process (`FRAME_BYTES_MAX`, `HEAD_BYTES_MAX`) can hold. Heads are small: a key or a row
that is longer than `INLINE_KEY_BYTES` or `INLINE_ROW_BYTES` travels as Arrow, beside the head.

Before these limits, a row could be as large as a frame was then, 80 MiB. Such rows are still read,
replicated and moved, because a frame between nodes holds more than that. They can't be written
again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from limosa.errors import TooManyBytes

ROW_BYTES_MAX: Final = 16 << 20
"""The most bytes of one row, as `row_bytes` counts them."""
WRITE_BYTES_MAX: Final = 32 << 20
"""The most bytes of one write for one partition, encoded: a row, a wide schema, and room."""
FOUND_BYTES_MAX: Final = 32 << 20
"""The most bytes of rows in one answer; building an answer takes several times as much memory."""
PIECE_BYTES: Final = 8 << 20
"""Batches are cut into pieces of at most so many bytes; only a single row may be larger."""
PIECE_ROWS: Final = 65_536
PART_BYTES_MAX: Final = 32 << 20

FRAME_BYTES_AIM: Final = 4 << 20
FRAME_BYTES_MAX: Final = 128 << 20
HEAD_BYTES_MAX: Final = 64 << 20
CLIENT_FRAME_BYTES_MAX: Final = 64 << 20
CLIENT_HEAD_BYTES_MAX: Final = 16 << 20
"""A decoded head takes many times its bytes: a client's head must be small and flat."""
INLINE_KEY_BYTES: Final = 16 << 10
INLINE_ROW_BYTES: Final = 1 << 20

Rows = Any
"""A number of rows, or an array of such numbers."""
Below = Callable[[Rows], Any]
"""The bits of the first so many rows."""


def row_bytes(columns: pa.RecordBatch) -> NDArray[np.int64]:
    """The bytes of each row: the widths of its columns, and the contents of texts and lists."""
    below = _below_all(columns.columns)
    bits = np.diff(below(np.arange(columns.num_rows + 1)))
    sizes: NDArray[np.int64] = -(-bits // 8)
    return sizes


def _below_all(columns: Sequence[Any]) -> Below:
    width = sum(_width(column.type) for column in columns)
    each = [_below(column) for column in columns if not _width(column.type)]
    return lambda rows: sum((below(rows) for below in each), width * rows)


def _width(of: Any) -> int:
    """The bits of each value; 0: they differ."""
    is_fixed = pa.types.is_primitive(of) or pa.types.is_fixed_size_binary(of)
    return int(of.bit_width) if is_fixed or pa.types.is_decimal(of) else 0


def _below(column: Any) -> Below:
    of = column.type
    if pa.types.is_struct(of):
        return _below_all([column.field(place) for place in range(of.num_fields)])
    if pa.types.is_string(of) or pa.types.is_binary(of):
        return _below_offsets(column, 32, _bytes)
    if pa.types.is_large_string(of) or pa.types.is_large_binary(of):
        return _below_offsets(column, 64, _bytes)
    return _below_offsets(column, 32 if pa.types.is_list(of) else 64, _below_all([column.values]))


def _below_offsets(column: Any, width: int, inner: Below) -> Below:
    """Of texts, whose content is bytes, or of lists, whose content is another column."""
    buffer = column.buffers()[1]
    if not len(column) or buffer is None:
        return lambda rows: width * rows
    offsets = np.frombuffer(buffer, np.int32 if width == 32 else np.int64)[column.offset :]
    first = inner(offsets[0].astype(np.int64))
    return lambda rows: inner(offsets[rows].astype(np.int64)) - first + width * rows


def _bytes(count: Rows) -> Rows:
    return 8 * count


def check_rows(table: str, columns: pa.RecordBatch, size: int) -> None:
    """Refuse rows that are too large. `size`: the bytes of the batch, or more."""
    if size > ROW_BYTES_MAX:
        largest = int(row_bytes(columns).max(initial=0))
        if largest > ROW_BYTES_MAX:
            raise row_too_large(table, largest)


def row_too_large(table: str, size: int) -> TooManyBytes:
    return TooManyBytes(
        f"a row for {table} has {size:,} bytes, and a row may have {ROW_BYTES_MAX:,}",
        "split the value into several rows, or store large objects elsewhere and their place here",
    )


def pieces(
    columns: pa.RecordBatch, bytes_max: int = PIECE_BYTES, rows_max: int = PIECE_ROWS
) -> Iterator[tuple[int, int]]:
    """Where a batch is cut, as pairs (start, stop): at most so many bytes, or a single row."""
    rows = columns.num_rows
    if rows <= rows_max and (rows <= 1 or columns.nbytes <= bytes_max):
        if rows:
            yield 0, rows
        return
    below = _below_all(columns.columns)
    start = 0
    while start < rows:
        room = below(start) + 8 * bytes_max
        fitting = bisect_right(range(rows + 1), room, lo=start, key=below) - 1
        stop = min(max(fitting, start + 1), start + rows_max)
        yield start, stop
        start = stop


def in_pieces(columns: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch as pieces of at most `PIECE_BYTES`, or of a single row, without a copy. An empty one
    stays."""
    if not columns.num_rows:
        yield columns
    for start, stop in pieces(columns):
        yield columns if stop - start == columns.num_rows else columns.slice(start, stop - start)
