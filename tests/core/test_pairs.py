"""Does a node cost its peers little while nothing happens, and is it noticed if it does not answer?

F196: what does not change costs nothing, however many partitions there are.
"""

from math import inf

import pytest
from msgspec.structs import replace

from limosa.core.effects import Effect, Send
from limosa.core.events import Ticked
from limosa.core.messages import (
    Acked,
    Look,
    Probe,
    Probed,
    Replicate,
    Status,
    Unheld,
    Written,
)
from limosa.core.model.keys import position
from limosa.core.model.topology import Replica
from limosa.core.participant import reporting
from limosa.core.participant.owner import Owner
from limosa.core.participant.settings import ParticipantSettings
from tests.core.samples import LEASES, A, B, C
from tests.core.stage import Stage, owners_on_stage, sent, write

COUNT = 20
SETTINGS = ParticipantSettings(
    resend_seconds=0.1, silence_seconds_max=1.0, idle_seconds_max=0.5, lease_seconds=1000.0
)


def owners() -> Stage:
    stage = owners_on_stage(COUNT, settings=SETTINGS)
    later(stage)
    return stage


def later(stage: Stage, seconds: float = 0.11) -> list[Effect]:
    stage.now += seconds
    return stage.tell(Ticked())


def probes(effects: list[Effect]) -> list[tuple[str, str]]:
    """The nodes that are probed, and about which partitions."""
    return [
        (effect.to, effect.message.partition)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Probe)
    ]


def answer(stage: Stage, to: tuple[str, str], last: int = 0, run: int = 0) -> list[Effect]:
    node, partition = to
    replica = {"b": B, "c": C}[node]
    return stage.say(Probed(partition, replica, 3, last, 0, run or LEASES[node]), node)


def silent(stage: Stage) -> list[tuple[Replica, ...]]:
    return [each[0].silent for each in stage.status().replicas.values()]


def test_each_node_is_asked_once_however_many_partitions_it_shares() -> None:
    stage = owners()
    asked: list[tuple[str, str]] = []
    for _ in range(100):
        now = probes(later(stage))
        assert [node for node, _ in now] in ([], ["b", "c"])
        for each in now:
            assert answer(stage, each) == []
        asked += now
    assert 36 <= len(asked) <= 40
    assert len({partition for _, partition in asked}) > 10, "each partition in its turn"
    assert silent(stage) == [()] * COUNT


