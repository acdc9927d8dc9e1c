"""How many revisions does a table of many partitions cost? Few, however many partitions it has.

The brains of a coordinator and of four nodes, and a metastore in memory. Messages arrive at once.
"""

from collections import deque

import pytest

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.office import Office
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import AcquireLease, MakeCommit, ReadTopology, Send, VolumeEffect
from limosa.core.events import (
    AgreedRead,
    CoordinatorEvent,
    Elected,
    LeaseGranted,
    NodeEvent,
    Received,
    Started,
    Stored,
    Ticked,
    TopologyRead,
)
from limosa.core.messages import Status
from limosa.core.model.changes import Commit, Put, lease_key, node_key, united
from limosa.core.model.requests import CreateTable, Request
from limosa.core.model.topology import NamedTable, Node
from limosa.core.participant.brain import Participant
from limosa.core.participant.lease import registration
from limosa.core.participant.settings import ParticipantSettings
from limosa.metastore import leases
from limosa.metastore.agreed import AgreedStore
from limosa.metastore.memory import MemoryMetastore

NODES = ("n1", "n2", "n3", "n4")


class SmallWorld:
    """Nothing is lost, and nothing takes time, except between ticks."""

    def __init__(self) -> None:
        self.time = 100.0
        self.store = MemoryMetastore(self)
        self.agreed = AgreedStore(self.store)
        self.agreed.commit(Commit({}, tuple(Put(Node(name)) for name in NODES), "members"))
        self.coordinator = Coordinator("k1", CoordinatorSettings())
        settings = ParticipantSettings(lease_seconds=1e6)
        self.nodes = {name: Participant(name, settings) for name in NODES}
        self.named = 0
        """How many partitions all reports named together."""
        self._events: deque[tuple[str, NodeEvent | CoordinatorEvent]] = deque()
        self._pushed = 0
        lease = self.store.grant(1e6)
        revision = self.agreed.commit(Office("k1").claim(lease), lease)
        for name in NODES:
            self._events.append((name, Started((), ("",))))
        self._push()
        self._events.append(("k1", Elected(revision)))
        self.pass_time(1.0)

    def now(self) -> float:
        return self.time

    def boot_id(self) -> str:
        return "a boot"

    def pass_time(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end:
            self.time += 0.05
            self._events.extend((name, Ticked()) for name in ("k1", *NODES))
            self.run()

    def run(self) -> None:
        """Commits are made whenever some events were handled, as by a thread of their own."""
        while self._events or self.coordinator.commits:
            for _ in range(min(200, len(self._events))):
                self._tell(*self._events.popleft())
            together = self.coordinator.commits.take(self.store.operations_max)
            if together:
                self.coordinator.commits.made(self.agreed.commit(united(together)))
                self._push()

    def commit(self, commit: Commit) -> None:
        self.agreed.commit(commit)
        self._push()

    def _push(self) -> None:
        agreed = self.agreed.read()
        if agreed.revision > self._pushed:
            self._pushed = agreed.revision
            self._events.append(("k1", AgreedRead(agreed)))
            read = TopologyRead(agreed.topology, agreed.revision)
            self._events.extend((name, read) for name in NODES)

    def _tell(self, name: str, event: object) -> None:
        brain = self.coordinator if name == "k1" else self.nodes[name]
        ticket = 0
        for effect in brain.handle(self.time, event):  # type: ignore[arg-type]
            match effect:
                case Send(to=to, message=message):
                    self.named += len(message.replicas) if isinstance(message, Status) else 0
                    self._events.append((to, Received(name, message)))
                case MakeCommit(commit=commit):
                    self.coordinator.commits.put(commit)
                case AcquireLease():
                    self._register(name)
                case ReadTopology():
                    agreed = self.agreed.read()
                    read = TopologyRead(agreed.topology, agreed.revision, asked=True)
                    self._events.append((name, read))
                case VolumeEffect():
                    ticket = max(ticket, effect.ticket)
        if ticket:
            self._events.append((name, Stored(ticket)))

    def _register(self, name: str) -> None:
        lease = self.store.grant(1e6)
        row, before = (leases.revision_of(self.store, k(name)) for k in (node_key, lease_key))
        revision = self.agreed.commit(registration(name, lease, row, before), lease)
        self._events.append((name, LeaseGranted(lease, revision, self.time)))
        self._push()


@pytest.mark.parametrize(
    ("partitions", "revisions"), [(500, 10), pytest.param(10_000, 100, marks=pytest.mark.slow)]
)
def test_a_table_of_many_partitions_is_created_in_a_few_revisions(
    partitions: int, revisions: int
) -> None:
    """F196: and then it costs nearly nothing: a report names some partitions, and not all."""
    world = SmallWorld()
    before = world.store.read("")[0]
    table = NamedTable("birds", "zone", "t1", b"")
    world.commit(Commit({}, (Put(Request("r", CreateTable(table, partitions, 3))),), "a wish"))
    world.pass_time(1.0)
    records = world.agreed.read().topology.partitions
    assert len(records) == partitions
    opened = [p for node in world.nodes.values() for p, owner in node.owners.items() if owner.open]
    assert sorted(opened) == sorted(records)
    assert world.coordinator.waits == {}
    assert world.store.read("")[0] - before <= revisions
    after, world.named = world.store.read("")[0], 0
    world.pass_time(5.0)
    assert world.store.read("")[0] == after
    assert world.named <= 6 * 4 * 256
