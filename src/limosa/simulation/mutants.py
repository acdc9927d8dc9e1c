"""Has the simulator teeth? Each mutant removes one rule of the protocol; a recorded seed finds it.

A mutant is planted by replacing small functions of the core for the duration of a run: the core
itself has no switches. One that nothing can find because other rules make it redundant is kept in a
list of its own, with the argument, and does not count.
"""

from typing import Any

from msgspec.structs import replace

from limosa.core import client as client_module
from limosa.core import routing
from limosa.core.client import Client
from limosa.core.coordinator import ownership, transitions
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import ApplySlice, BeginLog, Send
from limosa.core.events import TopologyRead
from limosa.core.machines.catalogue import CLEANUP_TARGET, READ_NEW, USE_NEW, WRITE_BOTH
from limosa.core.machines.machine import Work
from limosa.core.messages import Fetched, Mismatched
from limosa.core.model.changes import COORDINATOR_KEY, Topology, intent_key
from limosa.core.model.keys import WHOLE
from limosa.core.model.rows import Rows
from limosa.core.participant import copying
from limosa.core.participant.copying import Copying
from limosa.core.participant.following import Following
from limosa.core.participant.held import Held
from limosa.core.participant.hosting import Hosting
from limosa.core.participant.lease import Lease
from limosa.core.participant.leasing import Leasing
from limosa.core.participant.owner import Owner
from limosa.core.participant.reading import Admitted, Reading
from limosa.core.producers import Applied, Producers
from limosa.simulation import run_mutants as run_mutants
from limosa.simulation.disk import SimulatedDisk, SimulatedReplica, SimulatedView
from limosa.simulation.planting import MUTANTS as MUTANTS
from limosa.simulation.planting import REDUNDANT as REDUNDANT
from limosa.simulation.planting import SEEDS as SEEDS
from limosa.simulation.planting import mutant
from limosa.simulation.planting import planted as planted
from limosa.simulation.rows import SimulatedRow, SimulatedRows

# --- reading and acknowledging


@mutant("owner reads see committed rows only")
def reads_above_the_watermark(change: Any) -> None:
    def view(self: SimulatedReplica) -> SimulatedView:
        seen = dict(self.rows)
        for entry in self.entries:
            if entry.at > self.watermark and isinstance(entry.rows, SimulatedRows):
                seen |= {row.key: replace(row, version=entry.at) for row in entry.rows.rows}
        return SimulatedView(self.watermark, seen)

    change(SimulatedReplica, "view", view)


@mutant("a read is admitted only by an open owner whose lease holds")
def reads_admitted_anywhere(change: Any) -> None:
    def admit(self: Reading, now: float, read: Any) -> Any:
        for (partition, _), held in self._node.held.items():
            if partition == read.partition:
                return Admitted(read, held, self._node.owners.get(partition))
        return self._node.redirect(read.partition, read.id)

    change(Reading, "admit", admit)


@mutant("a read is checked again after its view was taken")
def reads_not_checked_again(change: Any) -> None:
    change(Reading, "check", lambda self, now, admitted, through: None)


@mutant("a view has all that was committed when the owner opened")
def view_from_before_the_opening(change: Any) -> None:
    change(Reading, "is_complete", lambda self, owner, through: True)


@mutant("a read is answered only while the lease holds")
def reads_after_the_lease(change: Any) -> None:
    def owner_for(self: Reading, now: float, read: Any) -> Any:
        owner = self._node.owners.get(read.partition)
        if owner is not None and owner.open and owner.sealed is None:
            return owner
        return self._serving.routed(now, read)

    change(Reading, "owner_for", owner_for)
    change(Reading, "lease_holds", lambda self, now, owner: True)


@mutant("an eventual read is not answered from a replica that was dropped meanwhile")
def dropped_replica_still_read(change: Any) -> None:
    change(Reading, "is_still_readable", lambda self, now, admitted, through: True)


@mutant("an eventual read is not answered from a replica that is no longer complete")
def stale_side_still_read(change: Any) -> None:
    def is_here(self: Reading, now: float, admitted: Admitted, through: int) -> bool:
        return self._node.held.get(admitted.replica) is admitted.held

    change(Reading, "is_still_readable", is_here)


@mutant("an owner serves only while its lease holds")
def serves_after_its_lease(change: Any) -> None:
    change(Lease, "holds", lambda self, now: self.registered)


