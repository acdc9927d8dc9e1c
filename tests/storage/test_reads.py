"""Do all ways to read a row see the same? A get, a get of many, a scan, and what `newest` says."""

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from importlib.util import find_spec
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.errors import BadInput, InvalidKey
from limosa.storage import view as views
from limosa.storage.memtable import Memtable
from limosa.storage.store import Store
from limosa.storage.view import TableView, View
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import SMALL_ROWS, Batch
from limosa.tabular.schema import Kind, Table
from tests.storage.medium import MediumFiles
from tests.storage.samples import BIRDS, SONGS, Host, batch_of, colliding_tokens, songs, table
from tests.storage.sole import SoleOwner

BERLIN = ZoneInfo("Europe/Berlin")
ZONED = pa.timestamp("us", "Europe/Berlin")
FIRST_HALF_PAST_TWO = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
SECOND_HALF_PAST_TWO = FIRST_HALF_PAST_TWO.replace(fold=1)
"""The clock is put back at three."""

YEAR_10000 = 253_402_300_800 * 10**6
MEGABYTE = 1 << 20


def keyed(key_type: pa.DataType) -> Table:
    return table("t", ("k", key_type), ("v", pa.int64()))


def rows_with(table: Table, keys: Any) -> Batch:
    values = pa.array(range(len(keys)), pa.int64())
    return Batch.of(table, pa.RecordBatch.from_arrays([keys, values], schema=table.physical))


def only_keys(keys: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([keys], names=["k"])


def many(column: Any) -> Any:
    """So many rows that they are not read by Arrow's own scalars."""
    return pa.concat_arrays([column] * SMALL_ROWS)


def layouts(host: Host) -> Iterator[str]:
    yield "in memory"
    host.flush()
    yield "in a segment"
    host.kill()
    yield "opened again"


def of_invalid_text() -> Any:
    offsets, content = np.array([0, 1], np.int32), b"\xff"
    return pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content)]
    )


# ------------------------------------------------------------------------------------- keys

# fmt: off
SAME: dict[str, tuple[pa.DataType, Any, list[Any]]] = {
    "bool":            (pa.bool_(),           True,                [np.True_]),
    "int8":            (pa.int8(),            -3,                  [np.int64(-3), np.int8(-3)]),
    "int64":           (pa.int64(),           7,                   [np.int32(7)]),
    "float32":         (pa.float32(),         0.1,                 [np.float32(0.1), float(np.float32(0.1))]),  # noqa: E501
    "float32, whole":  (pa.float32(),         3.0,                 [3, np.int8(3)]),
    "float32, zero":   (pa.float32(),         -0.0,                [0.0, 0, 1e-60, -1e-60]),
    "float64":         (pa.float64(),         0.1,                 [np.float64(0.1)]),
    "float64, narrow": (pa.float64(),         float(np.float32(0.1)), [np.float32(0.1)]),
    "float64, zero":   (pa.float64(),         0.0,                 [-0.0, 0]),
    "string":          (pa.string(),          "ä",                 [np.str_("ä")]),
    "large string":    (pa.large_string(),    "鳥",                []),
    "binary":          (pa.binary(),          b"ab",               [bytearray(b"ab"), memoryview(b"ab")]),  # noqa: E501
    "binary, cast":    (pa.binary(),          b"abcd",             [memoryview(b"abcd").cast("I")]),
    "large binary":    (pa.large_binary(),    b"",                 [bytearray()]),
    "fixed binary":    (pa.binary(2),         b"ab",               [bytearray(b"ab")]),
    "date":            (pa.date32(),          dt.date(1969, 2, 3), []),
    "timestamp":       (pa.timestamp("us"),   dt.datetime(1, 1, 1, 0, 0, 0, 1), []),
    "zoned":           (ZONED,                FIRST_HALF_PAST_TWO, [FIRST_HALF_PAST_TWO.astimezone(dt.UTC)]),  # noqa: E501
    "zoned, later":    (ZONED,                SECOND_HALF_PAST_TWO, [SECOND_HALF_PAST_TWO.astimezone(dt.UTC)]),  # noqa: E501
    "decimal":         (pa.decimal128(10, 2), Decimal("1.50"),     [Decimal("1.5"), Decimal("1.5000")]),  # noqa: E501
    "decimal, whole":  (pa.decimal128(38, 3), Decimal(10) ** 34,   [10**34, Decimal("1e34")]),
}
# fmt: on


