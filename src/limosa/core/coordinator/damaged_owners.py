"""What if an owner is damaged? It hands over to a sound replica, and is rebuilt like a lost one.

The owner is sealed first, so that no read of an old owner misses a write of the new one. Only an
owner that has not opened needs no seal: a damaged owner stays closed while others are in sync.
"""

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.damage import can_be_spared, takers
from limosa.core.coordinator.ownership import given_up, gives_up, next_epoch
from limosa.core.coordinator.transitions import Waiting
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import Send
from limosa.core.messages import Seal
from limosa.core.model.changes import Commit
from limosa.core.model.keys import Position
from limosa.core.model.topology import Grant, Partition, Replica


def hand_over(view: ClusterView, record: Partition) -> Commit | Waiting | None:
    """None: the owner is sound, or no sound replica could take over."""
    assert record.owner is not None
    owner = record.owner.replica
    if not can_be_spared(view, record, owner):
        return None
    revision = view.agreed.topology.revision_of(record.id)
    status, known = view.status(owner.node), view.owner_status(record)
    assert status is not None and known is not None
    if status.generation < revision:
        return Waiting(f"{owner.node} is damaged, and has not applied generation {revision}")
    is_sealed = known.sealed is not None and known.sealed[0] == revision
    if known.open_epoch == record.epoch and not is_sealed:
        ask = Send(owner.node, Seal(record.id, revision))
        return Waiting(f"{owner.node} is damaged, and finishes the writes in flight", (ask,))
    taker = max(takers(view, record, owner), key=lambda each: last(view, record, each))
    grant = Grant(taker, view.lease_of(taker.node))
    why = f"{taker.node} takes over: a file of {owner.node} is damaged"
    return view.commit(record, next_epoch(without(record, owner), grant), why)


def last(view: ClusterView, record: Partition, replica: Replica) -> Position:
    """The end of its log. Every log in sync holds all acknowledged writes."""
    known = view.of(record, replica)
    assert known is not None
    return known.last


def without(record: Partition, damaged: Replica) -> Partition:
    """The record with the replica out of sync; if a transition made it, that is given up."""
    after = replace(record, in_sync=tuple(r for r in record.in_sync if r != damaged))
    if damaged in routing.new_only(record) and gives_up(record):
        return given_up(after, f"{damaged.node} is damaged", "cluster")
    return after
