"""Does a process become a node once, by its own request, and never by accident?"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import MakeCommit
from limosa.core.events import AgreedRead, Elected
from limosa.core.model.changes import Commit, Put, lease_key, node_key
from limosa.core.model.requests import JoinCluster, RemoveNode, Request
from limosa.core.model.topology import CoordinatorLease, Features, Node, NodeLease
from limosa.errors import (
    BadInput,
    IllegalRequest,
    MetastoreUnavailable,
    OutcomeUnknown,
    Refused,
    StaleGuard,
    UnusableFile,
)
from limosa.metastore.agreed import AgreedStore
from limosa.metastore.memory import MemoryMetastore
from limosa.metastore.sqlite import SqliteMetastore
from limosa.ports import Metastore
from limosa.runtime import membership
from tests.metastore.clocks import FakeClock

NEWCOMER = Node("n1", "host:1", host="h1", features=("tables",), machine="m1")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> Iterator[AgreedStore]:
    if request.param == "memory":
        yield AgreedStore(MemoryMetastore(clock))
    else:
        with closing(SqliteMetastore(tmp_path / "metastore.db", clock)) as opened:
            yield AgreedStore(opened)


class Office:
    """A coordinator in office, and time that goes by while it works."""

    def __init__(self, store: AgreedStore, clock: FakeClock) -> None:
        self.store = AgreedStore(store.store)
        self.clock = clock
        self.brain = Coordinator("one", CoordinatorSettings())
        self.lease = store.store.grant(1e6)
        commit = Commit({}, (Put(CoordinatorLease("one", self.lease)),), "in office")
        revision = self.store.commit(commit, self.lease)
        self.brain.handle(clock.now(), Elected(revision))

    def work(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for effect in self.brain.handle(self.clock.now(), AgreedRead(self.store.read())):
            if isinstance(effect, MakeCommit):
                self.store.commit(effect.commit)

    def answer(self, request: Request) -> Request:
        self.store.commit(Commit({}, (Put(request),), "asked"))
        self.work(1.0)
        return self.store.read().requests[request.id]


@pytest.fixture
def office(store: AgreedStore, clock: FakeClock) -> Office:
    membership.found(store, "birds", "", "c1")
    return Office(store, clock)


def join(
    office: Office,
    directory: Path,
    node: Node = NEWCOMER,
    request_id: str = "r1",
    cluster: str = "birds",
    sleep: Callable[[float], None] | None = None,
) -> Node:
    return membership.join(
        AgreedStore(office.store.store),
        directory,
        node,
        cluster,
        request_id,
        5.0,
        office.clock.now,
        sleep or office.work,
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


# --- a cluster


def test_a_metastore_belongs_to_one_cluster(store: AgreedStore) -> None:
    cluster = membership.found(store, "birds", "m1", "c1")
    assert (cluster.name, cluster.id, cluster.machine) == ("birds", "c1", "m1")
    assert membership.found(store, "birds", "m2", "c2") == cluster, "the first one stays"
    assert store.read().topology.cluster == cluster
    assert store.read().topology.features.enabled == ()
    with pytest.raises(BadInput, match="belongs to the cluster birds"):
        membership.found(store, "fishes", "m1", "c3")
    with pytest.raises(BadInput, match="is not a valid cluster name"):
        membership.found(store, "", "m1", "c3")


# --- joining


def test_a_node_joins_and_is_known_when_it_comes_back(office: Office, tmp_path: Path) -> None:
    """F145 F146 F140."""
    directory = tmp_path / "n1"
    node = join(office, directory)
    assert node == replace(NEWCOMER, state="normal")
    topology = office.store.read().topology
    assert topology.nodes == {"n1": node}
    assert topology.features == Features(("tables",))
    assert names(directory) == ["NODE"]
    assert json.loads((directory / "NODE").read_bytes()) == {
        "node": "n1",
        "host": "h1",
        "cluster": "c1",
        "request": "r1",
    }
    assert membership.member(office.store, directory) == node
    again = join(office, directory, request_id="r2")
    assert again == node
    assert "r2" not in office.store.read().requests, "it is not asked again"


def test_the_trace_is_on_disk_before_the_request_is_in_the_metastore(
    office: Office, tmp_path: Path
) -> None:
    """F148."""
    directory = tmp_path / "n1"
    seen: list[list[str]] = []
    commit = office.store.store.commit

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(office.store.store, name)

        def commit(self, *arguments: object) -> int:
            seen.append(names(directory))
            return commit(*arguments)  # type: ignore[arg-type]

    watched: Metastore = Watched()  # type: ignore[assignment]
    membership.join(
        AgreedStore(watched), directory, NEWCOMER, "birds", "r1", 5.0, office.clock.now, office.work
    )
    assert seen == [["JOINING"]]


def test_a_refused_node_hears_why_and_leaves_no_trace(office: Office, tmp_path: Path) -> None:
    """F145."""
    directory = tmp_path / "n1"
    with pytest.raises(IllegalRequest, match="this is the cluster birds, not fishes"):
        join(office, directory, cluster="fishes")
    assert names(directory) == []
    assert join(office, directory, request_id="r2").state == "normal"


def test_a_node_on_another_machine_than_the_file_is_refused(
    store: AgreedStore, clock: FakeClock, tmp_path: Path
) -> None:
    membership.found(store, "birds", "m1", "c1")
    office = Office(store, clock)
    with pytest.raises(IllegalRequest, match="start all nodes on the machine"):
        join(office, tmp_path / "n1", replace(NEWCOMER, machine="m2"))


def test_a_name_is_given_once(office: Office, tmp_path: Path) -> None:
    """F145."""
    join(office, tmp_path / "n1")
    with pytest.raises(IllegalRequest, match="the name n1 is taken"):
        join(office, tmp_path / "other", replace(NEWCOMER, host="h2"), "r2")
    (tmp_path / "n1" / "NODE").unlink()
    with pytest.raises(IllegalRequest, match="n1 is already a member"):
        join(office, tmp_path / "n1", request_id="r3")


def test_a_node_that_lacks_a_feature_ends_as_left(office: Office, tmp_path: Path) -> None:
    """F146 F144."""
    join(office, tmp_path / "n1")
    with pytest.raises(IllegalRequest, match="does not support what this cluster uses: tables"):
        join(office, tmp_path / "n2", Node("n2", host="h2"), "r2")
    assert office.store.read().topology.nodes["n2"].state == "left"
    with pytest.raises(IllegalRequest, match="n2 was removed"):
        join(office, tmp_path / "n2", replace(NEWCOMER, id="n2", host="h2"), "r3")


def test_the_answer_to_an_earlier_attempt_does_not_count(office: Office, tmp_path: Path) -> None:
    """F147: neither a good one nor a bad one; only its own request's."""
    for state, node in (("done", NEWCOMER), ("refused", replace(NEWCOMER, id="n2", host="h2"))):
        old = Request(f"old-{state}", JoinCluster(node, "birds"), state=state)  # type: ignore[arg-type]
        office.store.commit(Commit({}, (Put(old),), "an earlier attempt"))
    with pytest.raises(Refused, match="no coordinator answered"):
        join(office, tmp_path / "n1", sleep=office.clock.advance)
    assert join(office, tmp_path / "n2", replace(NEWCOMER, id="n2", host="h2")).id == "n2"


