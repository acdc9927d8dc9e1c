"""What is known of each producer? Exactly what is in the log, and nothing that is guessed."""

from hypothesis import given
from hypothesis import strategies as st

from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, WHOLE, TokenRange
from limosa.core.model.rows import Entry
from limosa.core.producers import Applied, Producers

LEFT, RIGHT = TokenRange(TOKEN_MIN, 0), TokenRange(0, TOKEN_END)


def entry(
    at: int, sequence: int, held: TokenRange | None = None, floor: int = 0, producer: str = "x"
) -> Entry:
    return Entry(at, at - 1, None, producer, sequence, floor, held)


def known(*entries: Entry, committed: bool = True) -> Producers:
    producers = Producers()
    for each in entries:
        producers.record(each)
        if committed:
            producers.commit(each.at)
    return producers


def test_a_sequence_that_never_came_is_not_known_though_a_later_one_is() -> None:
    """An exact set, not a maximum: a lost part is no duplicate."""
    producers = known(entry(1, 5))
    assert producers.applied("x", 5) == (Applied(WHOLE, 1),)
    assert producers.applied("x", 4) == ()
    assert producers.applied("y", 5) == ()
    assert not producers.is_past("x", 4)


def test_parts_of_one_sequence_are_known_by_their_ranges() -> None:
    producers = known(entry(1, 5, LEFT), entry(2, 5, RIGHT))
    assert producers.applied("x", 5) == (Applied(LEFT, 1), Applied(RIGHT, 2))


def test_an_entry_of_nobody_is_not_recorded() -> None:
    assert known(entry(1, 5, producer="")).value(99) == ()


def test_a_floor_forgets_what_the_producer_no_longer_waits_for() -> None:
    producers = known(entry(1, 3), entry(2, 4), entry(3, 5, floor=4))
    assert producers.applied("x", 3) == ()
    assert producers.applied("x", 4)
    assert producers.is_past("x", 3)
    assert not producers.is_past("x", 4)


def test_a_lower_floor_does_not_lower_it() -> None:
    producers = known(entry(1, 5, floor=5), entry(2, 6, floor=2))
    assert producers.is_past("x", 4)


def test_what_was_cut_off_the_log_is_forgotten() -> None:
    producers = known(entry(1, 5, LEFT), entry(2, 5, RIGHT), entry(3, 6))
    producers.forget_after(1)
    assert producers.applied("x", 5) == (Applied(LEFT, 1),)
    assert producers.applied("x", 6) == ()


def test_a_copy_takes_along_what_is_known_up_to_its_position() -> None:
    producers = known(entry(1, 5, LEFT), entry(2, 5, RIGHT), entry(3, 6, floor=2))
    assert producers.value(1) == (("x", 2, ((5, (Applied(LEFT, 1),)),)),)
    target = Producers()
    target.unite(producers.value(2))
    assert target.applied("x", 5) == (Applied(LEFT, 1), Applied(RIGHT, 2))
    assert target.applied("x", 6) == ()
    assert target.is_past("x", 1)


def log(several: list[tuple[str, int, int]]) -> list[Entry]:
    """A log as an owner writes it: a sequence that is past is refused, and never gets there."""
    entries: list[Entry] = []
    for producer, sequence, floor in several:
        floors = [each.floor for each in entries if each.producer == producer]
        if sequence >= max(floors, default=0):
            entries.append(entry(len(entries) + 1, sequence, WHOLE, min(floor, sequence), producer))
    return entries


ENTRIES = st.lists(
    st.tuples(st.sampled_from("xy"), st.integers(1, 5), st.integers(0, 4)), max_size=12
).map(log)


