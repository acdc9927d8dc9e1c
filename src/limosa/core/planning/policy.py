"""When does a cluster rebalance by itself? Only if automatic runs are on, and not too often."""

from collections.abc import Mapping

from msgspec import Struct

from limosa.core.model.keys import NodeId
from limosa.core.model.runs import Policy as Policy


class PolicyDecision(Struct, frozen=True):
    rebalance: bool
    why: str
    source: NodeId = ""
    """The most and the least loaded node, if the loads were compared."""
    target: NodeId = ""


def should_rebalance(
    policy: Policy,
    loads: Mapping[NodeId, float],
    now: float,
    last_check: float | None = None,
    last_run_end: float | None = None,
) -> PolicyDecision:
    """`loads` are those of the nodes that balancing uses: live, and not being drained."""
    if not policy.enabled:
        return PolicyDecision(False, "automatic runs are off")
    if last_check is not None and now - last_check < policy.interval_seconds:
        return PolicyDecision(False, "the loads were compared a moment ago")
    if last_run_end is not None and now - last_run_end < policy.cooldown_seconds:
        return PolicyDecision(False, "a run ended a moment ago")
    if len(loads) < 2:
        return PolicyDecision(False, "there are fewer than two nodes")
    names = sorted(loads)
    source, target = max(names, key=loads.__getitem__), min(names, key=loads.__getitem__)
    most, least = loads[source], loads[target]
    if most <= least * policy.ratio:
        return PolicyDecision(False, "the nodes are even enough", source, target)
    return PolicyDecision(True, f"{source} has {most:g}, {target} only {least:g}", source, target)
