"""Does a real cluster keep its promises for ten rounds of trouble? `make chaos` plays many more."""

import json
from pathlib import Path

import pytest

from limosa.runtime.coordinator import LEASE_SECONDS
from tests.chaos.__main__ import main
from tests.chaos.faults import KINDS, plan
from tests.chaos.rounds import Chaos, Options

SEED = 1934


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_ten_rounds_of_trouble_break_no_promise(tmp_path: Path) -> None:
    """S12, S18, S66.

    Owners that are paused beyond their lease or cut off from their followers (S12), a coordinator
    that wakes up after another took office (S18), nodes that are back before anybody misses them,
    and followers that miss what was written meanwhile (S66): every acknowledged row is there, no
    deleted one is, each key's history is linearizable, and all replicas are equal in the end.
    """
    told: list[str] = []
    report = Chaos(tmp_path, Options(rounds=10, seed=SEED), told.append).run()
    assert report.ok, "\n".join([*told, *map(str, report.findings)])
    assert report.rounds == 10
    assert report.acked_rows > 1_000
    assert report.judgements == 1


def test_the_seed_of_that_test_brings_what_its_docstring_says() -> None:
    faults = [fault for each in plan(SEED, 10) for fault in each.faults]

    def longest(*kinds: str) -> float:
        return max((fault.seconds for fault in faults if fault.kind in kinds), default=-1.0)

    assert longest("pause owner") > 1.2 * Options().lease_seconds
    assert longest("cut out of an owner") > 1.2
    assert longest("kill a cut owner", "pause a cut owner") >= 0.0
    assert longest("pause coordinator") > 1.1 * LEASE_SECONDS
    assert longest("pause follower", "cut off a node") > 1.2
    assert any(fault.seconds < 0.3 and fault.kind == "kill owner" for fault in faults)


def test_the_same_seed_gives_the_same_rounds() -> None:
    assert plan(3, 50) == plan(3, 50)
    assert plan(3, 50) == plan(3, 100)[:50]
    assert plan(3, 50) != plan(4, 50)


def test_every_kind_of_fault_comes_up() -> None:
    faults = [fault for each in plan(0, 200) for fault in each.faults]
    assert {fault.kind for fault in faults} == KINDS.keys()
    for fault in faults:
        low, high = KINDS[fault.kind][2]
        assert low <= fault.seconds <= high


def test_the_command_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--rounds", "0"])
    assert end.value.code == 2
    assert "at least 1 round" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_prints_json_last(capsys: pytest.CaptureFixture[str]) -> None:
    """S12, S18, S66."""
    assert main(["--rounds", "30", "--seed", "1", "--lease-seconds", "3"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["ok"]
