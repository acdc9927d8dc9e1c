"""What does one seed do? It builds a world, runs workloads and faults, heals it, and checks it.

Every run has three phases: trouble, healing (in which every operation must end), and checks.
"""

from itertools import chain
from random import Random
from typing import Any

from msgspec import Struct, structs

from limosa.core import routing
from limosa.core.client import Finished
from limosa.core.events import CollectionDue
from limosa.core.machines.machine import Work
from limosa.core.model.changes import Commit, Put, layout_key, request_key
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    CompleteMove,
    MovePartition,
    MoveToVolume,
    RebuildReplicas,
    RepairPartition,
    Request,
    ReverseMove,
)
from limosa.core.model.topology import Layout, Partition
from limosa.core.participant.settings import ParticipantSettings
from limosa.simulation.checkers.leftovers import leftovers, unfinished
from limosa.simulation.checkers.linearizability import check
from limosa.simulation.checkers.recovery import not_well
from limosa.simulation.faults import inject
from limosa.simulation.membership import Membership
from limosa.simulation.overload import Overload
from limosa.simulation.rebalancing import Rebalancing
from limosa.simulation.rows import token_of
from limosa.simulation.themes import (
    COLLECTIONS,
    FALLBACKS,
    MEMBERS,
    OUTAGES,
    OVERLOAD,
    REPAIRS,
    RUNS,
    SEALS,
    STORIES,
    THEMES,
    Theme,
    weather_of,
)
from limosa.simulation.workloads import (
    CROWD,
    KINDS,
    Bank,
    OperationHistory,
    Registers,
    StickyReader,
    Then,
    UniqueSet,
    Workload,
)
from limosa.simulation.world import ZONE, World, WorldShape

HEALING_SECONDS = 45.0
LATEST_MESSAGE_SECONDS = 7.0
RECOVERY_SECONDS = 15.0
"""So long after the last fault, everything is served and in sync again, under load."""
LIVE_MOVES = 6
"""One in so many seeds is about failures of a copy, and about moves with conditions."""
RUN_SEEDS = 12
"""Of so many seeds, two are about runs of many moves, and one is about repairs."""
RARE_SEEDS = 60
"""Of so many seeds, one is about sealed owners, one about fallbacks, one about collections, one
about overload, and one follows a story."""

LATE_READS = (16, 43)
"""In these, which are about members and runs, the coordinator reads its own commits late."""


class Result(Struct, frozen=True):
    """What one seed showed."""

    seed: int
    operations: int
    moves: int
    faults: int
    violations: tuple[tuple[str, str], ...]
    cells: tuple[tuple[str, str], ...]
    story: tuple[tuple[float, str, str], ...] = ()


def is_about_runs(seed: int) -> bool:
    return seed % RUN_SEEDS in (7, 10)


def is_about_repairs(seed: int) -> bool:
    return seed % RUN_SEEDS == 3


def is_overload(seed: int) -> bool:
    return seed % RARE_SEEDS == 38


def theme_of(seed: int, dice: Random) -> Theme:
    if is_about_repairs(seed):
        return REPAIRS
    if seed % RARE_SEEDS == 14:
        return SEALS
    if seed % RARE_SEEDS == 26:
        return FALLBACKS
    if seed % RARE_SEEDS == 48:
        return COLLECTIONS
    if is_overload(seed):
        return OVERLOAD
    if seed % RARE_SEEDS == 59:
        return dice.choice(STORIES)
    if seed % RUN_SEEDS in (1, 8):
        return dice.choice(OUTAGES)
    if seed % RUN_SEEDS == 4:
        return MEMBERS
    return dice.choice(RUNS if is_about_runs(seed) else THEMES)


