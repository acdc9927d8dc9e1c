"""Which stage tables are safe? Each rule is a named function that yields violations.

The rules look at one stage or at two neighbours. An unsafe table raises `UnsafeMachine` when it is
built, so it can't be imported.
"""

from collections.abc import Callable, Iterable, Iterator

from limosa.core.machines.machine import END, REVERT, Machine, Side, Stage, Work
from limosa.core.model.runs import FAR
from limosa.errors import UnsafeMachine

_ENDS = {
    END: Stage(END, Side.NEW, Side.NEW, Side.NEW, False, "COMMITTED", (), END, (), ""),
    REVERT: Stage(REVERT, Side.OLD, Side.OLD, Side.OLD, False, "DUAL_WRITE", (), REVERT, (), ""),
}
_AFTER_REPAIR = Stage(END, Side.OLD, Side.OLD, Side.OLD, False, "DUAL_WRITE", (), END, (), "")


def _stages(machine: Machine) -> dict[str, Stage]:
    """The stages and the two ends; a machine that only repairs keeps its replicas."""
    named = {stage.name: stage for stage in machine.stages}
    ends = dict(_ENDS)
    if all(Side.NEW not in (stage.reads, stage.writes) for stage in machine.stages) and not any(
        stage.writes is Side.BOTH for stage in machine.stages
    ):
        ends[END] = _AFTER_REPAIR
    return ends | named


def edges(machine: Machine) -> Iterator[tuple[Stage, Stage, bool]]:
    """(from, to, given up?) for every edge of the table."""
    stages = _stages(machine)
    for stage in machine.stages:
        for name, given_up in ((stage.next, False), *((n, True) for n in stage.given_up)):
            if name in stages:
                yield stage, stages[name], given_up


def edges_lead_somewhere(machine: Machine) -> Iterator[str]:
    stages = _stages(machine)
    for stage in machine.stages:
        for name in (stage.next, *stage.given_up):
            if name not in stages:
                yield f"{stage.name} leads to {name}, which does not exist"
    reached = {machine.first.name}
    for _ in machine.stages:
        reached |= {to.name for at, to, _ in edges(machine) if at.name in reached}
    for stage in machine.stages:
        if stage.name not in reached:
            yield f"nothing leads to {stage.name}"
    ending = {END, REVERT}
    for _ in machine.stages:
        ending |= {
            at.name for at, to, given_up in edges(machine) if to.name in ending and not given_up
        }
    for stage in machine.stages:
        if stage.name not in ending:
            yield f"{stage.name} never ends by going forward"


def what_is_read_was_written(machine: Machine) -> Iterator[str]:
    """Two processes may be one stage apart: what one reads, the other must write."""
    for at, to, _ in edges(machine):
        if not at.reads.within(to.writes):
            yield f"{at.name} reads {at.reads.value}, but {to.name} writes {to.writes.value} only"
        if not to.reads.within(at.writes):
            yield f"{to.name} reads {to.reads.value}, but {at.name} writes {at.writes.value} only"
    for stage in machine.stages:
        if not stage.reads.within(stage.writes):
            yield f"{stage.name} reads what it does not write"


def starts_and_ends_with_one_side(machine: Machine) -> Iterator[str]:
    first = machine.first
    if (first.reads, first.writes) != (Side.OLD, Side.OLD):
        yield f"{first.name} is first, but does not leave requests as they were"
    for at, to, _ in edges(machine):
        if to.name in (END, REVERT) and (at.reads, at.writes) != (to.reads, to.writes):
            yield f"{at.name} ends with {to.name} while the other side is still in use"


def the_owner_is_read(machine: Machine) -> Iterator[str]:
    for stage in machine.stages:
        if stage.reads is Side.BOTH or stage.owner is not stage.reads:
            yield f"{stage.name} reads {stage.reads.value}, but its owner is {stage.owner.value}"


