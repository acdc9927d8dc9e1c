"""Does a coordinator's driver go on after an error, and does a standby keep quiet?"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import log2
from pathlib import Path
from typing import Any

import pytest

from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import Effect, MakeCommit
from limosa.core.model.changes import COORDINATOR_KEY, Commit, Put, Remove
from limosa.core.model.codec import encode
from limosa.core.model.intent import Intent
from limosa.core.model.reports import Pipeline
from limosa.errors import LimosaError, MetastoreUnavailable, StaleGuard
from limosa.metastore.memory import MemoryMetastore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.runtime.clock import BootClock
from limosa.runtime.coordinator import CoordinatorDriver
from tests.waiting import eventually


class Nothing:
    """Peers and a mover that have nothing to do."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Flaky:
    """A connection to a shared metastore that fails when it is told to."""

    def __init__(self, shared: MemoryMetastore, failing: threading.Event) -> None:
        self._shared = shared
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    def commit(self, *arguments: Any) -> int:
        if self._failing.is_set():
            self._failing.clear()
            raise MetastoreUnavailable("there is no quorum for a moment", "try again")
        return self._shared.commit(*arguments)

    def close(self) -> None:
        pass


class House:
    """Coordinators of one metastore."""

    def __init__(self, ending: ExitStack) -> None:
        self._ending = ending
        self.clock = BootClock()
        self.shared = MemoryMetastore(self.clock)
        self.failing = threading.Event()
        self.opens_in_vain = 0
        self.logged: list[tuple[str, dict[str, object]]] = []
        self.failures: list[Exception] = []

    def open(self) -> Any:
        if self.opens_in_vain:
            self.opens_in_vain -= 1
            raise MetastoreUnavailable("the metastore is not there yet", "try again")
        return Flaky(self.shared, self.failing)

    def driver(self, name: str, mover: Any = None) -> CoordinatorDriver:
        nothing: Any = Nothing()
        driver = CoordinatorDriver(
            name,
            self.open,
            self.clock,
            nothing,
            CoordinatorSettings(),
            lambda _: nothing if mover is None else mover,
            self.log,
            self.failures.append,
        )
        driver.start()
        self._ending.callback(driver.stop)
        return driver

    def log(self, what: str, **details: object) -> None:
        self.logged.append((what, details))

    def made(self) -> list[object]:
        return [details["why"] for what, details in self.logged if what == "committed"]


@pytest.fixture
def office() -> Iterator[House]:
    with ExitStack() as ending:
        yield House(ending)


def wish(driver: CoordinatorDriver, number: int) -> None:
    record = Pipeline(driver.name, "ready", str(number), 0.0)
    with driver._lock:
        driver._carry_out([MakeCommit(Commit({}, (Put(record),), f"commit {number}"))])


def test_a_commit_that_failed_does_not_keep_later_ones_waiting(office: House) -> None:
    """The metastore did not answer once; the coordinator kept its lease, and must go on."""
    driver = office.driver("k1")
    eventually(lambda: driver.in_office)
    wish(driver, 1)
    eventually(lambda: office.made() == ["commit 1"])
    office.failing.set()
    wish(driver, 2)
    eventually(lambda: not office.failing.is_set())
    wish(driver, 3)
    eventually(lambda: office.made() == ["commit 1", "commit 3"])


class Failing(Nothing):
    """A mover that fails when it is told to."""

    def __init__(self) -> None:
        self.fails = threading.Event()

    def tick(self) -> None:
        if self.fails.is_set():
            raise ZeroDivisionError("a bug in the tick thread")


def test_a_coordinator_whose_tick_thread_fails_says_so_and_leaves_office(office: House) -> None:
    """S121: without its tick thread it would renew nothing and decide nothing, and say nothing."""
    mover = Failing()
    driver = office.driver("k1", mover)
    eventually(lambda: driver.in_office)
    mover.fails.set()
    eventually(lambda: bool(office.failures))
    (failure,) = office.failures
    assert isinstance(failure, ZeroDivisionError)
    assert driver.is_over
    driver.stop()
    assert office.shared.get(COORDINATOR_KEY) is None, "a successor need not wait for the lease"


