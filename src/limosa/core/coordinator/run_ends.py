"""How does a run end? It rolls back what is cancelled, records its totals, and forgets old runs."""

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import drains
from limosa.core.coordinator.run_moves import WITH_ITS_RUN, written
from limosa.core.coordinator.run_requests import next_state
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.machine import Side
from limosa.core.model.changes import (
    Change,
    Commit,
    Put,
    Remove,
    intent_key,
    partition_key,
    run_key,
    run_move_key,
)
from limosa.core.model.intent import Intent, cancelled, with_cancel
from limosa.core.model.runs import Outcome, Rebalance, Run, RunMove, Totals
from limosa.core.model.topology import Partition


def roll_back(view: ClusterView, move: RunMove) -> Commit | None:
    """Moves that have not switched go back, and so do held ones; the others complete."""
    record = view.agreed.topology.partitions.get(move.partition)
    if record is None or not view.is_under_way(move):
        return None
    change = taken_back(record, view.agreed.intents[move.partition], move)
    if change is None:
        return None
    keys = [partition_key(move.partition), intent_key(move.partition)]
    return written(view, keys, (change,), f"{move.partition}: {move.run}: is rolled back")


def taken_back(record: Partition, intent: Intent, move: RunMove) -> Change | None:
    stage, change = routing.stage_of(record), record.transition
    if stage is None or change is None:
        return Put(cancelled(intent))
    if stage.reads is Side.OLD:
        can = stage.given_up and intent.cancel is None
        return Put(with_cancel(intent, move.trigger)) if can else None
    if routing.is_held(change) and stage.given_up and not change.given_up_by:
        back = replace(change, giving_up=WITH_ITS_RUN, given_up_by="run")
        return Put(replace(record, transition=back))
    return None


def end(view: ClusterView, run: Run) -> Commit:
    moves = view.agreed.moves.get(run.id, {}).values()
    totals = Totals(
        sum(move.state == "COMMITTED" for move in moves),
        sum(move.state == "FAILED" for move in moves),
        sum(move.state == "PENDING" for move in moves),
        sum(move.rows for move in moves if move.state == "COMMITTED"),
        sum(move.bytes for move in moves if move.state == "COMMITTED"),
        max((move.pause_seconds for move in moves), default=0.0),
    )
    outcome: Outcome = "done" if totals.committed == run.moves else "failed-in-part"
    if view.agreed.rebalance.state == "cancelling":
        outcome = "cancelled"
    nodes, outcome, words = drains.end(view, run, outcome)
    ended = replace(run, ended=view.wall, outcome=outcome, words=words, totals=totals)
    keys = [run_key(run.id), *drains.end_reads(view, run)]
    keys += [run_move_key(run.id, move.number) for move in moves]
    idle = Rebalance(next_state(view, "end"))
    return written(view, keys, (Put(idle), Put(ended), *nodes), f"{run.id}: {outcome}")


def forget_old(view: ClusterView) -> Commit | None:
    """Delete old runs and their moves, beyond the number that is kept."""
    ended = [run for run in view.agreed.runs.values() if run.outcome]
    ended.sort(key=lambda run: view.agreed.revision_of(run_key(run.id)), reverse=True)
    keys: list[str] = []
    kept = 0
    for place, run in enumerate(ended):
        numbers = view.agreed.moves.get(run.id, {})
        kept += len(numbers)
        too_much = place and kept > view.settings.run_moves_kept
        if place >= view.settings.runs_kept or too_much:
            keys += [run_key(run.id), *(run_move_key(run.id, number) for number in numbers)]
    if not keys:
        return None
    removed = tuple(Remove(key) for key in keys)
    return written(view, keys, removed, f"{len(removed)} records of old runs are forgotten")
