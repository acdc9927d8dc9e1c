"""How does the service plan, start and describe runs? Like the commands, with the same rules."""

from limosa.admin.moves import volume_on
from limosa.admin.runs import MoveFacts, RunBody, RunFacts, RunPreview, RunStatus, TurnWish
from limosa.client import cluster_view
from limosa.client.access import ClusterAccess
from limosa.core.coordinator import run_requests
from limosa.core.coordinator.view import ClusterView
from limosa.core.insight import proposing
from limosa.core.insight.progress import progress
from limosa.core.model.intent import Placement
from limosa.core.model.requests import DrainNodes, Request, StartRun
from limosa.core.model.runs import IN_FLIGHT, PlannedMove, Run, RunMove, RunPlan

ENDED = {"done": "DONE", "cancelled": "CANCELLED", "failed-in-part": "FAILED"}


class ClusterRuns:
    """Implements `Runs`; nothing is kept here."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster

    # --- requests

    def plan(self, wanted: RunBody) -> RunPreview:
        view = cluster_view.look(self._cluster)
        run = self._planned(view, wanted)
        moves = tuple(
            MoveFacts(move.partition, move.source, move.target.node, "PENDING")
            for move in run.moves
        )
        return RunPreview(moves, 0 if run.estimate is None else run.estimate.bytes)

    # What the coordinator would refuse now is refused here at once, by the same rules.

    def start(self, id: str, wanted: RunBody) -> Request:
        view = cluster_view.look(self._cluster)
        run_requests.check_idle(view)
        run = self._planned(view, wanted)
        wish = DrainNodes(run) if run.drains else StartRun(run)
        run_requests.start(view, wish, 0)
        return Request(id, wish)

    def turn(self, id: str, wish: TurnWish) -> Request:
        run_requests.turn(ClusterView(self._cluster.runs(), {}, 0, 0.0), wish)
        return Request(id, wish)

    def _planned(self, view: ClusterView, wanted: RunBody) -> RunPlan:
        if wanted.add_node:
            like = RunPlan(f"fill {wanted.add_node}")
            return proposing.filling(view, [wanted.add_node], like)[1]
        if wanted.remove_node:
            name = wanted.remove_node
            like = RunPlan(f"decommission {name}", drains=(name,), decommission=True)
            return proposing.planned(view, like)[1]
        topology = view.agreed.topology
        moves = tuple(
            PlannedMove(
                move.partition,
                move.source,
                Placement(move.to, volume_on(topology, move.to, None)),
            )
            for move in wanted.moves or ()
        )
        return RunPlan(f"{len(moves)} moves", moves)

    # --- state

    def status(self) -> RunStatus:
        view = cluster_view.look(self._cluster)
        name = view.agreed.rebalance.run
        if not name:
            return RunStatus("IDLE")
        found = progress(view, name)
        facts = run_facts(view, found.run, found.state.upper())
        return RunStatus(
            found.state.upper(), facts.total, facts.completed, facts.failed, facts.current, facts
        )

    def history(self) -> list[RunFacts]:
        agreed = self._cluster.runs()
        view = ClusterView(agreed, {}, 0, 0.0)
        runs = sorted(agreed.runs.values(), key=lambda run: run.started, reverse=True)
        state = agreed.rebalance.state.upper()
        return [run_facts(view, run, ENDED.get(run.outcome, state)) for run in runs]


def run_facts(view: ClusterView, run: Run, state: str) -> RunFacts:
    moves = sorted(view.agreed.moves.get(run.id, {}).values(), key=lambda move: move.number)
    current = tuple(m.partition for m in moves if m.state in IN_FLIGHT)
    committed = sum(move.state == "COMMITTED" for move in moves)
    failed = sum(move.state == "FAILED" and move.final for move in moves)
    return RunFacts(
        run.id,
        state,
        run.moves,
        run.totals.committed if run.outcome else committed,
        run.totals.failed if run.outcome else failed,
        current,
        run.started,
        run.ended,
        tuple(map(move_facts, moves)),
    )


def move_facts(move: RunMove) -> MoveFacts:
    return MoveFacts(
        move.partition, move.source, move.target.node, move.state, move.attempts, move.detail
    )
