"""What does one disk hold, and how does it survive crashes and errors?

    VOLUME                      which log files and replicas there are
    LOCK                        held by the process that uses the volume
    log/00000007.log            the write-ahead log, for all replicas
    replicas/<id>/MANIFEST      what a replica consists of
    replicas/<id>/….segment     its rows at rest
    RESERVE                     space for the writes under way when the disk is full
    trash/                      dropped replicas that are not deleted yet

A change is appended to the log and applied in memory; the next `sync` makes it durable. Later,
maintenance moves the rows to segments; nobody waits for it.

The volume has no thread of its own: different threads may call `write`, `sync` and maintenance,
and readers take a view and need no lock.
"""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa
from msgspec import Struct

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    CreateReplica,
    DiscardReplica,
    VolumeEffect,
)
from limosa.core.events import HeldReplica
from limosa.core.model.keys import NodeId, Position
from limosa.core.model.rows import Entry
from limosa.errors import BadInput, DiskFull, VolumeFailed
from limosa.storage.files import Files, is_full
from limosa.storage.log import Place, VolumeLog, read_frame
from limosa.storage.manifest import VOLUME, Catalogue, directory_of
from limosa.storage.records import (
    Advanced,
    Appended,
    CarriedEntries,
    RecordReader,
    SchemaDefined,
    decode,
    encode,
    to_record,
)
from limosa.storage.recovery import Recovery, Refusal
from limosa.storage.replica import Logged, ReplicaKey, StoredReplica, check_change
from limosa.storage.tally import Tally
from limosa.tabular.bodies import Bodies, LoggedEntry, log_entries
from limosa.tabular.schema import Table

Found = tuple[Entry, Place | None]
"""An entry, and the frame that has its rows if they are not in memory."""
EVERYTHING = 2**62
RESERVE = "RESERVE"
"""A file that is removed when the disk is full, so that the writes under way still succeed."""
PLENTY = 8
"""The reserve is kept again when this many times its size is free."""
_NOWHERE = Place(0, 0, 0)


class StorageSettings(Struct, frozen=True):
    """Limits of memory, log and segments."""

    log_file_bytes: int = 64 << 20
    log_bytes_max: int = 512 << 20
    """A longer log is shortened at its oldest file."""
    frame_weight_bytes: int = 0
    """Added to each frame's size: replaying a small frame takes as long as a larger one."""
    log_useful_max: float = 0.5
    """The log is not shortened if more than this share of it is still needed."""
    replica_memory_bytes: int = 64 << 20
    """A replica with more bytes of rows in memory is flushed."""
    memory_bytes: int = 256 << 20
    """With more bytes of rows in memory in all, the largest replica is flushed."""
    reserve_bytes: int = 0
    """Space that is set aside for the writes under way when the disk fills up."""
    piece_bytes: int = 64 << 20
    """The approximate size of a settled segment, and of a compaction step."""


