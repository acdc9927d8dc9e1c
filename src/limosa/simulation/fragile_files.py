"""How does a process die in the middle of its work? At any operation on its files.

Background work of a process, an errand, has a thread of its own. It pauses at file operations and
continues when the dice say so; only one thread runs at a time, so that a seed replays everything.
"""

import threading
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa

from limosa.simulation.files import MemoryFiles
from limosa.storage.files import FileLock, OpenFile
from limosa.tabular.bodies import Piece

NEVER = 2**62


class ProcessGone(BaseException):
    """The process is dead; no error handler may continue after this."""


class Errand:
    """Work on a thread of its own; only one such thread runs at a time."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._turn, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        name = type(self).__name__
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.is_over = False
        self._thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._act()
        except ProcessGone:
            pass
        except BaseException as error:
            self._error = error
        self.is_over = True
        self._waits.release()

    def pause(self) -> None:
        """Called by the work itself, to let other threads run."""
        if threading.current_thread() is self._thread:
            self._waits.release()
            self._turn.acquire()

    def go_on(self) -> None:
        """Continue the work until it pauses or ends."""
        self._turn.release()
        self._waits.acquire()
        if self.is_over:
            self._thread.join()
        if self._error is not None:
            raise self._error


class FragileFiles:
    """Files of a process that dies before one of its next operations, or in the middle of it."""

    def __init__(self, dice: Random) -> None:
        self._files = MemoryFiles()
        self._dice = dice
        self.left = NEVER
        """How many operations will still succeed."""
        self.errand: Errand | None = None

    def crash(self) -> None:
        self._files.crash(self._dice, process_only=self._dice.random() < 0.3)
        self.left = NEVER

    def happen(self, path: str, removes: bool = False) -> None:
        """Called before each operation that changes something."""
        # No pause while the log or VOLUME is written: other threads would wait for their locks.
        if self.errand is not None and (removes or path.split("/")[2] in ("replicas", "trash")):
            self.errand.pause()
        self.left -= 1
        if self.left < 0:
            raise ProcessGone

    def part(self, pieces: Sequence[Piece]) -> bytes:
        """The part of an append that is written if the process dies in the middle of it."""
        data = b"".join(pieces)
        return data[: self._dice.randint(0, len(data))] if self.left == -1 else b""

    # --- the port

    def create(self, path: str) -> "FragileFile":
        self.happen(path)
        return FragileFile(self, path, self._files.create(path))

    def reopen(self, path: str) -> "FragileFile":
        return FragileFile(self, path, self._files.reopen(path))

    def read(self, path: str) -> pa.Buffer:
        return self._files.read(path)

    def names(self, directory: str) -> list[str]:
        return self._files.names(directory)

    def make_directory(self, path: str) -> None:
        self.happen(path + "/")
        self._files.make_directory(path)

    def replace(self, source: str, target: str) -> None:
        self.happen(target)
        self._files.replace(source, target)

    def link(self, source: str, target: str) -> None:
        self.happen(target)
        self._files.link(source, target)

    def remove(self, path: str) -> None:
        self.happen(path, removes=True)
        self._files.remove(path)

    def sync_directory(self, path: str) -> None:
        self.happen(path + "/")
        self._files.sync_directory(path)

    def lock(self, path: str) -> FileLock:
        return self._files.lock(path)

    def device(self, path: str) -> int:
        return self._files.device(path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)


class FragileFile:
    """A file of a process that may die."""

    def __init__(self, files: FragileFiles, path: str, file: OpenFile) -> None:
        self._files = files
        self._path = path
        self._file = file

    def append(self, pieces: Sequence[Piece]) -> None:
        try:
            self._files.happen(self._path)
        except ProcessGone:
            self._file.append([self._files.part(pieces)])
            raise
        self._file.append(pieces)

    def overwrite(self, at: int, data: bytes) -> None:
        self._files.happen(self._path)
        self._file.overwrite(at, data)

    def sync(self) -> None:
        self._files.happen(self._path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()
