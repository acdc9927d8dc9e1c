"""What does a failed volume cost? Its own replicas: they are rebuilt where there is a volume."""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import lost_owners, ownership, rebuilds, requests, transitions
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import AbandonVolume, CreateReplica, DiscardReplica, Effect, EndRun
from limosa.core.events import (
    AgreedRead,
    Elected,
    Measured,
    Received,
    Started,
    Stored,
    Ticked,
    VolumeLost,
)
from limosa.core.machines.catalogue import ALLOW, FALLBACK, READ_NEW
from limosa.core.messages import Acked, Redirect, Status, Unheld
from limosa.core.model.changes import Commit
from limosa.core.model.intent import Intent, Placement
from limosa.core.model.requests import CreateTable, RebuildReplicas, Request, SetReplicas
from limosa.core.model.topology import Grant, NamedTable, Node, Partition
from limosa.core.participant.overdue import SyncWatch
from limosa.core.participant.tickets import Tickets
from tests.core.samples import (
    LEASES,
    NODES,
    OFFICE,
    OLD,
    ZONE,
    A,
    B,
    C,
    D,
    P,
    cluster,
    intends,
    moving,
    of,
    put,
    says,
    seen,
    stable,
)
from tests.core.stage import (
    Stage,
    done,
    entry,
    follower_on_stage,
    owner_on_stage,
    probe,
    replicate,
    sent,
    stored,
    write,
)

ROOMY = {"": 1 << 40, "v2": 1 << 40}
FULL = {"": 1 << 20, "v2": 1 << 20}
TWO = tuple(Node(name, volumes=("", "v2")) for name in NODES)
STABLE = Intent(P, tuple(Placement(each.node, each.volume) for each in OLD), change=9)
MISSING = stable(in_sync=(A, B))
OWNER = says("a", of(A, open_epoch=3, bytes=1 << 30))


# --- the node


def test_a_lost_volume_takes_its_replicas_out_of_office_and_leaves_the_others() -> None:
    """S118: callers that wait are told, and the coordinator hears which volume is lost."""
    stage = owner_on_stage()
    stage.say(write(), "client")
    (answer,) = sent(stage.tell(VolumeLost("", "no such device")), Redirect)
    assert (answer.id, answer.definite) == ("w.1", False)
    assert (stage.brain.owners, stage.brain.held) == ({}, {})
    status = stage.status()
    assert (status.replicas, status.failed_volumes) == ({}, ("",))
    assert stage.store() == [], "nothing there becomes durable any more"


def test_the_loss_of_another_volume_changes_nothing() -> None:
    stage = owner_on_stage()
    assert stage.tell(VolumeLost("v2", "no such device")) == []
    assert stage.is_open()
    assert stage.status().failed_volumes == ("v2",)
    stage.say(write(), "client")
    stage.acknowledge(B, C)
    assert stage.store()


def test_a_volume_that_syncs_does_not_wait_for_another_one() -> None:
    """S118: durable on one volume is enough for its replicas."""
    stage = follower_on_stage(stable(), B)
    stage.store()
    stage.say(replicate(B, 0, how="match", probed=LEASES["b"]), "a")
    stage.say(replicate(B, 0, (entry(5, 0),)), "a")
    assert sent(stage.tell(Stored(10**9, "v2")), Acked) == []
    assert len(sent(stage.tell(Stored(10**9, "")), Acked)) == 1


def test_a_lost_replica_says_so_to_its_owner() -> None:
    stage = follower_on_stage(stable(), B)
    stage.tell(VolumeLost("", "no such device"))
    (refusal,) = sent(stage.say(probe(B), "a"), Unheld)
    assert (refusal.replica, refusal.why) == (B, "lost")