class Volume:
    """One directory, in use by one process."""

    def __init__(
        self, files: Files, directory: str, name: str = "", settings: StorageSettings | None = None
    ) -> None:
        self.files = files
        self.directory = directory
        self.name = name
        self.settings = settings or StorageSettings()
        self.lock = threading.RLock()
        """Protects what is in memory; never held during file operations."""
        self._syncing = threading.Lock()
        self._failed: VolumeFailed | None = None
        self._is_closed = False
        self._schemas_here: set[int] = set()
        """Schemas that the current log file defines."""
        self._advanced: dict[ReplicaKey, Position] = {}
        """Watermarks that are not logged yet; only the last one of each replica matters."""
        self._moved: list[tuple[StoredReplica, int, Place]] = []
        """Entries that move to another log file as soon as it is written."""
        self._ticket = 0
        self.is_full = False
        """The last sync found no space on the disk."""
        self._has_reserve = False
        """The reserve was seen since it was last given up."""
        self.grown = 0
        """An upper bound of the bytes of rows in memory; measured exactly now and then."""
        self.dropped: list[str] = []
        """Directories of replicas that were discarded."""
        self._owned = files.lock(self._prepare())
        try:
            self._start()
        except BaseException:
            self._owned.close()
            raise

    def _prepare(self) -> str:
        self.files.make_directory(self.directory)
        for name in ("log", "replicas", "trash"):
            self.files.make_directory(f"{self.directory}/{name}")
        self.files.sync_directory(self.directory)
        if VOLUME not in self.files.names(self.directory):
            self._sync_parents()
        return f"{self.directory}/LOCK"

    def _sync_parents(self) -> None:
        """At a volume's first start, sync its directory's parents, which may be new."""
        path, parent = self.directory, os.path.dirname(self.directory)
        while parent != path:
            with suppress(PermissionError):  # then this process created nothing in it
                self.files.sync_directory(parent or ".")
            path, parent = parent, os.path.dirname(parent)

    def _start(self) -> None:
        found = Recovery(self.files, self.directory)
        self.replicas = found.replicas
        self.tally = Tally(self.replicas, self.settings.replica_memory_bytes)
        self.refused: dict[str, Refusal] = found.refused
        self._tables = found.tables
        self.last_sequences = found.last_sequences
        """Last sequence of each log file except the current one."""
        self.durable_sequence = found.sequence
        self.catalogue = Catalogue(self.files, self.directory, found.volume)
        try:
            self.log = self._begin_log(found)
        except OSError as error:
            if not (is_full(error) and self.free_reserve()):
                raise
            self.log = self._begin_log(found)

    def _begin_log(self, found: Recovery) -> VolumeLog:
        log = VolumeLog(
            self.files,
            f"{self.directory}/log",
            found.sequence,
            found.volume.last_log + 1,
            self.settings.log_file_bytes,
            self.catalogue.start_log,
            self.settings.frame_weight_bytes,
        )
        log.sizes.update(found.log_sizes)
        return log

    # ------------------------------------------------------------ changing

    def write(self, change: VolumeEffect) -> None:
        """Apply a change: visible at once, durable after a sync. In the order of tickets."""
        with self.lock:
            self.check()
            key = (change.partition, change.incarnation)
            if isinstance(change, AdvanceWatermark):
                self._advance(key, change)
            elif isinstance(change, CreateReplica):
                self._discard(key, DiscardReplica(*key, change.ticket))  # an earlier replica
                self._append(key, change)
                self.replicas[key] = StoredReplica(*key, change.volume)
                self.replicas[key].last_sequence = self.log.sequence
                self.tally.note(self.replicas[key])
            elif isinstance(change, DiscardReplica):
                self._discard(key, change)
            elif key in self.replicas:
                replica = self.replicas[key]
                check_change(change, replica)
                place = self._append(key, change)
                replica.apply(change, place)
                replica.last_sequence = self.log.sequence
                self.grown += place.size
                self.tally.note(replica)
            self._ticket = max(self._ticket, change.ticket)

    def _advance(self, key: ReplicaKey, change: AdvanceWatermark) -> None:
        replica = self.replicas.get(key)
        if replica is not None and change.to > replica.watermark:
            replica.apply(change, _NOWHERE)
            self._advanced[key] = change.to
            self.tally.note(replica)

    def _discard(self, key: ReplicaKey, change: DiscardReplica) -> None:
        """Discard in constant time; maintenance deletes the files later."""
        name = directory_of(*key)
        existed = self.replicas.pop(key, None)
        if existed is not None:
            self.tally.note(existed)
        if existed is not None or name in self.refused:
            self.refused.pop(name, None)
            self._advanced.pop(key, None)
            self._append(key, change)
            self.dropped.append(name)

    def _append(self, key: ReplicaKey, change: VolumeEffect) -> Place:
        takes_along = isinstance(change, AppendEntries)
        if not takes_along:
            self._log_watermark(key)
        bodies = Bodies(self._schema_of)
        committed = self._advanced.get(key, 0) if takes_along else 0
        head = encode(to_record(change, bodies, committed))
        if takes_along:
            self._advanced.pop(key, None)
        return self.log.append(head, bodies.pieces)

    def _log_watermark(self, key: ReplicaKey) -> None:
        """Log the watermark before the next change of the replica, to keep their order."""
        to = self._advanced.pop(key, None)
        if to is not None and key in self.replicas:
            self.log.append(encode(Advanced(*key, to)))
            self.replicas[key].last_sequence = self.log.sequence

    def _schema_of(self, table: Table) -> int:
        """The number by which bodies refer to a schema; logs its definition before them."""
        number = table.fingerprint
        if number not in self._schemas_here:
            self._tables[number] = table
            self.log.append(encode(SchemaDefined(number, table.encode())))
            self._schemas_here.add(number)
        return number

    def carry(self, replica: StoredReplica, file: int) -> bool:
        """Append the replica's entries again that are in a log file which is to be removed.

        False: the replica must be flushed first. Otherwise the entry would come after the watermark
        that commits it, and a replay of the log would miss its rows at that point.
        """
        with self.lock:
            if not self.holds(replica):
                return True
            key = (replica.partition, replica.incarnation)
            if replica.has_rows_in(file):
                self._log_watermark(key)
                return False
            here = [logged for logged in replica.log if logged.place.file == file]
            if not here:
                return True
            entries = self.whole(here)
            bodies = Bodies(self._schema_of)
            logged_entries = log_entries(entries, bodies)
            place = self.log.append(encode(CarriedEntries(*key, logged_entries)), bodies.pieces)
            self._moved.append((replica, file, place))
            return True

    def holds(self, replica: StoredReplica) -> bool:
        return self.replicas.get((replica.partition, replica.incarnation)) is replica

    # ------------------------------------------------------------ making it durable

    def sync(self) -> int:
        """Make all earlier writes durable; returns the ticket up to which they are.

        Callers that arrive during a sync wait, and share the next one. Raises `DiskFull` if there
        is no space: everything waits for the next sync.
        """
        with self._syncing:
            self.check()
            try:
                ticket = self._sync_with_reserve()
                self.is_full = False
                return ticket
            except DiskFull:
                self.is_full = True
                raise
            except BaseException as error:
                # Any error, even Ctrl-C: frames that were taken may not have been written.
                failed = self.fail(error)
                if isinstance(error, Exception):
                    raise failed from error
                raise

    def _sync_with_reserve(self) -> int:
        """On a full disk, the writes under way get the space of the reserve."""
        try:
            return self._sync()
        except DiskFull:
            if not self.free_reserve():
                raise
            return self._sync()

    def free_reserve(self) -> bool:
        """Give the reserve up; False: it is gone already."""
        self._has_reserve = False
        if RESERVE not in self.files.names(self.directory):
            return False
        self.files.remove(f"{self.directory}/{RESERVE}")
        return True

    def keep_reserve(self) -> bool:
        """Set space aside again once there is plenty; True: that was done now."""
        size = self.settings.reserve_bytes
        if not size or self._has_reserve:
            return False
        self._has_reserve = RESERVE in self.files.names(self.directory)
        if self._has_reserve or self.files.free_bytes(self.directory) < PLENTY * size:
            return False
        self.files.reserve(f"{self.directory}/{RESERVE}", size)
        self._has_reserve = True
        return True

    def _sync(self) -> int:
        with self.lock:
            for key in list(self._advanced):
                self._log_watermark(key)
            ticket, sequence = self._ticket, self.log.sequence
            moved, self._moved = self._moved, []
            batches = self.log.take()
            if self.log.is_full:
                self.last_sequences[self.log.number] = sequence
                self.log.turn_over()
                self._schemas_here.clear()
        if any(batch.pieces for batch in batches):
            try:
                self.log.write(batches)
            except DiskFull:
                self._moved = [*moved, *self._moved]
                raise
        self.durable_sequence = sequence
        with self.lock:
            for replica, file, place in moved:
                replica.move(file, place)
                self.tally.note(replica)
        return ticket

    def fail(self, error: BaseException) -> VolumeFailed:
        """Put the volume out of use until the process restarts. A failed sync can't be retried: the
        kernel may have dropped the data and would report the next sync as a success."""
        if self._failed is None:
            self._failed = VolumeFailed(
                f"volume {self.directory} failed: {str(error) or type(error).__name__}",
                "repair the disk or free space, then restart the node: acknowledged rows are kept",
            )
        return self._failed

    def measure(self) -> int:
        """Bytes of rows that are in no segment yet."""
        with self.lock:
            self.tally.count()
            self.grown = self.tally.memory_bytes
            return self.grown

    @property
    def has_failed(self) -> bool:
        return self._failed is not None

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Make everything durable, if possible, and unlock the directory."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._failed is None:
                with suppress(DiskFull):  # nothing that was reported as durable is missing
                    self.sync()
        finally:
            with self._syncing, self.lock:
                if self._failed is None:
                    self._failed = VolumeFailed(
                        f"volume {self.directory} is closed", "open it again"
                    )
                    self.log.close()
                self.log.abandon()
            self._owned.close()

    # ------------------------------------------------------------ reading

    def restored(self, node: NodeId) -> list[HeldReplica]:
        with self.lock:
            replicas = [replica for _, replica in sorted(self.replicas.items())]
            return [replica.restored(node) for replica in replicas]

    def tail(
        self, replica: StoredReplica, after: Position, bytes_max: int = EVERYTHING
    ) -> list[Entry]:
        """Entries of a replica's log after a position, for another replica that catches up.

        Files are read without the lock. A file may be removed meanwhile: then its entries were
        appended again before, or trimmed.
        """
        found = self._tail(replica, after, bytes_max)
        try:
            return self._whole(found)
        except FileNotFoundError:
            again = self._tail(replica, after, bytes_max)
        with suppress(FileNotFoundError):
            if again and again[0][0].at == found[0][0].at:
                return self._whole(again)
        raise BadInput(
            f"the log of {replica.partition} after {after} was trimmed",
            "rebuild the replica that needs it",
        )

    def _tail(self, replica: StoredReplica, after: Position, bytes_max: int) -> list[Found]:
        with self.lock:
            found: list[Found] = []
            size = 0
            for logged in replica.behind(after):
                size += logged.size
                if found and size > bytes_max:
                    break
                found.append((logged.entry, logged.place if logged.rowless else None))
            return found

    def whole(self, log: Iterable[Logged]) -> list[Entry]:
        """Entries with their rows, read from the log's files if they are not in memory."""
        return self._whole((each.entry, each.place if each.rowless else None) for each in log)

    def _whole(self, log: Iterable[Found]) -> list[Entry]:
        frames: dict[Place, dict[Position, LoggedEntry]] = {}
        bodies: dict[Place, pa.Buffer] = {}
        reader, entries = RecordReader(self._tables), []
        for entry, place in log:
            if place is None:
                entries.append(entry)
                continue
            if place not in frames:
                frame = read_frame(self.files, f"{self.directory}/log", place)
                record = decode(frame.head)
                assert isinstance(record, Appended | CarriedEntries)
                frames[place] = {each.at: each for each in record.entries}
                bodies[place] = frame.bodies
            entries += reader.entries([frames[place][entry.at]], bodies[place])
        return entries
