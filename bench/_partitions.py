"""What do benchmarks ask of many partitions? Their records, their health, and one key of each."""

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from limosa.client.connection import Connection
from limosa.client.table import TableHandle
from limosa.core.lookup import Lookup
from limosa.core.model.topology import Partition
from limosa.core.tokens import tokens

POLL_SECONDS = 0.05


def partitions_of(connection: Connection, table: TableHandle) -> list[Partition]:
    topology = connection.refresh()
    layout = topology.layouts[topology.tables[table.name].zone]
    return [topology.partitions[each] for each in layout.partitions]


def keys_by_partition(partitions: Sequence[Partition]) -> list[int]:
    """One key for each, in their order."""
    lookup = Lookup([each.range.start for each in partitions])
    keys = np.arange(len(partitions) * 40)
    places = lookup.partition_indexes(tokens([pa.array(keys)]))
    found = dict(zip(places.tolist(), keys.tolist(), strict=True))
    return [found[place] for place in range(len(partitions))]


def is_healthy(partition: Partition) -> bool:
    """Owned, all three replicas in sync, and nothing under way."""
    settled = partition.owner is not None and partition.transition is None
    return settled and len(partition.in_sync) == 3


def wait_until_healthy(connection: Connection, table: TableHandle, seconds: float = 60.0) -> float:
    """How long it took."""
    start = time.monotonic()
    while away := sum(not is_healthy(each) for each in partitions_of(connection, table)):
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"{away} partitions are not well after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - start
