"""Is a write ordered only as it was routed, by the layout that the node has applied?"""

import pytest
from msgspec.structs import replace

from limosa.core.messages import Redirect, Wait
from limosa.core.model.keys import TokenRange
from limosa.core.participant.admission import admissible
from limosa.errors import BadInput
from tests.core.stage import owner_on_stage, sent, write


def test_a_write_that_was_routed_by_the_applied_layout_is_ordered_as_it_is() -> None:
    stage = owner_on_stage()
    asked = write()
    assert admissible(stage.topology, asked, ("z",)) is asked


@pytest.mark.parametrize(("version", "zones", "answer"), [
    (2, ("z",), Wait),
    (0, ("z",), Redirect),
    (1, (None,), Wait),
])  # fmt: skip
def test_a_write_that_can_not_be_checked_is_never_ordered(
    version: int, zones: tuple[str | None, ...], answer: type
) -> None:
    """F4: whatever the node has applied by the time it takes the write."""
    stage = owner_on_stage()
    checked = admissible(stage.topology, write(version=version), zones)
    assert len(sent(stage.say(checked, "client"), answer)) == 1
    elsewhere = admissible(stage.topology, replace(write(version=1), partition="q"), ())
    assert len(sent(stage.say(elsewhere, "client"), Wait)) == 1


def test_a_write_to_another_range_or_another_zone_is_refused() -> None:
    stage = owner_on_stage()
    with pytest.raises(BadInput, match="range"):
        admissible(stage.topology, replace(write(), range=TokenRange(0, 7)), ("z",))
    with pytest.raises(BadInput, match="zone"):
        admissible(stage.topology, write(), ("z", "another"))
