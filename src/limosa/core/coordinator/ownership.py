"""Who should own a partition, and which replicas are in sync? Failover, election, removal, return.

A replica that does not answer is first taken out of the in-sync set by a commit; only then may the
owner continue without it. If the replica is one that a transition makes, the same commit gives the
transition up.

Only the owner's own report, made under its present lease, takes a silent replica out, or a promise
that was made after the former owner's lease had ended takes that owner out: if all nodes stop at
once, nobody reports or promises, and whichever replica returns can be elected. If too few replicas
stay in sync, those that are taken out stay eligible, and the owner commits nothing until enough are
in sync again.
"""

from math import inf

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import damage
from limosa.core.coordinator.view import ClusterView, with_stage
from limosa.core.machines.machine import Side
from limosa.core.model.changes import Commit
from limosa.core.model.keys import Revision
from limosa.core.model.topology import GivenUpBy, Grant, Partition, Replica, Transition


def session_for(transition: Transition, stage: str, epoch: int) -> str | None:
    """The session of a transition at one epoch: a failover closes it and opens another one."""
    is_open = routing.machine_of(transition)[stage].session
    return f"{transition.id}@{epoch}" if is_open else None


def fail_over(view: ClusterView, record: Partition) -> Commit:
    """The owner's lease has ended: a new epoch begins, without an owner until one is elected."""
    after = next_epoch(record, None)
    if record.owner is not None:
        view.memory.owner_gone(record.id, after.epoch, record.owner.replica)
    return view.commit(record, after, f"the owner is gone; epoch {after.epoch} elects")


def next_epoch(record: Partition, owner: Grant | None) -> Partition:
    epoch = record.epoch + 1
    after = replace(record, epoch=epoch, owner=owner)
    change = record.transition
    if change is None:
        return after
    return replace(
        after, transition=replace(change, session=renewed_session(record, change, epoch))
    )


def renewed_session(record: Partition, change: Transition, epoch: int) -> str | None:
    return session_for(change, change.stage, epoch)


def elect(view: ClusterView, record: Partition) -> Commit | str:
    """Elect the replica of the read side whose log reaches furthest, among those in sync and those
    that are eligible; a damaged one only if there is no other.

    Among equals the first one of the record wins, so that owners are spread as the records spread
    them. The log of every candidate has all committed rows, so an election may go on without a live
    candidate that does not promise in time, for example because its disk hangs.
    """
    if record.epoch == 0:
        return first_election(view, record)
    positions: list[tuple[bool, int, Replica]] = []
    late: list[Replica] = []
    for replica in candidates(view, record):
        known = view.of(record, replica)
        if known is not None and known.epoch >= record.epoch:
            positions.append((not known.damaged, known.last, replica))
        elif view.is_live(replica.node) and not view.is_lost(record, replica):
            late.append(replica)
    if late and (not positions or not is_overdue(view, record)):
        return f"election: {late[0].node} has not promised epoch {record.epoch} yet"
    if positions:
        *_, best = max(positions, key=lambda each: each[:2])
        grant = Grant(best, view.lease_of(best.node))
        heard = tuple(replica for *_, replica in positions)
        after = with_in_sync(view, replace(record, owner=grant), best, heard)
        after = without_former_owner(view, after)
        return view.commit(record, after, f"{best.node} owns epoch {record.epoch}")
    stage = routing.stage_of(record)
    if stage is not None and stage.switched and stage.given_up:
        old = [r for r in in_sync_side(record, Side.OLD) if view.of(record, r) is not None]
        if old:
            why = "no replica of the new side is alive"
            after = with_stage(record, stage.given_up[0], giving_up=why, given_up_by="cluster")
            return view.commit(
                record, after, "fall back: no in-sync replica of the new side is alive"
            )
    names = ", ".join(replica.node for replica in candidates(view, record))
    return f"election: no replica that has every acknowledged row is alive: start one of {names}"


def with_in_sync(
    view: ClusterView, record: Partition, elected: Replica, heard: tuple[Replica, ...]
) -> Partition:
    """The record with the elected replica in sync: alone, if others were eligible.

    Nothing was committed without the eligible ones, so each candidate has every committed row. All
    of them stay eligible, also those that were in sync, until enough have caught up with the new
    owner. So a dead owner does not count among the replicas in sync, and if the new owner dies,
    too, the next candidate is elected. If the elected replica is damaged, those in sync stay: they
    may have the rows that it can't read.
    """
    leaving: tuple[Replica, ...] = ()
    if record.eligible and not view.is_damaged(record, elected):
        leaving = tuple(r for r in routing.electable(record) if r != elected)
    in_sync = tuple(r for r in record.in_sync if r not in leaving)
    after = replace(record, in_sync=in_sync if elected in in_sync else (*in_sync, elected))
    gone = [r for r in leaving if r in routing.new_only(record) and r not in heard]
    if gone and gives_up(record):
        return given_up(after, f"{gone[0].node} did not take part in the election", "cluster")
    return after


