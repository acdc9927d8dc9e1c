"""Can only sound tables be built, and does every batch become one of its table's or is refused?"""

import re
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.errors import InvalidKey, InvalidSchema
from limosa.tabular.schema import COLUMNS_MAX, DEPTH_MAX, Kind, Table

FIELDS: list[tuple[str, Any]] = [
    ("zone", pa.string()),
    ("number", pa.int64()),
    ("price", pa.float64()),
    ("tags", pa.list_(pa.string())),
    ("place", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
]
COLUMNS = pa.schema(FIELDS)
TABLE = Table("orders", COLUMNS, ("number", "zone"))

LEAVES = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.binary(7),
    pa.decimal128(38, 10),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("ns", tz="Europe/Amsterdam"),
]

TYPES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.dictionaries(st.text(max_size=5), inner, min_size=1, max_size=3).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    ),
    max_leaves=6,
)

NAMES = st.text(min_size=1, max_size=8).filter(lambda name: not name.startswith("__"))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    values = draw(st.dictionaries(NAMES.filter(lambda name: name != "key"), TYPES, max_size=6))
    columns = pa.schema([("key", pa.int64()), *values.items()])
    kinds: tuple[Kind, ...] = ("table", "stream")
    kind = draw(st.sampled_from(kinds))
    return Table("t", columns, ("key",), kind, draw(st.integers(1, 2**63 - 1)))


def keyed(*columns: Any, key: Any = ("key",), **more: Any) -> Table:
    return Table("t", pa.schema([pa.field("key", pa.int64()), *columns]), key, **more)


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def some_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"zone": "a", "number": 1, "price": 2.5, "tags": ["x", None], "place": {"x": 1}},
            {"zone": "b", "number": 2, "price": None, "tags": None, "place": None},
        ],
        schema=COLUMNS,
    )


# ---------------------------------------------------------------- a table


def test_a_table_knows_its_keys_and_values() -> None:
    assert TABLE.key_types == (pa.int64(), pa.string())
    assert TABLE.value_names == ("price", "tags", "place")
    assert (TABLE.kind, TABLE.version) == ("table", 1)


def test_only_keys_are_physically_not_null() -> None:
    declared = pa.schema([pa.field("key", pa.int64()), pa.field("n", pa.int8(), nullable=False)])
    physical = Table("t", declared, ("key",)).physical
    assert [field.nullable for field in physical] == [False, True]


def test_tables_of_equal_content_are_equal() -> None:
    same = Table("orders", pa.schema(list(COLUMNS)), ("number", "zone"))
    assert same == TABLE
    assert {same, TABLE} == {TABLE}
    assert Table("orders", COLUMNS, ("zone", "number")) != TABLE
    assert Table("orders", COLUMNS, ("number", "zone"), version=2) != TABLE


def test_a_table_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        TABLE.version = 2  # type: ignore[misc]


def test_labels_inside_types_do_not_matter() -> None:
    noted = {"ARROW:extension:name": "arrow.uuid"}
    inner = pa.field("element", pa.binary(16), nullable=False, metadata=noted)
    labelled = keyed(pa.field("ids", pa.list_(inner), metadata=noted))
    plain = keyed(pa.field("ids", pa.list_(pa.binary(16))))
    assert labelled == plain
    assert hash(labelled) == hash(plain)
    assert labelled.physical.equals(plain.physical, check_metadata=True)


def test_a_lone_key_needs_no_tuple() -> None:
    assert keyed(key="key").key == ("key",)
    assert keyed(key=["key"]).key == ("key",)


@pytest.mark.parametrize("table_id", ["", "a/b", "ü", "a" * 129, "a\n", ".", ".."])
def test_an_id_is_short_and_plain(table_id: str) -> None:
    with pytest.raises(InvalidSchema, match="is not a valid table id"):
        Table(table_id, COLUMNS, ("number",))


