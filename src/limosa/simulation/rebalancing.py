"""What does an operator of runs do? Starts, drains, pauses, cancels, locks: sensibly or not.

The operator has dice of its own, so that worlds without runs do not change.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from limosa.core.model.changes import Commit, Put, request_key
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    AnyWish,
    CancelRun,
    DrainNodes,
    FollowNodes,
    LockCluster,
    PauseRun,
    Request,
    ResumeRun,
    SetBalancing,
    StartRun,
    UndrainNodes,
    UnlockCluster,
)
from limosa.core.model.runs import Limits, PlannedMove, RunPlan
from limosa.core.model.topology import Partition

if TYPE_CHECKING:
    from limosa.simulation.world import World


class Rebalancing:
    """An operator that requests runs and controls them."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.dice = Random(f"runs {world.seed}")
        self.asked = 0

    def operate(self) -> None:
        makes = self.dice.choices(tuple(RUN_OPERATIONS), tuple(RUN_OPERATIONS.values()))[0]
        self.ask(makes(self))

    def ask(self, wish: AnyWish) -> None:
        self.asked += 1
        request = Request(f"b{self.asked:03}", wish)
        guards = {request_key(request.id): 0}
        self.world.commit(Commit(guards, (Put(request),), f"{wish.kind} is asked for"), "operator")

    # --- plans

    def _plan(self) -> RunPlan:
        records = list(self.world.agreed.topology.partitions.values())
        chosen = self.dice.sample(records, self.dice.randint(1, len(records)))
        moves = [self._move(record) for record in chosen]
        if self.dice.random() < 0.2:
            moves += [self._move(self.dice.choice(records))]
        return self._with_conditions("moves", moves)

    def _with_conditions(self, action: str, moves: list[PlannedMove]) -> RunPlan:
        dice = self.dice
        return RunPlan(
            action,
            tuple(moves),
            Limits(dice.choice((1, 1, 2)), dice.choice((1, 2))),
            hold_seconds=dice.choice((0.0, 0.0, 0.0, 1.5)),
            max_pause_seconds=dice.choice((0.0, 0.0, 0.0, 0.0, 0.05)),
            by="balancer" if dice.random() < 0.4 else "operator",
        )

    def _move(self, record: Partition) -> PlannedMove:
        """Any replica to any node; now and then to another volume, or to an invalid place."""
        source = self.dice.choice(record.replicas)
        if self.dice.random() < 0.1:
            other = Placement(source.node, "" if source.volume else "v2")
            return PlannedMove(record.id, source.node, other)
        here = {replica.node for replica in record.replicas}
        free = [name for name in self.world.nodes if name not in here]
        nodes = free if free and self.dice.random() < 0.95 else list(self.world.nodes)
        return PlannedMove(record.id, source.node, Placement(self.dice.choice(nodes)))

    def _drain(self) -> RunPlan:
        """Move everything that one or two nodes hold to the others."""
        topology = self.world.agreed.topology
        normal = [name for name, node in topology.nodes.items() if node.state == "normal"]
        leaving = self.dice.sample(normal, min(len(normal), self.dice.choice((1, 1, 1, 2))))
        moves: list[PlannedMove] = []
        for name, intent in self.world.agreed.intents.items():
            here = [place.node for place in intent.stable]
            for node in [each for each in here if each in leaving]:
                free = [each for each in normal if each not in (*here, *leaving)]
                if free:
                    target = self.dice.choice(free)
                    here.append(target)
                    moves.append(PlannedMove(name, node, Placement(target)))
        plan = self._with_conditions("drain", moves)
        decommission = len(normal) > self.world.shape.replicas + 1 and self.dice.random() < 0.5
        return RunPlan(
            plan.action, plan.moves, plan.limits, plan.hold_seconds, plan.max_pause_seconds,
            drains=tuple(leaving), decommission=decommission,
        )  # fmt: skip

    def _drained(self) -> tuple[str, ...]:
        nodes = self.world.agreed.topology.nodes.values()
        drained = [node.id for node in nodes if node.state == "decommissioning"]
        return tuple(drained[:1]) or ("n1",)

    # --- the end

    def let_end(self) -> None:
        """Remove everything that keeps a run from ending."""
        agreed = self.world.agreed
        waiting = {each.kind for each in agreed.requests.values() if each.state == "waiting"}
        if agreed.controls.locked and "unlock" not in waiting:
            self.ask(UnlockCluster())
        if not agreed.controls.balancing and "set_balancing" not in waiting:
            self.ask(SetBalancing(True))
        if agreed.rebalance.state == "paused" and "resume_run" not in waiting:
            self.ask(ResumeRun())


RUN_OPERATIONS: dict[Callable[[Rebalancing], AnyWish], float] = {
    lambda operator: StartRun(operator._plan()): 30.0,
    lambda operator: DrainNodes(operator._drain()): 10.0,
    lambda operator: PauseRun(): 10.0,
    lambda operator: ResumeRun(): 14.0,
    lambda operator: CancelRun(): 9.0,
    lambda operator: UndrainNodes(operator._drained()): 4.0,
    lambda operator: SetBalancing(operator.dice.random() < 0.5): 8.0,
    lambda operator: LockCluster(): 6.0,
    lambda operator: UnlockCluster(): 10.0,
    lambda operator: FollowNodes("zone"): 5.0,
}
"""An operator's requests, and their weights."""
