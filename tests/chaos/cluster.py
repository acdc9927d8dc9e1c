"""What is tormented? A real cluster of processes, with a network of our own between them."""

import os
import select
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

import limosa
from limosa.client import Operator
from limosa.client.discovery import FILE, Local
from limosa.core.model.changes import Agreed
from limosa.errors import LimosaError
from limosa.metastore.agreed import AgreedStore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.runtime.clock import BootClock
from limosa.runtime.local import LocalCluster
from tests.chaos.proxy import Network
from tests.chaos.surroundings import Process, Role, descendants, of_role
from tests.waiting import left_after

CLIENTS = "clients"
"""How the network calls everybody in our own process."""
EXECUTORS = "executors"
"""And Spark's workers, of all coordinators."""
TABLE = "rows"
BAD_WORDS = (
    "Traceback",
    "SURPRISE",
    "a handler failed",
    "work failed",
    "heartbeat failed",
    "following the metastore failed",
    "a commit failed",
)
HEALTH_POLL_SECONDS = 0.05


class Cluster(LocalCluster):
    """Nodes that everybody reaches through a proxy only, unless a subclass says otherwise."""

    has_proxies = True

    def __init__(
        self,
        directory: str | Path,
        nodes: int = 3,
        coordinators: int = 2,
        lease_seconds: float = 3.0,
        arguments: Sequence[str] = (),
        of_coordinators: Sequence[str] = (),
    ) -> None:
        super().__init__(
            directory,
            nodes,
            coordinators=coordinators,
            arguments=["--lease-seconds", str(lease_seconds), *arguments],
            of_coordinators=of_coordinators,
        )
        self.on_spark = "spark" in of_coordinators
        self.network = Network(self.nodes, self._names, self._names_on_spark)
        self.starting: list[str] = []
        """Those who were started, and have not said that they are ready."""
        self._reading = threading.Lock()
        self._agreed: AgreedStore | None = None

    @property
    def everybody(self) -> list[str]:
        return [*self.nodes, *self.coordinators]

    def _names(self) -> Mapping[int, str]:
        pids = {process.pid: name for name, process in list(self.processes.items())}
        return {os.getpid(): CLIENTS, **pids}

    def _names_on_spark(self) -> Mapping[int, str]:
        if not self.on_spark:
            return {}
        running = [self.processes[name].pid for name in self.coordinators if name in self.processes]
        executors = of_role("executor", descendants(*running))
        return {each.id: EXECUTORS for each in executors}

    def spark(self, role: Role, coordinator: str) -> list[Process]:
        """What runs for a coordinator on Spark; nothing while it has not needed it."""
        process = self.processes.get(coordinator)
        if not self.on_spark or process is None:
            return []
        return of_role(role, descendants(process.pid))

    def _command(self, name: str, port: int | None) -> list[str]:
        command = super()._command(name, port)
        if name in self.nodes and self.has_proxies:
            command += ["--advertise", self.network.address(name)]
        return command

    def start_one(self, name: str, wait: bool = True, port: int | None = None) -> None:
        self.starting.append(name)
        super().start_one(name, wait, port)

    def wait_until_ready(self, names: Sequence[str]) -> None:
        super().wait_until_ready(names)
        self.starting = [name for name in self.starting if name not in names]
        for name in names:
            if name in self.nodes:
                self.network.lead_to(name, self.addresses[name])

    def hear_of_starts(self) -> None:
        """Of those who have said so meanwhile; nobody is waited for."""
        for name in list(self.starting):
            out = self.processes[name].stdout
            if out is not None and select.select([out], [], [], 0.0)[0]:
                self.wait_until_ready([name])

    def start(self) -> Self:
        super().start()
        addresses = dict(self.addresses)
        if self.has_proxies:
            addresses = {node: f"grpc://{self.network.address(node)}" for node in self.nodes}
        local = Local(self.cluster, addresses, self.secret, os.getpid(), self.metastore)
        (self.directory / FILE).write_bytes(msgspec.json.encode(local))
        return self

    def __enter__(self) -> Self:
        return self.start()

    def stop(self) -> None:
        super().stop()
        self.network.close()
        with self._reading:
            if self._agreed is not None:
                self._agreed.store.close()
                self._agreed = None

    # --- clients

    def connect(self, name: str = "chaos", timeout_seconds: float = 10.0) -> Operator:
        return limosa.operate(str(self.directory), name=name, timeout_seconds=timeout_seconds)

    # --- who is what

    def agreed(self) -> Agreed:
        """What the metastore says, whatever the network does."""
        with self._reading:
            if self._agreed is None:
                self._agreed = AgreedStore(SqliteMetastore(self.metastore, BootClock()))
            return self._agreed.read()

    def owners(self) -> Counter[str]:
        """How many partitions each node owns."""
        owned = Counter(dict.fromkeys(self.nodes, 0))
        for partition in self.agreed().topology.partitions.values():
            if partition.owner is not None:
                owned[partition.owner.replica.node] += 1
        return owned

    def owner_of(self, partition: str) -> str | None:
        owner = self.agreed().topology.partitions[partition].owner
        return None if owner is None else owner.replica.node

    def in_office(self) -> str | None:
        coordinator = self.agreed().coordinator
        return None if coordinator is None else coordinator.holder

    # --- health

    def ailments(self) -> list[str]:
        """What is agreed upon and not as it should be; none: everybody is well."""
        agreed = self.agreed()
        runs = {lease.lease for lease in agreed.leases.values()}
        found = [f"{name} does not run" for name in self.everybody if not self.is_running(name)]
        found += [f"{node} has no lease" for node in self.nodes if node not in agreed.leases]
        if agreed.coordinator is None:
            found.append("nobody coordinates")
        for partition in agreed.topology.partitions.values():
            owner = partition.owner
            if owner is None:
                found.append(f"{partition.id} has no owner")
            elif owner.lease not in runs:
                found.append(f"{partition.id} is owned by an earlier run")
            if partition.transition is not None:
                found.append(f"{partition.id} is in {partition.transition.stage}")
            out = {replica.node for replica in partition.replicas} - {
                replica.node for replica in partition.in_sync
            }
            if out:
                found.append(f"{partition.id}: {', '.join(sorted(out))} not in sync")
        return found

    def unserved_by(self, nodes: Sequence[str]) -> list[str]:
        """Partitions without a live owner, or without a replica in sync on each of these nodes."""
        agreed = self.agreed()
        found = []
        for partition in agreed.topology.partitions.values():
            there = {replica.node for replica in partition.in_sync}
            lacking = {replica.node for replica in partition.replicas} & {*nodes} - there
            if partition.owner is None or partition.owner.replica.node not in nodes:
                found.append(f"{partition.id} has no owner among {', '.join(nodes)}")
            elif lacking:
                found.append(f"{partition.id}: {', '.join(sorted(lacking))} not in sync")
        return found

    def wait_until_healthy(self, seconds: float) -> list[str]:
        """What is still wrong after that time; nothing, as soon as nothing is."""
        return left_after(self.ailments, seconds, HEALTH_POLL_SECONDS)

    def last_words(self, name: str) -> str:
        lines = (self.directory / "logs" / f"{name}.log").read_text().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def last_wait(self, partition: str) -> str:
        """What coordinators have said about it lately."""
        lines = [
            line.strip()
            for name in self.coordinators
            for line in (self.directory / "logs" / f"{name}.log").read_text().splitlines()
            if f" partition={partition} " in line
        ]
        return max(lines, default="nobody has said anything")


