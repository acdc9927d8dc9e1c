"""Does one process coordinate at a time, and does another one follow?"""

from limosa.core.coordinator.office import HANGS_SECONDS, RENEW_SECONDS, TRY_SECONDS, Office
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Put
from limosa.core.model.topology import CoordinatorLease

EMPTY = Agreed()
TAKEN = Agreed(coordinator=CoordinatorLease("k2", 9))


def test_an_office_that_nobody_holds_is_taken_and_then_renewed() -> None:
    office = Office("k1")
    assert office.must_claim(0.0, EMPTY)
    assert not office.must_claim(RENEW_SECONDS / 2, EMPTY)
    assert office.due(RENEW_SECONDS) is None
    office.taken(7)
    office.handled(RENEW_SECONDS)
    assert not office.must_claim(RENEW_SECONDS, EMPTY)
    assert office.due(RENEW_SECONDS) == 7
    assert office.due(1.5 * RENEW_SECONDS) is None
    assert office.due(2 * RENEW_SECONDS) == 7


def test_a_busy_coordinator_keeps_its_office_and_one_that_hangs_does_not() -> None:
    """One event may take longer than the lease. The heartbeat does not wait for its end."""
    office = Office("k1")
    office.taken(7)
    office.handled(100.0)
    assert office.due(100.0 + HANGS_SECONDS) == 7
    assert office.due(101.0 + HANGS_SECONDS) is None
    office.handled(102.0 + HANGS_SECONDS)
    assert office.due(102.0 + HANGS_SECONDS) == 7


def test_a_standby_waits_and_tries_now_and_then_because_its_watch_may_be_silent() -> None:
    office = Office("k1")
    assert office.must_claim(0.0, TAKEN)
    assert not office.must_claim(RENEW_SECONDS, TAKEN)
    assert office.must_claim(RENEW_SECONDS, EMPTY)
    assert office.must_claim(RENEW_SECONDS + TRY_SECONDS, TAKEN)


def test_the_end_of_another_lease_is_nothing_to_it() -> None:
    office = Office("k1")
    office.taken(7)
    assert not office.lost(6)
    assert office.lease == 7
    assert office.lost(7)
    assert office.lease is None


def test_a_claim_happens_only_if_nobody_holds_the_office() -> None:
    claim = Office("k1").claim(7)
    assert claim.guards == {COORDINATOR_KEY: 0}
    assert claim.changes == (Put(CoordinatorLease("k1", 7)),)