@pytest.mark.parametrize("rows", [1, SMALL_ROWS])
@pytest.mark.parametrize("name", SAME)
def test_equal_keys_find_the_same_row_however_they_are_written(name: str, rows: int) -> None:
    key_type, key, others = SAME[name]
    kept = keyed(key_type)
    column = pa.array([key], key_type)
    host = Host(StorageSettings())
    hand = host.hand()
    uncommitted = hand.append(rows_with(kept, pa.concat_arrays([column] * rows)))
    for same in (key, *others):
        assert host.replica().newest(kept, (same,)) == uncommitted
    hand.advance()
    for layout in layouts(host):
        view = host.view()
        (scanned,) = view.scan(kept)
        (expected,) = scanned.to_pylist()
        assert view.get_many(kept, only_keys(column))[0].equals(scanned), layout
        for same in (*scanned.column("k").to_pylist(), key, *others):
            assert view.get(kept, (same,)) == expected, layout
            assert host.replica().newest(kept, (same,)) == uncommitted


def test_both_rows_of_an_hour_that_the_clock_shows_twice_are_found() -> None:
    kept = keyed(ZONED)
    host = Host(StorageSettings())
    hand = host.hand()
    twice = pa.array([FIRST_HALF_PAST_TWO, SECOND_HALF_PAST_TWO], ZONED)
    with colliding_tokens(0):
        hand.put(rows_with(kept, twice))
        found_many, _ = host.view().get_many(kept, only_keys(twice))
        assert found_many.column("v").to_pylist() == [0, 1]
        scanned = [value for batch in host.view().scan(kept) for value in batch.column("v")]
        assert sorted(value.as_py() for value in scanned) == [0, 1]
        for number, key in enumerate((FIRST_HALF_PAST_TWO, SECOND_HALF_PAST_TWO)):
            for same in (key, key.astimezone(dt.UTC)):
                found = host.view().get(kept, (same,))
                assert found is not None
                assert found["v"] == number


@pytest.mark.parametrize(
    ("key_type", "key"), [(pa.float32(), 0.1), (ZONED, SECOND_HALF_PAST_TWO.astimezone(dt.UTC))]
)
def test_a_compare_and_set_sees_the_row_whatever_its_key_is(
    key_type: pa.DataType, key: Any
) -> None:
    kept = keyed(key_type)
    with Store({"v1": "v1"}, MediumFiles()) as store:
        owner = SoleOwner(store, "p1", "r1")
        done, first = owner.put_if(batch_of(kept, [(key, 1)]), 0)
        assert done
        assert owner.newest(kept, (key,)) == first
        assert owner.put_if(batch_of(kept, [(key, 2)]), 0) == (False, first)
        store.flush("p1", "r1")
        assert owner.newest(kept, (key,)) == first


def in_a_zone(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC)


SOME: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float32": (pa.float32(), st.floats(-1e30, 1e30)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "string": (pa.string(), st.text()),
    "large string": (pa.large_string(), st.text()),
    "binary": (pa.binary(), st.binary()),
    "large binary": (pa.large_binary(), st.binary()),
    "fixed binary": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "zoned": (
        ZONED,
        st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2030, 1, 1)).map(in_a_zone),
    ),
    "decimal": (pa.decimal128(9, 3), st.decimals(-(10**5), 10**5, places=3)),
    "wide decimal": (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
}


@pytest.mark.parametrize("name", SOME)
@given(data=st.data())
def test_what_a_scan_shows_is_what_gets_find(name: str, data: st.DataObject) -> None:
    key_type, some = SOME[name]
    keys = data.draw(st.lists(some, min_size=1, max_size=40))
    kept = keyed(key_type)
    memtables = (Memtable.at(rows_with(kept, pa.array(keys, key_type)), 1),)
    view = View(1, 0, {kept.id: TableView(kept, memtables)})
    (scanned,) = view.scan(kept)
    assert view.get_many(kept, only_keys(scanned.column("k")))[0].equals(scanned)
    assert [
        view.get(kept, (key,)) for key in scanned.column("k").to_pylist()
    ] == scanned.to_pylist()
    assert all(view.get(kept, (key,)) is not None for key in keys)


def test_a_key_that_arrow_can_not_compare_is_refused() -> None:
    with pytest.raises(InvalidKey, match="scale"):
        keyed(pa.decimal128(5, -2))


def test_a_key_that_is_none_is_still_refused() -> None:
    view = View(1, 0, {BIRDS.id: TableView(BIRDS)})
    for key in ((1,), (None,), (), ("a", "b")):
        with pytest.raises(InvalidKey):
            view.get(BIRDS, key)


# ---------------------------------------------------------------------- what Python can't hold


def nested(column: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(range(len(column) + 1), pa.int32()), column)


