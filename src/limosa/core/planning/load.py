"""How much does a replica weigh? Bytes, writes, reads and a base cost, as one whole number.

Shares of the cluster's totals are weighted, added and scaled to whole numbers. Sums of whole
numbers do not depend on their order, so a plan that was carried out looks exactly as planned.
"""

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from limosa.core.model.keys import PartitionId
from limosa.errors import BadInput

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

UNITS = 1 << 50
"""The whole cluster's load; a sum of all is still exact as a float."""


class Load(Struct, frozen=True):
    """The measured load of one partition; 0: unknown."""

    bytes: int = 0
    """Bytes of one replica."""
    writes: float = 0.0
    """Rows a second, at every replica."""
    reads: float = 0.0
    """Rows a second, at the owner."""


class Weights(Struct, frozen=True):
    """Weights of the figures. A small base weight spreads empty replicas, too."""

    bytes: float = 1.0
    writes: float = 1.0
    reads: float = 1.0
    replicas: float = 0.1


GIVEN = Weights(bytes=0.0, writes=1.0, reads=0.0)
"""Weights of loads that a load source gave: its figure takes the place of all measured ones."""


def check_load(told: object) -> dict[PartitionId, float]:
    """What a load source returned: a number that is not negative for each partition it knows."""
    if not isinstance(told, Mapping):
        raise BadInput(f"it returned {type(told).__name__}", "return a number for each partition")
    for name, load in told.items():
        is_number = isinstance(load, int | float) and not isinstance(load, bool)
        if not isinstance(name, str) or not is_number or not 0 <= load < math.inf:
            raise BadInput(
                f"it returned the load {load!r} for {name!r}", "return finite numbers from 0 up"
            )
    return {name: float(load) for name, load in told.items()}


def as_given(
    measured: Mapping[PartitionId, Load], told: Mapping[PartitionId, float]
) -> dict[PartitionId, Load]:
    """Loads as a load source gave them, 0 where it gave none. Sizes stay: replicas need space."""
    return {
        name: replace(load, writes=told.get(name, 0.0), reads=0.0)
        for name, load in measured.items()
    }


class MeasuredLoads(Struct, frozen=True):
    """The figures of each partition, as columns; `held` is the number of its replicas."""

    held: Whole
    bytes: Real
    writes: Real
    reads: Real


def weigh(measured: MeasuredLoads, weights: Weights) -> tuple[Whole, Whole]:
    """For each partition: the weight of a replica, and the additional weight of the owner's."""
    held = measured.held
    every = weights.replicas * shares(np.ones(len(held)), held)
    every += weights.bytes * shares(measured.bytes, held)
    every += weights.writes * shares(measured.writes, held)
    owner = weights.reads * shares(measured.reads, np.ones_like(held))
    whole = float((every * held + owner).sum()) or 1.0
    # At least 1: something that weighs nothing could be moved for ever.
    return np.maximum(1, scaled(every, whole)), scaled(owner, whole)


def shares(figures: Real, times: Whole) -> Real:
    """Shares of the total, in which each figure counts a given number of times."""
    total = float((figures * times).sum())
    return figures / total if total else np.zeros(len(figures))


def scaled(figures: Real, whole: float) -> Whole:
    return np.rint(figures * (UNITS / whole)).astype(np.int64)


def fair_level(total: int, nodes: int, lumps: Whole) -> int:
    """The load of each node if all were even. A replica larger than that can't be divided: it gets
    a node of its own, and the other nodes share the rest."""
    largest = np.sort(lumps)[::-1][:nodes]
    before = np.concatenate(([0], np.cumsum(largest)))[: len(largest)]
    levels = (total - before) / (nodes - np.arange(len(largest)))
    even = int(np.argmax(largest <= levels)) if len(largest) else 0
    return int(levels[even]) if len(largest) else 0


def sums(group: Whole, weight: Whole, groups: int) -> Whole:
    """Exact, for all of them together are less than 2**53."""
    return np.bincount(group, weight, groups).astype(np.int64)
