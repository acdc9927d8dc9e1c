"""Is a request served only by who may serve it, and refused without a trace otherwise?"""

from collections.abc import Iterator

from msgspec.structs import replace

from limosa.core.events import Received
from limosa.core.machines.catalogue import ALLOW, READ_NEW, STREAMING, WRITE_BOTH
from limosa.core.messages import (
    Acked,
    Found,
    Probe,
    Read,
    Redirect,
    Replicate,
    Unheld,
    Wait,
    Write,
    Written,
)
from limosa.core.model.changes import Commit, Put, Topology, partition_key
from limosa.core.model.topology import Partition, Transition
from limosa.simulation.hosts import METASTORE
from limosa.simulation.workloads import rows_of
from tests.simulation.scenarios import Said, Scenario, said

LAG = 0.5


def last_write(world: Scenario) -> Said:
    return said(world, Write)[-1]


def replay(world: Scenario, each: Said, to: str) -> None:
    """As if the network had doubled it, or carried it for long."""
    assert each.message is not None
    world.processes[to].receive(each.sender, each.message)


def test_every_write_carries_the_layout_version_it_was_routed_under() -> None:
    """F3: the version on the wire is the one in the client's cache, before and after it
    refreshes."""
    world = Scenario()
    world.put("a", 1)
    assert {write.message.version for write in said(world, Write)} == {1}  # type: ignore[union-attr]
    version = world.new_version()
    world.run_for(0.1)
    before = len(said(world, Write))
    assert world.clients[0].brain.topology.layouts["zone"].version == 1
    world.put("b", 2)
    versions = [write.message.version for write in said(world, Write)[before:]]  # type: ignore[union-attr]
    assert versions == [1, version]  # routed by the old cache, told so, routed again
    world.conclude()


def test_a_write_under_a_stale_version_is_redirected_and_changes_nothing() -> None:
    """F4: the Redirect names the present owner, version and generation; no row, no log entry."""
    world = Scenario()
    world.put("a", 1)
    version = world.new_version()
    world.run_for(1.5)
    before, stale = world.image(), last_write(world)
    assert isinstance(stale.message, Write)
    again = replace(stale.message, id="late.1", sequence=99, rows=rows_of(("a", 2)))
    replay(world, Said(0, "c1", "", again, print, ()), world.owner().name)
    world.run_for(0.1)
    (answer,) = (each.message for each in said(world, Redirect))
    assert answer == Redirect(
        "late.1", world.owner().name, version, world.agreed.topology.generation, True
    )
    assert world.image() == before
    world.conclude()


def test_a_write_by_a_version_that_the_owner_does_not_know_yet_waits() -> None:
    """F4, S51: newer than the owner is not stale: the write is told to wait, and served once the
    owner has caught up; nothing fails."""
    world = Scenario()
    world.wire.blind.add(world.owner().name)
    world.new_version()
    client = world.clients[0]
    client.crash()
    client.start()  # it boots with the newest layout
    answers = world.send_put("a", 1)
    world.run_for(0.3)
    assert not answers
    assert said(world, Wait)
    world.wire.blind.clear()
    world.until(lambda: bool(answers))
    assert answers[0].outcome == "done"
    world.conclude()


def test_a_write_to_a_node_that_does_not_own_is_redirected_and_the_next_one_succeeds() -> None:
    """F5: the wrong node names the owner and keeps nothing; the same client then goes on."""
    world = Scenario()
    world.put("a", 1)
    world.run_for(0.5)
    before, write = world.image(), last_write(world)
    wrong = next(name for name in world.nodes if name != world.owner().name)
    outsider = next(name for name in world.nodes if name not in world.replicas())
    assert isinstance(write.message, Write)
    for number, node in enumerate((wrong, outsider)):
        lost = replace(write.message, id=f"lost.{number}", sequence=90 + number)
        world.processes[node].receive("c1", lost)
    world.run_for(0.1)
    answers = [each.message for each in said(world, Redirect, to="c1")]
    assert [answer.owner for answer in answers] == [world.owner().name] * 2  # type: ignore[union-attr]
    assert world.image() == before
    assert world.put("a", 2).outcome == "done"
    assert world.get("a") == 2
    world.conclude()


def test_a_client_that_knows_only_the_old_owner_finds_the_new_one() -> None:
    """F5: after a move the client's cache is wrong; a Redirect leads it, and its write succeeds
    once."""
    world = Scenario()
    world.put("a", 1)
    source, target = world.move_owner()
    world.until_ended()
    assert world.put("a", 2).outcome == "done"
    tail = [each.to for each in said(world, Write)][-2:]
    assert tail == [source, target]
    assert [each.sender for each in said(world, Redirect)] == [source]
    world.conclude()


