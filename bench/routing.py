"""What does routing a batch cost, beside the binary search that it replaces?

A batch of 100,000 rows over 4,096 partitions: nanoseconds a row for tokens and partition indexes
together, and their ratio to a bare NumPy `searchsorted` of ready tokens over the same starts. The
contenders take turns, so that a noisy machine disturbs all alike, and the best round of each
counts. The last line is JSON.

    python bench/routing.py [rounds]
"""

import json
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from limosa.core.lookup import FIRST_TOKEN, Lookup
from limosa.core.tokens import tokens

ROWS = 100_000
PARTITIONS = 4096
ROUNDS = 60
AIMS = {"integers": 1.3, "strings": 4.0}
SEARCH = "searchsorted"

Contender = Callable[[], NDArray[np.int64]]


def keys(dice: np.random.Generator) -> dict[str, Any]:
    numbers = dice.integers(-(2**63), 2**63, ROWS, np.int64)
    words = [f"user-{number:011d}" for number in dice.permutation(10**6)[:ROWS].tolist()]
    assert {len(word) for word in words} == {16}
    return {"integers": pa.array(numbers), "strings": pa.array(words)}


def layouts(dice: np.random.Generator) -> dict[str, list[int]]:
    even = [FIRST_TOKEN + place * 2**64 // PARTITIONS for place in range(PARTITIONS)]
    uneven = sorted(dice.integers(FIRST_TOKEN + 1, 2**63, PARTITIONS - 1, np.int64).tolist())
    return {"even": even, "uneven": [FIRST_TOKEN, *uneven]}


def contenders(columns: dict[str, Any], starts: list[int]) -> dict[str, Contender]:
    bounds, lookup = np.array(starts, np.int64), Lookup(starts)
    ready = tokens([columns["integers"]])

    def route(column: Any) -> Contender:
        return lambda: lookup.partition_indexes(tokens([column]))

    def search() -> NDArray[np.int64]:
        return np.searchsorted(bounds, ready, side="right") - 1

    routed = {name: route(column) for name, column in columns.items()}
    assert (routed["integers"]() == search()).all()
    return {SEARCH: search, **routed}


def best_of(rounds: int, running: dict[str, Contender]) -> dict[str, float]:
    """The best nanoseconds a row of each, in turns."""
    best = dict.fromkeys(running, float("inf"))
    for _ in range(rounds):
        for name, run in running.items():
            begun = perf_counter_ns()
            run()
            best[name] = min(best[name], (perf_counter_ns() - begun) / ROWS)
    return best


def main(rounds: int) -> None:
    dice = np.random.default_rng(20)
    columns = keys(dice)
    ratios: dict[str, float] = {}
    aims: dict[str, float] = {}
    for layout, starts in layouts(dice).items():
        best = best_of(rounds, contenders(columns, starts))
        print(f"{layout:7} {SEARCH:12} {best[SEARCH]:6.1f} ns a row")
        for name, aim in AIMS.items():
            case = f"{name}, {layout}"
            ratios[case], aims[case] = round(best[name] / best[SEARCH], 3), aim
            print(f"{layout:7} {name:12} {best[name]:6.1f} ns a row, ratio {ratios[case]:.3f}")
    missing = [case for case, aim in aims.items() if ratios[case] > aim]
    result = {"ratios": ratios, "aims": aims, "met": not missing, "missing": missing}
    print(json.dumps({"bench": "routing", **result}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
