"""What if a request reaches a node that has just started? It waits until the node knows enough."""

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

import limosa
from limosa.core.model.changes import Agreed
from limosa.runtime.journal import Journal
from limosa.runtime.node import NodeDriver
from limosa.runtime.pipelines import PipelineConfig, mover_for
from limosa.runtime.processes import (
    CoordinatorConfig,
    CoordinatorProcess,
    NodeConfig,
    NodeProcess,
)
from limosa.transport.security import Security

OPEN = Security(insecure=True)
LATE_SECONDS = 1.0


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("request_of", ["write", "get", "scan"])
def test_a_request_to_a_starting_node_waits(
    tmp_path: Path, ending: ExitStack, monkeypatch: pytest.MonkeyPatch, request_of: str
) -> None:
    """S130: the node listens, but does not know the topology, so it knows no table. Requests of a
    client that is connected already wait, and succeed."""
    journal = Journal("test", stream=io.StringIO())
    metastore = str(tmp_path / "metastore.db")
    config = NodeConfig(
        name="n1", cluster="c", metastore=metastore, data=str(tmp_path / "n1"), security=OPEN
    )
    mover = mover_for(
        PipelineConfig(kind="threads", scratch=str(tmp_path / "s")), OPEN, "c", "c", journal
    )
    coordinator = CoordinatorConfig(name="c", cluster="c", metastore=metastore, security=OPEN)
    ending.callback(CoordinatorProcess(coordinator, mover, journal).stop)
    node = NodeProcess(config, journal)
    address = node.server.address
    config = replace(config, port=int(address.rsplit(":", 1)[1]))
    connection = ending.enter_context(limosa.operate(address, timeout_seconds=20.0))
    table = connection.create_table("t", {"k": "int64", "v": "int64"}, "k", replicas=1)
    table.write([{"k": 1, "v": 1}])
    node.stop()

    known = threading.Event()
    follow = NodeDriver._followed

    def follow_late(driver: NodeDriver, agreed: Agreed, asked: bool) -> None:
        known.wait(30.0)
        follow(driver, agreed, asked)

    monkeypatch.setattr(NodeDriver, "_followed", follow_late)
    requests = {
        "write": lambda: table.write([{"k": 2, "v": 2}]),
        "get": lambda: table.get(1),
        "scan": lambda: table.count(),
    }
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(NodeProcess, config, journal)
        asked = pool.submit(requests[request_of])
        threading.Event().wait(LATE_SECONDS)
        assert not asked.done()
        known.set()
        ending.callback(starting.result(30.0).stop)
        assert asked.result(30.0) in (1, {"k": 1, "v": 1})
