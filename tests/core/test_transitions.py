"""What is missing before a stage can be left? Every wait has its reason in words."""

import ast
import inspect

import pytest
from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import brain, ownership, transitions, view
from limosa.core.coordinator.transitions import Waiting
from limosa.core.effects import Effect, Send, StartCopy
from limosa.core.invariants import broken
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    READ_NEW,
    REBUILD_REPAIR,
    REPAIR,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.machines.machine import Work
from limosa.core.messages import DropReplica, Link, Seal, Status, Verify
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Commit,
    apply,
    intent_key,
    lease_key,
    partition_key,
)
from limosa.core.model.intent import Assignment, Intent, Placement
from limosa.core.model.topology import Grant, Node, Partition, Replica
from tests.core.samples import (
    LEASES,
    MEMBERS,
    NEW,
    NODES,
    OFFICE,
    OLD,
    RECORD_REVISION,
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
    put,
    says,
    seen,
    stable,
)

SESSION = "t9@3"
SEALING = Work.SEAL


def advance(
    record: Partition,
    *statuses: Status,
    live: tuple[str, ...] = NODES,
    intent: Intent | None = None,
    held_since: float = 100.0,
    now: float = 100.0,
) -> tuple[Partition | Waiting, Intent | None]:
    """The partition after the next commit, or the wait; no invariant may be broken by it."""
    intent = intends() if intent is None else intent
    agreed = cluster(record, intent, live)
    outcome = transitions.advance(seen(agreed, *statuses, now=now), record, held_since)
    if isinstance(outcome, Waiting):
        return outcome, None
    assert broken(agreed, apply(agreed, outcome.changes, 70)) == []
    (after,) = put(outcome.changes, Partition)
    intents = put(outcome.changes, Intent)
    assert isinstance(after, Partition)
    settled = intents[0] if intents else None
    assert settled is None or isinstance(settled, Intent)
    return after, settled


def everyone(
    owner: Replica = A,
    epoch: int = 3,
    sealed: tuple[int, int] | None = None,
    copied: str | None = None,
    digests: dict[str, int] | None = None,
    busy: dict[str, int] | None = None,
    generation: int = RECORD_REVISION,
    without: tuple[Replica, ...] = (),
) -> list[Status]:
    """What four well nodes say: the owner is open, and the rest is as asked for."""
    told = []
    for replica in (A, B, C, D):
        digest = (SESSION, 7, digests[replica.node]) if digests else None
        status = of(
            replica,
            epoch,
            open_epoch=epoch if replica == owner else 0,
            sealed=sealed if replica == owner else None,
            copied=copied,
            digest=digest,
        )
        held = () if replica in without else (status,)
        told.append(says(replica.node, *held, busy=busy, generation=generation))
    return told


SAME = dict.fromkeys("abcd", 1234)


def stage_of(outcome: Partition | Waiting) -> str:
    assert isinstance(outcome, Partition)
    assert outcome.transition is not None
    return outcome.transition.stage


# --- every wait


