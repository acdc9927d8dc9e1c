"""A node's process that counts its syncs: how many batches share one?

The same process as `limosa serve node`, with one number in a file that the benchmark can read.

    python bench/_counted_node.py FILE serve node …
"""

import mmap
import struct
import sys

from limosa.cli.main import main
from limosa.storage.store import Store


def count_syncs(path: str) -> None:
    with open(path, "w+b") as file:
        file.truncate(8)
        counter = mmap.mmap(file.fileno(), 8)
    sync, counted = Store.sync_volume, 0

    def counting(store: Store, name: str) -> int:
        nonlocal counted
        ticket = sync(store, name)
        counted += 1
        struct.pack_into("<q", counter, 0, counted)
        return ticket

    Store.sync_volume = counting  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    count_syncs(sys.argv.pop(1))
    sys.exit(main())
