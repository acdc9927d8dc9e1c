"""Does every file system do what the port says, and nothing worse than its crash allows?"""

import errno
import os
import signal
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.errors import UnusableFile
from limosa.simulation.files import SECTOR_BYTES
from limosa.storage.files import (
    IOV_MAX,
    Files,
    PosixFiles,
    replace_durably,
    write_durably,
)
from limosa.tabular.bodies import Piece
from tests.storage.faulty_files import (
    FOREVER,
    Action,
    Died,
    FaultyFiles,
    Moment,
    Operation,
    Plan,
    at_label,
    at_operation,
    die,
    fail,
    fails,
    kind_of,
    short_write,
    together,
)
from tests.storage.medium import MediumFiles

REPOSITORY = Path(__file__).parents[2]
SEEDS = range(200)


@pytest.fixture(params=["memory", "posix", "faulty memory"])
def files(request: pytest.FixtureRequest) -> Files:
    if request.param == "posix":
        return PosixFiles()
    memory = MediumFiles(["/volume"])
    return memory if request.param == "memory" else FaultyFiles(memory)


@pytest.fixture
def root(files: Files, tmp_path: Path) -> str:
    return str(tmp_path) if isinstance(files, PosixFiles) else "/volume"


def content(files: Files, path: str) -> bytes:
    return files.read(path).to_pybytes()


def write(files: Files, path: str, *pieces: Piece) -> None:
    """Without a sync."""
    file = files.create(path)
    file.append(pieces)
    file.close()


# ------------------------------------------------------------------------ every implementation


def test_what_was_appended_is_read_in_its_order(files: Files, root: str) -> None:
    file = files.create(f"{root}/a")
    file.append([b"one ", pa.py_buffer(b"two "), b"", pa.py_buffer(b"")])
    file.append([])
    file.append([pa.py_buffer(array("q", [7, 8]))])
    file.sync()
    file.close()
    assert content(files, f"{root}/a") == b"one two " + array("q", [7, 8]).tobytes()


def test_a_new_file_is_empty_and_can_be_read(files: Files, root: str) -> None:
    files.create(f"{root}/a").close()
    assert content(files, f"{root}/a") == b""


def test_an_append_takes_more_pieces_than_one_system_call(files: Files, root: str) -> None:
    pieces = [b"%d," % number for number in range(2 * IOV_MAX + 5)]
    write(files, f"{root}/a", *pieces)
    assert content(files, f"{root}/a") == b"".join(pieces)


def test_a_file_that_is_created_again_is_empty(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"old content")
    write(files, f"{root}/a", b"new")
    assert content(files, f"{root}/a") == b"new"


def test_a_reopened_file_grows_at_its_end(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"one")
    file = files.reopen(f"{root}/a")
    file.append([b" two"])
    file.close()
    assert content(files, f"{root}/a") == b"one two"


def test_an_overwrite_changes_its_bytes_and_not_where_the_file_grows(
    files: Files, root: str
) -> None:
    file = files.create(f"{root}/a")
    file.append([b"0123456789"])
    file.overwrite(2, b"ab")
    file.append([b"!"])
    file.close()
    assert content(files, f"{root}/a") == b"01ab456789!"


def test_a_buffer_outlives_its_file(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"kept" * 5000)
    buffer = files.read(f"{root}/a")
    files.remove(f"{root}/a")
    write(files, f"{root}/a", b"another")
    assert buffer.to_pybytes() == b"kept" * 5000


def test_a_file_that_is_open_can_be_removed_and_still_be_written(files: Files, root: str) -> None:
    file = files.create(f"{root}/a")
    files.remove(f"{root}/a")
    file.append([b"into the void"])
    file.sync()
    file.close()
    assert files.names(root) == []


def test_what_is_missing_is_not_found(files: Files, root: str) -> None:
    missing = f"{root}/missing"
    for attempt in missing_attempts(files, missing, f"{root}/target"):
        with pytest.raises(FileNotFoundError):
            attempt()
    assert files.names(root) == []


def missing_attempts(files: Files, missing: str, target: str) -> Sequence[Callable[[], object]]:
    return (
        lambda: files.create(f"{missing}/a"),
        lambda: files.reopen(missing),
        lambda: files.read(missing),
        lambda: files.names(missing),
        lambda: files.replace(missing, target),
        lambda: files.link(missing, target),
        lambda: files.sync_directory(missing),
        lambda: files.lock(f"{missing}/LOCK"),
        lambda: files.free_bytes(missing),
    )