def test_an_owner_that_was_cut_off_and_replaced_is_refused_when_it_comes_back() -> None:
    """F35, S12, S15: it acks nothing while cut off; healed, its replication and an open
    handle's writes are refused, and it has become a follower."""
    world = Scenario(replicas=3, nodes=3)
    rows = world.put_many(5)
    old = world.owner()
    epoch = world.record().epoch
    held_by_old = last_write(world)
    world.isolate(old.name)
    # The client's handle reaches the old owner; what it writes there can't be committed.
    assert isinstance(held_by_old.message, Write)
    lonely = replace(
        held_by_old.message, id="lonely.1", producer="lonely", sequence=1, rows=rows_of(("k0", "x"))
    )
    world.network.mend(old.name, "c1")
    old.receive("c1", lonely)
    sent_when_cut = [
        each
        for each in said(world, Replicate, sender=old.name)
        if each.message.entries and each.message.entries[-1].producer == "lonely"  # type: ignore[union-attr]
    ]
    assert sent_when_cut
    world.until(lambda: world.record().epoch > epoch and world.is_open("p0"))
    assert world.owner() is not old
    assert world.put("k1", "new", client=1).outcome == "done"
    world.run_for(1.0)
    follower = next(n for n in world.replicas() if n not in (old.name, world.owner().name))
    before = world.image()[follower, "p0", "made"]

    for each in sent_when_cut:  # its replication arrives at last
        replay(world, each, each.to)
    world.run_for(0.05)
    refusals = [each.message for each in said(world, Unheld, to=old.name)]
    assert {refusal.why for refusal in refusals} == {"stale epoch"}  # type: ignore[union-attr]
    assert world.image()[follower, "p0", "made"] == before

    world.network.heal()
    world.until(lambda: len(world.record().in_sync) == 3)
    assert "p0" not in old.brain.owners
    replay(world, held_by_old, old.name)
    world.run_for(0.1)
    assert isinstance(said(world, Redirect, sender=old.name)[-1].message, Redirect)
    assert not [each for each in said(world, Written) if each.message.id == "lonely.1"]  # type: ignore[union-attr]
    assert world.get("k0") == rows["k0"]
    assert world.get("k1") == "new"
    world.conclude()


def test_an_older_epoch_and_epoch_zero_do_not_pass_a_follower() -> None:
    """S15: replication under epoch 0 is stale like any other old epoch; there is no way around."""
    world = Scenario()
    world.put_many(3)
    world.move_owner()
    world.until_ended()
    world.put_many(3)
    world.run_for(1.0)
    assert world.record().epoch == 2
    sent = said(world, Replicate, sender=world.owner().name)[-1]
    before = world.image()
    assert isinstance(sent.message, Replicate)
    for epoch in range(world.record().epoch):
        world.processes[sent.to].receive("c2", replace(sent.message, epoch=epoch))
        world.processes[sent.to].receive(
            "c2", Probe("p0", sent.message.to, epoch, sent.message.revision)
        )
    world.run_for(0.05)
    assert world.image() == before
    refusals = [each.message.why for each in said(world, Unheld, to="c2")]  # type: ignore[union-attr]
    assert refusals == ["stale epoch"] * 2 * world.record().epoch
    world.conclude()


def test_a_paused_owner_serves_nothing_after_its_lease() -> None:
    """F35: it wakes up believing that it owns; the read and the write in its queue are not answered
    from its own data."""
    world = Scenario(replicas=3, nodes=3)
    world.put("a", "old")
    old = world.owner()
    old.pause()
    read = world.send_get("a", client=1)
    write = world.send_put("b", 1, client=1)
    world.until(lambda: world.owner() is not old and world.is_open("p0")
                if world.record().owner is not None else False)  # fmt: skip
    assert world.put("a", "new").outcome == "done"
    early = len(said(world, Found, sender=old.name))
    old.resume()
    world.until(lambda: bool(read) and bool(write))
    assert len(said(world, Found, sender=old.name)) == early
    assert not said(world, Written, sender=old.name)[1:]
    world.conclude()


# ------------------------------------------------ who is a stage away


