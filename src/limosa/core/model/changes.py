"""How does the agreed state change? A change is a value; applying it is one pure function."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from limosa.core.model.intent import Intent
from limosa.core.model.keys import NodeId, PartitionId, Revision, ZoneId
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.requests import Request
from limosa.core.model.runs import Controls, Rebalance, Run, RunMove
from limosa.core.model.topology import (
    Cluster,
    CoordinatorLease,
    Features,
    Layout,
    Mark,
    NamedTable,
    Node,
    NodeLease,
    Partition,
    Record,
    Zone,
)

AnyRecord: TypeAlias = (
    Cluster
    | Features
    | Node
    | Zone
    | NamedTable
    | Layout
    | Partition
    | Intent
    | Request
    | NodeLease
    | CoordinatorLease
    | Report
    | Pipeline
    | Rebalance
    | Run
    | RunMove
    | Controls
    | Mark
)

TOPOLOGY = "topology/"
MARK_KEY = "topology/mark"
CLUSTER_KEY = "topology/cluster"
FEATURES_KEY = "topology/features"
COORDINATOR_KEY = "lease/coordinator"
PIPELINE_KEY = "pipeline"
REBALANCE_KEY = "rebalance"
CONTROLS_KEY = "controls"


def node_key(node: NodeId) -> str:
    return f"topology/node/{node}"


def zone_key(zone: ZoneId) -> str:
    return f"topology/zone/{zone}"


def table_key(table: str) -> str:
    return f"topology/table/{table}"


def partition_key(partition: PartitionId) -> str:
    return f"topology/partition/{partition}"


def layout_key(zone: ZoneId) -> str:
    return f"topology/layout/{zone}"


def intent_key(partition: PartitionId) -> str:
    return f"intent/{partition}"


def request_key(request: str) -> str:
    return f"request/{request}"


def report_key(partition: PartitionId, transition: str) -> str:
    return f"report/{partition}/{transition}"


def run_key(run: str) -> str:
    return f"run/{run}"


def run_move_key(run: str, number: int) -> str:
    return f"run-move/{run}/{number}"


def lease_key(node: NodeId) -> str:
    return f"lease/node/{node}"


def key_of(record: Record) -> str:
    match record:
        case Node(id=name):
            return node_key(name)
        case Zone(id=name):
            return zone_key(name)
        case NamedTable(name=name):
            return table_key(name)
        case Layout(zone=name):
            return layout_key(name)
        case Partition(id=name):
            return partition_key(name)
        case Intent(partition=name):
            return intent_key(name)
        case Request(id=name):
            return request_key(name)
        case Report(partition=name, transition=transition):
            return report_key(name, transition)
        case Pipeline():
            return PIPELINE_KEY
        case Run(id=name):
            return run_key(name)
        case RunMove(run=name, number=number):
            return run_move_key(name, number)
        case Rebalance():
            return REBALANCE_KEY
        case Controls():
            return CONTROLS_KEY
        case NodeLease(node=name):
            return lease_key(name)
        case CoordinatorLease():
            return COORDINATOR_KEY
        case Cluster():
            return CLUSTER_KEY
        case Features():
            return FEATURES_KEY
        case _:
            return MARK_KEY


class Put(Struct, frozen=True):
    """Write this record."""

    record: Record


class Remove(Struct, frozen=True):
    """Delete the record under this key."""

    key: str


Change: TypeAlias = Put | Remove


class Commit(Struct, frozen=True):
    """Changes that are made together, only if every guarded key still has its revision."""

    guards: dict[str, Revision]
    changes: tuple[Change, ...]
    why: str

    def touches_topology(self) -> bool:
        return any(change_key(change).startswith(TOPOLOGY) for change in self.changes)


class Revisions(dict[str, Revision]):
    """The revision of each key, and which keys changed since the state before this one.

    Who knows that state finds the changes without comparing all revisions. They are not part of
    the value: two that hold the same revisions are equal.
    """

    __slots__ = ("changed", "since")

    def __init__(self, known: dict[str, Revision], since: Revision) -> None:
        super().__init__(known)
        self.since = since
        self.changed: dict[str, None] = {}


def changed_keys(
    before: dict[str, Revision], at: Revision, after: dict[str, Revision]
) -> Iterable[str]:
    """The keys that were changed or deleted since the revisions `before`, which were those of the
    state at this revision."""
    if before is after:
        return ()
    if isinstance(after, Revisions) and after.since == at:
        return after.changed
    keys = [key for key, revision in after.items() if before.get(key) != revision]
    return keys + [key for key in before if key not in after]


class Topology(Struct, frozen=True):
    """What nodes and clients act on: a snapshot, named by its generation."""

    generation: Revision = 0
    nodes: dict[NodeId, Node] = {}
    zones: dict[ZoneId, Zone] = {}
    tables: dict[str, NamedTable] = {}
    layouts: dict[ZoneId, Layout] = {}
    partitions: dict[PartitionId, Partition] = {}
    revisions: dict[str, Revision] = {}
    cluster: Cluster | None = None
    features: Features = Features()

    def revision_of(self, partition: PartitionId) -> Revision:
        return self.revisions.get(f"topology/partition/{partition}", 0)

    def changed_since(self, before: "Topology") -> list[PartitionId]:
        """Partitions whose record was changed or deleted."""
        keys = changed_keys(before.revisions, before.generation, self.revisions)
        start = partition_key("")
        return [key.removeprefix(start) for key in keys if key.startswith(start)]


class Agreed(Struct, frozen=True):
    """Everything in the metastore at one revision."""

    revision: Revision = 0
    topology: Topology = Topology()
    intents: dict[PartitionId, Intent] = {}
    requests: dict[str, Request] = {}
    leases: dict[NodeId, NodeLease] = {}
    coordinator: CoordinatorLease | None = None
    reports: dict[str, Report] = {}
    """Reports of ended transitions, by key."""
    pipeline: Pipeline | None = None
    revisions: dict[str, Revision] = {}
    """Revisions of the keys outside the topology."""
    rebalance: Rebalance = Rebalance()
    runs: dict[str, Run] = {}
    moves: dict[str, dict[int, RunMove]] = {}
    """The moves of each run, by number."""
    controls: Controls = Controls()

    def revision_of(self, key: str) -> Revision:
        return self.topology.revisions.get(key, 0) or self.revisions.get(key, 0)

    def changed_since(self, before: "Agreed") -> Iterable[str]:
        """The keys outside the topology that were changed or deleted."""
        return changed_keys(before.revisions, before.revision, self.revisions)


def change_key(change: Change) -> str:
    return key_of(change.record) if isinstance(change, Put) else change.key


def apply(agreed: Agreed, changes: Iterable[Change], revision: Revision) -> Agreed:
    """The state after one commit; the given state is not modified."""
    return apply_dated(agreed, ((change, revision) for change in changes), revision)


def apply_dated(
    agreed: Agreed, changes: Iterable[tuple[Change, Revision]], revision: Revision
) -> Agreed:
    """The state after several commits, in their order, each change with its own revision.

    Each collection that changes is copied once, however many of its records change.
    """
    topology = _Draft(agreed.topology, agreed.topology.generation)
    other = _Draft(agreed, agreed.revision)
    for change, at in changes:
        key = change_key(change)
        record = change.record if isinstance(change, Put) else None
        if key.startswith(TOPOLOGY):
            topology.fields["generation"] = at
            _change(topology, key, record, at)
        else:
            _change(other, key, record, at)
    other.fields["revision"] = revision
    if topology.fields:
        other.fields["topology"] = replace(agreed.topology, **topology.fields)
    return replace(agreed, **other.fields)


class _Draft:
    """The changed fields of a state."""

    __slots__ = ("_since", "fields", "of")

    def __init__(self, of: Topology | Agreed, since: Revision) -> None:
        self.of = of
        self._since = since
        self.fields: dict[str, Any] = {}

    def copied(self, field: str) -> dict[str, Any]:
        if field not in self.fields:
            self.fields[field] = dict(getattr(self.of, field))
        records: dict[str, Any] = self.fields[field]
        return records

    def date(self, key: str, revision: Revision | None) -> None:
        """None: the key is deleted."""
        if "revisions" not in self.fields:
            self.fields["revisions"] = Revisions(self.of.revisions, self._since)
        self.fields["revisions"].changed[key] = None
        self.change("revisions", key, revision)

    def change(self, field: str, name: str, value: object | None) -> None:
        if value is None:
            self.copied(field).pop(name, None)
        else:
            self.copied(field)[name] = value


_SINGLETONS: dict[str, tuple[str, Record | None]] = {
    CLUSTER_KEY: ("cluster", None),
    FEATURES_KEY: ("features", Features()),
    COORDINATOR_KEY: ("coordinator", None),
    PIPELINE_KEY: ("pipeline", None),
    REBALANCE_KEY: ("rebalance", Rebalance()),
    CONTROLS_KEY: ("controls", Controls()),
}
"""Records of which there is one: their field, and its value once the record is deleted."""


def _change(draft: _Draft, key: str, record: Record | None, revision: Revision) -> None:
    draft.date(key, None if record is None else revision)
    if key in _SINGLETONS:
        field, without = _SINGLETONS[key]
        draft.fields[field] = without if record is None else record
        return
    if key == MARK_KEY:
        return
    kind, name = key.removeprefix(TOPOLOGY).split("/", 1)
    if kind == "report":
        draft.change("reports", key, record)
    elif kind == "run-move":
        _change_move(draft, name, record)
    else:
        draft.change(f"{kind}s", name.removeprefix("node/") if kind == "lease" else name, record)


def _change_move(draft: _Draft, name: str, record: Record | None) -> None:
    """Only the moves of the changed run are copied, once."""
    assert isinstance(draft.of, Agreed)
    run, number = name.rsplit("/", 1)
    runs = draft.copied("moves")
    moves: dict[int, Any] = runs.get(run, {})
    if moves is draft.of.moves.get(run) or not moves:
        moves = runs[run] = dict(moves)
    if record is None:
        moves.pop(int(number), None)
    else:
        moves[int(number)] = record
    if not moves:
        del runs[run]


def with_mark(commit: Commit) -> tuple[Change, ...]:
    """The changes, with the mark if they touch the topology: the mark's revision is the
    generation."""
    return (*commit.changes, Put(Mark(commit.why))) if commit.touches_topology() else commit.changes


def merged(commits: Iterable[Commit], operations_max: int, at_most: int) -> list[Commit]:
    """The first commits that can be made as one, in their order.

    Two commits conflict if they expect different revisions of a key, or if one changes a key that
    the other guards: made one after the other, the second would be stale. A commit that conflicts
    is left for later. Together they have no more guards, and no more changes, than the metastore
    takes at once; a single commit may have more.
    """
    together: list[Commit] = []
    guards: dict[str, Revision] = {}
    changed: set[str] = set()
    for commit in commits:
        keys = [change_key(change) for change in commit.changes]
        agrees = all(
            guards.get(key, revision) == revision and key not in changed
            for key, revision in commit.guards.items()
        )
        if not agrees or any(key in guards or key in changed for key in keys):
            continue
        more = sum(key not in guards for key in commit.guards)
        size = max(len(guards) + more, len(changed) + len(keys) + 1)  # and the mark
        if together and (size > operations_max or len(together) == at_most):
            break
        together.append(commit)
        guards |= commit.guards
        changed.update(keys)
    return together


def united(commits: list[Commit]) -> Commit:
    """One commit of several that do not conflict."""
    guards: dict[str, Revision] = {}
    for commit in commits:
        guards |= commit.guards
    changes = tuple(change for commit in commits for change in commit.changes)
    others = f" (and {len(commits) - 1} more)" if len(commits) > 1 else ""
    return Commit(guards, changes, commits[0].why + others)
