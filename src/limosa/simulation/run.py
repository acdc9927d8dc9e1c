"""What does one seed do? It draws a world, lets applications, operators and faults loose on it, heals it,
and looks at what is left.

Every run has three acts: trouble, healing (in which everything must end), and the reckoning.
"""

from random import Random

from msgspec import Struct

from limosa.core.events import CollectionDue
from limosa.core.model.changes import Commit, Put, layout_key, request_key
from limosa.core.model.intent import Placement, Request
from limosa.core.model.topology import Layout, Partition
from limosa.simulation.checkers.leftovers import leftovers, unfinished
from limosa.simulation.checkers.linearizability import check
from limosa.simulation.faults import FAULTS, inject
from limosa.simulation.network import Weather
from limosa.simulation.workloads import KINDS, History, Registers, Workload
from limosa.simulation.rows import token_of
from limosa.simulation.world import ZONE, Shape, World

HEALING_SECONDS = 45.0
LATEST_MESSAGE_SECONDS = 7.0


class Result(Struct, frozen=True):
    """What one seed showed."""

    seed: int
    operations: int
    moves: int
    faults: int
    violations: tuple[tuple[str, str], ...]
    cells: tuple[tuple[str, str], ...]
    story: tuple[tuple[float, str, str], ...] = ()


def shape_of(dice: Random) -> Shape:
    weather = Weather(
        dropped=dice.choice((0.0, 0.0, 0.01, 0.05)),
        doubled=dice.choice((0.0, 0.02, 0.1)),
        slow=dice.choice((0.0, 0.02, 0.1)),
        stuck=dice.choice((0.0, 0.0, 0.004, 0.02)),
    )
    replicas = dice.choice((1, 2, 2, 3, 3, 3))
    return Shape(
        nodes=dice.choice((replicas + 1, 4)),
        partitions=dice.choice((1, 1, 2)),
        replicas=replicas,
        clients=dice.choice((2, 3)),
        entries_kept=dice.choice((4, 12, 1000)),
        weather=weather,
    )


def run_seed(seed: int, telling: bool = False, world_type: type[World] = World) -> Result:
    dice = Random(f"shape {seed}")
    world = world_type(seed, shape_of(dice), telling)
    history = History(world)
    drama = Drama(world, history, dice)
    drama.trouble()
    drama.heal()
    drama.reckon()
    return Result(
        seed,
        history.asked,
        world.moves,
        world.faults,
        tuple(world.violations),
        tuple(sorted(world.cells)),
        tuple(world.story),
    )


