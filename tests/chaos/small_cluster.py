"""Nodes with small files, whose rows are in segments soon, and whose disks can be full."""

from pathlib import Path
from typing import Any

from limosa.client import Operator, TableHandle
from limosa.core.model.topology import Partition, Replica
from tests.chaos.cluster import Cluster

COLUMNS = {"k": "int64", "v": "string"}
ROWS = 4_000


class SmallCluster(Cluster):
    def __init__(self, directory: Path) -> None:
        carrying = ["--pipeline", "threads"]
        super().__init__(directory, 3, coordinators=1, lease_seconds=1.0, of_coordinators=carrying)

    def _command(self, name: str, port: int | None) -> list[str]:
        command = super()._command(name, port)
        if name in self.nodes:
            command[2] = "tests.chaos.small_node"
        return command


def filled(connection: Operator, name: str, replicas: int) -> TableHandle:
    table = connection.create_table(name, COLUMNS, "k", partitions=1, replicas=replicas)
    table.write([row(number) for number in range(ROWS)])
    return table


def row(number: int) -> dict[str, Any]:
    return {"k": number, "v": f"{number:0200}"}


def record_of(cluster: SmallCluster, table: TableHandle) -> Partition:
    topology = cluster.agreed().topology
    zone = topology.tables[table.name].zone
    return next(each for each in topology.partitions.values() if each.zone == zone)


def owner_of(cluster: SmallCluster, table: TableHandle) -> Replica:
    grant = record_of(cluster, table).owner
    assert grant is not None
    return grant.replica