@mutant("lease time runs from the sending of the renewal, not from its answer")
def lease_counted_from_the_answer(change: Any) -> None:
    renewed, granted = Leasing.renewed, Leasing.granted

    def late_renewal(self: Leasing, now: float, event: Any) -> None:
        renewed(self, now, replace(event, sent_at=now))

    def late_grant(self: Leasing, now: float, event: Any) -> None:
        granted(self, now, replace(event, sent_at=now))

    change(Leasing, "renewed", late_renewal)
    change(Leasing, "granted", late_grant)


@mutant("an ack needs the new side too")
def ack_without_the_new_side(change: Any) -> None:
    change(Owner, "required", lambda self: list(routing.electable(self.record)))


@mutant("a silent replica is taken out by a commit before the owner acks without it")
def ack_without_a_silent_replica(change: Any) -> None:
    """The owner stops waiting by itself, as soon as it would report the replica."""
    required, tick = Owner.required, Owner.tick

    def watching(self: Any, now: float) -> None:
        self.given_up = self.silent(now)
        tick(self, now)
        self.commit(now)

    def fewer(self: Owner) -> list[Any]:
        return [r for r in required(self) if r not in getattr(self, "given_up", ())]

    change(Owner, "tick", watching)
    change(Owner, "required", fewer)


@mutant("a retry of a known sequence is acked only when its row is committed")
def retry_acked_at_once(change: Any) -> None:
    write = Owner.write

    def eager(self: Owner, now: float, client: str, message: Any, found: int) -> Any:
        applied = self.held.producers.applied(message.producer, message.sequence)
        if applied:
            return self.answer_to(message, applied[-1].at, applied[-1].found).answer
        return write(self, now, client, message, found)

    change(Owner, "write", eager)


@mutant("a comparison that fails is ordered and committed like a write")
def mismatch_answered_at_once(change: Any) -> None:
    write = Owner.write

    def eager(self: Owner, now: float, client: str, message: Any, found: int) -> Any:
        applied = self.held.producers.applied(message.producer, message.sequence)
        if not applied and message.expected is not None and message.expected != found:
            return Mismatched(message.id, found)
        return write(self, now, client, message, found)

    change(Owner, "write", eager)


# --- epochs, leases, the topology


@mutant("an epoch is granted to one run of one process")
def restart_keeps_its_epoch(change: Any) -> None:
    def is_mine(self: Hosting, record: Any, replica: Any) -> bool:
        grant = record.owner
        return grant is not None and grant.replica == replica and bool(self._node.lease)

    def owner_lives(self: ClusterView, record: Any) -> bool:
        return record.owner is not None and record.owner.replica.node in self.agreed.leases

    change(Hosting, "is_mine", is_mine)
    change(ClusterView, "owner_lives", owner_lives)


@mutant("followers refuse an older epoch")
def epoch_not_compared(change: Any) -> None:
    change(Following, "is_current", lambda self, held, message: True)


@mutant("a new lease counts only with a topology from after it")
def lease_before_the_topology(change: Any) -> None:
    granted = Leasing.granted

    def at_once(self: Leasing, now: float, event: Any) -> None:
        granted(self, now, event)
        self._hosting.register(now)

    change(Leasing, "granted", at_once)


@mutant("an older topology is ignored: a watch is a hint")
def stale_watch_trusted(change: Any) -> None:
    def is_newer(self: Hosting, topology: Topology) -> bool:
        return topology.generation != self._node.topology.generation

    change(Hosting, "is_newer", is_newer)


@mutant("what is missing on a node is lost, not made anew")
def lost_replica_made_anew(change: Any) -> None:
    change(Hosting, "may_create", lambda self, record, replica: True)


@mutant("a commit is guarded by the revisions that it was computed from")
def commit_without_revisions(change: Any) -> None:
    change(ClusterView, "guards", lambda self, record: {COORDINATOR_KEY: self.coordinator})


@mutant(
    "a commit is guarded by the intent, so that a cancel is not overtaken",
    argument="A cancel is stored by the coordinator itself, whose commits for one partition "
    "go one at a time; a successor's are guarded by the office.",
)
def switch_overtakes_cancel(change: Any) -> None:
    guards = ClusterView.guards

    def without_intent(self: ClusterView, record: Any) -> dict[str, int]:
        return {k: v for k, v in guards(self, record).items() if k != intent_key(record.id)}

    change(ClusterView, "guards", without_intent)


