"""What happens in the background? Rows are flushed to segments, segments merged, space freed.

Every step ends by replacing a manifest atomically. Files that the step wrote count only from then
on, and files that it made obsolete are removed only afterwards. So a step can be killed anywhere,
and is retried after the disk was full.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

import pyarrow as pa
from msgspec import structs

from limosa.core.model.keys import WHOLE, Incarnation, PartitionId, Position, TokenRange
from limosa.errors import BadInput, DamagedFile, DiskFull, UnusableFile, VolumeFailed
from limosa.storage import compaction
from limosa.storage.adoption import link, shelve
from limosa.storage.compaction import Job
from limosa.storage.files import is_full
from limosa.storage.flush import TOGETHER_MAX, few_enough, flush
from limosa.storage.log import HEADER_BYTES, file_name
from limosa.storage.manifest import Manifest
from limosa.storage.replica import Logged, StoredReplica, name_of
from limosa.storage.shelf import Shelf, directory
from limosa.storage.view import SETTLED, Ranged, TableView, records
from limosa.storage.volume import Volume
from limosa.tabular.merge import cut, merged
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table

MERGE_BYTES = 16 << 20
LOCKED_REPLICAS = 64
"""So many replicas are looked at before writers get their turn."""
OnDamage: TypeAlias = Callable[[PartitionId, Incarnation, DamagedFile], None]
"""Called, in any thread, when a file of a replica turns out to be damaged."""
OnLostLog: TypeAlias = Callable[[PartitionId, Incarnation, Position], None]
"""Called when entries of a replica's log can't be read again: the log must be trimmed there."""


class Maintenance:
    """Maintenance of one volume: one step at a time."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self._files = volume.files
        self._busy = threading.RLock()
        self._shelf = Shelf(volume)
        self.trouble: str | None = None
        """Why the last step failed, if it did."""
        self._damage: dict[str, str] = {}
        """Replicas that can't be merged, and why."""
        self._damaged_logs: dict[int, str] = {}
        """Log files with damaged frames, and why: they are removed as soon as possible."""
        self.on_damage: OnDamage = lambda partition, incarnation, error: None
        self.on_lost_log: OnLostLog = lambda partition, incarnation, through: None
        self._flushed_last = False
        self._considered = 0
        """The log file for which `_to_flush` was made."""
        self._to_flush: deque[StoredReplica] = deque()
        self.is_copied: Callable[[PartitionId], bool] = lambda partition: False
        """Is a copy of this partition in progress? A merge would take processor time from the copy,
        and the merged rows would have to be hashed again for the comparison."""

    def step(self) -> bool:
        """Do the most urgent step; False: there was nothing to do.

        After each flush the log and the segments get a turn, even under load.
        """
        with self._busy:
            self.volume.check()
            if self.volume.dropped:
                self._attempt(self._shelf.drop_directories)
                return self.trouble is None
            fullest = self._fullest()
            if fullest and not self._flushed_last:
                self._attempt(lambda: self._flush(*fullest))
                self._flushed_last = self.trouble is None
                return self._flushed_last
            self._flushed_last = False
            if self._attempt(self._shorten_log):
                return True
            trouble = self.trouble
            is_compacted = self._attempt(self._compact_any)
            self.trouble = self.trouble or trouble
            if not is_compacted and self.trouble is None:
                self._attempt(self.volume.keep_reserve)
            return is_compacted or (bool(fullest) and self.trouble is None)

    @property
    def troubles(self) -> list[str]:
        """Problems that an operator should look at."""
        logs = list(self._damaged_logs.values())
        if self.volume.is_full:
            logs.append(f"{self.volume.directory} is full: writes wait for space")
        if not self._damage:
            return logs if self.trouble is None else [self.trouble, *logs]
        with self.volume.lock:
            directories = {directory(replica) for replica in self.volume.replicas.values()}
        damage = logs + [why for name, why in self._damage.items() if name in directories]
        return damage if self.trouble is None else [self.trouble, *damage]

    def mark_damaged(self, replica: StoredReplica, why: str) -> None:
        """Remember across restarts that a file of the replica is damaged, if the disk permits."""
        with self._busy, suppress(OSError):
            replica.damaged = why
            if self.volume.holds(replica):
                self._shelf.mark_damaged(replica, why)

    def remove_damaged_log(self, number: int, error: DamagedFile) -> None:
        """A start would refuse the volume, so the file goes. Its rows are in memory or in segments;
        entries that can't be written again, for replicas that catch up, are trimmed."""
        if number >= self.volume.catalogue.first_log:
            self._damaged_logs[number] = error.message

    def close(self) -> None:
        """Wait for the current step, then close the volume."""
        with self._busy:
            self.volume.close()

    def flush(self, replica: StoredReplica) -> None:
        """Write all rows that are committed now to segments."""
        with self._busy:
            self._or_fail(lambda: self._flush(replica))

    def compact(self, replica: StoredReplica) -> None:
        """Merge all segments of a replica."""
        with self._busy:
            self._or_fail(lambda: self._flush(replica))
            while self._or_fail(lambda: self._compact(replica, full=True)):
                pass

    def adopt(
        self,
        source: StoredReplica,
        origin: "Maintenance",
        target: StoredReplica,
        token_range: TokenRange = WHOLE,
    ) -> None:
        """Give a replica the committed rows of another one, or those of a range, by linking files.

        This serves splits, merges and copies to another volume. The highest version of a row
        counts, so the target's own rows stay right, and adopting twice changes nothing.
        """
        # Always lock in the same order, to avoid a deadlock between two adoptions.
        first, second = sorted((self, origin), key=id)
        with first._busy, second._busy:
            origin._or_fail(lambda: origin._flush(source))
            self._or_fail(lambda: self._flush(target))
            while not self._or_fail(
                lambda: link(source, origin._shelf, target, self._shelf, token_range)
            ):
                self._or_fail(lambda: self._flush(target))

    def shelve(
        self,
        target: StoredReplica,
        rows: Sequence[Bundle],
        token_range: TokenRange,
        digest: int,
        collected: Position,
        least: int,
    ) -> Bundle:
        """Write copied rows of a range to a replica's segments; return the rows left out.

        The highest version of a row counts, so doing it twice changes nothing.
        """
        left: Bundle | None = None

        def attempt() -> bool:
            nonlocal left
            if target.view.collected > collected:
                raise BadInput(
                    "tombstones were collected since these rows were copied", "copy them again"
                )
            left = shelve(target, self._shelf, rows, token_range, digest, least)
            return left is not None

        with self._busy:
            while not self._or_fail(attempt):
                self._or_fail(lambda: self._flush(target))
            self._shelf.remove_unnamed(target)
        assert left is not None
        return left

    # ------------------------------------------------------------ attempts

    def _attempt(self, act: Callable[[], object]) -> bool:
        """Try a step. If the disk is full, the step is retried later; all rows are still in the log
        and in memory. Any other disk error puts the volume out of use."""
        self.volume.check()
        self.trouble = None
        try:
            return bool(act())
        except OSError as error:
            if not is_full(error):
                raise self.volume.fail(error) from error
            self.trouble = f"{self.volume.directory}: {error}"
        except (DiskFull, UnusableFile, pa.ArrowException, MemoryError) as error:
            self.trouble = str(error) or type(error).__name__
        return False

    def _or_fail(self, act: Callable[[], bool | None]) -> bool:
        """Try a step that a caller asked for, and raise an error if it fails."""
        done = self._attempt(act)
        if self.trouble is not None:
            raise VolumeFailed(self.trouble, "nothing is lost: free disk space and try again")
        return done

    # ------------------------------------------------------------ flush

    def _fullest(self) -> list[StoredReplica]:
        """The replicas that must be flushed because rows take too much memory."""
        with self.volume.lock:
            settings = self.volume.settings
            return few_enough(self.volume.tally.fullest(settings.memory_bytes, TOGETHER_MAX))

    def _flush(self, *replicas: StoredReplica) -> None:
        flush(self._shelf, replicas)

    # ------------------------------------------------------------ the log

    def _shorten_log(self) -> bool:
        """Free the oldest log file; entries that are still needed are appended again."""
        volume = self.volume
        oldest = volume.catalogue.first_log
        with volume.lock:
            # The last file stays: the next file continues its sequence.
            if not self._is_log_too_long() or oldest >= volume.catalogue.last_log:
                return False
            behind = self._behind(oldest)
        if behind:
            self._flush(*behind)  # only a few; other steps get their turn
            return True
        for replica in self._pinned(oldest):
            try:
                while not volume.carry(replica, oldest):
                    self._flush(replica)
            except DamagedFile as error:
                self._damaged_logs[oldest] = error.message
                lost = [each.entry.at for each in replica.log if is_lost(each, oldest)]
                self.on_lost_log(replica.partition, replica.incarnation, max(lost))
                raise
        volume.sync()
        self._forget_log(oldest)
        return True

    def _behind(self, file: int) -> list[StoredReplica]:
        """Some replicas that must be flushed before this log file can be removed: they had changes
        that were only in the log when the file was first considered. Later changes are in later
        files."""
        volume, last = self.volume, self.volume.last_sequences[file]
        if self._considered != file:
            dirty = [r for r in volume.replicas.values() if r.is_dirty_before(last)]
            self._considered, self._to_flush = file, deque(dirty)
        while self._to_flush:
            replica = self._to_flush[0]
            if replica.is_dirty_before(last) and volume.holds(replica):
                break
            self._to_flush.popleft()
        return few_enough(self._to_flush)

    def _pinned(self, file: int) -> list[StoredReplica]:
        """The replicas that need entries of this log file. A replica that needs none will never
        need one, so the lock can be released in between."""
        with self.volume.lock:
            replicas = list(self.volume.replicas.values())
        pinned: list[StoredReplica] = []
        for start in range(0, len(replicas), LOCKED_REPLICAS):
            with self.volume.lock:
                some = replicas[start : start + LOCKED_REPLICAS]
                pinned += [r for r in some if r.has_entries_in(file) or r.has_rows_in(file)]
        return pinned

    def _is_log_too_long(self) -> bool:
        """The log is too long and mostly obsolete: otherwise rewriting the rest would never end."""
        volume = self.volume
        sizes, settings = volume.log.sizes.values(), volume.settings
        of_frame = settings.frame_weight_bytes
        oldest_ends = volume.last_sequences.get(volume.catalogue.first_log, volume.log.sequence)
        frames = of_frame * (volume.log.sequence - oldest_ends)
        if self._damaged_logs:
            return True
        if sum(sizes) + frames <= settings.log_bytes_max:
            return False
        volume.tally.count()
        needed = volume.tally.log_bytes + of_frame * volume.tally.log_frames
        useful_max = sum(size - HEADER_BYTES for size in sizes) + frames
        return needed <= settings.log_useful_max * useful_max

    def _forget_log(self, number: int) -> None:
        volume = self.volume
        volume.catalogue.forget_logs_before(number + 1)
        self._files.remove(f"{volume.directory}/log/{file_name(number)}")
        with volume.lock:
            del volume.last_sequences[number], volume.log.sizes[number]
        self._damaged_logs.pop(number, None)

    # ------------------------------------------------------------ compaction

    def _compact_any(self) -> bool:
        """Only replicas whose segments changed can have something to merge."""
        unsettled = self._shelf.unsettled
        for replica in list(unsettled):
            tables = replica.view.tables.values()
            if self.is_copied(replica.partition) and all(map(compaction.can_wait, tables)):
                continue
            try:
                if not replica.damaged and self._compact(replica):
                    return True
            except DamagedFile as error:  # only this replica; the others continue
                self._damage[directory(replica)] = error.message
                self.on_damage(replica.partition, replica.incarnation, error)
            unsettled.pop(replica)
        return False

    def _compact(self, replica: StoredReplica, full: bool = False) -> bool:
        """One job of one of the replica's tables."""
        with self.volume.lock:
            manifest, tables = replica.manifest, replica.view.tables
            beginnings = replica.beginnings
        if manifest is None or not self.volume.holds(replica):
            return False
        for name, view in sorted(tables.items()):
            piece_bytes = self.volume.settings.piece_bytes
            considered = (view.segments, manifest.collected)
            if not full and replica.considered.get(name) == considered:
                continue
            job = compaction.plan(view, manifest.collected, piece_bytes, full)
            if job is None:
                replica.considered[name] = considered
                continue
            try:
                self._merge(replica, beginnings, manifest, name, view, job)
            except UnusableFile:
                replica.considered[name] = considered  # a retry would fail, too
                raise
            return True
        return False

    def _merge(
        self,
        replica: StoredReplica,
        beginnings: int,
        manifest: Manifest,
        name: str,
        view: TableView,
        job: Job,
    ) -> None:
        with self._shelf.given_up_files(replica):
            if view.table.kind == "stream":
                made = self._join(replica, view, job)
            else:
                made = list(self._merge_pieces(replica, manifest, view, job))
            self._files.sync_directory(self._shelf.path(replica))
        segments = compaction.replaced(view, job, made)
        tables = [
            structs.replace(each, segments=tuple(map(name_of, segments)))
            if Table.decode(each.table).id == name
            else each
            for each in manifest.tables
        ]
        manifest = structs.replace(manifest, tables=tuple(tables))
        self._shelf.put_manifest(replica, manifest)
        with self.volume.lock:
            if replica.beginnings == beginnings:
                replica.put_segments(name, segments)
            replica.rest(manifest)
            self.volume.tally.note(replica)
        self._shelf.remove_unnamed(replica)

    def _merge_pieces(
        self, replica: StoredReplica, manifest: Manifest, view: TableView, job: Job
    ) -> Iterator[Ranged]:
        """Write segments of about one piece each; together their ranges cover the job's."""
        oldest = compaction.oldest_beside(view, job.inputs, job.range)
        limit = self.volume.settings.piece_bytes if job.level == SETTLED else 1 << 62
        parts = cut(job.inputs, job.range, MERGE_BYTES)
        while parts:
            taken: list[TokenRange] = []

            def batches(taken: list[TokenRange] = taken) -> Iterator[Batch]:
                size = 0
                while parts and size < limit:
                    taken.append(parts.pop(0))
                    for batch in merged(view.table, job.inputs, taken[-1]):
                        kept = compaction.without_collected(batch, manifest.collected, oldest)
                        size += kept.bytes
                        yield kept

            start = parts[0].start
            written = self._shelf.write(replica, view.table, batches(), "merge", job.level, WHOLE)
            if written is not None:
                if job.level == SETTLED:
                    written.range = TokenRange(start, taken[-1].end)
                yield written

    def _join(self, replica: StoredReplica, view: TableView, job: Job) -> list[Ranged]:
        batches = records(structs.replace(view, segments=job.inputs, frozen=(), memtables=()), 0)
        offset = job.inputs[0].offset
        ranged = self._shelf.write(replica, view.table, batches, "merge", job.level, WHOLE, offset)
        return [] if ranged is None else [ranged]


def is_lost(logged: Logged, file: int) -> bool:
    """The entry's rows are only in this log file and in segments."""
    return logged.rowless and logged.place.file == file
