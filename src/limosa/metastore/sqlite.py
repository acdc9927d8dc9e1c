"""Where does the agreed state of one machine's cluster live? In a SQLite file.

All processes of the cluster open the file; there is no server. Every change is one transaction
(write-ahead log, `synchronous=FULL`), so a process that is killed leaves all of it or nothing, and
a commit that returned survives a power failure.

A writer holds SQLite's write lock from its first read on (`BEGIN IMMEDIATE`), so guards are checked
against the state to which the changes apply. A commit wakes watchers in this process; watchers in
other processes poll the revision every few hundredths of a second.

The file is for one machine: SQLite's log needs shared memory, and leases need one clock. A
connection does not survive `fork`; open the store in the process that uses it.
"""

import ctypes
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from limosa.errors import LimosaError, MetastoreUnavailable, OutcomeUnknown, UnusableFile
from limosa.metastore.common import (
    StoreWatch,
    check_guards,
    check_kept,
    check_trim,
    check_watch,
    closed,
    lease_lost,
)
from limosa.ports import (
    LAST,
    Clock,
    KeyChange,
    KeyEntry,
    check_commit,
    check_key,
    check_prefix,
    check_ttl,
)

Result = TypeVar("Result")
Row = TypeVar("Row")

# "limo" in ASCII; SQLite keeps it in the file's header to tell whose file it is.
APPLICATION_ID = 0x6C696D6F
FORMAT = 1

