"""What does a trigger do to intent? Its branches as a table, and against a model of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.model.intent import (
    BRANCHES,
    Assignment,
    Intent,
    Placement,
    assign,
    cancelled,
    completed,
    is_reached,
    with_cancel,
)
from limosa.errors import IllegalRequest
from tests.core.samples import A, B, C, D, placed

HERE = placed(A, B, C)
THERE = placed(B, C, D)
ELSEWHERE = placed(A, C, D)


def move(places: tuple[Placement, ...], trigger: int) -> Assignment:
    return Assignment("move", places, trigger=trigger)


STALE_PLAN = move(ELSEWHERE, 6)

# fmt: off
TABLE = [
    # pending                new                pending after            planned after
    (None,                   move(THERE, 8),    move(THERE, 8),          None),
    (None,                   move(HERE, 8),     None,                    None),
    (move(THERE, 5),         move(ELSEWHERE, 8), move(THERE, 5),         move(ELSEWHERE, 8)),
    (move(THERE, 5),         move(HERE, 8),     move(THERE, 5),          move(HERE, 8)),
    (move(THERE, 5),         move(THERE, 8),    move(THERE, 5),          None),
    (move(HERE, 5),          move(HERE, 8),     move(HERE, 5),           None),
]
# fmt: on


@pytest.mark.parametrize("planned", [None, STALE_PLAN])
@pytest.mark.parametrize(("pending", "new", "pending_after", "planned_after"), TABLE)
def test_each_branch_does_what_the_table_says(
    pending: Assignment | None,
    new: Assignment,
    pending_after: Assignment | None,
    planned_after: Assignment | None,
    planned: Assignment | None,
) -> None:
    """F160 F161 F162 S101: and the change advances in every branch."""
    before = Intent("p", HERE, pending, planned, None, change=7)
    after = assign(before, new)
    assert after == Intent("p", HERE, pending_after, planned_after, None, change=8)
    assert before == Intent("p", HERE, pending, planned, None, change=7)


def test_the_table_above_has_every_branch() -> None:
    cells = {
        (
            "empty" if pending is None else "same" if pending.same_goal(new) else "other",
            is_reached(Intent("p", HERE), new),
        )
        for pending, new, _, _ in TABLE
    }
    assert cells == set(BRANCHES)


@pytest.mark.parametrize("trigger", [0, 6, 7])
@pytest.mark.parametrize(("pending", "new", "_pending", "_planned"), TABLE)
def test_a_trigger_that_is_not_newer_is_skipped(
    pending: Assignment | None, new: Assignment, _pending: object, _planned: object, trigger: int
) -> None:
    """F159 S17: a late or doubled trigger changes nothing, whichever branch it would take."""
    before = Intent("p", HERE, pending, STALE_PLAN, None, change=7)
    assert assign(before, replace(new, trigger=trigger)) is before


def test_of_three_queued_triggers_only_the_last_survives() -> None:
    """F161 S102: and when everything has ended, stable equals it."""
    intent = assign(Intent("p", HERE), move(THERE, 1))
    for trigger, places in ((2, ELSEWHERE), (3, HERE), (4, placed(A, B, D))):
        intent = assign(intent, move(places, trigger))
    assert intent.pending == move(THERE, 1)
    assert intent.planned == move(placed(A, B, D), 4)
    intent = completed(completed(intent))
    assert intent == Intent("p", placed(A, B, D), change=4)


def test_going_back_to_the_pending_goal_removes_the_plan() -> None:
    """F162."""
    intent = assign(assign(Intent("p", HERE), move(THERE, 1)), move(ELSEWHERE, 2))
    intent = assign(intent, move(THERE, 3))
    assert (intent.pending, intent.planned, intent.change) == (move(THERE, 1), None, 3)


def test_a_trigger_without_effect_still_outdates_the_ones_before_it() -> None:
    """S101: otherwise an older trigger would be applied after it."""
    intent = assign(Intent("p", HERE, change=1), move(HERE, 5))
    assert intent.change == 5
    assert assign(intent, move(THERE, 4)) is intent


@pytest.mark.parametrize(
    "new",
    [
        Assignment("repair", HERE, trigger=3),
        Assignment("rebuild", (), ("a",), trigger=3),
        Assignment("rebuild", HERE, ("a",), trigger=3),
    ],
)
def test_a_repair_or_a_renewed_replica_is_never_reached_already(new: Assignment) -> None:
    assert not is_reached(Intent("p", HERE), new)
    assert assign(Intent("p", HERE), new).pending == new


def test_the_order_of_places_does_not_matter_and_the_volume_does() -> None:
    assert is_reached(Intent("p", HERE), move(tuple(reversed(HERE)), 3))
    other = (Placement("a", "v2"), *HERE[1:])
    assert not is_reached(Intent("p", HERE), move(other, 3))


def test_a_hold_of_another_length_is_another_goal() -> None:
    assert not move(THERE, 1).same_goal(replace(move(THERE, 1), hold_seconds=5.0))


def test_completion_makes_pending_stable_and_starts_the_plan_at_once() -> None:
    """F166: one value, so one revision."""
    intent = Intent("p", HERE, move(THERE, 1), move(ELSEWHERE, 2), cancel=1, change=2)
    assert completed(intent) == Intent("p", THERE, move(ELSEWHERE, 2), None, None, 2)
    assert completed(completed(intent)) == Intent("p", ELSEWHERE, change=2)


def test_completing_what_has_no_places_leaves_stable_where_it_is() -> None:
    repair = Assignment("repair", trigger=1)
    assert completed(Intent("p", HERE, repair)).stable == HERE
    assert completed(Intent("p", HERE)).stable == HERE


def test_a_cancelled_change_leaves_stable_and_starts_the_plan() -> None:
    """F166."""
    intent = Intent("p", HERE, move(THERE, 1), move(ELSEWHERE, 2), cancel=1, change=2)
    assert cancelled(intent) == Intent("p", HERE, move(ELSEWHERE, 2), None, None, 2)


def test_a_cancel_is_stored_for_the_trigger_that_the_caller_saw() -> None:
    intent = Intent("p", HERE, move(THERE, 4), change=4)
    assert with_cancel(intent, 4) == replace(intent, cancel=4)


def test_the_goal_that_is_being_cancelled_can_be_asked_for_again() -> None:
    """F161: it is planned, and runs after the cancelled one has ended."""
    intent = with_cancel(assign(Intent("p", HERE), move(THERE, 4)), 4)
    intent = assign(intent, move(THERE, 8))
    assert intent == Intent("p", HERE, move(THERE, 4), move(THERE, 8), cancel=4, change=8)
    intent = cancelled(intent)
    assert intent == Intent("p", HERE, move(THERE, 8), None, None, change=8)
    assert completed(intent) == Intent("p", THERE, change=8)


@pytest.mark.parametrize("pending", [None, move(THERE, 5)])
def test_a_cancel_of_another_trigger_is_refused(pending: Assignment | None) -> None:
    with pytest.raises(IllegalRequest) as caught:
        with_cancel(Intent("p", HERE, pending, change=5), 4)
    assert "no pending change of trigger 4" in caught.value.message
    assert caught.value.advice


# --- against a model of its own: goals are letters, and the queue is kept whole

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.sampled_from("hte"), st.integers(1, 12)),
        st.tuples(st.sampled_from(["complete", "wish", "cancel"]), st.just(""), st.just(0)),
    ),
    max_size=30,
)
PLACES = {"h": HERE, "t": THERE, "e": ELSEWHERE}


class Model:
    """All that was ever asked for; what intent keeps of it is worked out from the whole of it."""

    def __init__(self) -> None:
        self.stable = "h"
        self.pending = ""
        self.latest = ""
        """The last word since the pending one began; it is a plan unless it is that one itself."""
        self.wished = False
        """The pending one is to be cancelled; whatever is asked for after that is another one."""
        self.again = False
        """The last word came after that wish."""
        self.newest = 0

    def assign(self, goal: str, trigger: int) -> None:
        if trigger <= self.newest:
            return
        self.newest = trigger
        if self.pending:
            self.latest, self.again = goal, self.wished
        elif goal != self.stable:
            self.pending = self.latest = goal

    def plan(self) -> str:
        return "" if self.latest == self.pending and not self.again else self.latest

    def wish(self) -> None:
        self.wished = bool(self.pending)

    def end(self, done: bool) -> None:
        if done and self.pending:
            self.stable = self.pending
        self.pending = self.latest = self.plan()
        self.wished = self.again = False


def letters(assignment: Assignment | None) -> str:
    if assignment is None:
        return ""
    return next(letter for letter, places in PLACES.items() if places == assignment.placements)


@given(STEPS)
def test_intent_does_what_a_model_that_forgets_nothing_does(
    steps: list[tuple[str, str, int]],
) -> None:
    """F159 F160 F161 F162 F166 S101 S102."""
    intent, model = Intent("p", HERE), Model()
    for kind, goal, trigger in steps:
        before = intent
        if kind == "assign":
            intent = assign(intent, move(PLACES[goal], trigger))
            model.assign(goal, trigger)
        elif kind == "wish":
            pending = intent.pending
            intent = intent if pending is None else with_cancel(intent, pending.trigger)
            model.wish()
        else:
            intent = completed(intent) if kind == "complete" else cancelled(intent)
            model.end(kind == "complete")
        assert (letters(intent.pending), letters(intent.planned)) == (model.pending, model.plan())
        assert intent.stable == PLACES[model.stable]
        assert intent.change == model.newest >= before.change
