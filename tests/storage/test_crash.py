"""Does a store keep what it promised, wherever it is killed and whatever rots?"""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from limosa.core.effects import (
    AdvanceWatermark,
    AppendEntries,
    ApplySlice,
    BeginLog,
    CreateReplica,
    DiscardReplica,
    TrimLog,
)
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, TokenRange, position
from limosa.core.model.rows import Entry
from limosa.errors import BadInput
from limosa.storage import compaction
from limosa.storage.files import Files
from limosa.storage.store import Store
from limosa.storage.volume import StorageSettings
from limosa.tabular.rows import Batch, Bundle
from limosa.tabular.schema import Table
from tests.storage.crash.flips import DIRECTORY as FLIPPED
from tests.storage.crash.flips import (
    Damage,
    every_cut,
    every_flip,
    filled,
    size_of_store,
    sound,
    try_all,
    try_on_disk,
)
from tests.storage.crash.rounds import Chain, Kill, Oracle
from tests.storage.crash.worker import Acked, Create, Line, Write, bundle_of
from tests.storage.faulty_files import FaultyFiles, Moment, Operation, kind_of
from tests.storage.medium import MediumFiles
from tests.storage.sole import SoleOwner

COLUMNS: dict[str, pa.DataType] = {"k": pa.int64(), "v": pa.string()}
ROWS = Table("rows", pa.schema(COLUMNS), ("k",))
EVENTS = Table("events", pa.schema(COLUMNS), ("k",), "stream")
DIRECTORIES = {"v1": "/v1", "v2": "/v2"}
SHORT = StorageSettings(log_file_bytes=6000, log_bytes_max=5000)


def rows(*keys: int, value: str = "", table: Table = ROWS) -> Batch:
    some = [{"k": key, "v": value or f"value of {key}"} for key in keys]
    return Batch.of(table, pa.RecordBatch.from_pylist(some, schema=table.physical))


def keys_of(store: Store, partition: str) -> list[int]:
    scanned = store.view(partition, "i").scan(ROWS)
    return sorted(row["k"] for batch in scanned for row in batch.to_pylist())


def opened(files: Files, settings: StorageSettings | None = None) -> Store:
    return Store(DIRECTORIES, files, settings)


def killed(files: MediumFiles) -> None:
    files.crash(Random(0), process_only=True)


def created(store: Store, partition: str, volume: str = "v1") -> None:
    store.write(CreateReplica(partition, "i", 0, volume))
    store.write(BeginLog(partition, "i", 0, 0, 1))


def appended(store: Store, counter: int, *keys: int, partition: str = "p") -> int:
    """An entry that is not committed yet."""
    at = position(1, counter)
    previous = position(1, counter - 1) if counter > 1 else 0
    entry = Entry(at, previous, Bundle([rows(*keys)]))
    store.write(AppendEntries(partition, "i", 0, (entry,)))
    return at


def turn_log_over(store: Store) -> None:
    """So much goes to another replica that the log needs another file."""
    created(store, "ballast", "v1")
    for counter in range(1, 4):
        appended(store, counter, *range(200), partition="ballast")
        store.sync()
    store.write(DiscardReplica("ballast", "i", 0))
    store.sync()


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# ------------------------------------------------------------------------------------- kills

KILLS = (
    ("0.2", "append log:middle:5", "sync log:before:1", "replace manifest:before:3", "0.4"),
    ("overwrite log:before:20", "-0.7", "remove log:before:1", "append volume:middle:2", "0.3"),
    ("link flush segment:after:2", "create log:after:1", "0.5", "replace trash:after:1", "0.1"),
    (
        "append merge segment:middle:2",
        "replace volume:after:1",
        "0.2",
        "sync manifest:after:4",
        "0.6",
    ),
)


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(len(KILLS)))
def test_a_store_that_is_killed_keeps_what_it_promised(seed: int) -> None:
    """S43: five kills in a row; what was acknowledged is there, what was dropped is not."""
    result = Chain(seed, [Kill.parse(kill) for kill in KILLS[seed]]).run()
    assert not result.findings, f"{result.directory}: {result.findings[:10]}"
    assert result.rounds == len(KILLS[seed])
    assert result.at_failpoints
    assert result.acked_rows > 100