def test_names_are_sorted_and_tell_files_and_directories(files: Files, root: str) -> None:
    write(files, f"{root}/b", b"")
    write(files, f"{root}/a", b"")
    files.make_directory(f"{root}/c/d")
    assert files.names(root) == ["a", "b", "c"]
    assert files.names(f"{root}/c") == ["d"]
    assert files.names(f"{root}/c/d") == []


def test_a_directory_may_be_there_already(files: Files, root: str) -> None:
    files.make_directory(f"{root}/c")
    write(files, f"{root}/c/a", b"here")
    files.make_directory(f"{root}/c")
    assert content(files, f"{root}/c/a") == b"here"


def test_a_directory_cannot_be_where_a_file_is(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"")
    with pytest.raises(FileExistsError):
        files.make_directory(f"{root}/a")
    with pytest.raises(NotADirectoryError):
        files.create(f"{root}/a/b")
    with pytest.raises(NotADirectoryError):
        files.names(f"{root}/a")
    with pytest.raises(NotADirectoryError):
        files.sync_directory(f"{root}/a")


def test_a_directory_is_no_file(files: Files, root: str) -> None:
    files.make_directory(f"{root}/c")
    for attempt in (files.create, files.reopen, files.lock):
        with pytest.raises(IsADirectoryError):
            attempt(f"{root}/c")
    with pytest.raises(OSError):  # noqa: PT011  Arrow's own for a mapping, with no code
        files.read(f"{root}/c")


def test_a_replaced_file_has_one_name_and_the_new_content(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"old")
    write(files, f"{root}/a.new", b"new")
    files.replace(f"{root}/a.new", f"{root}/a")
    assert files.names(root) == ["a"]
    assert content(files, f"{root}/a") == b"new"


def test_a_directory_moves_with_all_that_is_in_it(files: Files, root: str) -> None:
    files.make_directory(f"{root}/replicas/one/inner")
    files.make_directory(f"{root}/trash")
    write(files, f"{root}/replicas/one/inner/a", b"here")
    files.replace(f"{root}/replicas/one", f"{root}/trash/1")
    assert files.names(f"{root}/replicas") == []
    assert content(files, f"{root}/trash/1/inner/a") == b"here"


def test_a_replace_that_does_not_fit_is_refused_and_changes_nothing(
    files: Files, root: str
) -> None:
    files.make_directory(f"{root}/full/inner")
    files.make_directory(f"{root}/empty")
    write(files, f"{root}/a", b"here")
    for source, target, code in [
        ("a", "full", errno.EISDIR),
        ("full", "a", errno.ENOTDIR),
        ("empty", "full", errno.ENOTEMPTY),
        ("full", "full/inner/deeper", errno.EINVAL),
    ]:
        attempt = partial(files.replace, f"{root}/{source}", f"{root}/{target}")
        assert outcome_of(attempt) == code
    files.replace(f"{root}/full", f"{root}/empty")
    assert files.names(root) == ["a", "empty"]
    assert files.names(f"{root}/empty") == ["inner"]


def test_a_linked_file_lives_until_its_last_name_is_gone(files: Files, root: str) -> None:
    file = files.create(f"{root}/a")
    files.link(f"{root}/a", f"{root}/b")
    file.append([b"shared"])
    file.close()
    files.remove(f"{root}/a")
    assert files.names(root) == ["b"]
    assert content(files, f"{root}/b") == b"shared"


def test_a_link_that_is_there_already_is_fine(files: Files, root: str) -> None:
    write(files, f"{root}/a", b"shared")
    files.link(f"{root}/a", f"{root}/b")
    files.link(f"{root}/a", f"{root}/b")
    assert content(files, f"{root}/b") == b"shared"


def test_two_names_of_one_file_do_not_replace_each_other(files: Files, root: str) -> None:
    """So POSIX wants it: whoever renames must not count on the old name being gone."""
    write(files, f"{root}/a", b"shared")
    files.link(f"{root}/a", f"{root}/b")
    files.replace(f"{root}/a", f"{root}/b")
    assert files.names(root) == ["a", "b"]


