"""What if keys, values, batches or tables are unusual?"""

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from limosa.core.effects import CreateReplica
from limosa.core.model.keys import WHOLE, TokenRange
from limosa.errors import BadInput, InvalidKey, InvalidSchema, UnusableFile
from limosa.storage.store import Store
from limosa.storage.view import View
from limosa.storage.volume import StorageSettings
from limosa.tabular.digest import Digest
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from tests.storage.medium import MediumFiles
from tests.storage.samples import (
    BIRDS,
    LEFT,
    NESTS,
    RIGHT,
    SONGS,
    TINY,
    Hand,
    Host,
    batch_of,
    birds,
    colliding_tokens,
    gone,
    in_view,
    keys_of,
    rows_of,
    small_pieces,
    songs,
    table_digest,
    versioned,
)
from tests.storage.sole import SoleOwner

ROOMY = StorageSettings()
UTC = dt.UTC


def table_of(columns: dict[str, pa.DataType], *key: str, id: str = "t") -> Table:
    return Table(id, pa.schema(list(columns.items())), key)


def layouts(host: Host, partition: str = "p1") -> Iterator[str]:
    """The same rows in memory, from the log, in a segment, merged, and read again."""
    yield "in memory"
    host.volume.sync()
    host.kill()
    yield "from the log"
    host.flush(partition)
    yield "in a segment"
    host.compact(partition)
    yield "merged"
    host.kill()
    yield "opened again"


# ------------------------------------------------------------------------------------- keys

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "int16": (pa.int16(), [-(2**15), 0, 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "float32": (pa.float32(), [-1.5, 0.0, float("inf")]),
    "float64": (pa.float64(), [-1.5, 0.0, 1e300, float("-inf")]),
    "string": (pa.string(), ["", "a", "ä", "鳥" * 100, "\0"]),
    "large_string": (pa.large_string(), ["", "b", "x" * 1000]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff" * 70]),
    "large_binary": (pa.large_binary(), [b"", b"q"]),
    "fixed": (pa.binary(4), [b"abcd", b"\0\0\0\0"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us"), [dt.datetime(1969, 7, 20, 1, 2, 3, 4)]),
    "zoned": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 2, 29, 1, 2, 3, 4, UTC)]),
    "decimal": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("99.99")]),
    "wide decimal": (pa.decimal128(38, 3), [Decimal("-1.500"), Decimal(10) ** 34]),
}


@pytest.mark.parametrize("name", KEYS)
def test_rows_are_found_by_keys_of_every_type(name: str) -> None:
    key_type, keys = KEYS[name]
    table = table_of({"k": key_type, "v": pa.int64()}, "k")
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(batch_of(table, [(key, number) for number, key in enumerate(keys)]))
    wanted = pa.RecordBatch.from_arrays([pa.array(keys, key_type)], names=["k"])
    for layout in layouts(host):
        view = host.view()
        for number, key in enumerate(keys):
            assert view.get(table, (key,)) == {"k": key, "v": number}, layout
            assert host.replica().newest(table, (key,)) > 0
        found, versions = view.get_many(table, wanted)
        assert found.column("k").to_pylist() == keys
        assert len(versions) == len(keys)
    hand.put(Batch.tombstones(table, wanted))
    assert host.view().count(table) == 0


def test_a_negative_zero_is_the_key_zero() -> None:
    table = table_of({"k": pa.float64(), "v": pa.int64()}, "k")
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(batch_of(table, [(0.0, 1)]))
    hand.put(batch_of(table, [(-0.0, 2)]))
    for _ in layouts(host):
        assert host.view().count(table) == 1
        assert host.view().get(table, (0.0,)) == {"k": 0.0, "v": 2}
        assert host.view().get(table, (-0.0,)) is not None


