"""Which replicas are compared, and in which tasks? All that hold every committed row."""

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.machines.machine import Side
from limosa.core.model.keys import NodeId, PartitionId
from limosa.core.model.topology import Partition, Replica
from limosa.pipeline.loads import CopyTarget

EXAMINE = "limosa.pipeline.examining:run"
SLICE_ROWS = 250_000
"""What a slice should have: so many keys and hashes of each replica are in memory at once."""
PORTION_SLICES = 4
TASK_ROWS_MIN = 100_000
"""What is worth a task of its own."""
TASKS_PER_WORKER = 4
"""So that the last ones end at about the same time, and progress can be seen."""


class Portion(Struct, frozen=True, array_like=True):
    """Slices `first` to `last`, without that, of one partition: a replica against others."""

    partition: PartitionId
    lead: CopyTarget
    others: tuple[CopyTarget, ...]
    table: bytes = b""
    """The definition of the only table that counts; empty: all that there are."""
    slices: int = 0
    """0: as many as its rows need, and all of them."""
    first: int = 0
    last: int = 0


class PortionLimits(Struct, frozen=True, array_like=True):
    differences: int = 100
    """So many are told; of more, how many there are."""
    rounds: int = 6
    pause_seconds: float = 0.05
    """Before the second round; twice as long before each further one."""
    lag_seconds: float = 10.0
    """How long a replica may take to come as far as the lead was."""


class Examination(Struct, frozen=True, array_like=True):
    """All that one worker needs to know."""

    portions: tuple[Portion, ...]
    addresses: dict[NodeId, str]
    strict: bool = False
    limits: PortionLimits = PortionLimits()


class PortionResult(Struct, frozen=True, array_like=True):
    """What came of a portion."""

    partition: PartitionId
    rows: int = 0
    """That the lead has."""
    nodes: tuple[NodeId, ...] = ()
    """Whose replicas were compared, to the end."""
    differences: tuple[str, ...] = ()
    more: int = 0
    """So many differences besides."""
    unsettled: int = 0
    """Rows that were written whenever they were read."""
    lags: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    bytes: int = 0
    seconds: float = 0.0


# --- planning


def whole(record: Partition) -> tuple[Replica, ...]:
    """Replicas that hold all that is committed: in sync, still written, and not being copied to."""
    stage = routing.stage_of(record)
    copied = stage is not None and stage.reads is Side.NEW
    sound = routing.side(record, Side.BOTH if copied else Side.OLD)
    return tuple(replica for replica in routing.writers(record) if replica in sound)


def portion_of(record: Partition, table: bytes = b"") -> Portion:
    """The owner's replica against the others; without an owner the first one leads."""
    found = whole(record)
    owner = None if record.owner is None else record.owner.replica
    first = owner if owner in found else next(iter(found), None)
    ordered = [] if first is None else [first, *(each for each in found if each != first)]
    targets = [CopyTarget(each.node, each.incarnation) for each in ordered]
    lead = targets[0] if targets else CopyTarget("", "")
    return Portion(record.id, lead, tuple(targets[1:]), table)


def cut(portion: Portion, rows: int) -> list[Portion]:
    """A large one in several, so that workers share it; of one whose size nobody knows, all."""
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
    """Tasks of like weight, in rows; small portions share one."""
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