# --- failover


@mutant("failover picks a replica of the side that is read")
def failover_to_the_unread_side(change: Any) -> None:
    change(ownership, "candidates", lambda view, record: routing.writers(record))


@mutant("failover happens when the owner's lease has ended")
def failover_without_lease_end(change: Any) -> None:
    lives = ClusterView.owner_lives

    def suspected(self: ClusterView, record: Any) -> bool:
        return lives(self, record) and self.owner_status(record) is not None

    change(ClusterView, "owner_lives", suspected)


@mutant("a new owner makes every replica equal to itself before it serves")
def opens_without_equalising(change: Any) -> None:
    def commit_point(self: Owner) -> int:
        return point(self) if self.open else self.held.durable

    point = Owner.commit_point
    change(Owner, "commit_point", commit_point)
    change(Owner, "all_matched", lambda self: True)


@mutant(
    "... the new side too",
    argument="Once it serves, the owner acks nothing without the new side, whose log begins "
    "where everything is committed, and the copy begins again.",
)
def new_side_not_equalised(change: Any) -> None:
    required = Owner.required

    def some(self: Owner) -> list[Any]:
        return required(self) if self.open else list(routing.electable(self.record))

    change(Owner, "required", some)


@mutant("a log is cut where it parts from the new owner's")
def log_not_cut(change: Any) -> None:
    change(Following, "cut", lambda self, held, to: None)


@mutant("a copy does not count over a failover: session and copy begin again")
def copy_kept_over_failover(change: Any) -> None:
    begin = Held.begin

    def keeping(self: Held, base: int, epoch: int) -> None:
        copied, landed, session = self.copied, dict(self.landed), self.session
        begin(self, base, epoch)
        self.copied, self.landed, self.session = copied, landed, session

    change(Held, "begin", keeping)
    change(ownership, "renewed_session", lambda record, transition, epoch: transition.session)


@mutant("a follower commits only what its owner has committed")
def follower_commits_by_itself(change: Any) -> None:
    advance = Held.advance
    change(Held, "advance", lambda self, to: advance(self, self.last))


# --- the transition


@mutant("taking out the new side is giving the transition up")
def new_side_taken_out_and_put_back(change: Any) -> None:
    change(ownership, "gives_up", lambda record: False)
    change(
        routing, "may_return",
        lambda record: tuple(r for r in routing.written(record) if r not in record.in_sync),
    )  # fmt: skip


@mutant("fallback only to an in-sync old replica")
def fallback_to_one_that_was_taken_out(change: Any) -> None:
    def live(view: ClusterView, record: Any) -> tuple[Any, ...]:
        return tuple(r for r in record.replicas if view.is_live(r.node))

    change(transitions, "fallback_candidates", live)


@mutant("naming another owner needs the present one's seal")
def hand_over_without_seal(change: Any) -> None:
    change(transitions, "seal", lambda view, record, since: None)
    change(transitions, "DO", {**transitions.DO, Work.SEAL: lambda view, record, since: None})


@mutant(
    "a seal is reported when everything in flight has ended",
    argument="What is acked is on the whole write set, so it is in the log that the next "
    "owner commits; what is not is answered as unknown.",
)
def sealed_before_in_flight_ended(change: Any) -> None:
    def report(self: Owner) -> Any:
        return None if self.sealed is None else (self.sealed, self.held.last)

    change(Owner, "seal_report", report)


@mutant("any change of the record lifts a seal")
def seal_never_lifted(change: Any) -> None:
    change(Owner, "unsealed", lambda self: self.sealed)


@mutant("nothing lifts a seal by time alone")
def seal_lifted_by_time(change: Any) -> None:
    def touch(self: Owner, why: str) -> None:
        self.sealed = None

    change(Owner, "touch", touch)


@mutant("the fence is raised to the generation captured before the drain")
def fence_raised_after_the_drain(change: Any) -> None:
    change(transitions, "fence_after", lambda view, record: view.agreed.revision + 1)


