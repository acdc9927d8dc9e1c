"""What should happen next? Each partition gets one commit, or a reason in words why it waits.

The coordinator computes the next step from the agreed state and the nodes' statuses alone, so a
successor computes the same step. Every commit is guarded by the coordinator's lease key and by the
revisions of everything it was computed from, so a stale coordinator changes nothing.
"""

from math import inf

from msgspec.structs import replace

from limosa.core import routing
from limosa.core.coordinator import (
    balancer,
    damaged_owners,
    lost_owners,
    ownership,
    readiness,
    rebuilds,
    reports,
    requests,
    resizing,
    run_ends,
    runs,
    transitions,
)
from limosa.core.coordinator.attention import Attention, is_changing
from limosa.core.coordinator.commits import CommitQueue
from limosa.core.coordinator.flights import Flights
from limosa.core.coordinator.memory import Memory
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.turns import deferred
from limosa.core.coordinator.view import ClusterView
from limosa.core.effects import Effect, Explain, MakeCommit, Send, StartPipeline
from limosa.core.events import (
    AgreedRead,
    CommitLost,
    Compared,
    CoordinatorEvent,
    Deposed,
    Elected,
    LoadTold,
    Received,
)
from limosa.core.messages import WHOLE_STATUS, Look, Status
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Agreed,
    Commit,
    Put,
    change_key,
    intent_key,
    partition_key,
    request_key,
)
from limosa.core.model.keys import NodeId, PartitionId, Revision
from limosa.core.model.requests import Request
from limosa.core.model.topology import Partition, Replica


