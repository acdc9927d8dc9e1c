"""Replicas of one made-up history, sound or damaged, for tests of their comparison."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from limosa.core.model.keys import WHOLE, Position, TokenRange, position
from limosa.errors import LimosaError, Refused
from limosa.pipeline.comparing import Moment, ReplicaRows
from limosa.pipeline.loads import CopyTarget
from limosa.protocol.replica_scan import Holding
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table

COLUMNS: list[tuple[str, pa.DataType]] = [("name", pa.string()), ("eggs", pa.int64())]
BIRDS = Table("birds", pa.schema(COLUMNS), ("name",))


class Put(NamedTuple):
    name: str
    eggs: int


class Delete(NamedTuple):
    name: str


class Collect(NamedTuple):
    """Lets go of tombstones so many entries back."""

    back: int


Step: TypeAlias = Put | Delete | Collect


class Known(NamedTuple):
    """What a replica has of a key."""

    version: Position
    eggs: int | None
    """None: it is deleted."""


class Content(NamedTuple):
    """What a replica holds, physically, and up to where."""

    rows: dict[str, Known]
    watermark: Position
    collected: Position


def at(number: int) -> Position:
    """Of the history's entries, the first is 1."""
    return position(1, number) if number else 0


def content(history: Sequence[Step], length: int) -> Content:
    """Of a sound replica that has so many entries of it."""
    rows: dict[str, Known] = {}
    collected = 0
    for number, step in enumerate(history[:length], 1):
        match step:
            case Put(name, eggs):
                rows[name] = Known(at(number), eggs)
            case Delete(name):
                rows[name] = Known(at(number), None)
            case Collect(back):
                collected = max(collected, at(max(0, number - 1 - back)))
    visible = {k: v for k, v in rows.items() if v.eggs is not None or v.version > collected}
    return Content(visible, at(length), collected)


def rows_of(node: str, held: Content, table: Table = BIRDS) -> ReplicaRows:
    names = list(held.rows)
    known = [held.rows[name] for name in names]
    eggs = pa.array([each.eggs for each in known], pa.int64())
    columns = pa.RecordBatch.from_arrays(
        [pa.array(names, pa.string()), eggs], schema=table.physical
    )
    versions = np.array([each.version for each in known], np.int64)
    deleted = np.array([each.eggs is None for each in known], np.bool_)
    batch = Batch(table, columns, None, versions, deleted)
    when = Moment(held.watermark, held.collected)
    return ReplicaRows(
        node, when, table, columns.select(["name"]), versions, deleted, batch.hashes()
    )


Damage: TypeAlias = Callable[[Content], Content]


class Nodes:
    """Nodes that follow one history while it is written, and may hold other rows than they say."""

    def __init__(self, history: Sequence[Step], lengths: dict[str, int]) -> None:
        self.history = list(history)
        self.lengths = dict(lengths)
        self.damage: dict[str, Damage] = {}
        self.failing: dict[str, LimosaError] = {}
        self.before_each_read: Callable[[], None] = lambda: None
        self.reads: list[tuple[str, int]] = []
        """Whom, and of how many ranges."""
        self.seconds = 0.0

    def content(self, node: str) -> Content:
        held = content(self.history, self.lengths[node])
        damage = self.damage.get(node)
        return held if damage is None else damage(held)

    # --- what an examiner asks for

    def holding(self, target: CopyTarget, partition: str) -> Holding:
        self._check(target)
        held = self.content(target.node)
        span = (WHOLE.start, WHOLE.end)
        return Holding(held.watermark, len(held.rows), span, (("birds", BIRDS.encode()),))

    def read(
        self,
        target: CopyTarget,
        partition: str,
        table: Table,
        ranges: Sequence[TokenRange],
        at_least: Position,
    ) -> ReplicaRows:
        self.before_each_read()
        self._check(target)
        self.reads.append((target.node, len(ranges)))
        held = self.content(target.node)
        inside = {
            name: known
            for name, known in held.rows.items()
            if any(each.holds(table.token_of((name,))) for each in ranges)
        }
        late = held.watermark < at_least
        return rows_of(target.node, held._replace(rows={} if late else inside), table)

    def _check(self, target: CopyTarget) -> None:
        if target.node in self.failing:
            raise self.failing[target.node]

    # --- time

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


Kind: TypeAlias = Literal["changed", "missing", "deleted", "older", "extra"]
KINDS: tuple[Kind, ...] = ("changed", "missing", "deleted", "older", "extra")


def damaged(held: Content, name: str, kind: Kind) -> Content:
    """The same with one row that is wrong; unchanged if there is nothing to damage like that."""
    known = held.rows.get(name)
    rows = dict(held.rows)
    if kind == "extra" and known is None and held.watermark:
        rows[name] = Known(at(1), 99)
    elif known is None or known.eggs is None:
        return held
    elif kind == "changed":
        rows[name] = Known(known.version, known.eggs + 1)
    elif kind == "missing":
        del rows[name]
    elif kind == "deleted":
        rows[name] = Known(known.version, None)
    elif kind == "older" and known.version > at(1):
        rows[name] = Known(known.version - 1, known.eggs)
    return held._replace(rows=rows)


def gone() -> LimosaError:
    return Refused("replica c1 of p is not here", "ask another node")
