"""How are log lines written? One line per event, for people or as JSON."""

import os
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

import msgspec


class Journal:
    """Writes lines like `09:15:02.311 n1 committed why="…"`, or JSON."""

    def __init__(
        self, who: str, stream: TextIO | None = None, json: bool = False, bytes_max: int = 0
    ) -> None:
        self._who = who
        self._stream = stream or sys.stderr
        self._json = json
        self._bytes_max = bytes_max
        """A longer file is renamed to `….1`, and another one begins; 0: it grows."""
        self._lock = threading.Lock()

    def __call__(self, what: str, **details: object) -> None:
        now = time.time()
        said = {key: _plain(value) for key, value in details.items()}
        if self._json:
            record = {"at": round(now, 3), "who": self._who, "what": what, **said}
            line = msgspec.json.encode(record).decode()
        else:
            clock = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03}"
            line = " ".join([clock, self._who, what, *(f"{k}={v}" for k, v in said.items())])
        # A failure to log must not end the thread that logs.
        with self._lock, suppress(OSError, ValueError):
            print(line, file=self._stream, flush=True)
            if self._bytes_max:
                self._rotate(self._stream.fileno())

    def _rotate(self, descriptor: int) -> None:
        """So the log takes at most twice as many bytes, whatever happens."""
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= self._bytes_max:
            return
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        os.replace(path, f"{path}.1")
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(new, descriptor)
        os.close(new)


def _plain(value: object) -> object:
    if isinstance(value, BaseException):
        import traceback

        return "".join(traceback.format_exception(value))
    return value if isinstance(value, int | float | str | bool | None) else str(value)
