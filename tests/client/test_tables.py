"""What can an application do with tables? On a real node, over real sockets."""

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import limosa
from limosa.client import Mismatch, Operator
from limosa.errors import (
    BadInput,
    IllegalRequest,
    InvalidKey,
    InvalidSchema,
    Refused,
    UnknownTable,
)
from limosa.runtime.local import LocalCluster


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1, secret=False) as running:
        yield running


@pytest.fixture
def db(cluster: LocalCluster) -> Iterator[Operator]:
    with limosa.operate(cluster.addresses["n1"].removeprefix("grpc://")) as connection:
        yield connection


def test_a_table_from_its_making_to_its_end(db: Operator) -> None:
    table = db.create_table(
        "orders", {"id": "int64", "name": "string", "price": "float64"}, "id", partitions=4
    )
    assert db.describe("orders").columns == {"id": "int64", "name": "string", "price": "double"}
    assert (db.describe("orders").partitions, db.describe("orders").replicas) == (4, 1)
    assert "orders" in db.tables()
    assert table.write([{"id": n, "name": f"n{n}", "price": n / 2} for n in range(100)]) == 100
    assert table.get(7) == {"id": 7, "name": "n7", "price": 3.5}
    assert table.get(700) is None
    assert table.get_many([3, 5, 700]).sort_by("id").column("id").to_pylist() == [3, 5]
    assert table.delete([3, 4, 900]) == 3
    assert table.get(3) is None
    assert table.count() == 98
    found = table.scan(columns=["id"], where=[("price", ">", 45), ("id", "<", 95)])
    assert found.sort_by("id").column("id").to_pylist() == [91, 92, 93, 94]
    assert table.scan().schema == table.schema
    db.drop_table("orders")
    assert "orders" not in db.tables()
    with pytest.raises(UnknownTable, match="no table 'orders'"):
        table.write([{"id": 1}])
    with pytest.raises(UnknownTable, match="create it first"):
        db.table("orders")


def test_a_row_is_put_only_if_it_is_the_one_that_was_seen(db: Operator) -> None:
    table = db.create_table("counters", {"k": "string", "n": "int64"}, "k", partitions=2)
    first = table.put_if({"k": "x", "n": 1}, 0)
    with pytest.raises(Mismatch) as caught:
        table.put_if({"k": "x", "n": 2}, 0)
    assert caught.value.found == first
    seen = table.get_row("x")
    assert seen is not None
    assert (seen.values["n"], seen.version) == (1, first)
    second = table.put_if({"k": "x", "n": 2}, first)
    assert second > first
    table.delete("x")
    assert table.put_if({"k": "x", "n": 3}, 0) > second
    with pytest.raises(BadInput, match="put_if got 2 rows"):
        table.put_if([{"k": "a"}, {"k": "b"}], 0)


def test_increments_of_several_threads_all_count(db: Operator, cluster: LocalCluster) -> None:
    """S34: compare and set serialises them; S32: each reads what it has written."""
    table = db.create_table("contended", {"k": "int64", "n": "int64"}, "k", partitions=1)
    table.write([{"k": 0, "n": 0}])

    def increment(times: int) -> None:
        with limosa.operate(cluster.addresses["n1"]) as mine:
            counter = mine.table("contended")
            for _ in range(times):
                while True:
                    row = counter.get_row(0)
                    assert row is not None
                    try:
                        counter.put_if({"k": 0, "n": row.values["n"] + 1}, row.version)
                        break
                    except Mismatch:
                        continue

    threads = [threading.Thread(target=increment, args=(25,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.get(0) == {"k": 0, "n": 100}


def test_every_type_of_key_and_column_goes_there_and_back(db: Operator) -> None:
    types: list[tuple[str, pa.DataType]] = [
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 3)),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("x", pa.int32())])),
    ]
    schema = pa.schema(types)
    table = db.create_table("typed", schema, ["day", "at", "price"], partitions=2)
    row = {
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
        "price": Decimal("12.345"),
        "flag": True,
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "inner": {"x": 5},
    }
    table.write([row])
    key = (row["day"], row["at"], row["price"])
    assert table.get(key) == row
    assert table.get_many([key]).to_pylist() == [row]
    assert table.scan(where=[("price", "=", Decimal("12.345"))]).num_rows == 1


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([{"n": 1}], InvalidKey),
        ([{"k": None, "n": 1}], InvalidKey),
        ([{"k": "x", "m": 1}], InvalidSchema),
        (pa.table({"k": ["x"], "n": ["text"]}), InvalidSchema),
        (pa.table({"k": [1], "n": [1]}), InvalidSchema),
    ],
    ids=["no key", "null key", "unknown column", "wrong type", "key of another type"],
)
def test_bad_rows_are_refused_and_nothing_is_written(
    db: Operator, rows: object, kind: type[BadInput]
) -> None:
    if "strict" not in db.tables():
        db.create_table("strict", {"k": "string", "n": "int64"}, "k", partitions=1)
    table = db.table("strict")
    with pytest.raises(kind) as caught:
        table.write(rows)
    assert caught.value.definite
    assert caught.value.advice
    assert table.count() == 0


