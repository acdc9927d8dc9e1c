"""Which small writes wait to be sent together?

Nodes spend much more time on a part than on a row of it. So while many parts of a zone are under
way, further small writes wait: until some of those parts are done, until enough writes wait, or for
a moment. Then they are sent as one write. A lone write never waits here.
"""

from msgspec import Struct

from limosa.core.client.operations import ClientOperation
from limosa.core.model.keys import ZoneId
from limosa.core.model.rows import Rows

GATHERED_BYTES_MAX = 32 << 20
GATHERED_PART_BYTES_MAX = 16 << 20
"""If a single partition would get more, fewer writes are sent together."""
PART_BYTES_AIM = 256 << 10
"""No more is gathered once each partition gets so many bytes."""


class HeldWrites(Struct, eq=False):
    """Writes that wait to be sent together."""

    since: float
    bytes_max: int
    operations: list[ClientOperation] = []
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.bytes_max


class Gathering:
    """The small writes of each zone that wait to be sent together."""

    __slots__ = ("_under_way", "_under_way_max", "held")

    def __init__(self, under_way_max: int) -> None:
        self.held: dict[ZoneId, HeldWrites] = {}
        self._under_way: dict[ZoneId, int] = {}
        """The number of parts that are not done."""
        self._under_way_max = under_way_max

    def began(self, zone: ZoneId, parts: int) -> None:
        self._under_way[zone] = self._under_way.get(zone, 0) + parts

    def ended(self, zone: ZoneId) -> None:
        self._under_way[zone] -= 1

    def is_busy(self, zone: ZoneId) -> bool:
        return self._under_way.get(zone, 0) >= self._under_way_max

    def fits(self, zone: ZoneId, rows: Rows) -> bool:
        """Can the rows be sent together with those that wait?"""
        held = self.held.get(zone)
        if held is None:
            return True
        first = held.operations[0].asked.rows
        enough = held.bytes + rows.bytes > held.bytes_max
        return not enough and first is not None and first.joins(rows)

    def hold(
        self, now: float, operation: ClientOperation, rows: Rows, partitions: int
    ) -> HeldWrites:
        held = self.held.get(operation.asked.zone)
        if held is None:
            bytes_max = min(GATHERED_BYTES_MAX, partitions * PART_BYTES_AIM)
            held = self.held[operation.asked.zone] = HeldWrites(now, bytes_max)
        held.operations.append(operation)
        held.bytes += rows.bytes
        return held

    def take(self, zone: ZoneId) -> list[ClientOperation]:
        """The writes that waited; none any more."""
        held = self.held.pop(zone, None)
        return [] if held is None else held.operations

    def due(self, before: float) -> list[ZoneId]:
        """The zones whose writes need not wait any longer, or have waited since that time."""
        return [
            zone
            for zone, held in self.held.items()
            if held.since <= before or not self.is_busy(zone)
        ]
