"""Which token does a key have?

A token is the result of Spark SQL's `xxhash64` of the key's columns, bit for bit, as a signed
64-bit number: XXH64 with seed 42 of the first column, then of each further column with the previous
result as its seed. So Spark, Arrow and NumPy compute the partition of a row without asking a node.

XXH64 hashes these bytes of a value:

    boolean, int8, int16, int32, date32     4 little-endian bytes, sign extended
    int64, timestamp[us], with zone or not  8 little-endian bytes
    float32, float64                        their IEEE bits, once -0.0 has become 0.0
    string, binary (large, fixed size)      the bytes, strings as UTF-8
    decimal128, precision up to 18          the unscaled value as 8 little-endian bytes
    decimal128, precision above 18          the unscaled value in its fewest big-endian bytes

Spark skips nulls and hashes all NaNs alike. A point get could not find such rows, so keys must not
contain them.

`tokens` hashes whole Arrow columns, `token_of` one key of Python values, with the same results.
NumPy hashes columns without copying them, all rows of one length at once; values that are long, or
whose length is rare, are hashed by xxhash's C function, which is quicker for them.
"""

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import index
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from limosa.errors import InvalidKey

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
_Bytes: TypeAlias = NDArray[np.uint8]
_Hashes: TypeAlias = NDArray[np.uint64]

SEED: Final = 42

_PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME_4: Final = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5: Final = np.uint64(0x27D4EB2F165667C5)
_ALL_ONES: Final = np.uint64(2**64 - 1)
_PRIME_1_PLUS_2: Final = np.uint64((int(_PRIME_1) + int(_PRIME_2)) % 2**64)

# Rows hashed at once: enough to make the cost of a NumPy call negligible, few enough for the cache.
_BLOCK_ROWS: Final = 16_384

# For longer values xxhash's C function (a call per row) is quicker than NumPy (calls per 8 bytes).
_LONG_BYTES: Final = 256


def tokens(columns: Sequence[Column]) -> NDArray[np.int64]:
    """The token of every row, from the key columns in the order of the key."""
    if not columns:
        raise InvalidKey("a key without columns has no token", "name at least one key column")
    rows = len(columns[0])
    hashes = np.full(rows, SEED, dtype=np.uint64)
    for column in columns:
        if len(column) != rows:
            raise InvalidKey(
                f"key columns of {rows} and of {len(column)} rows", "pass columns of one batch"
            )
        check_key_type(column.type)
        if column.null_count:
            raise InvalidKey(f"{column.null_count} null keys", "a key column must have no nulls")
        done = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if len(chunk):
                _hash_all(_KINDS[chunk.type.id].lay_out(chunk), hashes[done : done + len(chunk)])
            done += len(chunk)
    return hashes.view(np.int64)


def token_of(values: Sequence[object], types: Sequence[pa.DataType]) -> int:
    """The token of one key of Python values; fast enough for a point get."""
    if not values or len(values) != len(types):
        raise InvalidKey(
            f"a key of {len(values)} values for {len(types)} key columns",
            "give each key column one value",
        )
    digest = SEED
    for value, key_type in zip(values, types, strict=True):
        digest = xxh64_intdigest(_encode(value, key_type), digest)
    return digest - 2**64 if digest >= 2**63 else digest


def tokener(types: Sequence[pa.DataType]) -> Callable[[Sequence[Any]], int]:
    """`token_of` for keys of these types, with a fast path for the most common types."""
    known = tuple(types)
    common = _COMMON.get(known[0].id)
    if len(known) > 1 or common is None:
        return lambda values: token_of(values, known)
    plain, encode = common

    def token(values: Sequence[Any]) -> int:
        if len(values) != 1 or type(values[0]) is not plain:
            return token_of(values, known)
        try:
            digest: int = xxh64_intdigest(encode(values[0]), SEED)
        except (struct.error, ValueError):
            return token_of(values, known)  # raises an error that says what is wrong
        return digest - 2**64 if digest >= 2**63 else digest

    return token


