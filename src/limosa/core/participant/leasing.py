"""How does a run stay alive? It acquires a lease, and ends its work with the lease."""

from math import inf

from limosa.core.effects import AcquireLease
from limosa.core.events import LeaseEnded, LeaseGranted
from limosa.core.participant.hosting import Hosting
from limosa.core.participant.lease import Lease
from limosa.core.participant.renewals import Renewals
from limosa.core.participant.serving import Serving
from limosa.core.participant.state import NodeState


class Leasing:
    """Acquires the lease; all work that began under a lease ends with it."""

    def __init__(self, node: NodeState, hosting: Hosting, serving: Serving) -> None:
        self._node = node
        self._hosting = hosting
        self._serving = serving
        self.renewals = Renewals(node)
        self._asked_at = -inf

    def tick(self, now: float) -> None:
        node = self._node
        if node.lease is None and now - self._asked_at > node.settings.lease_seconds:
            self._asked_at = now
            node.out.append(AcquireLease())
        if self.renewals.tick(now):
            self._serving.commit_all(now)

    def granted(self, now: float, event: LeaseGranted) -> None:
        node = self._node
        if node.lease is not None and event.revision <= node.lease.revision:
            return  # a late or duplicated answer: a run begins only once
        self._forget_run()
        node.lease = Lease(event.lease, event.revision)
        node.lease.extend(event.sent_at, node.settings)
        self.renewals.granted(event.sent_at)
        self._hosting.refresh(now)

    def ended(self, event: LeaseEnded) -> None:
        lease = self._node.lease
        if lease is not None and lease.id == event.lease:
            self._forget_run()
            self._asked_at = -inf

    def _forget_run(self) -> None:
        """Requests, permits and ownership end with the lease under which they began."""
        node = self._node
        node.lease = None
        self._hosting.forget_waiting()
        for owner in list(node.owners.values()):
            self._serving.disown(owner.held)
        for held in node.held.values():
            held.forget_copy()
