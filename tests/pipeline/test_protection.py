"""Do Spark's ports let in strangers? Every process on the machine can connect to them."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from limosa.errors import BadInput, UnusableFile
from limosa.pipeline import java
from limosa.pipeline.application import JobOrder, News, Options, settings_of
from limosa.pipeline.protection import PROTECTION, SECRET, check_conf, secret_for
from limosa.transport.keys import make_secret, read_secret
from tests.chaos.surroundings import descendants
from tests.pipeline import stranger
from tests.pipeline.stranger import listening_ports
from tests.pipeline.test_application import running

MASTERS = (
    "",
    "local",
    "local[2]",
    "local[*,4]",
    "local-cluster[1,1,1024]",
    "spark://10.0.0.7:7077",
)
TOKEN = b"a token that reads rows"
CLUSTER_SECRET = "s" * 40
BROADCASTS = 3
IS_ROOT = os.geteuid() == 0
NOBODY = 65_534


@pytest.mark.parametrize("master", MASTERS)
def test_spark_is_protected_in_every_mode_whatever_the_operator_sets(master: str) -> None:
    conf = dict.fromkeys(PROTECTION, "maybe")
    settings = settings_of(Options("/data/spark", master, conf, secret=CLUSTER_SECRET))
    for name in (
        "spark.authenticate",
        "spark.network.crypto.enabled",
        "spark.io.encryption.enabled",
    ):
        assert settings[name] == "true"
    assert settings["spark.network.crypto.saslFallback"] == "false"
    assert settings["spark.ui.enabled"] == "false"
    assert CLUSTER_SECRET not in repr(settings), "settings become options of a process"


@pytest.mark.parametrize("name", PROTECTION)
def test_an_operator_who_turns_protection_off_is_told_why_not(name: str) -> None:
    check_conf({name: PROTECTION[name].upper(), "spark.cores.max": "8"})
    wrong = "true" if PROTECTION[name] == "false" else "false"
    with pytest.raises(BadInput, match=f"{name} can't be {wrong}"):
        check_conf({name: wrong})


def test_a_secret_is_never_an_option_of_a_process() -> None:
    with pytest.raises(BadInput, match="visible to all users") as refused:
        check_conf({SECRET: CLUSTER_SECRET})
    assert "--spark-secret" in refused.value.advice
    assert CLUSTER_SECRET not in str(refused.value)


def test_each_master_has_its_own_source_of_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(str(path))
    for master in ("", "local", "local[3]", "local[*,4]", "yarn", "k8s://https://10.0.0.1:6443"):
        assert secret_for(master, None) == ""
        with pytest.raises(BadInput, match="needs no secret"):
            secret_for(master, str(path))
    made = {secret_for("local-cluster[1,1,1024]", None) for _ in range(2)}
    assert len(made) == 2
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in made)
    assert secret_for("spark://10.0.0.7:7077", str(path)) == read_secret(str(path)).decode()
    with pytest.raises(BadInput, match="needs the secret of its cluster") as refused:
        secret_for("spark://10.0.0.7:7077", None)
    assert "--spark-secret" in refused.value.advice


def test_a_secret_that_others_can_read_or_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(str(path))
    path.chmod(0o640)
    with pytest.raises(UnusableFile, match="other users can access"):
        secret_for("spark://10.0.0.7:7077", str(path))
    path.chmod(0o600)
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(BadInput, match="not text"):
        secret_for("spark://10.0.0.7:7077", str(path))


@pytest.fixture
def scratch() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as path:
        yield Path(path) / "spark"


@pytest.mark.processes
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
@pytest.mark.parametrize(
    "options",
    [
        Options("", "local[2]"),
        pytest.param(
            Options(
                "",
                "local-cluster[1,1,1024]",
                {"spark.executor.memory": "512m"},
                secret=CLUSTER_SECRET,
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=("local", "local-cluster"),
)
def test_a_stranger_gets_no_task_and_deserialises_nothing(scratch: Path, options: Options) -> None:
    """The stranger speaks Spark's protocol, and knows nothing that another user does not: this
    is how a token was taken from Spark. And no option of a process contains the secret."""
    scratch.mkdir(mode=0o700)
    options = msgspec.structs.replace(options, scratch=str(scratch))
    with running(options, {"TMPDIR": str(scratch)}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert msgspec.json.decode(line, type=News).what == "ready", line
        order = JobOrder("run", "job", f"{__name__}:wait", (b"task",), TOKEN)
        process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        process.stdin.flush()
        time.sleep(2.0)  # the task runs, so its broadcast is there

        javas = [each for each in descendants(process.pid) if "java" in each.command]
        assert javas
        ports = {port for each in javas for port in listening_ports(each.id)}
        assert len(ports) >= 2, "the driver's RPC and its block manager"
        inside = [f"/proc/{each.id}/environ" for each in javas]
        got = as_another_user(ports, [str(scratch), *inside])
        assert (got["fetched"], got["deserialised"]) == ([], [])
        if IS_ROOT:
            assert got["read"] == [], "its files, and what its environment contains"
        assert not [each for each in javas if CLUSTER_SECRET in each.command]
        assert not [each for each in javas if TOKEN.decode() in each.command]


def as_another_user(ports: Iterable[int], paths: Iterable[str]) -> dict[str, list[str]]:
    """What a stranger gets: another user, if the tests run as root, who may choose."""
    blocks = [f"broadcast_{number}_piece0" for number in range(BROADCASTS)]
    tried = (",".join(map(str, each)) for each in (sorted(ports), blocks, paths))
    uid = NOBODY if IS_ROOT else os.geteuid()
    ran = subprocess.run(
        [sys.executable, stranger.__file__, str(uid), *tried],
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    got: dict[str, list[str]] = json.loads(ran.stdout)
    return got


def wait(access: bytes, task: bytes, name: str, again: bool) -> bytes:
    """A task that runs until its application is ended."""
    time.sleep(600.0)
    return b""


@pytest.mark.processes
@pytest.mark.skipif(bool(java.missing()), reason=java.missing())
def test_sparks_files_are_in_a_directory_that_only_its_user_can_enter(tmp_path: Path) -> None:
    """Unix sockets to Python workers have no other authentication than this."""
    from limosa.pipeline.carriers import SparkCarrier

    before = os.umask(0)
    carrier = SparkCarrier(
        Options(str(tmp_path / "deep" / "spark")), lambda *_: None, lambda *_, **__: None
    )
    try:
        carrier.run("job", f"{__name__}:wait", b"", (b"task",), lambda *_: None)
        made = [tmp_path / "deep" / "spark", *(tmp_path / "deep" / "spark").iterdir()]
        assert len(made) == 2
        assert {each.stat().st_mode & 0o777 for each in made} == {0o700}
    finally:
        os.umask(before)
        carrier.close(0.0)