def test_a_composite_key_is_all_of_its_columns() -> None:
    columns: dict[str, pa.DataType] = {
        "v": pa.string(),
        "a": pa.string(),
        "b": pa.int32(),
        "c": pa.date32(),
    }
    table = table_of(columns, "c", "a", "b")
    day, next_day = dt.date(2024, 1, 1), dt.date(2024, 1, 2)
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(batch_of(table, [("one", "x", 1, day), ("two", "x", 2, day)]))
    hand.put(batch_of(table, [("three", "x", 1, next_day), ("four", "x", 1, day)]))
    for _ in layouts(host):
        view = host.view()
        assert view.count(table) == 3
        assert view.get(table, (day, "x", 1)) == {"v": "four", "a": "x", "b": 1, "c": day}
        assert view.get(table, (next_day, "x", 2)) is None
    keys = batch_of(table, [(None, "x", 1, day)]).columns
    hand.put(Batch.tombstones(table, keys))
    assert sorted(row["v"] for b in host.view().scan(table) for row in b.to_pylist()) == [
        "three",
        "two",
    ]


@pytest.mark.parametrize("bad", [None, float("nan")])
def test_a_key_that_is_null_or_nan_is_refused_and_nothing_changes(bad: float | None) -> None:
    table = table_of({"k": pa.float64(), "v": pa.int64()}, "k")
    columns = pa.RecordBatch.from_pydict({"k": pa.array([1.0, bad]), "v": pa.array([1, 2])})
    with Store({"v1": "v1"}, MediumFiles()) as store:
        owner = SoleOwner(store, "p1", "r1")
        owner.upsert(batch_of(table, [(1.0, 0)]))
        for make in (Batch.of, Batch.tombstones):
            with pytest.raises(InvalidKey, match=r"null|NaN"):
                owner.upsert(make(table, columns))
        with pytest.raises(InvalidKey):
            owner.view.get(table, (bad,))
        with pytest.raises(InvalidKey):
            owner.view.get_many(table, columns.select(["k"]))
        assert in_view(owner.view, table) == {1.0: 0}


def test_keys_of_another_type_than_the_tables_are_refused() -> None:
    """Another type has other tokens: nothing would be found, though it is there."""
    host = Host(ROOMY)
    host.hand().put(batch_of(NESTS, [(1, 2.0)]))
    narrow = pa.RecordBatch.from_pydict({"place": pa.array([1], pa.int32())})
    with pytest.raises(BadInput):
        host.view().get_many(NESTS, narrow)
    with pytest.raises(BadInput):
        host.view().get_many(NESTS, pa.RecordBatch.from_pydict({"x": pa.array([1])}))
    with pytest.raises(InvalidKey):
        host.view().get(NESTS, ("1",))


def test_different_keys_with_one_token_are_different_rows() -> None:
    with colliding_tokens(kept_bits=1):
        host = Host(ROOMY)
        hand = host.hand()
        names = [f"bird {number}" for number in range(40)]
        hand.put(birds(*((name, 1) for name in names)))
        host.flush()
        hand.put(birds(*((name, 2) for name in names[::2])))
        hand.put(gone(*names[::3]))
        hand.append(birds(*((name, 4) for name in names[::5])))
        expected = {name: 1 + (number % 2 == 0) for number, name in enumerate(names) if number % 3}
        for layout in layouts(host):
            view = host.view()
            assert in_view(view) == expected, layout
            for number, name in enumerate(names):
                found = view.get(BIRDS, (name,))
                assert (found or {}).get("eggs") == expected.get(name)
                newest = host.replica().newest(BIRDS, (name,))
                assert (newest == hand.last) == (number % 5 == 0)
            many, _ = view.get_many(BIRDS, keys_of(*names))
            assert many.column("name").to_pylist() == list(expected)


# ------------------------------------------------------------------------------------- batches


def test_an_empty_batch_changes_no_rows() -> None:
    with Store({"v1": "v1"}, MediumFiles()) as store:
        owner = SoleOwner(store, "p1", "r1")
        first = owner.upsert(birds(("wren", 1)))
        again = owner.upsert(birds())
        assert again > first
        owner.append(Bundle())
        owner.append(None)
        owner.commit(owner.append(Bundle([birds(), songs()])))
        assert in_view(owner.view) == {"wren": 1}
        store.flush("p1", "r1")
    assert len(Bundle([birds(), songs()])) == 0


def test_of_a_key_that_comes_twice_in_a_batch_the_last_row_counts() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 1), ("rook", 1), ("wren", 2), ("wren", 3)))
    for _ in layouts(host):
        assert in_view(host.view()) == {"wren": 3, "rook": 1}
        assert host.view().get(BIRDS, ("wren",)) == {"name": "wren", "eggs": 3}
        assert host.view().count(BIRDS) == 2


