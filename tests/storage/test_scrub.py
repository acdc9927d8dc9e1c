"""Does a scrub find what nobody reads, and is the damage remembered until it is mended?"""

import errno

import pytest

from limosa.errors import DamagedFile
from limosa.storage.scrub import verify
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings
from tests.storage.medium import MediumFiles
from tests.storage.samples import BIRDS, Hand, Host, birds, in_view
from tests.waiting import eventually

SMALL_LOGS = StorageSettings(log_file_bytes=4096 + 512, log_bytes_max=1 << 20)


def scrubbed(host: Host) -> tuple[int, list[tuple[str, str]]]:
    """One pass: the bytes that were verified, and the damage that was found."""
    found: list[tuple[str, str]] = []
    host.maintenance.on_damage = lambda partition, _, error: found.append(
        (partition, f"/{error.path}")
    )
    return sum(verify(host.maintenance)), found


def filled(settings: StorageSettings | None = None) -> Host:
    host = Host(settings or StorageSettings())
    for name in ("p1", "p2"):
        hand = host.hand(name)
        for number in range(5):
            hand.put(birds(*((f"bird {number} {each}", each) for each in range(10))))
            host.volume.sync()
    return host


def test_a_scrub_verifies_every_byte_of_segments_and_complete_log_files() -> None:
    """F193."""
    host = filled(SMALL_LOGS)
    host.flush("p1")
    (segment,) = host.segments("p1")
    sizes = host.volume.log.sizes
    last = host.volume.catalogue.last_log
    complete = [size for number, size in sizes.items() if number < last]
    size, found = scrubbed(host)
    assert found == []
    assert len(complete) > 2
    assert size == host.memory.read(segment).size - 64 + sum(complete)


@pytest.mark.parametrize("byte", [300, -40, -8], ids=["a block", "the index", "the trailer"])
def test_a_flipped_bit_is_found_though_nobody_reads_it(byte: int) -> None:
    """F193."""
    host = filled()
    host.flush("p1")
    host.flush("p2")
    (segment,) = host.segments("p2")
    at = byte if byte > 0 else host.memory.read(segment).size + byte
    host.memory.flip(segment, 8 * at)
    _, found = scrubbed(host)
    assert found == [("p2", segment)]


def test_a_sector_that_cant_be_read_is_damage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """F193: it must not end the process."""
    host = filled()
    host.flush("p1")

    def fails(path: str, at: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(host.files, "read_part", fails)
    _, found = scrubbed(host)
    assert [partition for partition, _ in found] == ["p1"]


def test_a_segment_that_was_replaced_meanwhile_is_no_damage() -> None:
    host = filled()
    host.flush("p1")
    found: list[str] = []
    host.maintenance.on_damage = lambda partition, _, error: found.append(error.path)
    passing = verify(host.maintenance)
    next(passing)
    for number in range(5):
        Hand(host.write, "p1").put(birds((f"late {number}", number)))
        host.flush("p1")
    host.compact("p1")
    list(passing)
    assert found == []


def test_a_damaged_log_file_is_removed_and_nothing_is_lost() -> None:
    """F193: a start would refuse the whole volume. Rows of the file are in memory, and entries that
    other replicas may need are written again."""
    host = filled(SMALL_LOGS)
    before = {name: in_view(host.view(name)) for name in ("p1", "p2")}
    number = host.volume.catalogue.first_log + 1
    path = f"{host.volume.directory}/log/{number:08}.log"
    host.memory.flip(path, 8 * 4200)
    _, found = scrubbed(host)
    assert found == []
    assert path in "".join(host.maintenance.troubles)
    host.maintain()
    assert host.maintenance.troubles == []
    assert path.rsplit("/", 1)[1] not in host.memory.names(f"{host.volume.directory}/log")
    host.reopen()
    assert {name: in_view(host.view(name)) for name in ("p1", "p2")} == before


def test_entries_that_cant_be_written_again_are_trimmed() -> None:
    """F193: their rows are in segments, so nothing is lost. The file goes once the replica's log
    begins later."""
    host = filled(SMALL_LOGS)
    host.flush("p1")
    before = in_view(host.view("p1"))
    first = host.replica("p1").log[0]
    path = f"/{host.volume.directory}/log/{first.place.file:08}.log"
    host.memory.flip(path, 8 * (first.place.at + first.place.size // 2))
    lost: list[tuple[str, int]] = []
    host.maintenance.on_lost_log = lambda partition, _, through: lost.append((partition, through))
    _, found = scrubbed(host)
    for _ in range(10):
        host.maintenance.step()
    assert found == []
    (partition, through) = lost[0]
    assert partition == "p1"
    assert first.entry.at <= through < host.replica("p1").log[-1].entry.at
    hand = Hand(host.write, "p1")
    hand.trim(through)
    host.volume.sync()
    host.maintain()
    assert host.maintenance.troubles == []
    assert path.rsplit("/", 1)[1] not in host.memory.names(f"{host.volume.directory}/log")
    host.reopen()
    assert in_view(host.view("p1")) == before
    assert len(in_view(host.view("p2"))) == 50


def test_damage_is_remembered_until_the_file_is_restored() -> None:
    """F193: a start reads no rows."""
    host = filled()
    host.flush("p1")
    (segment,) = host.segments("p1")
    host.memory.flip(segment, 8 * 300)
    host.maintenance.mark_damaged(host.replica("p1"), "damaged")
    host.maintenance.mark_damaged(host.replica("p2"), "damaged")  # it has no files yet
    host.reopen()
    known = {held.partition: held.damaged for held in host.volume.restored("n1")}
    assert segment in f"/{known['p1']}"
    assert known["p2"] == ""
    host.maintain()
    host.reopen()
    host.memory.flip(segment, 8 * 300)
    host.reopen()
    assert {held.damaged for held in host.volume.restored("n1")} == {""}
    host.reopen()
    assert {held.damaged for held in host.volume.restored("n1")} == {""}


def test_a_store_scrubs_in_the_background_and_reports_what_it_finds() -> None:
    """F193."""
    files = MediumFiles()
    with Store({"v1": "v1"}, files) as store:
        hand = Hand(store.write).create()
        hand.put(birds(*((f"bird {each}", each) for each in range(50))))
        store.sync()
        store.flush(*hand.key)
        found: list[DamagedFile] = []
        store.report_damage(lambda *about: found.append(about[2]), lambda *about: None)
        (ranged,) = store.view(*hand.key).tables[BIRDS.id].segments
        files.flip(ranged.segment.path, 8 * 300)
        store.start_scrub(0)
        store.start_scrub(1 << 20)
        eventually(lambda: found, "the scrub finds it")
        store.mark_damaged(*hand.key, found[0].message)
        store.mark_damaged("gone", "x", found[0].message)
