"""Does a process end when one of its threads fails, whichever it is?"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from limosa.runtime.threads import vital_thread

SERVE = """
import threading, sys, time
from limosa.cli.serve import ProcessOptions, _run
from limosa.runtime.threads import ProcessEnd

class Process:
    end = ProcessEnd()
    ticks = 0

    def stop(self):
        time.sleep(float(sys.argv[2]))

def build(journal):
    process = Process()

    def fail():
        time.sleep(0.2)
        raise ZeroDivisionError("a bug")

    if sys.argv[1] == "any":
        threading.Thread(target=fail, name="forgotten", daemon=True).start()
    else:
        threading.Timer(0.2, process.end.fail, (OSError("a disk"),)).start()
    return process, {}

from limosa.cli import serve
serve.STOP_SECONDS = 1.0
_run("n1", build, ProcessOptions())
"""


def served(kind: str, stops_seconds: float = 0.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SERVE, kind, str(stops_seconds)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )


def test_a_failure_of_a_vital_thread_is_told() -> None:
    told: list[Exception] = []
    error = ZeroDivisionError("a bug")

    def fail() -> None:
        raise error

    for target in (fail, lambda: None):
        thread = vital_thread(target, "tick", told.append)
        assert (thread.name, thread.daemon) == ("tick", True)
        thread.start()
        thread.join()
    assert told == [error]


@pytest.mark.processes
def test_an_error_that_no_thread_handles_ends_the_process_and_is_in_the_log() -> None:
    """S121: a supervisor starts the process again; half alive it would keep its lease."""
    ended = served("any")
    assert ended.returncode == 1
    assert "a thread failed thread=forgotten" in ended.stderr
    assert "ZeroDivisionError: a bug" in ended.stderr


@pytest.mark.processes
def test_a_process_that_failed_ends_even_if_it_can_not_stop() -> None:
    """S121, S119: a disk that hangs also hangs the last sync."""
    began = time.monotonic()
    ended = served("driver", stops_seconds=50.0)
    assert ended.returncode == 1
    assert time.monotonic() - began < 30.0