@pytest.mark.parametrize("deleted_last", [True, False])
def test_of_a_key_that_comes_in_two_batches_of_an_entry_the_later_batch_counts(
    deleted_last: bool,
) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    others = [(f"bird {number}", number) for number in range(600)]
    first: list[Batch] = [birds(("wren", 1), *others), gone("wren")]
    if not deleted_last:
        first = [gone("wren", *(name for name, _ in others)), birds(("wren", 1))]
    at = hand.append(*first)
    expected = None if deleted_last else {"name": "wren", "eggs": 1}
    assert host.replica().newest(BIRDS, ("wren",)) == (0 if deleted_last else at)
    hand.advance()
    for number in range(20):
        assert host.view().get(BIRDS, ("wren",)) == expected, number
        assert in_view(host.view()).get("wren") == (expected or {}).get("eggs")
        hand.put(birds((f"late {number}", number)))
    for _ in layouts(host):
        assert host.view().get(BIRDS, ("wren",)) == expected
        assert in_view(host.view()).get("wren") == (expected or {}).get("eggs")


def test_a_million_rows_in_one_batch(tmp_path: Path) -> None:
    count = 1_000_000
    table = table_of({"k": pa.int64(), "v": pa.int64()}, "k")
    numbers = np.arange(count)
    columns = pa.RecordBatch.from_arrays(
        [pa.array(numbers), pa.array(numbers * 2)], schema=table.physical
    )
    with Store({"v1": str(tmp_path / "v1")}) as store:
        owner = SoleOwner(store, "p1", "r1")
        owner.upsert(Batch.of(table, columns))
        assert owner.view.get(table, (999_999,)) == {"k": 999_999, "v": 1_999_998}
        digest = table_digest(owner.view, table)
        store.flush("p1", "r1")
        owner.upsert(batch_of(table, [(5, 0)]))
    with Store({"v1": str(tmp_path / "v1")}) as store:
        view = store.view("p1", "r1")
        assert view.count(table) == count == digest.count
        assert view.get(table, (5,)) == {"k": 5, "v": 0}
        total = sum(int(pc.sum(batch.column("v")).as_py()) for batch in view.scan(table))
        assert total == count * (count - 1) - 10


def test_values_of_ten_megabytes() -> None:
    table = table_of({"k": pa.int64(), "v": pa.binary()}, "k")
    host = Host(ROOMY)
    hand = host.hand()
    values = {number: bytes([number]) * 10_000_000 for number in range(3)}
    for number, value in values.items():
        hand.put(batch_of(table, [(number, value)]))
    host.volume.sync()
    host.flush()
    hand.put(batch_of(table, [(1, b"small")]))
    values[1] = b"small"
    host.compact()
    host.kill()
    assert in_view(host.view(), table) == values
    assert host.view().get(table, (2,)) == {"k": 2, "v": values[2]}


def test_two_thousand_columns() -> None:
    names = [f"c{number}" for number in range(2000)]
    table = table_of({"k": pa.int64(), **dict.fromkeys(names, pa.float64())}, "k")
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(batch_of(table, [(row, *(row + n for n in range(2000))) for row in range(3)]))
    hand.put(batch_of(table, [(1, *([None] * 2000))]))
    for _ in layouts(host):
        view = host.view()
        row = view.get(table, (2,))
        assert row is not None
        assert row["c1999"] == 2001.0
        (found,) = view.scan(table, ["k", "c7"])
        assert dict(zip(*found.to_pydict().values(), strict=True)) == {0: 7.0, 1: None, 2: 9.0}


# ------------------------------------------------------------------------------------- values