def test_the_oracle_notices_what_is_missing() -> None:
    """A worker's journal, and a store that lacks one of its rows, or has one that was deleted."""
    replica = ("p", "i")
    first, second = Write("p.a", replica, (1, 2)), Write("p.b", replica, (3,), (1,))
    third = Write("p.c", replica, (4,))
    lines: list[Line] = [Create("c", replica), Acked("c")]
    for counter, write in enumerate((first, second), 1):
        lines += [write, Acked(write.id, position(1, counter))]
    found = {}
    for name, kept in {"all": (first, second), "lost": (first,), "more": (first, third)}.items():
        store = opened(MediumFiles())
        owner = SoleOwner(store, *replica)
        for write in kept:
            owner.commit(owner.append(bundle_of(write)))
        oracle = Oracle()
        oracle.read(lines)
        found[name] = {finding.kind for finding in oracle.check(store)}
    assert found == {"all": set(), "lost": {"lost"}, "more": {"lost", "revived", "inconsistent"}}


# ------------------------------------------------------------------------------------- rot

SAMPLED = 300


@pytest.mark.parametrize("damages", [every_flip, every_cut], ids=["flips", "cuts"])
def test_damage_is_refused_and_never_returned(damages: Callable[[], list[Damage]]) -> None:
    """By chance, and at both ends of each file."""
    every = damages()
    ends: dict[tuple[str, int], Damage] = {}
    for damage in every:
        ends.setdefault((damage.path, 0), damage)
        ends[damage.path, 1] = damage
    some = Random(0).sample(every, SAMPLED)
    assert try_all([*ends.values(), *some]) == []


def test_damage_of_real_files_is_refused(tmp_path: Path) -> None:
    some: list[Damage] = [*Random(1).sample(every_flip(), 15)]
    some += Random(2).sample(every_cut(), 15)
    problems = [try_on_disk(damage, tmp_path / str(at)) for at, damage in enumerate(some)]
    assert problems == [None] * len(some)


def test_the_small_store_has_all_kinds_of_files_and_is_small() -> None:
    kinds = {kind_of(path) for path in sound()}
    assert kinds == {"volume", "log", "manifest", "flush segment", "merge segment"}
    assert size_of_store() < 40_000


def test_a_missing_file_is_refused() -> None:
    for path in sound():
        files = filled({each: data for each, data in sound().items() if each != path})
        with Store({"v": FLIPPED}, files) as store:
            assert any(path in refusal.why for refusal in store.refused), path


# ------------------------------------------------------------------------------------- once lost


def test_rows_that_were_flushed_before_their_commit_outlive_their_log_file() -> None:
    """The flush left them out, as they were not committed; so the log must keep them."""
    for trims in (False, True):
        files = MediumFiles()
        store = opened(files, SHORT)
        created(store, "p")
        first = appended(store, 1, 1)
        store.write(AdvanceWatermark("p", "i", 0, first))
        second = appended(store, 2, 2)
        turn_log_over(store)
        store.flush("p", "i")
        store.write(AdvanceWatermark("p", "i", 0, second))
        if trims:
            store.write(TrimLog("p", "i", 0, second))
        store.sync()
        while store.maintain():
            pass
        assert "00000001.log" not in files.names("/v1/log")
        killed(files)
        assert keys_of(opened(files), "p") == [1, 2]


def test_an_entry_can_be_read_while_its_log_file_goes() -> None:
    """It was written again, but that is not on the disk before the next sync."""
    memory = MediumFiles()
    found: list[int] = []

    def plan(operation: Operation, moment: Moment) -> None:
        if operation.label == "append log" and moment == "before":
            found.append(len(store.tail("p", "i", 0)))

    files = FaultyFiles(memory)
    store = opened(files, SHORT)
    created(store, "p")
    store.write(AdvanceWatermark("p", "i", 0, appended(store, 1, 1)))
    store.flush("p", "i")
    turn_log_over(store)
    files.arm(plan)
    while store.maintain():
        pass
    assert "00000001.log" not in memory.names("/v1/log")
    assert found
    assert set(found) == {1}


def test_rows_that_are_committed_during_an_adoption_stay() -> None:
    """Both sides of a split are written to while files are linked."""

    def plan(operation: Operation, moment: Moment) -> None:
        if operation.label == "link flush segment" and moment == "after":
            target.upsert(rows(3))

    memory = MediumFiles()
    files = FaultyFiles(memory)
    store = opened(files)
    SoleOwner(store, "source", "i").upsert(rows(1))
    target = SoleOwner(store, "target", "i")
    target.upsert(rows(2))
    files.arm(plan)
    store.adopt(("source", "i"), ("target", "i"))
    files.arm(lambda operation, moment: None)
    assert keys_of(store, "target") == [1, 2, 3]
    store.flush("target", "i")
    killed(memory)
    assert keys_of(opened(memory), "target") == [1, 2, 3]


