"""What is an overload made of? Processes of many writers, none of which waits for the others.

Each batch has single rows for many partitions, so that a node gets many small parts. A writer
uses the same keys again and again, and each batch has its own value: what is there in the end must
be the last value that was acknowledged, or one whose outcome is unknown.

    python -m tests.chaos.burst DIRECTORY TABLE BURST PROCESS SECONDS WRITERS ROWS

Prints `ready` when all writers are connected, and a `Burst` as a line of JSON when all have ended.
"""

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future

import msgspec
from msgspec import Struct, field

import limosa
from limosa.client import Connection, TableHandle
from limosa.client.rows import to_arrow
from limosa.client.session import settle
from limosa.core.client import Finished
from limosa.errors import LimosaError
from limosa.tabular.rows import Batch

SLOTS = 8
"""Sets of keys of one writer."""
UNDER_WAY_MAX = 2
"""Batches of one writer; fewer than slots, so that no key is written twice at once."""
TIMEOUT_SECONDS = 10.0
PREFIX, END = "o", "o~"


class Slot(Struct):
    """What became of one set of keys."""

    acked: str = ""
    """The last value that was acknowledged."""
    unknown: list[str] = []
    """Values that may be there or not."""


class Burst(Struct):
    """What the writers of one process did."""

    slots: dict[str, Slot] = field(default_factory=dict)
    """By the beginning of their keys."""
    rows: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: str, error: str = "") -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if error:
            self.errors[error] = self.errors.get(error, 0) + 1

    def add(self, other: "Burst") -> None:
        self.slots |= other.slots
        self.rows += other.rows
        self.outcomes = dict(Counter(self.outcomes) + Counter(other.outcomes))
        self.errors = dict(Counter(self.errors) + Counter(other.errors))


class Writer(threading.Thread):
    def __init__(self, directory: str, table: str, burst: str, name: str, rows: int) -> None:
        super().__init__(name=name, daemon=True)
        self.burst = Burst()
        self.until = 0.0
        self._connection = self._connect(directory)
        self._table = self._connection.table(table)
        self._value = burst
        self._rows = rows
        self._under_way: deque[tuple[str, str, Future[Finished]]] = deque()

    def _connect(self, directory: str) -> Connection:
        deadline = time.monotonic() + 3 * TIMEOUT_SECONDS
        while True:
            try:
                return limosa.connect(directory, name=self.name, timeout_seconds=TIMEOUT_SECONDS)
            except LimosaError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def run(self) -> None:
        with self._connection:
            for slot, value in self._batches():
                future = self._table.submit(batch(self._table, slot, value, self._rows))
                self._under_way.append((slot, value, future))
                if len(self._under_way) >= UNDER_WAY_MAX:
                    self._settle()
            while self._under_way:
                self._settle()

    def _batches(self) -> Iterator[tuple[str, str]]:
        number = 0
        while time.monotonic() < self.until:
            number += 1
            yield f"{PREFIX}{self.name}-{number % SLOTS}-", f"{self._value}.{number}"

    def _settle(self) -> None:
        slot, value, future = self._under_way.popleft()
        known = self.burst.slots.setdefault(slot, Slot())
        try:
            settle(future)
        except LimosaError as error:
            outcome = "failed" if error.definite else "unknown"
            self.burst.count(outcome, f"burst, {outcome}: {error.message[:100]}")
            if not error.definite:
                known.unknown.append(value)
        else:
            known.acked = value
            self.burst.rows += self._rows
            self.burst.count("ok")


def batch(table: TableHandle, slot: str, value: str, count: int) -> Batch:
    rows = [{"k": f"{slot}{number:04}", "v": value} for number in range(count)]
    (columns,) = to_arrow(table.definition, rows).combine_chunks().to_batches()
    return Batch.of(table.definition, columns)


def judge(bursts: list[Burst], found: dict[str, str], rows: int) -> list[str]:
    """Keys that do not hold what they should; `found` are all keys of all bursts."""
    wrong = []
    for burst in bursts:
        for slot, known in burst.slots.items():
            if not known.acked:
                continue
            allowed = {known.acked, *known.unknown}
            for key in (f"{slot}{number:04}" for number in range(rows)):
                if found.get(key) not in allowed:
                    wrong.append(f"{key} holds {found.get(key)}, acknowledged was {known.acked}")
    return wrong


def main() -> None:
    directory, table, burst, process = sys.argv[1:5]
    seconds, count, rows = float(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7])
    writers = [
        Writer(directory, table, burst, f"{process}.{number}", rows) for number in range(count)
    ]
    print("ready", flush=True)
    until = time.monotonic() + seconds
    for writer in writers:
        writer.until = until
        writer.start()
    for writer in writers:
        writer.join()
    merged = Burst()
    for writer in writers:
        merged.add(writer.burst)
    print(msgspec.json.encode(merged).decode(), flush=True)


if __name__ == "__main__":
    main()
