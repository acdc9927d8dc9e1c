"""Does the coordinator act in office only, once for each state, and on nothing but what it sees?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import Effect, Explain, MakeCommit, Send
from limosa.core.events import (
    AgreedRead,
    Deposed,
    Elected,
    Received,
    Ticked,
)
from limosa.core.machines.catalogue import ALLOW, READ_NEW, STREAMING
from limosa.core.machines.machine import Work
from limosa.core.messages import Look, Seal, Status
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Agreed,
    Commit,
    Put,
    apply,
    change_key,
    request_key,
)
from limosa.core.model.requests import (
    LedToTransition,
    MovePartition,
    RebuildReplicas,
    RepairPartition,
    Request,
)
from limosa.core.model.topology import CoordinatorLease, Partition, Replica
from tests.core.samples import (
    LEASES,
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
    put,
    says,
    stable,
)

ORDINARY = CoordinatorSettings()


def commits(effects: list[Effect]) -> list[Commit]:
    return [effect.commit for effect in effects if isinstance(effect, MakeCommit)]


def in_office(
    agreed: Agreed, *statuses: Status, settings: CoordinatorSettings = ORDINARY
) -> tuple[Coordinator, list[Effect]]:
    coordinator = Coordinator("one", settings)
    coordinator.handle(100.0, AgreedRead(agreed))
    effects = coordinator.handle(100.0, Elected(OFFICE))
    for status in statuses:
        effects += coordinator.handle(100.0, Received(status.node, status))
    return coordinator, effects


def well(record: Partition, **more: object) -> list[Status]:
    return [
        says(
            replica.node,
            of(replica, open_epoch=3 if replica == A else 0, **(more if replica == A else {})),  # type: ignore[arg-type]
        )
        for replica in (*OLD, D)
    ]


BROKEN = cluster(stable(), live=("b", "c", "d"))
"""The owner's lease has ended: there is something to do."""


def test_a_coordinator_out_of_office_does_nothing() -> None:
    coordinator = Coordinator("one", CoordinatorSettings())
    assert coordinator.handle(100.0, AgreedRead(BROKEN)) == []
    assert coordinator.handle(100.0, Ticked()) == []
    assert coordinator.handle(100.0, Received("b", says("b", of(B)))) == []


@pytest.mark.parametrize("taken", [True, False], ids=["by another", "by nobody"])
def test_a_coordinator_whose_office_was_taken_does_nothing(taken: bool) -> None:
    coordinator, effects = in_office(BROKEN)
    assert commits(effects)
    other = apply(BROKEN, (Put(CoordinatorLease("two", 21)),) if taken else (), 90)
    if not taken:
        other = replace(other, coordinator=None, revisions={})
    assert coordinator.handle(200.0, AgreedRead(other)) == []
    assert coordinator.handle(300.0, Ticked()) == []


def test_a_deposed_coordinator_does_nothing_more() -> None:
    coordinator, _ = in_office(BROKEN)
    assert coordinator.handle(200.0, Deposed()) == []
    assert coordinator.handle(300.0, Ticked()) == []


def test_a_coordinator_whose_office_it_has_not_read_yet_waits_for_it() -> None:
    coordinator = Coordinator("one", CoordinatorSettings())
    assert coordinator.handle(100.0, Elected(OFFICE)) == []
    assert commits(coordinator.handle(100.0, AgreedRead(BROKEN)))


def test_an_older_state_than_the_known_one_is_ignored() -> None:
    """What was read late does not undo what is known."""
    coordinator, _ = in_office(cluster(stable()))
    newer = coordinator.agreed
    older = replace(BROKEN, revision=1)
    assert coordinator.handle(200.0, AgreedRead(older)) == []
    assert coordinator.agreed is newer


def test_nodes_are_asked_to_look_now_and_then() -> None:
    coordinator, effects = in_office(
        cluster(stable()), settings=CoordinatorSettings(look_seconds=1.0)
    )
    asked = [Send(node, Look(50)) for node in NODES]
    assert [effect for effect in effects if isinstance(effect, Send)] == asked
    assert coordinator.handle(100.5, Ticked()) == []
    assert coordinator.handle(101.0, Ticked()) == asked


