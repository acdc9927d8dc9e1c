"""Which replicas return to the in-sync set, and which ones do not answer?

An owner proposes a replica that has nearly caught up. From then on its acks wait for that replica,
so that the coordinator can put it back by one commit, however long the commit takes.
"""

from collections import deque

from limosa.core import routing
from limosa.core.model.keys import Position, Revision
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.held import Held
from limosa.core.participant.lease import Lease
from limosa.core.participant.pairs import Pairs
from limosa.core.participant.replication import Peer, Replication
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.tickets import Tickets


class Returning(Replication):
    """Knows which replicas a write must wait for, and which ones may be added to them."""

    def __init__(
        self,
        held: Held,
        record: Partition,
        lease: Lease,
        tickets: Tickets,
        pairs: Pairs,
        settings: ParticipantSettings,
    ) -> None:
        super().__init__(held, record, lease, tickets, pairs, settings)
        self.open = False
        self.writers: tuple[Replica, ...] = ()
        """The write set of the record."""
        self.returning: tuple[Replica, ...] = ()
        """Replicas of the record that may be in sync again."""
        self.proposed: dict[Replica, None] = {}
        """Replicas that the next commit may make in sync again: acks already wait for them."""
        self.lately: deque[tuple[float, Position]] = deque()
        """The watermarks of the last ticks, the oldest first, while a replica may return."""

    def note_record(self, record: Partition) -> None:
        """Another revision of the record: every proposal is void."""
        self.writers = routing.writers(record)
        self.returning = routing.may_return(record)
        self.proposed.clear()
        self.lately.clear()  # the write set may have been smaller

    def required(self) -> list[Replica]:
        """The current write set, and replicas that a commit may have added to it already."""
        return [*self.writers, *self.proposed]

    def must_stop(self) -> bool:
        """Too few replicas are in sync: another one that may be elected could lack what is
        committed now."""
        return bool(self.record.eligible)

    def forget_watermarks(self, now: float) -> None:
        while self.lately and now - self.lately[0][0] > self.settings.silence_seconds_max / 2:
            self.lately.popleft()

    def note_watermark(self, now: float) -> None:
        if self.returning:
            self.lately.append((now, self.held.watermark))

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
            and peer.replica in self.returning
            and peer.replica not in self.proposed
        ):
            self.proposed[peer.replica] = None

    def caught_up(self) -> tuple[tuple[Replica, Revision], ...]:
        """Proposed replicas that have everything committed, and the revision of the proposal."""
        committed = self.held.last if self.must_stop() else self.held.watermark
        return tuple(
            (replica, self.revision)
            for replica in self.proposed
            if self.peers[replica].matched and self.peers[replica].acked >= committed
        )

    def is_held_up(self) -> bool:
        """Does a write, or the opening, wait for a proposed replica that has owed an answer for too
        long? Otherwise proposals stand."""
        waits = self.held.watermark < self.held.last or not self.open
        return waits and any(self.is_late(self.peers[replica]) for replica in self.proposed)

    def silent(self, now: float) -> tuple[Replica, ...]:
        """Replicas that have not answered for too long, whether or not there is anything to send.
        An owner that was paused knows nothing of the others: its lease has run out."""
        if not self.lease.holds(now):
            return ()
        required = self.required()
        return tuple(
            peer.replica
            for peer in self.peers.values()
            if peer.replica in required and self.is_silent(peer)
        )
