"""What is a partition doing, why, what comes next, and what may an operator do about it?

The explanation runs the coordinator's own decision on the agreed state and the nodes' statuses, so
any process that has these can explain; no coordinator is asked.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.transitions import Waiting
from limosa.core.coordinator.turns import TOPOLOGY, deferred
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import StartCopy
from limosa.core.insight.progress import NO_COORDINATOR, waits_in_a_run
from limosa.core.machines.machine import END, REVERT, Side, Stage, Work
from limosa.core.messages import Status
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Agreed,
    Commit,
    intent_key,
    partition_key,
    request_key,
)
from limosa.core.model.intent import Assignment, Intent
from limosa.core.model.keys import NodeId, PartitionId, Position
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.topology import Partition, Replica, Transition

Value = TypeVar("Value")

STABLE = "stable"
NOTHING = "nothing"

AFTER_THE_END = {
    END: "the end: the replicas are where they should be",
    REVERT: "the end: everything is as it was before",
}


class Standing(Struct, frozen=True):
    """One replica: its side, and its progress by its node's status."""

    replica: Replica
    side: str
    """In a transition: `old`, `new`, or `both` if it stays."""
    live: bool
    in_sync: bool
    owner: bool
    last: Position | None = None
    """Where its log ends; None: unknown."""
    watermark: Position | None = None
    rows: int = 0
    bytes: int = 0


class CopyProgress(Struct, frozen=True):
    """Progress of the copies to all targets together."""

    landed: int
    slices: int
    """0: no copy has begun."""
    rows: int
    rows_all: int
    """An estimate, as nodes last measured it."""
    bytes: int
    bytes_all: int
    slowed_to: int = 0
    """Bytes per second, for the sake of clients' writes; 0: the copy is not slowed down."""


class Explanation(Struct, frozen=True):
    """Everything that `limosa explain` shows about one partition."""

    partition: PartitionId
    kind: str
    """Of its transition; empty: no transition."""
    stage: str
    holds: str
    """What is true in this stage."""
    began: float | None
    """Wall-clock seconds, as `since`; None: unknown."""
    since: float | None
    waits_for: str
    next: str
    may: tuple[str, ...]
    giving_up: str
    coordinator: str | None
    owner: NodeId | None
    epoch: int
    replicas: tuple[Standing, ...]
    unheard: tuple[NodeId, ...]
    """Live nodes whose status is unknown."""
    copy: CopyProgress | None
    pipeline: Pipeline | None
    pause_seconds: float
    """0: no hand-over yet."""
    pause_seconds_max: float
    """0: there is no limit."""
    reports: tuple[Report, ...]
    """How earlier changes ended, the latest first."""


def explain(view: ClusterView, record: Partition, held_since: float) -> Explanation:
    change = record.transition
    stage = routing.stage_of(record)
    intent = view.agreed.intents.get(record.id) or Intent(record.id, ())
    coordinator = view.agreed.coordinator
    return Explanation(
        partition=record.id,
        kind="" if change is None else change.kind,
        stage=STABLE if stage is None else stage.name,
        holds="its replicas hold every acknowledged write" if stage is None else stage.holds,
        began=None if change is None else change.begun or None,
        since=None if change is None else change.since or None,
        waits_for=waits_for(view, record, held_since),
        next=what_is_next(record, intent),
        may=what_one_may(view, record, intent),
        giving_up="" if change is None else change.giving_up,
        coordinator=None if coordinator is None else coordinator.holder,
        owner=None if record.owner is None else record.owner.replica.node,
        epoch=record.epoch,
        replicas=tuple(standing(view, record, each) for each in routing.everywhere(record)),
        unheard=tuple(n for n in sorted(view.agreed.leases) if view.status(n) is None),
        copy=copying(view, record) if copies(stage) else None,
        pipeline=view.agreed.pipeline if copies(stage) else None,
        pause_seconds=0.0 if change is None else change.pause_seconds,
        pause_seconds_max=0.0 if change is None else change.max_pause_seconds,
        reports=reports_of(view.agreed, record.id),
    )


# --- what it waits for


def waits_for(view: ClusterView, record: Partition, held_since: float) -> str:
    words = _waits_for(view, record, held_since)
    if view.agreed.coordinator is not None:
        return words or NOTHING
    return f"{NO_COORDINATOR}. Then: {words}" if words else NO_COORDINATOR


