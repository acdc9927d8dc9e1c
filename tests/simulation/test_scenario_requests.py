"""Is a change begun, repeated, completed and cancelled as its request says, whatever is lost on the
way?"""

from collections import Counter

import pytest
from msgspec.structs import replace

from limosa.core.events import AgreedRead
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    MACHINES,
    READ_NEW,
    REPAIR,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.machines.machine import Side
from limosa.core.messages import (
    DropReplica,
    Fetch,
    Link,
    Look,
    Message,
    Redirect,
    Replicate,
    Seal,
    Status,
    Verify,
    Written,
)
from limosa.core.model.reports import Report
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    MovePartition,
    MoveToVolume,
    RebuildReplicas,
    RepairPartition,
)
from limosa.core.model.topology import Partition
from tests.simulation.scenarios import Said, Scenario, said

FORWARD = [ALLOW, WRITE_BOTH, STREAMING, READ_NEW, USE_NEW, CLEANUP]


def last_report(world: Scenario) -> Report:
    return max(world.agreed.reports.values(), key=lambda report: report.ended)


def move_follower(world: Scenario) -> tuple[str, str]:
    """The owner's replica stays, and another one moves: (source, target)."""
    source = next(n for n in sorted(world.replicas()) if n != world.owner().name)
    target = next(n for n in world.nodes if n not in world.replicas())
    world.move(target, *sorted(world.replicas() - {source}))
    return source, target


# ------------------------------------------------ the beginning


@pytest.mark.parametrize("then", ["answers", "dies"])
def test_a_change_starts_only_when_every_new_replica_has_answered(then: str) -> None:
    """F163: of two new replicas one is there at once and the other does not answer: nothing is
    written or copied to either of them, under no session. Once it answers, the change starts; if
    its node dies instead, the change never starts, and nothing is left of it."""
    world = Scenario(nodes=5)
    rows = world.put_many(5)
    before = world.replicas()
    prompt, late = sorted(set(world.nodes) - before)
    world.slow_disks.add(late)
    stays = world.owner().name
    world.move(stays, prompt, late)
    world.until(lambda: f"{late} has not created its replica yet" in world.waits())
    world.run_for(2.0)
    assert world.put("early", 1).outcome == "done"
    assert world.stored(prompt)
    assert world.stages() == [ALLOW]
    assert not said(world, Fetch)
    assert not [*said(world, Replicate, to=prompt), *said(world, Replicate, to=late)]
    assert not any(record.transition.session for record in changing(world))  # type: ignore[union-attr]
    if then == "answers":
        world.hasten()
        world.until_ended()
        assert world.stages() == [*FORWARD, "stable"]
        assert world.replicas() == {stays, prompt, late}
    else:
        world.nodes[late].crash()
        world.until_ended()
        assert world.stages() == [ALLOW, CLEANUP_TARGET, "stable"]
        assert world.replicas() == before
        assert not world.stored(prompt)
        assert not said(world, Fetch)
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def changing(world: Scenario) -> list[Partition]:
    return [record for _, record in world.records() if record.transition is not None]


# ------------------------------------------------ what is lost, and what is said twice


