"""What if an owner has lost its replica, although its node lives? Another replica takes over.

The node has reported that it does not hold the replica any more, so it serves nothing: the report
counts like a seal. Every log in sync, and that of every eligible replica, holds all acknowledged
writes, so the next owner is named at once.
"""

from limosa.core import routing
from limosa.core.coordinator.damaged_owners import last, without
from limosa.core.coordinator.ownership import enter, in_sync_side, next_epoch, with_in_sync
from limosa.core.coordinator.transitions import Waiting
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.machine import Side
from limosa.core.model.changes import Commit
from limosa.core.model.topology import Grant, Partition, Replica


def hand_over(view: ClusterView, record: Partition) -> Commit | Waiting | None:
    """None: the owner has its replica, as far as is known."""
    assert record.owner is not None
    owner = record.owner.replica
    if not view.is_lost(record, owner):
        return None
    after = without(record, owner)
    why = f"{owner.node} has lost its replica"
    takers = alive(view, record, routing.candidates(record))
    if takers:
        taker = best(view, record, takers)
        grant = Grant(taker, view.lease_of(taker.node))
        after = with_in_sync(view, after, taker, takers)
        return view.commit(record, next_epoch(after, grant), f"{taker.node} takes over: {why}")
    stage = routing.stage_of(record)
    old = alive(view, record, in_sync_side(record, Side.OLD))
    if stage is not None and stage.switched and stage.given_up and old:
        taker = best(view, record, old)
        grant = Grant(taker, view.lease_of(taker.node))
        after = enter(next_epoch(after, grant), stage.given_up[0])
        return view.commit(record, after, f"fall back to {taker.node}: {why}")
    return Waiting(f"{why}, and no other replica in sync is alive: repair its volume, or start one")


def unapplied(view: ClusterView, record: Partition) -> Waiting | None:
    """A replica that is perhaps lost: its node does not report it, but has not applied the record
    either, so the report may be out of date."""
    for replica in record.replicas:
        if view.is_behind(record, replica) and view.of(record, replica) is None:
            revision = view.agreed.topology.revision_of(record.id)
            return Waiting(
                f"{replica.node} reports no replica, and has not applied generation {revision}"
            )
    return None


def alive(
    view: ClusterView, record: Partition, replicas: tuple[Replica, ...]
) -> tuple[Replica, ...]:
    return tuple(replica for replica in replicas if view.of(record, replica) is not None)


def best(view: ClusterView, record: Partition, takers: tuple[Replica, ...]) -> Replica:
    """The replica whose log reaches furthest; a damaged one only if there is no other."""
    return max(
        takers, key=lambda each: (not view.is_damaged(record, each), last(view, record, each))
    )
