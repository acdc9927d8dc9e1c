"""Which bugs could a rebalance run have? Each mutant is found by the simulator; see `mutants`."""

from typing import Any

from msgspec.structs import replace

from limosa.core.coordinator import drains, run_moves, run_requests, run_starts, runs
from limosa.core.coordinator.answers import RequestAnswer
from limosa.core.coordinator.run_starts import MovesUnderWay
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import REBALANCE_KEY, Commit, Put
from limosa.core.model.runs import Outcome, Rebalance, Run, RunMove
from limosa.simulation.planting import always, mutant, replacing, wrapping

# fmt: off
replacing({
    "limits_ignored": (
        "a run has no more moves in flight than its limits allow",
        MovesUnderWay, "full", always("")),
    "tried_without_end": (
        "a move is attempted three times at most", run_moves, "ATTEMPTS_MAX", 10**9),
    "cancelled_move_tried_again": (
        "a move that an operator cancelled is not retried", run_moves, "BY_HAND", ()),
    "committed_before_the_switch": (
        "a move is committed only when no client reads the old replica", run_moves, "state_in",
        lambda stage: "COMMITTED" if stage.switched else stage.run_move),
    "failed_move_called_committed": (
        "a move that rolled back has failed", run_moves, "has_landed", always(True)),
    "left_with_a_replica": (
        "a node leaves only when nothing is left on it, whatever was planned",
        drains, "held_by", lambda view, node: []),
})
# fmt: on


@mutant("a second start is refused, and changes nothing")
def second_start_overwrites(change: Any) -> None:
    next_state = run_requests.next_state

    def always_running(view: ClusterView, event: str) -> Any:
        return "running" if event == "start" else next_state(view, event)

    change(run_requests, "check_idle", always(None))
    change(run_requests, "next_state", always_running)


@wrapping(run_requests, "start", "the checkpoint holds all moves of a run")
def checkpoint_of_one_move(start: Any, *those: Any) -> RequestAnswer:
    def is_later(each: Any) -> bool:
        return isinstance(each, Put) and isinstance(each.record, RunMove) and each.record.number > 0

    answer: RequestAnswer = start(*those)
    return answer._replace(changes=tuple(c for c in answer.changes if not is_later(c)))


# --- what a coordinator ignores when it decides whether to start a move


def _as_if(view: ClusterView, **what: Any) -> ClusterView:
    """The view of a coordinator that ignores some of the state."""
    agreed = replace(view.agreed, **what)
    seen = (agreed, view.statuses, view.coordinator, view.now, view.wall)
    return ClusterView(*seen, view.settings, view.memory)


@mutant("a pause is stored in the metastore, not only in a coordinator's memory")
def pause_forgotten_by_a_successor(change: Any) -> None:
    stopped = run_starts.stopped
    seen: dict[tuple[str, int], int] = {}

    def remembered(view: ClusterView, run: Run) -> str:
        if view.agreed.rebalance.state == "paused":
            first = seen.setdefault((run.id, run.starts), view.coordinator)
            if first != view.coordinator:
                view = _as_if(view, rebalance=Rebalance("running", run.id))
        return stopped(view, run)

    change(run_starts, "stopped", remembered)


@wrapping(run_starts, "stopped", "a run that is being cancelled starts no move")
def begins_while_cancelling(stopped: Any, view: ClusterView, run: Run) -> Any:
    if view.agreed.rebalance.state == "cancelling":
        view = _as_if(view, rebalance=Rebalance("running", run.id))
    return stopped(view, run)


@wrapping(run_starts, "stopped", "while the cluster is locked, no move starts")
def lock_ignored(stopped: Any, view: ClusterView, run: Run) -> Any:
    return stopped(_as_if(view, controls=replace(view.agreed.controls, locked="")), run)


@wrapping(run_starts, "stopped", "while balancing is halted, automatic runs start no move")
def balancing_never_off(stopped: Any, view: ClusterView, run: Run) -> Any:
    return stopped(_as_if(view, controls=replace(view.agreed.controls, balancing=True)), run)


@mutant("a move starts only if the state that it was decided by is unchanged")
def begins_by_an_older_state(change: Any) -> None:
    def unguarded(*those: Any) -> Commit:
        commit = run_moves.written(*those)
        guards = {k: v for k, v in commit.guards.items() if k != REBALANCE_KEY}
        return replace(commit, guards=guards)

    change(run_starts, "written", unguarded)


# --- how a run ends


@wrapping(runs, "is_over", "a cancelled run ends only when its moves in flight have ended")
def cancelled_at_once(is_over: Any, view: ClusterView, *those: Any) -> bool:
    return view.agreed.rebalance.state == "cancelling" or is_over(view, *those)


@wrapping(drains, "end", "nodes of a cancelled drain may hold replicas again")
def cancelled_drain_keeps_its_nodes(end: Any, view: ClusterView, run: Run, outcome: Outcome) -> Any:
    nodes, outcome, words = end(view, run, outcome)
    return (() if outcome == "cancelled" else nodes), outcome, words
