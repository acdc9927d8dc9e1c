"""Does `limosa up` start, look after, stop and find again a whole cluster?"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

import limosa
from limosa.cli.main import main
from tests.cli.running import Cluster, run
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks into /proc for processes"
)


@pytest.mark.processes
def test_a_cluster_lives_through_interrupts_deaths_and_restarts(tmp_path: Path) -> None:
    """One story, since every start takes seconds: rows written before a stop are there after it."""
    directory = tmp_path / "data"
    with Cluster(directory, tmp_path / "state", "--nodes", "2", "--cluster", "shop") as cluster:
        assert sorted(cluster.ready["nodes"]) == ["n1", "n2"]
        assert cluster.ready["cluster"] == "shop"
        assert len(cluster.children()) == 4  # with a coordinator and an admin service
        assert httpx.get(f"{cluster.ready['admin']}/readyz", trust_env=False).status_code == 200
        with limosa.operate(str(directory)) as connection:
            items = connection.create_table("items", {"id": "int64", "v": "string"}, "id")
            assert items.write([{"id": id, "v": f"v{id}"} for id in range(1000)]) == 1000

        # Another one on the same directory is refused, and does no harm.
        second = run(cluster.environment, "--json", arguments=["up", "--data", str(directory)])
        assert second.returncode == 1
        assert json.loads(second.stdout)["error"]["code"] == "VolumeInUse"
        assert "a cluster is running from" in second.stderr
        assert (directory / "cluster.json").exists()

        # Who dies is reported, and comes back.
        killed = cluster.child("n1")
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: "n1 has restarted" in cluster.errors())
        assert "n1 was killed by SIGKILL. It is restarted in 1 s." in cluster.errors()
        assert cluster.child("n1") != killed
        with limosa.operate(str(directory)) as connection:
            assert connection.table("items").count() == 1000

        # So does the admin service, at the same place.
        os.kill(cluster.child("admin"), signal.SIGKILL)
        eventually(lambda: "admin has restarted" in cluster.errors())
        answer = httpx.get(f"{cluster.ready['admin']}/v1/nodes", trust_env=False)
        assert "limosa admin-token add" in answer.json()["advice"]

        began = time.monotonic()
        cluster.interrupt(signal.SIGTERM)
        assert time.monotonic() - began < 10
        assert cluster.process.returncode == 0
        assert "Stopped cleanly after" in cluster.errors()
        assert cluster.children() == []
        assert not (directory / "cluster.json").exists()
        assert not (tmp_path / "state" / "limosa" / "last-cluster").exists()

    # It is found again, with one node more.
    with Cluster(directory, tmp_path / "state", "--nodes", "3", "--no-admin") as cluster:
        assert sorted(cluster.ready["nodes"]) == ["n1", "n2", "n3"]
        assert cluster.ready["admin"] is None
        assert len(cluster.children()) == 4  # with a coordinator, and no more
        assert cluster.ready["cluster"] == "shop"
        with limosa.operate(str(directory)) as connection:
            items = connection.table("items")
            assert items.count() == 1000
            assert items.get(7) == {"id": 7, "v": "v7"}
            items.write({"id": 7, "v": "new"})
            assert items.get(7) == {"id": 7, "v": "new"}
            assert sorted(connection.agreed()["live"]) == ["n1", "n2", "n3"]
        cluster.interrupt()
        assert cluster.process.returncode == 0


@pytest.mark.processes
def test_an_interrupt_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", tmp_path / "state", "--nodes", "1")
    cluster.start()
    eventually(lambda: len(cluster.children()) > 0)
    cluster.interrupt()
    assert cluster.process.returncode == 130
    assert "Stopped before the cluster was ready." in cluster.errors()
    assert cluster.children() == []
    assert not (tmp_path / "data" / "cluster.json").exists()
    cluster.process.communicate()


@pytest.mark.processes
def test_a_second_interrupt_kills(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data", tmp_path / "state", "--nodes", "1") as cluster:
        paused = cluster.child("coordinator")
        cluster.process.send_signal(signal.SIGINT)
        eventually(lambda: "Stopping" in cluster.errors())
        os.kill(paused, signal.SIGSTOP)
        cluster.interrupt()
        assert cluster.process.returncode in (0, 130)
        assert cluster.children() == []
        assert ("Killed" in cluster.errors()) == (cluster.process.returncode == 130)


@pytest.mark.processes
def test_a_job_in_the_background_of_a_script_outlives_its_terminal_and_stops_on_sigterm(
    tmp_path: Path,
) -> None:
    """A shell starts it with SIGINT ignored, and nohup with SIGHUP; so are all of its children."""
    launcher = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"]
    with Cluster(
        tmp_path / "data", tmp_path / "state", "--nodes", "1", launcher=launcher
    ) as cluster:
        cluster.process.send_signal(signal.SIGHUP)
        with limosa.connect(str(cluster.directory)) as connection:
            items = connection.create_table("items", {"id": "int64"}, "id")
            assert items.write({"id": 1}) == 1
        assert cluster.process.poll() is None
        cluster.interrupt(signal.SIGTERM)
        assert cluster.process.returncode == 0
        assert "Stopped cleanly after" in cluster.errors()
        assert cluster.children() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "51"], "--nodes"),
        (["--lease-seconds", "0"], "--lease-seconds"),
        (["--data", "/proc/nowhere"], "can't be used"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str],
    sentence: str,
    no_cluster: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["up", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_directory_keeps_its_name_and_its_nodes(
    tmp_path: Path, no_cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    known = {"cluster": "shop", "ports": {"n1": 1, "n2": 2}}
    (tmp_path / "data" / "local.json").write_text(json.dumps(known))
    data = str(tmp_path / "data")
    assert main(["up", "--data", data, "--cluster", "other"]) == 2
    assert "holds the cluster shop" in capsys.readouterr().err
    assert main(["up", "--data", data, "--nodes", "1"]) == 2
    assert "has a cluster of 2 nodes" in capsys.readouterr().err
