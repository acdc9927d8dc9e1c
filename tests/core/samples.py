"""A small cluster to try things on: one zone of one partition, three replicas, four nodes."""

from msgspec.structs import replace

from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.catalogue import MACHINES
from limosa.core.messages import ReplicaStatus, Status
from limosa.core.model.changes import Agreed, Change, Put, apply
from limosa.core.model.intent import Assignment, Intent, Placement
from limosa.core.model.keys import WHOLE, Revision
from limosa.core.model.topology import (
    CoordinatorLease,
    GivenUpBy,
    Grant,
    Layout,
    Node,
    NodeLease,
    Partition,
    Record,
    Replica,
    Transition,
    TransitionKind,
    Zone,
)

ZONE = "z"
P = "p"
NODES = ("a", "b", "c", "d")
MEMBERS = (Node("a"), Node("b"), Node("c"), Node("d"))
LEASES = {"a": 11, "b": 12, "c": 13, "d": 14}
A, B, C = (Replica(node, "first") for node in "abc")
D = Replica("d", "t9")
OLD = (A, B, C)
NEW = (B, C, D)
"""What a move of trigger 9 makes of it: the owner's node goes, another comes."""
RECORD_REVISION = 50
OFFICE = 40


def placed(*replicas: Replica) -> tuple[Placement, ...]:
    return tuple(Placement(replica.node, replica.volume) for replica in replicas)


def stable(
    replicas: tuple[Replica, ...] = OLD,
    in_sync: tuple[Replica, ...] | None = None,
    owner: Replica | None = A,
    epoch: int = 3,
    fence: Revision = 0,
    transition: Transition | None = None,
) -> Partition:
    grant = None if owner is None else Grant(owner, LEASES[owner.node])
    synced = replicas if in_sync is None else in_sync
    return Partition(P, ZONE, WHOLE, replicas, synced, epoch, grant, fence, transition)


def moving(
    stage: str,
    kind: TransitionKind = "move",
    targets: tuple[Replica, ...] = NEW,
    in_sync: tuple[Replica, ...] | None = None,
    owner: Replica | None = None,
    epoch: int = 3,
    hold_seconds: float = 0.0,
    released: bool = False,
    giving_up: str = "",
    max_pause_seconds: float = 0.0,
    by: GivenUpBy = "",
) -> Partition:
    """The partition in a stage of a transition, as its table says that it is there."""
    line = MACHINES[kind][stage]
    session = f"t9@{epoch}" if line.session else None
    sides = {"old": OLD, "new": targets, "both": tuple(dict.fromkeys((*OLD, *targets)))}
    owns = owner or (A if line.owner.value == "old" else targets[-1])
    synced = sides[line.writes.value] if in_sync is None else in_sync
    change = Transition(
        "t9",
        kind,
        stage,
        targets,
        session,
        hold_seconds,
        released,
        giving_up,
        max_pause_seconds,
        given_up_by=by or ("cluster" if giving_up else ""),
    )
    return stable(in_sync=synced, owner=owns, epoch=epoch, transition=change)


def without_owner(record: Partition) -> Partition:
    return replace(record, owner=None)


def cluster(
    record: Partition,
    intent: Intent | None = None,
    live: tuple[str, ...] = NODES,
    nodes: tuple[Node, ...] = MEMBERS,
    more: tuple[Record, ...] = (),
    replica_count: int = 3,
) -> Agreed:
    """Each record at a revision of its own; the partition's is RECORD_REVISION, then `more`."""
    agreed = Agreed()
    records: list[tuple[Record, Revision]] = [(Zone(ZONE, replica_count), 1)]
    records += [(node, 2) for node in nodes]
    records += [(Layout(ZONE, 1, (-(2**63),), (P,)), 3)]
    records += [(NodeLease(name, LEASES[name]), LEASES[name]) for name in live]
    records += [(CoordinatorLease("one", 20), OFFICE)]
    records += [(Intent(P, placed(*record.replicas)) if intent is None else intent, 45)]
    records += [(record, RECORD_REVISION)]
    records += [(each, RECORD_REVISION + 1 + n) for n, each in enumerate(more)]
    for each, revision in records:
        agreed = apply(agreed, (Put(each),), revision)
    return agreed


def intends(
    kind: TransitionKind = "move",
    targets: tuple[Replica, ...] = NEW,
    cancel: Revision | None = None,
    planned: Assignment | None = None,
    renewed: tuple[str, ...] = (),
) -> Intent:
    pending = Assignment(kind, placed(*targets) if targets else (), renewed, trigger=9)
    return Intent(P, placed(*OLD), pending, planned, cancel, change=9)


def says(
    node: str,
    *replicas: ReplicaStatus,
    generation: Revision = RECORD_REVISION,
    busy: dict[str, Revision] | None = None,
    sequence: int = 1,
    lease: int | None = None,
    free_bytes: dict[str, int] | None = None,
    failed: tuple[str, ...] = (),
) -> Status:
    lease = LEASES[node] if lease is None else lease
    held = {P: replicas} if replicas else {}
    return Status(node, lease, sequence, generation, busy or {}, held, free_bytes or {}, failed)


def of(
    replica: Replica,
    epoch: int = 3,
    last: int = 0,
    open_epoch: int = 0,
    sealed: tuple[Revision, int] | None = None,
    copied: str | None = None,
    digest: tuple[str, int, int] | None = None,
    silent: tuple[Replica, ...] = (),
    caught_up: tuple[tuple[Replica, Revision], ...] = (),
    unreachable: tuple[Replica, ...] = (),
    copying: tuple[int, int] | None = None,
    commit_seconds: float = 0.0,
    bytes: int = 0,
) -> ReplicaStatus:
    return ReplicaStatus(
        replica,
        epoch,
        last,
        last,
        open_epoch,
        sealed,
        copied,
        digest,
        silent,
        caught_up,
        unreachable,
        copying,
        commit_seconds,
        bytes=bytes,
    )


def seen(
    agreed: Agreed,
    *statuses: Status,
    now: float = 100.0,
    settings: CoordinatorSettings | None = None,
    memory: Memory | None = None,
    wall: float = 0.0,
) -> ClusterView:
    said = {status.node: status for status in statuses}
    return ClusterView(agreed, said, OFFICE, now, wall, settings, memory)


def put(changes: tuple[Change, ...], kind: type[Record]) -> list[Record]:
    return [
        each.record for each in changes if isinstance(each, Put) and isinstance(each.record, kind)
    ]
