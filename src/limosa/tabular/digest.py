"""Do two replicas hold the same rows?

They do if their digests agree: a count, a sum and an exclusive-or of one hash per row. Digests do
not depend on the order of rows, and digests of disjoint sets add up. So each replica can keep its
rows in its own files, and a difference can be narrowed down to a slice of the token space.

The hash of a row never changes, since replicas of different releases compare digests:

    row              mix(sum of the contributions of its columns)
    contribution     mix(value xor name), and 0 of a null
    name             XXH64 of the column's name in UTF-8, seeded with the XXH64 of the table's id

Two more columns are `__version`, an integer, and `__deleted`, 1 or null. Sums are modulo 2**64, and
mix is the finaliser of SplitMix64. A value is 64 bits:

    bool, integers, dates, timestamps    the number, sign extended
    float32, float64                     its IEEE bits, unsigned, every NaN as the quiet one
    decimal128                           the low word xor mix(the high word)
    string, binary (large, fixed size)   XXH64 of its bytes, with seed 42, as a token's
    struct                               mix(STRUCT + sum of the contributions of its fields),
                                         whose names are seeded with 0
    list, large_list                     mix(LIST + length + sum of those of its elements), whose
                                         names are their positions, from 1, times GOLDEN

Since a null contributes nothing, adding a column changes no digest. An empty list, a list of a
null and a struct of nulls still contribute, so all of them differ from a null.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from limosa.core.tokens import SEED
from limosa.core.tokens import tokens as tokens_of
from limosa.errors import BadInput
from limosa.tabular.schema import Table

_Words: TypeAlias = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_STRUCT: Final = np.uint64(0x5354525543540000)  # "STRUCT" in ASCII
_LIST: Final = np.uint64(0x4C49535400000000)  # "LIST" in ASCII

# Words mixed at once: few enough to stay in the cache for all steps of a mix.
_BLOCK_WORDS: Final = 32_768


class Digest(msgspec.Struct, frozen=True):
    """Stands for a set of rows in comparisons."""

    EMPTY: ClassVar["Digest"]

    count: int
    total: int
    """The sum of the rows' hashes, modulo 2**64."""
    xor: int

    def __add__(self, other: "Digest") -> "Digest":
        """The digest of the union of two disjoint sets."""
        return Digest(
            self.count + other.count, (self.total + other.total) % 2**64, self.xor ^ other.xor
        )


Digest.EMPTY = Digest(0, 0, 0)


def digest(hashes: _Words) -> Digest:
    """The digest of the rows that have these hashes."""
    return Digest(len(hashes), int(np.add.reduce(hashes)), int(np.bitwise_xor.reduce(hashes)))


# ---------------------------------------------------------------- rows


def row_hashes(
    table: Table,
    batch: pa.RecordBatch,
    versions: NDArray[np.int64],
    deleted: NDArray[np.bool_] | None,
) -> _Words:
    """The hash of each row; a column of the table that the batch lacks counts as null."""
    seed = xxh64_intdigest(table.id.encode())
    sums = _contributions_of(versions.astype(np.uint64), _name("__version", seed))
    if len(sums) != batch.num_rows:
        raise BadInput(
            f"{len(sums)} versions for {batch.num_rows} rows", "pass one version per row"
        )
    if deleted is not None:
        sums[deleted] += _contributions_of(np.ones(1, np.uint64), _name("__deleted", seed))
    known = set(table.columns.names)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in known:
            _add_contributions(sums, column, _name(name, seed))
    _mix(sums)
    return sums


def _name(name: str, seed: int) -> np.uint64:
    return np.uint64(xxh64_intdigest(name.encode(), seed))


def _add_contributions(sums: _Words, column: Any, names: np.uint64 | _Words) -> None:
    """Add the contribution of each value of the column to the sum of its row."""
    if column.null_count == len(column):
        return  # there may be no buffers to read
    contributions = _contributions_of(_values(column), names)
    if column.null_count:
        contributions[column.is_null().to_numpy(zero_copy_only=False)] = 0
    sums += contributions


def _contributions_of(values: _Words, names: np.uint64 | _Words) -> _Words:
    values ^= names
    _mix(values)
    return values


def _mix(words: _Words) -> None:
    """SplitMix64's finaliser, in place: each input bit flips about half of the output bits."""
    spare = np.empty(min(len(words), _BLOCK_WORDS), np.uint64)
    for start in range(0, len(words), _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS]
        _mix_block(block, spare[: len(block)])


def _mix_block(block: _Words, spare: _Words) -> None:
    np.right_shift(block, np.uint64(30), out=spare)
    block ^= spare
    block *= _MIX_1
    np.right_shift(block, np.uint64(27), out=spare)
    block ^= spare
    block *= _MIX_2
    np.right_shift(block, np.uint64(31), out=spare)
    block ^= spare


# ---------------------------------------------------------------- values
#
# Each function returns a new array with a word for each value. The word of a null is arbitrary, and
# the caller skips it. Buffers are read from the array's offset on; validity bits are not read here.


def _values(column: Any) -> _Words:
    return _VALUES[column.type.id](column)