_COMMON: Final[dict[int, tuple[type, Callable[[Any], bytes]]]] = {
    pa.lib.Type_INT64: (int, struct.Struct("<q").pack),
    pa.lib.Type_STRING: (str, str.encode),
}


def check_key_type(key_type: pa.DataType) -> None:
    """Refuse types that have no token, with advice; used for schemas and for batches."""
    if isinstance(key_type, pa.TimestampType):
        if key_type.unit != "us":
            raise InvalidKey(f"{key_type} keys have no token", "cast them to timestamp[us]")
    elif key_type.id not in _KINDS:
        advice = _ADVICE.get(
            key_type.id, "choose columns of plain types: integers, strings, decimal128"
        )
        raise InvalidKey(f"{key_type} keys have no token", advice)


# ---------------------------------------------------------------- the bytes of one value


def _encode(value: object, key_type: pa.DataType) -> bytes:
    if key_type.id not in _PLAIN:
        check_key_type(key_type)
    if value is None:
        raise InvalidKey("a null key", "a key column must have no nulls")
    try:
        return _KINDS[key_type.id].encode(value, key_type)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        # The message does not contain the value: keys can be personal data.
        raise InvalidKey(
            f"a {type(value).__name__} is not a {key_type} key: {error}",
            "pass a value that the key column's type represents exactly",
        ) from None


def _encode_boolean(value: Any, key_type: pa.DataType) -> bytes:
    if not isinstance(value, bool | np.bool_):
        raise TypeError("expected a boolean")
    return b"\x01\0\0\0" if value else b"\0\0\0\0"


def _encode_integer(value: Any, key_type: pa.DataType) -> bytes:
    if isinstance(value, bool):
        raise TypeError("expected an integer")
    width = key_type.bit_width // 8
    exact = index(value).to_bytes(width, "little", signed=True)
    return exact if width >= 4 else index(value).to_bytes(4, "little", signed=True)


def _encode_float(value: Any, key_type: pa.DataType) -> bytes:
    form = "<f" if key_type.bit_width == 32 else "<d"
    if isinstance(value, bool):
        raise TypeError("expected a number")
    if not isinstance(value, float | np.float32) and float(index(value)) != value:
        raise ValueError("expected a number that a float represents exactly")
    if value != value:
        raise ValueError("NaN equals nothing, not even itself")
    # Rounding to a float32 can result in -0.0, so round first.
    (rounded,) = struct.unpack(form, struct.pack(form, value))
    return struct.pack(form, rounded + 0.0)


def _encode_string(value: Any, key_type: pa.DataType) -> bytes:
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value.encode()


def _encode_binary(value: Any, key_type: pa.DataType) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("expected bytes")
    encoded = bytes(value)
    if isinstance(key_type, pa.FixedSizeBinaryType) and len(encoded) != key_type.byte_width:
        raise ValueError(f"expected {key_type.byte_width} bytes")
    return encoded


def _encode_date(value: Any, key_type: Any) -> bytes:
    # Arrow would truncate a datetime to its date, and take a number as days.
    if not hasattr(value, "toordinal") or hasattr(value, "tzinfo"):
        raise TypeError("expected a date")
    return struct.pack("<i", pa.scalar(value, key_type).value)


def _encode_timestamp(value: Any, key_type: Any) -> bytes:
    if not hasattr(value, "tzinfo") or not hasattr(value, "toordinal"):
        raise TypeError("expected a datetime")
    # Arrow would assume UTC; with a wrong time zone the key would not be found.
    if (value.tzinfo is None) != (key_type.tz is None):
        raise ValueError("expected a time zone exactly where the column has one")
    return struct.pack("<q", pa.scalar(value, key_type).value)


