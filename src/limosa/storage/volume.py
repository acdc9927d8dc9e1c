"""What does one disk hold, and how does it survive crashes and errors?

    VOLUME                      which log files and replicas there are
    LOCK                        held by the process that uses the volume
    log/00000007.log            the write-ahead log, for all replicas
    replicas/<id>/MANIFEST      what a replica consists of
    replicas/<id>/….segment     its rows at rest
    trash/                      what was dropped and is not deleted yet

A change goes to the log and is carried out in memory; it is durable with the next `sync`. What
happens to rows after that is maintenance's business, and nobody waits for it.

The volume has no thread of its own: `write`, `sync` and maintenance may each be called by another
one, and readers take a view and need nobody.
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
from limosa.core.model.keys import Incarnation, NodeId, PartitionId, Position
from limosa.core.model.rows import Entry
from limosa.errors import BadInput, VolumeFailed
from limosa.storage.files import Files
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
from limosa.storage.replica import Logged, StoredReplica, check_change
from limosa.tabular.bodies import Bodies, LoggedEntry, log_entries
from limosa.tabular.schema import Table

ReplicaKey = tuple[PartitionId, Incarnation]
Found = tuple[Entry, Place | None]
"""An entry, and the frame that has its rows if they are not in memory."""
EVERYTHING = 2**62
_NOWHERE = Place(0, 0, 0)


class StorageSettings(Struct, frozen=True):
    """How much is kept where."""

    log_file_bytes: int = 64 << 20
    log_bytes_max: int = 512 << 20
    """Beyond this the oldest log file is made superfluous."""
    frame_weight_bytes: int = 0
    """Each frame counts as so much more: to replay a small one takes as long as a larger one."""
    log_useful_max: float = 0.5
    """But not if more than this share of the log is still needed."""
    replica_memory_bytes: int = 64 << 20
    """A replica with so many bytes of rows in memory is flushed."""
    memory_bytes: int = 256 << 20
    """With so many bytes of rows in memory, the largest replica is flushed."""
    piece_bytes: int = 64 << 20
    """About the size of a settled segment, and what a step of compaction works on."""


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
        """Around what is in memory, never around a file."""
        self._syncing = threading.Lock()
        self._failed: VolumeFailed | None = None
        self._is_closed = False
        self._schemas_here: set[int] = set()
        """Of the log file that is written now."""
        self._advanced: dict[ReplicaKey, Position] = {}
        """Watermarks that are not in the log yet; the last one of each replica will do."""
        self._moved: list[tuple[StoredReplica, int, Place]] = []
        """Entries that are in another file as soon as that is written."""
        self._ticket = 0
        self.grown = 0
        """At most what rows take in memory; counted exactly now and then."""
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
        """Before a volume's first start: perhaps its directory and those around it are new."""
        path, parent = self.directory, os.path.dirname(self.directory)
        while parent != path:
            with suppress(PermissionError):  # then nothing in it was made by us
                self.files.sync_directory(parent or ".")
            path, parent = parent, os.path.dirname(parent)

    def _start(self) -> None:
        found = Recovery(self.files, self.directory)
        self.replicas = found.replicas
        self.refused: dict[str, Refusal] = found.refused
        self._tables = found.tables
        self.last_sequences = found.last_sequences
        """Of each log file that is not the last one."""
        self.durable_sequence = found.sequence
        self.catalogue = Catalogue(self.files, self.directory, found.volume)
        self.log = VolumeLog(
            self.files,
            f"{self.directory}/log",
            found.sequence,
            found.volume.last_log + 1,
            self.settings.log_file_bytes,
            self.catalogue.start_log,
            self.settings.frame_weight_bytes,
        )
        self.log.sizes.update(found.log_sizes)

    # ------------------------------------------------------------ changing

    def write(self, change: VolumeEffect) -> None:
        """Visible at once, durable after a sync. One caller at a time, in the order of tickets."""
        with self.lock:
            self.check()
            key = (change.partition, change.incarnation)
            if isinstance(change, AdvanceWatermark):
                self._advance(key, change)
            elif isinstance(change, CreateReplica):
                self._discard(key, DiscardReplica(*key, change.ticket))  # nothing of an earlier one
                self._append(key, change)
                self.replicas[key] = StoredReplica(*key, change.volume)
                self.replicas[key].last_sequence = self.log.sequence
            elif isinstance(change, DiscardReplica):
                self._discard(key, change)
            elif key in self.replicas:
                check_change(change, self.replicas[key])
                place = self._append(key, change)
                self.replicas[key].apply(change, place)
                self.replicas[key].last_sequence = self.log.sequence
                self.grown += place.size
            self._ticket = max(self._ticket, change.ticket)

    def _advance(self, key: ReplicaKey, change: AdvanceWatermark) -> None:
        replica = self.replicas.get(key)
        if replica is not None and change.to > replica.watermark:
            replica.apply(change, _NOWHERE)
            self._advanced[key] = change.to

    def _discard(self, key: ReplicaKey, change: DiscardReplica) -> None:
        """In constant time: the files go later."""
        name = directory_of(*key)
        existed = self.replicas.pop(key, None) is not None
        if existed or name in self.refused:
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
        """Watermarks and other changes of one replica stay in their order."""
        to = self._advanced.pop(key, None)
        if to is not None and key in self.replicas:
            self.log.append(encode(Advanced(*key, to)))
            self.replicas[key].last_sequence = self.log.sequence

    def _schema_of(self, table: Table) -> int:
        """The number that bodies name their table by; its definition goes before them."""
        number = table.fingerprint
        if number not in self._schemas_here:
            self._tables[number] = table
            self.log.append(encode(SchemaDefined(number, table.encode())))
            self._schemas_here.add(number)
        return number

    def carry(self, replica: StoredReplica, file: int) -> bool:
        """Write entries of the replica's log again that lie in a file which is to go.

        False: the replica must be flushed first. An entry would come after the watermark that
        commits it, and when the log is replayed its rows would not be there at that moment.
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
        """Everything that was written before is durable; the ticket up to which that is so.

        Callers that come while another one is at it wait, and are then served together.
        """
        with self._syncing:
            self.check()
            try:
                return self._sync()
            except BaseException as error:
                # Whatever it was, perhaps Ctrl-C: what was taken from the log may not be written.
                failed = self.fail(error)
                if isinstance(error, Exception):
                    raise failed from error
                raise

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
            self.log.write(batches)
        self.durable_sequence = sequence
        with self.lock:
            for replica, file, place in moved:
                replica.move(file, place)
        return ticket

    def fail(self, error: BaseException) -> VolumeFailed:
        """A failed sync can't be mended: the kernel may have dropped the data, and would call the
        next sync a success. So the volume is out of use, and the process must start anew."""
        if self._failed is None:
            self._failed = VolumeFailed(
                f"volume {self.directory} failed: {str(error) or type(error).__name__}",
                "mend the disk or make room, then start the node again: what was acknowledged is"
                " kept",
            )
        return self._failed

    def measure(self) -> int:
        """What rows take that are in no segment yet."""
        with self.lock:
            self.grown = sum(replica.memory_bytes for replica in self.replicas.values())
            return self.grown

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Make durable what can be made durable, and let go of the directory."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._failed is None:
                self.sync()
        finally:
            with self._syncing, self.lock:
                if self._failed is None:
                    self._failed = VolumeFailed(f"volume {self.directory} is closed", "open it")
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
        """A replica's log behind a position, for another replica that catches up.

        Files are read without the lock. One may go meanwhile: what it had was written again
        elsewhere before, or was let go of.
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
            f"the log of {replica.partition} behind {after} is there no more",
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
        """Entries with their rows, from the log's files if those are not in memory any more."""
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
