"""Is what a person who waits sees true, and do durations mean what they say?"""

import io
import math
from typing import cast

import pytest
from msgspec.structs import replace
from rich.console import Console

from limosa.admin.moves import Wanted, ending, leaving_replica, volume_on
from limosa.cli.explain import lines_of, report_line
from limosa.cli.shared.move_progress import ProgressDisplay, Rate, copy_words, follow, stage_words
from limosa.cli.shared.quantities import lasted, moment, seconds_of
from limosa.client.operator import Operator
from limosa.core.insight.explaining import CopyProgress, Explanation, explain
from limosa.core.machines.catalogue import FALLBACK, READ_NEW, STREAMING
from limosa.core.model.changes import Put, Topology, apply
from limosa.core.model.intent import Assignment, Intent
from limosa.core.model.reports import Pipeline, Report
from limosa.core.model.topology import Node, Partition, Replica
from limosa.errors import BadInput, IllegalRequest, OutcomeUnknown
from tests.core.samples import (
    NEW,
    OLD,
    A,
    P,
    cluster,
    intends,
    moving,
    placed,
    seen,
    stable,
    without_owner,
)

NOW = 1_000.0


def told(record: Partition) -> Explanation:
    return explain(seen(cluster(record, intends())), record, NOW)


# --- durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("50ms", 0.05), ("10s", 10.0), ("10m", 600.0), ("1h", 3600.0), ("1.5s", 1.5)),
        *(("0", 0.0), ("0s", 0.0), (" 2m ", 120.0)),
    ],
)
def test_a_duration_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert math.isclose(seconds_of(text, "--hold"), seconds)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(("10", "has no unit"), ("10d", "has the unit 'd'"), ("5S", "is not a duration")),
        *(("", "is not a duration"), ("-5s", "is not a duration"), ("1e3s", "is not a duration")),
        *(
            ("ms", "is not a duration"),
            ("nan", "is not a duration"),
            ("200h", "longer than a week"),
        ),
    ],
)
def test_what_is_no_duration_is_bad_input(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as raised:
        seconds_of(text, "--hold")
    assert "--hold" in raised.value.message
    assert raised.value.advice


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.012, "12 ms"), (3.41, "3.4 s"), (42.0, "42 s"), (125.0, "2 min 5 s")),
        (3_725.0, "1 h 2 min"),
    ],
)
def test_time_is_told_as_people_read_it(seconds: float, words: str) -> None:
    assert lasted(seconds) == words


# --- progress


def test_a_rate_is_of_the_last_seconds_and_begins_anew_with_a_new_copy() -> None:
    rate = Rate()
    assert rate.per_second == 0
    for second in range(30):
        rate.note(float(second), 100.0 * second if second < 15 else 1_400.0 + 10 * (second - 14))
    assert math.isclose(rate.per_second, 10.0)
    rate.note(30.0, 0.0)
    rate.note(31.0, 0.0)
    assert rate.per_second == 0
    rate.note(32.0, 50.0)
    assert rate.per_second == 50


@pytest.mark.parametrize(
    ("copy", "rate", "words"),
    [
        (CopyProgress(0, 0, 0, 0, 0, 0), 0.0, "no slice has been copied yet"),
        (CopyProgress(1, 4, 0, 0, 0, 0), 0.0, "1 of 4 slices"),
        (
            CopyProgress(16, 64, 0, 4_000, 0, 40_000_000),
            10e6,
            "16 of 64 slices, about 1,000 of 4,000 rows, 10.0 MB/s, 3.0 s left",
        ),
        (CopyProgress(4, 4, 0, 0, 0, 4_000), 10e3, "4 of 4 slices, 10.0 kB/s"),
    ],
)
def test_how_far_a_copy_is(copy: CopyProgress, rate: float, words: str) -> None:
    assert copy_words(copy, rate) == words


def test_stages_are_counted_on_the_way_forward() -> None:
    assert stage_words(told(moving(STREAMING))) == "streaming (3 of 6)"
    assert stage_words(told(moving(FALLBACK))) == f"{FALLBACK} (rolling back)"
    assert stage_words(told(stable())) == "stable"


@pytest.mark.parametrize("stage", [STREAMING, READ_NEW])
def test_who_waits_sees_the_stage_the_copy_and_the_wait(stage: str) -> None:
    out = io.StringIO()
    progress = ProgressDisplay("p moves", False, Console(file=out, force_terminal=True, width=120))
    with progress.open():
        progress.show(told(moving(stage)))
    shown = out.getvalue()
    assert "p moves" in shown
    assert stage in shown
    assert "waits for: " in shown
    assert ("no slice has been copied yet" in shown) == (stage == STREAMING)


def test_without_a_terminal_a_line_is_said_for_each_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = Console(file=io.StringIO())
    for quiet in (False, True):
        progress = ProgressDisplay("p moves", quiet, nowhere)
        with progress.open():
            progress.show(told(moving(STREAMING)))
            progress.show(told(moving(STREAMING)))
            progress.show(told(moving(READ_NEW)))
        assert len(capsys.readouterr().err.splitlines()) == (0 if quiet else 2)


