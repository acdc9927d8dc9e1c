"""What is in the log after whatever happened to it?"""

import threading
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from limosa.errors import BadInput, UnusableFile
from limosa.storage.log import (
    HEADER_BYTES,
    FoundLogFile,
    Frame,
    VolumeLog,
    adopt_tail,
    file_name,
    read_file,
    read_frame,
    read_frames,
)
from limosa.storage.volume import StorageSettings
from limosa.tabular.bodies import ALIGNMENT
from tests.storage.faulty_files import Moment, Operation, at_label, die, nothing_happens
from tests.storage.medium import MediumFiles
from tests.storage.samples import BIRDS, SONGS, TINY, Host, birds, in_view, records, songs

FIRST = f"log/{file_name(1)}"


@pytest.fixture
def files() -> MediumFiles:
    return MediumFiles(["log"])


def started(files: MediumFiles, sequence: int = 0, number: int = 1) -> VolumeLog:
    return VolumeLog(files, "log", sequence, number, HEADER_BYTES + 1000, lambda number: None)


def sync(log: VolumeLog) -> None:
    log.write(log.take())


def heads(reading: FoundLogFile) -> list[bytes]:
    return [frame.head for frame in reading.frames]


def all_frames(files: MediumFiles, first: int, last: int) -> Iterator[Frame]:
    return read_frames(files, "log", first, last, lambda number, reading: None)


# ------------------------------------------------------------------------------------- frames


def test_frames_come_back_in_order_with_their_bodies(files: MediumFiles) -> None:
    log = started(files)
    places = [
        log.append(b"one"),
        log.append(b"two", [b"x" * 100, pa.py_buffer(b"y" * 64)]),
        log.append(b""),
    ]
    sync(log)
    reading = read_file(files, "log", 1, is_last=True)
    assert heads(reading) == [b"one", b"two", b""]
    assert [frame.place for frame in reading.frames] == places
    assert [frame.sequence for frame in reading.frames] == [1, 2, 3]
    bodies = reading.frames[1].bodies
    assert bodies.slice(0, 100).to_pybytes() == b"x" * 100
    assert bodies.slice(128, 64).to_pybytes() == b"y" * 64
    assert all(place.at % ALIGNMENT == 0 == place.size % ALIGNMENT for place in places)


def test_one_frame_is_read_again_by_its_place(files: MediumFiles) -> None:
    log = started(files, sequence=41)
    log.append(b"before")
    place = log.append(b"this", [b"body"])
    sync(log)
    frame = read_frame(files, "log", place)
    assert (frame.sequence, frame.head) == (43, b"this")
    files.flip(FIRST, 8 * (place.at + place.size - 1))
    with pytest.raises(UnusableFile, match=file_name(1)):
        read_frame(files, "log", place)


def test_a_frame_beyond_the_end_of_its_file_is_damage(files: MediumFiles) -> None:
    log = started(files)
    place = log.append(b"this")
    sync(log)
    files.truncate(FIRST, HEADER_BYTES)
    with pytest.raises(UnusableFile, match=file_name(1)):
        read_frame(files, "log", place)


def test_nothing_is_written_before_a_sync(files: MediumFiles) -> None:
    log = started(files)
    log.append(b"one")
    assert heads(read_file(files, "log", 1, is_last=True)) == []
    sync(log)
    assert heads(read_file(files, "log", 1, is_last=True)) == [b"one"]


def test_a_file_follows_another(files: MediumFiles) -> None:
    log = started(files)
    assert not log.is_full
    log.append(b"one", [b"x" * 1200])
    full = log.is_full
    log.turn_over()
    assert (full, log.is_full) == (True, False)
    log.append(b"two")
    sync(log)
    assert [frame.head for frame in all_frames(files, 1, 2)] == [b"one", b"two"]
    assert heads(read_file(files, "log", 1, is_last=False)) == [b"one"]
    assert sorted(log.sizes) == [1, 2]


# ------------------------------------------------------------------------------------- torn