WAITS: dict[str, tuple[Partition, list[Status], dict[str, object], str]] = {
    "replica not made": (
        moving(ALLOW),
        everyone(without=(D,)),
        {},
        "d has not created its replica yet",
    ),
    "barrier: not applied": (
        moving(WRITE_BOTH),
        everyone(generation=49),
        {},
        "barrier: a has not applied generation 50",
    ),
    "barrier: not heard of": (
        moving(WRITE_BOTH),
        everyone()[:3],
        {},
        "barrier: d has not applied generation 50",
    ),
    "barrier: older requests": (
        moving(WRITE_BOTH),
        everyone(busy={P: 49}),
        {},
        "barrier: a still works on requests from before generation 50",
    ),
    "copy: owner not open": (
        moving(STREAMING),
        everyone(owner=B),
        {},
        "copy: its owner is not open yet",
    ),
    "copy: owner not heard of": (moving(STREAMING), [], {}, "copy: its owner is not open yet"),
    "copy": (moving(STREAMING), everyone(), {}, "copy to d under session t9@3"),
    "repair": (
        moving(REBUILD_REPAIR, kind="rebuild"),
        everyone(),
        {},
        "copy to b, c under session t9@3",
    ),
    "verification": (
        moving(STREAMING),
        everyone(copied=SESSION),
        {},
        "verification: digests of d and the owner",
    ),
    "seal": (
        moving(STREAMING),
        everyone(copied=SESSION, digests=SAME),
        {},
        "hand-over: a finishes the writes in flight",
    ),
    "seal of an older revision": (
        moving(STREAMING),
        everyone(copied=SESSION, digests=SAME, sealed=(49, 7)),
        {},
        "hand-over: a finishes the writes in flight",
    ),
    "seal on the way back": (
        moving(READ_NEW, giving_up="reversed"),
        everyone(owner=D),
        {},
        "hand-over: d finishes the writes in flight",
    ),
    "new owner not open": (
        moving(READ_NEW),
        everyone(),
        {},
        "d synchronizes the replicas before it serves",
    ),
    "held": (
        moving(READ_NEW, hold_seconds=60),
        everyone(owner=D),
        {"held_since": 90.0},
        "held for another 50 s; `complete` ends the hold, `reverse` reverts the move",
    ),
    "fall back: nobody heard of": (
        # A coordinator that has just taken office: it must not go on as if they were dead.
        moving(READ_NEW, giving_up="reversed by request"),
        [],
        {},
        "fall back: a has not reported its status",
    ),
    "drop: not applied": (
        moving(CLEANUP),
        everyone(owner=D, generation=49),
        {},
        "a has not applied generation 50",
    ),
    "drop: not heard of": (moving(CLEANUP), [], {}, "a has not applied generation 50"),
    "drop": (moving(CLEANUP), everyone(owner=D), {}, "a drops its replica"),
    "drop: still discarding": (
        moving(CLEANUP),
        everyone(owner=D, without=(A,), busy={P: 0}),
        {},
        "a drops its replica",
    ),
    "drop of the new side": (moving(CLEANUP_TARGET), everyone(), {}, "d drops its replica"),
}


@pytest.mark.parametrize("case", WAITS)
def test_every_wait_says_in_words_what_it_waits_for(case: str) -> None:
    record, statuses, more, words = WAITS[case]
    outcome, _ = advance(record, *statuses, **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Waiting)
    assert outcome.why == words


def test_a_hand_over_waits_for_a_live_replica_of_the_new_side() -> None:
    """Only reachable between the loss of the new side and its being taken out."""
    record = moving(STREAMING, targets=(D,))
    agreed = cluster(record, intends(targets=(D,)), ("a", "b", "c"))
    stage = routing.stage_of(record)
    assert stage is not None
    outcome = transitions.leave(seen(agreed, *everyone()), record, stage)
    why = "hand-over: no in-sync replica of the new side is alive"
    assert outcome == Waiting(why, work=Work.SEAL)


SHRINKING = moving(STREAMING, targets=(B, C), in_sync=(A,))
"""The owner is to go, and no replica that is to stay is in sync."""


def test_no_owner_is_sealed_before_a_replica_can_take_over() -> None:
    """S116: the seal waits for a replica that catches up."""
    outcome, _ = advance(SHRINKING, *everyone())
    assert outcome == Waiting("hand-over: no in-sync replica of the new side is alive", (), SEALING)


def test_a_hand_over_to_a_replica_that_is_not_heard_waits_without_a_seal() -> None:
    record = moving(STREAMING, targets=(B, C), in_sync=(A, B))
    outcome, _ = advance(record, *everyone()[:1])
    assert outcome == Waiting("hand-over: no in-sync replica of the new side is alive", (), SEALING)


def test_a_hand_over_waits_until_the_next_owner_can_open() -> None:
    """S114: while others are eligible, an owner that is alone commits nothing, and can't open."""
    record = replace(moving(STREAMING, in_sync=(A, D)), eligible=(B, C))
    statuses = everyone(copied=SESSION, digests=SAME)
    outcome, _ = advance(record, *statuses)
    words = "hand-over: too few replicas of the new side are in sync"
    assert outcome == Waiting(words, (), SEALING)
    enough = replace(moving(STREAMING, in_sync=(A, B, D)), eligible=(C,))
    outcome, _ = advance(enough, *statuses)
    assert isinstance(outcome, Waiting)
    assert outcome.why == "hand-over: a finishes the writes in flight"