def _encode_decimal(value: Any, key_type: Any) -> bytes:
    unscaled = _unscaled(value, key_type.scale)
    if abs(unscaled) >= 10**key_type.precision:
        raise ValueError("too many digits")
    if key_type.precision <= 18:
        return struct.pack("<q", unscaled)
    # As Java's BigInteger.toByteArray: the bits of the magnitude and a sign bit.
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def _unscaled(value: Any, scale: int) -> int:
    """The value times ten to the scale, in integers, since a decimal context would round."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise TypeError("expected a decimal")
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("expected a finite decimal")
    if not any(digits):
        return 0
    power = exponent + scale
    # Outside of these bounds it can't fit, and the power of ten could fill the memory.
    if not -len(digits) < power <= 38:
        raise ValueError("too many digits")
    magnitude: int = int("".join(map(str, digits)))
    if power < 0:
        magnitude, rest = divmod(magnitude, 10**-power)
        if rest:
            raise ValueError("too many digits after the point")
    else:
        magnitude *= 10**power
    return -magnitude if sign else magnitude


# ---------------------------------------------------------------- the bytes of one column


class _Even(NamedTuple):
    """Values of one length, at a fixed stride."""

    data: _Bytes
    first: int
    stride: int
    length: int


class _Ragged(NamedTuple):
    """Values of any length, anywhere in the buffer."""

    data: _Bytes
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


_Layout: TypeAlias = _Even | _Ragged


def _bytes_of(buffer: Any) -> _Bytes:
    return np.frombuffer(buffer, np.uint8)


def _even(values: NDArray[Any]) -> _Even:
    width = values.dtype.itemsize
    return _Even(values.view(np.uint8), 0, width, width)


def _lay_out_as_is(array: Any) -> _Layout:
    width = array.type.bit_width // 8
    return _Even(_bytes_of(array.buffers()[1]), array.offset * width, width, width)


def _lay_out_widened(array: Any) -> _Layout:
    return _lay_out_as_is(array.cast(pa.int32()))


def _lay_out_floats(array: Any) -> _Layout:
    values: NDArray[Any] = array.to_numpy()
    if np.isnan(values).any():
        raise InvalidKey("NaN keys", "NaN equals nothing, so no get would find them: drop the rows")
    return _even(values + values.dtype.type(0))  # -0.0 + 0.0 is 0.0


def _lay_out_strings(array: Any) -> _Layout:
    wide = array.type.id in (pa.lib.Type_LARGE_STRING, pa.lib.Type_LARGE_BINARY)
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    data = _bytes_of(data_buffer)
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if (lengths == length).all():
        return _Even(data, int(offsets[0]), length, length)
    return _Ragged(data, offsets[:-1].astype(np.int64), lengths.astype(np.int64))


def _lay_out_decimals(array: Any) -> _Layout:
    data = _bytes_of(array.buffers()[1])[array.offset * 16 : (array.offset + len(array)) * 16]
    if array.type.precision <= 18:
        return _Even(data, 0, 16, 8)
    words = data.view("<u8").reshape(-1, 2)
    sign = (words[:, 1].view(np.int64) >> 63).view(np.uint64)
    low, high = words[:, 0] ^ sign, words[:, 1] ^ sign
    low[high != 0] = _ALL_ONES  # if the upper word is used, all bytes of the lower word are
    lengths = np.ones(len(array), np.int64)
    for bits in range(7, 64, 8):
        lengths += (low >> np.uint64(bits)) != 0
        lengths += (high >> np.uint64(bits)) != 0
    big_endian = np.ascontiguousarray(data.reshape(-1, 16)[:, ::-1]).reshape(-1)
    starts = np.arange(16, 16 * len(array) + 16, 16, dtype=np.int64) - lengths
    return _Ragged(big_endian, starts, lengths)


# ---------------------------------------------------------------- encoders by type


class _Kind(NamedTuple):
    encode: Callable[[Any, Any], bytes]
    lay_out: Callable[[Any], _Layout]


# fmt: off
_KINDS: Final[dict[int, _Kind]] = {
    pa.lib.Type_BOOL:              _Kind(_encode_boolean,   _lay_out_widened),
    pa.lib.Type_INT8:              _Kind(_encode_integer,   _lay_out_widened),
    pa.lib.Type_INT16:             _Kind(_encode_integer,   _lay_out_widened),
    pa.lib.Type_INT32:             _Kind(_encode_integer,   _lay_out_as_is),
    pa.lib.Type_INT64:             _Kind(_encode_integer,   _lay_out_as_is),
    pa.lib.Type_FLOAT:             _Kind(_encode_float,     _lay_out_floats),
    pa.lib.Type_DOUBLE:            _Kind(_encode_float,     _lay_out_floats),
    pa.lib.Type_STRING:            _Kind(_encode_string,    _lay_out_strings),
    pa.lib.Type_LARGE_STRING:      _Kind(_encode_string,    _lay_out_strings),
    pa.lib.Type_BINARY:            _Kind(_encode_binary,    _lay_out_strings),
    pa.lib.Type_LARGE_BINARY:      _Kind(_encode_binary,    _lay_out_strings),
    pa.lib.Type_FIXED_SIZE_BINARY: _Kind(_encode_binary,    _lay_out_as_is),
    pa.lib.Type_DATE32:            _Kind(_encode_date,      _lay_out_as_is),
    pa.lib.Type_TIMESTAMP:         _Kind(_encode_timestamp, _lay_out_as_is),
    pa.lib.Type_DECIMAL128:        _Kind(_encode_decimal,   _lay_out_decimals),
}

# Types that need no further check; of timestamps, only some units have tokens.
_PLAIN: Final = frozenset(_KINDS) - {pa.lib.Type_TIMESTAMP}

_ADVICE: Final[dict[int, str]] = {
    pa.lib.Type_UINT8:       "Spark has no unsigned integers: cast them to int16",
    pa.lib.Type_UINT16:      "Spark has no unsigned integers: cast them to int32",
    pa.lib.Type_UINT32:      "Spark has no unsigned integers: cast them to int64",
    pa.lib.Type_UINT64:      "Spark has no unsigned integers: cast them to decimal128(20, 0)",
    pa.lib.Type_HALF_FLOAT:  "cast them to float32",
    pa.lib.Type_DATE64:      "cast them to date32",
    pa.lib.Type_DECIMAL256:  "cast them to decimal128",
    pa.lib.Type_STRING_VIEW: "cast them to string",
    pa.lib.Type_BINARY_VIEW: "cast them to binary",
    pa.lib.Type_DICTIONARY:  "cast them to the type of the dictionary's values",
    pa.lib.Type_TIME32:      "Spark does not hash this type: cast them to int64",
    pa.lib.Type_TIME64:      "Spark does not hash this type: cast them to int64",
    pa.lib.Type_DURATION:    "Spark does not hash this type: cast them to int64",
}
# fmt: on


# ---------------------------------------------------------------- XXH64 of all rows at once
#
# `hashes` holds each row's seed when a function is called and its hash when it returns.


def _hash_all(layout: _Layout, hashes: _Hashes) -> None:
    if isinstance(layout, _Ragged):
        _hash_ragged(layout, hashes)
    elif _is_quicker_singly(len(hashes), layout.length):
        starts = np.arange(len(hashes), dtype=np.int64) * layout.stride + layout.first
        _hash_singly(layout.data, starts, np.full_like(starts, layout.length), hashes)
    else:
        _hash_even(layout, hashes)


def _hash_ragged(layout: _Ragged, hashes: _Hashes) -> None:
    """Gather values of equal length, which take the same steps, and hash them together."""
    data, starts, lengths = layout
    # NumPy sorts 16-bit integers by radix. All long values form one group.
    groups = np.minimum(lengths, _LONG_BYTES + 1).astype(np.uint16)
    order = np.argsort(groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    for rows in np.split(order, cuts):
        length = int(lengths[rows[0]])
        some = hashes[rows]
        if _is_quicker_singly(len(rows), length):
            _hash_singly(data, starts[rows], lengths[rows], some)
        else:
            _hash_even(_Even(_gather(data, starts[rows], length), 0, length, length), some)
        hashes[rows] = some


def _is_quicker_singly(rows: int, length: int) -> bool:
    """As measured: NumPy's cost is per step of the hash, so it pays off for many rows only."""
    return length > _LONG_BYTES or rows < 64 + 4 * length


