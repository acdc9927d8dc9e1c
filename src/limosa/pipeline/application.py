"""What runs on Spark? A process of its own, which its parent gives jobs to.

    python -m limosa.pipeline.application        orders on standard input, news on standard output,
                                                 both as one JSON object per line

Spark has a process of its own, so that a Java that dies, hangs or prints does not affect its
parent, which starts another one when needed. The process ends when its input ends, and Java with
it.
"""

import base64
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec
from msgspec import Struct

from limosa.pipeline import java
from limosa.pipeline.archive import ClassArchive
from limosa.pipeline.package import as_zip
from limosa.pipeline.priority import leave_and_remove, take_low_priority
from limosa.pipeline.protection import CIPHER, PROTECTION, SECRET

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""With these options Java starts in half the time; rows never pass through Java."""
ENVIRONMENT = "LIMOSA_PIPELINE"
STOP_SECONDS = 10.0
"""After this time Java is killed; if the parent was killed, no other process would do it."""
ARCHIVE_SECONDS = 300.0
"""How long Java may take to write a class archive when it ends."""
LOOPBACK = "127.0.0.1"
SOCKET_DIRECTORY_BYTES_MAX = 106 - len("/.00000000-0000-0000-0000-000000000000.sock")
"""In Java, a Unix socket's path has at most 106 bytes, one less than in the kernel; Spark names its
sockets like this."""


class Options(Struct, frozen=True):
    """How to start Spark."""

    scratch: str
    """A directory for Spark's temporary files; it is deleted at the start."""
    master: str = ""
    """Empty: this machine, with a thread for each core."""
    conf: dict[str, str] = {}
    name: str = "limosa"
    secret: str = ""
    """Of Spark's processes; empty: Spark makes one. See `protection`."""
    group: str = ""
    """The cgroup for all of Spark's processes; empty: none."""
    makes_archive: bool = False
    """Start only to make the class archive, and end."""


class JobOrder(Struct, frozen=True, omit_defaults=True):
    """Run these tasks as one job, or cancel it."""

    do: Literal["run", "cancel"]
    job: str
    work: str = ""
    """The function that runs a task, as `module:name`."""
    tasks: tuple[bytes, ...] = ()
    access: bytes = b""


class News(Struct, frozen=True, omit_defaults=True):
    """The application is ready for so many tasks at once; or a job is done, or has failed."""

    what: Literal["ready", "done", "failed"]
    job: str = ""
    workers: int = 0
    results: tuple[bytes, ...] = ()
    why: str = ""
    detail: str = ""
    """When it is ready: at which priority it runs, and how it was started."""
    lacks_archive: bool = False
    """It was started without a class archive, because there is none."""


class Application:
    """A Spark context, and jobs on threads."""

    def __init__(self, options: Options, out: TextIO, java_options: str = "") -> None:
        self._out = out
        self._telling = threading.Lock()
        self._is_ending = False
        scratch = Path(options.scratch)
        from pyspark import SparkConf, SparkContext

        settings = list(settings_of(options, java_options).items())
        conf = SparkConf(loadDefaults=False).setAll(settings)
        if options.secret:
            # PySpark starts Java with the settings as options, which all users see. So Java is
            # told the secret afterwards, through PySpark's authenticated connection.
            SparkContext._ensure_initialized(conf=conf)
            conf = SparkConf(_jvm=SparkContext._jvm).setAll([*settings, (SECRET, options.secret)])
        self._context = SparkContext(conf=conf)
        self._context.setLogLevel("ERROR")
        if not _is_local(options.master):
            self._context.addPyFile(str(as_zip(scratch / "limosa.zip")))
        gateway: Any = SparkContext._gateway
        self._jvm = gateway.proc
        self.workers = int(self._context.defaultParallelism)
        # A worker's first task imports all modules; no move should wait for that.
        self._context.parallelize(range(self.workers), self.workers).map(_warm).collect()

    # --- orders

    def follow(self, orders: Iterable[JobOrder], detail: str, lacks_archive: bool) -> None:
        """Carry out orders until there are no more."""
        threading.Thread(target=self._watch_java, daemon=True).start()
        self.tell(News("ready", workers=self.workers, detail=detail, lacks_archive=lacks_archive))
        for order in orders:
            if order.do == "run":
                self._start(order)
            else:
                self._context.cancelJobsWithTag(order.job)

    def _start(self, order: JobOrder) -> None:
        from pyspark import InheritableThread

        InheritableThread(target=self._run, args=(order,), daemon=True).start()

    def _run(self, order: JobOrder) -> None:
        try:
            self._context.addJobTag(order.job)
            work, access = order.work, order.access
            tasks = self._context.parallelize(order.tasks, max(1, len(order.tasks)))
            results = tasks.map(lambda task: _perform(work, access, task)).collect()
            self.tell(News("done", order.job, results=tuple(results)))
        except Exception as error:
            self.tell(News("failed", order.job, why=_in_one_line(error)))

    def _watch_java(self) -> None:
        """Exit when Java has died; the parent notices."""
        self._jvm.wait()
        if not self._is_ending:
            os._exit(3)

    def tell(self, news: News) -> None:
        with self._telling, suppress(OSError):
            self._out.write(msgspec.json.encode(news).decode() + "\n")
            self._out.flush()

    def stop(self) -> None:
        self._is_ending = True
        with suppress(Exception):
            self._context.stop()

    def end_java(self) -> None:
        """Wait until Java has ended, and has written its class archive."""
        self.stop()
        self._jvm.stdin.close()
        self._jvm.wait(ARCHIVE_SECONDS)


