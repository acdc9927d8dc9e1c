"""Is Spark told what it needs to run here, and is it said in a line why it does not?"""

import base64
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from limosa.pipeline import application, java
from limosa.pipeline.application import News, Options, settings_of
from limosa.pipeline.package import as_zip
from limosa.pipeline.priority import make_group
from tests.waiting import eventually

ENABLED = "spark.python.unix.domain.socket.enabled"
LOOPBACK = "127.0.0.1"


def test_without_a_master_spark_runs_on_this_machine_and_listens_to_nobody_else() -> None:
    settings = settings_of(Options("/data/spark"))
    assert settings["spark.master"] == "local[*,4]"
    assert settings["spark.driver.host"] == LOOPBACK
    assert settings["spark.ui.enabled"] == "false"
    assert settings_of(Options("/data/spark", "local[1]"))["spark.driver.host"] == LOOPBACK


def test_workers_elsewhere_are_not_told_to_call_themselves() -> None:
    """By a driver's address that is theirs as well, they would never find it."""
    settings = settings_of(Options("/data/spark", "spark://10.0.0.7:7077"))
    assert settings["spark.master"] == "spark://10.0.0.7:7077"
    assert "spark.driver.host" not in settings


def test_the_operator_has_the_last_word() -> None:
    conf = {"spark.driver.memory": "2g", "spark.driver.host": "10.0.0.5"}
    settings = settings_of(Options("/data/spark", conf=conf))
    assert settings.items() >= conf.items()


def test_all_that_spark_leaves_behind_is_in_its_directory() -> None:
    """Also if that has a space in its name, where Java's options would end."""
    settings = settings_of(Options("/my data/spark"))
    for name in ("spark.local.dir", "spark.sql.warehouse.dir"):
        assert settings[name].startswith("/my data/spark/")
    assert settings["spark.driver.extraJavaOptions"].endswith('-Djava.io.tmpdir="/my data/spark"')


@pytest.fixture
def short_path() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@contextmanager
def running(options: Options, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """An application, and Java with it, that does not outlive the test."""
    given = base64.b64encode(msgspec.json.encode(options)).decode()
    with subprocess.Popen(
        [sys.executable, "-m", application.__name__],
        env={**os.environ, **environment, application.ENVIRONMENT: given},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def news_of(process: "subprocess.Popen[str]") -> tuple[News, str]:
    """Its first news, after which it is let go; and all else that it has printed."""
    assert process.stdout is not None
    line = process.stdout.readline()
    more, words = process.communicate(timeout=60.0)
    assert not more
    return msgspec.json.decode(line, type=News), words


def of_length(parent: Path, length: int) -> Path:
    return parent / ("d" * (length - len(str(parent)) - 1))


def test_sockets_are_made_only_where_their_path_has_room(short_path: Path) -> None:
    longest = application.SOCKET_DIRECTORY_BYTES_MAX
    for length, enabled in ((longest, "true"), (longest + 1, "false")):
        assert settings_of(Options(str(of_length(short_path, length))))[ENABLED] == enabled


@pytest.mark.processes
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_spark_starts_in_the_longest_path_that_has_room(short_path: Path) -> None:
    """Java's limit is not the kernel's: where a path was one byte too long, no move ever began."""
    scratch = of_length(short_path, application.SOCKET_DIRECTORY_BYTES_MAX)
    scratch.mkdir()
    group = make_group(str(scratch))
    with running(Options(str(scratch), group=group), {"TMPDIR": str(scratch)}) as process:
        news, words = news_of(process)
    assert news.what == "ready", words
    assert not scratch.exists()
    assert not group or not Path(group).exists(), "its parent may have been killed"


@pytest.mark.processes
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_whoever_orders_may_go_while_spark_starts(short_path: Path) -> None:
    """A coordinator was killed, and its successor cleared up: PySpark waited for ever for a file in
    a directory that was there no more, and Java with it."""
    scratch = short_path / "spark"
    scratch.mkdir()
    with running(Options(str(scratch)), {"TMPDIR": str(scratch)}) as process:
        eventually(lambda: any(scratch.iterdir()), "PySpark has begun to start Java")
        shutil.rmtree(scratch)
        assert process.stdin is not None
        process.stdin.write('{"do": "run", "jo')  # it was killed while it spoke
        process.communicate(timeout=30.0)
        eventually(lambda: not _lives(process.pid), "Java has ended as well")
    assert not scratch.exists()


@pytest.mark.processes
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_java_that_hangs_ends_with_whoever_orders(short_path: Path) -> None:
    scratch = short_path / "spark"
    scratch.mkdir()
    with running(Options(str(scratch)), {"TMPDIR": str(scratch)}) as process:
        assert process.stdout is not None
        assert msgspec.json.decode(process.stdout.readline(), type=News).what == "ready"
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGSTOP)
        process.communicate(timeout=application.STOP_SECONDS + 30.0)
        eventually(lambda: not _lives(process.pid), "Java has ended as well")
    assert not scratch.exists()


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("", "ValueError"),
        ("no such host", "no such host"),
        (
            "An error occurred while calling x.\n: org.apache.spark.SparkException: Job aborted\n"
            "\tat org.apache.spark.A\nCaused by: java.io.IOException: the disk is full\n\tat b\n",
            "Caused by: java.io.IOException: the disk is full",
        ),
    ],
)
def test_of_javas_long_traces_the_telling_line_is_kept(said: str, line: str) -> None:
    assert application._in_one_line(ValueError(said)) == line


@pytest.mark.processes
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_why_spark_does_not_start_is_the_only_news(tmp_path: Path) -> None:
    """And nothing else that is printed comes between it."""
    fake = tmp_path / "packages" / "pyspark"
    fake.mkdir(parents=True)
    fake.joinpath("__init__.py").write_text(
        "import atexit, time\n"
        "atexit.register(time.sleep, 5.0)\n"  # it ends slowly, and whoever orders goes meanwhile
        "print('Welcome!', flush=True)\n"
        "class SparkConf:\n"
        "    def __init__(self, loadDefaults): pass\n"
        "    def setAll(self, pairs): return self\n"
        "def SparkContext(conf): raise RuntimeError('Trouble:\\n  SomeError: no port is free')\n"
    )
    given = Options(str(tmp_path / "spark"))
    with running(given, {"PYTHONPATH": str(fake.parent)}) as process:
        news, words = news_of(process)
    assert process.returncode == -signal.SIGKILL, "Java, which may hang, would go with it"
    assert news == News("failed", why="SomeError: no port is free")
    assert "Welcome!" in words


@pytest.mark.processes
def test_workers_elsewhere_can_import_all_that_they_need(tmp_path: Path) -> None:
    """From the zip alone, whatever else is installed there."""
    path = as_zip(tmp_path / "limosa.zip")
    with zipfile.ZipFile(path) as found:
        assert not [name for name in found.namelist() if not name.endswith(".py")]
    program = (
        f"import sys; sys.path.insert(0, {str(path)!r})\n"
        "import limosa.pipeline.pipe, limosa.pipeline.examining\n"
        "print(limosa.pipeline.pipe.__file__)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60.0
    )
    assert ran.stdout.strip() == f"{path}/limosa/pipeline/pipe.py"
