"""How does a test run `limosa`, and a cluster for it?"""

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from limosa.cli.main import main
from tests.waiting import eventually

COMMAND = [sys.executable, "-m", "limosa"]
READY_SECONDS, STOP_SECONDS = 60.0, 20.0


class Ran:
    """How a command ended, and what it said."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        """Of one line."""
        assert self.out.count(b"\n") == 1, self.out
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The one sentence that it ended with."""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("Error: ")
        return lines[0].removeprefix("Error: ")


class Limosa:
    """Runs commands in this process: starting another one takes longer than most of them."""

    def __init__(
        self, output: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._output = output
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ran:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._output.readouterr()
        code = main(arguments)
        printed = self._output.readouterr()
        return Ran(code, printed.out, printed.err.decode())

    def well(self, *arguments: str, stdin: bytes = b"") -> Ran:
        ran = self(*arguments, stdin=stdin)
        assert ran.code == 0, ran.err
        return ran


class Cluster:
    """`limosa up`, as a process."""

    def __init__(
        self, directory: Path, state: Path, *arguments: str, launcher: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self._launcher = launcher
        self.environment = {**os.environ, "XDG_STATE_HOME": str(state)}
        self.environment.pop("LIMOSA_CLUSTER", None)
        self._arguments = arguments
        self._log = directory.with_name(directory.name + ".err")
        self.process: subprocess.Popen[str]
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> "Cluster":
        self.start()
        self.await_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        eventually(lambda: not self.children())

    def start(self) -> None:
        command = [*self._launcher, *COMMAND, "up", "--data", str(self.directory), "--json"]
        command += self._arguments
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
                start_new_session=True,
            )

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline() if readable else ""
        assert line, self.errors()
        self.ready = json.loads(line)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """As a terminal does, and wait for the end."""
        self.process.send_signal(number)
        self.process.wait(STOP_SECONDS)

    def errors(self) -> str:
        return self._log.read_text()

    def children(self) -> list[int]:
        """The processes that work for this cluster, by their directory."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and self._is_ours(entry)
        ]

    def child(self, name: str) -> int:
        """The process of one of them."""
        wanted = f"--name\0{name}\0".encode()
        found = [
            pid for pid in self.children() if wanted in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(found) == 1
        return found[0]

    def _is_ours(self, entry: Path) -> bool:
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            return False
        ours = (f"{self.directory}/".encode(), f"{self.directory}\0".encode())
        return b"\0serve\0" in words and any(each in words for each in ours)

    def limosa(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Another process, as from another terminal."""
        return run(self.environment, "--cluster", str(self.directory), arguments=arguments)


class Terminal:
    """A command that a person watches, and can press keys for."""

    def __init__(self, command: Sequence[str]) -> None:
        self._keys, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
        attach = ["setsid", "--ctty", "--wait"]  # so that Ctrl-C reaches it as a signal
        self._process = subprocess.Popen(
            [*attach, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self.text = ""

    def await_text(self, wanted: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while wanted not in self.text:
            assert time.monotonic() < deadline, self.text
            assert self._read() or self._process.poll() is None, self.text

    def type(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def ended(self, seconds: float) -> int:
        """The exit code, once it is there; and the terminal is gone."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self._read()
        while self._read():
            pass
        os.close(self._keys)
        return self._process.returncode

    def _read(self) -> bool:
        if not select.select([self._keys], [], [], 0.2)[0]:
            return False
        try:
            said = os.read(self._keys, 65_536)
        except OSError:  # nobody is at the other end any more
            return False
        self.text += said.decode(errors="replace")
        return bool(said)


def run(
    environment: dict[str, str], *options: str, arguments: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments, *options],
        capture_output=True,
        text=True,
        timeout=READY_SECONDS,
        env=environment,
        check=False,
    )
