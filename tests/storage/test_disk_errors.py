"""What if the disk is full, or does not do what it is told?"""

import errno
from collections.abc import Callable

import pytest

from limosa.errors import DiskFull, LimosaError, UnusableFile, VolumeFailed
from limosa.storage.log import HEADER_BYTES
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings, Volume
from tests.storage.faulty_files import (
    FaultyFiles,
    Moment,
    Operation,
    Plan,
    fails,
    nothing_happens,
    short_write,
    together,
)
from tests.storage.medium import MediumFiles
from tests.storage.samples import (
    BIRDS,
    LEFT,
    TINY,
    Hand,
    Host,
    birds,
    gone,
    in_view,
    records,
    songs,
    table_digest,
)

ROOMY = StorageSettings()
CODES = [errno.ENOSPC, errno.EIO]


def many(start: int, count: int = 10) -> list[tuple[str, int | None]]:
    return [(f"bird {number}", number) for number in range(start, start + count)]


# ------------------------------------------------------------------------------------- the log


def log_plans() -> list[Plan]:
    plans: list[Plan] = []
    for code in CODES:
        plans += [fails("sync log", code), fails("sync log", code, moment="after")]
        plans += [fails("overwrite log", code)]
    return [*plans, *appends_fail(errno.EIO)]


def appends_fail(code: int, times: int = 1) -> list[Plan]:
    return [
        fails("append log", code, times=times),
        fails("append log", code, times=times, moment="after"),
        short_write("append log", code=code, times=times),
    ]


@pytest.mark.parametrize("plan", appends_fail(errno.ENOSPC, times=3))
@pytest.mark.parametrize("end", ["goes on", "power fails"])
def test_a_log_that_does_not_fit_is_written_when_there_is_space(plan: Plan, end: str) -> None:
    """S129: the part that fitted is cut off, and nothing is out of use."""
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 5)))
    host.volume.sync()
    size = host.memory.read("v1/log/00000001.log").size
    hand.put(birds(("rook", 4)))
    host.files.arm(plan)
    for number in range(3):
        with pytest.raises(DiskFull, match="No space left"):
            host.volume.sync()
        assert host.memory.read("v1/log/00000001.log").size == size
        hand.put(birds((f"late {number}", number)))
    if end == "goes on":
        expected = in_view(host.view())
        host.volume.sync()
        host.kill()
        assert in_view(host.view()) == expected
    else:
        host.lose_power()
        assert in_view(host.view()) == {"wren": 5}


def test_the_reserve_serves_the_writes_under_way() -> None:
    """S129: it is given up when the disk is full, and kept again when there is space."""
    memory = MediumFiles()
    settings = StorageSettings(reserve_bytes=10_000)
    host = Host(settings, memory)
    hand = host.hand()
    host.maintain()
    assert memory.read("v1/RESERVE").size == 10_000
    memory.capacity_bytes -= memory.free_bytes("v1")
    hand.put(birds(("wren", 5)))
    host.volume.sync()
    assert "RESERVE" not in memory.names("v1")
    host.maintain()
    assert "RESERVE" not in memory.names("v1")
    host.kill()
    assert in_view(host.view()) == {"wren": 5}
    memory.capacity_bytes = 2**50
    host.maintain()
    memory.capacity_bytes -= memory.free_bytes("v1")
    host.kill()  # a start needs space for another log file
    assert "RESERVE" not in memory.names("v1")
    memory.capacity_bytes += 20_000
    with pytest.raises(OSError, match="No space"):
        memory.reserve("v1/RESERVE", 10**6)
    assert "RESERVE" not in memory.names("v1")
    memory.capacity_bytes = 2**50
    host.maintain()
    assert memory.read("v1/RESERVE").size == 10_000


@pytest.mark.parametrize("plan", log_plans())
def test_an_error_of_the_log_puts_the_volume_out_of_use_and_loses_nothing(plan: Plan) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 5)))
    host.volume.sync()
    hand.put(birds(("rook", 4)))
    host.files.arm(plan)
    with pytest.raises(VolumeFailed, match="v1 failed"):
        host.volume.sync()
    host.files.arm(nothing_happens)
    for refused in refusals(host, hand):
        with pytest.raises(VolumeFailed, match="v1 failed"):
            refused()
    assert not [label for label in host.files.trace if label.startswith("sync log")]
    assert in_view(host.view()) == {"wren": 5, "rook": 4}, "what is there can still be read"
    host.lose_power()
    found = in_view(host.view())
    assert found in ({"wren": 5}, {"wren": 5, "rook": 4})