def without_former_owner(view: ClusterView, record: Partition) -> Partition:
    """The record of an election without the owner whose lease ended, so that writes go on at once.

    Each promise is younger than the end of that lease, just as a report of the new owner would be.
    If too few replicas would stay in sync, or only one, the new owner first asks the former one.
    """
    former = view.memory.former_owner(record.id, record.epoch)
    stay = tuple(r for r in record.in_sync if r != former)
    enough = max(2, routing.needed(record, view.agreed.topology.zones[record.zone]))
    if former is None or view.is_live(former.node) or len(stay) < enough:
        return record
    if record.transition is not None or any(view.is_damaged(record, r) for r in stay):
        return record
    return replace(record, in_sync=stay)


def is_overdue(view: ClusterView, record: Partition) -> bool:
    """Has this coordinator waited long enough for promises of this epoch?"""
    view.memory.seen_since(record.id, ("election", record.epoch), view.now)
    return view.now >= overdue_at(view, record)


def overdue_at(view: ClusterView, record: Partition) -> float:
    """Until when the election waits for further promises; no end: there is none yet."""
    since = view.memory.known_since(record.id, ("election", record.epoch))
    return inf if since is None else since + view.settings.promise_seconds


def candidates(view: ClusterView, record: Partition) -> tuple[Replica, ...]:
    return routing.candidates(record)


def first_election(view: ClusterView, record: Partition) -> Commit | str:
    for replica in record.replicas:
        can_hold = replica.volume in view.working_volumes(replica.node)
        if can_hold and view.is_live(replica.node) and view.of(record, replica) is None:
            return f"{replica.node} has not created its replica yet"
    if not any(view.of(record, replica) is not None for replica in record.replicas):
        return "none of its nodes is alive"
    return fail_over(view, record)


def in_sync_side(record: Partition, side: Side) -> tuple[Replica, ...]:
    return tuple(r for r in routing.side(record, side) if r in record.in_sync)


def change_in_sync(view: ClusterView, record: Partition) -> Commit | None:
    """Take out replicas that are lost, damaged or silent; put back those that have caught up."""
    assert record.owner is not None
    owner = view.owner_status(record)
    for replica in record.in_sync:
        if replica == record.owner.replica:
            continue
        if view.is_lost(record, replica):
            return take_out(view, record, (replica,), "it does not hold the replica any more")
        if damage.can_be_spared(view, record, replica):
            return take_out(view, record, (replica,), "a file of it is damaged")
    silent = silent_replicas(view, record)
    if silent:
        return take_out(view, record, silent, "it does not answer its owner")
    for replica, revision in () if owner is None else owner.caught_up:
        held = view.of(record, replica) is not None
        held = held and not view.is_damaged(record, replica)
        answers = owner is not None and replica not in owner.silent
        may_return = is_current(view, record, revision) and replica in routing.may_return(record)
        if held and answers and may_return:
            after = replace(record, in_sync=(*record.in_sync, replica))
            return view.commit(record, after, f"{replica.node} is in sync again")
    if record.eligible and view.eligible(record, record) != record.eligible:
        return view.commit(record, record, "fewer replicas are eligible")
    return None


def silent_replicas(view: ClusterView, record: Partition) -> tuple[Replica, ...]:
    """In-sync replicas that do not answer their owner, as the owner says under its present lease.

    They leave by one commit: if too few stay in sync, all of them are eligible.
    """
    assert record.owner is not None
    owner = view.owner_status(record)
    silent = () if owner is None else owner.silent
    out = [r for r in record.in_sync if r in silent and r != record.owner.replica]
    spared = tuple(r for r in out if not damage.is_last_taker(view, record, r))
    return spared[:1] if view.is_damaged(record, record.owner.replica) else spared


def is_current(view: ClusterView, record: Partition, revision: Revision) -> bool:
    """The owner waits for a returning replica only while the record has this revision."""
    return revision == view.agreed.topology.revision_of(record.id)


def take_out(view: ClusterView, record: Partition, out: tuple[Replica, ...], why: str) -> Commit:
    after = replace(record, in_sync=tuple(r for r in record.in_sync if r not in out))
    reason = f"{', '.join(r.node for r in out)} is taken out: {why}"
    if any(r in routing.new_only(record) for r in out) and gives_up(record):
        after = given_up(after, reason, "cluster")
    return view.commit(record, after, reason)


def gives_up(record: Partition) -> bool:
    stage = routing.stage_of(record)
    return stage is not None and bool(stage.given_up)


def given_up(record: Partition, why: str, by: GivenUpBy) -> Partition:
    """Leave the stage by its edge back; after the switch, only record that the transition is given
    up."""
    change = record.transition
    stage = routing.stage_of(record)
    assert change is not None and stage is not None
    after = with_stage(record, stage.name, giving_up=why, given_up_by=by)
    return after if stage.switched else enter(after, stage.given_up[0])


def enter(record: Partition, stage: str) -> Partition:
    """The record in the next stage: with its session, and with the in-sync replicas that are
    written there."""
    assert record.transition is not None
    session = session_for(record.transition, stage, record.epoch)
    after = with_stage(record, stage, session=session)
    written = routing.written(after)
    in_sync = tuple(r for r in after.in_sync if r in written)
    if routing.machine_of(record.transition)[stage].session:
        in_sync = (*in_sync, *(r for r in routing.new_only(after) if r not in in_sync))
    return replace(after, in_sync=in_sync)