class Drama:
    """The three acts of one run."""

    def __init__(self, world: World, history: History, dice: Random) -> None:
        self.world = world
        self.history = history
        self.dice = dice
        self.seconds = dice.choice((6.0, 10.0, 14.0))
        self.pace = dice.choice((0.03, 0.06, 0.12))
        self.aimed = dice.choice((0.1, 0.3, 0.6))
        """How often a stage that was just entered is met by a fault."""
        self.requests = 0
        self.workloads: list[Workload] = []
        for client in world.clients:
            self.workloads.append(Registers(world, history, client))
            self.workloads.append(dice.choice(KINDS)(world, history, client))

    # --- act one

    def trouble(self) -> None:
        world, dice = self.world, self.dice
        world.run_until(0.5)
        world.on_stage = self._stage_entered
        end = world.now + self.seconds
        for workload in self.workloads:
            self._keep_busy(workload, end)
        at = world.now + dice.random()
        while at < end:
            world.schedule(at - world.now, self._operate)
            at += dice.expovariate(1 / 1.2)
        at = world.now + dice.uniform(0.2, 3)
        while at < end:
            partition = dice.choice(list(world.agreed.topology.partitions))
            world.schedule(at - world.now, inject, world, partition, dice.choice(list(FAULTS)))
            at += dice.expovariate(1 / dice.choice((1.5, 4.0)))
        world.run_until(end)

    def _keep_busy(self, workload: Workload, end: float) -> None:
        if self.world.now < end and not self.world.healed:
            if self.history.outstanding < 12:
                workload.step()
            delay = self.world.dice.expovariate(1 / (self.pace * 2))
            self.world.schedule(delay, self._keep_busy, workload, end)

    def _stage_entered(self, record: Partition) -> None:
        if not self.world.healed and self.dice.random() < self.aimed:
            fault = self.dice.choice(list(FAULTS))
            self.world.schedule(
                self.dice.choice((0.0, 0.003, 0.02, 0.1)), inject, self.world, record.id, fault
            )

    def _operate(self) -> None:
        """An operator asks for something, sensible or not."""
        world, dice = self.world, self.dice
        partition = dice.choice(list(world.agreed.topology.partitions))
        record = world.agreed.topology.partitions[partition]
        chance = dice.random()
        if chance < 0.45:
            self._ask(
                "move",
                partition,
                placements=self._elsewhere(record),
                hold_seconds=dice.choice((0.0, 0.0, 1.0)),
            )
        elif chance < 0.52:
            self._ask("volume_move", partition, placements=self._other_volume(record))
        elif chance < 0.58:
            self._ask("repair", partition)
        elif chance < 0.64:
            self._ask("rebuild", partition, renewed=(dice.choice(record.replicas).node,))
        elif chance < 0.72:
            intent = world.agreed.intents[partition]
            self._ask(
                "cancel", partition, cancels=0 if intent.pending is None else intent.pending.trigger
            )
        elif chance < 0.80:
            self._ask(dice.choice(("reverse", "complete")), partition)
        elif chance < 0.86:
            self._new_version()
        else:
            for node in world.nodes.values():
                node.deliver(node.run, CollectionDue(partition))

    def _ask(self, kind: str, partition: str, **what: object) -> None:
        self.requests += 1
        request = Request(f"r{self.requests:03}", kind, partition, **what)  # type: ignore[arg-type]
        self.world.commit(
            Commit(
                {request_key(request.id): 0}, (Put(request),), f"{partition}: {kind} is asked for"
            ),
            "operator",
        )

    def _elsewhere(self, record: Partition) -> tuple[Placement, ...]:
        """Another node instead of one of them, often of the owner's."""
        here = [Placement(r.node, r.volume) for r in record.replicas]
        free = [name for name in self.world.nodes if name not in {p.node for p in here}]
        leaving = self.dice.randrange(len(here))
        if record.owner is not None and self.dice.random() < 0.6:
            leaving = (
                [p.node for p in here].index(record.owner.replica.node)
                if record.owner.replica.node in [p.node for p in here]
                else leaving
            )
        here[leaving] = Placement(self.dice.choice(free))
        return tuple(here)

    def _other_volume(self, record: Partition) -> tuple[Placement, ...]:
        here = [Placement(r.node, r.volume) for r in record.replicas]
        chosen = self.dice.randrange(len(here))
        here[chosen] = Placement(here[chosen].node, "" if here[chosen].volume else "v2")
        return tuple(here)

    def _new_version(self) -> None:
        """The same ranges under a new version: clients must refresh and route again."""
        layout = self.world.agreed.topology.layouts[ZONE]
        after = Layout(ZONE, layout.version + 1, layout.starts, layout.partitions)
        revision = self.world.agreed.revision_of(layout_key(ZONE))
        commit = Commit({layout_key(ZONE): revision}, (Put(after),), "another layout version")
        self.world.commit(commit, "operator")

    # --- act two

    def heal(self) -> None:
        world = self.world
        world.healed = True
        world.network.heal()
        world.tell("everything heals")
        for process in world.processes.values():
            process.resume()
            if not process.run:
                process.start()
        # What is still in the network arrives first, however late it is.
        world.run_until(world.now + LATEST_MESSAGE_SECONDS)
        world.run_until(world.now + HEALING_SECONDS, lambda: not self._unfinished())
        for problem, partition in self._unfinished():
            world.violate(f"never ended: {problem}", partition)

    def _unfinished(self) -> list[tuple[str, str]]:
        waiting = unfinished(self.world)
        if self.history.outstanding:
            waiting.append((f"{self.history.outstanding} operations", ""))
        return waiting

    # --- act three

    def reckon(self) -> None:
        world, history = self.world, self.history
        rows = {} if world.violations else self._read_all()
        history.unanswered()
        verdict = check(history.operations)
        if not verdict.ok:
            world.violate(f"not linearizable: {verdict.reason}", self._partition_in(verdict.reason))
        if world.violations:
            return
        for workload in self.workloads:
            for problem in workload.verdict(rows):
                world.violate(problem, "")
        for problem, partition in leftovers(world):
            world.violate(problem, partition)

    def _read_all(self) -> dict[str, object]:
        rows: dict[str, object] = {}
        keys = list(dict.fromkeys(key for workload in self.workloads for key in workload.keys()))

        def then(key: str) -> object:
            def record(effect: object) -> None:
                rows[key] = effect.value[0][1] if effect.outcome == "done" else None  # type: ignore[attr-defined]

            return record

        self.world.run_until(self.world.now + 0.01)
        for key in keys:
            self.history.ask(self.world.clients[0], then(key), keys=(key,), token=token_of(key))  # type: ignore[arg-type]
        self.world.run_until(self.world.now + 5, lambda: not self.history.outstanding)
        if self.history.outstanding:
            self.world.violate("a read of a healed world was not answered", "")
        return rows

    def _partition_in(self, reason: str) -> str:
        key = reason.split("'")[1] if "'" in reason else ""
        layout = self.world.agreed.topology.layouts[ZONE]
        token = token_of(key)
        return next(
            name
            for index, name in enumerate(layout.partitions)
            if layout.range_of(index).holds(token)
        )
