"""One node on a stage of its own: a test says what happens, and sees what it does."""

from typing import TypeVar

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.effects import Effect, Send
from limosa.core.events import (
    HeldReplica,
    LeaseGranted,
    NodeEvent,
    Received,
    Started,
    Stored,
    TopologyRead,
)
from limosa.core.messages import Acked, Appending, Message, Probe, Replicate, Status, Write
from limosa.core.model.changes import Agreed, Put, Topology, apply
from limosa.core.model.keys import WHOLE
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Partition, Record, Replica
from limosa.core.participant.brain import Participant
from limosa.core.participant.owner import Owner
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.producers import Producers
from limosa.simulation.rows import SimulatedRow, SimulatedRows
from tests.core.samples import LEASES, A, B, C, P, cluster, intends, stable

Sort = TypeVar("Sort")
ORDINARY = ParticipantSettings()
EMPTY = Started()


def rows(*keys: str, token: int = 0, version: int = 0) -> SimulatedRows:
    return SimulatedRows(
        tuple(SimulatedRow(key, token, f"value of {key}", version) for key in keys)
    )


def write(
    id: str = "w.1",
    sequence: int = 1,
    after: int = 0,
    floor: int = 0,
    version: int = 1,
    epoch: int = 3,
    expected: int | None = None,
    batch: SimulatedRows | None = None,
) -> Write:
    batch = rows("k") if batch is None else batch
    return Write(id, P, version, epoch, "x", sequence, after, floor, WHOLE, batch, expected)


class Stage:
    """A node, and the world as it is told about it."""

    def __init__(self, node: str, settings: ParticipantSettings = ORDINARY) -> None:
        self.brain = Participant(node, settings)
        self.node = node
        self.now = 100.0
        self.agreed = Agreed()

    def tell(self, event: NodeEvent) -> list[Effect]:
        return self.brain.handle(self.now, event)

    def say(self, message: Message, sender: str = "someone", found: int = 0) -> list[Effect]:
        return self.tell(Received(sender, message, found))

    def register(self, record: Partition, started: Started = EMPTY) -> list[Effect]:
        """Started, with a lease, and with the newest topology applied."""
        self.agreed = cluster(record, intends())
        self.tell(started)
        lease = LEASES[self.node]
        effects = self.tell(LeaseGranted(lease, lease, self.now))
        effects += self.read_topology()
        return effects

    def read_topology(self) -> list[Effect]:
        return self.tell(TopologyRead(self.agreed.topology, self.agreed.revision, asked=True))

    def agree(self, *records: Record, revision: int = 0) -> list[Effect]:
        """A commit, which the node gets to know at once."""
        revision = revision or self.agreed.revision + 1
        self.agreed = apply(self.agreed, tuple(Put(record) for record in records), revision)
        return self.read_topology()

    def renew(self, sent_at: float) -> None:
        """A renewal of the lease succeeded; the brain sees it at its next tick."""
        assert self.brain.lease is not None
        self.brain.leasing.renewals.renewed(self.now, self.brain.lease.id, sent_at)

    def store(self, ticket: int = 10**9) -> list[Effect]:
        """Everything that was written until now is durable."""
        return self.tell(Stored(ticket))

    def status(self) -> Status:
        assert self.brain.lease is not None
        return self.brain.status(self.now)

    @property
    def topology(self) -> Topology:
        return self.brain.topology

    @property
    def owner(self) -> Owner:
        return self.brain.owners[P]

    @property
    def revision(self) -> int:
        return self.agreed.topology.revision_of(P)

    def is_open(self) -> bool:
        return self.owner.open

    def copied(self, incarnation: str) -> str | None:
        """The session whose copy is here, whole and durable."""
        return self.brain.held[P, incarnation].copied

    def acknowledge(self, *replicas: Replica, upto: int | None = None) -> list[Effect]:
        """Other replicas hold everything, durably."""
        last = self.owner.held.last if upto is None else upto
        effects: list[Effect] = []
        for replica in replicas:
            acked = Acked(P, replica, self.owner.epoch, last, self.owner.held.watermark)
            effects += self.say(acked, replica.node)
        return effects


def sent(effects: list[Effect], kind: type[Sort]) -> list[Sort]:
    """The messages of a kind that were sent."""
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in messages if isinstance(message, kind)]


def done(effects: list[Effect], kind: type[Sort]) -> list[Sort]:
    """The effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def probe(to: Replica, epoch: int = 3, revision: int = 50) -> Probe:
    return Probe(P, to.incarnation, epoch, revision)


def replicate(
    to: Replica,
    previous: int = 0,
    entries: tuple[Entry, ...] = (),
    watermark: int = 0,
    how: Appending = "append",
    epoch: int = 3,
    revision: int = 50,
    probed: int = 0,
    check: tuple[str, int] | None = None,
) -> Replicate:
    return Replicate(
        P,
        to.incarnation,
        epoch,
        revision,
        previous,
        entries,
        watermark,
        how,
        check,
        probed,
    )


def stored(replica: Replica, epoch: int = 3, entries: tuple[Entry, ...] = ()) -> Started:
    """The process begins to run, and finds one replica on its volume."""
    last = entries[-1].at if entries else 0
    producers = Producers()
    for each in entries:
        producers.record(each)
    producers.commit(last)
    log = tuple((each.at, each.bytes) for each in entries)
    return Started((HeldReplica(P, replica, epoch, 0, 0, last, log, producers.value(last)),))


def owner_on_stage(
    record: Partition | None = None, replica: Replica = A, settings: ParticipantSettings = ORDINARY
) -> Stage:
    """The owner of a partition, open: every replica of the write set is equal to it."""
    record = stable() if record is None else record
    stage = Stage(replica.node, settings)
    stage.register(record, stored(replica))
    stage.acknowledge(*(other for other in routing.written(record) if other != replica))
    assert stage.owner.open
    return stage


def owners_on_stage(
    count: int, record: Partition | None = None, settings: ParticipantSettings = ORDINARY
) -> Stage:
    """The owner of many partitions `p0`, `p1` and so on, all open."""
    record = stable() if record is None else record
    stage = Stage("a", settings)
    records = [replace(record, id=f"p{number}") for number in range(count)]
    (held,) = stored(A).held
    started = Started(tuple(replace(held, partition=each.id) for each in records))
    stage.agreed = cluster(records[0], more=tuple(records[1:]))
    stage.tell(started)
    stage.tell(LeaseGranted(LEASES["a"], LEASES["a"], stage.now))
    stage.read_topology()
    for name in stage.brain.owners:
        for replica in (B, C):
            stage.say(Acked(name, replica, record.epoch, 0, 0), replica.node)
    assert all(owner.open for owner in stage.brain.owners.values())
    assert len(stage.brain.owners) == count
    return stage


def follower_on_stage(
    record: Partition | None = None,
    replica: Replica = B,
    entries: tuple[Entry, ...] = (),
    settings: ParticipantSettings = ORDINARY,
) -> Stage:
    stage = Stage(replica.node, settings)
    stage.register(stable() if record is None else record, stored(replica, entries=entries))
    return stage


def entry(at: int, previous: int, sequence: int = 0) -> Entry:
    return Entry(at, previous, rows("k"), "x", sequence or at)
