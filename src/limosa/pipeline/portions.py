"""Which replicas are compared, and in which tasks? All that hold every committed row."""

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.machines.machine import Side
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.topology import Partition, Replica
from limosa.pipeline.loads import CopyTarget, Permit, target_of

EXAMINE = "limosa.pipeline.examining:run"
SLICE_ROWS = 250_000
"""The intended rows of a slice: so many keys and hashes of each replica are in memory at once."""
PORTION_SLICES = 4
TASK_ROWS_MIN = 100_000
"""The minimum size of a task."""
TASKS_PER_WORKER = 4
"""Several, so that all workers end at about the same time, and progress is visible."""


class Portion(Struct, frozen=True, array_like=True):
    """Slices `first` to `last` (exclusive) of a partition: a replica against others."""

    partition: PartitionId
    lead: CopyTarget
    others: tuple[CopyTarget, ...]
    table: bytes = b""
    """The definition of the only table to compare; empty: all tables."""
    slices: int = 0
    """The number of slices; 0: all rows, in as many slices as they need."""
    first: int = 0
    last: int = 0
    permit: Permit = Permit()


class PortionLimits(Struct, frozen=True, array_like=True):
    differences: int = 100
    """How many differences are named; further ones are only counted."""
    rounds: int = 6
    pause_seconds: float = 0.05
    """Delay before the second round; it doubles with each further round."""
    lag_seconds: float = 10.0
    """How long a replica may take to reach the lead's watermark."""


class Examination(Struct, frozen=True, array_like=True):
    """Everything that one worker needs to know."""

    portions: tuple[Portion, ...]
    addresses: dict[NodeId, str]
    strict: bool = False
    limits: PortionLimits = PortionLimits()


class PortionResult(Struct, frozen=True, array_like=True):
    """The result of a portion."""

    partition: PartitionId
    rows: int = 0
    """Rows of the lead."""
    nodes: tuple[NodeId, ...] = ()
    """Nodes whose replicas were compared completely."""
    differences: tuple[str, ...] = ()
    more: int = 0
    """The number of further differences."""
    unsettled: int = 0
    """Rows that were being written each time they were read."""
    lags: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    bytes: int = 0
    seconds: float = 0.0


# --- planning


def whole(record: Partition) -> tuple[Replica, ...]:
    """The replicas that hold every committed row: in sync, written, and not a copy's target."""
    stage = routing.stage_of(record)
    copied = stage is not None and stage.reads is Side.NEW
    sound = routing.side(record, Side.BOTH if copied else Side.OLD)
    return tuple(replica for replica in routing.writers(record) if replica in sound)


def portion_of(record: Partition, table: bytes = b"") -> Portion:
    """Compare the owner's replica with the others; without an owner, the first one leads."""
    found = whole(record)
    owner = None if record.owner is None else record.owner.replica
    first = owner if owner in found else next(iter(found), None)
    ordered = [] if first is None else [first, *(each for each in found if each != first)]
    targets = [target_of(each) for each in ordered]
    lead = targets[0] if targets else CopyTarget("", "")
    return Portion(record.id, lead, tuple(targets[1:]), table)


def cut(portion: Portion, rows: int) -> list[Portion]:
    """Cut a large portion, so that workers share it; one of unknown size stays whole."""
    if not rows:
        return [portion]
    slices = -(-rows // SLICE_ROWS)
    parts = -(-slices // PORTION_SLICES)
    bounds = [slices * number // parts for number in range(parts + 1)]
    return [
        replace(portion, slices=slices, first=first, last=last) for first, last in pairwise(bounds)
    ]


def share_out(
    weighed: Iterable[tuple[Portion, int]], workers: int
) -> list[tuple[list[Portion], int]]:
    """Tasks of similar size, in rows; small portions share a task."""
    given = list(weighed)
    total = sum(rows for _, rows in given)
    enough = max(TASK_ROWS_MIN, total // (TASKS_PER_WORKER * workers))
    tasks: list[tuple[list[Portion], int]] = []
    for portion, rows in given:
        if not tasks or tasks[-1][1] >= enough:
            tasks.append(([], 0))
        portions, weight = tasks[-1]
        tasks[-1] = ([*portions, portion], weight + rows)
    return tasks
