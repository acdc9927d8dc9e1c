"""A small cluster in which runs are begun and carried out, one commit after the other.

Transitions are put where a test wants them: what they do by themselves is shown elsewhere.
"""

from msgspec.structs import replace

from limosa.core import invariants, routing
from limosa.core.coordinator import requests, runs
from limosa.core.coordinator.flights import Flights
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.coordinator.view import ClusterView
from limosa.core.machines.catalogue import MACHINES
from limosa.core.messages import ReplicaStatus, Status
from limosa.core.model.changes import Agreed, Change, Commit, Put, Remove, apply, lease_key
from limosa.core.model.intent import Intent, Placement, cancelled, completed
from limosa.core.model.keys import TOKEN_END, TOKEN_MIN, TokenRange
from limosa.core.model.reports import Report
from limosa.core.model.requests import AnyWish, Request
from limosa.core.model.runs import Limits, PlannedMove, Run, RunMove, RunPlan
from limosa.core.model.topology import (
    CoordinatorLease,
    GivenUpBy,
    Grant,
    Layout,
    NamedTable,
    Node,
    NodeLease,
    Partition,
    Record,
    Replica,
    Transition,
    Zone,
)

OFFICE = 2
NODES = ("a", "b", "c", "d")


def move(partition: str, source: str, target: str, volume: str = "") -> PlannedMove:
    return PlannedMove(partition, source, Placement(target, volume))


def plan(*moves: PlannedMove, **more: object) -> RunPlan:
    return replace(RunPlan("some moves", moves), **more)


