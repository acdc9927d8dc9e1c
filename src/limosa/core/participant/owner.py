"""What does an owner do? It orders writes, replicates them to the whole write set, and commits.

One rule covers an ordinary write, a stage that changes during a write, and a failover: the
watermark is the position that the *current* write set holds durably. A row is acknowledged, and
visible to reads, when the watermark has passed it.
"""

from collections import deque
from math import inf
from typing import TypeAlias

from msgspec import Struct

from limosa.core import routing
from limosa.core.effects import AppendEntries, Send
from limosa.core.messages import (
    Answer,
    Mismatched,
    Redirect,
    Refuse,
    Wait,
    Write,
    Written,
)
from limosa.core.model.keys import Position, Revision, SessionId, position
from limosa.core.model.rows import Entry, Rows
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.held import Held
from limosa.core.participant.lease import Lease
from limosa.core.participant.pace import CopyPace
from limosa.core.participant.pairs import Pairs
from limosa.core.participant.returning import Returning
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.tickets import Tickets


class Pending(Struct, gc=False):
    """A client that waits for the watermark."""

    at: Position
    client: str
    answer: Answer
    since: float = 0.0


OwnerReport: TypeAlias = tuple[
    bool,
    tuple[Revision, Position] | None,
    tuple[tuple[Replica, Revision], ...],
    tuple[Replica, ...],
]
"""Whether the owner is open, its seal, and the replicas that have caught up, or can't."""