def test_a_move_does_not_drop_a_replica_that_may_have_to_be_elected() -> None:
    """S114: it waits until enough of the replicas that stay are in sync."""
    shrinking = moving(STREAMING, targets=(A, B), in_sync=(A,))
    statuses = everyone(copied=SESSION, digests=SAME)
    outcome, _ = advance(replace(shrinking, eligible=(B, C)), *statuses)
    words = (
        "too few of the replicas that stay are in sync, and c, which would be dropped, may have to "
        "be elected"
    )
    assert outcome == Waiting(words, (), SEALING)
    for record in (replace(shrinking, eligible=(B,)), replace(shrinking, in_sync=(A, B))):
        assert stage_of(advance(record, *statuses)[0]) == READ_NEW


@pytest.mark.parametrize("case", ["down", "lost", "unreachable"])
def test_a_hand_over_to_nobody_is_given_up_without_a_seal(case: str) -> None:
    """S116: no replica that is to stay can catch up, so the transition rolls back."""
    statuses = everyone(without=(B, C) if case == "lost" else ())
    live = ("a", "d") if case == "down" else NODES
    if case == "unreachable":
        statuses[0] = says("a", of(A, open_epoch=3, unreachable=(B, C)))
    outcome, _ = advance(SHRINKING, *statuses, live=live)
    assert stage_of(outcome) == CLEANUP_TARGET


def test_every_wait_of_the_coordinator_carries_a_sentence() -> None:
    """Wherever a `Waiting` is built, its reason is not empty; `explain` relies on it."""
    built = 0
    for module in (brain, ownership, transitions, view):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            name = call.func.id if isinstance(call.func, ast.Name) else name
            if name == "Waiting":
                built += 1
                assert call.args
                reason = call.args[0]
                assert not isinstance(reason, ast.Constant) or reason.value
    assert built >= 14


@pytest.mark.parametrize(
    ("case", "effect"),
    [
        ("copy", StartCopy(P, SESSION, 3, A, (D,))),
        ("repair", StartCopy(P, SESSION, 3, A, (B, C))),
        ("verification", Send("a", Verify(P, SESSION))),
        ("seal", Send("a", Seal(P, RECORD_REVISION))),
        ("seal on the way back", Send("d", Seal(P, RECORD_REVISION))),
        ("drop", Send("a", DropReplica(P, "first", RECORD_REVISION))),
        ("drop of the new side", Send("d", DropReplica(P, "t9", RECORD_REVISION))),
    ],
)
def test_whoever_is_waited_for_is_asked(case: str, effect: Effect) -> None:
    record, statuses, more, _ = WAITS[case]
    outcome, _ = advance(record, *statuses, **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Waiting)
    assert outcome.effects == (effect,)


def test_a_replica_beside_a_good_one_is_linked_and_others_are_carried() -> None:
    """F107: a volume move copies inside its node, unless what is there is not good."""
    beside = Replica("b", "t9", "v2")
    record = moving(STREAMING, kind="volume_move", targets=(A, beside, C))
    outcome, _ = advance(record, *everyone())
    assert isinstance(outcome, Waiting)
    assert outcome.effects == (Send("b", Link(P, "t9", SESSION, 3, "first")),)
    carried = (StartCopy(P, SESSION, 3, A, (beside,)),)
    without = tuple(each for each in record.in_sync if each != B)
    outcome, _ = advance(replace(record, in_sync=without), *everyone())
    assert isinstance(outcome, Waiting)
    assert outcome.effects == carried
    rebuilt = moving(STREAMING, kind="rebuild", targets=(A, Replica("b", "t9"), C))
    outcome, _ = advance(rebuilt, *everyone())
    assert isinstance(outcome, Waiting)
    assert not [each for each in outcome.effects if isinstance(each, Send)], "from what is rebuilt"


@pytest.mark.parametrize("where", [A, D], ids=["owner", "target"])
def test_a_replica_that_can_not_read_its_rows_ends_the_move(where: Replica) -> None:
    """S45: verification neither waits for ever nor lets it pass."""
    told = [
        replace(
            status,
            replicas={
                name: tuple(
                    replace(each, trouble="unreadable" if each.replica == where else "")
                    for each in known
                )
                for name, known in status.replicas.items()
            },
        )
        for status in everyone(copied=SESSION)
    ]
    after, _ = advance(moving(STREAMING), *told)
    assert isinstance(after, Partition)
    assert after.transition is not None
    assert f"{where.node} can't read its rows" in after.transition.giving_up


# --- every edge


SEALED = everyone(copied=SESSION, digests=SAME, sealed=(RECORD_REVISION, 7))