def test_kinds_and_versions_are_checked() -> None:
    with pytest.raises(InvalidSchema, match="not a kind"):
        keyed(kind="view")
    with pytest.raises(InvalidSchema, match="not a valid version"):
        keyed(version=0)
    with pytest.raises(InvalidSchema, match="not a valid version"):
        keyed(version=2**63)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "0 columns"),
        ([(f"c{i}", pa.int8()) for i in range(COLUMNS_MAX + 1)], "10001 columns"),
        ([("k", pa.int8()), ("a", pa.int8()), ("a", pa.int16())], "declared twice: a"),
        ([("k", pa.int8()), ("__token", pa.int64())], "reserved"),
        ([("k", pa.int8()), ("", pa.int64())], "not a valid column name"),
        ([("k", pa.int8()), ("s", pa.struct([]))], "struct without fields"),
        (
            [("k", pa.int8()), ("s", pa.struct([("a", pa.int8())] * 2))],
            "fields with the same name: a",
        ),
        ([("k", pa.int8()), ("b", pa.binary(0))], "give it a width"),
    ],
)
def test_columns_that_no_table_has_are_refused(columns: Any, message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        Table("t", pa.schema(columns), ("k",))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((), "without a key"),
        (("number", "number"), "named twice: number"),
        (("nowhere", "number"), "no such key columns: nowhere"),
        (("tags",), "key column tags: list"),
    ],
)
def test_a_key_without_tokens_is_refused(key: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidKey, match=message):
        Table("t", COLUMNS, key)


@pytest.mark.parametrize(
    ("of", "advice"),
    [
        (pa.null(), "declare the type"),
        (pa.uint8(), "int16"),
        (pa.uint64(), "decimal128(20, 0)"),
        (pa.float16(), "float32"),
        (pa.decimal32(5, 2), "decimal128"),
        (pa.decimal256(50, 2), "decimal128"),
        (pa.date64(), "date32"),
        (pa.time32("s"), "int32"),
        (pa.time64("us"), "int64"),
        (pa.duration("us"), "int64"),
        (pa.month_day_nano_interval(), "struct of integers"),
        (pa.string_view(), "string"),
        (pa.binary_view(), "binary"),
        (pa.dictionary(pa.int8(), pa.string()), "dictionary's values"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "runs' values"),
        (pa.list_(pa.int8(), 3), "list"),
        (pa.list_view(pa.int8()), "list"),
        (pa.large_list_view(pa.int8()), "large_list"),
        (pa.map_(pa.string(), pa.int8()), "list of structs"),
        (pa.sparse_union([pa.field("a", pa.int8())]), "struct"),
        (pa.dense_union([pa.field("a", pa.int8())]), "struct"),
        (pa.uuid(), "storage type, fixed_size_binary[16]"),
    ],
)
def test_other_types_are_refused_with_advice_wherever_they_are(of: Any, advice: str) -> None:
    inside = pa.large_list(pa.struct([("deep", of)]))
    for path, column in (("c", of), ("c[].deep", inside)):
        with pytest.raises(InvalidSchema, match=re.escape(advice)) as refused:
            keyed(pa.field("c", column))
        assert f"column {path} can't be" in refused.value.message


def test_types_nest_only_so_deep() -> None:
    deep: Any = pa.int8()
    for _ in range(DEPTH_MAX):
        deep = pa.list_(deep)
    assert keyed(pa.field("deep", deep)).physical.field("deep").type == deep
    with pytest.raises(InvalidSchema, match="too deep"):
        keyed(pa.field("deep", pa.list_(deep)))


def test_a_long_type_is_not_said_in_full() -> None:
    long = pa.struct([(f"field{i}", pa.int8()) for i in range(1000)])
    table = keyed(pa.field("c", long))
    with pytest.raises(InvalidSchema, match="…") as refused:
        table.align(rows(key=[1], c=[1]))
    assert len(str(refused.value)) < 1000


# ---------------------------------------------------------------- as bytes


@given(tables())
def test_a_table_survives_its_encoding(table: Table) -> None:
    again = Table.decode(table.encode())
    assert again == table
    assert again.physical.equals(table.physical, check_metadata=True)


def test_dropped_names_survive_their_encoding() -> None:
    table = TABLE.evolved(pa.schema(list(COLUMNS)[:3]))
    assert Table.decode(table.encode()).dropped == ("place", "tags")


