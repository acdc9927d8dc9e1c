"""Is everything about a partition explained, in words that a person can act upon?"""

from typing import cast

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.events import AgreedRead, CoordinatorEvent, Elected, Received
from limosa.core.insight import explaining
from limosa.core.insight.explaining import (
    NOTHING,
    STABLE,
    CopyProgress,
    Explanation,
    about,
    explain,
    status_about,
)
from limosa.core.insight.progress import NO_COORDINATOR
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    MACHINES,
    READ_NEW,
    REPAIR,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.machines.machine import Machine, Stage
from limosa.core.messages import Status
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Put, Remove, apply
from limosa.core.model.intent import Assignment, Intent
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.requests import MovePartition, Request
from limosa.core.model.topology import Partition, Record, Replica, TransitionKind
from tests.core.samples import (
    NEW,
    NODES,
    OFFICE,
    OLD,
    A,
    B,
    C,
    D,
    P,
    cluster,
    intends,
    moving,
    of,
    placed,
    says,
    seen,
    stable,
    without_owner,
)

SESSION = "t9@3"
EVERY_STAGE = [(machine, stage) for machine in MACHINES.values() for stage in machine.stages]
NAMES = [f"{machine.name}: {stage.name}" for machine, stage in EVERY_STAGE]


def in_stage(kind: str, stage: str, hold_seconds: float = 0.0, released: bool = False) -> Partition:
    """As the stage's table says; on the way back it was given up."""
    back = stage in (FALLBACK, CLEANUP_TARGET)
    return moving(
        stage,
        cast(TransitionKind, kind),
        targets=OLD if stage == REPAIR else NEW,
        hold_seconds=hold_seconds,
        released=released,
        giving_up="cancelled" if back else "",
    )


def everyone(record: Partition, copied: bool = True) -> list[Status]:
    """All nodes are well, and have done all that they are ever asked for."""
    owner = A if record.owner is None else record.owner.replica
    told = []
    for replica in (A, B, C, D):
        session = SESSION if copied else None
        status = of(
            replica,
            open_epoch=record.epoch if replica == owner else 0,
            sealed=(50, 7) if replica == owner else None,
            copied=session,
            digest=(SESSION, 7, 1234),
        )
        told.append(says(replica.node, status))
    return told


def explained(
    record: Partition,
    *statuses: Status,
    intent: Intent | None = None,
    live: tuple[str, ...] = NODES,
    more: tuple[Record, ...] = (),
    coordinated: bool = True,
    held_since: float = 100.0,
) -> Explanation:
    intent = intends() if intent is None and record.transition is not None else intent
    agreed = cluster(record, intent, live, more=more)
    if not coordinated:
        agreed = apply(agreed, (Remove(COORDINATOR_KEY),), 99)
    return explain(seen(agreed, *statuses), record, held_since)


# --- every stage


@pytest.mark.parametrize(("machine", "stage"), EVERY_STAGE, ids=NAMES)
@pytest.mark.parametrize("heard", [True, False])
def test_every_stage_is_explained(machine: Machine, stage: Stage, heard: bool) -> None:
    """What it waits for, what comes next, what one may do; whoever has been heard."""
    record = in_stage(machine.name, stage.name)
    told = explained(record, *(everyone(record) if heard else ()))
    assert (told.kind, told.stage) == (machine.name, stage.name)
    assert told.holds == stage.holds
    assert told.waits_for not in ("", NOTHING)
    assert told.next not in ("", NOTHING)
    assert told.may
    assert all("`limosa " in sentence for sentence in told.may)
    assert told.unheard == (() if heard else NODES)


