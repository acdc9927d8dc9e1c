"""Which processes run in the simulated world? They run the real brains, and carry out effects.

A process can crash, be paused and be restarted. Its clock has any offset, and a rate within the
margin that leases allow for. Answers to an earlier run of a process never reach a later run.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from limosa.core.client import Asked, Finished
from limosa.core.coordinator.office import Office
from limosa.core.effects import (
    AbandonVolume,
    AcquireLease,
    AdvanceWatermark,
    ApplySlice,
    Compare,
    DiscardReplica,
    Effect,
    EndRun,
    Explain,
    LinkRows,
    MakeCommit,
    ReadSlice,
    ReadTail,
    ReadTopology,
    Send,
    ShelveSlice,
    StartCopy,
    Surprise,
    VolumeEffect,
)
from limosa.core.events import (
    AgreedRead,
    CommitLost,
    Compared,
    Deposed,
    DigestTaken,
    Elected,
    LeaseEnded,
    LeaseGranted,
    Measured,
    Received,
    ReplicaDamaged,
    RowsLinked,
    SliceRead,
    SliceShelved,
    Started,
    Stored,
    TailRead,
    Ticked,
    TopologyRead,
    VolumeLost,
)
from limosa.core.messages import (
    Chunk,
    Denied,
    End,
    Fetch,
    Fetched,
    Landed,
    Message,
    Read,
    Write,
    Written,
)
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, lease_key
from limosa.core.model.keys import Incarnation, PartitionId, Position
from limosa.core.model.topology import Replica
from limosa.core.participant.admission import admissible
from limosa.core.participant.brain import Participant
from limosa.core.participant.settings import ParticipantSettings
from limosa.simulation.checkers.durability import unsafe_ack, unsafe_commit
from limosa.simulation.reads import NodeReads
from limosa.simulation.rows import SimulatedRows
from limosa.simulation.service import TICKS, TurnQueue, sender_of, size_of

if TYPE_CHECKING:
    from limosa.simulation.world import World

METASTORE = "metastore"
LOST_SECONDS = 1.0
"""A call of the metastore without an answer after so many seconds counts as lost."""
RESTART_SECONDS = 1.0
"""After so long a supervisor restarts a node that has ended."""
VOLUMES = ("", "v2")
"""The volumes of every node."""


class CommitAnswer(NamedTuple):
    """What became of a commit; `stale` names its stale guards, if they are known."""

    made: bool
    agreed: Agreed
    stale: tuple[str, ...] = ()


class Process(ABC):
    """A process that can stop and run again, with a clock of its own."""

    tick_seconds = 0.15
    serves = False
    """Whether its work takes time in a world in which work does."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.service = world.shape.service if self.serves else None
        self.server = TurnQueue(world.schedule)
        self.run = 0
        """The number of this start of the process; 0: it does not run."""
        self.starts = 0
        self.paused = False
        self._inbox: list[tuple[int, Any]] = []
        self.offset = world.dice.uniform(-1e4, 1e4)
        self.rate = 1 + world.dice.uniform(-0.04, 0.04)

    @property
    def now(self) -> float:
        return self.offset + self.world.now * self.rate

    def start(self) -> None:
        self.starts += 1
        self.run = self.starts
        self.paused = False
        self._inbox.clear()
        self.server.clear()
        self.boot()
        self.tick(self.run)

    @abstractmethod
    def boot(self) -> None:
        """Begin a run with the contents of the disk."""

    def crash(self) -> None:
        self.run = 0
        self.paused = False
        self._inbox.clear()
        self.server.clear()

    def pause(self) -> None:
        self.paused = bool(self.run)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            waiting, self._inbox = self._inbox, []
            for run, event in waiting:
                self.deliver(run, event)

    def tick(self, run: int) -> None:
        if run == self.run:
            if not self.paused and not self.server.has(TICKS):
                self.on_tick()
                self.deliver(run, Ticked())
            jitter = 0.8 + 0.4 * self.world.dice.random()
            self.world.schedule(self.tick_seconds * jitter, self.tick, run)

    def on_tick(self) -> None:  # noqa: B027
        """What the thread that ticks does before it waits for the brain."""

    def receive(self, sender: str, message: Message) -> None:
        if self.run:
            self.deliver(self.run, Received(sender, message))

    def deliver(self, run: int, event: Any) -> None:
        """Handle an event, when its turn has come."""
        if run != self.run or not run:
            return
        if self.service is None or self.is_beside(event):
            self.take(run, event)
        else:
            seconds = self.service.of_event(event)
            self.server.put(sender_of(event), seconds, self.take, run, event)

    def is_beside(self, event: Any) -> bool:
        """Is the event handled by a thread that never waits for the brain?"""
        return False

    def take(self, run: int, event: Any) -> None:
        if run != self.run or not run:
            return
        if self.paused:
            if not isinstance(event, Ticked):
                self._inbox.append((run, event))
            return
        if isinstance(event, _Later):
            event.then(event.answer)
        else:
            self.on_event(event)

    def later(self, seconds: float, what: Callable[[Any], None], about: object) -> None:
        """Call `what` after a delay, in this run, and not while the process is paused."""
        self.world.schedule(seconds, self.deliver, self.run, _Later(what, about))

    @abstractmethod
    def on_event(self, event: Any) -> None:
        """Hand the event to the brain, and carry out its effects."""

    def send(self, to: str, message: Message) -> None:
        target = self.world.processes.get(to)
        if target is not None:
            self.world.network.send(self.name, to, message, target.receive, self.name, message)

    def call(
        self,
        what: Callable[[], Any],
        then: Callable[[Any], None],
        operations: int = 0,
        beside: bool = False,
    ) -> None:
        """Call the metastore: the call may be lost, or have its effect and the answer is lost.

        `operations` are those of a transaction; 0: it is a read or a renewal. `beside`: the answer
        does not wait for the brain.
        """
        run, network = self.run, self.world.network
        arrive = self.take if beside else self.deliver

        def ask() -> None:
            answer = _Later(then, what())
            network.send(METASTORE, self.name, None, arrive, run, answer)

        network.send(self.name, METASTORE, None, self.world.serve_call, self.name, operations, ask)

    def read_topology(self, asked: bool) -> None:
        def read(agreed: Agreed) -> None:
            self.on_event(TopologyRead(agreed.topology, agreed.revision, asked))

        self.call(lambda: self.world.agreed, read)


