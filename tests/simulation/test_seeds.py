"""Do the first seeds show nothing wrong?

Each is a small cluster under faults that are aimed at the stages of its moves: the owner or a
target crashes, pauses, is cut off or comes back empty, coordinators are replaced, copies are
killed. That every fault meets every stage takes more seeds: `make swarm` asks for it.
"""

import pytest

from limosa.simulation.faults import ACTIVE, RUN_EDGES
from limosa.simulation.run import is_about_runs, run_seed
from limosa.simulation.story import story_of, told

SEEDS = 300
CHUNK = 25


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_are_clean(first: int) -> None:
    """S42: source or target dies in whatever stage, under writes; no acknowledged write is lost."""
    for seed in range(first, first + CHUNK):
        if run_seed(seed).violations:
            pytest.fail(told(story_of(seed)))


def test_runs_take_every_edge() -> None:
    """F55, F62: of a rebalance and of its moves, soon, and with coordinators that are replaced."""
    missing = {*RUN_EDGES, *((f"rebalance {state}", "replace_coordinator") for state in ACTIVE)}
    for seed in filter(is_about_runs, range(SEEDS)):
        missing -= set(run_seed(seed).cells)
        if not missing:
            return
    pytest.fail(f"not taken: {sorted(missing)}")


@pytest.mark.parametrize("seed", [3, 9])
def test_a_seed_does_the_same_again(seed: int) -> None:
    once, again = run_seed(seed, telling=True), run_seed(seed, telling=True)
    assert once == again
    assert once.story
    assert run_seed(seed).violations == once.violations, "telling changes nothing"
    assert run_seed(seed).operations == once.operations
