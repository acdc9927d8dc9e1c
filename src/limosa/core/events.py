"""What can happen? Events are in the past tense; drivers report them to the core."""

from collections.abc import Mapping
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
from limosa.core.producers import FloorRaise, ProducersValue


class Received(Struct, frozen=True, gc=False):
    """A message arrived. For a compare-and-set the driver has looked up the row's version."""

    sender: str
    message: Message
    found: Position | None = 0
    """None: the row can't be read, because a file of the replica is damaged."""


class Ticked(Struct, frozen=True, gc=False):
    """Time has passed."""


class HeldReplica(Struct, frozen=True):
    """The state of one replica on a volume when the process started."""

    partition: PartitionId
    replica: Replica
    epoch: int
    begun: int
    first: Position
    watermark: Position
    log: tuple[tuple[Position, int], ...]
    """The position and approximate size of each entry. The rows stay on the volume."""
    producers: ProducersValue
    damaged: str = ""
    """Which file does not match its checksum; empty: none that is known."""
    raises: tuple[FloorRaise, ...] = ()
    """Floors of producers that entries above the watermark raise."""


class Started(Struct, frozen=True):
    """The process started, and its volumes hold these replicas."""

    held: tuple[HeldReplica, ...] = ()
    volumes: tuple[str, ...] = ()
    """The volumes that can be used; empty: any."""


class TopologyRead(Struct, frozen=True, gc=False):
    """The topology, as it was at a revision of the metastore."""

    topology: Topology
    revision: Revision
    asked: bool = False
    """The answer to `ReadTopology`; otherwise the watch reported the topology."""


class LeaseGranted(Struct, frozen=True, gc=False):
    """This run of the process has a lease; the node's key was written at this revision."""

    lease: LeaseId
    revision: Revision
    sent_at: float


class LeaseEnded(Struct, frozen=True, gc=False):
    """The metastore no longer has this lease."""

    lease: LeaseId


class Stored(Struct, frozen=True, gc=False):
    """Everything that was stored on a volume up to this ticket is durable."""

    ticket: int
    volume: str | None = None
    """None: on every volume."""


class VolumeLost(Struct, frozen=True, gc=False):
    """A volume failed: nothing more is stored there or read from it until the process restarts."""

    volume: str
    why: str


class TailRead(Struct, frozen=True, gc=False):
    """Entries of a log, with their rows; none: they were trimmed, or can't be read."""

    ticket: int
    entries: tuple[Entry, ...]


class SliceRead(Struct, frozen=True, gc=False):
    """The committed rows of a slice, and the watermark at which they were read."""

    ticket: int
    rows: Rows
    through: Position


class RowsLinked(Struct, frozen=True, gc=False):
    """A replica has the rows of another one as of the watermark `through`; None: linking failed."""

    ticket: int
    through: Position | None


class SliceShelved(Struct, frozen=True, gc=False):
    """Copied rows are durable, except `rest`, too few for a file; or the problem, in words."""

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
    """This partition has enough tombstones to collect."""

    partition: PartitionId


class Measured(Struct, frozen=True):
    """The free space of the volumes, and the approximate sizes of replicas: (rows, bytes)."""

    free_bytes: dict[str, int]
    sizes: Mapping[tuple[PartitionId, Incarnation], tuple[int, int]]
    rates: dict[PartitionId, tuple[float, float]] = {}
    """Of partitions that are used here: (rows written, keys read) per second."""
    full: tuple[str, ...] = ()
    """Volumes on which the last write did not fit; it is repeated until it does."""


class ReplicaDamaged(Struct, frozen=True, gc=False):
    """A file of a replica does not match its checksum: some of the rows can't be read."""

    partition: PartitionId
    incarnation: Incarnation
    why: str


class LogLost(Struct, frozen=True, gc=False):
    """Entries of a replica's log up to this position can't be read any more. Their rows are stored
    elsewhere: only replicas that would catch up from these entries need a copy instead."""

    partition: PartitionId
    incarnation: Incarnation
    through: Position


class Disconnected(Struct, frozen=True, gc=False):
    """A client's connection to this node broke: requests under way may be lost."""

    node: NodeId


class AgreedRead(Struct, frozen=True, gc=False):
    """The whole agreed state (for the coordinator)."""

    agreed: Agreed


class CommitLost(Struct, frozen=True, gc=False):
    """It is not known whether the coordinator's commit under way was made."""


class Compared(Struct, frozen=True, gc=False):
    """The differences of the compared rows: some of them in words, and how many more."""

    partition: PartitionId
    session: SessionId
    differences: tuple[str, ...]
    more: int = 0


class LoadTold(Struct, frozen=True, gc=False):
    """The load source told the load of a replica of each partition, in any unit."""

    told: dict[PartitionId, float]


class Elected(Struct, frozen=True, gc=False):
    """This process became the coordinator; the coordinator's key has this revision."""

    revision: Revision


class Deposed(Struct, frozen=True, gc=False):
    """This process is no longer the coordinator: its lease has ended."""


NodeEvent: TypeAlias = (
    Started
    | Received
    | Ticked
    | TopologyRead
    | LeaseGranted
    | LeaseEnded
    | Stored
    | VolumeLost
    | TailRead
    | SliceRead
    | RowsLinked
    | SliceShelved
    | DigestTaken
    | CollectionDue
    | Measured
    | ReplicaDamaged
    | LogLost
)
CoordinatorEvent: TypeAlias = (
    Received | Ticked | AgreedRead | CommitLost | Compared | LoadTold | Elected | Deposed
)
