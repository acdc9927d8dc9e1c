"""Do a file's rows fit a table? Columns go by name, and are converted if that loses nothing."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from limosa.errors import BadInput, InvalidKey, InvalidSchema
from limosa.storage.schema import Table

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
    """Before anything is sent: has the table these columns, and the file the key?"""
    unknown = [name for name in names if name not in table.names]
    if unknown:
        raise InvalidSchema(
            f"{file}: the table has no column {', '.join(unknown)}",
            f"leave it out of the file; the table has {', '.join(table.names)}",
        )
    missing = [name for name in table.key if name not in names]
    if missing:
        raise InvalidKey(
            f"{file}: the key column {', '.join(missing)} is missing", "add it to the file"
        )


def fitted(table: Table, batch: pa.RecordBatch, file: str, first_row: int) -> pa.RecordBatch:
    """The rows as the table has them; an error names the file, the column and what is wrong."""
    check_columns(table, batch.schema.names, file)
    arrays = []
    for name in batch.schema.names:
        column = _converted(batch.column(name), table.physical.field(name).type, file, name)
        if name in table.key and column.null_count:
            row = first_row + column.is_null().index(True).as_py()
            raise InvalidKey(
                f"{file}: the key column {name} is null in row {row + 1:,}",
                "every row needs its key",
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
        why = "they are of different kinds"
    except pa.ArrowException as error:
        why = str(error).splitlines()[0].rstrip(".")
    raise BadInput(
        f"{file}: column {name} can't be made {wanted} from {column.type}: {why}",
        "convert it in the file, or make the table with another type",
    )
