"""What do applications do? Each workload writes and reads, and checks its own answers at the end.

A register's history goes to the linearizability checker; a bank's transfers are rows of one part,
which become visible together or not at all; a set's members are inserted once; a list grows by
compare-and-set.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from limosa.core.client import Asked, Finished
from limosa.simulation.checkers.linearizability import ObservedOperation
from limosa.simulation.hosts import ClientProcess
from limosa.simulation.rows import ScanOf, SimulatedRow, SimulatedRows, token_of

if TYPE_CHECKING:
    from limosa.simulation.world import World

Then = Callable[[Finished], None]


class OperationHistory:
    """The clients' operations and answers, by key."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.operations: list[ObservedOperation] = []
        self.asked = 0
        self.expected: dict[str, object] = {}
        self._waiting: dict[str, tuple[Asked, float, Then]] = {}
        world.finished = self.finished
        world.on_client_gone = self.abandoned

    def ask(self, client: ClientProcess, then: Then, there: object = None, **what: object) -> None:
        """`there` is the value that a compare-and-set had read with its version."""
        if not client.run:
            return
        self.asked += 1
        asked = Asked(f"{client.name}-{self.asked}", "zone", **what)  # type: ignore[arg-type]
        self.expected[asked.id] = there
        self._waiting[asked.id] = (asked, self.world.now, then)
        client.ask(asked)

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def outstanding_of(self, client: ClientProcess) -> int:
        return len(client.brain.operations)

    def finished(self, effect: Finished) -> None:
        asked, since, then = self._waiting.pop(effect.id)
        if self.world.telling:
            self._tell(asked, effect)
        then(effect)
        for operation in self._operations(asked, since, effect):
            self.operations.append(operation)

    def abandoned(self, client: ClientProcess) -> None:
        """A client died: nobody learns what became of its operations."""
        for name in [each for each in self._waiting if each.split("-")[0] == client.name]:
            self.finished(Finished(name, "unknown"))

    def unanswered(self) -> None:
        """Record operations without an answer at the end: each may have had an effect or not."""
        for asked, since, _ in list(self._waiting.values()):
            unknown = Finished(asked.id, "unknown")
            self.operations += self._operations(asked, since, unknown)

    def _operations(self, asked: Asked, since: float, effect: Finished) -> list[ObservedOperation]:
        # An answer arrives a little before the client can start its next operation.
        returned = None if effect.outcome == "unknown" else self.world.now
        observed = partial(
            ObservedOperation, client=asked.id.split("-")[0], invoked=since, returned=returned,
            label=effect.id,
        )  # fmt: skip
        if asked.eventual or effect.outcome == "failed":
            return []
        if asked.rows is None:
            if effect.outcome != "done":
                return []
            assert isinstance(effect.value, tuple)
            assert isinstance(asked.keys, tuple)
            return [
                observed(key=key, kind="read", result=value)
                for key, (_, value) in zip(asked.keys, effect.value, strict=True)
            ]
        assert isinstance(asked.rows, SimulatedRows)
        if asked.expected is not None:
            row, was = asked.rows.rows[0], self.expected[asked.id]
            done = effect.outcome == "done"
            compared = partial(observed, kind="compare", expected=was, result=done)
            return [compared(key=row.key, value=row.value)]
        return [
            observed(key=row.key, kind="delete" if row.value is None else "write", value=row.value)
            for row in asked.rows.rows
        ]

    def _tell(self, asked: Asked, effect: Finished) -> None:
        what: object = asked.keys
        token = asked.token
        if isinstance(asked.rows, SimulatedRows):
            token = asked.rows.rows[0].token
            what = [(row.key, row.value) for row in asked.rows.rows]
        condition = "" if asked.expected is None else f" if {asked.expected}"
        verb = "reads" if asked.rows is None else "writes"
        self.world.tell(
            f"{asked.id} {verb} {what}{condition}: {effect.outcome} {effect.value}",
            self.world.partition_of(token),
        )


def rows_of(*pairs: tuple[str, object]) -> SimulatedRows:
    return SimulatedRows(tuple(SimulatedRow(key, token_of(key), value) for key, value in pairs))


