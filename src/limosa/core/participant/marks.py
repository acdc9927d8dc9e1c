"""What changed since the last report to the coordinator? The parts of a node mark it here."""

from limosa.core.model.keys import PartitionId


class Marks:
    """Partitions whose replicas here have another state, and whether anything else changed."""

    __slots__ = ("_node", "_partitions")

    def __init__(self) -> None:
        self._node = False
        self._partitions: dict[PartitionId, None] = {}

    def __bool__(self) -> bool:
        return self._node or bool(self._partitions)

    def mark(self, partition: PartitionId) -> None:
        self._partitions[partition] = None

    def mark_node(self) -> None:
        """Something else changed: the generation, the volumes, or work that barriers wait for."""
        self._node = True

    def take(self) -> dict[PartitionId, None]:
        """The marked partitions; afterwards nothing is marked."""
        marked, self._partitions, self._node = self._partitions, {}, False
        return marked
