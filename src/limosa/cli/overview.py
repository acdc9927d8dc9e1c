"""What is the cluster like now? Its topology, who lives, and what each live node says."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from limosa.client.connection import Connection
from limosa.core.model.changes import Topology
from limosa.core.model.topology import Partition
from limosa.errors import LimosaError

NODES_AT_ONCE = 16


class Overview(Struct, frozen=True):
    """One look at everything; nodes were asked one after another, so it is of no single moment."""

    topology: Topology
    agreed: dict[str, Any]
    statuses: dict[str, dict[str, Any]]
    """By node; who is not here was not asked, or did not answer."""
    failures: dict[str, str]
    """Why a live node did not answer."""
    seconds: float = 0.0
    """How long it took to ask them."""

    @property
    def live(self) -> list[str]:
        return [node for node in self.agreed["live"] if node in self.topology.nodes]

    @property
    def members(self) -> list[str]:
        return sorted(id for id, node in self.topology.nodes.items() if node.state != "left")

    @property
    def without_owner(self) -> list[str]:
        return sorted(id for id, one in self.topology.partitions.items() if not self.owner(one))

    @property
    def not_in_sync(self) -> list[str]:
        partitions = self.topology.partitions.items()
        return sorted(id for id, each in partitions if len(each.in_sync) < len(each.replicas))

    def owner(self, partition: Partition) -> str:
        """The node that owns it and lives; empty: nobody."""
        node = "" if partition.owner is None else partition.owner.replica.node
        return node if node in self.live else ""

    def held(self, node: str) -> list[dict[str, Any]]:
        replicas: list[dict[str, Any]] = self.statuses.get(node, {}).get("replicas", [])
        return replicas

    def rows(self, partition: Partition) -> int | None:
        """As its owner counts them, tombstones and older versions included."""
        for each in self.held(self.owner(partition)):
            if each["partition"] == partition.id and each["owner"]:
                return int(each["rows"])
        return None


def look(connection: Connection, ask_nodes: bool = True) -> Overview:
    topology = connection.refresh()
    agreed = connection.agreed()
    statuses: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    live = [node for node in agreed["live"] if node in topology.nodes] if ask_nodes else []

    def ask(node: str) -> None:
        try:
            statuses[node] = connection.node_status(node)
        except LimosaError as error:
            failures[node] = error.message

    began = time.monotonic()
    with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
        list(pool.map(ask, live))
    return Overview(topology, agreed, statuses, failures, time.monotonic() - began)