# --- replicas


def digests(connection: Operator, nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By partition and node: position, rows and digest."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        for digest in connection.node_digests(node):
            shown = {name: digest[name] for name in ("watermark", "last", "rows", "digest")}
            found.setdefault(digest["partition"], {})[node] = shown
    return found


def differences(cluster: Cluster, connection: Operator) -> list[str]:
    """Partitions whose replicas are not the same everywhere, or are where they should not be."""
    try:
        known = digests(connection, cluster.nodes)
    except LimosaError as error:
        return [f"a node does not tell its digests: {error}"]
    found = []
    partitions = cluster.agreed().topology.partitions
    for name, partition in partitions.items():
        held = known.get(name, {})
        wanted = {replica.node for replica in partition.replicas}
        if held.keys() != wanted:
            found.append(f"{name} is on {sorted(held)}, and should be on {sorted(wanted)}")
        values = {msgspec.json.encode(digest) for digest in held.values()}
        if len(values) > 1:
            found.append(f"{name} differs: {held}")
    found += [f"{name} is nobody's" for name in known.keys() - partitions.keys()]
    return found


def wait_until_equal(cluster: Cluster, connection: Operator, seconds: float) -> list[str]:
    return left_after(lambda: differences(cluster, connection), seconds, 0.2)


# --- what is left behind


def bad_lines(directory: Path) -> list[str]:
    """What no process should ever have to say."""
    return [
        f"{log.name}: {line.strip()}"
        for log in sorted((directory / "logs").glob("*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if any(word in line for word in BAD_WORDS)
    ]


def stray_threads(before: set[threading.Thread], seconds: float = 5.0) -> list[str]:
    """Threads that were not there before, and do not end."""
    return left_after(
        lambda: [
            each.name for each in threading.enumerate() if each not in before and each.is_alive()
        ],
        seconds,
    )
