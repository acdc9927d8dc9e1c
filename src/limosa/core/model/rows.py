"""What does the core need to know about rows? Their number, their digest and their tokens.

What rows are made of is the driver's business: Arrow batches in a node, small tuples in the
simulator.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from limosa.core.model.keys import Position, TokenRange

ENTRY_BYTES = 64


class Starts:
    """Where the partitions of a layout start; made once for a layout, and kept with it."""

    __slots__ = ("prepared", "starts")

    def __init__(self, starts: Sequence[int]) -> None:
        self.starts = starts
        self.prepared: object = None
        """What those who split rows by it made of it, to be quicker the next time."""


class Rows(Protocol):
    """An immutable batch of rows of one partition."""

    def __len__(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Roughly what they take in memory or on a disk."""

    def digest(self) -> int:
        """Independent of the order of the rows."""

    def outside(self, ranges: Iterable[TokenRange]) -> "Rows":
        """The rows whose token lies in none of the ranges."""

    def within(self, held: TokenRange) -> "Rows":
        """The rows whose token lies in the range."""

    def split(self, starts: Starts) -> "Sequence[tuple[int, Rows]]":
        """For each partition that gets any, its place in the layout and its rows in their order."""


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

    @property
    def bytes(self) -> int:
        """Roughly what it takes, beside the rows a little for itself."""
        return ENTRY_BYTES if self.rows is None else ENTRY_BYTES + self.rows.bytes