@pytest.mark.parametrize(("machine", "stage"), EVERY_STAGE, ids=NAMES)
@pytest.mark.parametrize("heard", [True, False])
def test_what_is_waited_for_is_what_the_coordinator_says(
    machine: Machine, stage: Stage, heard: bool
) -> None:
    record = in_stage(machine.name, stage.name)
    statuses = everyone(record, copied=False) if heard else []
    agreed = cluster(record, intends())
    coordinator = Coordinator("one", CoordinatorSettings())
    heard_of: list[CoordinatorEvent] = [Received(status.node, status) for status in statuses]
    for event in [AgreedRead(agreed), Elected(OFFICE), *heard_of]:
        coordinator.handle(100.0, event)
    told = explain(seen(agreed, *statuses), record, 100.0)
    waits = coordinator.waits.get(P)
    assert told.waits_for == waits or (waits is None and "next commit" in told.waits_for)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (ALLOW, "cancel it, without data loss: `limosa partition cancel p`"),
        (WRITE_BOTH, "cancel it, without data loss: `limosa partition cancel p`"),
        (STREAMING, "cancel it, without data loss: `limosa partition cancel p`"),
        (READ_NEW, "revert it, without data loss: `limosa partition reverse p`"),
        (USE_NEW, "wait: it can't be reverted any more; `limosa explain p` shows how far it is"),
        (CLEANUP, "wait: it can't be reverted any more; `limosa explain p` shows how far it is"),
        (
            FALLBACK,
            "wait: it is being reverted, without data loss; `limosa explain p` shows how far it is",
        ),
        (
            CLEANUP_TARGET,
            "wait: it is being reverted, without data loss; `limosa explain p` shows how far it is",
        ),
    ],
)
def test_what_one_may_do_about_a_move(stage: str, words: str) -> None:
    """Back while nothing is lost by it, and no later."""
    assert explained(in_stage("move", stage)).may == (words,)


def test_a_held_move_can_be_completed_or_reversed() -> None:
    held = in_stage("move", READ_NEW, hold_seconds=60.0)
    told = explained(held, *everyone(held), held_since=90.0)
    assert told.waits_for == (
        "held for another 50 s; `complete` ends the hold, `reverse` reverts the move"
    )
    assert told.may == (
        "end the hold: `limosa partition complete p`",
        "revert it, without data loss: `limosa partition reverse p`",
    )
    released = in_stage("move", READ_NEW, hold_seconds=60.0, released=True)
    assert explained(released).may == (
        "revert it, without data loss: `limosa partition reverse p`",
    )


def test_what_is_cancelled_already_is_waited_for() -> None:
    record = in_stage("move", STREAMING)
    told = explained(record, *everyone(record), intent=intends(cancel=9))
    assert told.waits_for == "the coordinator's next commit: given up: cancelled"
    assert told.may[0].startswith("wait: it is being reverted")


# --- what is next


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (STREAMING, "write_both_read_new: the new replicas hold every acknowledged write"),
        (CLEANUP, "the end: the replicas are where they should be"),
        (CLEANUP_TARGET, "the end: everything is as it was before"),
    ],
)
def test_what_is_next_is_in_the_table(stage: str, words: str) -> None:
    assert explained(in_stage("move", stage)).next == words


def test_a_move_that_goes_back_goes_on_to_the_fallback() -> None:
    reversing = moving(READ_NEW, giving_up="reversed by request")
    told = explained(reversing)
    assert told.next.startswith(f"{FALLBACK}: ")
    assert told.giving_up == "reversed by request"


def test_what_is_planned_comes_after_that() -> None:
    planned = Assignment("move", placed(A, B, C), trigger=11)
    told = explained(in_stage("move", USE_NEW), intent=intends(planned=planned))
    assert told.next.endswith("; after that, move to a, b, c")


@pytest.mark.parametrize(
    ("intent", "words"),
    [
        (intends(), "move to b, c, d"),
        (intends("rebuild", targets=(), renewed=("c",)), "rebuild to c"),
        (intends("repair", targets=()), "repair"),
    ],
)
def test_what_has_not_begun_can_be_cancelled(intent: Intent, words: str) -> None:
    told = explained(stable(), *everyone(stable()), intent=intent)
    assert told.stage == STABLE
    assert told.next == words
    assert told.waits_for.startswith("the coordinator's next commit: ")
    assert told.may == ("cancel it before it begins: `limosa partition cancel p`",)


# --- nothing happens


def test_a_settled_partition_waits_for_nothing() -> None:
    told = explained(stable(), *everyone(stable()))
    assert (told.stage, told.kind, told.waits_for, told.next) == (STABLE, "", NOTHING, NOTHING)
    assert told.may == ("move it: `limosa partition move p --to NODE`",)
    assert (told.owner, told.epoch, told.coordinator) == ("a", 3, "one")
    assert (told.copy, told.pipeline, told.since, told.began) == (None, None, None, None)
    assert [each.side for each in told.replicas] == ["", "", ""]


