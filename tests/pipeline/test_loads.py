"""Is every slice in exactly one task, and no task much heavier than another?"""

from collections import Counter
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from limosa.pipeline.loads import (
    SLICE_BYTES,
    SLICES_MAX,
    TASK_BYTES_MIN,
    UNKNOWN_SLICES,
    CopyLoad,
    Task,
    load_of,
    share_out,
)
from tests.pipeline.samples import copy

LARGEST = 20 * TASK_BYTES_MIN
SIZES = st.one_of(st.just(0), st.integers(1, 1 << 20), st.integers(1, LARGEST))


def loads_of(sizes: Sequence[int]) -> list[CopyLoad]:
    return [load_of(copy(f"p{number}"), size, False) for number, size in enumerate(sizes)]


def shared(sizes: Sequence[int], workers: int, bytes_per_second: float = 0.0) -> list[Task]:
    return share_out(loads_of(sizes), {}, workers, bytes_per_second)


def weight(task: Task) -> int:
    return sum(load.bytes for load in task.loads)


@given(st.lists(SIZES, max_size=40), st.integers(1, 16))
def test_every_slice_is_in_exactly_one_task(sizes: list[int], workers: int) -> None:
    """F93: a slice in none would leave a copy unfinished for ever; in two, it travels twice."""
    tasks = shared(sizes, workers)
    found = Counter(
        (load.partition, number)
        for task in tasks
        for load in task.loads
        for number in range(load.first, load.last)
    )
    wanted = {(load.partition, n) for load in loads_of(sizes) for n in range(load.slices)}
    assert set(found) == wanted
    assert set(found.values()) <= {1}
    assert len(tasks) <= workers
    assert all(task.loads for task in tasks)


@given(st.lists(SIZES, min_size=1, max_size=40), st.integers(1, 16))
def test_no_task_is_much_heavier_than_the_average(sizes: list[int], workers: int) -> None:
    tasks = shared(sizes, workers)
    count = max(1, min(workers, sum(sizes) // TASK_BYTES_MIN))
    assert max(map(weight, tasks)) <= 2 * sum(sizes) / count + SLICE_BYTES


@given(st.integers(1, 16))
def test_many_small_partitions_share_a_task(workers: int) -> None:
    """Each task costs tens of milliseconds."""
    (task,) = shared([100_000] * 500, workers)
    assert len(task.loads) == 500


def test_partitions_of_unknown_size_share_a_task() -> None:
    (task,) = shared([0] * 100, 8)
    assert {load.slices for load in task.loads} == {UNKNOWN_SLICES}


@given(st.integers(2, 16))
def test_one_large_partition_is_cut_for_all_workers(workers: int) -> None:
    tasks = shared([workers * TASK_BYTES_MIN], workers)
    assert len(tasks) == workers
    lengths = [piece.last - piece.first for task in tasks for piece in task.loads]
    assert len(lengths) == workers, "a worker has one run of neighbouring slices"
    assert max(lengths) - min(lengths) <= 1


def test_a_large_partition_does_not_keep_small_ones_waiting() -> None:
    tasks = shared([10 * TASK_BYTES_MIN, *[1000] * 20], 4)
    assert len(tasks) == 4
    assert max(map(weight, tasks)) < 1.1 * min(map(weight, tasks))


@given(st.integers(1, LARGEST))
def test_a_slice_is_small_enough_for_one_message(size: int) -> None:
    load = load_of(copy("p"), size, False)
    assert (load.first, load.last) == (0, load.slices)
    assert size <= load.slices * SLICE_BYTES
    assert (load.slices - 1) * SLICE_BYTES < size


def test_there_is_a_limit_to_slices() -> None:
    assert load_of(copy("p"), 1 << 50, False).slices == SLICES_MAX


@given(st.lists(SIZES, min_size=1, max_size=40), st.integers(1, 16))
def test_the_tasks_together_keep_to_the_bandwidth(sizes: list[int], workers: int) -> None:
    tasks = shared(sizes, workers, 1e6)
    assert sum(task.bytes_per_second for task in tasks) <= 1e6 * 1.000001
    assert all(task.bytes_per_second > 0 for task in tasks)
    assert not any(task.bytes_per_second for task in shared(sizes, workers))


@given(st.lists(SIZES, max_size=10), st.integers(1, 4))
def test_a_task_travels_as_bytes(sizes: list[int], workers: int) -> None:
    for task in share_out(loads_of(sizes), {"n1": "grpc://127.0.0.1:1"}, workers, 7.0):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task) == task
