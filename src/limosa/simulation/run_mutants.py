"""Which bugs could a rebalance run have? Each mutant is found by the simulator; see `mutants`."""

from typing import Any

from msgspec.structs import replace

from limosa.core.coordinator import drains, run_moves, run_requests, run_starts, runs
from limosa.core.coordinator.answers import RequestAnswer
from limosa.core.coordinator.flights import Flights
from limosa.core.coordinator.run_starts import MovesUnderWay
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import REBALANCE_KEY, Commit, Put
from limosa.core.model.requests import DrainNodes, StartRun
from limosa.core.model.runs import Outcome, Rebalance, Run, RunMove
from limosa.simulation.planting import mutant


def _as_if(view: ClusterView, **what: Any) -> ClusterView:
    """The view of a coordinator that ignores some of the state."""
    agreed = replace(view.agreed, **what)
    seen = (agreed, view.statuses, view.coordinator, view.now, view.wall)
    return ClusterView(*seen, view.settings, view.memory)


@mutant("a second start is refused, and changes nothing")
def second_start_overwrites(change: Any) -> None:
    next_state = run_requests.next_state

    def always(view: ClusterView, event: str) -> Any:
        return "running" if event == "start" else next_state(view, event)

    change(run_requests, "check_idle", lambda view: None)
    change(run_requests, "next_state", always)


@mutant("the checkpoint holds all moves of a run")
def checkpoint_of_one_move(change: Any) -> None:
    start = run_requests.start

    def first_only(view: ClusterView, wish: StartRun | DrainNodes, trigger: int) -> RequestAnswer:
        answer = start(view, wish, trigger)
        kept = [
            each
            for each in answer.changes
            if not isinstance(each, Put)
            or not isinstance(each.record, RunMove)
            or not each.record.number
        ]
        return answer._replace(changes=tuple(kept))

    change(run_requests, "start", first_only)


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


@mutant("a run that is being cancelled starts no move")
def begins_while_cancelling(change: Any) -> None:
    stopped = run_starts.stopped

    def ignoring(view: ClusterView, run: Run) -> str:
        if view.agreed.rebalance.state == "cancelling":
            view = _as_if(view, rebalance=Rebalance("running", run.id))
        return stopped(view, run)

    change(run_starts, "stopped", ignoring)


@mutant("while the cluster is locked, no move starts")
def lock_ignored(change: Any) -> None:
    stopped = run_starts.stopped

    def ignoring(view: ClusterView, run: Run) -> str:
        controls = replace(view.agreed.controls, locked="")
        return stopped(_as_if(view, controls=controls), run)

    change(run_starts, "stopped", ignoring)


@mutant("while balancing is halted, automatic runs start no move")
def balancing_never_off(change: Any) -> None:
    stopped = run_starts.stopped

    def ignoring(view: ClusterView, run: Run) -> str:
        controls = replace(view.agreed.controls, balancing=True)
        return stopped(_as_if(view, controls=controls), run)

    change(run_starts, "stopped", ignoring)


@mutant("a move starts only if the state that it was decided by is unchanged")
def begins_by_an_older_state(change: Any) -> None:
    written = run_moves.written

    def unguarded(*arguments: Any) -> Commit:
        commit = written(*arguments)
        guards = {k: v for k, v in commit.guards.items() if k != REBALANCE_KEY}
        return replace(commit, guards=guards)

    change(run_starts, "written", unguarded)


@mutant("a run has no more moves in flight than its limits allow")
def limits_ignored(change: Any) -> None:
    change(MovesUnderWay, "full", lambda self, source, target: "")


@mutant("a cancelled run ends only when its moves in flight have ended")
def cancelled_at_once(change: Any) -> None:
    is_over = runs.is_over

    def hasty(view: ClusterView, flights: Flights) -> bool:
        return view.agreed.rebalance.state == "cancelling" or is_over(view, flights)

    change(runs, "is_over", hasty)


@mutant("a move is attempted three times at most")
def tried_without_end(change: Any) -> None:
    change(run_moves, "ATTEMPTS_MAX", 10**9)


@mutant("a move that an operator cancelled is not retried")
def cancelled_move_tried_again(change: Any) -> None:
    change(run_moves, "BY_HAND", ())


@mutant("a move is committed only when no client reads the old replica")
def committed_before_the_switch(change: Any) -> None:
    change(
        run_moves,
        "state_in",
        lambda stage: "COMMITTED" if stage.switched else stage.run_move,
    )


@mutant("a move that rolled back has failed")
def failed_move_called_committed(change: Any) -> None:
    change(run_moves, "has_landed", lambda view, move, report: True)


@mutant("a node leaves only when nothing is left on it, whatever was planned")
def left_with_a_replica(change: Any) -> None:
    change(drains, "held_by", lambda view, node: [])


@mutant("nodes of a cancelled drain may hold replicas again")
def cancelled_drain_keeps_its_nodes(change: Any) -> None:
    end = drains.end

    def without_nodes(view: ClusterView, run: Run, outcome: Outcome) -> Any:
        nodes, outcome, words = end(view, run, outcome)
        return (() if outcome == "cancelled" else nodes), outcome, words

    change(drains, "end", without_nodes)