def test_what_was_torn_above_the_marker_ends_the_log(files: MediumFiles) -> None:
    log = started(files)
    log.append(b"kept")
    sync(log)
    kept = read_file(files, "log", 1, is_last=True).ends_at
    file = files.reopen(FIRST)
    file.append([b"half a frame"])
    reading = read_file(files, "log", 1, is_last=True)
    assert (heads(reading), reading.ends_at, reading.durable) == ([b"kept"], kept, kept)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1])
def test_a_file_without_a_whole_header_is_damaged(files: MediumFiles, length: int) -> None:
    started(files)
    files.truncate(FIRST, length)
    with pytest.raises(UnusableFile, match=file_name(1)):
        read_file(files, "log", 1, is_last=True)


def test_every_bit_below_the_marker_counts(files: MediumFiles) -> None:
    log = started(files)
    log.append(b"one", [b"body"])
    log.append(b"two")
    sync(log)
    size = read_file(files, "log", 1, is_last=True).ends_at
    dice = Random(1)
    edges = [0, 63, 64, 79, 80, HEADER_BYTES - 1, HEADER_BYTES, size - 1]
    for at in [*edges, *(dice.randrange(size) for _ in range(200))]:
        bit = 8 * at + dice.randrange(8)
        files.flip(FIRST, bit)
        with pytest.raises(UnusableFile, match=file_name(1)):
            read_file(files, "log", 1, is_last=True)
        files.flip(FIRST, bit)
    assert heads(read_file(files, "log", 1, is_last=True)) == [b"one", b"two"]


def test_a_file_that_lost_its_end_is_damaged(files: MediumFiles) -> None:
    log = started(files)
    log.append(b"one")
    log.append(b"two")
    sync(log)
    files.truncate(FIRST, HEADER_BYTES + ALIGNMENT)
    with pytest.raises(UnusableFile, match=r"ends at byte|checksum"):
        read_file(files, "log", 1, is_last=True)


def test_frames_that_survived_without_a_sync_are_durable_once_they_were_counted_on(
    files: MediumFiles,
) -> None:
    log = started(files)
    log.append(b"one")
    sync(log)
    log.append(b"two")
    (batch,) = log.take()
    files.reopen(FIRST).append(batch.pieces)
    reading = read_file(files, "log", 1, is_last=True)
    assert heads(reading) == [b"one", b"two"]
    adopt_tail(files, "log", 1, reading)
    for seed in range(5):
        files.crash(Random(seed))
        assert heads(read_file(files, "log", 1, is_last=False)) == [b"one", b"two"]


def test_a_missing_file_or_frame_in_the_middle_is_damage(files: MediumFiles) -> None:
    log = started(files)
    for number in range(3):
        log.append(b"%d" % number)
        log.turn_over()
    sync(log)
    assert len(list(all_frames(files, 1, 4))) == 3
    with pytest.raises(UnusableFile, match=file_name(5)):
        list(all_frames(files, 1, 5))
    files.remove(f"log/{file_name(2)}")
    with pytest.raises(UnusableFile, match=file_name(2)):
        list(all_frames(files, 1, 4))
    files.link(f"log/{file_name(1)}", f"log/{file_name(2)}")
    with pytest.raises(UnusableFile, match=file_name(2)):
        list(all_frames(files, 1, 4))


def test_files_whose_frames_do_not_follow_each_other_are_damage(files: MediumFiles) -> None:
    log = started(files)
    log.append(b"one")
    sync(log)
    started(files, sequence=2, number=2)
    with pytest.raises(UnusableFile, match="starts with frame 3 instead of 2"):
        list(all_frames(files, 1, 2))


# ------------------------------------------------------------------------------------- of a volume


@pytest.mark.parametrize("seed", range(8))
def test_what_was_synced_survives_a_kill_and_then_a_power_loss(seed: int) -> None:
    """A marker that only the page cache had must not be relied on."""
    host = Host()
    hand = host.hand()
    hand.put(birds(("wren", 5)))
    host.volume.sync()
    host.kill()
    hand.put(birds(("rook", 4)))
    host.volume.sync()
    host.lose_power(seed)
    assert in_view(host.view()) == {"wren": 5, "rook": 4}