def test_owners_that_have_nothing_to_do_are_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those with entries, watermarks or proposals under way cost anything as time passes."""
    stage = owners()
    visited: list[str] = []
    tick = Owner.tick

    def noted(self: Owner, now: float) -> None:
        visited.append(self.held.partition)
        tick(self, now)

    monkeypatch.setattr(Owner, "tick", noted)
    later(stage)
    assert visited == []
    stage.say(replace(write(), partition="p7"), "client")
    later(stage)
    stage.store()
    for replica in (B, C):
        stage.say(Acked("p7", replica, 3, position(3, 1), 0), replica.node)
    later(stage)
    assert visited == ["p7", "p7"], "the others must be told the watermark"
    for replica in (B, C):
        stage.say(Acked("p7", replica, 3, position(3, 1), position(3, 1)), replica.node)
    later(stage)
    assert visited == ["p7", "p7"]


def test_a_node_that_answers_nothing_is_silent_for_every_partition() -> None:
    """S114: although none of them has anything to send. The coordinator is told now and then."""
    stage = owners()
    stage.say(Look(0), "coordinator")
    told: list[float] = []
    for _ in range(30):
        effects = later(stage)
        for each in probes(effects):
            if each[0] == "b":
                answer(stage, each)
        told += [stage.now for status in sent(effects, Status) if status.replicas["p3"][0].silent]
    assert silent(stage) == [(C,)] * COUNT
    assert len(told) == 4
    effects = answer(stage, ("c", "p9")) + later(stage)
    (status,) = sent(effects, Status)
    assert [each[0].silent for each in status.replicas.values()] == [()] * COUNT, "told, too"
    assert silent(stage) == [()] * COUNT


def test_the_coordinator_is_told_at_once_that_a_late_replica_has_caught_up() -> None:
    """Also if its node never was silent, because it answered for other partitions."""
    stage = owners()
    stage.say(Look(0), "coordinator")
    be_late(stage)
    told = dict[str, tuple[Replica, ...]]()
    for _ in range(5):
        note(told, answered_for_p9(stage))
    assert [name for name in told if told[name]] == ["p3"]
    stage.now += 0.02
    note(told, stage.say(Acked("p3", C, 3, 0, 0), "c"))
    assert told["p3"] == ()


def test_the_end_of_a_silence_is_told_whatever_report_named_it() -> None:
    stage = owners()
    stage.say(Look(0), "coordinator")
    be_late(stage)
    later(stage, 0.05)
    told = dict[str, tuple[Replica, ...]]()
    note(told, stage.say(Look(0, whole=True), "coordinator"))
    assert told.pop("p3") == (C,), "it became late between two rounds over the owners"
    stage.now += 0.02
    note(told, stage.say(Acked("p3", C, 3, 0, 0), "c"))
    assert told["p3"] == ()


def test_a_status_for_somebody_else_does_not_count_as_told_to_the_coordinator() -> None:
    stage = owners()
    stage.say(Look(0), "coordinator")
    be_late(stage)
    later(stage, 0.05)
    assert stage.status().replicas["p3"][0].silent == (C,)
    stage.now += 0.02
    assert sent(stage.say(Acked("p3", C, 3, 0, 0), "c"), Status) == []


def test_the_end_of_a_nodes_silence_is_told_for_all_partitions_whatever_report_named_it() -> None:
    stage = owners()
    stage.say(Look(0), "coordinator")
    asked: list[tuple[str, str]] = []
    while not asked:
        asked = probes(later(stage))
    for _ in range(9):
        answer(stage, ("b", "p9"))
        later(stage)
    later(stage, 0.05)
    told = dict[str, tuple[Replica, ...]]()
    note(told, stage.say(Look(0, whole=True), "coordinator"))
    assert list(told.values()) == [(C,)] * COUNT, "it became silent between two rounds"
    stage.now += 0.02
    note(told, answer(stage, ("c", "p9")))
    assert list(told.values()) == [()] * COUNT


def test_a_silent_node_costs_nothing_for_partitions_that_do_not_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as its replicas are out of sync; the others are told of, now and then."""
    stage = owners()
    stage.say(Look(0), "coordinator")
    records = stage.agreed.topology.partitions.values()
    stage.agree(*(replace(each, in_sync=(A, B)) for each in records if each.id != "p3"))
    for name in stage.brain.owners:
        stage.say(Acked(name, B, 3, 0, 0), "b")
    visited: list[str] = []
    silent = Owner.silent

    def noted(self: Owner, now: float) -> tuple[Replica, ...]:
        visited.append(self.held.partition)
        return silent(self, now)

    told = dict[str, tuple[Replica, ...]]()
    for _ in range(40):
        answer(stage, ("b", "p9"))
        note(told, later(stage))
    assert [name for name in told if told[name]] == ["p3"]
    monkeypatch.setattr(Owner, "silent", noted)
    monkeypatch.setattr(reporting, "TURN_SECONDS", inf)
    for _ in range(20):
        answer(stage, ("b", "p9"))
        later(stage)
    assert set(visited) == {"p3"}
    stage.agree(replace(stage.agreed.topology.partitions["p7"], in_sync=(A, B, C)))
    for _ in range(10):
        note(told, later(stage))
    assert {name for name in told if told[name]} == {"p3", "p7"}


def be_late(stage: Stage) -> None:
    """In a moment, the replica of p3 on c is late; c answers for other partitions."""
    stage.say(Unheld("p3", C, 3, stage.agreed.revision, "unmatched", LEASES["c"]), "c")
    for _ in range(9):
        assert not any(each[0].silent for each in stage.status().replicas.values())
        answered_for_p9(stage)


def answered_for_p9(stage: Stage) -> list[Effect]:
    effects = later(stage)
    for replica in (B, C):
        stage.say(Acked("p9", replica, 3, 0, 0), replica.node)
    return effects


def note(told: dict[str, tuple[Replica, ...]], effects: list[Effect]) -> None:
    """What the coordinator is told of silent replicas."""
    for status in sent(effects, Status):
        told.update({name: each[0].silent for name, each in status.replicas.items()})


