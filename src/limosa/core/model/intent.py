"""What should each partition become? `stable`, `pending`, `planned`, `cancel` and the last
`change`.

The revision of a request's row is its trigger. One table (BRANCHES) says what a trigger does to the
intent, and has a cell for every case: an earlier form of this protocol lacked two of them, and both
were bugs.
"""

from msgspec import Struct
from msgspec.structs import replace

from limosa.core.model.keys import NodeId, PartitionId, Revision
from limosa.core.model.topology import Placement as Placement
from limosa.core.model.topology import Record, TransitionKind
from limosa.errors import IllegalRequest


class Assignment(Struct, frozen=True):
    """What a partition should become, and the trigger that asked for it."""

    kind: TransitionKind
    placements: tuple[Placement, ...] = ()
    """Empty: where the replicas are."""
    renewed: tuple[NodeId, ...] = ()
    """Nodes whose replica is rebuilt in its place."""
    hold_seconds: float = 0.0
    trigger: Revision = 0
    max_pause_seconds: float = 0.0
    """0: there is no limit."""

    def same_goal(self, other: "Assignment") -> bool:
        return replace(self, trigger=0) == replace(other, trigger=0)


class Intent(Record, frozen=True):
    """What one partition is meant to be, now and next."""

    partition: PartitionId
    stable: tuple[Placement, ...]
    pending: Assignment | None = None
    planned: Assignment | None = None
    cancel: Revision | None = None
    """The trigger of the pending assignment that is to be cancelled."""
    change: Revision = 0


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
    """The intent after an assignment; an assignment that is not newer than the last changes
    nothing."""
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
    """Are the replicas in these places already? A repair or rebuild always has work to do."""
    return (
        not new.renewed and new.kind != "repair" and sorted(intent.stable) == sorted(new.placements)
    )


def completed(intent: Intent) -> Intent:
    """The pending assignment was completed: it is stable now, and the planned one is pending."""
    places = intent.stable if intent.pending is None else intent.pending.placements
    return replace(
        intent, stable=places or intent.stable, cancel=None, pending=intent.planned, planned=None
    )


def cancelled(intent: Intent) -> Intent:
    """The pending assignment was given up: stable stays, and the planned one is pending."""
    return replace(intent, cancel=None, pending=intent.planned, planned=None)


def with_cancel(intent: Intent, seen: Revision) -> Intent:
    """The intent with a cancellation, only of the assignment that the caller saw."""
    if intent.pending is None or intent.pending.trigger != seen:
        raise IllegalRequest(
            f"{intent.partition} has no pending change of trigger {seen}",
            "the change has ended, or another one has begun: look again",
        )
    return replace(intent, cancel=seen)
