"""Starting a process is not broken off: what was started is known, and stopped."""

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from limosa.runtime.local import LocalCluster


def test_a_ctrl_c_waits_until_what_was_started_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        process = real(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    cluster = LocalCluster(tmp_path / "data", 1)
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.start_one("n1", wait=False)
    assert signal.getsignal(signal.SIGINT) is handler
    assert cluster.processes["n1"].poll() is None
    cluster.stop()
    assert "n1" not in cluster.processes or cluster.processes["n1"].poll() is not None


def test_other_threads_start_processes_as_well(tmp_path: Path) -> None:
    """Signals are not theirs."""
    cluster = LocalCluster(tmp_path / "data", 1)
    thread = threading.Thread(target=cluster.start_one, args=("n1", False))
    thread.start()
    thread.join()
    assert cluster.processes["n1"].poll() is None
    cluster.stop()