def eventual(world: Scenario, node: str, revision: int, number: str) -> object:
    """Ask one node for `a`, as a process that knows the record of this revision."""
    version = world.agreed.topology.layouts["zone"].version
    message = Read(f"{number}.1", "p0", version, 0, revision, ("a",), eventual=True)
    world.processes[node].receive("c1", message)
    world.run_for(0.5)
    answers = [
        each.message
        for each in world.wire.said
        if each.to == "c1" and getattr(each.message, "id", "") == f"{number}.1"
    ]
    return answers[0] if answers else None


def test_a_reader_one_stage_behind_or_ahead_is_served_by_either_side() -> None:
    """F111: in write_both_read_new both the leaving and the new replica answer a reader of the
    stage before and of this one; a node that is itself behind catches up and answers one who is
    ahead."""
    world = Scenario()
    world.put("a", 1)
    source, target = world.move_owner(hold_seconds=20)
    world.until_stage(READ_NEW)
    world.until(lambda: world.waits().startswith("held"))
    revisions = [revision for revision, _ in world.records()][-2:]
    for node in (source, target):
        for revision in revisions:
            answer = eventual(world, node, revision, f"{node}-{revision}")
            assert isinstance(answer, Found), (node, revision, answer)
            assert isinstance(answer.rows, tuple)
            assert answer.rows[0][1] == 1
    world.conclude()


def test_a_replica_whose_view_is_one_stage_behind_still_serves() -> None:
    """F111, F112: the source has not heard of the next stage: it answers by its own view; and
    nobody gets two stages ahead of it, since the barrier waits for it."""
    world = Scenario()
    world.put("a", 1)
    source, _ = world.move_owner(hold_seconds=20)
    world.until_stage(ALLOW)
    world.until(lambda: world.knows(source))
    world.wire.blind.add(source)
    behind = world.revision()
    world.until_stage(WRITE_BOTH)
    assert isinstance(eventual(world, source, behind, "one"), Found)
    world.run_for(2.0)
    assert world.stage_name("p0") == WRITE_BOTH  # not left without the source
    assert f"{source} has not applied" in world.waits()
    assert world.put("b", 2).outcome == "done"
    assert not world.knows(source)
    world.wire.blind.clear()
    world.until_stage(READ_NEW)
    world.conclude()


def test_no_two_processes_are_more_than_one_stage_apart() -> None:
    """F112: at every commit of a stage, no live node acts on a record older than the stage
    before."""
    world = Scenario(nodes=5)
    workloads = world.keep_busy(4.0)
    views: list[tuple[int, int]] = []

    def look(record: Partition) -> None:
        stages = [revision for revision, _ in world.records()]
        for node in world.nodes.values():
            views.append((node.brain.topology.revision_of("p0"), stages[-1] if stages else 0))

    world.on_stage = look  # called before the new record is in `records`
    for _ in range(3):
        world.move_owner()
        world.until_ended()
    assert len(views) >= 3 * 7 * 5
    revision_of_stage = [revision for revision, _ in world.records()]
    for seen, present in views:
        assert seen >= max((r for r in revision_of_stage if r < present), default=0) or present == 0
    world.conclude(workloads)


def test_a_request_from_two_stages_ago_is_fenced() -> None:
    """F112, F125: replication and reads that were begun before the fence are refused and change
    nothing; those of the stage before are accepted."""
    world = Scenario()
    world.put("a", 1)
    world.run_for(0.5)
    stable = world.revision()
    source, target = world.move_owner()
    world.mover.pause()
    world.until_stage(ALLOW)
    allow = world.revision()
    world.until_stage(STREAMING)
    world.until(lambda: world.waits().startswith("copy"))
    world.run_for(0.5)
    assert world.record().fence > allow > stable
    one_behind = next(r for r, record in world.records() if stage_in(record) == WRITE_BOTH)
    follower = next(name for name in world.replicas() if name != source)
    before = world.image()
    template = said(world, Replicate, to=follower, sender=source)[-1].message
    assert isinstance(template, Replicate)
    for revision, refused in ((stable, True), (allow, True), (one_behind, False)):
        heard = len(world.wire.said)
        world.processes[follower].receive(source, replace(template, revision=revision, entries=()))
        world.run_for(0.01)
        answers = [
            each.message
            for each in world.wire.said[heard:]
            if each.sender == follower and isinstance(each.message, Unheld | Acked)
        ]
        assert isinstance(answers[0], Unheld if refused else Acked), revision
        read = eventual(world, follower, revision, f"two-{revision}")
        assert isinstance(read, Redirect if refused else Found), revision
    assert world.image() == before
    assert [each.message.why for each in said(world, Unheld)] == ["fenced"] * 2  # type: ignore[union-attr]
    assert target
    world.mover.resume()
    world.until_ended()
    world.conclude()


