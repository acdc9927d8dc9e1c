"""How does the service reach a cluster that restarts? It connects on demand, and reconnects."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from limosa.client.connection import Description
from limosa.client.operator import Operator
from limosa.core.messages import Status
from limosa.core.model.changes import Agreed, Topology
from limosa.core.model.requests import Request
from limosa.errors import OutcomeUnknown

Result = TypeVar("Result")

FRESH_SECONDS = 5.0
"""A younger connection is not replaced: a new one would not be better."""


class ReconnectingCluster:
    """A `Cluster` over one connection at a time; several threads may use it."""

    def __init__(self, connect: Callable[[], Operator]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: Operator | None = None
        self._connected_at = 0.0

    def _use(self, work: Callable[[Operator], Result]) -> Result:
        connection = self._present()
        try:
            return work(connection)
        except OutcomeUnknown:
            self._leave(connection)
            raise

    def _present(self) -> Operator:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
                self._connected_at = time.monotonic()
            return self._connection

    def _leave(self, connection: Operator) -> None:
        """Drop the connection: a new one finds nodes that restarted at other addresses."""
        with self._lock:
            is_old = time.monotonic() - self._connected_at > FRESH_SECONDS
            if self._connection is not connection or not is_old:
                return
            self._connection = None
        connection.close()

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- `ClusterAccess`

    @property
    def topology(self) -> Topology:
        return self._use(lambda connection: connection.topology)

    def refresh(self) -> Topology:
        return self._use(lambda connection: connection.refresh())

    def agreed(self) -> dict[str, Any]:
        return self._use(lambda connection: connection.agreed())

    def state(self, partition: str) -> Agreed:
        return self._use(lambda connection: connection.state(partition))

    def node_status(self, node: str) -> dict[str, Any]:
        return self._present().node_status(node)

    def runs(self, run: str = "") -> Agreed:
        return self._use(lambda connection: connection.runs(run))

    def node_facts(self, node: str, partition: str = "") -> Status | None:
        return self._present().node_facts(node, partition)

    def describe(self, name: str) -> Description:
        return self._use(lambda connection: connection.describe(name))

    def tables(self) -> list[str]:
        return self._use(lambda connection: connection.tables())

    def ask(self, request: Request) -> Request:
        return self._use(lambda connection: connection.ask(request))

    def request_state(self, id: str) -> Request | None:
        return self._use(lambda connection: connection.request_state(id))
