"""Does each rule refuse the table that it is about, and say which edge is wrong?"""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from limosa.core.machines import rules
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    MACHINES,
    MOVE,
    READ_NEW,
    REPAIRING,
    STREAMING,
    USE_NEW,
    VOLUME_MOVE,
    WRITE_BOTH,
)
from limosa.core.machines.machine import END, REVERT, Machine, Side, Stage, Work
from limosa.core.machines.rules import RULES, checked
from limosa.errors import BadInput, UnsafeMachine

Rule = Callable[[Machine], Iterable[str]]


def altered(machine: Machine, stage: str, **cells: object) -> Machine:
    """The machine with one line changed."""
    stages = tuple(
        replace(line, **cells) if line.name == stage else line for line in machine.stages
    )
    return Machine(machine.name, stages)


# fmt: off
CASES: list[tuple[Rule, Machine, str]] = [
    (rules.edges_lead_somewhere, altered(MOVE, USE_NEW, next="nowhere"),
     "use_new leads to nowhere, which does not exist"),
    (rules.edges_lead_somewhere, altered(MOVE, ALLOW, given_up=("nowhere",)),
     "allow_write_both_read_old leads to nowhere"),
    (rules.edges_lead_somewhere, altered(MOVE, READ_NEW, given_up=(USE_NEW,)),
     "nothing leads to write_both_read_old_fallback"),
    (rules.edges_lead_somewhere, altered(MOVE, CLEANUP, next=USE_NEW),
     "use_new never ends by going forward"),
    (rules.what_is_read_was_written, altered(MOVE, READ_NEW, given_up=(CLEANUP_TARGET,)),
     "write_both_read_new reads new, but cleanup_target writes old only"),
    (rules.what_is_read_was_written, altered(MOVE, ALLOW, next=READ_NEW),
     "write_both_read_new reads new, but allow_write_both_read_old writes old only"),
    (rules.what_is_read_was_written, altered(MOVE, USE_NEW, reads=Side.OLD),
     "use_new reads what it does not write"),
    (rules.starts_and_ends_with_one_side, altered(MOVE, ALLOW, writes=Side.BOTH),
     "allow_write_both_read_old is first, but does not leave requests as they were"),
    (rules.starts_and_ends_with_one_side, altered(MOVE, FALLBACK, next=REVERT),
     "write_both_read_old_fallback ends with revert while the other side is still in use"),
    (rules.the_owner_is_read, altered(MOVE, READ_NEW, owner=Side.OLD),
     "write_both_read_new reads new, but its owner is old"),
    (rules.the_owner_is_read, altered(MOVE, STREAMING, reads=Side.BOTH, owner=Side.BOTH),
     "streaming reads both"),
    (rules.another_owner_is_sealed_and_opened, altered(MOVE, STREAMING, work=(Work.COPY,)),
     "streaming hands over to write_both_read_new without the owner's seal"),
    (rules.another_owner_is_sealed_and_opened, altered(MOVE, READ_NEW, work=(Work.BARRIER,)),
     "write_both_read_new can be left before its new owner is open"),
    (rules.another_owner_is_sealed_and_opened, altered(MOVE, FALLBACK, work=(Work.BARRIER,)),
     "write_both_read_old_fallback can be left before its new owner is open"),
    (rules.another_owner_is_sealed_and_opened,
     altered(MOVE, USE_NEW, work=(Work.BARRIER, Work.SEAL)), "use_new seals an owner that stays"),
    (rules.copying_needs_both_written, altered(MOVE, ALLOW, next=STREAMING),
     "streaming copies before every write has gone to both sides"),
    (rules.copying_needs_both_written, altered(MOVE, READ_NEW, work=(Work.OPEN, Work.COPY)),
     "write_both_read_new copies to a side that is read already"),
    (rules.reads_turn_new_after_the_copy, altered(MOVE, STREAMING, work=(Work.SEAL,)),
     "write_both_read_new reads the new side, but streaming did not finish a copy"),
    (rules.sides_change_behind_a_barrier, altered(MOVE, ALLOW, work=(Work.PREPARE,)),
     "write_both_read_old relies on what allow_write_both_read_old did not make every node do"),
    (rules.sides_change_behind_a_barrier, altered(MOVE, WRITE_BOTH, work=()),
     "streaming relies on what write_both_read_old did not make every node do"),
    (rules.sides_change_behind_a_barrier, altered(MOVE, READ_NEW, work=(Work.OPEN,)),
     "use_new stops writing to a side that may still be read"),
    (rules.sides_change_behind_a_barrier, altered(MOVE, CLEANUP, writes=Side.BOTH),
     "cleanup drops the old side while it is written"),
    (rules.sides_change_behind_a_barrier, altered(MOVE, USE_NEW, work=()),
     "cleanup drops replicas that a slow node may still write to"),
    (rules.sides_change_behind_a_barrier,
     altered(MOVE, CLEANUP_TARGET, work=(Work.DROP_NEW, Work.BARRIER)),
     "cleanup_target drops replicas that a slow node may still write to"),
    (rules.what_is_left_behind_is_dropped, altered(MOVE, CLEANUP, work=()),
     "cleanup ends without dropping the side that is left behind"),
    (rules.what_is_left_behind_is_dropped, altered(MOVE, CLEANUP_TARGET, work=(Work.BARRIER,)),
     "cleanup_target ends without dropping the side that is left behind"),
    (rules.copies_run_under_a_session, altered(MOVE, WRITE_BOTH, session=False),
     "streaming copies without a session that every node knows by then"),
    (rules.copies_run_under_a_session, altered(REPAIRING, "repair", session=False),
     "repair moves data without a session"),
    (rules.copies_run_under_a_session, altered(MOVE, USE_NEW, session=True),
     "use_new keeps a session for nothing"),
    (rules.every_copy_can_be_given_up, altered(MOVE, STREAMING, given_up=()),
     "streaming has no way back, though nothing reads the new side yet"),
    (rules.giving_up_is_final, altered(MOVE, STREAMING, given_up=(WRITE_BOTH,)),
     "streaming is given up to write_both_read_old, which can be given up again"),
    (rules.giving_up_is_final, altered(MOVE, FALLBACK, given_up=(CLEANUP_TARGET,)),
     "write_both_read_new is given up to write_both_read_old_fallback, which can be given up"),
    (rules.giving_up_is_final, altered(MOVE, CLEANUP_TARGET, given_up=(REVERT,)),
     "write_both_read_new is given up to cleanup_target, which can be given up again"),
    (rules.giving_up_is_final, altered(MOVE, USE_NEW, given_up=(CLEANUP,)),
     "use_new can be given up, though the old side is written no more"),
    (rules.new_replicas_are_prepared, altered(MOVE, ALLOW, work=(Work.BARRIER,)),
     "write_both_read_old writes to replicas that allow_write_both_read_old did not prepare"),
    (rules.new_replicas_are_prepared, altered(MOVE, ALLOW, given_up=(FALLBACK,)),
     "write_both_read_old_fallback writes to replicas that allow_write_both_read_old did not prep"),
    (rules.new_replicas_are_prepared, altered(MOVE, ALLOW, session=True),
     "allow_write_both_read_old opens a session for a side that is not written"),
    (rules.a_switch_is_taken_back_or_completed, altered(MOVE, READ_NEW, given_up=(FALLBACK,)),
     "write_both_read_new is not given up to old or to new"),
    (rules.a_switch_is_taken_back_or_completed,
     altered(MOVE, READ_NEW, given_up=(USE_NEW, FALLBACK)),
     "write_both_read_new is not given up to old or to new"),
    (rules.a_switch_is_taken_back_or_completed,
     altered(MOVE, STREAMING, given_up=(CLEANUP_TARGET, CLEANUP_TARGET)),
     "streaming is not given up to old"),
    (rules.only_what_is_switched_is_held,
     altered(MOVE, STREAMING, work=(Work.COPY, Work.SEAL, Work.HOLD)), "streaming is held"),
    (rules.only_what_is_switched_is_held, altered(MOVE, USE_NEW, work=(Work.BARRIER, Work.HOLD)),
     "use_new is held, though it has not switched or can't go back"),
    (rules.a_run_s_move_goes_forward, altered(MOVE, READ_NEW, run_move="COMMITTED"),
     "write_both_read_new says that a run's move is COMMITTED"),
    (rules.a_run_s_move_goes_forward, altered(MOVE, USE_NEW, run_move="COPYING"),
     "use_new says that a run's move is COPYING"),
    (rules.a_run_s_move_goes_forward, altered(MOVE, STREAMING, run_move="DUAL_WRITE"),
     "streaming says that a run's move is DUAL_WRITE"),
    (rules.a_run_s_move_goes_forward, altered(MOVE, READ_NEW, run_move="DUAL_WRITE"),
     "write_both_read_new takes a run's move back from COPYING to DUAL_WRITE"),
]
# fmt: on