# --- the end

WANTED = Wanted("t9", "a", "d")


def test_a_change_goes_on_until_neither_record_nor_intent_name_it() -> None:
    """A report may be written before the end: it is no end by itself."""
    settled = Intent(P, placed(*NEW), change=9)
    report = Report(P, "t9", "move", "reverted", "d differs", OLD, NEW)
    under_way = apply(cluster(moving(STREAMING), intends()), (Put(report),), 90)
    assert ending(under_way, moving(STREAMING), WANTED) is None
    waiting = apply(cluster(stable(), intends()), (Put(report),), 90)
    assert ending(waiting, stable(), WANTED) is None
    reverted = ending(apply(cluster(stable(), settled), (Put(report),), 90), stable(), WANTED)
    assert reverted is not None
    assert (reverted.state, reverted.why) == ("reverted", "d differs")
    moved = stable(NEW, owner=NEW[0])
    done = ending(cluster(moved, settled), moved, WANTED)
    assert done is not None
    assert done.state == "done"
    replaced = ending(cluster(stable(), settled), stable(), WANTED)
    assert replaced is not None
    assert replaced.state == "replaced"


class Away:
    """A cluster that does not answer."""

    topology = Topology()

    def state(self, partition: str) -> None:
        raise OutcomeUnknown("nobody answers")


def test_a_cluster_that_stays_away_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("limosa.cli.shared.move_progress.PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("limosa.cli.shared.move_progress.LOOK_SECONDS", 0.02)
    with pytest.raises(OutcomeUnknown):
        follow(cast(Operator, Away()), P, WANTED, lambda _: None)


# --- what is asked for


def test_the_owner_s_replica_moves_unless_another_is_named() -> None:
    assert leaving_replica(stable(), None) == (A, "its owner")
    assert leaving_replica(stable(), "b")[0].node == "b"
    assert leaving_replica(stable((A,)), None) == (A, "its only replica")
    with pytest.raises(IllegalRequest, match="d holds no replica of p"):
        leaving_replica(stable(), "d")
    with pytest.raises(IllegalRequest, match="has no owner at the moment"):
        leaving_replica(without_owner(stable()), None)
    with pytest.raises(IllegalRequest, match="is changing already"):
        leaving_replica(moving(READ_NEW), None)


def test_the_volume_with_the_fewest_replicas_is_chosen() -> None:
    held = stable((Replica("a", "first", "one"),))
    topology = Topology(nodes={"a": Node("a", volumes=("one", "two"))}, partitions={P: held})
    assert volume_on(topology, "a", None) == "two"
    assert volume_on(topology, "a", "one") == "one"
    assert volume_on(topology, "nobody", None) == ""


def test_a_move_is_followed_by_the_transition_that_its_answer_names() -> None:
    """Not by guessing: another move with the same goal may have come after it."""
    later = replace(intends(), pending=Assignment("move", placed(*NEW), trigger=12), change=12)
    report = Report(P, "t9", "move", "reverted", "cancelled", OLD, NEW)
    agreed = apply(cluster(stable(), later), (Put(report),), 90)
    ended = ending(agreed, stable(), WANTED)
    assert ended is not None
    assert (ended.state, ended.report) == ("reverted", report)
    assert ending(agreed, stable(), Wanted("t12", "a", "d")) is None


# --- how an explanation reads


def test_an_explanation_reads_well() -> None:
    record = moving(STREAMING)
    change = record.transition
    assert change is not None
    timed = replace(
        change, since=NOW - 5, pause_seconds=0.02, max_pause_seconds=0.05, giving_up="d differs"
    )
    starting = Pipeline("one", "starting", "Java comes up")
    explanation = replace(
        told(replace(record, transition=timed)),
        pipeline=starting,
        copy=CopyProgress(16, 64, 0, 4_000, 0, 40_000_000),
    )
    lines = {line[:13].strip(): line[14:] for line in lines_of(explanation, NOW)}
    assert lines["stage"].startswith("move: streaming (3 of 6), since ")
    assert lines["stage"].endswith("(5.0 s)")
    assert lines["copy"].endswith("2.0 MB/s, 15 s left")
    assert lines["Spark"] == "starting: Java comes up"
    assert lines["pause"] == "20 ms at the hand-over, at most 50 ms allowed"
    assert lines["rolling back"] == "d differs"
    assert lines["no answer"] == "a, b, c, d"


def test_a_report_is_a_line() -> None:
    report = Report(P, "t9", "move", "done", "", OLD, NEW, NOW, NOW + 3.1, 0.012)
    assert report_line(report).endswith("move from a to d: done in 3.1 s, with a pause of 12 ms")
    mended = Report(P, "t9", "repair", "reverted", "cancelled")
    assert report_line(mended).endswith("repair: reverted: cancelled")


def test_a_moment_is_told_as_a_clock_does_and_what_is_none_is_not() -> None:
    assert moment(1_000_000_000.0).startswith("2001-09-")
    for none in (0.0, -1.0, 1e300, math.inf, math.nan):
        assert moment(none) == ""