def put_until_it_fails(
    host: Host, hand: Hand, acknowledged: dict[str, int], act: Callable[[], object] = bool
) -> None:
    for number in range(10_000):
        hand.put(birds((f"bird {number}", number)))
        host.volume.sync()
        acknowledged[f"bird {number}"] = number
        act()


def refusals(host: Host, hand: Hand) -> list[Callable[[], object]]:
    return [
        lambda: hand.put(birds(("robin", 6))),
        lambda: hand.store_epoch(7),
        hand.discard,
        host.volume.sync,
        host.maintenance.step,
    ]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "label",
    ["create log", "append log", "sync log", "sync_directory log directory", "replace volume"],
)
def test_an_error_when_the_log_turns_to_another_file_loses_nothing(label: str, code: int) -> None:
    host = Host(StorageSettings(log_file_bytes=HEADER_BYTES + 100))
    hand = host.hand()
    acknowledged: dict[str, int] = {}
    host.files.arm(fails(label, code, nth=3))
    with pytest.raises(VolumeFailed if code == errno.EIO else DiskFull):
        put_until_it_fails(host, hand, acknowledged)
    assert acknowledged
    if code == errno.ENOSPC:
        for number in range(3):  # it goes on by itself
            hand.put(birds((f"late {number}", number)))
            host.volume.sync()
            acknowledged[f"late {number}"] = number
    host.lose_power()
    assert in_view(host.view()).items() >= acknowledged.items()


def test_a_sync_that_failed_is_not_tried_again() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 5)))
    host.files.arm(fails("sync log", errno.EIO))
    with pytest.raises(VolumeFailed):
        host.volume.sync()
    host.volume.close()
    assert host.files.seen["sync log"] == 1, "the next one would look like a success"


def test_a_volume_that_failed_can_be_closed_and_opened_again() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    host.files.arm(fails("sync log", errno.EIO))
    hand.put(birds(("wren", 5)))
    with pytest.raises(VolumeFailed):
        host.volume.sync()
    host.volume.close()
    host.open()
    hand.create()
    hand.put(birds(("rook", 5)))
    host.volume.sync()
    assert in_view(host.view()) == {"rook": 5}


def test_a_failed_volume_does_not_keep_the_others_from_being_closed() -> None:
    memory = MediumFiles()
    faulty = FaultyFiles(memory)
    store = Store({"v1": "v1", "v2": "v2"}, faulty)
    one, two = Hand(store.write, "one"), Hand(store.write, "two")
    one.create("v1")
    two.create("v2")
    store.sync()
    one.put(birds(("wren", 5)))
    two.put(birds(("rook", 4)))

    def first_fails(operation: Operation, moment: Moment) -> None:
        if operation.path.startswith("v1/"):
            fails(operation.label, errno.EIO, operation.nth)(operation, moment)

    faulty.arm(first_fails)
    with pytest.raises(VolumeFailed, match="v1"):
        store.sync()
    store.close()
    with Store({"v1": "v1", "v2": "v2"}, memory) as again:
        assert in_view(again.view("two", "r1")) == {"rook": 4}
        assert in_view(again.view("one", "r1")) in ({}, {"wren": 5})


def test_a_full_disk_at_the_start_leaves_no_lock() -> None:
    memory = MediumFiles()
    with Store({"v1": "v1"}, memory, TINY) as store:
        hand = Hand(store.write).create()
        hand.put(birds(("wren", 5)))
        store.flush(*hand.key)
        hand.discard()
    labels = ["append log", "append volume", "sync volume", "replace trash"]
    for label in labels:
        full = FaultyFiles(memory, fails(label, errno.ENOSPC, times=99))
        with Store({"v1": "v1"}, full, TINY) as store:
            assert "No space" in store.refused[0].why
    with Store({"v1": "v1"}, memory, TINY) as store:
        assert store.restored("n1") == ()


