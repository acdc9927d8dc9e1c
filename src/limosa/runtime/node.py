"""How does a node run? Its driver passes events to the core and carries out the effects.

One lock protects the participant and the order of writes to the storage. Nothing slow happens under
the lock: rows are checked before, and syncs, the metastore and the network have their own threads.
Reads do not take the lock.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from msgspec import Struct

from limosa.core.effects import (
    AbandonVolume,
    AcquireLease,
    AdvanceWatermark,
    Effect,
    EndRun,
    LinkRows,
    MakeCommit,
    ReadSlice,
    ReadTail,
    ReadTopology,
    Send,
    ShelveSlice,
    Surprise,
    VolumeEffect,
)
from limosa.core.events import (
    CollectionDue,
    DigestTaken,
    LeaseEnded,
    LeaseGranted,
    LogLost,
    Measured,
    NodeEvent,
    Received,
    ReplicaDamaged,
    RowsLinked,
    SliceRead,
    SliceShelved,
    Started,
    Stored,
    TailRead,
    Ticked,
    TopologyRead,
    VolumeLost,
)
from limosa.core.messages import Message, Status, Write
from limosa.core.model.changes import Agreed, lease_key
from limosa.core.model.keys import WHOLE, Incarnation, PartitionId, TokenRange
from limosa.core.model.topology import Node
from limosa.core.participant.brain import Participant
from limosa.core.participant.settings import ParticipantSettings
from limosa.core.routing import is_copied
from limosa.errors import BadInput, DamagedFile, DiskFull, Refused, VolumeFailed
from limosa.ports import Clock, Metastore
from limosa.protocol.peers import Flushed, Peers
from limosa.protocol.slices import slice_of
from limosa.runtime import membership
from limosa.runtime.metastore import Heartbeat, Log, Watcher
from limosa.runtime.reading import ViewReader
from limosa.runtime.syncing import VolumeSyncer
from limosa.runtime.threads import vital_thread
from limosa.runtime.traffic import Traffic
from limosa.runtime.work import VolumeWorkers
from limosa.storage.recovery import CHECK_DISK
from limosa.storage.store import Store
from limosa.tabular.rows import Bundle
from limosa.tabular.sizes import PIECE_BYTES
from limosa.tabular.tables import KnownTables

NOTHING_FIRST: AbstractContextManager[object] = nullcontext()
TICK_SECONDS = 0.02
COLLECT_SECONDS = 60.0
ROOM_SECONDS = 1.0
FULL_SECONDS = 0.2
"""A sync that found no space is repeated after this time."""


class NodeSettings(Struct, frozen=True):
    """Settings of a node."""

    participant: ParticipantSettings = ParticipantSettings()
    scrub_bytes_per_second: int = 16 << 20
    """How fast a scrub verifies all files in the background; 0: no scrub."""


def is_of_disk(error: Exception) -> bool:
    return isinstance(error, VolumeFailed | OSError)


class NodeDriver:
    """The driver of one node, from its start to its stop."""

    def __init__(
        self,
        node: Node,
        store: Store,
        open_metastore: Callable[[], Metastore],
        clock: Clock,
        peers: Peers,
        settings: NodeSettings,
        log: Log,
        failed: Callable[[Exception], None],
    ) -> None:
        self.node = node
        self.store = store
        self.peers = peers
        self.settings = settings
        self.tables = KnownTables()
        self.surprises: Counter[str] = Counter()
        self.log = log
        self.brain = Participant(node.id, settings.participant)
        self.agreed = Agreed()
        self.now = clock.now
        self.traffic = Traffic()
        self.reader = ViewReader(self.brain, store, clock.now, self.traffic, self.damaged)
        self._failed = failed
        self._lock = threading.Lock()
        self._client_turn = threading.Lock()
        """Held by the client's thread that waits for the lock or has it: however many clients
        write, other nodes and the coordinator wait for one of them only."""
        self._stopping = threading.Event()
        self._syncers = {name: VolumeSyncer(name, self._sync, self._fail) for name in store.volumes}
        self._gathered: dict[str, list[Message]] = {}
        """What the present turn sends, by receiver."""
        self._written: dict[str, int] = {}
        """The last ticket that the present turn wrote to each volume."""
        self._full: tuple[str, ...] = ()
        self._deleted: set[str] = set()
        due = self.brain.leasing.renewals.due
        self._heartbeat = Heartbeat(
            lease_key(node.id), open_metastore, clock, log, self._fail, due, self._renewed
        )
        self.watcher = Watcher(open_metastore, self._followed, log, self._fail)
        self._workers = VolumeWorkers(log)
        self._shelvers = VolumeWorkers(log, "shelver")
        self._ticker = vital_thread(self._tick, "tick", self._fail)

    @property
    def is_over(self) -> bool:
        """This run serves nothing any more: it stops, or its disk has failed."""
        return self.brain.is_over

    def start(self) -> None:
        self.store.merge_later(self._is_copied)
        # By another thread: maintenance must not wait for this driver, which may wait for it.
        self.store.report_damage(
            lambda *about: self._work_on(about[0], about[1], partial(self.damaged, *about)),
            lambda *about: self._work_on(about[0], about[1], partial(self._log_lost, *about)),
        )
        self.store.start_maintenance()
        self.deliver(Started(self.store.restored(self.node.id), self.store.volumes))
        self.store.start_scrub(self.settings.scrub_bytes_per_second)
        self.watcher.start()
        for syncer in self._syncers.values():
            syncer.thread.start()
        self._ticker.start()

    def wait_until_live(self, seconds: float) -> None:
        """Wait until the node is registered and has read the topology; raises on a timeout."""
        deadline = time.monotonic() + seconds
        while (lease := self.brain.lease) is None or not lease.registered:
            if time.monotonic() > deadline:
                raise Refused(
                    f"{self.node.id} got no lease in time", "check that the metastore answers"
                )
            time.sleep(0.01)

    # --- events in

    def deliver(self, event: NodeEvent) -> None:
        self.deliver_all((event,))

    def deliver_all(self, events: Sequence[NodeEvent]) -> None:
        with self._turn():
            for event in events:
                if not self.is_over:
                    self._carry_out_all(self.brain.handle(self.now(), event))

    @contextmanager
    def _turn(
        self,
        first: AbstractContextManager[object] = NOTHING_FIRST,
        syncs_here: VolumeSyncer | None = None,
    ) -> Iterator[None]:
        """Handle events under the lock. What they send is gathered: at the end, each receiver gets
        its messages together, and each sync thread is woken once. A frame costs more than the
        messages in it, and a sync more than the changes that it makes durable.

        `first`: held together with the lock, and not while links are flushed: a link may be slow.
        `syncs_here`: the caller syncs this volume itself afterwards.
        """
        links: list[Flushed] = []
        with first, self._lock, self._fatal():
            yield
            links = self._put_gathered(syncs_here)
        for link in links:
            link.flush()

    def _put_gathered(self, syncs_here: VolumeSyncer | None = None) -> list[Flushed]:
        """Put what was gathered into the outboxes of links; the caller flushes these links."""
        written, self._written = self._written, {}
        for volume, ticket in written.items():
            syncer = self._syncers.get(volume)
            if syncer is not None:
                syncer.want(ticket, wake=syncer is not syncs_here)
        gathered, self._gathered = self._gathered, {}
        if self.is_over:
            return []  # an ack might be of a write that failed
        links = (self.peers.put(to, messages) for to, messages in gathered.items())
        return [link for link in links if link is not None]

    def write(self, sender: str, messages: Sequence[Write], lone: bool = False) -> None:
        """A client's writes in their order; the service has checked them.

        The calling thread syncs a lone request itself (`transport.lone`).
        """
        syncer = self._syncer_of(messages[0]) if lone else None
        sync_here = syncer is not None and syncer.turn.acquire(blocking=False)
        try:
            with self._turn(self._client_turn, syncer if sync_here else None):
                for message in messages:
                    if self.is_over:
                        return
                    found = 0 if message.expected is None else self._newest(message)
                    event = Received(sender, message, found)
                    self._carry_out_all(self.brain.handle(self.now(), event))
            if syncer is not None and sync_here:
                syncer.sync_once()
        finally:
            if syncer is not None and sync_here:
                syncer.turn.release()

    def _syncer_of(self, message: Write) -> VolumeSyncer | None:
        owner = self.brain.owners.get(message.partition)
        return None if owner is None else self._syncers.get(owner.held.replica.volume)

    def _newest(self, message: Write) -> int | None:
        """The row's newest version for a compare-and-set, in the order of the partition writes.
        None: a file is damaged, so that the row can't be read."""
        owner = self.brain.owners.get(message.partition)
        if owner is None:
            return 0
        rows = message.rows
        assert isinstance(rows, Bundle)
        (batch,) = rows.batches
        incarnation = owner.held.replica.incarnation
        try:
            return self.store.newest(message.partition, incarnation, batch.table, batch.key(0))
        except DamagedFile as error:
            self._work_on(
                message.partition,
                incarnation,
                partial(self.damaged, message.partition, incarnation, error),
            )
            return None

    def damaged(self, partition: PartitionId, incarnation: Incarnation, error: DamagedFile) -> None:
        """A file of a replica turned out to be damaged: report it, once."""
        held = self.brain.held.get((partition, incarnation))
        if held is None or held.damaged:
            return
        self.log("a file is damaged", partition=partition, error=error.message)
        self.deliver(ReplicaDamaged(partition, incarnation, error.message))
        self._work_on(
            partition,
            incarnation,
            lambda: self.store.mark_damaged(partition, incarnation, error.message),
        )

    def _work_on(
        self, partition: PartitionId, incarnation: Incarnation, work: Callable[[], None]
    ) -> None:
        """Do slow work on a replica, one piece after the other for each volume."""
        self._workers.do(self.store.home(partition, incarnation), work)

    def _log_lost(self, partition: PartitionId, incarnation: Incarnation, through: int) -> None:
        self.log("a part of a log is lost", partition=partition, through=through)
        self.deliver(LogLost(partition, incarnation, through))

    @contextmanager
    def noticing(self, partition: PartitionId, incarnation: Incarnation) -> Iterator[None]:
        """Report the damage of a file that is read here, and pass the error on."""
        try:
            yield
        except DamagedFile as error:
            self.damaged(partition, incarnation, error)
            raise

    def may_learn(self, schema: int) -> bool:
        """May a newer topology know this version of a table? Then the caller should ask again."""
        with self._lock:
            return self.brain.hosting.may_learn(self.now(), schema)

    def status(self) -> Status | None:
        """The status for the coordinator; None without a lease."""
        with self._lock:
            return None if self.brain.lease is None else self.brain.status(self.now())

    # --- effects out

    def _carry_out_all(self, effects: Sequence[Effect]) -> None:
        """Carry out effects in order; an error ends the run, since the participant assumes that all
        effects are carried out."""
        for effect in effects:
            if self.is_over:
                return
            if isinstance(effect, Send):
                self._gathered.setdefault(effect.to, []).append(effect.message)
            elif isinstance(effect, VolumeEffect):
                self._store(effect)
            else:
                self._carry_out(effect)

    def _store(self, change: VolumeEffect) -> None:
        volume = self.store.volume_of(change)
        try:
            self.store.write(change)
        except VolumeFailed as error:
            self._lose_failed(error)
            return
        if volume is None:
            return  # its volume has just failed
        if isinstance(change, AdvanceWatermark) and change.digest:
            self._take_digest(change)
        if change.ticket:
            self._written[volume] = change.ticket

    def _lose_failed(self, error: VolumeFailed) -> None:
        """Continue without the volumes that failed, if others are left. The lock is held."""
        failed = self.store.failed
        if not failed or len(failed) == len(self.store.volumes):
            raise error
        for volume in failed:
            self._abandon(volume, error.message)
            self._carry_out_all(self.brain.handle(self.now(), VolumeLost(volume, error.message)))

    def _abandon(self, volume: str, why: str) -> None:
        self.log("a volume is given up", volume=volume, why=why)
        self.store.abandon(volume, why)
        self._syncers.pop(volume).stop()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case AcquireLease():
                self._heartbeat.acquire(
                    self.settings.participant.lease_seconds,
                    lambda store, lease, previous: membership.register(
                        store, self.node, lease, previous
                    ),
                    lambda lease, revision, sent_at: self.deliver(
                        LeaseGranted(lease, revision, sent_at)
                    ),
                )
            case ReadTopology():
                self.watcher.look()
            case MakeCommit(commit=commit):
                self.watcher.commit(commit)
            case ReadTail(partition=partition, incarnation=incarnation):
                self._work_on(partition, incarnation, lambda: self._read_tail(effect))
            case ReadSlice(partition=partition, incarnation=incarnation):
                self._work_on(partition, incarnation, lambda: self._read_slice(effect))
            case LinkRows(partition=partition, incarnation=incarnation):
                self._work_on(partition, incarnation, lambda: self._link_rows(effect))
            case ShelveSlice(partition=partition, incarnation=incarnation):
                home = self.store.home(partition, incarnation)
                # Without a home its volume has just failed, and so will the work.
                view = None if home is None else self.store.view(partition, incarnation)
                collected = 0 if view is None else view.collected
                self._shelvers.do(home, lambda: self._shelve_slice(effect, collected))
            case AbandonVolume(volume=volume, why=why):
                self._abandon(volume, why)
            case EndRun(why=why):
                raise VolumeFailed(why, CHECK_DISK)
            case Surprise(partition=partition, what=what):
                self.surprises[what] += 1
                self.log("SURPRISE", partition=partition, what=what)
            case _:
                raise AssertionError(effect)

    def _take_digest(self, change: AdvanceWatermark) -> None:
        view = self.store.view(change.partition, change.incarnation)

        def take() -> None:
            digest: int | None = None
            try:
                with self.noticing(change.partition, change.incarnation):
                    digest = view.digest()
            except Exception as error:
                self.log("a digest failed", partition=change.partition, error=repr(error))
            self.deliver(DigestTaken(change.partition, change.incarnation, change.to, digest))

        self._work_on(change.partition, change.incarnation, take)

    def _read_tail(self, effect: ReadTail) -> None:
        try:
            entries = self.store.tail(
                effect.partition, effect.incarnation, effect.after, effect.bytes_max
            )
        except DamagedFile as error:
            self.store.remove_damaged_log(effect.partition, effect.incarnation, error)
            entries = []
        except Exception as error:  # only this replica can't catch up from the log
            self.log("reading a log failed", partition=effect.partition, error=repr(error))
            entries = []
        self.deliver(TailRead(effect.ticket, tuple(entries)))

    def _read_slice(self, effect: ReadSlice) -> None:
        view = self.store.view(effect.partition, effect.incarnation)
        token_range = self._slice_of(effect)
        through = view.watermark if effect.up_to is None else min(effect.up_to, view.watermark)
        with self.noticing(effect.partition, effect.incarnation):
            batches = [
                piece
                for table in view.tables.values()
                for batch in view.copied(table.table, token_range, through)
                for piece in batch.in_pieces(PIECE_BYTES, len(batch))
            ]
            rows = Bundle(batches)
            rows.digest()  # computed here, where no client waits for it
        self.deliver(SliceRead(effect.ticket, rows, through))

    def _slice_of(self, effect: ReadSlice | ShelveSlice) -> TokenRange:
        record = self.brain.topology.partitions.get(effect.partition)
        whole = WHOLE if record is None else record.range
        return slice_of(whole, effect.slice, effect.slices)

    def _shelve_slice(self, effect: ShelveSlice, collected: int) -> None:
        if self.is_over:
            return
        token_range = self._slice_of(effect)
        rest, problem = Bundle(), ""
        try:
            rows = [rows for rows in effect.rows if isinstance(rows, Bundle)]
            place = (effect.partition, effect.incarnation)
            least = self.settings.participant.shelved_bytes
            rest = self.store.shelve(place, rows, token_range, effect.digest, collected, least)
        except Exception as error:
            self.log("storing a slice failed", partition=effect.partition, error=repr(error))
            problem = f"the slice was not stored: {error}"
        self.deliver(SliceShelved(effect.ticket, (rest,) if len(rest) else (), problem))

    def _link_rows(self, effect: LinkRows) -> None:
        source = (effect.partition, effect.source)
        target = (effect.partition, effect.incarnation)
        through: int | None = None
        try:
            if self.store.can_link(source, target):
                through = self.store.view(*source).watermark
                self.store.adopt(source, target)
        except Exception as error:
            self.log("linking rows failed", partition=effect.partition, error=repr(error))
            through = None
        self.deliver(RowsLinked(effect.ticket, through))

    # --- threads

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """Stop the node on an error: without one of its threads it would keep a useless lease."""
        try:
            yield
        except Exception as error:
            self._fail(error)

    def _sync(self, syncer: VolumeSyncer) -> int | None:
        """Sync a volume; None: nothing more becomes durable there."""
        synced: int | None = None
        with self._fatal():
            try:
                if not self.is_over:
                    synced = self.store.sync_volume(syncer.volume)
            except DiskFull:  # everything that was written there waits for space
                self.look_for_room()
                self._stopping.wait(FULL_SECONDS)
            except BadInput:
                if syncer.volume in self.store.volumes:
                    raise  # otherwise another thread has just abandoned the volume
            except VolumeFailed as error:
                with self._turn():
                    if syncer.volume in self.store.volumes:
                        self._lose_failed(error)
            if synced is not None:
                self.deliver(Stored(synced, syncer.volume))
        return synced

    def _tick(self) -> None:
        looked = collected = time.monotonic()
        while not self._stopping.wait(TICK_SECONDS):
            self.deliver(Ticked())
            now = time.monotonic()
            if now - looked > ROOM_SECONDS:
                looked = now
                self.look_for_room()
                self.peers.cut_silent()
            if now - collected > COLLECT_SECONDS:
                collected = now
                for partition in list(self._deleted):
                    self._deleted.discard(partition)
                    self.deliver(CollectionDue(partition))

    def note_deletes(self, partition: str) -> None:
        """The partition has tombstones that must be collected later."""
        self._deleted.add(partition)

    def look_for_room(self) -> None:
        """Measure free space, sizes of replicas and traffic, and report them to the participant."""
        sizes = self.store.sizes()
        rates = self.traffic.measure(time.monotonic())
        full, self._full = self._full, self.store.full
        if full != self._full:
            self.log("disks are full" if self._full else "disks have space again", volumes=full)
        self.deliver(Measured(self.store.free_bytes(), sizes, rates, self._full))

    def _renewed(self, lease: int, alive: bool, sent_at: float) -> None:
        """By the thread of the heartbeat, without the lock: a busy brain keeps its lease."""
        if alive:
            self.brain.leasing.renewals.renewed(self.now(), lease, sent_at)
        else:
            self.deliver(LeaseEnded(lease))

    def _is_copied(self, partition: PartitionId) -> bool:
        record = self.agreed.topology.partitions.get(partition)
        return record is not None and is_copied(record)

    def _followed(self, agreed: Agreed, asked: bool) -> None:
        self.agreed = agreed
        self.tables.follow(agreed.topology)
        self.peers.follow(agreed.topology)
        self.deliver(TopologyRead(agreed.topology, agreed.revision, asked=asked))

    def _fail(self, error: Exception) -> None:
        """A disk or this process failed: stop serving; other nodes take the partitions over."""
        if not self.is_over:
            self.brain.is_over = True
            self._stopping.set()
            with suppress(Exception):
                # A disk that failed needs no traceback, but a bug does.
                self.log("the node stops", error=str(error) if is_of_disk(error) else error)
            threading.Thread(target=self._failed, args=(error,), daemon=True).start()

    # --- the end

    def stop(self) -> None:
        """Give up the lease first, so that other nodes need not wait until it expires."""
        links: list[Flushed] = []
        with self._lock, self._fatal():
            lease = self.brain.lease
            if lease is not None and not self.is_over:
                # From here on every request is refused, and waiting callers are told.
                self._carry_out_all(self.brain.handle(self.now(), LeaseEnded(lease.id)))
            links = self._put_gathered()
            self.brain.is_over = True
        for link in links:
            link.flush()
        if lease is not None:
            self._heartbeat.revoke(lease.id)  # at once: a disk that hangs delays everything below
        self._stopping.set()
        syncers = list(self._syncers.values())
        for syncer in syncers:
            syncer.stop()
        for thread in (*(syncer.thread for syncer in syncers), self._ticker):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(10.0)
        self._heartbeat.close()
        self.watcher.close()
        self._workers.close()
        self._shelvers.close()
        self.peers.close()
        self.store.close()
