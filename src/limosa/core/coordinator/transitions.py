"""What must be done to leave a stage, and what is missing? One function for each kind of work.

Each function returns what it waits for, with a sentence that `explain` shows, or None when the work
is done. What it asks nodes to do is idempotent, and is asked again until a status reports it.
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.checks import check
from limosa.core.coordinator.memory import SealAsked
from limosa.core.coordinator.ownership import enter, given_up, in_sync_side, next_epoch
from limosa.core.coordinator.readiness import pipeline_is_awaited
from limosa.core.coordinator.reports import report_of
from limosa.core.coordinator.turns import topology_request_waits
from limosa.core.coordinator.view import ClusterView, with_stage
from limosa.core.effects import Compare, Effect, Send, StartCopy, StartPipeline
from limosa.core.machines.catalogue import MACHINES
from limosa.core.machines.machine import END, REVERT, Side, Stage, Work
from limosa.core.messages import DropReplica, Link, Seal, Trouble, Verify
from limosa.core.model.changes import Change, Commit, Put
from limosa.core.model.intent import Assignment, Intent, Placement, cancelled, completed
from limosa.core.model.keys import transition_id
from limosa.core.model.topology import GivenUpBy, Grant, Partition, Replica, Transition
from limosa.errors import IllegalRequest


class Waiting(NamedTuple):
    """The work is not done: why, and what to ask for meanwhile."""

    why: str
    effects: tuple[Effect, ...] = ()
    work: Work | None = None
    """The work of the stage that is not done; None: something else is missing."""
    until: float = inf
    """When time alone ends the wait, as far as is known."""


CANCELLED = "cancelled"
SPARK_STARTS = "Spark is starting; the move begins afterwards"
NO_TAKER = "hand-over: no in-sync replica of the new side is alive"


class GivenUp(NamedTuple):
    """The work can't be done: why, and what found that."""

    why: str
    by: GivenUpBy = "cluster"


class Differs(NamedTuple):
    """A copy differs from its source. This is committed at once, so that no successor switches
    reads."""

    why: str


Progress = Waiting | GivenUp | Differs | None


def start(view: ClusterView, record: Partition, intent: Intent) -> Commit | Waiting:
    """Begin the pending assignment of a partition; transitions begin nowhere else."""
    pending = intent.pending
    assert pending is not None
    transition = transition_id(pending.trigger)
    places = pending.placements or intent.stable
    targets = tuple(_target(record, place, pending, transition) for place in places)
    if pending.kind != "repair" and sorted(targets) == sorted(record.replicas):
        return view.commit(record, record, "already so", settle(view, record, True))
    problem = no_longer_possible(view, record, pending, places, targets)
    if problem:
        never = Transition(
            transition,
            pending.kind,
            "",
            targets,
            giving_up=problem,
            begun=view.wall,
            given_up_by="cluster",
        )
        report = Put(report_of(view, record, never, "reverted"))
        settled = settle(view, record, False)
        return view.commit(record, record, f"given up: {problem}", (*settled, report))
    if pipeline_is_awaited(view, pending, record.id):
        return Waiting(SPARK_STARTS, (StartPipeline(),))
    stage = MACHINES[pending.kind].first.name
    change = Transition(
        transition,
        pending.kind,
        stage,
        targets,
        hold_seconds=pending.hold_seconds,
        max_pause_seconds=pending.max_pause_seconds,
    )
    after = enter(replace(record, transition=change), stage)
    return view.commit(record, after, f"{pending.kind} {transition} begins")


def no_longer_possible(
    view: ClusterView,
    record: Partition,
    pending: Assignment,
    places: tuple[Placement, ...],
    targets: tuple[Replica, ...],
) -> str:
    """Why an assignment that was accepted earlier is not possible now, in words; empty: it is."""
    for replica in targets:
        if replica not in record.replicas and not view.is_live(replica.node):
            return f"the target {replica.node} is down"
    try:
        check(view, record, pending, places)
    except IllegalRequest as refusal:
        return str(refusal)
    return drops_what_is_in_sync(record, targets)


def drops_what_is_in_sync(record: Partition, targets: tuple[Replica, ...]) -> str:
    """Why fewer replicas can't be these, in words; empty: they can. As long as a replica that is
    in sync would go, each one that stays must be in sync."""
    if len(targets) >= len(record.replicas):
        return ""
    goes = [r for r in record.in_sync if r not in targets]
    behind = [r for r in targets if r in record.replicas and r not in record.in_sync]
    if not goes or not behind:
        return ""
    return f"{behind[0].node} is not in sync, and {goes[0].node}, which is, would be dropped"


