"""Does a partition get the replica count of its zone, and keep what is in sync?"""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import resizing
from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.transitions import Waiting, drops_what_is_in_sync
from limosa.core.model.changes import Agreed, Commit, Put, apply
from limosa.core.model.requests import MovePartition, Request
from limosa.core.model.topology import Node, Partition, Replica
from tests.core.samples import (
    MEMBERS,
    NODES,
    A,
    B,
    C,
    P,
    cluster,
    of,
    placed,
    put,
    says,
    seen,
    stable,
)

SETTINGS = CoordinatorSettings()
LATER = SETTINGS.resize_seconds + 1


def attempt(
    record: Partition, agreed: Agreed, seconds: float = LATER, memory: Memory | None = None
) -> Commit | str | None:
    """What the coordinator does so long after it first saw that the count is wrong."""
    memory = Memory(SETTINGS) if memory is None else memory
    resizing.ask_again(seen(agreed, memory=memory, now=100.0), record)
    return resizing.ask_again(seen(agreed, memory=memory, now=100.0 + seconds), record)


def asked(outcome: Commit | str | None) -> Request:
    assert isinstance(outcome, Commit)
    (request,) = put(outcome.changes, Request)
    assert isinstance(request, Request)
    return request


def test_a_partition_with_the_right_count_is_left_alone() -> None:
    assert attempt(stable(), cluster(stable())) is None


@pytest.mark.parametrize(
    ("in_sync", "owner", "kept"),
    [((A, B, C), A, (A, B)), ((C, A), C, (A, C)), ((B, C), B, (B, C)), ((C,), C, (A, C))],
)
def test_a_smaller_count_keeps_the_owner_and_what_is_in_sync(
    in_sync: tuple[Replica, ...], owner: Replica, kept: tuple[Replica, ...]
) -> None:
    """S116."""
    record = stable(in_sync=in_sync, owner=owner)
    request = asked(attempt(record, cluster(record, replica_count=2)))
    assert request.what == MovePartition(P, placed(*kept))


def test_without_an_owner_live_replicas_are_kept_before_dead_ones() -> None:
    record = stable(in_sync=(A,), owner=None)
    agreed = cluster(record, live=("a", "c", "d"), replica_count=2)
    assert asked(attempt(record, agreed)).what == MovePartition(P, placed(A, C))


def test_a_larger_count_is_asked_for_again_on_live_nodes() -> None:
    """S117: the node that failed the first attempt is down, and another one is chosen."""
    record = stable((A, B))
    agreed = cluster(record, live=("a", "b", "d"))
    request = asked(attempt(record, agreed))
    assert isinstance(request.what, MovePartition)
    assert [each.node for each in request.what.placements] == ["a", "b", "d"]


def test_attempts_keep_a_distance_and_an_answered_one_is_not_repeated() -> None:
    record = stable((A, B))
    agreed = cluster(record)
    early = attempt(record, agreed, SETTINGS.resize_seconds - 1)
    words = "it has 2 replicas, and its zone asks for 3"
    assert early == f"{words}: another attempt follows"
    first = asked(attempt(record, agreed))
    waiting = apply(agreed, (Put(first),), 90)
    assert attempt(record, waiting) == f"{words}: the request waits"
    refused = apply(agreed, (Put(replace(first, state="refused", answer="no room")),), 90)
    assert attempt(record, refused) == f"{words}: no room"
    second = asked(attempt(record, refused, 2 * SETTINGS.resize_seconds))
    assert second.id != first.id


def test_an_attempt_waits_for_nodes() -> None:
    record = stable((A, B))
    words = "it has 2 replicas, and its zone asks for 3"
    agreed = cluster(record, live=("a", "b"))
    assert attempt(record, agreed) == f"{words}: 2 data nodes are alive"
    agreed = cluster(record, live=("a", "c", "d"))
    assert attempt(record, agreed) == f"{words}: b is down"


def test_a_rebuild_has_its_turn_between_two_attempts() -> None:
    """S117: a change that was given up never blocks a rebuild."""
    record = stable((A, B), in_sync=(A,))
    view = seen(cluster(record), says("a", of(A, open_epoch=3)), says("b"), memory=Memory(SETTINGS))
    coordinator = Coordinator("one", SETTINGS)
    step = coordinator.next_step(view, record)
    assert isinstance(step, Commit)
    assert "rebuild b" in step.why
    well = seen(cluster(stable((A, B))), *(says(n, of(r)) for n, r in (("a", A), ("b", B))))
    waits = coordinator.next_step(well, stable((A, B)))
    assert isinstance(waits, Waiting)
    assert "another attempt follows" in waits.why
    view.memory.seen_since(P, ("resize", 45), 0.0)
    later = seen(view.agreed, *view.statuses.values(), memory=view.memory, now=200.0)
    step = coordinator.next_step(later, record)
    assert asked(step if isinstance(step, Commit) else None).id.startswith("resize-p")


def test_fewer_replicas_never_drop_one_in_sync_for_one_that_is_not() -> None:
    """S116: what was in sync when the count was set may have changed since."""
    record = stable(in_sync=(A, B))
    assert drops_what_is_in_sync(record, (A, B)) == ""
    assert drops_what_is_in_sync(record, (A,)) == ""
    assert drops_what_is_in_sync(record, (A, B, C)) == ""
    assert drops_what_is_in_sync(stable(in_sync=(A,)), (A, C)) == ""
    words = "c is not in sync, and b, which is, would be dropped"
    assert drops_what_is_in_sync(record, (A, C)) == words


def test_nodes_that_hold_no_data_are_not_chosen() -> None:
    record = stable((A, B))
    nodes = tuple(Node(each.id, tokens=each.id != "c") for each in MEMBERS)
    request = asked(attempt(record, cluster(record, live=NODES, nodes=nodes)))
    assert isinstance(request.what, MovePartition)
    assert [each.node for each in request.what.placements] == ["a", "b", "d"]