def _waits_for(view: ClusterView, record: Partition, held_since: float) -> str:
    """Empty: the partition waits for nothing."""
    for request in view.agreed.requests.values():
        if request.partition == record.id and request.state == "waiting":
            why = deferred(view, request)
            answer = f"the coordinator's answer to the request {request.id} ({request.kind})"
            return f"{answer}: {why}" if why else answer
    decision = decide(view, record, held_since)
    if decision is None:
        return waits_in_a_run(view, record.id)
    if isinstance(decision, Commit):
        why = decision.why.removeprefix(f"{record.id}: ")
        return f"the coordinator's next commit: {why}"
    if not any(isinstance(each, StartCopy) for each in decision.effects):
        return decision.why
    pipeline, why = view.agreed.pipeline, decision.why + slowed(view, record)
    return why if pipeline is None else pipeline_first(pipeline, why)


def slowed(view: ClusterView, record: Partition) -> str:
    """To which rate a copy is slowed down, in words; empty: it is not."""
    owner = view.owner_status(record)
    if owner is None or not owner.copy_rate:
        return ""
    rate = f"{owner.copy_rate / 1e6:.1f} MB/s"
    return f"; slowed down to {rate}, because clients' writes take longer than usual"


def decide(view: ClusterView, record: Partition, held_since: float) -> Commit | Waiting | None:
    """What a new coordinator would do now, if it had seen the hold begin."""
    return Coordinator("explain", CoordinatorSettings()).next_step(view, record, held_since)


def pipeline_first(pipeline: Pipeline, why: str) -> str:
    about = f": {pipeline.detail}" if pipeline.detail else ""
    match pipeline.state:
        case "starting":
            return f"starting Spark{about}; then: {why}"
        case "failed":
            return f"Spark failed{about}; it is tried again; then: {why}"
        case _:
            return why


# --- what is next


def what_is_next(record: Partition, intent: Intent) -> str:
    stage = routing.stage_of(record)
    after = f"; after that, {described(intent.planned)}" if intent.planned is not None else ""
    if stage is None:
        wished = NOTHING if intent.pending is None else described(intent.pending)
        return wished + after
    change = record.transition
    assert change is not None
    return _after(change, stage) + after


def _after(change: Transition, stage: Stage) -> str:
    """The stage after this one: forward, or back if the transition is given up."""
    goes_back = bool(change.given_up_by) and bool(stage.given_up)
    name = stage.given_up[0] if goes_back else stage.next
    if name in AFTER_THE_END:
        return AFTER_THE_END[name]
    return f"{name}: {routing.machine_of(change)[name].holds}"


def described(wanted: Assignment) -> str:
    places = ", ".join(each.node for each in wanted.placements) or ", ".join(wanted.renewed)
    return f"{wanted.kind} to {places}" if places else wanted.kind


# --- what a person may do


def what_one_may(view: ClusterView, record: Partition, intent: Intent) -> tuple[str, ...]:
    out: list[str] = []
    if view.agreed.coordinator is None:
        out.append("start a coordinator: `limosa serve coordinator`")
    if record.owner is None or not view.owner_lives(record):
        out += [
            f"start {each.node}, which was in sync: `limosa serve node --name {each.node}`"
            for each in routing.candidates(record)
            if not view.is_live(each.node)
        ]
    elif record.eligible:
        out += [
            f"start {each.node}, so that enough replicas are in sync for writes: "
            f"`limosa serve node --name {each.node}`"
            for each in record.eligible
            if not view.is_live(each.node)
        ]
    change, stage = record.transition, routing.stage_of(record)
    if change is None or stage is None:
        return (*out, may_begin(record, intent))
    return (*out, *may_change(record, change, stage, intent))


def may_begin(record: Partition, intent: Intent) -> str:
    if intent.pending is None:
        return f"move it: `limosa partition move {record.id} --to NODE`"
    return f"cancel it before it begins: `limosa partition cancel {record.id}`"


