"""What happened on this volume, in which order, and how much of it is durable?

All replicas of a volume share one write-ahead log, so that one sync serves them all. The log is a
sequence of files, numbered without gaps; each file has a header and then frames:

    header   4096 bytes: which file this is, and a marker: how much was last reported as durable
    frame    magic, sizes, sequence, checksum; a head; bodies; everything padded to 64 bytes

The marker distinguishes damage from a crash. It is written after each sync and before the sync is
reported, so everything below the marker was promised to be durable: a broken frame there is damage,
and the volume is refused. Above the marker, the first broken frame is where a crash tore the log,
and the log ends there.

A frame's checksum covers the whole frame, including padding and sequence.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_intdigest

from limosa.errors import DamagedFile, DiskFull
from limosa.storage.files import Files, OpenFile, is_full
from limosa.tabular.bodies import ALIGNMENT, Piece, padded

HEADER_BYTES = 4096

_FILE = struct.Struct("<8sIQQ")  # magic, format, number, first sequence
_FILE_MAGIC = b"LIMOSLOG"
_FORMAT = 1
_MARKER = struct.Struct("<QQ")  # how far the file is durable; the marker's checksum
_MARKER_AT = 64
_FRAME = struct.Struct("<IIQQ")  # magic, head bytes, body bytes, sequence; then the checksum
_FRAME_MAGIC = 0x4D524C46
_FRONT_BYTES = _FRAME.size + 8
VERIFY_BYTES = 256 << 10
"""A file is verified in parts of about this size, or one frame if that is larger."""
_PADDING = [bytes(n) for n in range(ALIGNMENT)]


class Place(NamedTuple):
    """Where a frame is."""

    file: int
    at: int
    size: int


class Frame(NamedTuple):
    """A logged change: a small head that describes it, and large, aligned bodies."""

    sequence: int
    head: bytes
    bodies: pa.Buffer
    place: Place


def file_name(number: int) -> str:
    return f"{number:08}.log"


def number_of(path: str) -> int:
    """The number of a log file."""
    return int(path.rsplit("/", 1)[-1].removesuffix(".log"))


def damaged(path: str, why: str) -> DamagedFile:
    return DamagedFile(
        f"{path} is damaged: {why}",
        "its replicas are not served: keep the file for analysis, and rebuild them from others",
        path,
    )


class _Batch(Struct, eq=False):
    """Frames for one file that wait to be written."""

    file: int
    first_sequence: int
    pieces: list[Piece] = []
    size: int = 0


class VolumeLog:
    """The log of one volume. Only one thread at a time may call `append`, and one `write`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        sequence: int,
        number: int,
        file_bytes_max: int,
        on_new_file: Callable[[int], None],
        frame_weight_bytes: int = 0,
    ) -> None:
        self._frame_weight_bytes = frame_weight_bytes
        self._first_sequence = sequence + 1
        """First sequence of the current file."""
        self.sequence = sequence
        """Sequence of the last frame."""
        self.number = number
        """Number of the file that gets the next frame."""
        self._files = files
        self._directory = directory
        self._file_bytes_max = file_bytes_max
        self._on_new_file = on_new_file
        self._length = HEADER_BYTES
        self._waiting = _Batch(number, sequence + 1)
        self._full: list[_Batch] = []
        self._open: OpenFile | None = None
        self._made: OpenFile | None = None
        """The next file, before VOLUME names it."""
        self._open_number = 0
        self._durable_length = HEADER_BYTES
        self.sizes: dict[int, int] = {}
        """Sizes of the files that exist, or will exist after the next sync."""
        self._start_file(number, sequence + 1)

    # --- appending

    def append(self, head: bytes, bodies: Sequence[Piece] = ()) -> Place:
        """Append a frame in memory; the next sync makes it durable."""
        self.sequence += 1
        front = _FRAME.pack(_FRAME_MAGIC, len(head), _size_of(bodies), self.sequence)
        head += _PADDING[-(_FRONT_BYTES + len(head)) % ALIGNMENT]
        pieces: list[Piece] = []
        for body in bodies:
            pieces.append(body)
            if len(body) % ALIGNMENT:
                pieces.append(_PADDING[-len(body) % ALIGNMENT])
        checksum = _checksum(front, head, pieces).to_bytes(8, "little")
        size = _FRONT_BYTES + len(head) + _size_of(bodies)
        place = Place(self.number, self._length, size)
        self._waiting.pieces.append(front + checksum + head)
        self._waiting.pieces += pieces
        self._waiting.size += place.size
        self._length += place.size
        self.sizes[self.number] = self._length
        return place

    @property
    def is_full(self) -> bool:
        """The current file has reached its maximum size."""
        frames = self.sequence + 1 - self._first_sequence
        weight = self._length + frames * self._frame_weight_bytes
        return frames > 0 and weight >= max(self._file_bytes_max, HEADER_BYTES + 1)

    def turn_over(self) -> None:
        """Start a new file with the next frame."""
        self._full.append(self._waiting)
        self.number += 1
        self._first_sequence = self.sequence + 1
        self._waiting = _Batch(self.number, self.sequence + 1)
        self._length = HEADER_BYTES
        self.sizes[self.number] = HEADER_BYTES

    def take(self) -> list[_Batch]:
        """The frames to be written; the caller must write them, in this order."""
        batches = [*self._full, self._waiting]
        self._full = []
        self._waiting = _Batch(self.number, self.sequence + 1)
        return batches

    # --- making it durable

    def write(self, batches: list[_Batch]) -> None:
        """Write and sync. If the disk is full (`DiskFull`), the rest waits again to be written;
        after any other error the log is unusable: what was written is unknown."""
        try:
            while batches:
                self._write(batches[0])
                del batches[0]
        except DiskFull:
            self._full = [*batches, *self._full]
            raise

    def _write(self, batch: _Batch) -> None:
        if batch.file != self._open_number:
            self._seal()
            with _if_full(self._directory):
                self._start_file(batch.file, batch.first_sequence)
        if batch.pieces:
            assert self._open is not None
            with _if_full(self._directory):
                self._append(self._open, batch.pieces)
            self._durable_length += batch.size
            self._open.sync()
            self._open.overwrite(_MARKER_AT, _marker(self._durable_length))

    def _append(self, file: OpenFile, pieces: Sequence[Piece]) -> None:
        try:
            file.append(pieces)
        except OSError as error:
            if is_full(error):
                file.truncate(self._durable_length)  # the part that fitted
            raise

    def _start_file(self, number: int, first_sequence: int) -> None:
        """Each part can be repeated if the disk is full. The file is made only once: VOLUME may
        name it already."""
        if self._made is None:
            self._made = self._make_file(number, first_sequence)
        self._on_new_file(number)
        self._open, self._made = self._made, None
        self._open_number = number
        self._durable_length = HEADER_BYTES
        self.sizes.setdefault(number, HEADER_BYTES)

    def _make_file(self, number: int, first_sequence: int) -> OpenFile:
        file = self._files.create(f"{self._directory}/{file_name(number)}")
        try:
            file.append([_header(number, first_sequence)])
            file.sync()
            self._files.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        return file

    def _seal(self) -> None:
        """Sync and close a file, so that its marker is durable: only that part will be read."""
        if self._open is not None:
            self._open.sync()
            self._open.close()
            self._open = None

    def close(self) -> None:
        self._seal()

    def abandon(self) -> None:
        """Close without a sync: after an error, a sync could wrongly look successful."""
        for file in (self._open, self._made):
            if file is not None:
                file.close()
        self._open = self._made = None