def test_a_node_that_owes_an_answer_is_sent_nothing_else_until_it_answers() -> None:
    """It may be down for days; what waits for it is sent when it answers."""
    stage = owners()
    for name in ("p1", "p2"):
        stage.say(Unheld(name, C, 3, 50, "unmatched"), "c")
    for _ in range(12):
        for each in probes(later(stage)):
            if each[0] == "b":
                answer(stage, each)
    for _ in range(10):
        to_c = [each for each in probes(later(stage)) if each[0] == "c"]
        assert len(to_c) == 1
    answer(stage, ("c", "p0"))
    waited = [each for each in probes(later(stage)) if each[0] == "c"]
    assert waited == [("c", "p1"), ("c", "p2")]


def test_another_run_of_a_node_is_matched_anew_for_every_partition() -> None:
    """What the earlier run had not made durable may be gone."""
    stage = owners()
    assert answer(stage, ("b", "p4")) == []
    effects = answer(stage, ("b", "p4"), run=4711)
    assert sorted(probes(effects)) == sorted(("b", f"p{number}") for number in range(COUNT))
    (match,) = sent(effects, Replicate)
    assert (match.partition, match.how, match.probed) == ("p4", "match", 4711)
    stage.say(replace(write(), partition="p5"), "client")
    assert not stage.brain.owners["p5"].peers[B].matched
    assert stage.brain.owners["p5"].peers[C].matched
    assert probes(answer(stage, ("b", "p5"), run=4711)) == []


def test_a_node_that_is_behind_with_its_own_work_calls_nobody_silent_for_it() -> None:
    """Answers may have arrived and wait here. Time counts again once the node keeps up, and a node
    that is behind all the time notices a dead one later, but does notice it."""
    stage = owners()
    stage.say(replace(write(), partition="p3"), "client")
    later(stage, 30.0)
    assert silent(stage) == [()] * COUNT
    for _ in range(6):
        later(stage)
    assert silent(stage) == [()] * COUNT
    for _ in range(2):
        later(stage)
    assert silent(stage)[3] == (B, C)
    slow = owners()
    slow.say(replace(write(), partition="p3"), "client")
    for _ in range(4):
        later(slow, 2.0)
        assert silent(slow) == [()] * COUNT
    later(slow, 2.0)
    assert silent(slow)[3] == (B, C)


def test_a_replica_that_waits_its_turn_on_a_volume_that_makes_progress_is_not_silent() -> None:
    """Its node has much to do: it acknowledges the writes of other partitions all the time. But a
    replica that never gets its turn is stuck."""
    stage = owners()
    for name in ("p1", "p2"):
        stage.say(replace(write(), partition=name), "client")
    began, written = stage.now, 1
    while stage.now < began + 5.8:
        later(stage)
        for replica in (B, C):
            acked = Acked("p2", replica, 3, position(3, written), 0)
            stage.say(acked, replica.node)
        written += 1
        stage.say(replace(write(f"w.{written}", written), partition="p2"), "client")
        assert silent(stage) == [()] * COUNT
    for _ in range(3):
        later(stage)
    assert silent(stage)[1] == (B, C)
    assert silent(stage)[2] == ()


def test_a_replica_that_waits_until_it_is_matched_is_not_silent_while_others_are() -> None:
    """A table of thousands of partitions was created, or a node has returned: their logs are empty,
    or have nothing new to acknowledge."""
    stage = owners()
    for run in (0, 4711):
        answer(stage, ("b", "p4"), run=run)
    began, matched = stage.now, stage.brain.owners["p0"]
    while stage.now < began + 5.8:
        later(stage)
        stage.say(Acked("p0", B, 3, 0, 0), "b")
        matched.unmatch(matched.peers[B])  # it stands for one partition after the other
        assert B not in silent(stage)[5]
    for _ in range(3):
        later(stage)
    assert B in silent(stage)[5]


def test_progress_on_another_volume_of_the_node_does_not_count() -> None:
    """A disk that hangs is noticed although the other disk of the node works."""
    other = Replica("b", "first", "v2")
    stage = owners()
    first, second, *_ = stage.agreed.topology.partitions.values()
    stage.agree(replace(second, replicas=(A, other, C), in_sync=(A, other, C)))
    stage.say(Acked(second.id, other, 3, 0, 0), "b")
    for name in (first.id, second.id):
        stage.say(replace(write(), partition=name), "client")
    for number in range(1, 12):
        later(stage)
        for replica in (other, C):
            stage.say(Acked(second.id, replica, 3, position(3, number), 0), replica.node)
        stage.say(replace(write(f"w.{number}", number + 1), partition=second.id), "client")
    assert silent(stage)[0] == (B,)


