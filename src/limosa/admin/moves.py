"""What happens to one partition? Its explanation, how its change ended, what may still be done.

All of it is derived from the agreed state and from the nodes' statuses, without a coordinator.
"""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from limosa.client.access import ClusterAccess
from limosa.client.cluster_view import ask_all
from limosa.core.coordinator.view import ClusterView
from limosa.core.insight.explaining import Explanation, explain
from limosa.core.messages import Status
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Topology, report_key
from limosa.core.model.keys import transition_id
from limosa.core.model.reports import Report
from limosa.core.model.topology import Partition, Replica
from limosa.errors import IllegalRequest

LOOKS_MAX = 3

# --- one look


def look_at(connection: ClusterAccess, partition: str) -> Explanation:
    view = gather(connection, partition)
    record = record_of(view.agreed, partition)
    change = record.transition
    return explain(view, record, view.now if change is None else change.since)


def record_of(agreed: Agreed, partition: str) -> Partition:
    record = agreed.topology.partitions.get(partition)
    if record is None:
        raise IllegalRequest(
            f"there is no partition {partition}", "list them with `limosa partitions`"
        )
    return record


def gather(connection: ClusterAccess, partition: str) -> ClusterView:
    """The agreed state and the statuses of live nodes; retries if the record changed meanwhile."""
    agreed = connection.state(partition)
    statuses: dict[str, Status] = {}
    for _ in range(LOOKS_MAX):
        statuses = ask_all(connection, sorted(agreed.leases), partition)
        before, agreed = agreed, connection.state(partition)
        if agreed.topology.revision_of(partition) == before.topology.revision_of(partition):
            break
    now = time.time()
    return ClusterView(agreed, statuses, agreed.revision_of(COORDINATOR_KEY), now, now)


# --- how it ended


class Wanted(Struct, frozen=True):
    """The transition that is followed, as the answer to its request names it."""

    transition: str
    source: str = ""
    to: str = ""
    """Of a move: where its replica was, and where it goes."""

    def is_goal(self, nodes: Iterable[str]) -> bool:
        held = set(nodes)
        return self.to in held and self.source not in held


class EndedChange(Struct, frozen=True):
    """How a change ended."""

    state: Literal["done", "reverted", "replaced"]
    """`done`, `reverted`, or `replaced`: by a later request, before it began."""
    why: str = ""
    report: Report | None = None


def ending(agreed: Agreed, record: Partition, wanted: Wanted) -> EndedChange | None:
    """None if the change continues, or has not started."""
    if record.transition is not None and record.transition.id == wanted.transition:
        return None
    intent = agreed.intents.get(record.id)
    for each in () if intent is None else (intent.pending, intent.planned):
        if each is not None and transition_id(each.trigger) == wanted.transition:
            return None
    report = agreed.reports.get(report_key(record.id, wanted.transition))
    if report is not None:
        return EndedChange(report.outcome, report.why, report)
    if wanted.is_goal(each.node for each in record.replicas):
        return EndedChange("done")
    return EndedChange(
        "replaced", "another request took its place, or cancelled it, before it began"
    )


# --- what a move leaves open


def leaving_replica(record: Partition, source: str | None) -> tuple[Replica, str]:
    """The replica that moves, and why it was chosen."""
    nodes = ", ".join(sorted(each.node for each in record.replicas))
    if source is not None:
        for replica in record.replicas:
            if replica.node == source:
                return replica, "as named"
        raise IllegalRequest(f"{source} holds no replica of {record.id}", f"it is on {nodes}")
    if len(record.replicas) == 1:
        return record.replicas[0], "its only replica"
    owner = None if record.owner is None else record.owner.replica
    if owner in record.replicas and owner is not None:
        return owner, "its owner"
    if record.transition is not None:
        raise IllegalRequest(
            f"{record.id} is changing already ({record.transition.stage})",
            f"see `limosa explain {record.id}`",
        )
    raise IllegalRequest(
        f"{record.id} has no owner at the moment", f"name a replica with --from: it is on {nodes}"
    )


def volume_on(topology: Topology, node: str, volume: str | None) -> str:
    """The given volume, or the first one with the fewest replicas."""
    record = topology.nodes.get(node)
    if volume is not None or record is None:
        return volume or ""
    held: Counter[str] = Counter(
        each.volume
        for partition in topology.partitions.values()
        for each in partition.replicas
        if each.node == node
    )
    return min(record.volumes, key=lambda name: held[name], default="")
