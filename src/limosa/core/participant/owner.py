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
from limosa.core.effects import AppendEntries, MakeCommit, Send
from limosa.core.messages import (
    Answer,
    Mismatched,
    Redirect,
    Refuse,
    Wait,
    Write,
    Written,
)
from limosa.core.model.changes import Commit, Put, lease_key, partition_key
from limosa.core.model.keys import Position, Revision, SessionId, position
from limosa.core.model.rows import Entry, Rows
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.held import Held
from limosa.core.participant.lease import Lease
from limosa.core.participant.replication import Peer, Replication
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.tickets import Tickets


class Pending(Struct, gc=False):
    """A client that waits for the watermark."""

    at: Position
    client: str
    answer: Answer
    since: float = 0.0


OwnerReport: TypeAlias = tuple[
    bool, tuple[Revision, Position] | None, tuple[tuple[Replica, Revision], ...]
]
"""Whether the owner is open, its seal, and the replicas that have caught up."""


class Owner(Replication):
    """One replica's ownership: one epoch, one run of one process."""

    def __init__(
        self,
        held: Held,
        record: Partition,
        lease: Lease,
        tickets: Tickets,
        settings: ParticipantSettings,
    ) -> None:
        super().__init__(held, record, lease, tickets, settings)
        self.needed = 1
        """How many in-sync replicas the zone requires."""
        self.collecting: tuple[Position, Revision] | None = None
        """A collection that is not committed yet: barriers wait for it."""
        self.open = False
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
        self.proposed: dict[Replica, float] = {}
        """Replicas that the next commit may make in sync again: acks already wait for them."""
        self.lately: deque[tuple[float, Position]] = deque()
        """The watermarks of the last ticks, the oldest first."""
        self.told: OwnerReport = (False, None, ())
        """What was last reported to the coordinator."""
        self.troubled: tuple[tuple[Replica, ...], tuple[Replica, ...]] = ((), ())
        """The replicas that were silent or unreachable at the last tick."""

    def holds(self, now: float) -> bool:
        """Whether the lease that this epoch was granted to holds; a later lease does not count."""
        return self.lease.holds(now)

    # --- the record

    def adopt(self, now: float, record: Partition, revision: Revision, needed: int) -> None:
        """Another revision of the record: perhaps other peers; every seal and proposal is void."""
        self.record = record
        self.revision = revision
        self.needed = needed
        self.sealed = self.unsealed()
        self.proposed.clear()
        self.lately.clear()  # the write set may have been smaller
        wanted = [r for r in routing.written(record) if r != self.held.replica]
        self.peers = {r: self.peers.get(r) or Peer(r, now, now) for r in wanted}
        for peer in self.peers.values():
            peer.since = now
            peer.hurry()
            peer.reading = 0  # it would be sent under an old revision
            if peer.replica in routing.may_return(record):
                peer.matched = False  # it must answer again before it is proposed
            if not peer.matched:
                self.probe(peer)
        self.commit(now)

    def unsealed(self) -> Revision | None:
        """A seal is for one revision of the record: any commit lifts it."""
        return None

    def required(self) -> list[Replica]:
        """The current write set, and replicas that a commit may have added to it already."""
        return [*routing.writers(self.record), *self.proposed]

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

    def must_stop(self) -> bool:
        """Too few replicas are in sync: another one that may be elected could lack what is
        committed now."""
        return bool(self.record.eligible)

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
        return max(lately, now - self.pending[0].since) if self.pending else lately

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
        for peer in self.peers.values():
            if not peer.matched:
                self.probe(peer)
            elif peer.acked < held.last:
                if (
                    now - peer.since >= self.settings.resend_seconds
                ):  # otherwise entries are still under way
                    self.resend(now, peer, peer.acked)
            else:
                peer.since = now
                idle = now - peer.heard > self.settings.idle_seconds_max
                if idle and peer.asked is None:
                    peer.asked = now
                if peer.told < held.watermark or held.check is not None or idle:
                    self.replicate(peer, held.last)
            self.propose(now, peer)
        self.lately.append((now, held.watermark))
        while now - self.lately[0][0] > self.settings.silence_seconds_max / 2:
            self.lately.popleft()
        stale = [
            r for r, at in self.proposed.items() if now - at > self.settings.silence_seconds_max
        ]
        waited = self.sealed is not None and now - self.sealed_at > self.settings.seal_seconds_max
        if stale or waited:
            self.sealed_at = now
            self.proposed = dict.fromkeys(self.proposed, now)
            self.touch("nothing came of a proposal" if stale else "nothing came of a seal")

    def propose(self, now: float, peer: Peer) -> None:
        """A replica that is nearly caught up may return: from now on all acks wait for it.

        Nearly: it has what was committed a moment ago. Under load it never has all that is
        committed now, unless the watermark waits for it.

        An owner that may commit nothing proposes replicas that have all of its log: no more is
        written meanwhile, and if it is not open, it does not know how much is committed.
        """
        nearly = self.lately[0][1] if self.lately else self.held.watermark
        if (
            (self.open or self.must_stop())
            and peer.matched
            and peer.acked >= (self.held.last if self.must_stop() else nearly)
            and peer.replica in routing.may_return(self.record)
            and peer.replica not in self.proposed
        ):
            self.proposed[peer.replica] = now

    def caught_up(self) -> tuple[tuple[Replica, Revision], ...]:
        """Proposed replicas that have everything committed, and the revision of the proposal."""
        committed = self.held.last if self.must_stop() else self.held.watermark
        return tuple(
            (replica, self.revision)
            for replica in self.proposed
            if self.peers[replica].matched and self.peers[replica].acked >= committed
        )

    def report(self) -> OwnerReport:
        """What the coordinator should know at once."""
        return self.open, self.seal_report(), self.caught_up()

    def silent(self, now: float) -> tuple[Replica, ...]:
        """Replicas that have not answered for too long, whether or not there is anything to send.
        An owner that was paused knows nothing of the others: its lease has run out."""
        if not self.lease.holds(now):
            return ()
        required = self.required()
        return tuple(
            peer.replica
            for peer in self.peers.values()
            if peer.replica in required and self.is_silent(now, peer)
        )

    def unreachable(self) -> tuple[Replica, ...]:
        """Replicas that this log no longer reaches back to."""
        return tuple(peer.replica for peer in self.peers.values() if not peer.reachable)

    def is_silent(self, now: float, peer: Peer) -> bool:
        behind = not peer.matched or peer.acked < self.held.last
        longest = self.settings.silence_seconds_max
        asked_in_vain = peer.asked is not None and now - peer.asked > longest
        return asked_in_vain or (behind and now - peer.since > longest)

    def touch(self, why: str) -> None:
        """Commit the record unchanged: this voids every seal and proposal of its revision."""
        guards = {
            partition_key(self.record.id): self.revision,
            lease_key(self.held.replica.node): self.lease.revision,
        }
        self.out.append(MakeCommit(Commit(guards, (Put(self.record),), why)))

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
        chosen = self.held.check or self.held.digest
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
