"""Does a slice arrive whatever gets lost, and does a load that can't arrive end, alone?"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import pytest
from msgspec.structs import replace

from limosa.core.messages import Chunk, Denied, End, Fetch, Fetched, Landed, Message
from limosa.errors import Refused
from limosa.pipeline import pipe
from limosa.pipeline.loads import CopyLoad, LoadResult, Permit
from limosa.pipeline.pipe import ATTEMPTS_MAX, Access, Pipe
from limosa.tabular.rows import Bundle
from tests.pipeline.nodes import (
    CLUSTER,
    Answer,
    ScriptedNode,
    dialer,
    slice_bundle,
    slice_rows,
    task,
)
from tests.pipeline.samples import load
from tests.storage.samples import birds

SLICES = 4
LIFETIME_SECONDS = 0.5


class Nodes:
    """n1 gives; n2 and n3 take."""

    def __init__(self) -> None:
        self.all = [ScriptedNode(name) for name in ("n1", "n2", "n3")]
        self.source, self.target, self.second = self.all

    def carry(self, *loads: CopyLoad, bytes_per_second: float = 0.0) -> list[LoadResult]:
        return Pipe(task(self.all, *loads, bytes_per_second=bytes_per_second), dialer()).carry()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    for node in made.all:
        node.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As always, but sooner."""
    monkeypatch.setattr(pipe, "SILENT_SECONDS", 0.6)
    monkeypatch.setattr(pipe, "PATIENCE_SECONDS", 0.4)
    monkeypatch.setattr(pipe, "BROKEN_SECONDS", 0.05)


def arrived(node: ScriptedNode, partition: str = "p", slices: int = SLICES) -> bool:
    """Every row, exactly once."""
    return {number: rows for (held, number), rows in node.landed.items() if held == partition} == {
        number: sorted(slice_rows(number)) for number in range(slices)
    }


def head(message: Fetch | Chunk | End) -> tuple[str, str, int]:
    return message.partition, message.session, message.slice


def first(kind: type[Message], count: int, answer: Callable[[Message], list[Message]]) -> Answer:
    """The first of these messages are answered so; later ones, and others, as nodes do."""
    seen = Counter[bool]()

    def say(message: Message) -> list[Message] | None:
        if isinstance(message, kind):
            seen[True] += 1
            if seen[True] <= count:
                return answer(message)
        return None

    return say


def denied(message: Message) -> list[Message]:
    assert isinstance(message, Fetch | Chunk | End)
    return [Denied(*head(message), "no open session")]


def lost(message: Message) -> list[Message]:
    return []


def cut(message: Message) -> list[Message]:
    raise Refused("the connection breaks")


# --- when nothing happens


def test_every_row_arrives_and_is_counted(nodes: Nodes) -> None:
    (carried,) = nodes.carry(load(slices=SLICES))
    assert arrived(nodes.target)
    assert (carried.partition, carried.session) == ("p", "s-p@1")
    assert (carried.slices, carried.rows, carried.failure) == (SLICES, 10 * SLICES, "")
    assert carried.bytes > 0
    assert carried.seconds > 0
    assert sorted(nodes.source.fetches()) == [("p", number) for number in range(SLICES)]


def test_a_piece_of_a_load_carries_its_slices_only(nodes: Nodes) -> None:
    whole = load(slices=SLICES)
    (carried,) = nodes.carry(msgspec.structs.replace(whole, first=1, last=3))
    assert carried.slices == 2
    assert set(nodes.target.landed) == {("p", 1), ("p", 2)}
    assert {end.slices for end in nodes.target.ends()} == {SLICES}


def test_two_pieces_of_a_load_are_counted_together(nodes: Nodes) -> None:
    whole = load(slices=SLICES)
    pieces = [msgspec.structs.replace(whole, first=n, last=n + 2) for n in (0, 2)]
    (carried,) = nodes.carry(*pieces)
    assert carried.slices == SLICES
    assert arrived(nodes.target)


def test_several_targets_get_everything_and_the_source_is_asked_once(nodes: Nodes) -> None:
    (carried,) = nodes.carry(load("p", "n2", "n3", slices=SLICES))
    assert carried.failure == ""
    assert arrived(nodes.target)
    assert arrived(nodes.second)
    assert len(nodes.source.fetches()) == SLICES