@pytest.mark.parametrize(
    ("record", "statuses", "stage"),
    [
        (moving(ALLOW), everyone(), WRITE_BOTH),
        (moving(WRITE_BOTH), everyone(), STREAMING),
        (moving(WRITE_BOTH, kind="rebuild"), everyone(), REBUILD_REPAIR),
        (moving(REBUILD_REPAIR, kind="rebuild"), everyone(copied=SESSION), STREAMING),
        (moving(STREAMING), SEALED, READ_NEW),
        (moving(READ_NEW), everyone(owner=D), USE_NEW),
        (moving(READ_NEW, hold_seconds=9, released=True), everyone(owner=D), USE_NEW),
        (moving(USE_NEW), everyone(owner=D), CLEANUP),
        (moving(FALLBACK), everyone(), CLEANUP_TARGET),
    ],
)
def test_when_all_of_its_work_is_done_a_stage_is_left_by_its_edge(
    record: Partition, statuses: list[Status], stage: str
) -> None:
    """F98 F103: and not before."""
    kind = "move" if record.transition is None else record.transition.kind
    outcome, settled = advance(record, *statuses, intent=intends(kind))
    assert stage_of(outcome) == stage
    assert settled is None


@pytest.mark.parametrize("stage", [ALLOW, WRITE_BOTH, READ_NEW, USE_NEW, FALLBACK])
def test_a_barrier_raises_the_fence_to_the_generation_that_it_was_about(stage: str) -> None:
    """F103."""
    record = moving(stage)
    owner = A if record.owner is None else record.owner.replica
    outcome, _ = advance(record, *everyone(owner=owner))
    assert isinstance(outcome, Partition)
    assert outcome.fence == RECORD_REVISION


def test_the_new_owner_takes_over_at_the_next_epoch_and_its_session_is_closed() -> None:
    """F102."""
    outcome, _ = advance(moving(STREAMING), *SEALED)
    assert isinstance(outcome, Partition)
    assert (outcome.epoch, outcome.owner) == (4, Grant(D, LEASES["d"]))
    assert outcome.transition is not None
    assert outcome.transition.session is None


def test_an_owner_that_is_in_both_sets_stays() -> None:
    record = moving(STREAMING, owner=B)
    outcome, _ = advance(record, *everyone(owner=B, copied=SESSION, digests=SAME))
    assert stage_of(outcome) == READ_NEW
    assert isinstance(outcome, Partition)
    assert (outcome.epoch, outcome.owner) == (record.epoch, record.owner)


def test_a_hand_over_prefers_a_replica_that_was_made_for_it_and_takes_another_if_it_must() -> None:
    record = moving(STREAMING, in_sync=(A, B, C, D))
    stage = routing.stage_of(record)
    assert stage is not None
    agreed = cluster(record, intends(), ("a", "b", "c"))
    outcome = transitions.leave(seen(agreed, *everyone()), record, stage)
    assert isinstance(outcome, Commit)
    (after,) = put(outcome.changes, Partition)
    assert isinstance(after, Partition)
    assert after.owner == Grant(B, LEASES["b"])


def test_the_end_makes_the_targets_the_replicas_and_settles_the_intent_at_once() -> None:
    """F166."""
    plan = Assignment("move", placed(*OLD), trigger=12)
    outcome, settled = advance(
        moving(CLEANUP), *everyone(owner=D, without=(A,)), intent=intends(planned=plan)
    )
    assert outcome == stable(NEW, owner=D, in_sync=NEW)
    assert settled == Intent(P, placed(*NEW), plan, change=9)


def test_the_end_waits_for_older_work_only() -> None:
    statuses = everyone(owner=D, without=(A,), busy={P: RECORD_REVISION})
    outcome, _ = advance(moving(CLEANUP), *statuses)
    assert isinstance(outcome, Partition)
    assert outcome.transition is None


def test_a_hold_ends_when_another_change_is_planned() -> None:
    plan = intends(planned=Assignment("move", placed(*OLD), trigger=12))
    outcome, _ = advance(moving(READ_NEW, hold_seconds=60), *everyone(owner=D), intent=plan)
    assert stage_of(outcome) == USE_NEW


def test_the_end_does_not_wait_for_the_dead_to_drop() -> None:
    outcome, _ = advance(moving(CLEANUP), *everyone(owner=D), live=("b", "c", "d"))
    assert isinstance(outcome, Partition)
    assert outcome.transition is None


