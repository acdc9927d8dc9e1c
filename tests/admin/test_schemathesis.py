"""Does the service do what its description says, whatever is sent? Schemathesis makes up requests.

Sound ones and broken ones, with every check that it has: no 5xx, no status, media type, header or
body that is not described, nothing broken taken, no method and no missing token let through.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from starlette.types import Receive, Scope, Send

from limosa.admin.app import document
from tests.admin.fakes import FakeRuns, Stand

EXAMPLES = 25
ACCEPTED = ["2xx", 401, 403, 404, 409, 422]
"""What is sound by its schema may still be refused: a key that is no column, a node that is not."""


class Served:
    """The application, once a test has made it."""

    stand: Stand | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.stand is not None
        await self.stand.app(scope, receive, send)


served = Served()
schema = schemathesis.openapi.from_dict(
    document(),
    config=SchemathesisConfig.from_dict(
        {
            "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
            # A token is given with each; what is made up would be overwritten by it.
            "generation": {"deterministic": True, "with-security-parameters": False},
        }
    ),
)
schema.app = served


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    served.stand = Stand(tmp_path_factory.mktemp("schemathesis"), FakeRuns())
    yield served.stand
    served.stand.service.close()


@pytest.mark.thorough
@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_nothing_that_is_sent_gets_an_answer_that_is_not_described(
    case: "schemathesis.Case[Any]", stand: Stand
) -> None:
    """Of all routes, those about runs too."""
    case.call_and_validate(headers=stand.headers("admin"))