ALL_TYPES: dict[str, pa.DataType] = {
    "k": pa.int64(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "decimal": pa.decimal128(38, 5),
    "date": pa.date32(),
    "seconds": pa.timestamp("s"),
    "nanos": pa.timestamp("ns", "Europe/Berlin"),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "fixed": pa.binary(3),
    "list": pa.list_(pa.int64()),
    "large_list": pa.large_list(pa.string()),
    "struct": pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
    "nested": pa.list_(pa.struct([("z", pa.decimal128(5, 1))])),
}


def every_value(number: int) -> tuple[Any, ...]:
    moment = dt.datetime(2024, 1, 1 + number, 12, 30, 15)
    return (
        number,
        number % 2 == 0,
        -number,
        number * 100,
        -number * 1000,
        number / 2,
        number / 4,
        Decimal(number) * Decimal("1.00001"),
        moment.date(),
        moment,
        moment.replace(tzinfo=UTC),
        f"text {number}",
        "鳥" * number,
        bytes([number]) * number,
        b"abc",
        [number, None, 3],
        [] if number % 2 else ["a", None],
        {"x": number, "y": ["p", None]},
        [{"z": Decimal("1.5")}, None],
    )


def test_values_of_every_type_come_back_as_they_were() -> None:
    table = table_of(ALL_TYPES, "k")
    nulls = [(number, *([None] * (len(ALL_TYPES) - 1))) for number in range(20, 23)]
    sent = batch_of(table, [every_value(number) for number in range(10)] + nulls)
    expected = {row["k"]: row for row in sent.columns.to_pylist()}
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(sent.slice(0, 7))
    hand.put(sent.slice(4, 13))
    digest = table_digest(host.view(), table)
    for layout in layouts(host):
        found = [row for batch in host.view().scan(table) for row in batch.to_pylist()]
        assert {row["k"]: row for row in found} == expected, layout
        assert host.view().get(table, (9,)) == expected[9]
        assert table_digest(host.view(), table) == digest


# ------------------------------------------------------------------------------------- columns


def test_a_column_that_was_added_later_is_null_in_older_rows() -> None:
    old = table_of({"k": pa.int64(), "a": pa.int64()}, "k")
    columns: dict[str, pa.DataType] = {"k": pa.int64(), "b": pa.string(), "a": pa.int64()}
    new = old.evolved(pa.schema(columns))
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(batch_of(old, [(1, 10), (2, 20)]))
    host.flush()
    hand.put(batch_of(old, [(3, 30)]))
    hand.put(batch_of(new, [(4, "four", 40), (1, "one", 11)]))
    hand.put(batch_of(old, [(5, 50)]))
    expected: list[dict[str, Any]] = [
        {"k": 1, "b": "one", "a": 11},
        {"k": 2, "b": None, "a": 20},
        {"k": 3, "b": None, "a": 30},
        {"k": 4, "b": "four", "a": 40},
        {"k": 5, "b": None, "a": 50},
    ]
    digest = host.view().digest()
    for layout in layouts(host):
        view = host.view()
        found = [row for batch in view.scan(new) for row in batch.to_pylist()]
        assert sorted(found, key=lambda row: row["k"]) == expected, layout
        assert [view.get(new, (row["k"],)) for row in expected] == expected
        assert view.get(old, (4,)) == {"k": 4, "a": 40}
        many, _ = view.get_many(new, pa.RecordBatch.from_pydict({"k": pa.array([5, 1, 2])}))
        assert many.to_pylist() == [expected[4], expected[0], expected[1]]
        assert view.digest() == digest
    (only,) = host.view().tables["t"].segments
    assert only.segment.table == new


@pytest.mark.parametrize("piece_bytes", [50, 10_000])
def test_a_column_that_was_dropped_is_not_seen_and_counts_in_no_digest(piece_bytes: int) -> None:
    with small_pieces(1, piece_bytes):
        old = table_of({"k": pa.int64(), "a": pa.int64(), "b": pa.int64()}, "k")
        new = old.evolved(pa.schema({"k": pa.int64(), "b": pa.int64()}))
        host = Host(ROOMY)
        hand = host.hand()
        hand.put(batch_of(old, [(1, 10, 100), (2, 20, 200)]))
        host.flush()
        hand.put(batch_of(new, [(3, 300)]))
        host.flush()
        expected = {1: 100, 2: 200, 3: 300}
        before = host.view()
        assert in_view(before, new) == expected
        copy = host.hand("copy")
        for held in (LEFT, RIGHT):
            copy.apply_slice(*before.batches(new, held, tombstones=True))
        host.compact()
        after = host.view()
        assert in_view(after, new) == expected
        assert after.get(new, (1,)) == {"k": 1, "b": 100}
        assert after.digest() == before.digest() == host.view("copy").digest()
        for view in (before, host.view("copy")):
            assert table_digest(view, new) == table_digest(after, new)
        with pytest.raises(BadInput, match="a"):
            list(after.scan(new, ["a"]))
        with pytest.raises(InvalidSchema):
            new.evolved(pa.schema({"k": pa.int64(), "b": pa.int64(), "a": pa.int64()}))


# ------------------------------------------------------------------------------------- reading


def test_a_scan_has_the_columns_rows_and_tokens_that_were_asked_for() -> None:
    with small_pieces():
        host = Host(ROOMY)
        hand = host.hand()
        hand.put(birds(*((f"bird {number}", number) for number in range(50))))
        host.flush()
        hand.put(birds(*((f"bird {number}", number + 1000) for number in range(0, 50, 5))))
        everything = in_view(host.view())
        assert len(everything) == 50
        for layout in layouts(host):
            view = host.view()
            assert all(b.schema.names == ["eggs"] for b in view.scan(BIRDS, ["eggs"])), layout
            few = view.scan(BIRDS, ["name"], pc.field("eggs") < 4)
            names = sorted(name for batch in few for (name,) in rows_of(batch))
            assert names == ["bird 1", "bird 2", "bird 3"]
            halves = [
                row["name"]
                for held in (LEFT, RIGHT)
                for b in view.scan(BIRDS, token_range=held)
                for row in b.to_pylist()
            ]
            assert sorted(halves) == sorted(everything)
            tokens = [t for b in view.batches(BIRDS) for t in b.tokens.tolist()]
            assert tokens == sorted(tokens)
            assert view.count(BIRDS, LEFT) + view.count(BIRDS, RIGHT) == 50
            one = TokenRange(tokens[7], tokens[7] + 1)
            assert view.count(BIRDS, one) == 1
        with pytest.raises(BadInput, match="wings"):
            list(host.view().scan(BIRDS, ["wings"]))


def test_the_first_and_the_last_token_are_in_the_whole_range() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    edges = [WHOLE.start, -1, 0, WHOLE.end - 1]
    batch = birds(*((f"bird {number}", number) for number in range(4)))
    hand.put(Batch(BIRDS, batch.columns, np.array(edges)))
    for _ in layouts(host):
        assert host.view().count(BIRDS) == 4
        assert host.view().count(BIRDS, LEFT) == 2
        assert host.view().count(BIRDS, TokenRange(WHOLE.end - 1, WHOLE.end)) == 1
        assert table_digest(host.view(), BIRDS).count == 4


def test_many_keys_are_found_in_the_order_they_were_asked_for() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("a", 1), ("b", 2)))
    host.flush()
    first = hand.last
    hand.put(birds(("c", 3), ("a", 4)), gone("b"))
    wanted = keys_of("x", "c", "b", "a", "c")
    for _ in layouts(host):
        found, versions = host.view().get_many(BIRDS, wanted)
        assert found.to_pydict() == {"name": ["c", "a", "c"], "eggs": [3, 4, 3]}
        assert versions == [hand.last] * 3
        assert first < hand.last
    none, versions = host.view().get_many(BIRDS, keys_of())
    assert (none.num_rows, versions) == (0, [])
    assert host.view().get_many(NESTS, pa.record_batch({"place": pa.array([1])}))[1] == []
    assert host.view().get(NESTS, (1,)) is None
    assert list(host.view().scan(NESTS)) == []


