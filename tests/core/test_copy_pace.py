"""Do copies yield to clients' writes, and still end?"""

from collections.abc import Callable

import pytest

from limosa.core.participant.pace import (
    PAUSE_SECONDS_MAX,
    PERIOD_SECONDS,
    QUIET_SECONDS,
    SAMPLES_MAX,
    CopyPace,
)
from limosa.core.participant.settings import ParticipantSettings

SETTINGS = ParticipantSettings(slow_write_seconds=0.025, copy_rate_min=4e6)
SLICE = 16_000_000
FULL = 160e6
"""Bytes per second that a copy reaches if nothing slows it."""
Latency = Callable[[float], float]
"""How long a write takes, by the rate of the copy at this time."""


class Node:
    """Writes every 10 ms, and one copy that waits when it is told to."""

    def __init__(self, settings: ParticipantSettings = SETTINGS) -> None:
        self.pace = CopyPace(settings)
        self.now = 100.0
        self.copied = 0
        self._due = 0.0
        self.rates: list[float] = []
        """Bytes per second of each second of the copy."""

    def write(self, seconds: float, latency: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            self.pace.committed(self.now, latency)

    def copy(self, seconds: float, latency: Latency | None) -> None:
        """For whole seconds; None: nobody writes."""
        for _ in range(int(seconds)):
            before = self.copied
            for _ in range(100):
                self.now += 0.01
                if latency is not None:
                    rate = self.rates[-1] if self.rates else FULL
                    self.pace.committed(self.now, latency(min(rate, self._rate_now())))
                while self._due <= self.now:
                    self.copied += SLICE
                    self.pace.copied(self.now, SLICE)
                    took = SLICE / FULL
                    self._due = self.now + max(took, self.pace.pause_seconds(self.now))
            self.rates.append(self.copied - before)

    def _rate_now(self) -> float:
        return self.pace.rate or FULL


def crowded(rate: float) -> float:
    """Writes take 5 ms, and much longer beside a copy that is quicker than 40 MB/s."""
    return 0.005 if rate <= 40e6 else 0.1


def test_a_copy_slows_down_until_writes_are_quick_again_and_then_speeds_up() -> None:
    """F199: the copies of a node are slowed by the latency that clients see, and by nothing else:
    after the writes have become quick again, whatever the copy does, it is as fast as before."""
    node = Node()
    node.write(3.0, 0.005)
    assert node.pace.usual_seconds == pytest.approx(0.005)
    node.copy(1, lambda rate: 0.005)
    assert (node.pace.rate, node.pace.pause_seconds(node.now)) == (0.0, 0.0)
    node.copy(20, crowded)
    settled = node.rates[-10:]
    assert max(settled) < 0.6 * FULL
    assert sum(settled) / 10 < 60e6
    assert min(settled) > 0, "it goes on all the time"
    node.copy(20, lambda rate: 0.005)
    assert node.pace.rate == 0.0
    assert node.rates[-1] == pytest.approx(FULL, rel=0.1)


def test_a_copy_never_stops_however_slow_writes_are() -> None:
    """F199: a move must end."""
    node = Node()
    node.write(3.0, 0.005)
    node.copy(60, lambda rate: 10.0)
    assert node.pace.rate == SETTINGS.copy_rate_min
    assert node.pace.pause_seconds(node.now) <= PAUSE_SECONDS_MAX
    assert sum(node.rates[-30:]) / 30 >= SETTINGS.copy_rate_min


@pytest.mark.parametrize("latency", [None, lambda rate: 0.005, lambda rate: 0.024])
def test_without_slow_writes_a_copy_has_its_full_speed(latency: Latency | None) -> None:
    node = Node()
    node.copy(5, latency)
    assert node.pace.rate == 0.0
    assert node.rates[-1] == pytest.approx(FULL, rel=0.1)


def test_slow_is_what_takes_twice_as_long_as_before_the_copy() -> None:
    """F199: where writes always take 100 ms, 150 ms are not the copy's fault."""
    node = Node()
    node.write(10.0, 0.1)
    assert node.pace.bound_seconds == pytest.approx(0.2)
    node.copy(5, lambda rate: 0.15)
    assert node.pace.rate == 0.0
    node.copy(2, lambda rate: 0.25)
    assert 0.0 < node.pace.rate < FULL
    assert node.pace.bound_seconds == pytest.approx(0.2), "it learns nothing during a copy"


def test_what_is_usual_is_learned_while_nothing_is_copied() -> None:
    node = Node()
    node.write(3.0, 0.1)
    node.write(20.0, 0.002)
    assert node.pace.usual_seconds == pytest.approx(0.002, rel=0.1)
    node.copy(3, lambda rate: 1.0)
    assert node.pace.rate
    node.write(QUIET_SECONDS + 1.0, 0.002)
    assert node.pace.rate == 0.0
    node.now += 100.0
    node.pace.copied(node.now, SLICE)
    assert node.pace.pause_seconds(node.now) == 0.0


def test_a_write_that_is_stuck_counts_though_nothing_is_committed() -> None:
    """F199: the worst latency is that of a write that is not answered."""
    node = Node()
    for _ in range(3):
        node.now += PERIOD_SECONDS
        node.pace.copied(node.now, SLICE, waits_seconds=0.5)
    assert 0.0 < node.pace.rate < FULL


def test_copies_can_be_told_not_to_yield() -> None:
    node = Node(ParticipantSettings(slow_write_seconds=0.0))
    node.copy(5, lambda rate: 10.0)
    assert node.pace.rate == 0.0


def test_many_writes_are_judged_by_some_of_them() -> None:
    node = Node()
    node.pace.copied(node.now, SLICE)
    for _ in range(SAMPLES_MAX * 2):
        node.pace.committed(node.now, 1.0)
    node.pace.copied(node.now + PERIOD_SECONDS, SLICE)
    assert node.pace.rate > 0.0