# ------------------------------------------------------------------------------------- maintenance


FLUSH_LABELS = [
    "make_directory replica directory",
    "create flush segment",
    "append flush segment",
    "sync flush segment",
    "sync_directory replica directory",
    "create manifest",
    "append manifest",
    "sync manifest",
    "replace manifest",
    "create volume",
    "append volume",
    "sync volume",
    "replace volume",
]


@pytest.mark.parametrize("moment", ["before", "middle", "after"])
@pytest.mark.parametrize("label", FLUSH_LABELS)
def test_a_flush_without_room_is_given_up_and_done_later(label: str, moment: Moment) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(*many(0)), songs(("wren", 1)))
    hand.put(birds(*many(5)), gone("bird 1"))
    expected, digest = in_view(host.view()), host.view().digest()
    host.files.arm(fails(label, errno.ENOSPC, times=3, moment=moment))
    for _ in range(3):
        with pytest.raises(VolumeFailed, match="free disk space and try again"):
            host.flush()
        assert in_view(host.view()) == expected
        hand.put(songs(("rook", 2)))
    host.flush()
    assert host.maintenance.trouble is None
    assert host.view().tables["birds"].segments
    assert len(host.segments()) == 2, "nothing is left of what was given up"
    expected_records = [("wren", 1), *[("rook", 2)] * 3]
    for _ in range(2):
        assert in_view(host.view()) == expected
        assert table_digest(host.view(), BIRDS).count == len(expected) + 1
        assert records(host.view()) == expected_records
        host.lose_power()
    assert digest


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("label", FLUSH_LABELS)
def test_any_other_error_of_a_flush_puts_the_volume_out_of_use(label: str, moment: Moment) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(*many(0)))
    expected = in_view(host.view())
    host.volume.sync()
    host.files.arm(fails(label, errno.EIO, moment=moment))
    with pytest.raises(VolumeFailed, match="v1 failed"):
        host.flush()
    for refused in refusals(host, hand):
        with pytest.raises(VolumeFailed, match="v1 failed"):
            refused()
    host.lose_power()
    assert in_view(host.view()) == expected


MERGE_LABELS = [
    "create merge segment",
    "append merge segment",
    "sync merge segment",
    "sync_directory replica directory",
    "append manifest",
    "sync manifest",
    "replace manifest",
]


@pytest.mark.parametrize("moment", ["before", "middle", "after"])
@pytest.mark.parametrize("label", MERGE_LABELS)
def test_a_merge_without_room_is_given_up_and_done_later(label: str, moment: Moment) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    for start in range(0, 30, 6):
        hand.put(birds(*many(start)))
        host.flush()
    digest = host.view().digest()
    host.files.arm(fails(label, errno.ENOSPC, times=2, moment=moment))
    for _ in range(2):
        assert not host.maintenance.step()
        assert "No space" in (host.maintenance.trouble or "")
        assert host.view().digest() == digest
    host.maintain()
    assert host.maintenance.trouble is None
    assert len(host.segments()) == 1, "nothing is left of what was given up"
    assert host.view().digest() == digest
    host.lose_power()
    assert host.view().digest() == digest


def test_a_short_write_is_no_segment() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(*many(0)))
    host.files.arm(short_write("append flush segment", nth=2))
    with pytest.raises(VolumeFailed, match="No space"):
        host.flush()
    assert host.segments() == []
    host.flush()
    assert len(host.segments()) == 1


@pytest.mark.parametrize("label", ["append flush segment", "append manifest", "append volume"])
def test_a_log_that_can_not_be_shortened_is_told(label: str) -> None:
    host = Host(
        StorageSettings(log_file_bytes=TINY.log_file_bytes, log_bytes_max=TINY.log_bytes_max)
    )
    hand = host.hand()
    hand.put(birds(("wren", 5)))
    host.fill_log()
    host.files.arm(fails(label, errno.ENOSPC, times=5))
    for _ in range(5):
        assert not host.maintenance.step()
        assert "No space" in (host.maintenance.trouble or "")
    host.maintain()
    assert host.maintenance.trouble is None
    logs = [path for path in host.memory.paths() if path.endswith(".log")]
    assert len(logs) == host.volume.catalogue.last_log - host.volume.catalogue.first_log + 1
    assert sum(host.memory.read(path).size for path in logs) <= TINY.log_bytes_max
    host.lose_power()
    assert in_view(host.view()) == {"wren": 5}


