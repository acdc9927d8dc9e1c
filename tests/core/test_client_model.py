"""Does a client tell the truth, keep the order and come to an end, however nodes behave?

A tiny model of nodes: each takes messages in turn at its own pace, loses some, breaks its links,
turns some away, and applies the others by the rules of an owner. All of it follows from one seed.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from limosa.core.client import Asked, Client, ClientSettings, Finished
from limosa.core.client.windows import PART_BYTES
from limosa.core.effects import Effect, ReadTopology, Send
from limosa.core.events import Disconnected, Received, Ticked, TopologyRead
from limosa.core.messages import Answer, Message, Redirect, Refuse, Wait, Write, Written
from limosa.core.model.changes import Put, Topology, apply
from limosa.core.model.keys import TOKEN_MIN, TokenRange
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Layout
from limosa.core.producers import Producers
from limosa.simulation.rows import SimulatedRow, SimulatedRows
from tests.core.samples import OLD, cluster, stable

STARTS = (TOKEN_MIN, -100, 0, 100)
PARTITIONS = ("p", "q", "r", "s")
ENDS = (*STARTS[1:], 2**63)
TICK_SECONDS = 0.05
WRITES = 40


def topology(owners: tuple[int, ...], generation: int) -> Topology:
    """Four partitions; each is owned by one of three nodes."""
    records = [
        Put(replace(stable(owner=OLD[owner]), id=name, range=TokenRange(start, end)))
        for name, start, end, owner in zip(PARTITIONS, STARTS, ENDS, owners, strict=True)
    ]
    agreed = cluster(replace(stable(), range=TokenRange(TOKEN_MIN, -100)))
    layout = Put(Layout("z", 2, STARTS, PARTITIONS))
    return replace(apply(agreed, (*records, layout), 60).topology, generation=generation)


class Weather(Struct, frozen=True):
    """How the nodes of one run behave."""

    latency: float
    lost: float = 0.0
    turned_away: float = 0.0
    broken: float = 0.0
    moved: float = 0.0


class ModelWorld:
    """One client, three nodes, and the partitions that they own."""

    def __init__(self, seed: int, weather: Weather, client: ClientSettings) -> None:
        self.dice = Random(seed)
        self.weather = weather
        self.client = Client("x", client)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.generation = 100
        self.owners: tuple[int, ...] = (0, 1, 2, 0)
        self.producers = {name: Producers() for name in PARTITIONS}
        self.applied: dict[str, list[tuple[str, int]]] = {name: [] for name in PARTITIONS}
        self.positions = 0
        self.ends: dict[str, Finished] = {}
        self.attempts: Counter[tuple[str, int]] = Counter()
        """How often each part was sent."""
        self.asked: dict[int, int] = {}
        """The number of rows of each write with keys of their own, in the order of asking."""
        self.links = {"a": 0, "b": 0, "c": 0}
        """The number of each link; messages of an earlier one are lost on their way back."""
        self.ready_at = dict.fromkeys(self.links, 0.0)
        self._told(self.client.handle(0.0, TopologyRead(self.topology(), self.generation)))

    def topology(self) -> Topology:
        return topology(self.owners, self.generation)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def at(self, time: float, what: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (time, self._count, what))

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heappop(self._events)
            what()
        self.now = end

    def handle(self, event: object) -> None:
        self._told(self.client.handle(self.now, event))  # type: ignore[arg-type]

    def _told(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to=to, message=Write() as write):
                    self.attempts[write.partition, write.sequence] += 1
                    self._carry(to, write)
                case ReadTopology():
                    self.later(0.05, self._read_topology)
                case Finished():
                    assert effect.id not in self.ends
                    self.ends[effect.id] = effect

    def ask(self, number: int) -> None:
        """Write rows with keys of their own, and a row with a key that all writes share."""
        tokens = [self.dice.randrange(-200, 200) for _ in range(self.dice.randint(1, 4))]
        rows = [SimulatedRow(f"k{number}.{n}", token, number) for n, token in enumerate(tokens)]
        hot = SimulatedRow("hot", self.dice.choice(tokens), number)
        self.asked[number] = len(rows)
        self.handle(Asked(f"o{number}", "z", SimulatedRows((*rows, hot))))

    def _read_topology(self) -> None:
        self.handle(TopologyRead(self.topology(), self.generation))

    # --- the nodes

    def _carry(self, node: str, write: Write) -> None:
        """Messages on one link arrive in order; the node takes its time with each."""
        if self.dice.random() < self.weather.lost:
            return
        link = self.links[node]
        pause = self.weather.latency * self.dice.uniform(0.5, 1.5)
        arrives = max(self.ready_at[node], self.now + pause / 2)
        self.ready_at[node] = arrives
        self.at(arrives, partial(self._receive, node, link, pause / 2, write))

    def _receive(self, node: str, link: int, pause: float, write: Write) -> None:
        if link != self.links[node]:
            return  # it was lost with its link
        answer = self._answer(node, write)
        if self.dice.random() < self.weather.lost:
            return
        self.later(pause, partial(self._reply, node, link, answer))

    def _reply(self, node: str, link: int, answer: Message) -> None:
        if link == self.links[node]:
            self.handle(Received(node, answer))

    def _answer(self, node: str, write: Write) -> Answer:
        """The rules of an owner."""
        owner = OLD[self.owners[PARTITIONS.index(write.partition)]].node
        if node != owner:
            return Redirect(write.id, owner, 2, self.generation)
        if self.dice.random() < self.weather.turned_away:
            refusals = [
                Wait(write.id, "not open yet"),
                Redirect(write.id, owner, 2, self.generation),
                Refuse(write.id, "no", "DiskFull"),
            ]
            return self.dice.choices(refusals, (8, 8, 1))[0]
        producers = self.producers[write.partition]
        if producers.is_past("x", write.sequence):
            return Refuse(write.id, "this sequence is past")
        known = producers.applied("x", write.sequence)
        if not known:
            after = write.after
            is_first = not after or after < write.floor or producers.is_past("x", after)
            if not is_first and not producers.applied("x", after):
                return Wait(write.id, "another one comes first", after)
            self._apply(write)
        if self.dice.random() < self.weather.turned_away / 4:
            return Redirect(write.id, owner, 2, self.generation, definite=False)
        return Written(write.id, self.positions)

    def _apply(self, write: Write) -> None:
        self.positions += 1
        entry = Entry(
            self.positions, self.positions - 1, write.rows, "x", write.sequence, write.floor,
            write.range,
        )  # fmt: skip
        self.producers[write.partition].record(entry)
        self.producers[write.partition].commit(self.positions)
        assert isinstance(write.rows, SimulatedRows)
        assert all(write.range.holds(row.token) for row in write.rows.rows)
        for row in write.rows.rows:
            assert isinstance(row.value, int)
            self.applied[write.partition].append((row.key, row.value))

    # --- what else happens

    def tick(self) -> None:
        self.handle(Ticked())
        if self.dice.random() < self.weather.broken:
            node = self.dice.choice("abc")
            self.links[node] += 1
            self.handle(Disconnected(node))
        if self.dice.random() < self.weather.moved:
            self.generation += 1
            self.owners = tuple(self.dice.randrange(3) for _ in PARTITIONS)
        self.later(TICK_SECONDS, self.tick)


def run(seed: int, weather: Weather, client: ClientSettings) -> ModelWorld:
    """Within three seconds the application asks for all writes; after a while all have ended."""
    world = ModelWorld(seed, weather, client)
    world.later(0.0, world.tick)
    for number in range(WRITES):
        world.later(world.dice.uniform(0, 3), partial(world.ask, number))
    world.run_until(200.0)
    assert set(world.ends) == {f"o{number}" for number in range(WRITES)}
    return world


def check_outcomes(world: ModelWorld) -> None:
    applied = [row for rows in world.applied.values() for row in rows if row[0] != "hot"]
    assert len(applied) == len(set(applied)), "a row was applied twice"
    for number in range(WRITES):
        rows = {row for row in applied if row[1] == number}
        outcome = world.ends[f"o{number}"].outcome
        if outcome == "failed":
            assert not rows, f"write {number} failed, and was applied"
        if outcome == "done":
            assert len(rows) == world.asked[number], f"write {number} is done, and is not there"


def check_order(world: ModelWorld) -> None:
    order = {number: place for place, number in enumerate(world.asked)}
    for rows in world.applied.values():
        places = [order[value] for key, value in rows if key == "hot"]
        assert places == sorted(places)


def check_nothing_left(client: Client) -> None:
    assert not client.operations
    assert not client._groups
    assert not client._order
    assert not client._gathering.held
    assert client._queued == 0
    assert {window.used for window in client._windows.values()} <= {0}
    assert {*client._gathering._under_way.values()} <= {0}


@pytest.mark.thorough
@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    latency=st.sampled_from((0.01, 0.3, 5.0)),
    lost=st.sampled_from((0.0, 0.1)),
    turned_away=st.sampled_from((0.0, 0.2)),
    broken=st.sampled_from((0.0, 0.05)),
    moved=st.sampled_from((0.0, 0.05)),
    window=st.sampled_from((1, 3 * PART_BYTES, 4 << 20)),
    gather=st.sampled_from((2, 8, 64)),
)
def test_outcomes_are_true_and_everything_ends(
    seed: int,
    latency: float,
    lost: float,
    turned_away: float,
    broken: float,
    moved: float,
    window: int,
    gather: int,
) -> None:
    """`done`: the rows are there. `failed`: they are not, and what is still under way does not
    bring them. Rows are applied once, and rows of one partition in the order of the writes."""
    weather = Weather(latency, lost, turned_away, broken, moved)
    world = run(seed, weather, ClientSettings(gather_parts=gather, window_bytes=window))
    check_outcomes(world)
    check_order(world)
    check_nothing_left(world.client)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), gather=st.sampled_from((2, 64)))
def test_a_slow_network_makes_a_client_patient_and_not_loud(seed: int, gather: int) -> None:
    """S127: an answer takes up to six times as long as an attempt may take at first. Late answers
    count, so all writes are acknowledged; and no part is sent more than four times."""
    slow = Weather(latency=4.0)
    client = ClientSettings(attempt_seconds=1.0, operation_seconds=10.0, gather_parts=gather)
    world = run(seed, slow, client)
    check_outcomes(world)
    check_order(world)
    assert {finished.outcome for finished in world.ends.values()} == {"done"}
    assert max(world.attempts.values()) <= 4