def stage_in(record: Partition) -> str:
    return "stable" if record.transition is None else record.transition.stage


def test_fences_and_generations_are_stored_and_never_go_back() -> None:
    """F125: at every commit of a move under load: fence ≤ generation, both monotone, and both
    are in the metastore, where a restarted process reads them."""
    world = Scenario()
    workloads = world.keep_busy(2.0)
    world.move_owner()
    world.until_ended()
    generations = [agreed.topology.generation for _, agreed in world.states]
    fences = [agreed.topology.partitions["p0"].fence for _, agreed in world.states]
    assert generations == sorted(generations)
    assert fences == sorted(fences)
    assert fences[-1] > 0
    for generation, fence in zip(generations, fences, strict=True):
        assert fence <= generation
    world.in_office().crash()
    for node in world.nodes.values():
        node.crash()
        node.start()
    world.until(lambda: world.record().owner is not None and world.is_open("p0"))
    assert world.owner().brain.topology.partitions["p0"].fence == fences[-1]
    world.conclude(workloads)


# ------------------------------------------------ what it costs


class Counted(dict[str, Partition]):
    """How often is it looked at, and is it ever walked through?"""

    looks = 0
    walks = 0

    def __getitem__(self, key: str) -> Partition:
        self.looks += 1
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> Partition | None:  # type: ignore[override]
        self.looks += 1
        return super().get(key)

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> object:  # type: ignore[override]
        self.walks += 1
        return super().items()

    def values(self) -> object:  # type: ignore[override]
        self.walks += 1
        return super().values()


def looks_of_a_write(partitions: int) -> tuple[int, int]:
    """A write to p0 while every partition, p0 too, is migrating."""
    world = Scenario()
    owner = world.owner()
    topology: Topology = owner.brain.topology
    moving = Transition("t", "move", ALLOW, world.record().replicas)
    record = replace(world.record(), transition=moving)
    counted = Counted({f"p{i}": replace(record, id=f"p{i}") for i in range(partitions)})
    owner.brain.topology = replace(topology, partitions=counted)
    rows = rows_of(("a", 1))
    write = Write("w.1", "p0", 1, 1, "c1", 1, 0, 1, record.range, rows)
    effects = owner.brain.handle(owner.now, Received("c1", write))
    assert len(effects) >= len(record.replicas)
    return counted.looks, counted.walks


def test_asking_whether_a_partition_migrates_costs_the_same_however_many_do() -> None:
    """F53: a write looks at its own partition's record, in an immutable snapshot that nobody
    locks: as often with one migration as with two thousand, and it never walks through them."""
    looks, walks = looks_of_a_write(1)
    assert looks <= 6
    assert walks == 0
    assert looks_of_a_write(2000) == (looks, 0)


def test_a_node_that_lags_behind_a_busy_record_asks_a_bounded_number_of_questions() -> None:
    """Whatever the metastore says arrives late there, while the record changes fifty times a second
    and is written: it is behind all the time, and every message that it gets is ahead."""
    world = Scenario()
    world.keep_busy(8.0)
    lagging = next(name for name in world.replicas() if name != world.owner().name)
    asked: list[float] = []

    def late(said: Said) -> bool:
        if said.sender == lagging and said.to == METASTORE:
            asked.append(world.now)
        if (said.sender, said.to) != (METASTORE, lagging):
            return False
        world.schedule(LAG, said.arrive, *said.arguments)
        return True

    def touch() -> None:
        guards = {partition_key("p0"): world.revision()}
        world.commit(Commit(guards, (Put(world.record()),), "p0: touched"), "operator")
        if world.now < end:
            world.schedule(0.02, touch)

    end = world.now + 8.0
    world.wire.holds = late
    touch()
    world.run_for(8.0)
    for second in range(8):
        begin = end - 8.0 + second
        assert 2 <= len([at for at in asked if begin <= at < begin + 1.0]) <= 30
    world.wire.waiting.clear()
    world.conclude()


def test_a_client_that_restarts_is_another_producer() -> None:
    """Else its first write would be taken for a repetition of the earlier run's first."""
    world = Scenario()
    client = world.clients[0]
    assert world.put("k", 1).outcome == "done"
    client.crash()
    client.start()
    assert world.put("k", 2).outcome == "done"
    assert world.get("k") == 2
    messages = [each.message for each in world.wire.said if each.sender == client.name]
    writes = [(m.producer, m.sequence) for m in messages if isinstance(m, Write)]
    assert writes == [("c1/1", 1), ("c1/2", 1)]
    world.conclude()
