"""How is a scenario staged? A world in fair weather whose wires, disks and commits a test can
reach into.

Nothing here decides anything: the brains are the real ones, and what a test holds back, replays or
loses is what a network, a disk or a crash could have held back, doubled or lost.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.client import Finished
from limosa.core.events import AgreedRead, TopologyRead
from limosa.core.messages import Message
from limosa.core.model.changes import Agreed, Commit, Put, layout_key, request_key
from limosa.core.model.intent import Intent, Placement
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    MovePartition,
    MoveToVolume,
    RebuildReplicas,
    RepairPartition,
    Request,
)
from limosa.core.model.topology import Layout, Partition
from limosa.simulation.checkers.leftovers import leftovers, unfinished
from limosa.simulation.checkers.linearizability import check
from limosa.simulation.disk import SimulatedReplica
from limosa.simulation.hosts import CommitAnswer, SimulatedCoordinator, SimulatedNode
from limosa.simulation.network import Network, Weather
from limosa.simulation.reads import ReadUnderWay
from limosa.simulation.rows import token_of
from limosa.simulation.workloads import KINDS, OperationHistory, Workload, rows_of
from limosa.simulation.world import ZONE, World, WorldShape

STEP_SECONDS = 0.0005
"""Shorter than any stage: a commit, a push and a report take longer."""


class Said(Struct, frozen=True):
    """Something on its way from one process to another; without a message it is the metastore's."""

    at: float
    sender: str
    to: str
    message: Message | None
    arrive: Callable[..., None]
    arguments: tuple[object, ...]


def _reads(arguments: tuple[object, ...]) -> list[ReadUnderWay]:
    """The reads that a scheduled step is about."""
    about = [getattr(each, "answer", None) for each in arguments]
    return [each for each in about if isinstance(each, ReadUnderWay)]


class Wire(Network):
    """A network that remembers what was said, and on which some of it waits until it is let go."""

    def __init__(self, world: World) -> None:
        super().__init__(world.dice, world.schedule, Weather())
        self._world = world
        self.said: list[Said] = []
        self.waiting: list[Said] = []
        self.holds: Callable[[Said], bool] = lambda said: False
        self.twist: Callable[[Message], list[Message]] = lambda message: [message]
        """What arrives instead of a message: nothing, another one, or the same one twice."""
        self.blind: set[str] = set()
        """Processes that learn nothing new of the agreed state, though they keep their leases."""
        self.slow: dict[str, float] = {}
        """Processes that every message of another process reaches so many seconds later."""

    def send(
        self,
        sender: str,
        to: str,
        message: Message | None,
        arrive: Callable[..., None],
        *arguments: object,
    ) -> None:
        said = Said(self._world.now, sender, to, message, arrive, arguments)
        if message is not None:
            self.said.append(said)
        if to in self.blind and any(_is_news(each) for each in arguments):
            return
        if self.holds(said):
            self.waiting.append(said)
        elif message is None:
            super().send(sender, to, message, arrive, *arguments)
        else:
            late = self.slow.get(to, 0.0)
            for each in self.twist(message):
                if late:
                    super().send(sender, to, each, self._world.schedule, late, arrive, sender, each)
                else:
                    super().send(sender, to, each, arrive, sender, each)

    def let_go(self) -> None:
        """What was held back arrives after all."""
        self.holds = lambda said: False
        waiting, self.waiting = self.waiting, []
        for said in waiting:
            said.arrive(*said.arguments)


def _is_news(what: object) -> bool:
    """An event of a watch, or an answer of the metastore."""
    return isinstance(getattr(what, "answer", what), Agreed | AgreedRead | TopologyRead)