def _without_barrier(change: Any, stage: str) -> None:
    def barrier(view: ClusterView, record: Any, since: float) -> Any:
        assert record.transition is not None
        if record.transition.stage == stage:
            return None
        return transitions.barrier(view, record, since)

    change(transitions, "DO", {**transitions.DO, Work.BARRIER: barrier})


@mutant("cleanup_target drops behind a barrier")
def no_barrier_before_cleanup_target(change: Any) -> None:
    _without_barrier(change, CLEANUP_TARGET)


@mutant("cleanup drops behind the barrier of use_new")
def no_barrier_before_cleanup(change: Any) -> None:
    _without_barrier(change, USE_NEW)


@mutant("a target is prepared as an empty incarnation")
def leftover_reused(change: Any) -> None:
    """What was dropped is found again: neither the drop nor the beginning empties it."""
    leftovers: dict[tuple[int, str, str], dict[str, SimulatedRow]] = {}
    init, apply = SimulatedReplica.__init__, SimulatedReplica.apply

    def made(self: SimulatedReplica, partition: str, replica: Any, on_commit: Any) -> None:
        init(self, partition, replica, on_commit)
        key = (
            id(on_commit.__self__) if hasattr(on_commit, "__self__") else 0,
            partition,
            replica.node,
        )
        self.rows = leftovers.setdefault(key, self.rows)

    def applied(self: SimulatedReplica, step: Any) -> None:
        if isinstance(step, BeginLog):
            rows = dict(self.rows)
            apply(self, step)
            self.rows.update(rows)
        else:
            apply(self, step)

    change(SimulatedReplica, "__init__", made)
    change(SimulatedReplica, "apply", applied)


# --- copying


@mutant("every chunk needs the permit of an open session")
def permit_not_checked(change: Any) -> None:
    change(Copying, "permit", lambda self, partition, session, epoch: True)


@mutant("a slice counts only after its END")
def chunk_without_its_end(change: Any) -> None:
    def chunk(self: Copying, now: float, sender: str, message: Any) -> None:
        node = self._node
        held = node.held.get((message.partition, message.to))
        if held is None or not self.permit(message.partition, message.session, message.epoch):
            return
        landed = held.landed.setdefault((message.session, 2), set())
        landed.add(message.slice)
        if all(number in landed for number in range(2)):
            held.copied = message.session
            node.changed = True
        ticket = next(node.tickets)
        node.out.append(ApplySlice(message.partition, message.to, ticket, (message.rows,), ()))

    change(Copying, "chunk", chunk)


@mutant("a copy is whole when all slices of one and the same number have landed")
def slices_of_any_number(change: Any) -> None:
    def landed_of(self: Copying, held: Held, message: Any) -> set[int]:
        return held.landed.setdefault((message.session, 1), set())

    change(Copying, "landed_of", landed_of)


@mutant("a copy that differs from its source is never read")
def switch_despite_a_mismatch(change: Any) -> None:
    verify = transitions.verify

    def trusting(view: ClusterView, record: Any, targets: Any) -> Any:
        progress = verify(view, record, targets)
        return None if isinstance(progress, transitions.Differs) else progress

    change(transitions, "verify", trusting)


@mutant("a copied row counts only if its version is newer")
def copy_without_versions(change: Any) -> None:
    logged = SimulatedReplica.put_copied

    def put(self: SimulatedReplica, row: SimulatedRow) -> None:
        self.rows[row.key] = row

    change(SimulatedReplica, "put_logged", logged)
    change(SimulatedReplica, "put_copied", put)


@mutant("the copy begins where the log of the new replica does")
def copy_older_than_the_log(change: Any) -> None:
    change(Owner, "base", lambda self: self.held.last)
    incomplete = Copying.incomplete

    def lenient(self: Copying, held: Held, message: Any, parts: Any) -> str:
        problem = incomplete(self, held, message, parts)
        return "" if problem.startswith("the copy is older") else problem

    change(Copying, "incomplete", lenient)


@mutant("a replica that was filled in this epoch is not filled for ever")
def repaired_as_if_it_were_filled(change: Any) -> None:
    incomplete = Copying.incomplete

    def begun(self: Copying, held: Held, message: Any, parts: Any) -> str:
        problem = incomplete(self, held, message, parts)
        is_ahead = problem.startswith("the copy is ahead")
        return "" if is_ahead and held.begun == message.epoch else problem

    change(Copying, "incomplete", begun)


