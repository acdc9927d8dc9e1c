"""How does a client ask for all rows of a partition? By the ticket of a Flight stream."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from limosa.errors import TooManyBytes
from limosa.tabular.conditions import CONDITIONS_MAX
from limosa.tabular.schema import COLUMNS_MAX

TICKET_BYTES_MAX: Final = 64 << 10
"""A decoded ticket takes up to eighty times its bytes."""


class Scan(msgspec.Struct, frozen=True):
    """The rows of a table in one partition, or those that a filter accepts."""

    table: int
    partition: str
    version: int
    epoch: int
    revision: int
    columns: Annotated[list[str], Meta(max_length=COLUMNS_MAX)] | None = None
    where: Annotated[list[tuple[str, str, Any]], Meta(max_length=CONDITIONS_MAX)] = []
    """Conditions that must all hold: (column, operator, value)."""
    eventual: bool = False


def too_long(size: int) -> TooManyBytes:
    return TooManyBytes(
        f"the columns and conditions of a scan have {size:,} bytes, and may have "
        f"{TICKET_BYTES_MAX:,}",
        "scan several times, each time with a part of the values; read keys with get_many",
    )