class Orders:
    """Orders from standard input, read from the start: the parent may exit while Spark starts.

    Then this process must end at once: the scratch directory may be gone, and PySpark would wait
    for a file in it for ever.
    """

    def __init__(self, scratch: str, group: str) -> None:
        self._scratch = scratch
        self._group = group
        self._given: queue.SimpleQueue[JobOrder | None] = queue.SimpleQueue()
        self._started = False
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def __iter__(self) -> Iterator[JobOrder]:
        self._started = True
        return iter(self._given.get, None)

    def _read(self) -> None:
        # Not `sys.stdin`, which can't be abandoned in a thread. If the parent was killed, the last
        # line is incomplete.
        with open(0, closefd=False) as lines, suppress(msgspec.DecodeError):
            for line in lines:
                self._given.put(msgspec.json.decode(line, type=JobOrder))
        self._given.put(None)
        if not self._started:
            _end_at_once(self._scratch, self._group)


def _end_at_once(scratch: str, group: str) -> None:
    """Kill this process and Java, whatever Java is doing."""
    shutil.rmtree(scratch, ignore_errors=True)
    leave_and_remove(group, kill=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def settings_of(options: Options, java_options: str = "") -> dict[str, str]:
    """Spark's settings; those of the operator take precedence, except for its protection."""
    scratch = Path(options.scratch)
    has_room = len(os.fsencode(scratch)) <= SOCKET_DIRECTORY_BYTES_MAX
    return {
        "spark.master": options.master or "local[*,4]",  # up to four attempts for each task
        "spark.app.name": options.name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.driver.host": LOOPBACK} if _is_local(options.master) else {}),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": " ".join(
            filter(None, (JVM, java_options, f'-Djava.io.tmpdir="{scratch}"'))
        ),
        "spark.executor.extraJavaOptions": JVM,
        "spark.local.dir": str(scratch / "blocks"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.scheduler.mode": "FAIR",
        "spark.python.unix.domain.socket.enabled": str(has_room).lower(),
        "spark.log.level": "ERROR",
        **CIPHER,
        **options.conf,
        **PROTECTION,
    }


def _is_local(master: str) -> bool:
    """With a remote master, Spark finds out by itself how workers reach this machine."""
    return not master or master.startswith("local")


def _warm(_: int) -> None:
    import limosa.pipeline.pipe  # noqa: F401


def _perform(work: str, access: bytes, task: bytes) -> bytes:
    """In a worker: find the function and run the task."""
    from importlib import import_module

    from pyspark import TaskContext

    module, _, name = work.partition(":")
    context = TaskContext.get()
    assert context is not None
    again = context.attemptNumber() > 0
    found = getattr(import_module(module), name)
    result: bytes = found(access, task, f"spark-{context.taskAttemptId()}", again)
    return result


def _end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """Without one of its threads this process would never answer; the parent starts another."""
    with suppress(Exception):
        threading.__excepthook__(failed)
    os._exit(4)


def _in_one_line(error: Exception) -> str:
    """The useful part of an error: Java's traces are long, and their first lines say little."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("at ")]
    telling = [line for line in lines if "Error" in line or "Exception" in line] or lines
    return (telling[-1] if telling else type(error).__name__)[:500]


def main() -> int:
    # Output of Java and the workers must not mix with the news.
    news = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    threading.excepthook = _end_with_thread
    options = msgspec.json.decode(base64.b64decode(os.environ.pop(ENVIRONMENT)), type=Options)
    priority = take_low_priority(options.group)
    orders = Orders(options.scratch, options.group)
    try:
        archive = _prepare(options)
        if options.makes_archive:
            return _make_archive(options, news, archive)
        application, with_archive = _started(options, news, archive)
    except Exception as error:
        news.write(msgspec.json.encode(News("failed", why=_in_one_line(error))).decode() + "\n")
        news.flush()
        return 1
    words = f"{priority}, with a class archive" if with_archive else priority
    application.follow(orders, words, lacks_archive=not archive.is_there())
    hangs = threading.Timer(STOP_SECONDS, _end_at_once, (options.scratch, options.group))
    hangs.daemon = True
    hangs.start()
    application.stop()
    shutil.rmtree(options.scratch, ignore_errors=True)  # the parent may have been killed
    leave_and_remove(options.group, kill=True)
    return 0


def _prepare(options: Options) -> ClassArchive:
    """Set what Java, PySpark and the workers find in their environment."""
    scratch = Path(options.scratch)
    os.environ["JAVA_HOME"] = java.home(scratch)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "blocks")
    if _is_local(options.master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return ClassArchive(java.identity(os.environ["JAVA_HOME"]), JVM)


def _started(options: Options, news: TextIO, archive: ClassArchive) -> tuple[Application, bool]:
    """The application, and whether it was started with the archive, without which it can start."""
    with_archive = archive.use()
    if with_archive:
        try:
            application = Application(options, news, with_archive)
        except Exception:
            archive.failed()
        else:
            archive.started()
            return application, True
    return Application(options, news), False


def _make_archive(options: Options, news: TextIO, archive: ClassArchive) -> int:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # whenever a processor is idle
    Application(options, news, archive.making()).end_java()
    return 0 if archive.made() else 1


if __name__ == "__main__":
    sys.exit(main())
