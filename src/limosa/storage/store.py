"""Where does a node keep its replicas? On its volumes; each is a disk with a log of its own.

A damaged disk affects only its own replicas: each volume has its own log, syncs and maintenance. A
volume that fails, or does not answer, is abandoned. Tickets count for the whole node.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, TypeAlias

from limosa.core.effects import CreateReplica, DiscardReplica, VolumeEffect
from limosa.core.events import HeldReplica
from limosa.core.model.keys import WHOLE, Incarnation, NodeId, PartitionId, Position, TokenRange
from limosa.core.model.rows import Entry
from limosa.errors import BadInput, DamagedFile, DiskFull, VolumeFailed, VolumeInUse
from limosa.storage.files import Files, PosixFiles
from limosa.storage.log import number_of
from limosa.storage.maintenance import Maintenance, OnDamage, OnLostLog
from limosa.storage.recovery import Refusal
from limosa.storage.replica import StoredReplica
from limosa.storage.scrub import Scrub
from limosa.storage.view import Size, View
from limosa.storage.volume import EVERYTHING, StorageSettings, Volume
from limosa.tabular.rows import Bundle
from limosa.tabular.schema import Table

ReplicaKey: TypeAlias = tuple[PartitionId, Incarnation]
IDLE_SECONDS = 0.05
TROUBLE_SECONDS = 1.0
"""Delay before a failed step is retried."""
WAIT_SECONDS = 5.0
STALLED_SECONDS = 20.0
"""A volume that flushes nothing for so long, while writers wait for it, has failed."""
CLOSE_SECONDS = 1.0
"""How long the end of the process waits for an abandoned volume."""
BEHIND = 4
"""Writers wait when rows take this many times the memory that they should."""


NO_VOLUMES: Mapping[str, str] = {}


class Store:
    """The volumes of one node, by their names."""

    def __init__(
        self,
        directories: Mapping[str, str],
        files: Files | None = None,
        settings: StorageSettings | None = None,
        refused: Mapping[str, str] = NO_VOLUMES,
    ) -> None:
        """`refused`: volumes that are not opened since their disks do not answer, and why."""
        self._disks: dict[str, Maintenance] = {}
        self._homes: dict[ReplicaKey, str] = {}
        self._ticket = 0
        self._workers: dict[str, _Worker] = {}
        """The maintenance of each volume, once it is started."""
        self._abandoned: dict[str, Maintenance] = {}
        self._gone: set[ReplicaKey] = set()
        """Replicas of abandoned volumes: changes that were decided before are ignored."""
        self._scrubs: list[Scrub] = []
        self._settings = settings or StorageSettings()
        self._refused = [Refusal(f"volume {name}", why, True) for name, why in refused.items()]
        try:
            for name, directory in directories.items():
                if name in refused:
                    continue
                self._open(files or PosixFiles(), name, directory)
        except BaseException:
            self.close()
            raise

    def _open(self, files: Files, name: str, directory: str) -> None:
        try:
            volume = Volume(files, directory, name, self._settings)
            with ExitStack() as if_it_fails:
                if_it_fails.callback(volume.close)
                self._disks[name] = Maintenance(volume)
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
        """The volumes in use; the others are in `refused`."""
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
        """Stop maintenance, make everything durable, and unlock the directories."""
        for scrub in self._scrubs:
            scrub.stop()
        for worker in self._workers.values():
            worker.stop()
        with ExitStack() as closing:  # close every volume, even if one fails
            for disk in self._disks.values():
                closing.callback(disk.close)
            for disk in self._abandoned.values():
                closing.callback(_close_if_it_answers, disk)

    # ------------------------------------------------------------ changing

    def write(self, change: VolumeEffect) -> None:
        """Apply a change: visible at once, durable after a sync.

        One caller at a time, in the order of tickets. Waits only if maintenance is so far behind
        that memory would run out.
        """
        key = (change.partition, change.incarnation)
        if self._is_gone(key, change):
            return
        if isinstance(change, CreateReplica):
            self._disk(change.volume)
            self._discard(key, change.ticket)
            self._homes[key] = change.volume
        if isinstance(change, DiscardReplica):
            self._discard(key, change.ticket)
        elif key in self._homes:
            disk = self._disk(self._homes[key])
            if disk.volume.grown > self._limit:
                self._wait_for_room(self._homes[key], disk, self._limit)
            disk.volume.write(change)
        else:
            # Otherwise the next sync would report a change as durable that was never stored.
            raise BadInput(f"replica {key[1]} of {key[0]} is not here", "create it first")
        self._ticket = max(self._ticket, change.ticket)

    def is_behind(self, share: float = 0.5) -> bool:
        """Rows in memory exceed this share of the limit; soon `write` will have to wait."""
        limit = int(share * self._limit)
        return any(disk.volume.grown > limit for disk in self._disks.values())

    def wait_for_room(self, share: float = 0.5) -> None:
        """Wait until rows in memory take less than this share of the limit."""
        limit = int(share * self._limit)
        for name, disk in self._disks.items():
            if disk.volume.grown > limit:
                self._wait_for_room(name, disk, limit)

    def _wait_for_room(self, name: str, disk: Maintenance, limit: int) -> None:
        worker = self._workers.get(name)
        if worker is not None:
            worker.wait_for_room(disk, limit)

    def _discard(self, key: ReplicaKey, ticket: int) -> None:
        """Discard a replica on its volume, and where another volume refused it."""
        home = self._homes.get(key)
        for name, disk in self._disks.items():
            if name == home or not disk.volume.has_failed:
                disk.volume.write(DiscardReplica(*key, ticket))
        self._homes.pop(key, None)

    def sync(self) -> int:
        """Makes everything written so far durable; returns the ticket of the last such write.

        Raises `VolumeFailed` if a volume can't, and from then on every time: no sync is retried.
        Raises `DiskFull` if a disk is full; a later sync may succeed.
        """
        ticket, full = self._ticket, None
        for disk in list(self._disks.values()):
            try:
                disk.volume.sync()
            except DiskFull as error:
                full = error
        if full is not None:
            raise full
        return ticket

    def sync_volume(self, name: str) -> int:
        """Like `sync`, for one volume: no volume waits for another one."""
        return self._disk(name).volume.sync()

    # ------------------------------------------------------------ failing

    @property
    def failed(self) -> list[str]:
        """Volumes that failed and are not abandoned yet."""
        return [name for name, disk in self._disks.items() if disk.volume.has_failed]

    def abandon(self, name: str, why: str) -> None:
        """Use a volume no more, without waiting for it: it failed, or does not answer."""
        disk = self._disks[name]
        disk.volume.fail(OSError(why))
        self._abandoned[name] = disk
        # Other threads may be iterating over these.
        self._disks = {other: each for other, each in self._disks.items() if other != name}
        self._gone.update(key for key, home in self._homes.items() if home == name)
        self._homes = {key: home for key, home in self._homes.items() if home != name}
        self._refused.append(Refusal(f"volume {name}", why, is_disk=True))
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.abandon()

    def _is_gone(self, key: ReplicaKey, change: VolumeEffect) -> bool:
        if isinstance(change, CreateReplica):
            return change.volume in self._abandoned
        return key in self._gone and key not in self._homes

    def volume_of(self, change: VolumeEffect) -> str | None:
        """The volume that a change concerns; None: the replica is not here."""
        if isinstance(change, CreateReplica):
            return change.volume
        return self.home(change.partition, change.incarnation)

    def home(self, partition: PartitionId, incarnation: Incarnation) -> str | None:
        """The volume of a replica; None: the replica is not here."""
        return self._homes.get((partition, incarnation))

    @property
    def full(self) -> tuple[str, ...]:
        """Volumes on which the last sync found no space."""
        return tuple(name for name, disk in self._disks.items() if disk.volume.is_full)

    def _disk(self, name: str) -> Maintenance:
        disk = self._disks.get(name)
        if disk is None:
            raise BadInput(
                f"there is no volume {name!r} in use on this node",
                f"use one of: {', '.join(sorted(self._disks)) or 'none'}",
            )
        return disk

    # ------------------------------------------------------------ reading

    def restored(self, node: NodeId) -> tuple[HeldReplica, ...]:
        """The replicas that the volumes had at the start, except damaged ones."""
        return tuple(h for disk in self._disks.values() for h in disk.volume.restored(node))

    def view(self, partition: PartitionId, incarnation: Incarnation) -> View:
        """A snapshot of the committed rows."""
        return self._replica((partition, incarnation))[1].view

    def newest(
        self, partition: PartitionId, incarnation: Incarnation, table: Table, key: tuple[Any, ...]
    ) -> Position:
        """The version that a compare-and-set compares with; 0: there is no row."""
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
        """Entries of a replica's log after a position: at least one, then up to `bytes_max`.

        Raises `BadInput` if the log no longer has these entries.
        """
        disk, replica = self._replica((partition, incarnation))
        return disk.volume.tail(replica, after, bytes_max)

    def sizes(self) -> dict[ReplicaKey, Size]:
        """The approximate size of each replica."""
        sizes: dict[ReplicaKey, Size] = {}
        for disk in self._disks.values():
            with disk.volume.lock:
                disk.volume.tally.count()
                sizes.update(disk.volume.tally.sizes)
        return sizes

    def free_bytes(self) -> dict[str, int]:
        """By volume; 0 for a disk that does not answer."""
        free = dict.fromkeys(self._disks, 0)
        for name, disk in self._disks.items():
            with suppress(OSError):
                free[name] = disk.volume.files.free_bytes(disk.volume.directory)
        return free

    def _replica(self, key: ReplicaKey) -> tuple[Maintenance, StoredReplica]:
        home = self._homes.get(key)
        replica = None if home is None else self._disk(home).volume.replicas.get(key)
        if home is None or replica is None:
            raise BadInput(f"replica {key[1]} of {key[0]} is not here", "ask another node")
        return self._disk(home), replica

    # ------------------------------------------------------------ maintenance

    def merge_later(self, is_copied: Callable[[PartitionId], bool]) -> None:
        """Postpone merges of partitions that are being copied and compared, within limits."""
        for disk in self._disks.values():
            disk.is_copied = is_copied

    def report_damage(self, on_damage: OnDamage, on_lost_log: OnLostLog) -> None:
        """Call these, in any thread, when maintenance or a scrub finds a damaged file."""
        for disk in self._disks.values():
            disk.on_damage = on_damage
            disk.on_lost_log = on_lost_log

    def remove_damaged_log(
        self, partition: PartitionId, incarnation: Incarnation, error: DamagedFile
    ) -> None:
        """A read of a replica's log found damage."""
        disk, _ = self._replica((partition, incarnation))
        disk.remove_damaged_log(number_of(error.path), error)

    def mark_damaged(self, partition: PartitionId, incarnation: Incarnation, why: str) -> None:
        """Remember the damage across restarts; does nothing for a replica that is gone."""
        with suppress(BadInput):
            disk, replica = self._replica((partition, incarnation))
            disk.mark_damaged(replica, why)

    def start_scrub(self, bytes_per_second: int) -> None:
        """Start background threads that verify all files, again and again; 0: none. All volumes
        together verify so many bytes a second."""
        if bytes_per_second and not self._scrubs:
            each = max(1, bytes_per_second // max(1, len(self._disks)))
            self._scrubs = [Scrub(disk, each) for disk in self._disks.values()]
            for scrub in self._scrubs:
                scrub.start()

    def start_maintenance(self) -> None:
        """Start a background thread that flushes and merges."""
        for name, disk in self._disks.items():
            if name not in self._workers:
                self._workers[name] = _Worker(disk)
                self._workers[name].start()

    def maintain(self) -> bool:
        """Do one step on one volume; False: there is nothing to do."""
        return any(disk.step() for disk in self._disks.values())

    @property
    def troubles(self) -> list[str]:
        """Why maintenance fails, if it does."""
        return [why for disk in self._disks.values() for why in disk.troubles]

    def flush(self, partition: PartitionId, incarnation: Incarnation) -> None:
        """Write all rows that are committed now to segments."""
        disk, replica = self._replica((partition, incarnation))
        disk.flush(replica)

    def compact(self, partition: PartitionId, incarnation: Incarnation) -> None:
        """Merge all segments of a replica."""
        disk, replica = self._replica((partition, incarnation))
        disk.compact(replica)

    def adopt(
        self, source: ReplicaKey, target: ReplicaKey, token_range: TokenRange = WHOLE
    ) -> None:
        """Give a replica the committed rows of another one, or those of a range, by linking files.

        This serves splits, merges and copies to another volume. The highest version of a row
        counts, so the target's own rows stay right, and adopting twice changes nothing.
        """
        disk, given = self._replica(target)
        origin, giver = self._replica(source)
        disk.adopt(giver, origin, given, token_range)

    def shelve(
        self,
        target: ReplicaKey,
        rows: Sequence[Bundle],
        token_range: TokenRange,
        digest: int,
        collected: Position = 0,
        least: int = 0,
    ) -> Bundle:
        """Give a replica copied rows of a range, without the log; they are durable on return.

        Refused if the digest of the written rows differs, or if tombstones after `collected` were
        collected: dropped tombstones may have hidden some of the rows. Rows whose segment would be
        smaller than `least` bytes are returned instead.
        """
        disk, replica = self._replica(target)
        return disk.shelve(replica, rows, token_range, digest, collected, least)

    def can_link(self, source: ReplicaKey, target: ReplicaKey) -> bool:
        """Are both on one file system? Otherwise bytes would be copied, which blocks others."""
        disks = [self._replica(key)[0] for key in (source, target)]
        return len({disk.volume.files.device(disk.volume.directory) for disk in disks}) == 1

    @property
    def _limit(self) -> int:
        """How many bytes of rows may be in memory before writers wait."""
        return BEHIND * self._settings.memory_bytes


class _Worker(threading.Thread):
    """Runs maintenance of one volume as long as the store is open."""

    def __init__(self, disk: Maintenance) -> None:
        super().__init__(name=f"limosa-maintenance-{disk.volume.name}", daemon=True)
        self._disk = disk
        self._stopping = threading.Event()
        self._progress = threading.Event()

    def wait_for_room(self, disk: Maintenance, limit: int) -> None:
        """Wait until enough was flushed; raises an error if maintenance can't flush."""
        stalled = 0.0
        while disk.volume.measure() > limit and not self._stopping.is_set():
            disk.volume.check()
            self._progress.clear()
            trouble = disk.trouble
            if self._progress.wait(WAIT_SECONDS):
                stalled = 0.0
                continue
            stalled += WAIT_SECONDS
            if trouble is not None:
                advice = "free disk space: the memory for rows is full, too"
                raise VolumeFailed(trouble, advice)
            if stalled >= STALLED_SECONDS:
                why = f"rows could not be flushed for {stalled:.0f} s"
                raise disk.volume.fail(OSError(why))

    def run(self) -> None:
        while not self._stopping.is_set():
            if self._step():
                self._progress.set()
            else:
                self._stopping.wait(TROUBLE_SECONDS if self._disk.troubles else IDLE_SECONDS)

    def _step(self) -> bool:
        """Do nothing on a volume that has failed: writes to it and syncs raise the error."""
        try:
            return self._disk.step()
        except VolumeFailed:
            return False
        except Exception as error:  # a bug must not stop the maintenance
            self._disk.trouble = f"{type(error).__name__}: {error}"
            return False

    def abandon(self) -> None:
        """Stop when the step under way ends, if ever."""
        self._stopping.set()
        self._progress.set()

    def stop(self) -> None:
        self.abandon()
        if self.is_alive():
            self.join()


def _close_if_it_answers(disk: Maintenance) -> None:
    """A thread may be waiting for the disk for ever, with the volume's locks."""
    closing = threading.Thread(target=disk.close, name="limosa-close", daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