@given(ENTRIES, st.integers(0, 12))
def test_uniting_twice_is_uniting_once(entries: list[Entry], up_to: int) -> None:
    source, target = known(*entries), known(*entries[: up_to // 2])
    value = source.value(up_to)
    target.unite(value)
    once = target.value(99)
    target.unite(value)
    assert target.value(99) == once


@given(ENTRIES)
def test_what_was_written_down_and_read_again_knows_the_same(entries: list[Entry]) -> None:
    source, restored = known(*entries), Producers()
    restored.unite(source.value(2**62))
    assert restored.value(99) == source.value(99)


@given(ENTRIES, st.integers(0, 12))
def test_a_copy_and_the_log_behind_it_know_together_what_the_source_knows(
    entries: list[Entry], base: int
) -> None:
    source, target = known(*entries), Producers()
    target.unite(source.value(base))
    for each in entries:
        if each.at > base:
            target.record(each)
            target.commit(each.at)
    for producer in "xy":
        for sequence in range(6):
            assert target.is_past(producer, sequence) == source.is_past(producer, sequence)
            if not source.is_past(producer, sequence):
                assert target.applied(producer, sequence) == source.applied(producer, sequence)


def test_what_came_out_of_order_is_past_and_is_forgotten_a_little_later() -> None:
    producers = known(entry(1, 5), entry(2, 3), entry(3, 6, floor=4))
    assert [sequence for sequence, _ in producers.value(99)[0][2]] == [5, 6]
    assert producers.is_past("x", 3)
    producers.record(entry(4, 7, floor=6))
    producers.commit(4)
    assert producers.applied("x", 3) == ()


def test_a_floor_may_wait_for_its_entry_to_be_committed() -> None:
    """What is past is past at once, and is forgotten later."""
    producers = known(entry(1, 3), entry(2, 4), entry(3, 5, floor=4), committed=False)
    assert producers.is_past("x", 3)
    producers.commit(2)
    assert producers.applied("x", 3)
    producers.commit(3)
    assert producers.applied("x", 3) == ()


# --- digests


def copied(entries: list[Entry], base: int, through: list[int]) -> Producers:
    """A replica whose log begins behind `base`, filled in slices read at these positions.

    At each of them the source knew the entries up to there, and may have had more in its log.
    """
    target = Producers()
    for each in entries:
        if each.at > base:
            target.record(each)
    for at in through:
        then = known(*(each for each in entries if each.at <= at + 2), committed=False)
        then.commit(at)
        target.unite(then.value(at))
    return target


@given(ENTRIES, st.integers(0, 12), st.lists(st.integers(0, 6), min_size=1, max_size=3))
def test_a_copy_that_is_equal_has_an_equal_digest(
    entries: list[Entry], base: int, later: list[int]
) -> None:
    """F102: whatever came by the log, by a copy or by both, in whatever order, and whatever comes
    behind the position at which the two are compared."""
    through = [base + each for each in later]
    at = max(through) + 2
    source = known(*entries, committed=False)
    target = copied([each for each in entries if each.at <= at + 1], base, through)
    source.commit(at)
    target.commit(at)
    assert target.digest(at) == source.digest(at)


def test_a_digest_tells_a_lost_sequence_and_a_lost_floor() -> None:
    """F102: rows may be equal though what producers have achieved is not."""
    whole = known(entry(1, 3), entry(2, 4))
    digests = {whole.digest(2), known(entry(1, 3)).digest(2), Producers().digest(2)}
    whole.record(entry(3, 5, floor=4))
    whole.commit(3)
    lower = known(entry(1, 3), entry(2, 4), entry(3, 5))
    assert len(digests | {whole.digest(3), lower.digest(3)}) == 5


def test_what_was_cut_off_takes_its_floor_along() -> None:
    cut = known(entry(1, 3), entry(2, 4), entry(3, 5, floor=4), committed=False)
    copy = Producers()
    cut.forget_after(2)
    cut.commit(2)
    copy.unite(cut.value(2))
    assert copy.digest(2) == cut.digest(2)
    assert not cut.is_past("x", 3), "what it did is known still"
    never = known(entry(1, 3), entry(2, 4))
    assert never.digest(2) == cut.digest(2), "one that never had it agrees"
    for each in (cut, never):
        each.record(entry(4, 6, floor=4))
        each.commit(4)
    assert never.digest(4) == cut.digest(4)
    assert cut.is_past("x", 3)


def test_a_floor_that_was_not_cut_off_stays() -> None:
    some = known(entry(1, 3), entry(2, 4, floor=4), entry(3, 5, floor=5), committed=False)
    some.forget_after(2)
    assert some.is_past("x", 3)
    assert not some.is_past("x", 4)


def test_what_a_copy_brought_before_the_log_did_is_known_once() -> None:
    producers = Producers()
    producers.unite(known(entry(1, 5, LEFT), entry(2, 5, RIGHT)).value(2))
    producers.record(entry(2, 5, RIGHT))
    assert producers.applied("x", 5) == (Applied(LEFT, 1), Applied(RIGHT, 2))
    other = known(entry(2, 5, RIGHT))
    other.unite(known(entry(1, 5, LEFT)).value(1))
    assert other.value(1) == (("x", 0, ((5, (Applied(LEFT, 1),)),)),)


def test_a_store_agrees_with_its_node_about_floors_also_after_a_restart() -> None:
    """The floor of an entry counts once the entry is committed. A replica that stored an entry that
    was never committed, and truncated it later, agrees with one that never had it."""
    entries = (entry(1, 3), entry(2, 4), entry(3, 5, floor=4))
    stored = Producers()
    for each in entries:
        stored.note(each)
    for each in entries[:2]:
        stored.settle(each)
    stored.note(entry(4, 0, producer=""))
    stored.settle(entry(4, 0, producer=""))
    restarted = Producers()
    restarted.unite(stored.value(99))
    restarted.expect(((3, "x", 4),))
    assert restarted.is_past("x", 3)
    restarted.forget_after(2)
    stored.forget_after(2)
    never = known(*entries[:2])
    assert restarted.digest(2) == stored.digest(2) == never.digest(2)
    stored.settle(entries[2])
    assert stored.is_past("x", 3)