def test_a_replica_that_can_not_be_dropped_is_told_and_dropped_later() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 5)))
    host.flush()
    hand.discard()
    host.files.arm(fails("append volume", errno.ENOSPC, times=3))
    for _ in range(3):
        assert not host.maintenance.step(), "or nobody would ever wait before the next attempt"
        assert "No space" in (host.maintenance.trouble or "")
    assert host.segments()
    host.maintain()
    assert host.segments() == []
    assert host.volume.catalogue.replicas == frozenset()
    host.lose_power()
    assert host.volume.replicas == {}
    assert host.volume.refused == {}


def test_a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_there_is_room() -> None:
    memory = MediumFiles(capacity_bytes=60_000)
    host = Host(TINY, memory)
    hand = host.hand()
    acknowledged: dict[str, int] = {}
    with pytest.raises(DiskFull):
        put_until_it_fails(host, hand, acknowledged, host.maintenance.step)
    assert len(acknowledged) > 30
    memory.capacity_bytes = 2**40
    host.lose_power()
    found = in_view(host.view())
    assert found.items() >= acknowledged.items()
    assert len(found) <= len(acknowledged) + 1
    hand.put(birds(("wren", 5)))
    host.volume.sync()
    host.maintain()
    host.kill()
    assert in_view(host.view())["wren"] == 5


def test_maintenance_of_a_full_disk_waits_and_then_goes_on() -> None:
    memory = MediumFiles()
    host = Host(StorageSettings(replica_memory_bytes=2000), memory)
    hand = host.hand()
    for number in range(60):
        hand.put(birds((f"bird {number}", number)), songs(("wren", number)))
    host.volume.sync()
    before = in_view(host.view())
    memory.capacity_bytes = 2**50 - memory.free_bytes("v1") + 1000
    for _ in range(5):
        assert not host.maintenance.step()
        assert "No space" in (host.maintenance.trouble or "")
        memory.capacity_bytes += 2000
    assert 2**50 - memory.capacity_bytes
    assert host.segments() == [], "what was given up must not eat up the room"
    memory.capacity_bytes = 2**50
    host.maintain()
    assert host.maintenance.trouble is None
    assert len(host.segments()) == 2
    assert in_view(host.view()) == before


def test_troubles_are_told_by_the_store() -> None:
    faulty = FaultyFiles(MediumFiles())
    with Store({"v1": "v1"}, faulty, TINY) as store:
        hand = Hand(store.write).create()
        for start in range(0, 100, 10):
            hand.put(birds(*many(start)))
        faulty.arm(fails("append flush segment", errno.ENOSPC))
        assert not store.maintain()
        assert [trouble for trouble in store.troubles if "No space" in trouble]
        assert store.maintain()
        assert store.troubles == []


# ------------------------------------------------------------------------------------- damage


def test_a_damaged_replica_is_refused_alone() -> None:
    host = Host(TINY)
    for name in ("bad", "good"):
        host.hand(name).put(birds((name, 1)))
        host.flush(name)
    (segment,) = host.segments("bad")
    host.volume.close()
    size = len(host.memory.read(segment))
    host.memory.flip(segment, 8 * (size - 60))
    host.open()
    assert list(host.volume.refused) == ["bad~r1"]
    assert segment.removeprefix("/") in host.volume.refused["bad~r1"].why
    assert in_view(host.view("good")) == {"good": 1}
    assert ("bad", "r1") not in host.volume.replicas
    host.fill_log()
    host.maintain()
    host.reopen()
    assert list(host.volume.refused) == ["bad~r1"], "it stays there, for study"
    Hand(host.write, "bad").discard()
    host.maintain()
    assert host.segments("bad") == []
    host.reopen()
    assert host.volume.refused == {}


