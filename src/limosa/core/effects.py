"""What can a brain ask for? Effects are imperative; drivers carry them out in their order.

The order matters (decision 1): an answer must not overtake the effect that makes it true.
Whatever changes a volume carries a ticket: `Stored` with that ticket, or a later one, means
durable.
"""

from msgspec import Struct

from limosa.core.machines.machine import Work
from limosa.core.messages import Message
from limosa.core.model.changes import Commit
from limosa.core.model.keys import Incarnation, LeaseId, PartitionId, Position, SessionId
from limosa.core.model.rows import Entry, Rows
from limosa.core.model.topology import Replica
from limosa.core.producers import ProducersValue


class Effect(Struct, frozen=True, gc=False):
    """Something to do."""


class Send(Effect, frozen=True, gc=False):
    to: str
    message: Message


class AcquireLease(Effect, frozen=True, gc=False):
    """Register this run: a new lease, and the node's key under it."""


class RenewLease(Effect, frozen=True, gc=False):
    lease: LeaseId


class ReadTopology(Effect, frozen=True, gc=False):
    """Read the newest topology; a watch may be late or lost."""


class MakeCommit(Effect, frozen=True, gc=False):
    commit: Commit


class Surprise(Effect, frozen=True, gc=False):
    """Something happened that the protocol excludes. Nodes count it; the simulator fails."""

    partition: PartitionId
    what: str


class ReplicaEffect(Effect, frozen=True, gc=False):
    """A read or change of one replica on a volume."""

    partition: PartitionId
    incarnation: Incarnation
    ticket: int


class VolumeEffect(ReplicaEffect, frozen=True, gc=False):
    """A change that is durable once `Stored` names its ticket or a later one."""


class CreateReplica(VolumeEffect, frozen=True, gc=False):
    """Make an empty one."""

    volume: str


class DiscardReplica(VolumeEffect, frozen=True, gc=False):
    """Forget all of it."""


class StoreEpoch(VolumeEffect, frozen=True, gc=False):
    """Promise to accept nothing older."""

    epoch: int


class BeginLog(VolumeEffect, frozen=True, gc=False):
    """Forget rows and log, and start the log behind this position."""

    base: Position
    epoch: int


class AppendEntries(VolumeEffect, frozen=True, gc=False):
    entries: tuple[Entry, ...]


class TruncateLog(VolumeEffect, frozen=True, gc=False):
    """Forget every entry behind this position."""

    to: Position


class TrimLog(VolumeEffect, frozen=True, gc=False):
    """Let go of committed entries up to here; their rows stay."""

    to: Position


class AdvanceWatermark(VolumeEffect, frozen=True, gc=False):
    """Everything up to here is committed; take a digest of the rows there if asked to."""

    to: Position
    digest: bool = False


class ApplySlice(VolumeEffect, frozen=True, gc=False):
    """Copied rows: each counts only if its version is newer than what is there."""

    rows: tuple[Rows, ...]
    producers: ProducersValue


class ReadTail(ReplicaEffect, frozen=True, gc=False):
    """A replica's log behind a position: at least one entry, then no more than so many bytes.

    Always answered by `TailRead`, without entries if they can't be read.
    """

    after: Position
    bytes_max: int


class ReadSlice(ReplicaEffect, frozen=True, gc=False):
    """Committed rows, tombstones too, of one of so many slices of the range.

    Rows behind `up_to` may be left out, and older ones of their keys given instead.
    """

    slice: int
    slices: int
    up_to: Position | None = None
    """None: all that are committed when they are read."""


class LinkRows(ReplicaEffect, frozen=True, gc=False):
    """Give a replica all committed rows of another one here, at rest when it is answered.

    Always answered by `RowsLinked`.
    """

    source: Incarnation


class ShelveSlice(ReplicaEffect, frozen=True, gc=False):
    """Copied rows of one of so many slices of the range, past the log: at rest when it is answered.

    Few rows may be given back instead, for the log. Each counts only if its version is newer than
    what is there. Always answered by `SliceShelved`.
    """

    slice: int
    slices: int
    rows: tuple[Rows, ...]
    digest: int
    """Of what is then there, read again; otherwise none of it is."""


class StartCopy(Effect, frozen=True, gc=False):
    """Carry a partition's rows from its owner to other replicas; asking twice changes nothing."""

    partition: PartitionId
    session: SessionId
    epoch: int
    source: Replica
    targets: tuple[Replica, ...]


class Compare(Effect, frozen=True, gc=False):
    """Which rows of these replicas differ from their owner's? Asking twice changes nothing."""

    partition: PartitionId
    session: SessionId
    source: Replica
    targets: tuple[Replica, ...]


class TakeOffice(Effect, frozen=True, gc=False):
    """Become the coordinator: a new lease, and the coordinator's key under it."""


class RenewOffice(Effect, frozen=True, gc=False):
    lease: LeaseId


class Explain(Effect, frozen=True, gc=False):
    """What a partition waits for, in words."""

    partition: PartitionId
    stage: str
    why: str
    work: Work | None = None
    """Of the stage, if that is what is waited for."""
