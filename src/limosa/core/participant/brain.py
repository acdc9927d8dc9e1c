"""What does a node do now? It keeps its lease, applies the topology, and serves its partitions.

A participant is the brain of one node in one run of its process. It is made of parts that share a
`NodeState`; `handle` says which part takes which event and message, and mypy checks that no event
is forgotten.

    part        question                                     takes
    ---------   ------------------------------------------   ---------------------------------------
    Leasing     is this run alive?                           LeaseGranted, LeaseEnded
    Hosting     which replicas are here, and whose?          Started, TopologyRead, VolumeLost,
                                                             ReplicaDamaged;
                                                             DropReplica
    Serving     what do owners here do?                      Stored, TailRead, CollectionDue; Write,
                                                             Probed, Acked, Unheld, Seal, Verify
    Following   what do followers here do?                   Probe, Replicate
    Copying     how do copied rows leave and arrive?         SliceRead, SliceShelved, RowsLinked,
                                                             DigestTaken; Fetch, Chunk, End, Link
    Reporting   what does the coordinator hear?              Measured; Look
    Reading     which reads are answered?                    `admit` and `check`, beside `handle`

Three rules hold for all parts:

- **The applied topology decides.** A call asks the node to look, or names a revision, session or
  incarnation; a call about an older one changes nothing. A message whose sender knows
  a newer record waits until this node has applied it.
- **A lease is a run.** An epoch is granted to one lease. Ownership, permits and requests that began
  under a lease end with it, and a new lease counts only with a topology from after it.
- **Nothing is promised before it is durable.** Every change of a volume has a ticket; the node
  sends promises and acknowledgements when `Stored` covers the ticket. The driver carries effects
  out in their order, so that a volume knows a watermark before a client hears of the write.
"""

from typing import assert_never

from limosa.core.effects import Effect
from limosa.core.events import (
    CollectionDue,
    DigestTaken,
    LeaseEnded,
    LeaseGranted,
    LogLost,
    Measured,
    NodeEvent,
    Received,
    ReplicaDamaged,
    RowsLinked,
    SliceRead,
    SliceShelved,
    Started,
    Stored,
    TailRead,
    Ticked,
    TopologyRead,
    VolumeLost,
)
from limosa.core.messages import (
    Acked,
    Chunk,
    DropReplica,
    End,
    Fetch,
    Link,
    Look,
    Probe,
    Probed,
    Replicate,
    Seal,
    Status,
    Unheld,
    Verify,
    Write,
)
from limosa.core.model.keys import NodeId
from limosa.core.participant.copying import Copying
from limosa.core.participant.following import Following
from limosa.core.participant.hosting import Hosting, Stamped
from limosa.core.participant.leasing import Leasing
from limosa.core.participant.reading import Reading
from limosa.core.participant.reporting import Reporting
from limosa.core.participant.serving import Serving
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.state import NodeState


class Participant(NodeState):
    """The brain of one node, in one run of its process."""

    def __init__(self, node: NodeId, settings: ParticipantSettings) -> None:
        super().__init__(node, settings)
        self.serving = Serving(self)
        self.hosting = Hosting(self, self.serving)
        self.leasing = Leasing(self, self.hosting, self.serving)
        self.following = Following(self, self.hosting)
        self.copying = Copying(self, self.serving)
        self.reporting = Reporting(self, self.hosting)
        self.reading = Reading(self, self.serving)

    def handle(self, now: float, event: NodeEvent) -> list[Effect]:
        self.out = []
        self._dispatch(now, event)
        self.reporting.tell_changes(now)
        return self.out

    def status(self, now: float) -> Status:
        return self.reporting.status(now)

    def _dispatch(self, now: float, event: NodeEvent) -> None:
        match event:
            case Received():
                self._received(now, event)
            case Stored():
                self.serving.stored(now, event)
            case Ticked():
                self.vitals.ticked(now)
                self.leasing.tick(now)
                self.hosting.tick(now)
                self.serving.tick(now)
            case TopologyRead():
                for waiting in self.hosting.topology_read(now, event):
                    self._received(now, waiting)
            case LeaseGranted():
                self.leasing.granted(now, event)
            case LeaseEnded():
                self.leasing.ended(event)
            case TailRead():
                self.serving.tail_read(event)
            case SliceRead():
                self.copying.slice_read(now, event)
            case SliceShelved():
                self.copying.slice_shelved(now, event)
            case RowsLinked():
                self.copying.rows_linked(now, event)
            case DigestTaken():
                self.copying.digest_taken(now, event)
            case CollectionDue():
                self.serving.collection_due(now, event)
            case Measured():
                self.reporting.measured(event)
            case Started():
                self.hosting.started(event)
            case VolumeLost():
                self.hosting.volume_lost(event)
            case ReplicaDamaged():
                self.hosting.damaged(event)
            case LogLost():
                self.hosting.log_lost(event)
            case _:
                assert_never(event)

    def _received(self, now: float, event: Received) -> None:
        sender, message = event.sender, event.message
        if isinstance(message, Write):
            self.serving.write(now, sender, message, event.found)
            self.hosting.catch_up(now)
            return
        if isinstance(message, Stamped) and self.hosting.is_ahead(message):
            self.hosting.wait(now, event)
            return
        match message:
            case Acked() | Probed() | Unheld():
                self.serving.peer_message(now, message)
            case Replicate() | Probe():
                self.following.received(sender, message)
            case Chunk():
                self.copying.chunk(now, sender, message)
            case End():
                self.copying.end(now, sender, message)
            case Fetch():
                self.copying.fetch(now, sender, message)
            case Link():
                self.copying.link(now, sender, message)
            case Look():
                self.reporting.look(now, sender, message)
            case Seal():
                self.serving.seal(now, message)
            case Verify():
                self.serving.verify(now, message)
            case DropReplica():
                self.hosting.drop(message)
            case _:
                pass  # not for a node: it was sent by mistake