def test_a_directory_is_removed_with_all_that_is_in_it(files: Files, root: str) -> None:
    files.make_directory(f"{root}/c/d")
    write(files, f"{root}/c/d/a", b"x")
    write(files, f"{root}/c/b", b"x")
    files.remove(f"{root}/c")
    assert files.names(root) == []


def test_removing_what_is_gone_is_fine(files: Files, root: str) -> None:
    files.remove(f"{root}/missing")
    files.remove(f"{root}/missing/inner")


def test_a_second_lock_is_refused_until_the_first_is_closed(files: Files, root: str) -> None:
    first = files.lock(f"{root}/LOCK")
    with pytest.raises(UnusableFile, match="is locked"):
        files.lock(f"{root}/LOCK")
    files.lock(f"{root}/OTHER").close()
    first.close()
    files.lock(f"{root}/LOCK").close()


def test_there_is_room(files: Files, root: str) -> None:
    assert files.free_bytes(root) > 0


def test_a_closed_file_is_of_no_use(memory: MediumFiles) -> None:
    """In memory only: a real descriptor may be another file's by then."""
    file = memory.create("/volume/a")
    file.close()
    attempts: list[Action] = [lambda: file.append([b"x"]), file.sync, file.close]
    for attempt in attempts:
        with pytest.raises(OSError, match="closed"):
            attempt()


def test_a_file_is_replaced_durably(files: Files, root: str) -> None:
    replace_durably(files, root, "a", [b"old"])
    replace_durably(files, root, "a", [b"new"])
    assert files.names(root) == ["a"]
    assert content(files, f"{root}/a") == b"new"


# ------------------------------------------------------------------------ the real one


def test_syncs_together_all_end_before_an_error_is_raised(files: Files) -> None:
    ended: list[int] = []

    def sync(number: int) -> None:
        ended.append(number)
        if number == 19:
            raise OSError(errno.EIO, "one of them")

    files.sync_together([partial(sync, number) for number in range(19)])
    assert sorted(ended) == list(range(19))
    ended.clear()
    with pytest.raises(OSError, match="one of them"):
        files.sync_together([partial(sync, number) for number in range(20)])
    assert sorted(ended) == list(range(20))


@pytest.fixture
def posix(tmp_path: Path) -> tuple[PosixFiles, str]:
    return PosixFiles(), str(tmp_path)