def another_owner_is_sealed_and_opened(machine: Machine) -> Iterator[str]:
    """A hand-over forward needs the old owner's seal; on the way back the coordinator asks for
    it."""
    for at, to, given_up in edges(machine):
        if at.owner is to.owner:
            continue
        if not given_up and Work.SEAL not in at.work:
            yield f"{at.name} hands over to {to.name} without the owner's seal"
        if Work.OPEN not in to.work:
            yield f"{to.name} can be left before its new owner is open"
    for stage in machine.stages:
        if Work.SEAL in stage.work and _stages(machine)[stage.next].owner is stage.owner:
            yield f"{stage.name} seals an owner that stays"


def copying_needs_both_written(machine: Machine) -> Iterator[str]:
    for at, to, _ in edges(machine):
        if Work.COPY in to.work and not (at.writes is to.writes is Side.BOTH):
            yield f"{to.name} copies before every write has gone to both sides"
    for stage in machine.stages:
        if Work.COPY in stage.work and stage.reads is not Side.OLD:
            yield f"{stage.name} copies to a side that is read already"


def reads_turn_new_after_the_copy(machine: Machine) -> Iterator[str]:
    for at, to, _ in edges(machine):
        if at.reads is Side.OLD and to.reads is Side.NEW and Work.COPY not in at.work:
            yield f"{to.name} reads the new side, but {at.name} did not finish a copy"


def sides_change_behind_a_barrier(machine: Machine) -> Iterator[str]:
    """The use of a side begins or ends only after every node has left the stage before."""
    for at, to, given_up in edges(machine):
        widens = at.writes is not to.writes and to.writes is Side.BOTH
        if not given_up and (widens or to.work[:1] == (Work.COPY,)) and Work.BARRIER not in at.work:
            yield f"{to.name} relies on what {at.name} did not make every node do"
        narrows = at.writes is Side.BOTH and to.writes is not Side.BOTH
        if not given_up and narrows and Work.BARRIER not in at.work:
            yield f"{to.name} stops writing to a side that may still be read"
    for stage in machine.stages:
        for drop, dropped in ((Work.DROP_OLD, Side.OLD), (Work.DROP_NEW, Side.NEW)):
            if drop not in stage.work:
                continue
            if dropped.within(stage.writes):
                yield f"{stage.name} drops the {dropped.value} side while it is written"
            own = (
                stage.work.index(drop) > 0 and Work.BARRIER in stage.work[: stage.work.index(drop)]
            )
            before = [at for at, to, _ in edges(machine) if to is stage]
            if not own and not all(
                Work.BARRIER in at.work and at.writes is stage.writes for at in before
            ):
                yield f"{stage.name} drops replicas that a slow node may still write to"


def what_is_left_behind_is_dropped(machine: Machine) -> Iterator[str]:
    copied = any(stage.writes is Side.BOTH for stage in machine.stages)
    for at, to, _ in edges(machine):
        need = {END: Work.DROP_OLD, REVERT: Work.DROP_NEW}.get(to.name)
        if copied and need is not None and need not in at.work:
            yield f"{at.name} ends without dropping the side that is left behind"


def copies_run_under_a_session(machine: Machine) -> Iterator[str]:
    for at, to, _ in edges(machine):
        if Work.COPY in to.work and not (at.session and to.session):
            yield f"{to.name} copies without a session that every node knows by then"
    for stage in machine.stages:
        moves_data = Work.COPY in stage.work or Work.REPAIR in stage.work
        if moves_data and not stage.session:
            yield f"{stage.name} moves data without a session"
        if stage.session and not moves_data and _stages(machine)[stage.next].session is False:
            yield f"{stage.name} keeps a session for nothing"


def every_copy_can_be_given_up(machine: Machine) -> Iterator[str]:
    for stage in machine.stages:
        if (
            stage.reads is Side.OLD
            and stage.next != REVERT
            and not stage.given_up
            and (_moves_forward(machine, stage))
        ):
            yield f"{stage.name} has no way back, though nothing reads the new side yet"


