"""Does cost grow with what changes, and not with the number of partitions? Work is counted here;
`make bench NAME=scale` measures time."""

import pytest
from msgspec import Struct

from limosa.core.messages import Look, Probe, Probed, Status
from limosa.core.model.changes import Commit, united
from limosa.core.participant.reporting import TURN_PARTITIONS, TURN_SECONDS
from limosa.metastore.sqlite import SqliteMetastore
from limosa.simulation.hosts import CommitAnswer
from tests.simulation.scenarios import Scenario

NODES = 4
IDLE_SECONDS = 20.0
FEW = 100
OPERATIONS_MAX = SqliteMetastore.operations_max
"""Of one commit; that of the simulator is so small that every commit is divided."""


class Cost(Struct, frozen=True):
    """What a cluster did."""

    idle_messages: int
    idle_reported: int
    """Replicas in all reports to the coordinator while nothing happened."""
    idle_commits: int
    write_messages: int
    """For one row, besides those that an idle cluster sends."""
    failover_partitions: int
    failover_commits: int
    failover_operations: int
    """Guards and changes of all these commits."""
    failover_messages: int


class CountedScenario(Scenario):
    """Counts transactions of the metastore, and what is in them."""

    transactions = 0
    operations = 0

    def commit_all(self, together: list[Commit], by: str) -> CommitAnswer:
        union = united(together)
        self.transactions += 1
        self.operations += len(union.guards) + len(union.changes)
        return super().commit_all(together, by)


def cost_of(partitions: int) -> Cost:
    """A cluster of four nodes idles, takes one write, and loses a node."""
    world = CountedScenario(nodes=NODES, partitions=partitions, operations_max=OPERATIONS_MAX)
    world.run_for(3.0)
    heard, made = len(world.wire.said), world.transactions
    world.run_for(IDLE_SECONDS)
    idle = world.wire.said[heard:]
    reports = [each.message for each in idle if isinstance(each.message, Status)]
    reported = sum(len(report.replicas) for report in reports)
    idle_commits = world.transactions - made

    heard = len(world.wire.said)
    world.put_many(1)
    world.run_for(1.0)
    always = (Look, Status, Probe, Probed)
    written = [each for each in world.wire.said[heard:] if not isinstance(each.message, always)]

    names = list(world.agreed.topology.partitions)
    victim = world.owner(names[0])
    lost = [name for name in names if world.owner(name) is victim]
    heard, made, done = len(world.wire.said), world.transactions, world.operations
    victim.crash()
    world.until(lambda: all(has_another_owner(world, name, victim.name) for name in lost), 30.0)
    return Cost(
        idle_messages=len(idle),
        idle_reported=reported,
        idle_commits=idle_commits,
        write_messages=len(written),
        failover_partitions=len(lost),
        failover_commits=world.transactions - made,
        failover_operations=world.operations - done,
        failover_messages=len(world.wire.said) - heard,
    )


def has_another_owner(world: Scenario, partition: str, before: str) -> bool:
    grant = world.record(partition).owner
    return grant is not None and grant.replica.node != before and world.is_open(partition)


@pytest.mark.parametrize(
    "many",
    [
        pytest.param(1_000, marks=pytest.mark.thorough),
        pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_cost_grows_with_what_changes_and_not_with_the_number_of_partitions(
    many: int,
) -> None:
    """F196: beside a cluster with few partitions, one with very many sends no more messages while
    it is idle, reports a bounded number of replicas in each of them, commits nothing, and needs no
    more messages for a write. When a node fails, what is sent for each partition that gets another
    owner is the same, and all of these partitions share a few commits."""
    few, lots = cost_of(FEW), cost_of(many)
    assert few.idle_commits == lots.idle_commits == 0
    assert lots.idle_messages <= 1.2 * few.idle_messages
    assert lots.idle_reported <= NODES * TURN_PARTITIONS * IDLE_SECONDS / TURN_SECONDS
    assert few.write_messages == lots.write_messages
    assert lots.failover_partitions >= many / 5
    assert per_partition(lots.failover_messages, lots) <= 1.2 * per_partition(
        few.failover_messages, few
    )
    assert per_partition(lots.failover_operations, lots) <= 1.2 * per_partition(
        few.failover_operations, few
    )
    # Most commits are at least half full.
    full = lots.failover_operations / OPERATIONS_MAX
    assert lots.failover_commits <= few.failover_commits + 2 * full


def per_partition(count: int, cost: Cost) -> float:
    """For each partition that got another owner."""
    return count / cost.failover_partitions