class _Later(NamedTuple):
    """A step that is delivered like an event: not while the process is paused."""

    then: Callable[[Any], None]
    answer: Any


class SimulatedNode(Process):
    """A node: a participant, a disk, and a lease."""

    serves = True

    def __init__(self, world: "World", name: str, settings: ParticipantSettings) -> None:
        super().__init__(world, name)
        self.settings = settings
        self.disk = world.make_disk(name)
        self.full = False
        """Nothing more fits on the disk: what was written is stored when there is space."""
        self.hangs = False
        """No sync ends; a sync that is under way ends when the disk answers again."""
        self.on_read: Callable[[], None] | None = None
        """Called when the next read is admitted."""
        self.stalled_until = 0.0
        """Until then the disk finishes no sync."""
        self.rotten: set[tuple[PartitionId, Incarnation]] = set()
        """Replicas with damaged files: their rows can't be read, and nobody knows it yet."""
        self._begin()

    def _begin(self) -> None:
        self.brain = Participant(self.name, self.settings)
        self.reads = NodeReads(self)
        self._syncing = False
        self._wanted = 0

    def boot(self) -> None:
        self._begin()
        held = tuple(stored.restored() for _, stored in sorted(self.disk.live.items()))
        self.on_event(Started(held, VOLUMES))
        self.fill(self.full)

    def fill(self, full: bool) -> None:
        self.full = full
        self.deliver(self.run, Measured({}, {}, full=VOLUMES if full else ()))

    def stop(self) -> None:
        """Stop as a real node does: serve nothing more, then revoke the lease. Reads go on."""
        lease = self.brain.lease
        if lease is not None:
            self.on_event(LeaseEnded(lease.id))
            revoke = partial(self.world.metastore.revoke, lease.id)
            self.call(revoke, lambda answer: None, operations=1)
        self.brain.is_over = True

    def crash(self) -> None:
        if self.run:
            super().crash()
            self.disk.crash(self.world.dice, self.name)

    def still_has(self, partition: PartitionId, incarnation: Incarnation) -> bool:
        """Whether the node holds the replica, and did not give up the volume that it is on."""
        known = self.brain.held if self.run else self.disk.live
        return (partition, incarnation) in known

    def lose_volume(self, volume: str) -> None:
        """The volume fails; what it held is gone, and it is empty after a restart."""
        self.on_event(VolumeLost(volume, "it failed"))
        self._empty(volume)

    def _empty(self, volume: str) -> None:
        for (partition, incarnation), stored in list(self.disk.live.items()):
            if stored.replica.volume == volume:
                self.disk.write(DiscardReplica(partition, incarnation, 0), self.name)

    def tick(self, run: int) -> None:
        if run == self.run and not self.paused:
            self._beat()
        super().tick(run)

    def _beat(self) -> None:
        """What the thread of the heartbeat does: it never waits for the brain."""
        renewals, sent_at = self.brain.leasing.renewals, self.now
        lease = renewals.due(sent_at)
        if lease is None:
            return

        def answered(alive: bool) -> None:
            if alive:
                renewals.renewed(self.now, lease, sent_at)
            else:
                self.on_event(LeaseEnded(lease))

        renew = partial(self.world.metastore.renew, lease_key(self.name), lease)
        self.call(renew, answered, beside=True)

    def is_beside(self, event: Any) -> bool:
        """Reads do not wait for the brain."""
        return isinstance(event, Received) and type(event.message) is Read

    def on_event(self, event: Any) -> None:
        if self.brain.is_over:
            return
        if isinstance(event, Received):
            if type(event.message) is Read:
                self.reads.begin(event.sender, event.message)
                return
            if type(event.message) is Write:
                event = self._looked_up(event, event.message)
        for effect in self.brain.handle(self.now, event):
            if not self.run:
                return  # an effect has ended this run
            self.reads.race()
            self.carry_out(effect)
        self.reads.race()

    def _looked_up(self, event: Received, message: Write) -> Received:
        """Look up the version for a compare-and-set, in the order of the partition's writes."""
        message = admissible(self.brain.topology, message, ())
        event = replace(event, message=message)
        if message.expected is None:
            return event
        owner = self.brain.owners.get(message.partition)
        if owner is None:
            return event
        stored = self.disk.live.get((message.partition, owner.held.replica.incarnation))
        rows = message.rows
        assert isinstance(rows, SimulatedRows)
        if self.finds_damage(message.partition, owner.held.replica.incarnation):
            return Received(event.sender, message, None)
        found = 0 if stored is None else stored.newest(rows.rows[0].key)
        return Received(event.sender, message, found)

    def finds_damage(self, partition: PartitionId, incarnation: Incarnation) -> bool:
        """Whether the rows can't be read; what was found is reported as a real node does."""
        if (partition, incarnation) not in self.rotten:
            return False
        self.later(0.0, self.on_event, ReplicaDamaged(partition, incarnation, "rotten"))
        return True

    def scrub(self) -> None:
        """Find damage that nobody has read."""
        for partition, incarnation in self.rotten & self.disk.live.keys():
            if self.run:
                self.finds_damage(partition, incarnation)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(to=to, message=message):
                if isinstance(message, Written):
                    problem, partition = unsafe_ack(self.world, self, message.at)
                    if problem:
                        self.world.violate(problem, partition)
                self.send(to, message)
            case VolumeEffect():
                self._store(effect)
            case ReadTopology():
                self.read_topology(asked=True)
            case AcquireLease():
                self._register()
            case ReadTail():
                slow = 0.002 * self.world.dice.random()
                self.later(slow, self._read_tail, effect)
            case ReadSlice():
                self._read_slice(effect)
            case LinkRows():
                self.later(0.005, self._link_rows, effect)
            case ShelveSlice():
                self._shelve(effect)
            case MakeCommit(commit=commit):
                make = partial(self.world.commit, commit, self.name)
                self.call(make, lambda answer: None, operations=size_of([commit]))
            case AbandonVolume(volume=volume, why=why):
                # What the volume holds is there again after a restart.
                self.world.tell(f"{self.name} gives up its volume {volume!r}: {why}")
            case EndRun(why=why):
                self.world.tell(f"{self.name} ends: {why}")
                self.crash()
                self.world.schedule(RESTART_SECONDS, self._restart, self.starts)
            case Surprise(partition=partition, what=what):
                self.world.violate(f"{self.name}: {what}", partition)
            case _:
                raise AssertionError(effect)

    def _restart(self, starts: int) -> None:
        """As a supervisor does, unless somebody else was quicker. A process whose disk hangs does
        not get through its start."""
        if self.run or starts != self.starts:
            return
        if self.hangs:
            self.world.schedule(RESTART_SECONDS, self._restart, starts)
        else:
            self.world.start(self)

    def _register(self) -> None:
        """The registration may arrive late; that a run reads its key first takes no time here."""
        sent_at = self.now
        previous = self.world.metastore.revision_of(lease_key(self.name))

        def answered(answer: tuple[int, int] | None) -> None:
            if answer is not None:
                self.on_event(LeaseGranted(answer[0], answer[1], sent_at))

        register = partial(self.world.metastore.register, self.name, previous)
        self.call(register, answered, operations=2)

    def _store(self, change: VolumeEffect) -> None:
        if isinstance(change, ApplySlice):
            change = self.world.spoilt(self.brain.topology, change)
        self.disk.write(change, self.name)
        if isinstance(change, AdvanceWatermark) and (
            problem := unsafe_commit(self.world, self, change)
        ):
            self.world.violate(problem, change.partition)
        if isinstance(change, AdvanceWatermark) and change.digest:
            stored = self.disk.live.get((change.partition, change.incarnation))
            if stored is not None:
                taken = DigestTaken(
                    change.partition, change.incarnation, change.to, stored.digest()
                )
                self.world.schedule(0.0001, self.deliver, self.run, taken)
        if change.ticket:
            self._wanted = change.ticket
            if not self._syncing:
                self._sync()

    def _sync(self) -> None:
        self._syncing = True
        dice = self.world.dice
        stall = 0.2 * dice.random() if dice.random() < 0.01 else 0.0
        delay = 0.0002 + 0.001 * dice.random() + stall
        delay = max(delay, self.stalled_until - self.world.now)
        self.world.schedule(delay, self._synced, self.run, self._wanted)

    def _synced(self, run: int, ticket: int) -> None:
        """The disk finishes a sync also while the process is paused."""
        if run != self.run:
            return
        if self.hangs or self.full:
            self.world.schedule(0.1, self._synced, run, ticket)
            return
        self.disk.sync(ticket, self.name)
        self._syncing = False
        if self._wanted > ticket:
            self._sync()
        self.deliver(run, Stored(ticket))

    def _read_tail(self, effect: ReadTail) -> None:
        stored = self.disk.live.get((effect.partition, effect.incarnation))
        entries = () if stored is None else stored.tail(effect.after, effect.bytes_max)
        self.on_event(TailRead(effect.ticket, entries))

    def _read_slice(self, effect: ReadSlice) -> None:
        stored = self.disk.live[effect.partition, effect.incarnation]
        if self.finds_damage(effect.partition, effect.incarnation):
            return
        rows = stored.slice(effect.slice, effect.slices)
        through = stored.watermark
        if effect.up_to is not None:
            through = min(effect.up_to, through)
            rows = SimulatedRows(tuple(row for row in rows.rows if row.version <= through))
        read = SliceRead(effect.ticket, rows, through)
        self.world.schedule(0.001, self.deliver, self.run, read)

    def _link_rows(self, effect: LinkRows) -> None:
        """One of the two replicas may be gone by now."""
        source = self.disk.live.get((effect.partition, effect.source))
        target = self.disk.live.get((effect.partition, effect.incarnation))
        through: int | None = None
        if source is not None and target is not None:
            through = source.watermark
            self._store(
                ApplySlice(effect.partition, effect.incarnation, 0, (source.slice(0, 1),), ())
            )
        self.on_event(RowsLinked(effect.ticket, through))

    def _shelve(self, effect: ShelveSlice) -> None:
        """Store the slice later: other slices may come first."""
        dice = self.world.dice
        often = 0.4 if self.world.shape.unruly_mover else 0.1
        slow = 3.0 if dice.random() < often else 0.01
        waiting = (effect, self.disk.collected(effect.partition, effect.incarnation))
        self.later(slow * dice.random(), self._put_on_the_shelf, waiting)

    def _put_on_the_shelf(self, waiting: tuple[ShelveSlice, Position]) -> None:
        effect, collected = waiting
        problem = ""
        if (effect.partition, effect.incarnation) not in self.disk.live:
            problem = "the replica is gone"
        elif sum(rows.digest() for rows in effect.rows) != effect.digest:
            problem = "the digest differs"
        elif self.disk.collected(effect.partition, effect.incarnation) > collected:
            problem = "copied rows from before a collection"
        if problem:
            self.on_event(SliceShelved(effect.ticket, problem=problem))
            return
        kept = effect.rows[: self.world.dice.randint(0, len(effect.rows))]
        change = ApplySlice(effect.partition, effect.incarnation, 0, kept, ())
        self.disk.shelve(self.world.spoilt(self.brain.topology, change), self.name)
        self.on_event(SliceShelved(effect.ticket, effect.rows[len(kept) :]))


