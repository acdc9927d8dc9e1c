"""Can a person drive many moves by typing: plan, start, pause, resume, cancel, drain, look back?"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limosa.client.operator import Operator, operate
from limosa.core.model.requests import StartRun
from limosa.errors import LimosaError
from limosa.runtime.local import LocalCluster
from tests.cli.driving import Load, Typed, homes, made, rows_of
from tests.cli.running import COMMAND, Limosa, Ran, Terminal
from tests.waiting import eventually

SECONDS = 60.0
SLOWLY = ("--moves-in", "1", "--moves-out", "1", "--no-wait")


@pytest.fixture(scope="module")
def local(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four nodes; the rows of partitions that move are carried by threads."""
    directory = tmp_path_factory.mktemp("rebalancing")
    cluster = LocalCluster(Path(directory), 4, "runs", of_coordinators=["--pipeline", "threads"])
    with cluster:
        yield cluster


@pytest.fixture
def connection(local: LocalCluster) -> Iterator[Operator]:
    with operate(
        list(local.addresses.values()), cluster_name=local.cluster, secret=local.secret
    ) as found:
        yield found


@pytest.fixture
def typed(
    local: LocalCluster,
    no_cluster: None,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> "Typed":
    return Typed(Limosa(capsysbinary, monkeypatch), local)


def ways(connection: Operator, name: str) -> list[str]:
    """A move of every partition to the next node."""
    nodes = ["n1", "n2", "n3", "n4"]
    return [
        f"{partition}:{here[0]}:{nodes[(nodes.index(here[0]) + 1) % 4]}"
        for partition, here in homes(connection, name).items()
    ]


def named(moves: list[str]) -> list[str]:
    return [word for move in moves for word in ("--move", move)]


def test_a_run_is_paused_survives_its_coordinator_goes_on_and_is_cancelled(
    typed: Typed, local: LocalCluster, connection: Operator
) -> None:
    """F55, F56, F57, F65, F66, F72, F74, S36: under load, from the shell; what is shown is right at
    each step, no read and no write fails, and what was committed stays where it is."""
    expected = made(connection, "kept", partitions=40)
    wanted = ways(connection, "kept")
    with Load(connection, "kept") as load:
        started = typed.well("rebalance", "start", *named(wanted), *SLOWLY, "--json").json
        run = started["run"]
        assert started["next"] == f"limosa rebalance status {run}"
        assert "is running already" in typed.refused("rebalance", "start", *named(wanted[:1]))
        eventually(lambda: typed.status()["committed"] >= 2, seconds=SECONDS)

        assert "is paused" in typed.well("rebalance", "pause").text
        assert "paused already" in typed.refused("rebalance", "pause")
        eventually(lambda: typed.status()["in_flight"] == 0, seconds=SECONDS)
        paused = typed.status()
        assert paused["state"] == "paused"
        assert paused["committed"] + paused["pending"] == paused["total"] == 40

        (coordinator,) = local.coordinators
        local.kill(coordinator)
        alone = typed.status()
        assert (alone["committed"], alone["state"]) == (paused["committed"], "paused")
        local.start_one(coordinator)
        eventually(lambda: connection.agreed()["coordinator"] is not None, seconds=SECONDS)
        time.sleep(1.0)
        assert typed.status()["committed"] == paused["committed"], "it is still paused"
        assert "the run is paused" in typed.well("explain", run).text

        typed.well("rebalance", "resume")
        eventually(lambda: typed.status()["committed"] > paused["committed"], seconds=SECONDS)
        ended = typed.well("rebalance", "cancel", "--wait", "--json").json
        assert ended["run"]["outcome"] == "cancelled"
        assert "no run is under way" in typed.refused("rebalance", "cancel")
    assert load.failures == []
    assert rows_of(connection, "kept") == expected | load.written
    moves = typed.well("rebalance", "status", run, "--json").json["moves"]
    now = homes(connection, "kept")
    for move, way in zip(moves, wanted, strict=True):
        partition, source, target = way.split(":")
        assert now[partition] == [target if move["state"] == "COMMITTED" else source]
    assert sum(move["state"] == "COMMITTED" for move in moves) == ended["committed"]
    (entry,) = [each for each in history(typed) if each["id"] == run]
    assert (entry["outcome"], entry["totals"]["committed"]) == ("cancelled", ended["committed"])
    assert run in typed.well("rebalance", "history").text
    connection.drop_table("kept")


def history(typed: Typed) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = typed.well("rebalance", "history", "--json").json["runs"]
    return runs


def test_a_node_is_drained_and_filled_again(typed: Typed, connection: Operator) -> None:
    """F59, F74, F94: nothing is left on it, no write fails, and it gets about its share."""
    expected = made(connection, "drained", replicas=2)
    with Load(connection, "drained") as load:
        plan = typed.well("node", "drain", "n2", "--dry-run", "--json").json
        assert plan["moves"]
        assert {move["source"] for move in plan["moves"]} == {"n2"}
        asked = typed("node", "drain", "n2")
        assert asked.code == 1
        assert "needs confirmation" in asked.err
        ended = typed.well("node", "drain", "n2", "--yes", "--wait", "--json")
        assert ended.json["run"]["outcome"] == "done"
        assert all("n2" not in here for here in homes(connection, "drained").values())
        assert "it stays empty" in typed.well("explain", "n2").text
        assert "decommissioning" in typed.well("nodes").text
        assert "normal again: n2" in typed.well("node", "undrain", "n2").text
        said = typed.well("node", "add", "n2", "--yes", "--wait").text
        assert "done" in said
    assert load.failures == []
    assert rows_of(connection, "drained") == expected | load.written
    filled = sum("n2" in here for here in homes(connection, "drained").values())
    assert 0 < filled <= 12
    connection.drop_table("drained")


def test_a_node_that_misses_a_run_catches_up(
    typed: Typed, local: LocalCluster, connection: Operator
) -> None:
    """F73, S30, S31: a node that stands still while partitions change hands is not waited for once
    its lease has ended; when it goes on it routes as all others do, and serves nothing before."""
    expected = made(connection, "missed")
    nodes = [node for node in local.nodes if node != "n4"]
    moves = [
        f"{partition}:{here[0]}:{nodes[(nodes.index(here[0]) + 1) % 3]}"
        for partition, here in homes(connection, "missed").items()
        if here != ["n4"]
    ][:3]
    local.pause("n4")
    try:
        ended = typed.well("rebalance", "start", *named(moves), "--wait", "--json").json
    finally:
        local.resume("n4")
    assert ended["run"]["outcome"] == "done"
    current = connection.refresh().generation
    eventually(lambda: connection.node_status("n4")["generation"] >= current, seconds=SECONDS)

    def agree() -> bool:
        return len({connection.node_status(node)["generation"] for node in local.nodes}) == 1

    eventually(agree, seconds=SECONDS)
    with Load(connection, "missed") as load:
        time.sleep(0.5)
    assert load.failures == []
    assert rows_of(connection, "missed") == expected | load.written
    connection.drop_table("missed")


def test_the_load_is_spread_and_then_there_is_nothing_to_do(
    typed: Typed, connection: Operator
) -> None:
    """F59: an empty plan is said to be one."""
    made(connection, "even", replicas=2)
    for _ in range(4):
        plan = typed.well("rebalance", "plan", "--json").json
        if not plan["moves"]:
            break
        typed.well("rebalance", "start", "--wait", "--json")
    assert "There is nothing to move." in typed.well("rebalance", "plan").text
    assert "there is nothing to move" in typed.refused("rebalance", "start")
    connection.drop_table("even")


def test_held_moves_are_completed_and_reversed_together(typed: Typed, connection: Operator) -> None:
    """F56, S37: both sides are kept until a person decides."""
    expected = made(connection, "held")
    before = homes(connection, "held")
    for turn in ("reverse", "complete"):
        wanted = ways(connection, "held")[:2]
        hold = ("--hold", "10m", "--no-wait")
        typed.well("rebalance", "start", *named(wanted), *hold, "--json")

        def are_held() -> bool:
            held = [each for each in typed.status()["current"] if each["detail"] == "held"]
            return len(held) == 2

        eventually(are_held, seconds=SECONDS)
        assert set(typed.well("rebalance", turn, "--json").json["answers"]) == {
            each.split(":")[0] for each in wanted
        }
        eventually(lambda: typed.status()["state"] == "idle", seconds=SECONDS)
        moved = homes(connection, "held") != before
        assert moved == (turn == "complete")
    assert "no run is under way" in typed.refused("rebalance", "complete")
    assert rows_of(connection, "held") == expected
    connection.drop_table("held")


def test_ctrl_c_on_a_terminal_leaves_the_run_going(
    typed: Typed, local: LocalCluster, connection: Operator
) -> None:
    """F72: a live table of the moves in flight; Ctrl-C ends the watching, not the run."""
    expected = made(connection, "watched")
    way = ways(connection, "watched")[0]
    command = ("rebalance", "start", "--move", way, "--hold", "10m")
    shown = Terminal([*COMMAND, *command, *typed.where])
    shown.await_text("write_both_read_new (4 of 6)", SECONDS)
    shown.type("\x03")
    assert shown.ended(SECONDS) == 130
    assert "0 of 1 move" in shown.text
    assert "The run continues." in shown.text
    assert shown.text.rindex("\x1b[?25h") > shown.text.rindex("\x1b[?25l"), "the cursor is back"
    assert typed.status()["in_flight"] == 1
    typed.well("rebalance", "complete")
    eventually(lambda: typed.status()["state"] == "idle", seconds=SECONDS)
    assert rows_of(connection, "watched") == expected
    connection.drop_table("watched")


def test_the_cluster_begins_runs_by_itself_if_it_is_told_to(
    typed: Typed, connection: Operator
) -> None:
    """F68, F69, F89, F143: all partitions are put on one node, and the policy spreads them."""
    expected = made(connection, "crowded")
    here = homes(connection, "crowded")
    there = [f"{name}:{nodes[0]}:n1" for name, nodes in here.items() if nodes != ["n1"]]
    typed.well("rebalance", "start", *named(there), "--wait", "--json")
    assert set(map(tuple, homes(connection, "crowded").values())) == {("n1",)}
    assert "off: checks every" in typed.well("rebalance", "auto").text
    before = typed.known()
    quick = ("--every", "1s", "--cooldown", "0", "--ratio", "1.5")
    halted = typed.well("rebalance", "auto", "--on", *quick, "--halt").text
    assert halted.startswith("halted: ")
    assert "\non: checks every 1" in halted
    time.sleep(3.0)
    assert typed.known() == before, "halted, it begins nothing, though it is on"
    going_on = typed.well("rebalance", "auto", "--go-on", "--json").json
    assert (going_on["enabled"], going_on["halted"]) == (True, False)
    eventually(lambda: typed.known() != before, seconds=SECONDS)
    eventually(
        lambda: len(set(map(tuple, homes(connection, "crowded").values()))) > 1, seconds=SECONDS
    )
    typed.well("rebalance", "auto", "--off")
    eventually(lambda: typed.status()["state"] == "idle", seconds=SECONDS)
    assert history(typed)[0]["by"] == "balancer"
    assert "n1" in {node for nodes in homes(connection, "crowded").values() for node in nodes}
    assert rows_of(connection, "crowded") == expected
    connection.drop_table("crowded")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("rebalance", "pause"), "no run is under way"),
        (("rebalance", "resume"), "no run is under way"),
        (("rebalance", "cancel", "r0"), "r0 is not the current run"),
        (("rebalance", "status", "r0"), "there is no run r0"),
        (("rebalance", "start", "--move", "nothing"), "--move 'nothing'"),
        (("rebalance", "start", "--move", "no-0000:n1:n2"), "there is no partition no-0000"),
        (("rebalance", "start", "--max-pause", "0"), "must be more than 0"),
        (("rebalance", "auto", "--ratio", "0.5"), "a ratio of 0.5"),
        (("node", "drain", "n9", "--yes"), "n9 is not a member"),
        (("node", "add", "n9", "--yes"), "n9 is not a member"),
        (("node", "undrain", "n1"), "n1 is normal"),
        (("node", "drain", "n1", "n2", "n3", "n4", "--yes"), "can't be drained"),
        (("operations", "show", "never"), "there is no operation never"),
        (("operations", "abort", "never"), "there is no operation never"),
        (("operations", "unlock"), "the cluster is not locked"),
        (("explain", "never"), "there is no partition, node or run never"),
    ],
)
def test_wrong_calls_say_why_and_change_nothing(
    typed: Typed, connection: Operator, arguments: tuple[str, ...], why: str
) -> None:
    """F55."""
    if "wrong" not in connection.refresh().tables:
        made(connection, "wrong")
    assert why in typed.refused(*arguments)


