"""What can a brain ask for? Effects are imperative; drivers carry them out in their order.

The order matters (decision 1): an answer must not overtake the effect that makes it true.
Whatever changes a volume carries a ticket: `Stored` with that ticket, or a later one, means
durable.
"""

from msgspec import Struct

from limosa.core.machines.machine import Work
from limosa.core.messages import Message
from limosa.core.model.changes import Commit
from limosa.core.model.keys import Incarnation, PartitionId, Position, SessionId
from limosa.core.model.rows import Entry, Rows
from limosa.core.model.topology import Replica
from limosa.core.planning.load import Load
from limosa.core.producers import ProducersValue


class Effect(Struct, frozen=True, gc=False):
    """Something that a driver does for a brain."""


class Send(Effect, frozen=True, gc=False):
    to: str
    message: Message


class AcquireLease(Effect, frozen=True, gc=False):
    """Register this run: a new lease, and the node's key under it."""


class ReadTopology(Effect, frozen=True, gc=False):
    """Read the newest topology; a watch may be late or lost."""


class MakeCommit(Effect, frozen=True, gc=False):
    """Commit this, soon. A coordinator's driver puts it into the coordinator's `CommitQueue`."""

    commit: Commit


class Surprise(Effect, frozen=True, gc=False):
    """Something happened that the protocol excludes. Nodes count it; the simulator fails."""

    partition: PartitionId
    what: str


class AbandonVolume(Effect, frozen=True, gc=False):
    """Use a volume no more until the process restarts, and do not wait for it."""

    volume: str
    why: str


class EndRun(Effect, frozen=True, gc=False):
    """End this run of the process: it renews its lease no more, and a supervisor restarts it."""

    why: str


class ReplicaEffect(Effect, frozen=True, gc=False):
    """A read or change of one replica on a volume."""

    partition: PartitionId
    incarnation: Incarnation
    ticket: int


class VolumeEffect(ReplicaEffect, frozen=True, gc=False):
    """A change that is durable once `Stored` names its ticket or a later one."""


class CreateReplica(VolumeEffect, frozen=True, gc=False):
    """Create an empty replica."""

    volume: str


class DiscardReplica(VolumeEffect, frozen=True, gc=False):
    """Delete the replica."""


class StoreEpoch(VolumeEffect, frozen=True, gc=False):
    """Promise to accept no messages of earlier epochs."""

    epoch: int


class BeginLog(VolumeEffect, frozen=True, gc=False):
    """Delete rows and log, and start the log after this position."""

    base: Position
    epoch: int


class AppendEntries(VolumeEffect, frozen=True, gc=False):
    entries: tuple[Entry, ...]


class TruncateLog(VolumeEffect, frozen=True, gc=False):
    """Delete every entry after this position."""

    to: Position


class TrimLog(VolumeEffect, frozen=True, gc=False):
    """Delete committed entries up to this position from the log; their rows stay."""

    to: Position


class AdvanceWatermark(VolumeEffect, frozen=True, gc=False):
    """Everything up to this position is committed; take a digest of the rows there if asked to."""

    to: Position
    digest: bool = False


class ApplySlice(VolumeEffect, frozen=True, gc=False):
    """Apply copied rows: each only if its version is newer than that of the row there."""

    rows: tuple[Rows, ...]
    producers: ProducersValue


class ReadTail(ReplicaEffect, frozen=True, gc=False):
    """Read a replica's log after a position: at least one entry, then up to `bytes_max` bytes.

    Always answered by `TailRead`, without entries if they can't be read.
    """

    after: Position
    bytes_max: int


class ReadSlice(ReplicaEffect, frozen=True, gc=False):
    """Read the committed rows, and tombstones, of one of `slices` slices of the range.

    Rows after `up_to` may be left out, and older versions returned instead.
    """

    slice: int
    slices: int
    up_to: Position | None = None
    """None: all rows that are committed at the time of the read."""


class LinkRows(ReplicaEffect, frozen=True, gc=False):
    """Give a replica all committed rows of another one on this node, durably.

    Always answered by `RowsLinked`.
    """

    source: Incarnation


class ShelveSlice(ReplicaEffect, frozen=True, gc=False):
    """Store copied rows of one of `slices` slices of the range durably, without the log.

    A few rows may be returned instead, for the log. Each row is applied only if its version is
    newer than that of the row there. Always answered by `SliceShelved`.
    """

    slice: int
    slices: int
    rows: tuple[Rows, ...]
    digest: int
    """The digest of the stored rows, read again; if it differs, none of them is stored."""


class StartPipeline(Effect, frozen=True, gc=False):
    """Start what copies rows, so that no copy waits for it; repeating it changes nothing."""


class StartCopy(Effect, frozen=True, gc=False):
    """Copy a partition's rows from its owner to other replicas; repeating it changes nothing."""

    partition: PartitionId
    session: SessionId
    epoch: int
    source: Replica
    targets: tuple[Replica, ...]


class Compare(Effect, frozen=True, gc=False):
    """Find the rows of these replicas that differ from the owner's; repeating it is harmless."""

    partition: PartitionId
    session: SessionId
    source: Replica
    targets: tuple[Replica, ...]


class AskForLoad(Effect, frozen=True, gc=False):
    """Ask the load source for the load of each partition; answered by `LoadTold`, if at all."""

    measured: dict[PartitionId, Load]
    """The measured loads, from which the source may compute its own."""


class Explain(Effect, frozen=True, gc=False):
    """Report what a partition waits for, in words."""

    partition: PartitionId
    stage: str
    why: str
    work: Work | None = None
    """The work of the stage that the partition waits for, if any."""
