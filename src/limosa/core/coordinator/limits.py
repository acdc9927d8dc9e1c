"""How many partitions should a cluster have? More than these limits are refused, with the reason.

Settled partitions cost a node memory and time to start, and each part of a write costs the same,
however few rows it has. The limits are what `bench/scale.py` measures.
"""

from collections.abc import Collection

from limosa.core.coordinator.view import ClusterView
from limosa.core.model.keys import NodeId
from limosa.core.model.requests import CreateTable
from limosa.errors import IllegalRequest

PARTITIONS_MAX = 10_000
"""Of one table."""
REPLICAS_MAX = 7
"""Of one partition."""
NODE_REPLICAS_MAX = 10_000
"""Of one node, on average."""


def check_numbers(wish: CreateTable) -> None:
    if not 1 <= wish.partitions <= PARTITIONS_MAX:
        raise IllegalRequest(
            f"{wish.partitions} partitions", f"ask for 1 to {PARTITIONS_MAX} of them"
        )
    if not 1 <= wish.count <= REPLICAS_MAX:
        raise IllegalRequest(f"{wish.count} replicas", f"ask for 1 to {REPLICAS_MAX} of them")
    if not 0 <= wish.min_in_sync <= wish.count:
        raise IllegalRequest(
            f"{wish.min_in_sync} of {wish.count} replicas in sync at least",
            "ask for as many as there are at most; 0 means a majority",
        )


def check_room(view: ClusterView, wish: CreateTable, live: Collection[NodeId]) -> None:
    """Would the nodes hold too many replicas with the new ones?"""
    records = view.agreed.topology.partitions.values()
    here = sum(len(record.replicas) for record in records)
    each = -(-(here + wish.partitions * wish.count) // len(live))
    if each <= NODE_REPLICAS_MAX:
        return
    room = max(0, NODE_REPLICAS_MAX * len(live) - here) // wish.count
    raise IllegalRequest(
        f"{wish.partitions} partitions of {wish.count} replicas: each of {len(live)} nodes would "
        f"hold {each}, and may hold {NODE_REPLICAS_MAX}",
        f"ask for at most {room} partitions, or add nodes" if room else "add nodes",
    )