def test_a_new_office_forgets_what_nodes_said_and_asks_again() -> None:
    coordinator, _ = in_office(cluster(stable()), *well(stable()))
    assert coordinator.statuses
    effects = coordinator.handle(100.1, Elected(OFFICE))
    assert coordinator.statuses == {}
    assert len(effects) == len(NODES)


def test_a_change_is_enough_of_a_node_that_was_known_in_an_earlier_office() -> None:
    """A node of an earlier version reports only what changed, whatever it is asked for. A change of
    its last report is exact; before it, nothing that the node said counts."""
    coordinator, _ = in_office(cluster(stable()), *well(stable()))
    again = apply(coordinator.agreed, (Put(CoordinatorLease("one", 21)),), 70)
    coordinator.handle(100.1, Deposed())
    coordinator.handle(100.2, AgreedRead(again))
    effects = coordinator.handle(100.2, Elected(70))
    assert Send("b", Look(50, whole=True)) in effects
    missed = replace(says("b", sequence=4), after=3)
    coordinator.handle(100.3, Received("b", missed))
    assert coordinator.statuses == {}, "it may have said more in between"
    change = replace(says("b", sequence=2, generation=60), after=1)
    coordinator.handle(100.4, Received("b", change))
    assert coordinator.statuses == {"b": says("b", of(B), sequence=2, generation=60)}
    late = says("c", sequence=1)
    coordinator.handle(100.5, Received("c", late))
    assert "c" not in coordinator.statuses, "the node said this in the office before"
    coordinator.handle(100.6, Elected(70))
    coordinator.handle(100.7, Received("b", replace(change, sequence=3, after=2, gone=(P,))))
    assert coordinator.statuses == {"b": says("b", sequence=3, generation=60)}


def test_words_of_a_node_count_in_the_order_in_which_it_said_them() -> None:
    coordinator, _ = in_office(cluster(stable()))
    later, earlier = says("b", sequence=5), says("b", of(B), sequence=4)
    next_run = says("b", sequence=1, lease=13)
    for status, known in (
        (later, later),
        (earlier, later),
        (next_run, next_run),
        (later, next_run),
    ):
        coordinator.handle(100.0, Received("b", status))
        assert coordinator.statuses["b"] == known


def test_another_message_only_makes_it_think_again() -> None:
    coordinator, _ = in_office(cluster(stable()))
    assert coordinator.handle(100.0, Received("b", Look(3))) == []


def test_a_commit_is_proposed_once_for_each_state_and_again_after_a_while() -> None:
    coordinator, effects = in_office(BROKEN, settings=CoordinatorSettings(ask_again_seconds=0.4))
    assert len(commits(effects)) == 1
    assert commits(coordinator.handle(100.3, Ticked())) == []
    assert len(commits(coordinator.handle(100.4, Ticked()))) == 1
    newer = apply(BROKEN, (Put(stable(in_sync=(A, B))),), 60)
    assert len(commits(coordinator.handle(100.5, AgreedRead(newer)))) == 1


def test_every_commit_is_guarded_by_the_office() -> None:
    request = Request("r", MovePartition(P, placed(B, C, D)))
    for agreed in (BROKEN, cluster(stable(), more=(request,)), cluster(stable(), intends())):
        for commit in commits(in_office(agreed, *well(stable()))[1]):
            assert commit.guards[COORDINATOR_KEY] == OFFICE


def test_a_request_is_answered_before_its_partition_goes_on() -> None:
    """One at a time, in the order of their revisions."""
    first = Request("r1", MovePartition(P, placed(B, C, D)))
    second = Request("r2", RepairPartition(P))
    done = Request("r0", RepairPartition(P), state="done")
    agreed = cluster(stable(), more=(done, first, second))
    (commit,) = commits(in_office(agreed)[1])
    trigger = agreed.revision_of(request_key("r1"))
    answered = replace(
        first,
        state="done",
        answer="accepted",
        led_to=LedToTransition(P, f"t{trigger}"),
        trigger=trigger,
    )
    assert put(commit.changes, Request) == [answered]


