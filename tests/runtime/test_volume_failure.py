"""What does a node do when one of its volumes fails or hangs? It goes on with the others."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import limosa
from limosa.core.effects import AppendEntries, CreateReplica, DiscardReplica, StoreEpoch
from limosa.errors import BadInput, LimosaError, VolumeFailed
from limosa.runtime.processes import NodeProcess
from limosa.runtime.work import VolumeWorkers
from limosa.storage import store as storing
from limosa.storage.store import Store
from limosa.storage.volume import Volume
from tests.runtime.test_driver import House
from tests.waiting import eventually

SECONDS = 10.0
ROWS = 100


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as ending:
        yield House(tmp_path, ending)


def volume_of(node: NodeProcess, name: str) -> Volume:
    return node.store._disks[name].volume


class TwoVolumes:
    """A node with the volumes a and b, and a table with a partition on each."""

    def __init__(self, house: House) -> None:
        self.node = house.node("ab")
        self.table = house.table(self.node, timeout_seconds=3.0, partitions=2)
        self.table.write([{"id": key, "eggs": 0} for key in range(ROWS)])
        records = self.node.driver.brain.topology.partitions
        self.partitions = {record.replicas[0].volume: name for name, record in records.items()}
        assert sorted(self.partitions) == ["a", "b"]
        self.keys = {name: self._keys_on(name) for name in "ab"}

    def _keys_on(self, volume: str) -> list[int]:
        return [row["id"] for row in self._rows(volume)]

    def _rows(self, volume: str) -> list[dict[str, int]]:
        found = self.table._scan_once(self.partitions[volume], None, [], False)
        rows: list[dict[str, int]] = found.to_pylist()
        return rows

    def write(self, volume: str, eggs: int) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        self.table.write([{"id": key, "eggs": eggs} for key in self.keys[volume]])
        return time.monotonic() - began

    def eggs(self, volume: str) -> set[int]:
        return {row["eggs"] for row in self._rows(volume)}


def breaks_when_written(volume: Volume) -> None:
    volume.fail(OSError(5, "Input/output error"))


def breaks_when_synced(volume: Volume) -> None:
    def write(batches: object) -> None:
        raise OSError(5, "Input/output error")

    volume.log.write = write  # type: ignore[method-assign]


@pytest.mark.parametrize("breaks", [breaks_when_written, breaks_when_synced])
def test_a_volume_that_fails_takes_its_own_replicas_along_only(
    house: House, breaks: Callable[[Volume], None]
) -> None:
    """S118: the node lives, serves its other volume, and says what is wrong."""
    two = TwoVolumes(house)
    breaks(volume_of(two.node, "b"))
    with pytest.raises(LimosaError):
        two.write("b", 1)
    two.write("a", 1)
    assert two.eggs("a") == {1}
    assert not two.node.driver.is_over
    assert two.node.store.volumes == ("a",)
    assert {held.replica.volume for held in two.node.driver.brain.held.values()} == {"a"}
    (refusal,) = two.node.store.refused
    assert (refusal.what, "Input/output error" in refusal.why) == ("volume b", True)
    status = two.node.driver.status()
    assert status is not None
    assert status.failed_volumes == ("b",)


def test_a_volume_that_another_thread_gives_up_just_before_its_sync_does_not_end_the_node(
    house: House,
) -> None:
    """S118: the node goes on with its other volume."""
    two = TwoVolumes(house)
    store, driver, sync = two.node.store, two.node.driver, two.node.store.sync_volume

    def too_late(name: str) -> int:
        with driver._lock:
            if name == "b" and "b" in store.volumes:
                volume_of(two.node, "b").fail(OSError(5, "Input/output error"))
                driver._lose_failed(VolumeFailed("EIO"))
        return sync(name)

    store.sync_volume = too_late  # type: ignore[method-assign]
    with pytest.raises(LimosaError):
        two.write("b", 1)
    assert store.volumes == ("a",)
    two.write("a", 1)
    assert two.eggs("a") == {1}
    assert not driver.is_over


def test_the_last_volume_that_fails_ends_the_node(house: House) -> None:
    two = TwoVolumes(house)
    for name in "ba":
        volume_of(two.node, name).fail(OSError(5, "Input/output error"))
        with pytest.raises(LimosaError):
            two.write(name, 1)
    assert two.node.end.ended.wait(SECONDS)
    assert isinstance(two.node.end.failure, VolumeFailed)


def test_a_volume_that_hangs_holds_up_no_other_one(house: House) -> None:
    """S118: while its sync waits, rows of the other volume are written, read and flushed. The
    client that wrote to the volume that hangs waits itself: its stream may sync its own write."""
    two = TwoVolumes(house)
    patient = limosa.connect(two.node.server.address, timeout_seconds=60.0)
    its_table = patient.table("birds")
    rows = [{"id": key, "eggs": 1} for key in two.keys["b"]]
    hanging, answers = volume_of(two.node, "b"), threading.Event()
    real = hanging.log.write

    def wait(batches: object) -> None:
        assert answers.wait(60.0)
        real(batches)  # type: ignore[arg-type]

    hanging.log.write = wait  # type: ignore[method-assign]
    try:
        late = threading.Thread(target=its_table.write, args=(rows,))
        late.start()
        eventually(lambda: hanging._syncing.locked(), "its sync waits")
        for number in range(5):
            assert two.write("a", number) < 2.0
        partition = two.partitions["a"]
        (held,) = [h for h in two.node.driver.brain.held.values() if h.partition == partition]
        two.node.store.flush(partition, held.replica.incarnation)
        assert two.eggs("a") == {4}
        assert late.is_alive()
    finally:
        answers.set()
    late.join(SECONDS)
    assert two.eggs("b") == {1}
    patient.close()


# --- the store


def two_volumes(directory: Path) -> Store:
    return Store({name: str(directory / name) for name in "ab"})


def test_an_abandoned_volume_takes_nothing_and_is_not_waited_for(tmp_path: Path) -> None:
    """Changes that were decided before the volume failed are ignored; nothing of it is synced."""
    with two_volumes(tmp_path) as store:
        store.start_maintenance()
        store.write(CreateReplica("p", "one", 1, "a"))
        store.write(CreateReplica("p", "two", 2, "b"))
        assert (store.sync_volume("a"), store.sync_volume("b")) == (2, 2)
        store.abandon("b", "it hangs")
        assert (store.volumes, store.failed) == (("a",), [])
        assert [(each.what, each.why) for each in store.refused] == [("volume b", "it hangs")]
        for change in (
            StoreEpoch("p", "two", 3, 7),
            CreateReplica("p", "three", 4, "b"),
            DiscardReplica("p", "two", 5),
        ):
            assert store.home(change.partition, change.incarnation) is None
            store.write(change)
        with pytest.raises(BadInput, match="there is no volume 'b'"):
            store.sync_volume("b")
        assert store.sync_volume("a") == 2
        assert list(store.free_bytes()) == ["a"]
    with two_volumes(tmp_path) as store:
        assert [each.replica.volume for each in store.restored("n1")] == ["a", "b"]


def test_a_discard_does_not_touch_a_volume_that_failed(tmp_path: Path) -> None:
    with two_volumes(tmp_path) as store:
        store.write(CreateReplica("p", "one", 1, "a"))
        store.write(CreateReplica("p", "two", 2, "b"))
        volume = store._disks["b"].volume
        volume.fail(OSError("EIO"))
        assert store.failed == ["b"]
        store.write(DiscardReplica("p", "one", 3))
        with pytest.raises(VolumeFailed):
            store.write(DiscardReplica("p", "two", 4))
        store.abandon("b", "EIO")


def test_writers_do_not_wait_for_ever_for_a_volume_that_flushes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S119: the one that waits has the node's lock, so nobody else could notice."""
    monkeypatch.setattr(storing, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(storing, "STALLED_SECONDS", 0.2)
    with two_volumes(tmp_path) as store:
        store.start_maintenance()
        store.write(CreateReplica("p", "one", 1, "a"))
        disk = store._disks["a"]
        monkeypatch.setattr(disk.volume, "measure", lambda: 1 << 40)
        monkeypatch.setattr(disk, "step", lambda: False)
        disk.volume.grown = 1 << 40
        with pytest.raises(VolumeFailed, match="rows could not be flushed for"):
            store.write(AppendEntries("p", "one", 2, ()))
        assert store.failed == ["a"]
        store.abandon("a", "it hangs")


def test_each_volume_has_a_worker_of_its_own() -> None:
    """S118: what waits for one volume does not hold up work on another."""
    workers = VolumeWorkers(lambda what, **_: None)
    answers, done = threading.Event(), threading.Event()

    def hang() -> None:
        answers.wait(60.0)

    workers.do("b", hang)
    workers.do("a", done.set)
    assert done.wait(SECONDS)
    answers.set()
    workers.close()
