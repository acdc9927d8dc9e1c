"""How does a node with a disk that may hang run? As `limosa serve node`: no sync of a volume ends
while the volume's directory has a file `HANGS`."""

import os
import sys
import time
from pathlib import Path

from limosa.cli.main import main
from limosa.storage.files import PosixFile

HANGS = "HANGS"


def waits_for_disk(descriptor: int) -> bool:
    path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    return any((above / HANGS).exists() for above in list(path.parents)[:3])


def sync(file: PosixFile) -> None:
    while waits_for_disk(file._descriptor):
        time.sleep(0.02)
    os.fdatasync(file._descriptor)


if __name__ == "__main__":
    setattr(PosixFile, "sync", sync)  # noqa: B010
    sys.exit(main())