class Cluster:
    """Partitions p0, p1, … of one replica on a, and what is agreed about them."""

    def __init__(
        self,
        partitions: int = 3,
        homes: tuple[tuple[str, ...], ...] = (),
        nodes: tuple[str, ...] = NODES,
        settings: CoordinatorSettings | None = None,
    ) -> None:
        self.settings = settings or CoordinatorSettings()
        self.agreed = Agreed()
        self.now = 100.0
        self.statuses: dict[str, Status] = {}
        self.flights = Flights()
        self.asked = 0
        homes = homes or (("a",),) * partitions
        names = [f"p{number}" for number in range(len(homes))]
        width = (TOKEN_END - TOKEN_MIN) // len(homes)
        starts = tuple(TOKEN_MIN + number * width for number in range(len(homes)))
        layout = Layout("z", 1, starts, tuple(names))
        self.put(CoordinatorLease("one", 1))
        assert self.put(CoordinatorLease("one", 1)) == OFFICE
        self.put(Zone("z", len(homes[0])), layout, NamedTable("t", "z", "t1", b""))
        for node in nodes:
            self.put(Node(node, volumes=("", "v2")))
            self.put(NodeLease(node, self.agreed.revision + 1))
        for number, (name, home) in enumerate(zip(names, homes, strict=True)):
            replicas = tuple(Replica(node, "first") for node in home)
            grant = Grant(replicas[0], self.agreed.leases[home[0]].lease)
            held: TokenRange = layout.range_of(number)
            self.put(Partition(name, "z", held, replicas, replicas, 1, grant))
            self.put(Intent(name, tuple(Placement(node) for node in home)))

    # --- what is agreed

    def put(self, *records: Record) -> int:
        return self.change(*map(Put, records))

    def change(self, *changes: Change) -> int:
        revision = self.agreed.revision + 1
        self.agreed = apply(self.agreed, changes, revision)
        return revision

    def view(self) -> ClusterView:
        seen = (self.agreed, self.statuses, OFFICE, self.now, self.now)
        return ClusterView(*seen, self.settings)

    def commit(self, commit: Commit) -> None:
        """As a metastore would, with everything that is always true."""
        for key, revision in commit.guards.items():
            assert self.agreed.revision_of(key) == revision, f"{commit.why}: {key} is stale"
        before = self.agreed
        self.change(*commit.changes)
        assert invariants.broken(before, self.agreed) == []

    def ask(self, wish: AnyWish) -> str:
        """Somebody asks, and is answered; the state of the request and its words."""
        request = self.waiting(wish)
        self.commit(requests.answer(self.view(), request))
        answered = self.agreed.requests[request.id]
        assert getattr(answered.what, "plan", None) is None, "the run has the plan by now"
        return f"{answered.state}: {answered.answer}"

    def refused(self, wish: AnyWish) -> str:
        """It changes nothing but the request's own row, and says what to do."""
        before = self.agreed
        words = self.ask(wish)
        assert words.startswith("refused: ")
        assert words.endswith(")"), "a refusal gives advice"
        for field in ("topology", "intents", "rebalance", "runs", "moves", "controls"):
            assert getattr(before, field) == getattr(self.agreed, field)
        return words

    def waiting(self, wish: AnyWish) -> Request:
        """A request that is not answered yet."""
        self.asked += 1
        request = Request(f"q{self.asked}", wish)
        self.put(request)
        return request

    # --- the run

    def step(self) -> list[Commit]:
        """What a coordinator does next, each commit by itself."""
        if self.flights.run != self.agreed.rebalance.run:
            self.flights = Flights(self.agreed.rebalance.run)
        commits = runs.advance(self.view(), self.flights)
        for commit in commits:
            self.commit(commit)
        return commits

    def settle(self) -> None:
        """Until nothing more is to be written down."""
        for _ in range(50):
            if not self.step():
                return
        raise AssertionError("it never settles")

    def succeed(self) -> None:
        """Another coordinator, which knows nothing but what is agreed."""
        self.flights = Flights()

    @property
    def run(self) -> Run:
        return self.agreed.runs[self.agreed.rebalance.run]

    def rebalance(self) -> str:
        return self.agreed.rebalance.state

    def last_run(self) -> Run:
        return list(self.agreed.runs.values())[-1]

    def moves(self) -> list[RunMove]:
        return [self.agreed.moves[self.last_run().id][n] for n in sorted(self.all_moves())]

    def all_moves(self) -> dict[int, RunMove]:
        return self.agreed.moves[self.last_run().id]

    def states(self) -> list[str]:
        return [each.state for each in self.moves()]

    # --- transitions

    def record(self, partition: str) -> Partition:
        return self.agreed.topology.partitions[partition]

    def stage(self, partition: str, stage: str, **more: object) -> None:
        """The pending change of a partition is in this stage."""
        record, pending = self.record(partition), self.agreed.intents[partition].pending
        assert pending is not None
        made = f"t{pending.trigger}"
        here = {(r.node, r.volume): r for r in record.replicas}
        targets = tuple(
            here.get((place.node, place.volume), Replica(place.node, made, place.volume))
            for place in pending.placements
        )
        line = MACHINES[pending.kind][stage]
        session = f"{made}@{record.epoch}" if line.session else None
        change = Transition(made, pending.kind, stage, targets, session)
        change = replace(change, hold_seconds=pending.hold_seconds, **more)
        after = replace(record, transition=change)
        owner = routing.readers(after)[0]
        grant = Grant(owner, self.agreed.leases[owner.node].lease)
        self.put(replace(after, owner=grant, in_sync=routing.written(after)))

    def complete(self, partition: str, pause_seconds: float = 0.0, report: bool = True) -> None:
        """The pending change of a partition holds."""
        self.stage(partition, "cleanup", pause_seconds=pause_seconds)
        record = self.record(partition)
        assert record.transition is not None
        targets = record.transition.targets
        grant = Grant(targets[0], self.agreed.leases[targets[0].node].lease)
        after = replace(record, replicas=targets, in_sync=targets, owner=grant, transition=None)
        told = self.report(record, record.transition, "done", "", pause_seconds)
        changes: list[Record] = [after, completed(self.agreed.intents[partition])]
        self.put(*changes, *([told] if report else []))

    def revert(
        self,
        partition: str,
        why: str = "the target died",
        by: GivenUpBy = "cluster",
        report: bool = True,
    ) -> None:
        """The pending change of a partition was given up."""
        if self.record(partition).transition is None:
            self.stage(partition, "cleanup_target")
        record = self.record(partition)
        assert record.transition is not None
        told = self.report(record, record.transition, "reverted", why, by=by)
        changes: list[Record] = [
            replace(record, transition=None, in_sync=record.replicas),
            cancelled(self.agreed.intents[partition]),
        ]
        self.put(*changes, *([told] if report else []))

    def report(
        self,
        record: Partition,
        change: Transition,
        outcome: str,
        why: str,
        pause_seconds: float = 0.0,
        by: GivenUpBy = "",
    ) -> Report:
        return Report(
            record.id,
            change.id,
            change.kind,
            outcome,  # type: ignore[arg-type]
            why,
            pause_seconds=pause_seconds,
            given_up_by=by,
        )

    # --- nodes

    def kill(self, node: str) -> None:
        self.change(Remove(lease_key(node)))

    def say(
        self,
        node: str,
        sizes: dict[str, tuple[int, int]] | None = None,
        free_bytes: int | None = None,
    ) -> None:
        """A node says what its replicas take, (rows, bytes) each, and what is free."""
        held = {
            name: tuple(
                ReplicaStatus(replica, 1, 0, 0, rows=rows, bytes=size)
                for replica in self.named(name)
                if replica.node == node
            )
            for name, (rows, size) in (sizes or {}).items()
        }
        free = {} if free_bytes is None else {"": free_bytes}
        lease = self.agreed.leases[node].lease
        self.statuses[node] = Status(node, lease, 1, self.agreed.revision, {}, held, free)

    def named(self, partition: str) -> tuple[Replica, ...]:
        record = self.record(partition)
        change = record.transition
        return (*record.replicas, *(() if change is None else change.targets))


ONE_AT_A_TIME = Limits(1, 1)