@given(st.data())
def test_damaged_bytes_are_no_schema_or_a_sound_one(data: st.DataObject) -> None:
    encoded = bytearray(TABLE.encode())
    for place in data.draw(st.lists(st.integers(0, len(encoded) - 1), min_size=1, max_size=4)):
        encoded[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for damaged in (bytes(encoded), bytes(encoded[:cut])):
        with suppress(InvalidSchema):
            again = Table.decode(damaged)
            assert Table.decode(again.encode()) == again


@given(st.binary(max_size=200))
def test_garbage_is_no_schema(garbage: bytes) -> None:
    with pytest.raises(InvalidSchema):
        Table.decode(garbage)


# ---------------------------------------------------------------- its next version


def test_columns_come_and_go() -> None:
    columns = [pa.field("new", pa.date32()), *COLUMNS.remove(COLUMNS.get_field_index("price"))]
    table = TABLE.evolved(pa.schema(columns))
    assert table.version == 2
    assert table.columns.names == ["new", "zone", "number", "tags", "place"]
    assert table.dropped == ("price",)
    assert (table.id, table.key, table.kind) == (TABLE.id, TABLE.key, TABLE.kind)


def test_a_dropped_name_stays_taken() -> None:
    table = TABLE.evolved(COLUMNS.remove(COLUMNS.get_field_index("price")))
    later = table.evolved(table.columns.append(pa.field("cost", pa.int8())))
    with pytest.raises(InvalidSchema, match="columns price were dropped before"):
        later.evolved(COLUMNS)


@pytest.mark.parametrize(
    ("name", "of"),
    [("price", pa.float32()), ("number", pa.int32()), ("tags", pa.list_(pa.int8()))],
)
def test_a_column_keeps_its_type(name: str, of: pa.DataType) -> None:
    columns = COLUMNS.set(COLUMNS.get_field_index(name), pa.field(name, of))
    with pytest.raises(InvalidSchema, match=f"type of column {name} would change from"):
        TABLE.evolved(columns)


def test_a_table_keeps_its_key() -> None:
    with pytest.raises(InvalidSchema, match="key columns dropped: zone"):
        TABLE.evolved(COLUMNS.remove(0))


# ---------------------------------------------------------------- a batch to be written


def test_a_batch_of_the_right_columns_is_taken_as_it_is() -> None:
    aligned = TABLE.align(some_rows())
    assert aligned.schema.equals(TABLE.physical, check_metadata=True)
    assert aligned.to_pylist() == some_rows().to_pylist()
    assert TABLE.align(aligned) is aligned


def test_columns_are_found_by_name() -> None:
    shuffled = some_rows().select(["tags", "number", "place", "zone", "price"])
    aligned = TABLE.align(shuffled.replace_schema_metadata({"pandas": "{}"}))
    assert aligned.schema.equals(TABLE.physical, check_metadata=True)
    assert aligned.equals(TABLE.align(some_rows()))


def test_what_a_batch_lacks_is_null() -> None:
    aligned = TABLE.align(some_rows().select(["number", "zone"]))
    assert aligned.schema.equals(TABLE.physical, check_metadata=True)
    assert [aligned.column(name).null_count for name in TABLE.value_names] == [2, 2, 2]


def test_a_column_of_nothing_but_nulls_needs_no_type() -> None:
    aligned = TABLE.align(rows(number=[1], zone=["a"], tags=[None], place=[None]))
    assert aligned.to_pylist() == [
        {"zone": "a", "number": 1, "price": None, "tags": None, "place": None}
    ]


def test_a_batch_without_rows_is_aligned() -> None:
    for empty in (some_rows().slice(0, 0), rows(number=pa.nulls(0), zone=pa.nulls(0))):
        aligned = TABLE.align(empty)
        assert aligned.schema.equals(TABLE.physical, check_metadata=True)
        assert aligned.num_rows == 0


def test_unknown_columns_are_named_but_not_all_of_them() -> None:
    unknown = {f"u{i}": [1] for i in range(7)}
    with pytest.raises(InvalidSchema, match="no columns u0, u1, u2, u3, u4 and 2 more"):
        TABLE.align(rows(number=[1], zone=["a"], **unknown))


def test_a_column_sent_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array(["a"]), pa.array([1])], names=["number", "zone", "number"]
    )
    with pytest.raises(InvalidSchema, match="sent twice: number"):
        TABLE.align(twice)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("price", pa.array([1])),
        ("price", pa.array([1], pa.float32())),
        ("zone", pa.array(["a"], pa.large_string())),
        ("zone", pa.array(["a"]).dictionary_encode()),
        ("tags", pa.array([[1]])),
        ("place", pa.array([{"y": 1, "x": 1}], pa.struct([("y", pa.int32()), ("x", pa.int32())]))),
    ],
)
def test_nothing_is_cast_silently(name: str, column: Any) -> None:
    sent = {"number": pa.array([1]), "zone": pa.array(["a"])} | {name: column}
    with pytest.raises(InvalidSchema, match=f"column {name} has type"):
        TABLE.align(rows(**sent))


