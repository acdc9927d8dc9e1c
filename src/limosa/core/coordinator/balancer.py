"""Should the cluster start a run by itself now? Only if automatic runs are on and one is due.

The balancer starts a run by a request, as an operator does; the request is refused while another
run is under way. It moves replicas away from the most loaded node and to the least loaded one.
"""

from msgspec.structs import replace

from limosa.core.coordinator.situating import as_run, rules, situation
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import (
    CONTROLS_KEY,
    COORDINATOR_KEY,
    REBALANCE_KEY,
    Commit,
    Put,
    request_key,
)
from limosa.core.model.requests import Request, StartRun
from limosa.core.model.runs import RunPlan
from limosa.core.planning.plan import Plan
from limosa.core.planning.policy import PolicyDecision, should_rebalance
from limosa.core.planning.rebalance import node_loads, plan_rebalance

ACTION = "spread the load"


def begin(view: ClusterView) -> Commit | None:
    """A request for a run, if the policy asks for one now."""
    controls, policy = view.agreed.controls, view.agreed.controls.policy
    looked_at = view.memory.balance_looked_at
    if not policy.enabled or looked_at is None:
        view.memory.balance_looked_at = view.now  # one interval, so that nodes can be heard of
        return None
    if view.now - looked_at < policy.interval_seconds:
        return None
    if view.agreed.rebalance.state != "idle" or controls.locked or not controls.balancing:
        return None
    view.memory.balance_looked_at = view.now
    now = situation(view)
    verdict = should_rebalance(
        policy, node_loads(now, rules(view)), view.now, looked_at, last_run_end(view)
    )
    if not verdict.rebalance:
        return None
    plan = plan_rebalance(now, rules(view))
    moves = relieving(plan, verdict) if isinstance(plan, Plan) else None
    return None if moves is None else asked(view, moves, verdict.why)


def last_run_end(view: ClusterView) -> float | None:
    """When the last run ended, by the coordinator's own clock."""
    ended = [run.ended for run in view.agreed.runs.values() if run.ended]
    return view.now - max(0.0, view.wall - max(ended)) if ended else None


def relieving(plan: Plan, verdict: PolicyDecision) -> Plan | None:
    """The plan's moves that leave the most loaded node or go to the least loaded one."""
    moves = tuple(
        move
        for move in plan.moves
        if not move.stays and (move.source == verdict.source or move.target.node == verdict.target)
    )
    return replace(plan, moves=moves) if moves else None


def asked(view: ClusterView, plan: Plan, why: str) -> Commit:
    run = as_run(view, plan, RunPlan(ACTION, by="balancer", why=why))
    name = f"balance-{view.agreed.revision}"
    request = Request(name, StartRun(run), asked=view.wall)
    keys = (REBALANCE_KEY, CONTROLS_KEY)
    guards = {key: view.agreed.revision_of(key) for key in keys}
    guards |= {request_key(request.id): 0, COORDINATOR_KEY: view.coordinator}
    return Commit(guards, (Put(request),), f"the balancer asks for {len(run.moves)} moves: {why}")
