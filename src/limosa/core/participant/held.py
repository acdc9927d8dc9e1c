"""What does a node know of one of its replicas? Its log, its watermark, and the work under way."""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import islice, takewhile

from limosa.core.effects import AdvanceWatermark, TrimLog
from limosa.core.events import HeldReplica
from limosa.core.messages import Chunk, Trouble
from limosa.core.model.keys import ORIGIN, PartitionId, Position, Revision, SessionId
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.producers import Producers

RECENT_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class Held:
    """One replica on this node. Only the log, the epoch and the watermark survive the process.

    The positions and sizes of the whole log are in memory, and the last entries with their rows;
    older entries are read from the volume when they are needed.
    """

    partition: PartitionId
    replica: Replica
    recent_bytes_max: int = RECENT_BYTES
    revision: Revision = 0
    """The revision of the record that this replica acts on."""
    made: bool = False
    """Created durably: until then a crash may remove it."""
    epoch: int = 0
    epoch_durable: int = 0
    begun: int = 0
    beginnings: int = 0
    """How often the replica was emptied in this run."""
    matched: int = 0
    """The epoch of the owner whose log is known to start with this log."""
    positions: list[Position] = field(default_factory=list)
    """The position of every entry of the log."""
    sizes: list[int] = field(default_factory=list)
    bytes: int = 0
    """The sum of the sizes."""
    recent: deque[Entry] = field(default_factory=deque)
    """The last entries of the log, with their rows."""
    recent_bytes: int = 0
    first: Position = ORIGIN
    base: Position = ORIGIN
    """Entries committed above this position were sent in this run; the rest may be copied."""
    last: Position = ORIGIN
    durable: Position = ORIGIN
    watermark: Position = ORIGIN
    producers: Producers = field(default_factory=Producers)
    appending: dict[int, tuple[Revision, Position]] = field(default_factory=dict)
    """Appends under way to the volume, by ticket: the revision that asked for the append, and the
    end of the log after it."""
    permits: dict[int, SessionId] = field(default_factory=dict)
    chunks: dict[tuple[SessionId, int, str], dict[int, Chunk]] = field(default_factory=dict)
    landed: dict[tuple[SessionId, int], set[int]] = field(default_factory=dict)
    """The slices that landed, by session and by the number of slices of its division."""
    session: SessionId | None = None
    copied: SessionId | None = None
    check: tuple[SessionId, Position] | None = None
    """The position at which a digest is wanted."""
    taken: tuple[SessionId, Position] | None = None
    """Position at which the last digest started: one digest per position is enough."""
    checked: tuple[Position, int] = (ORIGIN, 0)
    """The last position at which a digest was wanted, and the producers' digest there."""
    digest: tuple[SessionId, Position, int] | None = None
    trouble: Trouble = ""
    damaged: str = ""
    """Which file does not match its checksum; empty: none that is known. The replica stays damaged
    until it is dropped."""

    @classmethod
    def restored(cls, stored: HeldReplica, recent_bytes_max: int = RECENT_BYTES) -> "Held":
        held = cls(stored.partition, stored.replica, recent_bytes_max)
        held.made = True
        held.damaged = stored.damaged
        held.epoch = held.epoch_durable = stored.epoch
        held.begun = stored.begun
        held.first = held.last = held.base = stored.first
        for at, size in stored.log:
            held._lengthen(at, size)
        held.producers.unite(stored.producers)
        held.producers.expect(stored.raises)
        held.durable = held.last
        held.watermark = stored.watermark
        return held

    # --- the log

    def append(self, entry: Entry) -> None:
        size = entry.bytes
        self._lengthen(entry.at, size)
        self.recent.append(entry)
        self.recent_bytes += size
        while self.recent_bytes > self.recent_bytes_max and len(self.recent) > 1:
            self.recent_bytes -= self.recent.popleft().bytes
        self.producers.record(entry)

    def _lengthen(self, at: Position, size: int) -> None:
        self.positions.append(at)
        self.sizes.append(size)
        self.bytes += size
        self.last = at

    def after(self, position: Position, bytes_max: int) -> tuple[Entry, ...] | None:
        """Entries above a position: at least one if there is one, then up to so many bytes.

        None: they are older than those in memory, and must be read from the volume.
        """
        start = bisect_right(self.positions, position)
        wanted = len(self.positions) - start
        if wanted > len(self.recent):
            return None
        index, size = start, 0
        while index < len(self.sizes) and (index == start or size + self.sizes[index] <= bytes_max):
            size += self.sizes[index]
            index += 1
        newest = list(islice(reversed(self.recent), wanted))
        newest.reverse()
        return tuple(newest[: index - start])

    def nearest(self, position: Position) -> Position | None:
        """The last position of this log up to the given one; None: the log starts later."""
        index = bisect_right(self.positions, position)
        if index:
            return self.positions[index - 1]
        return self.first if self.first <= position else None

    def truncate(self, to: Position) -> None:
        index = bisect_right(self.positions, to)
        self.bytes -= sum(self.sizes[index:])
        del self.positions[index:], self.sizes[index:]
        while self.recent and self.recent[-1].at > to:
            self.recent_bytes -= self.recent.pop().bytes
        self.last = to
        self.durable = min(self.durable, to)
        self._shorten_appending(to)
        self.producers.forget_after(to)

    def begin(self, base: Position, epoch: int) -> None:
        """Empty the replica: all that was copied or sent before is from an earlier owner."""
        self.positions.clear()
        self.sizes.clear()
        self.recent.clear()
        self.bytes = self.recent_bytes = 0
        self.first = self.last = self.durable = self.watermark = self.base = base
        self._shorten_appending(base)
        self.producers = Producers()
        self.begun = epoch
        self.beginnings += 1
        self.forget_copy()

    def _shorten_appending(self, to: Position) -> None:
        for ticket, (revision, end) in self.appending.items():
            self.appending[ticket] = (revision, min(end, to))

    def stored(self, up_to: int) -> bool:
        """Everything up to this ticket is durable; True if an append was under way."""
        done = list(takewhile(lambda ticket: ticket <= up_to, self.appending))
        for ticket in done:
            self.durable = max(self.durable, self.appending.pop(ticket)[1])
        return bool(done)

    def trim(self, kept: int, bytes_kept: int) -> list[TrimLog]:
        """Remove the oldest committed entries; a replica that needs them must be rebuilt.

        Once the log is too long, half of it is removed, so that this happens rarely.
        """
        if len(self.positions) <= 2 * kept and self.bytes <= bytes_kept:
            return []
        committed = bisect_right(self.positions, min(self.watermark, self.durable))
        least = len(self.positions) - kept
        limit = bytes_kept // 2 if self.bytes > bytes_kept else bytes_kept
        most = min(committed, len(self.positions) - 1)
        surplus, size = 0, self.bytes
        while surplus < most and (surplus < least or size > limit):
            size -= self.sizes[surplus]
            surplus += 1
        if not surplus:
            return []
        self.bytes = size
        self.first = self.positions[surplus - 1]
        del self.positions[:surplus], self.sizes[:surplus]
        while len(self.recent) > len(self.positions):
            self.recent_bytes -= self.recent.popleft().bytes
        return [TrimLog(self.partition, self.replica.incarnation, 0, self.first)]

    def lose(self, through: Position) -> list[TrimLog]:
        """Committed entries up to this position can't be read: the log begins after them."""
        count = bisect_right(self.positions, min(through, self.watermark, self.durable))
        if not count:
            return []
        self.bytes -= sum(self.sizes[:count])
        self.first = self.positions[count - 1]
        del self.positions[:count], self.sizes[:count]
        while len(self.recent) > len(self.positions):
            self.recent_bytes -= self.recent.popleft().bytes
        return [TrimLog(self.partition, self.replica.incarnation, 0, self.first)]

    # --- what is committed

    def wish(self, check: tuple[SessionId, Position]) -> None:
        """Ask for a digest at exactly this position, unless one was started or it has passed."""
        if check != self.taken and check[1] >= self.watermark:
            self.check = check

    @property
    def checking(self) -> Position | None:
        return None if self.check is None else self.check[1]

    def advance(self, to: Position) -> list[AdvanceWatermark]:
        """Move the watermark, but stop where a digest of exactly the rows there is wanted."""
        steps: list[AdvanceWatermark] = []
        if self.check not in (None, self.taken) and self.watermark <= self.check[1] <= to:
            self.taken = self.check
            steps.append(self._to(self.check[1], True))
            self.checked = (self.watermark, self.producers.digest(self.watermark))
        if to > self.watermark:
            steps.append(self._to(to, False))
        return steps

    def _to(self, position: Position, digest: bool) -> AdvanceWatermark:
        self.watermark = position
        self.producers.commit(position)
        return AdvanceWatermark(self.partition, self.replica.incarnation, 0, position, digest)

    # --- copying

    def copying(self) -> tuple[int, int] | None:
        """Progress of the division that is furthest: (slices landed, slices in all)."""
        return max(
            ((len(landed), slices) for (_, slices), landed in self.landed.items()),
            key=lambda each: each[0] / each[1],
            default=None,
        )

    def forget_copy(self) -> None:
        self.chunks.clear()
        self.landed.clear()
        self.copied = None
        self.check = None
        self.taken = None
        self.digest = None
        self.trouble = ""

    # --- what still runs

    def oldest_work(self, session: SessionId | None) -> Revision | None:
        """The oldest revision under which work runs; 0 for the work of a closed session."""
        if not (self.appending or self.permits):
            return None
        running = [revision for revision, _ in self.appending.values()]
        running += [0 for of in self.permits.values() if of != session]
        return min(running, default=None)
