"""How does a person's program see the cluster and its runs? By what is agreed, and nodes say."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from limosa.core.coordinator.progress import Progress, progress
from limosa.core.coordinator.view import View
from limosa.core.coordinator.watching import Watched, watched
from limosa.core.messages import Status
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Topology
from limosa.errors import LimosaError

NODES_AT_ONCE = 8


class Seen(Protocol):
    """What is needed of a connection."""

    @property
    def topology(self) -> Topology: ...

    def refresh(self) -> Topology: ...

    def runs(self, run: str = "") -> Agreed: ...

    def node_facts(self, node: str, partition: str = "") -> Status | None: ...


def look(connection: Seen, run: str = "") -> View:
    """The whole cluster, and the moves of one run."""
    agreed = connection.runs(run)
    statuses = ask_all(connection, sorted(agreed.leases))
    now = time.time()
    return View(agreed, statuses, agreed.revision_of(COORDINATOR_KEY), now, now)


def ask_all(connection: Seen, nodes: Sequence[str], partition: str = "") -> dict[str, Status]:
    """Who is not in the answer did not answer."""
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


def progress_of(connection: Seen, run: str = "") -> Progress | None:
    """Of the named run, or of the one that is under way; None: there is none."""
    view = look(connection, run)
    name = run or view.agreed.rebalance.run
    return progress(view, name) if name else None


def watch(connection: Seen, run: str) -> Watched:
    """A run with its moves in flight, each with its stage."""
    return watched(look(connection, run), run)
