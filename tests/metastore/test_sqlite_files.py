"""Which files does the SQLite metastore refuse, and what does it keep in its own?"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from limosa.errors import (
    HistoryTrimmed,
    LeaseLost,
    LimosaError,
    MetastoreUnavailable,
    OutcomeUnknown,
    UnusableFile,
)
from limosa.metastore.sqlite import FORMAT, FREE_PAGES, LOG_BYTES, SqliteMetastore
from limosa.ports import KeyChange, KeyEntry
from tests.metastore.clocks import FakeClock

PLAIN_USER = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metastore.db"


def open_file(path: Path, clock: FakeClock | None = None, **options: Any) -> SqliteMetastore:
    return SqliteMetastore(path, clock or FakeClock(), **options)


def make(path: Path, *, commits: int = 1) -> None:
    with closing(open_file(path)) as store:
        for number in range(commits):
            store.commit({}, {f"key/{number}": bytes(2000)})


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


# Files that can't be used


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="absent is not a directory"):
        open_file(tmp_path / "absent" / "metastore.db")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="is a directory"):
        open_file(tmp_path)


@pytest.mark.parametrize("content", [b"no", b"Dear diary, " * 1000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UnusableFile, match="is not a Limosa metastore"):
        open_file(path)
    assert path.read_bytes() == content


def test_the_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    run_sql(path, "CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    with pytest.raises(UnusableFile, match="another program"):
        open_file(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused(path: Path, version: int) -> None:
    make(path)
    run_sql(path, f"PRAGMA user_version = {version}")
    with pytest.raises(UnusableFile, match=f"format {version}"):
        open_file(path)


def test_a_damaged_file_is_refused_when_it_is_opened(path: Path) -> None:
    make(path, commits=50)
    content = bytearray(path.read_bytes())
    for place in range(4096, len(content), 4096):
        content[place : place + 200] = b"\xff" * 200
    path.write_bytes(content)
    with pytest.raises(UnusableFile, match="damaged"):
        open_file(path)


def test_a_file_that_was_cut_off_is_refused(path: Path) -> None:
    make(path, commits=50)
    path.write_bytes(path.read_bytes()[: 3 * 4096])
    with pytest.raises(UnusableFile, match="damaged"):
        open_file(path)


@contextmanager
def as_plain_user() -> Iterator[None]:
    """Root may write everything, so for a while the test is somebody else."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(PLAIN_USER)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_read_only_file_is_refused_when_it_is_opened() -> None:
    # Not pytest's directory, which nobody but its user may enter.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "metastore.db")
        make(path)
        path.chmod(0o444)
        Path(directory).chmod(0o555)
        try:
            with as_plain_user(), pytest.raises(UnusableFile, match=r"read-only|can't be opened"):
                open_file(path)
        finally:
            Path(directory).chmod(0o755)


def test_a_directory_that_may_not_be_written_is_refused() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o555)
        try:
            with as_plain_user(), pytest.raises(UnusableFile, match="can't be opened"):
                open_file(Path(directory, "metastore.db"))
        finally:
            Path(directory).chmod(0o755)


@pytest.mark.parametrize("replace", [True, False])
def test_a_file_that_is_replaced_or_removed_while_in_use_is_no_longer_used(
    path: Path, replace: bool
) -> None:
    with closing(open_file(path)) as store:
        path.unlink()
        if replace:
            make(path)
        with pytest.raises(UnusableFile, match="replaced"):
            store.commit({}, {"a": b""})
        with pytest.raises(UnusableFile, match="replaced"):
            store.read("")


def test_a_busy_file_is_refused_after_a_while_and_can_still_be_read(path: Path) -> None:
    with (
        closing(open_file(path, busy_seconds=0.05)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as holder,
    ):
        revision = store.commit({}, {"a": b""})
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetastoreUnavailable, match="busy") as raised:
            store.commit({}, {"a": b"2"})
        assert raised.value.definite
        assert store.read("") == (revision, {"a": KeyEntry(b"", 1, 1)})
        holder.execute("ROLLBACK")
        assert store.commit({"a": 1}, {"a": b"2"}) == 2


# What the file keeps


def test_an_empty_file_becomes_a_metastore(path: Path) -> None:
    path.touch()
    make(path)
    with closing(open_file(path)) as store:
        assert store.read("")[0] == 1


def test_special_names_of_sqlite_are_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path(":memory:"))
    assert (tmp_path / ":memory:").is_file()


def test_everything_survives_a_restart(path: Path) -> None:
    clock = FakeClock()
    with closing(open_file(path, clock)) as store:
        lease = store.grant(3.0)
        store.commit({}, {"a": b"1"})
        store.commit({}, {"a": b"2", "b": b"1"}, lease=lease)
        store.trim(2)
    clock.advance(1.0)
    with closing(open_file(path, clock)) as store:
        assert store.read("") == (
            2,
            {"a": KeyEntry(b"2", 2, 1, lease), "b": KeyEntry(b"1", 2, 2, lease)},
        )
        assert store.watch("b", 1).poll() == [KeyChange("b", b"1", 2)]
        with pytest.raises(HistoryTrimmed):
            store.watch("", 0)
        assert store.lease_left(lease) == 2.0
        assert store.grant(3.0) != lease


