"""Is this run of the process alive? As long as its lease holds, by the node's own clock."""

from math import inf

from limosa.core.model.changes import Commit, Put, lease_key, node_key
from limosa.core.model.keys import LeaseId, NodeId, Revision
from limosa.core.model.topology import NodeLease
from limosa.core.participant.settings import ParticipantSettings


class Lease:
    """The lease of this run of the process; it holds as long as renewals succeed."""

    __slots__ = ("id", "registered", "revision", "valid_until")

    def __init__(self, id: LeaseId, revision: Revision) -> None:
        self.id = id
        self.revision = revision
        self.valid_until = -inf
        self.registered = False
        """A topology at or after the lease's revision was applied."""

    def extend(self, sent_at: float, settings: ParticipantSettings) -> None:
        """Counted from the *sending* of the renewal, and a margin shorter than the metastore's."""
        until = sent_at + settings.lease_seconds * (1 - settings.lease_margin)
        self.valid_until = max(self.valid_until, until)

    def holds(self, now: float) -> bool:
        return self.registered and now < self.valid_until


def registration(node: NodeId, lease: LeaseId, row: Revision, previous: Revision) -> Commit:
    """The commit that says that this run of the node is alive.

    It is guarded by the node's row, so that a node that was removed in the meantime does not
    return, and by the lease key as it was before this registration began, so that a registration
    that arrives late does not replace a later one.
    """
    guards = {node_key(node): row, lease_key(node): previous}
    return Commit(guards, (Put(NodeLease(node, lease)),), f"{node} is alive")
