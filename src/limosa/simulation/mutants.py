"""Does the simulator find bugs? Each mutant removes one rule of the protocol; a seed finds it.

A mutant replaces small functions of the core, or of the simulated disk, for the duration of a run.
A mutant that no seed can find, because other rules make its rule redundant, has an argument that
says why, and does not count.
"""

from typing import Any

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.client import Client
from limosa.core.coordinator import ownership, transitions
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import ApplySlice, BeginLog, Send
from limosa.core.events import TopologyRead
from limosa.core.machines.catalogue import CLEANUP_TARGET, READ_NEW, USE_NEW, WRITE_BOTH
from limosa.core.machines.machine import Work
from limosa.core.messages import Fetched, Mismatched
from limosa.core.model.changes import COORDINATOR_KEY, intent_key
from limosa.core.model.keys import WHOLE
from limosa.core.model.rows import Entry, Rows
from limosa.core.participant import copying
from limosa.core.participant.copying import Copying
from limosa.core.participant.following import Following
from limosa.core.participant.held import Held
from limosa.core.participant.hosting import Hosting
from limosa.core.participant.lease import Lease
from limosa.core.participant.leasing import Leasing
from limosa.core.participant.owner import Owner
from limosa.core.participant.reading import Admitted, Reading
from limosa.core.participant.renewals import Renewals
from limosa.core.producers import Applied, Producers
from limosa.simulation import load_mutants as load_mutants
from limosa.simulation import recovery_mutants as recovery_mutants
from limosa.simulation import run_mutants as run_mutants
from limosa.simulation.disk import SimulatedDisk, SimulatedReplica, SimulatedView
from limosa.simulation.planting import MUTANTS as MUTANTS
from limosa.simulation.planting import REDUNDANT as REDUNDANT
from limosa.simulation.planting import SEEDS as SEEDS
from limosa.simulation.planting import always, mutant, replacing, wrapping
from limosa.simulation.planting import planted as planted
from limosa.simulation.rows import SimulatedRow, SimulatedRows

# --- rules that are one small function

# fmt: off
replacing({
    "reads_not_checked_again": (
        "a read is checked again after its view was taken", Reading, "check", always(None)),
    "view_from_before_the_opening": (
        "a view has all that was committed when the owner opened",
        Reading, "is_complete", always(True)),
    "dropped_replica_still_read": (
        "an eventual read is not answered from a replica that was dropped meanwhile",
        Reading, "is_still_readable", always(True)),
    "serves_after_its_lease": (
        "an owner serves only while its lease holds",
        Lease, "holds", lambda self, now: self.registered),
    "ack_without_the_new_side": (
        "an owner acknowledges a write only when the new side has it too",
        Owner, "required", lambda self: list(routing.electable(self.record))),
    "epoch_not_compared": (
        "followers refuse an older epoch", Following, "is_current", always(True)),
    "stale_watch_trusted": (
        "a node ignores an older topology: a watch is a hint", Hosting, "is_newer",
        lambda self, topology: topology.generation != self._node.topology.generation),
    "lost_replica_made_anew": (
        "a replica that is missing on its node is lost, and is not created again",
        Hosting, "may_create", always(True)),
    "commit_without_revisions": (
        "a commit is guarded by the revisions that it was computed from",
        ClusterView, "guards", lambda self, record: {COORDINATOR_KEY: self.coordinator}),
    "failover_to_the_unread_side": (
        "a failover picks a replica of the side that is read",
        ownership, "candidates", lambda view, record: routing.writers(record)),
    "log_not_cut": (
        "a follower truncates its log where it differs from the new owner's",
        Following, "cut", always(None)),
    "fallback_to_one_that_was_taken_out": (
        "a transition falls back only to an old replica that is in sync",
        transitions, "fallback_candidates",
        lambda view, record: tuple(r for r in record.replicas if view.is_live(r.node))),
    "seal_never_lifted": (
        "any change of the record lifts a seal", Owner, "unsealed", lambda self: self.sealed),
    "seal_lifted_by_time": (
        "time alone never lifts a seal",
        Owner, "touch", lambda self, why: setattr(self, "sealed", None)),
    "fence_raised_after_the_drain": (
        "the fence is raised to the generation captured before the drain",
        transitions, "fence_after", lambda view, record: view.agreed.revision + 1),
    "permit_not_checked": (
        "every chunk needs the permit of an open session", Copying, "permit", always(True)),
    "slices_of_any_number": (
        "a copy is complete when all slices of the same division have landed",
        Copying, "landed_of",
        lambda self, held, message: held.landed.setdefault((message.session, 1), set())),
    "retries_applied_again": (
        "a retry applies nothing that is applied already", Producers, "applied", always(())),
    "floor_forgotten": (
        "a sequence below the producer's floor is refused", Producers, "is_past", always(False)),
    "duplicate_applied_twice": (
        "a message that was applied is not applied again", Following, "is_new", always(True)),
})
# fmt: on

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


