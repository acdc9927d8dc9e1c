"""Can several writes be sent as one? Their rows are joined, in their order."""

from typing import Any

import pyarrow as pa
import pytest

from limosa.core.model.rows import Starts
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table

FIELDS: list[Any] = [("id", pa.int64()), ("name", pa.string())]
COLUMNS = pa.schema(FIELDS)
BIRDS, NESTS = Table("birds", COLUMNS, ("id",)), Table("nests", COLUMNS, ("id",))
EVEN = Starts([-(2**63), -(2**62), 0, 2**62])


def bundle(*ids: int, table: Table = BIRDS) -> Bundle:
    names = [f"bird {id}" for id in ids]
    return Bundle([Batch.of(table, pa.record_batch([list(ids), names], schema=COLUMNS))])


def gone(*ids: int) -> Bundle:
    keys = pa.record_batch([list(ids)], schema=pa.schema([COLUMNS.field("id")]))
    return Bundle([Batch.tombstones(BIRDS, keys)])


def ids_of(rows: Bundle) -> list[Any]:
    return [id for batch in rows.batches for id in batch.columns.column("id").to_pylist()]


@pytest.mark.parametrize("are_split", [True, False], ids=["tokens are known", "are not"])
def test_joined_rows_are_split_as_each_of_them_would_be(are_split: bool) -> None:
    several = [bundle(1, 2, 3), bundle(3, 4), bundle(*range(100, 150))]
    places = [each.places(EVEN) for each in several] if are_split else []
    joined = several[0].joined(several[1:])
    assert ids_of(joined) == [1, 2, 3, 3, 4, *range(100, 150)]
    assert len(joined.batches) == 1
    assert joined.bytes == sum(each.bytes for each in several)
    together = dict(joined.split(EVEN))
    for each, found in zip(several, places, strict=bool(places)):
        assert found == [index for index, _ in each.split(EVEN)]
    for index, part in together.items():
        alone = [ids_of(dict(each.split(EVEN)).get(index, Bundle())) for each in several]
        assert ids_of(part) == [id for ids in alone for id in ids]


def test_deleted_rows_stay_deleted_among_others() -> None:
    (batch,) = bundle(1, 2).joined([gone(2, 3), bundle(4)]).batches
    assert [batch.is_deleted(row) for row in range(5)] == [False, False, True, True, False]
    assert batch.columns.column("name").to_pylist() == ["bird 1", "bird 2", None, None, "bird 4"]


def test_only_rows_of_one_table_are_joined() -> None:
    assert bundle(1).joins(bundle(2))
    assert bundle(1).joins(gone(2))
    assert not bundle(1).joins(bundle(2, table=NESTS))
    assert not bundle(1).joins(Bundle([*bundle(2).batches, *bundle(2, table=NESTS).batches]))
    assert not Bundle([bundle(1).batches[0].at(7)]).joins(bundle(2))


def test_one_partition_gets_all_rows() -> None:
    alone = Starts([-(2**63)])
    assert bundle(1, 2).places(alone) == [0]
    assert Bundle().places(alone) == []
