"""Who fights for a few keys? Clients that put, compare and set, delete and get, all at once."""

import threading
import time

from limosa.client import Row, TableHandle
from limosa.simulation.checkers.linearizability import ObservedOperation
from tests.chaos.client import Client, Connect
from tests.chaos.history import Ended, History

PAUSE_SECONDS_MAX = 0.06
IDLE_SECONDS_MAX = 0.5


class Contender(Client):
    """Fights with others for a few keys."""

    def __init__(
        self, name: str, connect: Connect, table: str, history: History, seed: int
    ) -> None:
        super().__init__(name, connect, table, history, seed)
        self._values = 0

    def step(self, table: TableHandle) -> None:
        key = self.dice.choice(self.season.keys)
        deed = self.dice.choices(
            [self._get, self._put, self._put_batch, self._chain, self._delete],
            [35, 20, 10, 25, 10],
        )[0]
        deed(table, key)
        time.sleep(self.dice.random() * PAUSE_SECONDS_MAX)

    def _value(self) -> str:
        self._values += 1
        return f"{self.name}.{self._values}"

    def _note(
        self,
        kind: str,
        ended: Ended,
        values: dict[str, object],
        expected: object = None,
        result: object = None,
    ) -> None:
        """One operation for each key; what surely failed is none."""
        if ended.outcome == "failed" or (kind == "read" and ended.outcome != "ok"):
            return
        operations = [
            ObservedOperation(
                client=self.name,
                key=key,
                kind=kind,  # type: ignore[arg-type]
                value=value,
                expected=expected,
                invoked=ended.invoked,
                returned=ended.known_at,
                result=result,
            )
            for key, value in values.items()
        ]
        changed = ended.outcome == "ok" and kind != "read"
        self.history.add(operations, len(operations) if changed else 0)

    def _get(self, table: TableHandle, key: str) -> Row | None:
        ended = self.history.run(self.name, "get", lambda: table.get_row(key))
        row = ended.value
        assert row is None or isinstance(row, Row)
        self._note("read", ended, {key: None}, result=None if row is None else row.values["v"])
        return row

    def _put(self, table: TableHandle, key: str) -> None:
        self._write(table, [key], "put")

    def _put_batch(self, table: TableHandle, key: str) -> None:
        self._write(table, self.dice.sample(self.season.keys, 4), "put batch")

    def _write(self, table: TableHandle, keys: list[str], what: str) -> None:
        values: dict[str, object] = {key: self._value() for key in keys}
        rows = [{"k": key, "v": value} for key, value in values.items()]
        ended = self.history.run(self.name, what, lambda: table.write(rows))
        self._note("write", ended, values)

    def _delete(self, table: TableHandle, key: str) -> None:
        ended = self.history.run(self.name, "delete", lambda: table.delete([key]))
        self._note("delete", ended, {key: None})

    def _chain(self, table: TableHandle, key: str) -> None:
        """Read, then replace exactly that, a few times."""
        row = self._get(table, key)
        found = None if row is None else row.values["v"]
        version = 0 if row is None else row.version
        for _ in range(self.dice.randint(1, 3)):
            value, expected = self._value(), version
            new = {"k": key, "v": value}
            ended = self.history.run(self.name, "put_if", lambda: table.put_if(new, expected))  # noqa: B023
            done = ended.outcome == "ok"
            self._note("compare", ended, {key: value}, expected=found, result=done)
            if not done:
                return
            assert isinstance(ended.value, int)
            found, version = value, ended.value


class Latecomer(Contender):
    """Knows nothing of what happened since it last asked; then asks for everything.

    So a node that was the owner then, and wakes up, finds requests that lie there already.
    """

    def __init__(
        self, name: str, connect: Connect, table: str, history: History, seed: int
    ) -> None:
        super().__init__(name, connect, table, history, seed)
        self._poked = threading.Event()

    def poke(self) -> None:
        self._poked.set()

    def step(self, table: TableHandle) -> None:
        if not self._poked.wait(IDLE_SECONDS_MAX):
            return
        self._poked.clear()
        for key in self.dice.sample(self.season.keys, len(self.season.keys)):
            deed = self._put if self.dice.random() < 0.1 else self._get
            deed(table, key)
