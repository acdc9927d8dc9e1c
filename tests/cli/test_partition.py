"""Can a person move a partition by typing, see how far it is, and take it back?"""

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from limosa.client.operator import operate
from limosa.errors import LimosaError
from tests.cli.running import COMMAND, Cluster, Limosa, Ran
from tests.metastore.pausing import pause_between_commits
from tests.waiting import eventually

NODES = {"n1", "n2", "n3"}
SECONDS = 90.0
"""Enough for a first move, which starts whatever carries the rows."""
P = "moved-0000"
ROWS, FIRST_WRITTEN = 2_000, 1_000_000


@pytest.fixture
def partition(limosa: Limosa) -> str:
    """Two replicas on three nodes, and so one place to go."""
    create = ("table", "create", "moved", "--column", "id:int64", "--column", "name:string")
    made = limosa(*create, "--key", "id", "--partitions", "2", "--replicas", "2")
    if made.code == 0:
        rows = "".join(f"{n},row {n}\n" for n in range(ROWS))
        stdin = f"id,name\n{rows}".encode()
        limosa.well("write", "moved", "-", "--format", "csv", stdin=stdin)
    assert explained(limosa)["stage"] == "stable"
    return P


def explained(limosa: Limosa) -> dict[str, Any]:
    facts: dict[str, Any] = limosa.well("explain", P, "--json").json
    return facts


def elsewhere(limosa: Limosa) -> str:
    (free,) = NODES - set(holders(limosa))
    return free


def holders(limosa: Limosa) -> list[str]:
    return sorted(each["replica"]["node"] for each in explained(limosa)["replicas"])


def wait_for_stage(limosa: Limosa, stage: str) -> None:
    eventually(lambda: explained(limosa)["stage"] == stage, seconds=SECONDS)


def table_rows(limosa: Limosa) -> bytes:
    read = limosa.well("read", "moved", "--format", "csv").out
    return b"\n".join(sorted(read.splitlines()))