def test_a_node_without_replicas_of_what_is_owned_here_is_not_asked() -> None:
    stage = owners()
    records = stage.agreed.topology.partitions.values()
    left = [replace(record, replicas=(A, B), in_sync=(A, B)) for record in records]
    stage.agree(*left)
    for _ in range(10):
        assert {node for node, _ in probes(later(stage))} <= {"b"}
    other = [replace(record, epoch=4, replicas=(A, C), in_sync=(A, C)) for record in left]
    stage.agree(*other)
    for _ in range(10):
        assert {node for node, _ in probes(later(stage))} <= {"c"}
    stage.agree(*(replace(record, epoch=5, owner=None) for record in other))
    assert stage.brain.owners == {}
    for _ in range(10):
        assert probes(later(stage)) == []


def test_a_node_keeps_its_pair_while_one_of_two_replicas_there_is_left() -> None:
    """As after a move from one volume of it to another."""
    stage = owners()
    other = Replica("b", "t9", "v2")
    records = list(stage.agreed.topology.partitions.values())
    stage.agree(*(replace(r, replicas=(A, B, C, other)) for r in records))
    stage.agree(*(replace(r, replicas=(A, other, C), in_sync=(A, C)) for r in records))
    asked = {node for _ in range(20) for node, _ in probes(later(stage))}
    assert asked == {"b", "c"}


def test_another_run_is_noticed_although_the_answer_is_a_refusal() -> None:
    """Otherwise one lost replica, which is probed all the time, hides that the node was restarted,
    and the others there never hear the last watermark."""
    stage = owners()
    answer(stage, ("b", "p4"))
    refusal = Unheld("p0", B, 3, 50, "lost", LEASES["b"])
    assert probes(stage.say(refusal, "b")) == []
    effects = stage.say(replace(refusal, run=4711), "b")
    assert sorted(probes(effects)) == sorted(("b", f"p{number}") for number in range(1, COUNT))
    assert probes(stage.say(replace(refusal, run=0), "b")) == [], "a node of an earlier version"


def test_a_node_is_first_asked_about_partitions_whose_records_have_not_changed() -> None:
    """It may not have read the others yet, and would answer nothing about them."""
    stage = owners()
    for name, record in list(stage.agreed.topology.partitions.items())[:10]:
        stage.agree(replace(record, fence=1))
        for node in ("b", "c"):
            answer(stage, (node, name))
    asked: list[str] = []
    for _ in range(10):
        asked += [partition for node, partition in probes(later(stage)) if node == "c"]
    assert asked
    assert all(int(name[1:]) >= 10 for name in asked)


def test_a_replica_that_joins_a_silent_node_has_time_to_answer() -> None:
    """The node may have come back just now."""
    stage = owners()
    for _ in range(30):
        for each in probes(later(stage)):
            if each[0] == "b":
                answer(stage, each)
    assert silent(stage)[0] == (C,)
    new = Replica("c", "second")
    first, *_ = stage.agreed.topology.partitions.values()
    stage.agree(replace(first, replicas=(A, B, new), in_sync=(A, B, new)))
    assert silent(stage)[:2] == [(), (C,)]
    for _ in range(10):
        later(stage)
    assert silent(stage)[0] == (new,)


def test_what_one_event_leads_to_for_many_partitions_is_sent_in_one_turn() -> None:
    """The driver sends what one turn has for a node as one frame: here the watermarks of many
    partitions after one sync, once all of their writes are acknowledged."""
    stage = owners()
    for name in stage.brain.owners:
        stage.say(replace(write(), partition=name), "client")
        for replica in (B, C):
            stage.say(Acked(name, replica, 3, position(3, 1), 0), replica.node)
    assert len(sent(stage.store(), Written)) == COUNT
    told = [effect for effect in later(stage) if isinstance(effect, Send)]
    assert sorted(effect.to for effect in told) == ["b"] * COUNT + ["c"] * COUNT
    assert {message.watermark for message in sent([*told], Replicate)} == {position(3, 1)}
