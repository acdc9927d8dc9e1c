"""What two processes, many threads, a mistake of ours or an impatient user can do to a store."""

import errno
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from limosa.core.effects import AppendEntries, CreateReplica, DiscardReplica
from limosa.core.model.rows import Entry
from limosa.errors import BadInput, InvalidSchema, UnusableFile, VolumeFailed, VolumeInUse
from limosa.storage import memtable
from limosa.storage import store as store_module
from limosa.storage.maintenance import Maintenance
from limosa.storage.memtable import Memtable, added
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import Bundle
from limosa.tabular.schema import Table
from tests.storage.faulty_files import (
    Died,
    FaultyFiles,
    Moment,
    Operation,
    at_label,
    at_operation,
    die,
    fails,
)
from tests.storage.medium import MediumFiles
from tests.storage.samples import BIRDS, TINY, Hand, Host, batch_of, birds, in_view
from tests.storage.sole import SoleOwner
from tests.waiting import eventually

# ---------------------------------------------------------------- syncs that do not end


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("label", ["append log", "sync log", "overwrite log"])
def test_a_sync_that_was_interrupted_is_not_tried_again(
    label: str, error: type[BaseException]
) -> None:
    """What it took from the log may be nowhere; a second sync would call it durable."""

    def interrupt() -> None:
        raise error

    host = Host(TINY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    host.volume.sync()
    hand.put(birds(("wren", 2)))
    host.files.arm(at_label(label, 1, "middle", interrupt))
    with pytest.raises((error, VolumeFailed)):
        host.volume.sync()
    for act in (host.volume.sync, lambda: hand.put(birds(("wren", 3))), host.maintenance.step):
        with pytest.raises(VolumeFailed):
            act()
    host.volume.close()
    host.kill()
    assert not host.volume.refused
    assert in_view(host.view())["wren"] in (1, 2)


# ---------------------------------------------------------------- closing


def test_a_closed_volume_takes_nothing() -> None:
    """Another process may use the directory by now."""
    host = Host(TINY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    replica = host.replica()
    host.volume.close()
    late: list[Any] = [
        host.volume.sync,
        lambda: hand.put(birds(("wren", 2))),
        host.maintenance.step,
        lambda: host.maintenance.flush(replica),
        lambda: host.maintenance.compact(replica),
    ]
    for act in late:
        with pytest.raises(VolumeFailed, match="closed"):
            act()
    host.volume.close()
    host.open()
    assert in_view(host.view()) == {"wren": 1}


def test_a_store_that_is_being_closed_calls_nothing_durable() -> None:
    store = Store({"v1": "v1"}, MediumFiles(), TINY)
    hand = Hand(store.write).create()
    hand.put(birds(("wren", 1)))
    store.close()
    with pytest.raises(VolumeFailed, match="closed"):
        store.sync()
    store.close()


def test_closing_waits_for_what_is_under_way() -> None:
    """Otherwise a merge of the old process would replace a manifest of the new one."""
    reached, go_on = threading.Event(), threading.Event()

    def hold(operation: Operation, moment: Moment) -> None:
        if operation.label == "append flush segment" and moment == "before":
            reached.set()
            assert go_on.wait(10)

    faulty = FaultyFiles(MediumFiles())
    store = Store({"v1": "v1"}, faulty, TINY)
    hand = Hand(store.write).create()
    hand.put(birds(("wren", 1)))
    faulty.arm(hold)
    flushing = threading.Thread(target=store.flush, args=hand.key)
    flushing.start()
    assert reached.wait(10)
    closing = threading.Thread(target=store.close)
    closing.start()
    with pytest.raises(VolumeInUse):
        Store({"v1": "v1"}, faulty, TINY)
    go_on.set()
    flushing.join()
    closing.join()
    with Store({"v1": "v1"}, faulty, TINY) as again:
        assert in_view(again.view(*hand.key)) == {"wren": 1}


# ---------------------------------------------------------------- input that is wrong


def test_a_refused_append_takes_no_watermark_with_it() -> None:
    host = Host(TINY)
    hand = host.hand()
    at = hand.append(birds(("wren", 1)))
    hand.advance(at)
    with pytest.raises(AssertionError, match="Arrow rows"):
        host.write(AppendEntries(*hand.key, 0, (Entry(at + 1, at, "no rows"),)))  # type: ignore[arg-type]
    host.volume.sync()
    host.lose_power()
    assert host.view().watermark == at
    assert in_view(host.view()) == {"wren": 1}


@pytest.mark.parametrize(
    ("columns", "key", "version"),
    [
        ({"name": pa.string(), "eggs": pa.string()}, ("name",), 2),
        ({"name": pa.string(), "eggs": pa.int64(), "more": pa.int64()}, ("name",), 1),
        ({"name": pa.string(), "eggs": pa.int64(), "kind": pa.string()}, ("name", "kind"), 2),
    ],
)
def test_a_table_that_is_no_version_of_the_known_one_is_refused(
    columns: dict[str, pa.DataType], key: tuple[str, ...], version: int
) -> None:
    host = Host(TINY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    other = Table(BIRDS.id, pa.schema(columns), key, version=version)
    values = ["x" if of == pa.string() else 2 for of in columns.values()]
    with pytest.raises(InvalidSchema, match=BIRDS.id):
        hand.append(batch_of(other, [values]))
    host.reopen()
    assert in_view(host.view()) == {"wren": 1}


def test_a_batch_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limosa.tabular.bodies.BATCH_BYTES_MAX", 2000)
    host = Host(TINY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    with pytest.raises(BadInput, match="at most 2000"):
        hand.append(birds(("x" * 3000, 2)))
    host.volume.sync()
    host.lose_power()
    assert in_view(host.view()) == {"wren": 1}


def test_large_batches_of_few_rows_are_not_copied_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copying takes time, and Arrow counts a column's bytes in 31 bits."""
    monkeypatch.setattr(memtable, "TINY_BYTES", 1000)
    memtables: tuple[Memtable, ...] = ()
    for number in range(1, 9):
        memtables = added(memtables, Memtable.at(birds((f"{number}" * 300, number)), number))
    (one,) = memtables
    assert len(one.batches) == 8
    assert [one.find(int(batch.tokens[0]))[0][0] for batch in one.batches] == list(one.batches)


def test_tiny_batches_are_copied_together_by_a_reader_or_when_they_are_many() -> None:
    """A writer unites them without a copy, since clients wait for it; but each takes kilobytes."""
    memtables: tuple[Memtable, ...] = ()
    for number in range(1, 9):
        memtables = added(memtables, Memtable.at(birds((f"{number}", number)), number))
    (few,) = memtables
    given = few.parts
    assert len(given) == 8
    found = [few.find(int(batch.tokens[0]))[0] for batch in given]
    assert [batch.version_of(row) for batch, row in found] == [*range(1, 9)]
    assert few.parts == few.batches != given, "the first reader has copied them"
    memtables = ()
    for number in range(1, memtable.TINY_BATCHES_MAX + 1):
        memtables = added(memtables, Memtable.at(birds((f"{number}", number)), number))
    (many,) = memtables
    assert len(many.parts) == 1, "nobody has read them"
    assert (len(many), many.min_version, many.max_version) == (64, 1, 64)


def test_a_table_has_few_memtables_however_many_small_writes_it_gets() -> None:
    memtables: tuple[Memtable, ...] = ()
    for number in range(1, 1001):
        memtables = added(memtables, Memtable.at(birds((f"{number}", number)), number))
    assert len(memtables) <= 3 * memtable.UNITE_MEMTABLES
    assert [each.min_version for each in memtables[1:]] == [
        each.max_version + 1 for each in memtables[:-1]
    ], "they follow each other"
    assert sum(map(len, memtables)) == 1000


def test_a_file_that_rots_while_it_is_in_use_is_found_by_reading_it_again(
    tmp_path: Path,
) -> None:
    """A digest checks what was read before; nothing else does."""
    with Store({"v1": str(tmp_path / "v1")}) as store:
        hand = Hand(store.write).create()
        hand.put(birds(("wren", 1)))
        store.flush(*hand.key)
        store.view(*hand.key).digest()
        (path,) = (tmp_path / "v1").rglob("*.segment")
        content = bytearray(path.read_bytes())
        content[200] ^= 1
        with path.open("r+b") as file:
            file.write(content)
        with pytest.raises(UnusableFile, match=path.name):
            store.view(*hand.key).digest()


# ---------------------------------------------------------------- several volumes


def test_a_replica_that_is_made_on_another_volume_is_gone_from_the_first() -> None:
    files, directories = MediumFiles(), {"v1": "v1", "v2": "v2"}
    with Store(directories, files, TINY) as store:
        hand = Hand(store.write).create("v1")
        hand.put(birds(("wren", 1)))
        store.flush(*hand.key)
        store.write(CreateReplica(*hand.key, 0, "v2"))
        assert in_view(store.view(*hand.key)) == {}
        store.write(DiscardReplica(*hand.key, 0))
    with Store(directories, files, TINY) as store:
        assert store.restored("n1") == ()


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_a_volume_that_can_not_be_opened_takes_no_other_with_it(code: int) -> None:
    memory = MediumFiles()
    with Store({"v1": "v1"}, memory, TINY) as store:
        hand = Hand(store.write).create()
        hand.put(birds(("wren", 1)))

    def plan(operation: Operation, moment: Moment) -> None:
        if operation.path.startswith("v2") and moment == "before":
            raise OSError(code, "the second disk is broken")

    with Store({"v1": "v1", "v2": "v2"}, FaultyFiles(memory, plan), TINY) as store:
        assert [refusal.what for refusal in store.refused] == ["volume v2"]
        assert "broken" in store.refused[0].why
        assert in_view(store.view(*hand.key)) == {"wren": 1}


# ---------------------------------------------------------------- maintenance under load


def test_many_writers_of_one_partition_lose_nothing(tmp_path: Path) -> None:
    """S34: each row of each thread is there, exactly once."""
    writers, batches, rows = 6, 30, 7
    settings = StorageSettings(log_file_bytes=64 << 10, replica_memory_bytes=8 << 10)
    with Store({"v1": str(tmp_path / "v1")}, settings=settings) as store:
        store.start_maintenance()
        owner = SoleOwner(store, "p1", "r1")

        def write(writer: int) -> None:
            for batch in range(batches):
                owner.upsert(birds(*((f"{writer}-{batch}-{row}", row) for row in range(rows))))

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with Store({"v1": str(tmp_path / "v1")}, settings=settings) as store:
        found = in_view(SoleOwner(store, "p1", "r1").view)
        assert len(found) == writers * batches * rows
        assert sum(value or 0 for value in found.values()) == writers * batches * sum(range(rows))


def test_replicas_that_are_flushed_together_survive_a_crash_at_any_point() -> None:
    """Each of them has its rows in its segments or in the log, whatever the others have."""
    for number in range(1, 100):
        host, died = Host(TINY), False
        for eggs, name in enumerate(("p1", "p2", "p3")):
            host.hand(name).put(birds(("wren", eggs)))
        host.volume.sync()
        host.files.arm(at_operation(number, "before", die))
        try:
            host.maintenance._flush(*host.volume.replicas.values())
        except Died:
            died = True
            host.lose_power(number)
        for eggs, name in enumerate(("p1", "p2", "p3")):
            assert in_view(host.view(name)) == {"wren": eggs}, number
        if not died:
            assert number > 20, "directories, segments, manifests and VOLUME"
            assert not any(replica.is_dirty for replica in host.volume.replicas.values())
            return
    raise AssertionError("a flush does not come to an end")


def test_flushes_leave_a_turn_to_the_log() -> None:
    """However much there is to flush, the log is shortened, and segments are merged."""
    settings = StorageSettings(
        log_file_bytes=8 << 10, log_bytes_max=40 << 10, replica_memory_bytes=500, memory_bytes=500
    )
    host = Host(settings)
    hand = host.hand()
    for number in range(300):
        hand.put(birds(*((f"{number}-{each}", each) for each in range(30))))
        hand.trim(hand.last)
        host.volume.sync()
        host.maintenance.step()
    assert sum(host.volume.log.sizes.values()) < 4 * settings.log_bytes_max
    assert len(host.view().tables[BIRDS.id].segments) < 40


def test_what_fails_by_damage_is_not_tried_for_ever() -> None:
    host = Host(StorageSettings(replica_memory_bytes=1 << 20))
    hand = host.hand()
    for number in range(6):
        hand.put(birds((f"bird {number}", number)))
        host.flush()
    segment = host.segments()[0]
    host.volume.close()
    host.memory.flip(segment, 8 * 300)
    host.open()
    for _ in range(3):
        host.maintenance.step()
    before = len(host.files.trace)
    for _ in range(10):
        assert not host.maintenance.step()
    assert len(host.files.trace) == before
    assert segment.rsplit("/", 1)[1] in "".join(host.maintenance.troubles)


def test_maintenance_survives_a_mistake_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(maintenance: Maintenance) -> bool:
        raise RuntimeError("a mistake")

    with Store({"v1": "v1"}, MediumFiles(), TINY) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Maintenance, "step", mistaken)
            store.start_maintenance()
            eventually(lambda: any("a mistake" in trouble for trouble in store.troubles))
        hand = Hand(store.write).create()
        _put_many(hand, range(40))
        eventually(lambda: bool(store.view(*hand.key).tables[BIRDS.id].segments))


def test_writers_wait_for_room_and_are_told_if_there_will_be_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(store_module, "TROUBLE_SECONDS", 0.05)
    faulty = FaultyFiles(MediumFiles())
    settings = StorageSettings(replica_memory_bytes=2000, memory_bytes=4000)
    with Store({"v1": "v1"}, faulty, settings) as store:
        hand = Hand(store.write).create()
        store.start_maintenance()
        _put_many(hand, range(200))
        assert len(in_view(store.view(*hand.key))) == 4000
        faulty.arm(fails("append flush segment", errno.ENOSPC, times=10**9))
        with pytest.raises(VolumeFailed, match="No space"):
            _put_many(hand, range(200, 400))


def test_entries_that_were_carried_are_read_back_together() -> None:
    """One frame holds many of them; it is read once."""
    host = Host(StorageSettings(log_file_bytes=8 << 10, log_bytes_max=30 << 10, log_useful_max=1.0))
    hand = host.hand()
    for number in range(60):
        hand.put(birds((f"bird {number}", number)))
    host.volume.sync()
    host.flush()
    host.fill_log()
    for _ in range(6):
        host.maintenance.step()
    entries = host.volume.tail(host.replica(), 0)
    rows = [entry.rows for entry in entries]
    assert [bundle.batches[0].key(0) for bundle in rows if isinstance(bundle, Bundle)] == [
        (f"bird {number}",) for number in range(60)
    ]


def _put_many(hand: Hand, numbers: Iterable[int]) -> None:
    for number in numbers:
        hand.put(birds(*((f"{number}-{each}", each) for each in range(20))))