def test_a_wait_is_explained_once_and_its_calls_are_repeated() -> None:
    session = "t9@3"
    copied = [
        says(
            replica.node,
            of(
                replica,
                open_epoch=3 if replica == A else 0,
                copied=session,
                digest=(session, 7, 1),
            ),
        )
        for replica in (*OLD, D)
    ]
    settings = CoordinatorSettings(look_seconds=1e9, ask_again_seconds=0.4)
    coordinator, effects = in_office(
        cluster(moving(STREAMING), intends()), *copied, settings=settings
    )
    why = "hand-over: a finishes the writes in flight"
    ask = Send("a", Seal(P, 50))
    assert coordinator.waits == {P: why}
    assert effects.count(Explain(P, STREAMING, why, Work.SEAL)) == 1
    assert effects.count(ask) == 1
    assert coordinator.handle(100.3, Ticked()) == []
    assert coordinator.handle(100.4, Ticked()) == [ask]


def test_a_wait_that_is_over_is_not_explained_any_more() -> None:
    coordinator, _ = in_office(cluster(moving(STREAMING), intends()))
    assert coordinator.waits
    settled = apply(coordinator.agreed, (Put(stable()), Put(replace(intends(), pending=None))), 70)
    coordinator.handle(100.1, AgreedRead(settled))
    assert coordinator.waits == {}


def test_a_partition_without_an_owner_is_explained_as_stable_and_waiting() -> None:
    _, effects = in_office(cluster(stable(owner=None)))
    assert Explain(P, "stable", "election: a has not promised epoch 3 yet") in effects


def test_an_owner_is_elected_as_soon_as_everybody_has_promised() -> None:
    _, effects = in_office(cluster(stable(owner=None)), *well(stable()))
    assert "owns epoch 3" in commits(effects)[-1].why


def test_a_pending_intent_begins_a_transition() -> None:
    (commit,) = commits(in_office(cluster(stable(), intends()), *well(stable()))[1])
    assert put(commit.changes, Partition) == [moving(ALLOW)]


def test_a_hold_is_counted_from_when_this_coordinator_first_saw_it() -> None:
    record = moving(READ_NEW, hold_seconds=5)
    statuses = [
        says(replica.node, of(replica, open_epoch=3 if replica == D else 0))
        for replica in (*OLD, D)
    ]
    coordinator, _ = in_office(cluster(record, intends()), *statuses)
    assert coordinator.waits[P].startswith("held for another 5 s")
    coordinator.handle(103.0, Ticked())
    assert coordinator.waits[P].startswith("held for another 2 s")
    assert len(commits(coordinator.handle(105.0, Ticked()))) == 1


def test_a_hold_is_counted_for_each_partition() -> None:
    """Requests that were made in one commit have one trigger, so their transitions have one id."""
    other = replace(moving(READ_NEW, hold_seconds=5), id="q")
    coordinator = Coordinator("one", ORDINARY)
    assert coordinator._since(100.0, moving(READ_NEW, hold_seconds=5)) == 100.0
    assert coordinator._since(160.0, other) == 160.0
    assert coordinator._since(161.0, moving(READ_NEW, hold_seconds=5)) == 100.0
    assert coordinator._since(162.0, other) == 160.0


def test_the_hold_of_the_next_transition_is_counted_anew() -> None:
    record = moving(READ_NEW, hold_seconds=5)
    assert record.transition is not None
    coordinator = Coordinator("one", ORDINARY)
    assert coordinator._since(100.0, record) == 100.0
    later = replace(record, transition=replace(record.transition, id="t10"))
    assert coordinator._since(160.0, later) == 160.0


# --- replicas that can't come back by themselves