BEYOND: dict[str, Any] = {
    "nanoseconds": pa.array([1], pa.timestamp("ns")),
    "late": pa.array([YEAR_10000], pa.timestamp("us")),
    "very late": pa.array([2**62], pa.timestamp("s")),
    "early": pa.array([-(2**62)], pa.timestamp("ms")),
    "late here": pa.array([YEAR_10000 - 1], ZONED),
    "in no zone": pa.array([1], pa.timestamp("us", "Nowhere/Land")),
    "a late date": pa.array([2**30], pa.date32()),
    "an early date": pa.array([-(2**31)], pa.date32()),
    "not UTF-8": of_invalid_text(),
    "in a list": nested(pa.array([2**30], pa.date32())),
}


@pytest.mark.parametrize("shape", [lambda column: column, many], ids=["one", "many"])
@pytest.mark.parametrize("name", BEYOND)
def test_a_value_that_python_can_not_hold_is_read_as_arrow(
    name: str, shape: Callable[[Any], Any]
) -> None:
    column = shape(BEYOND[name])
    keys = pa.array(range(len(column)), pa.int64())
    kept = table("t", ("k", pa.int64()), ("odd", column.type))
    host = Host(StorageSettings())
    batch = pa.RecordBatch.from_arrays([keys, column], schema=kept.physical)
    host.hand().put(Batch.of(kept, batch))
    for layout in layouts(host):
        view = host.view()
        if name == "nanoseconds" and find_spec("pandas"):
            row = view.get(kept, (0,))  # Arrow gives pandas' own type, if that is installed
            assert row is not None
            assert row["odd"].nanosecond == 1
        else:
            with pytest.raises(BadInput, match=r"column odd .*get_many"):
                view.get(kept, (0,))
        found = view.find(kept, (0,))
        assert found is not None
        assert found.columns(kept).column("odd").equals(BEYOND[name]), layout
        assert view.get_many(kept, only_keys(keys))[0].column("odd").equals(column)
        assert sum(len(rows) for rows in view.scan(kept)) == len(column)


@pytest.mark.parametrize("name", ["late", "late here", "a late date", "an early date", "not UTF-8"])
def test_a_key_that_python_can_not_hold_is_read_as_arrow(name: str) -> None:
    column = BEYOND[name]
    kept = keyed(column.type)
    with Store({"v1": "v1"}, MediumFiles()) as store:
        owner = SoleOwner(store, "p1", "r1")
        owner.upsert(rows_with(kept, column))
        owner.upsert(rows_with(kept, many(column)))
        for _ in range(2):
            (scanned,) = owner.view.scan(kept)
            found, versions = owner.view.get_many(kept, only_keys(column))
            assert found.equals(scanned)
            assert len(versions) == 1
            store.flush("p1", "r1")
        with pytest.raises(BadInput, match="column k "):
            owner.put_if(rows_with(kept, column), 0)
        owner.delete(Batch.tombstones(kept, only_keys(column)))
        assert owner.view.get_many(kept, only_keys(column))[1] == []


def test_keys_that_share_a_token_with_one_that_python_can_not_hold_are_found() -> None:
    kept = keyed(pa.date32())
    host = Host(StorageSettings())
    with colliding_tokens(0):
        host.hand().put(rows_with(kept, pa.array([2**30, 0], pa.date32())))
        assert host.view().get(kept, (dt.date(1970, 1, 1),)) == {"k": dt.date(1970, 1, 1), "v": 1}
        assert host.view().get(kept, (dt.date(1970, 1, 2),)) is None


# ---------------------------------------------------------------------- readers of another schema

WIDE = table("t", ("k", pa.int64()), ("kept", pa.int64()), ("going", pa.int64()))
NARROW = WIDE.evolved(pa.schema([("k", pa.int64()), ("kept", pa.int64())]))
GROWN = NARROW.evolved(pa.schema([("coming", pa.int64()), ("k", pa.int64()), ("kept", pa.int64())]))


@pytest.mark.parametrize("reader", [WIDE, NARROW, GROWN], ids=["oldest", "older", "newest"])
@pytest.mark.parametrize("last", [WIDE, NARROW, GROWN], ids=["oldest", "older", "newest"])
def test_a_reader_of_any_version_sees_one_thing(reader: Table, last: Table) -> None:
    host = Host(StorageSettings())
    hand = host.hand()
    hand.put(batch_of(WIDE, [(1, 10, 100), (2, 20, 200)]))
    hand.put(batch_of(last, [[3] * len(last.names)]))
    keys = pa.array([1, 2, 3])
    for layout in layouts(host):
        view = host.view()
        expected = sorted(
            (row for rows in view.scan(reader) for row in rows.to_pylist()),
            key=lambda row: int(row["k"]),
        )
        assert [row["kept"] for row in expected] == [10, 20, 3]
        assert [view.get(reader, (key,)) for key in (1, 2, 3)] == expected, layout
        assert view.get_many(reader, only_keys(keys))[0].to_pylist() == expected
        for key, row in zip((1, 2, 3), expected, strict=True):
            found = view.find(reader, (key,))
            assert found is not None
            assert found.values(reader) == row
            assert found.columns(reader).to_pylist() == [row]


