"""Where does a node keep its replicas? On its volumes; each is a disk with a log of its own.

A disk that is damaged takes its own replicas with it and no others. Tickets count for the whole
node: durable up to a ticket means on every volume.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeAlias

from msgspec import Struct

from limosa.core.effects import CreateReplica, DiscardReplica, VolumeEffect
from limosa.core.events import HeldReplica
from limosa.core.model.keys import WHOLE, Incarnation, NodeId, PartitionId, Position, TokenRange
from limosa.core.model.rows import Entry
from limosa.errors import BadInput, VolumeFailed, VolumeInUse
from limosa.storage.files import Files, PosixFiles
from limosa.storage.maintenance import Maintenance
from limosa.storage.recovery import Refusal
from limosa.storage.replica import StoredReplica
from limosa.storage.view import Size, View
from limosa.storage.volume import EVERYTHING, StorageSettings, Volume
from limosa.tabular.rows import Bundle
from limosa.tabular.schema import Table

ReplicaKey: TypeAlias = tuple[PartitionId, Incarnation]
IDLE_SECONDS = 0.05
TROUBLE_SECONDS = 1.0
"""Before something that failed is tried again."""
WAIT_SECONDS = 5.0
BEHIND = 4
"""So many times the memory that rows should take, and writers wait."""


class TendedVolume(Struct, frozen=True):
    """A volume and who looks after it."""

    volume: Volume
    maintenance: Maintenance


class Store:
    """The volumes of one node, by their names."""

    def __init__(
        self,
        directories: Mapping[str, str],
        files: Files | None = None,
        settings: StorageSettings | None = None,
    ) -> None:
        self._disks: dict[str, TendedVolume] = {}
        self._homes: dict[ReplicaKey, str] = {}
        self._ticket = 0
        self._worker: _Worker | None = None
        self._settings = settings or StorageSettings()
        self._refused: list[Refusal] = []
        try:
            for name, directory in directories.items():
                self._open(files or PosixFiles(), name, directory)
        except BaseException:
            self.close()
            raise

    def _open(self, files: Files, name: str, directory: str) -> None:
        try:
            volume = Volume(files, directory, name, self._settings)
            with ExitStack() as if_it_fails:
                if_it_fails.callback(volume.close)
                self._disks[name] = TendedVolume(volume, Maintenance(volume))
                if_it_fails.pop_all()
        except Exception as error:
            if isinstance(error, VolumeInUse):
                raise
            self._refused.append(Refusal(f"volume {name}", str(error) or type(error).__name__))
            return
        for key in volume.replicas:
            self._homes[key] = name

    @property
    def volumes(self) -> tuple[str, ...]:
        """Those that are in use; the others are among `refused`."""
        return tuple(self._disks)

    @property
    def refused(self) -> list[Refusal]:
        """Volumes and replicas that are not served, and why."""
        replicas = [r for disk in self._disks.values() for r in disk.volume.refused.values()]
        return [*self._refused, *replicas]

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
        worker = self._worker
        if worker is not None:
            worker.stop()
        with ExitStack() as closing:  # each of them, even if one can't be made durable
            for disk in self._disks.values():
                closing.callback(disk.maintenance.close)

    # ------------------------------------------------------------ changing

    def write(self, change: VolumeEffect) -> None:
        """Visible at once, durable after a sync. One caller at a time, in the order of tickets.

        Waits only if maintenance is so far behind that memory would run out.
        """
        key = (change.partition, change.incarnation)
        if isinstance(change, CreateReplica):
            self._disk(change.volume)
            self._discard(key, change.ticket)
            self._homes[key] = change.volume
        if isinstance(change, DiscardReplica):
            self._discard(key, change.ticket)
        elif key in self._homes:
            disk = self._disk(self._homes[key])
            if self._worker is not None and disk.volume.grown > self._limit:
                self._worker.wait_for_room(disk, self._limit)
            disk.volume.write(change)
        else:
            # Said to be durable with the next sync, it would be nowhere.
            raise BadInput(f"replica {key[1]} of {key[0]} is not here", "create it first")
        self._ticket = max(self._ticket, change.ticket)

    def is_behind(self, share: float = 0.5) -> bool:
        """More rows wait in memory than this share of what may; soon `write` will have to wait."""
        limit = int(share * self._limit)
        return any(disk.volume.grown > limit for disk in self._disks.values())

    def wait_for_room(self, share: float = 0.5) -> None:
        """For those who are about to write, and can wait."""
        limit = int(share * self._limit)
        for disk in self._disks.values():
            if self._worker is not None and disk.volume.grown > limit:
                self._worker.wait_for_room(disk, limit)

    def _discard(self, key: ReplicaKey, ticket: int) -> None:
        """Wherever it is: on its volume, or refused on another one."""
        for disk in self._disks.values():
            disk.volume.write(DiscardReplica(*key, ticket))
        self._homes.pop(key, None)

    def sync(self) -> int:
        """Makes everything written so far durable; returns the ticket of the last such write.

        Raises `VolumeFailed` if a volume can't, and from then on every time: no sync is retried.
        """
        ticket = self._ticket
        for disk in list(self._disks.values()):
            disk.volume.sync()
        return ticket

    def _disk(self, name: str) -> TendedVolume:
        disk = self._disks.get(name)
        if disk is None:
            raise BadInput(
                f"there is no volume {name!r} in use here",
                f"name one of: {', '.join(sorted(self._disks)) or 'none'}",
            )
        return disk

    # ------------------------------------------------------------ reading

    def restored(self, node: NodeId) -> tuple[HeldReplica, ...]:
        """The replicas that the volumes had at the start, except damaged ones."""
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
        self,
        partition: PartitionId,
        incarnation: Incarnation,
        after: Position,
        bytes_max: int = EVERYTHING,
    ) -> list[Entry]:
        """A replica's log behind a position: one entry at least, then so many bytes.

        Raises `BadInput` if the log no longer has these entries.
        """
        disk, replica = self._replica((partition, incarnation))
        return disk.volume.tail(replica, after, bytes_max)

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

    def _replica(self, key: ReplicaKey) -> tuple[TendedVolume, StoredReplica]:
        home = self._homes.get(key)
        replica = None if home is None else self._disk(home).volume.replicas.get(key)
        if home is None or replica is None:
            raise BadInput(f"replica {key[1]} of {key[0]} is not here", "ask another node")
        return self._disk(home), replica

    # ------------------------------------------------------------ maintenance

    def merge_later(self, is_copied: Callable[[PartitionId], bool]) -> None:
        """Partitions of which rows are carried and compared are not merged meanwhile, as far as
        that can wait."""
        for disk in self._disks.values():
            disk.maintenance.is_copied = is_copied

    def start_maintenance(self) -> None:
        """Let a thread of its own flush and merge from now on."""
        if self._worker is None:
            self._worker = _Worker(self, self._disks)
            self._worker.start()

    def maintain(self) -> bool:
        """One step on one volume; False: there is nothing to do."""
        return any(disk.maintenance.step() for disk in self._disks.values())

    @property
    def troubles(self) -> list[str]:
        """Why maintenance does not get on, if it does not."""
        return [why for disk in self._disks.values() for why in disk.maintenance.troubles]

    def flush(self, partition: PartitionId, incarnation: Incarnation) -> None:
        """Everything that is committed now rests in segments afterwards."""
        disk, replica = self._replica((partition, incarnation))
        disk.maintenance.flush(replica)

    def verify(self, partition: PartitionId, incarnation: Incarnation) -> None:
        """Read every byte that rests in segments again; damage raises `UnusableFile`."""
        for table in self.view(partition, incarnation).tables.values():
            for ranged in table.segments:
                ranged.segment.verify()

    def compact(self, partition: PartitionId, incarnation: Incarnation) -> None:
        """Merge all segments of a replica."""
        disk, replica = self._replica((partition, incarnation))
        disk.maintenance.compact(replica)

    def adopt(
        self, source: ReplicaKey, target: ReplicaKey, token_range: TokenRange = WHOLE
    ) -> None:
        """Give a replica the committed rows of another one, or those of a range, by linking files.

        A split, a merge and a copy to another volume are this. Rows count by their version, so what
        the target has already stays right, and adopting twice changes nothing.
        """
        disk, given = self._replica(target)
        origin, giver = self._replica(source)
        disk.maintenance.adopt(giver, origin.maintenance, given, token_range)

    def shelve(
        self,
        target: ReplicaKey,
        rows: Sequence[Bundle],
        token_range: TokenRange,
        digest: int,
        collected: Position = 0,
        least: int = 0,
    ) -> Bundle:
        """Give a replica copied rows of a range, past the log; they are durable afterwards.

        Nothing is given whose digest is another one once it lies there, or if tombstones were
        collected behind `collected`: they may be gone that hide some of it. Rows that would make a
        file of less than so many bytes are given back.
        """
        disk, replica = self._replica(target)
        return disk.maintenance.shelve(replica, rows, token_range, digest, collected, least)

    def can_link(self, source: ReplicaKey, target: ReplicaKey) -> bool:
        """On one file system: elsewhere the bytes would be copied, which holds others up."""
        disks = [self._replica(key)[0] for key in (source, target)]
        return len({disk.volume.files.device(disk.volume.directory) for disk in disks}) == 1

    @property
    def _limit(self) -> int:
        """Far more rows in memory than should be: writers had better wait."""
        return BEHIND * self._settings.memory_bytes


class _Worker(threading.Thread):
    """Looks after the volumes as long as the store is open."""

    def __init__(self, store: Store, disks: Mapping[str, TendedVolume]) -> None:
        super().__init__(name="limosa-maintenance", daemon=True)
        self._store = store
        self._disks = disks
        self._stopping = threading.Event()
        self._progress = threading.Event()

    def wait_for_room(self, disk: TendedVolume, limit: int) -> None:
        """Until enough was flushed; an error says why that can't be."""
        while disk.volume.measure() > limit and not self._stopping.is_set():
            disk.volume.check()
            self._progress.clear()
            trouble = disk.maintenance.trouble
            if not self._progress.wait(WAIT_SECONDS) and trouble is not None:
                advice = "make room on the disk: nothing more fits into memory either"
                raise VolumeFailed(trouble, advice)

    def run(self) -> None:
        while not self._stopping.is_set():
            steps = [self._step(disk) for disk in self._disks.values()]
            if any(steps):
                self._progress.set()
            else:
                self._stopping.wait(TROUBLE_SECONDS if self._store.troubles else IDLE_SECONDS)

    def _step(self, disk: TendedVolume) -> bool:
        """A volume that has failed is left alone: whoever writes to it or syncs it is told."""
        try:
            return disk.maintenance.step()
        except VolumeFailed:
            return False
        except Exception as error:  # a mistake of ours must not stop the others
            disk.maintenance.trouble = f"{type(error).__name__}: {error}"
            return False

    def stop(self) -> None:
        self._stopping.set()
        self._progress.set()
        if self.is_alive():
            self.join()
