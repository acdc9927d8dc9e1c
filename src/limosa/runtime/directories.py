"""Who can look into the directories of a cluster? Only their owner: rows and secrets are there."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from limosa.errors import UnusableFile

PRIVATE = 0o700
MARKS = frozenset({"LOCK", "NODE", "VOLUME", "local.json", "volume", "coordinator.log"})
"""Names in a directory that a cluster, a node, a volume or their logs use."""


def make_private(path: str, log: Callable[..., None]) -> None:
    """Create a directory that only its owner can enter.

    An existing one that others can enter, as earlier versions made it, is closed to them. If it is
    not Limosa's alone, or not this user's, that is only reported: what Limosa creates in it is
    private anyway.
    """
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            os.mkdir(path, PRIVATE)
        except FileExistsError:
            _close_to_others(path, log)
    except OSError as error:
        raise UnusableFile(
            f"the directory {path} can't be used: {error.strerror}", "use another directory"
        ) from None


def _close_to_others(path: str, log: Callable[..., None]) -> None:
    known = os.stat(path)
    mode = stat.S_IMODE(known.st_mode)
    if not stat.S_ISDIR(known.st_mode) or not mode & 0o077:
        return
    if _is_limosas(path):
        with suppress(PermissionError):
            os.chmod(path, mode & PRIVATE)
            log("closed a directory to other users", directory=path, mode=f"{mode:04o}")
            return
    log("other users can enter a directory", directory=path, mode=f"{mode:04o}")


def _is_limosas(path: str) -> bool:
    found = os.listdir(path)
    return not found or not MARKS.isdisjoint(found)
