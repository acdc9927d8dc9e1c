"""Are a stream's records read in their order, at their offsets, wherever they lie?"""

import pyarrow as pa
import pytest

from limosa.core.model.rows import Entry
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import Batch, Bundle
from tests.storage.medium import MediumFiles
from tests.storage.samples import (
    SONGS,
    TINY,
    Host,
    batch_of,
    birds,
    colliding_tokens,
    in_view,
    records,
    rows_of,
    small_pieces,
    songs,
)
from tests.storage.sole import SoleOwner

ROOMY = StorageSettings()


def tones(first: int, count: int) -> Batch:
    return songs(*((f"bird {number % 3}", number) for number in range(first, first + count)))


def numbers(host: Host, offset: int = 0, rows_max: int = 65_536) -> list[int]:
    first, found = host.view().read_from(SONGS, offset, rows_max)
    assert first == offset
    return [tone for _, tone in rows_of(found)]


def check_all_offsets(host: Host, count: int) -> None:
    assert host.view().next_offset(SONGS) == count
    for offset in range(count + 2):
        assert numbers(host, offset) == list(range(offset, count)), offset
        assert numbers(host, offset, 3) == list(range(offset, min(count, offset + 3)))
    assert numbers(host, 0, 0) == []
    assert numbers(host, -1) == []


def test_records_are_read_from_any_offset_wherever_they_lie() -> None:
    with small_pieces(rows_of_a_block=3):
        host = Host(ROOMY)
        hand = host.hand()
        count = 0
        for size in (1, 2, 7, 1, 1, 5, 4, 1, 1, 1, 2):
            hand.put(tones(count, size))
            count += size
            check_all_offsets(host, count)
            if size != 2:
                host.flush()
                check_all_offsets(host, count)
        assert len(host.view().tables["songs"].segments) == 9
        assert host.maintenance.step()
        assert len(host.view().tables["songs"].segments) == 2
        check_all_offsets(host, count)
        hand.put(tones(count, 4))
        check_all_offsets(host, count + 4)
        host.volume.sync()
        host.kill()
        check_all_offsets(host, count + 4)
        host.compact()
        host.reopen()
        check_all_offsets(host, count + 4)


def test_records_with_one_key_or_one_token_are_all_kept() -> None:
    with colliding_tokens(kept_bits=1):
        host = Host(ROOMY)
        hand = host.hand()
        for number in range(20):
            hand.put(songs(("wren", number), ("wren", number)))
            host.flush()
        host.compact()
        assert numbers(host) == [number for number in range(20) for _ in range(2)]
        assert host.view().count(SONGS) == 40


def test_a_record_that_is_not_committed_is_not_read_and_its_offset_goes_to_the_next() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    kept = hand.put(tones(0, 3))
    hand.append(songs(("cut off", 99)), songs(("cut off", 98)))
    assert host.view().next_offset(SONGS) == 3
    host.flush()
    hand.truncate(kept)
    hand.store_epoch(2)
    hand.put(tones(3, 2))
    check_all_offsets(host, 5)
    host.flush()
    check_all_offsets(host, 5)
    host.volume.sync()
    host.kill()
    check_all_offsets(host, 5)


@pytest.mark.parametrize("flushed", [0, 1, 2, 3])
def test_a_watermark_in_the_middle_of_several_entries(flushed: int) -> None:
    host = Host(ROOMY)
    hand = host.hand()
    positions = [hand.append(tones(number, 1)) for number in range(4)]
    for number, at in enumerate(positions):
        if number == flushed:
            host.flush()
        hand.advance(at)
        assert numbers(host) == list(range(number + 1))
    host.volume.sync()
    host.kill()
    check_all_offsets(host, 4)


def test_records_and_rows_of_one_entry_are_seen_together() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    at = hand.append(tones(0, 2), birds(("wren", 1)), tones(2, 1))
    assert (in_view(host.view()), records(host.view())) == ({}, [])
    hand.advance(at)
    assert in_view(host.view()) == {"wren": 1}
    check_all_offsets(host, 3)


def test_a_log_that_begins_anew_starts_with_offset_zero() -> None:
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(tones(0, 5))
    host.flush()
    hand.begin()
    assert host.view().next_offset(SONGS) == 0
    hand.put(tones(0, 2))
    check_all_offsets(host, 2)
    host.flush()
    host.kill()
    check_all_offsets(host, 2)


def test_trimming_the_log_keeps_the_records() -> None:
    host = Host(TINY)
    hand = host.hand()
    for number in range(100):
        hand.put(tones(number, 1))
        hand.trim(hand.last)
        host.volume.sync()
        host.maintain()
    assert host.volume.catalogue.first_log > 2, "the log was shortened"
    check_all_offsets(host, 100)
    host.lose_power(3)
    check_all_offsets(host, 100)


def test_an_owner_appends_to_a_stream() -> None:
    files = MediumFiles()
    with Store({"v1": "v1"}, files) as store:
        owner = SoleOwner(store, "p1", "r1")
        owner.upsert(tones(0, 2), "me", 1)
        owner.upsert(tones(0, 2), "me", 1)
        owner.append(Bundle([tones(2, 1)]))
    with Store({"v1": "v1"}, files) as store:
        owner = SoleOwner(store, "p1", "r1")
        assert owner.view.next_offset(SONGS) == 3, "alone, it commits what its log holds"
        (entry, last) = store.tail("p1", "r1", 0)
        assert isinstance(entry, Entry)
        assert len(last.rows or ()) == 1


def test_a_column_that_was_added_to_a_stream_is_null_in_older_records() -> None:
    wider = SONGS.evolved(pa.schema([*SONGS.columns, pa.field("loud", pa.bool_())]))
    host = Host(ROOMY)
    hand = host.hand()
    hand.put(tones(0, 2))
    host.flush()
    hand.put(tones(2, 1))
    hand.put(batch_of(wider, [("wren", 3, True)]))
    digest = host.view().digest()
    for act in (host.flush, host.compact, host.kill):
        _, found = host.view().read_from(wider, 1)
        assert found.column("loud").to_pylist() == [None, None, True]
        assert numbers(host) == [0, 1, 2, 3]
        assert host.view().digest() == digest
        act()
    for number in range(4, 12):
        hand.put(batch_of(wider, [("wren", number, None)]))
        host.flush()
    digest = host.view().digest()
    host.maintain()
    assert len(host.view().tables["songs"].segments) < 8
    assert host.view().digest() == digest
    assert numbers(host) == list(range(12))
