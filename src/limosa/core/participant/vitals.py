"""How is this node doing? Numbers of the last minute, for operators; nothing depends on them."""

from collections import Counter
from math import inf

from msgspec import Struct

from limosa.core.model.keys import PartitionId
from limosa.core.model.topology import Partition

WINDOW_SECONDS = 30.0
RESTLESS_TIMES = 5
"""A partition that was disturbed so often lately is restless. A node that fails and returns
disturbs each of its partitions twice at most."""


class NodeVitals(Struct, frozen=True):
    """How a node is doing, and how well the coordinator serves it."""

    lag_seconds: float = 0.0
    """The longest time that the node needed lately until it came round to its regular work."""
    asked_seconds: float | None = None
    """How long ago the coordinator last asked for a report; None: it never did."""
    unheard_seconds: float | None = None
    """The age of the oldest report of which the coordinator has not said that it took it up; None:
    coordinators of earlier versions do not say so."""
    changes: int = 0
    """Changes of partitions' records lately that nobody asked for: replicas that were taken out of
    the in-sync set or put back, elections, and proposals that were withdrawn."""
    restless: int = 0
    """Partitions that were disturbed again and again."""


class Vitals:
    """Follows ticks, looks of the coordinator and changes of records. Any thread may ask."""

    def __init__(self) -> None:
        self._ticked_at: float | None = None
        self._asked_at: float | None = None
        self._unheard: tuple[int, float] | None = None
        """A report and when it was sent; the coordinator has not said yet that it took it up."""
        self._began = -inf
        self._recent = _Window()
        self._earlier = _Window()

    def ticked(self, now: float) -> None:
        self._turn(now)
        if self._ticked_at is not None:
            self._recent.lag = max(self._recent.lag, now - self._ticked_at)
        self._ticked_at = now

    def looked(self, now: float, told: int, heard: int) -> None:
        """The coordinator asked. `told`: the last report that was sent; `heard`: the last one that
        the coordinator says it took up, 0: it does not say."""
        self._asked_at = now
        if heard and (self._unheard is None or heard >= self._unheard[0]):
            self._unheard = (told, now)

    def changed(self, now: float, before: Partition | None, after: Partition | None) -> None:
        """The record of a partition changed."""
        if before is None or after is None or not before.epoch or _step(before) != _step(after):
            return  # created, dropped or moved, as somebody asked for
        self._turn(now)
        self._recent.changes += 1
        lost = len(after.in_sync) < len(before.in_sync)
        if lost or after.epoch > before.epoch or after == before:
            self._recent.disturbed[after.id] += 1

    def _turn(self, now: float) -> None:
        """Begin another window, and forget the one before the last."""
        if now - self._began > WINDOW_SECONDS:
            is_next = now - self._began <= 2 * WINDOW_SECONDS
            self._earlier = self._recent if is_next else _Window()
            self._recent, self._began = _Window(), now

    def seen(self, now: float) -> NodeVitals:
        recent, earlier = self._recent, self._earlier
        waited = 0.0 if self._ticked_at is None else now - self._ticked_at
        disturbed = recent.disturbed + earlier.disturbed
        return NodeVitals(
            max(recent.lag, earlier.lag, waited),
            None if self._asked_at is None else now - self._asked_at,
            None if self._unheard is None else now - self._unheard[1],
            recent.changes + earlier.changes,
            sum(times >= RESTLESS_TIMES for times in disturbed.values()),
        )


class _Window:
    """What happened in a stretch of time."""

    def __init__(self) -> None:
        self.lag = 0.0
        self.changes = 0
        self.disturbed: Counter[PartitionId] = Counter()


def _step(record: Partition) -> tuple[str, str] | None:
    """Where a partition's move is; None: it does not move."""
    return None if record.transition is None else (record.transition.id, record.transition.stage)
