"""Which sequences of each producer are applied? Every replica stores them, and copies carry them.

This is an exact set of (producer, sequence, token range). A maximum for each producer would not do:
it would take a lost part for a duplicate, and could not tell which half of a batch has arrived.
"""

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from msgspec import Struct, msgpack

from limosa.core.model.keys import WHOLE, Position, TokenRange
from limosa.core.model.rows import Entry


class Applied(Struct, frozen=True, gc=False):
    """One part of a batch that is in the log."""

    range: TokenRange
    at: Position
    found: Position | None = None


class _Raise(NamedTuple):
    """An entry of the log that raised a producer's floor."""

    at: Position
    producer: str
    floor: int


ProducersValue: TypeAlias = tuple[tuple[str, int, tuple[tuple[int, tuple[Applied, ...]], ...]], ...]
"""(producer, floor, ((sequence, parts), …)) for each producer; sent along with a copy."""


FloorRaise: TypeAlias = tuple[Position, str, int]
"""The position of an entry, its producer, and the floor that it raises when it is committed."""


class Producers:
    """The producers of one replica's log."""

    __slots__ = ("_committed", "_floors", "_parts", "_raises")

    def __init__(self) -> None:
        self._floors: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        """Floors as of the watermark: replicas with the same entries up to there agree on them."""
        self._raises: deque[_Raise] = deque()
        """Floors that entries above the watermark raised."""
        self._parts: dict[str, dict[int, tuple[Applied, ...]]] = {}

    def applied(self, producer: str, sequence: int) -> tuple[Applied, ...]:
        parts = self._parts.get(producer)
        return () if parts is None else parts.get(sequence, ())

    def is_past(self, producer: str, sequence: int) -> bool:
        """Does the producer no longer wait for this sequence?"""
        return sequence < self._floors.get(producer, 0)

    def record(self, entry: Entry) -> None:
        """Add the entry. Sequences below its floor are dropped when the entry is committed."""
        if not entry.producer:
            return
        self.note(entry)
        self.expect(((entry.at, entry.producer, entry.floor),))

    def note(self, entry: Entry) -> None:
        """Add the entry without its floor."""
        if not entry.producer:
            return
        part = Applied(entry.range or WHOLE, entry.at, entry.found)
        parts = self._parts.setdefault(entry.producer, {})
        known = parts.get(entry.sequence, ())
        if part not in known:  # a copy may have added it already
            parts[entry.sequence] = (*known, part)

    def expect(self, raises: Iterable[FloorRaise]) -> None:
        """Entries above the watermark raise these floors when they are committed."""
        for at, producer, floor in raises:
            if floor > self._floors.get(producer, 0):
                self._floors[producer] = floor
                self._raises.append(_Raise(at, producer, floor))

    def settle(self, entry: Entry) -> None:
        """The entry is committed: its floor counts from now on."""
        if entry.producer and entry.floor > self._committed.get(entry.producer, 0):
            self._floors[entry.producer] = max(entry.floor, self._floors.get(entry.producer, 0))
            self._drop_below(entry.producer, entry.floor)

    def commit(self, up_to: Position) -> None:
        """Entries up to this position are committed."""
        while self._raises and self._raises[0].at <= up_to:
            raised = self._raises.popleft()
            self._drop_below(raised.producer, raised.floor)

    def _drop_below(self, producer: str, floor: int) -> None:
        if floor > self._committed.get(producer, 0):
            self._committed[producer] = floor
            parts = self._parts.get(producer, {})
            # Sequences are nearly in order; one that follows a higher one is dropped with it.
            for sequence in list(takewhile(lambda sequence: sequence < floor, parts)):
                del parts[sequence]

    def forget_after(self, position: Position) -> None:
        """Entries above this position were truncated: forget them and the floors they raised, so
        that this replica agrees with one that never had them."""
        while self._raises and self._raises[-1].at > position:
            self._raises.pop()
        self._floors = dict(self._committed)
        for raised in self._raises:
            self._floors[raised.producer] = raised.floor
        for parts in self._parts.values():
            for sequence, applied in list(parts.items()):
                kept = tuple(part for part in applied if part.at <= position)
                if kept:
                    parts[sequence] = kept
                else:
                    del parts[sequence]

    def value(self, up_to: Position) -> ProducersValue:
        """Everything up to a position; the log carries later entries."""
        return tuple(
            (producer, floor, self._known(producer, floor, up_to))
            for producer, floor in self._committed_floors()
        )

    def unite(self, value: ProducersValue) -> None:
        """Add everything that another replica knows; repeating this changes nothing."""
        for producer, floor, all_parts in value:
            mine = self._parts.setdefault(producer, {})
            for sequence, parts in all_parts:
                known = mine.get(sequence, ())
                new = tuple(part for part in parts if part not in known)
                mine[sequence] = tuple(sorted(known + new, key=lambda part: part.at))
            self._floors[producer] = max(floor, self._floors.get(producer, 0))
            self._drop_below(producer, floor)

    def digest(self, up_to: Position) -> int:
        """The digest of `value` at the watermark, which is `up_to`; producers that have left
        nothing behind do not count."""
        encoded = msgpack.encode([each for each in self.value(up_to) if each[1] or each[2]])
        return int.from_bytes(blake2b(encoded, digest_size=8).digest())

    def _committed_floors(self) -> list[tuple[str, int]]:
        return [(producer, self._committed.get(producer, 0)) for producer in sorted(self._parts)]

    def _known(
        self, producer: str, floor: int, up_to: Position
    ) -> tuple[tuple[int, tuple[Applied, ...]], ...]:
        found = (
            (sequence, tuple(part for part in applied if part.at <= up_to))
            for sequence, applied in sorted(self._parts[producer].items())
            if sequence >= floor
        )
        return tuple(each for each in found if each[1])
