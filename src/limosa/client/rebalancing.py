"""How does a person's program see runs, and plan them? By the agreed state, and what nodes say."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from msgspec.structs import replace

from limosa.core.coordinator.progress import Progress, progress
from limosa.core.coordinator.situating import as_run, rules, situation
from limosa.core.coordinator.view import View
from limosa.core.messages import Status
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Topology
from limosa.core.model.runs import RunPlan
from limosa.core.planning.plan import Impossible, Plan
from limosa.core.planning.rebalance import plan_drain, plan_rebalance
from limosa.errors import IllegalRequest, LimosaError

NODES_AT_ONCE = 8


class Seen(Protocol):
    """What is needed of a connection."""

    @property
    def topology(self) -> Topology: ...

    def refresh(self) -> Topology: ...

    def runs(self, run: str = "") -> Agreed: ...

    def node_facts(self, node: str, partition: str = "") -> Status | None: ...


def look(connection: Seen, run: str = "") -> View:
    """The whole cluster, and the moves of one run."""
    agreed = connection.runs(run)
    statuses = ask_all(connection, sorted(agreed.leases))
    now = time.time()
    return View(agreed, statuses, agreed.revision_of(COORDINATOR_KEY), now, now)


def ask_all(connection: Seen, nodes: Sequence[str], partition: str = "") -> dict[str, Status]:
    """Who is not in the answer did not answer."""
    statuses: dict[str, Status] = {}
    if any(node not in connection.topology.nodes for node in nodes):
        connection.refresh()
    known = [node for node in nodes if node in connection.topology.nodes]

    def ask(node: str) -> None:
        try:
            status = connection.node_facts(node, partition)
        except LimosaError:
            return
        if status is not None:
            statuses[node] = status

    with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
        list(pool.map(ask, known))
    return statuses


def progress_of(connection: Seen, run: str = "") -> Progress | None:
    """Of the named run, or of the one that is under way; None: there is none."""
    view = look(connection, run)
    name = run or view.agreed.rebalance.run
    return progress(view, name) if name else None


def planned(view: View, like: RunPlan) -> tuple[Plan, RunPlan]:
    """What should move, and the run that would do it: `like` says how, and what is drained.

    Raises `IllegalRequest` if nodes are to be drained that can't be.
    """
    check_names(view, like.drains)
    now = situation(view, like.drains)
    found = (plan_drain if like.drains else plan_rebalance)(now, rules(view))
    if isinstance(found, Impossible):
        raise IllegalRequest(str(found), "let other nodes join or make room first")
    if not found.empties:
        left = next(each for each in found.skipped if each.left_on)
        raise IllegalRequest(
            f"{left.partition} can't leave {', '.join(left.left_on)}: {left.why}",
            "wait until that has passed, and plan again",
        )
    return found, as_run(view, found, like)


def filling(view: View, nodes: Sequence[str], like: RunPlan) -> tuple[Plan, RunPlan]:
    """The same, but only what goes to these nodes: they are new; among the others nothing moves."""
    check_names(view, nodes)
    found, run = planned(view, like)
    to_them = tuple(move for move in found.moves if move.target.node in nodes)
    found = replace(found, moves=to_them)
    return found, as_run(view, found, run)


def check_names(view: View, nodes: Sequence[str]) -> None:
    for name in nodes:
        node = view.agreed.topology.nodes.get(name)
        if node is None or node.state == "left":
            raise IllegalRequest(f"{name} is no member", "list them with `limosa nodes`")
