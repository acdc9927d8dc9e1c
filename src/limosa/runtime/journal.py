"""How are log lines written? One line per event, for people or as JSON."""

import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

import msgspec


class Journal:
    """Writes lines like `09:15:02.311 n1 committed why="…"`, or JSON."""

    def __init__(self, who: str, stream: TextIO | None = None, json: bool = False) -> None:
        self._who = who
        self._stream = stream or sys.stderr
        self._json = json
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


def _plain(value: object) -> object:
    if isinstance(value, BaseException):
        import traceback

        return "".join(traceback.format_exception(value))
    return value if isinstance(value, int | float | str | bool | None) else str(value)
