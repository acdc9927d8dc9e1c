"""Is a cluster that went away, or came back elsewhere, found again?"""

from typing import Any, cast

import pytest

from limosa.admin import reconnection
from limosa.admin.reconnection import ReconnectingCluster
from limosa.client.operator import Operator
from limosa.errors import OutcomeUnknown, Refused


class FakeConnection:
    def __init__(self, number: int) -> None:
        self.number = number
        self.fails = False
        self.closed = False

    def agreed(self) -> dict[str, Any]:
        if self.fails:
            raise OutcomeUnknown("no node answers")
        return {"number": self.number}

    def close(self) -> None:
        self.closed = True


class Dial:
    def __init__(self) -> None:
        self.made: list[FakeConnection] = []

    def __call__(self) -> Operator:
        self.made.append(FakeConnection(len(self.made)))
        return cast(Operator, self.made[-1])


def test_one_connection_serves_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    dial = Dial()
    cluster = ReconnectingCluster(dial)
    assert [cluster.agreed()["number"] for _ in range(3)] == [0, 0, 0]
    dial.made[0].fails = True
    with pytest.raises(OutcomeUnknown):
        cluster.agreed()
    assert [each.closed for each in dial.made] == [
        False
    ]  # a young one is not replaced: it would not be any better
    monkeypatch.setattr(reconnection, "FRESH_SECONDS", -1.0)
    with pytest.raises(OutcomeUnknown):
        cluster.agreed()
    assert dial.made[0].closed
    assert cluster.agreed()["number"] == 1
    cluster.close()
    assert dial.made[1].closed


def test_a_cluster_that_is_not_there_is_looked_for_each_time() -> None:
    tries: list[int] = []

    def connect() -> Operator:
        tries.append(1)
        raise Refused("no cluster runs")

    cluster = ReconnectingCluster(connect)
    for _ in range(2):
        with pytest.raises(Refused):
            cluster.agreed()
    cluster.close()
    assert len(tries) == 2
