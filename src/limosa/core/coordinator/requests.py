"""What does a request ask for, and is it allowed? Requests become intent, intent transitions.

A request that contradicts the agreed state is refused, with the reason, and changes nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import controls, drains, members, run_requests, tables
from limosa.core.coordinator.answers import RequestAnswer
from limosa.core.coordinator.checks import check, place_reads, replaced
from limosa.core.coordinator.reports import report_of
from limosa.core.coordinator.turns import HELD_BY_THE_LOCK
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.catalogue import READ_NEW
from limosa.core.machines.machine import Side
from limosa.core.model.changes import (
    CONTROLS_KEY,
    COORDINATOR_KEY,
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
    Request,
    RequestKind,
    assign,
    cancelled,
    with_cancel,
)
from limosa.core.model.keys import Revision
from limosa.core.model.reports import CANCELLED, REVERSED
from limosa.core.model.topology import Partition, Transition, TransitionKind
from limosa.core.planning.placement import data_nodes, place
from limosa.core.planning.spread import on_volumes
from limosa.errors import IllegalRequest, IllegalTransition

CHANGING: dict[TransitionKind, str] = {
    "move": "is being moved",
    "rebuild": "is being rebuilt",
    "volume_move": "is being moved to another volume",
    "repair": "is being repaired",
}


class RequestHandler(NamedTuple):
    """How one kind of request is answered, and which keys the answer depends on, whatever it is."""

    act: Callable[[ClusterView, Request, Revision], RequestAnswer]
    reads: Callable[[ClusterView, Request], list[str]]


def answer(view: ClusterView, request: Request) -> Commit:
    """One commit that does what is asked for, or refuses it."""
    key = request_key(request.id)
    trigger = view.agreed.revision_of(key)
    service = SERVICES[request.kind]
    try:
        changes, words, state = service.act(view, request, trigger)
    except (IllegalRequest, IllegalTransition) as refusal:
        changes, words, state = RequestAnswer((), str(refusal), "refused")
    guards = {name: view.agreed.revision_of(name) for name in (key, *service.reads(view, request))}
    guards[COORDINATOR_KEY] = view.coordinator
    if request.kind in HELD_BY_THE_LOCK:
        guards[CONTROLS_KEY] = view.agreed.revision_of(CONTROLS_KEY)
    row = replace(request, state=state, answer=words, run=None, trigger=trigger)
    answered = Put(replace(row, answered=view.wall))
    why = f"{about(request)}: {request.kind} {state}: {words}"
    return Commit(guards, (*changes, answered), why)


def forget_answered(view: ClusterView) -> Commit | None:
    """Answers are kept for those who wait for them, and for those who look back; not for ever."""
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
    guards = {request_key(name): revision for revision, name in old}
    removed = tuple(Remove(key) for key in guards)
    guards[COORDINATOR_KEY] = view.coordinator
    return Commit(guards, removed, f"{len(removed)} answered requests are forgotten")


def about(request: Request) -> str:
    table = "" if request.table is None else request.table.name
    node = "" if request.node is None else request.node.id
    return request.partition or request.zone or request.name or table or node or "cluster"


def partition_reads(view: ClusterView, request: Request) -> list[str]:
    target = [] if request.target is None else [request.target]
    return place_reads(view, request.partition, (*request.placements, *target))


def zone_reads(view: ClusterView, request: Request) -> list[str]:
    keys = [zone_key(request.zone), *map(intent_key, view.agreed.intents)]
    return keys + [node_key(node) for node in view.agreed.topology.nodes]


def serve_zone(view: ClusterView, request: Request, trigger: Revision) -> RequestAnswer:
    """Another replica count or other data nodes: an intent for every partition, in one commit.

    (Another partition count is a repartition: an operation of its own.)
    """
    topology = view.agreed.topology
    zone = topology.zones.get(request.zone)
    if zone is None:
        raise IllegalRequest(f"there is no zone {request.zone}", "list the zones")
    if request.kind == "set_replicas":
        zone = replace(zone, replica_count=request.count)
    nodes = data_nodes(zone, topology.nodes.values())
    if not 1 <= zone.replica_count <= len(nodes):
        raise IllegalRequest(
            f"{zone.replica_count} replicas on {len(nodes)} data nodes",
            "ask for at least one, and at most one a node",
        )
    current = {
        name: intent.stable
        for name, intent in sorted(view.agreed.intents.items())
        if topology.partitions[name].zone == zone.id
    }
    changes: list[Change] = [Put(zone)]
    members = {node: topology.nodes[node] for node in nodes}
    planned = place(zone.replica_count, members, current)
    chosen = on_volumes(planned, topology.nodes)
    for name, places in planned.items():
        pairs = zip(places, chosen[name], strict=True)
        kept = tuple(each if each in current[name] else new_place for each, new_place in pairs)
        new = Assignment("move", kept, trigger=trigger)
        changes.append(Put(assign(view.agreed.intents[name], new)))
    return RequestAnswer(tuple(changes), "accepted")


def serve(view: ClusterView, request: Request, trigger: Revision) -> RequestAnswer:
    record = view.agreed.topology.partitions.get(request.partition)
    intent = view.agreed.intents.get(request.partition)
    if record is None or intent is None:
        raise IllegalRequest(f"there is no partition {request.partition}", "list the partitions")
    if request.kind == "cancel":
        return cancel(view, record, intent, request)
    if request.kind == "reverse" or request.kind == "complete":
        return end_hold(record, request)
    if request.hold_seconds < 0 or request.max_pause_seconds < 0:
        raise IllegalRequest("a time below 0", "give seconds, 0 for none")
    if request.kind == "move" and view.settings.moves_refused:
        raise IllegalRequest(view.settings.moves_refused, view.settings.moves_advice)
    new = Assignment(
        cast(TransitionKind, request.kind),
        placements(record, intent, request),
        request.renewed,
        request.hold_seconds,
        trigger,
        request.max_pause_seconds,
    )
    check(view, record, new, new.placements or intent.stable)
    if request.kind == "move" and intent.pending is not None and not request.after_pending:
        check_same(record, intent, intent.pending, new)
    after = assign(intent, new)
    return RequestAnswer((Put(after),), served(intent, after, new))


def served(before: Intent, after: Intent, new: Assignment) -> str:
    """What became of it, in words."""
    if after.change != new.trigger:
        return "a newer request was served"
    if new in (after.pending, after.planned):
        return "accepted"
    return "it is so already" if before.pending is None else "under way already"


def placements(record: Partition, intent: Intent, request: Request) -> tuple[Placement, ...]:
    """All places, also if somebody says only which replica goes and where to."""
    if request.target is None:
        return request.placements
    return replaced(record.id, intent.stable, request.source, request.target)


def check_same(record: Partition, intent: Intent, pending: Assignment, new: Assignment) -> None:
    """One who asks for a second move has not seen the first; to ask for the same one is no harm."""
    if pending.same_goal(new) and intent.cancel is None:
        return
    stage = routing.stage_of(record)
    where = "it has not begun" if stage is None else stage.name
    raise IllegalRequest(
        f"{record.id} {CHANGING[pending.kind]} already ({where})",
        "wait for its end, cancel it, or ask for the move after it",
    )


def cancel(view: ClusterView, record: Partition, intent: Intent, request: Request) -> RequestAnswer:
    """Stored only for the change that the caller saw; refused once the new side is read."""
    stage = routing.stage_of(record)
    after = with_cancel(intent, request.cancels)
    if stage is None:
        return RequestAnswer(never_begun(view, record, intent), "cancelled before it began")
    if stage.reads is Side.OLD and not stage.given_up:
        raise IllegalRequest(f"{record.id} is on its way back already ({stage.name})", "wait")
    if stage.reads is Side.NEW:
        raise IllegalRequest(
            f"{record.id} has switched already ({stage.name})",
            "it will complete; while it is held, `reverse` takes it back",
        )
    return RequestAnswer((Put(after),), "will be cancelled")


def never_begun(view: ClusterView, record: Partition, intent: Intent) -> tuple[Change, ...]:
    """There is a report of it, too: whoever asked for it learns what became of it."""
    assert intent.pending is not None
    never = Transition(
        f"t{intent.pending.trigger}", intent.pending.kind, "", record.replicas, begun=view.wall
    )
    report = report_of(view, record, never, "reverted", CANCELLED)
    return Put(cancelled(intent)), Put(report)


def end_hold(record: Partition, request: Request) -> RequestAnswer:
    change = record.transition
    stage = routing.stage_of(record)
    if change is None or stage is None or stage.name != READ_NEW:
        where = "in no transition" if stage is None else stage.name
        raise IllegalRequest(
            f"{record.id} is not held in {READ_NEW} (it is {where})",
            f"{request.kind} applies to a held move only",
        )
    if change.giving_up:
        raise IllegalRequest(f"{record.id} is on its way back: {change.giving_up}", "wait")
    if request.kind == "complete":
        released = replace(record, transition=replace(change, released=True))
        return RequestAnswer((Put(released),), "completing")
    if not stage.given_up:
        raise IllegalRequest("a volume move never goes back", "wait for its end, then move it back")
    reversing = replace(change, giving_up=REVERSED)
    return RequestAnswer((Put(replace(record, transition=reversing)),), "reversing")


def withdraw(view: ClusterView, request: Request, trigger: Revision) -> RequestAnswer:
    """One that still waits is refused, as its sender wants it no more."""
    other = view.agreed.requests.get(request.name)
    if other is None:
        raise IllegalRequest(f"there is no request {request.name}", "list the operations")
    if other.state != "waiting":
        raise IllegalRequest(
            f"{other.id} was answered already: {other.answer}", "undo what it did, if it did"
        )
    refused = replace(other, state="refused", answer="withdrawn", run=None, answered=view.wall)
    return RequestAnswer((Put(refused),), f"{other.id} is withdrawn")


def withdraw_reads(view: ClusterView, request: Request) -> list[str]:
    return [request_key(request.name)]


_OF_A_PARTITION = RequestHandler(serve, partition_reads)
_OF_A_ZONE = RequestHandler(serve_zone, zone_reads)
_OF_A_RUN = RequestHandler(run_requests.turn, run_requests.turn_reads)
_OF_ALL = RequestHandler(controls.switch, controls.switch_reads)
SERVICES: dict[RequestKind, RequestHandler] = {
    "move": _OF_A_PARTITION,
    "rebuild": _OF_A_PARTITION,
    "volume_move": _OF_A_PARTITION,
    "repair": _OF_A_PARTITION,
    "cancel": _OF_A_PARTITION,
    "reverse": _OF_A_PARTITION,
    "complete": _OF_A_PARTITION,
    "set_replicas": _OF_A_ZONE,
    "follow_nodes": _OF_A_ZONE,
    "create_table": RequestHandler(tables.create, tables.create_reads),
    "drop_table": RequestHandler(tables.drop, tables.drop_reads),
    "join": RequestHandler(members.join, members.join_reads),
    "remove_node": RequestHandler(members.remove, members.remove_reads),
    "start_run": RequestHandler(run_requests.start, run_requests.start_reads),
    "drain_nodes": RequestHandler(run_requests.start, run_requests.start_reads),
    "pause_run": _OF_A_RUN,
    "resume_run": _OF_A_RUN,
    "cancel_run": _OF_A_RUN,
    "undrain_nodes": RequestHandler(drains.undrain, drains.undrain_reads),
    "set_balancing": _OF_ALL,
    "set_policy": _OF_ALL,
    "lock": _OF_ALL,
    "unlock": _OF_ALL,
    "withdraw": RequestHandler(withdraw, withdraw_reads),
}