def missing(
    c_says: Status | None,
    settings: CoordinatorSettings = ORDINARY,
    unreachable: tuple[Replica, ...] = (),
) -> tuple[Coordinator, list[Commit]]:
    """The replica on c is not in sync."""
    record = stable(in_sync=(A, B))
    statuses = well(record, unreachable=unreachable)
    statuses[2:3] = [] if c_says is None else [c_says]
    live = ("a", "b", "d") if c_says is None else NODES
    coordinator, effects = in_office(cluster(record, live=live), *statuses, settings=settings)
    return coordinator, commits(effects)


def test_a_lost_replica_is_rebuilt_by_a_request_like_everything_else() -> None:
    _, (commit,) = missing(says("c"))
    name = f"rebuild-p-50-45-{LEASES['c']}"
    assert put(commit.changes, Request) == [Request(name, RebuildReplicas(P, ("c",)))]
    assert commit.guards == {f"request/{name}": 0, COORDINATOR_KEY: OFFICE}
    assert commit.why == "p: rebuild c: it lost its replica"


def test_a_replica_that_the_log_does_not_reach_any_more_is_rebuilt() -> None:
    _, (commit,) = missing(says("c", of(C)), unreachable=(C,))
    assert commit.why == "p: rebuild c: the owner's log no longer has the entries that it misses"


@pytest.mark.parametrize("c_says", [None, says("c", of(C))], ids=["away", "catching up"])
def test_a_replica_that_is_away_or_catching_up_is_waited_for(c_says: Status | None) -> None:
    coordinator, proposed = missing(c_says)
    assert proposed == []
    assert coordinator.waits[P] == "c is not in sync: it is down or catching up"


def test_a_rebuild_that_was_asked_for_already_is_not_asked_for_again() -> None:
    """Its key exists, so a commit that is guarded by its absence can never be made."""
    record = stable(in_sync=(A, B))
    name = f"rebuild-p-50-45-{LEASES['c']}"
    asked = Request(name, RebuildReplicas(P, ("c",)), state="refused", answer="no")
    agreed = cluster(record, more=(asked,))
    statuses = [*well(record)[:2], says("c"), says("d")]
    coordinator, effects = in_office(agreed, *statuses)
    assert commits(effects) == []
    assert coordinator.waits[P] == "c is not rebuilt: no"


@pytest.mark.parametrize(
    "earlier", ["50-45-1", f"50-44-{LEASES['c']}"], ids=["the node began anew", "it was cancelled"]
)
def test_a_rebuild_is_asked_for_again_when_it_was_of_another_run_or_intent(earlier: str) -> None:
    """What was refused or cancelled then says nothing of now."""
    record = stable(in_sync=(A, B))
    name = f"rebuild-p-{earlier}"
    asked = Request(name, RebuildReplicas(P, ("c",)), state="done", answer="accepted")
    statuses = [*well(record)[:2], says("c"), says("d")]
    _, effects = in_office(cluster(record, more=(asked,)), *statuses)
    (commit,) = commits(effects)
    (request,) = put(commit.changes, Request)
    assert isinstance(request, Request)
    assert request.id == f"rebuild-p-50-45-{LEASES['c']}"


def test_without_rebuilds_the_wait_says_who_is_missing() -> None:
    coordinator, proposed = missing(says("c"), CoordinatorSettings(rebuilds=False))
    assert proposed == []
    assert coordinator.waits[P] == "c is not in sync"


def test_only_the_last_answers_are_kept() -> None:
    """Those who wait, and those who look back a little, find them; the metastore does not fill."""
    asked = [
        Request(f"r{n}", RepairPartition(P), state="done", answer="accepted") for n in range(4)
    ]
    waiting = Request("r9", RepairPartition(P))
    agreed = cluster(stable(), more=(*asked, waiting))
    _, effects = in_office(agreed, *well(stable()), settings=CoordinatorSettings(requests_kept=3))
    forgotten = [each for each in commits(effects) if "forgotten" in each.why]
    assert [change_key(change) for change in forgotten[0].changes] == ["request/r0"]
    assert forgotten[0].guards == {"request/r0": 51, COORDINATOR_KEY: OFFICE}
    _, effects = in_office(agreed, *well(stable()), settings=CoordinatorSettings(requests_kept=4))
    assert not [each for each in commits(effects) if "forgotten" in each.why]