@pytest.mark.parametrize(
    ("started", "lost", "made"),
    [
        (Started(), (), True),
        (Started(volumes=("", "v2")), (), True),
        (Started(volumes=("v2",)), (), False),
        (Started(volumes=("", "v2")), ("",), False),
    ],
    ids=["any", "there", "refused at the start", "lost since"],
)
def test_no_replica_is_made_on_a_volume_that_can_not_be_used(
    started: Started, lost: tuple[str, ...], made: bool
) -> None:
    """S118: making it would raise an error, and end the node again and again."""
    stage = Stage("d")
    stage.tell(started)
    for volume in lost:
        stage.tell(VolumeLost(volume, "no such device"))
    effects = stage.register(moving(ALLOW), started)
    assert bool(done(effects, CreateReplica)) == made
    stage.store()
    assert (P in stage.status().replicas) == made


def test_a_replica_that_was_being_discarded_on_a_lost_volume_holds_nothing_up() -> None:
    """Its node discards it again after a restart, if it is still there."""
    stage = follower_on_stage(stable(), B)
    stage.store()
    without = stable(replicas=(A, C))
    assert done(stage.agree(without), DiscardReplica)
    assert stage.status().busy == {P: 0}
    stage.tell(VolumeLost("v2", "no such device"))
    assert stage.status().busy == {P: 0}
    stage.tell(VolumeLost("", "no such device"))
    assert stage.status().busy == {}


def test_stored_replicas_are_still_there_after_a_restart() -> None:
    stage = Stage("b")
    stage.register(stable(), replace(stored(B), volumes=("",)))
    assert P in stage.status().replicas


# --- a sync that hangs


def ticks(stage: Stage, seconds: float, step: float = 0.5) -> list[Effect]:
    effects: list[Effect] = []
    for _ in range(int(seconds / step)):
        stage.now += step
        effects += stage.tell(Ticked())
    return effects


def hanging(volumes: tuple[str, ...]) -> Stage:
    """An owner with a write that does not become durable."""
    stage = Stage("a")
    stage.register(stable(), replace(stored(A), volumes=volumes))
    stage.acknowledge(B, C)
    stage.store()
    stage.say(write(), "client")
    stage.tell(Ticked())
    return stage


@pytest.mark.parametrize("volumes", [(), ("",)])
def test_a_node_whose_only_volume_hangs_ends_its_run(volumes: tuple[str, ...]) -> None:
    """S119: it could promise and acknowledge nothing, and would keep its partitions for ever."""
    stage = hanging(volumes)
    assert not done(ticks(stage, 9.5), EndRun)
    assert EndRun("a sync has not ended for 10 s") in ticks(stage, 1.0)


def test_a_node_with_another_volume_gives_up_the_one_that_hangs() -> None:
    """S118, S119: its other replicas stay, and the run goes on."""
    stage = hanging(("", "v2"))
    effects = ticks(stage, 11.0)
    assert done(effects, AbandonVolume) == [AbandonVolume("", "a sync has not ended for 10 s")]
    assert not done(effects, EndRun)
    assert sent(effects, Redirect)
    assert stage.status().failed_volumes == ("",)
    assert not done(ticks(stage, 30.0), AbandonVolume)


def test_the_last_volume_that_works_is_not_given_up_alone() -> None:
    stage = hanging(("", "v2"))
    stage.tell(VolumeLost("v2", "no such device"))
    assert done(ticks(stage, 11.0), EndRun)


def test_a_volume_that_syncs_slowly_does_not_hang() -> None:
    """Each sync takes nine seconds, and something always waits for one."""
    tickets = Tickets()
    watch = SyncWatch(tickets)
    now = 0.0
    tickets.when_stored(next(tickets), "", lambda now: None)
    for ticket in range(1, 40):
        for _ in range(9):
            now += 1.0
            assert watch.tick(now, 10.0) == []
        tickets.when_stored(next(tickets), "", lambda now: None)
        tickets.follow_up(now, ticket, "")
    found = [watch.tick(now + later, 10.0) for later in range(1, 13)]
    assert found == [[]] * 11 + [[""]]
    tickets.forget("")
    assert watch.tick(now + 13.0, 10.0) == []


