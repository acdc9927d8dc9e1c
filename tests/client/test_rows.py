"""May these rows be written? Whatever they come as, they fit the table, or are refused by name."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.client.rows import in_pieces, key_values, keys_to_arrow, plain_row, to_arrow
from limosa.client.schema import schema_of
from limosa.errors import BadInput, InvalidKey, InvalidSchema
from limosa.tabular.rows import Batch
from limosa.tabular.schema import Table

TABLE = Table(
    "t1",
    schema_of({"id": "int64", "name": "string", "price": "float64"}),
    ("id",),
)
PAIRS = Table("t2", schema_of({"a": "string", "b": "int32", "v": "int64"}), ("a", "b"))
ROWS = [{"id": 1, "name": "a", "price": 1.5}, {"id": 2, "name": None}]


class Frame:
    """Something that hands Arrow over, as Polars does."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        capsule: object = self._rows.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
        return capsule


def test_every_form_becomes_the_same_rows() -> None:
    expected = pa.table({"id": [1, 2], "name": ["a", None], "price": [1.5, None]}, TABLE.physical)
    arrow = to_arrow(TABLE, ROWS)
    assert arrow.cast(TABLE.physical).equals(expected)
    batch = arrow.to_batches()[0]
    for form in (arrow, batch, batch.to_reader() if hasattr(batch, "to_reader") else arrow):
        assert to_arrow(TABLE, form).num_rows == 2
    assert to_arrow(TABLE, Frame(arrow)).equals(arrow)
    assert to_arrow(TABLE, ROWS[0]).num_rows == 1
    assert to_arrow(TABLE, iter(ROWS)).num_rows == 2


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        ([{"id": 1, "colour": "red"}], InvalidSchema, "no columns colour"),
        ([{"id": "one"}], InvalidSchema, "column id can't be converted to int64"),
        ([{"id": 2**70}], InvalidSchema, "column id"),
        ([(1, "a")], BadInput, "a row is a tuple"),
        ("some text", BadInput, "can't be passed as str"),
        (7, BadInput, "can't be passed as int"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    rows: object, kind: type[BadInput], words: str
) -> None:
    with pytest.raises(kind, match=words):
        to_arrow(TABLE, rows)


def test_large_rows_go_in_small_pieces() -> None:
    long = pa.table({"id": list(range(200_000))})
    assert [batch.num_rows for batch in in_pieces(long)] == [65_536, 65_536, 65_536, 3_392]
    wide = pa.table({"id": [1, 2, 3], "name": ["x" * (5 << 20)] * 3})
    assert [batch.num_rows for batch in in_pieces(wide)] == [1, 1, 1]
    assert list(in_pieces(pa.table({"id": pa.array([], pa.int64())}))) == []


def test_a_key_is_a_value_a_tuple_or_a_dict() -> None:
    assert key_values(TABLE, 7) == (7,)
    assert key_values(TABLE, {"id": 7, "name": "ignored"}) == (7,)
    assert key_values(PAIRS, ("x", 1)) == ("x", 1)
    for key, words in [
        (("x",), "1 values for a key of 2"),
        ({"a": "x"}, "the key has no b"),
        (("x", None), "null"),
    ]:
        with pytest.raises(InvalidKey, match=words):
            key_values(PAIRS, key)


def test_keys_have_the_types_of_the_table() -> None:
    """Other types have other tokens, and nothing would be found."""
    for keys in ([("x", 1)], [{"a": "x", "b": 1}], pa.table({"a": ["x"], "b": [1], "v": [0]})):
        made = keys_to_arrow(PAIRS, keys).schema
        assert [(field.name, str(field.type), field.nullable) for field in made] == [
            ("a", "string", False),
            ("b", "int32", False),
        ]
    for keys, words in [
        (pa.table({"a": ["x"]}), "the keys have no b"),
        (pa.table({"a": ["x"], "b": ["y"]}), "another type"),
        (pa.table({"a": ["x"], "b": pa.array([None], pa.int32())}), "key column b has nulls"),
    ]:
        with pytest.raises(InvalidKey, match=words):
            keys_to_arrow(PAIRS, keys)


def test_pandas_and_polars_frames_are_rows() -> None:
    """Whatever index a frame has is no column; large strings fit string columns."""
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    values = {"id": [1, 2], "name": ["a", None], "price": [1.5, 2.5]}
    for frame in (pandas.DataFrame(values, index=[7, 8]), polars.DataFrame(values)):
        rows = to_arrow(TABLE, frame)
        batch = Batch.of(TABLE, rows.combine_chunks().to_batches()[0])
        assert batch.columns.to_pylist() == [
            {"id": 1, "name": "a", "price": 1.5},
            {"id": 2, "name": None, "price": 2.5},
        ]


def test_a_cast_that_loses_nothing_is_made_and_no_other() -> None:
    narrow = pa.table({"id": pa.array([1], pa.int32()), "price": pa.array([0.5], pa.float32())})
    assert to_arrow(TABLE, narrow).schema.types == [pa.int64(), pa.float64()]
    huge = pa.table({"id": pa.array([2**63], pa.uint64())})
    with pytest.raises(InvalidSchema, match="column id has values"):
        to_arrow(TABLE, huge)
    for other in (pa.table({"id": ["1"]}), pa.table({"id": [1.0]}), pa.table({"name": [1]})):
        assert to_arrow(TABLE, other).schema == other.schema  # refused when it is written
    categories = pa.table({"id": [1], "name": pa.array(["a"]).dictionary_encode()})
    assert to_arrow(TABLE, categories).schema.field("name").type == pa.string()


plain = st.none() | st.integers(-(2**65), 2**65) | st.floats() | st.text() | st.booleans()


@given(st.dictionaries(st.sampled_from(["id", "name", "price", "other"]), plain, min_size=1))
def test_the_quick_way_for_one_row_is_the_long_way_or_none(row: dict[str, Any]) -> None:
    quick = plain_row(TABLE, [row])
    if quick is not None:
        slow = Batch.of(TABLE, to_arrow(TABLE, [row]).to_batches()[0])
        assert quick.serialize().equals(slow.columns.serialize())
    fits = {"id": int, "name": str, "price": float}
    sound = all(name in fits and type(value) is fits[name] for name, value in row.items())
    if sound and abs(row.get("id", 2**64)) < 2**63:
        assert quick is not None


def test_rows_that_need_more_care_do_not_go_the_quick_way() -> None:
    typed = Table("t3", schema_of({"k": "int64", "at": "timestamp"}), ("k",))
    assert plain_row(typed, [{"k": 1}]) is None
    assert plain_row(TABLE, [{"id": 1}, {"id": 2}]) is None
    assert plain_row(TABLE, pa.table({"id": [1]})) is None
    assert plain_row(TABLE, {"id": 1, "name": "a"}) is not None
