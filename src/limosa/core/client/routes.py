"""Where do the rows of an operation go, by the client's topology?"""

from bisect import bisect_right
from collections.abc import Sequence

from limosa.core import routing
from limosa.core.client.asked import Asked
from limosa.core.client.operations import ClientOperation, OperationGroup, Part
from limosa.core.client.windows import PART_BYTES
from limosa.core.model.changes import Topology
from limosa.core.model.keys import NodeId, ZoneId
from limosa.core.model.rows import Rows, Starts
from limosa.core.model.topology import Layout, Partition


class ClientRoutes:
    """Splits operations by the layouts of a topology, and finds the nodes of partitions."""

    __slots__ = ("_starts", "topology")

    def __init__(self) -> None:
        self.topology = Topology()
        self._starts: dict[ZoneId, tuple[Layout, Starts]] = {}

    def layout(self, zone: ZoneId) -> Layout | None:
        return self.topology.layouts.get(zone)

    def record(self, part: Part) -> Partition | None:
        return None if part.partition is None else self.topology.partitions.get(part.partition)

    def node(self, asked: Asked, part: Part) -> NodeId | None:
        """The node to ask; None: there is none now."""
        record = self.record(part)
        if record is None:
            return None
        if asked.eventual:
            readers = routing.readers(record)
            return readers[asked.choice % len(readers)].node
        return None if record.owner is None else record.owner.replica.node

    def is_stale(self, zone: ZoneId, part: Part) -> bool:
        """Was the part split by another layout than today's?"""
        layout = self.layout(zone)
        return layout is not None and part.version != layout.version

    def split_group(self, group: OperationGroup) -> None:
        """Each operation waits for the parts that have rows of it."""
        operations = group.operations
        rows = [each.asked.rows for each in operations if each.asked.rows is not None]
        layout = self.layout(group.asked.zone)
        if len(operations) == 1:
            group.take(self.split(group.asked, group.asked.rows, operations))
        elif layout is None:
            group.take(self.split(group.asked, rows[0].joined(rows[1:]), operations))
        else:
            starts = self._starts_of(layout)
            places = [each.places(starts) for each in rows]
            group.take(self.split(group.asked, rows[0].joined(rows[1:]), []))
            for part in group.parts:
                part.waiters = []
            for operation, indexes in zip(operations, places, strict=True):
                for index in indexes:
                    group.routed[layout.partitions[index]].waiters.append(operation)

    def split(self, asked: Asked, rows: Rows | None, waiters: list[ClientOperation]) -> list[Part]:
        """The parts of a group, or of a part that an older layout split, by today's layout."""
        layout = self.layout(asked.zone)
        if layout is None:
            return [Part(rows, waiters)]
        shares: Sequence[tuple[int, Rows | None]]
        if rows is None:
            shares = [(bisect_right(layout.starts, asked.token) - 1, None)]
        else:
            shares = rows.split(self._starts_of(layout))
        parts = []
        for index, share in shares:
            name = layout.partitions[index]
            size = 0 if share is None else share.bytes + PART_BYTES
            parts.append(Part(share, waiters, layout.range_of(index), name, layout.version, size))
        return parts

    def _starts_of(self, layout: Layout) -> Starts:
        known = self._starts.get(layout.zone)
        if known is None or known[0] is not layout:
            known = self._starts[layout.zone] = (layout, Starts(layout.starts))
        return known[1]
