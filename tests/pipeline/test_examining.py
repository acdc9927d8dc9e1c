"""Does a worker compare replicas in peace while they are written, lag, fail and change?"""

import queue
import random
import threading
from collections.abc import Sequence
from importlib import import_module

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.core.effects import Compare
from limosa.core.model.keys import TOKEN_END, WHOLE
from limosa.core.model.topology import Grant, Partition, Replica, Transition
from limosa.pipeline import examining
from limosa.pipeline.carriers import Done
from limosa.pipeline.examining import Examiner, PortionTooLarge, ranges_of
from limosa.pipeline.loads import CopyTarget, Permit
from limosa.pipeline.mover import PipelineMover
from limosa.pipeline.pipe import Access
from limosa.pipeline.portions import (
    PORTION_SLICES,
    SLICE_ROWS,
    TASKS_PER_WORKER,
    Examination,
    Portion,
    PortionLimits,
    PortionResult,
    cut,
    portion_of,
    share_out,
    whole,
)
from tests.pipeline.histories import (
    BIRDS,
    Collect,
    Content,
    Delete,
    Nodes,
    Put,
    Step,
    damaged,
    gone,
)
from tests.waiting import eventually

N1, N2, N3 = (CopyTarget(f"n{number}", f"c{number}") for number in (1, 2, 3))
PORTION = Portion("p", N1, (N2, N3), slices=4, first=0, last=4)


def examine(
    nodes: Nodes,
    portion: Portion = PORTION,
    strict: bool = False,
    limits: PortionLimits | None = None,
) -> PortionResult:
    return Examiner(
        portion, nodes, strict, limits or PortionLimits(), nodes.now, nodes.sleep
    ).examine()


def some(count: int) -> list[Step]:
    return [Put(f"bird {number}", number) for number in range(count)]


def test_equal_replicas_are_equal() -> None:
    nodes = Nodes(some(100), {"n1": 100, "n2": 100, "n3": 100})
    found = examine(nodes)
    assert (found.rows, found.nodes) == (100, ("n1", "n2", "n3"))
    assert (found.differences, found.unsettled, found.lags, found.errors) == ((), 0, (), ())
    assert len(nodes.reads) == 4 * 3, "each slice is read once"


def test_rows_that_differ_are_named_once() -> None:
    """F104: people learn which rows of a copy differ, and where."""
    nodes = Nodes(some(20), {"n1": 20, "n2": 20, "n3": 20})
    nodes.damage["n2"] = lambda held: damaged(held, "bird 3", "missing")
    nodes.damage["n3"] = lambda held: damaged(
        damaged(held, "bird 3", "missing"), "bird 7", "changed"
    )
    assert set(examine(nodes).differences) == {
        "birds name='bird 3': version 1:4 at n1, missing at n2 and n3",
        "birds name='bird 7': version 1:8 at n1, differs at n3 (same version, other contents)",
    }


def test_few_are_told_and_more_are_counted() -> None:
    nodes = Nodes(some(50), {"n1": 50, "n2": 50, "n3": 50})
    nodes.damage["n2"] = lambda held: held._replace(rows={})
    found = examine(nodes, limits=PortionLimits(differences=10))
    assert len(found.differences) == 10
    assert found.more == 40


def test_a_difference_that_does_not_last_is_none() -> None:
    """A replica that was read while it was replaced looks empty for a moment."""
    nodes = Nodes(some(50), {"n1": 50, "n2": 50, "n3": 50})
    looks = iter([False, True])  # it is sized up first
    nodes.damage["n2"] = lambda held: held._replace(rows={}) if next(looks, False) else held
    found = examine(nodes)
    assert found.differences == ()
    assert found.unsettled == 0


def test_a_replica_that_is_late_is_waited_for() -> None:
    nodes = Nodes(some(30), {"n1": 30, "n2": 10, "n3": 30})

    def follow() -> None:
        nodes.lengths["n2"] = min(30, nodes.lengths["n2"] + 1)

    nodes.before_each_read = follow
    found = examine(nodes)
    assert (found.differences, found.lags) == ((), ())
    assert found.nodes == ("n1", "n2", "n3")


def test_a_replica_that_does_not_come_is_said_to_lag() -> None:
    """It is waited for once, not for each slice."""
    nodes = Nodes(some(30), {"n1": 30, "n2": 10, "n3": 30})
    found = examine(nodes)
    lag = "p: n2 lags behind n1: it is at 1:10, and did not reach 1:30 within 10 s"
    assert found.lags == (lag,)
    assert found.nodes == ("n1", "n3")
    assert found.differences == ()
    assert nodes.seconds < 15


def test_a_replica_that_is_gone_is_an_error_and_the_others_are_compared() -> None:
    nodes = Nodes(some(30), {"n1": 30, "n2": 30, "n3": 30})
    nodes.failing["n2"] = gone()
    nodes.damage["n3"] = lambda held: damaged(held, "bird 7", "changed")
    found = examine(nodes)
    assert found.nodes == ("n1", "n3")
    assert len(found.differences) == 1
    assert found.errors == ("p at n2: replica c1 of p is not here (ask another node)",)