def test_a_table_that_was_made_again_is_another_one(db: Operator) -> None:
    """A stale handle is refused, and says why; rows of the old table are not in the new one."""
    old = db.create_table("again", {"k": "int64", "n": "int64"}, "k", partitions=1)
    old.write([{"k": 1, "n": 1}])
    db.drop_table("again")
    new = db.create_table("again", {"k": "int64", "n": "int64"}, "k", partitions=1)
    assert new.count() == 0
    with pytest.raises(UnknownTable, match="dropped and created again"):
        old.write([{"k": 2, "n": 2}])
    assert new.count() == 0


def test_impossible_tables_are_refused_with_the_reason(db: Operator) -> None:
    types = {"k": "int64"}
    db.create_table("taken", types, "k", partitions=1)
    with pytest.raises(IllegalRequest, match="taken"):
        db.create_table("taken", types, "k")
    with pytest.raises(IllegalRequest, match="3 replicas, but 1"):
        db.create_table("too_many", types, "k", replicas=3)
    with pytest.raises(BadInput):
        db.create_table("../../etc/passwd", types, "k")
    with pytest.raises(BadInput):
        db.create_table("keyless", types, "nothing")
    with pytest.raises(BadInput, match="can't be of type"):
        db.create_table("odd", {"k": "color"}, "k")


def test_tables_of_one_zone_share_partitions(db: Operator) -> None:
    """Co-located: the same key is in the same partition; dropping one leaves the other alone."""
    first = db.create_table("left", {"k": "int64", "v": "int64"}, "k", partitions=3)
    second = db.create_table("right", {"k": "int64", "w": "int64"}, "k", zone="left")
    first.write([{"k": n, "v": n} for n in range(50)])
    second.write([{"k": n, "w": -n} for n in range(50)])
    assert db.describe("right").zone == "left"
    assert db.describe("right").partitions == 3
    db.drop_table("left")
    assert second.get(7) == {"k": 7, "w": -7}
    assert second.count() == 50


def test_a_wrong_address_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not an address"):
        limosa.operate("nonsense")
    with pytest.raises(Refused, match="limosa up"):
        limosa.operate(str(tmp_path))


@pytest.mark.processes
def test_a_node_without_tables_has_nothing_to_route_by(tmp_path: Path) -> None:
    """Its topology has no layouts; all rows of a table of one partition are in that partition."""
    with LocalCluster(tmp_path, nodes=1) as alone:
        secret = alone.secret
        address = alone.addresses["n1"]
        with limosa.operate(address, secret=secret, cluster_name=alone.cluster) as db:
            assert db.topology.layouts == {}
            assert db.topology.partitions == {}
            table = db.create_table("whole", {"k": "int64"}, "k", partitions=1)
            table.write([{"k": n} for n in range(300)])
            assert list(db.refresh().partitions) == ["whole-0000"]
            (replica,) = db.node_digests("n1")
            assert (replica["partition"], replica["rows"]) == ("whole-0000", 300)