def shape_of(theme: Theme, dice: Random) -> WorldShape:
    replicas = dice.choice(theme.replicas)
    shape = WorldShape(
        nodes=dice.choice((replicas + 1, *theme.nodes)),
        partitions=dice.choice(theme.partitions),
        replicas=replicas,
        clients=dice.choice(theme.client_counts),
        min_in_sync=dice.choice((0, 0, 1)),
        entries_kept=dice.choice(theme.entries_kept),
        seal_seconds=dice.choice((0.4, 2.0)),
        silence_seconds=dice.choice((0.4, 1.2)),
        patience_seconds=dice.choice((1.0, 5.5)),
        sync_seconds=2.0,
        loaded=theme.loaded,
        weather=weather_of(theme, dice),
    )
    if not theme.services:
        return shape
    usual = ParticipantSettings()
    return structs.replace(
        shape,
        service=dice.choice(theme.services),
        operations_max=500,
        silence_seconds=usual.silence_seconds_max,
    )


def run_seed(
    seed: int,
    telling: bool = False,
    world_type: type[World] = World,
    real_storage: bool = False,
) -> Result:
    dice = Random(f"shape {seed}")
    theme = theme_of(seed, dice)
    about_copies = seed % LIVE_MOVES == 5 or is_about_repairs(seed)
    shape = structs.replace(
        shape_of(theme, dice),
        live_moves=about_copies,
        unruly_mover=about_copies,
        late_reads=seed % RARE_SEEDS in LATE_READS,
        real_storage=real_storage,
    )
    world = world_type(seed, shape, telling)
    world.mix = theme.clients
    history = OperationHistory(world)
    kind = OverloadDrama if theme.services else Drama
    drama = kind(world, history, theme, dice)
    try:
        drama.trouble()
        drama.recover()
        drama.heal()
        drama.reckon()
    finally:
        world.close()
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
    """The three phases of one run."""

    def __init__(self, world: World, history: OperationHistory, theme: Theme, dice: Random) -> None:
        self.world = world
        self.history = history
        self.theme = theme
        self.dice = dice
        self.seconds = dice.choice(theme.seconds)
        self.pace = dice.choice(theme.paces)
        self.aimed = dice.choice(theme.aimed)
        self.more_dice = Random(f"live moves {world.seed}")
        self.rebalancing = Rebalancing(world)
        self.membership = Membership(world, ZONE)
        self.requests = 0
        self.workloads: list[Workload] = []
        reader, *others = world.clients
        self.workloads.append(StickyReader(world, history, reader))
        for client in others:
            self.workloads.append(Registers(world, history, client))
            kind = Bank if theme.bank else dice.choice(CROWD if theme.crowded else KINDS)
            self.workloads.append(kind(world, history, client))

    # --- phase one

    def trouble(self) -> None:
        world, dice = self.world, self.dice
        world.run_until(0.5)
        world.on_stage = self._stage_entered
        world.on_wait = self._waited
        world.on_record = self._waited
        world.on_run = self._run_turned
        end = world.now + self.seconds
        for workload in self.workloads:
            self._keep_busy(workload, end)
        at = world.now + dice.random()
        while at < end:
            world.schedule(at - world.now, self._operate)
            at += dice.expovariate(1 / self.theme.operator_seconds)
        if self.theme.run_seconds:
            self._operate_runs(end)
        if self.theme.member_seconds:
            self._operate_members(end)
        at = world.now + dice.uniform(0.2, 3)
        while at < end:
            partition = dice.choice(list(world.agreed.topology.partitions))
            world.schedule(at - world.now, inject, world, partition, self._fault())
            at += dice.expovariate(1 / dice.choice(self.theme.fault_seconds))
        world.run_until(end)

    def _operate_runs(self, end: float) -> None:
        if self.world.now < end and not self.world.healed:
            self.rebalancing.operate()
            delay = self.rebalancing.dice.expovariate(1 / self.theme.run_seconds)
            self.world.schedule(delay, self._operate_runs, end)

    def _operate_members(self, end: float) -> None:
        if self.world.now < end and not self.world.healed:
            self.membership.operate()
            delay = self.membership.dice.expovariate(1 / self.theme.member_seconds)
            self.world.schedule(delay, self._operate_members, end)

    def _run_turned(self, state: str) -> None:
        """A run changed its state: often the coordinator dies at that moment."""
        if state != "idle" and self.rebalancing.dice.random() < self.theme.at_turns:
            partition = next(iter(self.world.agreed.topology.partitions))
            delay = self.rebalancing.dice.choice((0.0, 0.005, 0.1))
            self.world.schedule(delay, inject, self.world, partition, "replace_coordinator")

    def _keep_busy(self, workload: Workload, end: float) -> None:
        if self.world.now < end and not self.world.healed:
            most = 40 if isinstance(workload, UniqueSet) and self.theme.crowded else 6
            if self.history.outstanding_of(workload.client) < most:
                workload.step()
            delay = self.world.dice.expovariate(1 / (self.pace * 2))
            self.world.schedule(delay, self._keep_busy, workload, end)

    def _fault(self) -> str:
        faults = self.theme.faults
        return self.dice.choices(tuple(faults), tuple(faults.values()))[0]

    def _stage_entered(self, record: Partition) -> None:
        stage = self.world.stage_name(record.id)
        self._spoil(record)
        if self.theme.stages and stage not in self.theme.stages:
            return
        if not self.world.healed and self.dice.random() < self.aimed:
            delay = self.dice.choice(self.theme.delays)
            self.world.schedule(delay, inject, self.world, record.id, self._fault())

    def _spoil(self, record: Partition) -> None:
        """Spoil the next copied slice, as a bad disk, a bad network or a bug would."""
        live, stage = self.world.shape.live_moves, routing.stage_of(record)
        copies = stage is not None and Work.COPY in stage.work and not self.world.healed
        if live and copies and self.more_dice.random() < 0.3:
            self.world.spoils.add(record.id)
            if self.more_dice.random() < 0.5:
                fault = self.more_dice.choice(("kill_mover", "replace_coordinator"))
                delay = self.more_dice.uniform(0.0, 0.6)
                self.world.schedule(delay, inject, self.world, record.id, fault)

    def _waited(self, partition: str, work: Work | None = None) -> None:
        """The coordinator starts to wait for something: a moment at which a fault may happen."""
        for waited, fault in self.theme.at_waits.items():
            if work is waited and self.dice.random() < 0.5:
                self.world.schedule(0.0005, inject, self.world, partition, fault)
        if not self.world.healed and self.dice.random() < self.aimed * self.theme.waits:
            delay = self.dice.choice((0.0, 0.003, 0.02))
            self.world.schedule(delay, inject, self.world, partition, self._fault())

    def _operate(self) -> None:
        """An operator makes a request, sensible or not."""
        world, dice = self.world, self.dice
        partition = dice.choice(list(world.agreed.topology.partitions))
        record = world.agreed.topology.partitions[partition]
        operator = self.theme.operator
        what = dice.choices(tuple(operator), tuple(operator.values()))[0]
        match what:
            case "move":
                conditions = self._conditions()
                self._ask(MovePartition(partition, self._elsewhere(record), **conditions))
            case "volume_move":
                self._ask(MoveToVolume(partition, self._other_volume(record)))
            case "rebuild":
                self._ask(RebuildReplicas(partition, (dice.choice(record.replicas).node,)))
            case "repair":
                self._ask(RepairPartition(partition))
            case "cancel":
                pending = world.agreed.intents[partition].pending
                self._ask(CancelChange(partition, 0 if pending is None else pending.trigger))
            case "reverse":
                self._ask(ReverseMove(partition))
            case "complete":
                self._ask(CompleteMove(partition))
            case "version":
                self._new_version()
            case "collect":
                for node in world.nodes.values():
                    node.deliver(node.run, CollectionDue(partition))

    def _conditions(self) -> dict[str, Any]:
        """A move's hold, its longest pause, and whether it may wait for another move."""
        hold = self.dice.choice(self.theme.hold_seconds)
        if not self.world.shape.live_moves:
            return {"hold_seconds": hold, "after_pending": True}
        return {
            "hold_seconds": hold,
            "max_pause_seconds": self.more_dice.choice((0.0, 0.0, 0.0, 0.05)),
            "after_pending": self.more_dice.random() < 0.7,
        }

    def _ask(self, wish: AnyWish) -> None:
        self.requests += 1
        request = Request(f"r{self.requests:03}", wish)
        why = f"{wish.about}: {wish.kind} is asked for"
        self.world.commit(Commit({request_key(request.id): 0}, (Put(request),), why), "operator")

    def _elsewhere(self, record: Partition) -> tuple[Placement, ...]:
        """The placements with one node replaced, often the owner's."""
        here = [Placement(r.node, r.volume) for r in record.replicas]
        free = [name for name in self.world.nodes if name not in {p.node for p in here}]
        leaving = self.dice.randrange(len(here))
        owner = None if record.owner is None else record.owner.replica
        if owner in record.replicas and self.dice.random() < self.theme.owner_moves:
            leaving = record.replicas.index(owner)
        here[leaving] = Placement(self.dice.choice(free or list(self.world.nodes)))
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

    # --- phase two

    def recover(self) -> None:
        """Faults end, but a node that is gone stays away, and the load goes on."""
        world = self.world
        if not world.gone and not self.theme.loaded:
            return
        world.end_faults()
        end = world.now + RECOVERY_SECONDS
        for workload in self.workloads:
            self._keep_busy(workload, end)
        world.run_until(end, lambda: not not_well(world))
        for problem, partition in not_well(world):
            late = f"not well {RECOVERY_SECONDS:g} s after the last fault"
            world.violate(f"{late}: {problem}", partition)

    def heal(self) -> None:
        world = self.world
        world.heal()
        # First, all messages that are still in the network arrive, however late.
        world.run_until(world.now + LATEST_MESSAGE_SECONDS)
        world.run_until(world.now + HEALING_SECONDS, lambda: not self._unfinished())
        for problem, partition in self._unfinished():
            world.violate(f"never ended: {problem}", partition)

    def _unfinished(self) -> list[tuple[str, str]]:
        self._cancel_what_waits()
        self.rebalancing.let_end()
        waiting = unfinished(self.world)
        if self.history.outstanding:
            waiting.append((f"{self.history.outstanding} operations", ""))
        return waiting

    def _cancel_what_waits(self) -> None:
        """Cancel moves whose pause would be too long: they may wait for ever."""
        agreed = self.world.agreed
        asked = [each.partition for each in agreed.requests.values() if each.state == "waiting"]
        for name, intent in agreed.intents.items():
            pending = intent.pending
            limited = pending is not None and pending.max_pause_seconds and intent.cancel is None
            stage = routing.stage_of(agreed.topology.partitions[name])
            too_late = stage is not None and not stage.session
            if pending is not None and limited and name not in asked and not too_late:
                self._ask(CancelChange(name, pending.trigger))

    # --- phase three

    def reckon(self) -> None:
        world, history = self.world, self.history
        rows = {} if world.violations else self._read_all()
        history.unanswered()
        verdict = check(history.operations)
        if not verdict.ok:
            world.violate(
                f"not linearizable: {verdict.reason}", world.partition_of(token_of(verdict.key))
            )
        if world.violations:
            return
        if world.mismatches:
            world.violate("a copy differed from its source, though no fault changed the data", "")
        for workload in self.workloads:
            for problem in workload.verdict(rows):
                world.violate(problem, "")
        for problem, partition in leftovers(world):
            world.violate(problem, partition)

    def _read_all(self) -> dict[str, object]:
        rows: dict[str, object] = {}
        held = chain.from_iterable(workload.keys() for workload in self.workloads)
        keys = list(dict.fromkeys(held))

        def then(key: str) -> Then:
            def record(effect: Finished) -> None:
                found = effect.value if effect.outcome == "done" else ((0, None),)
                assert isinstance(found, tuple)
                rows[key] = found[0][1]

            return record

        self.world.run_until(self.world.now + 0.01)
        for key in keys:
            self.history.ask(self.world.clients[0], then(key), keys=(key,), token=token_of(key))
        self.world.run_until(self.world.now + 5, lambda: not self.history.outstanding)
        if self.history.outstanding:
            self.world.violate("a read of a healed world was not answered", "")
        return rows


class OverloadDrama(Drama):
    """Too many writes, instead of requests and faults."""

    def __init__(self, world: World, history: OperationHistory, theme: Theme, dice: Random) -> None:
        super().__init__(world, history, theme, dice)
        self.overload = Overload(world, history, dice)
        self.workloads = [*self.overload.floods]

    def trouble(self) -> None:
        self.overload.trouble()

    def recover(self) -> None:
        self.overload.recover()
