"""What does this node hold of a replica? Its log, how far it is committed, what runs on it."""

from bisect import bisect_right

from limosa.core.effects import AdvanceWatermark, TrimLog
from limosa.core.events import HeldReplica
from limosa.core.messages import Chunk, Read
from limosa.core.model.keys import ORIGIN, PartitionId, Position, Revision, SessionId
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.producers import Producers


class Held:
    """One replica on this node. All but the log, epoch and watermark is gone with the process."""

    __slots__ = (
        "appending",
        "begun",
        "check",
        "chunks",
        "copied",
        "digest",
        "durable",
        "entries",
        "epoch",
        "epoch_durable",
        "first",
        "landed",
        "last",
        "matched",
        "partition",
        "permits",
        "positions",
        "producers",
        "reads",
        "replica",
        "revision",
        "session",
        "watermark",
    )

    def __init__(self, partition: PartitionId, replica: Replica) -> None:
        self.partition = partition
        self.replica = replica
        self.revision: Revision = 0
        """Of the record that this replica acts on."""
        self.epoch = 0
        self.epoch_durable = 0
        self.begun = 0
        self.matched = 0
        """The epoch whose owner this log is known to be a prefix of."""
        self.entries: list[Entry] = []
        self.positions: list[Position] = []
        self.first: Position = ORIGIN
        self.last: Position = ORIGIN
        self.durable: Position = ORIGIN
        self.watermark: Position = ORIGIN
        self.producers = Producers()
        self.appending: dict[int, tuple[Revision, Position]] = {}
        """What is on its way to the volume: by which revision it was asked for, and where the log
        ends then."""
        self.reads: dict[int, tuple[Revision, Read, str]] = {}
        self.permits: dict[int, SessionId] = {}
        self.chunks: dict[tuple[SessionId, int, str], dict[int, Chunk]] = {}
        self.landed: set[tuple[SessionId, int]] = set()
        self.session: SessionId | None = None
        self.copied: SessionId | None = None
        self.check: tuple[SessionId, Position] | None = None
        self.digest: tuple[SessionId, Position, int] | None = None

    @classmethod
    def restored(cls, stored: HeldReplica) -> "Held":
        held = cls(stored.partition, stored.replica)
        held.epoch = held.epoch_durable = stored.epoch
        held.begun = stored.begun
        held.first = held.last = stored.first
        for entry in stored.entries:
            held.append(entry)
        held.producers.unite(stored.producers)
        held.durable = held.last
        held.watermark = stored.watermark
        return held

    # --- the log

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.positions.append(entry.at)
        self.last = entry.at
        self.producers.record(entry)

    def after(self, position: Position) -> tuple[Entry, ...]:
        return tuple(self.entries[bisect_right(self.positions, position) :])

    def nearest(self, position: Position) -> Position | None:
        """The last position here that is not behind the given one; None: the log starts later."""
        index = bisect_right(self.positions, position)
        if index:
            return self.positions[index - 1]
        return self.first if self.first <= position else None

    def truncate(self, to: Position) -> None:
        index = bisect_right(self.positions, to)
        del self.entries[index:], self.positions[index:]
        self.last = to
        self.durable = min(self.durable, to)
        self._shorten_appending(to)
        self.producers.forget_after(to)

    def begin(self, base: Position, epoch: int) -> None:
        """Empty again: what was copied or sent before belongs to an owner of the past."""
        self.entries.clear()
        self.positions.clear()
        self.first = self.last = self.durable = self.watermark = base
        self._shorten_appending(base)
        self.producers = Producers()
        self.begun = epoch
        self.forget_copy()

    def _shorten_appending(self, to: Position) -> None:
        for ticket, (revision, end) in self.appending.items():
            self.appending[ticket] = (revision, min(end, to))

    def stored(self, up_to: int) -> bool:
        """Everything up to this ticket is durable; True if something was waited for."""
        done = [ticket for ticket in self.appending if ticket <= up_to]
        for ticket in done:
            self.durable = max(self.durable, self.appending.pop(ticket)[1])
        return bool(done)

    def trim(self, kept: int) -> list[TrimLog]:
        """Let go of the oldest committed entries; a replica that needs them must be rebuilt."""
        if len(self.entries) <= 2 * kept:
            return []
        committed = bisect_right(self.positions, min(self.watermark, self.durable))
        surplus = min(committed, len(self.entries) - kept)
        if surplus <= 0:
            return []
        self.first = self.positions[surplus - 1]
        del self.entries[:surplus], self.positions[:surplus]
        return [TrimLog(self.partition, self.replica.incarnation, 0, self.first)]

    # --- what is committed

    def advance(self, to: Position) -> list[AdvanceWatermark]:
        """Move the watermark, but stop where a digest is wanted: of exactly the rows there."""
        steps: list[AdvanceWatermark] = []
        if self.check is not None and self.watermark <= self.check[1] <= to:
            steps.append(self._to(self.check[1], True))
        if to > self.watermark:
            steps.append(self._to(to, False))
        return steps

    def _to(self, position: Position, digest: bool) -> AdvanceWatermark:
        self.watermark = position
        return AdvanceWatermark(self.partition, self.replica.incarnation, 0, position, digest)

    # --- copying

    def forget_copy(self) -> None:
        self.chunks.clear()
        self.landed.clear()
        self.copied = None
        self.check = None
        self.digest = None

    # --- what still runs

    def oldest_work(self, session: SessionId | None) -> Revision | None:
        """The oldest revision under which something runs; a closed session's work is the oldest."""
        running = [revision for revision, _ in self.appending.values()]
        running += [revision for revision, _, _ in self.reads.values()]
        running += [0 for of in self.permits.values() if of != session]
        return min(running, default=None)
