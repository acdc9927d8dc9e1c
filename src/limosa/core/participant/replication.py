"""How do other replicas get an owner's log? By log matching, and then by appending.

The owner asks a replica where its log ends, has it truncated where the two logs differ, and sends
the rest. A replica that is still being filled begins with an empty log in every epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from limosa.core import routing
from limosa.core.effects import Effect, ReadTail, Send, Surprise
from limosa.core.machines.machine import Work
from limosa.core.messages import Acked, Appending, Probe, Probed, Replicate, Unheld
from limosa.core.model.keys import LeaseId, NodeId, Position, Revision
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.held import Held
from limosa.core.participant.lease import Lease
from limosa.core.participant.pairs import Pair, Pairs
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.tickets import Tail, Tickets


@dataclass(slots=True, eq=False)
class Peer:
    """What the owner knows of another replica, in this epoch."""

    replica: Replica
    pair: Pair
    since: float
    """When the replica began to owe an acknowledgement, or last made progress: awake seconds."""
    joined: float
    """Since when the replica gets the log: awake seconds."""
    matched: bool = False
    reachable: bool = True
    """False: the replica needs entries that this log no longer has."""
    reading: int = 0
    """The ticket of the read from the volume for this replica; there is one at a time."""
    sent: Position = 0
    """The last position that was sent; later entries are sent when it is acknowledged."""
    acked: Position = 0
    base: Position | None = None
    """Where the replica's log begins at the latest, if this owner began it."""
    told: Position = 0
    """The watermark that the replica knows."""
    run: LeaseId = 0
    """The run of the replica's process that was probed last."""
    again_at: float = -inf
    """When entries that it did not acknowledge may be sent again."""
    pause: float = 0.0

    def hurry(self) -> None:
        """The replica made progress, or is another run: what it lacks is sent at once."""
        self.again_at, self.pause = -inf, 0.0


