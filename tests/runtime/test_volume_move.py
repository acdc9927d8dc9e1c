"""Does a partition come to another disk of its node without a copy, while it is written?"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import limosa
from limosa.core.model.intent import Placement
from limosa.core.model.keys import PartitionId
from limosa.core.model.requests import MoveToVolume
from tests.runtime.test_driver import House
from tests.waiting import eventually

ROWS = 20_000
SECONDS_MAX = 30.0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as ending:
        yield House(tmp_path, ending)


def segments(directory: Path) -> set[str]:
    return {each.name for each in directory.rglob("*.segment")}


def moved_to(connection: limosa.client.Operator, name: PartitionId, to: str) -> bool:
    record = connection.refresh().partitions[name]
    return record.transition is None and [each.volume for each in record.replicas] == [to]


def test_a_volume_move_links_its_files_under_a_writer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F107: the files get another name; nothing is copied, and no write is lost."""
    linked: list[str] = []
    link = os.link

    def noting(source: str, target: str) -> None:
        link(source, target)
        linked.append(Path(target).name)

    monkeypatch.setattr(os, "link", noting)
    node = house.node(("one", "two"))
    table = house.table(node)
    connection = limosa.operate(node.server.address)
    table.write([{"id": number, "eggs": 0} for number in range(ROWS)])
    (record,) = connection.topology.partitions.values()
    (replica,) = record.replicas
    other = "two" if replica.volume == "one" else "one"
    node.store.flush(record.id, replica.incarnation)
    before = segments(house.directory / f"volume-{replica.volume}")
    assert before
    stop = threading.Event()
    written: dict[int, int] = {}

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            table.write({"id": number % 100, "eggs": number})
            written[number % 100] = number

    writer = threading.Thread(target=write)
    writer.start()
    try:
        connection.submit(MoveToVolume(record.id, source="n1", target=Placement("n1", other)))
        eventually(lambda: moved_to(connection, record.id, other), "it moves", SECONDS_MAX)
    finally:
        stop.set()
        writer.join()
    assert before <= set(linked)
    left = house.directory / f"volume-{replica.volume}"
    eventually(lambda: not segments(left), "what was left behind goes", SECONDS_MAX)
    found = {row["id"]: row["eggs"] for row in table.scan().to_pylist()}
    assert found == {number: written.get(number, 0) for number in range(ROWS)}
    connection.close()