def test_a_pause_of_the_process_is_no_hanging_sync() -> None:
    """The sync ended meanwhile; a tick may come before the news of it."""
    stage = hanging(("",))
    stage.now += 3600.0
    assert not done(stage.tell(Ticked()), EndRun)
    stage.store()
    assert not done(ticks(stage, 30.0), EndRun)


def test_a_full_volume_does_not_hang() -> None:
    """Its changes wait for space; only after that is a sync too slow."""
    stage = hanging(("",))
    stage.tell(Measured({"": 0}, {}, full=("",)))
    assert not done(ticks(stage, 60.0), EndRun)
    stage.tell(Measured({"": 1 << 30}, {}))
    assert not done(ticks(stage, 9.0), EndRun)
    assert done(ticks(stage, 2.0), EndRun)


# --- the coordinator


def coordinator_says(agreed_record: Partition, *statuses: Status) -> list[Commit]:
    coordinator = Coordinator("one", CoordinatorSettings())
    agreed = cluster(agreed_record, STABLE, nodes=TWO)
    coordinator.handle(100.0, AgreedRead(agreed))
    effects = coordinator.handle(100.0, Elected(OFFICE))
    for status in statuses:
        effects += coordinator.handle(100.0, Received(status.node, status))
    return [each.commit for each in effects if hasattr(each, "commit")]


def test_an_owner_that_lost_its_replica_is_replaced_although_its_node_lives() -> None:
    """S118: the lease of its node holds, and it will never answer; the replica in sync whose log
    reaches furthest takes over."""
    statuses = [says("b", of(B, last=5)), says("c", of(C, last=7))]
    (commit,) = coordinator_says(stable(), *statuses, says("a", failed=("",)))
    assert commit.why == "p: c takes over: a has lost its replica"
    (record,) = put(commit.changes, Partition)
    assert isinstance(record, Partition)
    assert (record.epoch, record.owner) == (4, Grant(C, LEASES["c"]))
    assert record.in_sync == (B, C)


def test_a_damaged_replica_takes_over_only_if_there_is_no_sound_one() -> None:
    damaged = replace(of(C, last=7), damaged="a block")
    lost = says("a", failed=("",))
    for statuses, taker in (
        ([says("b", of(B, last=5)), says("c", damaged)], "b"),
        ([says("c", damaged)], "c"),
    ):
        view = seen(cluster(stable()), lost, *statuses)
        commit = lost_owners.hand_over(view, stable())
        assert isinstance(commit, Commit)
        assert commit.why == f"p: {taker} takes over: a has lost its replica"


def test_an_eligible_replica_takes_over_and_is_in_sync() -> None:
    """It left when too few stayed in sync, and nothing was committed since then."""
    record = replace(stable(in_sync=(A,)), eligible=(B,))
    view = seen(cluster(record), says("a", failed=("",)), says("b", of(B)), says("c", of(C)))
    commit = lost_owners.hand_over(view, record)
    assert isinstance(commit, Commit)
    (after,) = put(commit.changes, Partition)
    assert isinstance(after, Partition)
    assert (after.owner, after.in_sync) == (Grant(B, LEASES["b"]), (B,))


def test_who_takes_over_while_others_are_eligible_is_in_sync_alone() -> None:
    """S114: a dead replica does not count, so the next death leaves one that can be elected."""
    record = replace(stable((A, B, C, D), in_sync=(A, B)), eligible=(C, D))
    statuses = (says("a", failed=("",)), says("c", of(C)), says("d", of(D)))
    view = seen(cluster(record, live=("a", "c", "d"), replica_count=4), *statuses)
    commit = lost_owners.hand_over(view, record)
    assert isinstance(commit, Commit)
    (after,) = put(commit.changes, Partition)
    assert isinstance(after, Partition)
    assert (after.in_sync, after.eligible) == ((C,), (D, B))