def test_reports_are_repeated_until_they_arrive() -> None:
    """F165: of what each node reports about each generation the first three messages are lost, and
    the move ends all the same. A node that was cut off for longer than its lease goes on to report
    until it learns that its lease has ended; then it says nothing more in that lease's name, and
    what it had said changes nothing."""
    world = Scenario()
    world.put_many(5)
    lost: Counter[tuple[str, int]] = Counter()

    def lose(message: Message) -> list[Message]:
        if isinstance(message, Status):
            lost[message.node, message.generation] += 1
            return [message] if lost[message.node, message.generation] > 3 else []
        return [message]

    world.wire.twist = lose
    _, target = world.move_owner()
    world.until_ended()
    assert target in world.replicas()
    assert {node for (node, _), count in lost.items() if count > 3} == set(world.nodes)
    world.wire.twist = lambda message: [message]

    outdated = world.owner()
    assert outdated.brain.lease is not None
    lease = outdated.brain.lease.id
    world.wire.holds = lambda each: (
        each.sender == outdated.name and isinstance(each.message, Status)
    )
    world.network.cut(outdated.name, "metastore")
    while outdated.name in world.agreed.leases:
        outdated.receive(world.in_office().name, Look(0))
        world.run_for(0.2)
    world.until(lambda: world.is_open("p0") and world.owner() is not outdated)
    late = [each for each in world.wire.waiting if isinstance(each.message, Status)]
    assert late
    assert {each.message.lease for each in late} == {lease}  # type: ignore[union-attr]
    owner, epoch = world.owner(), world.record().epoch
    world.network.heal()
    world.wire.let_go()
    world.until(lambda: outdated.brain.lease is not None and outdated.brain.lease.id != lease)
    learned = world.now
    world.run_for(5.0)
    later = [each for each in said(world, Status, sender=outdated.name) if each.at > learned]
    assert later
    assert lease not in {each.message.lease for each in later}  # type: ignore[union-attr]
    assert (world.owner(), world.record().epoch) == (owner, epoch)
    world.conclude()


MESSAGES: dict[str, set[type[Message]]] = {
    "move": {Fetch, Verify, Seal, DropReplica},
    "rebuild": {Fetch, Verify, DropReplica},
    "volume_move": {Link, Verify, DropReplica},
    "repair": {Fetch},
}
"""By which the coordinator has a change of each kind carried out."""


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_request_that_is_sent_twice_is_answered_well_and_has_one_effect(kind: str) -> None:
    """F169: an operator asks twice for each change and each cancel, and every message by which the
    coordinator has it carried out arrives twice: the second request succeeds, nothing but the
    number of the last trigger changes, and the partition has one transition for each change."""
    world = Scenario()
    rows = world.put_many(10)
    asked: set[type[Message]] = set()
    wanted: set[tuple[str, str]] = set()

    def twice(message: Message) -> list[Message]:
        if isinstance(message, Seal | Verify | DropReplica | Link | Look | Fetch):
            asked.add(type(message))
            return [message, message]
        return [message]

    world.wire.twist = twice
    world.mover.pause()
    first = REPAIR if kind == "repair" else WRITE_BOTH
    for way in ("cancelled", "completed"):
        known = len(world.agreed.reports)
        wanted = world.ask_for(kind)
        world.until_stage(first)
        before = (world.record(), replace(world.intent(), change=0))
        assert world.answer(ask_again(world)) == ("done", "under way already")
        assert (world.record(), replace(world.intent(), change=0)) == before
        if way == "cancelled":
            world.freeze()
            cancels = [world.cancel(), world.cancel()]
            world.thaw()
            for each in cancels:
                assert world.answer(each) == ("done", "will be cancelled")
        world.mover.resume()
        world.until_ended()
        assert len(world.agreed.reports) == known + 1
        assert last_report(world).outcome == ("done" if way == "completed" else "reverted")
    assert {(r.node, r.volume) for r in world.record().replicas} == wanted
    assert asked >= MESSAGES[kind]
    ids = [record.transition.id for record in changing(world) if record.transition]
    assert len(set(ids)) == 2
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


def ask_again(world: Scenario) -> str:
    """The same change once more, by another request."""
    pending = world.intent().pending
    assert pending is not None
    wishes: dict[str, AnyWish] = {
        "move": MovePartition("p0", pending.placements),
        "volume_move": MoveToVolume("p0", pending.placements),
        "rebuild": RebuildReplicas("p0", pending.renewed),
        "repair": RepairPartition("p0"),
    }
    return world.request(wishes[pending.kind])


