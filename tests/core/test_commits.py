"""Are commits made in as few transactions as possible, also when many of them are stale?"""

from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from limosa.core.coordinator import requests
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.commits import CommitQueue, summary
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import Effect, MakeCommit
from limosa.core.events import AgreedRead, CommitLost, Deposed, Elected, Received, Ticked
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Agreed,
    Commit,
    Put,
    Remove,
    apply,
    change_key,
    node_key,
    partition_key,
    united,
)
from limosa.core.model.requests import RepairPartition, Request
from limosa.core.model.topology import Node
from tests.core.samples import OFFICE, B, P, cluster, of, says, stable

MANY = 1_000


def commit(name: str, revision: int = 1, *more: str, office: int = OFFICE) -> Commit:
    """A change of a node's row, computed from the row at a revision."""
    guards = {node_key(each): revision for each in (name, *more)} | {COORDINATOR_KEY: office}
    return Commit(guards, tuple(Put(Node(each)) for each in (name, *more)), f"{name}: changes")


def queue_of(*commits: Commit) -> CommitQueue:
    queue = CommitQueue()
    for each in commits:
        queue.put(each)
    return queue


class Store:
    """A metastore of one revision for each key, which counts the transactions."""

    def __init__(self, named: bool = True) -> None:
        self.revisions: dict[str, int] = {COORDINATOR_KEY: OFFICE}
        self.named = named
        self.transactions = 0
        self.made: list[Commit] = []

    def make_all(self, queue: CommitQueue, operations_max: int = 10_000) -> None:
        while together := queue.take(operations_max):
            self.transactions += 1
            guards = united(together).guards
            stale = [key for key, value in guards.items() if self.revisions.get(key, 1) != value]
            if stale:
                queue.stale(stale if self.named else ())
                continue
            self.made += together
            self.revisions |= {change_key(c): 2 for each in together for c in each.changes}
            queue.made(2)


def test_only_the_newest_commit_of_a_key_is_made_and_keeps_the_place_of_the_older_one() -> None:
    a, b, newer = commit("a"), commit("b"), commit("a", 2)
    queue = queue_of(a, b)
    queue.put(newer)
    assert len(queue) == 2
    assert queue.take(100) == [newer, b]
    both = commit("a", 3, "b")
    queue = queue_of(commit("c"), a, b, both)
    assert queue.take(100) == [commit("c"), both]


def test_one_united_commit_is_under_way_at_a_time() -> None:
    queue = queue_of(commit("a"))
    assert queue
    assert queue.take(100) == [commit("a")]
    queue.put(commit("b"))
    assert not queue
    assert queue.take(100) == []
    assert queue.lost()
    assert queue.take(100) == [commit("b")]


def test_a_commit_is_held_until_the_coordinator_has_read_its_outcome() -> None:
    wish = commit("a")
    queue = queue_of(wish)
    assert queue.holds(wish)
    assert not queue.holds(commit("a", 2)), "computed from another state"
    queue.take(100)
    assert queue.holds(wish)
    queue.made(7)
    assert queue.holds(wish), "it would be computed again from the old state"
    queue.read(6)
    assert queue.holds(wish)
    queue.read(7)
    assert not queue.holds(wish)
    queue.put(wish)
    queue.take(100)
    queue.made(7)
    assert not queue.holds(wish), "the coordinator has read this revision"


def test_a_partition_is_concerned_while_a_commit_of_its_record_is_in_the_queue() -> None:
    queue = CommitQueue()
    assert not queue.concerns(partition_key(P))
    wish = Commit({partition_key(P): 50}, (Put(stable()),), "p: another owner")
    queue.put(wish)
    assert queue.concerns(partition_key(P))
    queue.take(100)
    assert queue.concerns(partition_key(P))
    queue.lost()
    assert not queue.concerns(partition_key(P))
    queue.put(wish)
    queue.take(100)
    queue.made(8)
    queue.put(Commit({partition_key(P): 51}, (Put(stable()),), "p: computed from a later state"))
    queue.take(100)
    queue.read(8)
    assert queue.concerns(partition_key(P)), "the later one is still under way"


def test_exactly_the_stale_ones_leave_and_the_others_are_made_as_one() -> None:
    names = [f"n{number}" for number in range(MANY)]
    store, queue = Store(), queue_of(*map(commit, names))
    late = commit("late", 1, names[3])
    store.revisions |= {node_key(name): 9 for name in names[::2]}
    store.make_all(queue)
    assert store.transactions == 2
    assert store.made == [commit(name) for name in names[1::2]]
    queue = queue_of(commit(names[3]))
    queue.take(100)
    queue.put(late)
    queue.put(commit("other"))
    assert queue.stale([node_key(names[3])]) == [commit(names[3]), late], "computed from the same"
    assert queue.take(100) == [commit("other")]


