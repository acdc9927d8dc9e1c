"""How does an application name the types of its columns?"""

from collections.abc import Mapping

import pyarrow as pa

from limosa.errors import BadInput


def schema_of(types: Mapping[str, str | pa.DataType]) -> pa.Schema:
    """An Arrow schema from types by name; `timestamp` is of microseconds, in UTC."""
    return pa.schema([(name, type_of(name, wanted)) for name, wanted in types.items()])


def type_of(name: str, wanted: str | pa.DataType) -> pa.DataType:
    if not isinstance(wanted, str):
        return wanted
    if wanted == "timestamp":
        return pa.timestamp("us", tz="UTC")
    try:
        known: pa.DataType = pa.type_for_alias(wanted)  # type: ignore[call-overload]
        return known
    except ValueError:
        raise BadInput(
            f"column {name} can't be of type {wanted!r}",
            "use int64, float64, string, bool, binary, date32, timestamp, …",
        ) from None