@pytest.mark.parametrize("through_store", [True, False])
@pytest.mark.parametrize("discard_first", [True, False])
def test_a_refused_replica_is_made_again(through_store: bool, discard_first: bool) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(("wren", 1)))
    host.flush()
    (segment,) = host.segments()
    host.volume.close()
    host.memory.truncate(segment, 100)
    hand = Hand(host.write)
    if through_store:
        store = Store({"v1": "v1"}, host.memory)
        assert [refusal.what for refusal in store.refused] == ["p1~r1"]
        hand.write = store.write
        close = store.close
    else:
        host.open()
        close = host.volume.close
    if discard_first:
        hand.discard()
    hand.create()
    hand.put(birds(("rook", 2)))
    close()
    host.open()
    assert host.volume.refused == {}
    assert in_view(host.view()) == {"rook": 2}
    host.flush()
    host.kill()
    assert in_view(host.view()) == {"rook": 2}


def test_a_damaged_block_is_never_returned_as_rows() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(*many(0, 100)))
    host.compact()
    host.hand("half")
    (segment,) = host.segments()
    host.volume.close()
    host.memory.flip(segment, 8 * 700)
    host.open()
    for read in (
        lambda: in_view(host.view()),
        lambda: host.view().get(BIRDS, ("bird 3",)),
        lambda: host.view().digest(),
        lambda: host.view().count(BIRDS, LEFT),
    ):
        with pytest.raises(UnusableFile, match=segment.rsplit("/", 1)[1]):
            read()


def test_maintenance_leaves_a_damaged_replica_and_looks_after_the_others() -> None:
    host = Host(ROOMY)
    for name in ("bad", "good"):
        hand = host.hand(name)
        for start in range(0, 30, 6):
            hand.put(birds(*many(start)))
            host.flush(name)
    segment = host.segments("bad")[0]
    host.volume.close()
    host.memory.flip(segment, 8 * 300)
    host.open()
    for _ in range(20):
        host.maintenance.step()
    assert segment.rsplit("/", 1)[1] in "".join(host.maintenance.troubles)
    assert len(host.segments("good")) == 1
    assert len(host.segments("bad")) == 5
    with pytest.raises(LimosaError, match=segment.rsplit("/", 1)[1]):
        host.compact("bad")
    Hand(host.write, "bad").put(birds(("wren", 1)))
    host.volume.sync()


@pytest.mark.parametrize("name", ["VOLUME", "log/00000001.log"])
@pytest.mark.parametrize("how", ["removed", "flipped", "cut"])
def test_a_volume_whose_own_files_are_damaged_is_refused_and_others_are_not(
    name: str, how: str
) -> None:
    memory = MediumFiles()
    with Store({"v1": "v1", "v2": "v2"}, memory) as store:
        for volume in ("v1", "v2"):
            Hand(store.write, volume).create(volume).put(birds((volume, 1)))
    path = f"v1/{name}"
    if how == "removed":
        memory.remove(path)
    elif how == "flipped":
        memory.flip(path, 8 * 20)
    else:
        memory.truncate(path, len(memory.read(path)) - 1)
    with Store({"v1": "v1", "v2": "v2"}, memory) as store:
        (refusal,) = store.refused
        assert refusal.what == "volume v1"
        assert name.rsplit("/", 1)[-1] in refusal.why
        assert in_view(store.view("v2", "r1")) == {"v2": 1}
        with pytest.raises(LimosaError, match="no volume 'v1'"):
            Hand(store.write).create("v1")


def test_one_volume_is_used_by_one_process() -> None:
    memory = MediumFiles()
    first = Volume(memory, "v1")
    with pytest.raises(UnusableFile, match="locked"):
        Volume(memory, "v1")
    with pytest.raises(UnusableFile, match="locked"):
        Store({"v2": "v2", "v1": "v1"}, memory)
    first.close()
    Store({"v2": "v2", "v1": "v1"}, memory).close()


def test_plans_can_be_combined() -> None:
    """A flush fails for want of room, and then the log fails: then the volume is out of use."""
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(birds(*many(0)))
    plan = together(
        fails("append flush segment", errno.ENOSPC), fails("append log", errno.EIO, nth=1)
    )
    host.files.arm(plan)
    with pytest.raises(VolumeFailed, match="free disk space and try again"):
        host.flush()
    with pytest.raises(VolumeFailed, match="v1 failed"):
        host.flush()
