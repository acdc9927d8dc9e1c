"""Should the cluster start a run by itself now? Only if automatic runs are on and one is due.

The balancer starts a run by a request, as an operator does; the request is refused while another
run is under way. It moves replicas away from the most loaded node and to the least loaded one. The
load is what nodes measured, or what a load source tells when it is asked.
"""

from msgspec.structs import replace

from limosa.core.coordinator.situating import as_run, loads, rules, situation
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import AskForLoad
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
from limosa.core.planning.load import GIVEN, as_given
from limosa.core.planning.plan import Plan
from limosa.core.planning.policy import PolicyDecision, should_rebalance
from limosa.core.planning.rebalance import node_loads, plan_rebalance
from limosa.core.planning.situation import Rules, Situation

ACTION = "spread the load"


def begin(view: ClusterView) -> Commit | AskForLoad | None:
    """A request for a run, if the policy asks for one now, or a question to the load source."""
    controls, policy = view.agreed.controls, view.agreed.controls.policy
    looked_at, told = view.memory.balance_looked_at, view.memory.load_told
    view.memory.load_told = None
    if not policy.enabled or looked_at is None:
        view.memory.balance_looked_at = view.now  # one interval, so that nodes can be heard of
        return None
    if view.agreed.rebalance.state != "idle" or controls.locked or not controls.balancing:
        return None
    if told is not None:
        now = situation(view)
        given = replace(now, loads=as_given(now.loads, told))
        return spread(view, given, replace(rules(view), weights=GIVEN))
    if view.now - looked_at < policy.interval_seconds:
        return None
    view.memory.balance_looked_at = view.now
    if view.settings.load_source:
        return AskForLoad(loads(view))
    return spread(view, situation(view), rules(view))


def spread(view: ClusterView, now: Situation, by: Rules) -> Commit | None:
    """A request for the moves that relieve the most loaded node, if the policy wants them."""
    policy = view.agreed.controls.policy
    verdict = should_rebalance(
        policy, node_loads(now, by), view.now, last_run_end=last_run_end(view)
    )
    if not verdict.rebalance:
        return None
    plan = plan_rebalance(now, by)
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
