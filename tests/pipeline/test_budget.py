"""The limit of bandwidth: kept to over time, whatever the waves are like, and no more than that."""

import pytest

from limosa.core.model.requests import StartRun
from limosa.core.model.runs import Limits
from limosa.pipeline.budget import SHARE_MIN, Budget
from tests.core.running import Cluster, move, plan


def test_without_a_limit_everything_may_begin() -> None:
    budget = Budget(0.0)
    assert budget.begin(0.0, "a") == 0.0
    budget.end("a", 1 << 40)
    assert budget.is_free(0.0)


def test_waves_share_what_is_allowed_and_none_is_starved() -> None:
    budget = Budget(100.0)
    assert budget.begin(0.0, "a") == 100.0
    assert budget.begin(0.0, "b") == 100.0 * SHARE_MIN
    budget.end("a", 0)
    assert budget.begin(1.0, "c") == 100.0 * (1 - SHARE_MIN)


def test_what_a_wave_took_too_much_is_waited_for() -> None:
    budget = Budget(100.0)
    budget.begin(10.0, "a")
    budget.end("a", 500)
    assert not budget.is_free(14.9)
    assert budget.is_free(15.0)


def test_what_was_not_used_before_does_not_count() -> None:
    budget = Budget(100.0)
    budget.begin(1000.0, "a")
    budget.end("a", 500)
    assert not budget.is_free(1004.0)


def test_a_large_wave_that_kept_to_its_rate_owes_nothing() -> None:
    """Though small ones began and ended meanwhile."""
    budget = Budget(100.0)
    budget.begin(0.0, "large")
    for at in range(10, 60, 10):
        assert budget.is_free(at)
        budget.begin(at, f"small-{at}")
        budget.end(f"small-{at}", 10)
    budget.end("large", 6_000)
    assert not budget.is_free(60.0)
    assert budget.is_free(60.5)


@pytest.mark.parametrize(("of_run", "allowed"), [(40.0, 40.0), (400.0, 100.0), (0.0, 100.0)])
def test_a_run_may_allow_less(of_run: float, allowed: float) -> None:
    budget = Budget(100.0)
    budget.limit(0.0, of_run)
    assert budget.allowed == allowed


def test_another_limit_asks_nothing_for_what_the_old_one_allowed() -> None:
    budget = Budget(100.0)
    budget.begin(0.0, "before")
    budget.begin(0.0, "over")
    budget.end("before", 1_000)
    budget.limit(1.0, 1.0)
    assert budget.is_free(1.0)
    budget.end("over", 1_000)
    assert budget.is_free(1.0)
    budget.begin(1.0, "after")
    budget.end("after", 10)
    assert not budget.is_free(10.0)
    budget.limit(10.0, 1.0)  # the same as before
    assert not budget.is_free(10.0)
    assert budget.is_free(11.0)


def test_what_is_heavier_than_every_limit_is_moved_where_nothing_runs() -> None:
    """S99: each move is a million times what the limit allows a second, and one move at a time is
    allowed: a move begins whenever none is in flight, its copy may begin at once, and all end."""
    gibibyte = 1 << 30
    moves = (move("p0", "a", "b"), move("p1", "a", "c"), move("p2", "a", "d"))
    cluster = Cluster()
    cluster.say("a", dict.fromkeys(("p0", "p1", "p2"), (1, gibibyte)), free_bytes=0)
    limits = Limits(1, 1, bytes_per_second=1 << 10)
    assert cluster.ask(StartRun(plan(*moves, limits=limits))).startswith("done")
    budget = Budget(1 << 10)
    now = 0.0
    for number in range(3):
        cluster.settle()
        expected = ["COMMITTED"] * number + ["DUAL_WRITE"] + ["PENDING"] * (2 - number)
        assert cluster.states() == expected
        assert budget.is_free(now)
        assert budget.begin(now, f"wave {number}") == 1 << 10
        budget.end(f"wave {number}", gibibyte)
        now += gibibyte / (1 << 10)
        cluster.complete(f"p{number}")
    cluster.settle()
    assert cluster.last_run().outcome == "done"