def test_a_lost_office_costs_one_transaction() -> None:
    """Everything is guarded by the office, so nothing of it need be tried again."""
    names = [f"n{number}" for number in range(MANY)]
    store, queue = Store(), queue_of(*map(commit, names))
    store.revisions[COORDINATOR_KEY] = OFFICE + 1
    store.make_all(queue, operations_max=100)
    assert store.transactions == 1
    assert not store.made
    assert not queue


@pytest.mark.parametrize("stale", [0, 1, 3])
def test_if_the_metastore_can_not_name_the_stale_guards_halves_are_tried(stale: int) -> None:
    names = [f"n{number}" for number in range(MANY)]
    store, queue = Store(named=False), queue_of(*map(commit, names))
    wrong = names[7 : MANY : MANY // 3][:stale]
    store.revisions |= {node_key(name): 9 for name in wrong}
    store.make_all(queue)
    assert {each.why for each in store.made} == {f"{n}: changes" for n in names if n not in wrong}
    assert store.transactions <= 1 + stale * 4 * log2(MANY)


def test_a_commit_that_was_replaced_while_it_was_tried_is_not_tried_again() -> None:
    a, b, newer = commit("a"), commit("b"), commit("a", 2)
    queue = queue_of(a, b)
    queue.take(100)
    queue.put(newer)
    assert queue.stale([node_key("x")]) == [], "no guard of them: so it is not known which"
    assert queue.take(100) == [b]
    queue.made(2)
    assert queue.take(100) == [newer]


def test_commits_of_another_office_are_dropped() -> None:
    queue = queue_of(commit("a"), commit("b"))
    queue.take(3)
    queue.made(8)
    queue.put(commit("c"))
    queue.clear()
    assert queue.take(100) == []
    assert not queue.holds(commit("a"))


def test_many_reasons_fit_into_one_line() -> None:
    assert summary(["p: it moves"]) == "p: it moves"
    assert summary(["the pipeline"]) == "the pipeline"
    whys = [f"p{number}: a owns epoch 2" for number in range(5)] + ["p7: done", "so", "so"]
    assert summary(whys) == "a owns epoch 2 (5: p0, p1, p2, …); so (2); p7: done"
    assert summary(f"p{n}: epoch {n}" for n in range(6)).endswith("p3: epoch 3; and 2 others")


NAMES = st.sampled_from("abcdef")
STEPS = st.one_of(
    st.tuples(st.just("put"), st.lists(NAMES, min_size=1, max_size=3, unique=True)),
    st.tuples(st.just("take"), st.integers(2, 8)),
    st.tuples(st.just("outcome"), st.sampled_from(["answer", "unnamed", "lost", "made, lost"])),
    st.tuples(st.just("other"), NAMES),
    st.tuples(st.just("office"), st.just(0)),
)


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=30))
def test_whatever_happens_the_newest_commit_of_each_key_is_made_or_was_stale(
    steps: list[tuple[str, object]],
) -> None:
    """Commits are put at any time, outcomes are lost or not named, others change the same keys."""
    queue, store = CommitQueue(), Store()
    revision, serial = 1, 0
    wanted: dict[str, Commit] = {}
    """The newest commit of each key, unless its outcome was lost."""
    under_way: list[Commit] = []

    def make(together: list[Commit], named: bool) -> None:
        nonlocal revision
        guards = united(together).guards
        stale = [key for key, value in guards.items() if store.revisions.get(key, 1) != value]
        if stale:
            for each in queue.stale(stale if named else ()):
                assert any(store.revisions.get(k, 1) != v for k, v in each.guards.items())
            return
        revision += 1
        store.revisions |= {change_key(c): revision for each in together for c in each.changes}
        store.made += together
        queue.made(revision)

    for what, detail in steps:
        if what == "put":
            names = list(detail)  # type: ignore[call-overload]
            serial += 1
            keys = [node_key(name) for name in names]
            guards = {key: store.revisions.get(key, 1) for key in keys}
            wish = Commit(guards, tuple(map(Remove, keys)), str(serial))
            queue.put(wish)
            assert queue.holds(wish)
            wanted |= dict.fromkeys(keys, wish)
        elif what == "take" and not under_way:
            under_way = queue.take(detail)  # type: ignore[arg-type]
        elif what == "outcome" and under_way:
            together, under_way = under_way, []
            if detail in ("answer", "unnamed"):
                make(together, detail == "answer")
                continue
            if detail == "made, lost":
                revision += 1
                store.revisions |= {change_key(c): revision for e in together for c in e.changes}
            queue.lost()
            wanted = {key: wish for key, wish in wanted.items() if wish not in together}
        elif what == "other":
            revision += 1
            store.revisions[node_key(str(detail))] = revision
        elif what == "office":
            queue.clear()
            wanted = {key: wish for key, wish in wanted.items() if wish in under_way}
    if under_way:
        make(under_way, True)
    while together := queue.take(4):
        make(together, True)
    for key, wish in wanted.items():
        overtaken = any(store.revisions.get(k, 1) != v for k, v in wish.guards.items())
        assert wish in store.made or overtaken, key