def _gather(data: _Bytes, starts: NDArray[np.int64], length: int) -> _Bytes:
    """The bytes of values of one length, side by side."""
    if not length:
        return data
    # A view of every window of this length: indexing it copies whole values, aligned or not.
    windows: NDArray[np.void] = np.ndarray(
        (len(data) - length + 1,), np.dtype((np.void, length)), data, strides=(1,)
    )
    return windows[starts].view(np.uint8)


def _hash_singly(
    data: _Bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64], hashes: _Hashes
) -> None:
    view = data.data
    rows = zip(starts.tolist(), lengths.tolist(), hashes.tolist(), strict=True)
    hashes[:] = [xxh64_intdigest(view[at : at + length], seed) for at, length, seed in rows]


def _hash_even(rows: _Even, hashes: _Hashes) -> None:
    for done in range(0, len(hashes), _BLOCK_ROWS):
        block = rows._replace(first=rows.first + done * rows.stride)
        _hash_block(block, hashes[done : done + _BLOCK_ROWS])


def _hash_block(rows: _Even, hashes: _Hashes) -> None:
    """XXH64 as specified, in place."""
    scratch, spare = np.empty_like(hashes), np.empty_like(hashes)
    if rows.length >= 32:
        _hash_stripes(rows, hashes, scratch, spare)
    else:
        hashes += _PRIME_5
    hashes += np.uint64(rows.length)
    for at in range(rows.length - rows.length % 32, rows.length - 7, 8):
        np.multiply(_lane(rows, at, "<u8", len(hashes)), _PRIME_2, out=scratch)
        _rotate(scratch, 31, spare)
        scratch *= _PRIME_1
        _mix(hashes, scratch, 27, _PRIME_1, spare)
        hashes += _PRIME_4
    if rows.length % 8 >= 4:
        np.multiply(
            _lane(rows, rows.length - rows.length % 8, "<u4", len(hashes)), _PRIME_1, out=scratch
        )
        _mix(hashes, scratch, 23, _PRIME_2, spare)
        hashes += _PRIME_3
    for at in range(rows.length - rows.length % 4, rows.length):
        np.multiply(_lane(rows, at, "u1", len(hashes)), _PRIME_5, out=scratch)
        _mix(hashes, scratch, 11, _PRIME_1, spare)
    for bits, prime in ((33, _PRIME_2), (29, _PRIME_3)):
        np.right_shift(hashes, np.uint64(bits), out=scratch)
        hashes ^= scratch
        hashes *= prime
    np.right_shift(hashes, np.uint64(32), out=scratch)
    hashes ^= scratch


