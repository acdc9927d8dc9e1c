"""How even is the load, and which partitions are too large to spread?"""

import numpy as np

from limosa.core.planning.census import NOBODY, Census, Mask
from limosa.core.planning.load import Real, Whole
from limosa.core.planning.plan import Balance, Dimension, TooLarge


def balance_of(census: Census, node: Whole, among: Mask) -> Balance:
    """The imbalance over some nodes, with replicas on these nodes."""
    held = np.flatnonzero(node != NOBODY)
    partition, at = held // census.width, node[held]
    measured = census.measured

    def uneven(figures: Real) -> float:
        there = np.bincount(at, figures, len(among))[among]
        mean = there.mean() if len(there) else 0.0
        return round(float(there.max() / mean), 4) if mean else 0.0

    return Balance(
        load=uneven(census.weight[held]),
        bytes=uneven(measured.bytes[partition]),
        writes=uneven(measured.writes[partition]),
        reads=uneven(measured.reads[partition] * census.owns.ravel()[held]),
        replicas=uneven(np.ones(len(held))),
    )


def too_large(census: Census) -> tuple[TooLarge, ...]:
    """Partitions of which one replica exceeds a node's fair share."""
    measured, found = census.measured, []
    once = np.ones_like(measured.held)
    columns: list[tuple[Dimension, Real, Whole]] = [
        ("bytes", measured.bytes, measured.held),
        ("writes", measured.writes, measured.held),
        ("reads", measured.reads, once),
    ]
    for dimension, figures, times in columns:
        share = float((figures * times).sum()) / max(1, int(census.nodes.usable.sum()))
        large = np.flatnonzero(figures > share * (1 + SLACK))
        for at in large[np.argsort(-figures[large], kind="stable")].tolist():
            found.append(TooLarge(census.records[at].id, dimension, float(figures[at]), share))
    return tuple(found)


SLACK = 1e-9
"""Rounding error of a divided share."""
