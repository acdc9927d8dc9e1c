"""Is each move in flight shown as it is: its stage, how much has landed, what it waits for?"""

from msgspec.structs import replace

from limosa.core.insight.watching import Moving, WatchedRun, seen_from_outside, watched
from limosa.core.machines.catalogue import READ_NEW, STREAMING
from limosa.core.model.requests import StartRun
from tests.core.running import ONE_AT_A_TIME, Cluster, move, plan


def running() -> Cluster:
    cluster = Cluster()
    some = plan(move("p0", "a", "b"), move("p1", "a", "c"), limits=ONE_AT_A_TIME)
    assert cluster.ask(StartRun(some)).startswith("done")
    cluster.step()
    return cluster


def seen(cluster: Cluster) -> WatchedRun:
    return watched(cluster.view(), cluster.last_run().id)


def the_one(cluster: Cluster) -> Moving:
    (moving,) = seen(cluster).moving
    assert moving.move.partition == "p0"
    return moving


def landed(cluster: Cluster, landed: int, slices: int) -> None:
    cluster.say("b", {"p0": (5, 500)})
    status = cluster.statuses["b"]
    told = tuple(replace(each, copying=(landed, slices)) for each in status.replicas["p0"])
    cluster.statuses["b"] = replace(status, replicas={"p0": told})


def test_a_move_is_followed_from_its_intent_to_the_switch() -> None:
    """F72: stage and share of every move in flight, and why it is not further."""
    cluster = running()
    assert len(seen(cluster).progress.current) == 1
    begun = the_one(cluster)
    assert (begun.kind, begun.stage, begun.share) == ("", "", 0.0)
    assert begun.waits_for

    cluster.stage("p0", "write_both_read_old")
    early = the_one(cluster)
    assert (early.kind, early.stage) == ("move", "write_both_read_old")
    assert (early.slices, early.share) == (0, 0.0)

    cluster.stage("p0", STREAMING)
    assert (the_one(cluster).slices, the_one(cluster).share) == (0, 0.0)
    landed(cluster, 3, 12)
    copying = the_one(cluster)
    assert (copying.stage, copying.landed, copying.slices, copying.share) == (
        STREAMING,
        3,
        12,
        0.25,
    )
    assert copying.waits_for

    cluster.stage("p0", READ_NEW)
    assert (the_one(cluster).stage, the_one(cluster).share) == (READ_NEW, 1.0)


def test_a_partition_that_changes_for_another_reason_is_not_taken_for_the_move() -> None:
    cluster = running()
    cluster.stage("p0", STREAMING)
    record = cluster.record("p0")
    assert record.transition is not None
    cluster.put(replace(record, transition=replace(record.transition, id="t1")))
    assert (the_one(cluster).stage, the_one(cluster).slices) == ("", 0)


def test_a_move_of_a_dropped_partition_says_nothing() -> None:
    cluster = running()
    topology = replace(cluster.agreed.topology, partitions={})
    cluster.agreed = replace(cluster.agreed, topology=topology)
    assert the_one(cluster) == Moving(the_one(cluster).move)


def test_a_process_that_is_not_the_coordinator_sees_the_same() -> None:
    cluster = running()
    view = seen_from_outside(cluster.agreed, cluster.statuses, cluster.now)
    assert watched(view, cluster.last_run().id) == seen(cluster)
