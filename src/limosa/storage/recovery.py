"""What does a volume hold when a process starts on it?

Manifests list the segments, and the log has the changes since then. Damage is detected here or when
a block is first read. A damaged replica is refused alone; a damaged log with its whole volume.
"""

from msgspec import Struct

from limosa.core.effects import AdvanceWatermark
from limosa.core.model.keys import Incarnation, PartitionId
from limosa.errors import DamagedFile, LimosaError, UnusableFile
from limosa.storage.files import Files
from limosa.storage.log import (
    HEADER_BYTES,
    FoundLogFile,
    Frame,
    adopt_tail,
    damaged,
    file_name,
    read_frames,
)
from limosa.storage.manifest import (
    DAMAGED,
    MANIFEST,
    VOLUME,
    SegmentName,
    VolumeManifest,
    directory_of,
    read_manifest,
    read_volume_manifest,
)
from limosa.storage.records import (
    AnyRecord,
    Appended,
    CarriedEntries,
    Created,
    Discarded,
    RecordReader,
    SchemaDefined,
    decode,
)
from limosa.storage.replica import StoredReplica
from limosa.storage.segment import Segment
from limosa.storage.view import Ranged, TableView
from limosa.tabular.schema import Table

CHECK_DISK = "check the disk, then restart the node"


class Refusal(Struct, frozen=True):
    """A replica, or a whole volume, that is not served."""

    what: str
    why: str
    is_disk: bool = False
    """The disk failed or does not answer. Otherwise, a file is damaged."""


class Recovery:
    """Reads a volume; the fields hold what it found."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.replicas: dict[tuple[PartitionId, Incarnation], StoredReplica] = {}
        self.refused: dict[str, Refusal] = {}
        self.tables: dict[int, Table] = {}
        self.last_sequences: dict[int, int] = {}
        self.log_sizes: dict[int, int] = {}
        self.sequence = 0
        self._strangers: set[tuple[PartitionId, Incarnation]] = set()
        self.volume = self._read_volume()
        for name in self.volume.replicas:
            self._load(name)
        self._replay()
        for replica in self.replicas.values():
            replica.forget_trimmed()

    def _read_volume(self) -> VolumeManifest:
        try:
            return read_volume_manifest(self._files, self._directory)
        except UnusableFile:
            if VOLUME in self._files.names(self._directory) or not self._is_untouched():
                raise
            return VolumeManifest(1, 0, ())

    def _is_untouched(self) -> bool:
        """Nothing was ever durable here: there is at most an empty first log file."""
        logs = self._files.names(f"{self._directory}/log")
        if logs not in ([], [file_name(1)]) or self._files.names(f"{self._directory}/replicas"):
            return False
        return not logs or self._files.read(f"{self._directory}/log/{logs[0]}").size <= HEADER_BYTES

    # --- manifests and segments

    def _load(self, name: str) -> None:
        path = f"{self._directory}/replicas/{name}"
        try:
            manifest = read_manifest(self._files, path)
            if directory_of(manifest.partition, manifest.incarnation) != name:
                raise damaged(f"{path}/{MANIFEST}", "it describes another replica")
            tables = {}
            for described in manifest.tables:
                table = Table.decode(described.table)
                segments = tuple(open_segment(self._files, path, s) for s in described.segments)
                view = TableView(table, segments=segments, next_offset=described.next_offset)
                tables[table.id] = view
        except LimosaError as error:
            self.refused[name] = Refusal(name, str(error))
            return
        # A killed process may have renamed it without a sync, and the log will be shortened.
        self._files.sync_directory(path)
        replica = StoredReplica.from_manifest(manifest, tables)
        if DAMAGED in self._files.names(path):
            replica.damaged = self._still_damaged(path, replica)
        self.replicas[manifest.partition, manifest.incarnation] = replica

    def _still_damaged(self, path: str, replica: StoredReplica) -> str:
        """Which file is damaged, if one is: an operator may have restored it from a backup."""
        try:
            for view in replica.view.tables.values():
                for ranged in view.segments:
                    for _ in ranged.segment.verify(self._files):
                        pass
        except DamagedFile as error:
            return error.message
        self._files.remove(f"{path}/{DAMAGED}")
        return ""

    # --- the log

    def _replay(self) -> None:
        directory, last = f"{self._directory}/log", self.volume.last_log

        def on_read(number: int, reading: FoundLogFile) -> None:
            self.sequence = reading.first_sequence + len(reading.frames) - 1
            self.last_sequences[number] = self.sequence
            self.log_sizes[number] = reading.ends_at
            if number == last:
                adopt_tail(self._files, directory, number, reading)

        for frame in read_frames(self._files, directory, self.volume.first_log, last, on_read):
            self._replay_frame(frame)
        for key in sorted(self._strangers):
            path = f"{self._directory}/{VOLUME}"
            raise damaged(path, f"the log has changes of {directory_of(*key)}, which is missing")
        for replica in self.replicas.values():
            if replica.flushed_sequence > self.sequence:
                raise damaged(
                    f"{directory}/{file_name(last)}",
                    f"it ends with frame {self.sequence}, but frame {replica.flushed_sequence} "
                    "was durable",
                )

    def _replay_frame(self, frame: Frame) -> None:
        record = decode(frame.head)
        if isinstance(record, SchemaDefined):
            self.tables[record.schema] = Table.decode(record.table)
            return
        key = (record.partition, record.incarnation)
        if directory_of(*key) in self.refused:
            if isinstance(record, Discarded):
                del self.refused[directory_of(*key)]
            return
        replica = self.replicas.get(key)
        is_news = replica is None or frame.sequence > replica.flushed_sequence
        if isinstance(record, Created):
            self._strangers.discard(key)
            if is_news:
                self.replicas[key] = replica = StoredReplica(*key, record.volume)
                replica.last_sequence = frame.sequence
        elif isinstance(record, Discarded):
            self._strangers.discard(key)
            if is_news:
                self.replicas.pop(key, None)
            elif replica is not None:
                replica.forget_log()
        elif replica is None:
            self._strangers.add(key)
        else:
            self._replay_change(replica, record, frame)

    def _replay_change(self, replica: StoredReplica, record: AnyRecord, frame: Frame) -> None:
        reader = RecordReader(self.tables)
        if isinstance(record, CarriedEntries):
            replica.carry(reader.entries(record.entries, frame.bodies), frame.place)
            return
        change = reader.change(record, frame.bodies)
        if frame.sequence > replica.flushed_sequence:
            if isinstance(record, Appended) and record.committed:
                key = (replica.partition, replica.incarnation)
                replica.apply(AdvanceWatermark(*key, 0, record.committed), frame.place)
            replica.apply(change, frame.place)
            replica.last_sequence = frame.sequence
        else:
            replica.recall(change, frame.place)


def open_segment(files: Files, directory: str, name: SegmentName) -> Ranged:
    segment = Segment(files, f"{directory}/{name.file}")
    return Ranged(name.file, name.level, name.range, name.offset, segment)
