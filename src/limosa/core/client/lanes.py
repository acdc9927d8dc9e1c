"""Which unfinished writes go to a partition, and in which order?"""

from bisect import bisect_left, insort_right
from collections.abc import Iterable

from limosa.core.client.operations import OperationGroup, Part
from limosa.core.model.keys import PartitionId, ZoneId


class Lanes:
    """The parts of unfinished writes for each partition, in the order of their sequences.

    The lanes give the answer only while all writes of a zone were split by the same layout.
    """

    __slots__ = ("_lanes", "_versions")

    def __init__(self) -> None:
        self._lanes: dict[PartitionId, list[tuple[int, Part]]] = {}
        self._versions: dict[ZoneId, dict[int, int]] = {}
        """The number of writes that were split by each version of a zone's layout."""

    def enter(self, group: OperationGroup, parts: Iterable[Part]) -> None:
        versions = self._versions.setdefault(group.asked.zone, {})
        versions[group.version] = versions.get(group.version, 0) + 1
        for part in parts:
            if part.partition is not None:
                lane = self._lanes.setdefault(part.partition, [])
                if lane and lane[-1][0] > group.sequence:
                    insort_right(lane, (group.sequence, part), key=_sequence)
                else:
                    lane.append((group.sequence, part))

    def leave(self, group: OperationGroup, parts: Iterable[Part]) -> None:
        """These parts of the group are done."""
        versions = self._versions[group.asked.zone]
        versions[group.version] -= 1
        if not versions[group.version]:
            del versions[group.version]
        for part in parts:
            lane = self._lanes.get(part.partition or "", [])
            first = next((n for n, (_, other) in enumerate(lane) if not other.done), len(lane))
            del lane[:first]
            if part.partition is not None and not lane:
                self._lanes.pop(part.partition, None)

    def before(self, group: OperationGroup, part: Part) -> int | None:
        """The sequence before the group's in this lane, 0 if it is the first; None: the lanes
        can't tell, since writes of the zone were split by different layouts."""
        versions = self._versions[group.asked.zone]
        if part.partition is None or len(versions) > 1 or part.version not in versions:
            return None
        lane = self._lanes[part.partition]
        start = stop = bisect_left(lane, group.sequence, key=_sequence)
        while start and lane[start - 1][1].done:
            start -= 1
        del lane[start:stop]  # parts that are done are never looked up again
        return lane[start - 1][0] if start else 0


def _sequence(entry: tuple[int, Part]) -> int:
    return entry[0]
