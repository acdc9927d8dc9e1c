"""In which forms may an application pass rows? Arrow, pandas, Polars, or a list of dicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from limosa.errors import BadInput, InvalidKey, InvalidSchema
from limosa.tabular import sizes
from limosa.tabular.schema import Table
from limosa.tabular.soundness import brief


def to_arrow(table: Table, rows: Any, only_keys: bool = False) -> pa.Table:
    """Convert the rows to Arrow, with the table's types where that is possible without loss."""
    return _fitted(table, _as_arrow(table, rows, only_keys))


def _fitted(table: Table, rows: pa.Table) -> pa.Table:
    """Cast columns whose type differs only in representation, like the width of a number."""
    wanted = {field.name: field.type for field in table.physical}
    for place, field in enumerate(rows.schema):
        of = wanted.get(field.name, field.type)
        if of != field.type and _is_relabelling(field.type, of):
            try:
                column = rows.column(place).cast(of)
            except pa.ArrowException as error:
                raise InvalidSchema(
                    f"column {field.name} has values that are not {of}: {brief(error)}",
                    "correct the values, or convert them first",
                ) from None
            rows = rows.set_column(place, field.name, column)
    return rows


def _is_relabelling(sent: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether both types hold the same kind of value, so that a checked cast loses nothing."""
    if pa.types.is_dictionary(sent):
        return _is_relabelling(sent.value_type, wanted) or sent.value_type == wanted
    if pa.types.is_float32(sent) or pa.types.is_float16(sent):
        return pa.types.is_floating(wanted) and wanted.bit_width > sent.bit_width
    return pa.types.is_null(sent) or any(is_a(sent) and is_a(wanted) for is_a in _FAMILIES)


def _is_text(of: pa.DataType) -> bool:
    return pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of)


def _is_bytes(of: pa.DataType) -> bool:
    return pa.types.is_binary(of) or pa.types.is_large_binary(of) or pa.types.is_binary_view(of)


_FAMILIES = (
    _is_text,
    _is_bytes,
    pa.types.is_integer,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_decimal,
)


def _as_arrow(table: Table, rows: Any, only_keys: bool) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    if isinstance(rows, Mapping):
        return _from_dicts(table, [rows], only_keys)
    if hasattr(rows, "__arrow_c_stream__") and not hasattr(rows, "iloc"):
        return pa.table(rows)
    if hasattr(rows, "iloc"):  # a pandas DataFrame: its index is not a column
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Iterable) and not isinstance(rows, str | bytes):
        return _from_dicts(table, list(rows), only_keys)
    raise BadInput(
        f"rows can't be passed as {type(rows).__name__}",
        "use Arrow, pandas, Polars or a list of dicts",
    )


def _from_dicts(table: Table, rows: Sequence[Any], only_keys: bool) -> pa.Table:
    wanted = table.key if only_keys else table.names
    known = set(table.names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadInput(f"a row is a {type(row).__name__}", "make each row a dict")
        if not row.keys() <= known:
            unknown = ", ".join(sorted(str(name) for name in row.keys() - known))
            raise InvalidSchema(
                f"table {table.id} has no columns {unknown}", "remove them from the rows"
            )
    arrays = []
    for name in wanted:
        try:
            column = exact_array([row.get(name) for row in rows], table.physical.field(name).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidSchema(
                f"column {name} can't be converted to {table.physical.field(name).type}: "
                f"{brief(error)}",
                "correct the values, or convert them first",
            ) from None
        arrays.append(column)
    return pa.Table.from_arrays(arrays, names=list(wanted))


def plain_row(table: Table, rows: Any) -> pa.RecordBatch | None:
    """A fast path for one dict of plain values; None for anything else, or if a value is wrong."""
    if isinstance(rows, list) and len(rows) == 1:
        rows = rows[0]
    if type(rows) is not dict or not table.is_plain:
        return None
    wanted = plain_types(table)
    if not rows.keys() <= wanted.keys() or any(rows.get(name) is None for name in table.key):
        return None
    arrays = []
    for name, (of, kind) in wanted.items():
        value = rows.get(name)
        if value is not None and type(value) is not kind:
            return None
        try:
            arrays.append(pa.array((value,), of))
        except (pa.ArrowException, OverflowError, ValueError):
            return None
    return pa.RecordBatch.from_arrays(arrays, schema=table.physical)


@lru_cache(maxsize=1024)
def plain_types(table: Table) -> dict[str, tuple[pa.DataType, type]]:
    """The type of each column, and the Python type that needs no conversion."""
    types: dict[str, tuple[pa.DataType, type]] = {}
    for field in table.physical:
        kind: type = bytes
        if pa.types.is_boolean(field.type):
            kind = bool
        elif pa.types.is_integer(field.type):
            kind = int
        elif pa.types.is_floating(field.type):
            kind = float
        elif pa.types.is_string(field.type):
            kind = str
        types[field.name] = (field.type, kind)
    return types


def exact_array(values: Sequence[Any], wanted: pa.DataType) -> Any:
    """Like `pa.array`, but raises where `pa.array` would silently truncate 1.5 to 1."""
    if _may_cut(wanted):
        for value in values:
            if value is not None and _is_cut(value, wanted):
                raise ValueError(f"{value!r:.50} has a fraction")
    return pa.array(values, wanted)


def _may_cut(wanted: Any) -> bool:
    if pa.types.is_nested(wanted):
        return any(_may_cut(wanted.field(each).type) for each in range(wanted.num_fields))
    return pa.types.is_integer(wanted) or pa.types.is_temporal(wanted)


def _is_cut(value: Any, wanted: Any) -> bool:
    if isinstance(value, float | np.floating):
        return not pa.types.is_floating(wanted) and not float(value).is_integer()
    if isinstance(value, Mapping) and pa.types.is_struct(wanted):
        fields = (wanted.field(each) for each in range(wanted.num_fields))
        return any(_is_cut(value.get(field.name), field.type) for field in fields)
    if isinstance(value, list | tuple) and pa.types.is_nested(wanted):
        return any(_is_cut(each, wanted.field(0).type) for each in value)
    return False


def in_pieces(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches that are small enough for one message, cut by the bytes of their rows."""
    for batch in rows.to_batches():
        if batch.num_rows:
            yield from sizes.in_pieces(batch)


def key_values(table: Table, key: Any) -> tuple[Any, ...]:
    """One key: its value, a tuple of values in the key's order, or a dict."""
    if isinstance(key, Mapping):
        missing = [name for name in table.key if name not in key]
        if missing:
            raise InvalidKey(f"the key has no {', '.join(missing)}", "name every key column")
        values = tuple(key[name] for name in table.key)
    elif isinstance(key, tuple):
        values = key
    else:
        values = (key,)
    if len(values) != len(table.key):
        raise InvalidKey(
            f"{len(values)} values for a key of {len(table.key)} columns",
            f"give one value for each of {', '.join(table.key)}",
        )
    if any(value is None for value in values):
        raise InvalidKey("a key is null", "key columns must not be null")
    return values


def keys_to_arrow(table: Table, keys: Any) -> pa.RecordBatch:
    """Several keys, as a batch of the key's columns."""
    if isinstance(keys, Iterable) and not hasattr(keys, "__arrow_c_stream__"):
        listed = list(keys)
        if not all(isinstance(key, Mapping) for key in listed):
            values = [key_values(table, key) for key in listed]
            keys = [dict(zip(table.key, each, strict=True)) for each in values]
        else:
            keys = listed
    rows = to_arrow(table, keys, only_keys=True)
    missing = [name for name in table.key if name not in rows.column_names]
    if missing:
        raise InvalidKey(f"the keys have no {', '.join(missing)}", "name every key column")
    arrays = []
    for name, wanted in zip(table.key, table.key_types, strict=True):
        column = rows.column(name)
        if column.null_count:
            raise InvalidKey(f"key column {name} has nulls", "key columns must not be null")
        try:
            arrays.append(column.combine_chunks().cast(wanted))
        except pa.ArrowException as error:
            raise InvalidKey(
                f"the keys have another type: {brief(error)}", f"convert {name} to {wanted}"
            ) from None
    fields = [
        pa.field(n, t, nullable=False) for n, t in zip(table.key, table.key_types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
