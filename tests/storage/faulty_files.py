"""What if this very file operation fails, or is the last thing that the process ever does?

`FaultyFiles` stands between the engine and any file system. It numbers and labels every operation
that changes something, and asks a plan before and after it, and in the middle of an append.
"""

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock as Mutex
from typing import Literal, NoReturn, TypeAlias

import pyarrow as pa

from limosa.storage.files import FileLock, Files, OpenFile
from limosa.tabular.bodies import Piece

Moment: TypeAlias = Literal["before", "middle", "after"]
Action: TypeAlias = Callable[[], None]

FOREVER = 2**62
SEGMENTS = ("flush", "merge", "copy")
KINDS = {"VOLUME": "volume", "LOCK": "lock", "MANIFEST": "manifest"}
DIRECTORIES = {"log": "log directory", "replicas": "replicas directory", "trash": "trash"}


class Died(BaseException):
    """The process is gone; no handler of errors may go on after this."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One that changes something: the `number`th of all, and the `nth` of those with its label."""

    label: str
    path: str
    number: int
    nth: int


Plan: TypeAlias = Callable[[Operation, Moment], None]
"""Returns, so all is well; or raises an OSError or Died; or kills the process."""


def kind_of(path: str) -> str:
    """What a path is for, by its last name and the directory that it is in."""
    directory, _, name = path.rpartition("/")
    parent = directory.rpartition("/")[2]
    name = name.removesuffix(".new")
    if parent == "trash":
        return "trash"
    if name.endswith(".log"):
        return "log"
    for why in SEGMENTS:
        if name.endswith(f".{why}.segment"):
            return f"{why} segment"
    if parent == "replicas":
        return "replica directory"
    return KINDS.get(name) or DIRECTORIES.get(name, "other")


# ------------------------------------------------------------------------------------- actions


def die() -> None:
    """In memory: nothing that the process still tries has any effect."""
    raise Died