def _target(record: Partition, place: Placement, pending: Assignment, made_by: str) -> Replica:
    for replica in record.replicas:
        same = replica.node == place.node and replica.volume == place.volume
        if same and place.node not in pending.renewed:
            return replica
    return Replica(place.node, made_by, place.volume)


def advance(view: ClusterView, record: Partition, held_since: float) -> Commit | Waiting:
    """Do the stage's work; when all of it is done, go to the next stage."""
    change = record.transition
    stage = routing.stage_of(record)
    assert change is not None and stage is not None
    intent = view.agreed.intents.get(record.id)
    if change.given_up_by and stage.given_up:
        return fall_back(view, record) if stage.switched else compare(view, record)
    if stage.given_up and not stage.switched and intent is not None and intent.cancel:
        return give_up(view, record, CANCELLED, "operator")
    for work in stage.work:
        progress = DO[work](view, record, held_since)
        if isinstance(progress, GivenUp):
            return give_up(view, record, progress.why, progress.by)
        if isinstance(progress, Differs):
            after = with_stage(
                record, stage.name, giving_up=progress.why, given_up_by="verification"
            )
            return view.commit(record, after, progress.why)
        if progress is not None:
            return progress._replace(work=work)
    return leave(view, record, stage)


def leave(view: ClusterView, record: Partition, stage: Stage) -> Commit | Waiting:
    assert record.transition is not None
    after = with_pause(view, record) if Work.OPEN in stage.work else record
    if Work.BARRIER in stage.work:
        after = replace(after, fence=fence_after(view, record))
    if stage.next in (END, REVERT):
        return finish(view, record, after, stage.next == END)
    if must_hand_over(record, stage):
        new = takers(view, record)
        if not new:
            return Waiting(NO_TAKER, work=Work.SEAL)
        grant = Grant(new[0], view.lease_of(new[0].node))
        after = enter(next_epoch(after, grant), stage.next)
        view.memory.handing_over(record.id, fence_after(view, record), after.epoch)
        return view.commit(record, after, f"{grant.replica.node} takes over in {stage.next}")
    return view.commit(record, enter(after, stage.next), f"→ {stage.next}")


def takers(view: ClusterView, record: Partition) -> list[Replica]:
    """Replicas that can take over from the owner now; those that the transition made come first."""
    stage = routing.stage_of(record)
    assert stage is not None
    there = in_sync_side(record, stage.owner.other)
    here = [r for r in there if view.of(record, r) is not None]
    return [r for r in here if r in routing.new_only(record)] or here


def enough_take_over(view: ClusterView, record: Partition, stage: Stage) -> bool:
    """Will enough replicas be in sync after the hand-over? Otherwise the next owner could not
    open."""
    zone = view.agreed.topology.zones[record.zone]
    there = routing.side(record, stage.owner.other)
    in_sync = in_sync_side(record, stage.owner.other)
    return len(in_sync) >= routing.needed_of(len(there), zone)


def may_take_over_later(view: ClusterView, record: Partition, replica: Replica) -> bool:
    """The replica is in sync and not heard, or it is alive and catches up."""
    owner = view.owner_status(record)
    unreachable = owner is not None and replica in owner.unreachable
    catches_up = view.is_live(replica.node) and not view.is_lost(record, replica)
    return replica in record.in_sync or (catches_up and not unreachable)


def with_pause(view: ClusterView, record: Partition) -> Partition:
    """The record with the length of its last pause, if this coordinator measured it."""
    assert record.transition is not None
    open_(view, record, view.now)
    measured = view.memory.pause_seconds(record.id, record.epoch)
    longest = max(measured, record.transition.pause_seconds)
    return with_stage(record, record.transition.stage, pause_seconds=longest)


def fence_after(view: ClusterView, record: Partition) -> int:
    """The revision that the barrier was about, never a later one, which would refuse valid
    requests."""
    return view.agreed.topology.revision_of(record.id)


def must_hand_over(record: Partition, stage: Stage) -> bool:
    """An owner that is in both replica sets stays the owner."""
    assert record.owner is not None
    leaves = Work.SEAL in stage.work
    return leaves and record.owner.replica not in routing.side(record, Side.NEW)


