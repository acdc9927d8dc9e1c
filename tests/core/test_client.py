"""What does a client tell its application, and when may it say that it surely did not happen?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.client import Asked, Client, ClientSettings, Finished
from limosa.core.client.brain import LARGE_BYTES
from limosa.core.effects import Effect, ReadTopology, Send
from limosa.core.events import Disconnected, Received, Ticked, TopologyRead
from limosa.core.messages import (
    Answer,
    Found,
    Look,
    Mismatched,
    Read,
    Redirect,
    Refuse,
    Wait,
    Write,
    Written,
)
from limosa.core.model.changes import Put, Remove, Topology, apply, layout_key
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, TokenRange
from limosa.core.model.topology import Layout
from limosa.simulation.rows import SimulatedRow, SimulatedRows
from tests.core.samples import OLD, cluster, stable
from tests.core.stage import done, rows, sent

LEFT, RIGHT = TokenRange(TOKEN_MIN, 0), TokenRange(0, TOKEN_END)
SETTINGS = ClientSettings(
    attempt_seconds=1.0, again_seconds=0.1, operation_seconds=6.0, gather_parts=100
)
ASKED = Asked("o", "z", rows("k"))


def halves(version: int = 2) -> Topology:
    """Two partitions: `p` for the tokens below 0, and `q` for the rest."""
    agreed = cluster(replace(stable(), range=LEFT))
    more = (
        Put(replace(stable(owner=OLD[1]), id="q", range=RIGHT)),
        Put(Layout("z", version, (TOKEN_MIN, 0), ("p", "q"))),
    )
    return apply(agreed, more, 60).topology


WHOLE_TOPOLOGY = cluster(stable()).topology
LAYOUT = WHOLE_TOPOLOGY.layouts["z"]


def knowing(topology: Topology = WHOLE_TOPOLOGY, settings: ClientSettings = SETTINGS) -> Client:
    client = Client("x", settings)
    client.handle(0.0, TopologyRead(topology, topology.generation))
    return client


def answer(client: Client, message: Answer, now: float = 0.1) -> list[Effect]:
    return client.handle(now, Received("a", message))


def two_rows(left: str, right: str) -> SimulatedRows:
    return SimulatedRows((SimulatedRow(left, -5, left), SimulatedRow(right, 5, right)))


def outcome(effects: list[Effect]) -> tuple[str, object] | None:
    """Of a refusal, its words."""
    finished = done(effects, Finished)
    if not finished:
        return None
    value = finished[0].value
    return finished[0].outcome, value.why if isinstance(value, Refuse) else value


# --- the happy ways


def test_a_large_write_gets_more_time_before_it_is_sent_again() -> None:
    for count, seconds in ((1, 1.0), (LARGE_BYTES // 100 + 1, 2.0), (4 * LARGE_BYTES // 100, 4.0)):
        client = knowing()
        large = SimulatedRows((SimulatedRow("k", 0, "v"),) * count)
        assert sent(client.handle(0.0, Asked("1", "z", large)), Write)
        assert not sent(client.handle(seconds - 0.01, Ticked()), Write)
        assert sent(client.handle(seconds + 0.01, Ticked()), Write)


def test_a_write_goes_to_the_owner_and_ends_when_it_is_written() -> None:
    client = knowing()
    effects = client.handle(0.0, ASKED)
    (write,) = sent(effects, Write)
    assert (write.id, write.partition, write.version, write.epoch) == ("o.1", "p", 1, 3)
    assert (write.producer, write.sequence, write.after, write.floor) == ("x", 1, 0, 1)
    assert [effect.to for effect in effects if isinstance(effect, Send)] == ["a"]
    assert outcome(answer(client, Written("o.1", 77))) == ("done", 77)
    assert client.operations == {}


def test_a_batch_ends_when_each_of_its_parts_is_written() -> None:
    client = knowing(halves())
    effects = client.handle(0.0, Asked("o", "z", two_rows("l", "r")))
    left, right = sent(effects, Write)
    assert (left.partition, right.partition) == ("p", "q")
    assert left.sequence == right.sequence
    assert outcome(answer(client, Written(left.id, 7))) is None
    assert outcome(answer(client, Written(right.id, 8))) == ("done", 8)


def test_a_read_goes_to_the_owner_and_an_eventual_one_to_any_reader() -> None:
    client = knowing(halves())
    (read,) = sent(client.handle(0.0, Asked("o", "z", keys=("k",), token=5)), Read)
    assert (read.partition, read.keys, read.eventual) == ("q", ("k",), False)
    assert outcome(answer(client, Found("o.1", ((3, "v"),)))) == ("done", ((3, "v"),))
    nodes = []
    for choice in range(3):
        asked = Asked(f"e{choice}", "z", keys=("k",), eventual=True, choice=choice)
        nodes += [e.to for e in client.handle(0.0, asked) if isinstance(e, Send)]
    assert nodes == ["a", "b", "c"]


def test_a_failed_comparison_is_an_outcome_of_its_own() -> None:
    client = knowing()
    client.handle(0.0, Asked("o", "z", rows("k"), expected=3))
    assert outcome(answer(client, Mismatched("o.1", 9))) == ("mismatch", 9)


# --- what is definite


@pytest.mark.parametrize(
    ("before", "word"),
    [
        ((), "failed"),
        ((Redirect("o.1", None, 1, 1),), "failed"),
        ((Wait("o.1", "later"),), "failed"),
        ((Redirect("o.1", None, 1, 1, definite=False),), "unknown"),
    ],
    ids=["at once", "after a redirect", "after a wait", "after a redirect of a former owner"],
)
def test_a_refusal_is_definite_unless_an_attempt_may_still_take_effect(
    before: tuple[Answer, ...], word: str
) -> None:
    """F4: a redirect says that nothing was written, unless it says otherwise."""
    client = knowing()
    client.handle(0.0, ASKED)
    for message in before:
        answer(client, message)
    (again,) = sent(client.handle(0.3, Ticked()), Write) if before else [None]
    id = "o.1" if again is None else again.id
    assert outcome(answer(client, Refuse(id, "no"), 0.4)) == (word, "no")


def test_a_write_waits_a_while_for_missing_replicas_and_then_says_why() -> None:
    client = knowing(settings=ClientSettings(patience_seconds=1.0))
    client.handle(0.0, ASKED)
    missing = "1 replicas in sync, 2 needed"
    assert outcome(answer(client, Refuse("o.1", missing, "NotEnoughReplicas"), 0.1)) is None
    (again,) = sent(client.handle(0.2, Ticked()), Write)
    assert outcome(answer(client, Refuse(again.id, missing, "NotEnoughReplicas"), 0.9)) is None
    (again,) = sent(client.handle(1.2, Ticked()), Write)
    last = answer(client, Refuse(again.id, missing, "NotEnoughReplicas"), 1.2)
    assert outcome(last) == ("failed", missing)


def test_a_refusal_after_an_attempt_without_an_answer_is_unknown() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    (again,) = sent(client.handle(1.0, Ticked()), Write)
    assert again.sequence == 1
    assert outcome(answer(client, Refuse(again.id, "no"), 1.1)) == ("unknown", "no")


@pytest.mark.parametrize("written", [True, False])
def test_a_refusal_of_one_part_is_unknown_while_another_is_written_or_under_way(
    written: bool,
) -> None:
    client = knowing(halves())
    left, right = sent(client.handle(0.0, Asked("o", "z", two_rows("l", "r"))), Write)
    if written:
        answer(client, Written(left.id, 7))
    assert outcome(answer(client, Refuse(right.id, "no"))) == ("unknown", "no")


@pytest.mark.parametrize("last", ["no answer", "a refusal"])
def test_a_part_in_flight_stays_possible_while_another_one_waits(last: str) -> None:
    """The part that was told to wait goes again alone. The other may still take effect, so that
    nobody may say afterwards that it surely failed."""
    client = knowing(halves())
    left, right = sent(client.handle(0.0, Asked("o", "z", two_rows("l", "r"))), Write)
    answer(client, Wait(left.id, "later"), 0.1)
    (again,) = sent(client.handle(0.3, Ticked()), Write)
    assert (again.partition, again.sequence) == ("p", 1)
    (replaced,) = sent(client.handle(1.0, Ticked()), Write)
    assert replaced.partition == "q"
    answer(client, Wait(again.id, "later"), 1.05)
    answer(client, Wait(replaced.id, "later"), 1.05)
    if last == "a refusal":
        (_, third) = sent(client.handle(1.2, Ticked()), Write)
        assert outcome(answer(client, Refuse(third.id, "no"), 1.3)) == ("unknown", "no")
    else:
        assert outcome(client.handle(6.0, Ticked())) == ("unknown", "no answer in time")
    assert answer(client, Written(right.id, 7), 6.1) == []


def test_without_an_answer_in_time_it_is_unknown() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    assert outcome(client.handle(6.0, Ticked())) == ("unknown", "no answer in time")


def test_what_was_never_sent_or_surely_refused_has_failed_when_time_is_up() -> None:
    client = Client("x", SETTINGS)
    assert done(client.handle(0.0, ASKED), ReadTopology)
    assert outcome(client.handle(6.0, Ticked())) == ("failed", "no answer in time")
    client = knowing()
    client.handle(0.0, ASKED)
    answer(client, Wait("o.1", "later"), 5.99)
    assert outcome(client.handle(6.0, Ticked())) == ("failed", "no answer in time")


# --- trying again


def test_a_redirect_refreshes_and_routes_again_by_the_new_layout() -> None:
    """F4."""
    client = knowing()
    client.handle(0.0, Asked("o", "z", two_rows("l", "r")))
    assert done(answer(client, Redirect("o.1", "b", 2, 60)), ReadTopology)
    new = halves()
    again = sent(client.handle(0.15, TopologyRead(new, 60)), Write)
    assert [(w.partition, w.version, w.range) for w in again] == [("p", 2, LEFT), ("q", 2, RIGHT)]
    assert {w.sequence for w in again} == {1}


def test_a_part_that_is_done_is_not_sent_again() -> None:
    client = knowing(halves())
    left, right = sent(client.handle(0.0, Asked("o", "z", two_rows("l", "r"))), Write)
    answer(client, Written(left.id, 7))
    answer(client, Wait(right.id, "later"))
    (again,) = sent(client.handle(0.3, Ticked()), Write)
    assert again.partition == "q"


def test_a_wait_is_asked_again_after_a_while_and_refreshes_at_once() -> None:
    """Who says wait may not know yet that it is not the one to ask any more."""
    client = knowing()
    client.handle(0.0, ASKED)
    assert answer(client, Wait("o.1", "later"), 0.1) == [ReadTopology()]
    assert client.handle(0.104, Ticked()) == []
    assert len(sent(client.handle(0.106, Ticked()), Write)) == 1


def test_whoever_is_told_to_wait_again_and_again_asks_less_and_less_often() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    now, pauses = 0.0, []
    for attempt in range(1, 30):
        answer(client, Wait(f"o.{attempt}", "later"), now)
        milliseconds = 1
        while not sent(client.handle(now + milliseconds / 1000, Ticked()), Write):
            milliseconds += 1
        pauses.append(milliseconds)
        now += milliseconds / 1000
    assert pauses == [5, 10, 20, 40, 80] + 24 * [100]


def test_when_its_table_was_dropped_an_operation_ends_at_once() -> None:
    for maybe in (False, True):
        client = knowing()
        client.handle(0.0, ASKED)
        if not maybe:
            answer(client, Wait("o.1", "later"), 0.1)
        gone = apply(cluster(stable()), (Remove(layout_key("z")),), 70).topology
        word, why = outcome(client.handle(0.2, TopologyRead(gone, 70))) or ("", "")
        assert word == ("unknown" if maybe else "failed")
        assert "dropped" in str(why)
        client.handle(0.3, Asked("p", "z", rows("k")))
        newer = apply(cluster(stable()), (Remove(layout_key("z")),), 71).topology
        assert outcome(client.handle(0.4, TopologyRead(newer, 71))) is None


def test_what_was_under_way_to_a_node_that_is_gone_goes_again_and_may_have_happened() -> None:
    client = knowing(halves())
    client.handle(0.0, Asked("o", "z", two_rows("l", "r")))
    client.handle(0.0, Asked("r", "z", keys=("k",), token=5))
    assert client.handle(0.1, Disconnected("c")) == []
    assert client.handle(0.1, Disconnected("b")) == [ReadTopology()]
    moved = apply(cluster(stable()), (Put(stable()),), 70).topology
    partitions = {**halves().partitions, "q": replace(stable(), id="q", range=RIGHT)}
    moved = replace(halves(), generation=70, partitions=partitions)
    again = [e for e in client.handle(0.101, TopologyRead(moved, 70)) if isinstance(e, Send)]
    assert [(e.to, type(e.message)) for e in again] == [("a", Write), ("a", Read)]
    assert outcome(answer(client, Refuse("o.3", "no"), 0.2)) == ("unknown", "no")


def test_what_was_under_way_to_a_node_that_is_gone_goes_again_soon_without_any_news() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    client.handle(0.1, Disconnected("a"))
    assert len(sent(client.handle(0.106, Ticked()), Write)) == 1
    assert answer(client, Written("o.1", 7), 0.11) == []
    assert outcome(answer(client, Written("o.2", 7), 0.12)) == ("done", 7)


def test_a_batch_without_rows_is_written_at_once() -> None:
    client = knowing()
    assert outcome(client.handle(0.0, Asked("o", "z", SimulatedRows(())))) == ("done", 0)
    (write,) = sent(client.handle(0.0, Asked("p", "z", rows("k"))), Write)
    assert (write.sequence, write.after, write.floor) == (2, 0, 2)


def test_an_unanswered_attempt_is_repeated_with_a_refresh() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    effects = client.handle(1.0, Ticked())
    assert done(effects, ReadTopology)
    assert [w.id for w in sent(effects, Write)] == ["o.2"]


def test_an_attempt_on_its_way_to_a_former_owner_is_replaced_at_once() -> None:
    """F4: and it may still take effect there, so a refusal after it is not definite."""
    client = knowing()
    client.handle(0.0, ASKED)
    moved = apply(cluster(stable()), (Put(stable(owner=OLD[1])),), 70).topology
    effects = client.handle(0.2, TopologyRead(moved, 70))
    assert [effect.to for effect in effects if isinstance(effect, Send)] == ["b"]
    (again,) = sent(effects, Write)
    assert outcome(answer(client, Refuse(again.id, "no"), 0.3)) == ("unknown", "no")


def test_an_attempt_on_its_way_to_the_owner_is_left_alone_by_a_refresh() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    newer = apply(cluster(stable()), (Put(stable(in_sync=OLD[:2])),), 70).topology
    assert client.handle(0.2, TopologyRead(newer, 70)) == []
    assert outcome(answer(client, Written("o.1", 7), 0.3)) == ("done", 7)


def test_a_refresh_is_not_asked_for_again_at_once() -> None:
    client = knowing()
    client.handle(0.0, Asked("o1", "z", rows("k")))
    client.handle(0.0, Asked("o2", "z", rows("l")))
    assert done(answer(client, Redirect("o1.1", "b", 1, 1), 0.1), ReadTopology)
    assert not done(answer(client, Redirect("o2.1", "b", 1, 1), 0.14), ReadTopology)


def test_a_partition_without_an_owner_is_waited_for() -> None:
    client = knowing(cluster(stable(owner=None)).topology)
    effects = client.handle(0.2, ASKED)
    assert effects == [ReadTopology()]
    owned = apply(cluster(stable(owner=None)), (Put(stable()),), 70).topology
    assert len(sent(client.handle(0.25, TopologyRead(owned, 70)), Write)) == 1


def test_a_zone_that_is_not_known_yet_is_routed_once_it_is() -> None:
    client = Client("x", SETTINGS)
    client.handle(0.0, Asked("o", "z", two_rows("l", "r")))
    again = sent(client.handle(0.2, TopologyRead(halves(), 60)), Write)
    assert [w.partition for w in again] == ["p", "q"]
    reading = Client("x", SETTINGS)
    reading.handle(0.0, Asked("o", "z", keys=("k",), token=-5))
    (read,) = sent(reading.handle(0.2, TopologyRead(halves(), 60)), Read)
    assert read.partition == "p"


def test_an_older_or_the_same_topology_changes_nothing() -> None:
    client = knowing(halves())
    for topology in (halves(), WHOLE_TOPOLOGY):
        assert client.handle(0.1, TopologyRead(topology, 99)) == []
    assert client.topology.layouts["z"].version == 2


def test_what_is_no_answer_and_what_nobody_waits_for_is_ignored() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    assert client.handle(0.1, Received("a", Look(3))) == []
    assert answer(client, Written("other.1", 3)) == []
    assert answer(client, Answer("o.1")) == []
    assert "o" in client.operations


# --- the producer's order


def test_a_write_names_the_one_before_it_that_touches_the_same_range() -> None:
    client = knowing(halves())
    (first,) = sent(client.handle(0.0, Asked("o1", "z", rows("l", token=-5))), Write)
    (second,) = sent(client.handle(0.0, Asked("o2", "z", rows("r", token=5))), Write)
    third = sent(client.handle(0.0, Asked("o3", "z", two_rows("l", "r"))), Write)
    assert [(w.sequence, w.after, w.floor) for w in (first, second, *third)] == [
        (1, 0, 1),
        (2, 0, 1),
        (3, 1, 1),
        (3, 2, 1),
    ]
    answer(client, Written(first.id, 7))
    (fourth,) = sent(client.handle(0.0, Asked("o4", "z", rows("l", token=-5))), Write)
    assert (fourth.sequence, fourth.after, fourth.floor) == (4, 3, 2)


def test_what_waits_for_a_sequence_goes_as_soon_as_that_one_is_written() -> None:
    client = knowing()
    (first,) = sent(client.handle(0.0, Asked("o1", "z", rows("k"))), Write)
    (second,) = sent(client.handle(0.0, Asked("o2", "z", rows("k"))), Write)
    (third,) = sent(client.handle(0.0, Asked("o3", "z", rows("k"))), Write)
    assert (second.after, third.after) == (1, 2)
    answer(client, Wait(second.id, "1 comes first", second.after), 0.1)
    answer(client, Wait(third.id, "2 comes first", third.after), 0.1)
    effects = answer(client, Written(first.id, 7), 0.11)
    assert outcome(effects) == ("done", 7)
    again = sent(effects, Write)
    assert [(w.sequence, w.after, w.floor) for w in again] == [(2, 0, 2), (3, 2, 2)]


def test_what_waits_goes_right_behind_what_it_waits_for() -> None:
    """One part that came too early must not make all that follow it come too early, for ever."""
    client = knowing()
    (first,) = sent(client.handle(0.0, Asked("o1", "z", rows("k"))), Write)
    answer(client, Wait(first.id, "its owner is not open yet"), 0.1)
    for number in (2, 3, 4):
        held = client.handle(0.101, Asked(f"o{number}", "z", rows("k")))
        assert sent(held, Write) == []  # the first is not under way: these would be sent back
    reading = client.handle(0.101, Asked("r", "z", keys=("k",), token=0))
    assert len(sent(reading, Read)) == 1
    again = sent(client.handle(0.11, Ticked()), Write)
    assert [(w.sequence, w.after) for w in again] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert sent(client.handle(0.12, Ticked()), Write) == []
    for write in again:
        answer(client, Written(write.id, 7), 0.2)
    assert set(client.operations) == {"r"}


def test_what_is_given_up_does_not_go_with_what_it_waited_for() -> None:
    client = knowing()
    (first,) = sent(client.handle(0.0, Asked("o1", "z", rows("k"))), Write)
    answer(client, Wait(first.id, "not open yet"), 0.1)
    client.handle(0.1, Asked("o2", "z", rows("k")))
    client.handle(0.1, Asked("o3", "z", rows("k")))
    client._give_up(0.1, client._groups["o2"], "no")
    again = sent(client.handle(0.2, Ticked()), Write)
    assert [(w.sequence, w.after) for w in again] == [(1, 0), (3, 1)]


def test_writes_split_by_different_layouts_keep_their_order_where_they_meet() -> None:
    """The first write waits at its owner, by the layout of then; others follow by a newer one."""
    client = knowing()
    (left,) = sent(client.handle(0.0, Asked("o1", "z", rows("l", token=-5))), Write)
    again = client.handle(0.1, TopologyRead(halves(), 60))
    assert sent(again, Write) == []
    (same,) = sent(client.handle(0.1, Asked("o2", "z", rows("l", token=-5))), Write)
    (apart,) = sent(client.handle(0.1, Asked("o3", "z", rows("r", token=5))), Write)
    assert (same.after, apart.after) == (1, 0)
    whole = replace(WHOLE_TOPOLOGY, generation=80, layouts={"z": replace(LAYOUT, version=3)})
    client.handle(0.2, TopologyRead(whole, 80))
    (wide,) = sent(client.handle(0.2, Asked("o4", "z", rows("m", token=7))), Write)
    assert wide.after == 3
    answer(client, Written(left.id, 7))


def test_a_range_beside_another_has_nothing_of_it() -> None:
    client = knowing(halves())
    client.handle(0.0, Asked("o1", "z", rows("r", token=5)))
    thirds = replace(LAYOUT, version=3, starts=(TOKEN_MIN, -9, 0), partitions=("p", "s", "q"))
    partitions = {**halves().partitions, "s": replace(stable(), id="s")}
    newer = replace(halves(), generation=80, layouts={"z": thirds}, partitions=partitions)
    client.handle(0.1, TopologyRead(newer, 80))
    (write,) = sent(client.handle(0.1, Asked("o2", "z", rows("s", token=-5))), Write)
    assert (write.partition, write.after) == ("s", 0)
    client.handle(0.1, Asked("o3", "z", rows("p", token=-10)))


def test_writes_of_another_zone_come_in_an_order_of_their_own() -> None:
    other = replace(LAYOUT, zone="y", partitions=("y0",))
    partitions = {**WHOLE_TOPOLOGY.partitions, "y0": replace(stable(), id="y0", zone="y")}
    topology = replace(WHOLE_TOPOLOGY, layouts={"z": LAYOUT, "y": other}, partitions=partitions)
    client = knowing(topology)
    client.handle(0.0, Asked("o1", "z", rows("k")))
    (write,) = sent(client.handle(0.0, Asked("o2", "y", rows("k"))), Write)
    assert (write.sequence, write.after) == (2, 0)
    split = replace(other, version=2, starts=(TOKEN_MIN, 0), partitions=("y1", "y0"))
    newer = replace(topology, generation=60, layouts={"z": LAYOUT, "y": split})
    client.handle(0.1, TopologyRead(newer, 60))
    (write,) = sent(client.handle(0.1, Asked("o3", "y", rows("k"))), Write)
    assert (write.sequence, write.after) == (3, 2)


@given(st.data())
def test_each_write_names_the_last_one_before_it_that_is_not_acknowledged(
    data: st.DataObject,
) -> None:
    """Whatever came in between: other partitions, another layout, answers in any order."""
    client = knowing(halves())
    waiting: list[Write] = []
    version = 2
    for number in range(1, data.draw(st.integers(1, 25)) + 1):
        batch = tuple(data.draw(st.lists(st.sampled_from((-9, -5, 5, 9)), min_size=1, max_size=3)))
        asked = Asked(
            f"o{number}", "z", SimulatedRows(tuple(SimulatedRow("k", t, 1) for t in batch))
        )
        for write in sent(client.handle(0.0, asked), Write):
            missing = {w.sequence for w in waiting if w.sequence < number}
            assert isinstance(write.rows, SimulatedRows)
            held = {w.sequence for w in waiting for row in w.rows.rows  # type: ignore[attr-defined]
                    if write.range.holds(row.token)}  # fmt: skip
            assert write.after == max((s for s in held if s < number), default=0)
            assert write.floor == min(missing, default=number)
        waiting = [w for w in waiting if w.sequence < number]
        waiting += [part for part in _under_way(client, number) if part not in waiting]
        for _ in range(data.draw(st.integers(0, min(3, len(waiting))))):
            write = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            answer(client, Written(write.id, 7))
        if version < 5 and data.draw(st.integers(0, 9)) == 0:
            version += 1
            cut = data.draw(st.sampled_from((-7, 0, 7)))
            layout = replace(halves().layouts["z"], version=version, starts=(TOKEN_MIN, cut))
            newer = replace(halves(), generation=100 + version, layouts={"z": layout})
            client.handle(0.0, TopologyRead(newer, 100 + version))
    while waiting:
        answer(client, Written(waiting.pop().id, 7))
    assert client.operations == {}
    assert client._order._first is client._order._last is None
    assert client._order._lanes._lanes == {}


def _under_way(client: Client, number: int) -> list[Write]:
    """What a client has sent of an operation, as it would send it again."""
    group = client._groups[f"o{number}"]
    return [
        Write(p.id, p.partition or "", p.version, 3, "x", number, 0, 0, p.range, p.rows)
        for p in group.parts
        if p.id and p.rows is not None
    ]


def test_what_waits_for_a_write_that_is_given_up_goes_too() -> None:
    client = knowing()
    client.handle(0.0, Asked("o1", "z", rows("k")))
    (second,) = sent(client.handle(0.0, Asked("o2", "z", rows("k"))), Write)
    (third,) = sent(client.handle(0.0, Asked("o3", "z", rows("k"))), Write)
    answer(client, Wait(second.id, "1 comes first", 1), 0.1)
    answer(client, Wait(third.id, "1 comes first", 1), 0.1)
    answer(client, Wait("o9.1", "99 comes first", 99), 0.1)
    (again, _) = sent(client.handle(0.106, Ticked()), Write)
    effects = answer(client, Refuse("o1.1", "no"), 0.107)
    assert outcome(effects) == ("failed", "no")
    assert sent(effects, Write) == []
    answer(client, Wait(again.id, "2 comes first", 99), 0.108)
    assert len(sent(client.handle(0.2, Ticked()), Write)) == 1


def test_writes_may_end_in_any_order() -> None:
    client = knowing()
    for number in range(1, 6):
        client.handle(0.0, Asked(f"o{number}", "z", rows("k")))
    for number, floor in ((2, 1), (5, 1), (1, 3), (3, 4)):
        answer(client, Written(f"o{number}.1", 7))
        asked = Asked(f"p{number}", "z", rows("k"))
        (write,) = sent(client.handle(0.0, asked), Write)
        assert write.floor == floor
        assert outcome(answer(client, Written(f"p{number}.1", 7))) == ("done", 7)
    assert list(client.operations) == ["o4"]


def test_a_read_that_ends_wakes_nobody() -> None:
    client = knowing()
    client.handle(0.0, ASKED)
    answer(client, Wait("o.1", "later"), 0.1)
    client.handle(0.1, Asked("r", "z", keys=("k",)))
    effects = answer(client, Found("r.1", ()), 0.11)
    assert outcome(effects) == ("done", ())
    assert sent(effects, Write) == []


def test_reads_take_no_sequence() -> None:
    client = knowing()
    client.handle(0.0, Asked("r", "z", keys=("k",)))
    (write,) = sent(client.handle(0.0, ASKED), Write)
    assert (write.sequence, write.floor) == (1, 1)
