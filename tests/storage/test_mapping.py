"""Files in memory: they stay as long as somebody has a part of them, and no longer."""

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from limosa.storage.mapping import mapped
from tests.waiting import left_after


def maps_of(path: Path) -> int:
    """How often this process has the file in memory."""
    with open("/proc/self/maps") as maps:
        return sum(str(path) in line for line in maps)


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    content = os.urandom(10_000)
    path.write_bytes(content)
    assert mapped(str(path)).to_pybytes() == content


def test_an_empty_file_has_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    assert mapped(str(path)).size == 0


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mapped(str(tmp_path / "a"))


def test_what_can_not_be_mapped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"device|directory|Invalid"):
        mapped(str(tmp_path))


def test_a_removed_file_is_there_as_long_as_a_part_of_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"seen" * 5_000)
    whole = mapped(str(path))
    part = whole.slice(4, 8)
    path.unlink()
    del whole
    assert part.to_pybytes() == b"seenseen"
    assert maps_of(path) == 1
    del part
    assert maps_of(path) == 0


def test_no_descriptor_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 5_000)
    before = len(os.listdir("/proc/self/fd"))
    held = [mapped(str(path)) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(held) == 20


def test_many_threads_may_let_go(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000)
    failed: list[Exception] = []

    def use() -> None:
        try:
            for _ in range(200):
                parts = [mapped(str(path)).slice(at, 10) for at in range(0, 1_000, 100)]
                assert pa.concat_arrays([pa.array([part.to_pybytes()]) for part in parts])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert left_after(lambda: maps_of(path), 5.0) == 0
