"""How does the agreed state change? A change is a value; applying it is one pure function."""

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from limosa.core.model.intent import Intent, Request
from limosa.core.model.keys import NodeId, PartitionId, Revision, ZoneId
from limosa.core.model.topology import (
    CoordinatorLease,
    Layout,
    Mark,
    Node,
    NodeLease,
    Partition,
    Record,
    Table,
    Zone,
)

TOPOLOGY = "topology/"
MARK_KEY = "topology/mark"
COORDINATOR_KEY = "lease/coordinator"


def node_key(node: NodeId) -> str:
    return f"topology/node/{node}"


def zone_key(zone: ZoneId) -> str:
    return f"topology/zone/{zone}"


def partition_key(partition: PartitionId) -> str:
    return f"topology/partition/{partition}"


def layout_key(zone: ZoneId) -> str:
    return f"topology/layout/{zone}"


def intent_key(partition: PartitionId) -> str:
    return f"intent/{partition}"


def request_key(request: str) -> str:
    return f"request/{request}"


def lease_key(node: NodeId) -> str:
    return f"lease/node/{node}"


def key_of(record: Record) -> str:
    match record:
        case Node(id=name):
            return node_key(name)
        case Zone(id=name):
            return zone_key(name)
        case Table(name=name):
            return f"topology/table/{name}"
        case Layout(zone=name):
            return layout_key(name)
        case Partition(id=name):
            return partition_key(name)
        case Intent(partition=name):
            return intent_key(name)
        case Request(id=name):
            return request_key(name)
        case NodeLease(node=name):
            return lease_key(name)
        case CoordinatorLease():
            return COORDINATOR_KEY
        case _:
            return MARK_KEY


class Put(Struct, frozen=True):
    """This record is so from now on."""

    record: Record


class Remove(Struct, frozen=True):
    """The record under this key is no more."""

    key: str


Change: TypeAlias = Put | Remove


class Commit(Struct, frozen=True):
    """Changes made together, if every key still has the revision that they were computed from."""

    guards: dict[str, Revision]
    changes: tuple[Change, ...]
    why: str

    def touches_topology(self) -> bool:
        return any(change_key(change).startswith(TOPOLOGY) for change in self.changes)


class Topology(Struct, frozen=True):
    """What nodes and clients act on: a snapshot, and the generation that names it."""

    generation: Revision = 0
    nodes: dict[NodeId, Node] = {}
    zones: dict[ZoneId, Zone] = {}
    tables: dict[str, Table] = {}
    layouts: dict[ZoneId, Layout] = {}
    partitions: dict[PartitionId, Partition] = {}
    revisions: dict[str, Revision] = {}

    def revision_of(self, partition: PartitionId) -> Revision:
        return self.revisions.get(f"topology/partition/{partition}", 0)


class Agreed(Struct, frozen=True):
    """Everything in the metastore at one revision."""

    revision: Revision = 0
    topology: Topology = Topology()
    intents: dict[PartitionId, Intent] = {}
    requests: dict[str, Request] = {}
    leases: dict[NodeId, NodeLease] = {}
    coordinator: CoordinatorLease | None = None
    revisions: dict[str, Revision] = {}
    """Of the keys outside the topology."""

    def revision_of(self, key: str) -> Revision:
        return self.topology.revisions.get(key, 0) or self.revisions.get(key, 0)


def change_key(change: Change) -> str:
    return key_of(change.record) if isinstance(change, Put) else change.key


def apply(agreed: Agreed, changes: Iterable[Change], revision: Revision) -> Agreed:
    """The state after one commit. The old one stays as it was."""
    topology = agreed.topology
    for change in changes:
        key = change_key(change)
        if key.startswith(TOPOLOGY):
            topology = _apply_topology(topology, key, change, revision)
        else:
            agreed = _apply_other(agreed, key, change, revision)
    return replace(agreed, topology=topology, revision=revision)


def _apply_topology(topology: Topology, key: str, change: Change, revision: Revision) -> Topology:
    revisions = dict(topology.revisions)
    kind = key.split("/", 2)[1] + "s"
    name = key.split("/", 2)[2] if key.count("/") > 1 else ""
    if isinstance(change, Put):
        revisions[key] = revision
    else:
        revisions.pop(key, None)
    topology = replace(topology, revisions=revisions, generation=revision)
    if kind == "marks":
        return topology
    records = dict(getattr(topology, kind))
    _put_or_pop(records, name, change)
    return replace(topology, **{kind: records})


def _apply_other(agreed: Agreed, key: str, change: Change, revision: Revision) -> Agreed:
    revisions = dict(agreed.revisions)
    if isinstance(change, Put):
        revisions[key] = revision
    else:
        revisions.pop(key, None)
    agreed = replace(agreed, revisions=revisions)
    if key == COORDINATOR_KEY:
        holder = change.record if isinstance(change, Put) else None
        assert holder is None or isinstance(holder, CoordinatorLease)
        return replace(agreed, coordinator=holder)
    kind, name = key.split("/", 1)
    field = {"intent": "intents", "request": "requests", "lease": "leases"}[kind]
    records = dict(getattr(agreed, field))
    _put_or_pop(records, name.removeprefix("node/"), change)
    return replace(agreed, **{field: records})


def _put_or_pop(records: dict[str, Record], name: str, change: Change) -> None:
    if isinstance(change, Put):
        records[name] = change.record
    else:
        records.pop(name, None)


def with_mark(commit: Commit) -> tuple[Change, ...]:
    """Every change of the topology also writes the mark, whose revision is the generation."""
    return (*commit.changes, Put(Mark(commit.why))) if commit.touches_topology() else commit.changes
