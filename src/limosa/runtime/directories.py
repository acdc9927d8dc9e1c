"""Who can look into the directories of a cluster? Only their owner: rows and secrets are there."""

import os
import stat
from collections.abc import Callable

from limosa.errors import UnusableFile

PRIVATE = 0o700


def make_private(path: str, log: Callable[..., None]) -> None:
    """Create a directory that only its owner can enter. An existing one that others can enter, as
    earlier versions made it, is closed to them if it belongs to this user."""
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
    try:
        os.chmod(path, mode & PRIVATE)
    except PermissionError:
        log("other users can enter a directory", directory=path, mode=f"{mode:04o}")
    else:
        log("closed a directory to other users", directory=path, mode=f"{mode:04o}")
