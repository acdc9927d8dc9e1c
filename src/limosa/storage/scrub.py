"""Which damage does nobody meet? A scrub reads all files slowly, and verifies their checksums."""

import threading
import time
from collections.abc import Iterator

from limosa.errors import DamagedFile
from limosa.storage.log import verify_file
from limosa.storage.maintenance import Maintenance
from limosa.storage.replica import StoredReplica
from limosa.storage.segment import Segment

PAUSE_SECONDS = 1.0
"""The least time between two passes."""
STOP_SECONDS = 1.0
CPU_SHARE = 0.02
"""The most that a scrub takes of a core: small entries cost much more than their bytes."""
AHEAD_SECONDS = 0.02
"""A scrub that is ahead of its rate by more than this pauses."""


class Scrub(threading.Thread):
    """Verifies segments and complete log files of one volume, until it is stopped or fails."""

    def __init__(self, disk: Maintenance, bytes_per_second: int) -> None:
        super().__init__(name=f"limosa-scrub-{disk.volume.name}", daemon=True)
        self._disk = disk
        self._rate = bytes_per_second
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Does not wait long: a disk that hangs would hold up the end of the process."""
        self._stopping.set()
        if self.is_alive():
            self.join(STOP_SECONDS)

    def run(self) -> None:
        while not (self._stopping.wait(PAUSE_SECONDS) or self._disk.volume.has_failed):
            self._pace(verify(self._disk))

    def _pace(self, verified: Iterator[int]) -> None:
        """Verify no more bytes a second than allowed, and leave the CPU to others."""
        due, spent = time.monotonic(), time.thread_time()
        for size in verified:
            before, spent = spent, time.thread_time()
            cost = max(size / self._rate, (spent - before) / CPU_SHARE)
            due = max(due, time.monotonic() - AHEAD_SECONDS) + cost
            ahead = due - time.monotonic()
            if self._stopping.is_set() or (ahead > AHEAD_SECONDS and self._stopping.wait(ahead)):
                return


def verify(disk: Maintenance) -> Iterator[int]:
    """Verify all files of a volume once; yields how many bytes were verified, piece by piece."""
    volume = disk.volume
    with volume.lock:
        replicas = list(volume.replicas.values())
    for replica in replicas:
        for segment in _segments(replica):
            try:
                yield from segment.verify(volume.files)
            except DamagedFile as error:
                if segment in _segments(replica):  # not replaced in the meantime
                    disk.on_damage(replica.partition, replica.incarnation, error)
    for number in range(volume.catalogue.first_log, volume.catalogue.last_log):
        try:
            yield from verify_file(volume.files, f"{volume.directory}/log", number)
        except DamagedFile as error:
            disk.remove_damaged_log(number, error)


def _segments(replica: StoredReplica) -> list[Segment]:
    return [each.segment for view in replica.view.tables.values() for each in view.segments]
