"""Who serves a partition now? The stage and the record determine the readers and the writers.

Nothing here looks at a clock, a lease or a cache: two processes that know the same record agree.
"""

from limosa.core.machines.catalogue import MACHINES
from limosa.core.machines.machine import Machine, Side, Stage, Work
from limosa.core.model.topology import Partition, Replica, Transition, Zone


def machine_of(transition: Transition) -> Machine:
    return MACHINES[transition.kind]


def stage_of(partition: Partition) -> Stage | None:
    change = partition.transition
    return None if change is None else MACHINES[change.kind][change.stage]


def prepares(change: Transition) -> bool:
    """May nodes make the new replicas now?"""
    return Work.PREPARE in machine_of(change)[change.stage].work


def may_end_hold(change: Transition) -> bool:
    """Is the transition where it keeps both sides, now that the new one is read?"""
    return Work.HOLD in machine_of(change)[change.stage].work


def is_held(change: Transition) -> bool:
    """Does the transition stay there for a while?"""
    return may_end_hold(change) and bool(change.hold_seconds) and not change.released


def side(partition: Partition, wanted: Side) -> tuple[Replica, ...]:
    """The replicas of a side, in-sync or not; outside a transition there is one side only."""
    if partition.transition is None or wanted is Side.OLD:
        return partition.replicas
    if wanted is Side.NEW:
        return partition.transition.targets
    return (*partition.replicas, *new_only(partition))


def new_only(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that the transition makes."""
    if partition.transition is None:
        return ()
    return tuple(r for r in partition.transition.targets if r not in partition.replicas)


def old_only(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that the transition leaves behind."""
    if partition.transition is None:
        return ()
    return tuple(r for r in partition.replicas if r not in partition.transition.targets)


def everywhere(partition: Partition) -> tuple[Replica, ...]:
    """Every replica that the record names."""
    return side(partition, Side.BOTH)


def readers(partition: Partition) -> tuple[Replica, ...]:
    """Whom an `eventual` read may ask, and who may be elected."""
    stage = stage_of(partition)
    return side(partition, Side.OLD if stage is None else stage.reads)


def written(partition: Partition) -> tuple[Replica, ...]:
    """Who is sent the log; a replica that is not in sync is being caught up."""
    stage = stage_of(partition)
    return side(partition, Side.OLD if stage is None else stage.writes)


def is_copied(partition: Partition) -> bool:
    """Are rows of it carried to other replicas now?"""
    stage = stage_of(partition)
    return stage is not None and stage.session


def writers(partition: Partition) -> tuple[Replica, ...]:
    """The write set: on whose disks a row must be before it is committed."""
    return tuple(r for r in written(partition) if r in partition.in_sync)


def electable(partition: Partition) -> tuple[Replica, ...]:
    """Who may become owner: in sync, and on the side that is read."""
    return tuple(r for r in readers(partition) if r in partition.in_sync)


def needed(partition: Partition, zone: Zone) -> int:
    """How many replicas must be in sync for a write: what the zone says, or a majority.

    Of those that there are: a zone that was given more replicas goes on while they are copied.
    """
    there = len(readers(partition))
    return min(zone.min_in_sync or there // 2 + 1, there)


def may_return(partition: Partition) -> tuple[Replica, ...]:
    """Who may come back in sync by catching up: not one that a transition will leave behind."""
    out = (r for r in readers(partition) if r not in partition.in_sync)
    return tuple(r for r in out if r not in old_only(partition))
