"""Does the checker accept what a register can do, and nothing else?"""

from collections.abc import Sequence
from itertools import combinations, permutations
from random import Random
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.simulation.checkers.linearizability import ObservedOperation, Verdict, check, describe

Span = tuple[float, float | None]


def read(span: Span, result: object, client: str = "r", key: str = "k") -> ObservedOperation:
    return _operation("read", span, client, key, result=result)


def write(span: Span, value: object, client: str = "w", key: str = "k") -> ObservedOperation:
    return _operation("write", span, client, key, value=value)


def delete(span: Span, client: str = "d") -> ObservedOperation:
    return _operation("delete", span, client, "k")


def compare(
    span: Span, expected: object, value: object, result: bool | None = None, client: str = "c"
) -> ObservedOperation:
    return _operation("compare", span, client, "k", expected=expected, value=value, result=result)


def _operation(
    kind: Literal["read", "write", "delete", "compare"],
    span: Span,
    client: str,
    key: str,
    *,
    value: object = None,
    expected: object = None,
    result: object = None,
) -> ObservedOperation:
    return ObservedOperation(
        client=client,
        key=key,
        kind=kind,
        value=value,
        expected=expected,
        invoked=span[0],
        returned=span[1],
        result=result,
    )


def refused(*operations: ObservedOperation) -> str:
    verdict = check(operations)
    assert not verdict.ok
    assert not verdict.gave_up
    return verdict.reason


def accepted(*operations: ObservedOperation) -> None:
    assert check(operations) == Verdict(ok=True)


# ------------------------------------------------------------------ what a register can do


def test_no_operations_are_fine() -> None:
    accepted()


def test_a_sequential_history_is_accepted() -> None:
    accepted(
        read((0, 1), None),
        write((2, 3), "a"),
        read((4, 5), "a"),
        compare((6, 7), "a", "b", result=True),
        compare((8, 9), "a", "c", result=False),
        read((10, 11), "b"),
        delete((12, 13)),
        read((14, 15), None),
        compare((16, 17), None, "d", result=True),
        read((18, 19), "d"),
    )


def test_a_read_during_a_write_may_see_either_value() -> None:
    accepted(write((0, 1), "a"), write((2, 9), "b"), read((3, 4), "a"), read((5, 6), "b"))


def test_overlapping_writes_may_take_effect_in_any_order() -> None:
    for last in "ab":
        accepted(write((0, 5), "a"), write((1, 4), "b"), read((6, 7), last))


def test_operations_that_touch_at_one_instant_overlap() -> None:
    accepted(write((0, 1), "a"), read((1, 2), None))


def test_the_order_in_which_operations_are_given_does_not_matter() -> None:
    accepted(read((4, 5), "a"), write((2, 3), "a"), read((0, 1), None))


def test_keys_are_independent() -> None:
    accepted(write((0, 1), "a", key="k"), read((2, 3), None, key="l"), write((2, 3), "b", key="m"))


def test_an_unknown_write_may_appear_late_or_never() -> None:
    unknown = write((0, None), "a")
    accepted(unknown, read((1, 2), None))
    accepted(unknown, write((1, 2), "b"), read((3, 4), "b"), read((5, 6), "a"))


def test_an_unknown_compare_may_or_may_not_have_taken_effect() -> None:
    start, unknown = write((0, 1), "a"), compare((2, None), "a", "b")
    accepted(start, unknown, read((3, 4), "a"))
    accepted(start, unknown, read((3, 4), "a"), read((5, 6), "b"))


def test_an_unknown_compare_may_build_on_an_unknown_write() -> None:
    accepted(write((0, None), "a"), compare((1, None), "a", "b"), read((2, 3), "b"))


def test_an_unknown_write_nobody_reads_can_explain_a_refused_compare() -> None:
    accepted(write((0, None), "a"), compare((1, 2), None, "b", result=False))


def test_unanswered_reads_tell_nothing() -> None:
    accepted(read((0, None), None), write((1, 2), "a"), read((0, None), "never written"))


def test_values_need_not_be_hashable() -> None:
    accepted(write((0, 1), {"a": 1, "b": [2]}), read((2, 3), {"b": [2], "a": 1}))
    refused(write((0, 1), [1]), write((2, 3), [2]), read((4, 5), [1]))


# ------------------------------------------------------------------ what it cannot do


def test_a_stale_read_is_refused() -> None:
    refused(write((0, 1), "a"), write((2, 3), "b"), read((4, 5), "a"))


def test_a_read_that_goes_back_in_time_during_a_write_is_refused() -> None:
    refused(write((0, 1), "a"), write((2, 9), "b"), read((3, 4), "b"), read((5, 6), "a"))


def test_a_lost_write_is_refused() -> None:
    refused(write((0, 1), "a"), read((2, 3), None))


def test_a_resurrected_delete_is_refused() -> None:
    refused(write((0, 1), "a"), delete((2, 3)), read((4, 5), None), read((6, 7), "a"))


