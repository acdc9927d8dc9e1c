"""Who runs the tasks? Spark, or threads of this process where there is no Spark."""

import base64
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import structs

from limosa.pipeline import application
from limosa.pipeline.application import JobOrder, News, Options
from limosa.pipeline.priority import make_group, remove_group

START_SECONDS = 180.0
AGAIN_SECONDS = (1.0, 5.0, 30.0)
"""Delays before Spark is restarted after one, two, and more failures in a row."""
STOP_SECONDS = 10.0
CANCEL_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""Once Spark has had nothing to do for so long, the class archive is made, if there is none."""

State: TypeAlias = Literal["off", "starting", "ready", "failed"]
Done: TypeAlias = Callable[[Sequence[bytes], str], None]
"""Called with the tasks' results, or with the reason why there are none."""
Changed: TypeAlias = Callable[[State, str], None]


class Carrier(Protocol):
    """Runs jobs of several tasks. Never blocks, and always reports how a job ended."""

    workers: int

    def start(self) -> None:
        """Get ready: jobs will come soon. Repeating it changes nothing."""
        ...

    def run(
        self, job: str, work: str, access: bytes, tasks: Sequence[bytes], done: Done
    ) -> None: ...

    def cancel(self, job: str) -> None: ...

    def close(self) -> None: ...


class ThreadCarrier:
    """Runs tasks on threads of this process, so that replicas are rebuilt without Spark, too."""

    workers = 1

    def start(self) -> None:
        """Do nothing: threads are always ready."""

    def run(self, job: str, work: str, access: bytes, tasks: Sequence[bytes], done: Done) -> None:
        def perform() -> None:
            results: Sequence[bytes] = ()
            why = ""
            try:
                module, _, name = work.partition(":")
                found = getattr(import_module(module), name)
                results = [found(access, task, f"{job}-{n}", False) for n, task in enumerate(tasks)]
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            done(results, why)

        threading.Thread(target=perform, name=f"carry-{job}", daemon=True).start()

    def cancel(self, job: str) -> None:
        """Do nothing: the job's session is closed, so nodes reject its messages."""

    def close(self) -> None:
        """Do nothing: threads end with the process, and the next coordinator copies again."""