@mutant("a slice lands only when the replica has caught up with it")
def copy_ahead_of_the_replica(change: Any) -> None:
    incomplete = Copying.incomplete

    def lenient(self: Copying, held: Held, message: Any, parts: Any) -> str:
        problem = incomplete(self, held, message, parts)
        return "" if problem.startswith("the copy is ahead") else problem

    change(Copying, "incomplete", lenient)


@mutant("a slice is what its digest says")
def digest_not_compared(change: Any) -> None:
    end = Copying.end

    def trusting(self: Copying, now: float, sender: str, message: Any) -> None:
        held = self._node.held.get((message.partition, message.to))
        key = (message.session, message.slice, message.attempt)
        chunks = {} if held is None else held.chunks.get(key, {})
        arrived = sum(chunk.rows.digest() for chunk in chunks.values())
        end(self, now, sender, replace(message, digest=arrived))

    change(Copying, "end", trusting)


# --- copied rows that are stored past the log


@mutant(
    "a slice of a repair goes by the log",
    argument="What waited for its turn is refused if tombstones were collected meanwhile; without "
    "a collection, an older row does not count against a newer one, however late it comes.",
)
def repair_shelved(change: Any) -> None:
    def by_size(self: Copying, held: Held, rows: tuple[Rows, ...]) -> bool:
        return sum(each.bytes for each in rows) >= self._node.settings.shelved_bytes

    change(Copying, "may_shelve", by_size)


@mutant(
    "a slice that waited is refused if tombstones were collected meanwhile",
    argument="Only a replica that nobody reads yet is filled past the log; every way out of the "
    "stage passes a barrier that waits for it, and until then nothing is collected.",
)
def shelved_behind_a_collection(change: Any) -> None:
    change(SimulatedDisk, "collected", lambda self, partition, incarnation: 0)


@mutant(
    "a slice that is on its way past the log is not stored twice",
    argument="A row counts once, and what was fetched before the copy was whole is not behind the "
    "position where digests are taken; it only takes longer.",
)
def shelved_twice(change: Any) -> None:
    change(copying, "_is_same", lambda one, other: False)


@mutant("a row that is stored past the log counts only if its version is newer")
def shelved_over_newer_rows(change: Any) -> None:
    shelve = SimulatedDisk.shelve

    def over(self: SimulatedDisk, step: ApplySlice, node: str) -> None:
        for volumes in (self.live, self._durable):
            stored = volumes.get((step.partition, step.incarnation))
            kept = {} if stored is None else stored.rows
            for rows in step.rows:
                assert isinstance(rows, SimulatedRows)
                for row in rows.rows:
                    kept.pop(row.key, None)
        shelve(self, step, node)

    change(SimulatedDisk, "shelve", over)


@mutant(
    "what was stored past the log of a replica that began anew since has not landed",
    argument="A replica is begun once in an epoch, before anything lands in it; in another epoch "
    "the session is another one, too, and the permit for the slice is gone.",
)
def shelved_before_the_beginning(change: Any) -> None:
    shelved = Copying.slice_shelved

    def ignoring(self: Copying, now: float, event: Any) -> None:
        if event.ticket in self._shelving:
            held, message, sender, _ = self._shelving[event.ticket]
            self._shelving[event.ticket] = (held, message, sender, held.beginnings)
        shelved(self, now, event)

    change(Copying, "slice_shelved", ignoring)


@mutant("tombstones are collected when no transition runs")
def tombstone_collected_early(change: Any) -> None:
    def collect(self: Owner) -> None:
        from limosa.core.model.rows import Entry

        if self.held.watermark:
            self.append(
                Entry(self.next_position(), self.held.last, None, collects=self.held.watermark)
            )

    change(Owner, "collect", collect)


# --- producers and clients


@mutant("what a producer has achieved moves with the partition")
def producers_not_moved(change: Any) -> None:
    read = Copying.slice_read

    def forgetful(self: Copying, now: float, event: Any) -> None:
        read(self, now, event)
        self._node.out = [
            Send(effect.to, replace(effect.message, producers=()))
            if isinstance(effect, Send) and isinstance(effect.message, Fetched)
            else effect
            for effect in self._node.out
        ]

    change(Copying, "slice_read", forgetful)