@pytest.mark.parametrize(
    ("rule", "machine", "words"), CASES, ids=[f"{case[0].__name__}-{case[2]}" for case in CASES]
)
def test_a_rule_refuses_the_table_that_it_is_about(
    rule: Rule, machine: Machine, words: str
) -> None:
    assert any(words in problem for problem in rule(machine))
    with pytest.raises(UnsafeMachine) as caught:
        checked(machine)
    assert machine.name in caught.value.message
    assert isinstance(caught.value, BadInput)
    assert caught.value.advice


def test_every_rule_has_a_table_that_it_refuses() -> None:
    assert {case[0] for case in CASES} == set(RULES)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_no_rule_has_anything_against_the_tables_that_are_used(machine: Machine) -> None:
    assert checked(machine) is machine
    assert [problem for rule in RULES for problem in rule(machine)] == []


def scylla() -> Machine:
    """The table as ScyllaDB's topology-over-raft.md draws it, with this project's seals and
    openings added, so that nothing but its missing fallback stage is wrong."""
    streaming, read_new = MOVE[STREAMING], MOVE[READ_NEW]
    stages: tuple[Stage, ...] = (
        MOVE[ALLOW],
        MOVE[WRITE_BOTH],
        streaming,
        replace(read_new, given_up=(CLEANUP_TARGET, USE_NEW)),
        MOVE[USE_NEW],
        MOVE[CLEANUP],
        replace(MOVE[CLEANUP_TARGET], work=(Work.OPEN, *MOVE[CLEANUP_TARGET].work)),
    )
    return Machine("scylla", stages)


def test_the_table_that_scylladb_documents_is_refused_for_its_one_unsafe_edge() -> None:
    """F98 F104: straight from write_both_read_new to cleanup_target loses reads."""
    with pytest.raises(UnsafeMachine) as caught:
        checked(scylla())
    assert caught.value.message == (
        "the table of scylla is unsafe: "
        "write_both_read_new reads new, but cleanup_target writes old only"
    )


def test_one_unknown_stage_is_told_before_anything_that_follows_from_it() -> None:
    with pytest.raises(UnsafeMachine) as caught:
        checked(altered(MOVE, STREAMING, next="nowhere", work=()))
    assert "streaming leads to nowhere" in caught.value.message
    assert "seal" not in caught.value.message


def test_a_volume_move_never_turns_back_once_its_new_side_is_read() -> None:
    assert VOLUME_MOVE[READ_NEW].given_up == ()


def test_a_machine_without_a_new_side_ends_with_the_replicas_it_had() -> None:
    (edge, given_up) = rules.edges(REPAIRING)
    assert [edge[1].name, given_up[1].name] == [END, END]
    assert edge[1].reads is Side.OLD
    assert (edge[2], given_up[2]) == (False, True)
