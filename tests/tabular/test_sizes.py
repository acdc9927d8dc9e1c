"""How many bytes has a row, where is a batch cut, and does every message fit into its frame?"""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.core.model.rows import ENTRY_BYTES
from limosa.core.participant.settings import ParticipantSettings
from limosa.errors import TooManyBytes
from limosa.runtime.service import PRODUCER_LENGTH_MAX
from limosa.tabular import sizes
from limosa.tabular.sizes import check_rows, in_pieces, pieces, row_bytes
from limosa.transport.links import FRAME_MESSAGES_MAX
from limosa.transport.tokens import NAME_LENGTH_MAX

STRUCT = pa.struct([("x", pa.string()), ("y", pa.int32())])
_COLUMNS: list[tuple[str, Any]] = [
    ("number", pa.int64()),
    ("flag", pa.bool_()),
    ("text", pa.string()),
    ("wide", pa.large_binary()),
    ("list", pa.list_(pa.int16())),
    ("texts", pa.large_list(pa.string())),
    ("pair", STRUCT),
    ("pairs", pa.list_(STRUCT)),
    ("fixed", pa.binary(3)),
    ("decimal", pa.decimal128(5, 2)),
]
SCHEMA = pa.schema(_COLUMNS)
texts = st.text(max_size=20)
pairs = st.fixed_dictionaries({"x": texts, "y": st.integers(0, 9)})
rows = st.fixed_dictionaries(
    {
        "number": st.integers(0, 9),
        "flag": st.booleans(),
        "text": st.none() | texts,
        "wide": st.binary(max_size=20),
        "list": st.lists(st.integers(0, 9), max_size=4),
        "texts": st.lists(texts, max_size=4),
        "pair": pairs,
        "pairs": st.none() | st.lists(pairs, max_size=4),
        "fixed": st.just(b"abc"),
        "decimal": st.none(),
    }
)


def bytes_of(row: dict[str, Any]) -> int:
    """What a row of `SCHEMA` has, counted by hand; a flag is a bit."""

    def of_text(text: str | None) -> int:
        return 4 + len((text or "").encode())

    def of_pair(pair: dict[str, Any]) -> int:
        return of_text(pair["x"]) + 4

    return (
        8
        + 1
        + of_text(row["text"])
        + (8 + len(row["wide"]))
        + (4 + 2 * len(row["list"]))
        + (8 + sum(map(of_text, row["texts"])))
        + of_pair(row["pair"])
        + (4 + sum(map(of_pair, row["pairs"] or ())))
        + 3
        + 16
    )


@settings(max_examples=50)
@given(st.lists(rows, min_size=1, max_size=8), st.data())
def test_the_bytes_of_a_row_are_those_of_its_values(
    several: list[dict[str, Any]], data: st.DataObject
) -> None:
    """F194: the same for a client and an owner, however the batch is cut."""
    batch = pa.RecordBatch.from_pylist(several, schema=SCHEMA)
    assert row_bytes(batch).tolist() == [bytes_of(row) for row in several]
    start = data.draw(st.integers(0, len(several) - 1))
    assert row_bytes(batch.slice(start)).tolist() == [bytes_of(row) for row in several[start:]]
    assert row_bytes(batch.slice(start, 0)).tolist() == []


def test_rows_of_numbers_have_the_same_bytes() -> None:
    batch = pa.record_batch({"a": pa.array([1, 2], pa.int32()), "b": [True, None]})
    assert row_bytes(batch).tolist() == [5, 5]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 100), st.integers(1, 10))
def test_a_batch_is_cut_by_the_bytes_of_its_rows_and_not_by_their_average(
    lengths: list[int], bytes_max: int, rows_max: int
) -> None:
    """F194: a few large rows among small ones."""
    batch = pa.record_batch({"text": pa.array(["x" * each for each in lengths], pa.string())})
    cut = list(pieces(batch, bytes_max, rows_max))
    assert [row for start, stop in cut for row in range(start, stop)] == list(range(len(lengths)))
    for start, stop in cut:
        assert 0 < stop - start <= rows_max
        size = int(row_bytes(batch.slice(start, stop - start)).sum())
        assert size <= bytes_max or stop - start == 1


def test_a_batch_that_is_small_enough_stays_as_it_is() -> None:
    batch = pa.record_batch({"text": ["a", "b"]})
    assert [each is batch for each in in_pieces(batch)] == [True]
    empty = batch.slice(0, 0)
    assert [each is empty for each in in_pieces(empty)] == [True]
    large = pa.record_batch({"text": ["a", "x" * sizes.PIECE_BYTES, "b"]})
    assert [each.num_rows for each in in_pieces(large)] == [1, 1, 1]


def test_a_row_above_the_limit_is_refused_with_the_limit_and_what_to_do() -> None:
    """F194, S124."""
    limit = sizes.ROW_BYTES_MAX
    for size in (limit - 1024, limit):
        good = pa.record_batch({"text": ["a", "x" * (size - 4)]})
        check_rows("items", good, good.nbytes)
    for size in (limit + 1, limit + 1024):
        bad = pa.record_batch({"text": ["a", "x" * (size - 4)]})
        with pytest.raises(TooManyBytes) as caught:
            check_rows("items", bad, bad.nbytes)
        assert f"a row for items has {size:,} bytes, and a row may have 16,777,216" in str(
            caught.value
        )
        assert "split the value" in caught.value.advice
        assert caught.value.definite


def test_every_message_fits_into_a_frame_that_takes_it() -> None:
    """F194, S124: the sums of the docstring of `sizes`."""
    entry_head = 128 + 4 * (PRODUCER_LENGTH_MAX + 1 + NAME_LENGTH_MAX)
    settings = ParticipantSettings()
    write = sizes.WRITE_BYTES_MAX
    largest = max(
        sizes.ROW_BYTES_MAX + sizes.PIECE_BYTES,
        write + entry_head,
        settings.replicate_bytes,
        sizes.FOUND_BYTES_MAX,
        sizes.PART_BYTES_MAX,
    )
    assert max(sizes.PIECE_BYTES, sizes.ROW_BYTES_MAX) < write
    assert sizes.ROW_BYTES_MAX < sizes.FOUND_BYTES_MAX
    gathered = sizes.FRAME_BYTES_AIM + largest
    assert gathered + sizes.CLIENT_HEAD_BYTES_MAX < sizes.CLIENT_FRAME_BYTES_MAX
    assert gathered + sizes.HEAD_BYTES_MAX < sizes.FRAME_BYTES_MAX
    reads = FRAME_MESSAGES_MAX * (sizes.INLINE_KEY_BYTES + 4096)
    assert reads < sizes.CLIENT_HEAD_BYTES_MAX
    # An entry counts at least as a quarter of its head, so that a head of entries is limited, too.
    assert entry_head < 4 * (ENTRY_BYTES + PRODUCER_LENGTH_MAX + 1 + NAME_LENGTH_MAX)
    assert 4 * (sizes.FRAME_BYTES_AIM + settings.replicate_bytes) < sizes.HEAD_BYTES_MAX
    before = 80 << 20  # as large as a row could be in the version before
    assert sizes.FRAME_BYTES_AIM + before + sizes.PIECE_BYTES < sizes.FRAME_BYTES_MAX