def test_a_compare_applied_twice_is_refused() -> None:
    refused(
        write((0, 1), "a"),
        compare((2, 5), "a", "b", result=True),
        compare((3, 4), "a", "c", result=True),
    )


def test_an_unknown_compare_cannot_take_effect_twice() -> None:
    refused(
        write((0, 1), "a"),
        compare((2, None), "a", "b"),
        read((3, 4), "b"),
        compare((5, 6), "b", "a", result=True),
        read((7, 8), "b"),
    )


def test_a_compare_refused_though_the_value_was_current_is_refused() -> None:
    refused(write((0, 1), "a"), compare((2, 3), "a", "b", result=False))


def test_an_unknown_write_once_seen_does_not_disappear_again() -> None:
    unknown = write((0, None), "a")
    refused(unknown, write((1, 2), "b"), read((3, 4), "a"), read((5, 6), "b"))
    refused(unknown, read((1, 2), "a"), write((3, 4), "b"), read((5, 6), "a"))


def test_an_unknown_delete_explains_one_disappearance_only() -> None:
    history = [
        delete((0, None)),
        write((1, 2), "a"),
        read((3, 4), None),
        write((5, 6), "b"),
        read((7, 8), None),
    ]
    refused(*history)
    accepted(*history, delete((0.5, None)))


def test_an_unknown_write_does_not_take_effect_before_it_was_invoked() -> None:
    refused(read((0, 1), "a"), write((2, None), "a"))


def test_a_value_nobody_wrote_is_refused() -> None:
    reason = refused(write((0, 1), "a"), read((2, 3), "b"))
    assert "nobody ever wrote" in reason


def test_one_bad_key_among_good_ones_is_found() -> None:
    reason = refused(write((0, 1), "a", key="good"), read((2, 3), "b", key="bad"))
    assert "key 'bad'" in reason


def test_an_operation_cannot_return_before_it_was_invoked() -> None:
    with pytest.raises(ValueError, match="returned before"):
        read((2, 1), None)


# ------------------------------------------------------------------ what it tells


def test_the_reason_tells_only_the_operations_that_contradict_each_other() -> None:
    noise = [write((t, t + 0.5), f"n{t}") for t in range(0, 100, 2)]
    noise += [read((t + 1, t + 1.5), f"n{t}") for t in range(0, 100, 2)]
    late = [write((200, 201), "late")]
    bad = [write((100, 101), "a"), write((102, 103), "b"), read((104, 105), "a")]
    assert refused(*late, *noise, *bad).splitlines() == [
        "key 'k': no order explains these operations (3 of 104):",
        "  [100, 101] w writes 'a'",
        "  [102, 103] w writes 'b'",
        "  [104, 105] r reads 'a'",
        "the register could only hold 'b' when this returned:",
        "  [104, 105] r reads 'a'",
    ]


def test_the_reason_forgets_compares_that_are_not_to_blame() -> None:
    chain = [compare((t, t + 0.5), t - 1 if t else None, t, result=True) for t in range(50)]
    lines = refused(*chain, read((60, 61), 20)).splitlines()
    assert "(3 of 51)" in lines[0]
    assert lines[1] == "  [20, 20.5] c replaces 19 by 20: done"


def test_operations_are_told_in_words() -> None:
    stories = {
        describe(read((0, 1), None)): "[0, 1] r reads absent",
        describe(read((0, None), None)): "[0, …] r reads, unanswered",
        describe(write((0, None), 7)): "[0, …] w writes 7, outcome unknown",
        describe(delete((0, 1.5))): "[0, 1.5] d deletes",
        describe(compare((0, 1), None, "b", result=False)): (
            "[0, 1] c replaces absent by 'b': refused"
        ),
        describe(msgspec.structs.replace(delete((0, 1)), label="move 3")): (
            "[0, 1] d deletes  (move 3)"
        ),
    }
    for told, meant in stories.items():
        assert told == meant


# ------------------------------------------------------------------ when it gives up


def _crowd() -> list[ObservedOperation]:
    writes = [write((0, 100 + n), n) for n in range(12)]
    return [*writes, *(compare((200, 201), n, "x", result=False) for n in range(12))]


def test_overlapping_writes_that_nobody_reads_do_not_exhaust_the_search() -> None:
    assert check([write((0, 100 + n), n) for n in range(100)], steps_max=100_000).ok


def test_giving_up_counts_as_failure() -> None:
    verdict = check(_crowd(), steps_max=100)
    assert not verdict.ok
    assert verdict.gave_up
    assert "gave up after 100 steps on key 'k' (24 operations)" in verdict.reason


def test_a_proven_violation_outranks_giving_up() -> None:
    verdict = check([*_crowd(), read((0, 1), "b", key="bad")], steps_max=100)
    assert not verdict.ok
    assert not verdict.gave_up
    assert "'bad'" in verdict.reason