# --- the coordinator


def proposals(effects: list[Effect]) -> list[Commit]:
    return [effect.commit for effect in effects if isinstance(effect, MakeCommit)]


def leaderless() -> tuple[Coordinator, Agreed]:
    """A coordinator in office, and a partition whose owner's node is gone."""
    coordinator = Coordinator("one", CoordinatorSettings(look_seconds=1e9))
    agreed = cluster(stable())
    gone = apply(agreed, (Remove("lease/node/a"),), 60)
    coordinator.handle(100.0, AgreedRead(gone))
    return coordinator, gone


def test_nothing_is_proposed_again_while_it_is_queued() -> None:
    coordinator, agreed = leaderless()
    (wish,) = proposals(coordinator.handle(100.0, Elected(OFFICE)))
    coordinator.commits.put(wish)
    for seconds in range(1, 50):
        assert not proposals(coordinator.handle(100.0 + seconds / 5, Ticked()))
    assert not proposals(coordinator.handle(111.0, Received("b", says("b", of(B)))))
    assert coordinator.commits.take(100) == [wish]
    assert not proposals(coordinator.handle(120.0, Ticked()))
    coordinator.commits.made(61)
    assert not proposals(coordinator.handle(121.0, Ticked())), "it was made, and is not read yet"
    later = apply(agreed, wish.changes, 61)
    coordinator.handle(121.5, AgreedRead(later))
    assert not coordinator.commits.concerns(partition_key(P))


def test_an_answer_is_not_computed_again_while_it_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to a wish for a large table takes long to compute."""
    computed: list[str] = []
    answer = requests.answer

    def counted(view: ClusterView, request: Request) -> Commit:
        computed.append(request.id)
        return answer(view, request)

    monkeypatch.setattr(requests, "answer", counted)
    coordinator = Coordinator("one", CoordinatorSettings(look_seconds=1e9))
    agreed = cluster(stable(), more=(Request("r", RepairPartition("no such partition")),))
    coordinator.handle(100.0, AgreedRead(agreed))
    (wish,) = proposals(coordinator.handle(100.0, Elected(OFFICE)))
    coordinator.commits.put(wish)
    for seconds in range(1, 50):
        coordinator.handle(100.0 + seconds / 5, Ticked())
    assert computed == ["r"]
    assert coordinator.commits.take(100) == [wish]
    assert proposals(coordinator.handle(120.0, CommitLost())) == [wish]
    assert computed == ["r", "r"]


def test_a_commit_whose_outcome_is_lost_is_proposed_again_after_a_while() -> None:
    coordinator, _ = leaderless()
    (wish,) = proposals(coordinator.handle(100.0, Elected(OFFICE)))
    coordinator.commits.put(wish)
    coordinator.commits.take(100)
    assert not proposals(coordinator.handle(100.1, CommitLost()))
    assert not proposals(coordinator.handle(100.2, Ticked()))
    assert proposals(coordinator.handle(100.5, Ticked())) == [wish]


def test_thousands_of_partitions_do_not_wait_for_each_other_if_an_outcome_is_lost() -> None:
    """The commits that were lost are proposed again at once, and those that wait are not."""
    coordinator = Coordinator("one", CoordinatorSettings(look_seconds=1e9))
    names = [f"x{number}" for number in range(3_000)]
    agreed = apply(cluster(stable()), [Put(replace(stable(), id=name)) for name in names], 60)
    gone = apply(agreed, (Remove("lease/node/a"),), 61)
    coordinator.handle(100.0, AgreedRead(gone))
    wishes = proposals(coordinator.handle(100.0, Elected(OFFICE)))
    while more := proposals(coordinator.handle(100.0, Ticked())):
        wishes += more
    assert len(wishes) == 3_001
    request = Commit({"request/r": 0}, (Put(Request("r", RepairPartition(P))),), "r")
    for wish in (request, *wishes):
        coordinator.commits.put(wish)
    assert not proposals(coordinator.handle(100.5, Ticked()))
    first, *lost = coordinator.commits.take(500)
    assert first is request
    assert proposals(coordinator.handle(100.6, CommitLost())) == lost


def test_a_coordinator_that_is_not_in_office_drops_its_queue() -> None:
    for event in (Deposed(), Elected(OFFICE + 9), AgreedRead(apply(Agreed(), (), 99))):
        coordinator, _ = leaderless()
        (wish,) = proposals(coordinator.handle(100.0, Elected(OFFICE)))
        coordinator.commits.put(wish)
        assert not coordinator.handle(100.1, event)
        assert not coordinator.commits
