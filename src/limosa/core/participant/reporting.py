"""What does a node report to the coordinator? The state of its replicas, and work under way."""

from math import inf

from limosa.core.events import Measured
from limosa.core.messages import Look, ReplicaStatus, Status
from limosa.core.model.keys import PartitionId, Revision
from limosa.core.participant.held import Held
from limosa.core.participant.hosting import Hosting
from limosa.core.participant.state import NodeState

STATUS_SECONDS_EACH = 0.00002


class Reporting:
    """Reports changes to the coordinator that looked last."""

    def __init__(self, node: NodeState, hosting: Hosting) -> None:
        self._node = node
        self._hosting = hosting
        self._coordinator: str | None = None
        self._sequence = 0
        self._told_at = -inf

    def look(self, now: float, sender: str, message: Look) -> None:
        self._coordinator = sender
        if message.generation > self._node.topology.generation:
            self._hosting.refresh(
                now
            )  # and report afterwards: a report of now would be out of date
        else:
            self._tell(now)
        self._node.vitals.looked(now, self._sequence, message.heard)

    def measured(self, event: Measured) -> None:
        """Sizes are part of the next report."""
        self._node.measured = event

    def tell_changes(self, now: float) -> None:
        if self._node.changed and now - self._told_at >= self._quiet_seconds():
            self._tell(now)

    def _quiet_seconds(self) -> float:
        """Seconds between two reports: a report of more replicas costs more."""
        return self._node.settings.status_seconds + STATUS_SECONDS_EACH * len(self._node.held)

    def _tell(self, now: float) -> None:
        node = self._node
        if self._coordinator is not None and node.lease is not None:
            node.changed = False
            self._told_at = now
            node.send(self._coordinator, self.status(now))

    def status(self, now: float) -> Status:
        assert self._node.lease is not None
        self._sequence += 1
        replicas: dict[PartitionId, list[ReplicaStatus]] = {}
        busy: dict[PartitionId, Revision] = {}
        for (partition, _), held in self._node.held.items():
            record = self._node.topology.partitions.get(partition)
            change = None if record is None else record.transition
            oldest = held.oldest_work(None if change is None else change.session)
            if oldest is not None:
                busy[partition] = min(oldest, busy.get(partition, oldest))
            owner = self._node.owners.get(partition)
            if owner is not None and owner.collecting is not None and owner.is_collecting():
                busy[partition] = min(owner.collecting[1], busy.get(partition, owner.revision))
            if held.made:
                replicas.setdefault(partition, []).append(self._replica_status(now, held))
        for partition, _ in self._hosting.discarding:
            busy[partition] = 0
        return Status(
            self._node.node,
            self._node.lease.id,
            self._sequence,
            self._node.topology.generation if self._node.lease.registered else 0,
            busy,
            {partition: tuple(all_of) for partition, all_of in replicas.items()},
            self._node.measured.free_bytes,
            tuple(self._node.failed_volumes),
        )

    def _replica_status(self, now: float, held: Held) -> ReplicaStatus:
        owner = self._node.owners.get(held.partition)
        rows, size = self._node.measured.sizes.get(
            (held.partition, held.replica.incarnation), (0, 0)
        )
        if owner is None or owner.held is not held:
            return ReplicaStatus(
                held.replica,
                held.epoch_durable,
                held.last,
                held.watermark,
                copied=held.copied,
                digest=held.digest,
                copying=held.copying(),
                rows=rows,
                bytes=size,
                checking=held.checking,
                trouble=held.trouble,
                damaged=held.damaged,
            )
        return ReplicaStatus(
            held.replica,
            held.epoch_durable,
            held.last,
            held.watermark,
            # Whether or not its lease holds now: it once opened in this epoch.
            owner.epoch if owner.open else 0,
            owner.seal_report(),
            held.copied,
            held.digest,
            owner.silent(now),
            owner.caught_up(),
            tuple(peer.replica for peer in owner.peers.values() if not peer.reachable),
            held.copying(),
            owner.commit_seconds(now),
            rows,
            size,
            held.checking,
            held.trouble,
            self._node.measured.rates.get(held.partition, (0.0, 0.0)),
            held.damaged,
            int(self._node.pace.rate) if self._node.in_transition(held.partition) else 0,
        )