@mutant("a read is answered only while the lease holds")
def reads_after_the_lease(change: Any) -> None:
    def owner_for(self: Reading, now: float, read: Any) -> Any:
        owner = self._node.owners.get(read.partition)
        if owner is not None and owner.open and owner.sealed is None:
            return owner
        return self._serving.routed(now, read)

    change(Reading, "owner_for", owner_for)
    change(Reading, "lease_holds", always(True))


@mutant("an eventual read is not answered from a replica that is no longer complete")
def stale_side_still_read(change: Any) -> None:
    def is_here(self: Reading, now: float, admitted: Admitted, through: int) -> bool:
        return self._node.held.get(admitted.replica) is admitted.held

    change(Reading, "is_still_readable", is_here)


@mutant("lease time runs from the sending of the renewal, not from its answer")
def lease_counted_from_the_answer(change: Any) -> None:
    renewed, granted = Renewals.renewed, Leasing.granted
    change(Renewals, "renewed", lambda self, now, lease, sent_at: renewed(self, now, lease, now))
    change(
        Leasing, "granted", lambda self, now, event: granted(self, now, replace(event, sent_at=now))
    )


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


@wrapping(Owner, "write", "a retry of a known sequence is acked only when its row is committed")
def retry_acked_at_once(
    write: Any, self: Owner, now: float, client: str, message: Any, found: int
) -> Any:
    applied = self.held.producers.applied(message.producer, message.sequence)
    if applied:
        return self.answer_to(message, applied[-1].at, applied[-1].found).answer
    return write(self, now, client, message, found)


@wrapping(Owner, "write", "a failed comparison is ordered and committed like a write")
def mismatch_answered_at_once(
    write: Any, self: Owner, now: float, client: str, message: Any, found: int
) -> Any:
    applied = self.held.producers.applied(message.producer, message.sequence)
    if not applied and message.expected is not None and message.expected != found:
        return Mismatched(message.id, found)
    return write(self, now, client, message, found)


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


@wrapping(Leasing, "granted", "a new lease counts only with a topology from after it")
def lease_before_the_topology(granted: Any, self: Leasing, now: float, event: Any) -> None:
    granted(self, now, event)
    self._hosting.register(now)


@wrapping(
    ClusterView,
    "guards",
    "a commit is guarded by the intent, so that it cannot overtake a cancel",
    argument="The coordinator itself stores a cancel, and its commits for one partition happen "
    "one at a time; the commits of a successor are guarded by the office.",
)
def switch_overtakes_cancel(guards: Any, self: ClusterView, record: Any) -> dict[str, int]:
    return {k: v for k, v in guards(self, record).items() if k != intent_key(record.id)}


@wrapping(
    ClusterView,
    "guards",
    "a commit is guarded by the coordinator's lease key",
    argument="It is also guarded by the revision of every record that it was computed from: "
    "what a deposed coordinator computes from the present state is what its successor would.",
)
def coordinator_key_not_guarded(guards: Any, self: ClusterView, record: Any) -> dict[str, int]:
    return {k: v for k, v in guards(self, record).items() if k != COORDINATOR_KEY}


# --- failover


@wrapping(ClusterView, "owner_lives", "a failover happens when the owner's lease has ended")
def failover_without_lease_end(owner_lives: Any, self: ClusterView, record: Any) -> bool:
    return owner_lives(self, record) and self.owner_status(record) is not None


