"""A small cluster of real processes whose partitions move on real Spark, and what must hold."""

import itertools
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

import limosa
from limosa.client import Operator
from limosa.core.model.intent import Placement
from limosa.core.model.requests import MovePartition
from limosa.errors import LimosaError
from limosa.runtime.local import COORDINATOR, LocalCluster
from tests.chaos.surroundings import (
    Process,
    Role,
    descendants,
    marked,
    of_role,
    send,
    stray_processes,
)
from tests.waiting import eventually

TABLE = "rows"
PARTITIONS = (f"{TABLE}-0000", f"{TABLE}-0001")
ROWS, ROW_BYTES = 5_000, 10_000
FIRST_WRITTEN = 1_000_000
BANDWIDTH = "12MiB"
"""So that a move takes a few seconds, in which things can happen to it."""
MOVE_SECONDS = 200.0
"""Enough to start Spark again, on a very busy machine."""


class MovingCluster:
    """Two nodes, and a table of two partitions with one replica each."""

    def __init__(self, directory: Path, *of_coordinator: str) -> None:
        self.directory = directory
        self._ending = ExitStack()
        self.cluster = LocalCluster(
            directory / "data",
            2,
            of_coordinators=["--pipeline", "spark", "--bandwidth", BANDWIDTH, *of_coordinator],
        )

    def __enter__(self) -> "MovingCluster":
        with self._ending:
            self._ending.enter_context(marked(self.directory))
            self._ending.enter_context(self.cluster)
            self.connection = self._ending.enter_context(self.connect())
            self._fill()
            self._ending = self._ending.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()

    def connect(self) -> Operator:
        return limosa.operate(
            list(self.cluster.addresses.values()),
            cluster_name=self.cluster.cluster,
            secret=self.cluster.secret,
        )

    def _fill(self) -> None:
        schema = {"id": "int64", "text": "string"}
        table = self.connection.create_table(TABLE, schema, "id", partitions=2, replicas=1)
        ids = list(range(ROWS))
        table.write(pa.table({"id": ids, "text": [text_of(id) for id in ids]}))

    # --- moves

    def placed(self) -> dict[str, str | None]:
        """Each partition's node; None: it is on its way."""
        records = self.connection.refresh().partitions
        return {
            id: None if records[id].transition is not None else records[id].replicas[0].node
            for id in PARTITIONS
        }

    def swap(self) -> dict[str, str | None]:
        """Ask for the move of each partition to the other node; returns where they will be."""
        before = self.placed()
        wanted: dict[str, str | None] = {}
        for partition, node in before.items():
            assert node is not None
            (wanted[partition],) = set(self.cluster.nodes) - {node}
            target = Placement(str(wanted[partition]))
            self.connection.submit(MovePartition(partition, source=node, target=target))
        return wanted

    def wait_until(self, placed: dict[str, str | None]) -> None:
        eventually(lambda: self.placed() == placed, "they have moved", MOVE_SECONDS)

    def swap_half(self) -> dict[str, str | None]:
        """The same, up to the middle: some of it has landed, and some of it has not.

        Who looks too late finds everything moved, and begins again.
        """
        while True:
            wanted = self.swap()
            while self.placed() != wanted:
                if any(map(self._is_half_copied, PARTITIONS)):
                    return wanted

    def _is_half_copied(self, partition: str) -> bool:
        for node in self.cluster.nodes:
            facts = self.connection.node_facts(node, partition)
            for status in () if facts is None else facts.replicas.get(partition, ()):
                if status.copying is not None and 0 < status.copying[0] < status.copying[1]:
                    return True
        return False

    # --- rows

    def rows(self) -> dict[int, str]:
        found = self.connection.table(TABLE).scan().to_pylist()
        rows: dict[int, str] = {row["id"]: row["text"] for row in found}
        assert len(rows) == len(found), "each row once"
        return rows

    def digests(self) -> dict[str, tuple[int, str]]:
        """Rows and digest of each partition; nobody but its node holds any of it."""
        found: dict[str, tuple[int, str]] = {}
        for node in self.cluster.nodes:
            for held in self.connection.node_digests(node):
                assert held["partition"] not in found, "one replica each"
                found[held["partition"]] = held["rows"], held["digest"]
        return found

    # --- processes

    @property
    def coordinator(self) -> int:
        return self.cluster.processes[COORDINATOR].pid

    def spark(self, role: Role) -> list[Process]:
        return of_role(role, descendants(self.coordinator))

    def kill(self, role: Role) -> list[Process]:
        """-9, all of them."""
        killed = self.spark(role)
        assert killed
        for process in killed:
            send(process, signal.SIGKILL)
        return killed

    def log(self) -> str:
        return (self.cluster.directory / "logs" / f"{COORDINATOR}.log").read_text()

    def strays(self) -> list[str]:
        return stray_processes(self.directory)


def text_of(id: int) -> str:
    """Something long, and another one for each row."""
    return f"row {id} ".ljust(ROW_BYTES, chr(ord("a") + id % 26))


WRITTEN = {id: text_of(id) for id in range(ROWS)}


class Writing(threading.Thread):
    """Writes rows, one after another, and reads each of them at once."""

    def __init__(self, connect: Callable[[], Operator]) -> None:
        super().__init__()
        self._connection = connect()
        self._table = self._connection.table(TABLE)
        self._stopping = threading.Event()
        self.rows: dict[int, str] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        for id in itertools.count(FIRST_WRITTEN):
            row: dict[str, Any] = {"id": id, "text": f"written {id}"}
            try:
                self._table.write([row])
                self.rows[id] = row["text"]
                if self._table.get(id) != row:
                    self.failures.append(f"{row} was not read")
            except LimosaError as error:
                self.failures.append(str(error))
            if self._stopping.wait(0.01):
                return

    def __enter__(self) -> "Writing":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self.join()
        with suppress(LimosaError):
            self._connection.close()
