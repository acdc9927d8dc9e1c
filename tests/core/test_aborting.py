"""What was asked for is taken back by what fits how far it is."""

import pytest

from limosa.core.coordinator.aborting import aborting
from limosa.core.model.changes import Agreed
from limosa.core.model.intent import Assignment, Intent, Placement
from limosa.core.model.requests import (
    CancelChange,
    CancelRun,
    LedToRun,
    LockCluster,
    MovePartition,
    PauseRun,
    Request,
    StartRun,
    WithdrawRequest,
)
from limosa.errors import IllegalRequest

PENDING = Assignment("move", (Placement("b"),), trigger=7)
AGREED = Agreed(intents={"p": Intent("p", (Placement("a"),), PENDING)})


@pytest.mark.parametrize(
    ("request_", "taken_back"),
    [
        (Request("x", MovePartition("p")), Request("id", WithdrawRequest("x"))),
        (
            Request("x", StartRun(None), state="done", led_to=LedToRun("r9"), trigger=9),
            Request("id", CancelRun("r9")),
        ),
        (
            Request("x", MovePartition("p"), state="done", trigger=7),
            Request("id", CancelChange("p", 7)),
        ),
    ],
)
def test_what_goes_on_is_taken_back(request_: Request, taken_back: Request) -> None:
    assert aborting(AGREED, request_, "id") == taken_back


@pytest.mark.parametrize(
    "ended",
    [
        Request("x", MovePartition("p"), state="refused"),
        Request("x", MovePartition("p"), state="done", trigger=3),
        Request("x", MovePartition("q"), state="done", trigger=7),
        Request("x", LockCluster(), state="done", trigger=7),
        Request("x", PauseRun("r9"), state="done", led_to=LedToRun("r9"), trigger=7),
    ],
)
def test_what_has_ended_is_not(ended: Request) -> None:
    with pytest.raises(IllegalRequest, match="x has ended"):
        aborting(AGREED, ended, "id")
