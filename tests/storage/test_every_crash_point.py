"""Does every single file operation leave something that can be gone on from?

One workload that touches everything: it is run once to count its file operations, and then again
for each of them, with a process that dies before, in the middle of or after it. Then either only
the process is gone, or the power; the volume is opened again, compared with what was acknowledged,
and the rest of the workload is done as if nothing had happened.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from limosa.core.events import HeldReplica
from limosa.core.model.keys import WHOLE, Position
from limosa.core.model.rows import Entry
from limosa.core.producers import Producers
from limosa.storage.log import HEADER_BYTES
from limosa.storage.maintenance import Maintenance
from limosa.storage.replica import FOREVER, StoredReplica
from limosa.storage.view import View
from limosa.storage.volume import StorageSettings, Volume
from limosa.tabular.rows import Bundle
from tests.storage.faulty_files import (
    Died,
    FaultyFiles,
    Moment,
    Plan,
    at_operation,
    die,
    nothing_happens,
)
from tests.storage.medium import MediumFiles
from tests.storage.samples import (
    BIRDS,
    LEFT,
    RIGHT,
    Hand,
    birds,
    gone,
    in_view,
    records,
    songs,
    versioned,
)

SETTINGS = StorageSettings(
    log_file_bytes=HEADER_BYTES + 1200,
    log_bytes_max=14_000,
    replica_memory_bytes=700,
    memory_bytes=2000,
    piece_bytes=2000,
)

TOUCHED = {
    "append log",
    "sync log",
    "overwrite log",
    "create log",
    "replace volume",
    "append flush segment",
    "sync flush segment",
    "append merge segment",
    "append copy segment",
    "replace manifest",
    "link flush segment",
    "link merge segment",
    "remove log",
    "remove flush segment",
    "replace trash",
    "remove trash",
    "sync_directory replica directory",
    "sync_directory log directory",
}

Said = dict[str, Any]


class Run:
    """The workload, step by step, and what each step makes of the replicas.

    A step can be done again if nobody knows how far it came: what was done is not done twice.
    """

    def __init__(self, memory: MediumFiles) -> None:
        self.memory = memory
        self.hands = {name: Hand(self.write, name) for name in ("whole", "left", "right", "back")}
        self.acknowledged: dict[str, tuple[View, HeldReplica, list[Entry]]] = {}
        """What there was when a sync last came back; a view stays as it is."""

    def write(self, change: Any) -> None:
        self.volume.write(change)

    def open(self, plan: Plan = nothing_happens) -> None:
        self.files = FaultyFiles(self.memory, plan)
        self.volume = Volume(self.files, "v1", "v1", SETTINGS)
        self.maintenance = Maintenance(self.volume)

    # --- the steps

    def steps(self) -> Iterator[Callable[[], None]]:
        yield lambda: self.make("whole")
        for number in range(6):
            yield lambda number=number: self.put("whole", number)  # type: ignore[misc]
            yield self.maintain
        yield lambda: self.trim("whole")
        yield self.truncate
        yield self.compact
        yield lambda: self.make("left")
        yield lambda: self.make("right")
        yield lambda: self.adopt("whole", "left")
        yield lambda: self.adopt("whole", "right")
        for number in range(6, 9):
            yield lambda number=number: self.put("left", number)  # type: ignore[misc]
            yield self.maintain
        yield lambda: self.make("back")
        yield lambda: self.adopt("left", "back")
        yield lambda: self.shelve("back")
        yield lambda: self.adopt("right", "back")
        yield lambda: self.discard("whole")
        yield self.maintain
        yield lambda: self.make("whole")
        yield lambda: self.put("whole", 9)
        yield lambda: self.begin("left")
        yield self.maintain
        for number in range(10, 14):
            yield lambda number=number: self.put("back", number)  # type: ignore[misc]
            yield lambda: self.trim("back")
            yield self.maintain
        yield lambda: self.discard("right")
        yield self.compact
        yield self.maintain

    def make(self, name: str) -> None:
        if name not in self.names() or not self.replica(name).begun:
            self.hands[name].create()
        self.sync()

    def put(self, name: str, number: int) -> None:
        """A few rows and a record, some deleted ones; known by their producer if done before."""
        if not self.replica(name).producers.applied("me", number):
            hand = self.hands[name]
            hand.epoch, hand.counter = 1 + number, 0
            hand.last = max(hand.last, self.replica(name).watermark)
            rows = birds(*((f"bird {n}", number) for n in range(number, number + 8)))
            dead = gone(f"bird {number}", f"bird {number + 1}")
            parts = [rows, dead] if name != "whole" else [rows, dead, songs(("wren", number))]
            hand.append(*parts[: 2 if name != "whole" else 3], producer="me", sequence=number)
        self.sync()
        # It is durable, and it is alone: all that it has is committed.
        log = self.replica(name).positions
        if log:
            self.hands[name].advance(log[-1])
        self.sync()

    def trim(self, name: str) -> None:
        replica = self.replica(name)
        done = [at for at in replica.positions if at <= replica.watermark]
        if len(done) > 1:
            self.hands[name].trim(done[-2])
        self.sync()

    def truncate(self) -> None:
        hand, replica = self.hands["whole"], self.replica("whole")
        hand.epoch, hand.counter, hand.last = 50, 0, replica.watermark
        hand.append(birds(("never", 0)), producer="never", sequence=1)
        self.maintain()
        hand.truncate(replica.watermark)
        self.sync()

    def begin(self, name: str) -> None:
        if self.replica(name).begun == 1:
            self.hands[name].epoch = 77
            self.hands[name].last = self.replica(name).watermark
            self.hands[name].begin()
        self.sync()

    def discard(self, name: str) -> None:
        self.hands[name].discard()
        self.sync()

    def adopt(self, source: str, target: str) -> None:
        held = {"left": LEFT, "right": RIGHT}.get(target, WHOLE)
        if "songs" in self.replica(source).view.tables and held != WHOLE:
            held = WHOLE
        self.maintenance.adopt(self.replica(source), self.maintenance, self.replica(target), held)
        self.sync()

    def shelve(self, name: str) -> None:
        rows = birds(*((f"copied {number}", number) for number in range(9)))
        copied = Bundle([versioned(rows, [1] * 9)])
        self.maintenance.shelve(self.replica(name), [copied], WHOLE, copied.digest(), 0, 0)
        self.sync()

    def compact(self) -> None:
        for name in self.names():
            self.maintenance.compact(self.replica(name))
        self.sync()

    def maintain(self) -> None:
        for _ in range(100):
            if not self.maintenance.step():
                return
        raise AssertionError("maintenance does not come to an end")

    # --- looking

    def names(self) -> list[str]:
        return sorted(partition for partition, _ in self.volume.replicas)

    def replica(self, name: str) -> StoredReplica:
        return self.volume.replicas[name, "r1"]

    def sync(self) -> None:
        self.volume.sync()
        self.acknowledged = {name: self.snapshot(name) for name in self.names()}

    def snapshot(self, name: str) -> tuple[View, HeldReplica, list[Entry]]:
        replica = self.replica(name)
        return replica.view, replica.restored("n1"), self.volume.tail(replica, 0)

    def seen(self) -> dict[str, Said]:
        return {name: see(*self.snapshot(name)) for name in self.names()}


def see(view: View, held: HeldReplica, entries: list[Entry]) -> Said:
    return {
        "rows": in_view(view),
        "versions": versions(view),
        "records": records(view),
        "digest": view.digest(),
        "watermark": held.watermark,
        "begun": held.begun,
        "first": held.first,
        "entries": [(entry.at, len(entry.rows or ())) for entry in entries],
        "producers": held.producers,
    }


def versions(view: View) -> dict[str, Position]:
    found: dict[str, Position] = {}
    for batch in view.batches(BIRDS, tombstones=True):
        assert batch.versions is not None
        for row, version in enumerate(batch.versions.tolist()):
            found[batch.key(row)[0]] = version
    return found


# ------------------------------------------------------------------------------------- checks


def check_consistent(run: Run) -> None:
    """Whatever came back, it agrees with itself."""
    assert run.volume.refused == {}
    for said in run.seen().values():
        committed = [at for at, _ in said["entries"] if at <= said["watermark"]]
        assert [at for at, _ in said["entries"]] == sorted(at for at, _ in said["entries"])
        assert all(at > said["first"] for at, _ in said["entries"])
        assert said["first"] <= said["watermark"]
        known = {part.at for _, _, parts in said["producers"] for _, all_ in parts for part in all_}
        assert all(at in known for at, rows in said["entries"] if rows), "rows without a producer"
        own = set(committed) | set(said["versions"].values())
        assert not any(part > max(own | {at for at, _ in said["entries"]}) for part in known)
        assert "never" not in said["rows"]
        again = Producers()
        again.unite(said["producers"])
        assert again.value(FOREVER) == said["producers"]


def check_kept(before: dict[str, Said], now: dict[str, Said]) -> None:
    """What was acknowledged is there: as it was, or as a later change of its own left it."""
    for name, old in before.items():
        if name not in now:
            assert name in ("whole", "right"), "only these are discarded"
            continue
        new = now[name]
        if (new["begun"], new["first"] < old["first"]) != (old["begun"], False):
            continue  # it has begun anew, or was made again
        assert new["watermark"] >= old["watermark"]
        for key, version in old["versions"].items():
            assert new["versions"].get(key, 0) >= version, f"{key} of {name} is older, or gone"
        assert new["records"][: len(old["records"])] == old["records"]
        kept = {at for at, _ in new["entries"]}
        assert all(at in kept or at <= new["first"] or at >> 40 == 50 for at, _ in old["entries"])


def leftovers(run: Run) -> list[str]:
    """Files that nobody needs."""
    needed = {"/v1/VOLUME", "/v1/LOCK"}
    first, last = run.volume.catalogue.first_log, run.volume.catalogue.last_log
    needed |= {f"/v1/log/{number:08}.log" for number in range(first, last + 1)}
    for name in run.names():
        path = f"/v1/replicas/{name}~r1"
        needed |= {f"{path}/MANIFEST"}
        for view in run.replica(name).view.tables.values():
            needed |= {f"{path}/{ranged.file}" for ranged in view.segments}
        manifest = run.replica(name).manifest
        if manifest is not None:
            needed |= {f"{path}/{s.file}" for table in manifest.tables for s in table.segments}
    return [path for path in run.memory.paths() if path not in needed]


# ------------------------------------------------------------------------------------- running


def work(run: Run, steps: list[Callable[[], None]]) -> int:
    """Until the process dies; the number of the step that it died in."""
    for number, step in enumerate(steps):
        try:
            step()
        except Died:
            return number
    return len(steps)


def expected_end() -> tuple[dict[str, Said], list[str]]:
    run = Run(MediumFiles())
    run.open()
    run.files.arm(nothing_happens)
    for step in run.steps():
        step()
    return run.seen(), run.files.trace


def rows_at_the_end(said: dict[str, Said]) -> dict[str, Any]:
    return {
        name: (each["rows"], each["versions"], each["records"], each["begun"])
        for name, each in said.items()
    }


def die_and_go_on(number: int, moment: Moment, seed: int | None, expected: Any) -> None:
    """A seed is for the dice of a power loss; without, only the process is gone."""
    run = Run(MediumFiles())
    steps = list(run.steps())
    died_in = -1
    try:
        run.open(at_operation(number, moment, die))
    except Died:
        pass
    else:
        died_in = work(run, steps)
        assert died_in < len(steps), "it did not die"
    before = {name: see(*said) for name, said in run.acknowledged.items()}
    run.memory.crash(Random(seed or 0), process_only=seed is None)
    run.open()
    check_consistent(run)
    now = run.seen()
    check_kept(before, now)
    assert leftovers(run) == []
    run.memory.crash(Random(number), process_only=False)
    run.open()
    assert run.seen() == now, "what came back once is there for good"
    for step in steps[max(died_in, 0) :]:
        step()
    assert rows_at_the_end(run.seen()) == expected
    run.maintain()
    run.volume.close()
    run.open()
    assert rows_at_the_end(run.seen()) == expected
    assert leftovers(run) == []


@pytest.fixture(scope="module")
def end() -> tuple[dict[str, Any], list[str]]:
    said, trace = expected_end()
    return rows_at_the_end(said), trace


def test_the_workload_touches_everything(end: tuple[dict[str, Any], list[str]]) -> None:
    rows, trace = end
    assert set(trace) >= TOUCHED, TOUCHED - set(trace)
    assert set(rows) == {"whole", "left", "back"}
    assert Counter(trace)["create log"] > 4


def crash_points(trace: list[str]) -> list[tuple[int, Moment]]:
    """Before and after each operation, and in the middle of each append."""
    points: list[tuple[int, Moment]] = []
    for number, label in enumerate(trace, 1):
        points.append((number, "before"))
        if label.startswith("append "):
            points.append((number, "middle"))
    return points


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
def test_a_process_that_dies_at_some_file_operations_loses_nothing(
    part: int, end: tuple[dict[str, Any], list[str]]
) -> None:
    expected, trace = end
    points = crash_points(trace)[10 * part :: 40]
    for number, moment in points:
        die_and_go_on(number, moment, None if number % 2 else number, expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_process_that_dies_at_any_file_operation_loses_nothing(
    seed: int | None, end: tuple[dict[str, Any], list[str]]
) -> None:
    expected, trace = end
    for number, moment in crash_points(trace):
        die_and_go_on(number, moment, seed, expected)
