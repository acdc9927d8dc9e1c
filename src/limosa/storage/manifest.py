"""What does a replica consist of, apart from the log? One small file, replaced as a whole.

The manifest and its segments include every change of the volume's log up to `sequence`, except
entries of the replica's own log: those stay in the volume's log for as long as they are needed.
"""

import struct
import threading
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from limosa.core.model.keys import Incarnation, PartitionId, Position, TokenRange
from limosa.core.producers import ProducersValue
from limosa.storage.files import Files, replace_all_durably
from limosa.storage.log import damaged

MANIFEST = "MANIFEST"
VOLUME = "VOLUME"
DAMAGED = "DAMAGED"
"""In the directory of a replica with a damaged file: which one, in words."""
_FRONT = struct.Struct("<8sQQ")
_MAGIC = b"LIMOSMAN"


class SegmentName(Struct, array_like=True, frozen=True):
    """A segment file, and the part of it that counts here."""

    file: str
    level: int
    range: TokenRange
    offset: int = 0
    """Offset of the first record, if it is a stream's segment."""


class TableManifest(Struct, array_like=True, frozen=True):
    table: bytes
    segments: tuple[SegmentName, ...]
    next_offset: int = 0


class Manifest(Struct, array_like=True, frozen=True):
    partition: PartitionId
    incarnation: Incarnation
    volume: str
    sequence: int
    """Sequence of the last log frame that is included."""
    epoch: int
    begun: int
    first: Position
    watermark: Position
    collected: Position
    producers: ProducersValue
    tables: tuple[TableManifest, ...]


class VolumeManifest(Struct, array_like=True, frozen=True):
    """What a volume consists of."""

    first_log: int
    last_log: int
    replicas: tuple[str, ...]
    """Directories that must exist."""


def write_manifests(files: Files, manifests: Iterable[tuple[str, str, Struct]]) -> None:
    """Replace files by directory and name, each atomically."""
    replace_all_durably(files, [(path, name, [_sealed(each)]) for path, name, each in manifests])


def _sealed(manifest: Struct) -> bytes:
    encoded = msgspec.msgpack.encode(manifest)
    return _FRONT.pack(_MAGIC, len(encoded), xxh3_64_intdigest(encoded)) + encoded


def read_manifest(files: Files, directory: str) -> Manifest:
    return msgspec.msgpack.decode(_read(files, f"{directory}/{MANIFEST}"), type=Manifest)


def read_volume_manifest(files: Files, directory: str) -> VolumeManifest:
    return msgspec.msgpack.decode(_read(files, f"{directory}/{VOLUME}"), type=VolumeManifest)


def _read(files: Files, path: str) -> bytes:
    try:
        content = files.read(path).to_pybytes()
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    if len(content) < _FRONT.size:
        raise damaged(path, f"{len(content)} bytes are too few for a manifest")
    magic, size, checksum = _FRONT.unpack_from(content)
    encoded = content[_FRONT.size :]
    if magic != _MAGIC or size != len(encoded) or xxh3_64_intdigest(encoded) != checksum:
        raise damaged(path, "it has a wrong checksum, or is of another version")
    return encoded


@lru_cache(maxsize=16_384)
def directory_of(partition: PartitionId, incarnation: Incarnation) -> str:
    """The name of a replica's directory: its ids, escaped."""
    return f"{quote(partition, safe='')}~{quote(incarnation, safe='')}"


class Catalogue:
    """The content of VOLUME; the log and maintenance change it from different threads."""

    def __init__(self, files: Files, directory: str, found: VolumeManifest) -> None:
        self._files = files
        self._directory = directory
        self._changing = threading.Lock()
        self.first_log = found.first_log
        self.last_log = found.last_log
        self.replicas = frozenset(found.replicas)

    def start_log(self, number: int) -> None:
        with self._changing:
            self._write(self.first_log, number, self.replicas)

    def forget_logs_before(self, number: int) -> None:
        with self._changing:
            self._write(number, self.last_log, self.replicas)

    def add_replicas(self, names: Iterable[str]) -> None:
        with self._changing:
            new = frozenset(names) - self.replicas
            if new:
                self._write(self.first_log, self.last_log, self.replicas | new)

    def remove_replicas(self, names: Iterable[str]) -> None:
        with self._changing:
            gone = self.replicas & frozenset(names)
            if gone:
                self._write(self.first_log, self.last_log, self.replicas - gone)

    def _write(self, first_log: int, last_log: int, replicas: frozenset[str]) -> None:
        """Write VOLUME first; the fields change only if that succeeds."""
        manifest = VolumeManifest(first_log, last_log, tuple(sorted(replicas)))
        write_manifests(self._files, [(self._directory, VOLUME, manifest)])
        self.first_log, self.last_log, self.replicas = first_log, last_log, replicas
