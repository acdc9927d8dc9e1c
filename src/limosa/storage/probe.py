"""Which disks do not answer? A process that opened a volume on such a disk would hang with it."""

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from limosa.storage.files import PosixFiles, write_durably

PROBE = "PROBE"


def silent_volumes(directories: Mapping[str, str], seconds: float) -> list[str]:
    """The names of the volumes that do not sync a small file within so many seconds.

    A volume that fails at once is not among them: opening it says why. Nor is a new one.
    """
    there = {name: path for name, path in directories.items() if os.path.isdir(path)}
    threads = {
        name: threading.Thread(target=_write, args=(path,), name=f"probe-{name}", daemon=True)
        for name, path in there.items()
    }
    deadline = time.monotonic() + seconds
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    return [name for name, thread in threads.items() if thread.is_alive()]


def _write(directory: str) -> None:
    files, path = PosixFiles(), f"{directory}/{PROBE}"
    with suppress(OSError):
        write_durably(files, path, [b"does the disk answer?"])
        files.remove(path)
