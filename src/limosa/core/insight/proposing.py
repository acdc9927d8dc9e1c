"""Which run does what an operator wants? A plan, or the reasons why there is none.

A proposal is a value; it becomes a run when the coordinator accepts it.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from limosa.core.coordinator.checks import member
from limosa.core.coordinator.situating import as_run, rules, situation
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.keys import NodeId
from limosa.core.model.runs import RunPlan
from limosa.core.planning.part import plan_part
from limosa.core.planning.plan import Impossible, Plan
from limosa.core.planning.rebalance import plan_drain, plan_rebalance
from limosa.errors import IllegalRequest


def planned(view: ClusterView, like: RunPlan) -> tuple[Plan, RunPlan]:
    """The plan, and the run that carries it out: `like` holds the limits and the nodes to drain.

    Raises `IllegalRequest` if the nodes can't be drained.
    """
    for name in like.drains:
        member(view, name)
    now = situation(view, like.drains)
    found = (plan_drain if like.drains else plan_rebalance)(now, rules(view))
    if isinstance(found, Impossible):
        raise IllegalRequest(str(found), "let other nodes join or make room first")
    if not found.empties:
        left = next(each for each in found.skipped if each.left_on)
        raise IllegalRequest(
            f"{left.partition} can't leave {', '.join(left.left_on)}: {left.why}",
            "plan again later",
        )
    return found, as_run(view, found, like)


def filling(view: ClusterView, nodes: Sequence[NodeId], like: RunPlan) -> tuple[Plan, RunPlan]:
    """Like `planned`, but only with moves to these new nodes, and with the figures of these
    moves."""
    for name in nodes:
        member(view, name)
    whole, _ = planned(view, like)
    to_them = [move for move in whole.moves if move.target.node in nodes]
    part = plan_part(situation(view, like.drains), to_them, rules(view))
    found = replace(part, skipped=whole.skipped)
    return found, as_run(view, found, like)
