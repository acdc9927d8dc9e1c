"""Does Java start with a class archive if there is a good one, and without it otherwise?"""

import io
import os
import time
from pathlib import Path

import pytest

from limosa.pipeline import application, carriers, java
from limosa.pipeline.application import Options, _started
from limosa.pipeline.archive import STARTING_SECONDS_MAX, ClassArchive
from limosa.pipeline.carriers import SparkCarrier
from limosa.pipeline.java import JavaIdentity
from tests.waiting import eventually

JAVA = JavaIdentity(17, 'openjdk version "17.0.9"')


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ClassArchive(JAVA, "-X")


def make(archive: ClassArchive) -> ClassArchive:
    """As Java does when it ends."""
    options = archive.making()
    assert options.startswith("-XX:ArchiveClassesAtExit=")
    Path(options.partition("=")[2].strip('"')).write_bytes(b"classes")
    assert archive.made()
    return archive


def test_an_archive_is_complete_or_not_there(archive: ClassArchive) -> None:
    assert not archive.is_there()
    assert archive.use() == ""
    archive.making()
    assert not archive.made(), "Java was killed before it was written"
    make(archive)
    assert archive.is_there()
    assert f'-XX:SharedArchiveFile="{archive.path}"' in archive.use()
    assert archive.path.parent.stat().st_mode & 0o777 == 0o700


def test_each_java_and_each_set_of_options_has_its_own(archive: ClassArchive) -> None:
    paths = {
        archive.path,
        ClassArchive(JAVA, "-Y").path,
        ClassArchive(JavaIdentity(17, "another"), "-X").path,
    }
    assert len(paths) == 3


def test_a_newer_java_calls_it_otherwise(archive: ClassArchive) -> None:
    newer = ClassArchive(JavaIdentity(25, "25"), "-X")
    options = newer.making()
    assert options.startswith("-XX:AOTCacheOutput=")
    Path(options.partition("=")[2].strip('"')).write_bytes(b"classes")
    assert newer.made()
    assert newer.use() == f'-XX:AOTCache="{newer.path}"'


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_archive_that_others_can_write_is_not_used(archive: ClassArchive, mode: int) -> None:
    """It holds code that runs as this user."""
    make(archive).path.chmod(mode)
    assert archive.use() == ""


def test_while_another_java_starts_with_it_it_is_not_used_and_after_a_crash_it_goes(
    archive: ClassArchive,
) -> None:
    make(archive)
    assert archive.use()
    assert archive.use() == ""
    archive.started()
    assert archive.use()
    mark = archive._mark
    long_ago = time.time() - STARTING_SECONDS_MAX - 1.0
    os.utime(mark, (long_ago, long_ago))
    assert archive.use() == "", "that start has never ended"
    assert not archive.path.exists()
    assert not mark.exists()


def test_what_killed_processes_left_unfinished_is_deleted(archive: ClassArchive) -> None:
    archive.path.parent.mkdir(parents=True)
    old, young = (archive.path.parent / f"{name}.new" for name in ("old", "young"))
    for each in (old, young):
        each.touch()
    long_ago = time.time() - STARTING_SECONDS_MAX - 1.0
    os.utime(old, (long_ago, long_ago))
    archive.making()
    assert (old.exists(), young.exists()) == (False, True)


def test_if_spark_does_not_start_with_it_it_starts_without_it(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the archive is deleted; another one is made later."""
    tried: list[str] = []

    class Touchy:
        def __init__(self, options: Options, out: object, java_options: str = "") -> None:
            tried.append(java_options)
            if java_options:
                raise RuntimeError("Java gateway process exited before sending its port number")

    monkeypatch.setattr(application, "Application", Touchy)
    make(archive)
    _, with_archive = _started(Options(str(tmp_path)), io.StringIO(), archive)
    assert not with_archive
    assert [bool(each) for each in tried] == [True, False]
    assert not archive.is_there()
    _started(Options(str(tmp_path)), io.StringIO(), archive)
    assert [bool(each) for each in tried] == [True, False, False]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_real_spark_makes_its_archive_when_it_is_idle_and_a_damaged_one_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(carriers, "IDLE_SECONDS", 0.5)

    def start(until_made: bool = False) -> str:
        """How it started."""
        states: list[tuple[str, str]] = []
        carrier = SparkCarrier(
            Options(str(tmp_path / "spark")),
            lambda state, why: states.append((state, why)),
            lambda what, **_: None,
        )
        try:
            carrier.start()
            eventually(lambda: states[-1][0] != "starting", "it starts", 180.0)
            if until_made:
                eventually(lambda: list((tmp_path / "cache").rglob("*.jsa")), "made", 300.0)
        finally:
            carrier.close()
        assert states[-1][0] == "ready"
        return states[-1][1]

    assert "archive" not in start(until_made=True)
    monkeypatch.setattr(carriers, "IDLE_SECONDS", 60.0)
    assert "with a class archive" in start()
    (made,) = (tmp_path / "cache").rglob("*.jsa")
    whole = made.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + bytes(1 << 20) + whole[middle + (1 << 20) :]):
        made.write_bytes(damaged)
        start()
    assert not list((tmp_path / "cache").rglob("*.starting"))