def test_without_the_lead_nothing_is_compared() -> None:
    nodes = Nodes(some(30), {"n1": 30, "n2": 30, "n3": 30})
    nodes.failing["n1"] = gone()
    found = examine(nodes)
    assert (found.nodes, found.rows, len(found.errors)) == ((), 0, 1)


def test_tombstones_count_where_digests_counted_them() -> None:
    history: list[Step] = [*some(5), Delete("bird 2")]
    nodes = Nodes(history, {"n1": 6, "n2": 6, "n3": 6})

    def forget(held: Content) -> Content:
        rows = {name: known for name, known in held.rows.items() if name != "bird 2"}
        return held._replace(rows=rows)

    nodes.damage["n2"] = forget
    assert examine(nodes).differences == ()
    assert examine(nodes, strict=True).differences == (
        "birds name='bird 2': deleted at n1 (version 1:6), missing at n2",
    )


def test_a_row_that_is_always_written_is_not_called_different() -> None:
    nodes = Nodes(some(10), {"n1": 10, "n2": 10, "n3": 10})

    def write() -> None:
        nodes.history.append(Put("bird 1", len(nodes.history)))
        nodes.lengths = dict.fromkeys(nodes.lengths, len(nodes.history))

    nodes.before_each_read = write
    found = examine(nodes)
    assert found.differences == ()
    assert found.unsettled == 1


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_under_any_writes_only_what_is_damaged_differs(
    seed: int, strict: bool, is_damaged: bool
) -> None:
    """S37, F102: rows are written, deleted and collected at every moment, and followers are
    behind by chance; a row that nobody writes is wrong on one of them, or none is."""
    chance = random.Random(seed)
    nodes = Nodes(some(20), dict.fromkeys(("n1", "n2", "n3"), 20))

    def live() -> None:
        for _ in range(chance.randrange(4)):
            name = f"bird {chance.randrange(15)}"
            kind = chance.randrange(6)
            step: Step = Put(name, chance.randrange(3)) if kind < 4 else Delete(name)
            nodes.history.append(step if kind < 5 else Collect(chance.randrange(4)))
        end = len(nodes.history)
        owner = nodes.lengths["n1"] = chance.randint(nodes.lengths["n1"], end)
        for node in ("n2", "n3"):
            nodes.lengths[node] = chance.randint(nodes.lengths[node], owner)

    nodes.before_each_read = live
    if is_damaged:
        node, kind = chance.choice(["n1", "n2", "n3"]), chance.choice(["changed", "missing"])
        nodes.damage[node] = lambda held: damaged(held, "bird 17", kind)  # type: ignore[arg-type]
    found = examine(nodes, strict=strict, limits=PortionLimits(lag_seconds=1000.0))
    assert [each.split(":")[0] for each in found.differences] == ["birds name='bird 17'"] * (
        1 if is_damaged else 0
    )
    assert (found.errors, found.lags) == ((), ())


def test_a_table_that_got_columns_meanwhile_is_compared_by_its_newest_definition() -> None:
    wider = BIRDS.evolved(pa.schema([("name", pa.string())]))
    nodes = Nodes(some(10), {"n1": 10, "n2": 10, "n3": 10})
    plain = nodes.read

    def read(target, partition, table, ranges, at_least):  # type: ignore[no-untyped-def]
        rows = plain(target, partition, BIRDS, ranges, at_least)
        if target.node == "n2" or table.version == wider.version:
            rows.table = wider
            rows.hashes = rows.hashes + 1
        return rows

    nodes.read = read  # type: ignore[method-assign]
    found = examine(nodes)
    assert (found.differences, found.unsettled, found.rows) == ((), 0, 10)


def test_a_slice_that_is_too_large_is_cut() -> None:
    nodes = Nodes(some(100), {"n1": 100, "n2": 100, "n3": 100})
    nodes.damage["n2"] = lambda held: damaged(held, "bird 7", "changed")
    plain = nodes.read

    def read(*arguments):  # type: ignore[no-untyped-def]
        rows = plain(*arguments)
        if len(rows) > 10:
            raise PortionTooLarge
        return rows

    nodes.read = read  # type: ignore[method-assign]
    found = examine(nodes)
    assert found.rows == 100
    assert len(found.differences) == 1


def test_a_few_keys_are_looked_at_singly_and_many_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examining, "TOKENS_MAX", 3)
    nodes = Nodes(some(40), {"n1": 40, "n2": 40, "n3": 40})
    whole_slice = Portion("p", N1, (N2,), slices=1, first=0, last=1)
    nodes.damage["n2"] = lambda held: damaged(held, "bird 7", "changed")
    assert len(examine(nodes, whole_slice).differences) == 1
    nodes.damage["n2"] = lambda held: held._replace(rows={})
    assert len(examine(nodes, whole_slice).differences) == 40
    assert ranges_of([], WHOLE) == []


# --- planning

A, B, C, D = (Replica(f"n{number}", "c1") for number in (1, 2, 3, 4))