def test_a_request_id_is_used_once(office: Office, tmp_path: Path) -> None:
    """F147: else an old answer could be taken for a new one."""
    join(office, tmp_path / "n1")
    with pytest.raises(BadInput, match="request r1 exists already"):
        join(office, tmp_path / "n2", replace(NEWCOMER, id="n2", host="h2"))
    assert names(tmp_path / "n2") == []


def test_without_a_coordinator_a_join_ends_and_can_be_tried_again(
    office: Office, tmp_path: Path
) -> None:
    """S94: it completes or times out, and the request does not outlive it."""
    directory = tmp_path / "n1"
    with pytest.raises(Refused, match="no coordinator answered"):
        join(office, directory, sleep=office.clock.advance)
    assert names(directory) == []
    assert office.store.read().requests == {}
    office.work(1.0)
    assert office.store.read().topology.nodes == {}
    assert join(office, directory, request_id="r2").state == "normal"


def test_an_answer_at_the_last_moment_counts(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S94: either it was taken back, or it is answered; never both."""
    withdraw = membership._withdraw

    def late(store: AgreedStore, request: str) -> None:
        read = store.read
        with monkeypatch.context() as patch:
            before = read()
            patch.setattr(store, "read", lambda: before)
            office.work(1.0)
            withdraw(store, request)

    monkeypatch.setattr(membership, "_withdraw", late)
    node = join(office, tmp_path / "n1", sleep=office.clock.advance)
    assert node.state == "normal"
    assert names(tmp_path / "n1") == ["NODE"]


def test_a_join_that_was_cut_short_is_not_taken_up_again(office: Office, tmp_path: Path) -> None:
    """F148: with an empty directory it can be tried again."""
    directory = tmp_path / "n1"

    def crash(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join(office, directory, sleep=crash)
    assert names(directory) == ["JOINING"]
    with pytest.raises(IllegalRequest, match="did not finish") as caught:
        join(office, directory, request_id="r2")
    assert "wipe the directory and join again" in caught.value.advice
    (directory / "JOINING").unlink()
    office.work(1.0)
    with pytest.raises(IllegalRequest, match="the name n1 is taken"):
        join(office, directory, replace(NEWCOMER, host="h2"), "r3")
    assert join(office, directory, replace(NEWCOMER, id="n2", host="h2"), "r4").id == "n2"


def test_a_crash_after_the_last_step_but_one_leaves_a_member(
    office: Office, tmp_path: Path
) -> None:
    """F148: what says that it has joined counts."""
    directory = tmp_path / "n1"
    node = join(office, directory)
    (directory / "JOINING").write_bytes((directory / "NODE").read_bytes())
    assert membership.member(office.store, directory) == node
    assert names(directory) == ["NODE"]


def test_a_join_whose_outcome_nobody_knows_leaves_its_trace(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F148: it may be a member by now."""
    directory = tmp_path / "n1"
    store = AgreedStore(office.store.store)

    def away() -> None:
        raise MetastoreUnavailable("away")

    def lose(seconds: float) -> None:
        office.clock.advance(seconds)
        monkeypatch.setattr(store, "read", away)

    with pytest.raises(OutcomeUnknown, match="it is unknown whether the node joined"):
        membership.join(store, directory, NEWCOMER, "birds", "r1", 5.0, office.clock.now, lose)
    assert names(directory) == ["JOINING"]


@pytest.mark.parametrize("put", [True, False], ids=["it was put", "it was not"])
def test_a_request_whose_outcome_is_unknown_is_looked_for(
    office: Office, tmp_path: Path, put: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "n1"
    store = AgreedStore(office.store.store)
    commit = store.commit

    def unknown(what: Commit, lease: int | None = None) -> int:
        if put or "asks" not in what.why:
            commit(what, lease)
        if "asks" in what.why:
            raise OutcomeUnknown("no answer")
        return 0

    monkeypatch.setattr(store, "commit", unknown)

    def attempt() -> Node:
        return membership.join(
            store, directory, NEWCOMER, "birds", "r1", 5.0, office.clock.now, office.work
        )

    if put:
        assert attempt().state == "normal"
    else:
        with pytest.raises(Refused, match="no coordinator answered"):
            attempt()
        assert names(directory) == []


# --- coming back


def test_a_directory_of_another_cluster_or_node_is_refused(office: Office, tmp_path: Path) -> None:
    """S14: what a directory says of itself is checked against what is agreed."""
    directory = tmp_path / "n1"
    join(office, directory)
    path = directory / "NODE"
    good = path.read_bytes()
    for old, new, words in (
        (b'"c1"', b'"c9"', "belongs to a node of another cluster"),
        (b'"n1"', b'"n9"', "belongs to n9, which the cluster does not know"),
        (b'"h1"', b'"h9"', "belongs to n1, which the cluster does not know"),
    ):
        path.write_bytes(good.replace(old, new))
        with pytest.raises(IllegalRequest, match=words):
            membership.member(office.store, directory)
    path.write_bytes(good[:-3])
    with pytest.raises(UnusableFile, match="can't be read"):
        membership.member(office.store, directory)


def test_an_empty_metastore_has_no_members(
    office: Office, tmp_path: Path, clock: FakeClock
) -> None:
    directory = tmp_path / "n1"
    join(office, directory)
    with pytest.raises(IllegalRequest, match="has no cluster"):
        membership.member(AgreedStore(MemoryMetastore(clock)), directory)


def test_a_removed_node_does_not_come_back(office: Office, tmp_path: Path) -> None:
    """S19 S14: neither with its directory, nor by a lease, nor under its name; S20."""
    directory = tmp_path / "n1"
    node = join(office, directory)
    join(office, tmp_path / "n2", replace(NEWCOMER, id="n2", host="h2"), "r2")
    lease = office.store.store.grant(3.0)
    membership.register(office.store.store, node, lease, previous=0)
    alive = office.answer(Request("r3", RemoveNode("n1")))
    assert (alive.state, "n1 is alive" in alive.answer) == ("refused", True)
    office.clock.advance(4.0)
    assert office.answer(Request("r4", RemoveNode("n1"))).state == "done"
    with pytest.raises(IllegalRequest, match="n1 was removed"):
        membership.member(office.store, directory)
    with pytest.raises(IllegalRequest, match="n1 was removed"):
        membership.register(office.store.store, node, office.store.store.grant(3.0), 0)
    with pytest.raises(IllegalRequest, match="n1 was removed"):
        membership.refresh(office.store, node)
    with pytest.raises(IllegalRequest, match="n1 was removed"):
        join(office, tmp_path / "n3", replace(NEWCOMER, host="h3"), "r5")
    assert "n1" not in office.store.read().leases


# --- alive


def test_a_run_of_a_node_is_registered_under_its_lease(office: Office, tmp_path: Path) -> None:
    node = join(office, tmp_path / "n1")
    lease = office.store.store.grant(3.0)
    revision = membership.register(office.store.store, node, lease, previous=0)
    agreed = office.store.read()
    assert agreed.leases == {"n1": NodeLease("n1", lease)}
    assert agreed.revision_of(lease_key("n1")) == revision
    next_run = office.store.store.grant(3.0)
    with pytest.raises(StaleGuard):
        membership.register(office.store.store, node, next_run, previous=0)
    later = membership.register(office.store.store, node, next_run, previous=revision)
    assert later > revision
    office.clock.advance(4.0)
    assert office.store.read().leases == {}


def test_who_is_no_member_does_not_come_to_life(office: Office, tmp_path: Path) -> None:
    lease = office.store.store.grant(3.0)
    with pytest.raises(IllegalRequest, match="n1 is not a member"):
        membership.register(office.store.store, NEWCOMER, lease, 0)
    join(office, tmp_path / "n1")
    with pytest.raises(IllegalRequest, match="n1 is not a member"):
        membership.register(office.store.store, replace(NEWCOMER, host="h2"), lease, 0)


def test_a_node_that_is_removed_while_it_registers_does_not_come_to_life(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S19: the row that it was checked by guards its registration."""
    node = join(office, tmp_path / "n1")
    get = office.store.store.get

    def slow(key: str) -> object:
        entry = get(key)
        office.store.commit(Commit({}, (Put(replace(node, state="left")),), "removed"))
        return entry

    monkeypatch.setattr(office.store.store, "get", slow)
    with pytest.raises(StaleGuard) as caught:
        membership.register(office.store.store, node, office.store.store.grant(3.0), 0)
    assert caught.value.keys == (node_key("n1"),)


def test_an_upgraded_node_enables_what_all_can_do(office: Office, tmp_path: Path) -> None:
    """F144: a mixed cluster does without; after the last upgrade it is on."""
    first = join(office, tmp_path / "n1")
    able = replace(NEWCOMER, id="n2", host="h2", features=("streams", "tables"))
    join(office, tmp_path / "n2", able, "r2")
    assert office.store.read().topology.features.enabled == ("tables",)
    assert membership.refresh(office.store, first) == first
    moved = replace(first, address="host:9", features=("streams", "tables"), state="removing")
    after = membership.refresh(office.store, moved)
    assert after == replace(moved, state="normal")
    topology = office.store.read().topology
    assert topology.nodes["n1"] == after
    assert topology.features.enabled == ("streams", "tables")
    with pytest.raises(IllegalRequest, match="n1 lacks features of this cluster: streams"):
        membership.refresh(office.store, first)
    with pytest.raises(IllegalRequest, match="n9 is not a member"):
        membership.refresh(office.store, replace(first, id="n9"))


def test_a_refresh_is_tried_again_when_members_change(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = join(office, tmp_path / "n1")
    store = AgreedStore(office.store.store)
    commit = store.commit
    failures = iter([True, False])

    def disturbed(what: Commit, lease: int | None = None) -> int:
        if next(failures, True):
            raise StaleGuard("changed")
        return commit(what, lease)

    monkeypatch.setattr(store, "commit", disturbed)
    assert membership.refresh(store, replace(node, address="host:2")).address == "host:2"
    with pytest.raises(Refused, match="the list of members kept changing"):
        membership.refresh(store, replace(node, address="host:3"))
