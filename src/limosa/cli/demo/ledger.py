"""Was a row lost, or a wrong value read? The readers, writers and checks of `limosa demo`.

Every key belongs to one writer, which writes increasing numbers. So a read is correct if its value
is at least what was acknowledged before the read began, and at most what was attempted before it
ended. At the end, every row must hold at least the number that was acknowledged last.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from limosa.client.operator import Operator
from limosa.client.table import TableHandle
from limosa.errors import LimosaError

FIELDS: list[Any] = [
    pa.field("key", pa.int64(), nullable=False),
    pa.field("value", pa.int64()),
    pa.field("note", pa.string()),
]
SCHEMA = pa.schema(FIELDS)
KEY = "key"
NOTE = "Some text that makes the rows larger, so that there are enough bytes to move around."

Numbers = NDArray[np.int64]

RETRY_SECONDS = 0.05
EXAMPLES_AT_MOST = 5


class Ledger:
    """The highest number of each key that was attempted and acknowledged; 0: none."""

    def __init__(self, keys: int) -> None:
        self.attempted: Numbers = np.zeros(keys, np.int64)
        self.acked: Numbers = np.zeros(keys, np.int64)

    def wrong_reads(self, keys: Numbers, values: Numbers, floor: Numbers) -> list[str]:
        """`floor` is what was acknowledged when the read began; a missing row has the value 0."""
        ceiling = self.attempted[keys]
        bad = np.flatnonzero((values < floor) | (values > ceiling))
        return [
            f"key {keys[each]} read {values[each]}, expected {floor[each]} to {ceiling[each]}"
            for each in bad
        ]

    def lost_rows(self, values: Numbers) -> list[str]:
        """`values` are those of all keys at the end."""
        bad = np.flatnonzero(values < self.acked)
        return [f"key {key} holds {values[key]}, acknowledged {self.acked[key]}" for key in bad]

    def invented_rows(self, values: Numbers) -> list[str]:
        bad = np.flatnonzero(values > self.attempted)
        return [f"key {key} holds {values[key]}, attempted {self.attempted[key]}" for key in bad]


def values_of(keys: Numbers, found: pa.Table) -> Numbers:
    """The value of each of these keys; 0 if the key was not found."""
    values = np.zeros(len(keys), np.int64)
    order = np.argsort(keys, kind="stable")
    found_keys = found.column(KEY).to_numpy()
    places = np.searchsorted(keys[order], found_keys)
    values[order[places]] = found.column("value").to_numpy()
    return values


def unequal_replicas(
    digests: Mapping[str, Sequence[Mapping[str, Any]]], replicas: int
) -> list[str]:
    """Partitions whose replicas differ, or are too few."""
    copies: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for held in digests.values():
        for each in held:
            copies[each["partition"]].append((each["rows"], each["digest"]))
    return sorted(
        partition
        for partition, found in copies.items()
        if len(found) != replicas or len(set(found)) != 1
    )


def rows_of(keys: Numbers, value: int) -> pa.RecordBatch:
    """These keys, all with the same value."""
    columns: list[Any] = [
        pa.array(keys),
        pa.array(np.full(len(keys), value, np.int64)),
        pa.array([NOTE] * len(keys)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def fill(table: TableHandle, ledger: Ledger, rows_at_once: int) -> None:
    """Write the first number of every key."""
    for first in range(0, len(ledger.acked), rows_at_once):
        keys = np.arange(first, min(first + rows_at_once, len(ledger.acked)), dtype=np.int64)
        ledger.attempted[keys] = 1
        table.write(rows_of(keys, 1))
        ledger.acked[keys] = 1


class Counts(Struct):
    """What one thread has done and seen."""

    rows: int = 0
    wrong: int = 0
    examples: list[str] = []
    pauses: list[tuple[float, float]] = []
    """When each write was acknowledged, and how long after the previous one."""
    failure: str = ""

    def longest_pause(self, start: float = -np.inf, end: float = np.inf) -> float:
        """In seconds, of the pauses that overlap the given time."""
        return max(
            (pause for at, pause in self.pauses if at > start and at - pause < end), default=0.0
        )


class DemoWorker(ABC):
    """A thread that works until it is told to stop."""

    def __init__(self, table: TableHandle, ledger: Ledger, seed: int) -> None:
        self._table = table
        self._ledger = ledger
        self._dice = np.random.default_rng(seed)
        self._stop = threading.Event()
        self.counts = Counts()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """False if the thread does not end."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        except Exception as error:
            self.counts.failure = f"{type(error).__name__}: {error}"

    @abstractmethod
    def _step(self) -> None:
        """One write or read."""


class WriterThread(DemoWorker):
    """Writes increasing numbers to its own keys; retries each write until it is acknowledged."""

    def __init__(
        self, table: TableHandle, ledger: Ledger, seed: int, keys: range, rows_at_once: int
    ) -> None:
        super().__init__(table, ledger, seed)
        self._keys = keys
        self._rows_at_once = rows_at_once
        self._value = int(ledger.attempted[keys.start])
        self._acked_at: float | None = None

    def _step(self) -> None:
        some = self._dice.choice(len(self._keys), self._rows_at_once, replace=False)
        keys = (some + self._keys.start).astype(np.int64)
        self._value += 1
        batch = rows_of(keys, self._value)
        self._ledger.attempted[keys] = self._value
        while True:
            try:
                self._table.write(batch)
                break
            except LimosaError:
                if self._stop.wait(RETRY_SECONDS):
                    return
        self._ledger.acked[keys] = self._value
        self.counts.rows += len(keys)
        self._note_pause()

    def _note_pause(self) -> None:
        now = time.monotonic()
        if self._acked_at is not None:
            self.counts.pauses.append((now, now - self._acked_at))
        self._acked_at = now


class ReaderThread(DemoWorker):
    """Reads the keys of all writers, and checks each value."""

    def __init__(self, table: TableHandle, ledger: Ledger, seed: int, rows_at_once: int) -> None:
        super().__init__(table, ledger, seed)
        self._rows_at_once = rows_at_once

    def _step(self) -> None:
        total = len(self._ledger.acked)
        keys = self._dice.choice(total, self._rows_at_once, replace=False).astype(np.int64)
        floor = self._ledger.acked[keys]
        try:
            found = self._table.get_many(pa.table({KEY: keys}))
        except LimosaError:
            self._stop.wait(RETRY_SECONDS)
            return
        self.counts.rows += len(keys)
        wrong = self._ledger.wrong_reads(keys, values_of(keys, found), floor)
        self.counts.wrong += len(wrong)
        self.counts.examples += wrong[: EXAMPLES_AT_MOST - len(self.counts.examples)]


def final_values(table: TableHandle, ledger: Ledger) -> Numbers:
    """The current values of all keys, read from the owners."""
    return values_of(np.arange(len(ledger.acked), dtype=np.int64), table.scan())


def await_equal_replicas(connection: Operator, replicas: int, seconds: float) -> list[str]:
    """Wait until all replicas of all partitions are equal; returns what still differs."""
    deadline = time.monotonic() + seconds
    while True:
        differ = _differing(connection, replicas)
        if not differ or time.monotonic() > deadline:
            return differ
        time.sleep(0.3)


def _differing(connection: Operator, replicas: int) -> list[str]:
    try:
        topology = connection.refresh()
        behind = [each.id for each in topology.partitions.values() if len(each.in_sync) < replicas]
        if behind:
            return sorted(behind)
        digests = {node: connection.node_digests(node) for node in sorted(topology.nodes)}
    except LimosaError as error:
        return [error.message]
    return unequal_replicas(digests, replicas)
