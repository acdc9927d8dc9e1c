"""Must a request wait? Some wait for the operator's lock, or for moves that are in flight.

While a request that changes the topology waits, a run begins no more moves, and holds end. So the
moves in flight end, the request is served, and the run continues: neither starves the other.
"""

from limosa.core.coordinator.view import ClusterView
from limosa.core.model.requests import (
    CreateTable,
    DrainNodes,
    DropTable,
    FollowNodes,
    JoinCluster,
    MovePartition,
    MoveToVolume,
    RemoveNode,
    Request,
    SetReplicas,
    StartRun,
    UndrainNodes,
)

TOPOLOGY = (SetReplicas, FollowNodes, DropTable, JoinCluster, RemoveNode, UndrainNodes)
"""These wait until the moves in flight have ended."""
DEFERRED_BY_THE_LOCK = (
    *TOPOLOGY,
    CreateTable,
    MovePartition,
    MoveToVolume,
    StartRun,
    DrainNodes,
)
"""Rebuilds, repairs, cancellations and `unlock` are served while the cluster is locked."""


def deferred(view: ClusterView, request: Request) -> str:
    """Why the request is not answered yet, in words; empty: it can be answered."""
    locked = view.agreed.controls.locked
    if locked and isinstance(request.what, DEFERRED_BY_THE_LOCK):
        return f"the cluster is locked: {locked}"
    if isinstance(request.what, TOPOLOGY):
        for move in view.flights():
            if view.is_under_way(move) and not may_wait_for_ever(view):
                return f"the move of {move.partition} in run {move.run} must end first"
    return ""


def may_wait_for_ever(view: ClusterView) -> bool:
    """A move with a limited pause may wait for ever for a quiet moment, so requests do not wait for
    it."""
    run = view.agreed.runs.get(view.agreed.rebalance.run)
    return run is not None and run.max_pause_seconds > 0


def topology_request_waits(view: ClusterView) -> Request | None:
    """A waiting request that the run makes way for."""
    if view.agreed.rebalance.state == "idle" or view.agreed.controls.locked:
        return None
    return next((each for each in view.waiting() if isinstance(each.what, TOPOLOGY)), None)