def finish(view: ClusterView, record: Partition, after: Partition, done: bool) -> Commit:
    """End the transition; the same commit updates the intent and stores a report."""
    change = after.transition
    assert change is not None
    targets = change.targets if done else record.replicas
    after = replace(
        after,
        replicas=targets,
        in_sync=tuple(r for r in record.in_sync if r in targets),
        transition=None,
    )
    report = Put(report_of(view, record, change, "done" if done else "reverted"))
    settled = settle(view, record, done)
    why = "done" if done else f"reverted: {change.giving_up}"
    return view.commit(record, after, why, (*settled, report))


def settle(view: ClusterView, record: Partition, done: bool) -> tuple[Change, ...]:
    intent = view.agreed.intents.get(record.id)
    if intent is None or intent.pending is None:
        return ()
    after = completed(intent) if done else cancelled(intent)
    return (Put(after),)


def give_up(view: ClusterView, record: Partition, why: str, by: GivenUpBy) -> Commit | Waiting:
    stage = routing.stage_of(record)
    assert stage is not None
    if stage.given_up[0] == END:
        after = with_stage(record, stage.name, giving_up=why, given_up_by=by)
        return finish(view, record, after, False)
    return view.commit(record, given_up(record, why, by), f"given up: {why}")


def fall_back(view: ClusterView, record: Partition) -> Commit | Waiting:
    """After the switch: back if an in-sync old replica lives, forward if only new ones do."""
    stage = routing.stage_of(record)
    assert record.owner is not None and record.transition is not None and stage is not None
    back, forward = stage.given_up
    candidates = fallback_candidates(view, record)
    old = [r for r in candidates if view.of(record, r) is not None]
    unheard = [r for r in candidates if r not in old and not view.is_lost(record, r)]
    if not old and unheard:
        return Waiting(f"fall back: {unheard[0].node} has not reported its status")
    if not old:
        after = with_stage(record, stage.name, giving_up="", given_up_by="")
        return view.commit(
            record, enter(after, forward), "no in-sync old replica is alive: continue"
        )
    why = f"fall back: {record.transition.giving_up}"
    after = with_pause(view, record)
    if record.owner.replica in record.replicas:
        return view.commit(record, enter(after, back), why)
    progress = seal(view, record, 0.0)
    if progress is not None:
        assert isinstance(progress, Waiting)
        return progress._replace(work=Work.SEAL)
    grant = Grant(old[0], view.lease_of(old[0].node))
    after = enter(next_epoch(after, grant), back)
    view.memory.handing_over(record.id, fence_after(view, record), after.epoch)
    return view.commit(record, after, why)


def fallback_candidates(view: ClusterView, record: Partition) -> tuple[Replica, ...]:
    """Live in-sync replicas of the old side: others may lack acknowledged writes."""
    return tuple(r for r in in_sync_side(record, Side.OLD) if view.is_live(r.node))


# --- the work


def prepare(view: ClusterView, record: Partition, held_since: float) -> Progress:
    for replica in routing.new_only(record):
        if not view.is_live(replica.node):
            return GivenUp(f"the target {replica.node} is down")
        if view.of(record, replica) is None:
            if replica.volume not in view.working_volumes(replica.node):
                return GivenUp(f"{replica.node} can't use its volume {replica.volume!r}")
            return Waiting(f"{replica.node} has not created its replica yet")
    return None


def barrier(view: ClusterView, record: Partition, held_since: float) -> Progress:
    why = view.barrier(record.id)
    return Waiting(why) if why else None


def copy(view: ClusterView, record: Partition, held_since: float) -> Progress:
    return carry(view, record, routing.new_only(record), verified=True)


def repair(view: ClusterView, record: Partition, held_since: float) -> Progress:
    assert record.owner is not None
    others = tuple(r for r in in_sync_side(record, Side.OLD) if r != record.owner.replica)
    return carry(view, record, others, verified=False)


def carry(
    view: ClusterView, record: Partition, targets: tuple[Replica, ...], verified: bool
) -> Progress:
    """Copy to the targets under the session, then compare digests taken at one position."""
    change = record.transition
    assert change is not None and change.session is not None and record.owner is not None
    source = view.owner_status(record)
    if source is None or source.open_epoch != record.epoch:
        view.memory.silent_since(record.id, "not open", view.now)
        return Waiting("copy: its owner is not open yet")
    missing = tuple(r for r in targets if not copied(view, record, r))
    if missing:
        if is_silent(view, record, targets):
            return GivenUp(f"nothing was copied for {view.settings.copy_silence_seconds:.0f} s")
        names = ", ".join(r.node for r in missing)
        asked = ask_for_copies(view, record, change, missing)
        return Waiting(f"copy to {names} under session {change.session}", asked)
    return verify(view, record, targets) if verified else None


