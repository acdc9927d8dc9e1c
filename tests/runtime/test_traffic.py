"""Does a node know, about, how much its partitions are used?"""

import pytest

from limosa.runtime.traffic import HALVED_SECONDS, Traffic


def test_a_steady_load_is_known_after_a_while() -> None:
    traffic = Traffic()
    rates = traffic.measure(0.0)
    for second in range(1, 601):
        traffic.wrote("p", 500)
        traffic.wrote("p", 500)
        traffic.read("q", 30)
        rates = traffic.measure(float(second))
    assert rates["p"] == pytest.approx((1000.0, 0.0), rel=0.01)
    assert rates["q"] == pytest.approx((0.0, 30.0), rel=0.01)


def test_what_was_counts_less_and_less_and_is_forgotten() -> None:
    traffic = Traffic()
    traffic.measure(0.0)
    traffic.wrote("p", 8_000)
    first = traffic.measure(1.0)["p"][0]
    assert traffic.measure(1.0 + HALVED_SECONDS)["p"][0] == pytest.approx(first / 2)
    assert traffic.measure(1.0 + 30 * HALVED_SECONDS) == {}


def test_time_that_stands_still_changes_nothing() -> None:
    traffic = Traffic()
    traffic.measure(5.0)
    traffic.wrote("p", 10)
    before = traffic.measure(6.0)
    assert traffic.measure(6.0) == before
