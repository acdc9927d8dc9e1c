"""What is copied, and in which tasks? A wave of copies becomes a few tasks of similar size.

Starting a task costs tens of milliseconds and a row costs little, so many small partitions share a
task, and a large partition is cut into slices of its token range.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from limosa.core.effects import StartCopy
from limosa.core.model.keys import Incarnation, NodeId, PartitionId, SessionId
from limosa.core.model.topology import Replica

SLICE_BYTES = 16 << 20
"""The intended size of a slice, which becomes one file. With rows of many megabytes, a slice may be
several times as large."""
SLICES_MAX = 65_536
UNKNOWN_SLICES = 16
TASK_BYTES_MIN = 64 << 20
"""The minimum size of a task."""


class CopyTarget(Struct, frozen=True, array_like=True):
    node: NodeId
    incarnation: Incarnation


def target_of(replica: Replica) -> CopyTarget:
    return CopyTarget(replica.node, replica.incarnation)


class Permit(Struct, frozen=True, array_like=True):
    """What a worker shows to nodes, for its sessions and for some minutes."""

    token: str | None = None
    seconds: float = math.inf
    """For how long it is valid, from the start of the task: clocks of machines may differ."""


class CopyLoad(Struct, frozen=True, array_like=True):
    """Slices `first` to `last` (exclusive) of a partition, from its owner to new replicas."""

    partition: PartitionId
    session: SessionId
    epoch: int
    source: CopyTarget
    targets: tuple[CopyTarget, ...]
    slices: int
    first: int
    last: int
    bytes: int = 0
    """An estimate; 0: unknown."""
    again: bool = False
    """Some slices may have landed before: ask the target before copying them."""


class Task(Struct, frozen=True, array_like=True):
    """Everything that one worker needs to know."""

    loads: tuple[CopyLoad, ...]
    addresses: dict[NodeId, str]
    bytes_per_second: float = 0.0
    """0: no limit."""
    permit: Permit = Permit()

    @property
    def sessions(self) -> tuple[tuple[PartitionId, SessionId], ...]:
        return tuple(sorted({(load.partition, load.session) for load in self.loads}))


class LoadResult(Struct, array_like=True):
    """The result of a load; its worker counts in it."""

    partition: PartitionId
    session: SessionId
    slices: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failure: str = ""
    slowed_seconds: float = 0.0
    """How much of its time the task waited for the sake of clients' writes."""


def load_of(job: StartCopy, size: int, again: bool, slices: int = 0) -> CopyLoad:
    """A whole copy, in the given number of slices, or in as many as its size needs."""
    if not slices:
        slices = min(SLICES_MAX, -(-size // SLICE_BYTES)) if size else UNKNOWN_SLICES
    return CopyLoad(
        job.partition,
        job.session,
        job.epoch,
        target_of(job.source),
        tuple(map(target_of, job.targets)),
        slices,
        0,
        slices,
        size,
        again,
    )


def share_out(
    loads: Sequence[CopyLoad],
    addresses: dict[NodeId, str],
    workers: int,
    bytes_per_second: float,
) -> list[Task]:
    """Tasks of similar size, at most as many as can run at once; large loads are cut."""
    total = sum(load.bytes for load in loads)
    count = max(1, min(workers, total // TASK_BYTES_MIN))
    pieces = [piece for load in loads for piece in _cut(load, -(-total // count))]
    bins: list[list[CopyLoad]] = [[] for _ in range(count)]
    weights = [0] * count
    for piece in sorted(pieces, key=lambda each: -each.bytes):
        lightest = weights.index(min(weights))
        bins[lightest].append(piece)
        weights[lightest] += piece.bytes + 1
    return [Task(tuple(share), addresses, bytes_per_second / len(bins)) for share in bins if share]


def _cut(load: CopyLoad, bytes_max: int) -> list[CopyLoad]:
    """Neighbouring slices stay together."""
    parts = min(load.slices, -(-load.bytes // bytes_max)) if bytes_max else 1
    if parts <= 1:
        return [load]
    bounds = [load.slices * number // parts for number in range(parts + 1)]
    return [
        replace(load, first=first, last=last, bytes=load.bytes // parts)
        for first, last in pairwise(bounds)
    ]
