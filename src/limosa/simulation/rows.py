"""What are rows in the simulator? Tuples (key, token, value), and a version once they have one."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from zlib import crc32

from msgspec import Struct

from limosa.core.model.keys import Position, TokenRange
from limosa.core.model.rows import Rows, Starts


def token_of(key: str) -> int:
    """A fixed function that spreads keys over the token space, the same in every run."""
    return (crc32(key.encode()) << 32) - 2**63 + crc32(key[::-1].encode())


class ScanOf(tuple[str, ...]):
    """The keys of a read that looks through the whole partition, as a scan does."""

    __slots__ = ()


class SimulatedRow(Struct, frozen=True, gc=False):
    """A row; the value None is a tombstone."""

    key: str
    token: int
    value: object
    version: Position = 0

    def fingerprint(self) -> int:
        return crc32(f"{self.key} {self.value!r} {self.version}".encode())


class SimulatedRows(Struct, frozen=True, gc=False):
    """The simulator's `Rows`."""

    rows: tuple[SimulatedRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes(self) -> int:
        return 100 * len(self.rows)

    def digest(self) -> int:
        return sum(row.fingerprint() for row in self.rows)

    def outside(self, ranges: Iterable[TokenRange]) -> "SimulatedRows":
        ranges = list(ranges)
        if not ranges:
            return self
        return SimulatedRows(
            tuple(row for row in self.rows if not any(each.holds(row.token) for each in ranges))
        )

    def within(self, token_range: TokenRange) -> "SimulatedRows":
        if all(token_range.holds(row.token) for row in self.rows):
            return self
        return SimulatedRows(tuple(row for row in self.rows if token_range.holds(row.token)))

    def split(self, starts: Starts) -> "list[tuple[int, SimulatedRows]]":
        shares: dict[int, list[SimulatedRow]] = {}
        for row in self.rows:
            shares.setdefault(bisect_right(starts.starts, row.token) - 1, []).append(row)
        if len(shares) == 1:
            return [(index, self) for index in shares]
        return [(index, SimulatedRows(tuple(rows))) for index, rows in sorted(shares.items())]

    def places(self, starts: Starts) -> list[int]:
        return sorted({bisect_right(starts.starts, row.token) - 1 for row in self.rows})

    def joins(self, other: Rows) -> bool:
        return isinstance(other, SimulatedRows)

    def joined(self, others: Sequence[Rows]) -> "SimulatedRows":
        by_key = {row.key: row for row in self.rows}
        for each in others:
            assert isinstance(each, SimulatedRows)
            by_key.update((row.key, row) for row in each.rows)
        return SimulatedRows(tuple(by_key.values()))
