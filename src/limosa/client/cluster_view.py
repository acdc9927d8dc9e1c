"""What is the state of the cluster and its runs? Read from the metastore and the live nodes."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from limosa.client.access import ClusterAccess
from limosa.core.insight.watching import WatchedRun, seen_from_outside, watched
from limosa.core.messages import Status
from limosa.errors import LimosaError

if TYPE_CHECKING:
    from limosa.core.coordinator.view import ClusterView

NODES_AT_ONCE = 8


def look(connection: ClusterAccess, run: str = "") -> "ClusterView":
    """The whole cluster, and the moves of one run."""
    agreed = connection.runs(run)
    statuses = ask_all(connection, sorted(agreed.leases))
    return seen_from_outside(agreed, statuses, time.time())


def ask_all(
    connection: ClusterAccess, nodes: Sequence[str], partition: str = ""
) -> dict[str, Status]:
    """The statuses of the nodes that answered."""
    statuses: dict[str, Status] = {}
    if any(node not in connection.topology.nodes for node in nodes):
        connection.refresh()
    known = [node for node in nodes if node in connection.topology.nodes]

    def ask(node: str) -> None:
        try:
            status = connection.node_facts(node, partition)
        except LimosaError:
            return
        if status is not None:
            statuses[node] = status

    with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
        list(pool.map(ask, known))
    return statuses


def watch(connection: ClusterAccess, run: str) -> WatchedRun:
    """A run with its moves in flight, each with its stage."""
    return watched(look(connection, run), run)
