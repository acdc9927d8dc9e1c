"""Where does the simulated cluster keep its agreed state? In the real in-memory metastore."""

from collections.abc import Callable

from limosa.core.coordinator.office import Office
from limosa.core.model.changes import Agreed, Commit, node_key
from limosa.core.participant.lease import registration
from limosa.errors import StaleGuard
from limosa.metastore import leases
from limosa.metastore.agreed import AgreedStore
from limosa.metastore.memory import MemoryMetastore


class _WorldClock:
    """The metastore's clock: the world's own time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def now(self) -> float:
        return self._now()

    def boot_id(self) -> str:
        return "world"


class SimulatedMetastore:
    """Answers calls; the world simulates the network in between."""

    def __init__(
        self, now: Callable[[], float], schedule: Callable[..., None], lease_seconds: float
    ) -> None:
        self._store = MemoryMetastore(_WorldClock(now))
        self._agreed = AgreedStore(self._store)
        self._schedule = schedule
        self._lease_seconds = lease_seconds
        self.on_change: Callable[[], None] = lambda: None

    def read(self) -> Agreed:
        return self._agreed.read()

    def commit(self, commit: Commit) -> tuple[str, ...]:
        """The stale guards; none: it is made."""
        try:
            self._agreed.commit(commit)
        except StaleGuard as error:
            return error.keys
        self.on_change()
        return ()

    def revision_of(self, key: str) -> int:
        return leases.revision_of(self._store, key)

    def register(self, node: str, previous: int) -> tuple[int, int] | None:
        """The lease and its revision; None: another run has registered since `previous`."""
        lease = self._grant()
        row = leases.revision_of(self._store, node_key(node))
        try:
            revision = self._agreed.commit(registration(node, lease, row, previous), lease)
        except StaleGuard:
            return None
        self.on_change()
        return lease, revision

    def take_office(self, office: Office) -> tuple[int, int, Agreed] | None:
        lease = self._store.grant(self._lease_seconds)
        try:
            revision = self._agreed.commit(office.claim(lease), lease)
        except StaleGuard:
            self._store.revoke(lease)
            return None
        self._watch_end(lease)
        self.on_change()
        return lease, revision, self.read()

    def renew(self, key: str, lease: int) -> bool:
        return leases.renew(self._store, key, lease)

    def revoke(self, lease: int) -> None:
        self._store.revoke(lease)
        self.on_change()

    def _grant(self) -> int:
        lease = self._store.grant(self._lease_seconds)
        self._watch_end(lease)
        return lease

    def _watch_end(self, lease: int) -> None:
        """Schedule an operation for when the lease is due: leases end inside the next operation."""
        left = self._store.lease_left(lease)
        if left > 0:
            self._schedule(left + 0.001, self._watch_end, lease)
        else:
            self.on_change()
