"""Does the comparison find every row that differs, and none that is only late, new or collected?"""

import datetime

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from limosa.core.model.keys import position
from limosa.pipeline.comparing import Moment, State, Verdict, compare, judge, key_words, sentence
from tests.pipeline.histories import (
    KINDS,
    Collect,
    Content,
    Delete,
    Kind,
    Known,
    Put,
    Step,
    at,
    content,
    damaged,
    rows_of,
)

NAMES = [f"bird {number}" for number in range(6)]


def steps() -> st.SearchStrategy[list[Step]]:
    names = st.sampled_from(NAMES)
    puts = st.builds(Put, names, st.integers(0, 3))
    deletes = st.builds(Delete, names)
    collects = st.builds(Collect, st.integers(0, 5))
    return st.lists(st.one_of(puts, puts, deletes, collects), min_size=1, max_size=30)


LIVE, OTHER, GONE = State(5, False, 1), State(5, False, 2), State(5, True, 3)
OLD, NEW = State(4, False, 9), State(6, False, 8)


@pytest.mark.parametrize(
    ("lead", "other", "watermark", "collected", "verdict", "strictly"),
    [
        (None, None, 5, 0, "same", "same"),
        (LIVE, LIVE, 5, 0, "same", "same"),
        (LIVE, OTHER, 5, 0, "differs", "differs"),
        (LIVE, OTHER, 3, 0, "differs", "differs"),  # of one version, whatever the watermarks
        (LIVE, GONE, 5, 0, "differs", "differs"),
        (LIVE, OLD, 5, 0, "differs", "differs"),
        (OLD, LIVE, 5, 0, "differs", "differs"),  # the lead lacks a row
        (OLD, LIVE, 4, 0, "open", "open"),  # written since
        (OLD, GONE, 4, 0, "open", "open"),  # deleted since
        (LIVE, None, 5, 0, "differs", "differs"),
        (LIVE, None, 5, 5, "differs", "differs"),
        (LIVE, None, 5, 6, "open", "open"),  # perhaps deleted, and collected, since
        (None, LIVE, 5, 0, "differs", "differs"),
        (None, LIVE, 4, 0, "open", "open"),
        (None, GONE, 5, 0, "same", "differs"),
        (None, GONE, 5, 5, "same", "same"),
        (GONE, None, 5, 0, "same", "differs"),
        (GONE, None, 5, 5, "same", "same"),
        (GONE, NEW, 5, 0, "open", "open"),
    ],
)
def test_the_rule(
    lead: State | None,
    other: State | None,
    watermark: int,
    collected: int,
    verdict: Verdict,
    strictly: Verdict,
) -> None:
    ours, theirs = Moment(watermark), Moment(max(watermark, 7), collected)
    assert judge(lead, ours, other, theirs) == verdict
    assert judge(lead, ours, other, theirs, strict=True) == strictly


@given(steps(), st.data(), st.booleans())
def test_a_follower_that_is_ahead_never_differs(
    history: list[Step], data: st.DataObject, strict: bool
) -> None:
    """S37: whatever was written, deleted and collected between the two readings. What is left open
    was written in between, or may have been."""
    ahead = data.draw(st.integers(0, len(history)))
    lead = content(history, data.draw(st.integers(0, ahead)))
    other = content(history, ahead)
    found = compare(rows_of("n1", lead), rows_of("n2", other), strict=strict)
    assert all(candidate.verdict == "open" for candidate in found.values())
    for candidate in found.values():
        known = candidate.other
        assert other.collected > lead.watermark if known is None else known.version > lead.watermark


@given(steps(), st.data())
def test_replicas_that_collected_at_other_times_do_not_differ(
    history: list[Step], data: st.DataObject
) -> None:
    """S43: a replica that was copied has no tombstones that were collected before, and does not
    know up to where that was; one whose files were linked may have them all again."""
    length = data.draw(st.integers(0, len(history)))
    sound = content(history, length)
    held = []
    for _ in range(2):
        known = data.draw(st.sampled_from([0, sound.collected]))
        back = {
            step.name: Known(at(number), None)
            for number, step in enumerate(history[:length], 1)
            if isinstance(step, Delete) and step.name not in sound.rows and known == 0
        }
        kept = data.draw(st.sets(st.sampled_from(sorted(back)))) if back else set()
        rows = {**sound.rows, **{name: back[name] for name in kept}}
        held.append(Content(rows, sound.watermark, known))
    assert compare(rows_of("n1", held[0]), rows_of("n2", held[1])) == {}


