"""What does the planner need to know, and what would its plan cost? Agreed state and statuses.

The coordinator, commands and the admin service make the same plan from the same agreed state and
statuses, so the plan that a person saw is the plan that is started.
"""

from collections.abc import Sequence
from heapq import nlargest

from msgspec.structs import replace

from limosa.core.coordinator.view import ClusterView
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.runs import Estimate, Limits, PlannedMove, Run, RunPlan
from limosa.core.model.topology import Partition
from limosa.core.planning.load import Load
from limosa.core.planning.plan import Plan
from limosa.core.planning.situation import Rules, Situation

BYTES_PER_SECOND = 64 << 20
"""Expected rate of all copies together, if nothing is known."""
QUIET = 1000.0
"""Rows a second in the whole cluster; lower rates say nothing about the load of nodes."""
MOVE_SECONDS = 0.3
"""Time of a move besides the copy of its bytes."""
PAUSE_SECONDS = 0.05
"""Expected pause of a hand-over, until one was measured."""


def situation(view: ClusterView, draining: Sequence[NodeId] = ()) -> Situation:
    """The cluster as it is known now; nodes that are being drained already are included."""
    topology = view.agreed.topology
    leaving = [node.id for node in topology.nodes.values() if node.state == "decommissioning"]
    return Situation(
        view.with_working_volumes(),
        topology.zones,
        topology.partitions,
        frozenset(view.agreed.leases),
        loads(view),
        {node: status.free_bytes for node, status in view.statuses.items()},
        tuple(dict.fromkeys((*leaving, *draining))),
        fixed(view),
    )


def rules(view: ClusterView) -> Rules:
    return Rules(free_bytes_kept=view.settings.free_bytes_kept)


def loads(view: ClusterView) -> dict[PartitionId, Load]:
    records = view.agreed.topology.partitions
    found = {
        name: status
        for name, record in records.items()
        if (status := view.owner_status(record)) is not None
    }
    writes, reads = (sum(each.rates[place] for each in found.values()) for place in (0, 1))
    return {
        name: Load(
            size_of(view, records[name]),
            each.rates[0] if writes >= QUIET else 0.0,
            each.rates[1] if reads >= QUIET else 0.0,
        )
        for name, each in found.items()
    }


def size_of(view: ClusterView, record: Partition) -> int:
    """The size of the largest replica; a new replica may not have been measured yet."""
    known = (view.of(record, replica) for replica in record.replicas)
    return max((each.bytes for each in known if each is not None), default=0)


def fixed(view: ClusterView) -> dict[PartitionId, str]:
    """Partitions with a pending change, which the planner leaves alone."""
    return {
        name: "another change is planned already"
        for name, intent in view.agreed.intents.items()
        if intent.pending is not None
    }


# --- what it costs


def as_run(view: ClusterView, plan: Plan, like: RunPlan) -> RunPlan:
    """The plan as a run that can be started, with its limits and estimated cost."""
    moves = tuple(PlannedMove(move.partition, move.source, move.target) for move in plan.moves)
    return replace(like, moves=moves, estimate=estimate(view, plan, like.limits))


def estimate(view: ClusterView, plan: Plan, limits: Limits) -> Estimate:
    """An estimate from the totals of the last run, or from usual figures."""
    past = [run for run in view.agreed.runs.values() if run.ended and run.totals.bytes]
    last = max(past, key=lambda run: run.ended, default=None)
    rate = rate_of(last) or float(BYTES_PER_SECOND)
    if limits.bytes_per_second:
        rate = min(rate, float(limits.bytes_per_second))
    at_once = abreast(plan, limits)
    sizes = [move.bytes for move in plan.moves if not move.stays]
    pauses = [run.totals.pause_seconds for run in past if run.totals.pause_seconds]
    return Estimate(
        plan.bytes,
        sum(sizes) / rate + MOVE_SECONDS * len(plan.moves) / max(1, at_once),
        sum(nlargest(at_once, sizes)),
        max(pauses, default=PAUSE_SECONDS) if plan.moves else 0.0,
    )


def rate_of(run: Run | None) -> float:
    if run is None or run.ended <= run.started:
        return 0.0
    return run.totals.bytes / (run.ended - run.started)


def abreast(plan: Plan, limits: Limits) -> int:
    """How many moves can be in flight at once."""
    coming = len({move.target.node for move in plan.moves}) * limits.moves_in
    going = len({move.source for move in plan.moves}) * limits.moves_out
    return min(coming, going, len(plan.moves))