def _numbers(column: Any, form: str) -> NDArray[Any]:
    """The column's values as a NumPy array over the column's own memory."""
    dtype = np.dtype(form)
    return np.frombuffer(
        column.buffers()[1], dtype, count=len(column), offset=column.offset * dtype.itemsize
    )


def _booleans(column: Any) -> _Words:
    _, bits = column.buffers()
    known = pa.Array.from_buffers(column.type, len(column), [None, bits], 0, column.offset)
    values: _Words = known.to_numpy(zero_copy_only=False).astype(np.uint64)
    return values


def _integers(column: Any) -> _Words:
    """Sign-extended values; a copy, which the caller may modify."""
    signed = _numbers(column, f"<i{column.type.bit_width // 8}").astype(np.int64)
    return signed.view(np.uint64)


def _floats(column: Any) -> _Words:
    """Compares bits: comparing numbers would trap on a signalling NaN."""
    wide = column.type.bit_width == 64
    values = _numbers(column, "<u8" if wide else "<u4").astype(np.uint64)
    magnitude, infinity, quiet = _FLOAT64 if wide else _FLOAT32
    values[(values & magnitude) > infinity] = quiet
    return values


_FLOAT32: Final = (np.uint64(2**31 - 1), np.uint64(0x7F80_0000), np.uint64(0x7FC0_0000))
_FLOAT64: Final = (np.uint64(2**63 - 1), np.uint64(0x7FF0 << 48), np.uint64(0x7FF8 << 48))


def _decimals(column: Any) -> _Words:
    words = np.frombuffer(
        column.buffers()[1], "<u8", count=2 * len(column), offset=16 * column.offset
    )
    values: _Words = words[1::2].astype(np.uint64)
    _mix(values)
    values ^= words[0::2]
    return values


def _strings(column: Any) -> _Words:
    """Strings and binary of any length."""
    _, offsets_buffer, data = column.buffers()
    wide = column.type.id in (pa.lib.Type_LARGE_STRING, pa.lib.Type_LARGE_BINARY)
    dtype = np.dtype("<i8" if wide else "<i4")
    offsets = np.frombuffer(offsets_buffer, dtype, len(column) + 1, column.offset * dtype.itemsize)
    if _is_quicker_singly(np.diff(offsets)):
        view = memoryview(data)
        hashes = [xxh64_intdigest(view[at:end], SEED) for at, end in pairwise(offsets.tolist())]
        return np.array(hashes, np.uint64)
    return _bytes(column)


def _is_quicker_singly(lengths: NDArray[Any]) -> bool:
    """Measured: `tokens` hashes values of one length together, which pays off for many."""
    longest = int(lengths.max())
    values_per_length = len(lengths) / (longest - int(lengths.min()) + 1)
    return values_per_length < 64 + 4 * longest


def _bytes(column: Any) -> _Words:
    buffers = [None, *column.buffers()[1:]]
    known: Any = pa.Array.from_buffers(column.type, len(column), buffers, 0, column.offset)
    return tokens_of([known]).view(np.uint64)


def _structs(column: Any) -> _Words:
    values = np.full(len(column), _STRUCT)
    for place, inner in enumerate(column.type):
        _add_contributions(values, column.field(place), _name(inner.name, 0))
    _mix(values)
    return values


def _lists(column: Any) -> _Words:
    offsets = column.offsets.to_numpy().astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    first, end = int(offsets[0]), int(offsets[-1])
    positions = np.arange(first + 1, end + 1, dtype=np.int64) - np.repeat(starts, lengths)
    elements = np.zeros(end - first, np.uint64)
    names = positions.view(np.uint64) * _GOLDEN
    _add_contributions(elements, column.values.slice(first, end - first), names)
    # Running sums at each offset: their differences are the sums of the lists, even empty ones.
    sums = np.zeros(end - first + 1, np.uint64)
    np.cumsum(elements, out=sums[1:])
    values: _Words = np.diff(sums[offsets - first])
    values += lengths.view(np.uint64)
    values += _LIST
    _mix(values)
    return values


# fmt: off
_VALUES: Final[dict[int, Callable[[Any], _Words]]] = {
    pa.lib.Type_BOOL:              _booleans,
    pa.lib.Type_INT8:              _integers,
    pa.lib.Type_INT16:             _integers,
    pa.lib.Type_INT32:             _integers,
    pa.lib.Type_INT64:             _integers,
    pa.lib.Type_DATE32:            _integers,
    pa.lib.Type_TIMESTAMP:         _integers,
    pa.lib.Type_FLOAT:             _floats,
    pa.lib.Type_DOUBLE:            _floats,
    pa.lib.Type_DECIMAL128:        _decimals,
    pa.lib.Type_STRING:            _strings,
    pa.lib.Type_LARGE_STRING:      _strings,
    pa.lib.Type_BINARY:            _strings,
    pa.lib.Type_LARGE_BINARY:      _strings,
    pa.lib.Type_FIXED_SIZE_BINARY: _bytes,
    pa.lib.Type_STRUCT:            _structs,
    pa.lib.Type_LIST:              _lists,
    pa.lib.Type_LARGE_LIST:        _lists,
}
# fmt: on
