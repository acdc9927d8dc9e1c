"""Where does a node keep what it holds? On its volumes; each is a disk with a log of its own.

A disk that is damaged takes its own replicas with it and no others. Tickets count for the whole
node: durable up to a ticket means on every volume.
"""

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeAlias

from msgspec import Struct

from limosa.core.effects import CreateReplica, DiscardReplica, VolumeEffect
from limosa.core.events import HeldReplica
from limosa.core.model.keys import WHOLE, Incarnation, NodeId, PartitionId, Position, TokenRange
from limosa.core.model.rows import Entry
from limosa.errors import BadInput, LimosaError, UnusableFile, VolumeFailed
from limosa.storage.files import Files, PosixFiles
from limosa.storage.maintenance import Maintenance
from limosa.storage.recovery import Refusal
from limosa.storage.replica import StoredReplica
from limosa.storage.schema import Table
from limosa.storage.view import Size, View
from limosa.storage.volume import Settings, Volume

ReplicaKey: TypeAlias = tuple[PartitionId, Incarnation]
IDLE_SECONDS = 0.05
WAIT_SECONDS = 1.0
BEHIND = 4
"""So many times the memory that rows should take, and writers wait."""


class Disk(Struct, frozen=True):
    """A volume and who looks after it."""

    volume: Volume
    maintenance: Maintenance


