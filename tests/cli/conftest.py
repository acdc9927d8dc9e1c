"""A real `limosa up`, once for all tests of commands, and how they are run against it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Cluster, Limosa


@pytest.fixture(scope="session")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, in processes of their own."""
    home = tmp_path_factory.mktemp("up")
    with Cluster(home / "data", home / "state") as running:
        yield running
        running.interrupt()
        assert running.process.returncode == 0, running.errors()


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody's own cluster is found by chance, or forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("LIMOSA_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def limosa(
    no_cluster: None,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Limosa:
    """Run a command in this process, against the cluster."""
    monkeypatch.setenv("LIMOSA_CLUSTER", str(cluster.directory))
    assert "LIMOSA_TOKEN" not in os.environ
    return Limosa(capsysbinary, monkeypatch)
