"""Can other users look into a cluster's directories?"""

import os
import stat
from pathlib import Path

import pytest

from limosa.errors import UnusableFile
from limosa.runtime.directories import make_private
from limosa.runtime.local import LocalCluster


class Log:
    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, what: str, **details: object) -> None:
        self.said.append(what)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    before, log = os.umask(0), Log()
    try:
        make_private(str(tmp_path / "deep" / "data"), log)
    finally:
        os.umask(before)
    assert mode(tmp_path / "deep" / "data") == 0o700
    assert log.said == []


def test_a_directory_of_an_earlier_version_is_closed_to_others(tmp_path: Path) -> None:
    log = Log()
    for wide, narrow in ((0o755, 0o700), (0o770, 0o700), (0o555, 0o500)):
        tmp_path.chmod(wide)
        make_private(str(tmp_path), log)
        assert mode(tmp_path) == narrow
    assert log.said == ["closed a directory to other users"] * 3
    make_private(str(tmp_path), log)
    assert len(log.said) == 3


def test_a_directory_that_others_use_as_well_is_left_open(tmp_path: Path) -> None:
    """Such as somebody's home, or a disk with other things on it."""
    log = Log()
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.txt").touch()
    make_private(str(tmp_path), log)
    assert mode(tmp_path) == 0o755
    assert log.said == ["other users can enter a directory"]


def test_what_belongs_to_another_user_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    log = Log()
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "chmod", refuse)
    make_private(str(tmp_path), log)
    assert log.said == ["other users can enter a directory"]


def test_a_directory_that_can_not_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableFile, match="can't be used"):
        make_private(str(tmp_path / "file" / "data"), Log())


@pytest.mark.processes
def test_nothing_in_a_clusters_directory_can_be_read_by_others(tmp_path: Path) -> None:
    """Whatever the umask is; also if an earlier version had left it open."""
    data = tmp_path / "data"
    for each in (data, data / "n1", data / "n1" / "volume"):
        each.mkdir(mode=0o755)
    (data / "LOCK").touch(0o600)
    before = os.umask(0o022)
    try:
        with LocalCluster(data, nodes=1):
            for each in (data, data / "logs", data / "n1", data / "n1" / "volume"):
                assert mode(each) == 0o700, each
            made = [each for each in data.rglob("*") if "logs" not in each.parts]
            wide = [each for each in made if mode(each) & 0o077 and each.name != "local.json"]
            assert wide == []
    finally:
        os.umask(before)