def test_without_a_coordinator_nothing_advances() -> None:
    settled = explained(stable(), *everyone(stable()), coordinated=False)
    assert settled.waits_for == NO_COORDINATOR
    assert settled.coordinator is None
    assert settled.may[0] == "start a coordinator: `limosa serve coordinator`"
    record = in_stage("move", STREAMING)
    told = explained(record, *everyone(record, copied=False), coordinated=False)
    assert told.waits_for == f"{NO_COORDINATOR}. Then: copy to d under session t9@3"


def test_a_copy_that_is_slowed_down_says_so_and_why() -> None:
    """F199."""
    record = in_stage("move", STREAMING)
    statuses = everyone(record, copied=False)
    slowed = [
        replace(
            status,
            replicas={
                name: tuple(replace(each, copy_rate=12_500_000) for each in known)
                for name, known in status.replicas.items()
            },
        )
        for status in statuses
    ]
    told = explained(record, *slowed)
    assert told.waits_for == (
        "copy to d under session t9@3; slowed down to 12.5 MB/s, because clients' writes take "
        "longer than usual"
    )
    assert told.copy is not None
    assert told.copy.slowed_to == 12_500_000
    quick = explained(record, *statuses)
    assert quick.waits_for == "copy to d under session t9@3"


def test_a_request_without_an_answer_comes_first() -> None:
    other = Request("r1", MovePartition("other"))
    answered = Request("r2", MovePartition(P), state="done")
    asked = Request("r3", MovePartition(P))
    told = explained(stable(), *everyone(stable()), more=(other, answered, asked))
    assert told.waits_for == "the coordinator's answer to the request r3 (move)"
    told = explained(stable(), *everyone(stable()), more=(other, answered))
    assert told.waits_for == NOTHING


def test_a_partition_without_an_owner_says_whom_to_start() -> None:
    gone = without_owner(stable(in_sync=(A, B)))
    told = explained(gone, says("c", of(C)), live=("c", "d"))
    assert told.owner is None
    assert told.waits_for.startswith("election: no replica that has every acknowledged row")
    assert told.may[:2] == (
        "start a, which was in sync: `limosa serve node --name a`",
        "start b, which was in sync: `limosa serve node --name b`",
    )
    dead = explained(stable(), live=("b", "c", "d"))
    assert dead.waits_for == "the coordinator's next commit: the owner is gone; epoch 4 elects"
    assert dead.may[0] == "start a, which was in sync: `limosa serve node --name a`"


def test_a_partition_that_takes_no_writes_says_why_and_whom_to_start() -> None:
    alone = replace(stable(in_sync=(A,)), eligible=(B, C))
    live = ("a", "c", "d")
    told = explained(alone, says("a", of(A, open_epoch=3)), says("c", of(C)), live=live)
    words = "1 of 3 replicas are in sync, and 2 are needed; b is not in sync: it is down or"
    assert told.waits_for == f"it takes no writes: {words} catching up"
    closed = explained(alone, says("a", of(A)), says("c", of(C)), live=live)
    assert closed.waits_for == f"it takes no reads and no writes: {words} catching up"
    assert told.may[0] == (
        "start b, so that enough replicas are in sync for writes: `limosa serve node --name b`"
    )


def test_without_an_intent_there_is_nothing_next() -> None:
    """Between the drop of a table and its end."""
    agreed = apply(cluster(stable()), (Remove(f"intent/{P}"),), 99)
    told = explain(seen(agreed, *everyone(stable())), stable(), 0.0)
    assert told.next == NOTHING


# --- facts


def test_replicas_are_shown_with_their_side_and_position() -> None:
    record = in_stage("move", STREAMING)
    statuses = [
        says("a", replace(of(A, last=9, open_epoch=3), rows=100, bytes=5_000)),
        says("d", of(D, last=7)),
    ]
    told = explained(record, *statuses, live=("a", "c", "d"))
    shown = {
        each.replica.node: (each.side, each.live, each.in_sync, each.owner, each.last, each.rows)
        for each in told.replicas
    }
    assert shown == {
        "a": ("old", True, True, True, 9, 100),
        "b": ("both", False, True, False, None, 0),
        "c": ("both", True, True, False, None, 0),
        "d": ("new", True, True, False, 7, 0),
    }
    assert told.unheard == ("c",)


