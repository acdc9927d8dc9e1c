"""How is a row read? In three steps, with any delay between them: admitted, viewed, answered.

Reads do not go through `handle`, and do not wait for it. A driver calls `admit`, takes a view of
the replica from the volume, and calls `check`, each at any moment and in any thread. These calls
change only `is_outdated`, which the next tick looks at. A scan takes the same steps: its view is
checked once, and does not change however long the reader takes.

Why an owner's answer is linearizable:

- When a read is admitted, this node is the owner and its lease holds, so every write that any node
  has acknowledged is in this log. The view is taken later. An owner moves the watermark on the
  volume before it acknowledges a write, so the view has all writes that were acknowledged before.
- An owner opens a moment before the volume knows its watermark. `check` refuses a view that lacks
  a row that was committed when the owner opened.
- The rows in a view are committed, and stay committed under every later owner: the views of a
  replica that was once complete never go back. So a view shows the newest rows of some moment
  between `admit` and `check`.

Why a barrier need not wait for reads: no later step of a transition makes such an answer wrong. An
eventual read of a replica that was dropped, or is no longer complete, fails `check`, which decides
once more by the topology that is applied by then.
"""

from msgspec import Struct

from limosa.core import routing
from limosa.core.messages import Answer, Read, Wait
from limosa.core.model.keys import Incarnation, PartitionId, Position
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.held import Held
from limosa.core.participant.owner import Owner
from limosa.core.participant.serving import Serving
from limosa.core.participant.state import NodeState


class Admitted(Struct, frozen=True, gc=False):
    """A read that may take a view of this replica."""

    read: Read
    held: Held
    owner: Owner | None = None
    """The owner that admitted the read; an `eventual` read has none."""

    @property
    def replica(self) -> tuple[PartitionId, Incarnation]:
        return self.held.partition, self.held.replica.incarnation


class Reading:
    """Which reads are answered here."""

    def __init__(self, node: NodeState, serving: Serving) -> None:
        self._node = node
        self._serving = serving

    def admit(self, now: float, read: Read) -> Admitted | Answer:
        """The replica here that may serve a read; or the answer that refuses it."""
        node = self._node
        if node.is_over:
            return Wait(read.id, "this node stops")
        if read.revision > node.topology.revision_of(read.partition):
            node.is_outdated = True
            return Wait(read.id, "routed by a record that this node has not applied yet")
        if read.eventual:
            held = self.readable(read)
            return node.redirect(read.partition, read.id) if held is None else Admitted(read, held)
        owner = self.owner_for(now, read)
        return Admitted(read, owner.held, owner) if isinstance(owner, Owner) else owner

    def owner_for(self, now: float, read: Read) -> Owner | Answer:
        return self._serving.routed(now, read)

    def check(self, now: float, admitted: Admitted, through: Position | None) -> Answer | None:
        """After a view with the watermark `through` was taken (None: there is no view): None if the
        node may answer from the view, otherwise the answer that refuses the read."""
        read = admitted.read
        if through is not None and not self._node.is_over:
            still = self.is_still_readable if read.eventual else self.is_still_owner
            if still(now, admitted, through):
                return None
        return Wait(read.id, "the partition changed hands while it was read")

    def unreadable(self, admitted: Admitted) -> Answer:
        """A file is damaged, so that these rows can't be read here."""
        return self._serving.unreadable(admitted.held, admitted.read.id)

    def is_still_readable(self, now: float, admitted: Admitted, through: Position) -> bool:
        return self.readable(admitted.read) is admitted.held

    def is_still_owner(self, now: float, admitted: Admitted, through: Position) -> bool:
        """The owner that admitted the read still owns, has not reported a seal, and its lease
        holds. Another owner in its place may not be open yet, and knows no `opened` position."""
        owner = self._node.owners.get(admitted.held.partition)
        if owner is None or owner is not admitted.owner or not self.is_complete(owner, through):
            return False
        return owner.told[1] is None and self.lease_holds(now, owner)

    def lease_holds(self, now: float, owner: Owner) -> bool:
        return owner.holds(now)

    def is_complete(self, owner: Owner, through: Position) -> bool:
        """The view has all rows that earlier owners acknowledged."""
        return through >= owner.opened

    def readable(self, read: Read) -> Held | None:
        """Either side serves an eventual read, unless the read was routed before the fence."""
        node = self._node
        record = node.topology.partitions.get(read.partition)
        if record is None or read.revision < record.fence:
            return None
        complete = [r for r in routing.everywhere(record) if r in complete_replicas(record)]
        for replica in complete:
            held = node.held.get((read.partition, replica.incarnation))
            if replica.node != node.node or held is None or not held.epoch_durable:
                continue
            if not (held.damaged and routing.has_other_in_sync(record, replica)):
                return held
        return None


def complete_replicas(record: Partition) -> tuple[Replica, ...]:
    """Replicas that have all rows: the side that is read, and the side that was read before."""
    return record.replicas if routing.is_copied(record) else routing.written(record)
