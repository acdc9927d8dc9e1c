"""How does a test drive a cluster by typed commands while rows are written?"""

import itertools
import threading
from typing import Any

from limosa.client.operator import Operator
from limosa.errors import LimosaError
from limosa.runtime.local import LocalCluster
from tests.cli.running import Limosa, Ran

PARTITIONS, ROWS = 12, 3_000


class Typed:
    """Commands for this cluster."""

    def __init__(self, limosa: Limosa, local: LocalCluster) -> None:
        self._limosa = limosa
        self._local = local

    def __call__(self, *arguments: str) -> Ran:
        return self._limosa(*arguments, *self.where)

    @property
    def where(self) -> tuple[str, ...]:
        addresses = [place.rpartition("//")[2] for place in self._local.addresses.values()]
        where = ("--cluster", ",".join(addresses), "--secret", str(self._local.secret))
        return (*where, "--cluster-name", self._local.cluster)

    def well(self, *arguments: str) -> Ran:
        ran = self(*arguments)
        assert ran.code == 0, ran.err
        return ran

    def status(self, run: str = "") -> dict[str, Any]:
        named = [run] if run else []
        found: dict[str, Any] = self.well("rebalance", "status", *named, "--json").json
        return found

    def known(self) -> list[tuple[str, str]]:
        """The runs that there are, and what each is for."""
        runs = self.well("rebalance", "history", "--json").json["runs"]
        return [(run["id"], run["action"]) for run in runs]

    def refused(self, *arguments: str) -> str:
        """It says why, and what to do; nothing is changed."""
        before = self.known()
        ran = self(*arguments)
        assert ran.code in (1, 2), ran.text
        assert self.known() == before
        assert ran.error.endswith(")"), "with advice"
        return ran.error


class Load(threading.Thread):
    """Writes rows, one after another, and reads each of them at once."""

    def __init__(self, connection: Operator, table: str) -> None:
        super().__init__()
        self._table = connection.table(table)
        self._stopping = threading.Event()
        self.written: dict[int, int] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        for number in itertools.count(1_000_000):
            try:
                self._table.write([{"id": number, "value": number}])
                self.written[number] = number
                if self._table.get(number) != {"id": number, "value": number}:
                    self.failures.append(f"{number} was not read")
            except LimosaError as error:
                self.failures.append(str(error))
            if self._stopping.wait(0.003):
                return

    def __enter__(self) -> "Load":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self.join()


def made(
    connection: Operator, name: str, replicas: int = 1, partitions: int = PARTITIONS
) -> dict[int, int]:
    table = connection.create_table(
        name,
        {"id": "int64", "value": "int64"},
        "id",
        partitions=partitions,
        replicas=replicas,
    )
    table.write([{"id": number, "value": -number} for number in range(ROWS)])
    return {number: -number for number in range(ROWS)}


def rows_of(connection: Operator, name: str) -> dict[int, int]:
    found = connection.table(name).scan()
    rows: dict[Any, Any] = dict(
        zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True)
    )
    assert len(rows) == found.num_rows, "a row is there twice"
    return rows


def homes(connection: Operator, name: str) -> dict[str, list[str]]:
    topology = connection.refresh()
    zone = topology.tables[name].zone
    return {
        each.id: sorted(replica.node for replica in each.replicas)
        for each in topology.partitions.values()
        if each.zone == zone
    }