def test_a_revert_leaves_everything_as_it_was_and_takes_the_intent_back() -> None:
    record = moving(CLEANUP_TARGET, giving_up="cancelled")
    outcome, settled = advance(record, *everyone(without=(D,)), intent=intends(cancel=9))
    assert outcome == stable(fence=RECORD_REVISION)
    assert settled == Intent(P, placed(*OLD), change=9)


def test_a_repair_ends_with_the_replicas_it_had() -> None:
    record = moving(REPAIR, kind="repair", targets=OLD)
    outcome, settled = advance(
        record, *everyone(copied=SESSION), intent=intends("repair", targets=())
    )
    assert outcome == stable()
    assert settled == Intent(P, placed(*OLD), change=9)


@pytest.mark.parametrize("stage", [ALLOW, WRITE_BOTH, STREAMING])
def test_a_cancel_takes_the_edge_back_before_the_switch(stage: str) -> None:
    """F104."""
    outcome, _ = advance(moving(stage), *everyone(), intent=intends(cancel=9))
    assert stage_of(outcome) == CLEANUP_TARGET
    assert isinstance(outcome, Partition)
    assert set(outcome.in_sync) == set(OLD)


def test_a_cancelled_repair_just_ends() -> None:
    record = moving(REPAIR, kind="repair", targets=OLD)
    intent = intends("repair", targets=(), cancel=9)
    outcome, settled = advance(record, *everyone(), intent=intent)
    assert outcome == stable()
    assert settled == Intent(P, placed(*OLD), change=9)


@pytest.mark.parametrize("stage", [READ_NEW, USE_NEW, CLEANUP])
def test_a_cancel_that_slipped_in_late_is_not_heeded_after_the_switch(stage: str) -> None:
    outcome, _ = advance(moving(stage), *everyone(owner=D, without=(A,)), intent=intends(cancel=9))
    assert isinstance(outcome, Partition)
    assert outcome.transition is None or outcome.transition.stage in (USE_NEW, CLEANUP)


def test_a_target_that_dies_before_it_is_prepared_gives_the_move_up() -> None:
    outcome, _ = advance(moving(ALLOW), *everyone(), live=("a", "b", "c"))
    assert stage_of(outcome) == CLEANUP_TARGET


def test_a_copy_that_differs_from_its_source_is_never_read() -> None:
    """F102: that it will be given up is agreed at once, so that nobody can think better of it."""
    statuses = everyone(copied=SESSION, digests={**SAME, "d": 4321})
    outcome, _ = advance(moving(STREAMING), *statuses)
    why = "verification: d differs from the owner"
    assert outcome == moving(STREAMING, giving_up=why, by="verification")


@pytest.mark.parametrize(
    "digest", [("t9@2", 7, 1234), (SESSION, 8, 1234), None], ids=["session", "position", "none"]
)
def test_digests_of_another_session_or_position_are_not_compared(
    digest: tuple[str, int, int] | None,
) -> None:
    statuses = everyone(copied=SESSION, digests=SAME)
    statuses[3] = says("d", of(D, copied=SESSION, digest=digest))
    outcome, _ = advance(moving(STREAMING), *statuses)
    assert isinstance(outcome, Waiting)
    assert outcome.why.startswith("verification")


# --- falling back


def test_a_reversed_move_falls_back_to_an_old_owner_at_a_new_epoch() -> None:
    """F104."""
    record = moving(READ_NEW, giving_up="reversed")
    statuses = everyone(owner=D, sealed=(RECORD_REVISION, 7))
    outcome, _ = advance(record, *statuses)
    assert stage_of(outcome) == FALLBACK
    assert isinstance(outcome, Partition)
    assert (outcome.epoch, outcome.owner) == (4, Grant(A, LEASES["a"]))


def test_an_owner_that_is_in_both_sets_stays_on_the_way_back() -> None:
    record = moving(READ_NEW, owner=B, giving_up="reversed")
    outcome, _ = advance(record, *everyone(owner=B))
    assert stage_of(outcome) == FALLBACK
    assert isinstance(outcome, Partition)
    assert outcome.epoch == record.epoch


@pytest.mark.parametrize(
    ("in_sync", "live"),
    [((A, D), ("b", "c", "d")), ((D,), NODES)],
    ids=["the old one is dead", "the old ones are out of sync"],
)
def test_without_an_in_sync_old_replica_it_goes_on_instead(
    in_sync: tuple[Replica, ...], live: tuple[str, ...]
) -> None:
    """F104: alive is not enough; one that was taken out lacks what was acknowledged without it."""
    record = moving(READ_NEW, in_sync=in_sync, giving_up="reversed")
    outcome, _ = advance(record, *everyone(owner=D), live=live)
    assert stage_of(outcome) == USE_NEW
    assert isinstance(outcome, Partition)
    assert outcome.transition is not None
    assert outcome.transition.giving_up == ""


