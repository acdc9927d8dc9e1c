"""When a cluster rebalances by itself."""

import pytest

from limosa.core.planning.policy import Policy, should_rebalance
from limosa.core.planning.rebalance import node_loads, plan_rebalance
from tests.core.planning.clusters import (
    carried_out,
    counts,
    made,
    nodes,
    partition,
    situation,
)

ON = Policy(enabled=True)
UNEVEN = {"a": 10.0, "b": 2.0}

# fmt: off
CASES = [
    # policy,                loads,              now, checked, run's end, acts, why
    (Policy(),               UNEVEN,             1e9,  None,  None, False, "runs are off"),
    (ON,                     UNEVEN,             0.0,  None,  None, True,  "a has 10, b only 2"),
    (ON,                     UNEVEN,            59.9,   0.0,  None, False, "compared"),
    (ON,                     UNEVEN,            60.0,   0.0,  None, True,  "a has 10"),
    (ON,                     UNEVEN,           299.9,   0.0,   0.0, False, "run ended"),
    (ON,                     UNEVEN,           300.0,   0.0,   0.0, True,  "a has 10"),
    (ON,                     {"a": 9.0},         0.0,  None,  None, False, "fewer than two"),
    (ON,                     {},                 0.0,  None,  None, False, "fewer than two"),
    (ON,                     {"a": 4, "b": 2},   0.0,  None,  None, False, "even enough"),
    (ON,                     {"a": 5, "b": 2},   0.0,  None,  None, True,  "a has 5"),
    (ON,                     {"a": 0, "b": 0},   0.0,  None,  None, False, "even enough"),
    (ON,                     {"a": 0, "b": 1},   0.0,  None,  None, True,  "b has 1, a only 0"),
    (Policy(True, ratio=6),  UNEVEN,             0.0,  None,  None, False, "even enough"),
    (Policy(True, 2, 5, 7),  UNEVEN,             7.0,   2.0,   0.0, True,  "a has 10"),
]
# fmt: on


@pytest.mark.parametrize(("policy", "loads", "now", "checked", "ended", "acts", "why"), CASES)
def test_the_policy_acts_seldom_and_only_if_enabled(
    policy: Policy,
    loads: dict[str, float],
    now: float,
    checked: float | None,
    ended: float | None,
    acts: bool,
    why: str,
) -> None:
    """F68: off by default; beyond twice the load; each minute; five minutes of rest."""
    verdict = should_rebalance(policy, loads, now, checked, ended)
    assert verdict.rebalance is acts
    assert why in verdict.why


def test_the_policy_takes_from_the_most_loaded_and_empties_nobody() -> None:
    """F69, as D5 reads it: from the most to the least loaded; no member is emptied."""
    held = {f"p{at}": "a" if at < 10 else "b" for at in range(12)}
    found = situation(nodes("a", "b"), [partition(name, node) for name, node in held.items()])
    verdict = should_rebalance(ON, counts(found), now=0.0)
    assert (verdict.rebalance, verdict.source, verdict.target) == (True, "a", "b")
    plan = made(plan_rebalance(found))
    assert {(move.source, move.target.node) for move in plan.moves} == {("a", "b")}
    assert counts(carried_out(found, plan)) == {"a": 6, "b": 6}


def test_loads_of_nodes_are_parts_of_their_mean_and_leave_out_who_neither_gives_nor_takes() -> None:
    held = [partition("p", "a"), partition("q", "a"), partition("r", "a"), partition("s", "b")]
    found = situation(nodes("a", "b", "c", "d"), held, down=["c"], draining=["d"])
    assert node_loads(found) == pytest.approx({"a": 1.5, "b": 0.5})
    assert node_loads(situation(nodes("a"), [])) == {"a": 0.0}
    assert node_loads(situation(nodes("a"), [], down=["a"])) == {}