def record(stage: str = "", in_sync: tuple[Replica, ...] = (A, B, C, D)) -> Partition:
    change = Transition("t1", "move", stage, (A, B, D)) if stage else None
    replicas = (A, B, C)
    synced = tuple(each for each in in_sync if stage or each in replicas)
    return Partition("p", "z", WHOLE, replicas, synced, 1, Grant(B, 1), transition=change)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("", (A, B, C)),
        ("allow_write_both_read_old", (A, B, C)),
        ("write_both_read_old", (A, B, C)),
        ("streaming", (A, B, C)),
        ("write_both_read_new", (A, B, C, D)),
        ("use_new", (A, B, D)),
        ("cleanup", (A, B, D)),
        ("write_both_read_old_fallback", (A, B, C)),
        ("cleanup_target", (A, B, C)),
    ],
)
def test_only_replicas_that_hold_everything_are_compared(
    stage: str, expected: tuple[Replica, ...]
) -> None:
    """F102, S39: one that is still being copied to would lack rows, and be right."""
    assert set(whole(record(stage))) == set(expected)
    assert set(whole(record(stage, in_sync=(B, D)))) == {B, D} & set(expected)


def test_the_owner_leads() -> None:
    assert portion_of(record()).lead == CopyTarget("n2", "c1")
    assert [each.node for each in portion_of(record()).others] == ["n1", "n3"]
    out = record(in_sync=(A, C))  # an owner that is out of sync is none for long
    assert portion_of(out).lead.node == "n1"
    assert portion_of(record(in_sync=())).others == ()


@given(st.integers(1, 50 * SLICE_ROWS))
def test_portions_are_the_partition_without_gap_or_overlap(rows: int) -> None:
    parts = cut(PORTION, rows)
    assert parts[0].first == 0
    assert parts[-1].last == parts[0].slices
    assert [each.last for each in parts[:-1]] == [each.first for each in parts[1:]]
    assert all(0 < each.last - each.first <= PORTION_SLICES for each in parts)
    assert parts[0].slices * SLICE_ROWS >= rows
    assert TOKEN_END - WHOLE.start > parts[0].slices


@given(st.lists(st.integers(0, 3_000_000), max_size=60), st.integers(1, 16))
def test_every_portion_is_in_one_task(sizes: list[int], workers: int) -> None:
    given = [(Portion(f"p{number}", N1, (N2,)), size) for number, size in enumerate(sizes)]
    tasks = share_out(given, workers)
    assert [portion for portions, _ in tasks for portion in portions] == [p for p, _ in given]
    assert sum(rows for _, rows in tasks) == sum(sizes)
    assert len(tasks) <= TASKS_PER_WORKER * workers + 1


# --- for a move whose digests differ


class FakeCarrier:
    """Ends a job when it is told to, or refuses it at once."""

    workers = 1

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.jobs: list[tuple[str, str, Sequence[bytes], Done]] = []

    def start(self) -> None: ...

    def run(self, job: str, work: str, access: bytes, tasks: Sequence[bytes], done: Done) -> None:
        self.jobs.append((job, work, tasks, done))
        if self.refusal:
            done((), self.refusal)

    def cancel(self, job: str) -> None: ...

    def close(self) -> None: ...


class Asking:
    """A coordinator that asks a mover, and holds its own lock meanwhile."""

    def __init__(self, carrier: FakeCarrier) -> None:
        self.mover = PipelineMover(
            carrier, Access("c"), lambda _: Permit(), 0.0, lambda *_, **__: None
        )
        self.mover.follow({"n1": "grpc://a", "n2": "grpc://b"})
        self.told: queue.SimpleQueue[tuple[tuple[str, ...], int]] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def ask(self) -> None:
        with self._lock:
            self.mover.compare(Compare("p", "s@1", A, (B,)), self._then)

    def _then(self, differences: tuple[str, ...], more: int) -> None:
        with self._lock:
            self.told.put((differences, more))


def test_a_comparison_that_is_under_way_is_not_begun_again() -> None:
    carrier = FakeCarrier()
    asking = Asking(carrier)
    asking.ask()
    asking.ask()
    ((_, work, tasks, done),) = carrier.jobs
    module, _, name = work.partition(":")
    assert hasattr(import_module(module), name)
    task = msgspec.msgpack.decode(tasks[0], type=Examination)
    assert task.strict
    assert task.portions == (Portion("p", CopyTarget("n1", "c1"), (CopyTarget("n2", "c1"),)),)
    found = [PortionResult("p", 9, differences=("id=1: …",), more=3, lags=("n2 lags",))]
    done([msgspec.msgpack.encode(found)], "")
    assert asking.told.get(timeout=5.0) == (("id=1: …", "n2 lags"), 3)


def test_a_comparison_that_fails_says_why_and_can_be_asked_for_again() -> None:
    """Also if it fails at once, while whoever asked still holds its lock."""
    carrier = FakeCarrier("Spark does not start")
    asking = Asking(carrier)
    for _ in range(2):
        asking.ask()
        told = asking.told.get(timeout=5.0)
        assert told == (("the rows were not compared: Spark does not start",), 0)
        eventually(lambda: not asking.mover._comparing, "the comparison ends")
    assert len(carrier.jobs) == 2
