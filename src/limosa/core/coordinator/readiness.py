"""Should the pipeline start now? Spark takes seconds to start, and no copy should wait for it.

It starts as soon as a request or a run is known that will copy rows; or with the coordinator, if
the operator wants it to run all the time. A move begins when Spark is ready: before, nothing could
be copied, and clients' writes would go to both sides in vain.
"""

from limosa.core.coordinator.view import ClusterView
from limosa.core.model.intent import Assignment
from limosa.core.model.keys import PartitionId
from limosa.core.model.requests import (
    DrainNodes,
    PlaceReplicas,
    RebuildReplicas,
    RepairPartition,
    SetReplicas,
    StartRun,
)

COPYING = (PlaceReplicas, RebuildReplicas, RepairPartition, SetReplicas, StartRun, DrainNodes)
"""Requests that copy rows once they are granted."""


def pipeline_is_awaited(view: ClusterView, pending: Assignment, partition: PartitionId) -> bool:
    """A move waits for Spark, but not for ever: then its copy waits. Rebuilds do not wait."""
    pipeline = view.agreed.pipeline
    if pending.kind != "move" or pipeline is None or pipeline.state not in ("off", "starting"):
        return False
    since = view.memory.seen_since(partition, ("Spark is awaited", pending.trigger), view.now)
    return view.now - since < view.settings.pipeline_seconds_max


def pipeline_is_wanted(view: ClusterView) -> bool:
    if view.settings.pipeline_always or view.agreed.rebalance.state != "idle":
        return True
    return any(isinstance(each.what, COPYING) for each in view.waiting())
