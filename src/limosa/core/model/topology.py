"""Which nodes, zones, tables, layouts and partitions are there, and who holds what?"""

from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.core.model.keys import (
    TOKEN_END,
    TOKEN_MIN,
    Incarnation,
    LeaseId,
    NodeId,
    PartitionId,
    Revision,
    SessionId,
    TokenRange,
    ZoneId,
)
from limosa.errors import InvalidLayout

TransitionKind: TypeAlias = Literal["move", "rebuild", "volume_move", "repair"]


NodeState: TypeAlias = Literal[
    "none",
    "bootstrapping",
    "replacing",
    "normal",
    "rebuilding",
    "decommissioning",
    "removing",
    "left",
]
GivenUpBy: TypeAlias = Literal["", "operator", "run", "verification", "cluster"]
"""What gives a transition up: a request of an operator, the cancellation of its run, the comparison
of the copy with its source, or the cluster, since the transition can't succeed. Empty: nothing."""


class Record(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A part of the agreed state, stored under one key of the metastore."""


class Cluster(Record, frozen=True):
    """The cluster that this metastore belongs to."""

    name: str
    id: str
    machine: str = ""
    """Set if the agreed state is a file on this machine: nodes on other machines are refused."""


class Features(Record, frozen=True):
    """Features that every node supports; an enabled feature stays enabled."""

    enabled: tuple[str, ...] = ()


class Node(Record, frozen=True):
    """A member: a process that holds replicas on its volumes, or none if `tokens` is False."""

    id: NodeId
    address: str = ""
    rack: str = ""
    datacenter: str = ""
    state: NodeState = "normal"
    volumes: tuple[str, ...] = ("",)
    tokens: bool = True
    host: str = ""
    """A random id that the node keeps in its directory."""
    features: tuple[str, ...] = ()
    """Features that the node supports."""
    machine: str = ""


class Zone(Record, frozen=True):
    """Tables and streams that share one layout, a replica count and a filter on nodes."""

    id: ZoneId
    replica_count: int = 3
    min_in_sync: int = 0
    """0: a majority of the replicas."""
    datacenters: tuple[str, ...] = ()

    def needed_in_sync(self) -> int:
        return self.min_in_sync or self.replica_count // 2 + 1


class NamedTable(Record, frozen=True):
    """Keyed rows in a zone, under a name that can be reused."""

    name: str
    zone: ZoneId
    id: str
    """Never reused: a table that was dropped and created again has another id."""
    definition: bytes
    """The encoded schema; the core never looks into it."""


class Layout(Record, frozen=True):
    """How a zone's partitions tile the token space, without gaps or overlaps."""

    zone: ZoneId
    version: int
    starts: tuple[int, ...]
    partitions: tuple[PartitionId, ...]

    def __post_init__(self) -> None:
        advice = "a layout's ranges must tile the token space exactly: mend the starts"
        if not self.starts or len(self.starts) != len(self.partitions):
            raise InvalidLayout(
                f"{len(self.starts)} starts for {len(self.partitions)} partitions", advice
            )
        if self.starts[0] != TOKEN_MIN:
            raise InvalidLayout(f"no partition holds the tokens below {self.starts[0]}", advice)
        pairs = zip(self.starts, (*self.starts[1:], TOKEN_END), strict=True)
        for (low, high), name in zip(pairs, self.partitions, strict=True):
            if low >= high:
                raise InvalidLayout(f"{name} overlaps its neighbour at token {high}", advice)
        if len(set(self.partitions)) != len(self.partitions):
            raise InvalidLayout("a partition is named twice", advice)

    def range_of(self, index: int) -> TokenRange:
        end = self.starts[index + 1] if index + 1 < len(self.starts) else TOKEN_END
        return TokenRange(self.starts[index], end)


class Placement(Struct, frozen=True, order=True):
    """A place for a replica."""

    node: NodeId
    volume: str = ""


class Replica(Struct, frozen=True, order=True):
    """One copy of a partition on one volume of one node, with the id of what created it."""

    node: NodeId
    incarnation: Incarnation
    volume: str = ""


class Grant(Struct, frozen=True):
    """Ownership at one epoch, given to one replica in one run (one lease) of its process."""

    replica: Replica
    lease: LeaseId


class Transition(Struct, frozen=True):
    """One recorded change of one partition."""

    id: str
    kind: TransitionKind
    stage: str
    targets: tuple[Replica, ...]
    session: SessionId | None = None
    hold_seconds: float = 0.0
    released: bool = False
    giving_up: str = ""
    """Why it is being given up, in words; empty while it goes forward."""
    max_pause_seconds: float = 0.0
    """The hand-over waits while it would pause writes for longer; 0: no limit."""
    begun: float = 0.0
    """When it began, and since when it is in this stage: wall-clock seconds, for people only."""
    since: float = 0.0
    pause_seconds: float = 0.0
    """How long its hand-over took; 0: no hand-over yet, or unknown."""
    given_up_by: GivenUpBy = ""


class Partition(Record, frozen=True):
    """A token range of a zone, its replicas, who orders its writes, and what is changing."""

    id: PartitionId
    zone: ZoneId
    range: TokenRange
    replicas: tuple[Replica, ...]
    in_sync: tuple[Replica, ...]
    """Replicas that must store a write before it is acknowledged."""
    epoch: int = 0
    """0: never owned, so its replicas may still be created empty."""
    owner: Grant | None = None
    """None: an election at this epoch is under way."""
    fence: Revision = 0
    """Requests that were started under an older generation are refused."""
    transition: Transition | None = None
    eligible: tuple[Replica, ...] = ()
    """Replicas that were taken out when too few were left in sync. Nothing is committed while there
    are any, so they have every committed row, and may be elected."""


class NodeLease(Record, frozen=True):
    """A node is alive; the key is deleted when its lease ends."""

    node: NodeId
    lease: LeaseId


class CoordinatorLease(Record, frozen=True):
    """The coordinator in office; the key is deleted when its lease ends."""

    holder: str
    lease: LeaseId


class Mark(Record, frozen=True):
    """Written with every change of the topology: its revision is the generation."""

    why: str = ""
