"""May a run start, pause, resume or be cancelled? Each answer is one commit.

A plan is accepted as a whole. It may move two replicas of one partition: the second move begins
when the first has ended.
"""

from typing import cast

from msgspec.structs import replace

from limosa.core.coordinator import drains
from limosa.core.coordinator.answers import RequestAnswer
from limosa.core.coordinator.checks import (
    bytes_of,
    check,
    move_reads,
    no_room_for_all,
    replaced,
)
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.catalogue import REBALANCE
from limosa.core.model.changes import REBALANCE_KEY, Put
from limosa.core.model.intent import Assignment, Placement
from limosa.core.model.keys import NodeId, PartitionId, Revision
from limosa.core.model.requests import (
    CancelRun,
    DrainNodes,
    LedToRun,
    PauseRun,
    ResumeRun,
    StartRun,
    Wish,
)
from limosa.core.model.runs import (
    PlannedMove,
    Rebalance,
    RebalanceState,
    Run,
    RunMove,
    RunPlan,
    run_name,
)
from limosa.core.model.topology import Partition, TransitionKind
from limosa.errors import IllegalRequest

# --- begin


def start(view: ClusterView, wish: StartRun | DrainNodes, trigger: Revision) -> RequestAnswer:
    """One commit stores the run and all of its moves; a later commit begins the first moves."""
    plan = wish.plan
    if plan is None:
        raise IllegalRequest("the run has no plan", "say which replicas go where")
    check_idle(view)
    check_words(view, plan, isinstance(wish, DrainNodes))
    check_moves(view, plan)
    leaving = drains.begin(view, plan) if plan.drains else ()
    name = run_name(trigger)
    run = Run(
        name,
        plan.action,
        len(plan.moves),
        plan.by,
        plan.why,
        plan.limits,
        plan.hold_seconds,
        plan.max_pause_seconds,
        plan.estimate,
        plan.drains,
        plan.decommission,
        started=view.wall,
    )
    moves = (
        Put(RunMove(name, number, move.partition, move.source, move.target))
        for number, move in enumerate(plan.moves)
    )
    started = Put(Rebalance(next_state(view, "start"), name))
    return RequestAnswer(
        (started, Put(run), *moves, *leaving), f"started as run {name}", LedToRun(name)
    )


def next_state(view: ClusterView, event: str) -> RebalanceState:
    return cast(RebalanceState, REBALANCE.after(view.agreed.rebalance.state, event))


def check_idle(view: ClusterView) -> None:
    """Refuse a second run before anything else is checked."""
    now = view.agreed.rebalance
    if now.state != "idle":
        action = view.agreed.runs[now.run].action
        raise IllegalRequest(
            f"run {now.run} is {now.state} already: {action}", "wait for its end, or cancel it"
        )


def check_words(view: ClusterView, plan: RunPlan, drains: bool) -> None:
    if plan.by == "balancer" and not view.agreed.controls.balancing:
        raise IllegalRequest("balancing is off", "switch it on, or ask for the moves yourself")
    if plan.moves and view.settings.moves_refused:
        raise IllegalRequest(view.settings.moves_refused, view.settings.moves_advice)
    if not drains and plan.drains:
        raise IllegalRequest("a run of moves can't drain nodes", "request a drain instead")
    if drains and not plan.drains:
        raise IllegalRequest("no node is named", "name the nodes to drain")
    if not drains and not plan.moves:
        raise IllegalRequest("the plan has no moves", "nothing to do")
    limits = plan.limits
    if limits.moves_in < 1 or limits.moves_out < 1 or limits.bytes_per_second < 0:
        raise IllegalRequest(
            f"limits of {limits.moves_in} moves to a node, {limits.moves_out} away from one and "
            f"{limits.bytes_per_second} bytes a second",
            "use at least 1 move; 0 bytes a second means no limit",
        )
    if plan.hold_seconds < 0 or plan.max_pause_seconds < 0:
        raise IllegalRequest("durations must not be negative", "give seconds, 0 for none")


def check_moves(view: ClusterView, plan: RunPlan) -> None:
    """Check each move, given those before it, and all moves together."""
    places: dict[PartitionId, tuple[Placement, ...]] = {}
    seen: dict[tuple[PartitionId, NodeId], None] = {}
    coming: dict[Placement, int] = {}
    for move in plan.moves:
        record = known(view, move.partition)
        if (move.partition, move.source) in seen:
            raise IllegalRequest(
                f"two moves of the replica of {move.partition} on {move.source}", "name it once"
            )
        seen[move.partition, move.source] = None
        before = places.get(move.partition, view.agreed.intents[move.partition].stable)
        after = replaced(move.partition, before, move.source, move.target)
        check(view, record, Assignment(kind_of(move), after), after)
        check_given(view, record)
        places[move.partition] = after
        coming[move.target] = coming.get(move.target, 0) + bytes_of(view, record)
    problem = no_room_for_all(view, coming)
    if problem:
        raise IllegalRequest(problem, "move less there, or make room")


def kind_of(move: PlannedMove | RunMove) -> TransitionKind:
    return "volume_move" if move.source == move.target.node else "move"


def known(view: ClusterView, partition: PartitionId) -> Partition:
    record = view.agreed.topology.partitions.get(partition)
    if record is None:
        raise IllegalRequest(f"there is no partition {partition}", "plan again")
    if view.agreed.intents[partition].pending is not None:
        raise IllegalRequest(
            f"another change of {partition} is under way", "wait for its end, or cancel it"
        )
    return record


def check_given(view: ClusterView, record: Partition) -> None:
    """A copy needs a live in-sync replica to read from; the replica that leaves may be down."""
    if not any(view.is_live(replica.node) for replica in record.in_sync):
        away = ", ".join(sorted(replica.node for replica in record.in_sync))
        raise IllegalRequest(
            f"no in-sync replica of {record.id} is alive: {away} is down", "start it first"
        )


def start_reads(view: ClusterView, wish: StartRun | DrainNodes) -> list[str]:
    plan = wish.plan or RunPlan("")
    keys = [REBALANCE_KEY, *drains.begin_reads(view, plan)]
    for move in plan.moves:
        keys += move_reads(view, move)
    return list(dict.fromkeys(keys))


# --- pause, go on, cancel


_TURNS: dict[type[Wish], tuple[str, str]] = {
    PauseRun: ("pause", "is paused; moves in flight finish"),
    ResumeRun: ("resume", "is resumed"),
    CancelRun: ("cancel", "is being cancelled; committed moves stay"),
}
"""The event of the run's state, and the answer."""
_REFUSALS = {
    "running": ("is running", "nothing to do"),
    "paused": ("is paused already", "resume it, or cancel it"),
    "cancelling": ("is being cancelled already", "wait for its end"),
}


def turn(view: ClusterView, wish: PauseRun | ResumeRun | CancelRun) -> RequestAnswer:
    """Only the state changes here; later commits act on it."""
    now = view.agreed.rebalance
    event, words = _TURNS[type(wish)]
    if wish.run and wish.run != now.run:
        raise IllegalRequest(f"{wish.run} is not the current run", "list the runs")
    if now.state == "idle":
        raise IllegalRequest("no run is under way", "start one")
    if event not in REBALANCE.edges[now.state]:
        state, advice = _REFUSALS[now.state]
        raise IllegalRequest(f"run {now.run} {state}", advice)
    after = replace(now, state=next_state(view, event))
    return RequestAnswer((Put(after),), f"run {now.run} {words}", LedToRun(now.run))
