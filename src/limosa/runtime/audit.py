"""Who changed what, and with which result? An append-only file of JSON lines.

    asked      written before a change is requested: who, what, and the state before
    answered   the answer to the caller; of the admin service, with the HTTP status
    refused    a change that was not requested, and why
    ended      how the operation ended, and the state after

If the line `asked` can't be written, the change is not requested. All lines of a change have the
same operation id.

A node writes what is asked of it over Flight into a file in its directory, and the admin service
what is asked over HTTP. Changes of the secret and of the admin service's tokens, which are made by
commands on these files, are written beside them, with the name of the user.
"""

import errno
import fcntl
import getpass
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from limosa.errors import LimosaError, UnusableFile

FILE = "audit.ndjson"
LOCK_SECONDS = 3.0


def user_here() -> str:
    """The user of this process, as an author in an audit log."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{os.uname().nodename}"


@contextmanager
def noted(beside: Path, change: str, **facts: Any) -> Iterator[None]:
    """Write a change that a command makes to a file into the audit log beside the file. The change
    is not made if that fails."""
    log = AuditLog(beside.absolute().with_name(FILE))
    facts = {"author": user_here(), "change": change, **facts}
    log.write("asked", **facts)
    try:
        yield
    except LimosaError as error:
        log.write("refused", **facts, why=error.message)
        raise
    log.write("answered", **facts, state="done")


class AuditLog:
    """Several processes may write one file, one line at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        """Durable when it returns."""
        record = {"at": round(time.time(), 3), "event": event, **facts}
        line = msgspec.json.encode(record, enc_hook=str) + b"\n"
        try:
            with self._lock:
                self._append(line)
        except OSError as error:
            raise UnusableFile(
                f"the audit log {self.path} can't be written: {error.strerror}",
                "free some disk space, or correct the file's permissions",
            ) from None

    def _append(self, line: bytes) -> None:
        """Opens the file each time, so that it can be moved away (log rotation)."""
        is_new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _lock(file)
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # a crash truncated the last line
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, "no space for a whole line")
            os.fsync(file)
        finally:
            os.close(file)  # also releases the lock
        if is_new:
            _sync_directory(self.path.parent)


def _lock(file: int) -> None:
    """Other processes hold the lock only briefly; gives up if one hangs."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "another process holds the lock") from None
        time.sleep(0.002)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
