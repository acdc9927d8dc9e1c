"""How are rows stored? In immutable files of Arrow blocks, each with a checksum.

    front     64 constant bytes
    blocks    Arrow record batches, padded to 64 bytes; tables sorted by token, streams by offset
    index     the table, and for each block where it is, what it holds, and its checksum
    trailer   where the index is, and its checksum

A file never changes; it may have several names (hard links). A block's checksum is verified when
the block is first read, so opening is fast, and damaged data is never returned.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_intdigest

from limosa.core.model.keys import Position, TokenRange
from limosa.storage.files import Files, OpenFile
from limosa.storage.log import damaged
from limosa.storage.memtable import NOTHING, span, span_of
from limosa.tabular.bodies import ALL_EXTRAS, padded, stored_schema, unpack
from limosa.tabular.merge import Span
from limosa.tabular.rows import Batch, deleted_of
from limosa.tabular.schema import Table

BLOCK_ROWS = 65_536
BLOCK_BYTES = 4 << 20
PIECE_BYTES = 256 << 10
"""Bytes that are verified at a time, so that other threads get their turn."""

_FRONT = b"LIMOSEG1" + bytes(56)
_TRAILER = struct.Struct("<QQQ8s")
_TRAILER_MAGIC = b"LIMOSEND"


class Block(Struct, array_like=True, frozen=True):
    at: int
    size: int
    checksum: int
    rows: int
    first_token: int
    last_token: int
    min_version: Position
    max_version: Position


class SegmentIndex(Struct, array_like=True, frozen=True):
    """What a segment holds."""

    table: bytes
    rows: int
    tombstones: int
    min_version: Position
    max_version: Position
    blocks: tuple[Block, ...]


SYNC_BYTES = 4 << 20
"""Sync after this many bytes: on some file systems, a sync of the log waits for all other data that
was written and is not on disk yet."""


def write_segment(
    files: Files,
    path: str,
    table: Table,
    batches: Iterable[Batch],
    unsynced: list[OpenFile] | None = None,
) -> bool:
    """Write sorted batches to a new segment file; its bytes are durable, its name is not yet.

    `unsynced`: add the file to this list instead; the caller syncs and closes it.
    False: there are no rows, and no file was written."""
    file = None
    blocks: list[Block] = []
    at = synced = len(_FRONT)
    tombstones = 0
    try:
        for batch in _in_blocks(batches):
            if file is None:
                file = files.create(path)
                file.append([_FRONT])
            block, body = _encode(table, batch, at)
            file.append([body, bytes(block.size - len(body))])
            blocks.append(block)
            at += block.size
            if at - synced >= SYNC_BYTES:
                synced = at
                file.sync()
            tombstones += 0 if batch.deleted is None else int(batch.deleted.sum())
        if file is None:
            return False
        index = SegmentIndex(
            table.encode(),
            sum(block.rows for block in blocks),
            tombstones,
            min(block.min_version for block in blocks),
            max(block.max_version for block in blocks),
            tuple(blocks),
        )
        encoded = msgspec.msgpack.encode(index)
        file.append([encoded, _trailer(at, len(encoded), xxh3_64_intdigest(encoded))])
        if unsynced is None:
            file.sync()
        else:
            unsynced.append(file)
            file = None
        return True
    finally:
        if file is not None:
            file.close()


def _trailer(at: int, size: int, checksum: int) -> bytes:
    return _TRAILER.pack(at, size, checksum, _TRAILER_MAGIC)


def _in_blocks(batches: Iterable[Batch]) -> Iterator[Batch]:
    for batch in batches:
        yield from batch.in_pieces(BLOCK_BYTES, BLOCK_ROWS)


def _encode(table: Table, batch: Batch, at: int) -> tuple[Block, pa.Buffer]:
    assert batch.versions is not None
    arrays = [
        *table.widen(batch.columns).columns,
        pa.array(batch.tokens),
        pa.array(batch.versions),
        pa.array(deleted_of(batch)),
    ]
    body = pa.RecordBatch.from_arrays(arrays, schema=stored_schema(table)).serialize()
    size = padded(len(body))
    # The checksum includes the padding, so that a flipped bit there is detected, too.
    checksum = xxh3_64_intdigest(body) if size == len(body) else _padded_checksum(body, size)
    return (
        Block(
            at,
            size,
            checksum,
            len(batch),
            int(batch.tokens[0]),
            int(batch.tokens[-1]),
            int(batch.versions.min()),
            int(batch.versions.max()),
        ),
        body,
    )


def _padded_checksum(body: pa.Buffer, size: int) -> int:
    hasher = xxh3_64(body)
    hasher.update(bytes(size - len(body)))
    return hasher.intdigest()


class Segment:
    """A segment file, opened."""

    __slots__ = (
        "_blocks",
        "_content",
        "_first_rows",
        "_first_tokens",
        "_last_tokens",
        "index",
        "path",
        "table",
    )

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        try:
            self._content = files.read(path)
        except FileNotFoundError:
            raise damaged(path, "the file is missing") from None
        self.index = self._read_index()
        self.table = Table.decode(self.index.table)
        blocks = self.index.blocks
        self._blocks: list[Batch | None] = [None] * len(blocks)
        self._first_tokens = [block.first_token for block in blocks]
        self._last_tokens = [block.last_token for block in blocks]
        ends = np.cumsum([block.rows for block in blocks])
        self._first_rows: list[int] = [0, *ends[:-1].tolist()]

    def _read_index(self) -> SegmentIndex:
        content, trailer = self._content, _TRAILER.size
        if content.size < len(_FRONT) + trailer:
            raise damaged(self.path, f"{content.size} bytes are too few for a segment")
        at, size, checksum, magic = _TRAILER.unpack(
            content.slice(content.size - trailer).to_pybytes()
        )
        if magic != _TRAILER_MAGIC or at + size + trailer != content.size:
            raise damaged(self.path, "the trailer is invalid: the file was truncated or changed")
        encoded = content.slice(at, size)
        if xxh3_64_intdigest(encoded) != checksum:
            raise damaged(self.path, "the index has a wrong checksum")
        if content.slice(0, len(_FRONT)).to_pybytes() != _FRONT:
            raise damaged(self.path, "it is not a segment, or of another version")
        return msgspec.msgpack.decode(encoded, type=SegmentIndex)

    def __len__(self) -> int:
        return self.index.rows

    @property
    def bytes(self) -> int:
        return int(self._content.size)

    @property
    def min_version(self) -> Position:
        return self.index.min_version

    @property
    def max_version(self) -> Position:
        return self.index.max_version

    def block(self, number: int) -> Batch:
        known = self._blocks[number]
        if known is None:
            stored = pa.ipc.read_record_batch(self._content_of(number), stored_schema(self.table))
            known = self._blocks[number] = unpack(self.table, ALL_EXTRAS, stored)
        return known

    def _content_of(self, number: int) -> pa.Buffer:
        block = self.index.blocks[number]
        content = self._content.slice(block.at, block.size)
        if xxh3_64_intdigest(content) != block.checksum:
            raise damaged(self.path, f"the block at byte {block.at} has a wrong checksum")
        return content

    def verify(self, files: Files) -> Iterator[int]:
        """Read all bytes from the disk again, and verify them. Yields how many bytes were verified,
        piece by piece; raises an error at the first damage."""
        ends_at = len(_FRONT)
        for block in self.index.blocks:
            ends_at = block.at + block.size
            hasher = xxh3_64()
            for at in range(block.at, ends_at, PIECE_BYTES):
                piece = _read_part(files, self.path, at, min(PIECE_BYTES, ends_at - at))
                hasher.update(piece)
                yield len(piece)
            if hasher.intdigest() != block.checksum:
                raise damaged(self.path, f"the block at byte {block.at} has a wrong checksum")
        rest = _read_part(files, self.path, ends_at, self.bytes - ends_at)
        index, trailer = rest[: -_TRAILER.size], rest[-_TRAILER.size :]
        if trailer != _trailer(ends_at, len(index), xxh3_64_intdigest(index)):
            raise damaged(self.path, "the index has a wrong checksum")
        yield len(rest)

    # --- sorted by token

    def _touching(self, token_range: TokenRange) -> range:
        """The blocks that may hold rows of a range."""
        first = bisect_left(self._last_tokens, token_range.start)
        return range(first, bisect_left(self._first_tokens, token_range.end))

    def find(self, token: int) -> list[tuple[Batch, int]]:
        """The rows with this token: rarely more than one."""
        number = bisect_left(self._last_tokens, token)
        if number == len(self._last_tokens):
            return NOTHING
        block = self._blocks[number]
        if block is None:
            block = self.block(number)
        tokens = block.tokens
        row = int(tokens.searchsorted(token))
        if tokens.item(row) != token:  # `row` exists: the block's last token is not lower
            return NOTHING
        if row + 1 < len(tokens) and tokens.item(row + 1) != token:
            return [(block, row)]
        return self._find_all(number, token)

    def _find_all(self, number: int, token: int) -> list[tuple[Batch, int]]:
        """From a block on: keys with the same token may be in neighbouring blocks."""
        found = []
        while number < len(self._blocks):
            block = self.block(number)
            start, end = span_of(block.tokens, token)
            found += [(block, row) for row in range(start, end)]
            if end < len(block):
                break
            number += 1
        return found

    def spans(self, token_range: TokenRange) -> list[Span]:
        found = []
        for number in self._touching(token_range):
            block = self.index.blocks[number]
            first, last = block.first_token, block.last_token
            start, end = max(first, token_range.start), min(last, token_range.end - 1)
            found.append(Span(start, end, block.size * (end - start + 1) // (last - first + 1)))
        return found

    def within(self, token_range: TokenRange) -> list[Batch]:
        found = []
        for number in self._touching(token_range):
            batch = self.block(number)
            start, stop = span(batch.tokens, token_range)
            if start < stop:
                found.append(batch if stop - start == len(batch) else batch.slice(start, stop))
        return found

    def check_again(self, token_range: TokenRange) -> None:
        """Verify the checksums of a range again: bytes may have changed since the first read."""
        for number in self._touching(token_range):
            self._content_of(number)

    def about(self, token_range: TokenRange) -> int:
        """Estimate the rows in a range without reading: exact for whole blocks."""
        rows = 0
        for number in self._touching(token_range):
            block = self.index.blocks[number]
            first, last = block.first_token, block.last_token
            inside = min(last, token_range.end - 1) - max(first, token_range.start) + 1
            rows += block.rows * inside // (last - first + 1)
        return rows

    # --- sorted by offset

    def from_row(self, row: int) -> Iterator[Batch]:
        """All rows from this row number on, in the order in which they were written."""
        number = bisect_right(self._first_rows, row) - 1
        for at in range(number, len(self._blocks)):
            block = self.block(at)
            skip = max(0, row - self._first_rows[at])
            yield block.slice(skip, len(block)) if skip else block


def _read_part(files: Files, path: str, at: int, size: int) -> bytes:
    try:
        return files.read_part(path, at, size)
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    except OSError as error:
        raise damaged(path, f"byte {at} can't be read: {error.strerror}") from error
