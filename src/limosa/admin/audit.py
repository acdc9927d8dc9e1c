"""Who changed what, and with which result? An append-only file of JSON lines.

    asked      before a change is asked for: who, what, and how it was before; no line, no change
    answered   what the caller was told, with the HTTP status
    refused    a change that was not asked for, and why; nothing happened
    ended      how the operation ended, and how it is now

Lines of one change have the same operation.
"""

import errno
import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from limosa.errors import UnusableFile

FILE = "audit.ndjson"
LOCK_SECONDS = 3.0


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
                "make room, or mend its rights",
            ) from None

    def _append(self, line: bytes) -> None:
        """Opened each time, so that a file that was moved away is begun anew."""
        is_new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _lock(file)
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # after a line that a crash cut off
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, "no room for a whole line")
            os.fsync(file)
        finally:
            os.close(file)  # and its lock goes
        if is_new:
            _sync_directory(self.path.parent)


def _lock(file: int) -> None:
    """Another process has it for the time of one sync; one that hangs does not hold us up."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "another process holds it") from None
        time.sleep(0.002)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
