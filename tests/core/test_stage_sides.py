"""Who is read and written in each stage? A table, as the code must see it."""

import pytest

from limosa.core import routing
from limosa.core.machines.catalogue import MACHINES, MOVE
from limosa.core.machines.machine import Side
from limosa.core.model.topology import Partition, Replica, Zone
from limosa.errors import UnknownStage
from tests.core.samples import NEW, OLD, A, B, C, D, moving, stable

BOTH = (A, B, C, D)

# fmt: off
TABLE: list[tuple[str, tuple[Replica, ...], tuple[Replica, ...]]] = [
    # stage                         readers  written
    ("allow_write_both_read_old",    OLD,    OLD),
    ("write_both_read_old",          OLD,    BOTH),
    ("streaming",                    OLD,    BOTH),
    ("write_both_read_new",          NEW,    BOTH),
    ("use_new",                      NEW,    NEW),
    ("cleanup",                      NEW,    NEW),
    ("write_both_read_old_fallback", OLD,    BOTH),
    ("cleanup_target",               OLD,    OLD),
]
# fmt: on


@pytest.mark.parametrize(("stage", "readers", "written"), TABLE)
def test_readers_and_writers_are_a_function_of_the_stage(
    stage: str, readers: tuple[Replica, ...], written: tuple[Replica, ...]
) -> None:
    """F99."""
    record = moving(stage)
    assert set(routing.readers(record)) == set(readers)
    assert set(routing.written(record)) == set(written)
    assert set(routing.writers(record)) == set(written)
    assert set(routing.electable(record)) == set(readers)
    assert routing.may_return(record) == ()


@pytest.mark.parametrize(("stage", "readers", "written"), TABLE)
def test_a_replica_that_is_not_in_sync_is_written_to_but_not_waited_for(
    stage: str, readers: tuple[Replica, ...], written: tuple[Replica, ...]
) -> None:
    record = moving(stage, in_sync=(A, D))
    assert set(routing.written(record)) == set(written)
    assert set(routing.writers(record)) == set(written) & {A, D}
    assert set(routing.electable(record)) == set(readers) & {A, D}
    assert set(routing.may_return(record)) == {B, C}


def test_rows_are_carried_only_while_a_session_is_open() -> None:
    copied = [line[0] for line in TABLE if routing.is_copied(moving(line[0]))]
    assert copied == [stage.name for stage in MOVE.stages if stage.session]
    assert "streaming" in copied
    assert not {"write_both_read_new", "cleanup"} & set(copied)
    assert not routing.is_copied(stable())


def test_the_table_names_every_stage_of_a_move_in_its_order() -> None:
    """F98."""
    assert [stage.name for stage in MOVE.stages] == [line[0] for line in TABLE]
    forward = [MOVE.first.name]
    while forward[-1] in {stage.name for stage in MOVE.stages}:
        forward.append(MOVE[forward[-1]].next)
    assert forward == [
        "allow_write_both_read_old",
        "write_both_read_old",
        "streaming",
        "write_both_read_new",
        "use_new",
        "cleanup",
        "end",
    ]


@pytest.mark.parametrize("kind", MACHINES)
def test_the_record_can_be_in_each_stage_of_each_kind(kind: str) -> None:
    for stage in MACHINES[kind].stages:
        record = moving(stage.name, kind=kind)  # type: ignore[arg-type]
        assert routing.stage_of(record) == stage
        assert record.transition is not None
        assert (record.transition.session is not None) == stage.session


def test_outside_a_transition_there_is_one_side() -> None:
    record = stable()
    assert routing.stage_of(record) is None
    for side in Side:
        assert routing.side(record, side) == OLD
    assert routing.readers(record) == routing.written(record) == routing.everywhere(record) == OLD
    assert routing.new_only(record) == routing.old_only(record) == ()


def test_a_transition_knows_what_it_makes_and_what_it_leaves_behind() -> None:
    record = moving("streaming")
    assert routing.new_only(record) == (D,)
    assert routing.old_only(record) == (A,)
    assert set(routing.everywhere(record)) == set(BOTH)


def test_a_replica_that_a_transition_leaves_behind_does_not_come_back() -> None:
    assert routing.may_return(moving("streaming", in_sync=(B, C, D))) == ()


def test_a_stage_that_does_not_exist_is_an_error_that_lists_those_that_do() -> None:
    record = moving("streaming")
    assert record.transition is not None
    lost = Partition(
        record.id,
        record.zone,
        record.range,
        OLD,
        OLD,
        transition=type(record.transition)("t9", "move", "limbo", NEW),
    )
    with pytest.raises(UnknownStage) as caught:
        routing.stage_of(lost)
    assert "limbo is not a stage of move" in caught.value.message
    assert all(stage.name in caught.value.advice for stage in MOVE.stages)


@pytest.mark.parametrize(
    ("record", "zone", "needed"),
    [
        (stable(), Zone("z"), 2),
        (stable(), Zone("z", min_in_sync=3), 3),
        (stable((A,)), Zone("z", replica_count=3), 1),
        (stable((A,)), Zone("z", replica_count=3, min_in_sync=2), 1),
        (moving("streaming"), Zone("z", replica_count=5), 2),
        (stable(), Zone("z", replica_count=1), 2),
    ],
    ids=["majority", "all", "one of three", "one, two wanted", "three of five", "three of one"],
)
def test_more_replicas_do_not_stop_writes_while_they_are_copied(
    record: Partition, zone: Zone, needed: int
) -> None:
    """What is needed is counted among the replicas that are read now, not those to come."""
    assert routing.needed(record, zone) == needed
