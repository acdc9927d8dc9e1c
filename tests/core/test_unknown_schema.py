"""May a table that a node does not know be known soon? Until a newer topology says otherwise."""

from limosa.core.effects import ReadTopology
from limosa.core.events import Ticked
from limosa.core.participant.hosting import UNKNOWN_MAX, UNKNOWN_SECONDS
from tests.core.stage import Stage, done, follower_on_stage


def may_learn(stage: Stage, schema: int = 7) -> bool:
    return stage.brain.hosting.may_learn(stage.now, schema)


def test_a_node_that_has_just_started_may_learn_of_any_table() -> None:
    """S130: it has no lease, or has not read the topology."""
    stage = Stage("a")
    assert may_learn(stage)
    stage.now += 1
    assert may_learn(stage)


def test_only_a_topology_that_was_read_afterwards_shows_that_there_is_no_such_table() -> None:
    """S130: so a write to a table that was created a moment ago waits, and a write to a table that
    was dropped is refused soon."""
    stage = follower_on_stage()
    stage.now += 1
    assert may_learn(stage)
    stage.now += 0.01
    assert done(stage.tell(Ticked()), ReadTopology)
    assert may_learn(stage)
    stage.read_topology()
    assert not may_learn(stage)
    stage.now += UNKNOWN_SECONDS + 1
    assert may_learn(stage)


def test_callers_cant_make_a_node_remember_everything() -> None:
    stage = follower_on_stage()
    for schema in range(2 * UNKNOWN_MAX):
        assert may_learn(stage, schema)
    assert len(stage.brain.hosting._unknown) <= UNKNOWN_MAX
