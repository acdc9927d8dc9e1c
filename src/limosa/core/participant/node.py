"""What does a node do now? It keeps its lease, follows the topology, and serves what is its own.

A node acts on its *applied* topology only. Calls say "look" or name the revision, session or
incarnation that they are about; one that is about the past changes nothing.
"""

from collections import deque
from collections.abc import Callable
from typing import Literal

from limosa.core import routing
from limosa.core.effects import (
    AcquireLease,
    AppendEntries,
    ApplySlice,
    BeginLog,
    CreateReplica,
    DiscardReplica,
    Effect,
    LinkRows,
    LookUp,
    ReadSlice,
    ReadTopology,
    RenewLease,
    Send,
    ShelveSlice,
    StoreEpoch,
    Surprise,
    TrimLog,
    TruncateLog,
)
from limosa.core.events import (
    CollectionDue,
    DigestTaken,
    LeaseEnded,
    LeaseGranted,
    LeaseRenewed,
    Measured,
    NodeEvent,
    Received,
    RowsLinked,
    RowsRead,
    SliceRead,
    SliceShelved,
    Started,
    Stored,
    TailRead,
    Ticked,
    TopologyRead,
)
from limosa.core.machines.machine import Work
from limosa.core.messages import (
    Acked,
    Answer,
    Chunk,
    Denied,
    DropReplica,
    End,
    Fetch,
    Fetched,
    Found,
    Landed,
    Link,
    Look,
    Message,
    Objection,
    Probe,
    Probed,
    Read,
    Redirect,
    Refuse,
    ReplicaMessage,
    ReplicaStatus,
    Replicate,
    Seal,
    Status,
    Unheld,
    Verify,
    Wait,
    Write,
)
from limosa.core.model.changes import Topology
from limosa.core.model.keys import (
    Incarnation,
    LeaseId,
    NodeId,
    PartitionId,
    Position,
    Revision,
    SessionId,
)
from limosa.core.model.rows import Entry, Rows
from limosa.core.model.topology import Partition, Replica
from limosa.core.participant.held import Held
from limosa.core.participant.owner import Lease, Owner
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.participant.tickets import Tickets

AHEAD_MAX = 255
LOG_ENTRIES_MIN = 100
LOG_BYTES_MIN = 1 << 20
"""However many replicas there are, each keeps so much of its log."""
STATUS_SECONDS_EACH = 0.00002
_STAMPED = frozenset((Probe, Replicate, Read, Seal, DropReplica))


