"""Is the service ready? It needs to reach the cluster, and an active coordinator."""

import threading
import time
from collections.abc import Callable

from limosa.client.access import ClusterAccess
from limosa.errors import LimosaError

KEPT_SECONDS = 1.0
"""The cluster is asked at most this often: the route needs no token."""

UNKNOWN = ("the cluster has not been checked yet", "retry")


class Readiness:
    """Why the service is not ready, as of a moment ago; callers do not wait for a check."""

    def __init__(self, cluster: ClusterAccess, log: Callable[..., None]) -> None:
        self._cluster = cluster
        self._log = log
        self._looking = threading.Lock()
        self._looked_at: float | None = None
        self._trouble: tuple[str, str] | None = UNKNOWN

    def trouble(self) -> tuple[str, str] | None:
        """The problem and the advice; None if the service is ready."""
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
            return "the cluster can't be reached", "start it; see the service's log"
        if coordinator is None:
            return "no coordinator is active", "start one: `limosa serve coordinator`"
        return None
