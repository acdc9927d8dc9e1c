"""Which messages do processes send to each other?

A message to a replica names its incarnation, the epoch, and the revision of the record that the
sender acted on, so that the receiver can recognise a message that arrives too late.
"""

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from limosa.core.model.keys import (
    Incarnation,
    LeaseId,
    NodeId,
    PartitionId,
    Position,
    Revision,
    SessionId,
    TokenRange,
)
from limosa.core.model.rows import Entry, Rows
from limosa.core.model.topology import Replica
from limosa.core.producers import ProducersValue

Appending: TypeAlias = Literal["append", "match", "begin"]
"""How entries are added to a log: at its end; after it was cut to `previous`; to an empty log that
starts there."""
Objection: TypeAlias = Literal["stale epoch", "fenced", "dropped", "lost", "unmatched"]
"""Why a replica refuses a message of its owner."""


class Message(Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A message from one process to another."""


# --- a client and an owner


class Write(Message, frozen=True, gc=False):
    """One part of a batch: rows of one partition. All of them become visible, or none."""

    id: str
    partition: PartitionId
    version: int
    epoch: int
    producer: str
    sequence: int
    after: int
    """The producer's previous unacknowledged sequence for this range; 0: there is none."""
    floor: int
    range: TokenRange
    rows: Rows
    expected: Position | None = None
    """Compare and set: the version of the one row as the caller saw it; 0: absent."""


class Read(Message, frozen=True, gc=False):
    """Rows by their keys; `eventual` reads are answered by any replica."""

    id: str
    partition: PartitionId
    version: int
    epoch: int
    revision: Revision
    keys: object
    """Opaque to the core, like the rows that are found: the storage interprets them."""
    table: str = ""
    eventual: bool = False


class Answer(Message, frozen=True, gc=False):
    """The answer to a client's request."""

    id: str


class Written(Answer, frozen=True, gc=False):
    """The rows are committed at this version."""

    at: Position


class Mismatched(Answer, frozen=True, gc=False):
    """The comparison failed; nothing was written."""

    found: Position


class Found(Answer, frozen=True, gc=False):
    """The rows of these keys, as the storage returns them."""

    rows: object


class Redirect(Answer, frozen=True, gc=False):
    """Another node owns the partition, or the layout has changed: refresh and route again."""

    owner: NodeId | None
    version: int
    generation: Revision
    definite: bool = True
    """False: the rows are in the log of this former owner, and may come to be committed."""


class Wait(Answer, frozen=True, gc=False):
    """This node owns the partition but can't serve the request yet: retry."""

    why: str
    after: int = 0
    """The producer's sequence that must come first."""


class Refuse(Answer, frozen=True, gc=False):
    """The request did not take effect, and will not."""

    why: str
    code: str = "Refused"
    """The name of the error's class."""
    advice: str = ""


# --- an owner and the other replicas


class ReplicaMessage(Message, frozen=True, gc=False):
    """For one incarnation of a partition, from its owner at an epoch."""

    partition: PartitionId
    to: Incarnation
    epoch: int
    revision: Revision


class Probe(ReplicaMessage, frozen=True, gc=False):
    """Where does your log end?"""


class Replicate(ReplicaMessage, frozen=True, gc=False):
    """Entries that follow `previous`, and how far everything is committed."""

    previous: Position
    entries: tuple[Entry, ...]
    watermark: Position
    how: Appending = "append"
    check: tuple[SessionId, Position] | None = None
    """Take a digest at exactly this position, for this session's verification."""
    probed: LeaseId = 0
    """For `match`: the run that was probed. A late message must not truncate a later run's log."""


class ReplicaReply(Message, frozen=True, gc=False):
    """From a replica to its partition's owner at an epoch."""

    partition: PartitionId
    replica: Replica
    epoch: int


class Probed(ReplicaReply, frozen=True, gc=False):
    """The end of the replica's log, or: its log has no entry between `previous` and here."""

    last: Position
    begun: int
    """The epoch in which this replica last began with an empty log."""
    run: LeaseId


class Acked(ReplicaReply, frozen=True, gc=False):
    """The replica's log is durable up to `position`, and it knows this watermark."""

    position: Position
    watermark: Position


class Unheld(ReplicaReply, frozen=True, gc=False):
    """The replica refuses a message of its owner."""

    revision: Revision
    """The revision in the refused message."""
    why: Objection
    run: LeaseId = 0
    """The run of the replica's node; 0: a node of an earlier version."""


# --- a mover (a task that carries rows from source to target) and replicas


class SessionMessage(Message, frozen=True, gc=False):
    """To one incarnation of a partition, in a session of its transition."""

    partition: PartitionId
    to: Incarnation
    session: SessionId
    epoch: int


class Fetch(SessionMessage, frozen=True, gc=False):
    """Ask for one slice of the committed rows."""

    slice: int
    slices: int


class Fetched(Message, frozen=True, gc=False):
    """The rows of a slice, as they were committed at `through`, and their digest at the source."""

    partition: PartitionId
    session: SessionId
    slice: int
    rows: Rows
    through: Position
    producers: ProducersValue
    digest: int
    slices: int = 0
    """Into how many slices the sender of the `Fetch` cut the copy, since another mover may cut the
    same session differently; 0: the source runs a version that does not say. `Landed` and `Denied`
    likewise."""
    pause_seconds: float = 0.0
    """How long the mover should wait before it asks for another slice, for the sake of clients'
    writes. `Landed` likewise."""


class Chunk(SessionMessage, frozen=True, gc=False):
    """Some rows of a slice; they are applied only after the `End` of the same attempt."""

    slice: int
    attempt: str
    number: int
    rows: Rows


class End(SessionMessage, frozen=True, gc=False):
    """The end of a slice: the number of its rows, and their digest."""

    slice: int
    slices: int
    attempt: str
    count: int
    digest: int
    through: Position
    producers: ProducersValue


class Landed(Message, frozen=True, gc=False):
    """The slice is durable here."""

    partition: PartitionId
    session: SessionId
    slice: int
    slices: int = 0
    pause_seconds: float = 0.0


class Denied(Message, frozen=True, gc=False):
    """The session is closed here, or not open yet: the mover must stop."""

    partition: PartitionId
    session: SessionId
    slice: int
    why: str
    slices: int = 0


class Link(SessionMessage, frozen=True, gc=False):
    """Give this replica the rows of another replica of the same node, by linking its files."""

    source: Incarnation


# --- the coordinator and nodes


WHOLE_STATUS: Final = -1


class Look(Message, frozen=True, gc=False):
    """Read the topology, and send a status."""

    generation: Revision
    heard: int = 0
    """The node's last status that the coordinator has taken up; 0: the coordinator does not say."""
    whole: bool = True
    """Of all replicas, and not only of those that changed. A coordinator of an earlier version does
    not say, and needs the whole status."""


class Seal(Message, frozen=True, gc=False):
    """Stop serving under this one revision of the record, and report when all work has ended."""

    partition: PartitionId
    revision: Revision


class Verify(Message, frozen=True, gc=False):
    """Take digests of the owner's and the targets' rows at one position."""

    partition: PartitionId
    session: SessionId


class DropReplica(Message, frozen=True, gc=False):
    """The record at this revision no longer names this incarnation: drop it."""

    partition: PartitionId
    to: Incarnation
    revision: Revision


Trouble: TypeAlias = Literal["", "unreadable", "unlinkable"]


class ReplicaStatus(Struct, frozen=True, gc=False, array_like=True):
    """The state of one replica."""

    replica: Replica
    epoch: int
    """Durably promised: messages of earlier epochs are refused."""
    last: Position
    watermark: Position
    open_epoch: int = 0
    sealed: tuple[Revision, Position] | None = None
    copied: SessionId | None = None
    digest: tuple[SessionId, Position, int] | None = None
    silent: tuple[Replica, ...] = ()
    caught_up: tuple[tuple[Replica, Revision], ...] = ()
    unreachable: tuple[Replica, ...] = ()
    """Replicas that this owner's log no longer reaches back to."""
    copying: tuple[int, int] | None = None
    """At a target: the slices that have landed, and the slices in all."""
    commit_seconds: float = 0.0
    """At an owner: the longest recent time from a write to its commit."""
    rows: int = 0
    """Approximate, as its node last measured it; 0: unknown. `bytes` likewise."""
    bytes: int = 0
    checking: Position | None = None
    """The position at which a digest is being taken."""
    trouble: Trouble = ""
    """In this session: its rows can't be read, or its neighbour's files can't be linked."""
    rates: tuple[float, float] = (0.0, 0.0)
    """At an owner: rows written and keys read per second, lately."""
    damaged: str = ""
    """Which file of the replica does not match its checksum; empty: none that is known."""
    copy_rate: int = 0
    """At an owner whose rows are copied: bytes per second to which copies of its node are slowed
    down for the sake of clients' writes; 0: they are not."""


class Status(Message, frozen=True, gc=False):
    """The state of a node. What it says stays true while the node's lease lasts.

    It names all replicas of the node, or those that changed since an earlier status of the same
    lease: see `after`.
    """

    node: NodeId
    lease: LeaseId
    sequence: int
    generation: Revision
    busy: dict[PartitionId, Revision]
    """By partition: the oldest revision under which work is still under way on the node, if that is
    older than the record that the node has applied."""
    replicas: dict[PartitionId, tuple[ReplicaStatus, ...]]
    free_bytes: dict[str, int] = {}
    """By volume, as the node last measured it."""
    failed_volumes: tuple[str, ...] = ()
    """Volumes of the member that this run of the node can't use."""
    after: int = WHOLE_STATUS
    """The sequence of the status before this one, if only changes since then are named."""
    gone: tuple[PartitionId, ...] = ()
    """Partitions that have no replica here any more."""
