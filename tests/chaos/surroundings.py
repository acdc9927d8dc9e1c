"""What else runs on this machine because of us? Processes, found again wherever they got to.

Whoever is started during a run inherits a mark in its environment, and so do its children: Java and
Spark's workers, too, which have other parents and sessions by the time anybody looks for them.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.pipeline import application

MARK = "CHAOS_DIRECTORY"
TEMPORARY = "TMPDIR"
EXECUTOR_MODULE = "pyspark.daemon"

Role: TypeAlias = Literal["application", "java", "executor"]


class Process(Struct, frozen=True):
    id: int
    parent: int
    command: str


@contextmanager
def marked(directory: Path) -> Iterator[None]:
    """Whoever is started meanwhile belongs to this directory, and leaves its files there."""
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in (MARK, TEMPORARY)}
    os.environ.update({MARK: str(directory), TEMPORARY: str(temporary)})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def processes(ids: Iterable[int]) -> list[Process]:
    """Those of them that still run."""
    found = []
    for each in ids:
        with suppress(OSError):
            command = Path(f"/proc/{each}/cmdline").read_bytes()
            text = command.replace(b"\0", b" ").decode(errors="replace").strip()
            found.append(Process(each, parents([each]).get(each, 0), text))
    return found


def everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parents(ids: Iterable[int]) -> dict[int, int]:
    """By their children; who has ended has none."""
    found = {}
    for each in ids:
        with suppress(OSError):
            state, parent = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[each] = int(parent)
    return found


def descendants(*ancestors: int) -> list[Process]:
    """Children, their children, and so on."""
    known = parents(everybody())

    def descends(process: int) -> bool:
        while process in known:
            process = known[process]
            if process in ancestors:
                return True
        return False

    return processes(each for each in known if descends(each))


def of_role(role: Role, family: list[Process]) -> list[Process]:
    """Those of a coordinator's descendants that are what is asked for."""
    daemons = {each.id for each in family if EXECUTOR_MODULE in each.command}
    tells: dict[Role, Callable[[Process], bool]] = {
        "application": lambda each: each.command.endswith(application.__name__),
        "java": lambda each: Path(each.command.split(" ", 1)[0]).name == "java",
        "executor": lambda each: each.id in daemons and each.parent in daemons,
    }
    return [each for each in family if tells[role](each)]


def send(process: Process, number: signal.Signals) -> None:
    """It may have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(process.id, number)


def stray_processes(directory: Path) -> list[str]:
    """Processes that belong to this directory, or still work in it."""
    mark = f"{MARK}={directory}".encode()
    found = []
    for process in processes(everybody()):
        if process.id == os.getpid():
            continue
        with suppress(OSError):
            environment = Path(f"/proc/{process.id}/environ").read_bytes().split(b"\0")
            if mark in environment or str(directory) in process.command:
                found.append(f"{process.id}: {process.command}")
    return found
