"""Does every key have the token that Spark gives it, however it is asked for?"""

import json
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from limosa.core.tokens import check_key_type, token_of, tokener, tokens
from limosa.errors import InvalidKey

SPARK = json.loads((Path(__file__).parent / "data" / "spark_tokens.json").read_text())

ZONED = pa.timestamp("us", tz="UTC")

# Enough rows of one length that NumPy hashes them together, whatever the length.
MANY = 1200


def moments(zone: Any = None) -> st.SearchStrategy[Any]:
    return st.datetimes(timezones=st.none() if zone is None else st.just(zone))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    most = 10**precision - 1
    return st.integers(-most, most).map(
        lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))
    )


def integers(bits: int) -> st.SearchStrategy[Any]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=80)),
    (pa.large_string(), st.text(max_size=80)),
    (pa.binary(), st.binary(max_size=300)),
    (pa.large_binary(), st.binary(max_size=300)),
    (pa.binary(16), st.binary(min_size=16, max_size=16)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), moments()),
    (ZONED, moments(UTC)),
    *((pa.decimal128(*size), decimals(*size)) for size in ((1, 0), (9, 2), (18, 4), (18, 18))),
    *((pa.decimal128(*size), decimals(*size)) for size in ((19, 0), (20, 6), (38, 10), (38, 0))),
]

TYPES = {str(key_type): key_type for key_type, _ in PLAIN}


def decode(value: Any, key_type: Any) -> Any:
    match str(key_type).partition("[")[0].partition("(")[0]:
        case "float" | "double":
            return float.fromhex(value)
        case "binary":
            return bytes.fromhex(value)
        case "date32":
            return date.fromisoformat(value)
        case "timestamp":
            return datetime.fromisoformat(value)
        case "decimal128":
            return Decimal(value)
        case _:
            return value


def array_of(values: Any, key_type: pa.DataType) -> Any:
    return pa.array(list(values), type=key_type)


def seed_after(digest: int, value: bytes) -> int:
    """The rule that chains columns, as short as it can be told."""
    return xxh64_intdigest(value, digest)


def signed(digests: list[int]) -> NDArray[np.int64]:
    return np.array(digests, np.uint64).view(np.int64)


@pytest.mark.parametrize("group", SPARK["groups"], ids=lambda group: "+".join(group["types"]))
@pytest.mark.parametrize("times", [1, MANY])
def test_tokens_are_those_of_spark(group: Any, times: int) -> None:
    """Tokens agree with real Spark's `xxhash64` bit for bit, row by row and vectorised."""
    types = [TYPES[name] for name in group["types"]]
    keys = [
        tuple(decode(value, key_type) for value, key_type in zip(key, types, strict=True))
        for key in group["keys"]
    ]
    columns = [
        array_of((key[place] for key in keys), key_type) for place, key_type in enumerate(types)
    ]
    repeated = np.tile(np.arange(len(keys)), times)

    found = tokens([column.take(pa.array(repeated)) for column in columns])

    assert found.dtype == np.int64
    assert found.tolist() == np.tile(group["tokens"], times).tolist()
    assert [token_of(key, types) for key in keys] == group["tokens"]


def test_spark_was_asked_about_every_kind_of_key() -> None:
    asked = {name for group in SPARK["groups"] for name in group["types"]}
    alike = {"large_string", "large_binary", "fixed_size_binary[16]", "decimal128(38, 0)"}

    assert asked == set(TYPES) - alike
    assert {len(group["types"]) for group in SPARK["groups"]} == {1, 2, 3}
    assert sum(len(group["tokens"]) for group in SPARK["groups"]) > 300


@given(st.data())
def test_one_key_and_many_keys_have_the_same_tokens(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3))
    types = [key_type for key_type, _ in kinds]
    keys = data.draw(st.lists(st.tuples(*(values for _, values in kinds)), max_size=20))
    columns = [
        array_of((key[place] for key in keys), key_type) for place, key_type in enumerate(types)
    ]

    assert tokens(columns).tolist() == [token_of(key, types) for key in keys]


@given(st.data())
def test_few_rows_and_many_rows_have_the_same_tokens(data: st.DataObject) -> None:
    key_type, strategy = data.draw(st.sampled_from(PLAIN))
    values = data.draw(st.lists(strategy, min_size=1, max_size=3))
    few = array_of(values, key_type)

    many = few.take(pa.array(np.tile(np.arange(len(values)), MANY)))

    assert tokens([many]).tolist() == tokens([few]).tolist() * MANY
    assert tokens([many, many]).tolist() == tokens([few, few]).tolist() * MANY


@pytest.mark.parametrize("length", [*range(70), 95, 96, 97, 255, 256, 257, 1000])
def test_rows_of_any_one_length_are_hashed_with_a_seed_of_their_own(length: int) -> None:
    dice = np.random.default_rng(length)
    values = [dice.bytes(length) for _ in range(MANY)]
    numbers = dice.integers(-(2**63), 2**63, MANY, np.int64)
    expected = [
        seed_after(seed_after(42, number.tobytes()), value)
        for number, value in zip(numbers, values, strict=True)
    ]

    types: list[Any] = [pa.binary(), pa.large_binary()]
    for key_type in [*types, pa.binary(length)] if length else types:
        found = tokens([pa.array(numbers), array_of(values, key_type)])
        assert (found == signed(expected)).all()


