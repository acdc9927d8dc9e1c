"""Some writers that never wait: each has a connection of its own and several batches under way.

python bench/_overload.py ADDRESSES SECRET TABLE SECONDS WRITERS
"""

import json
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import limosa
from limosa.cli.generate import sample
from limosa.core.client import Finished
from limosa.errors import LimosaError
from limosa.tabular.rows import Batch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench._cluster import NAME

ROWS = 1_000
UNDER_WAY = 8


def write(addresses: list[str], secret: str, table: str, until: float, start: int) -> None:
    while time.monotonic() < until:
        try:
            with limosa.connect(addresses, cluster_name=NAME, secret=secret) as connection:
                write_on(connection, table, until, start)
        except LimosaError:
            time.sleep(0.1)  # that is what an overload does


def write_on(connection: limosa.Connection, table: str, until: float, start: int) -> None:
    handle = connection.table(table)
    under_way: deque[Future[Finished]] = deque()
    while time.monotonic() < until:
        (batch,) = sample(start, start + ROWS).combine_chunks().to_batches()
        under_way.append(handle.submit(Batch.of(handle.definition, batch)))
        start += ROWS
        if len(under_way) > UNDER_WAY:
            under_way.popleft().result()
    for future in under_way:
        future.result()


def main() -> None:
    addresses, secret, table = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    until, count = time.monotonic() + float(sys.argv[4]), int(sys.argv[5])
    threads = [
        threading.Thread(
            target=write, args=(addresses, secret, table, until, number * 10_000_000), daemon=True
        )
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
