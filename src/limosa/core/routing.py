"""Which replicas serve a partition? The record and its stage determine the readers and writers.

Nothing else does (no clock, lease or cache), so two processes with the same record agree.
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
    """May nodes create the new replicas in this stage?"""
    return Work.PREPARE in machine_of(change)[change.stage].work


def may_end_hold(change: Transition) -> bool:
    """Is the transition in the stage in which a hold keeps both sides, and the new one is read?"""
    return Work.HOLD in machine_of(change)[change.stage].work


def is_held(change: Transition) -> bool:
    """Is the transition held in that stage?"""
    return may_end_hold(change) and bool(change.hold_seconds) and not change.released


def side(partition: Partition, wanted: Side) -> tuple[Replica, ...]:
    """The replicas of a side, in sync or not; outside a transition there is one side only."""
    if partition.transition is None or wanted is Side.OLD:
        return partition.replicas
    if wanted is Side.NEW:
        return partition.transition.targets
    return (*partition.replicas, *new_only(partition))


def new_only(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that the transition creates."""
    if partition.transition is None:
        return ()
    return tuple(r for r in partition.transition.targets if r not in partition.replicas)


def old_only(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that the transition drops."""
    if partition.transition is None:
        return ()
    return tuple(r for r in partition.replicas if r not in partition.transition.targets)


def everywhere(partition: Partition) -> tuple[Replica, ...]:
    """Every replica that the record names."""
    return side(partition, Side.BOTH)


def readers(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that `eventual` reads may ask, and that may be elected if they are in sync."""
    stage = stage_of(partition)
    return side(partition, Side.OLD if stage is None else stage.reads)


def written(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that the owner sends its log to; those that are not in sync catch up."""
    stage = stage_of(partition)
    return side(partition, Side.OLD if stage is None else stage.writes)


def is_copied(partition: Partition) -> bool:
    """Is a session open in which rows are copied to other replicas?"""
    stage = stage_of(partition)
    return stage is not None and stage.session


def writers(partition: Partition) -> tuple[Replica, ...]:
    """The write set: replicas that must store a row before it is committed."""
    return tuple(r for r in written(partition) if r in partition.in_sync)


def electable(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that may become the owner: in sync, and on the side that is read."""
    return tuple(r for r in readers(partition) if r in partition.in_sync)


def has_other_in_sync(partition: Partition, replica: Replica) -> bool:
    """Is there another replica that may own the partition, so that this one can be spared?"""
    return any(other != replica for other in electable(partition))


def candidates(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that have every committed row: in sync or eligible, and on the side that is read."""
    eligible = (r for r in readers(partition) if r in partition.eligible)
    return (*electable(partition), *eligible)


def needed(partition: Partition, zone: Zone) -> int:
    """How many replicas must be in sync for a write."""
    return needed_of(len(readers(partition)), zone)


def needed_of(there: int, zone: Zone) -> int:
    """How many of the replicas of a side must be in sync: the zone's minimum, or a majority.

    Never more than exist: writes continue while additional replicas of a zone are copied.
    """
    return min(zone.min_in_sync or there // 2 + 1, there)


def takes_writes(partition: Partition, needed: int) -> bool:
    """Are enough replicas in sync? The record alone says when eligible replicas are not waited for
    any more, even if fewer replicas are needed by now."""
    return len(electable(partition)) >= needed and not partition.eligible


def out_of_sync(partition: Partition) -> tuple[Replica, ...]:
    """Replicas on the side that is read that are not in sync."""
    return tuple(r for r in readers(partition) if r not in partition.in_sync)


def may_return(partition: Partition) -> tuple[Replica, ...]:
    """Replicas that may catch up and be in sync again. Those that a transition drops are needed
    only if too few others are in sync, so that some are eligible."""
    dropped = () if partition.eligible else old_only(partition)
    return tuple(r for r in out_of_sync(partition) if r not in dropped)
