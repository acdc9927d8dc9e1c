"""Which moves of a run start now? As many as the limits allow, in the order of the plan.

A move begins by the intent of its partition, with the revision of the move's record as the trigger.
If another change of the partition came first, the move waits for its end; if that change moved the
replica elsewhere, the move fails, since it is unclear what is wanted now.
"""

from collections import Counter

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.checks import bytes_of, check, move_reads, replaced
from limosa.core.coordinator.flights import Flights
from limosa.core.coordinator.run_moves import failed, layout_reads, missing, written
from limosa.core.coordinator.run_requests import kind_of
from limosa.core.coordinator.turns import topology_request_waits
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.catalogue import RUN_MOVE
from limosa.core.model.changes import CONTROLS_KEY, Change, Commit, Put, run_key, run_move_key
from limosa.core.model.intent import Assignment, Intent, assign
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.runs import IN_FLIGHT, Run, RunMove
from limosa.errors import IllegalRequest


class MovesUnderWay:
    """How many replicas are moving to and away from each node, by the topology."""

    def __init__(self, view: ClusterView, run: Run) -> None:
        self.limits = run.limits
        self.to: Counter[NodeId] = Counter()
        self.away: Counter[NodeId] = Counter()
        for record in view.agreed.topology.partitions.values():
            if record.transition is not None:
                self.to.update(replica.node for replica in routing.new_only(record))
                self.away.update(replica.node for replica in routing.old_only(record))
        for move in view.flights():
            if move.state in IN_FLIGHT and view.transition_of(move) is None:
                self.add(move)

    def add(self, move: RunMove) -> None:
        self.to[move.target.node] += 1
        self.away[move.source] += 1

    def has_room(self, source: NodeId, target: NodeId) -> bool:
        return not self.full(source, target)

    def full(self, source: NodeId, target: NodeId) -> str:
        """Which node is at its limit, in words; empty: none."""
        if self.to[target] >= self.limits.moves_in:
            return f"{target} is at its limit of {self.limits.moves_in} moves to it at once"
        if self.away[source] >= self.limits.moves_out:
            return f"{source} is at its limit of {self.limits.moves_out} moves away from it at once"
        return ""


def stopped(view: ClusterView, run: Run) -> str:
    """Why no move of the run may begin, in words; empty: they may."""
    if view.agreed.rebalance.state == "paused":
        return "the run is paused; `resume` continues it"
    if view.agreed.rebalance.state == "cancelling":
        return "the run is being cancelled: moves in flight are reverted or completed"
    if view.agreed.controls.locked:
        return f"the cluster is locked: {view.agreed.controls.locked}"
    if run.by == "balancer" and not view.agreed.controls.balancing:
        return "balancing is off"
    request = topology_request_waits(view)
    if request is not None:
        return f"the request {request.id} ({request.kind}) is served first"
    return ""


def begin(view: ClusterView, run: Run, flights: Flights) -> Commit | None:
    """Begin as many moves as the limits allow, in one guarded commit: of two coordinators that
    count at the same time, only one succeeds."""
    if not flights.pending or stopped(view, run):
        return None
    traffic = MovesUnderWay(view, run)
    keys = [run_key(run.id), CONTROLS_KEY]
    changes: list[Change] = []
    starts = 0
    looked_at: dict[PartitionId, None] = {}
    for move in flights.to_begin(traffic.has_room):
        if move.partition in looked_at or busy(view, move):
            continue
        looked_at[move.partition] = None
        keys.append(run_move_key(move.run, move.number))
        keys += move_reads(view, move) + layout_reads(view, move)
        tried, intent = attempt(view, run, move)
        changes.append(Put(tried))
        if intent is not None:
            changes.append(Put(intent))
            starts += 1
        if tried.state != "FAILED":
            traffic.add(move)
    if not changes:
        return None
    counted = Put(replace(run, starts=run.starts + starts))
    why = f"{run.id}: {starts} moves begin" if starts else f"{run.id}: looks at its next moves"
    return written(view, keys, (counted, *changes), why)


def busy(view: ClusterView, move: RunMove) -> str:
    """The other change that the move waits for, in words; empty: none."""
    record = view.agreed.topology.partitions.get(move.partition)
    intent = view.agreed.intents.get(move.partition)
    if record is None or intent is None:
        return ""
    if record.transition is not None or intent.pending is not None:
        return f"another change of {move.partition} is under way"
    asked = [each for each in view.waiting() if each.partition == move.partition]
    return f"the request {asked[0].id} about {move.partition} comes first" if asked else ""


def attempt(view: ClusterView, run: Run, move: RunMove) -> tuple[RunMove, Intent | None]:
    """The move's record, and the intent that begins it, if it can begin now."""
    record = view.agreed.topology.partitions.get(move.partition)
    lost = missing(view, move)
    if record is None or lost:
        return failed(view, move, lost, final=True), None
    intent = view.agreed.intents[move.partition]
    trigger = view.agreed.revision_of(run_move_key(move.run, move.number))
    if trigger <= intent.change:
        return move, None  # written again, it has a revision that is newer than the last change
    tried = replace(move, attempts=move.attempts + 1, trigger=trigger, began=view.wall, detail="")
    try:
        places = replaced(move.partition, intent.stable, move.source, move.target)
    except IllegalRequest as refusal:
        return failed(
            view, tried, f"another request moved the replica: {refusal}", final=True
        ), None
    new = Assignment(
        kind_of(move),
        places,
        hold_seconds=run.hold_seconds,
        trigger=trigger,
        max_pause_seconds=run.max_pause_seconds,
    )
    try:
        check(view, record, new, places)
    except IllegalRequest as refusal:
        return failed(view, tried, str(refusal), final=False), None
    begun = replace(tried, state=RUN_MOVE.after(move.state, "start"), bytes=bytes_of(view, record))
    return begun, assign(intent, new)