class Store:
    """The volumes of one node, by their names."""

    def __init__(
        self,
        directories: Mapping[str, str],
        files: Files | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._disks: dict[str, Disk] = {}
        self._homes: dict[ReplicaKey, str] = {}
        self._ticket = 0
        self._worker: _Worker | None = None
        self._settings = settings or Settings()
        self.refused: list[Refusal] = []
        try:
            for name, directory in directories.items():
                self._open(files or PosixFiles(), name, directory)
        except BaseException:
            self.close()
            raise

    def _open(self, files: Files, name: str, directory: str) -> None:
        try:
            volume = Volume(files, directory, name, self._settings)
        except UnusableFile as error:
            if error.message.endswith("is locked"):
                raise
            self.refused.append(Refusal(f"volume {name}", str(error)))
            return
        with ExitStack() as if_it_fails:
            if_it_fails.callback(volume.close)
            self._disks[name] = Disk(volume, Maintenance(volume))
            if_it_fails.pop_all()
        self.refused += volume.refused.values()
        for key in volume.replicas:
            self._homes[key] = name

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop maintenance, make everything durable, let go of the directories."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
        disks, self._disks = self._disks, {}
        with ExitStack() as closing:  # each of them, even if one can't be made durable
            for disk in disks.values():
                closing.callback(disk.volume.close)

    # ------------------------------------------------------------ changing

    def write(self, change: VolumeEffect) -> None:
        """Visible at once, durable after a sync. One caller at a time, in the order of tickets.

        Waits only if maintenance is so far behind that memory would run out.
        """
        if self._worker is not None:
            self._worker.wait_for_room()
        key = (change.partition, change.incarnation)
        if isinstance(change, CreateReplica):
            self._disk(change.volume)
            self._homes[key] = change.volume
        home = self._homes.get(key)
        if home is not None:
            self._disk(home).volume.write(change)
        if isinstance(change, DiscardReplica):
            if home is None:  # perhaps it was refused
                for disk in self._disks.values():
                    disk.volume.write(change)
            self._homes.pop(key, None)
        self._ticket = max(self._ticket, change.ticket)

    def sync(self) -> int:
        """Everything that was written before is durable; the ticket up to which that is so."""
        ticket = self._ticket
        for disk in list(self._disks.values()):
            disk.volume.sync()
        return ticket

    def _disk(self, name: str) -> Disk:
        disk = self._disks.get(name)
        if disk is None:
            raise BadInput(
                f"there is no volume {name!r} in use here",
                f"name one of: {', '.join(sorted(self._disks)) or 'none'}",
            )
        return disk

    # ------------------------------------------------------------ reading

    def restored(self, node: NodeId) -> tuple[HeldReplica, ...]:
        """What the volumes held when the process started."""
        return tuple(h for disk in self._disks.values() for h in disk.volume.restored(node))

    def view(
        self, partition: PartitionId, incarnation: Incarnation, committed: bool = True
    ) -> View:
        """What is committed now, or all that is there; it stays so for as long as it is kept."""
        disk, replica = self._replica((partition, incarnation))
        if committed:
            return replica.view
        with disk.volume.lock:
            return replica.everything()

    def newest(
        self, partition: PartitionId, incarnation: Incarnation, table: Table, key: tuple[Any, ...]
    ) -> Position:
        """The version that a compare-and-set compares with; 0: there is no such row."""
        disk, replica = self._replica((partition, incarnation))
        with disk.volume.lock:
            return replica.newest(table, key)

    def tail(
        self, partition: PartitionId, incarnation: Incarnation, after: Position
    ) -> list[Entry]:
        """A replica's log behind a position."""
        disk, replica = self._replica((partition, incarnation))
        return disk.volume.tail(replica, after)

    def sizes(self) -> dict[ReplicaKey, Size]:
        """What each replica takes, about."""
        return {
            key: replica.view.size
            for disk in self._disks.values()
            for key, replica in sorted(disk.volume.replicas.items())
        }

    def free_bytes(self) -> dict[str, int]:
        return {
            name: disk.volume.files.free_bytes(disk.volume.directory)
            for name, disk in self._disks.items()
        }

    def _replica(self, key: ReplicaKey) -> tuple[Disk, StoredReplica]:
        home = self._homes.get(key)
        replica = None if home is None else self._disk(home).volume.replicas.get(key)
        if home is None or replica is None:
            raise BadInput(f"replica {key[1]} of {key[0]} is not here", "ask another node")
        return self._disk(home), replica

    # ------------------------------------------------------------ maintenance

    def start_maintenance(self) -> None:
        """Let a thread of its own flush and merge from now on."""
        if self._worker is None:
            self._worker = _Worker(self)
            self._worker.start()

    def maintain(self) -> bool:
        """One step on one volume; False: there is nothing to do."""
        return any(disk.maintenance.step() for disk in list(self._disks.values()))

    @property
    def troubles(self) -> list[str]:
        """Why maintenance does not get on, if it does not."""
        found = [disk.maintenance.trouble for disk in self._disks.values()]
        return [trouble for trouble in found if trouble is not None]

    def flush(self, partition: PartitionId, incarnation: Incarnation) -> None:
        """Everything that is committed now rests in segments afterwards."""
        disk, replica = self._replica((partition, incarnation))
        disk.maintenance.flush(replica)

    def compact(self, partition: PartitionId, incarnation: Incarnation) -> None:
        """Merge all segments of a replica."""
        disk, replica = self._replica((partition, incarnation))
        disk.maintenance.compact(replica)

    def adopt(self, source: ReplicaKey, target: ReplicaKey, held: TokenRange = WHOLE) -> None:
        """Give a replica the committed rows of another one, or those of a range, by linking files.

        A split, a merge and a copy to another volume are this. Rows count by their version, so what
        the target has already stays right, and adopting twice changes nothing.
        """
        disk, given = self._replica(target)
        origin, giver = self._replica(source)
        disk.maintenance.adopt(giver, origin.maintenance, given, held)

    @property
    def is_behind(self) -> bool:
        """Far more rows are in memory than should be: writers had better wait."""
        limit = BEHIND * self._settings.memory_bytes
        return any(disk.volume.memory_bytes > limit for disk in self._disks.values())


class _Worker(threading.Thread):
    """Looks after the volumes as long as the store is open."""

    def __init__(self, store: Store) -> None:
        super().__init__(name="limosa-maintenance", daemon=True)
        self._store = store
        self._stopping = threading.Event()
        self._room = threading.Event()
        self._room.set()

    def wait_for_room(self) -> None:
        while not self._room.wait(WAIT_SECONDS):
            troubles = self._store.troubles
            if troubles:
                raise VolumeFailed(troubles[0], "make room: nothing more fits into memory either")

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                is_busy = self._store.maintain()
                if self._store.is_behind:
                    self._room.clear()
                else:
                    self._room.set()
                if not is_busy:
                    self._stopping.wait(IDLE_SECONDS)
        except LimosaError:
            pass  # a volume has failed: whoever writes or syncs next is told
        finally:
            self._room.set()

    def stop(self) -> None:
        self._stopping.set()
        self.join()
