"""What does the coordinator know? The agreed state, and the last status of each live node.

A successor needs none of it: it reads the agreed state and asks the nodes again.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.messages import ReplicaStatus, Status
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Agreed,
    Change,
    Commit,
    Put,
    intent_key,
    lease_key,
    partition_key,
)
from limosa.core.model.keys import NodeId, PartitionId, Revision, transition_id
from limosa.core.model.requests import Request
from limosa.core.model.runs import IN_FLIGHT, RunMove
from limosa.core.model.topology import Node, Partition, Replica, Transition


class ClusterView:
    """One look at everything."""

    def __init__(
        self,
        agreed: Agreed,
        statuses: dict[NodeId, Status],
        coordinator: Revision,
        now: float,
        wall: float = 0.0,
        settings: CoordinatorSettings | None = None,
        memory: Memory | None = None,
        flights: tuple[RunMove, ...] | None = None,
        waiting: list[Request] | None = None,
    ) -> None:
        self.agreed = agreed
        self.statuses = statuses
        self.coordinator = coordinator
        self.now = now
        self.wall = wall
        """The wall-clock time; nothing is decided by it."""
        self.settings = settings or CoordinatorSettings()
        self.memory = memory or Memory(self.settings)
        self._flights = flights
        self._waiting = waiting

    def waiting(self) -> list[Request]:
        """Requests that are not answered yet, the oldest first."""
        if self._waiting is None:
            requests = self.agreed.requests.values()
            self._waiting = [each for each in requests if each.state == "waiting"]
        return self._waiting

    def flights(self) -> tuple[RunMove, ...]:
        """Moves of the current run whose last attempt may not have ended."""
        if self._flights is None:
            moves = self.agreed.moves.get(self.agreed.rebalance.run, {}).values()
            self._flights = tuple(m for m in moves if m.state in (*IN_FLIGHT, "COMMITTED"))
        return self._flights

    def is_under_way(self, move: RunMove) -> bool:
        """Is the move's last attempt the pending change of its partition?"""
        intent = self.agreed.intents.get(move.partition)
        pending = None if intent is None else intent.pending
        return pending is not None and pending.trigger == move.trigger

    def transition_of(self, move: RunMove) -> Transition | None:
        """The transition of the move's last attempt; None: it has not begun, or has ended."""
        record = self.agreed.topology.partitions.get(move.partition)
        change = None if record is None else record.transition
        return change if change is not None and change.id == transition_id(move.trigger) else None

    def is_live(self, node: NodeId) -> bool:
        return node in self.agreed.leases

    def lease_of(self, node: NodeId) -> int:
        return self.agreed.leases[node].lease

    def status(self, node: NodeId) -> Status | None:
        """The status of a live node under its present lease; statuses under earlier leases are
        void."""
        lease = self.agreed.leases.get(node)
        status = self.statuses.get(node)
        if lease is None or status is None or status.lease != lease.lease:
            return None
        return status if status.generation else None

    def of(self, record: Partition, replica: Replica) -> ReplicaStatus | None:
        status = self.status(replica.node)
        if status is None:
            return None
        for known in status.replicas.get(record.id, ()):
            if known.replica == replica:
                return known
        return None

    def is_lost(self, record: Partition, replica: Replica) -> bool:
        """The replica's node lives and has applied the record, but does not hold the replica."""
        status = self.status(replica.node)
        revision = self.agreed.topology.revision_of(record.id)
        return (
            status is not None
            and status.generation >= revision
            and self.of(record, replica) is None
        )

    def is_behind(self, record: Partition, replica: Replica) -> bool:
        """The replica's node has reported, but has not applied the record."""
        status = self.status(replica.node)
        return status is not None and status.generation < self.agreed.topology.revision_of(
            record.id
        )

    def has_node_behind(self, record: Partition) -> bool:
        return any(self.is_behind(record, replica) for replica in record.replicas)

    def working_volumes(self, node: NodeId) -> tuple[str, ...]:
        """The volumes that a member has and can use, as far as is known."""
        known, status = self.agreed.topology.nodes.get(node), self.status(node)
        volumes = () if known is None else known.volumes
        failed = () if status is None else status.failed_volumes
        return tuple(each for each in volumes if each not in failed)

    def is_damaged(self, record: Partition, replica: Replica) -> bool:
        """The replica's node reports that some of its rows can't be read."""
        known = self.of(record, replica)
        return known is not None and bool(known.damaged)

    def with_working_volumes(self) -> dict[NodeId, Node]:
        """All members, each with the volumes that work; with all of its volumes if none does."""
        return {
            name: replace(node, volumes=self.working_volumes(name) or node.volumes)
            for name, node in self.agreed.topology.nodes.items()
        }

    def owner_lives(self, record: Partition) -> bool:
        """An owner owns under one lease: if that lease has ended, so has its ownership."""
        grant = record.owner
        lease = None if grant is None else self.agreed.leases.get(grant.replica.node)
        return grant is not None and lease is not None and lease.lease == grant.lease

    def owner_status(self, record: Partition) -> ReplicaStatus | None:
        return None if record.owner is None else self.of(record, record.owner.replica)

    def barrier(self, partition: PartitionId) -> str:
        """Why the barrier is not passed, in words; empty: it is. Every live node must have applied
        the record, ended the requests that began before it, and released the permits of closed
        sessions. A dead node must register again."""
        revision = self.agreed.topology.revision_of(partition)
        for node in sorted(self.agreed.leases):
            status = self.status(node)
            if status is None or status.generation < revision:
                return f"barrier: {node} has not applied generation {revision}"
            if status.busy.get(partition, revision) < revision:
                return f"barrier: {node} still works on requests from before generation {revision}"
        return ""

    def commit(
        self, before: Partition, after: Partition, why: str, more: tuple[Change, ...] = ()
    ) -> Commit:
        """A change of one partition's record, guarded by everything it was computed from."""
        after = replace(after, eligible=self.eligible(before, after))
        guards = self.guards(before) | self.guards(after)
        changes = (Put(self.stamped(before, after)), *more)
        return Commit(guards, changes, f"{before.id}: {why}")

    def eligible(self, before: Partition, after: Partition) -> tuple[Replica, ...]:
        """Replicas that may still be elected after this change, though they are not in sync.

        They left the in-sync set when too few replicas stayed in it, or later, and nothing is
        committed without them until enough are in sync again. A replica that is lost or damaged is
        not among them. One that a transition will drop may be, as long as it is read.

        While others are eligible, an owner opens only if it knows that all of its log is committed.
        If another owner would need every replica that can return, it might wait for ever; so then
        none is eligible, and the owner opens alone. So it does if a transition drops dead replicas,
        and too few others are left.
        """
        zone = self.agreed.topology.zones[after.zone]
        here = routing.electable(after)
        missing = routing.needed(after, zone) - len(here)
        if missing <= 0:
            return ()
        left = (r for r in before.in_sync if r not in after.in_sync)
        out = [r for r in routing.out_of_sync(after) if self.is_sound(before, r)]
        eligible = tuple(r for r in (*before.eligible, *left) if r in out)
        if before.eligible and self.owner_is_closed(before):
            dropped = routing.old_only(after)
            returning = [r for r in out if self.is_reachable(before, r)]
            dead = [r for r in returning if r in dropped and not self.is_live(r.node)]
            if len(returning) <= missing or len(returning) - len(dead) < missing:
                return ()
        return eligible

    def owner_is_closed(self, record: Partition) -> bool:
        """The owner says that it has not opened under this record, and that not all of its log is
        committed. While others are eligible, it can't open before the record changes."""
        grant, known = record.owner, self.owner_status(record)
        if grant is None or known is None or not self.owner_lives(record):
            return False
        generation = self.statuses[grant.replica.node].generation
        has_applied = generation >= self.agreed.topology.revision_of(record.id)
        return has_applied and known.open_epoch != record.epoch and known.watermark < known.last

    def is_reachable(self, record: Partition, replica: Replica) -> bool:
        """The owner's log has what the replica lacks; otherwise it must be rebuilt, which needs an
        owner that is open."""
        known = self.owner_status(record)
        return known is None or replica not in known.unreachable

    def is_sound(self, record: Partition, replica: Replica) -> bool:
        """The replica is neither lost nor damaged, as far as is known."""
        return not self.is_lost(record, replica) and not self.is_damaged(record, replica)

    def stamped(self, before: Partition, after: Partition) -> Partition:
        """Record when the transition entered its stage, for people."""
        old, new = before.transition, after.transition
        if new is None or (old is not None and old.stage == new.stage):
            return after
        begun = self.wall if old is None else new.begun
        return replace(after, transition=replace(new, begun=begun, since=self.wall))

    def guards(self, record: Partition) -> dict[str, Revision]:
        keys = [partition_key(record.id), intent_key(record.id)]
        keys += sorted({lease_key(replica.node) for replica in routing.everywhere(record)})
        return self.guarded(keys)

    def guarded(self, keys: Iterable[str]) -> dict[str, Revision]:
        """The present revisions of keys, and of this coordinator's own key."""
        guards = {key: self.agreed.revision_of(key) for key in keys}
        guards[COORDINATOR_KEY] = self.coordinator
        return guards


def with_stage(record: Partition, stage: str, **changes: object) -> Partition:
    """The record with its transition in another stage."""
    assert record.transition is not None
    return replace(record, transition=replace(record.transition, stage=stage, **changes))
