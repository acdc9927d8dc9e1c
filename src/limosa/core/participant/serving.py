"""What does a node do for the partitions that it owns? It orders writes, and routes reads.

There is one `Owner` for each partition that the applied topology grants to this run of the process.
"""

from collections.abc import Iterable
from math import inf

from limosa.core import routing
from limosa.core.effects import MakeCommit
from limosa.core.events import CollectionDue, Stored, TailRead
from limosa.core.messages import (
    Acked,
    Answer,
    Probed,
    Read,
    Refuse,
    Seal,
    Unheld,
    Verify,
    Wait,
    Write,
)
from limosa.core.model.changes import Commit, Put, lease_key, partition_key
from limosa.core.model.keys import NodeId, PartitionId, Position, Revision
from limosa.core.model.topology import Partition
from limosa.core.participant.held import Held
from limosa.core.participant.owner import Owner
from limosa.core.participant.pairs import Pair
from limosa.core.participant.space import lacks_space
from limosa.core.participant.state import NodeState

VOIDED_TOGETHER_MAX = 100


class Serving:
    """The owners on this node, and the events and messages that they handle."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._ticked_at = -inf
        self._restless: dict[PartitionId, Owner] = {}
        """Owners that have something to do as time passes; all others cost nothing."""

    # --- ownership

    def own(self, now: float, held: Held, record: Partition, revision: Revision) -> None:
        node = self._node
        assert node.lease is not None
        owner = node.owners.get(held.partition)
        if owner is None or owner.epoch != record.epoch or owner.held is not held:
            if owner is not None:
                owner.follow(())
            owner = Owner(
                held, record, node.lease, node.tickets, node.pairs, node.settings, node.pace
            )
            node.owners[held.partition] = owner
        needed = routing.needed(record, node.topology.zones[record.zone])
        owner.adopt(now, record, revision, needed)
        if record.transition is None:
            node.owned_in_transition.pop(held.partition, None)
        else:
            node.owned_in_transition[held.partition] = None
        self.collect_from(owner)

    def disown(self, held: Held) -> None:
        owner = self._node.owners.get(held.partition)
        if owner is None or owner.held is not held:
            return
        owner.follow(())
        del self._node.owners[held.partition]
        self._restless.pop(held.partition, None)
        self._node.owned_in_transition.pop(held.partition, None)
        for pending in owner.pending:
            answer = self._node.redirect(held.partition, pending.answer.id, definite=False)
            self._node.send(pending.client, answer)

    def collect_from(self, owner: Owner) -> None:
        """Take over the owner's effects, and note whether the coordinator needs a report."""
        node = self._node
        if owner.out:
            node.out += owner.out
            owner.out = []
        report = owner.report()
        if report != owner.told:
            owner.told = report
            node.changed.mark(owner.held.partition)
        node.out += node.trimmed(owner.held)
        if owner.rests():
            self._restless.pop(owner.held.partition, None)
        else:
            self._restless[owner.held.partition] = owner

    def serving(self, now: float, partition: PartitionId) -> Owner | None:
        """The owner here, if it may serve: granted, open, not sealed, and its lease holds."""
        owner = self._node.owners.get(partition)
        if owner is None or not owner.open or owner.sealed is not None or not owner.holds(now):
            return None
        return owner

    # --- clients

    def routed(self, now: float, message: Write | Read) -> Owner | Answer:
        """The owner that serves the message here, or the answer that refuses it."""
        node = self._node
        version = node.version(message.partition)
        if message.version > version:
            node.is_outdated = True
            return Wait(message.id, "routed by a layout that this node has not applied yet")
        if self.is_stale(message, version):
            return node.redirect(message.partition, message.id)
        owner = self.serving(now, message.partition)
        if owner is not None and message.epoch <= owner.epoch:
            return owner
        record = node.topology.partitions.get(message.partition)
        if record is not None and (record.owner is None or record.owner.replica.node == node.node):
            return Wait(message.id, "its owner is not open yet")
        return node.redirect(message.partition, message.id)

    def is_stale(self, message: Write | Read, version: int) -> bool:
        return message.version < version

    def write(self, now: float, sender: str, message: Write, found: Position | None) -> None:
        owner = self.routed(now, message)
        if isinstance(owner, Owner):
            answer = self._write_here(now, owner, sender, message, found)
            self.collect_from(owner)
        else:
            answer = owner
        if answer is not None:
            self._node.send(sender, answer)

    def _write_here(
        self, now: float, owner: Owner, sender: str, message: Write, found: Position | None
    ) -> Answer | None:
        if found is None:
            return self.unreadable(owner.held, message.id)
        full = lacks_space(self._node.measured, owner.held.replica.volume, self._node.settings)
        if full:
            why = f"{self._node.node} accepts no writes: {full}"
            return Refuse(message.id, why, "DiskFull", "free space on its disk, then retry")
        if not routing.takes_writes(owner.record, owner.needed):
            there = len(routing.electable(owner.record))
            return Refuse(
                message.id,
                f"{there} replicas in sync, {owner.needed} needed",
                "NotEnoughReplicas",
                "wait until nodes come back, or ask for fewer in sync",
            )
        return owner.write(now, sender, message, found)

    def unreadable(self, held: Held, request: str) -> Answer:
        """The answer if rows can't be read because a file is damaged: the client waits until
        another replica takes over, unless there is none."""
        record = self._node.topology.partitions.get(held.partition)
        if record is None or routing.has_other_in_sync(record, held.replica):
            return Wait(
                request, f"rows on {self._node.node} are damaged: another replica takes over"
            )
        return Refuse(
            request,
            f"{self._node.node} holds the only replica of {held.partition} in sync, and some of its"
            f" rows can't be read: {held.damaged}",
            "Refused",
            "start the nodes that hold other replicas, or restore the file from a backup",
        )

    def collection_due(self, now: float, event: CollectionDue) -> None:
        owner = self.serving(now, event.partition)
        if owner is not None:
            owner.collect()
            self.collect_from(owner)

    # --- other replicas, volumes and time

    def peer_message(self, now: float, message: Probed | Acked | Unheld) -> None:
        owner = self._node.owners.get(message.partition)
        peer = None if owner is None else owner.answerer(message)
        if owner is None or peer is None:
            return
        was_silent = peer.pair.is_silent()
        for waiting in peer.pair.hear():
            self._restless[waiting] = self._node.owners[waiting]
        if was_silent:
            self._tell_of_pair(now, peer.pair)
        if not isinstance(message, Acked) and peer.pair.began(message.run):
            for other in peer.pair.partitions:
                self._node.owners[other].run_changed(message.replica.node)
                self.collect_from(self._node.owners[other])
        match message:
            case Acked():
                owner.acked(now, message)
            case Probed():
                owner.probed(now, message)
            case _:
                owner.unheld(now, message)
        self.collect_from(owner)
        if owner.told_silent and owner.silent(now) != owner.told_silent:
            self._node.changed.mark(message.partition)  # its node may never have been silent

    def tail_read(self, event: TailRead) -> None:
        tail = self._node.tickets.tails.pop(event.ticket, None)
        owner = None if tail is None else self._node.owners.get(tail.partition)
        if tail is not None and owner is not None and owner.epoch == tail.epoch:
            owner.tail_read(event.ticket, tail, event.entries)
            self.collect_from(owner)

    def stored(self, now: float, event: Stored) -> None:
        """More of the logs is durable: followers acknowledge, owners commit."""
        node = self._node
        concerned = node.tickets.stored(event.ticket, event.volume)
        for held in concerned:
            held.stored(event.ticket)
            if held.epoch == 0 or node.in_transition(held.partition):
                node.changed.mark(held.partition)
        node.tickets.follow_up(now, event.ticket, event.volume)
        for held in concerned:
            owner = node.owners.get(held.partition)
            if owner is not None and owner.held is held:
                owner.commit(now)
                self.collect_from(owner)

    def commit_all(self, now: float) -> None:
        for owner in self._node.owners.values():
            owner.commit(now)
            self.collect_from(owner)
            self._node.changed.mark(owner.held.partition)  # it serves again

    def tick(self, now: float) -> None:
        self._node.pairs.clock.tick(now)
        if now - self._ticked_at < self._node.settings.resend_seconds:
            return
        self._ticked_at = now
        for node, pair in self._node.pairs:
            self._ask(now, node, pair)
        restless = list(self._restless.values())
        for owner in restless:
            owner.tick(now)
            self.collect_from(owner)
            self._tell_of_silence(now, owner)
        self._void([owner for owner in restless if owner.touches])

    def _ask(self, now: float, node: NodeId, pair: Pair) -> None:
        """Ask another node whether it is there, if it has answered nothing for long."""
        partition = pair.next_to_ask()
        if partition is not None:
            owner = self._node.owners[partition]
            owner.ask(node)
            self.collect_from(owner)
        if pair.must_tell():
            self._tell_of_pair(now, pair)

    def _tell_of_pair(self, now: float, pair: Pair) -> None:
        """The other node is silent, or answers again. Owners that have proposed a replica there
        have no rest, so that each tick tells of them."""
        for partition in pair.required:
            self._tell_of_silence(now, self._node.owners[partition])

    def _tell_of_silence(self, now: float, owner: Owner) -> None:
        """Replicas become silent by time, and not by an event; while they are, that is repeated."""
        if owner.told_silent or owner.silent(now):
            self._node.changed.mark(owner.held.partition)

    def _void(self, owners: list[Owner]) -> None:
        """Void seals and proposals of many partitions by few commits.

        One record that changed meanwhile makes the whole commit fail. So the commits of a second
        attempt are half as large, and so on.
        """
        owners.sort(key=lambda owner: owner.touched, reverse=True)
        while owners:
            count = max(1, VOIDED_TOGETHER_MAX >> owners[0].touched)
            self._node.out.append(MakeCommit(voiding(owners[:count])))
            del owners[:count]

    # --- the coordinator

    def seal(self, now: float, message: Seal) -> None:
        owner = self.serving(now, message.partition)
        if owner is not None:
            owner.seal(now, message.revision)
            self.collect_from(owner)

    def verify(self, now: float, message: Verify) -> None:
        owner = self.serving(now, message.partition)
        if owner is not None:
            before = owner.held.check
            owner.verify(now, message.session)
            if owner.held.check != before:
                self._node.changed.mark(message.partition)  # or the coordinator would ask again
            self.collect_from(owner)


def voiding(owners: Iterable[Owner]) -> Commit:
    """The commit that puts these owners' records unchanged, each with another revision."""
    guards: dict[str, Revision] = {}
    whys: dict[str, None] = {}
    changes: list[Put] = []
    for owner in owners:
        guards[partition_key(owner.record.id)] = owner.revision
        guards[lease_key(owner.held.replica.node)] = owner.lease.revision
        changes.append(Put(owner.record))
        whys[owner.touches] = None
        owner.touches = ""
        owner.touched += 1
    return Commit(guards, tuple(changes), "; ".join(whys))