def ask_for_copies(
    view: ClusterView, record: Partition, change: Transition, targets: tuple[Replica, ...]
) -> tuple[Effect, ...]:
    """A volume move links the files of an in-sync replica on the same node, if that is possible."""
    assert change.session is not None and record.owner is not None
    beside = {
        r.node: r.incarnation
        for r in routing.old_only(record)
        if change.kind == "volume_move" and r in record.in_sync
    }
    links = [r for r in targets if r.node in beside and not is_in(view, record, r, "unlinkable")]
    carried = tuple(r for r in targets if r not in links)
    head = (change.session, record.epoch)
    asked: list[Effect] = [
        Send(r.node, Link(record.id, r.incarnation, *head, beside[r.node])) for r in links
    ]
    if carried:
        asked.append(StartCopy(record.id, *head, record.owner.replica, carried))
    return tuple(asked)


def is_in(view: ClusterView, record: Partition, replica: Replica, trouble: Trouble) -> bool:
    known = view.of(record, replica)
    return known is not None and known.trouble == trouble


def is_silent(view: ClusterView, record: Partition, targets: tuple[Replica, ...]) -> bool:
    """Has no progress arrived at the targets for too long? The process that copies may be dead."""
    assert record.transition is not None
    known = [view.of(record, replica) for replica in targets]
    arrived = [None if each is None else (each.copying, each.copied) for each in known]
    since = view.memory.silent_since(record.id, (record.transition.session, arrived), view.now)
    return view.now - since >= view.settings.copy_silence_seconds


def copied(view: ClusterView, record: Partition, replica: Replica) -> bool:
    known = view.of(record, replica)
    assert record.transition is not None
    return known is not None and known.copied == record.transition.session


def verify(view: ClusterView, record: Partition, targets: tuple[Replica, ...]) -> Progress:
    assert record.transition is not None and record.owner is not None
    session = record.transition.session
    source = view.owner_status(record)
    assert source is not None and session is not None
    for replica in (record.owner.replica, *targets):
        if is_in(view, record, replica, "unreadable"):
            return GivenUp(f"verification: {replica.node} can't read its rows", "verification")
    for replica in targets:
        known = view.of(record, replica)
        theirs = None if known is None else known.digest
        ours = source.digest
        if ours is None or theirs is None or ours[:2] != theirs[:2] or ours[0] != session:
            ask = Send(record.owner.replica.node, Verify(record.id, session))
            theirs_comes = known is not None and ours is not None and known.checking == ours[1]
            under_way = source.checking is not None or theirs_comes
            why = f"verification: digests of {replica.node} and the owner"
            return Waiting(why, () if under_way else (ask,))
        if ours[2] != theirs[2]:
            return Differs(f"verification: {replica.node} differs from the owner")
    return None


def compare(view: ClusterView, record: Partition) -> Commit | Waiting:
    """Find the rows that differ, for the report, before a differing copy is dropped."""
    change = record.transition
    assert change is not None and change.session is not None and record.owner is not None
    targets = routing.new_only(record)
    known = [view.of(record, replica) for replica in targets]
    if any(each is not None and each.copied != change.session for each in known):
        return give_up(view, record, change.giving_up, change.given_up_by)  # that copy is gone
    found = view.memory.comparing(record.id, change.session, view.now)
    if not found.ended and view.now - found.since < view.settings.compare_seconds:
        ask = Compare(record.id, change.session, record.owner.replica, targets)
        return Waiting(f"{change.giving_up}; their rows are compared", (ask,))
    if not found.differences:
        return give_up(view, record, change.giving_up, change.given_up_by)
    after = given_up(record, change.giving_up, change.given_up_by)
    report = Put(report_of(view, record, change, "reverted", found.differences, found.more))
    return view.commit(record, after, f"given up: {change.giving_up}", (report,))