class Owner(Returning):
    """One replica's ownership: one epoch, one run of one process."""

    def __init__(
        self,
        held: Held,
        record: Partition,
        lease: Lease,
        tickets: Tickets,
        pairs: Pairs,
        settings: ParticipantSettings,
        pace: CopyPace | None = None,
    ) -> None:
        super().__init__(held, record, lease, tickets, pairs, settings)
        self.pace = pace or CopyPace(settings)
        self.needed = 1
        """How many in-sync replicas the zone requires."""
        self.collecting: tuple[Position, Revision] | None = None
        """A collection that is not committed yet: barriers wait for it."""
        self.opened: Position = 0
        """The watermark at which the owner opened: every read here must see all rows up to it."""
        self.counter = 0
        self.pending: deque[Pending] = deque()
        self.sealed: Revision | None = None
        self.sealed_at = 0.0
        self.verified_at = -inf
        self.verified_for = 0.0
        self.slowest = (0.0, -inf)
        """The longest recent commit of a write, in seconds, and when it happened."""
        self.touches = ""
        """Why a commit must void seal and proposals, until it is asked for; empty: they stand."""
        self.touched = 0
        """How often that was asked for under the present revision of the record."""
        self.touched_at = -inf
        self.told: OwnerReport = (False, None, (), ())
        """What was last reported to the coordinator."""
        self.told_silent: tuple[Replica, ...] = ()
        """The silent replicas that the last report to the coordinator named."""

    def holds(self, now: float) -> bool:
        """Whether the lease that this epoch was granted to holds; a later lease does not count."""
        return self.lease.holds(now)

    # --- the record

    def adopt(self, now: float, record: Partition, revision: Revision, needed: int) -> None:
        """Another revision of the record: perhaps other peers; every seal and proposal is void."""
        is_the_same = record == self.record
        self.record = record
        self.revision = revision
        self.needed = needed
        self.sealed = self.unsealed()
        self.touched, self.touched_at = 0, -inf
        self.note_record(record)
        self.follow([r for r in routing.written(record) if r != self.held.replica])
        required = {replica.node for replica in self.writers}
        for peer in self.peers.values():
            peer.pair.require(record.id, peer.replica.node in required)
            if not is_the_same:  # a commit that only voids proposals gives nobody more time
                peer.since = self.clock.now
            peer.hurry()
            peer.reading = 0  # it would be sent under an old revision
            if peer.replica in self.returning:
                peer.matched = False  # it must answer again before it is proposed
            if not peer.matched:
                self.probe(peer)
        self.commit(now)

    def unsealed(self) -> Revision | None:
        """A seal is for one revision of the record: any commit lifts it."""
        return None

    # --- writing

    def write(self, now: float, client: str, message: Write, found: Position) -> Answer | None:
        """Order one part; the answer follows its commit, unless the answer is known at once."""
        held = self.held
        if held.producers.is_past(message.producer, message.sequence):
            return Refuse(
                message.id, f"sequence {message.sequence} is past: it was given up or acknowledged"
            )
        applied = held.producers.applied(message.producer, message.sequence)
        rows = message.rows.outside([part.range for part in applied])
        if applied and not len(rows):
            last = max(applied, key=lambda part: part.at)
            self.wait_for(now, client, self.answer_to(message, last.at, last.found))
            return None
        if message.after and not self.is_known(message):
            why = f"sequence {message.after} of this producer comes first"
            return Wait(message.id, why, message.after)
        if message.expected is not None and message.expected != found:
            self.order(message, None, found)
            self.wait_for(now, client, self.answer_to(message, held.last, found))
        else:
            self.order(message, rows, None)
            self.wait_for(now, client, self.answer_to(message, held.last, None))
        return None

    def is_known(self, message: Write) -> bool:
        producers = self.held.producers
        return bool(
            producers.applied(message.producer, message.after)
            or producers.is_past(message.producer, message.after)
            or message.after < message.floor
        )

    def answer_to(self, message: Write, at: Position, found: Position | None) -> Pending:
        answer = Written(message.id, at) if found is None else Mismatched(message.id, found)
        return Pending(at, "", answer)

    def wait_for(self, now: float, client: str, pending: Pending) -> None:
        pending.client = client
        pending.since = now
        self.pending.append(pending)
        self.commit(now)

    def order(self, message: Write, rows: Rows | None, found: Position | None) -> None:
        self.append(
            Entry(
                self.next_position(),
                self.held.last,
                rows,
                message.producer,
                message.sequence,
                message.floor,
                message.range,
                found,
            )
        )

    def collect(self) -> None:
        """Collect tombstones that every replica has, in sync or not, if no transition runs."""
        point = self.held.watermark
        for replica in self.record.replicas:
            if replica != self.held.replica:
                peer = self.peers.get(replica)
                point = min(point, peer.acked if peer is not None and peer.matched else 0)
        if point and self.may_collect() and not self.is_collecting():
            self.collecting = (position(self.epoch, self.counter + 1), self.revision)
            self.append(Entry(self.next_position(), self.held.last, None, collects=point))

    def may_collect(self) -> bool:
        return self.record.transition is None and not self.record.eligible

    def is_collecting(self) -> bool:
        return self.collecting is not None and self.held.watermark < self.collecting[0]

    def next_position(self) -> Position:
        self.counter += 1
        return position(self.epoch, self.counter)

    def append(self, entry: Entry) -> None:
        held = self.held
        held.append(entry)
        ticket = self.tickets.appending(held, self.revision)
        self.out.append(AppendEntries(held.partition, held.replica.incarnation, ticket, (entry,)))
        for peer in self.peers.values():
            if peer.matched and peer.acked >= entry.previous:
                peer.since = self.clock.now
            if peer.matched and peer.sent == entry.previous:
                self.replicate(peer, entry.previous)

    # --- committing

    def commit_point(self) -> Position:
        if self.must_stop():
            return self.held.watermark
        point = self.held.durable
        for replica in self.required():
            if replica == self.held.replica:
                continue
            peer = self.peers.get(replica)
            if peer is None or not peer.matched:
                return self.held.watermark
            point = min(point, peer.acked)
        return point

    def commit(self, now: float) -> None:
        """Move the watermark, open when everything in this log is committed, answer clients."""
        if not self.lease.holds(now):
            return
        point = self.commit_point()
        if not self.open:
            if point < self.held.last or not self.all_matched() or self.must_stay_closed():
                return
            self.opened = point  # before `open`: reads run in other threads
            self.open = True
        self.out += self.held.advance(point)
        if self.pending and self.pending[0].at <= self.held.watermark:
            self.slowest = (self.commit_seconds(now), now)
            self.pace.committed(now, self.waits_seconds(now))
        while self.pending and (self.pending[0].at <= self.held.watermark or self.must_stop()):
            ready = self.pending.popleft()
            self.out.append(Send(ready.client, self.as_promised(ready.answer)))

    def must_stay_closed(self) -> bool:
        """Some rows here can't be read, and another replica can own the partition."""
        held = self.held
        return bool(held.damaged) and routing.has_other_in_sync(self.record, held.replica)

    def commit_seconds(self, now: float) -> float:
        """The longest recent commit, or the wait of the oldest pending write if that is longer."""
        seconds, at = self.slowest
        lately = seconds * max(0.0, 1 - (now - at) / self.settings.slowest_seconds)
        return max(lately, self.waits_seconds(now))

    def waits_seconds(self, now: float) -> float:
        """How long the oldest pending write has waited."""
        return now - self.pending[0].since if self.pending else 0.0

    def as_promised(self, answer: Answer) -> Answer:
        """Too few replicas are left in sync since the write was admitted: outcome unknown."""
        if routing.takes_writes(self.record, self.needed):
            return answer
        return Redirect(answer.id, self.held.replica.node, 0, 0, definite=False)

    def all_matched(self) -> bool:
        return all(
            replica == self.held.replica
            or ((peer := self.peers.get(replica)) is not None and peer.matched)
            for replica in self.required()
        )

    # --- time

    def tick(self, now: float) -> None:
        held = self.held
        self.forget_watermarks(now)
        for peer in self.peers.values():
            if peer.pair.asked is not None:
                continue  # its node owes an answer to a probe of another partition, perhaps
            if not peer.matched:
                self.probe(peer)
            elif peer.acked < held.last:
                # Otherwise entries are still under way.
                if self.clock.now - peer.since >= self.settings.resend_seconds:
                    self.resend(now, peer, peer.acked)
            elif peer.told < held.watermark or held.check is not None:
                self.replicate(peer, held.last)
            self.propose(now, peer)
        self.note_watermark(now)
        why = self.why_void(now)
        if why and now - self.touched_at > self.settings.silence_seconds_max:
            self.touched_at = now
            self.touch(why)

    def rests(self) -> bool:
        """Is there nothing to do here, however much time passes? An owner also rests if all that is
        left waits for nodes that owe an answer: their pairs know that it waits."""
        held = self.held
        if (
            held.watermark < held.last
            or self.proposed
            or self.sealed is not None
            or held.check is not None
        ):
            return False
        rests = True
        for peer in self.peers.values():
            is_settled = peer.matched and peer.acked >= held.last and peer.told >= held.watermark
            if is_settled and peer.replica not in self.returning:
                continue
            if peer.pair.asked is None:
                rests = False
            else:
                peer.pair.waiting[held.partition] = None
        return rests

    def why_void(self, now: float) -> str:
        """Why the present seal or a proposal must not go on, in words; empty: it may.

        A seal stops writes, so it is bounded by time. A proposal is not, because the commit that it
        waits for may take long.
        """
        if self.sealed is not None and now - self.sealed_at > self.settings.seal_seconds_max:
            return "nothing came of a seal"
        if self.is_held_up():
            return "a proposed replica does not answer"
        return ""

    def report(self) -> OwnerReport:
        """What the coordinator should know at once."""
        return self.open, self.seal_report(), self.caught_up(), self.unreachable()

    def unreachable(self) -> tuple[Replica, ...]:
        """Replicas that this log no longer reaches back to."""
        return tuple(peer.replica for peer in self.peers.values() if not peer.reachable)

    def touch(self, why: str) -> None:
        """Have the record committed unchanged: this voids every seal and proposal of its
        revision."""
        self.touches = why

    # --- hand-over

    def seal(self, now: float, revision: Revision) -> None:
        if self.open and self.sealed is None and revision == self.revision:
            self.sealed = revision
            self.sealed_at = now

    def seal_report(self) -> tuple[Revision, Position] | None:
        """The seal, once all writes in flight are committed on the whole write set."""
        held = self.held
        ended = held.watermark == held.last or self.must_stop()
        if self.sealed is None or self.pending or not ended:
            return None
        return self.sealed, held.last

    def verify(self, now: float, session: SessionId) -> None:
        """Choose the position at which digests are compared: the present end of the log, or of
        what is committed if nothing more can be.

        The slower replica needs time to read all of its rows, however many there are, so each
        attempt waits twice as long as the one before.
        """
        chosen = self.held.check or self.held.taken
        again = chosen is not None and chosen[0] == session
        if not again:
            self.verified_for = self.settings.idle_seconds_max
        if not again or now - self.verified_at > self.verified_for:
            self.verified_at = now
            self.verified_for *= 2
            at = self.held.watermark if self.must_stop() else self.held.last
            self.held.check = (session, at)
            self.held.taken = None
            for peer in self.peers.values():
                if peer.matched:
                    self.replicate(peer, peer.sent)
            self.out += self.held.advance(self.held.watermark)
