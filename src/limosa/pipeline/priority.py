"""Which share of the processors do copies get? A small one: clients' requests come first.

Spark starts dozens of threads, and while Java starts they are all busy: of all moments of a move,
this one delays clients the most. Therefore Spark and all of its processes run in a cgroup of their
own, with a low weight. The weight decides only while others want the processors, too, and is not so
low that a copy starves. Where no cgroup can be made, each process has a lower priority instead.

    cgroup v2    where the controller `cpu` is delegated to this user, or for root
    cgroup v1    for root, usually
    otherwise    nice
"""

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CPU_WEIGHT = "25"
"""In cgroup v2, where others have 100."""
CPU_SHARES = "512"
"""In cgroup v1, where a group or a process beside it has 1024."""
NICENESS = 10
"""A thread gets about a tenth of what a thread of a client's request gets."""
EMPTY_SECONDS = 2.0
LOOK_SECONDS = 0.02
MOUNTS = Path("/proc/self/mounts")
GROUPS = Path("/proc/self/cgroup")


def make_group(scratch: str) -> str:
    """The directory of a cgroup with a low weight; empty: none can be made here."""
    for parent, setting, value in _parents():
        group = parent / group_name(scratch)
        try:
            group.mkdir(exist_ok=True)
            (group / setting).write_text(value)
        except OSError:
            with suppress(OSError):
                group.rmdir()
        else:
            return str(group)
    return ""


def group_name(scratch: str) -> str:
    """It follows from the scratch directory: what a killed process left is used again."""
    return f"limosa-spark-{hashlib.sha256(os.path.abspath(scratch).encode()).hexdigest()[:12]}"


def take_low_priority(group: str) -> str:
    """Lower the priority of this process, and of those that it starts; how, in words."""
    if group:
        with suppress(OSError):
            _enter(Path(group))
            return "in a cgroup with a low CPU weight"
    os.nice(NICENESS)
    return f"with niceness {os.nice(0)}"


def remove_group(group: str, seconds: float = EMPTY_SECONDS) -> None:
    """Remove the cgroup once its processes, which were told to end or were killed, are gone."""
    deadline = time.monotonic() + seconds
    while group:
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() >= deadline:
                return
            time.sleep(LOOK_SECONDS)


def leave_and_remove(group: str, kill: bool = False) -> None:
    """Remove the cgroup that this process is in; the other processes end, or are killed."""
    if not group:
        return
    with suppress(OSError):
        _enter(Path(group).parent)
        for process in (Path(group) / "cgroup.procs").read_text().split() if kill else ():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    remove_group(group)


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _parents() -> Iterator[tuple[Path, str, str]]:
    """Directories in which a cgroup may be made, with the setting of its weight."""
    with suppress(OSError):
        mine = dict(_own_groups())
        for line in MOUNTS.read_text().splitlines():
            _, where, kind, options, *_ = line.split()
            if kind == "cgroup2" and "" in mine:
                own = Path(where + mine[""].rstrip("/"))
                # A group with processes can't have groups with controllers, except for the root.
                for parent in dict.fromkeys((own, own.parent) if own != Path(where) else (own,)):
                    if _gives_cpu(parent):
                        yield parent, "cpu.weight", CPU_WEIGHT
            elif kind == "cgroup" and "cpu" in options.split(",") and "cpu" in mine:
                own = Path(where + mine["cpu"].rstrip("/"))
                yield own if own.is_dir() else Path(where), "cpu.shares", CPU_SHARES


def _own_groups() -> Iterator[tuple[str, str]]:
    """By controller, the group of this process; the empty controller is cgroup v2."""
    for line in GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for each in controllers.split(","):
            yield each, path


def _gives_cpu(parent: Path) -> bool:
    with suppress(OSError):
        return "cpu" in (parent / "cgroup.subtree_control").read_text().split()
    return False
