"""What if a copy is not what was read? The verification finds it, and the move goes back.

Each slice is checked when it arrives, so that damage on the way is nothing: it is sent again. These
rows change behind everybody's back, after that: in the target, on their way to its disk.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

import limosa
from limosa.client import Operator, TableHandle
from limosa.core.effects import ApplySlice, VolumeEffect
from limosa.core.model.intent import Placement
from limosa.core.model.reports import Report
from limosa.core.model.requests import MovePartition
from limosa.runtime.journal import Journal
from limosa.runtime.pipelines import PipelineConfig, mover_for
from limosa.runtime.processes import (
    CoordinatorConfig,
    CoordinatorProcess,
    NodeConfig,
    NodeProcess,
)
from limosa.tabular.rows import Batch, Bundle
from limosa.transport.security import Security
from tests.waiting import eventually

CLUSTER = "birds"
OPEN = Security(insecure=True)
SECONDS = 60.0
ROWS = 500
VICTIM = 123
"""The key of the row that is changed."""

Damage = Callable[[Batch, int], Batch]
"""What becomes of a batch that has the victim in this place."""


def another_value(batch: Batch, row: int) -> Batch:
    values = batch.columns["eggs"].to_pylist()
    values[row] = -1
    eggs = batch.columns.schema.names.index("eggs")
    columns = batch.columns.set_column(eggs, "eggs", pa.array(values, pa.int64()))
    return Batch(batch.table, columns, batch.tokens, batch.versions, batch.deleted)


def missing(batch: Batch, row: int) -> Batch:
    return batch.where(batch.tokens != batch.tokens[row])


class Rotten:
    """In place of a store's `write`: one row of a copy is not what was handed over."""

    def __init__(self, node: NodeProcess, damage: Damage) -> None:
        self._write = node.store.write
        self._damage = damage
        self.damaged = 0

    def __call__(self, change: VolumeEffect) -> None:
        if isinstance(change, ApplySlice):
            change = replace(change, rows=tuple(map(self._changed, change.rows)))
        self._write(change)

    def _changed(self, rows: object) -> Bundle:
        assert isinstance(rows, Bundle)
        return Bundle([self._changed_batch(batch) for batch in rows.batches])

    def _changed_batch(self, batch: Batch) -> Batch:
        keys = batch.columns["id"].to_pylist()
        if VICTIM not in keys:
            return batch
        self.damaged += 1
        return self._damage(batch, keys.index(VICTIM))


class House:
    """A coordinator and two nodes in this process; one table, all of it on the first node."""

    def __init__(self, directory: Path, ending: ExitStack) -> None:
        self.directory = directory
        self._ending = ending
        self.journal = Journal("test", stream=io.StringIO())
        config = CoordinatorConfig(
            name="c", cluster=CLUSTER, metastore=str(directory / "metastore.db"), security=OPEN
        )
        carrying = PipelineConfig(kind="threads", scratch=str(directory / "scratch"))
        mover = mover_for(carrying, OPEN, CLUSTER, "c", self.journal)
        ending.callback(CoordinatorProcess(config, mover, self.journal).stop)
        self.nodes = {name: self._node(name) for name in ("n1", "n2")}
        self.connection: Operator = limosa.operate(self.nodes["n1"].server.address)
        ending.callback(self.connection.close)
        columns = {"id": "int64", "eggs": "int64"}
        self.table: TableHandle = self.connection.create_table(
            "birds", columns, "id", partitions=1, replicas=1
        )
        self.table.write([{"id": number, "eggs": number} for number in range(ROWS)])
        (record,) = self.connection.refresh().partitions.values()
        assert record.owner is not None
        self.partition = record.id
        self.source = record.owner.replica.node
        self.target = next(name for name in self.nodes if name != self.source)

    def _node(self, name: str) -> NodeProcess:
        config = NodeConfig(
            name=name,
            cluster=CLUSTER,
            metastore=str(self.directory / "metastore.db"),
            data=str(self.directory / name),
            security=OPEN,
        )
        made = NodeProcess(config, self.journal)
        self._ending.callback(made.stop)
        return made

    def rot(self, damage: Damage) -> Rotten:
        node = self.nodes[self.target]
        rotten = Rotten(node, damage)
        node.store.write = rotten  # type: ignore[method-assign]
        self._ending.callback(node.store.__dict__.pop, "write", None)
        return rotten

    def mend(self) -> None:
        self.nodes[self.target].store.__dict__.pop("write")

    def move(self) -> Report:
        """Until it has ended."""
        known = set(self.connection.state(self.partition).reports)
        self.connection.submit(
            MovePartition(self.partition, source=self.source, target=Placement(self.target))
        )

        def reports() -> list[Report]:
            state = self.connection.state(self.partition)
            ended = state.topology.partitions[self.partition].transition is None
            return [each for key, each in state.reports.items() if key not in known and ended]

        return eventually(reports, "the move ends", SECONDS)[0]

    def holders(self) -> list[str]:
        """By what is agreed, and by what the nodes hold."""
        record = self.connection.refresh().partitions[self.partition]
        assert record.owner is not None
        assert record.transition is None
        return [record.owner.replica.node, *(replica.node for replica in record.replicas)]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as ending:
        yield House(tmp_path, ending)


@pytest.mark.parametrize(
    ("damage", "words"),
    [(another_value, "same version, other contents"), (missing, "missing at")],
)
def test_a_row_that_changes_behind_everybodys_back_during_a_move_is_found(
    house: House, damage: Damage, words: str
) -> None:
    """F64, F102: the move is rolled back, and says which row it was."""
    rotten = house.rot(damage)
    report = house.move()
    assert rotten.damaged
    assert report.outcome == "reverted"
    assert "verification" in report.why
    (difference,) = report.differences
    assert f"id={VICTIM}:" in difference
    assert words in difference
    assert house.holders() == [house.source, house.source]
    assert house.nodes[house.target].driver.brain.held == {}, "nothing of the copy is left"
    rows = house.table.scan()
    assert dict(zip(rows["id"].to_pylist(), rows["eggs"].to_pylist(), strict=True)) == {
        number: number for number in range(ROWS)
    }
    house.table.write({"id": VICTIM, "eggs": 7})
    house.mend()
    assert house.move().outcome == "done", "nothing stands in the way of the next one"
    assert house.holders() == [house.target, house.target]
    assert house.table.count() == ROWS
    assert house.table.get(VICTIM) == {"id": VICTIM, "eggs": 7}