@contextmanager
def _if_full(directory: str) -> Iterator[None]:
    """Tell a full disk from a broken one."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(f"{directory}: {error.strerror}", "free some space") from error
        raise


def _header(number: int, first_sequence: int) -> bytes:
    front = _FILE.pack(_FILE_MAGIC, _FORMAT, number, first_sequence)
    front += bytes(_MARKER_AT - 8 - len(front))
    rest = bytes(HEADER_BYTES - _MARKER_AT - _MARKER.size)
    checksum = xxh3_64_intdigest(front + rest).to_bytes(8, "little")
    return front + checksum + _marker(HEADER_BYTES) + rest


def _marker(length: int) -> bytes:
    return _MARKER.pack(length, xxh3_64_intdigest(length.to_bytes(8, "little")))


def _size_of(bodies: Sequence[Piece]) -> int:
    return sum(padded(len(body)) for body in bodies)


def _checksum(front: bytes, head: bytes, bodies: Sequence[Piece]) -> int:
    hasher = xxh3_64(front)
    hasher.update(head)
    for body in bodies:
        hasher.update(body)
    return hasher.intdigest()


# ---------------------------------------------------------------- reading it back


class FoundLogFile(NamedTuple):
    """One file of the log, as read at the start."""

    frames: list[Frame]
    first_sequence: int
    """Sequence of the first frame after the header, if there is one."""
    ends_at: int
    """Where the last whole frame ends."""
    durable: int
    """Up to which byte the marker promises that the file is durable."""


def read_file(files: Files, directory: str, number: int, is_last: bool) -> FoundLogFile:
    """Read every frame of a file. Damage raises an error; a torn frame at the end ends the file."""
    path = f"{directory}/{file_name(number)}"
    try:
        content = files.read(path)
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    first_sequence, durable = _read_header(path, content, number)
    frames: list[Frame] = []
    at = HEADER_BYTES
    end = content.size if is_last else durable
    while at < end:
        frame = _read_frame(content, number, at, first_sequence + len(frames))
        if frame is None:
            if at < durable:
                raise damaged(path, f"the frame at byte {at} has a wrong checksum")
            break
        frames.append(frame)
        at += frame.place.size
    if at < durable:
        raise damaged(path, f"it ends at byte {at}, though {durable} bytes were durable")
    return FoundLogFile(frames, first_sequence, at, durable)


def adopt_tail(files: Files, directory: str, number: int, reading: FoundLogFile) -> None:
    """Sync the frames that survived above the marker, and move the marker behind them.

    The next file follows, and of earlier files only the part below the marker is read.
    """
    file = files.reopen(f"{directory}/{file_name(number)}")
    try:
        file.sync()
        if reading.ends_at != reading.durable:
            file.overwrite(_MARKER_AT, _marker(reading.ends_at))
            file.sync()
    finally:
        file.close()


def _read_header(path: str, content: pa.Buffer, number: int) -> tuple[int, int]:
    if content.size < HEADER_BYTES:
        raise damaged(path, f"{content.size} bytes are too few for a header")
    header = content.slice(0, HEADER_BYTES).to_pybytes()
    front, checksum = header[: _MARKER_AT - 8], header[_MARKER_AT - 8 : _MARKER_AT]
    rest = header[_MARKER_AT + _MARKER.size :]
    if xxh3_64_intdigest(front + rest).to_bytes(8, "little") != checksum:
        raise damaged(path, "the header has a wrong checksum")
    magic, form, found, first_sequence = _FILE.unpack_from(front)
    if magic != _FILE_MAGIC or form != _FORMAT or found != number:
        raise damaged(path, "the header is of another log file, or of another version")
    durable, _ = _MARKER.unpack_from(header, _MARKER_AT)
    if header[_MARKER_AT : _MARKER_AT + _MARKER.size] != _marker(durable):
        raise damaged(path, "the marker has a wrong checksum")
    return first_sequence, durable


def _read_frame(content: pa.Buffer, number: int, at: int, sequence: int) -> Frame | None:
    """None: there is no complete frame with this sequence."""
    if at + _FRONT_BYTES > content.size:
        return None
    front = content.slice(at, _FRONT_BYTES).to_pybytes()
    magic, head_bytes, body_bytes, found = _FRAME.unpack_from(front)
    front_and_head = padded(_FRONT_BYTES + head_bytes)
    size = front_and_head + body_bytes
    if magic != _FRAME_MAGIC or found != sequence or at + size > content.size:
        return None
    head = content.slice(at + _FRONT_BYTES, front_and_head - _FRONT_BYTES).to_pybytes()
    bodies = content.slice(at + front_and_head, body_bytes)
    if _checksum(front[: _FRAME.size], head, [bodies]).to_bytes(8, "little") != front[-8:]:
        return None
    return Frame(sequence, head[:head_bytes], bodies, Place(number, at, size))


def read_frame(files: Files, directory: str, place: Place) -> Frame:
    """Read one frame again, from a file that was read or written before."""
    path = f"{directory}/{file_name(place.file)}"
    content = files.read(path)
    sequence = _sequence_at(content, place.at)
    frame = _read_frame(content, place.file, place.at, sequence)
    if frame is None or frame.place != place:
        raise damaged(path, f"the frame at byte {place.at} has a wrong checksum")
    return frame


def verify_file(files: Files, directory: str, number: int) -> Iterator[int]:
    """Verify a file that is complete: its header and each frame up to the marker. Yields how many
    bytes were verified, piece by piece; raises an error at the first damage."""
    path = f"{directory}/{file_name(number)}"
    try:
        header = files.read_part(path, 0, HEADER_BYTES)
        sequence, durable = _read_header(path, pa.py_buffer(header), number)
        yield len(header)
        at = first = HEADER_BYTES
        part = b""
        while at < durable:
            if at - first + _FRONT_BYTES > len(part):
                yield at - first
                first, part = at, files.read_part(path, at, VERIFY_BYTES).ljust(_FRONT_BYTES)
            _, head_bytes, body_bytes, _ = _FRAME.unpack_from(part, at - first)
            size = min(padded(_FRONT_BYTES + head_bytes) + body_bytes, durable - at)
            if at - first + size > len(part):
                yield at - first
                first, part = at, files.read_part(path, at, max(size, VERIFY_BYTES))
            content = pa.py_buffer(part).slice(at - first, size)
            if _read_frame(content, number, 0, sequence) is None:
                raise damaged(path, f"the frame at byte {at} has a wrong checksum")
            at += size
            sequence += 1
        yield at - first
    except FileNotFoundError:
        return  # the log was shortened
    except OSError as error:
        raise damaged(path, f"it can't be read: {error.strerror}") from error


def _sequence_at(content: pa.Buffer, at: int) -> int:
    if at + _FRONT_BYTES > content.size:
        return -1
    return int(_FRAME.unpack_from(content.slice(at, _FRONT_BYTES).to_pybytes())[3])


def read_frames(
    files: Files,
    directory: str,
    first: int,
    last: int,
    on_read: Callable[[int, FoundLogFile], None],
) -> Iterator[Frame]:
    """All frames of the log; no file and no frame may be missing."""
    sequence: int | None = None
    for number in range(first, last + 1):
        reading = read_file(files, directory, number, number == last)
        if sequence is not None and reading.first_sequence != sequence:
            path = f"{directory}/{file_name(number)}"
            raise damaged(
                path, f"it starts with frame {reading.first_sequence} instead of {sequence}"
            )
        sequence = reading.first_sequence + len(reading.frames)
        on_read(number, reading)
        yield from reading.frames