def test_a_type_that_differs_in_labels_is_taken() -> None:
    sparks = pa.list_(pa.field("element", pa.string(), nullable=False, metadata={"a": "b"}))
    place = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())])
    sent = rows(
        number=pa.array([0, 1]),
        zone=pa.array(["a", "b"]),
        tags=pa.array([["dropped"], ["kept"]], sparks),
        place=pa.array([None, {"x": 1, "y": None}], place),
    )
    aligned = TABLE.align(sent.slice(1))
    assert aligned.schema.equals(TABLE.physical, check_metadata=True)
    assert aligned.column("tags").type.equals(pa.list_(pa.string()), check_metadata=True)
    aligned.validate(full=True)
    assert aligned.to_pylist() == [
        {"zone": "b", "number": 1, "price": None, "tags": ["kept"], "place": {"x": 1, "y": None}}
    ]


@pytest.mark.parametrize("numbers", [[1, None], [None, None]])
def test_a_null_key_is_refused(numbers: list[int | None]) -> None:
    with pytest.raises(InvalidKey, match="null keys in column number"):
        TABLE.align(rows(number=numbers, zone=["a", "b"]))


def test_a_null_key_is_refused_on_the_short_path() -> None:
    unsound = pa.RecordBatch.from_pydict({"key": [None]}, schema=pa.schema([("key", pa.int64())]))
    with pytest.raises(InvalidKey, match="1 null keys"):
        keyed().align(unsound)
    # Arrow does not look whether a column that says so has no nulls.
    mislabelled = pa.RecordBatch.from_arrays(unsound.columns, schema=keyed().physical)
    with pytest.raises(InvalidKey, match="1 null keys"):
        keyed().align(mislabelled)


def test_a_batch_without_a_key_is_refused() -> None:
    with pytest.raises(InvalidKey, match="no key columns zone"):
        TABLE.align(rows(number=[1]))


@pytest.mark.parametrize("of", [pa.float32(), pa.float64()])
def test_a_nan_key_is_refused(of: pa.DataType) -> None:
    table = Table("t", pa.schema([("key", of), ("value", of)]), ("key",))
    nan = float("nan")
    sound = rows(key=pa.array([1.5], of), value=pa.array([nan], of))
    assert table.align(sound).num_rows == 1
    with pytest.raises(InvalidKey, match="NaN keys in column key"):
        table.align(rows(key=pa.array([1.5, nan], of)))


def test_thousands_of_columns_are_aligned() -> None:
    names = [f"c{i}" for i in range(2000)]
    table = Table("wide", pa.schema([(name, pa.int32()) for name in names]), ("c7",))
    sent = pa.RecordBatch.from_arrays([pa.array([1], pa.int32())] * 2000, names=names[::-1])
    for batch in (sent, sent.select(names), sent.select(["c7"])):
        aligned = table.align(batch)
        assert aligned.schema.equals(table.physical, check_metadata=True)
        assert aligned.column("c7").to_pylist() == [1]


@given(tables(), st.integers(0, 3))
def test_every_type_has_nulls_to_add(table: Table, count: int) -> None:
    aligned = table.align(rows(key=pa.array(range(count), pa.int64())))
    aligned.validate(full=True)
    assert aligned.schema.equals(table.physical, check_metadata=True)
    assert aligned.num_rows == count


# ---------------------------------------------------------------- a batch of older rows


def test_older_rows_are_widened() -> None:
    older = TABLE.align(some_rows())
    columns = COLUMNS.remove(COLUMNS.get_field_index("price")).insert(0, pa.field("new", pa.int8()))
    table = TABLE.evolved(columns)
    widened = table.widen(older)
    assert widened.schema.equals(table.physical, check_metadata=True)
    assert widened.column("new").null_count == 2
    assert widened.column("place").equals(older.column("place"))


def test_rows_of_this_version_are_not_widened() -> None:
    batch = TABLE.align(some_rows())
    assert TABLE.widen(batch) is batch


def test_the_engines_own_columns_are_left_out() -> None:
    batch = TABLE.align(some_rows())
    assert TABLE.widen(batch.append_column("__token", pa.array([1, 2]))).equals(batch)


def test_rows_of_another_table_are_not_widened() -> None:
    with pytest.raises(InvalidSchema, match="column price has type"):
        TABLE.widen(rows(number=[1], zone=["a"], price=["free"]))
    with pytest.raises(InvalidKey, match="no key columns"):
        TABLE.widen(rows(number=[1]))
