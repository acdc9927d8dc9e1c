"""Do a file's rows fit a table? Columns are matched by name, and converted without loss."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from limosa.errors import BadInput, InvalidKey, InvalidSchema
from limosa.tabular.schema import Table

_KINDS = (
    lambda of: pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_decimal(of),
    lambda of: pa.types.is_string(of) or pa.types.is_large_string(of) or of == pa.string_view(),
    lambda of: pa.types.is_binary(of) or pa.types.is_large_binary(of) or of == pa.binary_view(),
    pa.types.is_date,
    lambda of: pa.types.is_timestamp(of) and of.tz is None,
    lambda of: pa.types.is_timestamp(of) and of.tz is not None,
    pa.types.is_list,
    pa.types.is_struct,
)


def check_columns(table: Table, names: Sequence[str], file: str) -> None:
    """The table must have all columns of the file, and the file the table's key."""
    unknown = [name for name in names if name not in table.names]
    if unknown:
        raise InvalidSchema(
            f"{file}: the table has no column {', '.join(unknown)}",
            f"remove it from the file; the table has {', '.join(table.names)}",
        )
    missing = [name for name in table.key if name not in names]
    if missing:
        raise InvalidKey(
            f"{file}: the key column {', '.join(missing)} is missing", "add it to the file"
        )


def fitted(table: Table, batch: pa.RecordBatch, file: str, first_row: int) -> pa.RecordBatch:
    """Convert the rows to the table's types; errors name the file and the column."""
    check_columns(table, batch.schema.names, file)
    arrays = []
    for name in batch.schema.names:
        column = _converted(batch.column(name), table.physical.field(name).type, file, name)
        if name in table.key and column.null_count:
            row = first_row + column.is_null().index(True).as_py()
            raise InvalidKey(
                f"{file}: the key column {name} is null in row {row + 1:,}",
                "every row needs a key",
            )
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _converted(column: Any, wanted: pa.DataType, file: str, name: str) -> Any:
    if column.type == wanted:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column)).cast(wanted)
    try:
        if pa.types.is_dictionary(column.type):
            return _converted(column.dictionary_decode(), wanted, file, name)
        if any(kind(column.type) and kind(wanted) for kind in _KINDS):
            return column.cast(wanted)
        why = "these types can't be converted"
    except pa.ArrowException as error:
        why = str(error).splitlines()[0].rstrip(".")
    raise BadInput(
        f"{file}: column {name} can't be converted from {column.type} to {wanted}: {why}",
        "convert it in the file, or create the table with another type",
    )