def test_a_dropped_column_of_a_stream_is_gone_for_all_readers() -> None:
    shorter = SONGS.evolved(pa.schema([("name", pa.string())]))
    host = Host(StorageSettings())
    hand = host.hand()
    hand.put(songs(("wren", 1)))
    hand.put(batch_of(shorter, [("rook",)]))
    for layout in layouts(host):
        view = host.view()
        read = view.read_from(SONGS, 0)[1].to_pylist()
        assert read == [row for rows in view.scan(SONGS) for row in rows.to_pylist()], layout
        assert read == [{"name": "wren", "tone": None}, {"name": "rook", "tone": None}]


# ---------------------------------------------------------------------------------- large reads


def texts(kind: Kind, sizes: list[int]) -> View:
    """Rows of such sizes, one to a batch, that share their bytes, so that they take no memory."""
    long = table("texts", ("k", pa.int64()), ("text", pa.string()), kind=kind)
    content = pa.py_buffer(bytes(max(sizes)))
    memtables = []
    for number, size in enumerate(sizes):
        offsets = pa.py_buffer(np.array([0, size], np.int32).tobytes())
        text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, content])
        columns = pa.RecordBatch.from_arrays([pa.array([number]), text], schema=long.physical)
        memtables.append(Memtable.at(Batch.of(long, columns), number + 1))
    return View(len(sizes), 0, {long.id: TableView(long, tuple(memtables), next_offset=len(sizes))})


def test_records_of_more_bytes_than_a_batch_may_have_are_read_in_parts() -> None:
    view = texts("stream", [100 * MEGABYTE] * 22)
    stream = view.tables["texts"].table
    first, found = view.read_from(stream, 20)
    assert (first, found.column("k").to_pylist()) == (20, [20])
    assert view.read_from(stream, 21)[1].column("k").to_pylist() == [21]
    assert view.read_from(stream, 22)[1].num_rows == 0


@pytest.mark.parametrize("bytes_max", [1, 40, 200, 1000, 10**9])
@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_reader_that_goes_on_gets_every_record_once(
    bytes_max: int, is_one_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "READ_BYTES", bytes_max)
    sizes = [0, 500, 1, 30, 30, 30, 2000, 5, 5, 5, 5, 5]
    rows = [("x" * size, number) for number, size in enumerate(sizes)]
    host = Host(StorageSettings())
    hand = host.hand()
    for part in [rows] if is_one_batch else [[row] for row in rows]:
        hand.put(songs(*part))
    for layout in layouts(host):
        offset, read = 0, []
        while offset < len(rows):
            _, found = host.view().read_from(SONGS, offset)
            assert found.num_rows
            assert found.num_rows == 1 or found.nbytes <= bytes_max
            read += found.column("tone").to_pylist()
            offset += found.num_rows
        assert read == list(range(len(rows))), layout
        assert host.view().read_from(SONGS, 3, 2)[1].num_rows <= 2
        assert host.view().read_from(SONGS, 3, 0)[1].num_rows == 0


def test_keys_of_more_bytes_than_a_batch_may_have_are_refused() -> None:
    view = texts("table", [100 * MEGABYTE] * 22)
    long = view.tables["texts"].table
    for keys in (range(22), [3] * 22):
        with pytest.raises(BadInput, match="fewer keys"):
            view.get_many(long, only_keys(pa.array(keys, pa.int64())))
    assert view.get_many(long, only_keys(pa.array([21])))[0].column("k").to_pylist() == [21]


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_small_rows_that_lie_beside_large_ones_are_found(
    is_one_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "GATHER_BYTES", 1000)
    rows = [("x" * 900, 1), *((f"{number}" * 10, number) for number in range(10))]
    host = Host(StorageSettings())
    hand = host.hand()
    for part in [rows] if is_one_batch else [[row] for row in rows]:
        hand.put(batch_of(BIRDS, part))
    names = [name for name, _ in rows]
    wanted = pa.array([*names[1:], *names[1:]], pa.string())
    for _ in layouts(host):
        found, _ = host.view().get_many(BIRDS, pa.record_batch({"name": wanted}))
        assert found.column("name").equals(wanted)
        with pytest.raises(BadInput, match="fewer keys"):
            host.view().get_many(BIRDS, pa.record_batch({"name": pa.array(names)}))