@contextmanager
def waiting(cluster: Cluster, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that waits, as in another terminal."""
    command = [*COMMAND, *arguments, "--cluster", str(cluster.directory)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cluster.environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# --- there and back


class Writing(threading.Thread):
    """Writes rows, one after another, and reads each of them at once."""

    def __init__(self, cluster: Cluster, table: str) -> None:
        super().__init__()
        self._connection = operate(str(cluster.directory))
        self._table = self._connection.table(table)
        self._stopping = threading.Event()
        self.rows: dict[int, str] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        for number in itertools.count(FIRST_WRITTEN):
            name = f"written {number}"
            row = {"id": number, "name": name}
            try:
                self._table.write([row])
                self.rows[number] = name
                found = self._table.get(number)
                if found != row:
                    self.failures.append(f"{row} was read as {found}")
            except LimosaError as error:
                self.failures.append(str(error))
            if self._stopping.wait(0.005):
                return

    def __enter__(self) -> "Writing":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self.join()
        self._connection.close()


def test_a_partition_moves_and_moves_back(limosa: Limosa, cluster: Cluster, partition: str) -> None:
    """F61, F67, F74, S37: no read and no write fails, and every row is there once, as written."""
    with Writing(cluster, "moved") as writing:
        _move_and_move_back(limosa, partition)
    assert writing.failures == []
    found = limosa.well("read", "moved", "--format", "ndjson").rows
    names = {row["id"]: row["name"] for row in found}
    assert len(names) == len(found)
    assert names == {n: f"row {n}" for n in range(ROWS)} | writing.rows
    assert len(writing.rows) > 10


def _move_and_move_back(limosa: Limosa, partition: str) -> None:
    for _ in range(2):
        owner, to = explained(limosa)["owner"], elsewhere(limosa)
        ran = limosa.well("partition", "move", partition, "--to", to, "--wait")
        assert ran.text.startswith(f"{partition} moves from {owner} (its owner) to {to}: done in ")
        assert to in holders(limosa)
        assert owner not in holders(limosa)
    latest = explained(limosa)["reports"][0]
    assert (latest["kind"], latest["outcome"], latest["why"]) == ("move", "done", "")
    assert latest["began"] < latest["ended"]
    said = limosa.well("explain", partition).text
    assert "waits for     nothing" in said
    assert f"`limosa partition move {partition} --to NODE`" in said
    assert "move from" in said


def test_a_replica_that_is_no_owner_moves_as_named(limosa: Limosa, partition: str) -> None:
    owner, to = explained(limosa)["owner"], elsewhere(limosa)
    (follower,) = set(holders(limosa)) - {owner}
    asked = ("partition", "move", partition, "--from", follower, "--to", to)
    answer = limosa.well(*asked, "--wait", "--json").json
    assert (answer["from"], answer["chosen"], answer["to"]) == (follower, "as named", to)
    assert (answer["state"], answer["report"]["outcome"]) == ("done", "done")
    assert answer["report"]["transition"] == answer["transition"]
    assert holders(limosa) == sorted([owner, to])
    assert explained(limosa)["owner"] == owner


def test_without_waiting_the_next_command_is_named(limosa: Limosa, partition: str) -> None:
    owner, to = explained(limosa)["owner"], elsewhere(limosa)
    ran = limosa.well("partition", "move", partition, "--to", to)
    assert ran.text.splitlines() == [
        f"{partition} moves from {owner} (its owner) to {to}.",
        f"See its progress: limosa explain {partition}",
    ]
    eventually(lambda: to in holders(limosa) and explained(limosa)["kind"] == "", seconds=SECONDS)
    assert explained(limosa)["reports"][0]["outcome"] == "done"


# --- held, completed, reversed, cancelled


def test_a_held_move_is_explained_and_completed(limosa: Limosa, partition: str) -> None:
    owner, to = explained(limosa)["owner"], elsewhere(limosa)
    limosa.well("partition", "move", partition, "--to", to, "--hold", "10m", "--no-wait")
    wait_for_stage(limosa, "write_both_read_new")
    eventually(lambda: explained(limosa)["waits_for"].startswith("held for another "))
    held = explained(limosa)
    assert held["since"] >= held["began"] > 0
    assert [each.split(": ")[1] for each in held["may"]] == [
        f"`limosa partition complete {partition}`",
        f"`limosa partition reverse {partition}`",
    ]
    assert {each["replica"]["node"]: each["side"] for each in held["replicas"]}[to] == "new"
    assert "move: write_both_read_new (4 of 6), since " in limosa.well("explain", partition).text
    assert limosa("partition", "cancel", partition).code == 1
    answer = limosa.well("partition", "complete", partition, "--json").json
    assert (answer["kind"], answer["state"]) == ("complete", "accepted")
    wait_for_stage(limosa, "stable")
    assert owner not in holders(limosa)
    refused = limosa("partition", "reverse", partition)
    assert refused.code == 1
    assert "is not held" in refused.error


def test_a_reversed_move_ends_a_wait_with_its_reason(
    limosa: Limosa, cluster: Cluster, partition: str
) -> None:
    """All is as it was, and whoever waits is told so."""
    before, start, to = table_rows(limosa), holders(limosa), elsewhere(limosa)
    asked = ("partition", "move", partition, "--to", to, "--hold", "10m", "--wait")
    with waiting(cluster, *asked) as process:
        wait_for_stage(limosa, "write_both_read_new")
        said = limosa.well("partition", "reverse", partition).text
        assert said.startswith(f"{partition}: revers")
        out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, errors
    assert out == ""
    assert "reverted: reversed by request" in errors.splitlines()[-1]
    assert holders(limosa) == start
    assert table_rows(limosa) == before
    assert explained(limosa)["reports"][0]["outcome"] == "reverted"
    assert "reverted: reversed by request" in limosa.well("explain", partition).text


def test_a_move_that_waits_for_a_better_moment_is_cancelled(
    limosa: Limosa, cluster: Cluster, partition: str
) -> None:
    """F64: no other move begins meanwhile; after it nothing is left at the target."""
    start, to = holders(limosa), elsewhere(limosa)
    asked = ("partition", "move", partition, "--to", to, "--max-pause", "0.001ms")
    limosa.well(*asked, "--no-wait")
    eventually(lambda: "would pause writes" in explained(limosa)["waits_for"], seconds=SECONDS)
    assert explained(limosa)["pause_seconds_max"] == pytest.approx(1e-6)
    again = limosa.well(*asked)
    assert "under way already" in again.text
    (follower,) = set(start) - {explained(limosa)["owner"]}
    second = limosa("partition", "move", partition, "--from", follower, "--to", to, "--json")
    assert second.code == 1
    assert "is being moved already (streaming)" in second.json["error"]["message"]
    answer = limosa.well("partition", "cancel", partition, "--json").json
    assert answer["kind"] == "cancel"
    wait_for_stage(limosa, "stable")
    assert holders(limosa) == start
    with operate(str(cluster.directory)) as connection:
        held = connection.node_status(to)["replicas"]
    assert partition not in [each["partition"] for each in held]
    latest = explained(limosa)["reports"][0]
    assert (latest["outcome"], latest["why"]) == ("reverted", "cancelled")
    late = limosa("partition", "cancel", partition)
    assert late.code == 1
    assert "has no move that can be cancelled" in late.error


def test_ctrl_c_leaves_the_move_running(limosa: Limosa, cluster: Cluster, partition: str) -> None:
    to = elsewhere(limosa)
    asked = ("partition", "move", partition, "--to", to, "--hold", "10m", "--wait", "--json")
    with waiting(cluster, *asked) as process:
        wait_for_stage(limosa, "write_both_read_new")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, errors
    assert '"state":"running"' in out
    assert "The move continues." in errors
    assert explained(limosa)["stage"] == "write_both_read_new"
    limosa.well("partition", "reverse", partition)
    wait_for_stage(limosa, "stable")


# --- nobody there


def test_without_a_coordinator_an_explanation_says_so(
    limosa: Limosa, cluster: Cluster, partition: str
) -> None:
    """It works without one, and says what a person has to do."""
    coordinator = cluster.child("coordinator")
    pause_between_commits(coordinator, cluster.directory / "metastore.db")
    try:
        eventually(lambda: explained(limosa)["coordinator"] is None)
        facts = explained(limosa)
        assert facts["waits_for"].startswith("no coordinator is running, so nothing advances")
        assert facts["may"][0] == "start a coordinator: `limosa serve coordinator`"
        assert "coordinator   none" in limosa.well("explain", partition).text
    finally:
        os.kill(coordinator, signal.SIGCONT)
    eventually(lambda: explained(limosa)["coordinator"] is not None)


def test_a_client_may_look_but_not_move(limosa: Limosa, cluster: Cluster, partition: str) -> None:
    token = limosa.well("token", "make", "--subject", "ann").text.strip()
    address = cluster.ready["nodes"]["n1"].removeprefix("grpc://")
    as_ann = ("--cluster", address, "--token", token)
    limosa.well("explain", partition, *as_ann)
    ran = limosa("partition", "move", partition, "--to", elsewhere(limosa), *as_ann, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "Forbidden"


# --- what can't be


def nothing_changed(limosa: Limosa, before: dict[str, Any], ran: Ran) -> bool:
    after = explained(limosa)
    same = ("stage", "kind", "next", "reports", "epoch", "owner")
    return ran.out == b"" and all(after[name] == before[name] for name in same)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["move", P, "--to", "n9"], 1, "n9"),
        (["move", "nothing-0000", "--to", "n1"], 1, "there is no partition nothing-0000"),
        (["move", P, "--to", "OWNER"], 1, f"holds a replica of {P} already"),
        (["move", P, "--from", "OWNER", "--to", "OWNER"], 1, f"holds a replica of {P} already"),
        (["move", P, "--to", "FOLLOWER"], 1, f"holds a replica of {P} already"),
        (["move", P, "--from", "FREE", "--to", "OWNER"], 1, f"holds no replica of {P}"),
        (["move", P, "--to", "FREE", "--volume", "x"], 1, "has no volume 'x'"),
        (["move", P, "--to", "FREE", "--hold", "10"], 2, "--hold '10' has no unit"),
        (["move", P, "--to", "FREE", "--hold", "soon"], 2, "--hold 'soon' is not a duration"),
        (["move", P, "--to", "FREE", "--max-pause", "5y"], 2, "--max-pause '5y' has the unit"),
        (["move", P, "--to", "FREE", "--max-pause", "0"], 2, "must be more than 0"),
        (["cancel", P], 1, "has no move that can be cancelled"),
        (["cancel", "nothing-0000"], 1, "there is no partition nothing-0000"),
        (["complete", P], 1, "is not held"),
        (["complete", "nothing-0000"], 1, "there is no partition nothing-0000"),
        (["reverse", P], 1, "is not held"),
    ],
)
def test_what_can_t_be_is_said_and_changes_nothing(
    limosa: Limosa, partition: str, arguments: list[str], code: int, words: str
) -> None:
    before = explained(limosa)
    owner, free = before["owner"], elsewhere(limosa)
    (follower,) = set(holders(limosa)) - {owner}
    names = {"OWNER": owner, "FREE": free, "FOLLOWER": follower}
    ran = limosa("partition", *(names.get(each, each) for each in arguments))
    assert ran.code == code
    assert words in ran.error
    assert nothing_changed(limosa, before, ran)


def test_an_unknown_partition_is_not_explained(limosa: Limosa) -> None:
    ran = limosa("explain", "nothing-0000", "--json")
    assert ran.code == 1
    assert "there is no partition, node or run nothing-0000" in ran.json["error"]["message"]
    assert "`limosa partitions`" in ran.json["error"]["advice"]


@pytest.mark.parametrize("arguments", [["move", P], ["move", "--to", "n1"], ["cancel"], []])
def test_what_is_left_out_is_asked_for(limosa: Limosa, arguments: list[str]) -> None:
    assert limosa("partition", *arguments).code == 2