# ------------------------------------------------ whoever comes next


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_new_coordinator_reads_the_intent_from_the_metastore_and_cancel_wins(
    cancelled: bool,
) -> None:
    """F170: the standby's watch has brought it nothing since before the request. The coordinator
    dies in the middle of the move, and the standby completes the move; with a cancel stored as
    well, it brings the partition back."""
    world = Scenario()
    rows = world.put_many(5)
    before = world.replicas()
    standby = world.out_of_office()

    def is_watched(each: Said) -> bool:
        watched = any(isinstance(argument, AgreedRead) for argument in each.arguments)
        return each.to == standby.name and watched

    world.wire.holds = is_watched
    world.mover.pause()
    source, target = world.move_owner()
    world.until_stage(STREAMING)
    asked = world.cancel() if cancelled else ""
    if cancelled:
        world.until(lambda: world.intent().cancel is not None)
        assert world.intent().pending is not None
    assert standby.brain.agreed.intents["p0"].pending is None, "it has not heard of the move"
    world.in_office().crash()
    world.until(lambda: world.in_office() is standby)
    world.mover.resume()
    world.until_ended()
    assert world.in_office() is standby
    if cancelled:
        assert world.agreed.requests[asked].state == "done"
        assert READ_NEW not in world.stages()
    assert world.replicas() == (before if cancelled else (before - {source}) | {target})
    intent = world.intent()
    assert (intent.pending, intent.cancel) == (None, None)
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


@pytest.mark.parametrize("victim", ["owner", "coordinator"])
@pytest.mark.parametrize("stage", [*FORWARD, CLEANUP_TARGET])
def test_a_new_owner_or_coordinator_is_asked_again_and_the_change_completes(
    stage: str, victim: str
) -> None:
    """F171: the owner, which takes part on neither side alone, or the coordinator dies as soon as a
    stage is committed, of a move and of one that is cancelled. What the stage still needs is asked
    for again, of the owner of today, and the request is carried out."""
    world = Scenario()
    rows = world.put_many(10)
    before, owner, office = world.replicas(), world.owner(), world.in_office()
    killed: list[float] = []

    def kill() -> None:
        killed.append(world.now)
        (owner if victim == "owner" else office).crash()

    world.when(stage, kill)
    source, target = move_follower(world)
    if stage == CLEANUP_TARGET:
        world.until_stage(STREAMING)
        world.cancel()
    world.until_ended()
    assert killed
    back = stage == CLEANUP_TARGET
    assert world.replicas() == (before if back else (before - {source}) | {target})
    assert last_report(world).outcome == ("reverted" if back else "done")
    stays = victim == "coordinator"
    world.until(lambda: world.is_open("p0") and (world.owner() is owner) == stays)
    assert (world.in_office() is office) != stays
    if stage in (ALLOW, WRITE_BOTH, STREAMING):
        grants = [record.owner.replica.node for _, record in world.records() if record.owner]
        of_today = owner.name if stays else list(dict.fromkeys(grants))[1]
        later = [each for each in world.wire.said if each.at > killed[0]]
        assert of_today in {each.to for each in later if isinstance(each.message, Fetch)}
        assert of_today in {each.to for each in later if isinstance(each.message, Verify)}
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


# ------------------------------------------------ the end


def test_an_owner_that_goes_hands_over_before_its_replica_stops() -> None:
    """F167: under writes, none of which fails: the old owner is sealed and another one granted its
    place before the old replica is dropped. Afterwards it is neither on the node's disk nor served:
    a write that is sent there is redirected to the new owner."""
    world = Scenario()
    world.put_many(10)
    source, target = world.move_owner()
    number = 0
    while number < 40 or (world.stages()[-1] != "stable" and number < 400):
        assert world.put(f"w{number}", number, client=number % 2).outcome == "done"
        number += 1
    world.until_ended()
    (sealed,) = {each.to for each in said(world, Seal)}
    (dropped,) = {each.to for each in said(world, DropReplica)}
    assert (sealed, dropped) == (source, source)
    grants = [record.owner.replica.node for _, record in world.records() if record.owner]
    assert list(dict.fromkeys(grants)) == [source, target]
    handed_over = next(
        at
        for at, agreed in world.states
        if (grant := agreed.topology.partitions["p0"].owner) and grant.replica.node == target
    )
    assert said(world, Seal)[0].at < handed_over < said(world, DropReplica)[0].at
    assert max(each.at for each in said(world, Written, sender=source)) < handed_over
    assert min(each.at for each in said(world, Written, sender=target)) > handed_over
    assert not world.stored(source)
    assert not world.nodes[source].brain.held
    write = next(e for e in world.wire.said if e.to == source and e.sender == "c1")
    assert write.message is not None
    heard = len(world.wire.said)
    world.nodes[source].receive("c1", write.message)
    world.run_for(0.01)
    (answer,) = [e.message for e in world.wire.said[heard:] if isinstance(e.message, Redirect)]
    assert answer.owner == target
    world.conclude()