def test_after_a_reboot_the_leases_in_the_file_have_ended(path: Path) -> None:
    clock = FakeClock()
    with closing(open_file(path, clock)) as store:
        lease = store.grant(3.0)
        store.commit({}, {"a": b""}, lease=lease)
    clock.reboot("second")
    with closing(open_file(path, clock)) as store:
        with pytest.raises(LeaseLost):
            store.commit({}, {"a": b""}, lease=lease)
        assert store.read("") == (2, {})
        assert store.grant(3.0) != lease


def test_a_commit_is_on_disk_before_it_is_acknowledged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    with closing(open_file(path)):
        full = 2
        assert opened[0].execute("PRAGMA synchronous").fetchone() == (full,)
        assert opened[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)


# What SQLite may answer on a bad day


class MoodyConnection(sqlite3.Connection):
    """Fails once at each of the given statements, before or after it really did the work."""

    moods: ClassVar[dict[str, tuple[int, bool]]] = {}

    def execute(self, *args: Any) -> sqlite3.Cursor:
        code, really_done = self.moods.pop(args[0], (0, True))
        cursor = super().execute(*args) if really_done else None
        if code:
            error = sqlite3.OperationalError("a bad day")
            error.sqlite_errorcode = code
            raise error
        assert cursor is not None
        return cursor


@pytest.fixture
def moods(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, bool]]:
    connect = sqlite3.connect

    def connect_moody(*args: Any, **options: Any) -> sqlite3.Connection:
        return connect(*args, **options, factory=MoodyConnection)

    monkeypatch.setattr(sqlite3, "connect", connect_moody)
    monkeypatch.setattr(MoodyConnection, "moods", {})
    return MoodyConnection.moods


@pytest.mark.parametrize("really_done", [True, False])
def test_a_failure_while_committing_leaves_the_outcome_unknown(
    path: Path, moods: dict[str, tuple[int, bool]], really_done: bool
) -> None:
    with closing(open_file(path)) as store:
        moods["COMMIT"] = (sqlite3.SQLITE_IOERR_FSYNC, really_done)
        with pytest.raises(OutcomeUnknown) as raised:
            store.commit({}, {"a": b""})
        assert not raised.value.definite
        assert store.read("")[0] == int(really_done)
        assert store.commit({}, {"b": b""}) == int(really_done) + 1


@pytest.mark.parametrize(
    ("statement", "code", "refusal"),
    [
        ("COMMIT", sqlite3.SQLITE_BUSY, MetastoreUnavailable),
        ("BEGIN IMMEDIATE", sqlite3.SQLITE_IOERR, MetastoreUnavailable),
        ("UPDATE store SET revision = ?", sqlite3.SQLITE_FULL, MetastoreUnavailable),
        ("UPDATE store SET revision = ?", sqlite3.SQLITE_CORRUPT, UnusableFile),
    ],
)
def test_a_failure_before_the_commit_changes_nothing(
    path: Path,
    moods: dict[str, tuple[int, bool]],
    statement: str,
    code: int,
    refusal: type[LimosaError],
) -> None:
    with closing(open_file(path)) as store:
        moods[statement] = (code, False)
        with pytest.raises(refusal) as raised:
            store.commit({}, {"a": b""})
        assert raised.value.definite
        assert store.read("") == (0, {})
        assert store.commit({}, {"b": b""}) == 1


def test_opening_waits_for_another_process_that_opens(
    path: Path, moods: dict[str, tuple[int, bool]]
) -> None:
    moods["PRAGMA journal_mode = WAL"] = (sqlite3.SQLITE_BUSY, False)
    make(path)
    moods["PRAGMA journal_mode = WAL"] = (sqlite3.SQLITE_BUSY, False)
    with pytest.raises(MetastoreUnavailable, match="busy"):
        open_file(path, busy_seconds=-1.0)


def test_a_metastore_keeps_space_for_commits_on_a_full_disk(path: Path) -> None:
    """S129: free pages in the file, and a log that is allocated before it is needed, so that leases
    are renewed while no file can grow."""
    with closing(open_file(path)) as store:
        lease = store.grant(60.0)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA freelist_count").fetchone()[0] >= FREE_PAGES
        log = Path(f"{path}-wal")
        allocated = log.stat().st_blocks * 512
        assert allocated >= LOG_BYTES
        for _ in range(1_000):
            store.renew(lease)
        assert log.stat().st_blocks * 512 == allocated
    with closing(open_file(path)) as store:
        assert store.lease_left(lease) > 0
