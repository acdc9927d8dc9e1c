"""What does a file system lose when the power fails? A file system in memory that loses it.

It keeps everything that was synced, and an arbitrary part of the rest:

    names    of each directory, a prefix of its changes since the last sync; a replace happens
             completely or not at all, also between two directories
    bytes    of each file, a prefix of the appends since the last sync, possibly with a range of
             sectors that were never written; each overwrite completely or not at all

Syncing a file does not sync its name. If only the process dies, all data stays, as in the page
cache, but is no more durable than before.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from threading import RLock
from typing import Final, TypeAlias

import pyarrow as pa

from limosa.errors import VolumeInUse
from limosa.tabular.bodies import Piece

SECTOR_BYTES: Final = 512
TORN: Final = 0.4
"""How often unsynced bytes that survived have a hole."""


# ------------------------------------------------------------------------------------- bytes


@dataclass(frozen=True, slots=True)
class _Appended:
    data: bytes


@dataclass(frozen=True, slots=True)
class _Overwritten:
    at: int
    data: bytes

    @property
    def end(self) -> int:
        return self.at + len(self.data)


_Write: TypeAlias = _Appended | _Overwritten


class MemoryInode:
    """An inode: what the process sees, what the disk has, and what happened in between."""

    __slots__ = ("durable", "links", "live", "unsynced")

    def __init__(self) -> None:
        self.live = bytearray()
        self.durable = bytearray()
        self.unsynced: list[_Write] = []
        self.links = 0
        """How many live names the file has."""

    def write(self, write: _Write) -> None:
        _apply(self.live, write)
        self.unsynced.append(write)

    def sync(self) -> None:
        for write in self.unsynced:
            _apply(self.durable, write)
        self.unsynced.clear()

    def crash(self, dice: Random) -> None:
        if self.unsynced:
            self.durable = _survivor(self.durable, self.unsynced, dice)
            self.live = bytearray(self.durable)
            self.unsynced.clear()


def _apply(content: bytearray, write: _Write) -> None:
    match write:
        case _Appended(data):
            content += data
        case _Overwritten(at, data):
            content[at : write.end] = data


def _survivor(durable: bytearray, unsynced: Sequence[_Write], dice: Random) -> bytearray:
    """What a power loss leaves of a file: synced bytes never change by themselves."""
    content, safe = bytearray(durable), len(durable)
    appended = b"".join(write.data for write in unsynced if isinstance(write, _Appended))
    content += appended[: _some(len(appended), dice)]
    for write in unsynced:
        if isinstance(write, _Overwritten) and dice.random() < 0.5 and write.end <= len(content):
            _apply(content, write)
    _tear(content, safe, dice)
    return content


def _some(count: int, dice: Random) -> int:
    """A random part of them, but often none or all."""
    roll = dice.random()
    if roll < 0.25:
        return 0
    return count if roll < 0.5 else dice.randint(0, count)


def _tear(content: bytearray, safe: int, dice: Random) -> None:
    """Leave some sectors unwritten (zeros or garbage), since a disk writes in any order."""
    if len(content) == safe or dice.random() >= TORN:
        return
    last = (len(content) - 1) // SECTOR_BYTES
    first_torn = dice.randint(safe // SECTOR_BYTES, last)
    last_torn = dice.randint(first_torn, last)
    start = max(safe, first_torn * SECTOR_BYTES)
    end = min(len(content), (last_torn + 1) * SECTOR_BYTES)
    zeros = dice.random() < 0.5
    content[start:end] = bytes(end - start) if zeros else dice.randbytes(end - start)


# ------------------------------------------------------------------------------------- names


class _Directory:
    """Names as the process sees them, as the disk has them, and what happened in between."""

    __slots__ = ("durable", "live", "unsynced")

    def __init__(self) -> None:
        self.live: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.unsynced: list[_Renaming] = []

    def settle(self, count: int) -> None:
        """Make the first so many changes durable."""
        for renaming in self.unsynced[:count]:
            for name, node in renaming.edits[self].items():
                if node is None:
                    self.durable.pop(name, None)
                else:
                    self.durable[name] = node
        del self.unsynced[:count]

    def crash(self) -> None:
        self.live = dict(self.durable)
        self.unsynced.clear()

    def nodes(self) -> "Iterator[_Node]":
        """Everything that has a name here, had one, or may get one back."""
        for names in (self.live, self.durable):
            yield from (names[name] for name in sorted(names))
        for renaming in self.unsynced:
            yield from (node for node in renaming.edits[self].values() if node is not None)


_Node: TypeAlias = MemoryInode | _Directory


@dataclass(frozen=True, slots=True, eq=False)
class _Renaming:
    """One atomic change of names, in one or two directories; None removes a name."""

    edits: dict[_Directory, dict[str, _Node | None]]


def _settle(counts: dict[_Directory, int]) -> None:
    """Make so many changes of each directory durable; a replace in both of its directories."""
    queue = list(counts)
    while queue:
        directory = queue.pop()
        for renaming in directory.unsynced[: counts[directory]]:
            for other in renaming.edits:
                if other is directory or renaming not in other.unsynced:
                    continue
                needed = other.unsynced.index(renaming) + 1
                if counts.get(other, 0) < needed:
                    counts[other] = needed
                    queue.append(other)
    for directory, count in counts.items():
        directory.settle(count)


# ------------------------------------------------------------------------------------- the port


class MemoryFile:
    """A file handle, which becomes invalid when its process dies."""

    def __init__(self, files: "MemoryFiles", file: MemoryInode) -> None:
        self._files = files
        self._file = file
        self._life = files._life
        self._is_open = True

    def append(self, pieces: Sequence[Piece]) -> None:
        data = b"".join(pieces)
        with self._files._guard:
            self._check()
            self._files._append(self._file, data)

    def overwrite(self, at: int, data: bytes) -> None:
        with self._files._guard:
            self._check()
            end = at + len(data)
            assert 0 <= at < end <= len(self._file.live), "only existing bytes can be overwritten"
            assert at // SECTOR_BYTES == (end - 1) // SECTOR_BYTES, "not within one sector"
            self._file.write(_Overwritten(at, bytes(data)))

    def truncate(self, size: int) -> None:
        with self._files._guard:
            self._check()
            self._files._truncate(self._file, size)

    def sync(self) -> None:
        with self._files._guard:
            self._check()
            self._file.sync()

    def close(self) -> None:
        """Handles of a dead process are closed already."""
        with self._files._guard:
            if self._life == self._files._life:
                self._check()
                self._is_open = False

    def _check(self) -> None:
        if self._life != self._files._life:
            raise OSError(errno.EBADF, "this handle is of a process that crashed")
        if not self._is_open:
            raise OSError(errno.EBADF, "this handle was closed")


class MemoryLock:
    """Held until it is closed or the process crashes."""

    def __init__(self, held: "dict[MemoryInode, MemoryLock]", file: MemoryInode) -> None:
        self._held = held
        self._file = file
        held[file] = self

    def close(self) -> None:
        if self._held.get(self._file) is self:
            del self._held[self._file]


class MemoryFiles:
    """A file system in memory; `directories` exist from the start, durably.

    Relative paths start at the root, so `a/b` and `/a/b` are the same.
    """

    def __init__(self, directories: Sequence[str] = (), capacity_bytes: int = 2**50) -> None:
        self.capacity_bytes = capacity_bytes
        self._life = 0
        """The number of crashes: a handle is valid only until the next one."""
        self._guard = RLock()
        self._root = _Directory()
        self._used = 0
        self._locks: dict[MemoryInode, MemoryLock] = {}
        for path in directories:
            self.make_directory(path)
        self.write_back()

    # --- files

    def create(self, path: str) -> MemoryFile:
        with self._guard:
            directory, name = self._place(path)
            if name in directory.live:
                self._file(path)  # raises for a directory
                self._remove(directory, name)
            return self.handle(path, self._file_at(path))

    def reopen(self, path: str) -> MemoryFile:
        with self._guard:
            return self.handle(path, self._file(path))

    def handle(self, path: str, file: MemoryInode) -> MemoryFile:
        return MemoryFile(self, file)

    def read(self, path: str) -> pa.Buffer:
        with self._guard:
            return pa.py_buffer(bytes(self._file(path).live))

    def read_part(self, path: str, at: int, size: int) -> bytes:
        with self._guard:
            return bytes(self._file(path).live[at : at + size])

    def _append(self, file: MemoryInode, data: bytes) -> None:
        """Append as much as fits: a full disk keeps the part that fitted."""
        room = max(0, self.capacity_bytes - self._used)
        written = data[:room] if file.links else data
        if written:
            file.write(_Appended(written))
            self._used += len(written) if file.links else 0
        if len(written) < len(data):
            raise _refusal(errno.ENOSPC)

    def _truncate(self, file: MemoryInode, size: int) -> None:
        assert len(file.durable) <= size <= len(file.live), "only unsynced bytes can be cut off"
        self._used -= len(file.live) - size if file.links else 0
        kept = bytes(file.live[len(file.durable) : size])
        others = [write for write in file.unsynced if isinstance(write, _Overwritten)]
        del file.live[size:]
        file.unsynced = [_Appended(kept), *(write for write in others if write.end <= size)]

    def reserve(self, path: str, size: int) -> None:
        file = self.create(path)
        try:
            file.append([bytes(size)])
        except OSError:
            self.remove(path)
            raise
        finally:
            file.close()

    def lock(self, path: str) -> MemoryLock:
        with self._guard:
            file = self._file_at(path)
            if file in self._locks:
                raise VolumeInUse(
                    f"{path} is locked", "another process uses this volume: stop it first"
                )
            return MemoryLock(self._locks, file)

    def device(self, path: str) -> int:
        return 1

    def free_bytes(self, path: str) -> int:
        with self._guard:
            self._node(path)
            return max(0, self.capacity_bytes - self._used)

    def _file_at(self, path: str) -> MemoryInode:
        """The existing file, or a new one."""
        directory, name = self._place(path)
        if name not in directory.live:
            file = MemoryInode()
            self._rename({directory: {name: file}})
            return file
        return self._file(path)

    # --- names

    def names(self, directory: str) -> list[str]:
        with self._guard:
            return sorted(self._directory(directory).live)

    def make_directory(self, path: str) -> None:
        with self._guard:
            parts = _parts(path)
            for depth in range(1, len(parts) + 1):
                directory, name = self._place("/".join(parts[:depth]))
                if name not in directory.live:
                    self._rename({directory: {name: _Directory()}})
                elif not isinstance(directory.live[name], _Directory):
                    raise _refusal(errno.EEXIST, path)

    def replace(self, source: str, target: str) -> None:
        with self._guard:
            old, old_name = self._place(source)
            new, new_name = self._place(target)
            node = self._node(source)
            there = new.live.get(new_name)
            if there is node:
                return  # two names of one file: both stay, as POSIX requires
            if isinstance(node, _Directory):
                _check_target_of_directory(node, there, new, target)
            elif isinstance(there, _Directory):
                raise _refusal(errno.EISDIR, target)
            if old is new:
                self._rename({old: {old_name: None, new_name: node}})
            else:
                self._rename({old: {old_name: None}, new: {new_name: node}})

    def link(self, source: str, target: str) -> None:
        with self._guard:
            file = self._file(source)
            directory, name = self._place(target)
            if name not in directory.live:
                self._rename({directory: {name: file}})
            elif directory.live[name] is not file:
                raise _refusal(errno.EEXIST)

    def remove(self, path: str) -> None:
        """A directory is emptied first, name by name; a crash may happen in between."""
        with self._guard:
            try:
                directory, name = self._place(path)
            except FileNotFoundError:
                return
            if name in directory.live:
                self._remove(directory, name)

    def _remove(self, directory: _Directory, name: str) -> None:
        node = directory.live[name]
        if isinstance(node, _Directory):
            for inner in sorted(node.live):
                self._remove(node, inner)
        self._rename({directory: {name: None}})

    def sync_directory(self, path: str) -> None:
        with self._guard:
            directory = self._directory(path)
            _settle({directory: len(directory.unsynced)})

    def sync_together(self, syncs: Sequence[Callable[[], None]]) -> None:
        for sync in syncs:
            sync()

    def sync_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.sync_directory(path)

    def _rename(self, edits: dict[_Directory, dict[str, _Node | None]]) -> None:
        renaming = _Renaming(edits)
        for directory, names in edits.items():
            directory.unsynced.append(renaming)
            for name, node in names.items():
                self._unlink(directory.live.pop(name, None))
                if node is not None:
                    directory.live[name] = node
                    self._count_link(node)

    def _unlink(self, node: _Node | None) -> None:
        if isinstance(node, MemoryInode):
            node.links -= 1
            self._used -= 0 if node.links else len(node.live)

    def _count_link(self, node: _Node) -> None:
        if isinstance(node, MemoryInode):
            self._used += 0 if node.links else len(node.live)
            node.links += 1

    # --- finding

    def _place(self, path: str) -> tuple[_Directory, str]:
        """The directory that a path is in, and its last name."""
        parts = _parts(path)
        if not parts:
            raise _refusal(errno.EBUSY, path)
        node: _Node = self._root
        for part in parts[:-1]:
            if not isinstance(node, _Directory):
                raise _refusal(errno.ENOTDIR, path)
            if part not in node.live:
                raise _refusal(errno.ENOENT, path)
            node = node.live[part]
        if not isinstance(node, _Directory):
            raise _refusal(errno.ENOTDIR, path)
        return node, parts[-1]

    def _node(self, path: str) -> _Node:
        if not _parts(path):
            return self._root
        directory, name = self._place(path)
        if name not in directory.live:
            raise _refusal(errno.ENOENT, path)
        return directory.live[name]

    def _file(self, path: str) -> MemoryInode:
        node = self._node(path)
        if not isinstance(node, MemoryInode):
            raise _refusal(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise _refusal(errno.ENOTDIR, path)
        return node

    def _walk(self) -> Iterator[tuple[str, MemoryInode]]:
        """Every live file by its path; a file with two names comes twice."""
        return _walk(self._root, "")

    def _directories(self) -> list[_Directory]:
        """Every directory that may survive a crash, in an order that depends only on names."""
        found: dict[_Directory, None] = {self._root: None}
        stack = [self._root]
        while stack:
            for node in stack.pop().nodes():
                if isinstance(node, _Directory) and node not in found:
                    found[node] = None
                    stack.append(node)
        return list(found)

    # --- faults

    def write_back(self) -> None:
        """The kernel writes everything back without a sync: all data is durable."""
        with self._guard:
            for directory in self._directories():
                directory.settle(len(directory.unsynced))
            for _, file in self._walk():
                file.sync()

    def crash(self, dice: Random, process_only: bool = False) -> None:
        """Kill the process, with its handles and locks; or the machine loses power."""
        with self._guard:
            self._life += 1
            self._locks.clear()
            if not process_only:
                self._lose_power(dice)

    def _lose_power(self, dice: Random) -> None:
        directories = self._directories()
        _settle({each: _some(len(each.unsynced), dice) for each in directories if each.unsynced})
        for directory in directories:
            directory.crash()
        files = dict.fromkeys(file for _, file in self._walk())
        for file in files:
            file.crash(dice)
            file.links = 0
        for _, file in self._walk():
            file.links += 1
        self._used = sum(len(file.live) for file in files)


def _refusal(code: int, path: str | None = None) -> OSError:
    """An OSError; Python picks its subclass, such as FileNotFoundError, by the code."""
    return OSError(code, os.strerror(code), path)


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    assert ".." not in parts, "a path only goes down"
    return parts


def _walk(directory: _Directory, path: str) -> Iterator[tuple[str, MemoryInode]]:
    for name in sorted(directory.live):
        node = directory.live[name]
        if isinstance(node, _Directory):
            yield from _walk(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", node


def _check_target_of_directory(
    node: _Directory, there: _Node | None, into: _Directory, target: str
) -> None:
    if isinstance(there, MemoryInode):
        raise _refusal(errno.ENOTDIR, target)
    if there is not None and there.live:
        raise _refusal(errno.ENOTEMPTY, target)
    if into is node or _is_below(into, node):
        raise _refusal(errno.EINVAL, target)


def _is_below(inner: _Directory, outer: _Directory) -> bool:
    return any(
        node is inner or _is_below(inner, node)
        for node in outer.live.values()
        if isinstance(node, _Directory)
    )
