"""What is a table made of?

Of columns, some of which form its key. An invalid `Table` can't be built, so its users need no
further checks. `align` turns a batch into rows of the table, and refuses a batch that would need
guesses.

A column may have one of these types, since Spark, Arrow and Parquet agree on them:

    bool, int8 to int64, float32, float64, decimal128, date32, timestamp
    string, binary (also large; binary also of a fixed size)
    list, large_list and struct of those, down to a depth of 32

Inside a list or a struct every value may be null, whatever was declared, and a list's element is
called `item`: such labels differ between writers of the same data. A value column may be null too,
since a deleted row has only its key. A key is never null.

The name of a dropped column can't be used again: older rows still hold the dropped values, and a
new column of that name would show them.
"""

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import index
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from limosa.core.tokens import check_key_type, tokener
from limosa.errors import InvalidKey, InvalidSchema

Kind: TypeAlias = Literal["table", "stream"]

COLUMNS_MAX: Final = 10_000
DEPTH_MAX: Final = 32
RESERVED_PREFIX: Final = "__"
"""Prefix of names that are reserved for the storage engine."""

_NAMED_AT_MOST: Final = 5
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a table or stream, and which of them are its key."""

    id: str
    columns: pa.Schema
    """The columns as declared, without metadata."""
    key: tuple[str, ...]
    """The names of the key columns, in the order in which they are hashed."""
    kind: Kind = "table"
    version: int = 1
    """Incremented each time the columns change."""
    dropped: tuple[str, ...] = ()
    """The names of dropped columns, sorted."""

    physical: pa.Schema = field(init=False, compare=False, repr=False)
    """The columns as stored: keys are not nullable, all other columns are."""
    key_types: tuple[pa.DataType, ...] = field(init=False, compare=False, repr=False)
    has_plain_key: bool = field(init=False, compare=False, repr=False)
    """The key columns are numbers or text that Python represents exactly."""
    is_plain: bool = field(init=False, compare=False, repr=False)
    """All columns are such numbers or text, or other numbers."""
    names: tuple[str, ...] = field(init=False, compare=False, repr=False)
    value_names: tuple[str, ...] = field(init=False, compare=False, repr=False)

    _tokener: Callable[[Sequence[Any]], int] = field(init=False, compare=False, repr=False)
    encoded: bytes = field(init=False, compare=False, repr=False)
    fingerprint: int = field(init=False, compare=False, repr=False)
    """Identifies exactly this definition."""
    _nullable: pa.Schema = field(init=False, compare=False, repr=False)
    """`physical` as most writers declare it."""
    _types: dict[str, pa.DataType] = field(init=False, compare=False, repr=False)
    key_places: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _comparables: "tuple[Callable[[Any], Any], ...]" = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_identity(self)
        columns = _plain_columns(self.columns)
        _set(self, "key", _names_of(self.key))
        _check_key(self.key, columns)
        _set(self, "dropped", tuple(sorted(set(self.dropped))))
        _check_dropped(self.dropped, columns)
        types = {column.name: column.type for column in columns}
        _set(self, "columns", columns)
        _set(self, "_types", types)
        _set(self, "_nullable", pa.schema(list(types.items())))
        _set(self, "key_places", tuple(columns.names.index(name) for name in self.key))
        _set(self, "key_types", tuple(types[name] for name in self.key))
        _set(self, "_comparables", tuple(map(_comparable_of, self.key_types)))
        _set(self, "has_plain_key", all(map(_is_plain, self.key_types)))
        numbers = (pa.bool_(), pa.float32(), pa.float64())
        _set(self, "is_plain", all(_is_plain(of) or of in numbers for of in types.values()))
        _set(self, "names", tuple(types))
        _set(self, "value_names", tuple(name for name in types if name not in self.key))
        physical = [pa.field(name, of, nullable=name not in self.key) for name, of in types.items()]
        _set(self, "physical", pa.schema(physical))
        _set(self, "_tokener", tokener(self.key_types))
        _set(self, "encoded", self._encode())
        _set(self, "fingerprint", xxh3_64_intdigest(self.encoded))

    def __hash__(self) -> int:
        """Hashes what usually differs: hashing thousands of columns would be slow."""
        return hash((self.id, self.version))

    # ------------------------------------------------------------ a schema as bytes, and its next

    def encode(self) -> bytes:
        return self.encoded

    def _encode(self) -> bytes:
        columns = self.columns.serialize().to_pybytes()
        written = _Written(self.id, columns, self.key, self.kind, self.version, self.dropped)
        return msgspec.msgpack.encode(written)

    @staticmethod
    def decode(data: bytes) -> "Table":
        try:
            written = _decoder.decode(data)
            columns = pa.ipc.read_schema(pa.py_buffer(written.columns))
            return Table(
                written.id, columns, written.key, written.kind, written.version, written.dropped
            )
        except _UNREADABLE as error:
            raise InvalidSchema(
                f"this is not the schema of a table: {error}",
                "it is damaged, or was written by another program or a newer version",
            ) from error

    def check_kin(self, other: "Table") -> None:
        """Refuse a definition that is neither this one nor another version of this table."""
        if other.fingerprint == self.fingerprint:
            return
        same = (self.id, self.key, self.kind) == (other.id, other.key, other.kind)
        both = self._types.keys() & other._types.keys()
        retyped = [name for name in sorted(both) if self._types[name] != other._types[name]]
        if not same or retyped or self.version == other.version:
            what = f"other types of {_listed(retyped)}" if retyped else "another definition"
            raise InvalidSchema(
                f"table {self.id} is known here with {what}", "derive versions with `evolved`"
            )

    def evolved(self, columns: pa.Schema) -> "Table":
        """The next version: columns may be added and dropped; the key and all types stay."""
        now = set(columns.names)
        lost = [name for name in self.key if name not in now]
        if lost:
            raise InvalidSchema(
                f"key columns dropped: {_listed(lost)}",
                "a table keeps its key: create another table",
            )
        gone = [name for name in self.value_names if name not in now]
        dropped = (*self.dropped, *gone)
        evolved = replace(self, columns=columns, version=self.version + 1, dropped=dropped)
        for name, old in self._types.items():
            new = evolved._types.get(name, old)
            if new != old:
                raise InvalidSchema(
                    f"the type of column {name} would change from {_said(old)} to {_said(new)}",
                    "stored rows keep their type: add a column with another name",
                )
        return evolved

    # ------------------------------------------------------------ a key of this table

    def token_of(self, key: Sequence[Any]) -> int:
        """The token of one key of Python values."""
        return self._tokener(key)

    def comparable_key(self, key: Sequence[Any]) -> tuple[Any, ...]:
        """A key in a form that equals the values of `comparable_column` for the same key."""
        if len(self._comparables) == 1:
            return (self._comparables[0](key[0]),)
        return tuple(make(value) for make, value in zip(self._comparables, key, strict=True))

    # ------------------------------------------------------------ a batch of this table

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as rows to be written: exactly the physical columns, with valid keys."""
        schema = batch.schema
        if not schema.equals(self.physical, check_metadata=True):
            if schema.equals(self._nullable, check_metadata=True):
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.physical)
            else:
                self._check_names(schema.names)
                batch = self._arranged(batch)
        self._check_keys(batch)
        return batch

    def widen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that were stored under an older version, converted to this one."""
        if batch.schema.equals(self.physical, check_metadata=True):
            return batch
        return self._arranged(batch)

    def _check_names(self, names: list[str]) -> None:
        unknown = [name for name in names if name not in self._types]
        if unknown:
            raise InvalidSchema(
                f"{self.kind} {self.id} has no columns {_listed(unknown)}",
                "leave them out, or add them to the schema first",
            )
        if len(set(names)) != len(names):
            raise InvalidSchema(
                f"columns sent twice: {_listed(_repeated(names))}", "send each column once"
            )

    def _arranged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The physical columns by name; missing columns are null, extra columns are dropped."""
        sent = dict(zip(batch.schema.names, batch.columns, strict=True))
        lacking = [name for name in self.key if name not in sent]
        if lacking:
            raise InvalidKey(f"no key columns {_listed(lacking)}", "send every key column")
        columns = [
            _column_of(name, wanted, sent.get(name), batch.num_rows)
            for name, wanted in self._types.items()
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.physical)

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        for place in self.key_places:
            column = batch.column(place)
            if column.null_count:
                raise InvalidKey(
                    f"{column.null_count} null keys in column {self.physical.names[place]}",
                    "a key column must have no nulls",
                )
            if pa.types.is_floating(column.type) and np.isnan(column.to_numpy()).any():
                raise InvalidKey(
                    f"NaN keys in column {self.physical.names[place]}",
                    "NaN equals nothing, so no read would find the rows: leave them out",
                )


