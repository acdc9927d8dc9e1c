"""Do the processes that tests start hear signals, whoever started the tests?"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

IGNORED = 'trap "" INT QUIT HUP; exec "$@"'
SIGNALS = "[signal.getsignal(n).name for n in (signal.SIGQUIT, signal.SIGHUP)]"
SHOW = f"import signal; print(signal.getsignal(signal.SIGINT).__name__, *{SIGNALS})"
TESTS = f"""
import os, signal, subprocess, sys
import tests.conftest
subprocess.run([sys.executable, "-c", {SHOW!r}], check=True)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    os.kill(os.getpid(), number)
print("alive")
"""


def test_children_hear_signals_that_the_tests_ignore() -> None:
    """A shell ignores SIGINT for jobs in the background of a script, nohup ignores SIGHUP."""
    command = ["sh", "-c", IGNORED, "sh", sys.executable, "-c", TESTS]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == ["default_int_handler SIG_DFL SIG_DFL", "alive"]
