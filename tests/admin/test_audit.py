"""Is what happened written down, whole and durably?"""

import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from limosa.errors import UnusableFile
from limosa.runtime import audit
from limosa.runtime.audit import AuditLog


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_added_and_for_their_owner_only(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.ndjson")
    log.write("asked", subject="ann", body={"to": "n4"})
    AuditLog(tmp_path / "audit.ndjson").write("ended", subject="ann")
    first, second = lines(log.path)
    assert (first["event"], first["body"]) == ("asked", {"to": "n4"})
    assert second["event"] == "ended"
    assert isinstance(first["at"], float)
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_a_line_is_on_the_disk_before_anything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def sync(file: int) -> None:
        synced.append(os.fstat(file).st_size)
        real(file)

    monkeypatch.setattr(os, "fsync", sync)
    log = AuditLog(tmp_path / "audit.ndjson")
    log.write("asked")
    assert synced[0] == log.path.stat().st_size
    assert len(synced) == 2  # the file, and once the directory that names it
    log.write("asked")
    assert synced[2] == log.path.stat().st_size


def test_a_line_that_a_crash_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.ndjson"
    path.write_bytes(b'{"event": "as')
    AuditLog(path).write("asked")
    assert json.loads(path.read_bytes().splitlines()[-1])["event"] == "asked"


def test_threads_do_not_write_into_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.ndjson"
    logs = [AuditLog(path), AuditLog(path)]
    threads = [
        threading.Thread(
            target=lambda log=log: [log.write("asked", x="y" * 50_000) for _ in range(20)]
        )
        for log in logs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(path)) == 40


def test_what_can_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnusableFile, match="can't be written"):
        AuditLog(tmp_path / "nowhere" / "audit.ndjson").write("asked")
    monkeypatch.setattr(os, "write", lambda file, data: len(data) - 1)
    with pytest.raises(UnusableFile, match="no space"):
        AuditLog(tmp_path / "audit.ndjson").write("asked")


def test_a_process_that_hangs_with_the_file_in_its_hand_does_not_hold_up_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LOCK_SECONDS", 0.1)
    log = AuditLog(tmp_path / "audit.ndjson")
    log.write("asked")
    with log.path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UnusableFile, match="another process holds the lock"):
            log.write("asked")
    log.write("asked")
    assert len(lines(log.path)) == 2
