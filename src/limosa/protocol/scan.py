"""How does a client ask for all rows of a partition? By the ticket of a Flight stream."""

from typing import Any

import msgspec


class Scan(msgspec.Struct, frozen=True):
    """The rows of a table in one partition, or those that a filter accepts."""

    table: int
    partition: str
    version: int
    epoch: int
    revision: int
    columns: list[str] | None = None
    where: list[tuple[str, str, Any]] = []
    """Conditions that must all hold: (column, operator, value)."""
    eventual: bool = False