@mutant("a new owner makes every replica equal to itself before it serves")
def opens_without_equalising(change: Any) -> None:
    point = Owner.commit_point
    change(Owner, "commit_point", lambda self: point(self) if self.open else self.held.durable)
    change(Owner, "all_matched", always(True))


@wrapping(
    Owner,
    "required",
    "a new owner also makes the new side equal to itself before it serves",
    argument="Once it serves, the owner acknowledges nothing without the new side, whose log "
    "begins where everything is committed, and the copy begins again.",
)
def new_side_not_equalised(required: Any, self: Owner) -> list[Any]:
    return required(self) if self.open else list(routing.electable(self.record))


@mutant("a copy does not count after a failover: session and copy begin again")
def copy_kept_over_failover(change: Any) -> None:
    begin = Held.begin

    def keeping(self: Held, base: int, epoch: int) -> None:
        copied, landed, session = self.copied, dict(self.landed), self.session
        begin(self, base, epoch)
        self.copied, self.landed, self.session = copied, landed, session

    change(Held, "begin", keeping)
    change(ownership, "renewed_session", lambda record, transition, epoch: transition.session)


@wrapping(Held, "advance", "a follower commits only what its owner has committed")
def follower_commits_by_itself(advance: Any, self: Held, to: int) -> Any:
    return advance(self, self.last)


@mutant(
    "a replica that is still being filled begins again in every epoch",
    argument="Its log is matched with the new owner's like any other, its rows are committed, and "
    "what the old owner had not committed is above the position where its log began.",
)
def new_side_kept_over_failover(change: Any) -> None:
    def must_begin(self: Owner, replica: Any, begun: int) -> bool:
        stage = routing.stage_of(self.record)
        filling = stage is not None and stage.session and replica in routing.new_only(self.record)
        return filling and not begun

    change(Owner, "must_begin", must_begin)


# --- the transition


@mutant("a transition whose new side is taken out is given up")
def new_side_taken_out_and_put_back(change: Any) -> None:
    def may_return(record: Any) -> tuple[Any, ...]:
        return tuple(r for r in routing.written(record) if r not in record.in_sync)

    change(ownership, "gives_up", always(False))
    change(routing, "may_return", may_return)


@mutant("another owner is named only after the present one has sealed")
def hand_over_without_seal(change: Any) -> None:
    change(transitions, "seal", always(None))
    change(transitions, "DO", {**transitions.DO, Work.SEAL: always(None)})


@mutant(
    "an owner reports its seal when all writes in flight have ended",
    argument="An acknowledged write is on the whole write set, so it is in the log that the next "
    "owner commits; every other write is answered as unknown.",
)
def sealed_before_in_flight_ended(change: Any) -> None:
    def report(self: Owner) -> Any:
        return None if self.sealed is None else (self.sealed, self.held.last)

    change(Owner, "seal_report", report)


def _without_barrier(name: str, breaks: str, stage: str) -> None:
    def barrier(view: ClusterView, record: Any, since: float) -> Any:
        assert record.transition is not None
        if record.transition.stage == stage:
            return None
        return transitions.barrier(view, record, since)

    replacing({name: (breaks, transitions, "DO", {**transitions.DO, Work.BARRIER: barrier})})


# fmt: off
_without_barrier(
    "no_barrier_before_cleanup_target", "cleanup_target drops behind a barrier", CLEANUP_TARGET)
_without_barrier(
    "no_barrier_before_cleanup", "cleanup drops behind the barrier of use_new", USE_NEW)
_without_barrier(
    "no_barrier_before_streaming", "streaming begins behind a barrier", WRITE_BOTH)
_without_barrier(
    "no_barrier_before_use_new", "use_new begins behind the barrier of write_both_read_new",
    READ_NEW)
# fmt: on