def may_change(
    record: Partition, change: Transition, stage: Stage, intent: Intent
) -> tuple[str, ...]:
    name = record.id
    follow = f"`limosa explain {name}` shows how far it is"
    goes_back = stage.reads is Side.OLD and not stage.given_up
    if change.given_up_by or intent.cancel is not None or goes_back:
        return (f"wait: it is being reverted, without data loss; {follow}",)
    if stage.reads is Side.OLD:
        return (f"cancel it, without data loss: `limosa partition cancel {name}`",)
    out: list[str] = []
    if routing.is_held(change):
        out.append(f"end the hold: `limosa partition complete {name}`")
    if stage.switched and stage.given_up:
        out.append(f"revert it, without data loss: `limosa partition reverse {name}`")
    return tuple(out) or (f"wait: it can't be reverted any more; {follow}",)


# --- facts


def standing(view: ClusterView, record: Partition, replica: Replica) -> Standing:
    known = view.of(record, replica)
    return Standing(
        replica,
        side_of(record, replica),
        view.is_live(replica.node),
        replica in record.in_sync,
        record.owner is not None and record.owner.replica == replica,
        None if known is None else known.last,
        None if known is None else known.watermark,
        0 if known is None else known.rows,
        0 if known is None else known.bytes,
    )


def side_of(record: Partition, replica: Replica) -> str:
    if record.transition is None:
        return ""
    if replica in routing.new_only(record):
        return Side.NEW.value
    return Side.OLD.value if replica in routing.old_only(record) else Side.BOTH.value


def copies(stage: Stage | None) -> bool:
    return stage is not None and Work.COPY in stage.work


def copying(view: ClusterView, record: Partition) -> CopyProgress:
    assert record.transition is not None
    owner = view.owner_status(record)
    landed = slices = rows = size = 0
    targets = routing.new_only(record)
    for replica in targets:
        known = view.of(record, replica)
        if known is None:
            continue
        here = known.copying or (0, 0)
        landed, slices = landed + here[0], slices + here[1]
        rows, size = rows + known.rows, size + known.bytes
    return CopyProgress(
        landed,
        slices,
        rows,
        0 if owner is None else owner.rows * len(targets),
        size,
        0 if owner is None else owner.bytes * len(targets),
        0 if owner is None else owner.copy_rate,
    )


def reports_of(agreed: Agreed, partition: PartitionId) -> tuple[Report, ...]:
    found = [each for each in agreed.reports.values() if each.partition == partition]
    return tuple(sorted(found, key=lambda each: (each.ended, each.transition), reverse=True))


# --- what has to be known


def about(agreed: Agreed, partition: PartitionId) -> Agreed:
    """The part of the agreed state that concerns one partition, for the answer of a node."""
    topology = agreed.topology
    requests = {
        key: each
        for key, each in agreed.requests.items()
        if each.partition == partition
        or (each.state == "waiting" and isinstance(each.what, TOPOLOGY))
    }
    run = agreed.rebalance.run
    moves = {n: m for n, m in agreed.moves.get(run, {}).items() if m.partition == partition}
    keys = [partition_key(partition), intent_key(partition), COORDINATOR_KEY]
    keys += map(request_key, requests)
    return replace(
        agreed,
        topology=replace(
            topology,
            tables={},
            layouts={},
            partitions=picked(topology.partitions, [partition]),
            revisions=picked(topology.revisions, keys),
        ),
        intents=picked(agreed.intents, [partition]),
        requests=requests,
        reports={k: v for k, v in agreed.reports.items() if v.partition == partition},
        revisions=picked(agreed.revisions, keys),
        runs=picked(agreed.runs, [run]),
        moves={run: moves} if moves else {},
    )


def about_run(agreed: Agreed, run: str = "") -> Agreed:
    """The agreed state of the whole cluster, with the moves of one run: the current run by
    default."""
    wanted = run or agreed.rebalance.run
    return replace(agreed, moves=picked(agreed.moves, [wanted]), reports={}, revisions={})


def status_about(status: Status, partition: PartitionId) -> Status:
    """The status of one partition; of all partitions if the name is empty."""
    if not partition:
        return status
    return replace(
        status,
        busy=picked(status.busy, [partition]),
        replicas=picked(status.replicas, [partition]),
    )


def picked(known: Mapping[str, Value], keys: Iterable[str]) -> dict[str, Value]:
    return {key: known[key] for key in keys if key in known}