class Workload(ABC):
    """Operations that a client repeats."""

    def __init__(self, world: "World", history: OperationHistory, client: ClientProcess) -> None:
        self.world = world
        self.history = history
        self.client = client
        self.dice: Random = world.dice

    @abstractmethod
    def step(self) -> None:
        """Start an operation."""

    def verdict(self, rows: dict[str, object]) -> list[str]:
        """Problems with the rows at the end."""
        return []

    @abstractmethod
    def keys(self) -> list[str]:
        """The keys to read at the end."""


class Registers(Workload):
    """Puts, deletes, compare-and-sets and reads of a few keys that all clients share."""

    NAMES = ("r0", "r1", "r2", "r3", "r4", "r5")

    def __init__(self, world: "World", history: OperationHistory, client: ClientProcess) -> None:
        super().__init__(world, history, client)
        self.seen: dict[str, tuple[int, object]] = {}

    def keys(self) -> list[str]:
        return list(self.NAMES)

    def step(self) -> None:
        key = self.dice.choice(self.NAMES)
        value = f"{self.client.name}.{self.history.asked}"
        what = self.dice.choices(tuple(self.world.mix), tuple(self.world.mix.values()))[0]
        if what == "read":
            self.history.ask(self.client, self._read(key), keys=(key,), token=token_of(key))
        elif what == "scan":
            self.history.ask(
                self.client, _ignore, keys=ScanOf(self._beside(key)), token=token_of(key)
            )
        elif what == "eventual":
            self.history.ask(
                self.client, _ignore, keys=(key,), token=token_of(key), eventual=True,
                choice=self.dice.randrange(8),
            )  # fmt: skip
        elif what == "write":
            self.history.ask(self.client, _ignore, rows=rows_of((key, value)))
        elif what == "batch":
            other = self.dice.choice([name for name in self.NAMES if name != key])
            self.history.ask(self.client, _ignore, rows=rows_of((key, value), (other, value + "'")))
        elif what == "delete":
            self.history.ask(self.client, _ignore, rows=rows_of((key, None)))
        else:
            version, there = self.seen.get(key, (0, None))
            self.history.ask(
                self.client, _ignore, there, rows=rows_of((key, value)), expected=version
            )

    def _beside(self, key: str) -> list[str]:
        """The names in the partition of this key."""
        starts = self.world.agreed.topology.layouts["zone"].starts
        index = bisect_right(starts, token_of(key))
        return [name for name in self.NAMES if bisect_right(starts, token_of(name)) == index]

    def _read(self, key: str) -> Then:
        def then(effect: Finished) -> None:
            if effect.outcome == "done":
                assert isinstance(effect.value, tuple)
                self.seen[key] = effect.value[0]

        return then


class StickyReader(Registers):
    """Only reads, so it learns of no new owner: it stays with an old owner that answers."""

    def step(self) -> None:
        for key in self.dice.sample(self.NAMES, 3):
            self.history.ask(self.client, _ignore, keys=(key,), token=token_of(key))


class Appends(Workload):
    """One list that every client of this kind appends to by compare-and-set."""

    KEY = "list"

    def __init__(self, world: "World", history: OperationHistory, client: ClientProcess) -> None:
        super().__init__(world, history, client)
        self.acked: list[str] = []

    def keys(self) -> list[str]:
        return [self.KEY]

    def step(self) -> None:
        self.history.ask(self.client, self._read, keys=(self.KEY,), token=token_of(self.KEY))

    def _read(self, effect: Finished) -> None:
        if effect.outcome != "done" or self.world.healed:
            return
        assert isinstance(effect.value, tuple)
        version, there = effect.value[0]
        item = f"{self.client.name}.{self.history.asked}"
        grown = (*(there or ()), item)

        def then(answer: Finished) -> None:
            if answer.outcome == "done":
                self.acked.append(item)

        # A moment later, so that the read has ended before the write begins.
        self.world.schedule(
            0.0001,
            lambda: self.history.ask(
                self.client, then, there, rows=rows_of((self.KEY, grown)), expected=version
            ),
        )

    def verdict(self, rows: dict[str, object]) -> list[str]:
        there = rows.get(self.KEY) or ()
        assert isinstance(there, tuple)
        problems = [f"the append of {item} was lost" for item in self.acked if item not in there]
        problems += [f"{item} was appended twice" for item in set(there) if there.count(item) > 1]
        return sorted(problems)