def test_more_rows_than_a_block_are_hashed_block_by_block() -> None:
    numbers = np.arange(40_000)

    expected = signed([seed_after(42, number.tobytes()) for number in numbers])

    assert (tokens([pa.array(numbers)]) == expected).all()


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(0, 9))
def test_a_slice_has_the_tokens_of_its_rows(seed: int, before: int, after: int) -> None:
    dice = np.random.default_rng(seed)
    lengths = dice.integers(0, 12, 1000)
    words = [dice.bytes(int(length)) for length in lengths]
    columns: list[Any] = [
        pa.array(words),
        pa.array(words, pa.large_binary()),
        pa.array(dice.integers(0, 2, 1000).astype(bool)),
        pa.array(dice.integers(-128, 128, 1000).astype(np.int8)),
        pa.array(dice.normal(size=1000).astype(np.float32)),
        pa.array(lengths).cast(pa.decimal128(19, 0)).cast(pa.decimal128(9, 0)),
        pa.array(lengths * 100 - 500).cast(pa.decimal128(38, 0)),
    ]
    for column in columns:
        part = column.slice(before, 1000 - before - after)
        assert (tokens([part]) == tokens([column])[before : 1000 - after]).all()
        assert (tokens([part.slice(1, 5)]) == tokens([part])[1:6]).all()


def test_chunks_need_not_lie_alike() -> None:
    numbers, words = list(range(10)), [f"word {number}" for number in range(10)]
    whole = tokens([pa.array(numbers), pa.array(words)])

    first = pa.chunked_array([numbers[:3], [], numbers[3:]], pa.int64())
    second = pa.chunked_array([words[:7], words[7:]])

    assert (tokens([first, second]) == whole).all()
    assert (tokens([first, pa.array(words)]) == whole).all()


def test_no_rows_have_no_tokens() -> None:
    for key_type in TYPES.values():
        empty = array_of([], key_type)
        assert tokens([empty]).shape == tokens([pa.chunked_array([empty])]).shape == (0,)


def test_empty_strings_need_no_bytes() -> None:
    batch = pa.record_batch({"a": [""] * MANY})
    sent = pa.ipc.read_record_batch(batch.serialize(), batch.schema)

    for column in (batch.column(0), sent.column(0), sent.column(0).slice(3, 5)):
        assert set(tokens([column]).tolist()) == {token_of([""], [pa.string()])}


def test_minus_zero_is_zero() -> None:
    for key_type in (pa.float32(), pa.float64()):
        zero, minus_zero = tokens([pa.array([0.0, -0.0], key_type)]).tolist()
        assert zero == minus_zero == token_of([-0.0], [key_type]) == token_of([0], [key_type])
    assert token_of([-1e-60], [pa.float32()]) == token_of([0.0], [pa.float32()])


def test_null_keys_are_refused() -> None:
    with pytest.raises(InvalidKey, match="2 null keys"):
        tokens([pa.array([1, None, None])])
    with pytest.raises(InvalidKey, match="null"):
        tokens([pa.array([1]), pa.chunked_array([["a"], []]), pa.array([None], pa.string())])
    with pytest.raises(InvalidKey, match="a null key"):
        token_of([None], [pa.int64()])


@pytest.mark.parametrize("key_type", [pa.float32(), pa.float64()], ids=str)
def test_nan_keys_are_refused(key_type: pa.DataType) -> None:
    with pytest.raises(InvalidKey, match="NaN"):
        tokens([array_of([1.0, float("nan")], key_type)])
    with pytest.raises(InvalidKey, match="NaN"):
        token_of([float("nan")], [key_type])


@pytest.mark.parametrize(
    ("key_type", "advice"),
    [
        (pa.uint8(), "cast them to int16"),
        (pa.uint64(), r"decimal128\(20, 0\)"),
        (pa.float16(), "float32"),
        (pa.date64(), "date32"),
        (pa.timestamp("ns"), r"timestamp\[us\]"),
        (pa.timestamp("ms", tz="UTC"), r"timestamp\[us\]"),
        (pa.decimal256(40, 2), "decimal128"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "dictionary's values"),
        (pa.time64("us"), "int64"),
        (pa.list_(pa.int64()), "plain types"),
        (pa.struct([("a", pa.int64())]), "plain types"),
        (pa.map_(pa.string(), pa.int64()), "plain types"),
        (pa.null(), "plain types"),
    ],
    ids=str,
)
def test_types_without_a_token_are_refused_with_advice(key_type: Any, advice: str) -> None:
    for refused in (
        lambda: check_key_type(key_type),
        lambda: tokens([array_of([], key_type)]),
        lambda: token_of([1], [key_type]),
    ):
        with pytest.raises(InvalidKey, match="no token") as caught:
            refused()
        assert re.search(advice, caught.value.advice)


