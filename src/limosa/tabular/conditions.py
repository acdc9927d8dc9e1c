"""Which rows does a filter accept? Conditions are values, checked and turned into Arrow's."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from limosa.errors import BadInput
from limosa.tabular.schema import Table
from limosa.tabular.soundness import brief

CONDITIONS_MAX = 100
"""Arrow evaluates conditions recursively: too many of them would crash the process."""

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, value: column == value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "in": lambda column, value: column.isin(value),
}


def condition_of(table: Table, where: list[tuple[str, str, Any]]) -> pc.Expression | None:
    """One Arrow expression; values are converted to the types of their columns."""
    condition: Any = None
    if len(where) > CONDITIONS_MAX:
        raise BadInput(f"the filter has {len(where)} conditions", f"use at most {CONDITIONS_MAX}")
    for name, operator, value in where:
        if name not in table.names:
            raise BadInput(
                f"no such column: {name[:200]}", f"the columns are {', '.join(table.names)}"
            )
        if operator == "is null":
            term: Any = pc.field(name).is_null()
        elif operator == "is not null":
            term = ~pc.field(name).is_null()
        elif operator not in _OPERATORS:
            raise BadInput(
                f"no such operator: {operator[:20]!r}",
                f"use {', '.join(_OPERATORS)}, is null or is not null",
            )
        else:
            wanted = _value(table.physical.field(name), value, operator == "in")
            term = _OPERATORS[operator](pc.field(name), wanted)
        condition = term if condition is None else condition & term
    if condition is not None:
        _try(table, condition)
    return condition  # type: ignore[no-any-return]


def _try(table: Table, condition: pc.Expression) -> None:
    """Try the expression on an empty table: some columns can't be compared."""
    try:
        pa.RecordBatch.from_pylist([], schema=table.physical).filter(condition)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(
            f"the filter can't be evaluated: {brief(error)}", "compare columns of plain types"
        ) from None


def _value(field: "pa.Field[Any]", value: Any, several: bool) -> Any:
    if several and not isinstance(value, list | tuple):
        raise BadInput(f"the value for {field.name} is not a list", "give a list of values")
    some = list(value) if several else [value]
    try:
        if pa.types.is_integer(field.type) and any(isinstance(one, float) for one in some):
            wanted = pa.array(some).cast(field.type)  # does not truncate 1.5 to 1
        else:
            wanted = pa.array(some, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        try:
            wanted = pa.array(some).cast(field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError):
            raise BadInput(
                f"the value is not of the type {field.type} of column {field.name}",
                "compare with a value of that type",
            ) from None
    return wanted if several else wanted[0]