class Scenario(World):
    """A world that a test leads through one story."""

    def __init__(self, seed: int = 1, **shape: int) -> None:
        self.slow_disks: set[str] = set()
        self.slow_reads: set[str] = set()
        """Partitions whose look-ups do not come back."""
        self._late: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.commits: list[tuple[str, Commit, bool]] = []
        self.loses: Callable[[str, Commit], bool] = lambda by, commit: False
        self.states: list[tuple[float, Agreed]] = []
        self._requests = 0
        super().__init__(seed, replace(WorldShape(partitions=1, clients=2), **shape))
        self.wire = Wire(self)
        self.network = self.wire
        self.history = OperationHistory(self)
        self._noticed = self.metastore.on_change
        self.metastore.on_change = self._notice
        self.until(lambda: all(self.is_open(name) for name in self.agreed.topology.partitions))

    def _notice(self) -> None:
        self._noticed()
        if not self.states or self.states[-1][1] is not self.agreed:
            self.states.append((self.now, self.agreed))

    # --- time

    def schedule(self, delay: float, what: Callable[..., None], *arguments: object) -> None:
        if self._is_slow(what, arguments):
            self._late.append((what, arguments))
        else:
            super().schedule(delay, what, *arguments)

    def _is_slow(self, what: Callable[..., None], arguments: tuple[object, ...]) -> bool:
        process = getattr(what, "__self__", None)
        if not isinstance(process, SimulatedNode):
            return False
        if process.name in self.slow_disks and what.__name__ == "_synced":
            return True
        return any(read.partition in self.slow_reads for read in _reads(arguments))

    def view_hanging(self, node: str) -> None:
        """Reads that hang on a node take their view now, and hang again before they answer."""
        late, self._late = self._late, []
        for what, arguments in late:
            for read in _reads(arguments):
                assert read.admitted is not None
                read.view = self.nodes[node].disk.view(*read.admitted.replica)
                self.nodes[node].later(0.0, self.nodes[node].reads.answer, read)
            if not _reads(arguments):
                self._late.append((what, arguments))

    def hanging_reads(self, node: str | None = None) -> int:
        """Reads that are admitted, and whose next step is held back."""
        return sum(
            len(_reads(arguments))
            for what, arguments in self._late
            if node is None or getattr(what, "__self__", None) is self.nodes[node]
        )

    def hasten(self) -> None:
        """Every disk finishes what it was asked for."""
        self.slow_disks.clear()
        self.slow_reads.clear()
        late, self._late = self._late, []
        for what, arguments in late:
            super().schedule(0.0, what, *arguments)

    def run_for(self, seconds: float) -> None:
        self.run_until(self.now + seconds)
        assert not self.violations

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        end = self.now + seconds
        while not condition():
            assert self.now < end, f"waited in vain: {self.waits()}"
            self.run_until(self.now + STEP_SECONDS)
            assert not self.violations, self.violations

    def until_stage(self, stage: str, partition: str = "p0", seconds: float = 20.0) -> None:
        self.until(lambda: self.stage_name(partition) == stage, seconds)

    def until_ended(self, partition: str = "p0", seconds: float = 30.0) -> None:
        """Every request is answered, nothing is pending, and the transition is over."""
        self.until(lambda: self.is_quiet(partition), seconds)

    def is_quiet(self, partition: str = "p0") -> bool:
        return (
            self.stage_name(partition) == "stable"
            and self.intent(partition).pending is None
            and all(request.state != "waiting" for request in self.agreed.requests.values())
        )

    def when(self, stage: str, action: Callable[[], None], partition: str = "p0") -> None:
        """Once the stage is first committed, before anybody has heard of it."""

        def entered(record: Partition) -> None:
            if record.id == partition and self.stage_name(partition) == stage:
                self.on_stage = lambda record: None
                super(Scenario, self).schedule(0.0, action)

        self.on_stage = entered

    def waits(self, partition: str = "p0") -> str:
        """What the coordinator in office waits for."""
        return self.in_office().brain.waits.get(partition, "")

    # --- the agreed state

    def record(self, partition: str = "p0") -> Partition:
        return self.agreed.topology.partitions[partition]

    def revision(self, partition: str = "p0") -> int:
        return self.agreed.topology.revision_of(partition)

    def knows(self, node: str, partition: str = "p0") -> bool:
        """The node acts on the newest record."""
        return self.nodes[node].brain.topology.revision_of(partition) == self.revision(partition)

    def intent(self, partition: str = "p0") -> Intent:
        return self.agreed.intents[partition]

    def owner(self, partition: str = "p0") -> SimulatedNode:
        grant = self.record(partition).owner
        assert grant is not None
        return self.nodes[grant.replica.node]

    def is_open(self, partition: str) -> bool:
        grant = self.record(partition).owner
        owner = None if grant is None else self.owner(partition).brain.owners.get(partition)
        return owner is not None and owner.open

    def replicas(self, partition: str = "p0") -> set[str]:
        return {replica.node for replica in self.record(partition).replicas}

    def records(self, partition: str = "p0") -> list[tuple[int, Partition]]:
        """Every (revision, record) that the partition ever had, from the first move on."""
        found: list[tuple[int, Partition]] = []
        for _, agreed in self.states:
            pair = (agreed.topology.revision_of(partition), agreed.topology.partitions[partition])
            if not found or found[-1][0] != pair[0]:
                found.append(pair)
        return found

    def stages(self, partition: str = "p0") -> list[str]:
        """The stages that were committed, in their order."""
        names = [
            "stable" if record.transition is None else record.transition.stage
            for _, record in self.records(partition)
        ]
        return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name][1:]

    def commit_all(self, together: list[Commit], by: str) -> CommitAnswer:
        if any(self.loses(by, commit) for commit in together):
            return CommitAnswer(False, self.agreed)
        answer = super().commit_all(together, by)
        self.commits += [(by, commit, answer.made) for commit in together]
        return answer

    def request(self, wish: AnyWish) -> str:
        """An operator asks for something; the name of the request."""
        self._requests += 1
        request = Request(f"r{self._requests:03}", wish)
        guards, why = {request_key(request.id): 0}, f"{wish.about}: {wish.kind}"
        made, _ = self.commit(Commit(guards, (Put(request),), why), "operator")
        assert made
        return request.id

    def move(
        self,
        *nodes: str,
        partition: str = "p0",
        hold_seconds: float = 0.0,
        max_pause_seconds: float = 0.0,
        after_pending: bool = True,
    ) -> str:
        return self.request(
            MovePartition(
                partition,
                tuple(Placement(node) for node in nodes),
                hold_seconds=hold_seconds,
                max_pause_seconds=max_pause_seconds,
                after_pending=after_pending,
            )
        )

    def move_owner(
        self, partition: str = "p0", hold_seconds: float = 0.0, max_pause_seconds: float = 0.0
    ) -> tuple[str, str]:
        """Ask that the owner's replica moves to a node that has none: (source, target)."""
        source = self.owner(partition).name
        target = next(name for name in self.nodes if name not in self.replicas(partition))
        others = sorted(self.replicas(partition) - {source})
        self.move(
            target,
            *others,
            partition=partition,
            hold_seconds=hold_seconds,
            max_pause_seconds=max_pause_seconds,
        )
        return source, target

    def ask_for(self, kind: str, hold_seconds: float = 0.0) -> set[tuple[str, str]]:
        """Ask for a change of that kind: (node, volume) of each replica once it is done.

        The owner's replica moves; another one is rebuilt, or goes to another volume.
        """
        here = {replica.node: replica.volume for replica in self.record().replicas}
        follower = next(node for node in sorted(here) if node != self.owner().name)
        if kind == "move":
            source, target = self.move_owner(hold_seconds=hold_seconds)
            del here[source]
            return {*here.items(), (target, "")}
        if kind == "volume_move":
            here[follower] = "" if here[follower] else "v2"
            places = tuple(Placement(node, volume) for node, volume in sorted(here.items()))
            self.request(MoveToVolume("p0", places, hold_seconds=hold_seconds))
        elif kind == "rebuild":
            self.request(RebuildReplicas("p0", (follower,), hold_seconds))
        else:
            self.request(RepairPartition("p0"))
        return set(here.items())

    def cancel(self, partition: str = "p0") -> str:
        pending = self.intent(partition).pending
        assert pending is not None
        return self.request(CancelChange(partition, pending.trigger))

    def answer(self, request: str) -> tuple[str, str]:
        self.until(lambda: self.agreed.requests[request].state != "waiting")
        answered = self.agreed.requests[request]
        return answered.state, answered.answer

    def new_version(self) -> int:
        """The same ranges under another version of the layout."""
        layout = self.agreed.topology.layouts[ZONE]
        after = Layout(ZONE, layout.version + 1, layout.starts, layout.partitions)
        guards = {layout_key(ZONE): self.agreed.revision_of(layout_key(ZONE))}
        made, _ = self.commit(Commit(guards, (Put(after),), "another version"), "operator")
        assert made
        return after.version

    # --- processes

    def in_office(self) -> SimulatedCoordinator:
        holder = self.agreed.coordinator
        chosen = [c for c in self.coordinators if holder is not None and c.name == holder.holder]
        return chosen[0] if chosen else self.coordinators[0]

    def out_of_office(self) -> SimulatedCoordinator:
        return next(c for c in self.coordinators if c is not self.in_office())

    def freeze(self) -> None:
        """No stage is left until `thaw`; everything else goes on."""
        for coordinator in self.coordinators:
            coordinator.pause()

    def thaw(self) -> None:
        for coordinator in self.coordinators:
            coordinator.resume()

    def isolate(self, node: str) -> None:
        for other in ("metastore", *self.processes):
            if other != node:
                self.network.cut(node, other)

    # --- clients

    def send_put(self, key: str, value: object, client: int = 0) -> list[Finished]:
        """The answer is in the list once it came."""
        answers: list[Finished] = []
        self.history.ask(self.clients[client], answers.append, rows=rows_of((key, value)))
        return answers

    def put(self, key: str, value: object, client: int = 0) -> Finished:
        answers = self.send_put(key, value, client)
        self.until(lambda: bool(answers))
        return answers[0]

    def put_many(self, count: int, prefix: str = "k") -> dict[str, object]:
        rows: dict[str, object] = {f"{prefix}{number}": number for number in range(count)}
        for key, value in rows.items():
            assert self.put(key, value).outcome == "done"
        return rows

    def send_get(self, key: str, client: int = 0, **how: object) -> list[Finished]:
        answers: list[Finished] = []
        self.history.ask(
            self.clients[client], answers.append, keys=(key,), token=token_of(key), **how
        )
        return answers

    def get(self, key: str, client: int = 0, **how: object) -> object:
        answers = self.send_get(key, client, **how)
        self.until(lambda: bool(answers))
        assert answers[0].outcome == "done"
        assert isinstance(answers[0].value, tuple)
        return answers[0].value[0][1]

    def keep_busy(self, seconds: float, every: float = 0.02) -> list[Workload]:
        """Clients that do everything that applications do, all the time."""
        kinds = [KINDS[i % len(KINDS)] for i in range(len(self.clients) * 2)]
        workloads = [kind(self, self.history, self.clients[i // 2]) for i, kind in enumerate(kinds)]
        end = self.now + seconds

        def step(number: int) -> None:
            if self.now < end and not self.healed:
                if self.history.outstanding < 12:
                    workloads[number % len(workloads)].step()
                self.schedule(every, step, number + 1)

        step(0)
        return workloads

    # --- what nodes hold

    def stored(self, node: str, partition: str = "p0") -> list[SimulatedReplica]:
        live = self.nodes[node].disk.live
        return [stored for (of, _), stored in live.items() if of == partition]

    def rows_at(self, node: str, partition: str = "p0") -> dict[str, object]:
        """Rows and tombstones that are committed, or copied."""
        replicas = self.stored(node, partition)
        return {key: row.value for stored in replicas for key, row in stored.rows.items()}

    def has(self, node: str, key: str, partition: str = "p0") -> bool:
        """Among its rows, or in its log."""
        return any(
            key in stored.rows
            or any(
                row.key == key
                for entry in stored.entries
                if entry.rows is not None
                for row in entry.rows.rows  # type: ignore[attr-defined]
            )
            for stored in self.stored(node, partition)
        )

    def image(self) -> dict[tuple[str, str, str], tuple[object, ...]]:
        """All that all disks hold: two equal images mean that nothing was changed."""
        return {
            (node.name, *key): (dict(s.rows), tuple(s.entries), s.watermark, s.epoch, s.begun)
            for node in self.nodes.values()
            for key, s in sorted(node.disk.live.items())
        }

    # --- the end

    def conclude(self, workloads: list[Workload] | None = None) -> None:
        """Heal, let everything end, read everything, and find nothing wrong or left behind."""
        self.wire.let_go()
        self.wire.blind.clear()
        self.hasten()
        self.heal()
        self.run_for(7.0)
        self.until(lambda: not unfinished(self) and not self.history.outstanding, 45.0)
        rows: dict[str, object] = {}
        for key in {operation.key: None for operation in self.history.operations}:
            rows[key] = self.get(key)
        verdict = check(self.history.operations)
        assert verdict.ok, verdict.reason
        assert [problem for each in workloads or [] for problem in each.verdict(rows)] == []
        assert leftovers(self) == []
        assert self.violations == []
        for name, record in self.agreed.topology.partitions.items():
            assert {n for n in self.nodes if self.stored(n, name)} == self.replicas(name)
            assert set(record.in_sync) == set(routing.writers(record))
            assert len(record.in_sync) == len(record.replicas)


def said(
    world: Scenario, kind: type[Message], to: str | None = None, sender: str | None = None
) -> list[Said]:
    """What was said of one kind, in its order."""
    return [
        each
        for each in world.wire.said
        if isinstance(each.message, kind)
        and (to is None or each.to == to)
        and (sender is None or each.sender == sender)
    ]
