"""Was every promise kept? What the clients were told is compared with what is there.

linearizable   each key's history has an explanation by one register
plain          a second, simple opinion: where nothing overlaps, the last acknowledged change
               of a key is what is read in the end
bulk           the bulk writer's acknowledged rows are there, the deleted ones are not
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from limosa.client import TableHandle
from limosa.simulation.checkers.linearizability import ObservedOperation, check
from tests.chaos.bulk import scan_season
from tests.chaos.season import Season

Kind: TypeAlias = Literal[
    "lost", "resurrected", "violation", "replicas", "surprise", "hang", "ill", "stray"
]


class Finding(Struct, frozen=True):
    """Something that must not be."""

    kind: Kind
    what: str


def judge_keys(operations: Iterable[ObservedOperation]) -> list[Finding]:
    """Each key by itself, so that one violation does not hide another."""
    by_key: dict[str, list[ObservedOperation]] = {}
    for operation in operations:
        by_key.setdefault(operation.key, []).append(operation)
    found = []
    for key, mine in sorted(by_key.items()):
        verdict = check(mine)
        if not verdict.ok:
            found.append(Finding("violation", verdict.reason))
        found += judge_last(key, mine)
    return found


def judge_last(key: str, operations: list[ObservedOperation]) -> list[Finding]:
    """Says nothing where outcomes are unknown, or the last changes overlap."""
    changes = [each for each in operations if each.kind != "read" and _may_change(each)]
    reads = [each for each in operations if each.kind == "read" and each.returned is not None]
    if not changes or not reads or any(each.returned is None for each in changes):
        return []
    last = max(changes, key=lambda each: each.invoked)
    read = max(reads, key=lambda each: each.invoked)
    before = max((each.returned or 0.0 for each in changes if each is not last), default=0.0)
    assert last.returned is not None
    if before >= last.invoked or read.invoked <= last.returned:
        return []
    wanted = None if last.kind == "delete" else last.value
    if read.result == wanted:
        return []
    kind: Kind = "resurrected" if wanted is None else "lost"
    return [Finding(kind, f"{key} holds {read.result!r}, the last change made it {wanted!r}")]


def _may_change(operation: ObservedOperation) -> bool:
    refused = operation.kind == "compare" and operation.returned is not None
    return not refused or bool(operation.result)


def judge_bulk(season: Season, there: set[int]) -> list[Finding]:
    lost = sorted(season.must_be_there() - there)
    back = sorted(season.must_be_gone() & there)
    refused = sorted(season.refused & there)
    unasked = sorted(number for number in there if number > season.asked)
    return [
        *(
            Finding("lost", f"{season.key_of(each)} was acknowledged, and is not there")
            for each in lost
        ),
        *(
            Finding("resurrected", f"{season.key_of(each)} was deleted, and is there")
            for each in back
        ),
        *(
            Finding("violation", f"{season.key_of(each)} was refused, and is there")
            for each in refused
        ),
        *(Finding("violation", f"{season.key_of(each)} was never written") for each in unasked),
    ]


def judge_order(season: Season, cursor: str | None) -> list[Finding]:
    """One producer's writes of one key are applied in the order in which they were sent."""
    if season.cursor_unknown or not season.cursor_last or cursor == str(season.cursor_last):
        return []
    what = f"{season.cursor} holds {cursor}, and {season.cursor_last} was sent last"
    return [Finding("violation", what)]


def judge_season(
    table: TableHandle,
    season: Season,
    operations: list[ObservedOperation],
    values: Mapping[str, str | None],
) -> list[Finding]:
    """`values` were read after all of it, and are part of the history."""
    return [
        *judge_keys(operations),
        *judge_bulk(season, scan_season(table, season)),
        *judge_order(season, values.get(season.cursor)),
    ]
