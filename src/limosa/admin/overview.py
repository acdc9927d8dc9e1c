"""What is the state of the cluster? Its topology, its live nodes, and each live node's status."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct, convert

from limosa.client.access import ClusterAccess
from limosa.core.model.changes import Topology
from limosa.core.model.topology import Partition
from limosa.core.participant.vitals import NodeVitals
from limosa.errors import LimosaError, UnknownTable

NODES_AT_ONCE = 16


class DamagedReplica(Struct, frozen=True):
    """A replica with a file that does not match its checksum, until it is rebuilt."""

    node: str
    partition: str
    why: str
    only: bool
    """No other replica is in sync, so that this one can't be rebuilt."""


class Overview(Struct, frozen=True):
    """The state of the whole cluster; not a snapshot, as nodes are asked at different times."""

    topology: Topology
    agreed: dict[str, Any]
    statuses: dict[str, dict[str, Any]]
    """By node; without nodes that were not asked or did not answer."""
    failures: dict[str, str]
    """Why a live node did not answer."""
    seconds: float = 0.0
    """How long it took to ask the nodes."""

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

    @property
    def damaged(self) -> list["DamagedReplica"]:
        """Replicas with a damaged file, on the nodes that were asked."""
        return [
            DamagedReplica(node, each["partition"], each["damaged"], self._is_only(node, each))
            for node in sorted(self.statuses)
            for each in self.held(node)
            if each.get("damaged")
        ]

    @property
    def vitals(self) -> dict[str, NodeVitals]:
        """By node; without nodes of earlier versions, which do not report it."""
        told = {node: each.get("vitals") for node, each in sorted(self.statuses.items())}
        return {node: convert(seen, NodeVitals) for node, seen in told.items() if seen is not None}

    def overloaded(self, seconds_max: float) -> dict[str, float]:
        """Nodes that were lately further behind with their own work, and how far."""
        lags = {node: seen.lag_seconds for node, seen in self.vitals.items()}
        return {node: lag for node, lag in lags.items() if lag > seconds_max}

    def _is_only(self, node: str, replica: dict[str, Any]) -> bool:
        """Whether no other replica is in sync."""
        record = self.topology.partitions.get(replica["partition"])
        in_sync = () if record is None else record.in_sync
        return [(r.node, r.incarnation) for r in in_sync] == [(node, replica["incarnation"])]

    def owner(self, partition: Partition) -> str:
        """The owner if it is live, else empty."""
        node = "" if partition.owner is None else partition.owner.replica.node
        return node if node in self.live else ""

    def held(self, node: str) -> list[dict[str, Any]]:
        replicas: list[dict[str, Any]] = self.statuses.get(node, {}).get("replicas", [])
        return replicas

    def rows(self, partition: Partition) -> int | None:
        """As the owner counts them, including tombstones and older versions."""
        for each in self.held(self.owner(partition)):
            if each["partition"] == partition.id and each["owner"]:
                return int(each["rows"])
        return None


def look(connection: ClusterAccess, ask_nodes: bool = True) -> Overview:
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


# --- descriptions


class Members(Struct, frozen=True):
    members: list[str]
    live: list[str]


class PartitionsInBrief(Struct, frozen=True):
    total: int
    without_owner: list[str]
    not_in_sync: list[str]
    changing: list[str]


class ClusterStatus(Struct, frozen=True):
    """A summary of the cluster."""

    cluster: str
    id: str
    coordinator: str | None
    """The active coordinator."""
    locked: str
    """Why the cluster is locked; empty: it is not locked."""
    nodes: Members
    tables: list[str]
    partitions: PartitionsInBrief
    generation: int
    damaged: list[DamagedReplica] = []
    """Replicas with a damaged file; they are rebuilt, except those that are the only ones."""
    spark: str = ""
    """Whether Spark runs, and at which priority; empty: it was not needed yet."""


class NodeFacts(Struct, frozen=True):
    """One node, and what it holds."""

    name: str
    state: str
    live: bool
    address: str
    rack: str
    datacenter: str
    replicas: int
    owned: int
    rows: int | None
    """Includes older versions that are not merged yet; null: the node did not answer."""
    bytes: int | None
    free: int | None
    """Free bytes on its fullest disk."""
    failure: str | None
    """Why the node did not answer."""


class PartitionFacts(Struct, frozen=True):
    """One partition: its owner, its replicas, and its current change."""

    partition: str
    zone: str
    start: int
    """Its first token."""
    end: int
    """The token after its last token."""
    owner: str | None
    replicas: list[str]
    in_sync: list[str]
    epoch: int
    rows: int | None
    stage: str | None


def status_of(overview: Overview) -> ClusterStatus:
    topology = overview.topology
    cluster = topology.cluster
    changing = [id for id, each in topology.partitions.items() if each.transition is not None]
    return ClusterStatus(
        "" if cluster is None else cluster.name,
        "" if cluster is None else cluster.id,
        overview.agreed["coordinator"],
        overview.agreed.get("locked", ""),
        Members(overview.members, overview.live),
        sorted(topology.tables),
        PartitionsInBrief(
            len(topology.partitions),
            overview.without_owner,
            overview.not_in_sync,
            sorted(changing),
        ),
        topology.generation,
        overview.damaged,
        overview.agreed.get("pipeline", ""),
    )


def node_facts(overview: Overview, name: str) -> NodeFacts:
    node = overview.topology.nodes[name]
    partitions = overview.topology.partitions.values()
    held = overview.held(name)
    answered = name in overview.statuses
    free = overview.statuses[name]["free_bytes"].values() if answered else ()
    return NodeFacts(
        name,
        node.state,
        name in overview.live,
        node.address,
        node.rack,
        node.datacenter,
        sum(any(r.node == name for r in each.replicas) for each in partitions),
        sum(overview.owner(each) == name for each in partitions),
        sum(each["rows"] for each in held) if answered else None,
        sum(each["bytes"] for each in held) if answered else None,
        min(free, default=None),
        overview.failures.get(name),
    )


def partition_facts(overview: Overview, partition: Partition) -> PartitionFacts:
    changing = partition.transition
    return PartitionFacts(
        partition.id,
        partition.zone,
        partition.range.start,
        partition.range.end,
        overview.owner(partition) or None,
        sorted(replica.node for replica in partition.replicas),
        sorted(replica.node for replica in partition.in_sync),
        partition.epoch,
        overview.rows(partition),
        None if changing is None else f"{changing.kind}: {changing.stage}",
    )


def partitions_of(overview: Overview, table: str | None) -> list[Partition]:
    """The partitions of one or all tables, ordered by zone and token."""
    topology = overview.topology
    if table is not None and table not in topology.tables:
        raise UnknownTable(f"there is no table {table}", "see `limosa tables`")
    zone = None if table is None else topology.tables[table].zone
    wanted = [each for each in topology.partitions.values() if zone in (None, each.zone)]
    return sorted(wanted, key=lambda each: (each.zone, each.range.start))
