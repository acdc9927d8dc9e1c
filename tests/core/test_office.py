"""Does one process coordinate at a time, and does another one follow?"""

from limosa.core.coordinator.commits import CommitQueue
from limosa.core.coordinator.office import RENEW_SECONDS, TRY_SECONDS, Office
from limosa.core.effects import RenewOffice, TakeOffice
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Commit, Put
from limosa.core.model.topology import CoordinatorLease, NodeLease

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


def commit(name: str) -> Commit:
    return Commit({f"lease/{name}": 0}, (Put(NodeLease(name, 1)),), name)


def test_commits_that_agree_are_made_as_one_and_each_for_itself_if_that_was_stale() -> None:
    queue = CommitQueue()
    a, b, again = commit("a"), commit("b"), commit("a")
    for each in (a, b, again):
        queue.put(each)
    assert queue.take() == [a, b]
    queue.stale([a, b])
    assert queue.take() == [a]
    queue.stale([a])
    assert queue.take() == [b]
    assert queue
    assert queue.take() == [again]
    assert not queue
    assert queue.take() == []
