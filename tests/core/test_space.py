"""What does a node do if its disk is full? It refuses writes with the reason, and stays alive."""

import pytest

from limosa.core.events import Measured
from limosa.core.messages import Acked, Read, Refuse
from limosa.core.participant.reading import Admitted
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.space import can_follow, lacks_space
from tests.core.samples import RECORD_REVISION, A, B, P
from tests.core.stage import entry, follower_on_stage, owner_on_stage, replicate, sent, write

SETTINGS = ParticipantSettings(free_bytes_min=256 << 20)
PLENTY, LITTLE, NOTHING = 1 << 30, 100 << 20, 0


@pytest.mark.parametrize(
    ("measured", "accepts", "follows"),
    [
        (Measured({}, {}), True, True),
        (Measured({"": PLENTY}, {}), True, True),
        (Measured({"": LITTLE}, {}), False, True),
        (Measured({"": NOTHING}, {}), False, False),
        (Measured({"": PLENTY}, {}, full=("",)), False, False),
        (Measured({"": PLENTY, "v2": NOTHING}, {}, full=("v2",)), True, True),
    ],
)
def test_an_owner_stops_before_its_followers_do(
    measured: Measured, accepts: bool, follows: bool
) -> None:
    """S129: each volume counts for itself."""
    assert (not lacks_space(measured, "", SETTINGS)) is accepts
    assert can_follow(measured, "", SETTINGS) is follows


def test_the_reason_names_the_volume_and_the_limit() -> None:
    measured = Measured({"v2": LITTLE}, {})
    assert (
        lacks_space(measured, "v2", SETTINGS) == "100 MiB free on volume v2, and 256 MiB are needed"
    )


def test_an_owner_with_a_full_disk_refuses_writes_and_serves_reads() -> None:
    """S129: until there is space again."""
    stage = owner_on_stage()
    stage.tell(Measured({"": NOTHING}, {}))
    (refused,) = sent(stage.say(write()), Refuse)
    assert refused.code == "DiskFull"
    assert "0 MiB free" in refused.why
    assert stage.owner.held.last == 0
    read = Read("r.1", P, 1, 3, RECORD_REVISION, None, "t")
    assert isinstance(stage.brain.reading.admit(stage.now, read), Admitted)
    stage.tell(Measured({"": PLENTY}, {}))
    assert not sent(stage.say(write()), Refuse)
    assert stage.owner.held.last > 0
    assert stage.owner.held.replica == A


def test_a_follower_with_a_full_disk_takes_no_entries_and_says_so() -> None:
    """S129: it leaves the in-sync set, and catches up when there is space again."""
    stage = follower_on_stage()
    stage.say(replicate(B, how="begin"), "a")
    stage.tell(Measured({"": PLENTY}, {}, full=("",)))
    (acked,) = sent(stage.say(replicate(B, entries=(entry(5, 0),)), "a"), Acked)
    assert acked.position == 0
    stage.tell(Measured({"": PLENTY}, {}))
    stage.say(replicate(B, entries=(entry(5, 0),)), "a")
    (acked,) = sent(stage.store(), Acked)
    assert acked.position == 5
