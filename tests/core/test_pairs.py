"""Does a node cost its peers little while nothing happens, and is it noticed if it does not answer?

F196: what does not change costs nothing, however many partitions there are.
"""

import pytest
from msgspec.structs import replace

from limosa.core.effects import Effect, Send
from limosa.core.events import Ticked
from limosa.core.messages import Acked, Look, Probe, Probed, Replicate, Status, Unheld
from limosa.core.model.keys import position
from limosa.core.model.topology import Replica
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
    (status,) = sent(answer(stage, ("c", "p9")), Status)
    assert [each[0].silent for each in status.replicas.values()] == [()] * COUNT, "told at once"
    assert silent(stage) == [()] * COUNT


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