def test_a_node_can_be_source_and_target(nodes: Nodes) -> None:
    """F107: from one of its volumes to another."""
    (carried,) = nodes.carry(load("p", "n1", slices=SLICES))
    assert carried.failure == ""
    assert arrived(nodes.source)


def test_an_empty_partition_is_carried_too(nodes: Nodes) -> None:
    """Its target must hear the end of every slice, or the copy would never be complete."""
    nodes.source.rows = lambda number: Bundle()
    (carried,) = nodes.carry(load(slices=SLICES))
    assert (carried.slices, carried.rows, carried.failure) == (SLICES, 0, "")
    assert len(nodes.target.landed) == SLICES


def test_without_loads_nothing_is_carried(nodes: Nodes) -> None:
    assert nodes.carry() == []


def test_a_few_slices_are_under_way_at_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are meant to be, and no more: each is a few MiB of the source's memory."""
    enough = threading.Event()
    monkeypatch.setattr(pipe, "AT_ONCE", 3)
    most = [0]

    def hold(message: Message) -> list[Message] | None:
        landed = len(nodes.target.landed)
        most[0] = max(most[0], len(nodes.source.fetches()) - landed)
        if isinstance(message, Fetch) and len(nodes.source.fetches()) >= 3:
            enough.set()
        return None

    nodes.source.answer = hold
    nodes.carry(load(slices=12))
    assert enough.is_set()
    assert most[0] <= 3


def test_loads_take_turns(nodes: Nodes) -> None:
    """F93: a large one does not keep the others waiting."""
    nodes.carry(load("p", slices=12), load("q", slices=2))
    asked = [partition for partition, _ in nodes.source.fetches()]
    assert set(asked[:2]) == {"p", "q"}
    assert asked.index("q") < 4


def test_a_task_is_carried_from_its_bytes(nodes: Nodes) -> None:
    access = msgspec.msgpack.encode(Access(CLUSTER))
    wanted = msgspec.msgpack.encode(task(nodes.all, load(slices=SLICES)))
    for again in (False, True):
        done = pipe.run(access, wanted, "spark-1", again)
        (carried,) = msgspec.msgpack.decode(done, type=list[LoadResult])
        assert (carried.slices, carried.failure) == (SLICES, "")
    assert len(nodes.source.fetches()) == SLICES, "what has landed is not carried again"