class Participant:
    """The brain of one node, in one run of its process."""

    def __init__(self, node: NodeId, settings: ParticipantSettings) -> None:
        self.node = node
        self.settings = settings
        self.topology = Topology()
        self.lease: Lease | None = None
        self.held: dict[tuple[PartitionId, Incarnation], Held] = {}
        self.owners: dict[PartitionId, Owner] = {}
        self.out: list[Effect] = []
        self._here: dict[PartitionId, list[Held]] = {}
        """The same as `held`, by partition."""
        self._tickets = Tickets()
        self._stored: deque[tuple[int, Callable[[float], None]]] = deque()
        self._reads: dict[int, Held] = {}
        self._slices: dict[int, tuple[Held, Fetch, str]] = {}
        self._shelving: dict[int, tuple[Held, End, str, int]] = {}
        """Slices on their way to a file: of what, for whom, and since which beginning."""
        self._links: dict[int, tuple[Held, Held, Link, int]] = {}
        """What is being linked to what, why, and in which epoch the target was begun."""
        self._discarding: dict[tuple[PartitionId, Incarnation], Replica] = {}
        self._dropped: deque[tuple[PartitionId, Incarnation]] = deque(maxlen=256)
        """What this run has dropped at a transition's end; whatever else is missing is lost."""
        self._ahead: list[Received] = []
        """Requests by senders that know a newer topology: they wait until it is applied."""
        self._coordinator: str | None = None
        self._asked_at = -1e9
        self._renewed_at = -1e9
        self._reading = False
        self._refreshed_at = -1e9
        self._ticked_at = -1e9
        self._sequence = 0
        self._changed = False
        """Something that the coordinator should hear of."""
        self._told_at = -1e9
        self._is_outdated = False
        """Somebody knows a newer topology."""
        self._size = Measured({}, {})
        self._on_event: dict[type, Callable[..., None]] = {
            Received: self._received,
            Ticked: self._tick,
            TopologyRead: self._topology_read,
            LeaseGranted: self._lease_granted,
            LeaseRenewed: self._lease_renewed,
            LeaseEnded: self._lease_ended,
            Stored: self._stored_up_to,
            RowsRead: self._rows_read,
            TailRead: self._tail_read,
            SliceRead: self._slice_read,
            RowsLinked: self._rows_linked,
            SliceShelved: self._slice_shelved,
            DigestTaken: self._digest_taken,
            CollectionDue: self._collection_due,
            Measured: self._measured,
            Started: self._started,
        }
        self._on_message: dict[type, Callable[..., None]] = {
            Read: self._read,
            Probe: self._replica_message,
            Replicate: self._replica_message,
            Probed: self._peer_message,
            Acked: self._peer_message,
            Unheld: self._peer_message,
            Fetch: self._fetch,
            Chunk: self._chunk,
            End: self._end,
            Link: self._link,
            Look: self._look,
            Seal: self._seal,
            Verify: self._verify,
            DropReplica: self._drop_replica,
        }

    def handle(self, now: float, event: NodeEvent) -> list[Effect]:
        self.out = []
        self._on_event[type(event)](now, event)
        if self._changed and now - self._told_at >= self._quiet_seconds():
            self._tell(now)
        return self.out

    def _quiet_seconds(self) -> float:
        """Between two reports: one of many replicas takes longer to make and to read."""
        return self.settings.status_seconds + STATUS_SECONDS_EACH * len(self.held)

    def _tell(self, now: float) -> None:
        if self._coordinator is not None and self.lease is not None:
            self._changed = False
            self._told_at = now
            self._send(self._coordinator, self.status(now))

    # --- the process and its lease

    def _started(self, now: float, event: Started) -> None:
        for stored in event.held:
            self._add(Held.restored(stored, self.settings.recent_bytes))

    def _add(self, held: Held) -> None:
        self.held[held.partition, held.replica.incarnation] = held
        self._here.setdefault(held.partition, []).append(held)

    def _tick(self, now: float, event: Ticked) -> None:
        if self.lease is None:
            if now - self._asked_at > self.settings.lease_seconds:
                self._asked_at = now
                self.out.append(AcquireLease())
        elif now - self._renewed_at >= self.settings.heartbeat_seconds:
            self._renewed_at = now
            self.out.append(RenewLease(self.lease.id))
        if self._is_outdated or now - self._refreshed_at >= self.settings.refresh_seconds:
            self._is_outdated = False
            self._refresh(now)
        if now - self._ticked_at >= self.settings.resend_seconds:
            self._ticked_at = now
            for owner in self.owners.values():
                owner.tick(now)
                self._collect_from(owner)
                self._changed |= bool(owner.proposed or owner.silent(now))

    def _refresh(self, now: float) -> None:
        """One question at a time; a lost one is asked again."""
        if not self._reading or now - self._refreshed_at > self.settings.resend_seconds:
            self._reading = True
            self._refreshed_at = now
            self.out.append(ReadTopology())

    def _lease_granted(self, now: float, event: LeaseGranted) -> None:
        if self.lease is not None and event.revision <= self.lease.revision:
            return  # a late or doubled answer: a run begins once, and with it counters
        self._forget_run()
        self.lease = Lease(event.lease, event.revision)
        self.lease.extend(event.sent_at, self.settings)
        self._renewed_at = event.sent_at
        self._refresh(now)

    def _lease_renewed(self, now: float, event: LeaseRenewed) -> None:
        if self.lease is not None and self.lease.id == event.lease:
            held_all_along = self.lease.holds(now)
            self.lease.extend(event.sent_at, self.settings)
            for owner in () if held_all_along else self.owners.values():
                owner.commit(now)
                self._collect_from(owner)

    def _lease_ended(self, now: float, event: LeaseEnded) -> None:
        if self.lease is not None and self.lease.id == event.lease:
            self._forget_run()
            self._asked_at = -1e9

    def _forget_run(self) -> None:
        """Requests, permits and ownership end with the lease that they were begun under."""
        self.lease = None
        self._ahead.clear()
        for owner in list(self.owners.values()):
            self._disown(owner.held)
        self._reads.clear()
        for held in self.held.values():
            held.reads.clear()
            held.forget_copy()

    # --- the topology

    def _topology_read(self, now: float, event: TopologyRead) -> None:
        self._reading = self._reading and not event.asked
        if self.lease is None or not (self.lease.registered or self._is_fresh(event.revision)):
            return  # it may be older than what an earlier run acted on
        if self._is_newer(event.topology):
            before = self.topology
            self.topology = event.topology
            self._changed = True
            if self.lease.registered:
                for partition in self.topology.changed_since(before):
                    self._apply(now, partition)
        if not self.lease.registered:
            self._register(now)
        waiting, self._ahead = self._ahead, []
        for received in waiting:
            self._received(now, received)

    def _is_newer(self, topology: Topology) -> bool:
        return topology.generation > self.topology.generation

    def _is_fresh(self, revision: Revision) -> bool:
        """Only a topology from after the new lease shows what happened while there was none."""
        return self.lease is not None and revision >= self.lease.revision

    def _register(self, now: float) -> None:
        """Apply everything as if for the first time, and drop what the topology does not name."""
        assert self.lease is not None
        self.lease.registered = True
        self._changed = True
        for partition in {partition: None for partition, _ in self.held} | dict.fromkeys(
            self.topology.partitions
        ):
            self._apply(now, partition)

    def _apply(self, now: float, partition: PartitionId) -> None:
        record = self.topology.partitions.get(partition)
        named = (
            [] if record is None else [r for r in routing.everywhere(record) if r.node == self.node]
        )
        for held in list(self._here.get(partition, ())):
            if held.replica not in named:
                self._discard(held)
        if record is None:
            return
        revision = self.topology.revision_of(partition)
        for replica in named:
            here = self.held.get((partition, replica.incarnation))
            if here is not None:
                self._adopt(now, here, record, revision)
            elif self._may_create(record, replica):
                self._create(record, replica)

    def _may_create(self, record: Partition, replica: Replica) -> bool:
        """Only what was never used is made from nothing; anything else that is missing is lost."""
        if record.transition is None:
            return record.epoch == 0
        return routing.prepares(record.transition) and replica in routing.new_only(record)

    def _create(self, record: Partition, replica: Replica) -> None:
        for held in list(self._here.get(record.id, ())):
            if held.replica not in record.in_sync:
                self._discard(held)
        held = self._empty(record, replica)
        self._add(held)
        ticket = self._tickets.appending(held, held.revision)
        self._stored.append((ticket, lambda now: self._made(held)))
        self.out.append(CreateReplica(record.id, replica.incarnation, ticket, replica.volume))
        self._promise(held, record.epoch)

    def _made(self, held: Held) -> None:
        """It counts from now on. What is on its way to the volume later does not change that."""
        held.made = True
        self._changed = True

    def _empty(self, record: Partition, replica: Replica) -> Held:
        held = Held(record.id, replica, self.settings.recent_bytes)
        held.revision = self.topology.revision_of(record.id)
        return held

    def _discard(self, held: Held) -> None:
        key = (held.partition, held.replica.incarnation)
        self._disown(held)
        del self.held[key]
        self._here[held.partition].remove(held)
        if not self._here[held.partition]:
            del self._here[held.partition]
        self._discarding[key] = held.replica
        ticket = self._when_stored(lambda now: self._discarded(key))
        self.out.append(DiscardReplica(*key, ticket))

    def _discarded(self, key: tuple[PartitionId, Incarnation]) -> None:
        self._discarding.pop(key, None)
        self._changed = True

    def _adopt(self, now: float, held: Held, record: Partition, revision: Revision) -> None:
        held.revision = revision
        self._promise(held, record.epoch)
        session = None if record.transition is None else record.transition.session
        if held.session != session:
            held.session = session
            held.forget_copy()
        if self._is_mine(record, held.replica):
            self._own(now, held, record, revision)
        else:
            self._disown(held)

    def _promise(self, held: Held, epoch: int) -> None:
        """Nothing of an older epoch is accepted from now on; the promise counts once durable."""
        if epoch > held.epoch:
            held.epoch = epoch
            ticket = self._when_stored(lambda now: self._promised(held, epoch))
            self.out.append(StoreEpoch(held.partition, held.replica.incarnation, ticket, epoch))

    def _promised(self, held: Held, epoch: int) -> None:
        held.epoch_durable = max(held.epoch_durable, epoch)
        self._changed = True

    def _is_mine(self, record: Partition, replica: Replica) -> bool:
        """An epoch is granted to one run of one process: another lease is another run."""
        grant = record.owner
        return (
            grant is not None
            and grant.replica == replica
            and self.lease is not None
            and grant.lease == self.lease.id
        )

    def _own(self, now: float, held: Held, record: Partition, revision: Revision) -> None:
        assert self.lease is not None
        owner = self.owners.get(held.partition)
        if owner is None or owner.epoch != record.epoch or owner.held is not held:
            owner = Owner(held, record, self.lease, self._tickets, self.settings)
            self.owners[held.partition] = owner
        needed = routing.needed(record, self.topology.zones[record.zone])
        owner.adopt(now, record, revision, needed)
        self._collect_from(owner)

    def _disown(self, held: Held) -> None:
        owner = self.owners.get(held.partition)
        if owner is None or owner.held is not held:
            return
        del self.owners[held.partition]
        for pending in owner.pending:
            self._send(pending.client, self._redirect(held.partition, pending.answer.id, False))
        for _, read, client in held.reads.values():
            self._send(client, self._redirect(held.partition, read.id))
        held.reads.clear()

    # --- messages

    def _received(self, now: float, event: Received) -> None:
        message = event.message
        if type(message) is Write:
            self._write(now, event.sender, message, event.found)
        elif self._knows_more(message):
            self._ahead = [*self._ahead[-AHEAD_MAX:], event]
            self._refresh(now)
        else:
            act = self._on_message.get(type(message))
            if act is not None:  # what is not for a node was sent by mistake
                act(now, event.sender, message)

    def _knows_more(self, message: Message) -> bool:
        """Its sender acted on a newer record than ours: we must catch up before we judge it."""
        if type(message) not in _STAMPED:
            return False
        newer: bool = message.revision > self.topology.revision_of(message.partition)  # type: ignore[attr-defined]
        return newer

    def _send(self, to: str, message: Message) -> None:
        self.out.append(Send(to, message))

    def _collect_from(self, owner: Owner) -> None:
        """What the owner wants done; and whether the coordinator should hear of it."""
        if owner.out:
            self.out += owner.out
            owner.out = []
        held = owner.held
        if (owner.open, owner.seal_report()) != owner.told:
            owner.told = (owner.open, owner.seal_report())
            self._changed = True
        self.out += self._trim(held)

    def _trim(self, held: Held) -> list[TrimLog]:
        share = max(LOG_BYTES_MIN, self.settings.log_bytes_kept // max(1, len(self.held)))
        entries = max(LOG_ENTRIES_MIN, self.settings.log_entries_kept // max(1, len(self.held)))
        return held.trim(min(self.settings.entries_kept, entries), share)

    def _serving(self, now: float, partition: PartitionId) -> Owner | None:
        """The owner here, if it may serve: granted, open, not sealed, and its lease holds."""
        owner = self.owners.get(partition)
        if owner is None or not owner.open or owner.sealed is not None or not owner.holds(now):
            return None
        return owner

    # --- clients

    def _write(self, now: float, sender: str, message: Write, found: Position) -> None:
        owner = self._routed(now, message)
        if isinstance(owner, Owner):
            answer = self._write_here(now, owner, sender, message, found)
            self._collect_from(owner)
        else:
            answer = owner
            self._catch_up(now)
        if answer is not None:
            self._send(sender, answer)

    def _write_here(
        self, now: float, owner: Owner, sender: str, message: Write, found: Position
    ) -> Answer | None:
        there = len(routing.electable(owner.record))
        if there < owner.needed:
            return Refuse(
                message.id,
                f"{there} replicas in sync, {owner.needed} needed",
                "NotEnoughReplicas",
                "wait until nodes come back, or ask for fewer in sync",
            )
        return owner.write(now, sender, message, found)

    def _catch_up(self, now: float) -> None:
        if self._is_outdated:
            self._is_outdated = False
            self._refresh(now)

    def _version(self, partition: PartitionId) -> int:
        record = self.topology.partitions.get(partition)
        layout = None if record is None else self.topology.layouts.get(record.zone)
        return 0 if layout is None else layout.version

    def _routed(self, now: float, message: Write | Read) -> Owner | Answer:
        """Who serves it here, or why nobody does."""
        version = self._version(message.partition)
        if message.version > version:
            self._is_outdated = True
            return Wait(message.id, "routed by a layout that this node has not applied yet")
        if self._is_stale(message, version):
            return self._redirect(message.partition, message.id)
        owner = self._serving(now, message.partition)
        if owner is not None and message.epoch <= owner.epoch:
            return owner
        record = self.topology.partitions.get(message.partition)
        if record is not None and (record.owner is None or record.owner.replica.node == self.node):
            return Wait(message.id, "its owner is not open yet")
        return self._redirect(message.partition, message.id)

    def _is_stale(self, message: Write | Read, version: int) -> bool:
        return message.version < version

    def _redirect(self, partition: PartitionId, request: str, definite: bool = True) -> Redirect:
        record = self.topology.partitions.get(partition)
        owner = None if record is None or record.owner is None else record.owner.replica.node
        version = self._version(partition)
        return Redirect(request, owner, version, self.topology.generation, definite)

    def admit(self, now: float, read: Read) -> Held | Answer:
        """Which replica here may serve a read; or the answer that refuses it.

        A reader need not go through `handle`, nor wait for it: `admit`, take a view, `may_answer`,
        each at any moment and in any thread. All that happens here is a note that this topology
        seems to be old; the next tick looks for a newer one.

        Why that is linearizable: when it is admitted, this is the owner and its lease holds, so
        that nobody else commits anything. All that is committed then is in the view, because the
        owner has moved the watermark before it told anybody, and `may_answer` asks whether the
        view has what was committed when the owner opened. Views do not go back: what one of them
        shows that is taken later was the newest at some moment after the read was admitted. The
        second check, still before the seal is reported, sorts out a replica that meanwhile was
        dropped, or whose owner is another.
        """
        if read.revision > self.topology.revision_of(read.partition):
            self._is_outdated = True
            return Wait(read.id, "routed by a record that this node has not applied yet")
        if read.eventual:
            return self._readable(read) or self._redirect(read.partition, read.id)
        owner = self._routed(now, read)
        return owner.held if isinstance(owner, Owner) else owner

    def may_answer(self, now: float, held: Held, eventual: bool, through: Position) -> bool:
        """After the value was taken, from a view with the watermark `through`: does it count?"""
        if eventual:
            return self.held.get((held.partition, held.replica.incarnation)) is held
        owner = self.owners.get(held.partition)
        if owner is None or owner.held is not held or through < owner.opened:
            return False
        return owner.told[1] is None and owner.holds(now)

    def _read(self, now: float, sender: str, message: Read) -> None:
        held = self.admit(now, message)
        if not isinstance(held, Held):
            self._send(sender, held)
            self._catch_up(now)
            return
        ticket = next(self._tickets)
        self._reads[ticket] = held
        held.reads[ticket] = (held.revision, message, sender)
        incarnation = held.replica.incarnation
        self.out.append(LookUp(held.partition, incarnation, ticket, message.keys, message.table))

    def _readable(self, message: Read) -> Held | None:
        """An eventual read is served by either side, unless it was begun before the fence."""
        record = self.topology.partitions.get(message.partition)
        if record is None or message.revision < record.fence:
            return None
        complete = [r for r in routing.everywhere(record) if r in self._complete(record)]
        for replica in complete:
            held = self.held.get((message.partition, replica.incarnation))
            if replica.node == self.node and held is not None and held.epoch_durable:
                return held
        return None

    def _complete(self, record: Partition) -> tuple[Replica, ...]:
        """Replicas that hold everything: the side that is read, and the one that was until now."""
        return record.replicas if routing.is_copied(record) else routing.written(record)

    def _rows_read(self, now: float, event: RowsRead) -> None:
        held = self._reads.pop(event.ticket, None)
        running = None if held is None else held.reads.pop(event.ticket, None)
        if held is None or running is None:
            return
        _, message, client = running
        if self.may_answer(now, held, message.eventual, held.watermark):
            self._send(client, Found(message.id, event.rows))
        else:
            self._send(client, self._redirect(held.partition, message.id))
        owner = self.owners.get(held.partition)
        if owner is not None:
            self._collect_from(owner)
        self._changed |= self._in_transition(held.partition)

    def _in_transition(self, partition: PartitionId) -> bool:
        """Then the coordinator may wait for what runs here."""
        record = self.topology.partitions.get(partition)
        return record is not None and record.transition is not None

    # --- replicas

    def _replica_message(self, now: float, sender: str, message: ReplicaMessage) -> None:
        if self.lease is None or not self.lease.registered:
            return
        held = self.held.get((message.partition, message.to))
        why = self._objection(held, message)
        if why:
            replica = Replica(self.node, message.to) if held is None else held.replica
            named = self._named(message.partition, message.to) or replica
            self._send(
                sender, Unheld(message.partition, named, message.epoch, message.revision, why)
            )
            return
        assert held is not None
        if isinstance(message, Probe):
            self._send(sender, self._probed(held, message, held.last))
        else:
            assert isinstance(message, Replicate)
            self._replicate(now, sender, held, message)

    def _named(self, partition: PartitionId, incarnation: Incarnation) -> Replica | None:
        record = self.topology.partitions.get(partition)
        for replica in () if record is None else routing.everywhere(record):
            if replica.incarnation == incarnation and replica.node == self.node:
                return replica
        return None

    def _objection(self, held: Held | None, message: ReplicaMessage) -> Objection | Literal[""]:
        if held is None:
            return "dropped" if (message.partition, message.to) in self._dropped else "lost"
        if not self._is_current(held, message):
            return "stale epoch"
        record = self.topology.partitions.get(message.partition)
        return "fenced" if record is None or message.revision < record.fence else ""

    def _is_current(self, held: Held, message: ReplicaMessage) -> bool:
        return message.epoch >= held.epoch

    def _probed(self, held: Held, message: ReplicaMessage, last: Position) -> Probed:
        return Probed(held.partition, held.replica, message.epoch, last, held.begun, self._run())

    def _run(self) -> LeaseId:
        return 0 if self.lease is None else self.lease.id

    def _replicate(self, now: float, sender: str, held: Held, message: Replicate) -> None:
        incarnation = held.replica.incarnation
        if message.how == "begin":
            if held.begun != message.epoch:
                held.begin(message.previous, message.epoch)
                self.out.append(
                    BeginLog(
                        held.partition,
                        incarnation,
                        next(self._tickets),
                        message.previous,
                        message.epoch,
                    )
                )
            held.matched = message.epoch
        elif (
            message.how == "match"
            and held.matched != message.epoch
            and message.probed == self._run()
        ):
            common = held.nearest(message.previous)
            if common != message.previous:
                self._send(sender, self._probed(held, message, -1 if common is None else common))
                return
            self._cut(held, common)
            held.matched = message.epoch
        elif held.matched != message.epoch:
            unmatched = Unheld(
                held.partition, held.replica, message.epoch, message.revision, "unmatched"
            )
            self._send(sender, unmatched)
            return
        if message.previous > held.last:
            self._send(sender, self._probed(held, message, held.last))
            return
        self._take(now, sender, held, message)

    def _cut(self, held: Held, to: Position) -> None:
        if to == held.last:
            return
        if to < held.watermark:
            self.out.append(Surprise(held.partition, "an owner without committed rows"))
        held.truncate(to)
        self.out.append(
            TruncateLog(held.partition, held.replica.incarnation, next(self._tickets), to)
        )

    def _take(self, now: float, sender: str, held: Held, message: Replicate) -> None:
        new = tuple(entry for entry in message.entries if self._is_new(held, entry.at))
        if not _follow(held.last, new):
            self.out.append(Surprise(held.partition, "entries that do not follow this log"))
            return
        for entry in new:
            held.append(entry)
        if new:
            ticket = self._tickets.appending(held, message.revision)
            self._stored.append((ticket, lambda now: self._appended(held, sender, message.epoch)))
            self.out.append(AppendEntries(held.partition, held.replica.incarnation, ticket, new))
        if message.check is not None and message.check[0] == held.copied:
            held.wish(message.check)
        self.out += held.advance(max(held.watermark, min(message.watermark, held.last)))
        self.out += self._trim(held)
        if not new:
            self._ack(held, sender, message.epoch)

    def _is_new(self, held: Held, at: Position) -> bool:
        return at > held.last

    def _appended(self, held: Held, sender: str, epoch: int) -> None:
        if held.matched == epoch:
            self._ack(held, sender, epoch)

    def _ack(self, held: Held, sender: str, epoch: int) -> None:
        acked = Acked(held.partition, held.replica, epoch, held.durable, held.watermark)
        self._send(sender, acked)

    def _peer_message(self, now: float, sender: str, message: Probed | Acked | Unheld) -> None:
        owner = self.owners.get(message.partition)
        if owner is None:
            return
        if isinstance(message, Acked):
            owner.acked(now, message)
        elif isinstance(message, Probed):
            owner.probed(now, message)
        else:
            owner.unheld(now, message)
        self._collect_from(owner)

    # --- volumes

    def _when_stored(self, then: Callable[[float], None]) -> int:
        ticket = next(self._tickets)
        self._stored.append((ticket, then))
        return ticket

    def _stored_up_to(self, now: float, event: Stored) -> None:
        concerned = self._tickets.stored(event.ticket)
        for held in concerned:
            held.stored(event.ticket)
            self._changed |= held.epoch == 0 or self._in_transition(held.partition)
        while self._stored and self._stored[0][0] <= event.ticket:
            self._stored.popleft()[1](now)
        for held in concerned:
            owner = self.owners.get(held.partition)
            if owner is not None and owner.held is held:
                owner.commit(now)
                self._collect_from(owner)

    def _tail_read(self, now: float, event: TailRead) -> None:
        tail = self._tickets.tails.pop(event.ticket, None)
        owner = None if tail is None else self.owners.get(tail.partition)
        if tail is not None and owner is not None and owner.epoch == tail.epoch:
            owner.tail_read(event.ticket, tail, event.entries)
            self._collect_from(owner)

    def _digest_taken(self, now: float, event: DigestTaken) -> None:
        held = self.held.get((event.partition, event.incarnation))
        if held is None or held.check is None:
            return
        if event.digest is None:
            held.check = None
            held.trouble = "unreadable"
            self._changed = True
        elif held.check[1] == event.at == held.checked[0]:
            digest = (held.check[0], event.at, event.digest << 64 | held.checked[1])
            held.check = None
            # The rows of there must survive a crash before anybody relies on them.
            ticket = self._when_stored(lambda now: self._digest_stored(held, digest))
            self.out.append(
                StoreEpoch(held.partition, held.replica.incarnation, ticket, held.epoch)
            )

    def _digest_stored(self, held: Held, digest: tuple[SessionId, Position, int]) -> None:
        if held.session == digest[0]:
            held.digest = digest
            self._changed = True

    def _collection_due(self, now: float, event: CollectionDue) -> None:
        owner = self._serving(now, event.partition)
        if owner is not None:
            owner.collect()
            self._collect_from(owner)

    def _measured(self, now: float, event: Measured) -> None:
        """The coordinator hears of it with whatever it hears of next."""
        self._size = event

    # --- copying

    def _permit(self, partition: PartitionId, session: str, epoch: int) -> bool:
        """The session is open, at this epoch, and its stage is one that moves data."""
        record = self.topology.partitions.get(partition)
        stage = None if record is None else routing.stage_of(record)
        if record is None or record.transition is None or stage is None:
            return False
        moves_data = Work.COPY in stage.work or Work.REPAIR in stage.work
        return moves_data and record.transition.session == session and record.epoch == epoch

    def _fetch(self, now: float, sender: str, message: Fetch) -> None:
        owner = self._serving(now, message.partition)
        permitted = self._permit(message.partition, message.session, message.epoch)
        if owner is None or not permitted or not 0 <= message.slice < message.slices:
            self._deny(sender, message, "the source does not own this partition in this session")
            return
        ticket = next(self._tickets)
        self._slices[ticket] = (owner.held, message, sender)
        self.out.append(
            ReadSlice(
                message.partition,
                owner.held.replica.incarnation,
                ticket,
                message.slice,
                message.slices,
                owner.copied_up_to(),
            )
        )

    def _slice_read(self, now: float, event: SliceRead) -> None:
        reading = self._slices.pop(event.ticket, None)
        if reading is None:
            return
        held, message, sender = reading
        fetched = Fetched(
            message.partition,
            message.session,
            message.slice,
            event.rows,
            event.through,
            held.producers.value(event.through),
            event.rows.digest(),
        )
        self._send(sender, fetched)

    def _chunk(self, now: float, sender: str, message: Chunk) -> None:
        held = self.held.get((message.partition, message.to))
        if held is None or not self._permit(message.partition, message.session, message.epoch):
            self._deny(sender, message, "no open session")
            return
        key = (message.session, message.slice, message.attempt)
        held.chunks.setdefault(key, {})[message.number] = message

    def _end(self, now: float, sender: str, message: End) -> None:
        held = self.held.get((message.partition, message.to))
        if held is None or not self._permit(message.partition, message.session, message.epoch):
            self._deny(sender, message, "no open session")
            return
        chunks = held.chunks.pop((message.session, message.slice, message.attempt), {})
        parts = list(chunks.values())
        landed = message.slice in held.landed.get((message.session, message.slices), ())
        if landed or held.copied == message.session:  # what comes now would be newer than the rest
            self._send(sender, Landed(message.partition, message.session, message.slice))
            return
        problem = self._incomplete(held, message, parts)
        if problem:
            self._deny(sender, message, problem)
            return
        rows = tuple(part.rows for part in sorted(parts, key=lambda part: part.number))
        if self._may_shelve(held, rows):
            self._shelve(held, sender, message, rows)
        elif sum(each.digest() for each in rows) != message.digest:
            self._deny(sender, message, "the digest differs")
        else:
            self._apply_slice(held, sender, message, rows)

    def _may_shelve(self, held: Held, rows: tuple[Rows, ...]) -> bool:
        """Large, and for a replica that nobody reads yet: its rows come in two steps. And every way
        out of a stage that fills one passes a barrier, which waits for what is under way; a repair
        ends without."""
        record = self.topology.partitions[held.partition]
        is_new = held.replica in routing.new_only(record)
        return is_new and sum(each.bytes for each in rows) >= self.settings.shelved_bytes

    def _apply_slice(self, held: Held, sender: str, message: End, rows: tuple[Rows, ...]) -> None:
        held.producers.unite(message.producers)
        beginnings = held.beginnings
        ticket = self._when_stored(
            lambda now: self._landed(held, sender, message, ticket, beginnings)
        )
        held.permits[ticket] = message.session
        self.out.append(
            ApplySlice(held.partition, held.replica.incarnation, ticket, rows, message.producers)
        )

    def _shelve(self, held: Held, sender: str, message: End, rows: tuple[Rows, ...]) -> None:
        for under_way, slice, _, beginnings in self._shelving.values():
            if under_way is held and beginnings == held.beginnings and _is_same(slice, message):
                return  # it takes its time; asked for again, it would take even longer
        ticket = next(self._tickets)
        self._shelving[ticket] = (held, message, sender, held.beginnings)
        held.permits[ticket] = message.session
        self.out.append(
            ShelveSlice(
                message.partition,
                message.to,
                ticket,
                message.slice,
                message.slices,
                rows,
                message.digest,
            )
        )

    def _slice_shelved(self, now: float, event: SliceShelved) -> None:
        """Its rows are there; the rest follows by the log, and only then has it landed."""
        shelving = self._shelving.pop(event.ticket, None)
        if shelving is None:
            return
        held, message, sender, beginnings = shelving
        held.permits.pop(event.ticket, None)
        self._changed = True
        if event.problem:
            self._deny(sender, message, event.problem)
        elif (
            self.held.get((message.partition, message.to)) is held
            and held.beginnings == beginnings  # or the rows may have been there, and are no more
            and self._permit(message.partition, message.session, message.epoch)
        ):
            self._apply_slice(held, sender, message, event.rest)

    def _incomplete(self, held: Held, message: End, parts: list[Chunk]) -> str:
        if not 0 <= message.slice < message.slices:
            return f"there is no slice {message.slice} of {message.slices}"
        if not parts or sum(len(part.rows) for part in parts) != message.count:
            return "rows are missing"
        is_new = held.replica in routing.new_only(self.topology.partitions[held.partition])
        # One that was filled in this epoch, and by now is read, is not being filled any more.
        is_filled = is_new and held.begun == message.epoch
        if is_filled and message.through < held.base:
            return "the copy is older than where this replica begins"
        if not is_filled and message.through > held.watermark:
            return "the copy is ahead of this replica: a read would see half of a batch"
        return ""

    def _landed(self, held: Held, sender: str, message: End, ticket: int, beginnings: int) -> None:
        """Durable. It counts only if the session is still open, and nothing emptied it since."""
        del held.permits[ticket]
        self._changed = True
        permitted = self._permit(message.partition, message.session, message.epoch)
        if not permitted or held.beginnings != beginnings:
            return
        landed = self._landed_of(held, message)
        landed.add(message.slice)
        self._send(sender, Landed(message.partition, message.session, message.slice))
        if all(number in landed for number in range(message.slices)):
            held.copied = message.session

    def _landed_of(self, held: Held, message: End) -> set[int]:
        """Slices of one and the same number: a successor may cut the range into another one."""
        return held.landed.setdefault((message.session, message.slices), set())

    def _link(self, now: float, sender: str, message: Link) -> None:
        """A copy inside this node. Neither late nor asked for twice it changes anything."""
        held = self.held.get((message.partition, message.to))
        source = self.held.get((message.partition, message.source))
        if held is None or source is None or held.permits or held.copied == message.session:
            return
        permitted = self._permit(message.partition, message.session, message.epoch)
        if not permitted or held.matched != message.epoch:
            return  # too late, or too early: what an owner begins, it empties
        ticket = next(self._tickets)
        self._links[ticket] = (held, source, message, held.begun)
        held.permits[ticket] = message.session
        self.out.append(LinkRows(message.partition, message.to, ticket, message.source))

    def _rows_linked(self, now: float, event: RowsLinked) -> None:
        """Producers follow the rows; then it is as if one slice, the whole, had landed."""
        linking = self._links.pop(event.ticket, None)
        if linking is None:
            return
        held, source, link, begun = linking
        del held.permits[event.ticket]
        self._changed = True
        if not self._still_links(held, link, begun):
            return
        if event.through is None:
            held.trouble = "unlinkable"  # so that its rows are carried instead
            return
        if event.through < held.base:
            return  # what lies between is in neither; it will be asked for again
        producers = source.producers.value(event.through)
        held.producers.unite(producers)
        ticket = self._when_stored(lambda now: self._linked(held, link, begun, ticket))
        held.permits[ticket] = link.session
        self.out.append(ApplySlice(held.partition, held.replica.incarnation, ticket, (), producers))

    def _linked(self, held: Held, link: Link, begun: int, ticket: int) -> None:
        del held.permits[ticket]
        self._changed = True
        if self._still_links(held, link, begun):
            held.copied = link.session

    def _still_links(self, held: Held, link: Link, begun: int) -> bool:
        """The session is open, and the target is there and was not emptied meanwhile."""
        is_held = self.held.get((held.partition, held.replica.incarnation)) is held
        permitted = self._permit(link.partition, link.session, link.epoch)
        return is_held and permitted and held.begun == begun

    def _deny(self, sender: str, message: Fetch | Chunk | End, why: str) -> None:
        self._send(sender, Denied(message.partition, message.session, message.slice, why))

    # --- the coordinator

    def _look(self, now: float, sender: str, message: Look) -> None:
        self._coordinator = sender
        if message.generation > self.topology.generation:
            self._refresh(now)  # and told when it is read: what is said now would be out of date
        else:
            self._tell(now)

    def _seal(self, now: float, sender: str, message: Seal) -> None:
        owner = self._serving(now, message.partition)
        if owner is not None:
            owner.seal(now, message.revision)
            self._collect_from(owner)

    def _verify(self, now: float, sender: str, message: Verify) -> None:
        owner = self._serving(now, message.partition)
        if owner is not None:
            owner.verify(now, message.session)
            self._collect_from(owner)

    def _drop_replica(self, now: float, sender: str, message: DropReplica) -> None:
        held = self.held.get((message.partition, message.to))
        record = self.topology.partitions.get(message.partition)
        if held is None or record is None or held.replica in routing.written(record):
            return
        if message.revision == self.topology.revision_of(message.partition):
            self._dropped.append((message.partition, message.to))
            self._discard(held)

    def status(self, now: float) -> Status:
        assert self.lease is not None
        self._sequence += 1
        replicas: dict[PartitionId, list[ReplicaStatus]] = {}
        busy: dict[PartitionId, Revision] = {}
        for (partition, _), held in self.held.items():
            record = self.topology.partitions.get(partition)
            change = None if record is None else record.transition
            oldest = held.oldest_work(None if change is None else change.session)
            if oldest is not None:
                busy[partition] = min(oldest, busy.get(partition, oldest))
            owner = self.owners.get(partition)
            if owner is not None and owner.collecting is not None and owner.is_collecting():
                busy[partition] = min(owner.collecting[1], busy.get(partition, owner.revision))
            if held.made:
                replicas.setdefault(partition, []).append(self._replica_status(now, held))
        for partition, _ in self._discarding:
            busy[partition] = 0
        return Status(
            self.node,
            self.lease.id,
            self._sequence,
            self.topology.generation if self.lease.registered else 0,
            busy,
            {partition: tuple(all_of) for partition, all_of in replicas.items()},
            self._size.free_bytes,
        )

    def _replica_status(self, now: float, held: Held) -> ReplicaStatus:
        owner = self.owners.get(held.partition)
        rows, size = self._size.sizes.get((held.partition, held.replica.incarnation), (0, 0))
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
            )
        return ReplicaStatus(
            held.replica,
            held.epoch_durable,
            held.last,
            held.watermark,
            owner.epoch if owner.open and owner.holds(now) else 0,
            owner.seal_report(),
            held.copied,
            held.digest,
            owner.silent(now),
            tuple((replica, owner.revision) for replica in owner.proposed),
            tuple(peer.replica for peer in owner.peers.values() if not peer.reachable),
            held.copying(),
            owner.commit_seconds(now),
            rows,
            size,
            held.checking,
            held.trouble,
            self._size.rates.get(held.partition, (0.0, 0.0)),
        )


def _is_same(one: End, other: End) -> bool:
    """The same slice of the same copy, perhaps in another attempt."""
    return (one.session, one.slices, one.slice) == (other.session, other.slices, other.slice)


def _follow(last: Position, entries: tuple[Entry, ...]) -> bool:
    """Each names the one before it, and the first the end of the log."""
    for entry in entries:
        if entry.previous != last:
            return False
        last = entry.at
    return True
