"""What happens when clients want more than the cluster can do? And when they want no more?

Work takes time here (see `service`), and clients write more than nodes can take. In some seeds
processes are killed meanwhile. Then the load ends, and soon all is well again.
"""

from collections.abc import Callable
from random import Random

from limosa.core.client import Finished
from limosa.simulation.checkers.recovery import Disturbance, not_well
from limosa.simulation.hosts import Process
from limosa.simulation.rows import token_of
from limosa.simulation.workloads import OperationHistory, UniqueSet, rows_of
from limosa.simulation.world import World

CALM_SECONDS = 5.0
"""So long after the load has ended, and after what was killed runs again, all is well."""
ANSWERED_SECONDS = 10.0
"""So long after the load has ended, all of its writes are answered: up to 500 wait then, which is
about five seconds of work."""
WRITTEN_SECONDS = 1.0
"""How long a write takes at most when all is well, until the client is told."""
PACE_SECONDS = 0.02
KILLS = ("", "a stall", "node", "coordinator", "all nodes", "each node in turn")
STALL_SECONDS = (1.6, 2.5)
"""Longer than silence may last, and shorter than a lease."""


class Flood(UniqueSet):
    """Writes that each have rows of several partitions."""

    ROWS = 4

    def step(self) -> None:
        first, self.count = self.count, self.count + self.ROWS
        keys = [f"u.{self.client.name}.{i}" for i in range(first, self.count)]

        def ack(effect: Finished) -> None:
            if effect.outcome == "done":
                self.acked += keys

        self.history.ask(self.client, ack, rows=rows_of(*((key, key) for key in keys)))


class Overload:
    """The load of one run, and its end."""

    def __init__(self, world: World, history: OperationHistory, dice: Random) -> None:
        self.world = world
        self.history = history
        self.dice = dice
        self.seconds = dice.choice((3.0, 5.0, 7.0))
        self.waiting_max = dice.choice((100, 200, 500)) // len(world.clients)
        """How many writes of a client wait for their answers."""
        self.kills = dice.choice(KILLS)
        self.floods = [Flood(world, history, client) for client in world.clients]
        self._healed_at = 0.0

    def trouble(self) -> None:
        world = self.world
        world.run_until(world.now + 10.0, lambda: not not_well(world))
        disturbance = Disturbance(world)
        end = world.now + self.seconds
        for flood in self.floods:
            self._keep_busy(flood, end)
        self._kill(disturbance, end)
        world.run_until(end)
        self._healed_at = max(end, self._healed_at)
        world.tell("the load ends")
        world.run_until(self._healed_at)
        world.on_agreed = lambda before, after: None

    def _keep_busy(self, flood: Flood, end: float) -> None:
        if self.world.now < end:
            while self.history.outstanding_of(flood.client) < self.waiting_max:
                flood.step()
            self.world.schedule(PACE_SECONDS, self._keep_busy, flood, end)

    def _kill(self, disturbance: Disturbance, end: float) -> None:
        world, dice = self.world, self.dice
        at = dice.uniform(0.5, end - world.now)
        nodes: list[Process] = list(world.nodes.values())
        match self.kills:
            case "a stall":
                self._stall(disturbance, at, dice.choice(nodes))
            case "node":
                self._kill_one(disturbance, at, dice.choice(nodes))
            case "each node in turn":
                pause = dice.choice((0.3, 1.0))
                for number, node in enumerate(nodes):
                    self._kill_one(disturbance, at + pause * number, node)
            case "all nodes":
                for node in nodes:
                    self._kill_one(disturbance, at, node)
            case "coordinator":
                office = world.agreed.coordinator
                named = [
                    each for each in world.coordinators if office and each.name == office.holder
                ]
                for each in named:
                    self._kill_one(disturbance, at, each)

    def _stall(self, disturbance: Disturbance, delay: float, process: Process) -> None:
        """One piece of work takes long, for example because the machine swaps. What arrived in the
        meantime, answers as well, is handled afterwards: only this node was silent."""
        seconds = self.dice.uniform(*STALL_SECONDS)
        disturbance.killed.add(process.name)
        self.world.schedule(delay, process.server.put, "stall", seconds, lambda: None)
        self._healed_at = max(self._healed_at, self.world.now + delay + seconds)

    def _kill_one(self, disturbance: Disturbance, delay: float, process: Process) -> None:
        world = self.world
        away = self.dice.uniform(0.05, 3.0)
        disturbance.killed.add(process.name)
        world.schedule(delay, process.crash)
        world.schedule(delay + away, world.start, process)
        self._healed_at = max(self._healed_at, world.now + delay + away)

    # --- after the load

    def recover(self) -> None:
        """Within some seconds all is in sync and open, then what was asked is answered, and then a
        write to each partition succeeds at once."""
        world = self.world
        self._wait_until_well(CALM_SECONDS, lambda: not_well(world))
        self._wait_until_well(ANSWERED_SECONDS, self._unanswered)
        if not world.violations:
            self._write_everywhere()

    def _wait_until_well(
        self, seconds: float, problems: Callable[[], list[tuple[str, str]]]
    ) -> None:
        world = self.world
        world.run_until(self._healed_at + seconds, lambda: not problems())
        for problem, partition in problems():
            world.violate(f"{seconds:g} s after an overload: {problem}", partition)

    def _unanswered(self) -> list[tuple[str, str]]:
        waiting = self.history.outstanding
        return [(f"{waiting} writes wait", "")] if waiting else []

    def _write_everywhere(self) -> None:
        """F195: all is writable."""
        world = self.world
        left = set(world.agreed.topology.partitions)
        wanted = {world.partition_of(token_of(f"last.{n}")): f"last.{n}" for n in range(1500)}

        def then(partition: str) -> Callable[[Finished], None]:
            return lambda effect: left.discard(partition) if effect.outcome == "done" else None

        for partition, key in wanted.items():
            self.history.ask(world.clients[0], then(partition), rows=rows_of((key, key)))
        world.run_until(world.now + WRITTEN_SECONDS, lambda: not left)
        for partition in sorted(left):
            world.violate("a write after an overload takes too long", partition)