# --- the beginning


def begun(
    intent: Intent, live: tuple[str, ...] = NODES, nodes: tuple[Node, ...] = MEMBERS
) -> tuple[Partition, Commit]:
    record = stable()
    agreed = cluster(record, intent, live, nodes)
    outcome = transitions.start(seen(agreed), record, intent)
    assert isinstance(outcome, Commit)
    assert broken(agreed, apply(agreed, outcome.changes, 70)) == []
    (after,) = put(outcome.changes, Partition)
    assert isinstance(after, Partition)
    return after, outcome


def test_a_transition_begins_from_intent_with_new_incarnations_only_where_needed() -> None:
    after, _ = begun(intends())
    assert after == moving(ALLOW)
    assert after.transition is not None
    assert after.transition.targets == NEW


def test_a_renewed_replica_gets_an_incarnation_of_its_own() -> None:
    after, _ = begun(intends("rebuild", targets=(), renewed=("c",)))
    assert after.transition is not None
    assert after.transition.targets == (A, B, Replica("c", "t9"))


def test_another_volume_is_another_replica() -> None:
    places = (Placement("a", "v2"), *placed(B, C))
    pending = Assignment("volume_move", places, trigger=9)
    nodes = (Node("a", volumes=("", "v2")), *MEMBERS[1:])
    after, _ = begun(Intent(P, placed(*OLD), pending, change=9), nodes=nodes)
    assert after.transition is not None
    assert after.transition.targets == (Replica("a", "t9", "v2"), B, C)


@pytest.mark.parametrize(
    ("live", "nodes", "why"),
    [
        (("a", "b", "c"), MEMBERS, "the target d is down"),
        (NODES, (*MEMBERS[:3], Node("d", state="left")), "d is not a member"),
    ],
    ids=["its new node is dead", "it would be refused by now"],
)
def test_what_can_not_begin_any_more_is_given_up_and_the_plan_comes_next(
    live: tuple[str, ...], nodes: tuple[Node, ...], why: str
) -> None:
    plan = Assignment("repair", (), trigger=12)
    after, commit = begun(intends(planned=plan), live, nodes)
    assert after == stable()
    assert put(commit.changes, Intent) == [Intent(P, placed(*OLD), plan, change=9)]
    assert commit.why.startswith(f"p: given up: {why}")


def test_a_repair_begins_although_no_place_changes() -> None:
    after, _ = begun(intends("repair", targets=()))
    assert after == moving(REPAIR, kind="repair", targets=OLD)


def test_what_is_so_already_only_settles_the_intent() -> None:
    after, commit = begun(intends(targets=(C, B, A)))
    assert after == stable()
    (settled,) = put(commit.changes, Intent)
    assert settled == Intent(P, placed(C, B, A), change=9)


def test_a_partition_without_intent_has_nothing_to_settle() -> None:
    agreed = apply(cluster(stable()), (), 60)
    view_ = seen(replace(agreed, intents={}))
    assert transitions.settle(view_, stable(), True) == ()
    assert transitions.settle(seen(agreed), stable(), True) == ()


# --- guards


@pytest.mark.parametrize(
    "record", [stable(), moving(ALLOW), moving(STREAMING), moving(READ_NEW), moving(CLEANUP)]
)
def test_a_commit_is_guarded_by_all_that_it_was_computed_from(record: Partition) -> None:
    """F158: the office, the record, the intent, and the lease of every node named there."""
    agreed = cluster(record, intends(), ("b", "c", "d"))
    guards = seen(agreed).commit(record, record, "because").guards
    nodes = {replica.node for replica in routing.everywhere(record)}
    assert guards == {
        COORDINATOR_KEY: OFFICE,
        partition_key(P): RECORD_REVISION,
        intent_key(P): 45,
        **{lease_key(node): 0 if node == "a" else LEASES[node] for node in nodes},
    }


def test_the_beginning_is_guarded_by_the_lease_of_the_node_that_is_to_hold_it() -> None:
    _, commit = begun(intends())
    assert commit.guards[lease_key("d")] == LEASES["d"]
