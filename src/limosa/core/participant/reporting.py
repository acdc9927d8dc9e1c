"""What does a node report to the coordinator? The replicas that changed, and work under way.

The first report under a lease to a coordinator names all replicas, and so does a report that the
coordinator asks for because it missed one. Every other report names what changed since the report
before it, so that it costs nothing for replicas that did not change.

Logs that merely grow, sizes and rates are no reason for a report: about once a second a report
names some more replicas, in turns, so that the coordinator gets to know these, too.

Every report names the owned partitions in a transition, because the coordinator plans their pauses
by the time that commits take now.
"""

from math import inf

from limosa.core.events import Measured
from limosa.core.messages import WHOLE_STATUS, Look, ReplicaStatus, Status
from limosa.core.model.keys import LeaseId, PartitionId, Revision
from limosa.core.participant.held import Held
from limosa.core.participant.hosting import Hosting
from limosa.core.participant.state import NodeState

STATUS_SECONDS_EACH = 0.00002
TURN_SECONDS = 0.8
"""The least time between two reports that name further partitions."""
TURN_PARTITIONS = 256
"""How many further partitions such a report names."""


class Reporting:
    """Reports changes to the coordinator that looked last."""

    def __init__(self, node: NodeState, hosting: Hosting) -> None:
        self._node = node
        self._hosting = hosting
        self._coordinator: str | None = None
        self._sequence = 0
        self._told: tuple[str, LeaseId] | None = None
        """Who got the last report, and the lease that it was made under."""
        self._told_at = -inf
        self._told_count = 0
        self._turn_at = -inf
        self._turns: list[PartitionId] = []
        """Partitions that are still to be named in this round."""
        self._whole_wanted = False

    def look(self, now: float, sender: str, message: Look) -> None:
        self._coordinator = sender
        self._whole_wanted |= message.whole
        if message.generation > self._node.topology.generation:
            self._hosting.refresh(
                now
            )  # and report afterwards: a report of now would be out of date
        else:
            self._tell(now)
        self._node.vitals.looked(now, self._sequence, message.heard)

    def measured(self, event: Measured) -> None:
        """Sizes are part of later reports."""
        self._node.measured = event

    def tell_changes(self, now: float) -> None:
        if self._node.changed and now - self._told_at >= self._quiet_seconds():
            self._tell(now)

    def _quiet_seconds(self) -> float:
        """Seconds until the next report: a report of more replicas costs more."""
        return self._node.settings.status_seconds + STATUS_SECONDS_EACH * self._told_count

    def _tell(self, now: float) -> None:
        node = self._node
        if self._coordinator is None or node.lease is None:
            return
        to = (self._coordinator, node.lease.id)
        is_whole = self._whole_wanted or to != self._told
        changed = node.changed.take() | node.owned_in_transition
        names = self._hosting.partitions() if is_whole else list(changed | self._next_turn(now))
        after = WHOLE_STATUS if is_whole else self._sequence
        self._sequence += 1
        self._told, self._told_at, self._told_count = to, now, len(names)
        self._whole_wanted = False
        status = self._status(now, names, after)
        node.send(self._coordinator, status)
        for name, replicas in status.replicas.items():
            if name in node.owners:
                silent = tuple(each for replica in replicas for each in replica.silent)
                node.owners[name].told_silent = silent

    def _next_turn(self, now: float) -> dict[PartitionId, None]:
        """Further partitions, so that all of them are named now and then."""
        if now - self._turn_at < TURN_SECONDS:
            return {}
        self._turn_at = now
        turns = self._turns or self._hosting.partitions()
        self._turns = turns[TURN_PARTITIONS:]
        return dict.fromkeys(turns[:TURN_PARTITIONS])

    def status(self, now: float) -> Status:
        """All that this node knows, for anybody who asks; the coordinator's reports go on as if
        nobody had."""
        return self._status(now, self._hosting.partitions(), WHOLE_STATUS)

    def _status(self, now: float, names: list[PartitionId], after: int) -> Status:
        node = self._node
        assert node.lease is not None
        replicas: dict[PartitionId, tuple[ReplicaStatus, ...]] = {}
        gone: list[PartitionId] = []
        for name in names:
            made = [held for held in self._hosting.here(name) if held.made]
            if made:
                replicas[name] = tuple(self._replica_status(now, held) for held in made)
            elif after != WHOLE_STATUS:
                gone.append(name)
        return Status(
            node.node,
            node.lease.id,
            self._sequence,
            node.topology.generation if node.lease.registered else 0,
            self._busy(),
            replicas,
            node.measured.free_bytes,
            tuple(node.failed_volumes),
            after,
            tuple(gone),
        )

    def _busy(self) -> dict[PartitionId, Revision]:
        """Work that began under older records than the applied ones: barriers wait for its end."""
        busy: dict[PartitionId, Revision] = {}
        for partition, oldest in self._node.outdated_work():
            busy[partition] = min(oldest, busy.get(partition, oldest))
        for partition, _ in self._hosting.discarding:
            busy[partition] = 0
        return busy

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
            owner.unreachable(),
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