@mutant("a target is prepared as an empty incarnation")
def leftover_reused(change: Any) -> None:
    """Dropped rows are found again: neither the drop nor the beginning removes them."""
    leftovers: dict[tuple[int, str, str], dict[str, SimulatedRow]] = {}
    init, apply = SimulatedReplica.__init__, SimulatedReplica.apply

    def made(self: SimulatedReplica, partition: str, replica: Any, on_commit: Any) -> None:
        init(self, partition, replica, on_commit)
        world = id(getattr(on_commit, "__self__", None))
        self.rows = leftovers.setdefault((world, partition, replica.node), self.rows)

    def applied(self: SimulatedReplica, step: Any) -> None:
        rows = dict(self.rows) if isinstance(step, BeginLog) else {}
        apply(self, step)
        self.rows.update(rows)

    change(SimulatedReplica, "__init__", made)
    change(SimulatedReplica, "apply", applied)


# --- copying


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
            node.changed.mark(held.partition)
        ticket = next(node.tickets)
        node.out.append(ApplySlice(message.partition, message.to, ticket, (message.rows,), ()))

    change(Copying, "chunk", chunk)


@wrapping(transitions, "verify", "a copy that differs from its source is never read")
def switch_despite_a_mismatch(verify: Any, *those: Any) -> Any:
    progress = verify(*those)
    return None if isinstance(progress, transitions.Differs) else progress


@mutant("a copied row counts only if its version is newer")
def copy_without_versions(change: Any) -> None:
    def put(self: SimulatedReplica, row: SimulatedRow) -> None:
        self.rows[row.key] = row

    change(SimulatedReplica, "put_logged", SimulatedReplica.put_copied)
    change(SimulatedReplica, "put_copied", put)


@mutant("the copy begins where the log of the new replica does")
def copy_older_than_the_log(change: Any) -> None:
    incomplete = Copying.incomplete

    def lenient(*those: Any) -> str:
        problem = incomplete(*those)
        return "" if problem.startswith("the copy is older") else problem

    change(Owner, "base", lambda self: self.held.last)
    change(Copying, "incomplete", lenient)


@wrapping(Copying, "incomplete", "a replica filled in this epoch does not count as filled forever")
def repaired_as_if_it_were_filled(
    incomplete: Any, self: Copying, held: Held, message: Any, parts: Any
) -> str:
    problem: str = incomplete(self, held, message, parts)
    is_ahead = problem.startswith("the copy is ahead")
    return "" if is_ahead and held.begun == message.epoch else problem


@wrapping(Copying, "incomplete", "a slice lands only when the replica has caught up with it")
def copy_ahead_of_the_replica(incomplete: Any, *those: Any) -> str:
    problem: str = incomplete(*those)
    return "" if problem.startswith("the copy is ahead") else problem


@wrapping(Copying, "end", "a slice whose digest differs from its END's does not land")
def digest_not_compared(end: Any, self: Copying, now: float, sender: str, message: Any) -> None:
    held = self._node.held.get((message.partition, message.to))
    key = (message.session, message.slice, message.attempt)
    chunks = {} if held is None else held.chunks.get(key, {})
    arrived = sum(chunk.rows.digest() for chunk in chunks.values())
    end(self, now, sender, replace(message, digest=arrived))


# --- copied rows that are stored without the log


@mutant(
    "a slice of a repair is stored through the log",
    argument="A slice that waited is refused if tombstones were collected meanwhile; without a "
    "collection, an older row does not replace a newer one, however late it arrives.",
)
def repair_shelved(change: Any) -> None:
    def by_size(self: Copying, held: Held, rows: tuple[Rows, ...]) -> bool:
        return sum(each.bytes for each in rows) >= self._node.settings.shelved_bytes

    change(Copying, "may_shelve", by_size)


@mutant(
    "a slice that waited is refused if tombstones were collected meanwhile",
    argument="Only a replica that is not read yet is filled without the log; every way out of the "
    "stage passes a barrier that waits for the slice, and until then nothing is collected.",
)
def shelved_behind_a_collection(change: Any) -> None:
    change(SimulatedDisk, "collected", always(0))


@mutant(
    "a slice that is being stored without the log is not stored twice",
    argument="Storing a row twice changes nothing, and rows that were fetched before the copy was "
    "complete are not above the position where digests are taken; it only takes longer.",
)
def shelved_twice(change: Any) -> None:
    change(copying, "_is_same", always(False))


