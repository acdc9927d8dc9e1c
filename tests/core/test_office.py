"""Does one process coordinate at a time, and does another one follow?"""

from limosa.core.coordinator.office import RENEW_SECONDS, TRY_SECONDS, Office
from limosa.core.effects import RenewOffice, TakeOffice
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Put
from limosa.core.model.topology import CoordinatorLease

EMPTY = Agreed()
TAKEN = Agreed(coordinator=CoordinatorLease("k2", 9))


def test_an_office_that_nobody_holds_is_taken_and_then_renewed() -> None:
    office = Office("k1")
    assert office.tick(0.0, EMPTY) == TakeOffice()
    assert office.tick(RENEW_SECONDS / 2, EMPTY) is None
    office.taken(7)
    assert office.tick(RENEW_SECONDS, EMPTY) == RenewOffice(7)
    assert office.tick(2 * RENEW_SECONDS, EMPTY) == RenewOffice(7)


def test_a_standby_waits_and_tries_now_and_then_because_its_watch_may_be_silent() -> None:
    office = Office("k1")
    assert office.tick(0.0, TAKEN) == TakeOffice()
    assert office.tick(RENEW_SECONDS, TAKEN) is None
    assert office.tick(RENEW_SECONDS, EMPTY) == TakeOffice()
    assert office.tick(RENEW_SECONDS + TRY_SECONDS, TAKEN) == TakeOffice()


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