def with_copy(replica: Replica, landed: int) -> Status:
    known = replace(of(replica), copying=(landed, 64), rows=landed, bytes=10 * landed)
    return says(replica.node, known)


def test_the_copy_is_counted_over_all_targets() -> None:
    record = moving(STREAMING, targets=(C, D, Replica("b", "t9")))
    source = says("a", replace(of(A, open_epoch=3), rows=64, bytes=640))
    none = explained(record)
    assert none.copy == CopyProgress(0, 0, 0, 0, 0, 0)
    begun = explained(record, source, with_copy(D, 16), with_copy(Replica("b", "t9"), 32))
    assert begun.copy == CopyProgress(48, 128, 48, 128, 480, 1280)
    made = explained(record, source, says("d", of(D)))
    assert made.copy == CopyProgress(0, 0, 0, 128, 0, 1280)


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        (Pipeline("one", "starting"), "starting Spark; then: copy to d under session t9@3"),
        (
            Pipeline("one", "failed", "there is no Java"),
            "Spark failed: there is no Java; it is tried again; then: copy to d under session t9@3",
        ),
        (Pipeline("one", "ready"), "copy to d under session t9@3"),
    ],
)
def test_a_copy_waits_for_spark_first(pipeline: Pipeline, words: str) -> None:
    record = in_stage("move", STREAMING)
    told = explained(record, *everyone(record, copied=False), more=(pipeline,))
    assert told.waits_for == words
    assert told.pipeline == pipeline
    other = in_stage("move", WRITE_BOTH)
    early = explained(other, more=(pipeline,))
    assert early.pipeline is None
    assert early.waits_for == "barrier: a has not applied generation 50"


def test_times_and_pauses_are_told() -> None:
    record = in_stage("move", READ_NEW)
    change = record.transition
    assert change is not None
    timed = replace(change, begun=5.0, since=7.0, pause_seconds=0.02, max_pause_seconds=0.05)
    told = explained(replace(record, transition=timed))
    assert (told.began, told.since) == (5.0, 7.0)
    assert (told.pause_seconds, told.pause_seconds_max) == (0.02, 0.05)


def reported(agreed: Agreed, *reports: Report) -> Agreed:
    return apply(agreed, tuple(map(Put, reports)), 90)


EARLIER = Report(P, "t5", "move", "reverted", "d differs", OLD, NEW, 1.0, 2.0, 0.0, ("k: gone",))
LATER = Report(P, "t7", "move", "done", "", OLD, NEW, 3.0, 4.0)
OTHER = Report("q", "t6", "move", "done", "", OLD, NEW, 3.0, 5.0)


def test_how_earlier_changes_ended_is_told_the_latest_first() -> None:
    """With the keys for which one was given up."""
    agreed = reported(cluster(stable()), EARLIER, LATER, OTHER)
    assert explain(seen(agreed), stable(), 0.0).reports == (LATER, EARLIER)


# --- what has to be known


@pytest.mark.parametrize(("machine", "stage"), EVERY_STAGE, ids=NAMES)
def test_what_concerns_a_partition_is_enough_to_explain_it(machine: Machine, stage: Stage) -> None:
    record = in_stage(machine.name, stage.name)
    statuses = everyone(record)
    requests = (Request("r1", MovePartition("q")), Request("r2", MovePartition(P), state="done"))
    agreed = reported(cluster(record, intends(), more=requests), EARLIER, OTHER)
    agreed = apply(agreed, (Put(Intent("q", ())),), 91)
    little = about(agreed, P)
    assert set(little.requests) == {"r2"}
    assert set(little.intents) == {P}
    assert list(little.reports.values()) == [EARLIER]
    assert little.topology.layouts == {}
    cut = [status_about(each, P) for each in statuses]
    assert explain(seen(little, *cut), record, 0.0) == explain(seen(agreed, *statuses), record, 0.0)


def test_of_an_unknown_partition_nothing_is_known() -> None:
    agreed = about(cluster(stable()), "q")
    assert agreed.topology.partitions == {}
    assert agreed.leases
    status = status_about(says("a", of(A), busy={P: 4}), "q")
    assert (status.replicas, status.busy) == ({}, {})
    assert explaining.reports_of(agreed, "q") == ()