def test_records_that_come_during_an_adoption_leave_no_gap() -> None:
    def plan(operation: Operation, moment: Moment) -> None:
        if operation.label == "replace manifest" and moment == "after":
            files.arm(lambda operation, moment: None)
            source.upsert(rows(2, table=EVENTS))

    files = FaultyFiles(MediumFiles())
    store = opened(files)
    source = SoleOwner(store, "source", "i")
    source.upsert(rows(1, table=EVENTS))
    target = SoleOwner(store, "target", "i", "v2")
    files.arm(plan)
    store.adopt(("source", "i"), ("target", "i"))
    target.upsert(rows(7, table=EVENTS))
    _, records = target.view.read_from(EVENTS, 0)
    assert records.column("k").to_pylist() == [1, 7]
    assert target.view.next_offset(EVENTS) == 2


def test_a_change_that_is_refused_is_not_in_the_log() -> None:
    """A stream's records can't be copied by version; nor can a log be replayed that says so."""
    files = MediumFiles()
    store = opened(files)
    SoleOwner(store, "p", "i").upsert(rows(1))
    with pytest.raises(BadInput):
        store.write(ApplySlice("p", "i", 0, (Bundle([rows(2, table=EVENTS).at(5)]),), ()))
    store.sync()
    killed(files)
    assert keys_of(opened(files), "p") == [1]


def test_a_segment_of_a_new_replica_is_not_mistaken_for_one_of_the_old() -> None:
    """A replica with the same ids was dropped; what was linked from it keeps its names."""
    for restarts in (False, True):
        files = MediumFiles()
        store = opened(files)
        target = SoleOwner(store, "target", "i")
        for key in (1, 2):
            SoleOwner(store, "source", "i").upsert(rows(key))
            store.adopt(("source", "i"), ("target", "i"))
            store.write(DiscardReplica("source", "i", 0))
            store.maintain()
            if restarts:
                store.close()
                store = opened(files)
                target = SoleOwner(store, "target", "i")
        assert keys_of(store, "target") == [1, 2]
        assert target.view.count(ROWS) == 2


def test_a_merge_for_an_earlier_beginning_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replica is emptied between the plan of a merge and the merge."""
    files = MediumFiles()
    store = opened(files)
    owner = SoleOwner(store, "p", "i")
    for key in (1, 2):
        owner.upsert(rows(key))
        store.flush("p", "i")
    plan, base = compaction.plan, owner.view.watermark

    def planned(*arguments: object) -> object:
        job = plan(*arguments)  # type: ignore[arg-type]
        if job is not None and store.view("p", "i").tables:
            store.write(BeginLog("p", "i", 0, base, 9))
        return job

    monkeypatch.setattr(compaction, "plan", planned)
    store.compact("p", "i")
    assert keys_of(store, "p") == []
    store.close()
    assert keys_of(opened(files), "p") == []


def test_two_adoptions_in_opposite_directions_both_end(quick_switches: None) -> None:
    store = opened(FaultyFiles(MediumFiles(), lambda operation, moment: None))
    SoleOwner(store, "one", "i", "v1").upsert(rows(1))
    SoleOwner(store, "two", "i", "v2").upsert(rows(2))
    pairs = [(("one", "i"), ("two", "i")), (("two", "i"), ("one", "i"))]

    def adopt(source: tuple[str, str], target: tuple[str, str]) -> None:
        for _ in range(100):
            store.adopt(source, target)

    threads = [threading.Thread(target=adopt, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert keys_of(store, "one") == keys_of(store, "two") == [1, 2]


def test_two_halves_of_one_segment_are_both_adopted() -> None:
    """What was split is merged again, and both sides still have the file that they came from."""
    files = MediumFiles()
    store = opened(files)
    SoleOwner(store, "p", "i").upsert(rows(*range(20)))
    for name in ("left", "right", "merged"):
        SoleOwner(store, name, "i")
    store.adopt(("p", "i"), ("left", "i"), TokenRange(TOKEN_MIN, 0))
    store.adopt(("p", "i"), ("right", "i"), TokenRange(0, TOKEN_END))
    assert sorted(keys_of(store, "left") + keys_of(store, "right")) == list(range(20))
    store.adopt(("left", "i"), ("merged", "i"))
    store.adopt(("right", "i"), ("merged", "i"))
    assert keys_of(store, "merged") == list(range(20))
    store.compact("merged", "i")
    assert keys_of(store, "merged") == list(range(20))
    killed(files)
    assert keys_of(opened(files), "merged") == list(range(20))