def test_an_owner_that_lost_the_only_replica_in_sync_is_waited_for() -> None:
    """Its node may get the volume back; nobody else has every row."""
    record = stable(in_sync=(A,))
    view = seen(cluster(record), says("a", failed=("",)), says("b", of(B)))
    found = lost_owners.hand_over(view, record)
    assert isinstance(found, transitions.Waiting)
    assert found.why.startswith("a has lost its replica, and no other replica in sync is alive")


def test_after_the_switch_the_old_side_takes_over_if_nobody_else_can() -> None:
    record = moving(READ_NEW, targets=(D,), owner=D)
    lost = says("d", failed=("",))
    view = seen(cluster(record, intends()), lost, says("b", of(B)))
    commit = lost_owners.hand_over(view, record)
    assert isinstance(commit, Commit)
    assert commit.why == "p: fall back to b: d has lost its replica"
    (after,) = put(commit.changes, Partition)
    assert isinstance(after, Partition)
    assert after.transition is not None
    assert (after.transition.stage, after.owner) == (FALLBACK, Grant(B, LEASES["b"]))
    view = seen(cluster(record, intends()), lost)
    assert isinstance(lost_owners.hand_over(view, record), transitions.Waiting)


def test_an_owner_that_has_its_replica_is_left_alone() -> None:
    view = seen(cluster(stable()), says("a", of(A)))
    assert lost_owners.hand_over(view, stable()) is None
    assert lost_owners.hand_over(seen(cluster(stable())), stable()) is None, "nothing is known"


@pytest.mark.parametrize(
    ("node", "wish"),
    [
        (says("c", free_bytes=ROOMY), RebuildReplicas(P, ("c",))),
        (
            says("c", free_bytes={"": 1 << 20, "v2": 1 << 40}),
            RebuildReplicas(
                P, ("c",), placements=(Placement("a"), Placement("b"), Placement("c", "v2"))
            ),
        ),
        (
            says("c", free_bytes={"v2": 1 << 40}, failed=("",)),
            RebuildReplicas(
                P, ("c",), placements=(Placement("a"), Placement("b"), Placement("c", "v2"))
            ),
        ),
        (
            says("c", free_bytes=FULL),
            RebuildReplicas(
                P, (), placements=(Placement("a"), Placement("b"), Placement("d", "v2"))
            ),
        ),
        (
            says("c", failed=("", "v2")),
            RebuildReplicas(
                P, (), placements=(Placement("a"), Placement("b"), Placement("d", "v2"))
            ),
        ),
    ],
    ids=["in its place", "no room there", "volume lost", "node full", "all volumes lost"],
)
def test_a_rebuild_goes_to_a_volume_that_works_and_has_room(
    node: Status, wish: RebuildReplicas
) -> None:
    """S118: in its place, then on another volume of its node, then on another node."""
    other = says("d", free_bytes={"": 1 << 35, "v2": 1 << 40})
    view = seen(cluster(MISSING, STABLE, nodes=TWO), OWNER, says("b", of(B)), node, other)
    assert rebuilds.rebuild(view, MISSING, C) == wish
    request = Request("r", wish)
    agreed = cluster(MISSING, STABLE, nodes=TWO, more=(request,))
    answered = requests.answer(seen(agreed, OWNER, says("b", of(B)), node, other), request)
    (intent,) = put(answered.changes, Intent)
    assert isinstance(intent, Intent)
    assert intent.pending is not None
    assert (intent.pending.kind, intent.pending.placements) == ("rebuild", wish.placements)
    view = seen(cluster(MISSING, intent, nodes=TWO), OWNER, says("b", of(B)), node, other)
    begun = transitions.start(view, MISSING, intent)
    assert isinstance(begun, Commit)
    (record,) = put(begun.changes, Partition)
    assert isinstance(record, Partition)
    assert record.transition is not None
    (made,) = set(record.transition.targets) - {A, B}
    (expected,) = set(wish.placements or STABLE.stable) - {Placement("a"), Placement("b")}
    assert (made.node, made.volume) == (expected.node, expected.volume)
    assert made.incarnation != C.incarnation