def test_a_read_on_a_replica_that_leaves_fails_or_is_right() -> None:
    """F164: a client that learns nothing new once the copy runs asks the leaving replica in every
    stage of its move and after it: it gets the row as it is, or as it lately was, for as long as
    the replica is written; then its reads fail in bounded time."""
    world = Scenario()
    world.put("fixed", "as ever")
    owner = world.owner().name
    source = next(n for n in sorted(world.replicas()) if n != owner)
    choice = [replica.node for replica in world.record().replicas].index(source)
    world.clients[1].crash()
    world.clients[1].start()
    target = next(n for n in world.nodes if n not in world.replicas())
    world.move(target, *sorted(world.replicas() - {source}))
    outcomes: dict[str, list[bool]] = {}
    for number, stage in enumerate([*FORWARD, "stable"]):
        world.until_stage(stage)
        world.freeze()
        world.until(lambda: all(world.knows(node) for node in world.nodes))
        assert world.put("counted", number).outcome == "done"
        asked = world.now
        reads = [
            (world.send_get(key, client=1, eventual=True, choice=choice), allowed)
            for key, allowed in (("fixed", ["as ever"]), ("counted", [number, number - 1]))
        ]
        world.until(lambda reads=reads: all(answers for answers, _ in reads))  # type: ignore[misc]
        assert world.now - asked < 7.0
        for answers, allowed in reads:
            found = answers[0].outcome == "done"
            outcomes.setdefault(stage, []).append(found)
            if found:
                assert isinstance(answers[0].value, tuple)
                assert answers[0].value[0][1] in (allowed if number else [*allowed, None])
        if stage == STREAMING:
            world.wire.blind.add("c2")
        world.thaw()
    while_written = [ALLOW, WRITE_BOTH, STREAMING, READ_NEW]
    assert [stage for stage, found in outcomes.items() if all(found)] == while_written
    assert not any(found for stage in (USE_NEW, CLEANUP, "stable") for found in outcomes[stage])
    assert not world.stored(source)
    world.conclude()


# ------------------------------------------------ cancel


def test_a_cancel_counts_only_for_the_change_that_its_caller_saw() -> None:
    """F174: it was sent for a move that has completed meanwhile, when the next one is pending: it
    is refused, nothing is stored of it, and the next one goes on to its end."""
    world = Scenario(nodes=5, replicas=1)
    rows = world.put_many(5)
    home = world.owner().name
    world.mover.pause()
    _, first = world.move_owner()
    world.until_stage(STREAMING)
    seen = world.intent().pending
    assert seen is not None
    second = next(n for n in world.nodes if n not in (home, first))
    world.answer(world.move(second))
    world.mover.resume()
    world.until(lambda: world.replicas() == {first})
    world.mover.pause()
    pending = world.intent().pending
    assert pending is not None
    assert pending.trigger != seen.trigger
    state, why = world.answer(world.request(CancelChange("p0", seen.trigger)))
    assert state == "refused"
    assert f"has no pending change of trigger {seen.trigger}" in why
    assert (world.intent().pending, world.intent().cancel) == (pending, None)
    world.mover.resume()
    world.until_ended()
    assert world.replicas() == {second}
    assert [report.outcome for report in world.agreed.reports.values()] == ["done", "done"]
    world.answer(world.move(home))
    pending = world.intent().pending
    assert pending is not None
    assert world.answer(world.request(CancelChange("p0", pending.trigger)))[0] == "done"
    world.until_ended()
    assert world.replicas() == {second}
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


