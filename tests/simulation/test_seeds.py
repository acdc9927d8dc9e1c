"""Do the first seeds show nothing wrong?

Each is a small cluster under faults that are aimed at the stages of its moves: the owner or a
target crashes, pauses, is cut off or comes back empty, coordinators are replaced, copies are
killed. That every fault meets every stage takes more seeds: `make swarm` asks for it.
"""

from random import Random

import pytest

from limosa.simulation.faults import ACTIVE, RUN_EDGES
from limosa.simulation.mutants import MUTANTS
from limosa.simulation.mutants import SEEDS as RECORDED
from limosa.simulation.run import is_about_runs, run_seed, theme_of
from limosa.simulation.story import story_of, told
from limosa.simulation.themes import (
    COLLECTIONS,
    FALLBACKS,
    MEMBERS,
    OUTAGES,
    OVERLOAD,
    REPAIRS,
    RUNS,
    SEALS,
    STORIES,
    THEMES,
)

SEEDS = 300
CHUNK = 25
FIRST_HALF = 2500
"""Of a swarm of 5,000 seeds."""


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_are_clean(first: int) -> None:
    """S42: source or target dies in whatever stage, under writes; no acknowledged write is lost."""
    for seed in range(first, first + CHUNK):
        if run_seed(seed).violations:
            pytest.fail(told(story_of(seed)))


@pytest.mark.parametrize("seed", [98, 818])
def test_soon_after_an_overload_all_is_in_sync_and_writable(seed: int) -> None:
    """F195: clients write more than the nodes can take; in the second seed, each node is killed
    meanwhile. Then the load ends: within five seconds all partitions are in sync and open, what was
    written is answered, and a write to each of them succeeds at once. While the load lasts, nobody
    who was not killed loses a lease, the office, or its place among the replicas in sync."""
    if run_seed(seed).violations:
        pytest.fail(told(story_of(seed)))


def test_every_theme_is_drawn() -> None:
    drawn = {theme_of(seed, Random(f"shape {seed}")).name for seed in range(FIRST_HALF)}
    lone = (COLLECTIONS, FALLBACKS, MEMBERS, OVERLOAD, REPAIRS, SEALS)
    themes = (*THEMES, *OUTAGES, *RUNS, *STORIES, *lone)
    assert drawn == {theme.name for theme in themes}


def test_every_mutant_has_a_seed_in_the_first_half_of_a_swarm() -> None:
    """That these seeds find the mutants is shown by `make mutants`."""
    assert RECORDED.keys() == MUTANTS.keys()
    assert max(RECORDED.values()) < FIRST_HALF


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