def test_what_is_not_committed_is_nowhere_but_in_newest() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    view, digest = host.view(), host.view().digest()
    at = hand.append(birds(("wren", 2), ("rook", 2)))
    host.flush()
    for name in ("wren", "rook"):
        assert host.replica().newest(BIRDS, (name,)) == at
    assert in_view(host.view()) == in_view(view) == {"wren": 1}
    assert host.view().digest() == digest
    deleted = hand.append(gone("wren"))
    assert host.replica().newest(BIRDS, ("wren",)) == 0
    hand.truncate(at)
    assert host.replica().newest(BIRDS, ("wren",)) == at
    hand.truncate(at - 1)
    assert host.replica().newest(BIRDS, ("rook",)) == 0
    assert deleted > at
    host.volume.sync()
    host.kill()
    assert in_view(host.view()) == {"wren": 1}
    assert host.replica().newest(BIRDS, ("rook",)) == 0


def test_a_compare_and_set_compares_with_the_newest_version() -> None:
    with Store({"v1": "v1"}, MediumFiles()) as store:
        owner = SoleOwner(store, "p1", "r1")
        done, first = owner.put_if(birds(("wren", 1)), 0)
        assert done
        assert owner.put_if(birds(("wren", 2)), 0) == (False, first)
        waiting = owner.append(Bundle([birds(("wren", 3))]))
        assert owner.put_if(birds(("wren", 4)), first) == (False, waiting)
        done, fourth = owner.put_if(birds(("wren", 4)), waiting)
        assert (done, in_view(owner.view)) == (True, {"wren": 4})
        store.flush("p1", "r1")
        assert owner.newest(BIRDS, ("wren",)) == fourth
        owner.delete(gone("wren"))
        assert owner.newest(BIRDS, ("wren",)) == 0
        store.compact("p1", "r1")
        assert owner.put_if(birds(("wren", 5)), fourth) == (False, 0)
        assert owner.put_if(birds(("wren", 5)), 0)[0]


