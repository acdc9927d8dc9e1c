"""What is to be done when nobody waits? Rows go to segments, segments are merged, space is freed.

Every step ends with one atomic replacement of a manifest. What it made before is nothing until
then, and what became useless by it is removed only after that; so it can be killed anywhere, and a
full disk only means that it is tried again.
"""

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import structs
from xxhash import xxh32_hexdigest

from limosa.core.model.keys import WHOLE, TokenRange
from limosa.errors import BadInput, UnusableFile, VolumeFailed
from limosa.storage import compaction
from limosa.storage.compaction import NEW, SETTLED, Job
from limosa.storage.log import file_name
from limosa.storage.manifest import MANIFEST, Manifest, directory_of, write_manifest
from limosa.storage.merge import cut, merged, sweep
from limosa.storage.replica import StoredReplica, describe_table, name_of
from limosa.storage.rows import Batch
from limosa.storage.schema import Table
from limosa.storage.segment import Segment, write_segment
from limosa.storage.view import Ranged, TableView, overlap
from limosa.storage.volume import Volume

MERGE_BYTES = 16 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Maintenance:
    """Looks after one volume; one step at a time, whoever asks for it."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._files = volume.files
        self._busy = threading.RLock()
        self._file_numbers: dict[str, int] = {}
        self._trashed = 0
        self.trouble: str | None = None
        """Why the last step was given up, if it was."""
        self._tidy()

    def step(self) -> bool:
        """Do the most urgent thing; False: there was none."""
        with self._busy:
            self._volume.check()
            if self._volume.dropped:
                self._attempt(self._drop_directories)
                return True
            replica = self._fullest()
            if replica is not None:
                self._attempt(lambda: self._flush(replica))
                return self.trouble is None
            return self._attempt(self._shorten_log) or self._attempt(self._compact_any)

    def flush(self, replica: StoredReplica) -> None:
        """Everything that is committed now rests in segments afterwards."""
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
        held: TokenRange = WHOLE,
    ) -> None:
        """Give a replica the committed rows of another one, or those of a range, by linking files.

        A split, a merge and a copy to another volume are this. Rows count by their version, so what
        the target has already stays right, and adopting twice changes nothing.
        """
        with self._busy, origin._busy:
            origin._or_fail(lambda: origin._flush(source))
            self._or_fail(lambda: self._flush(target))
            self._or_fail(lambda: self._link(source, origin, target, held))

    # ------------------------------------------------------------ attempts

    def _attempt(self, act: Callable[[], object]) -> bool:
        """Try a step. Without room it is given up, and tried again later; all is still in the log
        and in memory. Any other error of the disk puts the volume out of use."""
        self.trouble = None
        try:
            return bool(act())
        except OSError as error:
            if error.errno not in _FULL:
                self._volume.or_fail(_raiser(error))
            self.trouble = f"{self._volume.directory}: {error}"
        except UnusableFile as error:
            self.trouble = str(error)
        return False

    def _or_fail(self, act: Callable[[], bool | None]) -> bool:
        """As somebody asked for it, they are told."""
        done = self._attempt(act)
        if self.trouble is not None:
            raise VolumeFailed(self.trouble, "nothing is lost: make room and try again")
        return done

    # ------------------------------------------------------------ flush

    def _fullest(self) -> StoredReplica | None:
        """Whose rows take too much memory."""
        with self._volume.lock:
            replicas = list(self._volume.replicas.values())
        if not replicas:
            return None
        fullest = max(replicas, key=lambda replica: replica.memory_bytes)
        settings = self._volume.settings
        largest, total = fullest.memory_bytes, sum(each.memory_bytes for each in replicas)
        too_much = largest >= settings.replica_memory_bytes or total >= settings.memory_bytes
        return fullest if largest and too_much else None

    def _flush(self, replica: StoredReplica) -> None:
        if self._volume.dropped:
            self._drop_directories()  # perhaps an earlier replica with the same ids
        with self._volume.lock:
            if not replica.is_dirty or not self._volume.holds(replica):
                return
            beginnings = replica.beginnings
            manifest = replica.freeze(self._volume.log.sequence)
            tables = replica.view.tables
        self._files.make_directory(self._path(replica))
        self._files.sync_directory(f"{self._volume.directory}/replicas")
        made = {name: self._write_frozen(replica, view) for name, view in tables.items()}
        self._files.sync_directory(self._path(replica))
        # The manifest must not be ahead of the log: entries that it counts as committed are there.
        if self._volume.durable_sequence < manifest.sequence:
            self._volume.sync()
        described = [
            describe_table(_thawed(view, made[name])) for name, view in sorted(tables.items())
        ]
        manifest = structs.replace(manifest, tables=tuple(described))
        self._put_manifest(replica, manifest)
        with self._volume.lock:
            if replica.beginnings == beginnings:
                replica.thaw(manifest, made)
            else:
                replica.rest(manifest)
        self._remove_unnamed(replica)

    def _put_manifest(self, replica: StoredReplica, manifest: Manifest) -> None:
        write_manifest(self._files, self._path(replica), MANIFEST, manifest)
        if self._volume.holds(replica):
            self._volume.catalogue.add_replica(_directory(replica))

    def _write_frozen(self, replica: StoredReplica, view: TableView) -> list[Ranged]:
        if not view.frozen:
            return []
        batches: Iterable[Batch]
        if view.table.kind == "stream":
            batches = (run.batch for run in view.frozen)
        else:
            pieces = sweep(view.table, view.frozen, WHOLE, MERGE_BYTES)
            batches = (batch for piece in pieces for batch in piece)
        in_memory = sum(len(run) for run in (*view.frozen, *view.runs))
        offset = max(0, view.next_offset - in_memory)
        ranged = self._write(replica, view.table, batches, "flush", NEW, WHOLE, offset)
        return [] if ranged is None else [ranged]

    def _write(
        self,
        replica: StoredReplica,
        table: Table,
        batches: Iterable[Batch],
        why: str,
        level: int,
        held: TokenRange,
        offset: int = 0,
    ) -> Ranged | None:
        path = f"{self._path(replica)}/{self._new_name(replica, why)}"
        try:
            if write_segment(self._files, path, table, batches) is None:
                return None
        except OSError:
            self._files.remove(path)
            raise
        name = path.rsplit("/", 1)[1]
        return Ranged(name, level, held, offset, Segment(self._files, path))

    def _new_name(self, replica: StoredReplica, why: str) -> str:
        """Never used before, here or elsewhere: segments keep their names when they are linked."""
        directory = _directory(replica)
        number = self._file_numbers.get(directory)
        if number is None:
            number = max(map(_number, self._files.names(self._path(replica))), default=0)
        self._file_numbers[directory] = number + 1
        return f"{xxh32_hexdigest(directory.encode())}-{number + 1:08}.{why}.segment"

    # ------------------------------------------------------------ the log

    def _shorten_log(self) -> bool:
        """Make the oldest file superfluous; what is still needed of it is written again."""
        volume = self._volume
        oldest = volume.catalogue.first_log
        with volume.lock:
            too_long = sum(volume.log.sizes.values()) > volume.settings.log_bytes_max
            if not too_long or oldest not in volume.last_sequences or oldest >= volume.log.number:
                return False
            last = volume.last_sequences[oldest]
            behind = [r for r in volume.replicas.values() if r.is_dirty_before(last)]
        for replica in behind:
            self._flush(replica)
        with volume.lock:
            pinned = [r for r in volume.replicas.values() if r.has_entries_in(oldest)]
        for replica in pinned:
            volume.carry(replica, oldest)
        volume.sync()
        self._forget_log(oldest)
        return True

    def _forget_log(self, number: int) -> None:
        volume = self._volume
        volume.catalogue.forget_logs_before(number + 1)
        self._files.remove(f"{volume.directory}/log/{file_name(number)}")
        with volume.lock:
            del volume.last_sequences[number], volume.log.sizes[number]

    # ------------------------------------------------------------ compaction

    def _compact_any(self) -> bool:
        with self._volume.lock:
            replicas = list(self._volume.replicas.values())
        return any(self._compact(replica) for replica in replicas)

    def _compact(self, replica: StoredReplica, full: bool = False) -> bool:
        """One job of one of the replica's tables."""
        manifest = replica.manifest
        if manifest is None:
            return False
        for name, view in sorted(replica.view.tables.items()):
            piece_bytes = self._volume.settings.piece_bytes
            job = compaction.plan(view, manifest.collected, piece_bytes, full)
            if job is not None:
                self._merge(replica, manifest, name, view, job)
                return True
        return False

    def _merge(
        self, replica: StoredReplica, manifest: Manifest, name: str, view: TableView, job: Job
    ) -> None:
        beginnings = replica.beginnings
        if view.table.kind == "stream":
            made = self._join(replica, view, job)
        else:
            made = list(self._merge_pieces(replica, manifest, view, job))
        self._files.sync_directory(self._path(replica))
        segments = compaction.replaced(view, job, made)
        tables = [
            structs.replace(each, segments=tuple(map(name_of, segments)))
            if Table.decode(each.table).id == name
            else each
            for each in manifest.tables
        ]
        manifest = structs.replace(manifest, tables=tuple(tables))
        self._put_manifest(replica, manifest)
        with self._volume.lock:
            if replica.beginnings == beginnings:
                replica.put_segments(name, segments)
            replica.rest(manifest)
        self._remove_unnamed(replica)

    def _merge_pieces(
        self, replica: StoredReplica, manifest: Manifest, view: TableView, job: Job
    ) -> Iterator[Ranged]:
        """Segments of about one piece each; their ranges tile the job's."""
        oldest = compaction.oldest_beside(view, job.inputs, job.held)
        limit = self._volume.settings.piece_bytes if job.level == SETTLED else 1 << 62
        parts = cut(job.inputs, job.held, MERGE_BYTES)
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
            written = self._write(replica, view.table, batches(), "merge", job.level, WHOLE)
            if written is not None:
                if job.level == SETTLED:
                    written.held = TokenRange(start, taken[-1].end)
                yield written

    def _join(self, replica: StoredReplica, view: TableView, job: Job) -> list[Ranged]:
        batches = (batch for each in job.inputs for batch in each.segment.from_row(0))
        offset = job.inputs[0].offset
        ranged = self._write(replica, view.table, batches, "merge", job.level, WHOLE, offset)
        return [] if ranged is None else [ranged]

    # ------------------------------------------------------------ adoption

    def _link(
        self, source: StoredReplica, origin: "Maintenance", target: StoredReplica, held: TokenRange
    ) -> None:
        manifest = target.manifest
        if manifest is None or source.manifest is None:
            return
        tables = dict(target.view.tables)
        for name, view in source.view.tables.items():
            if view.table.kind == "stream" and held != WHOLE:
                raise BadInput(f"stream {name} can't be sliced", "repartition it instead")
            mine = tables.get(name) or TableView(view.table)
            known = {ranged.file for ranged in mine.segments}
            linked = [
                self._link_one(origin._path(source), target, ranged, both)
                for ranged in view.segments
                if ranged.file not in known and (both := overlap(ranged.held, held)) is not None
            ]
            segments = (*mine.segments, *compaction.as_neighbours(mine.segments, linked))
            newest = max(mine.table, view.table, key=lambda table: table.version)
            offset = max(mine.next_offset, view.next_offset)
            tables[name] = structs.replace(
                mine, table=newest, segments=segments, next_offset=offset
            )
        self._files.sync_directory(self._path(target))
        target_manifest = structs.replace(
            manifest, tables=tuple(describe_table(view) for _, view in sorted(tables.items()))
        )
        self._put_manifest(target, target_manifest)
        with self._volume.lock:
            target.view = structs.replace(target.view, tables=tables)
            target.rest(target_manifest)

    def _link_one(
        self, directory: str, target: StoredReplica, ranged: Ranged, held: TokenRange
    ) -> Ranged:
        path = f"{self._path(target)}/{ranged.file}"
        self._files.link(f"{directory}/{ranged.file}", path)
        return Ranged(ranged.file, ranged.level, held, ranged.offset, Segment(self._files, path))

    # ------------------------------------------------------------ what is of no use any more

    def _tidy(self) -> None:
        """Remove what a crash left; damaged replicas stay as they are, for study."""
        volume = self._volume
        resting = [each for each in volume.replicas.values() if each.manifest is not None]
        named = {_directory(replica) for replica in resting} | set(volume.refused)
        found = set(self._files.names(f"{volume.directory}/replicas")) | volume.catalogue.replicas
        volume.dropped += sorted(found - named)
        for replica in resting:
            self._remove_unnamed(replica)
        for name in self._files.names(f"{volume.directory}/trash"):
            self._files.remove(f"{volume.directory}/trash/{name}")
        first, last = volume.catalogue.first_log, volume.catalogue.last_log
        known = {file_name(number) for number in range(first, last + 1)}
        for name in self._files.names(f"{volume.directory}/log"):
            if name not in known:
                self._files.remove(f"{volume.directory}/log/{name}")
        if volume.dropped:
            self._drop_directories()

    def _remove_unnamed(self, replica: StoredReplica) -> None:
        """Readers that still look at a file keep it until they are done."""
        manifest = replica.manifest
        named = {MANIFEST}
        if manifest is not None:
            named |= {each.file for table in manifest.tables for each in table.segments}
        named |= {each.file for view in replica.view.tables.values() for each in view.segments}
        path = self._path(replica)
        for name in self._files.names(path):
            if name not in named:
                self._files.remove(f"{path}/{name}")

    def _drop_directories(self) -> None:
        """Discarded replicas: first the log says so durably, then VOLUME, then their files go."""
        volume = self._volume
        with volume.lock:
            names, volume.dropped = volume.dropped, []
        try:
            volume.sync()
            volume.catalogue.remove_replicas(names)
            for name in names:
                self._file_numbers.pop(name, None)
                if name in self._files.names(f"{volume.directory}/replicas"):
                    self._trashed += 1
                    trash = f"{volume.directory}/trash/{self._trashed}"
                    self._files.replace(f"{volume.directory}/replicas/{name}", trash)
                    self._files.remove(trash)
        except OSError:
            volume.dropped += names
            raise

    def _path(self, replica: StoredReplica) -> str:
        return f"{self._volume.directory}/replicas/{_directory(replica)}"


def _directory(replica: StoredReplica) -> str:
    return directory_of(replica.partition, replica.incarnation)


def _number(name: str) -> int:
    digits = name.partition("-")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _thawed(view: TableView, made: Sequence[Ranged]) -> TableView:
    return structs.replace(view, frozen=(), segments=(*view.segments, *made))


def _raiser(error: OSError) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
