"""What does a run do next? It begins moves, follows them, tries again, rolls back, and ends.

All of it is computed from the agreed state, so a successor goes on where the last coordinator was.
A move begins as any other does: by the intent of its partition, with the revision of the move's own
record as the trigger. From then on the partition's transition goes its way, and the move's record
says how far it is. If another change of the partition came first, the move waits for its end; if
the replica is elsewhere by then, the move has failed, since nobody may guess what is wanted now.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import drains
from limosa.core.coordinator.checks import bytes_of, check, place_reads, replaced
from limosa.core.coordinator.flights import Flights
from limosa.core.coordinator.reports import CANCELLED, REVERSED
from limosa.core.coordinator.run_requests import kind_of, next_state
from limosa.core.coordinator.turns import topology_request_waits
from limosa.core.coordinator.view import View
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    READ_NEW,
    RUN_MOVE,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.machines.machine import Side
from limosa.core.model.changes import (
    CONTROLS_KEY,
    COORDINATOR_KEY,
    REBALANCE_KEY,
    Change,
    Commit,
    Put,
    Remove,
    intent_key,
    partition_key,
    report_key,
    run_key,
    run_move_key,
)
from limosa.core.model.intent import Assignment, Intent, assign, cancelled, with_cancel
from limosa.core.model.keys import NodeId
from limosa.core.model.reports import Report
from limosa.core.model.runs import ATTEMPTS_MAX, Outcome, Rebalance, Run, RunMove, Totals
from limosa.core.model.topology import Partition
from limosa.errors import IllegalRequest

STATE_IN: dict[str, int] = {
    ALLOW: 0,
    WRITE_BOTH: 0,
    STREAMING: 1,
    READ_NEW: 1,
    USE_NEW: 2,
    CLEANUP: 2,
}
"""How far a move is while its transition goes forward."""
FORWARD = ("copy", "commit")
"""What happens to it on its way."""
FAR = {"DUAL_WRITE": 0, "COPYING": 1, "COMMITTED": 2}
GONE = "the partition is gone"
WITH_ITS_RUN = "its run was cancelled"


def advance(view: View, flights: Flights) -> list[Commit]:
    """What is to be written down now; nothing, if the run waits or there is none."""
    run = view.agreed.runs.get(view.agreed.rebalance.run)
    if run is None:
        return []
    flights.follow(view.agreed)
    cancelling = view.agreed.rebalance.state == "cancelling"
    commits: list[Commit | None] = [follow(view, flights, m) for m in list(flights.open.values())]
    if cancelling:
        commits += [roll_back(view, move) for move in flights.open.values()]
    else:
        commits += [try_again(view, flights, move) for move in flights.failed.values()]
        commits.append(begin(view, run, flights))
    found = [commit for commit in commits if commit is not None]
    waits = flights.open or (not cancelling and (flights.pending or flights.failed))
    return found if found or waits else [end(view, run)]


def written(view: View, keys: Iterable[str], changes: tuple[Change, ...], why: str) -> Commit:
    """A commit for the run under way, guarded by all that it was computed from."""
    guards = {key: view.agreed.revision_of(key) for key in (REBALANCE_KEY, *keys)}
    guards[COORDINATOR_KEY] = view.coordinator
    return Commit(guards, changes, why)


# --- a move on its way


def follow(view: View, flights: Flights, move: RunMove) -> Commit | None:
    """Write down how far it is, one step at a time."""
    now = followed(view, move)
    if now is move:
        if not view.is_under_way(move) and move.state == "COMMITTED":
            flights.close(move)
        return None
    keys = [
        run_move_key(move.run, move.number),
        partition_key(move.partition),
        intent_key(move.partition),
        report_key(move.partition, f"t{move.trigger}"),
    ]
    return written(view, keys, (Put(now),), f"{move.partition}: {move.run}: {now.state}")


def followed(view: View, move: RunMove) -> RunMove:
    """The move as it should be written down; the same one if there is nothing new."""
    record = view.agreed.topology.partitions.get(move.partition)
    if move.state == "COMMITTED":
        return move
    if record is None:
        return failed(view, move, GONE, final=True)
    report = view.agreed.reports.get(report_key(move.partition, f"t{move.trigger}"))
    if view.is_under_way(move):
        stage = routing.stage_of(record)
        far = 0 if stage is None else STATE_IN.get(stage.name, 0)
    elif has_landed(view, move, report):
        far = FAR["COMMITTED"]
    else:
        return given_up(view, move, report)
    if far <= FAR[move.state]:
        return move
    return forward(view, record, move, report)


def has_landed(view: View, move: RunMove, report: Report | None) -> bool:
    """Did its attempt end well? Its report says so; without one, the replicas do."""
    if report is not None:
        return report.outcome == "done"
    stable = view.agreed.intents[move.partition].stable
    left = all(place.node != move.source or place == move.target for place in stable)
    return move.target in stable and left


def forward(view: View, record: Partition, move: RunMove, report: Report | None) -> RunMove:
    state = RUN_MOVE.after(move.state, FORWARD[FAR[move.state]])
    if state != "COMMITTED":
        return replace(move, state=state)
    owner = view.owner_status(record)
    change = record.transition
    paused = 0.0 if change is None else change.pause_seconds
    return replace(
        move,
        state=state,
        rows=0 if owner is None else owner.rows,
        bytes=move.bytes if owner is None else owner.bytes,
        ended=view.wall,
        pause_seconds=paused if report is None else report.pause_seconds,
    )


def given_up(view: View, move: RunMove, report: Report | None) -> RunMove:
    """Tried again, unless a person did not want it any more."""
    why = "it was given up" if report is None else report.why
    if view.agreed.rebalance.state == "cancelling":
        return failed(view, move, WITH_ITS_RUN, final=True)
    by_hand = why in (CANCELLED, REVERSED)
    return failed(view, move, f"{why} by hand" if why == CANCELLED else why, final=by_hand)


def failed(view: View, move: RunMove, why: str, final: bool) -> RunMove:
    event = "be refused" if move.state == "PENDING" else "fail"
    return replace(
        move,
        state=RUN_MOVE.after(move.state, event),
        final=final or move.attempts >= ATTEMPTS_MAX,
        ended=view.wall,
        detail=why,
    )


def try_again(view: View, flights: Flights, move: RunMove) -> Commit | None:
    """After a while: what was in the way may be gone."""
    since = flights.failed_since(move, view.now)
    if view.now - since < view.settings.retry_seconds:
        return None
    state = RUN_MOVE.after(move.state, "try again")
    key = run_move_key(move.run, move.number)
    why = f"{move.partition}: {move.run}: to be tried again"
    return written(view, [key], (Put(replace(move, state=state, ended=0.0)),), why)


# --- begin


class Traffic:
    """How many replicas are on their way to and away from each node, as the topology says."""

    def __init__(self, view: View, run: Run) -> None:
        self.limits = run.limits
        self.to: Counter[NodeId] = Counter()
        self.away: Counter[NodeId] = Counter()
        for record in view.agreed.topology.partitions.values():
            if record.transition is not None:
                self.to.update(replica.node for replica in routing.new_only(record))
                self.away.update(replica.node for replica in routing.old_only(record))
        for move in view.flights():
            record_ = view.agreed.topology.partitions.get(move.partition)
            begun = record_ is not None and record_.transition is not None
            if view.is_under_way(move) and not begun:
                self.add(move)

    def add(self, move: RunMove) -> None:
        self.to[move.target.node] += 1
        self.away[move.source] += 1

    def has_room(self, source: NodeId, target: NodeId) -> bool:
        return not self.full(source, target)

    def full(self, source: NodeId, target: NodeId) -> str:
        """Which node is at its limit, in words."""
        if self.to[target] >= self.limits.moves_in:
            return f"{target} is at its limit of {self.limits.moves_in} moves to it at once"
        if self.away[source] >= self.limits.moves_out:
            return f"{source} is at its limit of {self.limits.moves_out} moves away from it at once"
        return ""


def stopped(view: View, run: Run) -> str:
    """Why no move of the run may begin, in words; nothing: they may."""
    if view.agreed.rebalance.state == "paused":
        return "it is paused; `resume` goes on"
    if view.agreed.rebalance.state == "cancelling":
        return "it is being cancelled: what is in flight goes back or completes"
    if view.agreed.controls.locked:
        return f"the cluster is locked: {view.agreed.controls.locked}"
    if run.by == "balancer" and not view.agreed.controls.balancing:
        return "balancing is off"
    request = topology_request_waits(view)
    if request is not None:
        return f"the request {request.id} ({request.kind}) is served first"
    return ""


def begin(view: View, run: Run, flights: Flights) -> Commit | None:
    """As many as the limits allow, in one commit: of two who count at once only one begins."""
    if not flights.pending or stopped(view, run):
        return None
    traffic = Traffic(view, run)
    keys = [run_key(run.id), CONTROLS_KEY]
    changes: list[Change] = []
    starts = 0
    for move in flights.to_begin(traffic.has_room):
        if busy(view, move):
            continue
        keys += move_reads(view, move)
        begun = attempt(view, run, move)
        changes += begun
        if len(begun) > 1:
            traffic.add(move)
            starts += 1
    if not changes:
        return None
    counted = Put(replace(run, starts=run.starts + starts))
    why = f"{run.id}: {starts} moves begin" if starts else f"{run.id}: looks at its next moves"
    return written(view, keys, (counted, *changes), why)


def busy(view: View, move: RunMove) -> str:
    """What its partition is busy with, in words."""
    record = view.agreed.topology.partitions.get(move.partition)
    intent = view.agreed.intents.get(move.partition)
    if record is None or intent is None:
        return ""
    if record.transition is not None or intent.pending is not None:
        return f"another change of {move.partition} is under way"
    asked = [each for each in view.waiting() if each.partition == move.partition]
    return f"the request {asked[0].id} about {move.partition} comes first" if asked else ""


def move_reads(view: View, move: RunMove) -> list[str]:
    intent = view.agreed.intents.get(move.partition)
    stable = () if intent is None else intent.stable
    places = place_reads(view, move.partition, (*stable, move.target), with_zone=True)
    return [run_move_key(move.run, move.number), *places]


def attempt(view: View, run: Run, move: RunMove) -> tuple[Change, ...]:
    """Its intent and its record; or its record alone, if it can't begin, or can't yet."""
    record = view.agreed.topology.partitions.get(move.partition)
    if record is None:
        return (Put(failed(view, move, GONE, final=True)),)
    intent = view.agreed.intents[move.partition]
    trigger = view.agreed.revision_of(run_move_key(move.run, move.number))
    if trigger <= intent.change:
        return (Put(move),)  # written again, it has a revision that is newer than the last change
    tried = replace(move, attempts=move.attempts + 1, trigger=trigger, began=view.wall, detail="")
    try:
        places = replaced(move.partition, intent.stable, move.source, move.target)
    except IllegalRequest as refusal:
        return (Put(failed(view, tried, f"another request moved it: {refusal}", final=True)),)
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
        return (Put(failed(view, tried, str(refusal), final=False)),)
    begun = replace(tried, state=RUN_MOVE.after(move.state, "start"), bytes=bytes_of(view, record))
    return Put(assign(intent, new)), Put(begun)


# --- back, and the end


def roll_back(view: View, move: RunMove) -> Commit | None:
    """What has not switched goes back, and what is held, too; the rest completes."""
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
    held = stage.name == READ_NEW and change.hold_seconds and not change.released
    if held and stage.given_up and not change.giving_up:
        return Put(replace(record, transition=replace(change, giving_up=WITH_ITS_RUN)))
    return None


def end(view: View, run: Run) -> Commit:
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


def forget_old(view: View) -> Commit | None:
    """The last few ended runs are kept, with their moves."""
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
