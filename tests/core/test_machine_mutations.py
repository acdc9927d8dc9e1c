"""Is there a cell of the move's table that could be another one without anybody noticing?

Every cell of every stage is changed in every way. The result is refused when it is built, or it is
in the short list of changes that lose nothing, each with the argument.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    MOVE,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.machines.machine import END, REVERT, Machine, Side, Stage
from limosa.core.machines.rules import checked
from limosa.errors import UnsafeMachine

Mutation = tuple[str, str, str]
"""The stage, the column, and what it says instead."""

HARMLESS: dict[Mutation, str] = {
    (READ_NEW, "work", "without HOLD"): "the move can't be held for a while; who reads and writes "
    "what stays, and so does every step between",
    (
        READ_NEW,
        "given_up",
        FALLBACK,
    ): "with no old replica in sync it waits for one instead of going on: later, never wrong",
    (WRITE_BOTH, "given_up", FALLBACK): "one more stage on the way back, with the same sides; "
    "nothing has read the new one, and its barrier comes before anything narrows",
    (STREAMING, "given_up", FALLBACK): "as before: the same sides, and a barrier more",
}

_AGAIN = "it goes back to a stage that it has left: it may never end, and reuses what it made"
_SKIPS = "giving a stage up skips its work, and the next one relies on that work"

HOLES: dict[Mutation, str] = {
    (ALLOW, "work", "without PREPARE"): "F100: writes may go to replicas that do not exist yet",
    (ALLOW, "session", "True"): "a session makes the new replicas count before they are written",
    (ALLOW, "given_up", ALLOW): _AGAIN,
    (ALLOW, "given_up", WRITE_BOTH): f"{_SKIPS}: F100, the new replicas may not exist yet",
    (ALLOW, "given_up", FALLBACK): f"{_SKIPS}: the new replicas may not exist yet",
    (WRITE_BOTH, "given_up", ALLOW): _AGAIN,
    (WRITE_BOTH, "given_up", WRITE_BOTH): _AGAIN,
    (WRITE_BOTH, "given_up", STREAMING): f"{_SKIPS}: F101, the copy starts without the barrier",
    (STREAMING, "given_up", ALLOW): _AGAIN,
    (STREAMING, "given_up", WRITE_BOTH): _AGAIN,
    (STREAMING, "given_up", STREAMING): _AGAIN,
    (STREAMING, "given_up", READ_NEW): f"{_SKIPS}: F102, a half-copied side is read",
    (USE_NEW, "given_up", READ_NEW): f"{_AGAIN}; from there the old side, which missed writes, "
    "can be read again",
    (USE_NEW, "given_up", USE_NEW): _AGAIN,
    (USE_NEW, "given_up", CLEANUP): f"{_SKIPS}: F103, the old side is dropped before the barrier",
    (CLEANUP, "given_up", READ_NEW): f"{_AGAIN}; and its old side may be dropped already",
    (CLEANUP, "given_up", USE_NEW): _AGAIN,
    (CLEANUP, "given_up", END): f"{_SKIPS}: the old replicas are never dropped",
    (FALLBACK, "next", ALLOW): _AGAIN,
    (FALLBACK, "next", WRITE_BOTH): _AGAIN,
    (FALLBACK, "given_up", ALLOW): _AGAIN,
    (FALLBACK, "given_up", WRITE_BOTH): _AGAIN,
    (FALLBACK, "given_up", FALLBACK): _AGAIN,
    (FALLBACK, "given_up", CLEANUP_TARGET): f"{_SKIPS}: F104, no barrier between reading the new "
    "side and not writing it, which is ScyllaDB's documented mistake again",
    (CLEANUP_TARGET, "given_up", ALLOW): _AGAIN,
    (CLEANUP_TARGET, "given_up", WRITE_BOTH): _AGAIN,
    (CLEANUP_TARGET, "given_up", FALLBACK): f"{_AGAIN}; and its new side may be dropped already",
    (CLEANUP_TARGET, "given_up", CLEANUP_TARGET): _AGAIN,
    (CLEANUP_TARGET, "given_up", REVERT): f"{_SKIPS}: the new replicas are never dropped",
}
"""Accepted today though they are not harmless: each waits for a rule."""


def mutated(stage: Stage) -> Iterator[tuple[Mutation, Stage]]:
    for column in ("reads", "writes", "owner"):
        for side in Side:
            if getattr(stage, column) is not side:
                yield (stage.name, column, side.value), replace(stage, **{column: side})
    yield (
        (stage.name, "session", str(not stage.session)),
        replace(stage, session=not stage.session),
    )
    for work in stage.work:
        left = tuple(other for other in stage.work if other is not work)
        yield (stage.name, "work", f"without {work.name}"), replace(stage, work=left)
    if stage.given_up:
        yield (stage.name, "given_up", "nothing"), replace(stage, given_up=())
    for name in (*(line.name for line in MOVE.stages), END, REVERT):
        if name != stage.next:
            yield (stage.name, "next", name), replace(stage, next=name)
        if (name,) != stage.given_up:
            yield (stage.name, "given_up", name), replace(stage, given_up=(name,))


MUTATIONS: dict[Mutation, Machine] = {
    mutation: Machine(
        "mutant", tuple(line if other.name == line.name else other for other in MOVE.stages)
    )
    for stage in MOVE.stages
    for mutation, line in mutated(stage)
}


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(
            mutation,
            id="-".join(mutation),
            marks=pytest.mark.xfail(reason=HOLES[mutation]) if mutation in HOLES else (),
        )
        for mutation in MUTATIONS
    ],
)
def test_a_move_with_one_other_cell_is_refused_or_harmless(mutation: Mutation) -> None:
    """F98 F99 F101 F102 F103 F104."""
    if mutation in HARMLESS:
        checked(MUTATIONS[mutation])
        return
    with pytest.raises(UnsafeMachine) as caught:
        checked(MUTATIONS[mutation])
    assert caught.value.advice


def test_every_line_and_every_column_is_mutated() -> None:
    assert {mutation[0] for mutation in MUTATIONS} == {stage.name for stage in MOVE.stages}
    assert {mutation[1] for mutation in MUTATIONS} == {
        *("reads", "writes", "owner", "session", "work", "next", "given_up")
    }
    assert len(MUTATIONS) > 200
    assert set(HARMLESS) <= set(MUTATIONS)
    assert set(HOLES) <= set(MUTATIONS)