@pytest.mark.parametrize("what", ["an event", "a commit", "a renewal", "a state"])
def test_an_error_in_any_thread_of_a_coordinator_ends_it(
    office: House, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """S121: the thread of a link, that of commits, the heartbeat, and the watcher."""
    driver = office.driver("k1")
    eventually(lambda: driver.in_office)

    def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError(what)

    if what == "an event":
        monkeypatch.setattr(driver.brain, "handle", fail)
    elif what == "a commit":
        driver._watcher.do(fail)
    elif what == "a renewal":
        monkeypatch.setattr(office.shared, "renew", fail)
    else:
        monkeypatch.setattr(driver, "peers", None)
        wish(driver, 1)
    eventually(lambda: bool(office.failures))
    assert driver.is_over
    monkeypatch.undo()


def test_a_commit_waits_until_the_metastore_can_be_opened(office: House) -> None:
    driver = office.driver("k1")
    eventually(lambda: driver.in_office)
    office.opens_in_vain = 3
    wish(driver, 1)
    eventually(lambda: office.made() == ["commit 1"])


def test_a_standby_that_tries_in_vain_says_nothing(office: House) -> None:
    first = office.driver("k1")
    eventually(lambda: first.in_office)
    standby = office.driver("k2")
    lease = office.shared.grant(3.0)
    with pytest.raises(LimosaError):
        standby._take_office(office.open(), lease, 0)
    standby._heartbeat.acquire(3.0, standby._take_office, standby._elect)
    time.sleep(0.3)
    assert not standby.in_office
    assert [what for what, _ in office.logged if "metastore" in what] == []


# --- thousands of commits

MANY = 6_000


class Watched:
    """A connection to a metastore in a file: counts the commits, and may not name stale guards."""

    def __init__(self, store: SqliteMetastore, named: bool) -> None:
        self._store = store
        self._named = named
        self.commits: list[tuple[int, float]] = []
        """How many guards each one had, and how long it took."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, guards: dict[str, int], *more: Any) -> int:
        begun = time.monotonic()
        try:
            return self._store.commit(guards, *more)
        except StaleGuard:
            if self._named:
                raise
            raise StaleGuard("some guard is stale", "read again") from None
        finally:
            self.commits.append((len(guards), time.monotonic() - begun))


class FileOffice(House):
    """Coordinators of a metastore in a file, as in production."""

    def __init__(self, ending: ExitStack, path: Path, named: bool) -> None:
        super().__init__(ending)
        self._path = path
        self._named = named
        self.stores: list[Watched] = []

    def open(self) -> Any:
        self.stores.append(Watched(SqliteMetastore(self._path, self.clock), self._named))
        return self.stores[-1]

    def transactions(self) -> list[tuple[int, float]]:
        return [each for store in self.stores for each in store.commits if each[0] > 1]


def thousands(office: FileOffice, driver: CoordinatorDriver, stale: slice) -> tuple[set[str], int]:
    """Commits that were computed from rows of which some change meanwhile."""
    revision = driver.brain.office
    assert revision is not None
    store = office.open()
    rows = {f"intent/{number:05d}": encode(Intent(f"{number:05d}", ())) for number in range(MANY)}
    first = store._store.commit({}, rows)
    changed = list(rows)[stale]
    store._store.commit({}, {key: rows[key] for key in changed})
    guards = {COORDINATOR_KEY: revision}
    wishes: list[Effect] = [
        MakeCommit(Commit({key: first, **guards}, (Remove(key),), f"{key}: goes")) for key in rows
    ]
    with driver._lock:
        driver._carry_out(wishes)
    return set(changed), revision


@pytest.mark.parametrize(
    ("named", "stale", "most"),
    [
        (True, slice(0, MANY, 3), 2 * (1 + MANY // SqliteMetastore.operations_max)),
        (False, slice(0, MANY, MANY // 3), 3 * 4 * log2(MANY)),
    ],
    ids=["named", "not named"],
)
def test_of_thousands_of_commits_that_are_stale_together_exactly_these_leave_the_union(
    tmp_path: Path, named: bool, stale: slice, most: float
) -> None:
    """S125: of 6,000 commits 2,000 are stale, or a few if the metastore does not name them. The
    retries are bounded, and so are the transactions and the log; the coordinator keeps its
    lease."""
    with ExitStack() as ending:
        office = FileOffice(ending, tmp_path / "metastore.db", named)
        driver = office.driver("k1")
        eventually(lambda: driver.in_office)
        left, revision = thousands(office, driver, stale)
        reader = office.stores[-1]
        eventually(lambda: reader.read("intent/")[1].keys() == left)
        eventually(lambda: not driver._committing)
        transactions = office.transactions()
        assert len(transactions) <= most
        assert max(guards for guards, _ in transactions) <= SqliteMetastore.operations_max
        log = [what for what, _ in office.logged if what in ("committed", "stale")]
        assert len(log) == len(transactions)
        entry = reader.get(COORDINATOR_KEY)
        assert entry is not None
        assert entry.revision == revision == driver.brain.office, "it kept its lease all along"


def test_commits_of_a_lost_office_cost_one_transaction(tmp_path: Path) -> None:
    """S125: the stale guard is the coordinator's own office, so none of the commits is retried."""
    with ExitStack() as ending:
        office = FileOffice(ending, tmp_path / "metastore.db", True)
        driver = office.driver("k1")
        eventually(lambda: driver.in_office)
        lease = driver._office.lease
        assert lease is not None
        before = len(office.transactions())
        commits, guards = driver.brain.commits, {COORDINATOR_KEY: driver.brain.office or 0}
        with driver._lock:  # it has not noticed the loss yet
            office.open().revoke(lease)
            for number in range(MANY):
                key = f"intent/{number:05d}"
                commits.put(Commit({key: 0, **guards}, (Remove(key),), f"{key}: goes"))
            driver._carry_out([])
        eventually(lambda: not commits and not driver._committing)
        assert len(office.transactions()) - before <= 1
        assert not office.made()
