"""What does a benchmark need of a real cluster? To connect, and to see what its processes spend."""

import os
import struct
import sys
import time
from pathlib import Path

import limosa
from limosa.client.operator import Operator
from limosa.runtime.local import LocalCluster

NAME = "limosa"
_TICKS = os.sysconf("SC_CLK_TCK")


class BenchCluster(LocalCluster):
    """One coordinator and some nodes, as `limosa up` runs them; the nodes count their syncs."""

    def __init__(self, directory: Path, nodes: int) -> None:
        super().__init__(directory, nodes, NAME)

    def __enter__(self) -> "BenchCluster":
        self.start()
        return self

    def _command(self, name: str, port: int | None) -> list[str]:
        command = super()._command(name, port)
        if name in self.coordinators:
            return command
        limosa_module = command.index("limosa")
        script = str(Path(__file__).with_name("_counted_node.py"))
        return [sys.executable, script, str(self._counter(name)), *command[limosa_module + 1 :]]

    def _counter(self, node: str) -> Path:
        return self.directory / f"{node}.syncs"

    def connect(self, timeout_seconds: float = 30.0) -> Operator:
        return limosa.operate(
            list(self.addresses.values()),
            cluster_name=NAME,
            secret=self.secret,
            timeout_seconds=timeout_seconds,
        )

    def syncs(self, node: str) -> int:
        """How often this node has synced its log."""
        counted: int = struct.unpack("<q", self._counter(node).read_bytes())[0]
        return counted

    def nodes_cpu_seconds(self) -> float:
        return sum(cpu_seconds(self.processes[name].pid) for name in self.nodes)

    def settle(self, seconds_max: float = 3.0) -> None:
        """Wait until the nodes have nothing left to do: flushes and merges run behind writes."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            before = self.nodes_cpu_seconds()
            time.sleep(0.1)
            if self.nodes_cpu_seconds() - before <= 0.01 * len(self.nodes):
                return


def cpu_seconds(pid: int) -> float:
    """What a process has spent, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