def test_a_producer_that_sends_again_changes_nothing() -> None:
    files = MediumFiles()
    with Store({"v1": "v1"}, files) as store:
        owner = SoleOwner(store, "p1", "r1")
        first = owner.upsert(birds(("wren", 1)), "me", 1)
        owner.upsert(birds(("wren", 2)), "me", 2)
        assert owner.upsert(birds(("wren", 1)), "me", 1) == first
        assert in_view(owner.view) == {"wren": 2}
        store.flush("p1", "r1")
    with Store({"v1": "v1"}, files) as store:
        owner = SoleOwner(store, "p1", "r1")
        assert owner.upsert(birds(("wren", 1)), "me", 1) == first
        assert in_view(owner.view) == {"wren": 2}


def test_the_owner_keeps_its_log_short() -> None:
    files = MediumFiles()
    with Store({"v1": "v1"}, files, TINY) as store:
        owner = SoleOwner(store, "p1", "r1")
        for number in range(300):
            owner.upsert(birds((f"bird {number % 7}", number)))
            store.maintain()
        assert len(store.tail("p1", "r1", 0)) <= 129
        assert len(in_view(owner.view)) == 7
        assert store.sizes()["p1", "r1"].rows < 300
        assert store.free_bytes()["v1"] > 0


# ------------------------------------------------------------------------------------- digests


def test_digests_do_not_depend_on_how_rows_lie() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    with small_pieces():
        for start in range(0, 60, 10):
            hand.put(birds(*((f"bird {n}", n) for n in range(start, start + 25))))
            hand.put(gone(f"bird {start}", f"bird {start + 1}"))
        digest, total = host.view().digest(), table_digest(host.view(), BIRDS)
        halves = [table_digest(host.view(), BIRDS, half) for half in (LEFT, RIGHT)]
        assert sum(halves, Digest.EMPTY) == total
        assert total.count == host.view().count(BIRDS) + 12
        for layout in layouts(host):
            assert host.view().digest() == digest, layout
            assert table_digest(host.view(), BIRDS) == total
        copy = host.hand("copy")
        for held in (RIGHT, LEFT):
            copy.apply_slice(*host.view().batches(BIRDS, held, tombstones=True))
        for layout in layouts(host, "copy"):
            assert host.view("copy").digest() == digest, layout
            assert table_digest(host.view("copy"), BIRDS) == total


def test_a_collected_tombstone_counts_in_no_digest_wherever_it_lies() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 1), ("rook", 1)))
    host.flush()
    deleted = hand.put(gone("wren"))
    digest = host.view().digest()
    hand.collect(deleted)
    expected = host.view().digest()
    assert expected != digest
    for layout in layouts(host):
        assert host.view().digest() == expected, layout
        assert in_view(host.view()) == {"rook": 1}
        slices = [len(batch) for batch in host.view().batches(BIRDS, tombstones=True)]
        assert sum(slices) == 1


