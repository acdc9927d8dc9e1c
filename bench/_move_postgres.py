"""How does PostgreSQL move rows under a writer? By logical replication, a lock, and a new address.

The new server subscribes to the table: it copies all rows, then follows. Once it has, the mover
locks the table at the old server, waits until the new one has all that was committed, renames the
table away, and lets go. The write that waited for the lock then finds no table, and its client goes
to the new server.

Durability: every write of the client is on a disk when it is acknowledged, at either server. What
the subscription itself applies is not waited for, as PostgreSQL ships it: the client's first write
at the new server syncs all of it.
"""

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from bench._move_servers import HOST, MOVE_SECONDS_MAX, free_ports, wait_until
from bench._move_writer import Moved, measure, value_of
from bench._write_peers import (
    Unavailable,
    _directory,
    _postgres_programs,
    _running,
    _wait_for,
    _without_root,
)

_FINISHED = "finished"


class Session:
    """One `psql`, one statement after another; what a statement answers, without its errors."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in: IO[bytes] = process.stdin
        self._out: IO[bytes] = process.stdout

    def run(self, statement: str) -> str:
        self._in.write(f"{statement};\n\\echo {_FINISHED}\n".encode())
        self._in.flush()
        lines: list[str] = []
        while not lines or lines[-1] != _FINISHED:
            line = self._out.readline()
            if not line:
                raise Unavailable("psql ended")
            lines.append(line.decode().rstrip("\n"))
        return "\n".join(lines[:-1])

    def must(self, statement: str, answer: str) -> None:
        told = self.run(statement)
        if told != answer:
            raise Unavailable(f"PostgreSQL answered {told!r} to {statement[:60]!r}")


class PostgresPair:
    """Two servers with a table of the same name, of which one has rows."""

    name = "postgres"
    async_durability = False

    def __init__(self, source_port: int, movers: Sequence[Session], writers: Sequence[Session]):
        self._source_port = source_port
        self._source, self._target = movers
        self._writers = list(writers)
        self._keys = 0
        self.expected_seconds = 0.0
        self.version = self._source.run("SHOW server_version").split()[0]

    def load(self, keys: int) -> None:
        self._keys = keys
        self.expected_seconds = keys / 30_000
        for session in (self._source, self._target):
            session.must("CREATE TABLE rows (key bigint PRIMARY KEY, value text)", "CREATE TABLE")
        self._source.must(
            f"INSERT INTO rows SELECT key, '{value_of(0)}'"
            f" FROM generate_series(0, {keys - 1}) AS key",
            f"INSERT 0 {keys}",
        )
        self._source.must("VACUUM ANALYZE rows", "VACUUM")

    def write(self, key: int, number: int) -> None:
        """Whose table is gone is not asked again."""
        update = f"UPDATE rows SET value = '{value_of(number)}' WHERE key = {key}"
        while self._writers[0].run(update) != "UPDATE 1":
            self._writers.pop(0)
            if not self._writers:
                raise Unavailable("neither PostgreSQL has the row")

    def move(self) -> None:
        self._subscribe()
        self._source.must("BEGIN", "BEGIN")
        self._source.must("LOCK TABLE rows IN ACCESS EXCLUSIVE MODE", "LOCK TABLE")
        committed = self._source.run("SELECT pg_current_wal_lsn()")
        applied = f"SELECT replay_lsn >= '{committed}' FROM pg_stat_replication"
        wait_until(lambda: self._source.run(applied) == "t", "the last rows to arrive")
        self._source.must("ALTER TABLE rows RENAME TO rows_that_moved", "ALTER TABLE")
        self._source.must("COMMIT", "COMMIT")

    def _subscribe(self) -> None:
        """Returns when all rows are copied and what was written meanwhile is followed."""
        self._source.must("CREATE PUBLICATION moving FOR TABLE rows", "CREATE PUBLICATION")
        where = f"host={HOST} port={self._source_port} user=bench dbname=postgres"
        self._target.must(
            f"CREATE SUBSCRIPTION moving CONNECTION '{where}' PUBLICATION moving",
            "CREATE SUBSCRIPTION",
        )
        state = "SELECT string_agg(srsubstate::text, '') FROM pg_subscription_rel"
        wait_until(lambda: self._target.run(state) == "r", "the rows' copy", MOVE_SECONDS_MAX)

    def check(self, written: Mapping[int, int]) -> None:
        self._target.must("DROP SUBSCRIPTION moving", "DROP SUBSCRIPTION")
        self._target.must("SELECT count(*) FROM rows", str(self._keys))
        told = self._target.run("SELECT key, value::bigint FROM rows WHERE value::bigint > 0")
        found = (line.split("|") for line in told.splitlines())
        if {int(key): int(number) for key, number in found} != written:
            raise Unavailable("PostgreSQL lost acknowledged writes")


def postgres(keys: int) -> Moved:
    """Logical replication and a lock; every write is durable when it is acknowledged."""
    with _pair() as pair:
        pair.load(keys)
        return measure(pair, keys)


@contextmanager
def _pair() -> Iterator[PostgresPair]:
    programs, as_user = _postgres_programs(), _without_root()
    with ExitStack() as stack:
        root = stack.enter_context(_directory("postgres"))
        ports = free_ports(2)
        if as_user:
            shutil.chown(root, "nobody")
        for port in ports:
            stack.enter_context(_server(programs, as_user, root / str(port), port))
        movers, writers = (
            [stack.enter_context(_session(programs, root, port)) for port in ports]
            for _ in range(2)
        )
        yield PostgresPair(ports[0], movers, writers)


@contextmanager
def _server(programs: Path, as_user: Sequence[str], directory: Path, port: int) -> Iterator[None]:
    """With its usual settings, which sync each commit, and a log that can be followed."""
    directory.mkdir()
    if as_user:
        shutil.chown(directory, "nobody")
    data, trusting = str(directory / "data"), ["-U", "bench", "-A", "trust", "-E", "UTF8"]
    initdb = [*as_user, f"{programs}/initdb", "-D", data, *trusting]
    made = subprocess.run(initdb, capture_output=True, check=False, cwd=directory)
    if made.returncode:
        raise Unavailable(f"initdb failed: {made.stderr.decode().strip()[-200:]}")
    where = ["-D", data, "-k", str(directory), "-p", str(port), "-h", HOST]
    server = [*as_user, f"{programs}/postgres", *where, "-c", "wal_level=logical"]
    with _running(server, directory, signal.SIGINT) as process:
        _wait_for(directory / f".s.PGSQL.{port}", process)
        yield


@contextmanager
def _session(programs: Path, directory: Path, port: int) -> Iterator[Session]:
    where = ["-h", HOST, "-p", str(port), "-U", "bench", "-d", "postgres"]
    with _running([f"{programs}/psql", *where, "-XAt"], directory) as process:
        yield Session(process)
