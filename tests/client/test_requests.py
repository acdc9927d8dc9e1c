"""What does a client say about a request that nobody answers?"""

import pytest

from limosa.client.requests import answered
from limosa.client.session import Session
from limosa.core.model.requests import DropTable, Request
from limosa.errors import OutcomeUnknown


class Silent(Session):
    """A cluster that is locked stores requests, and answers them later."""

    def __init__(self) -> None:
        pass

    def call(self, name: str, body: bytes = b"", seconds: float = 0.0) -> bytes:
        raise OutcomeUnknown("no answer in time: Deadline Exceeded", "try again")


def test_a_request_without_an_answer_is_named() -> None:
    """It may still be carried out: sending it again would be another request."""
    with pytest.raises(OutcomeUnknown, match="drop-1 was not answered in time") as caught:
        answered(Silent(), Request("drop-1", DropTable("items", "t1")))
    assert caught.value.advice.startswith("see `limosa operations show drop-1`")