@pytest.mark.parametrize("key_type", TYPES.values(), ids=str)
def test_types_with_a_token_pass_the_check(key_type: pa.DataType) -> None:
    check_key_type(key_type)


def test_a_key_has_columns_of_equal_length() -> None:
    with pytest.raises(InvalidKey, match="without columns"):
        tokens([])
    with pytest.raises(InvalidKey, match="of 2 and of 1 rows"):
        tokens([pa.array([1, 2]), pa.array([1])])
    for values, types in (([], []), ([1], []), ([1, 2], [pa.int64()])):
        with pytest.raises(InvalidKey, match="key columns"):
            token_of(values, types)


EAST = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("value", "key_type"),
    [
        (1, pa.bool_()),
        (True, pa.int64()),
        (1.0, pa.int64()),
        ("1", pa.int64()),
        (128, pa.int8()),
        (-(2**15) - 1, pa.int16()),
        (2**31, pa.int32()),
        (2**63, pa.int64()),
        (True, pa.float64()),
        ("1", pa.float64()),
        (2**53 + 1, pa.float64()),
        (10**400, pa.float64()),
        (1e300, pa.float32()),
        (b"a", pa.string()),
        ("\ud800", pa.string()),
        ("a", pa.binary()),
        (b"abc", pa.binary(2)),
        (datetime(2020, 1, 1), pa.date32()),
        (5, pa.date32()),
        (date(2020, 1, 1), pa.timestamp("us")),
        (5, pa.timestamp("us")),
        (datetime(2020, 1, 1, tzinfo=EAST), pa.timestamp("us")),
        (datetime(2020, 1, 1), ZONED),
        (0.5, pa.decimal128(9, 2)),
        (True, pa.decimal128(9, 2)),
        (Decimal("0.125"), pa.decimal128(9, 2)),
        (Decimal("1E-1000000"), pa.decimal128(9, 2)),
        (Decimal("1E+1000000"), pa.decimal128(9, 2)),
        (Decimal("12345678"), pa.decimal128(9, 2)),
        (Decimal("NaN"), pa.decimal128(9, 2)),
        (Decimal("Infinity"), pa.decimal128(38, 2)),
    ],
    ids=repr,
)
def test_values_that_the_column_could_not_hold_are_refused(value: Any, key_type: Any) -> None:
    with pytest.raises(InvalidKey, match=f"a {type(value).__name__} is not a "):
        token_of([value], [key_type])


@pytest.mark.parametrize(
    ("value", "same", "key_type"),
    [
        (np.int64(7), 7, pa.int64()),
        (np.bool_(True), True, pa.bool_()),
        (np.float32(0.5), 0.5, pa.float32()),
        (2, 2.0, pa.float64()),
        (bytearray(b"ab"), b"ab", pa.binary(2)),
        pytest.param(memoryview(b"ab"), b"ab", pa.binary(), id="memoryview"),
        (7, Decimal("7.00"), pa.decimal128(9, 2)),
        (Decimal("7E+3"), Decimal("7000"), pa.decimal128(9, 2)),
        (Decimal("1.5000"), Decimal("1.50"), pa.decimal128(20, 2)),
        (Decimal("-0E+1000000"), Decimal(0), pa.decimal128(9, 2)),
        (datetime(2020, 1, 1, 9, tzinfo=EAST), datetime(2020, 1, 1, tzinfo=UTC), ZONED),
    ],
    ids=repr,
)
def test_equal_values_have_equal_tokens(value: Any, same: Any, key_type: pa.DataType) -> None:
    assert token_of([value], [key_type]) == token_of([same], [key_type])


def test_an_error_does_not_tell_the_key() -> None:
    with pytest.raises(InvalidKey) as caught:
        token_of(["somebody@example.org"], [pa.int64()])

    assert "somebody" not in str(caught.value)


# ------------------------------------------------------------------ one key, many times


@pytest.mark.parametrize(
    ("types", "key"),
    [
        ((pa.int64(),), (7,)),
        ((pa.int64(),), (-(2**63),)),
        ((pa.int64(),), (np.int64(7),)),
        ((pa.string(),), ("wren",)),
        ((pa.string(),), ("",)),
        ((pa.binary(),), (b"wren",)),
        ((pa.int64(), pa.string()), (7, "wren")),
    ],
)
def test_a_tokener_says_what_token_of_says(
    types: tuple[pa.DataType, ...], key: tuple[object, ...]
) -> None:
    assert tokener(types)(key) == token_of(key, types)


@pytest.mark.parametrize(
    ("types", "key"),
    [
        ((pa.int64(),), (2**63,)),
        ((pa.int64(),), (True,)),
        ((pa.int64(),), (None,)),
        ((pa.int64(),), (1, 2)),
        ((pa.int64(),), ()),
        ((pa.string(),), ("\ud800",)),
        ((pa.string(),), (7,)),
    ],
)
def test_a_tokener_refuses_what_token_of_refuses(
    types: tuple[pa.DataType, ...], key: tuple[object, ...]
) -> None:
    with pytest.raises(InvalidKey):
        tokener(types)(key)
