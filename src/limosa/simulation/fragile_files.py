"""How does a process die in the middle of its work? At any operation on its files.

Background work of a process, an errand, has a thread of its own. It pauses at file operations and
continues when the dice say so; only one thread runs at a time, so that a seed replays everything.
"""

import threading
from collections.abc import Callable, Sequence
from random import Random

from limosa.simulation.files import MemoryFile, MemoryFiles, MemoryInode
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


class FragileFiles(MemoryFiles):
    """Files of a process that dies before one of its next operations, or in the middle of it."""

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self._dice = dice
        self.left = NEVER
        """How many operations will still succeed."""
        self.errand: Errand | None = None

    def die(self) -> None:
        self.crash(self._dice, process_only=self._dice.random() < 0.3)
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

    # --- the operations that change something

    def handle(self, path: str, file: MemoryInode) -> "FragileFile":
        return FragileFile(self, path, file)

    def create(self, path: str) -> MemoryFile:
        self.happen(path)
        return super().create(path)

    def make_directory(self, path: str) -> None:
        self.happen(path + "/")
        super().make_directory(path)

    def replace(self, source: str, target: str) -> None:
        self.happen(target)
        super().replace(source, target)

    def link(self, source: str, target: str) -> None:
        self.happen(target)
        super().link(source, target)

    def remove(self, path: str) -> None:
        self.happen(path, removes=True)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.happen(path + "/")
        super().sync_directory(path)


class FragileFile(MemoryFile):
    """A file of a process that may die."""

    def __init__(self, files: FragileFiles, path: str, file: MemoryInode) -> None:
        super().__init__(files, file)
        self._process = files
        self._path = path

    def append(self, pieces: Sequence[Piece]) -> None:
        try:
            self._process.happen(self._path)
        except ProcessGone:
            super().append([self._process.part(pieces)])
            raise
        super().append(pieces)

    def overwrite(self, at: int, data: bytes) -> None:
        self._process.happen(self._path)
        super().overwrite(at, data)

    def sync(self) -> None:
        self._process.happen(self._path)
        super().sync()
