"""In which order must unfinished writes reach a partition?

A write names the last earlier write that has unacknowledged rows in the same range, and the owner
accepts it only after that one. It also names a floor: sequences that are not repeated any more.
"""

from bisect import bisect_left, insort_right
from collections.abc import Iterable

from limosa.core.client.operations import OperationGroup, Part
from limosa.core.model.keys import PartitionId, ZoneId


class WriteOrder:
    """The unfinished writes of a client, in the order of their sequences."""

    __slots__ = ("_by_sequence", "_first", "_lanes", "_last", "_sequence")

    def __init__(self) -> None:
        self._sequence = 0
        self._by_sequence: dict[int, OperationGroup] = {}
        self._first: OperationGroup | None = None
        self._last: OperationGroup | None = None
        self._lanes = Lanes()

    def __len__(self) -> int:
        return len(self._by_sequence)

    def add(self, group: OperationGroup) -> None:
        """Give the write a sequence."""
        self._sequence += 1
        group.sequence = self._sequence
        self._by_sequence[group.sequence] = group
        group.earlier = self._last
        if self._last is None:
            self._first = group
        else:
            self._last.later = group
        self._last = group

    def remove(self, group: OperationGroup) -> None:
        """The write has ended; all of its parts are done."""
        del self._by_sequence[group.sequence]
        earlier, later = group.earlier, group.later
        group.earlier = group.later = None
        if earlier is None:
            self._first = later
        else:
            earlier.later = later
        if later is None:
            self._last = earlier
        else:
            later.earlier = earlier
        self._lanes.leave(group, group.parts)

    def enter(self, group: OperationGroup, parts: Iterable[Part]) -> None:
        """The write has these parts; it has given up its version with other parts, if any."""
        self._lanes.enter(group, parts)

    def leave(self, group: OperationGroup, parts: Iterable[Part]) -> None:
        """The write was split again: these parts are done."""
        self._lanes.leave(group, parts)

    def get(self, sequence: int) -> OperationGroup | None:
        return self._by_sequence.get(sequence)

    def floor(self, group: OperationGroup) -> int:
        """The client waits for no sequence below this one."""
        return (self._first or group).sequence

    def after(self, group: OperationGroup, part: Part) -> int:
        """The sequence of the last earlier write that touches the same range and is not
        acknowledged; 0: there is none."""
        before = self._lanes.before(group, part)
        if before is not None:
            return before
        other = group.earlier
        while other is not None:
            if other.asked.zone == group.asked.zone and other.touches(part):
                return other.sequence
            other = other.earlier
        return 0

    def must_follow(self, group: OperationGroup, part: Part) -> OperationGroup | None:
        """The write that must be sent first, and is neither under way nor in the queue; the owner
        would refuse the part until then."""
        before = self._by_sequence.get(self.after(group, part))
        first = None if before is None else before.routed.get(part.partition or "")
        is_behind = first is None or first.done or first.id or first.queue is not None
        return None if is_behind else before


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
                insort_right(lane, (group.sequence, part), key=_sequence)

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