def test_before_its_permit_ends_a_task_ends_and_another_one_goes_on(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long copy outlives its tokens: no slice fails, and none that has landed is copied again."""
    monkeypatch.setattr(pipe, "AT_ONCE", 1)
    monkeypatch.setattr(pipe, "EXPIRY_SECONDS", 0.0)
    begun = task(nodes.all, load(slices=SLICES))

    def slow(message: Message) -> None:
        if isinstance(message, Fetch) and message.slice == 1:
            time.sleep(LIFETIME_SECONDS)

    nodes.source.answer = slow
    dialer = Access(CLUSTER).dialer("spark-1")
    (some,) = Pipe(replace(begun, permit=Permit(None, LIFETIME_SECONDS)), dialer).carry()
    assert some.failure == ""
    assert 0 < some.slices < SLICES
    again = task(nodes.all, replace(load(slices=SLICES), again=True))
    (rest,) = Pipe(replace(again, permit=Permit(None, 60.0)), dialer).carry()
    assert (rest.slices, rest.failure) == (SLICES, "")
    assert len(nodes.source.fetches()) == SLICES


# --- when something is lost


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", [Fetch, Chunk, End])
def test_what_is_lost_on_the_way_is_asked_for_again(nodes: Nodes, kind: type[Message]) -> None:
    """F117, S22: and what arrives twice changes nothing."""
    node = nodes.source if kind is Fetch else nodes.target
    node.answer = first(kind, 2, lost)
    (carried,) = nodes.carry(load(slices=SLICES))
    assert (carried.slices, carried.failure) == (SLICES, "")
    assert arrived(nodes.target)


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_was_lost_is_given_again(nodes: Nodes) -> None:
    """The slice has landed, and whoever carries it does not know."""

    def landed_quietly(message: Message) -> list[Message]:
        nodes.target._serve(message)
        return []

    nodes.target.answer = first(End, 2, landed_quietly)
    (carried,) = nodes.carry(load(slices=SLICES))
    assert (carried.slices, carried.failure) == (SLICES, "")
    assert arrived(nodes.target)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", [Fetch, Chunk, End])
def test_a_connection_that_breaks_is_opened_again(nodes: Nodes, kind: type[Message]) -> None:
    node = nodes.source if kind is Fetch else nodes.target
    node.answer = first(kind, 2, cut)
    (carried,) = nodes.carry(load(slices=SLICES))
    assert (carried.slices, carried.failure) == (SLICES, "")
    assert arrived(nodes.target)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("silent", ["n1", "n2"])
def test_a_node_that_says_nothing_ends_its_loads_only(nodes: Nodes, silent: str) -> None:
    """Those of other nodes go on, and nobody waits for ever."""
    (node,) = [each for each in nodes.all if each.node == silent]
    node.answer = lost
    other = load("q", "n3" if silent == "n2" else "n2", source="n1" if silent == "n2" else "n3")
    bad, good = nodes.carry(load("p", "n2", slices=SLICES), other)
    assert bad.failure.endswith(f"was lost {ATTEMPTS_MAX} times")
    assert (good.slices, good.failure) == (4, "")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("address", ["", "grpc://127.0.0.1:1"])
def test_a_node_that_can_not_be_reached_ends_its_loads_only(nodes: Nodes, address: str) -> None:
    wanted = task(nodes.all, load("p", "gone"), load("q"))
    wanted.addresses["gone"] = address
    bad, good = Pipe(wanted, dialer()).carry()
    assert bad.failure.endswith(f"was lost {ATTEMPTS_MAX} times")
    assert (good.slices, good.failure) == (4, "")


def test_somebody_else_at_a_nodes_address_gets_nothing(nodes: Nodes, impatient: None) -> None:
    """The address is another node's by now."""
    wanted = task(nodes.all, load("p", "n2"))
    wanted.addresses["n2"] = nodes.second.address
    (carried,) = Pipe(wanted, dialer()).carry()
    assert carried.failure
    assert nodes.second.heard == []


# --- when it is denied


@pytest.mark.parametrize("kind", [Fetch, Chunk, End])
def test_what_is_denied_at_first_is_tried_again(nodes: Nodes, kind: type[Message]) -> None:
    """A node may learn of a stage a little later than the coordinator."""
    node = nodes.source if kind is Fetch else nodes.target
    node.answer = first(kind, 2 * ATTEMPTS_MAX * SLICES, denied)
    (carried,) = nodes.carry(load(slices=SLICES))
    assert (carried.slices, carried.failure) == (SLICES, "")
    assert arrived(nodes.target)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("denies", ["source", "target", "both"])
def test_what_is_denied_for_good_fails_and_the_others_go_on(nodes: Nodes, denies: str) -> None:
    """F118, S25: its session is closed; a late copy has no effect, and ends."""

    def deny(message: Message) -> list[Message] | None:
        assert isinstance(message, Fetch | Chunk | End)
        return denied(message) if message.partition == "p" else None

    for node, role in ((nodes.source, "source"), (nodes.target, "target")):
        if denies in (role, "both"):
            node.answer = deny
    began = time.monotonic()
    bad, good = nodes.carry(load("p", slices=SLICES), load("q", slices=SLICES))
    assert time.monotonic() - began < 10.0
    assert bad.failure == "no open session"
    assert bad.slices == 0
    assert (good.slices, good.failure) == (SLICES, "")
    assert arrived(nodes.target, "q")


@pytest.mark.usefixtures("impatient")
def test_a_node_that_is_both_and_denies_as_target_is_given_up(nodes: Nodes) -> None:
    """It gives the slice again and again: that is no progress."""
    nodes.source.answer = lambda message: None if isinstance(message, Fetch) else denied(message)
    (carried,) = nodes.carry(load("p", "n1", slices=SLICES))
    assert carried.failure == "no open session"


@pytest.mark.usefixtures("impatient")
def test_a_target_that_denies_and_then_says_nothing_is_given_up(nodes: Nodes) -> None:
    denies = first(End, 1, denied)

    def say(message: Message) -> list[Message]:
        said = denies(message)
        return list(said) if said is not None else []

    nodes.target.answer = say
    (carried,) = nodes.carry(load(slices=1))
    assert carried.failure.endswith(f"was lost {ATTEMPTS_MAX} times")


def test_rows_that_were_changed_on_the_way_do_not_land(nodes: Nodes, impatient: None) -> None:
    """The digest is taken of what came from the source."""

    def changed(message: Message) -> list[Message] | None:
        if isinstance(message, Chunk):
            other = msgspec.structs.replace(message, rows=Bundle([birds(("another", 1))]))
            return nodes.target._serve(other)
        return None

    nodes.target.answer = changed
    (carried,) = nodes.carry(load(slices=1))
    assert carried.failure == "rows are missing"
    assert nodes.target.landed == {}


# --- when some of it may have landed before


def test_what_landed_before_is_not_carried_again(nodes: Nodes) -> None:
    """Whoever carried it before is gone, and nobody knows how far it came."""
    for number in (0, 2):
        nodes.target.landed["p", number] = sorted(slice_rows(number))
    (carried,) = nodes.carry(load(slices=SLICES, again=True))
    assert sorted(nodes.source.fetches()) == [("p", 1), ("p", 3)]
    assert (carried.slices, carried.rows, carried.failure) == (SLICES, 20, "")
    assert arrived(nodes.target)
    asked = [end for end in nodes.target.ends() if not end.attempt]
    assert sorted(end.slice for end in asked) == list(range(SLICES))


def test_of_several_targets_only_those_that_lack_a_slice_get_it(nodes: Nodes) -> None:
    """And the source is asked for it once, however many of them lack it."""
    for number in range(SLICES):
        nodes.target.landed["p", number] = sorted(slice_rows(number))
    nodes.second.landed["p", 0] = sorted(slice_rows(0))
    (carried,) = nodes.carry(load("p", "n2", "n3", slices=SLICES, again=True))
    assert carried.failure == ""
    assert arrived(nodes.second)
    assert Counter(nodes.source.fetches()) == {("p", 1): 1, ("p", 2): 1, ("p", 3): 1}


def test_a_slice_that_two_targets_lack_is_asked_for_once(nodes: Nodes) -> None:
    """Also if it takes longer than until both have said that they lack it."""

    def take_long(message: Message) -> None:
        time.sleep(0.1)

    nodes.source.answer = take_long
    (carried,) = nodes.carry(load("p", "n2", "n3", slices=SLICES, again=True))
    assert carried.failure == ""
    assert arrived(nodes.target)
    assert arrived(nodes.second)
    assert len(nodes.source.fetches()) == SLICES


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("happens", [lost, cut])
def test_if_nobody_says_whether_it_landed_it_is_carried(
    nodes: Nodes, happens: Callable[[Message], list[Message]]
) -> None:
    nodes.target.answer = first(End, SLICES, happens)
    (carried,) = nodes.carry(load(slices=SLICES, again=True))
    assert (carried.slices, carried.failure) == (SLICES, "")
    assert arrived(nodes.target)


# --- limits


def test_the_bandwidth_is_kept_to(nodes: Nodes) -> None:
    """The first few slices go at once; from then on, as many bytes as there is time for."""
    each = slice_bundle(0).bytes
    slices, per_second = 16, 20
    began = time.monotonic()
    (carried,) = nodes.carry(load(slices=slices), bytes_per_second=each * per_second)
    assert carried.slices == slices
    assert time.monotonic() - began >= (slices - pipe.AT_ONCE - 1) / per_second


@pytest.mark.parametrize("by", ["source", "target"])
def test_a_pipe_waits_when_a_node_asks_it_to_but_not_for_ever(
    nodes: Nodes, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F199: a node that is busy with clients' writes says how long the next slice should wait."""
    monkeypatch.setattr(pipe, "PAUSE_SECONDS_MAX", 0.1)
    slices = pipe.AT_ONCE + 4
    asker, kind = (nodes.source, Fetched) if by == "source" else (nodes.target, Landed)
    serve = asker._serve
    monkeypatch.setattr(
        asker,
        "_serve",
        lambda message: [
            replace(each, pause_seconds=3600.0) if isinstance(each, kind) else each
            for each in serve(message)
        ],
    )
    began = time.monotonic()
    (carried,) = nodes.carry(load(slices=slices))
    assert carried.slices == slices
    assert carried.failure == ""
    assert carried.slowed_seconds >= 0.25
    assert time.monotonic() - began >= 0.25


def test_slices_do_not_come_in_bursts(nodes: Nodes) -> None:
    """When their size is known, each is asked for when its turn has come, from the first one on."""
    each = slice_bundle(0).bytes
    slices, per_second = 8, 20
    asked_at: list[float] = []

    def note(message: Message) -> None:
        if isinstance(message, Fetch):
            asked_at.append(time.monotonic())

    nodes.source.answer = note
    began = time.monotonic()
    nodes.carry(load(slices=slices, bytes=each * slices), bytes_per_second=each * per_second)
    assert len(asked_at) == slices
    for number, at in enumerate(asked_at):
        assert at - began >= (number - 0.5) / per_second


def test_what_has_landed_before_takes_no_bandwidth(nodes: Nodes) -> None:
    for number in range(SLICES):
        nodes.target.landed["p", number] = sorted(slice_rows(number))
    wanted = task(nodes.all, load(bytes=SLICES << 20, again=True), bytes_per_second=1.0)
    late = threading.Event()
    timer = threading.Timer(20.0, late.set)
    timer.start()
    (carried,) = Pipe(wanted, dialer(), late.is_set).carry()
    timer.cancel()
    assert (carried.slices, carried.failure) == (SLICES, "")


def test_a_pipe_that_is_told_to_stops(nodes: Nodes) -> None:
    nodes.source.answer = lost
    stopping = threading.Event()
    threading.Timer(0.2, stopping.set).start()
    (carried,) = Pipe(task(nodes.all, load()), dialer(), stopping.is_set).carry()
    assert carried.slices == 0


@pytest.mark.usefixtures("impatient")
def test_an_answer_about_another_cut_of_the_same_session_changes_nothing(nodes: Nodes) -> None:
    """S123: an earlier mover cut the range differently. Its slice 0 holds other rows, and that it
    has landed says nothing about this slice 0."""
    late = slice_bundle(3)

    def late_rows(message: Message) -> list[Message]:
        return [Fetched("p", "s-p@1", 0, late, 7, (), late.digest(), SLICES + 1)]

    def late_end(message: Message) -> list[Message]:
        return [Landed("p", "s-p@1", number, SLICES + 1) for number in range(SLICES)]

    nodes.source.answer = first(Fetch, 1, late_rows)
    nodes.target.answer = first(End, 1, late_end)
    (carried,) = nodes.carry(load(slices=SLICES))
    assert (carried.slices, carried.failure) == (SLICES, "")
    assert arrived(nodes.target)


def test_what_nobody_asked_for_is_overheard(nodes: Nodes) -> None:
    """Late answers of an attempt that failed, and of another's."""
    strange = [
        Landed("p", "another", 0),
        Landed("p", "s-p@1", 99),
        Denied("q", "s-q@1", 0, "who is q?"),
        Fetched("p", "another", 0, slice_bundle(0), 7, (), 0),
    ]

    def say(message: Message) -> list[Message]:
        return [*strange, *nodes.source._serve(message)]

    nodes.source.answer = say
    (carried,) = nodes.carry(load(slices=SLICES))
    assert (carried.slices, carried.failure) == (SLICES, "")
    assert arrived(nodes.target)


def test_a_slice_that_is_larger_than_an_outbox_waits_for_a_slow_target(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F194: otherwise chunks would be lost, in each attempt."""
    monkeypatch.setattr("limosa.transport.links.OUTBOX_BYTES_MAX", 3_000)
    large = Bundle([birds((f"{number}" + "x" * 2_000, number)) for number in range(20)])
    nodes.source.rows = lambda number: large
    (result,) = nodes.carry(load(slices=1))
    assert (result.failure, result.slices, result.rows) == ("", 1, 20)
    assert len(nodes.source.fetches()) == 1
