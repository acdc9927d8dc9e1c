"""What can happen? Events are in the past tense; drivers report them to the core."""

from typing import TypeAlias

from msgspec import Struct

from limosa.core.messages import Message
from limosa.core.model.changes import Agreed, Topology
from limosa.core.model.keys import (
    Incarnation,
    LeaseId,
    NodeId,
    PartitionId,
    Position,
    Revision,
    SessionId,
)
from limosa.core.model.rows import Entry, Rows
from limosa.core.model.topology import Replica
from limosa.core.producers import ProducersValue


class Received(Struct, frozen=True, gc=False):
    """A message arrived. For a compare-and-set the driver looked up the row's version, in order."""

    sender: str
    message: Message
    found: Position = 0


class Ticked(Struct, frozen=True, gc=False):
    """Some time went by."""


class HeldReplica(Struct, frozen=True):
    """What a volume had of one replica when the process started."""

    partition: PartitionId
    replica: Replica
    epoch: int
    begun: int
    first: Position
    watermark: Position
    log: tuple[tuple[Position, int], ...]
    """Its entries: where each is, and about how many bytes it takes. Rows stay on the volume."""
    producers: ProducersValue


class Started(Struct, frozen=True):
    """The process began to run, with what its volumes hold."""

    held: tuple[HeldReplica, ...] = ()


class TopologyRead(Struct, frozen=True, gc=False):
    """The topology, as it was at a revision of the metastore."""

    topology: Topology
    revision: Revision
    asked: bool = False
    """The answer to a question; otherwise the watch brought it."""


class LeaseGranted(Struct, frozen=True, gc=False):
    """This run of this process is alive from now on; its key was written at this revision."""

    lease: LeaseId
    revision: Revision
    sent_at: float


class LeaseRenewed(Struct, frozen=True, gc=False):
    """The renewal that was sent then succeeded."""

    lease: LeaseId
    sent_at: float


class LeaseEnded(Struct, frozen=True, gc=False):
    """The metastore does not know this lease any more."""

    lease: LeaseId


class Stored(Struct, frozen=True, gc=False):
    """Everything that was stored up to this ticket is durable."""

    ticket: int


class TailRead(Struct, frozen=True, gc=False):
    """Entries of a log, with their rows; none: they are there no more, or can't be read."""

    ticket: int
    entries: tuple[Entry, ...]


class SliceRead(Struct, frozen=True, gc=False):
    """The committed rows of a slice, and up to where they were committed."""

    ticket: int
    rows: Rows
    through: Position


class RowsLinked(Struct, frozen=True, gc=False):
    """A replica has the rows of another one, as they were committed at `through`; None: not so."""

    ticket: int
    through: Position | None


class SliceShelved(Struct, frozen=True, gc=False):
    """Copied rows are at rest, but for some that were not worth a file; or why not, in words."""

    ticket: int
    rest: tuple[Rows, ...] = ()
    problem: str = ""


class DigestTaken(Struct, frozen=True, gc=False):
    """The digest of the committed rows at exactly this position; None: they can't be read."""

    partition: PartitionId
    incarnation: Incarnation
    at: Position
    digest: int | None


class CollectionDue(Struct, frozen=True, gc=False):
    """Tombstones of this partition have piled up."""

    partition: PartitionId


class Measured(Struct, frozen=True):
    """How much is free on the volumes, and about what the replicas there take: (rows, bytes)."""

    free_bytes: dict[str, int]
    sizes: dict[tuple[PartitionId, Incarnation], tuple[int, int]]
    rates: dict[PartitionId, tuple[float, float]] = {}
    """Of partitions that are used here: (rows written, keys read), each in a second."""


class Disconnected(Struct, frozen=True, gc=False):
    """The connection to this node broke (for a client): what is under way may not arrive."""

    node: NodeId


class AgreedRead(Struct, frozen=True, gc=False):
    """The whole agreed state (for the coordinator)."""

    agreed: Agreed


class Compared(Struct, frozen=True, gc=False):
    """The rows that were compared differ in this: some of them in words, and how many more."""

    partition: PartitionId
    session: SessionId
    differences: tuple[str, ...]
    more: int = 0


class Elected(Struct, frozen=True, gc=False):
    """This process is the coordinator; its key has this revision."""

    revision: Revision


class Deposed(Struct, frozen=True, gc=False):
    """Its coordinator's lease has ended."""


NodeEvent: TypeAlias = (
    Started
    | Received
    | Ticked
    | TopologyRead
    | LeaseGranted
    | LeaseRenewed
    | LeaseEnded
    | Stored
    | TailRead
    | SliceRead
    | RowsLinked
    | SliceShelved
    | DigestTaken
    | CollectionDue
    | Measured
)
CoordinatorEvent: TypeAlias = Received | Ticked | AgreedRead | Compared | Elected | Deposed