def test_a_locked_cluster_begins_nothing_until_it_is_unlocked(
    typed: Typed, connection: Operator
) -> None:
    """F87: a request waits, and can be taken back; the status shows the lock."""
    made(connection, "locked")
    way = ways(connection, "locked")[0]
    assert "locked" in typed.well("operations", "lock", "backup until noon").text

    def lock_shown() -> str:
        why: str = typed.well("status", "--json").json["locked"]
        return why

    assert eventually(lock_shown, seconds=SECONDS) == "backup until noon"
    eventually(lambda: "locked             backup until noon" in typed.well("status").text)
    answers: list[Ran] = []
    asking = threading.Thread(target=lambda: _ask(connection, way, answers))
    asking.start()

    def waiting() -> list[dict[str, Any]]:
        found = typed.well("operations", "list", "--json").json["operations"]
        return [each for each in found if each["state"] == "waiting"]

    (operation,) = eventually(waiting, seconds=SECONDS)
    assert operation["kind"] == "start_run"
    assert abs(operation["asked"] - time.time()) < SECONDS
    assert operation["answered"] is None
    assert " ago)" in typed.well("operations", "show", operation["id"]).text
    assert "withdrawn" in typed.well("operations", "abort", operation["id"]).text
    asking.join(SECONDS)
    assert typed("operations", "wait", operation["id"]).code == 1
    assert "unlocked" in typed.well("operations", "unlock").text
    done = typed.well("rebalance", "start", "--move", way, "--wait", "--json").json
    assert done["run"]["outcome"] == "done"
    listed = typed.well("operations", "list", "--json").json["operations"]
    started = next(
        each for each in listed if each["kind"] == "start_run" and each["state"] == "done"
    )
    assert started["asked"] <= started["answered"] + 1.0
    assert "limosa rebalance status" in typed.well("operations", "show", started["id"]).text
    assert "answered" in typed.well("operations", "list").text
    assert typed("operations", "wait", started["id"]).code == 0
    connection.drop_table("locked")


def _ask(connection: Operator, way: str, answers: list[Any]) -> None:
    from limosa.cli.shared.plans import move_of
    from limosa.core.model.runs import RunPlan

    try:
        answers.append(connection.submit(StartRun(RunPlan("one move", (move_of(way),)))))
    except LimosaError as error:
        answers.append(error)