def _hash_stripes(rows: _Even, hashes: _Hashes, scratch: _Hashes, spare: _Hashes) -> None:
    """All whole stripes of 32 bytes: four lanes that are merged at the end."""
    lanes = [hashes + _PRIME_1_PLUS_2, hashes + _PRIME_2, hashes.copy(), hashes - _PRIME_1]
    for at in range(0, rows.length - rows.length % 32, 8):
        lane = lanes[at // 8 % 4]
        np.multiply(_lane(rows, at, "<u8", len(hashes)), _PRIME_2, out=scratch)
        lane += scratch
        _rotate(lane, 31, spare)
        lane *= _PRIME_1
    hashes[:] = 0
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        scratch[:] = lane
        _rotate(scratch, bits, spare)
        hashes += scratch
    for lane in lanes:
        lane *= _PRIME_2
        _rotate(lane, 31, spare)
        lane *= _PRIME_1
        hashes ^= lane
        hashes *= _PRIME_1
        hashes += _PRIME_4


def _lane(rows: _Even, at: int, form: str, count: int) -> NDArray[Any]:
    """The same bytes of every row as numbers, without a copy; NumPy checks the bounds."""
    return np.ndarray((count,), form, rows.data, rows.first + at, (rows.stride,))


def _mix(hashes: _Hashes, lane: _Hashes, bits: int, prime: np.uint64, spare: _Hashes) -> None:
    hashes ^= lane
    _rotate(hashes, bits, spare)
    hashes *= prime


def _rotate(words: _Hashes, bits: int, spare: _Hashes) -> None:
    np.left_shift(words, np.uint64(bits), out=spare)
    words >>= np.uint64(64 - bits)
    words |= spare
