"""What do the parts of a participant share? The applied topology, the lease and the replicas."""

from collections.abc import Callable

from limosa.core.effects import Effect, Send, TrimLog
from limosa.core.events import Measured
from limosa.core.messages import Message, Redirect
from limosa.core.model.changes import Topology
from limosa.core.model.keys import Incarnation, LeaseId, NodeId, PartitionId, Revision
from limosa.core.participant.held import Held
from limosa.core.participant.lease import Lease
from limosa.core.participant.marks import Marks
from limosa.core.participant.owner import Owner
from limosa.core.participant.pace import CopyPace
from limosa.core.participant.pairs import Pairs
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.tickets import Tickets
from limosa.core.participant.vitals import Vitals

LOG_ENTRIES_MIN = 100
LOG_BYTES_MIN = 1 << 20
"""Each replica keeps at least so much of its log, however many replicas there are."""


class NodeState:
    """The state that more than one part reads or changes, and nothing else."""

    def __init__(self, node: NodeId, settings: ParticipantSettings) -> None:
        self.node = node
        self.settings = settings
        self.topology = Topology()
        self.lease: Lease | None = None
        self.held: dict[tuple[PartitionId, Incarnation], Held] = {}
        self.owners: dict[PartitionId, Owner] = {}
        self.owned_in_transition: dict[PartitionId, None] = {}
        """The partitions that are owned here and in a transition."""
        self.volumes: tuple[str, ...] = ()
        """The volumes that could be used when the process started; empty: any."""
        self.failed_volumes: dict[str, str] = {}
        """Volumes that failed since then, and why."""
        self.tickets = Tickets()
        self.pace = CopyPace(settings)
        self.vitals = Vitals()
        self.pairs = Pairs(settings)
        self.measured = Measured({}, {})
        """Free space, sizes of replicas and traffic, as they were last measured."""
        self.out: list[Effect] = []
        """The effects of the present event."""
        self.changed = Marks()
        """What the coordinator must be told."""
        self._outdated: dict[Held, None] = {}
        """Replicas on which work may be under way that began under an older record."""
        self.is_outdated = False
        """A sender has a newer topology."""
        self.is_over = False
        """This run serves nothing more: the process stops, or its disk has failed."""

    def send(self, to: str, message: Message) -> None:
        self.out.append(Send(to, message))

    def when_stored(self, held: Held, then: Callable[[float], None]) -> int:
        """A ticket for a change of a replica; `then` is called once the change is durable."""
        return self.tickets.when_stored(next(self.tickets), held.replica.volume, then)

    def can_use(self, volume: str) -> bool:
        return volume not in self.failed_volumes and (not self.volumes or volume in self.volumes)

    def run(self) -> LeaseId:
        """The lease that names the present run; 0: there is none."""
        return 0 if self.lease is None else self.lease.id

    def version(self, partition: PartitionId) -> int:
        """The version of the layout that a partition belongs to; 0: it is not known here."""
        record = self.topology.partitions.get(partition)
        layout = None if record is None else self.topology.layouts.get(record.zone)
        return 0 if layout is None else layout.version

    def redirect(self, partition: PartitionId, request: str, definite: bool = True) -> Redirect:
        record = self.topology.partitions.get(partition)
        owner = None if record is None or record.owner is None else record.owner.replica.node
        generation = self.topology.generation
        return Redirect(request, owner, self.version(partition), generation, definite)

    def in_transition(self, partition: PartitionId) -> bool:
        """During a transition, the coordinator may wait for work on this node."""
        record = self.topology.partitions.get(partition)
        return record is not None and record.transition is not None

    def watch_work(self, held: Held) -> None:
        """The work under way on this replica may have begun under an older record."""
        self._outdated[held] = None

    def outdated_work(self) -> list[tuple[PartitionId, Revision]]:
        """Work that began under older records than the applied ones: its oldest revisions."""
        found: list[tuple[PartitionId, Revision]] = []
        for held in list(self._outdated):
            oldest = self._oldest_work(held)
            if oldest < held.revision:
                found.append((held.partition, oldest))
            else:
                del self._outdated[held]
        return found

    def _oldest_work(self, held: Held) -> Revision:
        key = (held.partition, held.replica.incarnation)
        if self.held.get(key) is not held:
            return held.revision  # it was dropped since
        record = self.topology.partitions.get(held.partition)
        change = None if record is None else record.transition
        oldest = held.oldest_work(None if change is None else change.session)
        owner = self.owners.get(held.partition)
        if owner is not None and owner.collecting is not None and owner.is_collecting():
            oldest = min(owner.collecting[1], held.revision if oldest is None else oldest)
        return held.revision if oldest is None else oldest

    def trimmed(self, held: Held) -> list[TrimLog]:
        """Remove the oldest committed entries of a log that is too long."""
        count = max(1, len(self.held))
        entries = max(LOG_ENTRIES_MIN, self.settings.log_entries_kept // count)
        share = max(LOG_BYTES_MIN, self.settings.log_bytes_kept // count)
        return held.trim(min(self.settings.entries_kept, entries), share)