def test_short_writes_of_the_kernel_are_continued(
    posix: tuple[PosixFiles, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_three_bytes(descriptor: int, views: Sequence[memoryview]) -> int:
        return os.write(descriptor, b"".join(views)[:3])

    monkeypatch.setattr(os, "writev", write_three_bytes)
    files, root = posix
    write(files, f"{root}/a", b"0123", b"", b"4567", b"89")
    assert content(files, f"{root}/a") == b"0123456789"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_where_no_link_is_possible_there_is_a_copy(
    posix: tuple[PosixFiles, str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    files, root = posix
    write(files, f"{root}/a", b"content")
    monkeypatch.setattr(os, "link", refuse_with(code))
    files.link(f"{root}/a", f"{root}/b")
    files.remove(f"{root}/a")
    assert files.names(root) == ["b"]
    assert content(files, f"{root}/b") == b"content"


def test_a_link_that_fails_otherwise_is_no_copy(
    posix: tuple[PosixFiles, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, root = posix
    write(files, f"{root}/a", b"content")
    monkeypatch.setattr(os, "link", refuse_with(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        files.link(f"{root}/a", f"{root}/b")
    assert files.names(root) == ["a"]


def refuse_with(code: int) -> Callable[[str, str], None]:
    def refuse(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), source, None, target)

    return refuse


# ------------------------------------------------------------------------ the crash


@pytest.fixture
def memory() -> MediumFiles:
    return MediumFiles(["/volume"])


def after_power_losses(prepare: Callable[[MediumFiles], object]) -> Iterator[MediumFiles]:
    for seed in SEEDS:
        files = MediumFiles(["/volume"])
        prepare(files)
        files.crash(Random(seed))
        yield files


def test_synced_bytes_under_a_synced_name_survive() -> None:
    def prepare(files: MediumFiles) -> None:
        write_durably(files, "/volume/a", [b"durable"])
        files.sync_directory("/volume")

    for files in after_power_losses(prepare):
        assert files.snapshot() == {"/volume/a": b"durable"}


def test_a_name_needs_its_directory_synced() -> None:
    found = Counter(
        tuple(files.names("/volume"))
        for files in after_power_losses(lambda files: write_durably(files, "/volume/a", [b"x"]))
    )
    assert found.keys() == {(), ("a",)}


def test_a_directory_needs_each_of_its_parents_synced() -> None:
    def prepare(files: MediumFiles) -> None:
        files.make_directory("/volume/c/d")
        files.sync_directory("/volume/c")

    found = Counter(
        "c" in files.names("/volume") and files.names("/volume/c") == ["d"]
        for files in after_power_losses(prepare)
    )
    assert found.keys() == {False, True}


def test_of_unsynced_appends_anything_from_nothing_to_all_survives_behind_what_was_synced() -> None:
    data = Random(0).randbytes(3000)

    def prepare(files: MediumFiles) -> None:
        file = files.create("/volume/a")
        file.append([data[:700]])
        file.sync()
        files.sync_directory("/volume")
        file.append([data[700:1500]])
        file.append([data[1500:]])

    seen: Counter[str] = Counter()
    for files in after_power_losses(prepare):
        found = content(files, "/volume/a")
        assert found[:700] == data[:700]
        assert 700 <= len(found) <= 3000
        seen["nothing"] += len(found) == 700
        seen["all"] += found == data
        seen["whole prefix"] += len(found) < 3000 and found == data[: len(found)]
        if found != data[: len(found)]:
            seen["zeros" if is_torn_by_zeros(found, data) else "garbage"] += 1
    assert all(seen[kind] for kind in ("nothing", "all", "whole prefix", "zeros", "garbage"))


def is_torn_by_zeros(found: bytes, data: bytes) -> bool:
    """Damage starts where a sector starts, or where the synced bytes end."""
    wrong = [at for at in range(len(found)) if found[at] != data[at]]
    assert wrong[0] >= 700
    sectors = {at // SECTOR_BYTES for at in wrong}
    assert sectors == set(range(min(sectors), max(sectors) + 1))
    return all(found[at] == 0 for at in wrong)


def test_an_unsynced_overwrite_survives_whole_or_not_at_all() -> None:
    def prepare(files: MediumFiles) -> None:
        write_durably(files, "/volume/a", [b"0123456789"])
        files.sync_directory("/volume")
        file = files.reopen("/volume/a")
        file.overwrite(2, b"ab")
        file.overwrite(3, b"xy")

    found = {content(files, "/volume/a") for files in after_power_losses(prepare)}
    assert found == {b"0123456789", b"01ab456789", b"012xy56789", b"01axy56789"}


def test_a_synced_overwrite_survives() -> None:
    def prepare(files: MediumFiles) -> None:
        file = files.create("/volume/a")
        file.append([b"0123456789"])
        file.overwrite(2, b"ab")
        file.sync()
        files.sync_directory("/volume")

    for files in after_power_losses(prepare):
        assert content(files, "/volume/a") == b"01ab456789"


def test_a_file_that_was_made_anew_may_have_its_old_content_or_be_gone_or_the_new_one() -> None:
    def prepare(files: MediumFiles) -> None:
        write_durably(files, "/volume/a", [b"old"])
        files.sync_directory("/volume")
        write(files, "/volume/a", b"!")

    found = {files.snapshot().get("/volume/a") for files in after_power_losses(prepare)}
    assert {b"old", None, b"", b"!"} <= found
    assert all(len(each) == 1 for each in found - {b"old", b"", None} if each is not None)


def test_names_come_back_as_of_some_moment_since_the_sync() -> None:
    """A replace is one step, so there is no moment without either name."""

    def prepare(files: MediumFiles) -> None:
        write_durably(files, "/volume/a", [b"old"])
        files.sync_directory("/volume")
        write_durably(files, "/volume/a.new", [b"new"])
        files.replace("/volume/a.new", "/volume/a")
        files.link("/volume/a", "/volume/b")
        files.remove("/volume/a")

    found = {tuple(files.snapshot().items()) for files in after_power_losses(prepare)}
    assert found == {
        (("/volume/a", b"old"),),
        (("/volume/a", b"old"), ("/volume/a.new", b"new")),
        (("/volume/a", b"new"),),
        (("/volume/a", b"new"), ("/volume/b", b"new")),
        (("/volume/b", b"new"),),
    }


def test_a_durable_replacement_never_shows_anything_between_old_and_new() -> None:
    for number in range(1, 6):
        for seed in range(40):
            memory = MediumFiles(["/volume"])
            replace_durably(memory, "/volume", "a", [b"old" * 400])
            files = FaultyFiles(memory, at_operation(number, "middle", die))
            with pytest.raises(Died):
                replace_durably(files, "/volume", "a", [b"new" * 400])
            memory.crash(Random(seed))
            expected = {b"new" * 400} if number == 5 else {b"old" * 400, b"new" * 400}
            assert content(memory, "/volume/a") in expected


def prepare_move(files: MediumFiles) -> None:
    files.make_directory("/volume/old")
    files.make_directory("/volume/new")
    files.make_directory("/volume/old/inner")
    write_durably(files, "/volume/old/inner/a", [b"here"])
    files.write_back()
    files.replace("/volume/old/inner", "/volume/new/inner")


def test_a_move_between_directories_happens_in_both_or_in_neither() -> None:
    found = Counter(tuple(files.paths()) for files in after_power_losses(prepare_move))
    assert found.keys() == {("/volume/old/inner/a",), ("/volume/new/inner/a",)}


@pytest.mark.parametrize("synced", ["/volume/old", "/volume/new"])
def test_a_move_between_directories_is_durable_once_either_is_synced(synced: str) -> None:
    def prepare(files: MediumFiles) -> None:
        prepare_move(files)
        files.sync_directory(synced)

    for files in after_power_losses(prepare):
        assert files.paths() == ["/volume/new/inner/a"]


def test_a_directory_may_be_removed_by_half() -> None:
    def prepare(files: MediumFiles) -> None:
        files.make_directory("/volume/c")
        write_durably(files, "/volume/c/a", [b"1"])
        write_durably(files, "/volume/c/b", [b"2"])
        files.write_back()
        files.remove("/volume/c")

    found = {tuple(files.paths()) for files in after_power_losses(prepare)}
    assert found == {("/volume/c/a", "/volume/c/b"), ("/volume/c/b",), ()}


def test_a_removed_file_comes_back_with_its_synced_bytes() -> None:
    def prepare(files: MediumFiles) -> None:
        write_durably(files, "/volume/a", [b"synced"])
        files.sync_directory("/volume")
        files.remove("/volume/a")

    found = {tuple(files.snapshot().items()) for files in after_power_losses(prepare)}
    assert found == {(), (("/volume/a", b"synced"),)}


def test_what_survived_a_power_loss_survives_the_next(memory: MediumFiles) -> None:
    write(memory, "/volume/a", bytes(range(256)) * 8)
    memory.crash(Random(3))
    survived = memory.snapshot()
    for seed in SEEDS:
        memory.crash(Random(seed))
        assert memory.snapshot() == survived


def test_a_killed_process_loses_nothing_but_its_handles_and_locks(memory: MediumFiles) -> None:
    file = memory.create("/volume/a")
    file.append([b"never synced"])
    lock = memory.lock("/volume/LOCK")
    memory.crash(Random(0), process_only=True)
    assert memory.snapshot() == {"/volume/LOCK": b"", "/volume/a": b"never synced"}
    second = memory.lock("/volume/LOCK")
    lock.close()
    with pytest.raises(UnusableFile):
        memory.lock("/volume/LOCK")
    second.close()
    attempts: list[Action] = [
        lambda: file.append([b"x"]),
        lambda: file.overwrite(0, b"x"),
        file.sync,
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="crashed"):
            attempt()
    file.close()


def test_a_killed_process_makes_nothing_durable() -> None:
    def prepare(files: MediumFiles) -> None:
        write(files, "/volume/a", b"never synced")
        files.crash(Random(0), process_only=True)

    assert any(not files.paths() for files in after_power_losses(prepare))


def test_written_back_bytes_and_names_are_durable() -> None:
    def prepare(files: MediumFiles) -> None:
        files.make_directory("/volume/c")
        write(files, "/volume/c/a", b"never synced")
        files.write_back()

    for files in after_power_losses(prepare):
        assert files.snapshot() == {"/volume/c/a": b"never synced"}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "sync", "replace", "link", "remove", "directory"]),
        st.sampled_from(["a", "b", "c/a", "c/b"]),
        st.sampled_from(["a", "b", "c/a", "c/b"]),
    ),
    max_size=25,
)


def take(files: Files, root: str, step: tuple[str, str, str]) -> None:
    what, one, two = (step[0], f"{root}/{step[1]}", f"{root}/{step[2]}")
    if what == "write":
        write(files, one, step[2].encode() * 300)
    elif what == "append":
        file = files.reopen(one)
        file.append([step[2].encode() * 300])
        file.close()
    elif what == "sync":
        file = files.reopen(one)
        file.sync()
        file.close()
    elif what == "replace":
        files.replace(one, two)
    elif what == "link":
        files.link(one, two)
    elif what == "remove":
        files.remove(one)
    else:
        files.sync_directory(one.rpartition("/")[0])


def take_all(files: Files, root: str, steps: list[tuple[str, str, str]]) -> list[str]:
    """The errors, since both file systems must make the same."""
    errors = []
    for step in steps:
        try:
            take(files, root, step)
        except OSError as error:
            errors.append(f"{step} {type(error).__name__}")
    return errors


def test_both_file_systems_do_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(STEPS)
    def compare(steps: list[tuple[str, str, str]]) -> None:
        root = tmp_path_factory.mktemp("volume")
        (root / "c").mkdir()
        memory = MediumFiles(["/volume/c"])
        assert take_all(memory, "/volume", steps) == take_all(PosixFiles(), str(root), steps)
        on_disk = {
            f"/volume/{path.relative_to(root)}": path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
        assert memory.snapshot() == on_disk
        used = {os.stat(path).st_ino: os.stat(path).st_size for path in root.rglob("[ab]")}
        assert memory.capacity_bytes - memory.free_bytes("/") == sum(used.values())

    compare()


@given(STEPS, st.integers(0, 2**32))
def test_the_same_dice_leave_the_same_files(steps: list[tuple[str, str, str]], seed: int) -> None:
    left = []
    for _ in range(2):
        files = MediumFiles(["/volume/c"])
        take_all(files, "/volume", steps)
        files.crash(Random(seed))
        used = files.capacity_bytes - files.free_bytes("/")
        left.append((files.snapshot(), used))
    assert left[0] == left[1]


# ------------------------------------------------------------------------ room and rot


def test_a_full_disk_takes_what_it_can_and_refuses_the_rest(memory: MediumFiles) -> None:
    memory.capacity_bytes = 10
    file = memory.create("/volume/a")
    file.append([b"0123456"])
    assert memory.free_bytes("/volume") == 3
    with pytest.raises(OSError, match="No space") as caught:
        file.append([b"78", b"9ab"])
    assert caught.value.errno == errno.ENOSPC
    assert content(memory, "/volume/a") == b"0123456789"
    memory.capacity_bytes = 5
    assert memory.free_bytes("/volume") == 0


def test_room_comes_back_with_the_last_name(memory: MediumFiles) -> None:
    memory.capacity_bytes = 10
    write(memory, "/volume/a", b"0123456")
    memory.link("/volume/a", "/volume/b")
    memory.remove("/volume/a")
    assert memory.free_bytes("/volume") == 3
    memory.remove("/volume/b")
    assert memory.free_bytes("/volume") == 10


def test_room_is_counted_anew_after_a_crash() -> None:
    for files in after_power_losses(lambda files: write(files, "/volume/a", b"0123456")):
        used = sum(map(len, files.snapshot().values()))
        assert files.free_bytes("/") == files.capacity_bytes - used


def test_rot_and_loss_survive_a_crash(memory: MediumFiles) -> None:
    write_durably(memory, "/volume/a", [b"\x00\x00\x00"])
    memory.sync_directory("/volume")
    memory.flip("/volume/a", 9)
    assert content(memory, "/volume/a") == b"\x00\x02\x00"
    memory.truncate("/volume/a", 2)
    memory.crash(Random(0))
    assert content(memory, "/volume/a") == b"\x00\x02"
    assert memory.free_bytes("/") == memory.capacity_bytes - 2


# ------------------------------------------------------------------------ failpoints


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v/VOLUME", "volume"),
        ("/v/VOLUME.new", "volume"),
        ("/v/LOCK", "lock"),
        ("/v/log/00000007.log", "log"),
        ("/v/log", "log directory"),
        ("/v/replicas/p1.3/7.flush.segment", "flush segment"),
        ("/v/replicas/p1.3/7.merge.segment.new", "merge segment"),
        ("/v/replicas/p1.3/MANIFEST.new", "manifest"),
        ("/v/replicas/p1.3", "replica directory"),
        ("/v/replicas", "replicas directory"),
        ("/v/trash/9", "trash"),
        ("/v/trash", "trash"),
        ("VOLUME", "volume"),
        ("/v", "other"),
    ],
)
def test_a_path_tells_what_it_is_for(path: str, kind: str) -> None:
    assert kind_of(path) == kind


def do_everything(files: Files) -> None:
    files.make_directory("/volume/log")
    log = files.create("/volume/log/00000001.log")
    log.append([b"frame"])
    log.overwrite(0, b"F")
    log.sync()
    log.close()
    files.sync_directory("/volume/log")
    write_durably(files, "/volume/VOLUME.new", [b"volume"])
    files.replace("/volume/VOLUME.new", "/volume/VOLUME")
    files.link("/volume/VOLUME", "/volume/other")
    files.remove("/volume/other")


EVERYTHING = [
    "make_directory log directory",
    "create log",
    "append log",
    "overwrite log",
    "sync log",
    "sync_directory log directory",
    "create volume",
    "append volume",
    "sync volume",
    "replace volume",
    "link other",
    "remove other",
]


def test_every_change_is_labelled_and_counted(memory: MediumFiles) -> None:
    files = FaultyFiles(memory)
    do_everything(files)
    assert files.trace == EVERYTHING
    assert files.seen == Counter(EVERYTHING)


def test_looking_is_no_operation(memory: MediumFiles) -> None:
    write(memory, "/volume/a", b"x")
    files = FaultyFiles(memory)
    files.read("/volume/a")
    files.names("/volume")
    files.reopen("/volume/a").close()
    files.lock("/volume/LOCK").close()
    files.free_bytes("/volume")
    assert files.trace == []


def test_a_process_can_die_before_and_after_every_operation() -> None:
    """What died before the next operation has done as much as what died after the last."""
    before = [left_by(at_operation(n, "before", die)) for n in range(1, len(EVERYTHING) + 1)]
    after = [left_by(at_operation(n, "after", die)) for n in range(1, len(EVERYTHING) + 1)]
    assert after[:-1] == before[1:]
    assert before[0] == {}
    assert after[-1] == {"/volume/VOLUME": b"volume", "/volume/log/00000001.log": b"Frame"}


def left_by(plan: Plan) -> dict[str, bytes]:
    memory = MediumFiles(["/volume"])
    with pytest.raises(Died):
        do_everything(FaultyFiles(memory, plan))
    return memory.snapshot()


def test_a_process_can_die_in_the_middle_of_an_append() -> None:
    assert left_by(at_label("append volume", 1, "middle", die))["/volume/VOLUME.new"] == b"vol"


def test_a_dead_process_does_nothing_any_more(memory: MediumFiles) -> None:
    files = FaultyFiles(memory, at_label("sync log", 1, "before", die))
    file = files.create("/volume/1.log")
    files.lock("/volume/LOCK")
    with pytest.raises(Died):
        file.sync()
    before = memory.snapshot()
    for attempt in (
        lambda: file.append([b"x"]),
        lambda: file.overwrite(0, b"x"),
        lambda: files.create("/volume/2.log"),
        lambda: files.remove("/volume/1.log"),
        lambda: files.read("/volume/1.log"),
        lambda: files.names("/volume"),
        lambda: files.reopen("/volume/1.log"),
        lambda: files.lock("/volume/OTHER"),
        lambda: files.free_bytes("/volume"),
    ):
        with pytest.raises(Died):
            attempt()
    assert memory.snapshot() == before
    assert files.dead


def test_a_buried_process_holds_nothing(posix: tuple[PosixFiles, str]) -> None:
    inner, root = posix
    files = FaultyFiles(inner, at_label("create log", 1, "after", die))
    lock = files.lock(f"{root}/LOCK")
    with pytest.raises(Died):
        files.create(f"{root}/1.log")
    files.bury()
    inner.lock(f"{root}/LOCK").close()
    lock.close()


def test_an_operation_fails_and_then_works_again(memory: MediumFiles) -> None:
    files = FaultyFiles(memory, fails("create log", errno.EIO, nth=2, times=2))
    outcomes = [outcome_of(lambda: files.create("/volume/1.log").close()) for _ in range(5)]
    assert outcomes == [0, errno.EIO, errno.EIO, 0, 0]


def outcome_of(attempt: Action) -> int:
    try:
        attempt()
    except OSError as error:
        return error.errno or 0
    return 0


def test_an_operation_can_fail_although_it_happened(memory: MediumFiles) -> None:
    files = FaultyFiles(memory, at_label("replace volume", 1, "after", fail(errno.EIO)))
    write(files, "/volume/VOLUME.new", b"x")
    with pytest.raises(OSError, match="Input/output"):
        files.replace("/volume/VOLUME.new", "/volume/VOLUME")
    assert memory.names("/volume") == ["VOLUME"]


def test_a_short_write_leaves_half(memory: MediumFiles) -> None:
    files = FaultyFiles(memory, short_write("append log", nth=2))
    file = files.create("/volume/1.log")
    file.append([b"one "])
    with pytest.raises(OSError, match="No space"):
        file.append([b"tw", b"o "])
    file.append([b"three"])
    assert content(memory, "/volume/1.log") == b"one twthree"


def test_a_sync_that_failed_never_succeeds(memory: MediumFiles) -> None:
    files = FaultyFiles(memory, fails("sync log", errno.EIO))
    file = files.create("/volume/1.log")
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    files.create("/volume/2.log").sync()


def test_plans_work_together_and_can_be_changed(memory: MediumFiles) -> None:
    full = fails("append log", errno.ENOSPC, times=FOREVER)
    files = FaultyFiles(memory, together(full, at_operation(4, "before", die)))
    file = files.create("/volume/1.log")
    assert [outcome_of(lambda: file.append([b"x"])) for _ in range(2)] == [errno.ENOSPC] * 2
    files.arm(at_operation(2, "middle", die))
    file.append([b"x"])
    with pytest.raises(Died):
        file.sync()
    assert files.trace == ["append log", "sync log"]


def test_a_plan_of_its_own_sees_every_moment(memory: MediumFiles) -> None:
    seen: list[tuple[str, Moment, int, int]] = []

    def plan(operation: Operation, moment: Moment) -> None:
        seen.append((operation.label, moment, operation.number, operation.nth))

    files = FaultyFiles(memory, plan)
    write(files, "/volume/1.log", b"x")
    assert seen == [
        ("create log", "before", 1, 1),
        ("create log", "after", 1, 1),
        ("append log", "before", 2, 1),
        ("append log", "middle", 2, 1),
        ("append log", "after", 2, 1),
    ]


def test_threads_are_counted_without_loss(memory: MediumFiles) -> None:
    numbers: list[int] = []

    def plan(operation: Operation, moment: Moment) -> None:
        if moment == "before":
            numbers.append(operation.number)

    files = FaultyFiles(memory, plan)

    def work(name: str) -> None:
        file = files.create(f"/volume/{name}.log")
        for _ in range(200):
            file.append([b"x"])
        file.close()

    threads = [Thread(target=work, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files.seen == {"create log": 4, "append log": 800}
    assert sorted(numbers) == list(range(1, 805))
    assert set(map(len, memory.snapshot().values())) == {200}


KILLED = """
import sys
from limosa.storage.files import PosixFiles
from tests.storage.faulty_files import FaultyFiles, at_label, kill

files = FaultyFiles(PosixFiles(), at_label("append log", 2, "middle", kill))
file = files.create(sys.argv[1])
file.append([b"one "])
file.append([b"two "])
"""


@pytest.mark.processes
def test_a_real_process_is_killed_in_the_middle_of_a_write(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    command = [sys.executable, "-W", "error", "-c", KILLED, str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"one tw"
