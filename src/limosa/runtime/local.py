"""How does a whole cluster run on one machine? As child processes over one directory.

    DIRECTORY/
        metastore.db        the agreed state
        secret              signs the cluster's tokens
        local.json          names and ports, so that a restart finds everything again
        n1/, n2/, …         a node's data
        logs/n1.log, …      the log of each process

A child exits when its parent is gone, since it reads its standard input until the end.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from limosa.errors import BadInput, Refused, VolumeInUse
from limosa.runtime.directories import make_private
from limosa.runtime.signals import delayed
from limosa.transport.keys import make_secret

COORDINATOR = "coordinator"
ADMIN = "admin"
ADMIN_PORT = 8080
READY_SECONDS = 60.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 15.0


class LocalLayout(Struct, frozen=True):
    """The state that survives a restart."""

    cluster: str
    ports: dict[str, int]


class LocalCluster:
    """Child processes on this machine: one or more coordinators, and nodes."""

    def __init__(
        self,
        directory: str | Path,
        nodes: int | None = None,
        cluster: str = "local",
        secret: bool = True,
        coordinators: int = 1,
        arguments: Sequence[str] = (),
        of_coordinators: Sequence[str] = (),
        admin: bool = False,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.arguments = list(arguments)
        """Additional options of every node."""
        self.of_coordinators = list(of_coordinators)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}
        self._lock: int | None = None
        for each in (self.directory, self.directory / "logs"):
            make_private(str(each), lambda what, **details: None)
        known = self._known()
        if known is not None and nodes is not None and nodes < len(known.ports):
            raise BadInput(
                f"{self.directory} has a cluster of {len(known.ports)} nodes",
                "start at least as many nodes, or use another directory",
            )
        count = nodes or (len(known.ports) if known else 3)
        if not 1 <= count <= 50:
            raise BadInput(f"a local cluster can't have {count} nodes", "use 1 to 50")
        self.cluster = known.cluster if known else cluster
        self.nodes = [f"n{number + 1}" for number in range(count)]
        self.coordinators = [
            COORDINATOR if not number else f"{COORDINATOR}-{number + 1}"
            for number in range(coordinators)
        ]
        self.services = [ADMIN] if admin else []
        self.admin_url = ""
        """The address of the admin service; empty: it does not run."""
        self.node_troubles: dict[str, str] = {}
        """Why nodes did not start with the cluster."""
        self.admin_trouble = ""
        """Why the admin service did not start; the cluster works without it."""
        self._ports = dict(known.ports) if known else {}
        self.secret = str(self.directory / "secret") if secret else None
        self.metastore = str(self.directory / "metastore.db")

    def _known(self) -> LocalLayout | None:
        try:
            data = (self.directory / "local.json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=LocalLayout)
        except msgspec.DecodeError as error:
            raise BadInput(
                f"{self.directory / 'local.json'} is damaged: {error}", "use another directory"
            ) from None

    # --- the whole cluster

    def start(self) -> "LocalCluster":
        self._lock_directory()
        try:
            if self.secret is not None and not os.path.exists(self.secret):
                make_secret(self.secret)
            for name in self.coordinators:
                self.start_one(name, wait=False)
            self.wait_until_ready(self.coordinators)
            for name in (*self.nodes, *self.services):
                self.start_one(name, wait=False)
            self._wait_for_nodes()
            self._wait_for_services()
            self._remember()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_for_nodes(self) -> None:
        """One bad node does not keep the others from starting."""
        for name in self.nodes:
            try:
                self.wait_until_ready([name])
            except Refused as error:
                self.node_troubles[name] = error.message
        if len(self.node_troubles) == len(self.nodes):
            why = "; ".join(self.node_troubles.values())
            raise Refused(f"no node has started: {why}", f"see {self.directory / 'logs'}")

    def _wait_for_services(self) -> None:
        for name in list(self.services):
            try:
                self.wait_until_ready([name])
            except Refused as error:
                self.services.remove(name)
                _close(self.processes.pop(name))
                self.admin_trouble = error.message

    def _lock_directory(self) -> None:
        import fcntl

        self._lock = os.open(self.directory / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise VolumeInUse(
                f"a cluster is running from {self.directory} already",
                "stop it first, or use another directory",
            ) from None

    def _remember(self) -> None:
        known = {n: int(at.rsplit(":", 1)[1]) for n, at in self.addresses.items() if at}
        ports = {name: known.get(name, self._ports.get(name, 0)) for name in self.nodes}
        self._ports = ports
        new = self.directory / "local.json.new"
        new.write_bytes(msgspec.json.encode(LocalLayout(self.cluster, ports)))
        new.replace(self.directory / "local.json")

    def stop(self) -> None:
        """Stop all processes, the admin service first; kill those that do not stop in time."""
        for names in (self.services, self.nodes, self.coordinators):
            running = [self.processes[name] for name in names if name in self.processes]
            for process in running:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        process.send_signal(signal.SIGCONT)
                        process.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for process in running:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for process in self.processes.values():
            _close(process)
        self.processes.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "LocalCluster":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- single processes

    def start_one(self, name: str, wait: bool = True, port: int | None = None) -> None:
        old = self.processes.get(name)
        if old is not None:
            if old.poll() is None:
                raise BadInput(f"{name} is running already", "stop it first")
            _close(old)
        with open(self.directory / "logs" / f"{name}.log", "ab") as log, delayed(*ENDING):
            self.processes[name] = subprocess.Popen(
                self._command(name, port),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        if wait:
            self.wait_until_ready([name])

    def add_node(self) -> str:
        """Start another node, which joins the cluster; returns its name."""
        name = f"n{len(self.nodes) + 1}"
        self.nodes.append(name)
        try:
            self.start_one(name)
        except BaseException:
            self.nodes.remove(name)
            raise
        self._remember()
        return name

    def _command(self, name: str, port: int | None) -> list[str]:
        if name in self.services:
            return self._admin_command(name)
        kind = "coordinator" if name in self.coordinators else "node"
        command = [sys.executable, "-m", "limosa", "serve", kind, "--name", name]
        command += ["--cluster", self.cluster, "--metastore", self.metastore, "--with-parent"]
        if self.secret is not None:
            command += ["--secret", self.secret]
        if kind == "node":
            wanted = port if port is not None else self._free_port(name)
            command += ["--data", str(self.directory / name), "--port", str(wanted)]
            command += self.arguments
        else:
            command += self.of_coordinators
        return command

    def _admin_command(self, name: str) -> list[str]:
        """Start the admin service, which finds the cluster by its directory."""
        port = int(self.admin_url.rsplit(":", 1)[1]) if self.admin_url else ADMIN_PORT
        bind = f"127.0.0.1:{port if _is_free(port) else 0}"
        command = [sys.executable, "-m", "limosa", "serve", "admin", "--name", name]
        return [*command, "--bind", bind, "--directory", str(self.directory), "--with-parent"]

    def _free_port(self, name: str) -> int:
        """The process's former port, if it is free."""
        port = self._ports.get(name, 0)
        if name in self.addresses:
            port = int(self.addresses[name].rsplit(":", 1)[1])
        if port and not _is_free(port):
            return 0
        return port

    def wait_until_ready(self, names: Sequence[str]) -> None:
        for name in names:
            process = self.processes[name]
            assert process.stdout is not None
            there, _, _ = select.select([process.stdout], [], [], READY_SECONDS)
            line = process.stdout.readline() if there else ""
            if not line.startswith("ready"):
                if not there:
                    process.kill()
                process.wait(READY_SECONDS)
                log = self.directory / "logs" / f"{name}.log"
                raise Refused(f"{name} did not start: {_last_words(log)}", f"see {log}")
            said = json.loads(line.removeprefix("ready"))
            if said.get("address"):
                self.addresses[name] = said["address"]
            if said.get("url"):
                self.admin_url = said["url"]

    def has_beaten(self, name: str) -> bool | None:
        """Whether the process has shown since the last call that it works; None: it never does."""
        output = self.processes[name].stdout
        if name not in self.coordinators or output is None:
            return None
        heard = False
        while select.select([output], [], [], 0)[0] and os.read(output.fileno(), 4096):
            heard = True
        return heard

    def is_running(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def kill(self, name: str) -> None:
        """Kill the process (SIGKILL) and wait for its end."""
        process = self.processes[name]
        process.kill()
        process.wait()

    def terminate(self, name: str) -> None:
        process = self.processes[name]
        process.terminate()
        process.wait(STOP_SECONDS)

    def pause(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text().strip().splitlines()
        if lines:
            return lines[-1]
    return "its log is empty"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _close(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