SCHEMA = (
    """CREATE TABLE store (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        revision INTEGER NOT NULL,
        history_start INTEGER NOT NULL,
        last_lease INTEGER NOT NULL
    )""",
    "INSERT INTO store VALUES (1, 0, 1, 0)",
    """CREATE TABLE entries (
        key TEXT PRIMARY KEY,
        value BLOB NOT NULL,
        revision INTEGER NOT NULL,
        created INTEGER NOT NULL,
        lease INTEGER
    ) WITHOUT ROWID""",
    "CREATE INDEX entries_by_lease ON entries (lease) WHERE lease IS NOT NULL",
    """CREATE TABLE changes (
        revision INTEGER NOT NULL,
        key TEXT NOT NULL,
        value BLOB,
        PRIMARY KEY (revision, key)
    ) WITHOUT ROWID""",
    """CREATE TABLE leases (
        lease INTEGER PRIMARY KEY,
        ttl_seconds REAL NOT NULL,
        ends REAL NOT NULL,
        boot TEXT NOT NULL
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

CHUNK_ROWS = 400
"""How many rows one statement reads or changes."""
FREE_PAGES = 64
LOG_BYTES = 8 << 20
"""SQLite moves the log's contents to the file after about 4 MiB."""
FALLOC_FL_KEEP_SIZE = 1
_libc = ctypes.CDLL(None)
_OFFSET = ctypes.c_int64

# SQLite's errors about a file that a retry does not fix.
UNUSABLE = {
    sqlite3.SQLITE_PERM: "is not accessible to this user",
    sqlite3.SQLITE_READONLY: "is read-only",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_CANTOPEN: "can't be opened",
    sqlite3.SQLITE_NOTADB: "is not a Limosa metastore",
}
ADVICE_ON_FILE = "give a path that this user may write, with its directory, or restore the file"


class SqliteMetastore:
    """The `Metastore` port over one file. Each process opens its own; threads may share one."""

    operations_max = 4_000
    """Such a commit holds the write lock for less than 0.1 s, so renewals of leases do not have to
    wait long. A commit may be larger: creating a table of 10,000 partitions takes about 0.3 s."""

    def __init__(
        self,
        path: str | Path,
        clock: Clock,
        *,
        busy_seconds: float = 10.0,
    ) -> None:
        # An absolute path, because SQLite gives ":memory:" and "" a meaning of their own.
        self._path = Path(path).absolute()
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._db = _open(self._path, busy_seconds)
        self._file = _identity(self._path)

    def read(self, prefix: str) -> tuple[int, dict[str, KeyEntry]]:
        check_prefix(prefix)

        def work(db: sqlite3.Connection) -> tuple[int, dict[str, KeyEntry]]:
            rows = db.execute(
                "SELECT key, value, revision, created, lease FROM entries"
                " WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + LAST),
            )
            return _revision(db), {key: KeyEntry(*rest) for key, *rest in rows}

        return self._look(work)

    def get(self, key: str) -> KeyEntry | None:
        check_key(key)

        def work(db: sqlite3.Connection) -> KeyEntry | None:
            row = db.execute(
                "SELECT value, revision, created, lease FROM entries WHERE key = ?", (key,)
            ).fetchone()
            return KeyEntry(*row) if row else None

        return self._look(work)

    def commit(
        self,
        guards: Mapping[str, int],
        puts: Mapping[str, bytes],
        deletes: Collection[str] = (),
        lease: int | None = None,
    ) -> int:
        check_commit(guards, puts, deletes)

        def work(db: sqlite3.Connection) -> int:
            if lease is not None:
                _live(db, lease)
            revisions = _revisions_of(db, guards)
            check_guards(guards, lambda key: revisions.get(key, 0))
            return _apply(db, puts, deletes, lease)

        return self._change(work)

    def watch(self, prefix: str, after_revision: int) -> StoreWatch:
        check_prefix(prefix)
        self._look(lambda db: check_watch(after_revision, _revision(db), _history_start(db)))
        return StoreWatch(self._changed, self._changes, prefix, after_revision)

    def grant(self, ttl_seconds: float) -> int:
        check_ttl(ttl_seconds)

        def work(db: sqlite3.Connection) -> int:
            db.execute("UPDATE store SET last_lease = last_lease + 1")
            (lease,) = db.execute("SELECT last_lease FROM store").fetchone()
            ends = self._clock.now() + ttl_seconds
            db.execute(
                "INSERT INTO leases VALUES (?, ?, ?, ?)",
                (lease, ttl_seconds, ends, self._clock.boot_id()),
            )
            return int(lease)

        return self._change(work)

    def renew(self, lease: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            ttl_seconds, _ = _live(db, lease)
            ends = self._clock.now() + ttl_seconds
            db.execute("UPDATE leases SET ends = ? WHERE lease = ?", (ends, lease))

        self._change(work)

    def revoke(self, lease: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            if _find_lease(db, lease):
                _end(db, lease)

        self._change(work)

    def lease_left(self, lease: int) -> float:
        def work(db: sqlite3.Connection) -> float:
            found = _find_lease(db, lease)
            # The clock advances: the lease may have ended since the due leases were ended.
            return max(0.0, found[1] - self._clock.now()) if found else 0.0

        return self._look(work)

    def trim(self, before_revision: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            check_trim(before_revision, _revision(db))
            if before_revision > _history_start(db):
                db.execute("DELETE FROM changes WHERE revision < ?", (before_revision,))
                db.execute("UPDATE store SET history_start = ?", (before_revision,))

        self._change(work)

    def close(self) -> None:
        with self._changed:
            if not self._closed:
                self._closed = True
                self._db.close()
                self._changed.notify_all()

    def _look(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Reads one consistent state; takes the write lock only if a lease is due."""
        with self._changed:
            with self._transaction("BEGIN") as db:
                if not self._is_due(db):
                    return work(db)
            return self._change(work)

    def _change(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Ends the leases that are due and does the work, in one transaction.

        If the work raises an error, the end of the leases is rolled back, too, and happens in the
        next operation; callers can't tell the difference.
        """
        with self._changed:
            with self._transaction("BEGIN IMMEDIATE") as db:
                self._end_due(db)
                result = work(db)
            self._changed.notify_all()
            return result

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise closed()
        if _identity(self._path) != self._file:
            # Other processes may open the new file while this one uses the old: a split brain.
            raise UnusableFile(
                f"{self._path} was removed or replaced while in use", "restart this process"
            )
        db = self._db
        try:
            db.execute(begin)
            yield db
        except BaseException as error:
            _roll_back(db)
            if isinstance(error, sqlite3.Error):
                raise _explain(error, self._path) from error
            raise
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(db)
            if begin == "BEGIN" or _code(error) == sqlite3.SQLITE_BUSY:
                raise _explain(error, self._path) from error
            # The log's last frame may or may not have reached the disk.
            raise OutcomeUnknown(
                f"{self._path} failed during a commit: {error}", "read the state to find out"
            ) from error

    def _is_due(self, db: sqlite3.Connection) -> bool:
        end, *boots = db.execute("SELECT min(ends), min(boot), max(boot) FROM leases").fetchone()
        # The clock is read after the state, so that a state is never shown longer than its leases.
        boot = self._clock.boot_id()
        return end is not None and (end <= self._clock.now() or boots != [boot, boot])

    def _end_due(self, db: sqlite3.Connection) -> None:
        boot = self._clock.boot_id()
        due = db.execute(
            "SELECT lease FROM leases WHERE boot <> ? OR ends <= ? ORDER BY boot = ?, ends, lease",
            (boot, self._clock.now(), boot),
        ).fetchall()
        for (lease,) in due:
            _end(db, lease)

    def _changes(self, prefix: str, after_revision: int) -> tuple[int, list[KeyChange]]:
        def work(db: sqlite3.Connection) -> tuple[int, list[KeyChange]]:
            revision = _revision(db)
            if revision == after_revision:
                return revision, []
            check_kept(after_revision, _history_start(db))
            rows = db.execute(
                "SELECT key, value, revision FROM changes"
                " WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision, key",
                (after_revision, prefix, prefix + LAST),
            )
            return revision, [KeyChange(*row) for row in rows]

        return self._look(work)


# Opening


def _open(path: Path, busy_seconds: float) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise UnusableFile(f"{path.parent} is not a directory", "create it first")
    if path.is_dir():
        raise UnusableFile(f"{path} is a directory", "give the path of a file in it")
    try:
        db = sqlite3.connect(
            path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise _explain(error, path) from error
    try:
        _prepare(db, path, time.monotonic() + busy_seconds)
    except BaseException as error:
        db.close()
        if isinstance(error, sqlite3.Error):
            raise _explain(error, path) from error
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Checks that the file is an intact Limosa metastore, before anything in it is changed."""
    # One transaction, because another process may be creating the file at this moment.
    db.execute("BEGIN")
    _is_new(db, path)
    (finding,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise UnusableFile(f"{path} is damaged: {finding}", ADVICE_ON_FILE)
    db.execute("COMMIT")
    _use_log(db, path, deadline)
    db.execute("PRAGMA synchronous = FULL")
    # Also for an existing file: without write permission this fails now, not at the first commit.
    db.execute("BEGIN IMMEDIATE")
    if _is_new(db, path):
        for statement in SCHEMA:
            db.execute(statement)
    db.execute("COMMIT")
    try:
        _keep_room(db, path)
    except (sqlite3.Error, OSError):  # the disk is full already, or another process writes
        _roll_back(db)


def _keep_room(db: sqlite3.Connection, path: Path) -> None:
    """Have space in the file and in its log for commits on a full disk: renewals of leases first.

    SQLite reuses free pages of the file, and the space of the log after each checkpoint. No other
    descriptor of the file itself may be opened: its close would release SQLite's locks.
    """
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    if free < FREE_PAGES:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DROP TABLE IF EXISTS room")  # of a process that was killed here
        db.execute("CREATE TABLE room (taken BLOB)")
        db.execute("INSERT INTO room VALUES (zeroblob(?))", (2 * FREE_PAGES * page_bytes,))
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # so that the file itself has the pages
        db.execute("DROP TABLE room")
    log = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
    try:
        _libc.fallocate64(log, FALLOC_FL_KEEP_SIZE, _OFFSET(0), _OFFSET(LOG_BYTES))
    finally:
        os.close(log)


def _is_new(db: sqlite3.Connection, path: Path) -> bool:
    """True for an empty file, False for a metastore of this format; refuses other files."""
    (owner,) = db.execute("PRAGMA application_id").fetchone()
    (found,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (owner, found, tables) == (0, 0, 0):
        return True
    if owner != APPLICATION_ID:
        raise UnusableFile(f"{path} is a database of another program", "give another path")
    if found != FORMAT:
        raise UnusableFile(
            f"{path} has metastore format {found}, this Limosa reads {FORMAT}",
            "use the Limosa version that wrote it" if found > FORMAT else "export and import it",
        )
    return False


def _use_log(db: sqlite3.Connection, path: Path, deadline: float) -> None:
    # SQLite does not wait here for another process that does the same, so retry.
    while True:
        try:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise UnusableFile(
                f"{path} is on a file system without shared memory", "use a local disk"
            )
        return


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Inside a transaction


def _revision(db: sqlite3.Connection) -> int:
    (revision,) = db.execute("SELECT revision FROM store").fetchone()
    return int(revision)


def _history_start(db: sqlite3.Connection) -> int:
    (start,) = db.execute("SELECT history_start FROM store").fetchone()
    return int(start)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows for one statement each: between two steps of a statement other threads may run for
    milliseconds, so a step for each row would hold the write lock for seconds."""
    left = iter(rows)
    while chunk := list(islice(left, CHUNK_ROWS)):
        yield chunk


def _revisions_of(db: sqlite3.Connection, keys: Iterable[str]) -> dict[str, int]:
    """Of those keys that are present."""
    found: dict[str, int] = {}
    for chunk in _chunks(keys):
        (names,) = db.execute(
            "SELECT json_group_object(key, revision) FROM entries"
            f" WHERE key IN ({_marks(len(chunk))})",
            chunk,
        ).fetchone()
        found |= json.loads(names)
    return found


def _insert(db: sqlite3.Connection, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
    for chunk in _chunks(rows):
        values = ", ".join([f"({_marks(len(chunk[0]))})"] * len(chunk))
        db.execute(statement.format(values=values), [value for row in chunk for value in row])


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _apply(
    db: sqlite3.Connection, puts: Mapping[str, bytes], deletes: Collection[str], lease: int | None
) -> int:
    """Makes the changes in one revision and returns it; without changes the revision stays."""
    revision = _revision(db)
    new = revision + 1
    present = list(_revisions_of(db, deletes))
    if not puts and not present:
        return revision
    for chunk in _chunks(present):
        db.execute(f"DELETE FROM entries WHERE key IN ({_marks(len(chunk))})", chunk)
    _insert(
        db,
        "INSERT INTO entries VALUES {values} ON CONFLICT (key) DO UPDATE"
        " SET value = excluded.value, revision = excluded.revision, lease = excluded.lease",
        ((key, value, new, new, lease) for key, value in puts.items()),
    )
    _insert(
        db,
        "INSERT INTO changes VALUES {values}",
        chain(
            ((new, key, value) for key, value in puts.items()),
            ((new, key, None) for key in present),
        ),
    )
    db.execute("UPDATE store SET revision = ?", (new,))
    return new


def _find_lease(db: sqlite3.Connection, lease: int) -> tuple[float, float] | None:
    """Time to live and end of a lease that has not ended."""
    if not 0 < lease < 2**63:
        return None
    row: tuple[float, float] | None = db.execute(
        "SELECT ttl_seconds, ends FROM leases WHERE lease = ?", (lease,)
    ).fetchone()
    return row


def _live(db: sqlite3.Connection, lease: int) -> tuple[float, float]:
    if (found := _find_lease(db, lease)) is None:
        raise lease_lost(lease)
    return found


def _end(db: sqlite3.Connection, lease: int) -> None:
    rows = db.execute("SELECT key FROM entries WHERE lease = ?", (lease,)).fetchall()
    _apply(db, {}, [key for (key,) in rows], None)
    db.execute("DELETE FROM leases WHERE lease = ?", (lease,))


def _roll_back(db: sqlite3.Connection) -> None:
    # SQLite may have rolled back by itself, and on a failing disk a rollback may fail, too.
    with suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


# Errors


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for an error of Python's module itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _explain(error: sqlite3.Error, path: Path) -> LimosaError:
    """The error to raise when SQLite failed before anything was committed."""
    code = _code(error)
    if code in UNUSABLE:
        return UnusableFile(f"{path} {UNUSABLE[code]}: {error}", ADVICE_ON_FILE)
    if code == sqlite3.SQLITE_BUSY:
        return MetastoreUnavailable(f"{path} is busy: other processes write to it", "retry")
    return MetastoreUnavailable(f"{path} does not answer: {error}", "check the disk, then retry")
