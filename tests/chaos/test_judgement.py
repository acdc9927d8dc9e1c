"""Does the judge find what was planted, and only that?"""

from typing import Any

import pytest

from limosa.errors import OutcomeUnknown, Refused
from limosa.simulation.checkers.linearizability import ObservedOperation
from tests.chaos.history import History
from tests.chaos.judgement import Finding, judge_bulk, judge_keys, judge_order
from tests.chaos.season import Season


def operation(kind: Any, invoked: float, returned: float | None, **what: Any) -> ObservedOperation:
    return ObservedOperation(
        client="c", key="k", kind=kind, invoked=invoked, returned=returned, **what
    )


def kinds(found: list[Finding]) -> list[str]:
    return sorted(finding.kind for finding in found)


def test_a_sound_history_is_no_finding() -> None:
    assert not judge_keys(
        [
            operation("write", 1, 2, value="a"),
            operation("read", 3, 4, result="a"),
            operation("compare", 5, 6, expected="a", value="b", result=True),
            operation("delete", 7, 8),
            operation("read", 9, 10, result=None),
        ]
    )


def test_a_planted_lost_write_is_found() -> None:
    found = judge_keys(
        [
            operation("write", 1, 2, value="a"),
            operation("write", 3, 4, value="b"),
            operation("read", 5, 6, result="a"),
        ]
    )
    assert kinds(found) == ["lost", "violation"]


def test_a_planted_stale_read_is_found() -> None:
    found = judge_keys(
        [
            operation("write", 1, 2, value="a"),
            operation("write", 3, 4, value="b"),
            operation("read", 5, 6, result="a"),
            operation("read", 7, 8, result="b"),
        ]
    )
    assert kinds(found) == ["violation"]


def test_a_planted_resurrected_row_is_found() -> None:
    found = judge_keys(
        [
            operation("write", 1, 2, value="a"),
            operation("delete", 3, 4),
            operation("read", 5, 6, result="a"),
        ]
    )
    assert kinds(found) == ["resurrected", "violation"]


def test_two_successful_compares_with_one_value_are_found() -> None:
    found = judge_keys(
        [
            operation("write", 1, 2, value="a"),
            operation("compare", 3, 6, expected="a", value="b", result=True),
            operation("compare", 4, 7, expected="a", value="c", result=True),
        ]
    )
    assert kinds(found) == ["violation"]


@pytest.mark.parametrize("seen", ["a", "b"])
def test_an_unknown_outcome_may_happen_late_or_never(seen: str) -> None:
    assert not judge_keys(
        [
            operation("write", 1, None, value="b"),
            operation("write", 2, 3, value="a"),
            operation("read", 4, 5, result="a"),
            operation("read", 9, 10, result=seen),
        ]
    )


def test_an_unknown_outcome_happens_once() -> None:
    found = judge_keys(
        [
            operation("write", 1, None, value="b"),
            operation("write", 2, 3, value="a"),
            operation("read", 4, 5, result="b"),
            operation("write", 6, 7, value="c"),
            operation("read", 8, 9, result="b"),
        ]
    )
    assert "violation" in kinds(found)


def test_bulk_rows_that_are_missing_or_back_are_found() -> None:
    season = Season(1)
    season.asked = 5
    season.acked = {1, 2, 3, 4}
    season.deleting = {3, 4}
    season.deleted = {3}
    assert not judge_bulk(season, {1, 2, 4, 5})
    assert not judge_bulk(season, {1, 2})
    assert kinds(judge_bulk(season, {1, 3})) == ["lost", "resurrected"]
    assert kinds(judge_bulk(season, {1, 2, 6})) == ["violation"]
    season.refused = {5}
    assert kinds(judge_bulk(season, {1, 2, 5})) == ["violation"]


def test_a_producers_writes_out_of_order_are_found() -> None:
    season = Season(1)
    assert not judge_order(season, None)
    season.cursor_last = 81
    assert not judge_order(season, "81")
    assert kinds(judge_order(season, "41")) == ["violation"]
    season.cursor_unknown = True
    assert not judge_order(season, "121")


def test_outcomes_are_told_apart_and_what_takes_too_long_is_noted() -> None:
    def refuse() -> None:
        raise Refused("not now")

    def vanish() -> None:
        raise OutcomeUnknown("no answer")

    history = History(-1.0, {"scan": 60.0})
    assert history.run("c", "get", lambda: 7).value == 7
    assert history.run("c", "put", refuse).outcome == "failed"
    ended = history.run("c", "scan", vanish)
    assert (ended.outcome, ended.known_at) == ("unknown", None)
    assert dict(history.outcomes) == {"ok": 1, "failed": 1, "unknown": 1}
    assert [slow.what for slow in history.slow] == ["get", "put"]