@pytest.mark.parametrize("seed", range(8))
def test_a_manifest_that_a_kill_left_is_durable_before_the_log_is_shortened(seed: int) -> None:
    host = Host()
    hand = host.hand()
    host.flush()
    hand.put(birds(("wren", 5)))
    hand.trim(hand.last)
    host.volume.sync()
    host.dies(host.flush, at_label("replace manifest", 1, "after", die))
    host.kill()
    host.fill_log()
    host.maintain()
    assert host.volume.catalogue.first_log > 1, "the log was shortened"
    host.lose_power(seed)
    assert in_view(host.view()) == {"wren": 5}


def test_entries_that_are_carried_after_their_commit_keep_their_rows() -> None:
    """The commit may be in a file that stays, before the entry that was written again."""
    host = Host()
    hand = host.hand()
    first = hand.append(birds(("wren", 5)), songs(("wren", 1)))
    host.fill_log()
    host.flush()
    second = hand.append(birds(("rook", 4)), songs(("rook", 2)))
    hand.advance()
    host.volume.sync()
    host.maintain()
    assert host.volume.catalogue.first_log > 1, "the log was shortened"
    host.kill()
    assert in_view(host.view()) == {"wren": 5, "rook": 4}
    assert records(host.view()) == [("wren", 1), ("rook", 2)]
    tail = host.volume.tail(host.replica(), 0)
    assert [(entry.at, len(entry.rows or ())) for entry in tail] == [(first, 2), (second, 2)]


def test_entries_that_are_being_carried_can_be_read_meanwhile() -> None:
    host = Host()
    hand = host.hand()
    at = hand.put(birds(("wren", 5)))
    host.flush()
    host.fill_log()
    seen: list[list[int]] = []

    def reads(operation: Operation, moment: Moment) -> None:
        tail = host.volume.tail(host.replica(), 0)
        seen.append([entry.at for entry in tail if len(entry.rows or ()) == 1])

    host.files.arm(reads)
    host.maintain()
    assert seen
    assert all(positions == [at] for positions in seen)


def test_entries_can_be_read_from_the_log_after_each_flush_carry_and_restart() -> None:
    host = Host()
    hand = host.hand()
    positions = [hand.put(birds((f"b{number}", number))) for number in range(5)]

    def check() -> None:
        tail = host.volume.tail(host.replica(), positions[0])
        assert [entry.at for entry in tail] == positions[1:]
        rows = [entry.rows for entry in tail]
        assert [[batch.key(0) for batch in each.batches] for each in rows] == [  # type: ignore[union-attr]
            [(f"b{number}",)] for number in range(1, 5)
        ]

    check()
    host.flush()
    check()
    for times in range(3):
        host.fill_log(f"filler-{times}")
        host.maintain()
        check()
        host.kill()
        check()
    assert host.volume.catalogue.first_log > 2


@pytest.mark.parametrize("log_file_bytes", [0, HEADER_BYTES, HEADER_BYTES + 64])
def test_a_log_of_the_smallest_files_has_no_gap(log_file_bytes: int) -> None:
    settings = StorageSettings(log_file_bytes=log_file_bytes)
    host = Host(settings)
    hand = host.hand()
    for number in range(4):
        hand.put(birds((f"b{number}", number)))
        for _ in range(3):
            host.volume.sync()
    host.kill()
    assert len(in_view(host.view())) == 4


def test_the_last_file_stays_however_long_it_is() -> None:
    """A batch can be larger than the whole log should be."""
    host = Host(StorageSettings(log_file_bytes=HEADER_BYTES + 500, log_bytes_max=HEADER_BYTES))
    hand = host.hand()
    hand.put(birds(*((f"b{number}", number) for number in range(200))))
    hand.trim(hand.last)
    host.volume.sync()
    host.maintain()
    host.kill()
    assert len(in_view(host.view())) == 200
    host.maintain()
    host.kill()
    assert len(in_view(host.view())) == 200