class Coordinator:
    """The brain of one coordinator process, in office or not."""

    def __init__(self, name: str, settings: CoordinatorSettings) -> None:
        self.name = name
        self.settings = settings
        self.agreed = Agreed()
        self.office: Revision | None = None
        """The revision of the coordinator's key while it is ours."""
        self.commits = CommitQueue()
        """Empty while the coordinator is not in office. The driver puts commits in, takes them out,
        and reports the outcome."""
        self.statuses: dict[NodeId, Status] = {}
        """The whole status of each node that has reported in this office, as of its last report."""
        self._bases: dict[NodeId, Status] = {}
        """The whole statuses of other nodes, as of their last reports in an earlier office. They
        decide nothing, but a report of what has changed since then is exact."""
        self._missed: dict[NodeId, float] = {}
        """Nodes of which a report was missed, and when they were asked for a whole status."""
        self.waits: dict[PartitionId, str] = {}
        self._attention = Attention(settings.ask_again_seconds)
        self._waiting: list[Request] = []
        """Requests that are not answered yet, the oldest first."""
        self._answered_at = (self.agreed, -1e9)
        """The agreed state for which requests were last answered, and when."""
        self._flights = Flights()
        """Moves of the current run, by what they wait for."""
        self._asked: dict[PartitionId, tuple[dict[str, Revision], float]] = {}
        self._effects_at: dict[PartitionId, tuple[transitions.Waiting | None, float]] = {}
        self._memory = Memory(settings)
        self._looked_at = -1e9

    def handle(self, now: float, event: CoordinatorEvent, wall: float = 0.0) -> list[Effect]:
        """`wall` is the wall-clock time; it is recorded for people, and decides nothing."""
        match event:
            case Received(message=Status() as status):
                self._hear(status)
            case AgreedRead(agreed=agreed):
                if agreed.revision < self.agreed.revision:
                    return []
                self._read(agreed)
            case Elected(revision=revision):
                self.office = revision
                self.commits.clear()
                self._bases.update(self.statuses)
                self.statuses.clear()
                self._missed.clear()
                self._attention.draw_to_all()
                self._answered_at = (self.agreed, -1e9)
                self._looked_at = -1e9
            case Deposed():
                self.office = None
            case CommitLost():
                self._look_again(self.commits.lost())
            case Compared(partition=partition, session=session):
                self._memory.compared(partition, session, event.differences, event.more)
                self._attention.draw_to(partition)
            case LoadTold(told=told):
                self._memory.load_told = told
            case _:
                pass  # time went by: look again
        if not self._in_office():
            self.commits.clear()
            return []
        return [*self._look(now), *self._decide(now, wall)]

    def _in_office(self) -> bool:
        """As far as this coordinator knows; the guards of its commits catch what it does not know
        yet."""
        return self.office is not None and self.agreed.revision_of(COORDINATOR_KEY) == self.office

    def _hear(self, status: Status) -> None:
        """Keep a node's newest status; reports that arrive late are ignored. So are changes of a
        status that is not known here: then the node is asked for a whole one."""
        heard = self.statuses.get(status.node)
        known = heard or self._bases.get(status.node)
        if known is not None and (status.lease, status.sequence) <= (known.lease, known.sequence):
            return
        follows = known is not None and (known.lease, known.sequence) == (
            status.lease,
            status.after,
        )
        if status.after != WHOLE_STATUS and not follows:
            self._missed.setdefault(status.node, -inf)
            return
        self._missed.pop(status.node, None)
        self._bases.pop(status.node, None)
        self._attention.hear(heard, status, self.agreed)
        self.statuses[status.node] = merged_status(known, status)

    def _read(self, agreed: Agreed) -> None:
        self._attention.read(self.agreed, agreed)
        if agreed.requests is not self.agreed.requests:
            self._waiting = [each for each in agreed.requests.values() if each.state == "waiting"]
        self.agreed = agreed
        self.commits.read(agreed.revision)

    def _look_again(self, lost: list[Commit]) -> None:
        """Nothing else would draw attention to their partitions soon."""
        for change in (change for commit in lost for change in commit.changes):
            if isinstance(change, Put) and isinstance(change.record, Partition):
                self._attention.draw_to(change.record.id)

    def _look(self, now: float) -> list[Effect]:
        """Ask all nodes for a status now and then, and at once those of which a report was
        missed."""
        nodes = [
            node
            for node, asked_at in self._missed.items()
            if now - asked_at >= self.settings.ask_again_seconds and node in self.agreed.leases
        ]
        if now - self._looked_at >= self.settings.look_seconds:
            self._looked_at = now
            self._attention.draw_to_next(self.agreed)
            nodes = sorted(self.agreed.leases)
        return [Send(node, self._look_at(now, node)) for node in nodes]

    def _look_at(self, now: float, node: NodeId) -> Look:
        """The node's whole status is asked for, unless it is known up to its last report."""
        known, lease = self.statuses.get(node), self.agreed.leases.get(node)
        is_known = known is not None and lease is not None and known.lease == lease.lease
        if node in self._missed:
            self._missed[node] = now
        heard = 0 if known is None else known.sequence
        is_whole = node in self._missed or not is_known
        return Look(self.agreed.topology.generation, heard, is_whole)

    def _decide(self, now: float, wall: float) -> list[Effect]:
        assert self.office is not None
        if self._flights.run != self.agreed.rebalance.run:
            self._flights = Flights(self.agreed.rebalance.run)
        self._flights.follow(self.agreed)
        seen = (self.agreed, self.statuses, self.office, now, wall, self.settings, self._memory)
        view = ClusterView(*seen, tuple(self._flights.open.values()), self._waiting)
        out: list[Effect] = []
        self._answer(view, out)
        for partition in self._attention.due(now):
            if self.commits.concerns(partition_key(partition)):
                self._attention.keep(partition, now)
            else:
                self._attention.draw_later_to(partition)
        names = self._attention.take(self.agreed)
        asked = {each.partition for each in self._waiting if names and not deferred(view, each)}
        for partition in names:
            record = self.agreed.topology.partitions.get(partition)
            if record is None:
                self._forget(partition)
            elif partition in asked:
                self._attention.draw_later_to(partition)
            else:
                self._step(view, record, out)
        return out

    def _answer(self, view: ClusterView, out: list[Effect]) -> None:
        """Answer one request for each partition and one of all others, and advance the current run.
        This depends on the agreed state only."""
        state, answered_at = self._answered_at
        if state is self.agreed and view.now - answered_at < self.settings.ask_again_seconds:
            return
        self._answered_at = (self.agreed, view.now)
        forgetting = (requests.forget_answered, reports.forget_old, run_ends.forget_old)
        for forgotten in (forget(view) for forget in forgetting):
            if forgotten is not None and not self.commits.holds(forgotten):
                out.append(MakeCommit(forgotten))
        answered: set[PartitionId] = set()
        for request in self._waiting:
            if request.partition not in answered and not deferred(view, request):
                answered.add(request.partition)
                if not self.commits.concerns(request_key(request.id)):
                    answer = requests.answer(view, request)
                    self._propose(view.now, request.partition, answer, out)
        for commit in runs.advance(view, self._flights):
            self._propose(view.now, change_key(commit.changes[0]), commit, out, self._flights.asked)
        if readiness.pipeline_is_wanted(view):
            out.append(StartPipeline())
        begun = balancer.begin(view)
        if begun is not None:
            out.append(MakeCommit(begun) if isinstance(begun, Commit) else begun)

    def _forget(self, partition: PartitionId) -> None:
        """It was dropped."""
        self._attention.let_go(partition)
        self.waits.pop(partition, None)
        self._memory.forget(partition)
        for known in (self._asked, self._effects_at):
            known.pop(partition, None)

    def _step(self, view: ClusterView, record: Partition, out: list[Effect]) -> None:
        decision = self.next_step(view, record)
        if isinstance(decision, transitions.Waiting):
            self._wait(view, record, decision, out)
            return
        self.waits.pop(record.id, None)
        if decision is None:
            self._attention.let_go(record.id)
        else:
            self._propose(view.now, record.id, decision, out)
            asked_at = self._asked[record.id][1]
            if view.now - asked_at >= self.settings.ask_again_seconds:
                asked_at = view.now
            self._attention.keep(record.id, asked_at, asked_at + self.settings.ask_again_seconds)

    def next_step(
        self, view: ClusterView, record: Partition, held_since: float | None = None
    ) -> Commit | transitions.Waiting | None:
        """Ownership first, in any stage; then the in-sync replicas; then the transition; then
        intent.

        `held_since` replaces what this coordinator remembers of the start of a hold.
        """
        if record.owner is None:
            elected = ownership.elect(view, record)
            if isinstance(elected, Commit):
                return elected
            return transitions.Waiting(elected, until=ownership.overdue_at(view, record))
        if not view.owner_lives(record):
            return ownership.fail_over(view, record)
        replaced = lost_owners.hand_over(view, record)
        if replaced is not None:
            return replaced
        in_sync = ownership.change_in_sync(view, record)
        if in_sync is not None:
            return in_sync
        handed_over = damaged_owners.hand_over(view, record)
        if handed_over is not None:
            return handed_over
        if record.transition is not None:
            since = self._since(view.now, record) if held_since is None else held_since
            return transitions.advance(view, record, since)
        intent = view.agreed.intents.get(record.id)
        if intent is not None and intent.pending is not None:
            return transitions.start(view, record, intent)
        resized = resizing.ask_again(view, record)
        if isinstance(resized, Commit):
            return resized
        rebuilt = self._rebuild(view, record)
        if rebuilt is None and resized is not None:
            return transitions.Waiting(resized)
        return lost_owners.unapplied(view, record) if rebuilt is None else rebuilt

    def _since(self, now: float, record: Partition) -> float:
        """When this coordinator first saw the hold; a successor starts the hold time again."""
        assert record.transition is not None
        if not routing.may_end_hold(record.transition):
            return now
        return self._memory.held_since(record.id, record.transition.id, now)

    def _rebuild(self, view: ClusterView, record: Partition) -> Commit | transitions.Waiting | None:
        """A replica that can't catch up is rebuilt; the coordinator asks for that by a request,
        too."""
        missing = [r for r in record.replicas if r not in record.in_sync]
        if not missing:
            return None
        if not self.settings.rebuilds:
            return transitions.Waiting(f"{missing[0].node} is not in sync")
        for replica in missing:
            why = self._can_not_return(view, record, replica)
            if why:
                return self._ask_rebuild(view, record, replica, why)
        return transitions.Waiting(no_writes(view, record) + waits_for(missing[0]))

    def _can_not_return(self, view: ClusterView, record: Partition, replica: Replica) -> str:
        owner = view.owner_status(record)
        if view.is_live(replica.node) and view.is_lost(record, replica):
            return "it lost its replica"
        if view.is_damaged(record, replica):
            return "a file of its replica is damaged"
        if owner is not None and replica in owner.unreachable and view.is_live(replica.node):
            return "the owner's log no longer has the entries that it misses"
        return ""

    def _ask_rebuild(
        self, view: ClusterView, record: Partition, replica: Replica, why: str
    ) -> Commit | transitions.Waiting:
        revision = view.agreed.topology.revision_of(record.id)
        intended = view.agreed.revision_of(intent_key(record.id))
        name = f"rebuild-{record.id}-{revision}-{intended}-{view.lease_of(replica.node)}"
        asked = view.agreed.requests.get(name)
        if asked is not None:
            return transitions.Waiting(f"{replica.node} is not rebuilt: {asked.answer}")
        wish = rebuilds.rebuild(view, record, replica)
        if isinstance(wish, str):
            return transitions.Waiting(f"{replica.node} is not rebuilt: {wish}")
        request = Request(name, wish, asked=view.wall)
        guards = {request_key(request.id): 0, COORDINATOR_KEY: view.coordinator}
        return Commit(guards, (Put(request),), f"{record.id}: rebuild {replica.node}: {why}")

    def _propose(
        self,
        now: float,
        about: str,
        commit: Commit,
        out: list[Effect],
        asked: dict[str, tuple[dict[str, Revision], float]] | None = None,
    ) -> None:
        """Propose a commit once for each state it was computed from, and again after a while in
        case the answer was lost, but not while it waits for its turn."""
        known = self._asked if asked is None else asked
        guards, asked_at = known.get(about, ({}, 0.0))
        is_recent = now - asked_at < self.settings.ask_again_seconds
        if guards == commit.guards and (is_recent or self.commits.holds(commit)):
            return
        known[about] = (commit.guards, now)
        out.append(MakeCommit(commit))

    def _wait(
        self, view: ClusterView, record: Partition, waiting: transitions.Waiting, out: list[Effect]
    ) -> None:
        stage = routing.stage_of(record)
        before, asked_at = self._effects_at.get(record.id, (None, -1e9))
        if self.waits.get(record.id) != waiting.why:
            self.waits[record.id] = waiting.why
            name = "stable" if stage is None else stage.name
            out.append(Explain(record.id, name, waiting.why, waiting.work))
        if before != waiting or view.now - asked_at >= self.settings.ask_again_seconds:
            self._effects_at[record.id] = (waiting, view.now)
            out.extend(waiting.effects)
        asked_at = self._effects_at[record.id][1]
        repeat_at = asked_at + self.settings.ask_again_seconds
        at = repeat_at if waiting.effects else waiting.until
        applying = is_changing(record) or view.has_node_behind(record)
        self._attention.keep(record.id, asked_at, at, applying)


def merged_status(known: Status | None, said: Status) -> Status:
    """The whole status after a report that follows the known one, or is whole itself.

    The replicas of the known status are changed in place, so that a report costs what it names.
    """
    if said.after == WHOLE_STATUS:
        return replace(said, replicas=dict(said.replicas))
    assert known is not None
    known.replicas.update(said.replicas)
    for name in said.gone:
        known.replicas.pop(name, None)
    return replace(said, replicas=known.replicas, after=WHOLE_STATUS, gone=())


def waits_for(missing: Replica) -> str:
    return f"{missing.node} is not in sync: it is down or catching up"


def no_writes(view: ClusterView, record: Partition) -> str:
    """Why the partition takes no writes, and perhaps no reads, in words; empty: it does."""
    needed = routing.needed(record, view.agreed.topology.zones[record.zone])
    if routing.takes_writes(record, needed):
        return ""
    owner = view.owner_status(record)
    is_open = owner is not None and owner.open_epoch == record.epoch
    what = "no writes" if is_open else "no reads and no writes"
    in_sync = f"{len(routing.electable(record))} of {len(routing.readers(record))} replicas"
    return f"it takes {what}: {in_sync} are in sync, and {needed} are needed; "
