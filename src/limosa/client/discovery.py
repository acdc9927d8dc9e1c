"""Where is the cluster? At an address, in a directory of `limosa up`, or the last one started."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from limosa.errors import BadInput, Refused

FILE = "cluster.json"
DEFAULT_DIRECTORY = "limosa-data"
VARIABLE = "LIMOSA_CLUSTER"
LOCAL = "local"
"""What a cluster is called if nobody names it."""


class Local(Struct, frozen=True):
    """What `limosa up` writes down for those who look for it."""

    cluster: str
    nodes: dict[str, str]
    """Addresses by the nodes' names."""
    secret: str | None = None
    pid: int = 0
    metastore: str = ""
    directory: str = ""
    admin: str = ""
    """Where its admin service listens, if there is one."""


def find_local(directory: str | None = None) -> Local:
    """The cluster of a directory; without one, of ./limosa-data, or the last that was started."""
    places = [Path(directory)] if directory else [Path(DEFAULT_DIRECTORY)]
    for place in places:
        found = read_local(place)
        if found is not None:
            return found
    last = None if directory else _last()
    if last is not None:
        return last
    where = directory or f"./{DEFAULT_DIRECTORY}"
    raise Refused(
        f"no cluster runs from {where}",
        "start one with `limosa up`, or name a node's address with --cluster HOST:PORT",
    )


def read_local(directory: Path) -> Local | None:
    """None: there is none, or its process is gone."""
    try:
        local = msgspec.json.decode((directory / FILE).read_bytes(), type=Local)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise BadInput(
            f"{directory / FILE} can't be read: {error}", "start the cluster anew"
        ) from None
    return local if _runs(local.pid) else None


def write_local(directory: Path, local: Local) -> None:
    """For others to find; replaced whole, readable by its owner only."""
    _replace(directory / FILE, msgspec.json.encode(local))
    pointer = _pointer()
    try:
        pointer.parent.mkdir(parents=True, exist_ok=True)
        _replace(pointer, str(directory.absolute()).encode())
    except OSError:
        pass  # a home that can't be written to: then the directory must be named


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
    return read_local(Path(directory))


def _pointer() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "limosa" / "last-cluster"


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)


def _runs(pid: int) -> bool:
    if pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
