"""What does this node hold of a replica? Its log, how far it is committed, what runs on it."""

from bisect import bisect_right
from collections import deque
from itertools import islice, takewhile

from msgspec import Struct, field

from limosa.core.effects import AdvanceWatermark, TrimLog
from limosa.core.events import HeldReplica
from limosa.core.messages import Chunk, Trouble
from limosa.core.model.keys import ORIGIN, PartitionId, Position, Revision, SessionId
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.producers import Producers

RECENT_BYTES = 4 << 20


class Held(Struct, eq=False):
    """One replica on this node. All but the log, epoch and watermark is gone with the process.

    Of the log, positions and sizes are here, and the last entries with their rows; the others are
    read from the volume when somebody needs them.
    """

    partition: PartitionId
    replica: Replica
    recent_bytes_max: int = RECENT_BYTES
    revision: Revision = 0
    """The revision of the record that this replica acts on."""
    made: bool = False
    """The replica is durable; until then a crash may lose it."""
    epoch: int = 0
    epoch_durable: int = 0
    begun: int = 0
    beginnings: int = 0
    """How often it was emptied in this run."""
    matched: int = 0
    """The epoch whose owner this log is known to be a prefix of."""
    positions: list[Position] = []
    """The position of every entry of the log."""
    sizes: list[int] = []
    bytes: int = 0
    """The sum of the sizes."""
    recent: deque[Entry] = field(default_factory=deque)
    """The last entries of the log, with their rows."""
    recent_bytes: int = 0
    first: Position = ORIGIN
    base: Position = ORIGIN
    """Entries behind this position were sent in this run; earlier rows may have been copied."""
    last: Position = ORIGIN
    durable: Position = ORIGIN
    watermark: Position = ORIGIN
    producers: Producers = field(default_factory=Producers)
    appending: dict[int, tuple[Revision, Position]] = {}
    """Appends that are not durable yet, by ticket: the revision that they were made under, and the
    end of the log after them."""
    permits: dict[int, SessionId] = {}
    chunks: dict[tuple[SessionId, int, str], dict[int, Chunk]] = {}
    landed: dict[tuple[SessionId, int], set[int]] = {}
    """The slices that have landed, by session and by the number of slices of its copy."""
    session: SessionId | None = None
    copied: SessionId | None = None
    check: tuple[SessionId, Position] | None = None
    """The position at which a digest is wanted."""
    taken: tuple[SessionId, Position] | None = None
    """The position of the last digest that was started: repeated requests start no other."""
    checked: tuple[Position, int] = (ORIGIN, 0)
    """The position of that digest, and the digest of the producers there."""
    digest: tuple[SessionId, Position, int] | None = None
    trouble: Trouble = ""

    @classmethod
    def restored(cls, stored: HeldReplica, recent_bytes_max: int = RECENT_BYTES) -> "Held":
        held = cls(stored.partition, stored.replica, recent_bytes_max)
        held.made = True
        held.epoch = held.epoch_durable = stored.epoch
        held.begun = stored.begun
        held.first = held.last = held.base = stored.first
        for at, size in stored.log:
            held._lengthen(at, size)
        held.producers.unite(stored.producers)
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
        self.producers.record(entry, committed=False)

    def _lengthen(self, at: Position, size: int) -> None:
        self.positions.append(at)
        self.sizes.append(size)
        self.bytes += size
        self.last = at

    def after(self, position: Position, bytes_max: int) -> tuple[Entry, ...] | None:
        """Entries behind a position: one at least if there is one, then so many bytes.

        None: they are so old that the volume must be asked.
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
        """The last position here that is not behind the given one; None: the log starts later."""
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
        """Empty again: what was copied or sent before belongs to an owner of the past."""
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
        """Everything up to this ticket is durable; True if something was waited for."""
        done = list(takewhile(lambda ticket: ticket <= up_to, self.appending))
        for ticket in done:
            self.durable = max(self.durable, self.appending.pop(ticket)[1])
        return bool(done)

    def trim(self, kept: int, bytes_kept: int) -> list[TrimLog]:
        """Let go of the oldest committed entries; a replica that needs them must be rebuilt.

        Not a few at a time: once there is too much of it, half of the log goes.
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

    # --- what is committed

    def wish(self, check: tuple[SessionId, Position]) -> None:
        """A digest at exactly this position, unless it was asked for before, or is past by now."""
        if check != self.taken and check[1] >= self.watermark:
            self.check = check

    @property
    def checking(self) -> Position | None:
        return None if self.check is None else self.check[1]

    def advance(self, to: Position) -> list[AdvanceWatermark]:
        """Move the watermark, but stop where a digest is wanted: of exactly the rows there."""
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
        """How far the copy is that is ahead: (slices landed, slices in all)."""
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
        """The oldest revision under which something runs; a closed session's work is the oldest."""
        if not (self.appending or self.permits):
            return None
        running = [revision for revision, _ in self.appending.values()]
        running += [0 for of in self.permits.values() if of != session]
        return min(running, default=None)
