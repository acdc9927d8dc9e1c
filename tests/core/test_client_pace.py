"""How much does a client send, how often, and which answers count?"""

import pytest
from msgspec.structs import replace

from limosa.core.client import Asked, Client, ClientSettings, Finished
from limosa.core.client.gathering import PART_BYTES_AIM
from limosa.core.client.windows import (
    GROWTH_BYTES,
    LATENCY_SECONDS_AIM,
    PART_BYTES,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    Window,
)
from limosa.core.effects import Effect, ReadTopology, Send
from limosa.core.events import Disconnected, Received, Ticked, TopologyRead
from limosa.core.messages import (
    Answer,
    Found,
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

WHOLE = cluster(stable()).topology
LEFT, RIGHT = TokenRange(TOKEN_MIN, 0), TokenRange(0, TOKEN_END)
ONE_PART = PART_BYTES + 200
"""A window with room for one part of one row, and not for two."""


def halves() -> Topology:
    """Two partitions of one owner: `p` for the tokens below 0, and `q` for the rest."""
    agreed = cluster(replace(stable(), range=LEFT))
    more = (
        Put(replace(stable(), id="q", range=RIGHT)),
        Put(Layout("z", 2, (TOKEN_MIN, 0), ("p", "q"))),
    )
    return apply(agreed, more, 60).topology


def knowing(topology: Topology = WHOLE, **settings: float) -> Client:
    client = Client("x", ClientSettings(**settings))  # type: ignore[arg-type]
    client.handle(0.0, TopologyRead(topology, topology.generation))
    return client


def ask(client: Client, id: str, now: float = 0.0, **what: object) -> list[Effect]:
    asked = Asked(id, "z", **({"rows": rows("k")} | what))  # type: ignore[arg-type]
    return client.handle(now, asked)


def answer(client: Client, message: Answer, now: float = 0.1) -> list[Effect]:
    return client.handle(now, Received("a", message))


def outcomes(effects: list[Effect]) -> dict[str, str]:
    return {finished.id: finished.outcome for finished in done(effects, Finished)}


def ids(effects: list[Effect]) -> list[str]:
    return [write.id for write in sent(effects, Write)]


def pair(key: str) -> SimulatedRows:
    return SimulatedRows((SimulatedRow(key, -5, key), SimulatedRow(key + "'", 5, key)))


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows stay as large as they are."""
    monkeypatch.setattr("limosa.core.client.windows.GROWTH_BYTES", 0)


# --- late answers


def test_the_answer_to_an_earlier_attempt_counts_however_late_it_is() -> None:
    """S127: the network takes five times as long as an attempt may take. Each write is sent three
    times at most, and ends with the first answer that arrives, which is one to its first attempt.
    Later answers change nothing."""
    client = knowing(gather_parts=100)
    attempts: dict[str, list[tuple[float, str]]] = {}
    ended: dict[str, tuple[float, str]] = {}
    for tick in range(1, 700):
        now = tick / 100
        if tick <= 20:
            for write in sent(ask(client, f"o{tick}", now), Write):
                attempts[f"o{tick}"] = [(now, write.id)]
        effects = client.handle(now, Ticked())
        for tried in list(attempts.values()):
            for at, id in tried:
                if abs(at + 5.0 - now) < 0.001:
                    effects += answer(client, Written(id, 7), now)
        for write in sent(effects, Write):
            attempts[write.id.split(".")[0]].append((now, write.id))
        for finished in done(effects, Finished):
            ended[finished.id] = (now, finished.outcome)
    assert len(ended) == 20
    for id, (at, outcome) in ended.items():
        assert outcome == "done"
        assert at == pytest.approx(attempts[id][0][0] + 5.0)
        assert 1 < len(attempts[id]) <= 3
    assert client.operations == {}


def test_a_read_takes_the_answer_to_an_earlier_attempt_too() -> None:
    """S127."""
    client = knowing()
    client.handle(0.0, Asked("r", "z", keys=("k",)))
    (again,) = sent(client.handle(1.0, Ticked()), Read)
    assert again.id == "r.2"
    assert outcomes(answer(client, Found("r.1", ((3, "v"),)), 1.5)) == {"r": "done"}
    assert answer(client, Found("r.2", ()), 1.6) == []


def test_a_late_comparison_counts_too() -> None:
    """S127: the owner compared once, and gives all attempts the same answer."""
    client = knowing()
    ask(client, "o", expected=3)
    assert ids(client.handle(1.0, Ticked())) == ["o.2"]
    assert outcomes(answer(client, Mismatched("o.1", 9), 1.5)) == {"o": "mismatch"}


@pytest.mark.parametrize(
    ("late", "outcome"),
    [
        (Wait("o.1", "later"), "failed"),
        (Redirect("o.1", "b", 1, 1), "failed"),
        (Refuse("o.1", "no"), "failed"),
        (Redirect("o.1", "b", 1, 1, definite=False), "unknown"),
        (None, "unknown"),
    ],
    ids=["wait", "redirect", "refusal", "redirect of a former owner", "no answer"],
)
def test_an_earlier_attempt_that_was_turned_away_leaves_the_newest_alone(
    late: Answer | None, outcome: str
) -> None:
    """S127: but it says whether the earlier attempt can still take effect."""
    client = knowing()
    ask(client, "o")
    assert ids(client.handle(1.0, Ticked())) == ["o.2"]
    if late is not None:
        assert answer(client, late, 1.1) == []
    assert client.handle(1.5, Ticked()) == []
    assert outcomes(answer(client, Refuse("o.2", "no"), 1.6)) == {"o": outcome}


def test_a_late_answer_for_rows_that_were_split_again_counts_for_all_pieces() -> None:
    """S127: the owner that answers had all of the rows, by the layout of then."""
    client = knowing()
    ask(client, "o", rows=pair("k"))
    ask(client, "o2", rows=pair("k"))
    client.handle(1.0, TopologyRead(halves(), 60))
    assert ids(client.handle(1.1, Ticked())) == ["o.2", "o.3", "o2.2", "o2.3"]
    assert outcomes(answer(client, Written("o.2", 7), 1.2)) == {}
    assert outcomes(answer(client, Written("o.1", 7), 1.3)) == {"o": "done"}
    assert outcomes(answer(client, Refuse("o2.2", "no"), 1.4)) == {"o2": "unknown"}


def test_a_link_that_broke_ends_earlier_attempts_as_well() -> None:
    client = knowing()
    ask(client, "o")
    assert ids(client.handle(1.0, Ticked())) == ["o.2"]
    moved = apply(cluster(stable()), (Put(stable(owner=OLD[1])),), 70).topology
    assert ids(client.handle(1.1, TopologyRead(moved, 70))) == ["o.3"]
    assert done(client.handle(1.2, Disconnected("a")), Send) == []
    assert answer(client, Written("o.1", 7), 1.3) == []
    assert outcomes(answer(client, Refuse("o.3", "no"), 1.4)) == {"o": "unknown"}


# --- timers


def test_the_time_of_an_attempt_doubles() -> None:
    client = knowing(operation_seconds=100.0)
    ask(client, "o")
    times = [t / 10 for t in range(1, 400) if ids(client.handle(t / 10, Ticked()))]
    assert times == [1.0, 3.0, 7.0, 15.0, 31.0]
    reading = knowing(operation_seconds=100.0)
    reading.handle(0.0, Asked("r", "z", keys=("k",)))
    times = [t / 10 for t in range(1, 100) if sent(reading.handle(t / 10, Ticked()), Read)]
    assert times == [1.0, 3.0, 7.0]


def test_a_node_that_always_takes_long_is_given_more_time() -> None:
    """Twice as long as its answers take, but no more than half of an operation's time."""
    for latency, wanted in ((0.2, 1.0), (0.9, 1.8), (2.9, 3.0)):
        client = knowing()
        for number in range(50):
            ask(client, f"o{number}", float(number))
            answer(client, Written(f"o{number}.1", 7), number + latency)
        ask(client, "last", 100.0)
        assert ids(client.handle(100.0 + wanted - 0.01, Ticked())) == []
        assert ids(client.handle(100.0 + wanted + 0.01, Ticked())) == ["last.2"]


# --- windows


@pytest.mark.usefixtures("steady")
def test_what_a_window_has_no_room_for_waits_in_order_and_unsent() -> None:
    client = knowing(window_bytes=2 * ONE_PART)
    assert [ids(ask(client, f"o{n}")) for n in range(1, 6)] == [["o1.1"], ["o2.1"], [], [], []]
    assert ids(client.handle(0.1, Ticked())) == []
    assert sent(client.handle(0.1, Asked("r", "z", keys=("k",))), Read)  # reads do not wait
    effects = answer(client, Written("o2.1", 7), 0.2)
    assert (outcomes(effects), ids(effects)) == ({"o2": "done"}, ["o3.1"])
    effects = answer(client, Written("o1.1", 7), 0.2)
    assert (outcomes(effects), ids(effects)) == ({"o1": "done"}, ["o4.1"])
    (third,) = sent(answer(client, Written("o3.1", 7), 0.3), Write)
    assert (third.id, third.sequence, third.after, third.floor) == ("o5.1", 5, 4, 4)


@pytest.mark.usefixtures("steady")
def test_a_part_that_is_larger_than_the_window_goes_alone() -> None:
    client = knowing(window_bytes=1)
    assert ids(ask(client, "o1")) == ["o1.1"]
    assert ids(ask(client, "o2")) == []
    assert ids(answer(client, Written("o1.1", 7))) == ["o2.1"]


@pytest.mark.usefixtures("steady")
def test_a_retry_goes_before_writes_that_were_never_sent() -> None:
    client = knowing(halves(), window_bytes=ONE_PART)
    left, right = rows("l", token=-5), rows("r", token=5)
    assert ids(ask(client, "o1", rows=left)) == ["o1.1"]
    for number in (2, 3):
        assert ids(ask(client, f"o{number}", rows=right)) == []
    assert ids(answer(client, Wait("o1.1", "later"), 0.1)) == ["o2.1"]
    assert ids(client.handle(0.2, Ticked())) == []  # it waits for room, before o3
    assert ids(answer(client, Written("o2.1", 7), 0.3)) == ["o1.2"]
    assert ids(answer(client, Written("o1.2", 7), 0.3)) == ["o3.1"]


@pytest.mark.usefixtures("steady")
def test_nothing_in_the_queue_overtakes_what_it_has_to_follow() -> None:
    client = knowing(window_bytes=ONE_PART)
    assert ids(ask(client, "o1")) == ["o1.1"]
    for number in (2, 3):
        assert ids(ask(client, f"o{number}")) == []
    effects = answer(client, Wait("o1.1", "not open yet"), 0.1)
    assert ids(effects) == []  # there is room, but the owner would send both back
    assert ids(client.handle(0.2, Ticked())) == ["o1.2"]
    assert ids(answer(client, Written("o1.2", 7), 0.3)) == ["o2.1"]
    assert ids(answer(client, Written("o2.1", 7), 0.3)) == ["o3.1"]


@pytest.mark.usefixtures("steady")
def test_what_waits_for_a_node_goes_to_the_next_owner_instead() -> None:
    client = knowing(window_bytes=ONE_PART)
    ask(client, "o1")
    ask(client, "o2")
    newer = apply(cluster(stable()), (Put(stable(in_sync=OLD[:2])),), 65).topology
    assert client.handle(0.1, TopologyRead(newer, 65)) == []  # the same owner: it goes on waiting
    moved = apply(cluster(stable()), (Put(stable(owner=OLD[1])),), 70).topology
    effects = client.handle(0.2, TopologyRead(moved, 70))
    assert [effect.to for effect in done(effects, Send)] == ["b"]
    assert ids(effects) == ["o1.2"]
    assert ids(answer(client, Written("o1.2", 7), 0.3)) == ["o2.1"]
    assert outcomes(answer(client, Written("o2.1", 7), 0.4)) == {"o2": "done"}
    assert client._queued == 0


@pytest.mark.usefixtures("steady")
def test_a_partition_that_lost_its_owner_does_not_hold_up_the_queue() -> None:
    client = knowing(halves(), window_bytes=ONE_PART)
    ask(client, "o1", rows=rows("r", token=5))
    ask(client, "o2", rows=rows("l", token=-5))
    ask(client, "o3", rows=rows("r", token=5))
    partitions = {**halves().partitions, "p": replace(stable(owner=None), range=LEFT)}
    orphaned = replace(halves(), generation=70, partitions=partitions)
    assert done(client.handle(0.1, TopologyRead(orphaned, 70)), ReadTopology)
    assert ids(answer(client, Written("o1.1", 7), 0.2)) == ["o3.1"]


def test_an_application_should_wait_while_much_is_in_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("limosa.core.client.brain.QUEUED_PARTS_MAX", 2)
    client = knowing(window_bytes=ONE_PART)
    full = []
    for number in range(4):
        ask(client, f"o{number}")
        full.append(client.is_full)
    assert full == [False, False, True, True]
    answer(client, Written("o0.1", 7))
    answer(client, Written("o1.1", 7))
    assert not client.is_full


def test_a_window_grows_while_answers_are_quick_and_something_waits() -> None:
    window = Window(1 << 20)
    window.answered(1.0, 0.01, 1 << 20)
    assert window.limit == 1 << 20  # nothing waits: nobody knows whether the node could do more
    client = knowing(window_bytes=ONE_PART)
    ask(client, "o1")
    ask(client, "o2")
    window = client._windows["a"]
    before = window.limit
    answer(client, Written("o1.1", 7), 0.01)
    assert window.limit == pytest.approx(before + PART_BYTES + 100)
    assert [ids(ask(client, f"o{number}")) for number in (3, 4)] == [["o3.1"], []]
    window.limit = 2.0 * GROWTH_BYTES
    window.answered(1.0, 0.01, GROWTH_BYTES)
    assert window.limit == 2.5 * GROWTH_BYTES
    window.answered(1.0, 0.01, 100 * WINDOW_BYTES_MAX)
    assert window.limit == WINDOW_BYTES_MAX


def test_a_window_shrinks_when_answers_take_longer_than_they_need() -> None:
    window = Window(1 << 20)
    now = 0.0
    while window.limit > WINDOW_BYTES_MIN:
        now += 0.1
        window.answered(now, 0.05 if now < 1 else 0.6, PART_BYTES)
        assert now < 100
    assert window.limit == WINDOW_BYTES_MIN


def test_a_node_whose_best_is_slow_keeps_its_window() -> None:
    """A slow disk is no queue: less under way would not make it quicker."""
    window = Window(1 << 20)
    for number in range(1000):
        window.answered(float(number), 0.8, PART_BYTES)
    assert window.limit == 1 << 20


def test_a_window_is_halved_once_for_all_attempts_that_time_out_together() -> None:
    window = Window(1 << 20)
    for _ in range(100):
        window.timed_out(10.0)
    assert window.limit == 1 << 19
    window.timed_out(10.0 + LATENCY_SECONDS_AIM)
    assert window.limit == 1 << 18
    client = knowing()
    ask(client, "o")
    before = client._windows["a"].limit
    client.handle(1.0, Ticked())
    assert client._windows["a"].limit == before / 2


# --- deadlines


@pytest.mark.usefixtures("steady")
def test_waiting_in_the_queue_is_no_timeout_while_the_node_accepts_others() -> None:
    """Each write takes the node four seconds, and they go one by one: all are written."""
    client = knowing(window_bytes=ONE_PART, attempt_seconds=10.0)
    under_way = ids(ask(client, "o1"))
    for number in range(2, 7):
        assert ids(ask(client, f"o{number}")) == []
    ended: dict[str, str] = {}
    for second in range(1, 30):
        effects = client.handle(float(second), Ticked())
        if second % 4 == 0 and under_way:
            effects += answer(client, Written(under_way.pop(), 7), float(second))
            assert len(ids(effects)) <= 1
        under_way += ids(effects)
        ended |= outcomes(effects)
    assert ended == {f"o{n}": "done" for n in range(1, 7)}


@pytest.mark.usefixtures("steady")
def test_a_write_that_was_never_sent_fails_definitely() -> None:
    """The node accepts nothing: what is under way has an unknown outcome, what waits has failed."""
    client = knowing(window_bytes=ONE_PART)
    ask(client, "o1")
    ask(client, "o2")
    ask(client, "o3")
    assert ids(answer(client, Written("o1.1", 7), 1.0)) == ["o2.1"]
    ended: dict[str, tuple[float, str]] = {}
    for tenth in range(11, 150):
        for id, outcome in outcomes(client.handle(tenth / 10, Ticked())).items():
            ended[id] = (tenth / 10, outcome)
    # Six seconds after it was sent, and after the node last accepted something.
    assert ended == {"o2": (7.0, "unknown"), "o3": (7.0, "failed")}


@pytest.mark.usefixtures("steady")
def test_a_retry_in_the_queue_does_not_prolong_a_write() -> None:
    client = knowing(halves(), window_bytes=ONE_PART, attempt_seconds=10.0)
    ask(client, "o1", rows=rows("l", token=-5))
    for number in (2, 3):
        ask(client, f"o{number}", rows=rows("r", token=5))
    assert ids(answer(client, Wait("o1.1", "later"), 5.8)) == ["o2.1"]
    assert ids(answer(client, Written("o2.1", 7), 5.802)) == ["o3.1"]
    assert ids(client.handle(5.9, Ticked())) == []  # from now on, the retry waits for room
    assert outcomes(client.handle(6.0, Ticked())) == {"o1": "failed"}


# --- writes that are sent together


def gathering(topology: Topology = WHOLE, **settings: float) -> Client:
    """A client with two parts under way, so that further writes wait."""
    client = knowing(topology, gather_parts=2, **settings)
    assert ids(ask(client, "a", rows=rows("a", token=-5)))
    assert ids(ask(client, "b", rows=rows("b", token=-5)))
    return client


def keys_of(write: Write) -> list[object]:
    assert isinstance(write.rows, SimulatedRows)
    return [(row.key, row.value) for row in write.rows.rows]


def test_small_writes_that_wait_are_sent_as_one_and_each_has_its_outcome() -> None:
    client = gathering()
    for number in (1, 2, 3):
        assert ask(client, f"o{number}", rows=rows(f"k{number}")) == []
    effects = answer(client, Written("a.1", 7), 0.001)
    (write,) = sent(effects, Write)
    assert keys_of(write) == [(f"k{n}", f"value of k{n}") for n in (1, 2, 3)]
    assert (write.sequence, write.after) == (3, 2)
    ended = outcomes(answer(client, Written(write.id, 9), 0.1))
    assert ended == {f"o{number}": "done" for number in (1, 2, 3)}
    answer(client, Written("b.1", 8))
    assert client.operations == {}
    assert not client._order


def test_of_rows_with_the_same_key_the_last_one_is_written() -> None:
    client = gathering()
    for value in (1, 2):
        ask(client, f"o{value}", rows=SimulatedRows((SimulatedRow("k", 5, value),)))
    (write,) = sent(client.handle(0.02, Ticked()), Write)
    assert keys_of(write) == [("k", 2)]


def test_small_writes_wait_for_a_moment_only() -> None:
    client = gathering()
    ask(client, "o1")
    assert ids(client.handle(0.009, Ticked())) == []
    assert ids(client.handle(0.011, Ticked())) == ["o1.1"]
    full = gathering(window_bytes=2 * PART_BYTES + 400)
    for number in (1, 2):  # two are under way, o1 waits for room: others are gathered for longer
        ask(full, f"o{number}")
        full.handle(0.011, Ticked())
    ask(full, "o3", 0.02)
    assert set(full._groups) == {"a", "b", "o1"}
    full.handle(0.95, Ticked())
    assert set(full._groups) == {"a", "b", "o1"}
    full.handle(0.011 + 1.0, Ticked())
    assert set(full._groups) == {"a", "b", "o1", "o2"}


def test_each_of_them_ends_with_its_own_partitions() -> None:
    client = gathering(halves())
    ask(client, "o1", rows=rows("l", token=-5))
    ask(client, "o2", rows=rows("r", token=5))
    ask(client, "o3", rows=pair("k"))
    left, right = sent(client.handle(0.02, Ticked()), Write)
    assert (left.partition, right.partition) == ("p", "q")
    assert outcomes(answer(client, Written(right.id, 7))) == {"o2": "done"}
    assert outcomes(answer(client, Written(left.id, 7))) == {"o1": "done", "o3": "done"}


def test_a_refusal_ends_those_with_rows_in_that_part() -> None:
    """The others go on. Rows that others of the group send along may still be written."""
    client = gathering(halves(), window_bytes=10 * PART_BYTES)
    ask(client, "o1", rows=rows("l", token=-5))
    ask(client, "o2", rows=rows("r", token=5))
    ask(client, "o3", rows=pair("k"))
    left, right = sent(client.handle(0.02, Ticked()), Write)
    answer(client, Wait(right.id, "later"), 0.03)
    refused = answer(client, Refuse(left.id, "no"), 0.031)
    assert outcomes(refused) == {"o1": "failed", "o3": "unknown"}
    (again,) = sent(client.handle(0.06, Ticked()), Write)
    assert again.partition == "q"
    assert outcomes(answer(client, Written(again.id, 7), 0.1)) == {"o2": "done"}
    assert set(client.operations) == {"a", "b"}


def test_a_part_that_nobody_waits_for_any_more_is_not_sent() -> None:
    """o1 fails definitely, since the part that it shares with nobody was turned away before."""
    client = gathering(halves())
    ask(client, "o1", rows=pair("k"))
    ask(client, "o2", rows=rows("l", token=-5))
    left, right = sent(client.handle(0.02, Ticked()), Write)
    answer(client, Wait(right.id, "later"), 0.03)
    refused = answer(client, Refuse(left.id, "no"), 0.031)
    assert outcomes(refused) == {"o1": "failed", "o2": "failed"}
    assert ids(client.handle(0.2, Ticked())) == []


def test_what_followed_a_refused_part_goes_on() -> None:
    client = gathering(halves())
    ask(client, "o1", rows=rows("l", token=-5))
    ask(client, "o2", rows=rows("r", token=5))
    left, right = sent(client.handle(0.02, Ticked()), Write)
    ask(client, "o3", 0.021, rows=rows("l", token=-5))
    (third,) = sent(client.handle(0.05, Ticked()), Write)
    answer(client, Wait(left.id, "later"), 0.051)
    answer(client, Wait(third.id, "3 comes first", 3), 0.051)
    again = sent(client.handle(0.06, Ticked()), Write)
    assert [write.sequence for write in again] == [3, 4]
    answer(client, Wait(again[1].id, "3 comes first", 3), 0.061)
    effects = answer(client, Refuse(again[0].id, "no"), 0.062)
    assert outcomes(effects) == {"o1": "failed"}
    assert [(write.sequence, write.after) for write in sent(effects, Write)] == [(4, 2)]
    assert outcomes(answer(client, Written(right.id, 7))) == {"o2": "done"}


def test_together_they_time_out_and_each_says_what_is_known_of_it() -> None:
    client = gathering(halves())
    ask(client, "o1", rows=rows("l", token=-5))
    ask(client, "o2", rows=rows("r", token=5))
    ask(client, "o3", rows=rows("r", token=5))
    left, right = sent(client.handle(0.02, Ticked()), Write)
    answer(client, Written(left.id, 7), 5.9)
    answer(client, Wait(right.id, "later"), 5.99)
    ended = outcomes(client.handle(6.02, Ticked()))
    assert ended == {"a": "unknown", "b": "unknown", "o2": "failed", "o3": "failed"}


def test_many_bytes_are_not_gathered_and_a_comparison_goes_alone() -> None:
    client = gathering()
    large = SimulatedRows(
        (SimulatedRow("k", 0, "v"),) * (PART_BYTES_AIM // 100 + 1)
    )  # more than a partition should get
    ask(client, "o1")
    effects = ask(client, "o2", rows=large)
    assert [(w.id, w.after) for w in sent(effects, Write)] == [("o1.1", 2), ("o2.1", 3)]
    ask(client, "o3")
    effects = ask(client, "o4", expected=7)
    assert [(w.id, w.after) for w in sent(effects, Write)] == [("o3.1", 4), ("o4.1", 5)]
    assert outcomes(ask(client, "o5", rows=SimulatedRows(()))) == {"o5": "done"}


def test_if_one_partition_would_get_too_much_fewer_writes_are_sent_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_rows = PART_BYTES + 2 * SimulatedRows((SimulatedRow("k", 0, "v"),)).bytes
    monkeypatch.setattr("limosa.core.client.brain.GATHERED_PART_BYTES_MAX", two_rows)
    client = gathering(halves(), window_bytes=100 * PART_BYTES)
    for number, token in enumerate((-5, 5, 5, 5, 5)):
        ask(client, f"o{number}", rows=rows(f"k{number}", token=token))
    writes = sent(client.handle(0.02, Ticked()), Write)
    assert [(write.partition, len(keys_of(write))) for write in writes] == [
        ("p", 1),
        ("q", 1),
        ("q", 1),
        ("q", 2),
    ]
    ended: dict[str, str] = {}
    for write in writes:
        ended |= outcomes(answer(client, Written(write.id, 9)))
    assert ended == {f"o{number}": "done" for number in range(5)}


def test_rows_that_do_not_join_are_sent_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = gathering()
    ask(client, "o1")
    monkeypatch.setattr(SimulatedRows, "joins", lambda self, other: False)
    assert ids(ask(client, "o2")) == ["o1.1"]
    assert ids(client.handle(0.02, Ticked())) == ["o2.1"]


def test_a_new_topology_sends_what_was_gathered() -> None:
    client = gathering()
    ask(client, "o1", rows=pair("k"))
    ask(client, "o2", rows=rows("r", token=5))
    effects = client.handle(0.001, TopologyRead(halves(), 60))
    waiting = [(w.partition, len(w.rows)) for w in sent(effects, Write) if w.sequence == 3]
    assert waiting == [("p", 1), ("q", 2)]


def test_gathered_writes_of_a_table_that_was_dropped_wait_for_news_of_it() -> None:
    """As a write does that is asked after the table was dropped."""
    client = gathering()
    ask(client, "o1")
    ask(client, "o2", rows=rows("l"))
    gone = apply(cluster(stable()), (Remove(layout_key("z")),), 70).topology
    ended = outcomes(client.handle(0.001, TopologyRead(gone, 70)))
    assert ended == {"a": "unknown", "b": "unknown"}
    whole = replace(WHOLE, generation=80)
    (write,) = sent(client.handle(0.2, TopologyRead(whole, 80)), Write)
    assert outcomes(answer(client, Written(write.id, 7), 0.3)) == {"o1": "done", "o2": "done"}


def test_gathered_writes_whose_layout_changes_end_with_all_pieces() -> None:
    client = gathering()
    ask(client, "o1", rows=rows("l", token=-5))
    ask(client, "o2", rows=pair("k"))
    (together,) = sent(client.handle(0.02, Ticked()), Write)
    for id in ("a.1", "b.1"):
        answer(client, Written(id, 7), 0.03)
    answer(client, Wait(together.id, "later"), 0.03)
    left, right = sent(client.handle(0.031, TopologyRead(halves(), 60)), Write)
    assert outcomes(answer(client, Written(left.id, 7), 0.04)) == {}
    assert outcomes(answer(client, Written(right.id, 7), 0.04)) == {"o1": "done", "o2": "done"}
