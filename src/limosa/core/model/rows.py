"""What does the core need to know about rows? Their number, their digest and their tokens.

Drivers decide what rows are made of: Arrow batches in a node, small tuples in the simulator.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from limosa.core.model.keys import Position, TokenRange

ENTRY_BYTES = 64


class Starts:
    """Where the partitions of a layout start; made once for each layout."""

    __slots__ = ("prepared", "starts")

    def __init__(self, starts: Sequence[int]) -> None:
        self.starts = starts
        self.prepared: object = None
        """A cache for implementations of `Rows.split`."""


class Rows(Protocol):
    """An immutable batch of rows of one partition."""

    def __len__(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Approximate size in memory or on a disk."""

    def digest(self) -> int:
        """Independent of the order of the rows."""

    def outside(self, ranges: Iterable[TokenRange]) -> "Rows":
        """The rows whose token lies in none of the ranges."""

    def within(self, token_range: TokenRange) -> "Rows":
        """The rows whose token lies in the range."""

    def split(self, starts: Starts) -> "Sequence[tuple[int, Rows]]":
        """For each partition that gets rows: its index in the layout, and its rows in their
        order."""

    def places(self, starts: Starts) -> Sequence[int]:
        """The indexes of the partitions that get rows."""

    def joins(self, other: "Rows") -> bool:
        """Whether the rows of both can be written together."""

    def joined(self, others: "Sequence[Rows]") -> "Rows":
        """These rows and those of others, which join; of rows with the same key the last counts."""


class Entry(Struct, frozen=True):
    """One entry of a partition's log: rows that become visible together, and their producer."""

    at: Position
    previous: Position
    """The position of the entry before; with `at` it identifies the whole log up to here."""
    rows: Rows | None
    producer: str = ""
    sequence: int = 0
    floor: int = 0
    """The producer never repeats sequences below this one."""
    range: TokenRange | None = None
    found: Position | None = None
    """The version that a failed compare-and-set found; such an entry has no rows."""
    collects: Position = 0
    """This entry collects tombstones up to this position."""

    @property
    def bytes(self) -> int:
        """Approximate size: the rows, and a little for the entry itself."""
        size = ENTRY_BYTES + len(self.producer)
        return size if self.rows is None else size + self.rows.bytes
