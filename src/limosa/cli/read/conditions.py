"""What do `--where` and `--key` mean? Their text is parsed with the types of the columns."""

import csv
import re
from typing import Any

import pyarrow as pa

from limosa.errors import BadInput, InvalidKey
from limosa.tabular.schema import Table

Condition = tuple[str, str, Any]

_CONDITION = re.compile(
    r"\s*(?P<column>\"[^\"]+\"|[^\s<>=!]+)\s*"
    r"(?P<operator><=|>=|!=|==|=|<|>|\bin\b|\bis\s+not\s+null\b|\bis\s+null\b)\s*(?P<value>.*?)\s*",
    re.IGNORECASE | re.DOTALL,
)


def condition_of(table: Table, text: str) -> Condition:
    """`price > 10`, `name = 'pear'`, `id in (1, 2)`, `name is null`."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise BadInput(
            f"{text!r} is not a condition",
            'write COLUMN OPERATOR VALUE, like "price > 10" or "name is not null"',
        )
    column = found["column"].strip('"')
    operator = " ".join(found["operator"].lower().split())
    value = found["value"]
    if column not in table.names:
        raise BadInput(f"there is no column {column}", f"there are {', '.join(table.names)}")
    wanted = table.physical.field(column).type
    if operator.startswith("is "):
        if value:
            raise BadInput(f"{text!r} has text after null", "write COLUMN is null")
        return (column, operator, None)
    if operator == "in":
        if not (value.startswith("(") and value.endswith(")")):
            raise BadInput(f"{text!r} has no list of values", "write COLUMN in (VALUE, VALUE)")
        several = next(csv.reader([value[1:-1]], quotechar="'", skipinitialspace=True), [])
        return (column, operator, [_sent(each.strip(), wanted, column) for each in several])
    return (column, operator, _sent(_unquoted(value), wanted, column))


def key_of(table: Table, text: str) -> tuple[Any, ...]:
    """One key; the values of several columns are separated by commas."""
    parts = [text] if len(table.key) == 1 else next(csv.reader([text]), [])
    if len(parts) != len(table.key):
        raise InvalidKey(
            f"{text!r} is not a key of {', '.join(table.key)}", "separate the values by commas"
        )
    types = zip(parts, table.key_types, table.key, strict=True)
    return tuple(_typed(part, of, name).as_py() for part, of, name in types)


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


def _sent(text: str, wanted: pa.DataType, column: str) -> Any:
    """JSON types as they are; other values as text, which the node parses."""
    value = _typed(text, wanted, column).as_py()
    return value if isinstance(value, int | float | str | bool) else text


def _typed(text: str, wanted: pa.DataType, column: str) -> Any:
    try:
        return pa.scalar(text).cast(wanted)
    except (pa.ArrowException, ValueError) as error:
        raise BadInput(
            f"{text!r} is not a value of column {column}, which has the type {wanted}: "
            f"{str(error).splitlines()[0].rstrip('.')}",
            "give a value of that type",
        ) from None
