"""What has each producer already achieved here? Kept and moved with the partition, never guessed.

An exact set of (producer, sequence, token range), not a maximum: a maximum would call a lost part a
duplicate, and would forget which half of a batch arrived before a merge.
"""

from itertools import takewhile
from typing import TypeAlias

from msgspec import Struct

from limosa.core.model.keys import WHOLE, Position, TokenRange
from limosa.core.model.rows import Entry


class Applied(Struct, frozen=True, gc=False):
    """One part that is in the log."""

    range: TokenRange
    at: Position
    found: Position | None = None


ProducersValue: TypeAlias = tuple[tuple[str, int, tuple[tuple[int, tuple[Applied, ...]], ...]], ...]
"""(producer, floor, ((sequence, parts), …)) for each: what is sent along with a copy."""


class Producers:
    """The producers of one replica's log."""

    __slots__ = ("_floors", "_parts")

    def __init__(self) -> None:
        self._floors: dict[str, int] = {}
        self._parts: dict[str, dict[int, tuple[Applied, ...]]] = {}

    def applied(self, producer: str, sequence: int) -> tuple[Applied, ...]:
        parts = self._parts.get(producer)
        return () if parts is None else parts.get(sequence, ())

    def is_past(self, producer: str, sequence: int) -> bool:
        """The producer has said that it no longer waits for this one."""
        return sequence < self._floors.get(producer, 0)

    def record(self, entry: Entry) -> None:
        if not entry.producer:
            return
        part = Applied(entry.range or WHOLE, entry.at, entry.found)
        parts = self._parts.setdefault(entry.producer, {})
        parts[entry.sequence] = (*parts.get(entry.sequence, ()), part)
        self._raise_floor(entry.producer, entry.floor)

    def _raise_floor(self, producer: str, floor: int) -> None:
        if floor > self._floors.get(producer, 0):
            self._floors[producer] = floor
            parts = self._parts.get(producer, {})
            # They come nearly in order: one behind a later one goes when that goes.
            for sequence in list(takewhile(lambda sequence: sequence < floor, parts)):
                del parts[sequence]

    def forget_after(self, position: Position) -> None:
        """Its entries were cut off the log."""
        for parts in self._parts.values():
            for sequence, applied in list(parts.items()):
                kept = tuple(part for part in applied if part.at <= position)
                if kept:
                    parts[sequence] = kept
                else:
                    del parts[sequence]

    def value(self, up_to: Position) -> ProducersValue:
        """What is known of entries up to a position; later ones go with the log."""
        return tuple(
            (
                producer,
                self._floors.get(producer, 0),
                tuple(
                    (sequence, tuple(part for part in applied if part.at <= up_to))
                    for sequence, applied in sorted(parts.items())
                    if applied[0].at <= up_to and not self.is_past(producer, sequence)
                ),
            )
            for producer, parts in sorted(self._parts.items())
        )

    def unite(self, value: ProducersValue) -> None:
        """Take over what another replica knows; knowing it already changes nothing."""
        for producer, floor, all_parts in value:
            mine = self._parts.setdefault(producer, {})
            for sequence, parts in all_parts:
                known = mine.get(sequence, ())
                mine[sequence] = known + tuple(part for part in parts if part not in known)
            self._raise_floor(producer, floor)
