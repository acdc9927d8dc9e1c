"""Is a process that commits most of the time stopped when it does not?"""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.metastore.pausing import pause_between_commits

pytestmark = pytest.mark.processes

BUSY = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
while True:
    db.execute("BEGIN IMMEDIATE")
    print(flush=True)
    time.sleep(0.02)
    db.execute("COMMIT")
    time.sleep(0.01)
"""


def test_others_can_commit_while_it_stands_still(tmp_path: Path) -> None:
    file = tmp_path / "file.db"
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, str(file)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(5):
                pause_between_commits(process.pid, file)
                with closing(sqlite3.connect(file, 0.0, isolation_level=None)) as db:
                    db.execute("BEGIN IMMEDIATE")
                os.kill(process.pid, signal.SIGCONT)
        finally:
            process.kill()
