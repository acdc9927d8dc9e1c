"""Who coordinates? Whoever holds the office: one key of the metastore, under a lease."""

from math import inf

from limosa.core.effects import RenewOffice, TakeOffice
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Commit, Put
from limosa.core.model.keys import LeaseId
from limosa.core.model.topology import CoordinatorLease

RENEW_SECONDS = 0.5
TRY_SECONDS = 3.0
"""So often a standby tries although, by what it knows, somebody holds the office: its watch may be
silent. The commit is guarded, so that trying in vain changes nothing."""


class Office:
    """One process's claim: it keeps the office, or waits until nobody holds it."""

    def __init__(self, name: str) -> None:
        self.lease: LeaseId | None = None
        self._name = name
        self._asked_at = -inf

    def tick(self, now: float, agreed: Agreed) -> TakeOffice | RenewOffice | None:
        if now - self._asked_at < RENEW_SECONDS:
            return None
        if self.lease is not None:
            self._asked_at = now
            return RenewOffice(self.lease)
        if agreed.coordinator is not None and now - self._asked_at < TRY_SECONDS:
            return None
        self._asked_at = now
        return TakeOffice()

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
