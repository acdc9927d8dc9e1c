"""What makes a copy take a while? Rows that are written once, and must stay exactly as they are."""

import hashlib
from collections.abc import Iterator

from limosa.client import Connection, TableHandle
from tests.chaos.cluster import TABLE

NAME = "ballast"
VALUE_BYTES = 1_000
BATCH_ROWS = 4_000


class Ballast:
    """A table of the same zone, so that its rows move together with the others."""

    def __init__(self, connection: Connection, rows: int) -> None:
        self.rows = rows
        columns = {"k": "int64", "v": "string"}
        self._table: TableHandle = connection.create_table(NAME, columns, "k", zone=TABLE)
        for start in range(0, rows, BATCH_ROWS):
            numbers = range(start, min(rows, start + BATCH_ROWS))
            self._table.write([{"k": number, "v": value_of(number)} for number in numbers])

    def problems(self) -> Iterator[str]:
        """What is not as it was written."""
        found = self._table.scan()
        pairs = zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)
        there = {key: value == value_of(int(key or 0)) for key, value in pairs}
        if found.num_rows != len(there):
            yield f"{found.num_rows - len(there)} keys of the ballast are there twice"
        for number in range(self.rows):
            if number not in there:
                yield f"row {number} of the ballast is gone"
            elif not there[number]:
                yield f"row {number} of the ballast has another value"
        if len(there) > self.rows:
            yield f"the ballast has {len(there) - self.rows} rows too many"


def value_of(number: int) -> str:
    return hashlib.shake_128(f"{number}".encode()).hexdigest(VALUE_BYTES // 2)