def seal(view: ClusterView, record: Partition, held_since: float) -> Progress:
    """A commit that changes the owner needs the present owner's seal for this revision.

    The owner is not asked to seal before a replica is there that can take over. And while too few
    replicas of the other side are in sync, no replica is left behind that may still be elected.
    """
    assert record.owner is not None
    stage = routing.stage_of(record)
    assert stage is not None
    enough = enough_take_over(view, record, stage)
    dropped = [r.node for r in routing.old_only(record) if r in record.eligible]
    if dropped and not enough:
        return Waiting(
            f"too few of the replicas that stay are in sync, and {', '.join(dropped)}, which would "
            "be dropped, may have to be elected"
        )
    if record.owner.replica in routing.side(record, stage.owner.other):
        return None
    revision = view.agreed.topology.revision_of(record.id)
    source = view.owner_status(record)
    if source is not None and source.sealed is not None and source.sealed[0] == revision:
        return None
    if not takers(view, record):
        successors = routing.side(record, stage.owner.other)
        if any(may_take_over_later(view, record, each) for each in successors):
            return Waiting(NO_TAKER)
        return GivenUp(NO_TAKER)
    if record.eligible and not enough:
        return Waiting("hand-over: too few replicas of the new side are in sync")
    in_flight = 0.0 if source is None else source.commit_seconds
    if not view.memory.is_sealing(record.id, revision):
        too_long = would_pause_too_long(view, record, in_flight)
        if too_long:
            return Waiting(too_long)
        view.memory.sealing(record.id, SealAsked(revision, view.now, in_flight))
    ask = Send(record.owner.replica.node, Seal(record.id, revision))
    return Waiting(f"hand-over: {record.owner.replica.node} finishes the writes in flight", (ask,))


def would_pause_too_long(view: ClusterView, record: Partition, in_flight: float) -> str:
    """Why the hand-over waits for a shorter pause, in words; a hand-over back never waits."""
    stage = routing.stage_of(record)
    assert record.transition is not None and stage is not None
    limit = record.transition.max_pause_seconds
    pause = in_flight + view.memory.hand_over_seconds(view.now)
    if not limit or pause <= limit or stage.switched:
        return ""
    return (
        f"hand-over: it would pause writes for about {pause * 1000:.0f} ms, "
        f"and at most {limit * 1000:.0f} ms are allowed"
    )


def open_(view: ClusterView, record: Partition, held_since: float) -> Progress:
    owner = view.owner_status(record)
    if owner is None or owner.open_epoch != record.epoch:
        assert record.owner is not None
        return Waiting(f"{record.owner.replica.node} synchronizes the replicas before it serves")
    view.memory.opened(record.id, record.epoch, view.now)
    return None


def hold(view: ClusterView, record: Partition, held_since: float) -> Progress:
    change = record.transition
    assert change is not None
    ends_at = held_since + change.hold_seconds
    left = ends_at - view.now
    intent = view.agreed.intents.get(record.id)
    waited_for = intent is not None and intent.planned is not None
    waited_for = waited_for or topology_request_waits(view) is not None
    if change.released or waited_for or left <= 0:
        return None
    return Waiting(
        f"held for another {left:.0f} s; `complete` ends the hold, `reverse` reverts the move",
        until=ends_at,
    )


def drop_old(view: ClusterView, record: Partition, held_since: float) -> Progress:
    return drop(view, record, routing.old_only(record))


def drop_new(view: ClusterView, record: Partition, held_since: float) -> Progress:
    return drop(view, record, routing.new_only(record))


def drop(view: ClusterView, record: Partition, replicas: tuple[Replica, ...]) -> Progress:
    """Nodes that are down are skipped: they drop unnamed replicas before they register again."""
    revision = view.agreed.topology.revision_of(record.id)
    for replica in replicas:
        if not view.is_live(replica.node):
            continue
        status = view.status(replica.node)
        if status is None or status.generation < revision:
            return Waiting(f"{replica.node} has not applied generation {revision}")
        busy = status.busy.get(record.id, revision) < revision
        if view.of(record, replica) is not None or busy:
            call = Send(replica.node, DropReplica(record.id, replica.incarnation, revision))
            return Waiting(f"{replica.node} drops its replica", (call,))
    return None


DO: dict[Work, Callable[[ClusterView, Partition, float], Progress]] = {
    Work.PREPARE: prepare,
    Work.BARRIER: barrier,
    Work.COPY: copy,
    Work.REPAIR: repair,
    Work.SEAL: seal,
    Work.OPEN: open_,
    Work.HOLD: hold,
    Work.DROP_OLD: drop_old,
    Work.DROP_NEW: drop_new,
}
