"""Which replicas are here? Those that the applied topology names; the node drops all others.

A node creates a missing replica only if the replica was never used. Every other missing replica is
lost, and the node reports it.
"""

from collections import deque
from math import inf

from limosa.core import routing
from limosa.core.effects import (
    AbandonVolume,
    CreateReplica,
    DiscardReplica,
    EndRun,
    ReadTopology,
    StoreEpoch,
)
from limosa.core.events import (
    LogLost,
    Received,
    ReplicaDamaged,
    Started,
    TopologyRead,
    VolumeLost,
)
from limosa.core.messages import DropReplica, Probe, Replicate, Seal
from limosa.core.model.changes import Topology
from limosa.core.model.keys import Incarnation, PartitionId, Revision
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.held import Held
from limosa.core.participant.overdue import SyncWatch
from limosa.core.participant.serving import Serving
from limosa.core.participant.state import NodeState

AHEAD_MAX = 255
UNKNOWN_SECONDS = 10.0
"""After this time an unknown version of a table may have been created."""
UNKNOWN_MAX = 1000

Stamped = Probe | Replicate | Seal | DropReplica
"""Messages that name the revision of the record that their sender acted on."""


class Hosting:
    """Applies topologies: creates, keeps and drops replicas, and decides which ones it owns."""

    def __init__(self, node: NodeState, serving: Serving) -> None:
        self._node = node
        self._serving = serving
        self._here: dict[PartitionId, list[Held]] = {}
        """The same replicas as `node.held`, by partition."""
        self.discarding: dict[tuple[PartitionId, Incarnation], Replica] = {}
        self._dropped: deque[tuple[PartitionId, Incarnation]] = deque(maxlen=256)
        """Replicas that this run dropped at a transition's end; other missing ones are lost."""
        self._ahead: list[Received] = []
        """Messages of senders that know a newer topology: they wait until it is applied."""
        self._watch = SyncWatch(node.tickets)
        self._reading = False
        self._refreshed_at = -inf
        self._unknown: dict[int, float] = {}
        """Versions of tables that callers use and that are not known here: since when."""

    # --- the topology

    def started(self, event: Started) -> None:
        self._node.volumes = event.volumes
        for stored in event.held:
            self._add(Held.restored(stored, self._node.settings.recent_bytes))

    def tick(self, now: float) -> None:
        node = self._node
        seconds_max, full = node.settings.sync_seconds_max, node.measured.full
        for volume in self._watch.tick(now, seconds_max, full):
            self._give_up(volume)
        if node.is_outdated or now - self._refreshed_at >= node.settings.refresh_seconds:
            node.is_outdated = False
            self.refresh(now)

    def refresh(self, now: float) -> None:
        """Read the topology: one read at a time; a read without an answer is retried."""
        if not self._reading or now - self._refreshed_at > self._node.settings.resend_seconds:
            self._reading = True
            self._refreshed_at = now
            self._node.out.append(ReadTopology())

    def catch_up(self, now: float) -> None:
        """Read the topology at once, if a sender is known to have a newer one."""
        if self._node.is_outdated:
            self._node.is_outdated = False
            self.refresh(now)

    def is_ahead(self, message: Stamped) -> bool:
        """The sender acted on a newer record: this node must apply it before it decides.

        A topology from after that record is new enough, also if the partition was dropped since.
        """
        return message.revision > self._node.topology.generation

    def wait(self, now: float, event: Received) -> None:
        self._ahead = [*self._ahead[-AHEAD_MAX:], event]
        self.refresh(now)

    def may_learn(self, now: float, schema: int) -> bool:
        """May a newer topology know this version of a table? Only a topology that was read after
        the first question shows that it does not exist."""
        node = self._node
        first = self._unknown.get(schema, -inf)
        if now - first > UNKNOWN_SECONDS:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            first = self._unknown[schema] = now
        is_registered = node.lease is not None and node.lease.registered
        if is_registered and self._refreshed_at > first and not self._reading:
            return False
        node.is_outdated = True
        return True

    def forget_waiting(self) -> None:
        self._ahead.clear()

    def topology_read(self, now: float, event: TopologyRead) -> list[Received]:
        """Apply the topology if it is newer; returns the messages that waited for it."""
        node = self._node
        self._reading = self._reading and not event.asked
        if node.lease is None or not (node.lease.registered or self.is_fresh(event.revision)):
            return []  # it may be older than the topology of an earlier run
        if self.is_newer(event.topology):
            before = node.topology
            node.topology = event.topology
            node.changed.mark_node()
            if node.lease.registered:
                for partition in node.topology.changed_since(before):
                    record = node.topology.partitions.get(partition)
                    node.vitals.changed(now, before.partitions.get(partition), record)
                    self._apply(now, partition)
        if not node.lease.registered:
            self.register(now)
        waiting, self._ahead = self._ahead, []
        return waiting

    def is_newer(self, topology: Topology) -> bool:
        return topology.generation > self._node.topology.generation

    def is_fresh(self, revision: Revision) -> bool:
        """Only a topology from after the new lease shows what happened while no lease was held."""
        return self._node.lease is not None and revision >= self._node.lease.revision

    def register(self, now: float) -> None:
        """Apply the whole topology, and drop the replicas that it does not name."""
        node = self._node
        assert node.lease is not None
        node.lease.registered = True
        node.changed.mark_node()
        for partition in {partition: None for partition, _ in node.held} | dict.fromkeys(
            node.topology.partitions
        ):
            self._apply(now, partition)

    def _apply(self, now: float, partition: PartitionId) -> None:
        node = self._node
        record = node.topology.partitions.get(partition)
        named = (
            [] if record is None else [r for r in routing.everywhere(record) if r.node == node.node]
        )
        for held in self.here(partition):
            node.changed.mark(partition)
            if held.replica not in named:
                self._discard(held)
        if record is None:
            return
        revision = node.topology.revision_of(partition)
        for replica in named:
            here = node.held.get((partition, replica.incarnation))
            if here is not None:
                self._adopt(now, here, record, revision)
            elif self.may_create(record, replica):
                self._create(record, replica)

    # --- replicas

    def partitions(self) -> list[PartitionId]:
        """Those that have replicas here."""
        return list(self._here)

    def here(self, partition: PartitionId) -> list[Held]:
        """The partition's replicas on this node."""
        return list(self._here.get(partition, ()))

    def _add(self, held: Held) -> None:
        self._node.held[held.partition, held.replica.incarnation] = held
        self._here.setdefault(held.partition, []).append(held)

    def may_create(self, record: Partition, replica: Replica) -> bool:
        """Only a replica that was never used is created; any other missing replica is lost, and so
        is one on a volume that can't be used."""
        if not self._node.can_use(replica.volume):
            return False
        if record.transition is None:
            return record.epoch == 0
        return routing.prepares(record.transition) and replica in routing.new_only(record)

    def _create(self, record: Partition, replica: Replica) -> None:
        node = self._node
        for held in self.here(record.id):
            if held.replica not in record.in_sync and not held.damaged:
                self._discard(held)
        held = self.empty(record, replica)
        self._add(held)
        ticket = node.tickets.appending(held, held.revision)
        node.tickets.when_stored(ticket, replica.volume, lambda now: self._made(held))
        node.out.append(CreateReplica(record.id, replica.incarnation, ticket, replica.volume))
        self._promise(held, record.epoch)

    def _made(self, held: Held) -> None:
        """The replica counts from now on, whatever else is under way to the volume."""
        held.made = True
        self._node.changed.mark(held.partition)

    def empty(self, record: Partition, replica: Replica) -> Held:
        held = Held(record.id, replica, self._node.settings.recent_bytes)
        held.revision = self._node.topology.revision_of(record.id)
        return held

    def drop(self, message: DropReplica) -> None:
        """Drop a replica at the end of a transition; a call for another revision does nothing."""
        node = self._node
        held = node.held.get((message.partition, message.to))
        record = node.topology.partitions.get(message.partition)
        if held is None or record is None or held.replica in routing.written(record):
            return
        if message.revision == node.topology.revision_of(message.partition):
            self._dropped.append((message.partition, message.to))
            self._discard(held)

    def damaged(self, event: ReplicaDamaged) -> None:
        """Report the damage; the coordinator replaces the replica. Its files stay until then: what
        they still hold may be needed."""
        held = self._node.held.get((event.partition, event.incarnation))
        if held is not None and not held.damaged:
            held.damaged = event.why
            self._node.changed.mark(held.partition)

    def log_lost(self, event: LogLost) -> None:
        held = self._node.held.get((event.partition, event.incarnation))
        if held is not None:
            self._node.out += held.lose(event.through)

    def was_dropped(self, partition: PartitionId, incarnation: Incarnation) -> bool:
        return (partition, incarnation) in self._dropped

    def _discard(self, held: Held) -> None:
        node = self._node
        key = self._forget(held)
        self.discarding[key] = held.replica
        ticket = node.when_stored(held, lambda now: self._discarded(key))
        node.out.append(DiscardReplica(*key, ticket))

    def _forget(self, held: Held) -> tuple[PartitionId, Incarnation]:
        key = (held.partition, held.replica.incarnation)
        self._serving.disown(held)
        del self._node.held[key]
        self._here[held.partition].remove(held)
        if not self._here[held.partition]:
            del self._here[held.partition]
        self._node.changed.mark(held.partition)
        return key

    def _give_up(self, volume: str) -> None:
        """A sync hangs: continue without the volume, if the node has another one. Otherwise the run
        ends, so that the node's lease does, too: it could promise and acknowledge nothing."""
        node = self._node
        why = f"a sync has not ended for {node.settings.sync_seconds_max:.0f} s"
        if any(node.can_use(other) for other in node.volumes if other != volume):
            self.volume_lost(VolumeLost(volume, why))
            node.out.append(AbandonVolume(volume, why))
        else:
            node.out.append(EndRun(why))

    def volume_lost(self, event: VolumeLost) -> None:
        """The replicas of the volume are lost; those of other volumes are not concerned."""
        node = self._node
        node.failed_volumes[event.volume] = event.why
        node.tickets.forget(event.volume)
        for held in [h for h in node.held.values() if h.replica.volume == event.volume]:
            self._forget(held)
        # A replica that was being discarded there is discarded when the process restarts.
        self.discarding = {
            key: replica
            for key, replica in self.discarding.items()
            if replica.volume != event.volume
        }
        node.changed.mark_node()

    def _discarded(self, key: tuple[PartitionId, Incarnation]) -> None:
        self.discarding.pop(key, None)
        self._node.changed.mark_node()

    def _adopt(self, now: float, held: Held, record: Partition, revision: Revision) -> None:
        held.revision = revision
        self._node.watch_work(held)
        self._promise(held, record.epoch)
        session = None if record.transition is None else record.transition.session
        if held.session != session:
            held.session = session
            held.forget_copy()
        if self.is_mine(record, held.replica):
            self._serving.own(now, held, record, revision)
        else:
            self._serving.disown(held)

    def _promise(self, held: Held, epoch: int) -> None:
        """Refuse older epochs from now on; the promise counts once it is durable."""
        if epoch > held.epoch:
            held.epoch = epoch
            ticket = self._node.when_stored(held, lambda now: self._promised(held, epoch))
            change = StoreEpoch(held.partition, held.replica.incarnation, ticket, epoch)
            self._node.out.append(change)

    def _promised(self, held: Held, epoch: int) -> None:
        held.epoch_durable = max(held.epoch_durable, epoch)
        self._node.changed.mark(held.partition)

    def is_mine(self, record: Partition, replica: Replica) -> bool:
        """An epoch is granted to one run of a process: another lease is another run."""
        grant, lease = record.owner, self._node.lease
        return (
            grant is not None
            and grant.replica == replica
            and lease is not None
            and grant.lease == lease.id
        )
