"""Do digests agree exactly when rows do, whatever memory the rows lie in?"""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from limosa.errors import BadInput
from limosa.tabular.digest import Digest, digest, row_hashes
from limosa.tabular.schema import Table

POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])
ZONED = pa.timestamp("us", tz="UTC")


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


def integers(bits: int) -> st.SearchStrategy[Any]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), st.text(max_size=40)),
    (pa.large_string(), st.text(max_size=40)),
    (pa.binary(), st.binary(max_size=40)),
    (pa.large_binary(), st.binary(max_size=40)),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal128(38, 4), decimals(38, 4)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (ZONED, st.datetimes(timezones=st.just(UTC))),
]


def or_null(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def grown(inner: tuple[Any, st.SearchStrategy[Any]]) -> list[tuple[Any, st.SearchStrategy[Any]]]:
    of, values = inner
    lists = st.lists(or_null(values), max_size=4)
    both = st.fixed_dictionaries({"a": or_null(values), "b": or_null(integers(8))})
    fields = pa.struct([("a", of), ("b", pa.int8())])
    return [(pa.list_(of), lists), (pa.large_list(of), lists), (fields, both)]


NESTED = [kind for leaf in KINDS for kind in grown(leaf)]
TWICE_NESTED = [kind for nested in NESTED[:9] + NESTED[21:27] for kind in grown(nested)]
EVERY_KIND = KINDS + NESTED + TWICE_NESTED


@st.composite
def columns(draw: st.DrawFn) -> Any:
    of, values = draw(st.sampled_from(EVERY_KIND))
    return pa.array(draw(st.lists(or_null(values), max_size=8)), of)


def table_of(*fields: tuple[str, Any], table_id: str = "t") -> Table:
    return Table(table_id, pa.schema([("key", pa.int64()), *fields]), ("key",))


def hashes_of(column: Any, name: str = "c") -> NDArray[np.uint64]:
    """Of rows that differ in nothing but this column."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0] * len(column), pa.int64()), column], names=["key", name]
    )
    table = table_of((name, column.type))
    return row_hashes(table, batch, np.ones(len(column), np.int64), None)


def buffer_of(values: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.tobytes())


def hash_of(value: Any, of: Any) -> int:
    return int(hashes_of(pa.array([value], of))[0])


def schema_of(fields: list[tuple[str, Any]]) -> pa.Schema:
    return pa.schema(fields)


# ---------------------------------------------------------------- pinned for ever

WIDE = pa.RecordBatch.from_pylist(
    [
        {"key": 1},
        {
            "key": -2,
            "boolean": True,
            "byte": -128,
            "short": 300,
            "int": -70000,
            "float": 1.5,
            "double": -0.0,
            "text": "grutto",
            "long text": "Limosa limosa " * 20,
            "bytes": b"\x00\xff",
            "fixed": b"abcde",
            "money": Decimal("-12345678901234567890.1234"),
            "day": date(2024, 2, 29),
            "moment": datetime(1969, 7, 20, 20, 17, 40, 5, UTC),
            "list": [1, None, 3],
            "struct": {"x": 7, "y": None},
            "deep": [[], None, [{"x": None, "y": 1}, None]],
        },
        {"key": 3, "boolean": False, "double": float("nan"), "text": "", "list": [], "deep": []},
    ],
    schema=schema_of(
        [
            ("key", pa.int64()),
            ("boolean", pa.bool_()),
            ("byte", pa.int8()),
            ("short", pa.int16()),
            ("int", pa.int32()),
            ("float", pa.float32()),
            ("double", pa.float64()),
            ("text", pa.string()),
            ("long text", pa.large_string()),
            ("bytes", pa.binary()),
            ("fixed", pa.binary(5)),
            ("money", pa.decimal128(24, 4)),
            ("day", pa.date32()),
            ("moment", ZONED),
            ("list", pa.list_(pa.int64())),
            ("struct", POINT),
            ("deep", pa.large_list(pa.list_(POINT))),
        ]
    ),
)
WIDE_TABLE = Table("wide", WIDE.schema, ("key",))
WIDE_VERSIONS = np.array([1, 2**40, -1])
WIDE_DELETED = np.array([True, False, False])


PINNED_ROWS = [8599869637422237099, 9762319144354633397, 16419377096686554339]
PINNED_DIGEST = Digest(3, 16334821804753873219, 1440938778361815037)


def wide_hashes() -> NDArray[np.uint64]:
    return row_hashes(WIDE_TABLE, WIDE, WIDE_VERSIONS, WIDE_DELETED)


def test_hashes_of_rows_are_pinned_for_ever() -> None:
    assert wide_hashes().tolist() == PINNED_ROWS


def test_digests_are_pinned_for_ever() -> None:
    assert digest(wide_hashes()) == PINNED_DIGEST


def mixed(word: int) -> int:
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 % 2**64
    word ^= word >> 27
    word = word * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def contribution(value: int, name: int) -> int:
    return mixed(value % 2**64 ^ name)


def named(name: str, seed: int) -> int:
    return xxh64_intdigest(name.encode(), seed)


def test_the_hash_of_a_row_is_what_the_module_says() -> None:
    """The rules once more, in plain Python."""
    table = table_of(
        ("f", pa.float64()), ("s", pa.string()), ("d", pa.decimal128(30)), ("n", pa.int8()),
        ("l", pa.list_(pa.int16())), ("p", POINT), table_id="plain",
    )  # fmt: skip
    row = {
        "key": -5,
        "f": 2.5,
        "s": "abc",
        "d": Decimal(-1 << 70),
        "l": [7, None, -8],
        "p": {"y": -9},
    }
    batch = pa.RecordBatch.from_pylist([row], schema=table.columns)
    seed, golden = named("plain", 0), 0x9E3779B97F4A7C15
    elements = contribution(7, golden) + contribution(-8, 3 * golden % 2**64)
    values = {
        "key": -5,
        "f": struct.unpack("<q", struct.pack("<d", 2.5))[0],
        "s": named("abc", 42),
        "d": ((-1 << 70) % 2**64) ^ mixed((-1 << 6) % 2**64),
        "l": mixed((0x4C49535400000000 + 3 + elements) % 2**64),
        "p": mixed((0x5354525543540000 + contribution(-9, named("y", 0))) % 2**64),
        "__version": -3,
        "__deleted": 1,
    }
    total = sum(contribution(value, named(name, seed)) for name, value in values.items())
    found = row_hashes(table, batch, np.array([-3]), np.array([True]))
    assert found.tolist() == [mixed(total % 2**64)]


# ---------------------------------------------------------------- what makes a difference


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (pa.int64(), [None, 0, 1, -1]),
        (pa.bool_(), [None, False, True]),
        (pa.string(), [None, "", "\0", "a", "a\0", "aa"]),
        (pa.binary(3), [None, b"\0\0\0", b"abc", b"abd"]),
        (pa.float64(), [None, 0.0, -0.0, float("nan"), float("inf"), -float("inf")]),
        (pa.float32(), [None, 0.0, -0.0, float("nan"), float("inf"), -float("inf")]),
        (pa.decimal128(38), [None, *map(Decimal, (0, 1, -1, 2**64, 2**64 + 1, -(2**64)))]),
        (pa.timestamp("ns"), [None, 0, 1, -1]),
        (
            pa.list_(pa.int64()),
            [None, [], [None], [None, None], [0], [0, None], [None, 0], [0, 0], [1, 2], [2, 1]],
        ),
        (POINT, [None, {}, {"x": 0}, {"y": 0}, {"x": 0, "y": 0}, {"x": 0, "y": 1}, {"x": 1}]),
        (pa.list_(pa.list_(pa.int8())), [None, [], [[]], [[], []], [None], [[None]], [[1], [2]]]),
        (pa.list_(POINT), [None, [], [None], [{}], [{}, None], [None, {}]]),
    ],
)  # fmt: skip
def test_values_that_look_alike_differ(of: Any, values: list[Any]) -> None:
    assert len(set(hashes_of(pa.array(values, of)).tolist())) == len(values)


def test_a_null_list_differs_from_an_empty_one() -> None:
    of = pa.list_(pa.int64())
    assert hash_of(None, of) != hash_of([], of)


def test_every_nan_is_alike() -> None:
    for form, bits in (("<u8", [0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0 << 48 | 1, 2**64 - 1]),
                       ("<u4", [0x7FC00000, 0xFFC00000, 0x7F800001, 2**32 - 1])):  # fmt: skip
        values = np.array(bits, form)
        of = pa.float64() if form == "<u8" else pa.float32()
        column = pa.Array.from_buffers(of, 4, [None, buffer_of(values)])
        assert len(set(hashes_of(column).tolist())) == 1
        assert hashes_of(column)[0] == hash_of(float("nan"), of)


def test_the_name_of_a_column_matters() -> None:
    column = pa.array([1, None])
    one, other = hashes_of(column, "one"), hashes_of(column, "other")
    assert one[0] != other[0]
    assert one[1] == other[1]


def test_the_table_the_version_and_deletion_matter() -> None:
    batch = pa.RecordBatch.from_pydict({"key": [1]})
    seen = {
        int(row_hashes(table_of(table_id=table_id), batch, np.array([version]), deleted)[0])
        for table_id in ("a", "b")
        for version in (0, 1, -1)
        for deleted in (None, np.array([True]))
    }
    assert len(seen) == 12


def test_no_deletion_is_as_good_as_none_told() -> None:
    batch = pa.RecordBatch.from_pydict({"key": [1, 2]})
    versions = np.array([1, 2])
    told = row_hashes(table_of(), batch, versions, np.array([False, False]))
    assert told.tolist() == row_hashes(table_of(), batch, versions, None).tolist()


def test_two_columns_that_swap_their_values_differ() -> None:
    table = table_of(("a", pa.int64()), ("b", pa.int64()))
    batch = pa.RecordBatch.from_pydict({"key": [0, 0], "a": [1, 2], "b": [2, 1]})
    one, other = row_hashes(table, batch, np.array([1, 1]), None)
    assert one != other


@given(columns(), st.data())
def test_any_other_value_makes_another_digest(column: Any, data: st.DataObject) -> None:
    assume(len(column))
    of, values = next(kind for kind in EVERY_KIND if kind[0] == column.type)
    place = data.draw(st.integers(0, len(column) - 1))
    changed = column.to_pylist()
    changed[place] = data.draw(or_null(values))
    other = pa.array(changed, of)
    # Arrow's printing tells -0.0 from 0.0 and takes every NaN for one.
    assume(str(other[place]) != str(column[place]))
    assert digest(hashes_of(other)) != digest(hashes_of(column))


# ---------------------------------------------------------------- what makes none


@given(columns(), st.integers(0, 8), st.integers(0, 8))
def test_a_slice_hashes_as_if_it_were_all(column: Any, start: int, length: int) -> None:
    part = column.slice(start, length)
    fresh = pa.array(part.to_pylist(), column.type)
    assert hashes_of(part).tolist() == hashes_of(fresh).tolist()
    assert hashes_of(part).tolist() == hashes_of(column)[start : start + length].tolist()


@given(columns(), st.integers(0, 8))
def test_pieces_hash_as_their_whole(column: Any, cut: int) -> None:
    one, other = column.slice(cut), column.slice(0, cut)
    apart = [*hashes_of(one).tolist(), *hashes_of(other).tolist()]
    assert hashes_of(pa.concat_arrays([one, other])).tolist() == apart


@given(columns())
def test_a_batch_that_was_sent_hashes_as_before(column: Any) -> None:
    batch = pa.RecordBatch.from_arrays([column], names=["c"]).slice(1)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    (received,) = pa.ipc.open_stream(sink.getvalue())
    assert hashes_of(received.column(0)).tolist() == hashes_of(batch.column(0)).tolist()


@given(columns(), st.data())
def test_what_lies_under_a_null_is_not_seen(column: Any, data: st.DataObject) -> None:
    """The same validity over other bytes: taken from a column that has other values there."""
    _, values = next(kind for kind in EVERY_KIND if kind[0] == column.type)
    filled = [data.draw(values) if value is None else value for value in column.to_pylist()]
    full = pa.array(filled, column.type)
    bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    # All bits beyond the last row are set: padding is not seen, either.
    padding = np.full(8, 255, np.uint8)
    if len(column) % 8:
        bits[-1] |= 256 - (1 << len(column) % 8)
    validity = buffer_of(np.concatenate([bits, padding]))
    assert hashes_of(with_validity(full, validity)).tolist() == hashes_of(column).tolist()


def with_validity(column: Any, validity: pa.Buffer) -> Any:
    of = column.type
    if isinstance(of, pa.StructType):
        children = [column.field(place) for place in range(of.num_fields)]
        return pa.Array.from_buffers(of, len(column), [validity], children=children)
    buffers = [validity, *column.buffers()[1:]]
    if isinstance(of, pa.ListType | pa.LargeListType):
        return pa.Array.from_buffers(of, len(column), buffers[:2], children=[column.values])
    return pa.Array.from_buffers(of, len(column), buffers)


@pytest.mark.parametrize("of", [pa.string(), pa.large_binary()])
def test_many_strings_hash_as_few(of: Any) -> None:
    """However many there are of a length, which decides how they are hashed."""
    many: Any = pa.array([b"x" * (place % 3) + b"%d" % (place % 7) for place in range(2000)])
    many = many.cast(of)
    apart = np.concatenate([hashes_of(many.slice(at, 10)) for at in range(0, 2000, 10)])
    assert hashes_of(many).tolist() == apart.tolist()


def test_the_order_of_columns_does_not_matter() -> None:
    shuffled = WIDE.select(WIDE.schema.names[::-1])
    found = row_hashes(WIDE_TABLE, shuffled, WIDE_VERSIONS, WIDE_DELETED)
    assert found.tolist() == wide_hashes().tolist()


def test_a_column_that_is_added_changes_nothing() -> None:
    table = WIDE_TABLE.evolved(WIDE.schema.insert(3, pa.field("new", pa.list_(POINT))))
    widened = table.widen(WIDE_TABLE.align(WIDE))
    assert "new" in widened.schema.names
    for batch in (WIDE, widened):
        found = row_hashes(table, batch, WIDE_VERSIONS, WIDE_DELETED)
        assert found.tolist() == wide_hashes().tolist()


def test_columns_that_are_not_the_tables_do_not_count() -> None:
    more = WIDE.append_column("__token", pa.array([1, 2, 3]))
    found = row_hashes(WIDE_TABLE, more, WIDE_VERSIONS, WIDE_DELETED)
    assert found.tolist() == wide_hashes().tolist()


def test_what_is_hashed_stays_as_it_was() -> None:
    before, versions = WIDE.to_pydict(), WIDE_VERSIONS.copy()
    wide_hashes()
    assert str(WIDE.to_pydict()) == str(before)
    assert versions.tolist() == WIDE_VERSIONS.tolist()


def test_no_rows_have_no_hashes() -> None:
    none = row_hashes(WIDE_TABLE, WIDE.slice(0, 0), np.array([], np.int64), None)
    assert none.tolist() == []
    assert digest(none) == Digest.EMPTY


def test_a_version_is_needed_for_each_row() -> None:
    with pytest.raises(BadInput, match="2 versions for 3 rows"):
        row_hashes(WIDE_TABLE, WIDE, np.array([1, 2]), None)


# ---------------------------------------------------------------- sets of rows

HASHES = st.lists(st.integers(0, 2**64 - 1)).map(lambda some: np.array(some, np.uint64))


@given(HASHES, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(hashes: NDArray[np.uint64], random: Any) -> None:
    shuffled = hashes.tolist()
    random.shuffle(shuffled)
    assert digest(np.array(shuffled, np.uint64)) == digest(hashes)


@given(HASHES, HASHES)
def test_digests_of_disjoint_rows_add_up(one: Any, other: Any) -> None:
    assert digest(one) + digest(other) == digest(np.concatenate([one, other]))
    assert digest(one) + Digest.EMPTY == digest(one)


def test_a_row_held_twice_is_noticed() -> None:
    once = np.array([5], np.uint64)
    assert digest(np.repeat(once, 3)) != digest(once)
    assert digest(np.repeat(once, 2)) != Digest.EMPTY