@wrapping(
    SimulatedDisk, "shelve", "a row stored without the log counts only if its version is newer"
)
def shelved_over_newer_rows(shelve: Any, self: SimulatedDisk, step: ApplySlice, node: str) -> None:
    for volumes in (self.live, self._durable):
        stored = volumes.get((step.partition, step.incarnation))
        kept = {} if stored is None else stored.rows
        for rows in step.rows:
            assert isinstance(rows, SimulatedRows)
            for row in rows.rows:
                kept.pop(row.key, None)
    shelve(self, step, node)


@wrapping(
    Copying,
    "slice_shelved",
    "a slice stored without the log has not landed if the replica began again since",
    argument="A replica begins once in an epoch, before anything lands in it; another epoch has "
    "another session, and the permit for the slice is gone.",
)
def shelved_before_the_beginning(shelved: Any, self: Copying, now: float, event: Any) -> None:
    if event.ticket in self._shelving:
        held, message, sender, _ = self._shelving[event.ticket]
        self._shelving[event.ticket] = (held, message, sender, held.beginnings)
    shelved(self, now, event)


@mutant("tombstones are collected when no transition runs")
def tombstone_collected_early(change: Any) -> None:
    def collect(self: Owner) -> None:
        upto = self.held.watermark
        if upto:
            self.append(Entry(self.next_position(), self.held.last, None, collects=upto))

    change(Owner, "collect", collect)


# --- producers and clients


@wrapping(Copying, "slice_read", "the sequences that a producer applied move with the partition")
def producers_not_moved(slice_read: Any, self: Copying, now: float, event: Any) -> None:
    slice_read(self, now, event)
    self._node.out = [
        Send(effect.to, replace(effect.message, producers=()))
        if isinstance(effect, Send) and isinstance(effect.message, Fetched)
        else effect
        for effect in self._node.out
    ]


@wrapping(Client, "handle", "after a redirect, a client refreshes its topology and routes again")
def redirect_retried_on_the_same_partition(
    handle: Any, self: Client, now: float, event: Any
) -> Any:
    if isinstance(event, TopologyRead) and self.topology.layouts:
        kept = replace(event.topology, layouts=self.topology.layouts)
        event = replace(event, topology=kept)
    return handle(self, now, event)


@wrapping(Client, "_finish", "an operation with an unknown outcome is not called failed")
def unknown_called_failed(
    finish: Any, self: Client, operation: Any, outcome: Any, value: object = None
) -> None:
    finish(self, operation, "failed" if outcome == "unknown" else outcome, value)


@wrapping(
    Producers,
    "applied",
    "the sequences that a producer applied are an exact set, not a maximum",
    argument="A part names the producer's previous unacknowledged sequence and waits for it, so "
    "within a range nothing is applied out of order. A maximum forgets which range was applied, "
    "which matters when ranges change: not before partitions split and merge.",
)
def producers_kept_as_a_maximum(
    applied: Any, self: Producers, producer: str, sequence: int
) -> tuple[Applied, ...]:
    exact: tuple[Applied, ...] = applied(self, producer, sequence)
    later = [s for s in self._parts.get(producer, {}) if s > sequence]
    if exact or not later:
        return exact
    return (replace(self._parts[producer][max(later)][-1], range=WHOLE, found=None),)


# --- other redundant rules


@mutant(
    "the lease and the seal are checked again after the view was taken",
    argument="A read is admitted while the lease holds, and the newest value of that moment is "
    "what it finds, however late: it had been invoked by then. The check keeps a former owner "
    "from answering at all.",
)
def read_lease_checked_once(change: Any) -> None:
    def still(self: Reading, now: float, admitted: Admitted, through: int) -> bool:
        return admitted.owner is not None and self.is_complete(admitted.owner, through)

    change(Reading, "is_still_owner", still)


@wrapping(
    Following,
    "objection",
    "a request from before the fence is refused",
    argument="An owner that is two stages behind has lost its lease, so a failover has raised the "
    "epoch, and its messages are refused by epoch; its acks are refused by its lease.",
)
def fence_not_checked(objection: Any, *those: Any) -> str:
    why: str = objection(*those)
    return "" if why == "fenced" else why
