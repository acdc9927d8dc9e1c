"""Does a node know how it is doing? Its own lag, the coordinator's attention, and churn."""

import pytest
from msgspec.structs import replace

from limosa.core.events import Ticked
from limosa.core.machines.catalogue import STREAMING, WRITE_BOTH
from limosa.core.messages import Look
from limosa.core.model.topology import Partition
from limosa.core.participant.vitals import RESTLESS_TIMES, WINDOW_SECONDS, NodeVitals
from tests.core.samples import A, B, moving, stable
from tests.core.stage import Stage


def registered(record: Partition | None = None) -> Stage:
    stage = Stage("b")
    stage.register(record or stable())
    return stage


def seen(stage: Stage) -> NodeVitals:
    return stage.brain.vitals.seen(stage.now)


def test_a_new_node_has_nothing_to_tell() -> None:
    assert seen(Stage("b")) == NodeVitals()


def test_a_node_that_ticks_late_is_behind_and_that_is_forgotten_after_a_minute() -> None:
    stage = registered()
    for _ in range(3):
        stage.now += 0.02
        stage.tell(Ticked())
    assert seen(stage).lag_seconds == pytest.approx(0.02)
    stage.now += 4.0
    assert seen(stage).lag_seconds == pytest.approx(4.0)  # it has not ticked yet
    stage.tell(Ticked())
    stage.now += 0.5
    assert seen(stage).lag_seconds == pytest.approx(4.0)
    for _ in range(200):
        stage.now += 0.5
        stage.tell(Ticked())
    assert seen(stage).lag_seconds == pytest.approx(0.5)


def test_a_coordinator_that_stops_asking_is_noticed() -> None:
    stage = registered()
    assert seen(stage).asked_seconds is None
    stage.say(Look(50), "coordinator")
    stage.now += 3.0
    assert seen(stage).asked_seconds == pytest.approx(3.0)
    assert seen(stage).unheard_seconds is None  # it does not say what it hears


def test_a_coordinator_that_does_not_take_up_reports_is_noticed() -> None:
    stage = registered()
    stage.say(Look(50, heard=1), "coordinator")
    sequence = stage.status().sequence
    stage.now += 1.0
    stage.say(Look(50, heard=sequence), "coordinator")
    assert seen(stage).unheard_seconds == 0.0
    for _ in range(5):
        stage.now += 1.0
        stage.say(Look(50, heard=sequence), "coordinator")
    assert seen(stage).asked_seconds == 0.0
    assert seen(stage).unheard_seconds == pytest.approx(5.0)


def test_take_outs_returns_and_elections_are_churn() -> None:
    stage = registered()
    for number in range(RESTLESS_TIMES):
        assert seen(stage).restless == 0
        assert seen(stage).changes == 2 * number
        stage.agree(stable(in_sync=(A, B)))
        stage.agree(stable())
    assert seen(stage).changes == 2 * RESTLESS_TIMES
    assert seen(stage).restless == 1
    stage.now += 2 * WINDOW_SECONDS + 1.0
    stage.tell(Ticked())
    assert seen(stage).changes == 0


def test_elections_and_withdrawn_proposals_disturb_a_partition() -> None:
    stage = registered()
    for epoch in range(4, 4 + RESTLESS_TIMES - 1):
        stage.agree(stable(epoch=epoch))
    stage.agree(stage.topology.partitions["p"])  # committed unchanged
    assert seen(stage).restless == 1


def test_what_somebody_asked_for_is_no_churn() -> None:
    stage = registered(replace(stable(owner=None), epoch=0))
    stage.agree(stable(epoch=1))  # created
    stage.agree(moving(WRITE_BOTH, epoch=1))
    stage.agree(moving(STREAMING, epoch=1))
    stage.agree(replace(stable(), id="another"))
    assert seen(stage).changes == 0
    change = moving(STREAMING, epoch=1)
    stage.agree(replace(change, in_sync=change.in_sync[:2]))  # but nobody asked for this one
    assert seen(stage).changes == 1