def test_many_unknown_writes_that_are_read_do_not_exhaust_the_search() -> None:
    unknown = [write((0, None), n) for n in range(30)] + [delete((0, None)) for _ in range(30)]
    reads = [read((10 + n, 10.5 + n), n // 2 if n % 2 else None) for n in range(1, 40)]
    verdict = check([*unknown, *reads], steps_max=100_000)
    assert verdict.ok


# ------------------------------------------------------------------ against the obvious


def real_history(
    random: Random, count: int, clients: int, unknown: float
) -> list[ObservedOperation]:
    """What clients of one real register see, whose operations take effect somewhere inside."""
    free_at = [0.0] * clients
    planned: list[tuple[float, ObservedOperation]] = []
    for number in range(count):
        client = random.randrange(clients)
        invoked = free_at[client] + random.choice((1, 2, 3))
        returned = invoked + random.choice((0, 1, 2, 5))
        free_at[client] = returned
        kind: Literal["read", "write", "delete", "compare"] = random.choice(
            ("read", "read", "write", "delete", "compare")
        )
        operation = _operation(kind, (invoked, returned), f"c{client}", "k", value=number)
        effect = random.uniform(invoked, returned)
        if random.random() < unknown:
            operation = msgspec.structs.replace(operation, returned=None)
            effect = invoked + random.choice((0.5, 10, 1e9))
        planned.append((effect, operation))
    planned.sort(key=lambda plan: plan[0])
    state: object = None
    history = []
    for effect, operation in planned:
        never = operation.returned is None and effect > 1e8
        if operation.kind == "read":
            operation = msgspec.structs.replace(operation, result=state, value=None)
        elif operation.kind == "compare":
            wanted = state if random.random() < 0.6 else random.randrange(count)
            done = wanted == state and not never
            operation = msgspec.structs.replace(operation, expected=wanted, result=done)
            state = operation.value if done else state
        elif not never:
            state = operation.value if operation.kind == "write" else None
        history.append(operation)
    random.shuffle(history)
    return history


def mutate(random: Random, history: Sequence[ObservedOperation]) -> list[ObservedOperation]:
    """The same history with one answer, or one time, told wrongly."""
    mutated = list(history)
    place = random.randrange(len(mutated))
    victim = mutated[place]
    if victim.kind == "read" and random.random() < 0.7:
        seen = random.choice([None, *range(len(history))])
        mutated[place] = msgspec.structs.replace(victim, result=seen)
    elif victim.kind == "compare" and random.random() < 0.7:
        mutated[place] = msgspec.structs.replace(victim, result=not victim.result)
    else:
        shift = random.choice((-4, -2, 2, 4))
        returned = None if victim.returned is None else victim.returned + shift
        mutated[place] = msgspec.structs.replace(
            victim, invoked=victim.invoked + shift, returned=returned
        )
    return mutated


def possible(history: Sequence[ObservedOperation]) -> bool:
    """Try every order of all answered and every choice of the unanswered operations."""
    answered = [op for op in history if op.returned is not None]
    unknown = [op for op in history if op.returned is None and op.kind != "read"]
    return any(
        _explains(order)
        for size in range(len(unknown) + 1)
        for chosen in combinations(unknown, size)
        for order in permutations([*answered, *chosen])
    )


def _explains(order: Sequence[ObservedOperation]) -> bool:
    latest_invocation = float("-inf")
    state: object = None
    for operation in order:
        if operation.returned is not None and operation.returned < latest_invocation:
            return False
        latest_invocation = max(latest_invocation, operation.invoked)
        if operation.kind == "read" and operation.result != state:
            return False
        if operation.kind == "write":
            state = operation.value
        if operation.kind == "delete":
            state = None
        if operation.kind == "compare":
            matches = operation.expected == state
            if operation.returned is not None and matches != operation.result:
                return False
            state = operation.value if matches else state
    return True


@pytest.mark.thorough
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 120),
    clients=st.integers(1, 6),
    unknown=st.sampled_from((0.0, 0.05, 0.2)),
)
@settings(max_examples=300, deadline=None)
def test_what_a_real_register_does_is_accepted(
    seed: int, count: int, clients: int, unknown: float
) -> None:
    accepted(*real_history(Random(seed), count, clients, unknown))


@pytest.mark.thorough
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 6),
    clients=st.integers(1, 4),
    unknown=st.sampled_from((0.0, 0.2, 0.5)),
    mutations=st.integers(1, 3),
)
@settings(max_examples=500, deadline=None)
def test_mutated_histories_are_judged_as_by_trying_every_order(
    seed: int, count: int, clients: int, unknown: float, mutations: int
) -> None:
    random = Random(seed)
    history = real_history(random, count, clients, unknown)
    for _ in range(mutations):
        history = mutate(random, history)
    assert check(history).ok == possible(history)
