"""May the cluster change by itself, or at all? The switches that an operator has.

Without balancing, runs of the balancer neither start nor continue; runs of operators do. While the
cluster is locked, no change of the topology begins; changes that have begun continue.
"""

from msgspec.structs import replace

from limosa.core.coordinator.answers import RequestAnswer
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import Put
from limosa.core.model.requests import LockCluster, SetBalancing, SetPolicy, UnlockCluster
from limosa.core.model.runs import Policy
from limosa.errors import IllegalRequest


def switch(
    view: ClusterView, wish: SetBalancing | SetPolicy | LockCluster | UnlockCluster
) -> RequestAnswer:
    controls = view.agreed.controls
    match wish:
        case SetBalancing(on=on):
            words = "balancing is on" if on else "balancing is off"
            return RequestAnswer((Put(replace(controls, balancing=on)),), words)
        case SetPolicy():
            policy = checked(wish.policy)
            words = "automatic runs are on" if policy.enabled else "automatic runs are off"
            return RequestAnswer((Put(replace(controls, policy=policy)),), words)
        case UnlockCluster():
            if not controls.locked:
                raise IllegalRequest("the cluster is not locked", "nothing to do")
            return RequestAnswer((Put(replace(controls, locked="")),), "unlocked")
    if controls.locked:
        raise IllegalRequest(f"the cluster is locked already: {controls.locked}", "unlock it first")
    return RequestAnswer((Put(replace(controls, locked=wish.why or "by an operator")),), "locked")


def checked(policy: Policy) -> Policy:
    if policy.ratio <= 1 or policy.interval_seconds <= 0 or policy.cooldown_seconds < 0:
        raise IllegalRequest(
            f"a ratio of {policy.ratio:g}, looked at every {policy.interval_seconds:g} s, with "
            f"{policy.cooldown_seconds:g} s of cooldown after a run",
            "use a ratio above 1 and durations that are not negative",
        )
    return policy
