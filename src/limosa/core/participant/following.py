"""What does a follower do? It appends its owner's log without gaps and acks what is durable."""

from typing import Literal

from limosa.core import routing
from limosa.core.effects import AppendEntries, BeginLog, Surprise, TruncateLog
from limosa.core.messages import Acked, Objection, Probe, Probed, Replicate, Unheld
from limosa.core.model.keys import Incarnation, PartitionId, Position
from limosa.core.model.rows import Entry
from limosa.core.model.topology import Replica
from limosa.core.participant.held import Held
from limosa.core.participant.hosting import Hosting
from limosa.core.participant.space import can_follow
from limosa.core.participant.state import NodeState


class Following:
    """The receiving end of replication."""

    def __init__(self, node: NodeState, hosting: Hosting) -> None:
        self._node = node
        self._hosting = hosting

    def received(self, sender: str, message: Probe | Replicate) -> None:
        node = self._node
        if node.lease is None or not node.lease.registered:
            return
        held = node.held.get((message.partition, message.to))
        why = self.objection(held, message)
        if why:
            replica = Replica(node.node, message.to) if held is None else held.replica
            named = self._named(message.partition, message.to) or replica
            self._refuse(sender, message, named, why)
            return
        assert held is not None
        if isinstance(message, Probe):
            node.send(sender, self._probed(held, message, held.last))
        else:
            self._replicate(sender, held, message)

    def _refuse(
        self, sender: str, message: Probe | Replicate, replica: Replica, why: Objection
    ) -> None:
        run, revision = self._node.run(), message.revision
        refusal = Unheld(message.partition, replica, message.epoch, revision, why, run)
        self._node.send(sender, refusal)

    def _named(self, partition: PartitionId, incarnation: Incarnation) -> Replica | None:
        record = self._node.topology.partitions.get(partition)
        for replica in () if record is None else routing.everywhere(record):
            if replica.incarnation == incarnation and replica.node == self._node.node:
                return replica
        return None

    def objection(self, held: Held | None, message: Probe | Replicate) -> Objection | Literal[""]:
        if held is None:
            dropped = self._hosting.was_dropped(message.partition, message.to)
            return "dropped" if dropped else "lost"
        if not self.is_current(held, message):
            return "stale epoch"
        record = self._node.topology.partitions.get(message.partition)
        if record is None or message.revision < record.fence:
            return "fenced"
        return "lost" if held.damaged and held.replica not in record.in_sync else ""

    def is_current(self, held: Held, message: Probe | Replicate) -> bool:
        return message.epoch >= held.epoch

    def _probed(self, held: Held, message: Probe | Replicate, last: Position) -> Probed:
        run = self._node.run()
        return Probed(held.partition, held.replica, message.epoch, last, held.begun, run)

    def _replicate(self, sender: str, held: Held, message: Replicate) -> None:
        node = self._node
        if message.how == "begin":
            self._begin(held, message)
            held.matched = message.epoch
        elif (
            message.how == "match"
            and held.matched != message.epoch
            and message.probed == node.run()
        ):
            common = held.nearest(message.previous)
            if common != message.previous:
                node.send(sender, self._probed(held, message, -1 if common is None else common))
                return
            self.cut(held, common)
            held.matched = message.epoch
        elif held.matched != message.epoch:
            self._refuse(sender, message, held.replica, "unmatched")
            return
        if message.previous > held.last:
            node.send(sender, self._probed(held, message, held.last))
            return
        self._take(sender, held, message)

    def _begin(self, held: Held, message: Replicate) -> None:
        if held.begun != message.epoch:
            held.begin(message.previous, message.epoch)
            self._node.changed.mark(held.partition)
            incarnation, ticket = held.replica.incarnation, next(self._node.tickets)
            self._node.out.append(
                BeginLog(held.partition, incarnation, ticket, message.previous, message.epoch)
            )

    def cut(self, held: Held, to: Position) -> None:
        node = self._node
        if to == held.last:
            return
        if to < held.watermark:
            node.out.append(Surprise(held.partition, "an owner without committed rows"))
        held.truncate(to)
        node.changed.mark(held.partition)
        ticket = next(node.tickets)
        node.out.append(TruncateLog(held.partition, held.replica.incarnation, ticket, to))

    def _take(self, sender: str, held: Held, message: Replicate) -> None:
        node = self._node
        new = tuple(entry for entry in message.entries if self.is_new(held, entry.at))
        if not follow(held.last, new):
            node.out.append(Surprise(held.partition, "entries that do not follow this log"))
            return
        if not can_follow(node.measured, held.replica.volume, node.settings):
            new = ()  # the owner sends them again, and goes on without this replica meanwhile
        for entry in new:
            held.append(entry)
        if new:
            ticket = node.tickets.appending(held, message.revision)
            if message.revision < held.revision:
                node.watch_work(held)
            node.tickets.when_stored(
                ticket,
                held.replica.volume,
                lambda now: self._appended(held, sender, message.epoch),
            )
            node.out.append(AppendEntries(held.partition, held.replica.incarnation, ticket, new))
        if message.check is not None and message.check[0] == held.copied:
            held.wish(message.check)
            node.changed.mark(held.partition)
        node.out += held.advance(max(held.watermark, min(message.watermark, held.last)))
        node.out += node.trimmed(held)
        if not new:
            self._ack(held, sender, message.epoch)

    def is_new(self, held: Held, at: Position) -> bool:
        return at > held.last

    def _appended(self, held: Held, sender: str, epoch: int) -> None:
        if held.matched == epoch:
            self._ack(held, sender, epoch)

    def _ack(self, held: Held, sender: str, epoch: int) -> None:
        acked = Acked(held.partition, held.replica, epoch, held.durable, held.watermark)
        self._node.send(sender, acked)


def follow(last: Position, entries: tuple[Entry, ...]) -> bool:
    """Each entry names the entry before it, and the first names the end of the log."""
    for entry in entries:
        if entry.previous != last:
            return False
        last = entry.at
    return True
