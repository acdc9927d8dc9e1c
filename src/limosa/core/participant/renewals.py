"""When is a lease renewed, and until when does it hold? A busy brain must not lose its lease.

So the driver's heartbeat has a thread of its own, which asks here and never waits for the brain's
lock. A brain that does not tick any more hangs, and its lease is renewed no more.
"""

from math import inf

from limosa.core.model.keys import LeaseId
from limosa.core.participant.state import NodeState


class Renewals:
    """The heartbeat's thread calls `due` and `renewed`; the brain calls the rest."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._sent_at = -inf
        self._ticked_at = -inf
        self._has_lapsed = False

    # --- the heartbeat

    def due(self, now: float) -> LeaseId | None:
        """The lease to renew now; None: none."""
        node = self._node
        lease = node.lease
        if lease is None or node.is_over or now - self._sent_at < node.settings.heartbeat_seconds:
            return None
        if now - self._ticked_at > node.settings.lease_seconds:
            return None  # the brain hangs
        self._sent_at = now
        return lease.id

    def renewed(self, now: float, renewed: LeaseId, sent_at: float) -> None:
        """The metastore has renewed the lease; the renewal was sent at `sent_at`."""
        lease = self._node.lease
        if lease is None or lease.id != renewed:
            return
        # The brain may look at the lease right now, and see that it has lapsed a moment later.
        has_lapsed = not lease.holds(now + self._node.settings.heartbeat_seconds)
        lease.extend(sent_at, self._node.settings)
        if has_lapsed:
            self._has_lapsed = True

    # --- the brain

    def granted(self, sent_at: float) -> None:
        self._sent_at = sent_at

    def tick(self, now: float) -> bool:
        """True: the lease holds again after it had lapsed, so what had to wait may be committed."""
        self._ticked_at = now
        has_lapsed, self._has_lapsed = self._has_lapsed, False
        return has_lapsed
