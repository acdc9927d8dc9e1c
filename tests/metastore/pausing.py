"""How is a process stopped so that all others go on? Not in the middle of a commit.

The embedded metastore is a file with one lock: whoever is stopped while it has that holds up all
others until it goes on (`docs/guarantees.md`). A test of what others do meanwhile means another
moment.
"""

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tests.waiting import eventually

BUSY_SECONDS = 0.5
"""A commit of somebody else takes less."""
TRIES = 50


def pause_between_commits(process: int, metastore: str | Path) -> None:
    for _ in range(TRIES):
        os.kill(process, signal.SIGSTOP)
        eventually(lambda: _stands_still(process), "every thread is stopped", pause_seconds=0.001)
        if _others_can_commit(metastore):
            return
        os.kill(process, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("whenever it is stopped, nobody can commit")


def _stands_still(process: int) -> bool:
    """All of its threads: a signal takes its time to reach them."""
    states = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(state.rpartition(")")[2].split()[0] == "T" for state in states)


def _others_can_commit(metastore: str | Path) -> bool:
    with closing(sqlite3.connect(metastore, BUSY_SECONDS, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
        return True
