"""Who writes many rows, and who reads all of them? A writer that does not wait, and a scanner."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from limosa.client import TableHandle
from limosa.client.rows import to_arrow
from limosa.client.session import settle
from limosa.core.client import Finished
from limosa.simulation.checkers.linearizability import ObservedOperation
from limosa.tabular.rows import Batch
from tests.chaos.client import Client, Connect
from tests.chaos.history import Ended, History
from tests.chaos.season import Season

BATCH_ROWS = 100
UNDER_WAY_MAX = 6
PAUSE_SECONDS_MAX = 0.4
"""Between two batches. A node that was killed reads its whole log again, entry by entry."""
DELETED_SHARE = 0.1
SCAN_SECONDS = 1.5
"""Between two scans."""


class BulkWriter(Client):
    """Writes rows that nobody else touches, without waiting for each batch."""

    def __init__(
        self, name: str, connect: Connect, table: str, history: History, seed: int
    ) -> None:
        super().__init__(name, connect, table, history, seed)
        self._under_way: deque[Callable[[], None]] = deque()

    def step(self, table: TableHandle) -> None:
        while len(self._under_way) >= UNDER_WAY_MAX:
            self._under_way.popleft()()
        if self.dice.random() < DELETED_SHARE:
            self._delete(table)
        else:
            self._write(table)
        time.sleep(self.dice.random() * PAUSE_SECONDS_MAX)

    def _settle(self) -> None:
        while self._under_way:
            self._under_way.popleft()()

    def _write(self, table: TableHandle) -> None:
        season = self.season
        with season.lock:
            first = season.asked + 1
            season.asked += BATCH_ROWS
            numbers = range(first, season.asked + 1)
        rows = [{"k": season.key_of(number), "v": str(number)} for number in numbers]
        rows.append({"k": season.cursor, "v": str(first)})
        batch = to_arrow(table.definition, rows).combine_chunks().to_batches()[0]
        invoked = time.monotonic()
        future = table.submit(Batch.of(table.definition, batch))

        def settle_it() -> None:
            ended = self._ended("bulk write", invoked, future)
            with season.lock:
                if ended.outcome == "ok":
                    season.acked.update(numbers)
                    season.cursor_last = first
                elif ended.outcome == "unknown":
                    season.cursor_unknown = True
                else:
                    season.refused.update(numbers)
            done = len(rows) if ended.outcome == "ok" else 0
            operation = _cursor_write(self.name, season.cursor, first, ended)
            self.history.add([] if ended.outcome == "failed" else [operation], done)

        self._under_way.append(settle_it)

    def _delete(self, table: TableHandle) -> None:
        season = self.season
        with season.lock:
            known = list(season.acked - season.deleting)
            numbers = self.dice.sample(known, min(len(known), BATCH_ROWS // 2))
            season.deleting.update(numbers)
        if not numbers:
            return
        keys = [season.key_of(number) for number in numbers]
        ended = self.history.run(self.name, "bulk delete", lambda: table.delete(keys))
        if ended.outcome == "ok":
            with season.lock:
                season.deleted.update(numbers)
            self.history.add([], len(numbers))
        elif ended.outcome == "failed":
            with season.lock:
                season.deleting.difference_update(numbers)

    def _ended(self, what: str, invoked: float, future: "Future[Finished]") -> Ended:
        """As of when it was settled, which may be a little later than when it was done."""
        ended = self.history.run(self.name, what, lambda: settle(future))
        return Ended(ended.outcome, invoked, ended.returned, ended.value, ended.error)


def _cursor_write(client: str, key: str, value: int, ended: Ended) -> ObservedOperation:
    return ObservedOperation(
        client=client,
        key=key,
        kind="write",
        value=str(value),
        invoked=ended.invoked,
        returned=ended.known_at,
    )


class Scanner(Client):
    """Reads everything of the season, and misses what was acknowledged before it began."""

    def __init__(
        self, name: str, connect: Connect, table: str, history: History, seed: int
    ) -> None:
        super().__init__(name, connect, table, history, seed)
        self.lost: list[str] = []
        self.resurrected: list[str] = []

    def step(self, table: TableHandle) -> None:
        season = self.season
        there, gone = season.must_be_there(), season.must_be_gone()
        ended = self.history.run(self.name, "scan", lambda: scan_season(table, season))
        if ended.outcome == "ok":
            assert isinstance(ended.value, set)
            with season.lock:
                there -= season.deleting
            self.lost += map(season.key_of, sorted(there - ended.value))
            self.resurrected += map(season.key_of, sorted(gone & ended.value))
        time.sleep(SCAN_SECONDS)


def scan_season(table: TableHandle, season: Season) -> set[int]:
    """Which of the bulk writer's rows are there; a row with another's value is none."""
    end = season.prefix[:-1] + "."
    found = table.scan(where=[("k", ">=", season.prefix), ("k", "<", end)])
    pairs = zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)
    numbers = {season.number_of(str(key)): value for key, value in pairs}
    return {number for number, value in numbers.items() if value == str(number)}