def test_a_rebuild_waits_if_there_is_no_volume_for_it() -> None:
    for others in ([], [says("d", free_bytes=FULL)]):
        view = seen(
            cluster(MISSING, STABLE, nodes=TWO), OWNER, says("c", failed=("", "v2")), *others
        )
        assert rebuilds.rebuild(view, MISSING, C) == "c has no volume that works"


def test_a_rebuild_elsewhere_does_not_depend_on_the_replicas_that_stay() -> None:
    """The node of another replica is down; it is no part of the rebuild."""
    view = seen(
        cluster(MISSING, STABLE, live=("a", "c", "d"), nodes=TWO), OWNER, says("c", failed=("",))
    )
    wish = rebuilds.rebuild(view, MISSING, C)
    assert isinstance(wish, RebuildReplicas)
    agreed = cluster(
        MISSING, STABLE, live=("a", "c", "d"), nodes=TWO, more=(request := Request("r", wish),)
    )
    answered = requests.answer(seen(agreed, OWNER, says("c", failed=("",))), request)
    (row,) = put(answered.changes, Request)
    assert isinstance(row, Request)
    assert (row.state, row.answer) == ("done", "accepted")


@pytest.mark.parametrize("failed", [("",), ("", "v2")])
def test_a_replica_is_not_placed_on_a_volume_that_its_node_lost(failed: tuple[str, ...]) -> None:
    request = Request("r", RebuildReplicas(P, ("c",)))
    agreed = cluster(MISSING, STABLE, nodes=TWO, more=(request,))
    answered = requests.answer(seen(agreed, OWNER, says("c", failed=failed)), request)
    (row,) = put(answered.changes, Request)
    assert isinstance(row, Request)
    assert row.state == "refused"
    assert "c can't use its volume ''" in row.answer


def test_a_move_to_a_volume_that_fails_before_the_replica_is_there_is_given_up() -> None:
    record = moving(ALLOW)
    for failed, expected in (((), transitions.Waiting), (("",), transitions.GivenUp)):
        view = seen(cluster(record, intends()), says("d", failed=failed))
        assert isinstance(transitions.prepare(view, record, 0.0), expected)


def test_a_first_election_does_not_wait_for_a_replica_that_can_not_be_made() -> None:
    record = stable(owner=None, epoch=0)
    for failed, why in (((), "c has not created its replica yet"), (("",), None)):
        view = seen(cluster(record), says("a", of(A)), says("b", of(B)), says("c", failed=failed))
        found = ownership.first_election(view, record)
        assert found == why if why else isinstance(found, Commit)


def test_a_new_table_uses_volumes_that_work() -> None:
    request = Request("r", CreateTable(NamedTable("t", "t", "t1", b""), 4, 3))
    agreed = cluster(stable(), nodes=TWO, more=(request,))
    view = seen(agreed, says("a", failed=("",)), says("b", failed=("", "v2")))
    answered = requests.answer(view, request)
    made = [each for each in put(answered.changes, Partition) if isinstance(each, Partition)]
    places = {(each.node, each.volume) for record in made for each in record.replicas}
    assert ("a", "") not in places
    assert ("a", "v2") in places
    assert "b" not in {node for node, _ in places}


def test_more_replicas_go_to_volumes_that_work() -> None:
    request = Request("r", SetReplicas(ZONE, 4))
    for failed, expected in ((("",), "v2"), (("v2",), ""), (("", "v2"), "")):
        agreed = cluster(stable(), STABLE, nodes=TWO, more=(request,))
        answered = requests.answer(seen(agreed, says("d", failed=failed)), request)
        (intent,) = put(answered.changes, Intent)
        assert isinstance(intent, Intent)
        assert intent.pending is not None
        assert Placement("d", expected) in intent.pending.placements


def test_a_member_that_is_not_known_has_no_volumes() -> None:
    assert seen(cluster(stable())).working_volumes("nobody") == ()