def test_sizes_are_about_right() -> None:
    with Store({"v1": "v1"}, MediumFiles()) as store:
        owner = SoleOwner(store, "p1", "r1")
        owner.upsert(birds(*((f"bird {number}", number) for number in range(1000))))
        for is_flushed in (False, True):
            if is_flushed:
                store.flush("p1", "r1")
            size = store.sizes()["p1", "r1"]
            assert size.rows == 1000
            assert 20_000 < size.bytes < 80_000


# ------------------------------------------------------------------------------------- views


def test_a_view_stays_as_it_is_whatever_happens() -> None:
    with small_pieces():
        host = Host(TINY)
        hand = host.hand()
        for number in range(20):
            hand.put(birds((f"bird {number}", number)), songs(("wren", number)))
            host.maintain()
        view = host.view()
        rows, digest = in_view(view), view.digest()

        def check() -> None:
            assert in_view(view) == rows
            assert view.digest() == digest
            assert len(view.read_from(SONGS, 0)[1]) == 20

        acts: list[Callable[[], object]] = [
            lambda: hand.put(birds(*((name, 0) for name in rows)), gone("bird 3")),
            host.flush,
            host.compact,
            hand.begin,
            host.flush,
            hand.discard,
            host.maintain,
            hand.create,
            host.compact,
            host.reopen,
        ]
        for act in acts:
            act()
            check()


# ------------------------------------------------------------------------------------- refusals


def test_a_change_that_is_refused_is_not_in_the_log_either() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    with pytest.raises(BadInput, match="songs"):
        hand.apply_slice(versioned(songs(("wren", 1)), [7]))
    hand.put(birds(("rook", 2)))
    host.volume.sync()
    host.kill()
    assert in_view(host.view()) == {"wren": 1, "rook": 2}


def test_changes_of_a_replica_that_is_not_there_change_nothing() -> None:
    host = Host(ROOMY)
    nobody = Hand(host.write, "nobody")
    nobody.put(birds(("wren", 1)))
    nobody.begin()
    nobody.discard()
    host.volume.sync()
    assert host.volume.replicas == {}
    host.kill()
    assert host.volume.replicas == {}


@pytest.mark.parametrize("is_discarded", [True, False])
@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_replica_that_is_created_again_is_empty(is_discarded: bool, is_flushed: bool) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    if is_flushed:
        host.flush()
    if is_discarded:
        hand.discard()
    host.write(CreateReplica(*hand.key, 0, "v1"))
    at = hand.put(birds(("rook", 2)))
    for _ in layouts(host):
        assert in_view(host.view()) == {"rook": 2}
        assert [entry.at for entry in host.volume.tail(host.replica(), 0)] == [at]


def test_ids_may_have_any_letters() -> None:
    host = Host(ROOMY)
    for name in ("a/b", "..", "ä b", "a~b", "%41"):
        host.hand(name).put(birds((name, 1)))
        host.flush(name)
    host.kill()
    for name in ("a/b", "..", "ä b", "a~b", "%41"):
        assert in_view(host.view(name)) == {name: 1}
    assert host.volume.refused == {}


def test_two_processes_can_not_use_one_volume(tmp_path: Path) -> None:
    directories = {"v1": str(tmp_path / "v1")}
    with Store(directories), pytest.raises(UnusableFile, match="locked"):
        Store(directories)
    Store(directories).close()


def test_a_store_says_what_it_does_not_have() -> None:
    with Store({"v1": "v1"}, MediumFiles()) as store:
        with pytest.raises(BadInput, match="ask another node"):
            store.view("p1", "r1")
        with pytest.raises(BadInput, match="'v2'"):
            Hand(store.write).create("v2")
        hand = Hand(store.write).create("v1")
        hand.discard()
        with pytest.raises(BadInput, match="ask another node"):
            store.flush(*hand.key)


def test_an_empty_view_is_one() -> None:
    view = View()
    assert view.digest() == 0
    assert view.count(BIRDS) == 0
    assert table_digest(view, BIRDS) == Digest.EMPTY
    assert view.next_offset(SONGS) == 0
