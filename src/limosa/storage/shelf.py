"""How are segments and manifests written to a disk, and deleted?

A file counts only if a manifest names it. Files that no manifest names are removed: after the step
that made them obsolete, or at the next start.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from xxhash import xxh3_64_hexdigest

from limosa.core.model.keys import TokenRange
from limosa.errors import UnusableFile
from limosa.storage.files import OpenFile, replace_durably
from limosa.storage.log import file_name
from limosa.storage.manifest import (
    DAMAGED,
    MANIFEST,
    Manifest,
    directory_of,
    read_manifest,
    write_manifests,
)
from limosa.storage.replica import StoredReplica
from limosa.storage.segment import Segment, write_segment
from limosa.storage.view import Ranged
from limosa.storage.volume import Volume
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table


class Shelf:
    """The replicas' directories of one volume. Used by one thread at a time."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.files = volume.files
        self._started = volume.log.number
        """The log file that this process started with; no other process started with it."""
        self._files_named = 0
        self._trashed = 0
        self._making: dict[StoredReplica, list[str]] = {}
        self.unsettled: dict[StoredReplica, None] = dict.fromkeys(volume.replicas.values())
        """Replicas whose segments changed since they were last considered for a merge."""
        self._tidy()

    def path(self, replica: StoredReplica) -> str:
        return f"{self.volume.directory}/replicas/{directory(replica)}"

    # ------------------------------------------------------------ writing

    def write(
        self,
        replica: StoredReplica,
        table: Table,
        batches: Iterable[Batch],
        why: str,
        level: int,
        token_range: TokenRange,
        offset: int = 0,
        unsynced: list[OpenFile] | None = None,
    ) -> Ranged | None:
        path = f"{self.path(replica)}/{self._new_name(replica, why)}"
        self._making[replica].append(path)
        if not write_segment(self.files, path, table, batches, unsynced):
            return None
        name = path.rsplit("/", 1)[1]
        return Ranged(name, level, token_range, offset, Segment(self.files, path))

    def _new_name(self, replica: StoredReplica, why: str) -> str:
        """A name that was never used, here or elsewhere: linked segments keep their names."""
        home = f"{self.volume.name}/{directory(replica)}"
        self._files_named += 1
        number = f"{self._started:08}-{self._files_named:08}"
        return f"{xxh3_64_hexdigest(home.encode())}-{number}.{why}.segment"

    @contextmanager
    def given_up_files(self, replica: StoredReplica) -> Iterator[None]:
        """Remove new files again if the step fails before a manifest names them."""
        self._making[replica] = []
        try:
            yield
        except Exception:
            named = self._named_on_disk(replica)
            for path in self._making[replica]:
                if path.rsplit("/", 1)[1] not in named:
                    self.files.remove(path)
            raise
        finally:
            del self._making[replica]

    def _named_on_disk(self, replica: StoredReplica) -> set[str]:
        """A manifest may be on the disk, though a later part of the step failed."""
        try:
            manifest = read_manifest(self.files, self.path(replica))
        except (OSError, UnusableFile):
            return set()
        return {each.file for table in manifest.tables for each in table.segments}

    def put_manifest(self, replica: StoredReplica, manifest: Manifest) -> None:
        self.put_manifests([(replica, manifest)])

    def put_manifests(self, manifests: Sequence[tuple[StoredReplica, Manifest]]) -> None:
        """Replace the manifests of replicas, each atomically."""
        write_manifests(self.files, [(self.path(r), MANIFEST, m) for r, m in manifests])
        self.unsettled.update((replica, None) for replica, _ in manifests)
        held = (replica for replica, _ in manifests if self.volume.holds(replica))
        self.volume.catalogue.add_replicas(map(directory, held))

    def mark_damaged(self, replica: StoredReplica, why: str) -> None:
        """Remember the damage across restarts: a start reads no rows, and would not find it."""
        path = self.path(replica)
        if replica.manifest is not None and DAMAGED not in self.files.names(path):
            replace_durably(self.files, path, DAMAGED, [why.encode()])

    # ------------------------------------------------------------ removing

    def _tidy(self) -> None:
        """Remove what a crash left behind; damaged replicas are kept for analysis."""
        volume = self.volume
        resting = [each for each in volume.replicas.values() if each.manifest is not None]
        named = {directory(replica) for replica in resting} | set(volume.refused)
        found = set(self.files.names(f"{volume.directory}/replicas")) | volume.catalogue.replicas
        volume.dropped += sorted(found - named)
        for replica in resting:
            self.remove_unnamed(replica)
        for name in self.files.names(f"{volume.directory}/trash"):
            self.files.remove(f"{volume.directory}/trash/{name}")
        first, last = volume.catalogue.first_log, volume.catalogue.last_log
        known = {file_name(number) for number in range(first, last + 1)}
        for name in self.files.names(f"{volume.directory}/log"):
            if name not in known:
                self.files.remove(f"{volume.directory}/log/{name}")
        if volume.dropped:
            self.drop_directories()

    def remove_unnamed(self, replica: StoredReplica) -> None:
        """Remove files that no manifest names; readers keep the files that they have open."""
        manifest = replica.manifest
        named = {MANIFEST, DAMAGED}
        if manifest is not None:
            named |= {each.file for table in manifest.tables for each in table.segments}
        named |= {each.file for view in replica.view.tables.values() for each in view.segments}
        path = self.path(replica)
        for name in self.files.names(path):
            if name not in named:
                self.files.remove(f"{path}/{name}")

    def drop_directories(self) -> None:
        """Remove discarded replicas: durably from the log first, then from VOLUME, then files."""
        volume = self.volume
        with volume.lock:
            names, volume.dropped = volume.dropped, []
        try:
            volume.sync()
            volume.catalogue.remove_replicas(names)
            there = {*self.files.names(f"{volume.directory}/replicas")} if names else set()
            for name in dict.fromkeys(names):
                if name in there:
                    self._trashed += 1
                    trash = f"{volume.directory}/trash/{self._trashed}"
                    self.files.replace(f"{volume.directory}/replicas/{name}", trash)
                    self.files.remove(trash)
        except OSError:
            volume.dropped += names
            raise


def directory(replica: StoredReplica) -> str:
    return directory_of(replica.partition, replica.incarnation)
