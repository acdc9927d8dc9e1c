"""Some writers that never wait: each has a connection of its own and several batches under way.

They end all at once. Prints how many rows were acknowledged.

    python bench/_overload.py ADDRESSES SECRET TABLE SECONDS WRITERS
"""

import json
import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import limosa
from limosa.cli.generate import sample
from limosa.client import TableHandle
from limosa.core.client import Finished
from limosa.errors import LimosaError
from limosa.tabular.rows import Batch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import NAME

ROWS = 1_000
UNDER_WAY = 8


class Writer(threading.Thread):
    def __init__(
        self, addresses: list[str], secret: str, table: str, until: float, start: int
    ) -> None:
        super().__init__(daemon=True)
        self._where = addresses, secret
        self._table = table
        self._until = until
        self._next = start
        self.rows = 0
        """That were acknowledged."""

    def run(self) -> None:
        addresses, secret = self._where
        while time.monotonic() < self._until:
            try:
                with limosa.connect(addresses, cluster_name=NAME, secret=secret) as connection:
                    self._write(connection.table(self._table))
            except LimosaError:
                time.sleep(0.1)  # that is what an overload does

    def _write(self, table: TableHandle) -> None:
        under_way: deque[Future[Finished]] = deque()
        while time.monotonic() < self._until:
            (batch,) = sample(self._next, self._next + ROWS).combine_chunks().to_batches()
            self._next += ROWS
            under_way.append(table.submit(Batch.of(table.definition, batch)))
            if len(under_way) > UNDER_WAY:
                self.rows += ROWS if under_way.popleft().result().outcome == "done" else 0


def main() -> None:
    addresses, secret, table = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    until, count = time.monotonic() + float(sys.argv[4]), int(sys.argv[5])
    writers = [
        Writer(addresses, secret, table, until, number * 10_000_000) for number in range(count)
    ]
    for writer in writers:
        writer.start()
    time.sleep(max(0.0, until - time.monotonic()))
    # The load ends now: what still waits in the writers is never sent.
    print(sum(writer.rows for writer in writers), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