class SimulatedCoordinator(Process):
    """One of several candidates for the office."""

    tick_seconds = 0.3
    serves = True

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.boot()

    def boot(self) -> None:
        self.brain = self.world.make_coordinator(self.name)
        self._office = Office(self.name)
        self._committing = 0
        """The number of the commit call under way; 0: none."""
        self._calls = 0

    def on_tick(self) -> None:
        self._keep_office()

    def on_event(self, event: Any) -> None:
        self._office.handled(self.now)
        for effect in self.brain.handle(self.now, event, self.world.now):
            match effect:
                case Send(to=to, message=message):
                    self.send(to, message)
                case MakeCommit(commit=commit):
                    self.brain.commits.put(commit)
                case StartCopy():
                    self.world.mover.begin(effect)
                case Compare():
                    self.world.schedule(0.05, self._compare, self.run, effect)
                case Explain(partition=partition, stage=stage, why=why):
                    self.world.tell(f"{self.name} waits ({stage}): {why}", partition)
                    self.world.on_wait(partition, effect.work)
        if not self._committing:
            self._commit_next()

    def _compare(self, run: int, asked: Compare) -> None:
        """Compare rows that all replicas have committed; now and then the comparison is lost."""
        named = (asked.source, *asked.targets)
        disks = [self.world.nodes[replica.node].disk for replica in named]
        held = [
            disk.live.get((asked.partition, replica.incarnation))
            for disk, replica in zip(disks, named, strict=True)
        ]
        if None in held or self.world.dice.random() < 0.2:
            return
        through = min(stored.watermark for stored in held if stored is not None)
        rows = [
            {key: row for key, row in stored.contents().items() if row.version <= through}
            for stored in held
            if stored is not None
        ]
        keys = sorted({key for each in rows for key in each})
        differ = [key for key in keys if any(each.get(key) != rows[0].get(key) for each in rows)]
        words = tuple(f"the row {key} differs" for key in differ)
        self.deliver(run, Compared(asked.partition, asked.session, words[:2], len(words[2:])))

    def _commit_next(self) -> None:
        """Make one commit at a time, as a real coordinator does; give up one without an answer."""
        together = self.brain.commits.take(self.world.shape.operations_max)
        if not together:
            return
        self._calls += 1
        self._committing = call = self._calls
        self.call(
            lambda: self.world.commit_all(together, self.name),
            lambda answer: self._committed(call, answer),
            operations=size_of(together),
        )
        self.later(LOST_SECONDS, self._given_up, call)

    def _committed(self, call: int, answer: CommitAnswer) -> None:
        if self._committing == call:
            self._committing = 0
            if answer.made:
                self.brain.commits.made(answer.agreed.revision)
            else:
                self.brain.commits.stale(answer.stale)
        if self.world.shape.late_reads:
            self.later(self.world.dice.uniform(0.0, 1.0), self.on_event, AgreedRead(answer.agreed))
        else:
            self.on_event(AgreedRead(answer.agreed))

    def _given_up(self, call: int) -> None:
        if self._committing == call:
            self._committing = 0
            self.on_event(CommitLost())

    def _keep_office(self) -> None:
        lease = self._office.due(self.now)
        if lease is not None:
            self.call(
                lambda: self.world.metastore.renew(COORDINATOR_KEY, lease),
                lambda alive: None if alive else self._lose(lease),
            )
        elif self._office.must_claim(self.now, self.brain.agreed):
            self.call(
                lambda: self.world.metastore.take_office(self._office),
                self._office_answered,
                operations=1,
            )
        else:
            return
        self.call(lambda: self.world.agreed, lambda agreed: self.on_event(AgreedRead(agreed)))

    def _office_answered(self, answer: tuple[int, int, Agreed] | None) -> None:
        if answer is not None and self._office.lease is None:
            lease, revision, agreed = answer
            self._office.taken(lease)
            self.on_event(AgreedRead(agreed))
            self.on_event(Elected(revision))

    def _lose(self, lease: int) -> None:
        if self._office.lost(lease):
            self.on_event(Deposed())