BEFORE_THE_SWITCH = [
    (kind, stage.name)
    for kind, machine in MACHINES.items()
    for stage in machine.stages
    if stage.reads is Side.OLD and stage.given_up
]


@pytest.mark.parametrize(("kind", "stage"), BEFORE_THE_SWITCH)
def test_a_running_change_that_is_cancelled_leaves_everything_as_it_was(
    kind: str, stage: str
) -> None:
    """F175: each kind, in each stage in which it still can: it stops, the replicas are the old ones
    by name and on every disk, and nothing is left at the new ones."""
    world = Scenario()
    rows = world.put_many(10)
    before = world.record().replicas
    on_disks = set(world.image())
    cancels: list[str] = []
    world.when(stage, lambda: cancels.append(world.cancel()))
    world.ask_for(kind)
    world.until_ended()
    assert world.answer(cancels[0]) == ("done", "will be cancelled")
    assert READ_NEW not in world.stages()
    assert last_report(world).outcome == "reverted"
    assert world.record().replicas == before
    assert set(world.image()) == on_disks
    intent = world.intent()
    assert (intent.pending, intent.planned, intent.cancel) == (None, None, None)
    assert {(p.node, p.volume) for p in intent.stable} == {(r.node, r.volume) for r in before}
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


@pytest.mark.parametrize("stage", [READ_NEW, USE_NEW, CLEANUP, "stable"])
def test_a_cancel_that_comes_after_the_switch_is_refused_and_the_change_completes(
    stage: str,
) -> None:
    """F177: the answer says why, no cancel is stored, and completion makes the new replicas the
    stable ones."""
    world = Scenario()
    rows = world.put_many(10)
    before = world.replicas()
    asked: list[str] = []
    trigger: list[int] = []

    def cancel() -> None:
        asked.append(world.request(CancelChange("p0", trigger[0])))

    source, target = world.move_owner()
    world.until(lambda: world.intent().pending is not None)
    pending = world.intent().pending
    assert pending is not None
    trigger.append(pending.trigger)
    world.when(stage, cancel)
    world.until_ended()
    world.until(lambda: bool(asked))
    state, why = world.answer(asked[0])
    assert state == "refused"
    assert (
        f"has switched already ({stage})" if stage != "stable" else "the change has ended"
    ) in why
    after = (before - {source}) | {target}
    assert world.replicas() == {place.node for place in world.intent().stable} == after
    assert (world.intent().pending, world.intent().cancel) == (None, None)
    assert all(agreed.intents["p0"].cancel is None for _, agreed in world.states)
    assert last_report(world).outcome == "done"
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()


@pytest.mark.parametrize("cause", ["a person", "the target dies", "the copy differs"])
def test_a_change_is_cancelled_by_a_person_or_by_an_error_that_can_not_be_mended(
    cause: str,
) -> None:
    """F178: either way the old replicas are there again, and the report says which it was."""
    world = Scenario()
    rows = world.put_many(10)
    before = world.replicas()
    if cause == "the copy differs":
        world.spoils.add("p0")
    else:
        world.mover.pause()
    _, target = world.move_owner()
    world.until_stage(STREAMING)
    if cause == "a person":
        world.cancel()
    elif cause == "the target dies":
        world.nodes[target].crash()
    world.mover.resume()
    world.until_ended()
    assert world.stages()[-2:] == [CLEANUP_TARGET, "stable"]
    assert world.replicas() == before
    report = last_report(world)
    assert report.outcome == "reverted"
    words = {
        "a person": "cancelled",
        "the target dies": target,
        "the copy differs": f"verification: {target} differs from the owner",
    }
    assert words[cause] in report.why
    assert not world.stored(target) or cause == "the target dies"
    assert {key: world.get(key) for key in rows} == rows
    world.conclude()
    assert not world.stored(target)