def _is_plain(of: pa.DataType) -> bool:
    return pa.types.is_integer(of) or pa.types.is_string(of) or pa.types.is_binary(of)


class _Written(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    id: str
    columns: bytes
    key: tuple[str, ...]
    kind: Kind
    version: int
    dropped: tuple[str, ...]


_decoder: Final = msgspec.msgpack.Decoder(_Written)

# A damaged name is not UTF-8 (a ValueError); damaged flatbuffers raise errors of Arrow.
_UNREADABLE: Final = (
    msgspec.DecodeError,
    pa.ArrowException,
    InvalidSchema,
    InvalidKey,
    ValueError,
    TypeError,
    LookupError,
    OSError,
    MemoryError,
)


def _set(table: Table, name: str, value: object) -> None:
    """Sets a computed attribute of the frozen table while it is built."""
    object.__setattr__(table, name, value)


# ---------------------------------------------------------------- what a table must be


def _check_identity(table: Table) -> None:
    # Files may be named after the table, so `.` and `..` are not allowed.
    if not _ID.fullmatch(table.id) or table.id in (".", ".."):
        raise InvalidSchema(
            f"{table.id[:200]!r} is not a valid table id",
            "use 1 to 128 of letters, digits, '.', '_' and '-'",
        )
    if table.kind not in get_args(Kind):
        raise InvalidSchema(f"{table.kind!r} is not a kind of table", "use 'table' or 'stream'")
    if not 1 <= table.version < 2**63:
        raise InvalidSchema(f"{table.version} is not a valid version", "versions count from 1")


def _plain_columns(columns: pa.Schema) -> pa.Schema:
    names = columns.names
    if not 1 <= len(names) <= COLUMNS_MAX:
        raise InvalidSchema(
            f"the table has {len(names)} columns", f"use 1 to {COLUMNS_MAX} columns"
        )
    if len(set(names)) != len(names):
        raise InvalidSchema(
            f"columns declared twice: {_listed(_repeated(names))}", "give each its own name"
        )
    for name in names:
        if not name or name.startswith(RESERVED_PREFIX):
            raise InvalidSchema(
                f"{name!r} is not a valid column name",
                f"use a name that does not start with {RESERVED_PREFIX!r}, which is reserved",
            )
    return pa.schema(
        [
            pa.field(column.name, _plain(column.type, column.name), nullable=column.nullable)
            for column in columns
        ]
    )


def _names_of(key: Iterable[str]) -> tuple[str, ...]:
    """The key as a tuple; a string is one name, not a sequence of letters."""
    return (key,) if isinstance(key, str) else tuple(key)


def _check_key(key: tuple[str, ...], columns: pa.Schema) -> None:
    if not key:
        raise InvalidKey("a table without a key", "name at least one key column")
    if len(set(key)) != len(key):
        raise InvalidKey(f"key columns named twice: {_listed(_repeated(key))}", "name each once")
    absent = sorted(set(key) - set(columns.names))
    if absent:
        raise InvalidKey(f"no such key columns: {_listed(absent)}", "declare every key column")
    for name in key:
        try:
            check_key_type(columns.field(name).type)
        except InvalidKey as error:
            raise InvalidKey(f"key column {name}: {error.message}", error.advice) from None
        of: Any = columns.field(name).type
        if of.id == pa.lib.Type_DECIMAL128 and of.scale < 0:
            raise InvalidKey(
                f"key column {name}: {of} keys can't be compared",
                "Arrow and Spark can't do that: cast it to a scale of 0",
            )


def _check_dropped(dropped: tuple[str, ...], columns: pa.Schema) -> None:
    taken = sorted(set(dropped) & set(columns.names))
    if taken:
        raise InvalidSchema(
            f"columns {_listed(taken)} were dropped before",
            "older rows still hold their values: choose other names",
        )


# ---------------------------------------------------------------- what a column may be

# fmt: off
_LEAVES: Final = frozenset({
    pa.lib.Type_BOOL, pa.lib.Type_INT8, pa.lib.Type_INT16, pa.lib.Type_INT32, pa.lib.Type_INT64,
    pa.lib.Type_FLOAT, pa.lib.Type_DOUBLE, pa.lib.Type_DECIMAL128,
    pa.lib.Type_DATE32, pa.lib.Type_TIMESTAMP,
    pa.lib.Type_STRING, pa.lib.Type_LARGE_STRING,
    pa.lib.Type_BINARY, pa.lib.Type_LARGE_BINARY, pa.lib.Type_FIXED_SIZE_BINARY,
})

_ADVICE: Final[dict[int, str]] = {
    pa.lib.Type_NA:                      "declare the type of its values",
    pa.lib.Type_UINT8:                   "cast it to int16",
    pa.lib.Type_UINT16:                  "cast it to int32",
    pa.lib.Type_UINT32:                  "cast it to int64",
    pa.lib.Type_UINT64:                  "cast it to decimal128(20, 0), or to int64 if it fits",
    pa.lib.Type_HALF_FLOAT:              "cast it to float32",
    pa.decimal32(1).id:                  "cast it to decimal128",
    pa.decimal64(1).id:                  "cast it to decimal128",
    pa.lib.Type_DECIMAL256:              "cast it to decimal128",
    pa.lib.Type_DATE64:                  "cast it to date32, or to timestamp",
    pa.lib.Type_TIME32:                  "cast it to int32",
    pa.lib.Type_TIME64:                  "cast it to int64",
    pa.lib.Type_DURATION:                "cast it to int64",
    pa.lib.Type_INTERVAL_MONTH_DAY_NANO: "make it a struct of integers",
    pa.lib.Type_STRING_VIEW:             "cast it to string",
    pa.lib.Type_BINARY_VIEW:             "cast it to binary",
    pa.lib.Type_DICTIONARY:              "cast it to the type of the dictionary's values",
    pa.lib.Type_RUN_END_ENCODED:         "cast it to the type of the runs' values",
    pa.lib.Type_FIXED_SIZE_LIST:         "cast it to list",
    pa.lib.Type_LIST_VIEW:               "cast it to list",
    pa.lib.Type_LARGE_LIST_VIEW:         "cast it to large_list",
    pa.lib.Type_MAP:                     "cast it to a list of structs of a key and a value",
    pa.lib.Type_SPARSE_UNION:            "make it a struct of a field per alternative",
    pa.lib.Type_DENSE_UNION:             "make it a struct of a field per alternative",
}
# fmt: on


def _plain(declared: pa.DataType, path: str, depth: int = 0) -> pa.DataType:
    """The type without labels; raises if a column can't have it."""
    if depth > DEPTH_MAX:
        raise InvalidSchema(
            f"column {path[:200]} is nested too deeply", f"nest at most {DEPTH_MAX} levels"
        )
    if isinstance(declared, pa.ListType):
        return pa.list_(_plain(declared.value_type, f"{path}[]", depth + 1))
    if isinstance(declared, pa.LargeListType):
        return pa.large_list(_plain(declared.value_type, f"{path}[]", depth + 1))
    if isinstance(declared, pa.StructType):
        return _plain_struct(declared, path, depth)
    if isinstance(declared, pa.BaseExtensionType):
        advice = f"cast it to its storage type, {_said(declared.storage_type)}"
    elif declared.id not in _LEAVES:
        advice = _ADVICE.get(declared.id, "cast it to one of the plain types")
    elif isinstance(declared, pa.FixedSizeBinaryType) and not declared.byte_width:
        advice = "give it a width"
    else:
        return declared
    raise InvalidSchema(f"column {path[:200]} can't be of type {_said(declared)}", advice)


def _plain_struct(declared: pa.StructType, path: str, depth: int) -> pa.DataType:
    names = declared.names
    if not names:
        raise InvalidSchema(f"column {path[:200]} is a struct without fields", "add a field")
    if len(set(names)) != len(names):
        raise InvalidSchema(
            f"column {path[:200]} has fields with the same name: {_listed(_repeated(names))}",
            "give each its own name",
        )
    return pa.struct(
        [(inner.name, _plain(inner.type, f"{path}.{inner.name}", depth + 1)) for inner in declared]
    )


def _column_of(name: str, wanted: Any, sent: Any, rows: int) -> Any:
    """The column, if its type is the wanted one except for labels; raises otherwise."""
    if sent is None or sent.type.id == pa.lib.Type_NA:
        return pa.nulls(rows, wanted)
    if sent.type.equals(wanted, check_metadata=True):
        return sent
    try:
        alike = _plain(sent.type, name) == wanted
    except InvalidSchema:
        alike = False
    if not alike:
        raise InvalidSchema(
            f"column {name} has type {_said(sent.type)}, not {_said(wanted)}",
            "cast it before you send it; Limosa does not, since a cast might lose data",
        )
    return sent.cast(wanted)


# ---------------------------------------------------------------- when two keys are the same
#
# Python's own values can't be compared safely. An ambiguous hour never equals itself in another
# time zone; a float differs from its 32-bit value; and datetime does not cover all years. So times
# are compared by the integers that are stored, and texts by their bytes.

_FLOAT32: Final = struct.Struct("<f")
_DAY_ZERO: Final = 719_163
"""1970-01-01, as Python counts days."""


def comparable_column(column: Any) -> Any:
    """A key column, without a copy, with values like those of `comparable_key`."""
    same_bytes = _COMPARED_AS.get(column.type.id)
    return column if same_bytes is None else column.view(same_bytes)


_COMPARED_AS: Final[dict[int, pa.DataType]] = {
    pa.lib.Type_TIMESTAMP: pa.int64(),
    pa.lib.Type_DATE32: pa.int32(),
    pa.lib.Type_STRING: pa.binary(),
    pa.lib.Type_LARGE_STRING: pa.large_binary(),
}


def _comparable_of(key_type: pa.DataType) -> Callable[[Any], Any]:
    return _COMPARABLES.get(key_type.id) or partial(_comparable_timestamp, key_type)


def _comparable_timestamp(key_type: Any, value: Any) -> Any:
    return pa.scalar(value, key_type).value


def _comparable_date(value: Any) -> Any:
    return value.toordinal() - _DAY_ZERO


def _comparable_float32(value: Any) -> Any:
    return _FLOAT32.unpack(_FLOAT32.pack(value))[0]


def _comparable_decimal(value: Any) -> Any:
    return value  # Python compares decimals and integers exactly, whatever their scale


_COMPARABLES: Final[dict[int, Callable[[Any], Any]]] = {
    pa.lib.Type_BOOL: bool,
    pa.lib.Type_INT8: index,
    pa.lib.Type_INT16: index,
    pa.lib.Type_INT32: index,
    pa.lib.Type_INT64: index,
    pa.lib.Type_FLOAT: _comparable_float32,
    pa.lib.Type_DOUBLE: float,
    pa.lib.Type_STRING: str.encode,
    pa.lib.Type_LARGE_STRING: str.encode,
    pa.lib.Type_BINARY: bytes,
    pa.lib.Type_LARGE_BINARY: bytes,
    pa.lib.Type_FIXED_SIZE_BINARY: bytes,
    pa.lib.Type_DATE32: _comparable_date,
    pa.lib.Type_DECIMAL128: _comparable_decimal,
}


# ---------------------------------------------------------------- names and types in messages


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(name[:200] for name in names[:_NAMED_AT_MOST]) + more


def _said(of: pa.DataType) -> str:
    """The type as text, truncated: the text of a struct can be very long."""
    said = str(of)
    return said if len(said) <= 200 else f"{said[:200]}…"


def newer(some: Table, other: Table) -> Table:
    """The newer of two versions of one table."""
    return other if other.version > some.version else some
