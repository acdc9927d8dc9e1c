"""Is there a cell of the move's table that could be another one without anybody noticing?

Every cell of every stage is changed in every way. The result is refused when it is built, or it is
in the short list of changes that lose nothing, each with the argument.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from limosa.core.machines.catalogue import (
    FALLBACK,
    MOVE,
    READ_NEW,
    STREAMING,
    WRITE_BOTH,
)
from limosa.core.machines.machine import END, REVERT, Machine, Side, Stage
from limosa.core.machines.rules import checked
from limosa.core.model.runs import FAR
from limosa.errors import UnsafeMachine

Mutation = tuple[str, str, str]
"""The stage, the column, and what it says instead."""

HARMLESS: dict[Mutation, str] = {
    (READ_NEW, "work", "without HOLD"): "the move can't be held for a while; who reads and writes "
    "what stays, and so does every step between",
    (WRITE_BOTH, "run_move", "COPYING"): "a run's move is said to copy a moment too early; nothing "
    "is decided by that",
    (WRITE_BOTH, "given_up", FALLBACK): "one more stage on the way back, with the same sides; "
    "nothing has read the new one, and its barrier comes before anything narrows",
    (STREAMING, "given_up", FALLBACK): "as before: the same sides, and a barrier more",
}


def mutated(stage: Stage) -> Iterator[tuple[Mutation, Stage]]:
    for column in ("reads", "writes", "owner"):
        for side in Side:
            if getattr(stage, column) is not side:
                yield (stage.name, column, side.value), replace(stage, **{column: side})
    yield (
        (stage.name, "session", str(not stage.session)),
        replace(stage, session=not stage.session),
    )
    for state in FAR:
        if state != stage.run_move:
            yield (stage.name, "run_move", state), replace(stage, run_move=state)
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


@pytest.mark.parametrize("mutation", MUTATIONS, ids=["-".join(each) for each in MUTATIONS])
def test_a_move_with_one_other_cell_is_refused_or_harmless(mutation: Mutation) -> None:
    """F98 F99 F102 F103 F104."""
    if mutation in HARMLESS:
        checked(MUTATIONS[mutation])
        return
    with pytest.raises(UnsafeMachine) as caught:
        checked(MUTATIONS[mutation])
    assert caught.value.advice


def test_every_line_and_every_column_is_mutated() -> None:
    assert {mutation[0] for mutation in MUTATIONS} == {stage.name for stage in MOVE.stages}
    assert {mutation[1] for mutation in MUTATIONS} == {
        *("reads", "writes", "owner", "session", "run_move", "work", "next", "given_up")
    }
    assert len(MUTATIONS) > 200
    assert set(HARMLESS) <= set(MUTATIONS)