def kill() -> None:
    """In a process of its own: the real thing."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(code: int) -> Action:
    def action() -> NoReturn:
        raise OSError(code, os.strerror(code))

    return action


# ------------------------------------------------------------------------------------- plans


def nothing_happens(operation: Operation, moment: Moment) -> None:
    """The plan of a good day."""


def at_operation(number: int, moment: Moment, action: Action) -> Plan:
    """At the so-manyth operation of all. One without a middle acts after it instead."""

    def plan(operation: Operation, now: Moment) -> None:
        if operation.number == number and now == _moment_of(operation, moment):
            action()

    return plan


def at_label(label: str, nth: int, moment: Moment, action: Action) -> Plan:
    """At the so-manyth operation with this label."""

    def plan(operation: Operation, now: Moment) -> None:
        here = operation.label == label and operation.nth == nth
        if here and now == _moment_of(operation, moment):
            action()

    return plan


def fails(label: str, code: int, nth: int = 1, times: int = 1, moment: Moment = "before") -> Plan:
    """Operations with this label fail from the nth on, so many times; then all is well again."""

    def plan(operation: Operation, now: Moment) -> None:
        here = operation.label == label and nth <= operation.nth < nth + times
        if here and now == _moment_of(operation, moment):
            fail(code)()

    return plan


def short_write(label: str, nth: int = 1, code: int = errno.ENOSPC, times: int = 1) -> Plan:
    """Half of the bytes get there, then the disk is full."""
    assert label.startswith("append "), "only an append can be short"
    return fails(label, code, nth, times, "middle")


def together(*plans: Plan) -> Plan:
    def plan(operation: Operation, now: Moment) -> None:
        for each in plans:
            each(operation, now)

    return plan


def _moment_of(operation: Operation, moment: Moment) -> Moment:
    is_append = operation.label.startswith("append ")
    return "after" if moment == "middle" and not is_append else moment


# ------------------------------------------------------------------------------------- the port


class FaultyFile:
    def __init__(self, files: "FaultyFiles", path: str, inner: OpenFile) -> None:
        self._files = files
        self._path = path
        self._inner = inner
        self._sync_failed = False

    def append(self, pieces: Sequence[Piece]) -> None:
        data = b"".join(pieces)
        half = len(data) // 2
        operation = self._files.begin("append", self._path)
        self._inner.append([data[:half]])
        self._files.ask(operation, "middle")
        self._inner.append([data[half:]])
        self._files.ask(operation, "after")

    def overwrite(self, at: int, data: bytes) -> None:
        operation = self._files.begin("overwrite", self._path)
        self._inner.overwrite(at, data)
        self._files.ask(operation, "after")

    def truncate(self, size: int) -> None:
        operation = self._files.begin("truncate", self._path)
        self._inner.truncate(size)
        self._files.ask(operation, "after")

    def sync(self) -> None:
        """After a failure the kernel forgets what it could not write: no later sync may succeed."""
        if self._sync_failed:
            fail(errno.EIO)()
        try:
            operation = self._files.begin("sync", self._path)
            self._inner.sync()
            self._files.ask(operation, "after")
        except OSError:
            self._sync_failed = True
            raise

    def close(self) -> None:
        """Also for a dead process, as the kernel does."""
        self._files.close(self)

    def close_inner(self) -> None:
        self._inner.close()


class FaultyLock:
    def __init__(self, files: "FaultyFiles", inner: FileLock) -> None:
        self._files = files
        self._inner = inner

    def close(self) -> None:
        self._files.close(self)

    def close_inner(self) -> None:
        self._inner.close()


class FaultyFiles:
    """One process's view of a file system: once it has died, it can do nothing any more."""

    def __init__(self, inner: Files, plan: Plan = nothing_happens) -> None:
        self._inner = inner
        self._mutex = Mutex()
        self._open: dict[FaultyFile | FaultyLock, None] = {}
        self.dead = False
        self.arm(plan)

    def arm(self, plan: Plan) -> None:
        """From now on this plan, and all counts start anew."""
        with self._mutex:
            self.plan = plan
            self.seen: Counter[str] = Counter()
            self.trace: list[str] = []
            """The label of each operation: the nth is at n - 1."""

    def bury(self) -> None:
        """Close what the dead process left open, as the kernel does; its threads have ended."""
        self.dead = True
        for handle in list(self._open):
            self.close(handle)

    # --- asking the plan

    def begin(self, name: str, path: str) -> Operation:
        label = f"{name} {kind_of(path)}"
        with self._mutex:
            self._check()
            self.seen[label] += 1
            self.trace.append(label)
            operation = Operation(label, path, len(self.trace), self.seen[label])
        self.ask(operation, "before")
        return operation

    def ask(self, operation: Operation, moment: Moment) -> None:
        self._check()
        try:
            self.plan(operation, moment)
        except Died:
            self.dead = True
            raise

    def _check(self) -> None:
        if self.dead:
            raise Died

    def close(self, handle: FaultyFile | FaultyLock) -> None:
        with self._mutex:
            was_open = handle in self._open
            self._open.pop(handle, None)
        if was_open or not self.dead:
            handle.close_inner()

    def _opened(self, path: str, inner: OpenFile) -> FaultyFile:
        file = FaultyFile(self, path, inner)
        with self._mutex:
            self._open[file] = None
        return file

    # --- what changes something

    def create(self, path: str) -> FaultyFile:
        operation = self.begin("create", path)
        file = self._opened(path, self._inner.create(path))
        try:
            self.ask(operation, "after")
        except OSError:
            file.close()
            raise
        return file

    def make_directory(self, path: str) -> None:
        operation = self.begin("make_directory", path)
        self._inner.make_directory(path)
        self.ask(operation, "after")

    def replace(self, source: str, target: str) -> None:
        """Its label tells the kind of the target."""
        operation = self.begin("replace", target)
        self._inner.replace(source, target)
        self.ask(operation, "after")

    def link(self, source: str, target: str) -> None:
        operation = self.begin("link", target)
        self._inner.link(source, target)
        self.ask(operation, "after")

    def remove(self, path: str) -> None:
        operation = self.begin("remove", path)
        self._inner.remove(path)
        self.ask(operation, "after")

    def sync_directory(self, path: str) -> None:
        operation = self.begin("sync_directory", path)
        self._inner.sync_directory(path)
        self.ask(operation, "after")

    def sync_together(self, syncs: Sequence[Callable[[], None]]) -> None:
        for sync in syncs:
            sync()

    def sync_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.sync_directory(path)

    # --- what does not

    def reopen(self, path: str) -> FaultyFile:
        self._check()
        return self._opened(path, self._inner.reopen(path))

    def read(self, path: str) -> pa.Buffer:
        self._check()
        return self._inner.read(path)

    def read_part(self, path: str, at: int, size: int) -> bytes:
        self._check()
        return self._inner.read_part(path, at, size)

    def reserve(self, path: str, size: int) -> None:
        operation = self.begin("reserve", path)
        self._inner.reserve(path, size)
        self.ask(operation, "after")

    def names(self, directory: str) -> list[str]:
        self._check()
        return self._inner.names(directory)

    def lock(self, path: str) -> FaultyLock:
        self._check()
        lock = FaultyLock(self, self._inner.lock(path))
        with self._mutex:
            self._open[lock] = None
        return lock

    def device(self, path: str) -> int:
        self._check()
        return self._inner.device(path)

    def free_bytes(self, path: str) -> int:
        self._check()
        return self._inner.free_bytes(path)
