"""Starting a process is not broken off: what was started is known, and stopped."""

import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from limosa.runtime.local import LocalCluster

pytestmark = pytest.mark.processes


def test_a_signal_waits_until_what_was_started_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    cluster = LocalCluster(tmp_path / "data", 1)
    known: list[bool] = []

    def interrupted(*arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        process = real(*arguments, **options)
        signal.raise_signal(signal.SIGHUP)
        return process

    def heard(number: int, frame: object) -> None:
        known.append("n1" in cluster.processes)

    before = signal.signal(signal.SIGHUP, heard)
    try:
        monkeypatch.setattr(subprocess, "Popen", interrupted)
        cluster.start_one("n1", wait=False)
        assert known == [True]
        assert signal.getsignal(signal.SIGHUP) is heard
    finally:
        signal.signal(signal.SIGHUP, before)
        cluster.stop()


def test_other_threads_start_processes_as_well(tmp_path: Path) -> None:
    """Signals are not theirs."""
    cluster = LocalCluster(tmp_path / "data", 1)
    thread = threading.Thread(target=cluster.start_one, args=("n1", False))
    thread.start()
    thread.join()
    assert cluster.processes["n1"].poll() is None
    cluster.stop()