class Replication(ABC):
    """Sends an owner's log to the other replicas."""

    def __init__(
        self,
        held: Held,
        record: Partition,
        lease: Lease,
        tickets: Tickets,
        pairs: Pairs,
        settings: ParticipantSettings,
    ) -> None:
        self.held = held
        self.record = record
        self.revision: Revision = 0
        self.lease = lease
        self.tickets = tickets
        self.pairs = pairs
        self.clock = pairs.clock
        self.settings = settings
        self.epoch = record.epoch
        self.peers: dict[Replica, Peer] = {}
        self.out: list[Effect] = []

    @abstractmethod
    def commit(self, now: float) -> None:
        """A replica has acknowledged more."""

    def follow(self, replicas: Sequence[Replica]) -> None:
        """From now on, these replicas get the log."""
        partition = self.held.partition
        nodes = {replica.node for replica in replicas}
        for replica in self.peers:
            if replica.node not in nodes:
                self.pairs.leave(replica.node, partition)
        now = self.clock.now
        self.peers = {
            replica: self.peers.get(replica)
            or Peer(replica, self.pairs.join(replica.node, partition), now, now)
            for replica in replicas
        }
        for peer in self.peers.values():
            peer.pair.changed(partition)

    def unmatch(self, peer: Peer) -> None:
        if peer.matched and peer.acked >= self.held.last:
            peer.since = self.clock.now
        peer.matched = False

    def run_changed(self, node: NodeId) -> None:
        """Another run of a node has begun: the replicas there must be matched anew."""
        for peer in self.peers.values():
            if peer.replica.node == node and peer.matched:
                self.unmatch(peer)
                peer.hurry()
                self.probe(peer)

    def probe(self, peer: Peer) -> None:
        self._send(
            peer, Probe(self.held.partition, peer.replica.incarnation, self.epoch, self.revision)
        )

    def ask(self, node: NodeId) -> None:
        """Probe the replicas on a node, to hear whether the node is there."""
        for peer in self.peers.values():
            if peer.replica.node == node:
                self.probe(peer)

    def answerer(self, message: Probed | Acked | Unheld) -> Peer | None:
        """The replica that answered this owner; None: it answered another one, or is none."""
        return self.peers.get(message.replica) if message.epoch == self.epoch else None

    # What follows takes messages that have an answerer.

    def probed(self, now: float, message: Probed) -> None:
        peer = self.peers[message.replica]
        if message.run != peer.run:
            peer.run = message.run
            peer.hurry()
        if self.must_begin(peer.replica, message.begun):
            peer.base = self.base()
            self.resend(now, peer, peer.base, "begin")
            return
        peer.base = None  # it may be another run of the replica, which has lost some of its log
        common = self.held.nearest(message.last)
        if common is None:
            peer.reachable = False
            return
        if not (peer.matched and message.last >= peer.acked):
            self.unmatch(peer)
            self.resend(now, peer, common, "match", message.run)
        elif message.last < self.held.last:
            self.resend(now, peer, message.last)

    def must_begin(self, replica: Replica, begun: int) -> bool:
        """A replica that is still being filled starts empty in every epoch."""
        filling = routing.is_copied(self.record)
        return filling and begun != self.epoch and replica in routing.new_only(self.record)

    def base(self) -> Position:
        """Where a new replica's log begins: committed rows are copied, later entries are sent."""
        return self.held.watermark

    def copied_up_to(self) -> Position | None:
        """Every new replica has the entries after this position in its log, so a copy may leave
        them out. None: unknown."""
        stage = routing.stage_of(self.record)
        if stage is None or Work.COPY not in stage.work:
            return None
        peers = [self.peers.get(replica) for replica in routing.new_only(self.record)]
        bases = [peer.base for peer in peers if peer is not None and peer.base is not None]
        return max(bases) if bases and len(bases) == len(peers) else None

    def resend(
        self,
        now: float,
        peer: Peer,
        previous: Position,
        how: Appending = "append",
        probed: LeaseId = 0,
    ) -> None:
        """Send entries that the replica may have been sent before, but not too often: it may refuse
        them for a reason that this owner does not know. In between it is only matched."""
        if now >= peer.again_at:
            peer.pause = min(
                2 * peer.pause or self.settings.resend_seconds, self.settings.resend_seconds_max
            )
            peer.again_at = now + peer.pause
            self.replicate(peer, previous, how, probed)
        elif how != "append" and previous >= self.held.first:
            sent = peer.sent
            self._replicate(peer, previous, (), how, probed)
            peer.sent = max(sent, previous)

    def replicate(
        self, peer: Peer, previous: Position, how: Appending = "append", probed: LeaseId = 0
    ) -> None:
        if previous < self.held.first:
            peer.reachable = peer.matched = False
            return
        entries = self.held.after(previous, self.settings.replicate_bytes)
        if entries is not None:
            self._replicate(peer, previous, entries, how, probed)
        elif not peer.reading:
            self._read_tail(peer, previous, how, probed)

    def _replicate(
        self,
        peer: Peer,
        previous: Position,
        entries: tuple[Entry, ...],
        how: Appending,
        probed: LeaseId,
    ) -> None:
        held = self.held
        message = Replicate(
            held.partition,
            peer.replica.incarnation,
            self.epoch,
            self.revision,
            previous,
            entries,
            held.watermark,
            how,
            held.check if how == "append" else None,
            probed,
        )
        peer.sent = entries[-1].at if entries else previous
        self._send(peer, message)

    def _read_tail(self, peer: Peer, previous: Position, how: Appending, probed: LeaseId) -> None:
        held = self.held
        peer.reading = next(self.tickets)
        self.tickets.tails[peer.reading] = Tail(
            held.partition, self.epoch, self.revision, peer.replica, previous, how, probed
        )
        incarnation, limit = held.replica.incarnation, self.settings.replicate_bytes
        self.out.append(ReadTail(held.partition, incarnation, peer.reading, previous, limit))

    def tail_read(self, ticket: int, tail: Tail, entries: tuple[Entry, ...]) -> None:
        """Send entries that were read from the volume, if the peer still needs them."""
        peer = self.peers.get(tail.to)
        if peer is None or peer.reading != ticket:
            return
        peer.reading = 0
        follows = bool(entries) and entries[0].previous == tail.previous
        if follows and (tail.how == "begin" or peer.matched == (tail.how == "append")):
            self._replicate(peer, tail.previous, entries, tail.how, tail.probed)

    def acked(self, now: float, message: Acked) -> None:
        peer = self.peers[message.replica]
        if message.position > peer.acked or not peer.matched:
            peer.pair.progressed(peer.replica.volume)
        peer.matched = peer.reachable = True
        peer.told = message.watermark
        if message.position > peer.acked:
            peer.acked = message.position
            peer.since = self.clock.now
            peer.hurry()
        if peer.sent <= peer.acked < self.held.last:
            self.replicate(peer, peer.acked)
        self.commit(now)

    def unheld(self, now: float, message: Unheld) -> None:
        peer = self.peers[message.replica]
        if message.why in ("unmatched", "lost"):
            self.unmatch(peer)
            peer.acked = 0 if message.why == "lost" else peer.acked
        if message.why == "unmatched":
            self.probe(peer)
        elif (
            message.why in ("fenced", "dropped")
            and message.revision == self.revision
            and message.replica in routing.writers(self.record)
            and self.lease.holds(now)
        ):
            # All processes are at most one stage apart, so no replica may refuse this.
            self.out.append(
                Surprise(
                    self.held.partition, f"{message.replica.node} refused its owner: {message.why}"
                )
            )

    def _send(self, peer: Peer, message: Probe | Replicate) -> None:
        self.out.append(Send(peer.replica.node, message))

    # --- silence

    def is_silent(self, peer: Peer) -> bool:
        """A replica that has just joined may be on a node that has just come back."""
        is_new = self.clock.now - peer.joined <= self.settings.silence_seconds_max
        return (peer.pair.is_silent() and not is_new) or self.is_late(peer)

    def is_late(self, peer: Peer) -> bool:
        """Has the replica owed an acknowledgement for too long?"""
        owes = not peer.matched or peer.acked < self.held.last
        return owes and peer.pair.is_late(peer.replica.volume, peer.since)
