"""What was asked for is taken back by what fits how far it is."""

import pytest

from limosa.core.coordinator.aborting import aborting
from limosa.core.model.changes import Agreed
from limosa.core.model.intent import Assignment, Intent, Placement, Request
from limosa.errors import IllegalRequest

PENDING = Assignment("move", (Placement("b"),), trigger=7)
AGREED = Agreed(intents={"p": Intent("p", (Placement("a"),), PENDING)})


@pytest.mark.parametrize(
    ("request_", "taken_back"),
    [
        (Request("x", "move", "p"), Request("id", "withdraw", name="x")),
        (
            Request("x", "start_run", state="done", trigger=9),
            Request("id", "cancel_run", name="r9"),
        ),
        (
            Request("x", "move", "p", state="done", trigger=7),
            Request("id", "cancel", "p", cancels=7),
        ),
    ],
)
def test_what_goes_on_is_taken_back(request_: Request, taken_back: Request) -> None:
    assert aborting(AGREED, request_, "id") == taken_back


@pytest.mark.parametrize(
    "ended",
    [
        Request("x", "move", "p", state="refused"),
        Request("x", "move", "p", state="done", trigger=3),
        Request("x", "move", "q", state="done", trigger=7),
        Request("x", "lock", state="done", trigger=7),
    ],
)
def test_what_has_ended_is_not(ended: Request) -> None:
    with pytest.raises(IllegalRequest, match="x has ended"):
        aborting(AGREED, ended, "id")