@mutant("a retry applies nothing that is applied")
def retries_applied_again(change: Any) -> None:
    change(Producers, "applied", lambda self, producer, sequence: ())


@mutant("a sequence below the floor is refused")
def floor_forgotten(change: Any) -> None:
    change(Producers, "is_past", lambda self, producer, sequence: False)


@mutant("a message that was applied is not applied again")
def duplicate_applied_twice(change: Any) -> None:
    change(Following, "is_new", lambda self, held, at: True)


@mutant("a redirect means: refresh and route again")
def redirect_retried_on_the_same_partition(change: Any) -> None:
    handle = Client.handle

    def stubborn(self: Client, now: float, event: Any) -> Any:
        if isinstance(event, TopologyRead) and self.topology.layouts:
            kept = replace(event.topology, layouts=self.topology.layouts)
            event = replace(event, topology=kept)
        return handle(self, now, event)

    change(Client, "handle", stubborn)


@mutant("an operation of unknown outcome is not called failed")
def unknown_called_failed(change: Any) -> None:
    finish = Client._finish

    def certain(self: Client, operation: Any, outcome: Any, value: object = None) -> None:
        finish(self, operation, "failed" if outcome == "unknown" else outcome, value)

    change(client_module.Client, "_finish", certain)


# --- redundant


@mutant(
    "the lease and the seal are checked again after the view was taken",
    argument="A read is admitted while the lease holds, and the newest value of that moment is "
    "what it finds, however late: it had been invoked by then. The check keeps an owner of the "
    "past from answering at all.",
)
def read_lease_checked_once(change: Any) -> None:
    def still(self: Reading, now: float, admitted: Admitted, through: int) -> bool:
        return admitted.owner is not None and self.is_complete(admitted.owner, through)

    change(Reading, "is_still_owner", still)


@mutant(
    "what a producer has achieved is an exact set, not a maximum",
    argument="A part names the producer's previous unacknowledged sequence and waits for it, so "
    "within a range nothing is applied out of order. A maximum forgets which range was applied, "
    "which matters when ranges change: not before partitions split and merge.",
)
def producers_kept_as_a_maximum(change: Any) -> None:
    applied = Producers.applied

    def at_most(self: Producers, producer: str, sequence: int) -> tuple[Applied, ...]:
        exact = applied(self, producer, sequence)
        later = [s for s in self._parts.get(producer, {}) if s > sequence]
        if exact or not later:
            return exact
        return (replace(self._parts[producer][max(later)][-1], range=WHOLE, found=None),)

    change(Producers, "applied", at_most)


@mutant(
    "a request from before the fence is refused",
    argument="An owner that is two stages behind has lost its lease, so a failover has raised the "
    "epoch, and its messages are refused by epoch; its acks are refused by its lease.",
)
def fence_not_checked(change: Any) -> None:
    objection = Following.objection

    def lenient(self: Following, held: Any, message: Any) -> str:
        why = objection(self, held, message)
        return "" if why == "fenced" else why

    change(Following, "objection", lenient)


@mutant("streaming begins behind a barrier")
def no_barrier_before_streaming(change: Any) -> None:
    _without_barrier(change, WRITE_BOTH)


@mutant(
    "a commit is guarded by the coordinator's lease key",
    argument="It is guarded by the revision of every record that it was computed from as well: "
    "what a deposed coordinator computes from the present state is what its successor would.",
)
def coordinator_key_not_guarded(change: Any) -> None:
    guards = ClusterView.guards

    def without(self: ClusterView, record: Any) -> dict[str, int]:
        return {k: v for k, v in guards(self, record).items() if k != COORDINATOR_KEY}

    change(ClusterView, "guards", without)


@mutant(
    "a replica that is still being filled begins anew in every epoch",
    argument="Its log is matched with the new owner's like any other, its rows are committed ones, "
    "and what the old owner had not committed is above the position where its log began.",
)
def new_side_kept_over_failover(change: Any) -> None:
    def must_begin(self: Owner, replica: Any, begun: int) -> bool:
        stage = routing.stage_of(self.record)
        return (
            stage is not None
            and stage.session
            and not begun
            and replica in routing.new_only(self.record)
        )

    change(Owner, "must_begin", must_begin)


@mutant("the barrier of write_both_read_new")
def no_barrier_before_use_new(change: Any) -> None:
    _without_barrier(change, READ_NEW)
