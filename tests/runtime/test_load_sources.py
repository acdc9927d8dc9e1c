"""Who tells automatic runs the load? A function of the user's, or nobody but the nodes."""

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from limosa.client.operator import operate
from limosa.core.effects import AskForLoad
from limosa.core.model.requests import SetPolicy
from limosa.core.model.runs import Policy
from limosa.core.planning.load import Load
from limosa.errors import BadInput
from limosa.runtime.load_sources import LoadAsking, load_source
from limosa.runtime.local import LocalCluster
from tests.waiting import eventually

SOURCE = '''
def load(measured):
    """Of the partitions of one table only."""
    return {name: float(name.startswith("hot")) for name in measured}

not_a_function = 3
'''
QUESTION = AskForLoad({"p": Load(7, 1.0, 2.0)})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "somebodys_load.py").write_text(SOURCE)
    (tmp_path / "broken_load.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "somebodys_load"
    sys.modules.pop("somebodys_load", None)


def test_a_function_is_found_by_its_name(module: str) -> None:
    assert load_source(f"{module}:load")({"hot-1": Load()}) == {"hot-1": 1.0}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("somebodys_load", "is not a load source"),
        (":load", "is not a load source"),
        ("no_such_module:load", "can't be imported: ModuleNotFoundError"),
        ("somebodys_load:nothing", "can't be imported: AttributeError"),
        ("broken_load:load", "can't be imported: ZeroDivisionError"),
        ("somebodys_load:not_a_function", "is not a function"),
    ],
)
def test_what_can_not_be_used_is_refused_with_the_reason(module: str, path: str, why: str) -> None:
    """F69."""
    with pytest.raises(BadInput, match=why):
        load_source(path)


class Heard:
    """What the coordinator is told, and what is logged."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, float]] = []
        self.logged: list[str] = []

    def log(self, what: str, **details: object) -> None:
        self.logged.append(f"{what} {details}")


def test_a_source_that_fails_is_asked_again() -> None:
    """F69: it costs a run, and nothing else."""
    heard = Heard()
    answers: Iterator[Any] = iter([{"p": "much"}, {"p": 2.0}])

    def source(measured: Mapping[str, Load]) -> Any:
        assert measured == QUESTION.measured
        return next(answers)

    asking = LoadAsking(source, heard.told.append, heard.log)
    asking.ask(QUESTION)
    eventually(lambda: bool(heard.logged))
    assert "failed" in heard.logged[0]
    assert "much" in heard.logged[0]

    def asked_and_told() -> bool:
        asking.ask(QUESTION)
        return bool(heard.told)

    eventually(asked_and_told)
    assert heard.told == [{"p": 2.0}]


def test_a_source_that_hangs_is_asked_once() -> None:
    heard, gate, asked = Heard(), threading.Event(), []

    def source(measured: Mapping[str, Load]) -> Mapping[str, float]:
        asked.append(measured)
        gate.wait(20.0)
        return {}

    asking = LoadAsking(source, heard.told.append, heard.log)
    asking.ask(QUESTION)
    asking.ask(QUESTION)
    assert ["has not answered yet" in line for line in heard.logged] == [True]
    gate.set()
    eventually(lambda: heard.told == [{}])
    assert len(asked) == 1


def test_a_cluster_spreads_the_load_that_a_users_function_reports(
    processes: None, module: str, tmp_path: Path
) -> None:
    """F69: whatever the nodes measure, only partitions of `hot` count; all of them are on n1. The
    policy takes from n1, and leaves the others where they are."""
    options = ["--pipeline", "threads", "--load-source", f"{module}:load"]
    cluster = LocalCluster(tmp_path / "cluster", 1, "sourced", of_coordinators=options)
    with (
        cluster,
        operate(
            list(cluster.addresses.values()), cluster_name="sourced", secret=cluster.secret
        ) as connection,
    ):
        columns = {"key": "int64", "value": "string"}
        for name in ("hot", "cold"):
            table = connection.create_table(name, columns, "key", partitions=4, replicas=1)
            table.write([{"key": key, "value": name * 20} for key in range(2000)])
        cluster.add_node()
        connection.submit(SetPolicy(Policy(True, 1.5, 1.0, 0.0)))

        def places(table: str) -> list[str]:
            zone = connection.refresh().tables[table].zone
            topology = connection.topology
            names = topology.layouts[zone].partitions
            return sorted(topology.partitions[name].replicas[0].node for name in names)

        eventually(lambda: places("hot") == ["n1", "n1", "n2", "n2"], seconds=60.0)
        connection.submit(SetPolicy(Policy()))
        assert connection.table("hot").count() == 2000
