"""What happens in a simulated world? It holds processes, a queue of events and the dice."""

import heapq
from bisect import bisect_right
from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.client import Client, ClientSettings, Finished
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import ApplySlice
from limosa.core.events import AgreedRead, TopologyRead
from limosa.core.invariants import broken
from limosa.core.machines.catalogue import REBALANCE, RUN_MOVE
from limosa.core.machines.machine import Life, Work
from limosa.core.model.changes import Agreed, Change, Commit, Put, Topology, united
from limosa.core.model.intent import Intent, Placement
from limosa.core.model.keys import TOKEN_MIN, PartitionId, Position
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Cluster, Layout, Node, Partition, Replica, Zone
from limosa.core.participant.settings import ParticipantSettings
from limosa.simulation.checkers.durability import unsafe_election, unsafe_return
from limosa.simulation.disk import SimulatedDisk
from limosa.simulation.hosts import (
    METASTORE,
    VOLUMES,
    ClientProcess,
    CommitAnswer,
    Process,
    SimulatedCoordinator,
    SimulatedMover,
    SimulatedNode,
)
from limosa.simulation.membership import CLUSTER
from limosa.simulation.metastore import SimulatedMetastore
from limosa.simulation.network import Network, Weather
from limosa.simulation.rows import SimulatedRows
from limosa.simulation.service import TurnQueue, WorkSeconds

ZONE = "zone"
SMALL_WINDOW_BYTES = 40_000
"""Room for two small parts."""


class WorldShape(Struct, frozen=True):
    """The size of the world and the weather of its network; drawn from the seed."""

    nodes: int = 4
    partitions: int = 2
    replicas: int = 3
    min_in_sync: int = 0
    clients: int = 3
    entries_kept: int = 12
    seal_seconds: float = 2.0
    silence_seconds: float = 1.2
    sync_seconds: float = 10.0
    """A disk that needs longer for a sync hangs."""
    patience_seconds: float = 1.0
    """How long the client that only reads waits for an answer."""
    loaded: bool = False
    """Replicas must catch up under load, so they are sent many entries at once."""
    weather: Weather = Weather()
    live_moves: bool = False
    """Movers cut copies differently, copies are spoilt, and moves have conditions."""
    unruly_mover: bool = False
    """The mover copies slices one after the other, dies between them, and corrupts some."""
    late_reads: bool = False
    """A coordinator reads what it has committed some time later, and meanwhile goes on."""
    real_storage: bool = False
    """Nodes store rows in the real log and segments, on a file system in memory."""
    operations_max: int = 24
    """Of one commit: few, so that united commits are divided here, too."""
    service: WorkSeconds | None = None
    """How long the work of nodes, coordinators and the metastore takes; None: no time."""


def edge(life: Life, was: str, now: str) -> list[tuple[str, str]]:
    """The cell of an edge that was just taken."""
    events = life.edges[was].items()
    return [(f"{life.name} {was}", event) for event, to in events if to == now]


