"""What does the storage need from a file system?

The interface is small, so that tests can make each operation fail: kills, torn writes and full
disks are all simulated here. Nothing is durable before it is synced: `sync` makes a file's bytes
durable, `sync_directory` its name.
"""

import errno
import fcntl
import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Protocol

import pyarrow as pa

from limosa.errors import VolumeInUse
from limosa.storage.mapping import mapped
from limosa.tabular.bodies import Piece

IOV_MAX = 1024
SYNCS_AT_ONCE = 8
_FULL = (errno.ENOSPC, errno.EDQUOT)


class OpenFile(Protocol):
    """A file that grows at its end."""

    def append(self, pieces: Sequence[Piece]) -> None:
        """Append all pieces; after an OSError, an unknown part of them was appended."""
        ...

    def overwrite(self, at: int, data: bytes) -> None:
        """Replace a few bytes within one sector, which changes atomically."""
        ...

    def truncate(self, size: int) -> None:
        """Cut off the end of the file; only bytes that were never synced."""
        ...

    def sync(self) -> None:
        """Make everything written durable. After a failure, no later sync can be trusted."""
        ...

    def close(self) -> None: ...


class FileLock(Protocol):
    def close(self) -> None: ...


class Files(Protocol):
    """Paths are strings with slashes; a missing file raises FileNotFoundError."""

    def create(self, path: str) -> OpenFile:
        """Create an empty file for one writer; it replaces an existing file of that name."""
        ...

    def reopen(self, path: str) -> OpenFile:
        """Open an existing file for appending."""
        ...

    def read(self, path: str) -> pa.Buffer:
        """The whole file. The buffer outlives the file's removal, and may show later changes."""
        ...

    def read_part(self, path: str, at: int, size: int) -> bytes:
        """A part of a file, shorter at its end. A disk error raises an OSError, whereas it ends the
        process that uses the buffer of `read`."""
        ...

    def names(self, directory: str) -> list[str]: ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless they exist."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename a file or directory atomically."""
        ...

    def link(self, source: str, target: str) -> None:
        """Create a second name for a file; on another file system, a durable copy."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its contents, if it exists."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def sync_together(self, syncs: Sequence[Callable[[], None]]) -> None:
        """Do syncs that need not wait for each other. Raises an error if one of them does, when
        all have ended."""
        ...

    def sync_directories(self, paths: Sequence[str]) -> None: ...

    def lock(self, path: str) -> FileLock:
        """Held until it is closed or the process ends; a second lock raises VolumeInUse."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def reserve(self, path: str, size: int) -> None:
        """Create a file that occupies so many bytes of the disk."""
        ...

    def device(self, path: str) -> int:
        """The id of the file system that holds the path."""
        ...


class PosixFile:
    """A file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def append(self, pieces: Sequence[Piece]) -> None:
        for start in range(0, len(pieces), IOV_MAX):
            views = [memoryview(piece).cast("B") for piece in pieces[start : start + IOV_MAX]]
            self._append_some(views)

    def _append_some(self, views: list[memoryview]) -> None:
        while views:
            written = os.writev(self._descriptor, views)
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]

    def overwrite(self, at: int, data: bytes) -> None:
        if os.pwrite(self._descriptor, data, at) != len(data):
            raise OSError(errno.EIO, "a short write")

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


class PosixFiles:
    """The file system of the operating system."""

    def create(self, path: str) -> PosixFile:
        # Not truncated: a reader may have mapped the file, or it may have another name.
        with suppress(FileNotFoundError):
            os.unlink(path)
        return PosixFile(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o640))

    def reopen(self, path: str) -> PosixFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.lseek(descriptor, 0, os.SEEK_END)
        return PosixFile(descriptor)

    def read(self, path: str) -> pa.Buffer:
        return mapped(path)

    def read_part(self, path: str, at: int, size: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, at)
        finally:
            os.close(descriptor)

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        try:
            os.link(source, target)
        except FileExistsError:
            if not os.path.samefile(source, target):
                raise
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            self._copy(source, target)

    def _copy(self, source: str, target: str) -> None:
        """Copy under a temporary name first, so that a partial copy is never taken for the file."""
        write_durably(self, f"{target}.new", [self.read(source)])
        os.replace(f"{target}.new", target)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            if not os.path.isdir(path):
                raise
            shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_together(self, syncs: Sequence[Callable[[], None]]) -> None:
        waiting = deque(syncs)
        errors: list[BaseException] = []

        def work() -> None:
            with suppress(IndexError):
                while True:
                    sync = waiting.popleft()
                    try:
                        sync()
                    except BaseException as error:
                        errors.append(error)

        helpers: list[Thread] = []
        with suppress(RuntimeError):  # too many threads: fewer do the work
            while len(helpers) < min(len(syncs), SYNCS_AT_ONCE) - 1:
                helper = Thread(target=work, name="limosa-sync", daemon=True)
                helper.start()
                helpers.append(helper)
        work()
        for helper in helpers:
            helper.join()
        if errors:
            raise errors[0]

    def sync_directories(self, paths: Sequence[str]) -> None:
        self.sync_together([partial(self.sync_directory, path) for path in paths])

    def lock(self, path: str) -> PosixFile:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise VolumeInUse(
                f"{path} is locked", "another process uses this volume: stop it first"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        return PosixFile(descriptor)  # the kernel unlocks it when the process ends for any reason

    def device(self, path: str) -> int:
        return os.stat(path).st_dev

    def reserve(self, path: str, size: int) -> None:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(file)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def is_full(error: OSError) -> bool:
    """The disk has no space left: nothing is broken, and the same operation may succeed later."""
    return error.errno in _FULL


def write_durably(files: Files, path: str, pieces: Sequence[Piece]) -> None:
    """Write and sync a new file; its name is durable after a sync of its directory."""
    file = files.create(path)
    try:
        file.append(pieces)
        file.sync()
    finally:
        file.close()


def replace_durably(files: Files, directory: str, name: str, pieces: Sequence[Piece]) -> None:
    """Replace a file; after a crash it has either its old or its new content."""
    replace_all_durably(files, [(directory, name, pieces)])


def replace_all_durably(files: Files, replaced: Sequence[tuple[str, str, Sequence[Piece]]]) -> None:
    """Replace files, given as directory, name and content. After a crash each has either its old or
    its new content."""
    unsynced: list[OpenFile] = []
    try:
        for directory, name, pieces in replaced:
            unsynced.append(files.create(f"{directory}/{name}.new"))
            unsynced[-1].append(pieces)
        files.sync_together([file.sync for file in unsynced])
    finally:
        for file in unsynced:
            file.close()
    for directory, name, _ in replaced:
        files.replace(f"{directory}/{name}.new", f"{directory}/{name}")
    files.sync_directories([directory for directory, _, _ in replaced])
