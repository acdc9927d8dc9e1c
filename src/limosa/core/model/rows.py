"""What does the core need to know of rows? Their number, their digest, and which tokens they have.

What rows are made of is the driver's business: Arrow batches in a node, small tuples in the
simulator.
"""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from limosa.core.model.keys import Position, TokenRange


class Rows(Protocol):
    """An immutable batch of rows of one partition."""

    def __len__(self) -> int: ...

    def digest(self) -> int:
        """Independent of the order of the rows."""

    def outside(self, ranges: Iterable[TokenRange]) -> "Rows":
        """The rows whose token lies in none of the ranges."""

    def within(self, held: TokenRange) -> "Rows":
        """The rows whose token lies in the range."""


class Entry(Struct, frozen=True):
    """One step of a partition's log: rows that become visible together, and who sent them."""

    at: Position
    previous: Position
    """The entry before it; with `at` it names the whole log up to here."""
    rows: Rows | None
    producer: str = ""
    sequence: int = 0
    floor: int = 0
    """The producer needs no memory of sequences below this one."""
    range: TokenRange | None = None
    found: Position | None = None
    """A comparison that failed: what was there instead. It has no rows, but it happened."""
    collects: Position = 0
    """Tombstones up to here are collected by this entry."""