class SparkCarrier:
    """A Spark application, started when it is first needed, and restarted when it has died."""

    def __init__(
        self,
        options: Options,
        changed: Changed,
        log: Callable[..., None],
        words: str = os.devnull,
    ) -> None:
        self.workers = os.cpu_count() or 1
        self._words = words
        """The file for Spark's own log."""
        self._options = options
        self._changed = changed
        self._log = log
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._is_ready = False
        self._failures = 0
        self._not_before = 0.0
        self._why = ""
        self._orders: list[JobOrder] = []
        """Orders to be sent when the application is ready."""
        self._said: queue.SimpleQueue[JobOrder | None] = queue.SimpleQueue()
        """Orders for the running application; None: no more orders."""
        self._done: dict[str, Done] = {}
        self._idle_since = 0.0
        self._archiver: subprocess.Popen[bytes] | None = None
        self._group = ""
        """The cgroup of Spark's processes; empty: none."""
        self._closed = False

    def start(self) -> None:
        with self._lock:
            if not self._refusal():
                self._start_if_off()

    # --- jobs

    def run(self, job: str, work: str, access: bytes, tasks: Sequence[bytes], done: Done) -> None:
        with self._lock:
            refusal = self._refusal() or self._start_if_off()
            if not refusal:
                self._done[job] = done
                self._order(JobOrder("run", job, work, tuple(tasks), access))
        if refusal:
            done((), refusal)

    def cancel(self, job: str) -> None:
        """Cancel a job; if the job does not end then, Spark hangs and is restarted."""
        done: Done | None = None
        with self._lock:
            if self._is_ready:
                self._order(JobOrder("cancel", job))
                self._later(CANCEL_SECONDS, self._kill_if_hanging, self._child, job)
            else:
                self._orders = [order for order in self._orders if order.job != job]
                done = self._done.pop(job, None)
        if done is not None:
            done((), "it was cancelled")

    def _refusal(self) -> str:
        if self._closed:
            return "the coordinator is stopping"
        if self._child is None and time.monotonic() < self._not_before:
            return f"Spark does not start: {self._why}"
        return ""

    def _order(self, order: JobOrder) -> None:
        if self._is_ready:
            self._said.put(order)
        else:
            self._orders.append(order)

    # --- the application

    def _start_if_off(self) -> str:
        """Start Spark unless it runs; returns why that failed, or an empty string."""
        if self._child is None:
            try:
                self._start()
            except OSError as error:
                self._why = str(error)
                self._fail()
                self._changed("failed", self._why)
                return f"Spark does not start: {error}"
        return ""

    def _fail(self) -> None:
        later = AGAIN_SECONDS[min(self._failures, len(AGAIN_SECONDS) - 1)]
        self._failures += 1
        self._not_before = time.monotonic() + later

    def _start(self) -> None:
        self._why = ""
        # A killed application left its directory behind; an ending one must not remove the new one.
        shutil.rmtree(self._options.scratch, ignore_errors=True)
        scratch = Path(self._options.scratch) / secrets.token_hex(4)
        scratch.parent.mkdir(mode=0o700, parents=True)
        scratch.mkdir(mode=0o700)
        self._group = make_group(self._options.scratch)
        given = structs.replace(self._options, scratch=str(scratch), group=self._group)
        with open(self._words, "wb") as words:
            self._child = subprocess.Popen(
                [sys.executable, "-m", application.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                env=_environment(given),
                start_new_session=True,
            )
        self._changed("starting", "")
        self._log("Spark starts", process=self._child.pid)
        self._said = queue.SimpleQueue()
        for name, target, arguments in (
            ("spark-news", self._listen, (self._child,)),
            ("spark-orders", _talk, (self._child, self._said)),
        ):
            threading.Thread(target=target, args=arguments, name=name, daemon=True).start()
        self._later(START_SECONDS, self._give_up_on, self._child)

    def _later(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        timer = threading.Timer(seconds, act, arguments)
        timer.daemon = True
        timer.start()

    def _give_up_on(self, child: "subprocess.Popen[str]") -> None:
        if child is self._child and not self._is_ready:
            self._why = f"it was not ready after {START_SECONDS:.0f} s"
            _kill(child)

    def _kill_if_hanging(self, child: "subprocess.Popen[str]", job: str) -> None:
        if child is self._child and job in self._done:
            self._log("Spark hangs", job=job)
            _kill(child)

    def _listen(self, child: "subprocess.Popen[str]") -> None:
        assert child.stdout is not None
        for line in child.stdout:
            with suppress(msgspec.DecodeError):
                self._hear(msgspec.json.decode(line, type=News))
        self._ended(child)

    def _hear(self, news: News) -> None:
        if news.what == "ready":
            with self._lock:
                self._is_ready = True
                self._failures = 0
                self.workers = news.workers
                waiting, self._orders = self._orders, []
                for order in waiting:
                    self._order(order)
            told = f", {news.detail}" if news.detail else ""
            self._changed("ready", f"{news.workers} tasks at once{told}")
            self._log("Spark is ready", workers=news.workers, how=news.detail)
            self._idle_since = time.monotonic()
            if news.lacks_archive:
                self._later(IDLE_SECONDS, self._make_archive, self._child)
        elif not news.job:
            self._why = news.why
        else:
            with self._lock:
                done = self._done.pop(news.job, None)
                self._idle_since = time.monotonic()
            if done is not None:
                done(news.results, news.why)

    def _make_archive(self, child: "subprocess.Popen[str]") -> None:
        """Let another process make the class archive for later starts, once Spark is idle."""
        with self._lock:
            if child is not self._child or self._closed:
                return
            idle = 0.0 if self._done else time.monotonic() - self._idle_since
            if idle < IDLE_SECONDS:
                self._later(IDLE_SECONDS - idle, self._make_archive, child)
                return
            self._archiver = archiver = self._start_archiver()
        code = archiver.wait()
        self._log("class archive for later starts of Spark", made=code == 0)

    def _start_archiver(self) -> "subprocess.Popen[bytes]":
        scratch = Path(self._options.scratch) / secrets.token_hex(4)
        scratch.mkdir(mode=0o700)
        given = structs.replace(
            self._options, scratch=str(scratch), group=self._group, makes_archive=True
        )
        return subprocess.Popen(
            [sys.executable, "-m", application.__name__],
            stdin=subprocess.PIPE,  # the process ends when this one does
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(given),
            start_new_session=True,
        )

    def _stop_archiver(self) -> None:
        if self._archiver is not None:
            _kill(self._archiver)
            self._archiver.wait()
            assert self._archiver.stdin is not None
            self._archiver.stdin.close()

    def _ended(self, child: "subprocess.Popen[str]") -> None:
        assert child.stdout is not None
        code = child.wait()
        _kill(child)  # a Java that was still starting would wait for ever
        self._stop_archiver()
        child.stdout.close()
        shutil.rmtree(self._options.scratch, ignore_errors=True)
        remove_group(self._group)
        with self._lock:
            self._said.put(None)
            was_ready, self._is_ready = self._is_ready, False
            self._child = None
            lost, self._done = self._done, {}
            self._orders = []
            self._fail()
            why = "it died" if was_ready else (self._why or f"it ended with code {code}")
            self._why = why
        if not self._closed:
            self._changed("off" if was_ready else "failed", why)
            self._log("Spark ended", why=why, code=code)
        for done in lost.values():
            done((), f"Spark ended: {why}")

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Stop Spark; if it has not ended after so many seconds, kill it and Java."""
        with self._lock:
            self._closed = True
            child = self._child
        if child is not None:
            self._said.put(None)
            with suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            _kill(child)
            child.wait()
            self._stop_archiver()
            remove_group(self._group)
        shutil.rmtree(self._options.scratch, ignore_errors=True)


def _environment(options: Options) -> dict[str, str]:
    given = base64.b64encode(msgspec.json.encode(options)).decode()
    # Files that it leaves when it is killed are deleted with its scratch directory.
    return {**os.environ, application.ENVIRONMENT: given, "TMPDIR": options.scratch}


def _kill(child: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Kill the process group of the application, which includes Java."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _talk(child: "subprocess.Popen[str]", orders: "queue.SimpleQueue[JobOrder | None]") -> None:
    """Send orders on a thread of its own: an application that hangs would block the sender."""
    assert child.stdin is not None
    with suppress(OSError), child.stdin:  # the thread that reads its news notices the end
        for order in iter(orders.get, None):
            child.stdin.write(msgspec.json.encode(order).decode() + "\n")
            child.stdin.flush()