def test_a_log_that_is_never_trimmed_is_not_written_again_for_ever() -> None:
    host = Host()
    hand = host.hand()
    for number in range(200):
        hand.put(birds((f"bird {number}", number)))
        host.volume.sync()
    host.files.arm(nothing_happens)
    host.maintain()
    assert host.files.seen["append log"] < 50
    assert len(host.volume.tail(host.replica(), 0)) == 200
    hand.trim(hand.last)
    host.volume.sync()
    host.maintain()
    assert sum(host.volume.log.sizes.values()) <= TINY.log_bytes_max


def test_many_small_frames_make_a_log_too_long() -> None:
    """To replay them takes long, however few bytes they are."""
    settings = StorageSettings(
        log_file_bytes=1 << 20, log_bytes_max=8 << 20, frame_weight_bytes=16 << 10
    )
    host = Host(settings)
    hand = host.hand()
    for number in range(3_000):
        hand.put(birds((f"bird {number}", number)))
        if number % 50 == 0:
            hand.trim(hand.last)
            host.volume.sync()
    hand.trim(hand.last)
    host.volume.sync()
    host.maintain()
    first = host.volume.catalogue.first_log
    assert host.volume.log.sequence - host.volume.last_sequences[first] <= (8 << 20) // (16 << 10)
    assert len(host.volume.log.sizes) > 2
    host.reopen()
    assert host.view().count(BIRDS) == 3_000


def test_a_shortened_log_is_not_much_longer_than_it_should_be() -> None:
    host = Host()
    hand = host.hand()
    for number in range(400):
        hand.put(birds(("wren", number)), songs(("wren", number)))
        hand.trim(hand.last)
        host.volume.sync()
        host.maintain()
    logs = [path for path in host.memory.paths() if path.endswith(".log")]
    assert sum(host.memory.read(path).size for path in logs) < 2 * TINY.log_bytes_max
    host.kill()
    assert in_view(host.view()) == {"wren": 399}
    assert host.view().next_offset(SONGS) == 400


def test_a_tail_has_one_entry_at_least_and_then_so_many_bytes() -> None:
    host = Host()
    hand = host.hand()
    positions = [hand.put(birds((f"b{number}", number))) for number in range(5)]
    (held,) = host.volume.restored("n1")
    assert [at for at, _ in held.log] == positions
    sizes = [size for _, size in held.log]
    for flushed in (False, True):
        if flushed:
            host.flush()
        for count, bytes_max in ((1, 0), (1, sizes[1]), (2, sum(sizes[1:3])), (4, 10**6)):
            tail = host.volume.tail(host.replica(), positions[0], bytes_max)
            assert [entry.at for entry in tail] == positions[1 : 1 + count]
    assert host.volume.tail(host.replica(), positions[-1], 0) == []


def test_a_tail_is_read_without_the_volume_s_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever catches up reads much; nobody who writes waits for that."""
    host = Host()
    hand = host.hand()
    at = hand.put(birds(("wren", 5)))
    host.volume.sync()
    host.flush()
    read = host.files.read
    free: list[bool] = []

    def watched(path: str) -> pa.Buffer:
        taken = threading.Thread(target=lambda: free.append(host.volume.lock.acquire(timeout=5)))
        taken.start()
        taken.join()
        return read(path)

    monkeypatch.setattr(host.files, "read", watched)
    assert [entry.at for entry in host.volume.tail(host.replica(), 0)] == [at]
    assert free == [True]


@pytest.mark.parametrize("case", ["moved", "trimmed", "gone"])
def test_a_file_that_goes_while_a_tail_is_read(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries were written again elsewhere, or were let go of."""
    host = Host()
    hand = host.hand()
    at = hand.put(birds(("wren", 5)))
    host.volume.sync()
    host.flush()
    read = host.files.read
    lost: list[str] = []

    def goes(path: str) -> pa.Buffer:
        if not lost or case == "gone":
            lost.append(path)
            if case == "trimmed":
                hand.trim(at)
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(host.files, "read", goes)
    if case == "moved":
        (entry,) = host.volume.tail(host.replica(), 0)
        assert (entry.at, len(entry.rows or ())) == (at, 1)
    else:
        with pytest.raises(BadInput, match="was trimmed"):
            host.volume.tail(host.replica(), 0)
