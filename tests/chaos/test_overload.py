"""Does a cluster recover when an overload ends? `make chaos OVERLOAD=20` plays many more bursts."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import main
from tests.chaos.burst import Burst, Slot, judge
from tests.chaos.overload import KILLS, Options, Overload, plan

SEED = 5
SHORT = Options(bursts=1, seed=SEED, contenders=3, processes=1, writers=16, seconds=2.0)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_after_an_overload_with_a_killed_node_everything_is_in_sync_and_writable(
    tmp_path: Path,
) -> None:
    """F195: 16 writers send many small parts to each of 200 partitions, more than four nodes can
    take, and a node is killed meanwhile. Within ten seconds of the end of both, every replica is in
    sync, every partition takes a write, and what was acknowledged is there."""
    told: list[str] = []
    report = Overload(tmp_path, SHORT, told.append).run()
    assert report.ok, "\n".join([*told, *map(str, report.findings)])
    assert report.faults["kill owner"] == 1
    assert report.bursts == report.judgements == 1


def test_the_seed_of_that_test_kills_a_node_that_owns_partitions() -> None:
    (strikes,) = plan(SEED, 1, SHORT.seconds)
    assert [strike.fault.kind for strike in strikes] == ["kill owner"]


def test_whoever_is_killed_starts_again_before_the_burst_ends() -> None:
    planned = plan(0, 100, 8.0)
    assert planned == plan(0, 100, 8.0)
    strikes = [strike for burst in planned for strike in burst]
    assert {strike.fault.kind for strike in strikes} == set(KILLS)
    assert max(strike.after + strike.fault.seconds for strike in strikes) < 8.0
    assert () in planned


def test_a_burst_may_leave_what_was_acknowledged_last_or_what_nobody_knows() -> None:
    burst = Burst({"o0.1-3-": Slot("1.7", ["1.5"]), "o0.1-4-": Slot("", ["1.8"])})
    well = {"o0.1-3-0000": "1.7", "o0.1-3-0001": "1.5"}
    assert judge([burst], well, 2) == []
    (older,) = judge([burst], {**well, "o0.1-3-0001": "1.6"}, 2)
    assert older == "o0.1-3-0001 holds 1.6, acknowledged was 1.7"
    (lost,) = judge([burst], {"o0.1-3-0001": "1.5"}, 2)
    assert lost == "o0.1-3-0000 holds None, acknowledged was 1.7"


def test_the_command_says_how_many_bursts_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--overload", "0"])
    assert end.value.code == 2
    assert "at least 1 burst" in capsys.readouterr().err
