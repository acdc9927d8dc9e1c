"""Is the service ready? It reaches the cluster, and a coordinator is in office."""

import threading
import time
from collections.abc import Callable

from limosa.admin.cluster import ClusterAccess
from limosa.errors import LimosaError

KEPT_SECONDS = 1.0
"""Strangers may ask: the cluster is not asked more often for them."""

UNKNOWN = ("it is not known yet whether the cluster can be reached", "ask again")


class Readiness:
    """What is in the way, as it was found a moment ago; nobody waits while another one looks."""

    def __init__(self, cluster: ClusterAccess, log: Callable[..., None]) -> None:
        self._cluster = cluster
        self._log = log
        self._looking = threading.Lock()
        self._looked_at: float | None = None
        self._trouble: tuple[str, str] | None = UNKNOWN

    def trouble(self) -> tuple[str, str] | None:
        """What is wrong, and what to do; None: nothing."""
        if self._looking.acquire(blocking=False):
            try:
                now = time.monotonic()
                if self._looked_at is None or now - self._looked_at >= KEPT_SECONDS:
                    self._trouble = self._look()
                    self._looked_at = time.monotonic()
            finally:
                self._looking.release()
        return self._trouble

    def _look(self) -> tuple[str, str] | None:
        try:
            coordinator = self._cluster.agreed()["coordinator"]
        except LimosaError as error:
            self._log("not ready", error=str(error))
            return "the cluster can't be reached", "start it; the service's log says more"
        if coordinator is None:
            return "no coordinator is in office", "start one: `limosa serve coordinator`"
        return None