def _moves_forward(machine: Machine, stage: Stage) -> bool:
    stages = _stages(machine)
    return not any(at.reads is Side.NEW and stage.name in at.given_up for at in stages.values())


def giving_up_is_final(machine: Machine) -> Iterator[str]:
    """Giving up skips a stage's work, so only one way is left from there."""
    stages = _stages(machine)
    for at, to, given_up in edges(machine):
        step = to
        while given_up and step.name not in (END, REVERT):
            if step.given_up:
                yield f"{at.name} is given up to {step.name}, which can be given up again"
                break
            step = stages[step.next]
    for stage in machine.stages:
        if stage.given_up and stage.writes is Side.NEW:
            yield f"{stage.name} can be given up, though the old side is written no more"


def new_replicas_are_prepared(machine: Machine) -> Iterator[str]:
    for at, to, given_up in edges(machine):
        widens = at.writes is Side.OLD and to.writes is Side.BOTH
        if widens and (given_up or Work.PREPARE not in at.work):
            yield f"{to.name} writes to replicas that {at.name} did not prepare"
    for stage in machine.stages:
        if stage.session and stage.writes is Side.OLD and Work.REPAIR not in stage.work:
            yield f"{stage.name} opens a session for a side that is not written"


def a_switch_is_taken_back_or_completed(machine: Machine) -> Iterator[str]:
    """The coordinator gives up by these columns: before the switch by one edge back; after it by
    the first edge to the old side, or by the second one forward."""
    stages = _stages(machine)
    for stage in machine.stages:
        ways = tuple(stages[name].reads for name in stage.given_up)
        wanted = (Side.OLD, Side.NEW) if stage.switched else (Side.OLD,)
        if ways and ways != wanted:
            yield f"{stage.name} is not given up {' or '.join(f'to {s.value}' for s in wanted)}"


def only_what_is_switched_is_held(machine: Machine) -> Iterator[str]:
    for stage in machine.stages:
        if Work.HOLD in stage.work and not (stage.switched and stage.writes is Side.BOTH):
            yield f"{stage.name} is held, though it has not switched or can't go back"


def a_run_s_move_goes_forward(machine: Machine) -> Iterator[str]:
    """A run's move is COPYING from the copy on, and COMMITTED once the old side is not used."""
    for stage in machine.stages:
        copies = Work.COPY in stage.work and stage.run_move != "COPYING"
        if copies or (stage.run_move == "COMMITTED") is not (stage.writes is Side.NEW):
            yield f"{stage.name} says that a run's move is {stage.run_move}"
    for at, to, given_up in edges(machine):
        if not given_up and FAR[at.run_move] > FAR[to.run_move]:
            yield f"{to.name} takes a run's move back from {at.run_move} to {to.run_move}"


RULES: tuple[Callable[[Machine], Iterable[str]], ...] = (
    edges_lead_somewhere,
    what_is_read_was_written,
    starts_and_ends_with_one_side,
    the_owner_is_read,
    another_owner_is_sealed_and_opened,
    copying_needs_both_written,
    reads_turn_new_after_the_copy,
    sides_change_behind_a_barrier,
    what_is_left_behind_is_dropped,
    copies_run_under_a_session,
    every_copy_can_be_given_up,
    giving_up_is_final,
    new_replicas_are_prepared,
    a_switch_is_taken_back_or_completed,
    only_what_is_switched_is_held,
    a_run_s_move_goes_forward,
)


def checked(machine: Machine) -> Machine:
    """The machine itself, if it is safe."""
    lost = list(edges_lead_somewhere(machine))
    wrong = lost or [problem for rule in RULES for problem in rule(machine)]
    if wrong:
        raise UnsafeMachine(
            f"the table of {machine.name} is unsafe: " + "; ".join(wrong),
            "every reader of a stage must find what a neighbouring stage wrote: mend the table",
        )
    return machine
