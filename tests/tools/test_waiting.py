"""Does waiting end as soon as it can, and say what it waited for?"""

import pytest

from tests.waiting import eventually, left_after


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([None, 0, 7, 8])
    assert eventually(lambda: next(answers), "a number", pause_seconds=0.0) == 7


def test_a_failure_says_what_did_not_happen_and_what_was_seen_last() -> None:
    with pytest.raises(AssertionError) as caught:
        eventually(list, "somebody comes", 0.01, story=lambda: "the log")
    assert str(caught.value) == "not within 0.01 s: somebody comes; last: []\nthe log"


def test_without_words_the_condition_is_shown() -> None:
    rows = 3
    with pytest.raises(AssertionError, match=r"lambda: rows == 4.*last: False"):
        eventually(lambda: rows == 4, seconds=0.01)
    with pytest.raises(AssertionError, match="class 'dict'"):
        eventually(dict, seconds=0.01)


def test_what_is_left_is_returned_at_once_or_in_the_end() -> None:
    answers = iter([["a", "b"], ["a"], []])
    assert left_after(lambda: next(answers), 30.0, pause_seconds=0.0) == []
    assert left_after(lambda: ["a"], 0.01) == ["a"]
