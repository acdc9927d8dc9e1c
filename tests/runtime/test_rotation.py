"""Can secrets be replaced and tokens revoked while a cluster works?"""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limosa
from limosa.cli.main import main
from limosa.client import Operator
from limosa.core.model.intent import Placement
from limosa.core.model.requests import LockCluster, MovePartition, UnlockCluster
from limosa.errors import LimosaError, Unauthenticated
from limosa.runtime.local import LocalCluster
from limosa.transport.keys import read_keys
from limosa.transport.tokens import issue
from tests.waiting import eventually

PAUSE_SECONDS = 1.0
"""Longer than processes take to look at the secret's file."""


class Load:
    """Writes and reads, one after the other, and notes what fails."""

    def __init__(self, connection: Operator, first: int) -> None:
        self._table = connection.table("items")
        self._id = first
        self.done = 0
        self.failures: list[LimosaError] = []
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self.is_over.is_set():
            self._id += 1
            try:
                self._table.write([{"id": self._id, "v": f"v{self._id}"}])
                assert self._table.get(self._id) == {"id": self._id, "v": f"v{self._id}"}
                self.done += 1
            except LimosaError as error:
                self.failures.append(error)
                if isinstance(error, Unauthenticated):
                    return

    def goes_on(self) -> None:
        before = self.done
        eventually(lambda: self.done > before + 3, "it goes on")

    def is_locked_out(self) -> bool:
        return bool(self.failures) and isinstance(self.failures[-1], Unauthenticated)

    def end(self) -> None:
        self.is_over.set()
        self._thread.join()


@pytest.mark.processes
def test_secrets_are_rotated_and_tokens_revoked_under_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F197: no process restarts and no operation fails, except those with a revoked token; and the
    audit log names the author of every change."""
    with LocalCluster(tmp_path / "data", 3, of_coordinators=["--pipeline", "threads"]) as cluster:
        assert cluster.secret is not None
        secret = cluster.secret
        processes = {name: each.pid for name, each in cluster.processes.items()}
        addresses = list(cluster.addresses.values())

        def token(subject: str, role: str = "client") -> str:
            return issue(read_keys(secret), "local", subject, role, 600.0, time.time())

        def as_somebody(subject: str, role: str = "client") -> Operator:
            made = token(subject, role)
            return limosa.operate(addresses, cluster_name="local", token=made, timeout_seconds=3)

        def typed(*words: str) -> Any:
            assert main(("token", *words, "--secret", secret, "--json")) == 0
            return json.loads(capsys.readouterr().out)

        with limosa.operate(addresses, cluster_name="local", secret=secret) as holder:
            holder.create_table(
                "items", {"id": "int64", "v": "string"}, "id", partitions=4, replicas=2
            )
            loads = {"holder": Load(holder, 0)}
            people: dict[str, Operator] = {"holder": holder}
            try:
                for number, name in enumerate(("ann", "mallory")):
                    people[name] = as_somebody(name)
                    loads[name] = Load(people[name], 1_000_000 * (number + 1))
                for load in loads.values():
                    load.goes_on()

                typed("rotate")
                time.sleep(PAUSE_SECONDS)
                for load in loads.values():
                    load.goes_on()  # also those with tokens of the secret before

                typed("revoke", "--subject", "mallory")
                eventually(loads["mallory"].is_locked_out, "its stream ends", 40.0)
                with pytest.raises(Unauthenticated, match="revoked"):
                    people["mallory"].refresh()
                loads["ann"].goes_on()

                # Ann gets a token of the new secret in time; then the first secret is dropped.
                loads.pop("ann").end()
                people["ann again"] = as_somebody("ann")
                loads["ann again"] = Load(people["ann again"], 5_000_000)
                move(holder)
                for _ in range(2):
                    typed("rotate")
                    time.sleep(PAUSE_SECONDS)
                    loads["holder"].goes_on()
                eventually(loads["ann again"].is_locked_out, "her secret was dropped", 40.0)
                with as_somebody("root", "admin") as root:
                    root.submit(LockCluster("for a moment"))
                    root.submit(UnlockCluster())
                move(holder)
            finally:
                for load in loads.values():
                    load.end()
            assert loads["holder"].failures == []
            for name in ("mallory", "ann again"):
                # At most the operation that was under way ends without an answer.
                assert len(loads[name].failures) <= 2, loads[name].failures
            for name, each in people.items():
                if name != "holder":
                    each.close()
        assert processes == {name: each.pid for name, each in cluster.processes.items()}
        check_audit(tmp_path / "data")


def move(operator: Operator) -> None:
    """A copy by a mover's token of the present secret."""
    topology = operator.refresh()
    record = next(iter(topology.partitions.values()))
    holders = [each.node for each in record.replicas]
    (target,) = topology.nodes.keys() - holders
    operator.submit(MovePartition(record.id, source=holders[0], target=Placement(target)))

    def is_there() -> bool:
        now = operator.refresh().partitions[record.id]
        return now.transition is None and target in [each.node for each in now.replicas]

    eventually(is_there, "it has moved", 60.0)


def check_audit(directory: Path) -> None:
    """Of the nodes, for what was asked over Flight; and of the secret."""
    lines = [
        json.loads(line)
        for file in (directory, directory / "n1", directory / "n2", directory / "n3")
        if (file / "audit.ndjson").exists()
        for line in (file / "audit.ndjson").read_text().splitlines()
    ]
    assert all(each["author"] for each in lines)
    asked: Callable[[str], set[str]] = lambda kind: {  # noqa: E731
        each["author"].partition("@")[0]
        for each in lines
        if each["event"] == "asked" and kind in (each.get("request"), each.get("change"))
    }
    assert asked("lock") == asked("unlock") == {"root"}
    assert asked("create_table") == {"client"}
    assert len(asked("rotate secret")) == len(asked("revoke tokens")) == 1
