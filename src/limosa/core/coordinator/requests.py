"""What does a request ask for, and is it allowed? Requests become intent, intent transitions.

A request that contradicts the agreed state is refused with the reason, and changes nothing else.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import controls, drains, members, resizing, run_requests, tables
from limosa.core.coordinator.answers import RequestAnswer
from limosa.core.coordinator.checks import check, place_reads, replaced
from limosa.core.coordinator.reports import report_of
from limosa.core.coordinator.transitions import CANCELLED
from limosa.core.coordinator.turns import DEFERRED_BY_THE_LOCK
from limosa.core.coordinator.view import ClusterView
from limosa.core.model import requests as wishes
from limosa.core.model.changes import (
    CONTROLS_KEY,
    REBALANCE_KEY,
    Change,
    Commit,
    Put,
    Remove,
    intent_key,
    node_key,
    request_key,
    zone_key,
)
from limosa.core.model.intent import (
    Assignment,
    Intent,
    Placement,
    assign,
    cancelled,
    with_cancel,
)
from limosa.core.model.keys import NodeId, Revision, transition_id
from limosa.core.model.requests import Request
from limosa.core.model.topology import Partition, Transition, TransitionKind
from limosa.core.planning.placement import data_nodes
from limosa.errors import IllegalRequest, IllegalTransition

REVERSED = "reversed by request"
CHANGING: dict[TransitionKind, str] = {
    "move": "is being moved",
    "rebuild": "is being rebuilt",
    "volume_move": "is being moved to another volume",
    "repair": "is being repaired",
}


Handling: TypeAlias = tuple[list[str], Callable[[], RequestAnswer]]


def answer(view: ClusterView, request: Request) -> Commit:
    """One commit that carries out the request or refuses it."""
    key = request_key(request.id)
    trigger = view.agreed.revision_of(key)
    reads, act = handling(view, request, trigger)
    try:
        answer = act()
    except (IllegalRequest, IllegalTransition) as refusal:
        answer = RequestAnswer((), str(refusal), state="refused")
    lock = [CONTROLS_KEY] if isinstance(request.what, DEFERRED_BY_THE_LOCK) else []
    guards = view.guarded((key, *reads, *lock))
    row = replace(
        without_plan(request),
        state=answer.state,
        answer=answer.words,
        led_to=answer.led_to,
        trigger=trigger,
        answered=view.wall,
    )
    why = f"{request.about}: {request.kind} {answer.state}: {answer.words}"
    return Commit(guards, (*answer.changes, Put(row)), why)


def without_plan(request: Request) -> Request:
    """Once a request is answered, its run has the plan."""
    if isinstance(request.what, wishes.StartRun | wishes.DrainNodes):
        return replace(request, what=replace(request.what, plan=None))
    return request


def handling(view: ClusterView, request: Request, trigger: Revision) -> Handling:
    """The keys that the answer depends on, accepted or refused, and the function that answers; it
    raises `IllegalRequest` or `IllegalTransition` to refuse the request."""
    what = request.what
    match what:
        case wishes.PartitionWish() as wish:
            return partition_reads(view, wish), partial(serve, view, wish, trigger)
        case wishes.ZoneWish() as wish:
            return zone_reads(view, wish), partial(serve_zone, view, wish, trigger)
        case wishes.CreateTable() as wish:
            return tables.create_reads(view, wish), partial(tables.create, view, wish, trigger)
        case wishes.DropTable() as wish:
            return tables.drop_reads(view, wish), partial(tables.drop, view, wish)
        case wishes.JoinCluster() as wish:
            return members.join_reads(view, wish), partial(members.join, view, wish, request)
        case wishes.RemoveNode() as wish:
            return members.remove_reads(view, wish), partial(members.remove, view, wish)
        case wishes.ReplaceNode() as wish:
            return members.replace_reads(view, wish), partial(members.replace_disk, view, wish)
        case wishes.UndrainNodes() as wish:
            return drains.undrain_reads(wish), partial(drains.undrain, view, wish)
        case wishes.StartRun() | wishes.DrainNodes() as wish:
            reads = run_requests.start_reads(view, wish)
            return reads, partial(run_requests.start, view, wish, trigger)
        case wishes.RunWish() as wish:
            return [REBALANCE_KEY], partial(run_requests.turn, view, wish)
        case wishes.ControlWish() as wish:
            return [CONTROLS_KEY], partial(controls.switch, view, wish)
    return [request_key(what.request)], partial(withdraw, view, what)


def forget_answered(view: ClusterView) -> Commit | None:
    """Delete the oldest answered requests, beyond the number that is kept."""
    if len(view.agreed.requests) <= view.settings.requests_kept:
        return None
    answered = sorted(
        (view.agreed.revision_of(request_key(request.id)), request.id)
        for request in view.agreed.requests.values()
        if request.state != "waiting"
    )
    old = answered[: max(0, len(answered) - view.settings.requests_kept)]
    if not old:
        return None
    keys = [request_key(name) for _, name in old]
    removed = tuple(map(Remove, keys))
    return Commit(view.guarded(keys), removed, f"{len(removed)} answered requests are forgotten")


def partition_reads(view: ClusterView, wish: wishes.PartitionWish) -> list[str]:
    places: tuple[Placement, ...] = ()
    if isinstance(wish, wishes.PlaceReplicas):
        places = (*wish.placements, *(() if wish.target is None else (wish.target,)))
    return place_reads(wish.partition, places)


def zone_reads(view: ClusterView, wish: wishes.ZoneWish) -> list[str]:
    keys = [zone_key(wish.zone), *map(intent_key, view.agreed.intents)]
    return keys + [node_key(node) for node in view.agreed.topology.nodes]


def serve_zone(view: ClusterView, wish: wishes.ZoneWish, trigger: Revision) -> RequestAnswer:
    """Change the replica count or the data nodes: one commit with an intent for every partition."""
    topology = view.agreed.topology
    zone = topology.zones.get(wish.zone)
    if zone is None:
        raise IllegalRequest(f"there is no zone {wish.zone}", "list the zones")
    if isinstance(wish, wishes.SetReplicas):
        zone = replace(zone, replica_count=wish.count)
    nodes = data_nodes(zone, topology.nodes.values())
    if not 1 <= zone.replica_count <= len(nodes):
        raise IllegalRequest(
            f"{zone.replica_count} replicas on {len(nodes)} data nodes",
            "ask for at least one, and at most one a node",
        )
    changes: list[Change] = [Put(zone)]
    for name, places in resizing.places(view, zone, nodes).items():
        new = Assignment("move", places, trigger=trigger)
        changes.append(Put(assign(view.agreed.intents[name], new)))
    return RequestAnswer(tuple(changes), "accepted")


def serve(
    view: ClusterView,
    wish: wishes.TransitionWish | wishes.CancelChange | wishes.ReverseMove | wishes.CompleteMove,
    trigger: Revision,
) -> RequestAnswer:
    record = view.agreed.topology.partitions.get(wish.partition)
    intent = view.agreed.intents.get(wish.partition)
    if record is None or intent is None:
        raise IllegalRequest(f"there is no partition {wish.partition}", "list the partitions")
    if isinstance(wish, wishes.CancelChange):
        return cancel(view, record, intent, wish)
    if isinstance(wish, wishes.ReverseMove | wishes.CompleteMove):
        return end_hold(record, wish)
    new = assignment(view, record, intent, wish, trigger)
    pending = intent.pending
    later = () if pending is None else pending.placements
    check(view, record, new, new.placements or later or intent.stable)
    if isinstance(wish, wishes.MovePartition) and pending is not None and not wish.after_pending:
        check_same(record, intent, pending, new)
    after = assign(intent, new)
    return served(intent, after, new)


def assignment(
    view: ClusterView,
    record: Partition,
    intent: Intent,
    wish: wishes.TransitionWish,
    trigger: Revision,
) -> Assignment:
    if isinstance(wish, wishes.RepairPartition):
        return Assignment("repair", trigger=trigger)
    if wish.hold_seconds < 0 or wish.max_pause_seconds < 0:
        raise IllegalRequest("durations must not be negative", "give seconds, 0 for none")
    kind, places, renewed = placed(view, record, intent, wish)
    times = (wish.hold_seconds, trigger, wish.max_pause_seconds)
    return Assignment(kind, places, renewed, *times)


def placed(
    view: ClusterView,
    record: Partition,
    intent: Intent,
    wish: wishes.MovePartition | wishes.MoveToVolume | wishes.RebuildReplicas,
) -> tuple[TransitionKind, tuple[Placement, ...], tuple[NodeId, ...]]:
    """The kind of transition, all places of the replicas (empty: where they are), and the nodes
    whose replica is rebuilt."""
    if isinstance(wish, wishes.RebuildReplicas):
        return "rebuild", wish.placements, wish.renewed
    if isinstance(wish, wishes.MoveToVolume):
        return "volume_move", placements(record, intent, wish), ()
    if view.settings.moves_refused:
        raise IllegalRequest(view.settings.moves_refused, view.settings.moves_advice)
    return "move", placements(record, intent, wish), ()


def served(before: Intent, after: Intent, new: Assignment) -> RequestAnswer:
    """The answer to an assignment, with the transition that it leads to."""
    if after.change != new.trigger:
        return RequestAnswer((Put(after),), "superseded by a newer request")
    if new in (after.pending, after.planned):
        return RequestAnswer((Put(after),), "accepted", led_to(after, new))
    if before.pending is None:
        return RequestAnswer((Put(after),), "nothing to do: the replicas are there already")
    return RequestAnswer((Put(after),), "under way already", led_to(after, before.pending))


def led_to(intent: Intent, assigned: Assignment) -> wishes.LedToTransition:
    return wishes.LedToTransition(intent.partition, transition_id(assigned.trigger))


def placements(
    record: Partition, intent: Intent, wish: wishes.PlaceReplicas
) -> tuple[Placement, ...]:
    """All places of the replicas, also if the wish names only one replica and its target."""
    if wish.target is None:
        return wish.placements
    return replaced(record.id, intent.stable, wish.source, wish.target)


def check_same(record: Partition, intent: Intent, pending: Assignment, new: Assignment) -> None:
    """Refuse another move while one is pending; asking for the same move again is harmless."""
    if pending.same_goal(new) and intent.cancel is None:
        return
    stage = routing.stage_of(record)
    where = "it has not begun" if stage is None else stage.name
    raise IllegalRequest(
        f"{record.id} {CHANGING[pending.kind]} already ({where})",
        "wait for its end, cancel it, or ask for the move after it",
    )


def cancel(
    view: ClusterView, record: Partition, intent: Intent, wish: wishes.CancelChange
) -> RequestAnswer:
    """Only the change that the caller saw is cancelled; refused once the new side is read."""
    stage = routing.stage_of(record)
    after = with_cancel(intent, wish.cancels)
    ended = wishes.LedToTransition(record.id, transition_id(wish.cancels))
    if stage is None:
        return RequestAnswer(never_begun(view, record, intent), "cancelled before it began", ended)
    if not stage.switched and not stage.given_up:
        raise IllegalRequest(
            f"{record.id} is being reverted already ({stage.name})", "wait for its end"
        )
    if stage.switched:
        raise IllegalRequest(
            f"{record.id} has switched already ({stage.name})",
            "it will complete; while it is held, `reverse` takes it back",
        )
    return RequestAnswer((Put(after),), "will be cancelled", ended)


def never_begun(view: ClusterView, record: Partition, intent: Intent) -> tuple[Change, ...]:
    """A change that never began leaves a report, too, for those who asked for it."""
    assert intent.pending is not None
    name = transition_id(intent.pending.trigger)
    never = Transition(
        name,
        intent.pending.kind,
        "",
        record.replicas,
        giving_up=CANCELLED,
        begun=view.wall,
        given_up_by="operator",
    )
    report = report_of(view, record, never, "reverted")
    return Put(cancelled(intent)), Put(report)


def end_hold(record: Partition, wish: wishes.ReverseMove | wishes.CompleteMove) -> RequestAnswer:
    change = record.transition
    stage = routing.stage_of(record)
    if change is None or stage is None or not routing.may_end_hold(change):
        where = "in no transition" if stage is None else stage.name
        raise IllegalRequest(
            f"{record.id} is not held (it is {where})",
            f"{wish.kind} applies to a held move only",
        )
    if change.given_up_by:
        raise IllegalRequest(
            f"{record.id} is being reverted: {change.giving_up}", "wait for its end"
        )
    ended = wishes.LedToTransition(record.id, change.id)
    if isinstance(wish, wishes.CompleteMove):
        released = replace(record, transition=replace(change, released=True))
        return RequestAnswer((Put(released),), "completing", ended)
    if not stage.given_up:
        raise IllegalRequest(
            "a volume move can't be reversed", "wait for its end, then move it back"
        )
    reversing = replace(change, giving_up=REVERSED, given_up_by="operator")
    return RequestAnswer((Put(replace(record, transition=reversing)),), "reversing", ended)


def withdraw(view: ClusterView, wish: wishes.WithdrawRequest) -> RequestAnswer:
    """Refuse a waiting request, as its sender withdraws it."""
    other = view.agreed.requests.get(wish.request)
    if other is None:
        raise IllegalRequest(f"there is no request {wish.request}", "list the operations")
    if other.state != "waiting":
        raise IllegalRequest(
            f"{other.id} was answered already: {other.answer}", "undo its effect, if it had one"
        )
    refused = replace(without_plan(other), state="refused", answer="withdrawn", answered=view.wall)
    return RequestAnswer((Put(refused),), f"{other.id} is withdrawn")
