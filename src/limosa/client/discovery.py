"""Where is the local cluster? `limosa up` records its addresses in a file.

The file says where commands connect to, and which secret they sign their tokens with. So a file
that is found rather than named must belong to the user: in a directory that several users can
write to, another user's file would make commands send their tokens to that user. This is Git's rule
for repositories. It holds for root, too, who otherwise would follow everybody's files.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from limosa.errors import BadInput, Refused

FILE = "cluster.json"
DEFAULT_DIRECTORY = "limosa-data"
VARIABLE = "LIMOSA_CLUSTER"
LOCAL = "local"
"""The default name of a cluster."""


class Local(Struct, frozen=True):
    """What `limosa up` records for clients on the same machine."""

    cluster: str
    nodes: dict[str, str]
    """Addresses by the nodes' names."""
    secret: str | None = None
    pid: int = 0
    metastore: str = ""
    directory: str = ""
    admin: str = ""
    """The URL of the admin service; empty if there is none."""


def find_local(directory: str | None = None) -> Local:
    """The cluster of a directory; by default of ./limosa-data, else the last that was started."""
    found = read_local(Path(directory)) if directory else _found(Path(DEFAULT_DIRECTORY))
    if found is None and not directory:
        found = _last()
    if found is not None:
        return found
    where = directory or f"./{DEFAULT_DIRECTORY}"
    raise Refused(
        f"no cluster is running in {where}",
        "start one with `limosa up`, or name a node's address with --cluster HOST:PORT",
    )


def check_owner(directory: Path, option: str = "--cluster") -> None:
    """Refuse a directory that was found, not named, and belongs to another user."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _check_owner(directory, os.stat(directory), f"{option} {directory.absolute()}")


def _check_owner(path: Path, known: os.stat_result, named: str) -> None:
    if known.st_uid != os.geteuid():
        raise Refused(
            f"{path} belongs to another user (uid {known.st_uid}), so it is not trusted",
            f"if you trust its owner, name it: {named}",
        )


def _found(directory: Path) -> Local | None:
    check_owner(directory)
    return read_local(directory, is_named=False)


def read_local(directory: Path, is_named: bool = True) -> Local | None:
    """None if there is no cluster, or if its process has ended."""
    path = directory / FILE
    try:
        with open(path, "rb") as file:
            if not is_named:
                named = f"--cluster {directory.absolute()}"
                _check_owner(path, os.fstat(file.fileno()), named)
            local = msgspec.json.decode(file.read(), type=Local)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise BadInput(
            f"{directory / FILE} can't be read: {error}", "restart the cluster"
        ) from None
    return local if _runs(local.pid) else None


def write_local(directory: Path, local: Local) -> None:
    replace_privately(directory / FILE, msgspec.json.encode(local))
    pointer = _pointer()
    try:
        pointer.parent.mkdir(parents=True, exist_ok=True)
        replace_privately(pointer, str(directory.absolute()).encode())
    except OSError:
        pass  # the home directory is not writable: users must name the cluster's directory


def forget_local(directory: Path) -> None:
    (directory / FILE).unlink(missing_ok=True)
    pointer = _pointer()
    try:
        if pointer.read_text() == str(directory.absolute()):
            pointer.unlink()
    except OSError:
        pass


def _last() -> Local | None:
    try:
        directory = _pointer().read_text()
    except OSError:
        return None
    return _found(Path(directory))


def _pointer() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "limosa" / "last-cluster"


def replace_privately(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably; only its owner can read it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        if pid > 0:
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user
    return True
