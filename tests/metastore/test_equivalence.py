"""Do memory and SQLite agree, operation by operation, whatever is done to them?"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from limosa.errors import LimosaError, StaleGuard
from limosa.metastore.memory import MemoryMetastore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.ports import Metastore, Watch
from tests.metastore.clocks import FakeClock

KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "b/é", "c"])
PREFIXES = ["", "a", "a/", "b/", "none"]
# How far before the newest one; most often none, sometimes one that never was.
BACK = st.sampled_from([0, 0, 0, 1, 2, 4, -1])


def outcome(operation: Callable[[], Any]) -> Any:
    """What came of it: the result, or the kind of the refusal with its message and keys."""
    try:
        return operation()
    except LimosaError as error:
        keys = error.keys if isinstance(error, StaleGuard) else ()
        return type(error), str(error), keys


class TwoStores(RuleBasedStateMachine):
    """The same operations on both, under one clock.

    No step looks at more than it must: each look ends the leases that are due, and whether the next
    operation does so by itself is what is to be shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.boots = 0
        self.revision = 0
        self.last_lease = 0
        self.memory: Metastore = MemoryMetastore(self.clock)
        self.sqlite: Metastore = self.open()
        self.watches: list[tuple[Watch, Watch]] = []

    def open(self) -> Metastore:
        return SqliteMetastore(Path(self.directory.name, "metastore.db"), self.clock)

    def teardown(self) -> None:
        try:
            self.look()
        finally:
            self.sqlite.close()
            self.directory.cleanup()

    def both(self, operation: Callable[[Metastore], Any]) -> Any:
        expected = outcome(lambda: operation(self.memory))
        assert outcome(lambda: operation(self.sqlite)) == expected
        return expected

    @rule(
        guarded=st.dictionaries(KEYS, st.sampled_from([0, 0, 0, 1]), max_size=2),
        puts=st.dictionaries(KEYS, st.binary(max_size=2), max_size=3),
        deletes=st.lists(KEYS, max_size=2),
        lease_back=st.none() | BACK,
    )
    def commit(
        self,
        guarded: dict[str, int],
        puts: dict[str, bytes],
        deletes: list[str],
        lease_back: int | None,
    ) -> None:
        entries = {key: self.memory.get(key) for key in guarded}
        guards = {
            key: wrong + (e.revision if (e := entries[key]) else 0)
            for key, wrong in guarded.items()
        }
        lease = None if lease_back is None else self.last_lease - lease_back
        self.both(lambda store: store.commit(guards, puts, deletes, lease))

    @rule(ttl_seconds=st.sampled_from([1.0, 2.5, 10.0]), keys=st.lists(KEYS, max_size=3))
    def register(self, ttl_seconds: float, keys: list[str]) -> None:
        lease = self.last_lease = self.both(lambda store: store.grant(ttl_seconds))
        self.both(lambda store: store.commit({}, dict.fromkeys(keys, b"mine"), lease=lease))

    @rule(back=BACK, use=st.sampled_from(["renew", "renew", "revoke", "lease_left"]))
    def use_lease(self, back: int, use: str) -> None:
        self.both(lambda store: getattr(store, use)(self.last_lease - back))

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]), reboot=st.sampled_from([False, False, True]))
    def time_passes(self, seconds: float, reboot: bool) -> None:
        if reboot:
            self.boots += 1
            self.clock.reboot(f"boot {self.boots}")
        self.clock.advance(seconds)

    @rule(back=BACK)
    def trim(self, back: int) -> None:
        self.both(lambda store: store.trim(self.revision - back))

    @rule(prefix=st.sampled_from(PREFIXES), back=BACK)
    def watch(self, prefix: str, back: int) -> None:
        after = self.revision - back
        opened = tuple(
            outcome(lambda store=store: store.watch(prefix, after))  # type: ignore[misc]
            for store in (self.memory, self.sqlite)
        )
        if isinstance(opened[0], tuple):
            assert opened[0] == opened[1]
        else:
            self.watches.append(opened)

    @rule()
    def poll(self) -> None:
        for memory, sqlite in self.watches:
            assert outcome(memory.poll) == outcome(sqlite.poll)
            assert memory.revision == sqlite.revision

    @rule(reopen=st.booleans())
    def look(self, reopen: bool = False) -> None:
        if reopen:
            self.sqlite.close()
            self.sqlite = self.open()
            self.watches.clear()
        for prefix in PREFIXES:
            self.revision, entries = self.both(lambda store: store.read(prefix))  # noqa: B023
            assert list(entries) == list(self.sqlite.read(prefix)[1]) == sorted(entries)
            for key, entry in entries.items():
                assert self.sqlite.get(key) == self.memory.get(key) == entry
        for after in range(max(0, self.revision - 5), self.revision + 1):
            self.both(lambda store: store.watch("", after).poll())  # noqa: B023


TwoStores.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestTwoStores = TwoStores.TestCase
pytest.mark.thorough(TestTwoStores)
