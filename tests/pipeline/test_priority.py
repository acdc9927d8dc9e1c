"""Do copies leave the processors to clients, and is nothing of that left behind?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from limosa.pipeline import priority
from limosa.pipeline.priority import NICENESS, make_group, remove_group
from tests.waiting import eventually

# The process lowers its priority, starts another one, says how, and waits.
CHILD = """
import subprocess, sys
from limosa.pipeline.priority import leave_and_remove, take_low_priority
how = take_low_priority(sys.argv[1])
nice = "import os; print(os.nice(0), open('/proc/self/cgroup').read().count('limosa-spark'))"
said = subprocess.run([sys.executable, "-c", nice], capture_output=True, text=True, check=True)
print(how, "|", said.stdout.strip(), flush=True)
waits = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(waits.pid, flush=True)
sys.stdin.readline()
leave_and_remove(sys.argv[1], kill=True)
print(waits.wait(), flush=True)
"""


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where cgroups are, as the kernel tells it; a test writes it."""
    monkeypatch.setattr(priority, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(priority, "GROUPS", tmp_path / "groups")
    return tmp_path


def describe(tmp_path: Path, mounts: str, groups: str) -> None:
    (tmp_path / "mounts").write_text(mounts)
    (tmp_path / "groups").write_text(groups)


def gives_cpu(group: Path) -> Path:
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.subtree_control").write_text("cpu memory pids\n")
    return group


@pytest.mark.parametrize("delegated", ["own", "parent"])
def test_in_cgroup_v2_a_group_is_made_where_the_weight_of_groups_can_be_set(
    surroundings: Path, delegated: str
) -> None:
    """A group that has processes can't give its groups a weight; then it is a group beside it."""
    root = surroundings / "fs"
    own = root / "user" / "mine"
    own.mkdir(parents=True)
    parent = gives_cpu(own if delegated == "own" else own.parent)
    describe(surroundings, f"cgroup2 {root} cgroup2 rw,relatime 0 0\n", "0::/user/mine\n")
    group = Path(make_group("/data/spark"))
    assert group.parent == parent
    assert (group / "cpu.weight").read_text() == priority.CPU_WEIGHT
    assert make_group("/data/spark") == str(group), "what a killed process left is used again"
    assert make_group("/other/spark") != str(group)


@pytest.mark.parametrize(("path", "below"), [("/", ""), ("/mine", "mine"), ("/unseen", "")])
def test_in_cgroup_v1_a_group_is_made_below_ones_own(
    surroundings: Path, path: str, below: str
) -> None:
    root = surroundings / "cpu"
    (root / "mine").mkdir(parents=True)
    mounts = f"tmpfs {surroundings} tmpfs rw 0 0\ncgroup {root} cgroup rw,cpu,cpuacct 0 0\n"
    describe(surroundings, mounts, f"4:memory:/x\n1:cpu,cpuacct:{path}\n")
    group = Path(make_group("/data/spark"))
    assert group.parent == root / below
    assert (group / "cpu.shares").read_text() == priority.CPU_SHARES


@pytest.mark.parametrize(
    ("mounts", "groups"),
    [
        ("", ""),
        ("cgroup2 {root} cgroup2 rw 0 0\n", "0::/\n"),
        ("cgroup {root}/missing cgroup rw,cpu 0 0\n", "1:cpu:/\n"),
        ("cgroup {root} cgroup rw,memory 0 0\n", "1:memory:/\n"),
    ],
    ids=["none", "not delegated", "read-only", "another controller"],
)
def test_elsewhere_there_is_no_group(surroundings: Path, mounts: str, groups: str) -> None:
    describe(surroundings, mounts.format(root=surroundings), groups)
    assert make_group("/data/spark") == ""


def test_where_the_kernel_says_nothing_there_is_no_group(surroundings: Path) -> None:
    assert make_group("/data/spark") == ""
    remove_group("")


def start(group: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, group],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.processes
def test_without_a_group_a_process_and_those_that_it_starts_are_nice(tmp_path: Path) -> None:
    expected = min(19, os.nice(0) + NICENESS)
    with start(str(tmp_path / "missing")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"with niceness {expected} | {expected} 0\n"
        os.kill(int(process.stdout.readline()), 9)
        process.communicate("\n", timeout=20.0)


@pytest.mark.processes
def test_in_a_group_are_all_that_a_process_starts_and_it_is_gone_with_them(tmp_path: Path) -> None:
    """Where this machine lets us make one. Where not, the test before shows what is done."""
    group = make_group(str(tmp_path / "spark"))
    if not group:
        return
    with start(group) as process:
        assert process.stdout is not None
        words = process.stdout.readline()
        assert words.startswith("in a cgroup with a low CPU weight | ")
        assert words.split()[-1] == "1"
        child = int(process.stdout.readline())
        remove_group(group, seconds=0.1)
        assert Path(group).exists(), "it is in use"
        out, _ = process.communicate("\n", timeout=20.0)
        assert out == "-9\n"
    assert not Path(group).exists()
    eventually(lambda: not Path(f"/proc/{child}").exists())
