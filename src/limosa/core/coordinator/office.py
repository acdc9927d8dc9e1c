"""Who coordinates? Whoever holds the office: one key of the metastore, under a lease.

A busy coordinator must not lose its office: the driver's heartbeat has a thread of its own, which
asks here whether a renewal is due, and waits for nothing else. A coordinator that handles no event
any more hangs, and its office is renewed no more.
"""

from math import inf

from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Commit, Put
from limosa.core.model.keys import LeaseId
from limosa.core.model.topology import CoordinatorLease

RENEW_SECONDS = 0.5
HANGS_SECONDS = 10.0
"""It handles events all the time, and none takes nearly so long."""
TRY_SECONDS = 3.0
"""So often a standby tries although, by what it knows, somebody holds the office: its watch may be
silent. The commit is guarded, so that trying in vain changes nothing."""


class Office:
    """One process's claim: it keeps the office, or waits until nobody holds it."""

    def __init__(self, name: str) -> None:
        self.lease: LeaseId | None = None
        self._name = name
        self._asked_at = -inf
        self._handled_at = -inf

    def handled(self, now: float) -> None:
        """The coordinator has handled an event."""
        self._handled_at = now

    def due(self, now: float) -> LeaseId | None:
        """The lease to renew now; None: none."""
        is_early = now - self._asked_at < RENEW_SECONDS
        if self.lease is None or is_early or now - self._handled_at > HANGS_SECONDS:
            return None
        self._asked_at = now
        return self.lease

    def must_claim(self, now: float, agreed: Agreed) -> bool:
        """Is it time to become the coordinator: by a new lease, and the coordinator's key under
        it?"""
        if self.lease is not None or now - self._asked_at < RENEW_SECONDS:
            return False
        if agreed.coordinator is not None and now - self._asked_at < TRY_SECONDS:
            return False
        self._asked_at = now
        return True

    def claim(self, lease: LeaseId) -> Commit:
        """It happens only if nobody holds the office."""
        change = Put(CoordinatorLease(self._name, lease))
        return Commit({COORDINATOR_KEY: 0}, (change,), f"{self._name} coordinates")

    def taken(self, lease: LeaseId) -> None:
        self.lease = lease

    def lost(self, lease: LeaseId) -> bool:
        """The lease has ended; False: it was another one."""
        if self.lease != lease:
            return False
        self.lease = None
        return True
