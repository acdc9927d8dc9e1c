"""Does a move run on a Spark cluster, to whose machines our code has to be carried?"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from limosa.pipeline import java
from limosa.pipeline.application import JVM
from limosa.pipeline.protection import CIPHER, PROTECTION, SECRET
from limosa.transport.keys import make_secret, read_secret
from tests.chaos.surroundings import Process, descendants, marked, send, stray_processes
from tests.pipeline.moving import WRITTEN, MovingCluster, Writing
from tests.waiting import eventually

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(java.missing()), reason=f"{java.missing()}"),
]

HOST = "127.0.0.1"
WORKERS = 2
START_SECONDS = 120.0


class Standalone:
    """A Spark master and workers, each a process of its own."""

    def __init__(self, directory: Path, ending: ExitStack) -> None:
        self.directory = directory
        self._ending = ending
        self.secret = directory / "secret"
        make_secret(str(self.secret))
        conf = directory / "conf"
        conf.mkdir(mode=0o700)
        settings = {**PROTECTION, **CIPHER, SECRET: read_secret(str(self.secret)).decode()}
        lines = [f"{name} {value}\n" for name, value in settings.items()]
        (conf / "spark-defaults.conf").write_text("".join(lines))
        self._environment = {
            **os.environ,
            "JAVA_HOME": java.home(directory),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_CONF_DIR": str(conf),
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        port = free_port()
        self.url = f"spark://{HOST}:{port}"
        where = ["--host", HOST, "--port", str(port), "--webui-port", "0"]
        self._start("master", "master.Master", where)
        eventually(lambda: can_connect(port), "the master listens", START_SECONDS)
        self.workers = [self._start_worker(f"worker-{number}") for number in range(WORKERS)]
        for number in range(WORKERS):
            log = self.log_of(f"worker-{number}")
            eventually(
                lambda log=log: "Successfully registered with master" in log.read_text(),  # type: ignore[misc]
                "a worker registers",
                START_SECONDS,
            )

    def _start_worker(self, name: str) -> int:
        room = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / name)]
        where = ["--host", HOST, "--webui-port", "0"]
        return self._start(name, "worker.Worker", [*room, *where, self.url])

    def _start(self, name: str, kind: str, arguments: list[str]) -> int:
        import pyspark

        command = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with self.log_of(name).open("w") as log:
            process = subprocess.Popen(
                [str(command), f"org.apache.spark.deploy.{kind}", *arguments],
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        self._ending.callback(process.wait, 20.0)
        self._ending.callback(process.terminate)
        return process.pid

    def log_of(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def executors(self) -> list[Process]:
        return [
            process
            for worker in self.workers
            for process in descendants(worker)
            if "CoarseGrainedExecutorBackend" in process.command and "java" in process.command
        ]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def can_connect(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex((HOST, port)) == 0


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    with marked(directory), ExitStack() as ending:
        yield Standalone(directory, ending)


def test_a_move_runs_on_a_spark_cluster_and_survives_its_executors(tmp_path: Path) -> None:
    """F98, F117, S37: also those of a machine that dies with all that it carries."""
    spark_directory, data_directory = tmp_path / "spark", tmp_path / "limosa"
    spark_directory.mkdir()
    with (
        standalone(spark_directory) as spark,
        MovingCluster(
            data_directory,
            *("--spark-master", spark.url, "--spark-secret", str(spark.secret)),
            *("--spark-conf", "spark.executor.memory=512m"),
        ) as moving,
    ):
        with Writing(moving.connect) as writing:
            moving.wait_until(moving.swap())
        assert writing.failures == []
        assert moving.rows() == WRITTEN | writing.rows
        assert len(list(spark_directory.glob("worker-*/**/limosa.zip"))) == WORKERS
        eventually(lambda: len(moving.digests()) == 2, "old replicas are gone")

        digests, before = moving.digests(), spark.executors()
        assert len(before) == WORKERS
        wanted = moving.swap_half()
        for executor in before:
            send(executor, signal.SIGKILL)
        moving.wait_until(wanted)
        eventually(lambda: moving.digests() == digests, "as before")
        assert not {each.id for each in before} & {each.id for each in spark.executors()}
        assert moving.log().count("Spark starts") == 1, "the application itself lives on"
    for directory in (data_directory, spark_directory):
        eventually(lambda directory=directory: not stray_processes(directory), "all have ended")  # type: ignore[misc]
