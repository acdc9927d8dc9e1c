"""What should each partition become? `stable`, `pending`, `planned`, `cancel` and the last
`change`.

Every request of an operator, of the balancer or of the coordinator itself is a row; its revision is
the trigger. What a trigger does to the intent is one table (BRANCHES): the seed of this protocol
forgot two of its cells, and both were real bugs.
"""

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from limosa.core.model.keys import NodeId, PartitionId, Revision, ZoneId
from limosa.core.model.runs import Policy, RunPlan
from limosa.core.model.topology import NamedTable, Node, Record, TransitionKind
from limosa.core.model.topology import Placement as Placement
from limosa.errors import IllegalRequest

RequestKind: TypeAlias = Literal[
    "move",
    "rebuild",
    "volume_move",
    "repair",
    "cancel",
    "reverse",
    "complete",
    "set_replicas",
    "follow_nodes",
    "create_table",
    "drop_table",
    "join",
    "remove_node",
    "start_run",
    "drain_nodes",
    "pause_run",
    "resume_run",
    "cancel_run",
    "undrain_nodes",
    "set_balancing",
    "set_policy",
    "lock",
    "unlock",
    "withdraw",
]
"""Of a partition, down to `complete`; of a zone (another replica count, or another set of data
nodes); of a table; of a node; of a run, down to `cancel_run`; and of the whole cluster."""


class Assignment(Struct, frozen=True):
    """What a partition should become, and since which trigger."""

    kind: TransitionKind
    placements: tuple[Placement, ...] = ()
    """Empty: where it is."""
    renewed: tuple[NodeId, ...] = ()
    """Nodes whose replica is made anew although its place stays."""
    hold_seconds: float = 0.0
    trigger: Revision = 0
    max_pause_seconds: float = 0.0
    """0: there is no limit."""

    def same_goal(self, other: "Assignment") -> bool:
        return replace(self, trigger=0) == replace(other, trigger=0)


class Intent(Record, frozen=True):
    """What one partition is meant to be."""

    partition: PartitionId
    stable: tuple[Placement, ...]
    pending: Assignment | None = None
    planned: Assignment | None = None
    cancel: Revision | None = None
    """The trigger of the pending assignment that is to be cancelled."""
    change: Revision = 0


class Request(Record, frozen=True):
    """What somebody asks for; its key's revision is its trigger."""

    id: str
    kind: RequestKind
    partition: PartitionId = ""
    placements: tuple[Placement, ...] = ()
    renewed: tuple[NodeId, ...] = ()
    hold_seconds: float = 0.0
    cancels: Revision = 0
    """For `cancel`: the trigger of the pending assignment that the caller saw."""
    zone: ZoneId = ""
    count: int = 0
    """For `set_replicas` and `create_table`: how many replicas."""
    state: Literal["waiting", "done", "refused"] = "waiting"
    answer: str = ""
    name: str = ""
    """For `drop_table` and `remove_node`: of what; for a run that is paused, resumed or cancelled:
    its id, or nothing for whichever is under way; for `lock`: why, in words; for `withdraw`: the
    request that is not wanted any more."""
    table: NamedTable | None = None
    """For `create_table`."""
    table_id: str = ""
    """For `drop_table`: the table that the caller saw under its name."""
    partitions: int = 0
    """For `create_table`: how many; 0: as many as its zone has."""
    min_in_sync: int = 0
    """For `create_table`; 0: a majority of the replicas."""
    node: Node | None = None
    """For `join`."""
    cluster: str = ""
    """For `join`: the name of the cluster that the node takes this for."""
    max_pause_seconds: float = 0.0
    """For a transition: for how long its hand-over may pause writes; 0: there is no limit."""
    after_pending: bool = False
    """For `move`: if another change of the partition is under way, plan this one behind it."""
    source: NodeId = ""
    """For `move`, in place of all `placements`: the node that a replica leaves ..."""
    target: Placement | None = None
    """... and where it goes."""
    run: RunPlan | None = None
    """For `start_run` and `drain_nodes`. Once the run is there, it is the run that has the plan."""
    names: tuple[str, ...] = ()
    """For `undrain_nodes`: which."""
    on: bool = True
    """For `set_balancing`."""
    policy: Policy | None = None
    """For `set_policy`."""
    fingerprint: str = ""
    """Of the caller's own words: who gives an id again for something else is found out."""
    trigger: Revision = 0
    """Of one that was answered: what names the change that it led to."""
    asked: float = 0.0
    """In seconds of the wall clock of whoever asks; 0: nobody knows. Nothing is decided by it."""
    answered: float = 0.0
    """By the coordinator's wall clock, for people, too; 0: not yet, or nobody knows."""


PENDING, PLANNED, DROP_PLAN = "pending", "planned", "drop_plan"

# fmt: off
BRANCHES: dict[tuple[str, bool], str] = {
    # (pending is, stable is the new one) → what the new assignment becomes
    ("empty", False): PENDING,
    ("empty", True):  DROP_PLAN,     # nothing to do; an older plan must not outlive it
    ("other", False): PLANNED,       # the latest wins
    ("other", True):  PLANNED,       # back to where we were: after the pending one has ended
    ("same",  False): DROP_PLAN,
    ("same",  True):  DROP_PLAN,
}
# fmt: on


def assign(intent: Intent, new: Assignment) -> Intent:
    """Take one trigger into account; one that is not newer than the last changes nothing."""
    if new.trigger <= intent.change:
        return intent
    if intent.pending is None:
        pending_is = "empty"
    else:
        same = intent.pending.same_goal(new) and intent.cancel is None
        pending_is = "same" if same else "other"
    branch = BRANCHES[pending_is, is_reached(intent, new)]
    after = replace(intent, planned=None, change=new.trigger)
    if branch == PENDING:
        return replace(after, pending=new)
    if branch == PLANNED:
        return replace(after, planned=new)
    return after


def is_reached(intent: Intent, new: Assignment) -> bool:
    """A repair or a renewed replica changes no place, so it is never reached already."""
    return (
        not new.renewed and new.kind != "repair" and sorted(intent.stable) == sorted(new.placements)
    )


def completed(intent: Intent) -> Intent:
    """The pending assignment holds: it is stable now, and the planned one is next."""
    places = intent.stable if intent.pending is None else intent.pending.placements
    return replace(
        intent, stable=places or intent.stable, cancel=None, pending=intent.planned, planned=None
    )


def cancelled(intent: Intent) -> Intent:
    """The pending assignment was given up: stable stays, and the planned one is next."""
    return replace(intent, cancel=None, pending=intent.planned, planned=None)


def with_cancel(intent: Intent, seen: Revision) -> Intent:
    """Store the wish to cancel, but only for the assignment that the caller saw."""
    if intent.pending is None or intent.pending.trigger != seen:
        raise IllegalRequest(
            f"{intent.partition} has no pending change of trigger {seen}",
            "look again: it has ended, or another one runs by now",
        )
    return replace(intent, cancel=seen)