class UniqueSet(Workload):
    """Keys that are each written once: all acknowledged keys must exist."""

    def __init__(self, world: "World", history: OperationHistory, client: ClientProcess) -> None:
        super().__init__(world, history, client)
        self.count = 0
        self.acked: list[str] = []
        self.dropped: list[str] = []

    def keys(self) -> list[str]:
        return [f"u.{self.client.name}.{i}" for i in range(self.count)]

    def step(self) -> None:
        if self.acked and self.dice.random() < 0.2:
            key = self.dice.choice(self.acked)
            self.acked.remove(key)
            self.history.ask(self.client, self._drop(key), rows=rows_of((key, None)))
            return
        key = f"u.{self.client.name}.{self.count}"
        self.count += 1
        self.history.ask(self.client, self._ack(key), rows=rows_of((key, key)))

    def _ack(self, key: str) -> Then:
        return lambda effect: self.acked.append(key) if effect.outcome == "done" else None

    def _drop(self, key: str) -> Then:
        return lambda effect: self.dropped.append(key) if effect.outcome == "done" else None

    def verdict(self, rows: dict[str, object]) -> list[str]:
        lost = [
            f"the acknowledged row {key} was lost" for key in self.acked if rows.get(key) is None
        ]
        return lost + [f"the deleted row {key} is back" for key in self.dropped if rows.get(key)]


class Bank(Workload):
    """Accounts of one partition: a transfer is one part, and every read sees the same total."""

    ACCOUNTS = 3
    TOTAL = 300

    def __init__(self, world: "World", history: OperationHistory, client: ClientProcess) -> None:
        super().__init__(world, history, client)
        self.names = self._names()
        self.balances: dict[str, int] | None = None
        self.wrong: list[str] = []
        self.busy = False
        self.started = False
        self.over = False
        """A transfer has an unknown outcome: it may still happen, so no other may follow."""

    def _names(self) -> list[str]:
        """Account names whose tokens lie in one partition."""
        layout = self.world.agreed.topology.layouts["zone"]
        held = layout.range_of(0)
        names: list[str] = []
        number = 0
        while len(names) < self.ACCOUNTS:
            name = f"bank.{self.client.name}.{number}"
            if held.holds(token_of(name)):
                names.append(name)
            number += 1
        return names

    def keys(self) -> list[str]:
        return self.names

    def step(self) -> None:
        if not self.started and not self.busy and not self.over:
            first = dict.fromkeys(self.names, self.TOTAL // self.ACCOUNTS)
            self._write(first)
        elif self.balances is None or self.over or self.dice.random() < 0.5:
            eventual = self.started and self.dice.random() < 0.4
            kind = ScanOf if self.history.asked % 4 == 0 else tuple
            self.history.ask(
                self.client, self._read(eventual),
                keys=kind(self.names), token=token_of(self.names[0]),
                eventual=eventual, choice=self.dice.randrange(8),
            )  # fmt: skip
        elif not self.busy:
            one, other = self.dice.sample(self.names, 2)
            amount = self.dice.randint(1, 20)
            after = dict(self.balances)
            after[one] -= amount
            after[other] += amount
            self._write({one: after[one], other: after[other]})

    def _write(self, new: dict[str, int]) -> None:
        self.busy = True
        stamp = self.history.asked
        rows = rows_of(*((name, (amount, stamp)) for name, amount in new.items()))

        def then(effect: Finished) -> None:
            self.busy = False
            if effect.outcome == "done":
                self.started = True
                self.balances = {**(self.balances or {}), **new}
            elif effect.outcome == "unknown":
                self.over = True

        self.history.ask(self.client, then, rows=rows)

    def _read(self, eventual: bool) -> Then:
        there = self.started and not eventual

        def then(effect: Finished) -> None:
            if effect.outcome != "done":
                return
            assert isinstance(effect.value, tuple)
            values = [value for _, value in effect.value]
            if any(value is None for value in values):
                if there or any(value is not None for value in values):
                    self.wrong.append("an account has vanished")
                return
            if sum(amount for amount, _ in values) != self.TOTAL:
                self.wrong.append(f"the accounts hold {values}")

        return then

    def verdict(self, rows: dict[str, object]) -> list[str]:
        return self.wrong


def _ignore(effect: Finished) -> None:
    """Do nothing: the history has recorded the answer."""


KINDS: tuple[type[Workload], ...] = (Registers, Appends, UniqueSet, Bank)
CROWD: tuple[type[Workload], ...] = (UniqueSet,)
"""Rows that are written once: many operations on few keys would take too long to check."""
