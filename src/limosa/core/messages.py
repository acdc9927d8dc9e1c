"""Which messages do processes send to each other?

Every message of a partition names the incarnation that it is for, the epoch, and the revision of
the record that its sender acted on, so that a late one can be told from a live one.
"""

from typing import Literal, TypeAlias

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
"""Why a replica does not take a message of its owner."""


class Message(Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Something said."""


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
    """Opaque: the storage's business, as the rows that are found."""
    table: str = ""
    eventual: bool = False


class Answer(Message, frozen=True, gc=False):
    """To a client's request."""

    id: str


class Written(Answer, frozen=True, gc=False):
    """The rows are committed at this version."""

    at: Position


class Mismatched(Answer, frozen=True, gc=False):
    """The comparison failed; nothing was written."""

    found: Position


class Found(Answer, frozen=True, gc=False):
    """The rows of these keys, as the storage gives them."""

    rows: object


class Redirect(Answer, frozen=True, gc=False):
    """Not here, or routed by another layout: refresh and route again."""

    owner: NodeId | None
    version: int
    generation: Revision
    definite: bool = True
    """False: the rows are in the log of this former owner, and may come to be committed."""


class Wait(Answer, frozen=True, gc=False):
    """Here, but not now: ask again."""

    why: str
    after: int = 0
    """The producer's sequence that must come first."""


class Refuse(Answer, frozen=True, gc=False):
    """It did not happen and will not: say why."""

    why: str
    code: str = "Refused"
    """Which error it is, by the name of its class."""
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
    """For `match`: the run that was probed. A late one must not cut the log of a later run."""


class ReplicaReply(Message, frozen=True, gc=False):
    """From a replica to its partition's owner at an epoch."""

    partition: PartitionId
    replica: Replica
    epoch: int


class Probed(ReplicaReply, frozen=True, gc=False):
    """My log ends here (or: it has nothing between `previous` and here)."""

    last: Position
    begun: int
    """The epoch in which this replica was last begun from nothing."""
    run: LeaseId


class Acked(ReplicaReply, frozen=True, gc=False):
    """Everything up to here is durable here, and so far I know it committed."""

    position: Position
    watermark: Position


class Unheld(ReplicaReply, frozen=True, gc=False):
    """I can't take this: why."""

    revision: Revision
    """That the refused message was sent under."""
    why: Objection


# --- a mover (a task that carries rows from source to target) and replicas


class SessionMessage(Message, frozen=True, gc=False):
    """To one incarnation of a partition, in a session of its transition."""

    partition: PartitionId
    to: Incarnation
    session: SessionId
    epoch: int


class Fetch(SessionMessage, frozen=True, gc=False):
    """Give me one slice of the committed rows."""

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


class Chunk(SessionMessage, frozen=True, gc=False):
    """Some rows of a slice; they count only after the `End` of the same attempt."""

    slice: int
    attempt: str
    number: int
    rows: Rows


class End(SessionMessage, frozen=True, gc=False):
    """That was the slice: so many rows, with this digest."""

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


class Denied(Message, frozen=True, gc=False):
    """The session is closed here, or not open yet: stop."""

    partition: PartitionId
    session: SessionId
    slice: int
    why: str


class Link(SessionMessage, frozen=True, gc=False):
    """Give this replica the rows of another one on your volumes, by naming its files again."""

    source: Incarnation


# --- the coordinator and nodes


class Look(Message, frozen=True, gc=False):
    """Look at the topology, and tell me where you are."""

    generation: Revision


class Seal(Message, frozen=True, gc=False):
    """Stop serving for this one revision of the record, and say when you have finished."""

    partition: PartitionId
    revision: Revision


class Verify(Message, frozen=True, gc=False):
    """Take digests, yours and the targets', at one position."""

    partition: PartitionId
    session: SessionId


class DropReplica(Message, frozen=True, gc=False):
    """The record at this revision leaves this incarnation behind: drop it."""

    partition: PartitionId
    to: Incarnation
    revision: Revision


Trouble: TypeAlias = Literal["", "unreadable", "unlinkable"]


class ReplicaStatus(Struct, frozen=True, gc=False, array_like=True):
    """Where one replica is."""

    replica: Replica
    epoch: int
    """Durably promised: nothing older is accepted any more."""
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
    """At a target: how many slices have landed, and of how many."""
    commit_seconds: float = 0.0
    """At an owner: how long it lately took from a write to its commit, at the longest."""
    rows: int = 0
    """About what it holds, as its node last measured it; 0: it is not known."""
    bytes: int = 0
    checking: Position | None = None
    """Where a digest is being taken."""
    trouble: Trouble = ""
    """In this session: its rows can't be read, or those beside it can't be linked."""
    rates: tuple[float, float] = (0.0, 0.0)
    """At an owner: rows written and keys read lately, in a second."""


class Status(Message, frozen=True, gc=False):
    """Where a node is. Facts in it stay true while its lease lasts."""

    node: NodeId
    lease: LeaseId
    sequence: int
    generation: Revision
    busy: dict[PartitionId, Revision]
    """The oldest revision under which something of this partition still runs here."""
    replicas: dict[PartitionId, tuple[ReplicaStatus, ...]]
    free_bytes: dict[str, int] = {}
    """By volume, as the node last measured it."""
