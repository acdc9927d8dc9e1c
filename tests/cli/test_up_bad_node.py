"""What if one node's directory is gone or damaged? The others start, and `doctor` has a cure."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import limosa
from limosa.client import Operator
from tests.cli.running import Cluster, run
from tests.waiting import eventually

ROWS = 500
HEALTH_SECONDS = 60.0


def delete(node: Path) -> None:
    shutil.rmtree(node)


def damage_identity(node: Path) -> None:
    (node / "NODE").write_bytes(b"\0" * 40)


def damage_volume(node: Path) -> None:
    (node / "volume" / "VOLUME").write_bytes(b"\0" * 40)


def out_of_sync(connection: Operator) -> list[str]:
    partitions = connection.refresh().partitions.values()
    return [
        each.id
        for each in partitions
        if each.transition is not None
        or {replica.node for replica in each.in_sync} != {"n1", "n2", "n3"}
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    "strike",
    [
        delete,
        pytest.param(damage_identity, marks=pytest.mark.slow),
        pytest.param(damage_volume, marks=pytest.mark.slow),
    ],
)
def test_one_bad_node_does_not_keep_the_cluster_down(
    tmp_path: Path, strike: Callable[[Path], None]
) -> None:
    """S128: the other nodes start and serve; `limosa up` says what is wrong. What `doctor` advises
    is done literally: then the node is back, and everything is in sync."""
    directory, options = tmp_path / "data", ("--nodes", "3", "--no-admin")
    with Cluster(directory, tmp_path / "state", *options) as cluster:
        assert cluster.ready["troubles"] == {}
        with limosa.operate(str(directory)) as connection:
            table = connection.create_table("t", {"k": "int64", "v": "int64"}, "k", partitions=2)
            table.write([{"k": number, "v": number} for number in range(ROWS)])
        cluster.interrupt()
    strike(directory / "n2")
    with Cluster(directory, tmp_path / "state", *options) as cluster:
        assert list(cluster.ready["troubles"]) == ["n2"]
        assert sorted(cluster.ready["nodes"]) == ["n1", "n3"]
        assert "n2 did not start" in cluster.errors()
        assert "limosa node replace" in cluster.ready["troubles"]["n2"]
        with limosa.operate(str(directory)) as connection:
            table = connection.table("t")
            assert table.count() == ROWS
            table.write([{"k": ROWS, "v": ROWS}])

            checkup = run(cluster.environment, arguments=["doctor", "--json"])
            checks = json.loads(checkup.stdout)["checks"]
            (found,) = [each for each in checks if each["check"] == "nodes"]
            assert found["what"] == "not live: n2"
            assert "erase it" in found["advice"]
            shutil.rmtree(directory / "n2", ignore_errors=True)
            command = re.search("`limosa (node replace n2)`", found["advice"])
            assert command is not None
            replaced = run(cluster.environment, arguments=command[1].split())
            assert replaced.returncode == 0, replaced.stderr
            eventually(lambda: "n2 has restarted" in cluster.errors(), seconds=HEALTH_SECONDS)

            eventually(lambda: not out_of_sync(connection), seconds=HEALTH_SECONDS)
            assert table.count() == ROWS + 1
        checkup = run(cluster.environment, arguments=["doctor", "--json"])
        assert json.loads(checkup.stdout)["problems"] == 0
        cluster.interrupt()
