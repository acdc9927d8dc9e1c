"""Does a lease count only while its key bears it, and is no later registration replaced?"""

import queue
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limosa.core.model.changes import COORDINATOR_KEY, Commit, Put, lease_key
from limosa.core.model.topology import CoordinatorLease, Node, NodeLease
from limosa.metastore.agreed import AgreedStore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.runtime import membership
from limosa.runtime.clock import BootClock
from limosa.runtime.metastore import Heartbeat

NODE = Node("n1")
CLOCK = BootClock()
WAIT_SECONDS = 10.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetastore]:
    with closing(SqliteMetastore(tmp_path / "metastore.db", CLOCK)) as store:
        AgreedStore(store).commit(Commit({}, (Put(NODE),), "n1 is a member"))
        yield store


class Slow:
    """A connection whose commits wait on their way to the metastore."""

    def __init__(self, store: SqliteMetastore) -> None:
        self._store = store
        self.sent = threading.Event()
        self.arrives = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, *arguments: Any) -> int:
        self.sent.set()
        assert self.arrives.wait(WAIT_SECONDS)
        return self._store.commit(*arguments)


def register(store: SqliteMetastore) -> int:
    """What another run of n1 does."""
    entry = store.get(lease_key("n1"))
    lease = store.grant(60.0)
    membership.register(store, NODE, lease, 0 if entry is None else entry.revision)
    return lease


def leases_of(store: SqliteMetastore) -> dict[str, NodeLease]:
    return dict(AgreedStore(store).read().leases)


@pytest.mark.parametrize("key", [lease_key("n1"), COORDINATOR_KEY])
def test_a_lease_that_was_replaced_is_not_renewed(
    store: SqliteMetastore, tmp_path: Path, key: str
) -> None:
    """S122: the metastore still has the lease, but the key bears another one."""
    failures: list[Exception] = []
    wanted: queue.Queue[int] = queue.Queue()
    said: queue.Queue[bool] = queue.Queue()
    heartbeat = Heartbeat(
        key,
        lambda: SqliteMetastore(tmp_path / "metastore.db", CLOCK),
        CLOCK,
        lambda *_, **__: None,
        failures.append,
        lambda now: None if wanted.empty() else wanted.get(),
        lambda lease, alive, sent_at: said.put(alive),
    )
    record = {lease_key("n1"): NodeLease, COORDINATOR_KEY: CoordinatorLease}[key]
    first, second = store.grant(60.0), store.grant(60.0)
    try:
        for lease, expected in ((first, [True, False]), (second, [False, True])):
            AgreedStore(store).commit(Commit({}, (Put(record("n1", lease)),), "registers"), lease)
            for asked, is_alive in zip((first, second), expected, strict=True):
                wanted.put(asked)
                assert said.get(timeout=WAIT_SECONDS) == is_alive
    finally:
        heartbeat.close()
    assert failures == []


def test_a_lease_is_renewed_by_itself_whenever_it_is_due(
    store: SqliteMetastore, tmp_path: Path
) -> None:
    """The thread asks whether it is due: nobody needs a lock for a renewal."""
    lease = register(store)
    said: queue.Queue[tuple[int, bool, float]] = queue.Queue()
    failures: list[Exception] = []
    due = iter([lease, None, lease + 1, lease])
    heartbeat = Heartbeat(
        lease_key("n1"),
        lambda: SqliteMetastore(tmp_path / "metastore.db", CLOCK),
        CLOCK,
        lambda *_, **__: None,
        failures.append,
        lambda now: next(due, None),
        lambda *about: said.put(about),
    )
    try:
        heard = [said.get(timeout=WAIT_SECONDS) for _ in range(3)]
    finally:
        heartbeat.close()
    assert [about[:2] for about in heard] == [(lease, True), (lease + 1, False), (lease, True)]
    assert failures == []


def test_a_registration_that_arrives_late_does_not_replace_a_later_one(
    store: SqliteMetastore, tmp_path: Path
) -> None:
    """S122: the commit of one run is under way while the next run registers."""
    failures: list[Exception] = []
    connection = SqliteMetastore(tmp_path / "metastore.db", CLOCK)
    slow = Slow(connection)
    granted: queue.Queue[int] = queue.Queue()
    heartbeat = Heartbeat(
        lease_key("n1"),
        lambda: slow,
        CLOCK,
        lambda *_, **__: None,
        failures.append,
        lambda now: None,
        lambda *_: None,
    )

    def acquire() -> None:
        heartbeat.acquire(
            60.0,
            lambda store, lease, previous: membership.register(store, NODE, lease, previous),
            lambda lease, revision, sent_at: granted.put(lease),
        )

    try:
        acquire()
        assert slow.sent.wait(WAIT_SECONDS)
        later = register(store)
        slow.arrives.set()
        acquire()  # from here on it is the first run that registers later
        replaced = granted.get(timeout=WAIT_SECONDS)
        assert granted.empty(), "the late registration was refused"
        assert replaced > later
        assert leases_of(store) == {"n1": NodeLease("n1", replaced)}
    finally:
        slow.arrives.set()
        heartbeat.close()
    assert failures == []
