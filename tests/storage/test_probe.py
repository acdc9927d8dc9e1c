"""Is a disk that does not answer noticed, before anybody waits for it?"""

import threading
from pathlib import Path

import pytest

from limosa.storage.files import PosixFile
from limosa.storage.probe import silent_volumes
from limosa.storage.store import Store


def test_a_volume_that_does_not_sync_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S118: the others are opened; it is refused, with the reason."""
    volumes = {name: str(tmp_path / name) for name in ("one", "two", "new")}
    for name in ("one", "two"):
        Store({name: volumes[name]}).close()
    answers, real = threading.Event(), PosixFile.sync

    def sync(file: PosixFile) -> None:
        if threading.current_thread().name == "probe-two":
            answers.wait(60.0)
        real(file)

    monkeypatch.setattr(PosixFile, "sync", sync)
    try:
        assert silent_volumes(volumes, 0.5) == ["two"]
    finally:
        answers.set()
    with Store(volumes, refused={"two": "it does not answer"}) as store:
        assert store.volumes == ("one", "new")
        assert [(r.what, r.why) for r in store.refused] == [("volume two", "it does not answer")]


def test_a_volume_that_answers_is_left_as_it_was(tmp_path: Path) -> None:
    """Also one on which nothing can be written: opening it says why."""
    Store({"": str(tmp_path / "volume")}).close()
    before = sorted(path.name for path in (tmp_path / "volume").iterdir())
    assert silent_volumes({"": str(tmp_path / "volume"), "x": str(tmp_path / "none")}, 10.0) == []
    assert sorted(path.name for path in (tmp_path / "volume").iterdir()) == before
    (tmp_path / "file").write_bytes(b"")
    assert silent_volumes({"": str(tmp_path / "file")}, 10.0) == []
