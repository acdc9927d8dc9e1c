"""How does a node with small files run? As `limosa serve node`, with other limits of its storage.

A few thousand rows are enough for segments and for several log files. While the file `FULL` lies in
the node's directory, its disk is full: no file grows. With `QUOTA` it is the same, but the disk
says that it has plenty of space.
"""

import errno
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from limosa.cli.main import main
from limosa.runtime import processes
from limosa.storage import store
from limosa.storage.files import PosixFile, PosixFiles
from limosa.storage.volume import StorageSettings
from limosa.tabular.bodies import Piece

SMALL = StorageSettings(
    log_file_bytes=256 << 10,
    log_bytes_max=4 << 20,
    replica_memory_bytes=512 << 10,
    reserve_bytes=64 << 10,
)
FULL, QUOTA = "FULL", "QUOTA"


class FillableFile(PosixFile):
    """A file that takes a part of what is appended if its disk is full."""

    def __init__(self, descriptor: int, files: "FillableFiles") -> None:
        super().__init__(descriptor)
        self._files = files

    def append(self, pieces: Sequence[Piece]) -> None:
        if self._files.is_full:
            super().append([b"".join(pieces)[:100]])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(pieces)


class FillableFiles(PosixFiles):
    """The files of one node."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def is_full(self) -> bool:
        return any((self._directory / name).exists() for name in (FULL, QUOTA))

    def create(self, path: str) -> PosixFile:
        return self._fillable(super().create(path))

    def reopen(self, path: str) -> PosixFile:
        return self._fillable(super().reopen(path))

    def _fillable(self, file: PosixFile) -> FillableFile:
        fillable = FillableFile(os.dup(file._descriptor), self)
        file.close()
        return fillable

    def reserve(self, path: str, size: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().reserve(path, size)

    def free_bytes(self, path: str) -> int:
        return 0 if (self._directory / FULL).exists() else super().free_bytes(path)


if __name__ == "__main__":
    directory = Path(sys.argv[sys.argv.index("--data") + 1])
    setattr(store, "PosixFiles", lambda: FillableFiles(directory))  # noqa: B010
    setattr(processes, "NodeConfig", partial(processes.NodeConfig, storage=SMALL))  # noqa: B010
    sys.exit(main())