class World:
    """Everything that exists in one run."""

    def __init__(self, seed: int, shape: WorldShape, telling: bool = False) -> None:
        self.seed = seed
        self.shape = shape
        self.dice = Random(seed)
        self.now = 0.0
        self.violations: list[tuple[str, PartitionId]] = []
        self.story: list[tuple[float, PartitionId, str]] = []
        self.telling = telling
        self.mix: dict[str, float] = {"read": 1.0, "write": 1.0}
        """Operations of register clients, and their weights."""
        self.healed = False
        self.gone: set[str] = set()
        """Nodes that stay away until the world heals: at most one in a run."""
        self.survivors: set[PartitionId] = set()
        """Partitions of which another replica was in sync when that node went: all acknowledged
        rows are there."""
        self.wiped: set[str] = set()
        """The node with a lost or rotten replica: at most one in a run, since two could lose every
        copy of a row."""
        self.quiet_until = 0.0
        self.deaf: set[str] = set()
        """Nodes whose watch is dead."""
        self.moves = 0
        self.mismatches = 0
        """Moves that were given up because digests differed, though no fault changed the data."""
        self.spoils: set[PartitionId] = set()
        """Partitions whose next copied slice is spoilt."""
        self.spoiled: set[tuple[PartitionId, str]] = set()
        """New replicas that got a spoilt slice: (partition, incarnation)."""
        self.faults = 0
        self.cells: set[tuple[str, str]] = set()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events = 0
        self._placed: dict[tuple[PartitionId, str, int], Position] = {}
        self.on_agreed: Callable[[Agreed, Agreed], None] = lambda before, after: None
        self.on_stage: Callable[[Partition], None] = lambda record: None
        self.on_record: Callable[[PartitionId], None] = lambda partition: None
        self.on_wait: Callable[[PartitionId, Work | None], None] = lambda partition, work: None
        self.on_run: Callable[[str], None] = lambda state: None
        self.on_client_gone: Callable[[ClientProcess], None] = lambda client: None
        settings = ParticipantSettings(
            entries_kept=shape.entries_kept,
            seal_seconds_max=shape.seal_seconds,
            silence_seconds_max=shape.silence_seconds,
            sync_seconds_max=shape.sync_seconds,
            recent_bytes=(1, 500, 4 << 20)[seed % 3],
            replicate_bytes=8 << 20 if shape.loaded else (1, 500, 8 << 20)[seed // 3 % 3],
            shelved_bytes=(1 << 20, 300, 1)[seed // 9 % 3],
        )
        self.settings = settings
        self.network = Network(self.dice, self.schedule, shape.weather)
        self.metastore = SimulatedMetastore(lambda: self.now, self.schedule, settings.lease_seconds)
        self._calls = TurnQueue(self.schedule)
        """The calls of the metastore that wait, in a world in which work takes time."""
        self.agreed = Agreed()
        self.processes: dict[str, Process] = {}
        self.nodes = {
            f"n{i + 1}": SimulatedNode(self, f"n{i + 1}", settings) for i in range(shape.nodes)
        }
        self.coordinators = [SimulatedCoordinator(self, f"k{i + 1}") for i in range(2)]
        self.clients = [ClientProcess(self, f"c{i + 1}") for i in range(shape.clients)]
        self.mover = SimulatedMover(self, "mover")
        self.finished: Callable[[Finished], None] = lambda effect: None
        for process in (*self.nodes.values(), *self.coordinators, *self.clients, self.mover):
            self.processes[process.name] = process
        self.metastore.on_change = self._changed
        self.metastore.commit(self._first_commit())
        for process in self.processes.values():
            process.start()

    def _first_commit(self) -> Commit:
        shape = self.shape
        step = 2**64 // shape.partitions
        names = tuple(f"p{i}" for i in range(shape.partitions))
        starts = tuple(TOKEN_MIN + i * step for i in range(shape.partitions))
        layout = Layout(ZONE, 1, starts, names)
        records: list[Any] = [Zone(ZONE, shape.replicas, shape.min_in_sync), layout]
        records += [Cluster(CLUSTER, CLUSTER), *map(self.member, self.nodes)]
        for index, name in enumerate(names):
            nodes = [f"n{(index + i) % shape.nodes + 1}" for i in range(shape.replicas)]
            replicas = tuple(Replica(node, "made") for node in nodes)
            records.append(Partition(name, ZONE, layout.range_of(index), replicas, replicas))
            records.append(Intent(name, tuple(Placement(node) for node in nodes)))
        return Commit({}, tuple(Put(record) for record in records), "a world")

    # --- members

    def member(self, name: str) -> Node:
        return Node(name, volumes=VOLUMES, host=f"host of {name}")

    def add_node(self) -> SimulatedNode:
        """A machine with an empty disk, which is not a member yet, and does not run."""
        name = f"n{len(self.nodes) + 1}"
        self.nodes[name] = node = SimulatedNode(self, name, self.settings)
        self.processes[name] = node
        return node

    def start(self, process: Process) -> None:
        """Start a process, unless it runs, is gone, or is a node that is not a member or whose disk
        hangs."""
        if process.run or process.name in self.gone:
            return
        if process.name in self.nodes:
            member = self.agreed.topology.nodes.get(process.name)
            if member is None or member.state == "left" or self.nodes[process.name].hangs:
                return
        process.start()

    def end_faults(self) -> None:
        """Nothing more goes wrong, but a node that is gone stays away."""
        self.quiet_until = inf
        self.network.heal()
        self.deaf.clear()
        self.tell("no more faults")
        for node in self.nodes.values():
            node.on_read = None
            node.stalled_until = 0.0
            node.hangs = node.name in self.gone and node.hangs
            node.fill(False)
            node.scrub()
        for process in self.processes.values():
            process.resume()
            self.start(process)
        self._restart_failed()
        self.schedule(1.0, self._restart_failed)  # a node that was paused may notice it only now

    def _restart_failed(self) -> None:
        """An operator restarts nodes that gave a volume up, now that the disks work."""
        for node in self.nodes.values():
            if node.brain.failed_volumes and not node.hangs:
                node.crash()
                self.start(node)

    def heal(self) -> None:
        self.healed = True
        self.gone.clear()
        self.end_faults()
        self.tell("everything heals")

    # --- brains and disks

    def make_coordinator(self, name: str) -> Coordinator:
        return Coordinator(
            name,
            CoordinatorSettings(
                compare_seconds=2.0,
                copy_silence_seconds=4.0 if self.shape.live_moves else 300.0,
                retry_seconds=0.5,
                resize_seconds=2.0,
                runs_kept=3,
            ),
        )

    def make_disk(self, node: str) -> SimulatedDisk:
        if not self.shape.real_storage:
            return SimulatedDisk(self.on_row_commit)
        # Importing Arrow takes longer than a whole run with simulated disks.
        from limosa.simulation.stored_disk import StoredDisk

        dice = Random(f"disk {node} of {self.seed}")
        return StoredDisk(self.on_row_commit, node, dice, self.violate)

    def make_client(self, name: str) -> Client:
        """One client waits long for answers; one has small windows, and gathers writes early."""
        if name.startswith("c1"):
            return Client(name, ClientSettings(attempt_seconds=self.shape.patience_seconds))
        if name.startswith("c2"):
            return Client(name, ClientSettings(gather_parts=2, window_bytes=SMALL_WINDOW_BYTES))
        return Client(name, ClientSettings())

    # --- time

    def schedule(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        self._events += 1
        heapq.heappush(self._queue, (self.now + delay, self._events, what, arguments))

    def run_until(self, end: float, enough: Callable[[], bool] | None = None) -> None:
        queue = self._queue
        checked = self.now
        while queue and queue[0][0] <= end and not self.violations:
            self.now, _, what, arguments = heapq.heappop(queue)
            what(*arguments)
            if enough is not None and self.now - checked > 0.2:
                checked = self.now
                if enough():
                    return
        self.now = max(self.now, end) if not self.violations else self.now

    def close(self) -> None:
        """Release everything that the run used."""
        for node in self.nodes.values():
            node.disk.close()

    # --- the agreed state

    def serve_call(self, caller: str, operations: int, ask: Callable[[], None]) -> None:
        """A call reaches the metastore, which serves one call at a time."""
        if self.shape.service is None:
            ask()
        else:
            self._calls.put(caller, self.shape.service.of_call(operations), ask)

    def commit(self, commit: Commit, by: str) -> tuple[bool, Agreed]:
        answer = self.commit_all([commit], by)
        return answer.made, answer.agreed

    def commit_all(self, together: list[Commit], by: str) -> CommitAnswer:
        """Several as one: all of them happen, or none."""
        differs = sum(self._differs(change) for each in together for change in each.changes)
        stale = self.metastore.commit(united(together))
        made = not stale
        self.mismatches += made and differs
        if self.telling:
            for each in together:
                partition = each.why.split(":", 1)[0]
                self.tell(f"{by} {'commits' if made else 'fails to commit'}: {each.why}", partition)
        return CommitAnswer(made, self.agreed, stale)

    def _differs(self, change: Change) -> bool:
        """Did a verification find a difference in a copy that was not spoilt?"""
        record = change.record if isinstance(change, Put) else None
        if not isinstance(record, Partition) or record.transition is None:
            return False
        made = [(record.id, replica.incarnation) for replica in routing.new_only(record)]
        found = record.transition.given_up_by == "verification"
        return found and self.spoiled.isdisjoint(made)

    def spoilt(self, topology: Topology, change: ApplySlice) -> ApplySlice:
        """The slice as it was read, or spoilt: with a row missing, or with a different row."""
        record = topology.partitions.get(change.partition)
        made = () if record is None else routing.new_only(record)
        wanted = change.partition in self.spoils and not self.healed
        if not wanted or change.incarnation not in [replica.incarnation for replica in made]:
            return change
        rows = [each.rows for each in change.rows if isinstance(each, SimulatedRows) and each.rows]
        if not rows:
            return change
        first, *others = rows[0]
        # A real store need not decide between two rows of one version: there is only one.
        altered = self.dice.random() < 0.5 and not self.shape.real_storage
        kept = (replace(first, value="spoilt"),) if altered else ()
        self.spoils.discard(change.partition)
        self.spoiled.add((change.partition, change.incarnation))
        self.tell(f"the copy of {first.key} is spoilt", change.partition)
        spoilt = SimulatedRows((*kept, *others, *(row for each in rows[1:] for row in each)))
        return replace(change, rows=(spoilt,))

    def _changed(self) -> None:
        before, after = self.agreed, self.metastore.read()
        if after.revision == before.revision:
            return
        self.agreed = after
        for problem in broken(before, after):
            self.violate(problem, "")
        self.on_agreed(before, after)
        if after.topology.generation != before.topology.generation:
            self._notice_stages(before, after)
        self._notice_runs(before, after)
        self._push(after, after.topology.generation != before.topology.generation)

    def _notice_stages(self, before: Agreed, after: Agreed) -> None:
        for name, record in after.topology.partitions.items():
            old = before.topology.partitions.get(name)
            if old is record:
                continue
            if old is not None:
                self._check_promises(old, record)
            was = None if old is None or old.transition is None else old.transition.stage
            now = None if record.transition is None else record.transition.stage
            if was != now:
                self.moves += now is None
                self.on_stage(record)
            else:
                self.on_record(name)

    def _check_promises(self, before: Partition, after: Partition) -> None:
        for check in (unsafe_election, unsafe_return):
            problem = check(self, before, after)
            if problem and not self.wiped:
                self.violate(problem, after.id)

    def _notice_runs(self, before: Agreed, after: Agreed) -> None:
        was, now = before.rebalance.state, after.rebalance.state
        if was != now:
            self.cells.update(edge(REBALANCE, was, now))
            self.on_run(now)
        for run, moves in after.moves.items():
            old = before.moves.get(run, {})
            if old is not moves:
                for number, move in moves.items():
                    if number in old and old[number].state != move.state:
                        self.cells.update(edge(RUN_MOVE, old[number].state, move.state))

    def _push(self, agreed: Agreed, topology: bool) -> None:
        """Notify watchers: late, out of order, or not at all."""
        network = self.network
        read = AgreedRead(agreed)
        for coordinator in self.coordinators:
            network.send(METASTORE, coordinator.name, None, self._pushed, coordinator, read)
        if topology:
            event = TopologyRead(agreed.topology, agreed.revision)
            for node in self.nodes.values():
                if node.name not in self.deaf:
                    network.send(METASTORE, node.name, None, self._pushed, node, event)

    def _pushed(self, process: Process, event: Any) -> None:
        process.deliver(process.run, event)

    # --- what the checkers look at

    def violate(self, what: str, partition: PartitionId) -> None:
        self.violations.append((what, partition))
        self.tell(f"VIOLATION: {what}", partition)

    def tell(self, what: str, partition: PartitionId = "") -> None:
        if self.telling:
            self.story.append((self.now, partition, what))

    def on_row_commit(self, partition: PartitionId, entry: Entry) -> None:
        """A producer's sequence is committed at one position only."""
        if not entry.producer:
            return
        key = (partition, entry.producer, entry.sequence)
        if self._placed.setdefault(key, entry.at) != entry.at:
            self.violate(
                f"applied twice: sequence {entry.sequence} of {entry.producer} at two positions",
                partition,
            )

    def stage_name(self, partition: PartitionId) -> str:
        record = self.agreed.topology.partitions[partition]
        stage = routing.stage_of(record)
        return "stable" if stage is None else stage.name

    def partition_of(self, token: int) -> PartitionId:
        layout = self.agreed.topology.layouts[ZONE]
        return layout.partitions[bisect_right(layout.starts, token) - 1]