class ClientProcess(Process):
    """An application's client; the workload asks, and the world hears the outcome."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.brain = world.make_client(name)

    def boot(self) -> None:
        self.brain = self.world.make_client(f"{self.name}/{self.starts}")
        self.on_event(TopologyRead(self.world.agreed.topology, self.world.agreed.revision))

    def ask(self, asked: Asked) -> None:
        self.on_event(asked)

    def crash(self) -> None:
        """Its operations have an unknown outcome; nobody retries them."""
        super().crash()
        self.world.on_client_gone(self)

    def on_event(self, event: Any) -> None:
        for effect in self.brain.handle(self.now, event):
            match effect:
                case Send(to=to, message=message):
                    self.send(to, message)
                case ReadTopology():
                    self.read_topology(asked=False)
                case Finished():
                    self.world.finished(effect)


TaskKey = tuple[str, str, Replica, int]
"""Partition, session, target, and the number of the slice."""


class _Task(Struct, eq=False):
    """One slice of a copy to one target: fetch, send, end; repeated until landed or denied."""

    job: StartCopy
    target: Replica
    slice: int
    slices: int
    attempt: int = 0

    def is_about(self, message: Fetched | Landed | Denied) -> bool:
        """Sessions of several partitions may share a name: that of the request that began them."""
        named = (message.partition, message.session, message.slice)
        is_same_cut = message.slices in (0, self.slices)
        return is_same_cut and named == (self.job.partition, self.job.session, self.slice)


class SimulatedMover(Process):
    """Copies rows from sources to targets, as Spark's tasks do: at least once, in any order."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.tasks: dict[TaskKey, _Task] = {}
        self.dice = Random(f"mover {world.seed}")
        """Its own dice: a seed that is not about moves draws nothing from them."""

    @property
    def slices(self) -> int:
        """A later mover may divide the same copy into another number of slices."""
        return 3 if self.world.shape.live_moves and self.starts % 2 else 2

    @property
    def is_unruly(self) -> bool:
        return self.world.shape.unruly_mover and not self.world.healed

    def boot(self) -> None:
        self.tasks.clear()

    def crash(self) -> None:
        super().crash()
        self.tasks.clear()

    def begin(self, job: StartCopy) -> None:
        if not self.run:
            return
        for target in job.targets:
            for number in range(self.slices):
                key = (job.partition, job.session, target, number)
                if key not in self.tasks:
                    self.tasks[key] = task = _Task(job, target, number, self.slices)
                    delay = number * self.dice.choice((0.0, 0.03, 0.3)) if self.is_unruly else 0.0
                    self.world.schedule(delay, self._attempt, key, self.run, task)

    def _attempt(self, key: TaskKey, run: int, task: _Task) -> None:
        if run != self.run or self.tasks.get(key) is not task:
            return
        task.attempt += 1
        if task.attempt > 8:
            del self.tasks[key]
            return
        job = task.job
        what = (job.partition, job.source.incarnation, job.session, job.epoch)
        self.send(job.source.node, Fetch(*what, task.slice, task.slices))
        self.world.schedule(0.5, self._attempt, key, run, task)

    def on_event(self, event: Any) -> None:
        if not isinstance(event, Received):
            return
        message = event.message
        match message:
            case Fetched():
                for task in list(self.tasks.values()):
                    if task.is_about(message):
                        self._pass_on(task, message)
            case Landed() | Denied():
                for key, task in list(self.tasks.items()):
                    by_target = isinstance(message, Denied) or task.target.node == event.sender
                    if task.is_about(message) and by_target:
                        del self.tasks[key]
                if isinstance(message, Landed) and self._happens(0.15):
                    self._die()

    def _happens(self, chance: float) -> bool:
        return self.is_unruly and self.dice.random() < chance

    def _die(self) -> None:
        """Some of a copy has landed; the next mover may divide the rest differently."""
        self.world.tell("the mover dies: a slice has landed")
        self.crash()
        self.world.schedule(self.dice.uniform(0.01, 0.5), self._come_back)

    def _come_back(self) -> None:
        if not self.run:
            self.start()

    def _pass_on(self, task: _Task, fetched: Fetched) -> None:
        rows = fetched.rows
        assert isinstance(rows, SimulatedRows)
        job, target = task.job, task.target
        attempt = f"{self.starts}.{task.attempt}.{self.world.dice.random():.6f}"
        middle = len(rows.rows) // 2
        parts = [SimulatedRows(rows.rows[:middle]), SimulatedRows(rows.rows[middle:])]
        head = (job.partition, target.incarnation, job.session, job.epoch, task.slice)
        for number, part in enumerate(parts):
            self.send(target.node, Chunk(*head, attempt, number, self._carried(part)))
        digest = sum(part.digest() for part in parts)
        end = End(
            *head, task.slices, attempt, len(rows), digest, fetched.through, fetched.producers
        )
        # The end is sent a little later: chunks and end may still overtake each other.
        self.world.schedule(0.004, self._end, self.run, target.node, end)

    def _carried(self, rows: SimulatedRows) -> SimulatedRows:
        """Now and then a row is corrupted on its way: the digest in the END detects it."""
        if not rows.rows or not self._happens(0.05):
            return rows
        first, *others = rows.rows
        self.world.tell(f"the row {first.key} is garbled on its way")
        return SimulatedRows((replace(first, value="garbled"), *others))

    def _end(self, run: int, node: str, end: End) -> None:
        if run == self.run:
            self.send(node, end)
