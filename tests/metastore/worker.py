"""What does another process do to the metastore while a test looks on, or kills it?

Run as `python -m tests.metastore.worker <job> <path> …`, one job a process.
"""

import os
import resource
import signal
import sqlite3
import sys
from itertools import count
from typing import Any

from limosa.errors import LimosaError, StaleGuard
from limosa.metastore.sqlite import SqliteMetastore
from limosa.ports import Metastore
from limosa.runtime.clock import BootClock
from tests.metastore.clocks import FakeClock

GROUP = [f"group/{number}" for number in range(8)]


def increment(path: str, key: str, times: str) -> None:
    """Guarded increments, each tried until nobody else was faster."""
    store = SqliteMetastore(path, BootClock())
    done = 0
    while done < int(times):
        entry = store.get(key)
        guard, number = (entry.revision, int(entry.value)) if entry else (0, 0)
        try:
            store.commit({key: guard}, {key: b"%d" % (number + 1)})
        except StaleGuard:
            continue
        done += 1
    store.close()


def write_groups(path: str, name: str) -> None:
    """Commits of many keys without end; says which one was acknowledged, once it was."""
    store = SqliteMetastore(path, BootClock())
    for number in count():
        value = f"{name}:{number}"
        while True:
            found = {key: entry.revision for key, entry in store.read("")[1].items()}
            guards = dict.fromkeys(GROUP, 0) | found  # nothing there yet is also an expectation
            # All keys get one value, and the one that is named after the last value goes.
            puts = dict.fromkeys([*GROUP, f"last/{value}"], value.encode())
            try:
                revision = store.commit(guards, puts, [key for key in found if key not in puts])
            except StaleGuard:
                continue
            break
        os.write(1, f"{revision} {value}\n".encode())


class DyingConnection(sqlite3.Connection):
    """Kills its process before the n-th statement."""

    left = 0

    def execute(self, *args: Any) -> sqlite3.Cursor:
        self._step()
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        self._step()
        return super().executemany(*args)

    @classmethod
    def _step(cls) -> None:
        cls.left -= 1
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def live_a_little(store: Metastore, clock: FakeClock) -> None:
    """A short life with commits of several keys, and the end of their lease."""
    lease = store.grant(3.0)
    store.commit({"a": 0}, {"a": b"1", "b": b"1", "c": b"1"}, lease=lease)
    store.commit({"a": 1}, {"a": b"2", "b": b"2"}, deletes=["c"], lease=lease)
    clock.advance(3.0)
    store.read("")


def die_everywhere(directory: str) -> None:
    """One process per statement of a store's life dies there, on a file of its own; says how many.

    Forked, as a new interpreter for each takes too long; each opens its file after the fork.
    """
    connect = sqlite3.connect
    for step in count(1):
        if (process := os.fork()) == 0:
            DyingConnection.left = step
            sqlite3.connect = lambda *args, **options: connect(  # type: ignore[assignment]
                *args, **options, factory=DyingConnection
            )
            clock = FakeClock()
            live_a_little(SqliteMetastore(f"{directory}/{step}.db", clock), clock)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if os.WIFEXITED(status):
            print(step, os.WEXITSTATUS(status))
            return


def fill_the_disk(path: str) -> None:
    """Commits until no file may grow any more; says what was acknowledged and what came then."""
    store = SqliteMetastore(path, BootClock())
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    for number in count():
        try:
            store.commit({}, {f"a/{number:04}": bytes(5000), f"b/{number:04}": bytes(5000)})
        except LimosaError as error:
            print(number, type(error).__name__, store.read("")[0])
            break
    store.close()


JOBS = {job.__name__: job for job in (increment, write_groups, die_everywhere, fill_the_disk)}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*sys.argv[2:])
