"""How much does a volume hold, in memory and in its log? Only what changed is counted again.

A node may have thousands of replicas, and needs these totals many times a second.
"""

from collections.abc import Iterable, Mapping
from heapq import nlargest

from limosa.storage.replica import ReplicaKey, StoredReplica
from limosa.storage.view import Size


class Tally:
    """Totals over the replicas of one volume. The volume's lock protects it."""

    def __init__(self, replicas: Mapping[ReplicaKey, StoredReplica], large_bytes: int) -> None:
        """`large_bytes`: a replica with so many bytes of rows in memory is large."""
        self._replicas = replicas
        self._large_bytes = large_bytes
        self._changed: dict[StoredReplica, None] = {}
        self._large: dict[StoredReplica, None] = {}
        self.memory_bytes = 0
        """Bytes of rows that are in no segment yet."""
        self.log_bytes = 0
        """Bytes of log frames that replicas still need, and the number of these frames."""
        self.log_frames = 0
        self.sizes: dict[ReplicaKey, Size] = {}
        self.note(*replicas.values())
        self.count()

    def note(self, *replicas: StoredReplica) -> None:
        """These replicas changed, or are gone."""
        for replica in replicas:
            self._changed[replica] = None

    def count(self) -> None:
        changed, self._changed = self._changed, {}
        for replica in changed:
            memory, log_bytes, log_frames = replica.counted
            self.memory_bytes -= memory
            self.log_bytes -= log_bytes
            self.log_frames -= log_frames
            replica.counted = (0, 0, 0)
            key = (replica.partition, replica.incarnation)
            held = self._replicas.get(key)
            if held is not replica:
                self._large.pop(replica, None)
                if held is None:
                    self.sizes.pop(key, None)
                continue
            replica.counted = memory, log_bytes, log_frames = replica.measured()
            self.memory_bytes += memory
            self.log_bytes += log_bytes
            self.log_frames += log_frames
            self.sizes[key] = replica.view.size
            if memory >= self._large_bytes:
                self._large[replica] = None
            else:
                self._large.pop(replica, None)

    def fullest(self, memory_bytes_max: int, count: int) -> list[StoredReplica]:
        """So many replicas with the most rows in memory, if there are too many rows there."""
        self.count()
        among: Iterable[StoredReplica] = self._large
        if self.memory_bytes >= memory_bytes_max:
            among = self._replicas.values()
        fullest = nlargest(count, among, key=lambda replica: replica.counted[0])
        return [replica for replica in fullest if replica.counted[0]]
