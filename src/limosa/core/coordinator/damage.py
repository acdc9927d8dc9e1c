"""Which damaged replicas can be spared? Those without which a sound replica is still in sync.

Some rows of a damaged replica can't be read, but its log is kept like any other. A damaged replica
that can't be spared stays where it is: the rows that it can still read exist nowhere else.
"""

from limosa.core import routing
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.topology import Partition, Replica


def takers(view: ClusterView, record: Partition, instead_of: Replica) -> tuple[Replica, ...]:
    """Sound, live replicas in sync that may own the partition without this one."""
    return tuple(
        replica
        for replica in routing.electable(record)
        if replica != instead_of
        and view.of(record, replica) is not None
        and not view.is_damaged(record, replica)
    )


def can_be_spared(view: ClusterView, record: Partition, replica: Replica) -> bool:
    """The replica is damaged, and a sound one is in sync."""
    return view.is_damaged(record, replica) and bool(takers(view, record, replica))


def is_last_taker(view: ClusterView, record: Partition, replica: Replica) -> bool:
    """The owner is damaged, and no other replica could take over: so this one must stay in sync,
    though the owner does not hear from it. Perhaps the owner can't read what it would send."""
    assert record.owner is not None
    owner = record.owner.replica
    return view.is_damaged(record, owner) and takers(view, record, owner) == (replica,)
