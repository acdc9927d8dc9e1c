"""How does one speak to a node without the client's manners? A stream, and messages one by one."""

import time
from types import TracebackType
from typing import Any

from limosa.client import TableHandle
from limosa.client.rows import to_arrow
from limosa.core.messages import Answer, Message, Write
from limosa.core.model.changes import Topology
from limosa.protocol.peers import Dialer
from limosa.protocol.wire import Decoder
from limosa.tabular.rows import Batch, Bundle
from limosa.transport.keys import read_secret
from limosa.transport.security import Security
from limosa.transport.tokens import issue
from tests.chaos.cluster import Cluster


class Raw:
    """One open stream to one node, as a client."""

    def __init__(self, cluster: Cluster, node: str, table: TableHandle) -> None:
        assert cluster.secret is not None
        secret = read_secret(cluster.secret)
        token = issue(secret, cluster.cluster, "raw", "client", 600.0, time.time())
        security = Security(secret=cluster.secret, cluster=cluster.cluster, verify_clients=False)
        dialer = Dialer(cluster.cluster, "client", "raw", security, lambda: token)
        definition = table.definition
        self._decoder = Decoder(
            lambda known: definition if known == definition.fingerprint else None, trusted=True
        )
        self._stream = dialer.open(node, f"grpc://{cluster.network.address(node)}")

    def send(self, message: Message) -> None:
        self._stream.link.send(message)
        self._stream.link.pump()

    def receive(self) -> Answer:
        """The next answer; waits for it."""
        (answer,) = self._decoder(self._stream.read())
        assert isinstance(answer, Answer)
        return answer

    def ask(self, message: Message) -> Answer:
        self.send(message)
        return self.receive()

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()


def partition_of(table: TableHandle, topology: Topology, key: str) -> str:
    """Where the key lives."""
    layout = topology.layouts[topology.tables[table.name].zone]
    token = table.definition.token_of((key,))
    return next(
        name for index, name in enumerate(layout.partitions) if layout.range_of(index).holds(token)
    )


def write_of(
    table: TableHandle,
    topology: Topology,
    row: dict[str, Any],
    sequence: int,
    version: int | None = None,
) -> Write:
    """As the client would send it by this topology; or by another version of the layout."""
    partition = topology.partitions[partition_of(table, topology, row["k"])]
    batch = to_arrow(table.definition, row).combine_chunks().to_batches()[0]
    return Write(
        f"raw-{sequence}.1",
        partition.id,
        topology.layouts[partition.zone].version if version is None else version,
        partition.epoch,
        "raw",
        sequence,
        0,
        sequence,
        partition.range,
        Bundle([Batch.of(table.definition, batch)]),
    )