@given(steps(), st.data(), st.sampled_from(NAMES), st.sampled_from(KINDS), st.booleans())
def test_a_damaged_row_is_found_unless_it_is_written_again(
    history: list[Step], data: st.DataObject, name: str, kind: Kind, at_the_lead: bool
) -> None:
    """F102: no row differs unseen. It is the only one that is found to differ."""
    ahead = data.draw(st.integers(0, len(history)))
    lead = content(history, data.draw(st.integers(0, ahead)))
    other = content(history, ahead)
    sound = lead if at_the_lead else other
    broken = damaged(sound, name, kind)
    assume(broken != sound)
    lead, other = (broken, other) if at_the_lead else (lead, broken)
    found = compare(rows_of("n1", lead), rows_of("n2", other))
    verdicts = {key[0].decode(): candidate.verdict for key, candidate in found.items()}
    assert {n for n, verdict in verdicts.items() if verdict == "differs"} <= {name}
    shown = other.rows.get(name)
    looks_new = shown is not None and shown.version > lead.watermark
    written_since = any(
        isinstance(step, Put | Delete) and step.name == name
        for number, step in enumerate(history[:ahead], 1)
        if at(number) > lead.watermark
    )
    if not looks_new and not written_since and other.collected <= lead.watermark:
        assert verdicts.get(name) == _reference(lead, other, name)


def _reference(lead: Content, other: Content, name: str) -> str | None:
    """By what a reader sees: rows without tombstones, each with its version."""
    ours, theirs = lead.rows.get(name), other.rows.get(name)
    ours = None if ours is None or ours.eggs is None else ours
    theirs = None if theirs is None or theirs.eggs is None else theirs
    return None if ours == theirs else "differs"


def test_only_some_keys_are_looked_at() -> None:
    history: list[Step] = [Put("a", 1), Put("b", 2)]
    lead, other = content(history, 2), Content({}, at(2), 0)
    found = compare(rows_of("n1", lead), rows_of("n2", other), {(b"b",)})
    assert list(found) == [(b"b",)]


# --- in words


def test_a_difference_is_told_in_words() -> None:
    here, there = State(position(1, 42), False, 1), State(position(1, 42), False, 2)
    older, gone = State(position(1, 7), False, 3), State(position(2, 1), True, 4)
    others = {"n2": None, "n3": there, "n4": None}
    assert sentence("id=7", "n1", here, others) == (
        "id=7: version 1:42 at n1, missing at n2 and n4, "
        "differs at n3 (same version, other contents)"
    )
    assert sentence("id=7", "n1", here, {"n2": gone, "n3": older}) == (
        "id=7: version 1:42 at n1, deleted at n2 (version 2:1), version 1:7 at n3"
    )
    assert sentence("id=7", "n1", None, {"n2": here}) == "id=7: missing at n1, version 1:42 at n2"
    assert sentence("id=7", "n1", gone, {"n2": here}) == (
        "id=7: deleted at n1 (version 2:1), version 1:42 at n2"
    )


def test_a_key_is_told_in_words() -> None:
    keys = pa.record_batch(
        {
            "id": pa.array([7]),
            "place": pa.array(["Öland"]),
            "day": pa.array([datetime.date(2024, 2, 29)]),
            "beyond": pa.array([2**62], pa.timestamp("us")),
            "long": pa.array([b"x" * 1000]),
        }
    )
    words = key_words(keys, 0)
    assert words.startswith(f"id=7, place='Öland', day=2024-02-29, beyond={2**62}, long=b'xxxx")
    assert words.endswith("…")
    assert len(words) < 200
