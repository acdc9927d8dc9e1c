"""Should the pipeline start now? Spark takes seconds to start, and no copy should wait for it.

It starts as soon as a request or a run is known that will copy rows, while their first stages are
still under way; or with the coordinator, if the operator wants it to run all the time.
"""

from limosa.core.coordinator.view import ClusterView
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


def pipeline_is_wanted(view: ClusterView) -> bool:
    if view.settings.pipeline_always or view.agreed.rebalance.state != "idle":
        return True
    return any(isinstance(each.what, COPYING) for each in view.waiting())
