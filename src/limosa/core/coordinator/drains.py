"""May these nodes be drained, are they empty, and which state do they get then?

From the commit that starts its run, a node that is drained takes no new replicas. Whether it is
empty is checked when the run ends, whatever the plan was.
"""

from limosa.core.coordinator.answers import RequestAnswer
from limosa.core.coordinator.checks import member
from limosa.core.coordinator.members import after, check_enough_stay, enabled, held_by
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import (
    FEATURES_KEY,
    REBALANCE_KEY,
    Change,
    Put,
    intent_key,
    node_key,
    zone_key,
)
from limosa.core.model.keys import NodeId
from limosa.core.model.requests import LedToNodes, UndrainNodes
from limosa.core.model.runs import Outcome, Run, RunPlan
from limosa.errors import IllegalRequest


def begin(view: ClusterView, plan: RunPlan) -> tuple[Change, ...]:
    """The nodes take no new replicas from now on; refused if they can't be emptied."""
    nodes = [member(view, name) for name in plan.drains]
    if len(set(plan.drains)) != len(plan.drains):
        raise IllegalRequest("a node is named twice", "name each once")
    check_enough_stay(view, plan.drains)
    for node in nodes:
        check_emptied(view, node.id, plan)
    return tuple(
        Put(after(node, "leave", state=node.state)) for node in nodes if node.state == "normal"
    )


def check_emptied(view: ClusterView, node: NodeId, plan: RunPlan) -> None:
    moved = {move.partition for move in plan.moves if move.source == node}
    left = [partition for partition in held_by(view, node) if partition not in moved]
    if left:
        raise IllegalRequest(
            f"the plan leaves {len(left)} replicas on {node}, for example of {left[0]}",
            "plan again",
        )


def begin_reads(view: ClusterView, plan: RunPlan) -> list[str]:
    """A new replica needs an intent first, so intents tell which nodes will hold anything."""
    if not plan.drains:
        return []
    topology = view.agreed.topology
    keys = [*map(node_key, topology.nodes), *map(zone_key, topology.zones)]
    return [*keys, *map(node_key, plan.drains), *map(intent_key, view.agreed.intents)]


def end(view: ClusterView, run: Run, outcome: Outcome) -> tuple[tuple[Change, ...], Outcome, str]:
    """The states of the drained nodes: all of them are empty, or all become normal again. Returns
    the changes, the outcome and a sentence."""
    nodes = [view.agreed.topology.nodes[name] for name in run.drains]
    names = ", ".join(run.drains)
    if not nodes:
        return (), outcome, ""
    holds = {node.id: held_by(view, node.id) for node in nodes}
    full = [f"{name} holds a replica of {held[0]}" for name, held in holds.items() if held]
    if outcome == "cancelled" or full:
        back = tuple(Put(after(node, "fail", state=node.state)) for node in nodes)
        why = f" ({full[0]})" if full and outcome != "cancelled" else ""
        failed: Outcome = "cancelled" if outcome == "cancelled" else "failed-in-part"
        return back, failed, f"not drained, and normal again: {names}{why}"
    if not run.decommission:
        return (), outcome, f"drained: {names}"
    gone = [after(node, "succeed", state=node.state) for node in nodes]
    features = Put(enabled(view.agreed.topology, *gone))
    return (*map(Put, gone), features), outcome, f"left: {names}"


def end_reads(view: ClusterView, run: Run) -> list[str]:
    if not run.drains:
        return []
    keys = [FEATURES_KEY, *map(node_key, view.agreed.topology.nodes)]
    return [*keys, *map(intent_key, view.agreed.intents)]


def undrain(view: ClusterView, wish: UndrainNodes) -> RequestAnswer:
    """Drained nodes that did not leave take replicas again."""
    run = view.agreed.runs.get(view.agreed.rebalance.run)
    back: list[Change] = []
    for name in dict.fromkeys(wish.nodes):
        node = member(view, name)
        if run is not None and name in run.drains:
            raise IllegalRequest(f"{name} is being drained by {run.id}", "cancel that run")
        if node.state != "decommissioning":
            raise IllegalRequest(f"{name} is {node.state}", "name nodes that were drained")
        back.append(Put(after(node, "fail", state=node.state)))
    if not back:
        raise IllegalRequest("no node is named", "name nodes that were drained")
    return RequestAnswer(
        tuple(back), f"normal again: {', '.join(wish.nodes)}", LedToNodes(wish.nodes)
    )


def undrain_reads(wish: UndrainNodes) -> list[str]:
    return [REBALANCE_KEY, *map(node_key, wish.nodes)]
