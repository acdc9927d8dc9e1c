"""How does a coordinator run? Its driver renews its lease, receives statuses, and commits.

Commits wait in the coordinator's queue, which unites those that do not contradict each other: a
failover of a thousand partitions then takes a few commits. Each commit is guarded by all records
that it was computed from.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal, Protocol, TypeAlias

from msgspec.structs import replace

from limosa.core.coordinator.brain import Coordinator
from limosa.core.coordinator.commits import summary
from limosa.core.coordinator.office import Office
from limosa.core.coordinator.settings import CoordinatorSettings
from limosa.core.effects import (
    AskForLoad,
    Compare,
    Effect,
    Explain,
    MakeCommit,
    Send,
    StartCopy,
    StartPipeline,
)
from limosa.core.events import (
    AgreedRead,
    CommitLost,
    Compared,
    CoordinatorEvent,
    Deposed,
    Elected,
    LoadTold,
    Received,
    Ticked,
)
from limosa.core.messages import Look, Message
from limosa.core.model.changes import COORDINATOR_KEY, Agreed, Commit, Put, united
from limosa.core.model.keys import NodeId, PartitionId, Revision
from limosa.core.model.reports import Pipeline
from limosa.errors import LimosaError, StaleGuard
from limosa.metastore.agreed import AgreedStore
from limosa.ports import Clock, LoadSource, Metastore
from limosa.protocol.peers import Peers
from limosa.runtime.load_sources import LoadAsking
from limosa.runtime.metastore import Failed, Heartbeat, Log, Watcher
from limosa.runtime.threads import vital_thread

PipelineState: TypeAlias = Literal["off", "starting", "ready", "failed"]

TICK_SECONDS = 0.02
LEASE_SECONDS = 3.0
TRIM_SECONDS = 30.0
KEYS_SHOWN = 5
PAUSE_SECONDS_MAX = 0.1
"""After each commit as long a pause as the commit took, but not longer than this: other processes
wait for the metastore, too, to renew their leases."""
REVISIONS_KEPT = 5_000


class Mover(Protocol):
    """Copies rows to new replicas while the coordinator asks for it. Never blocks."""

    def follow(self, addresses: Mapping[NodeId, str]) -> None: ...

    def limit(self, bytes_per_second: float) -> None: ...

    def start(self) -> None: ...

    def begin(self, job: StartCopy, size: int) -> None: ...

    def compare(self, job: Compare, then: Callable[[tuple[str, ...], int], None]) -> None: ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


MakeMover: TypeAlias = Callable[[Callable[[PipelineState, str], None]], Mover]
"""Makes a mover; the argument receives the pipeline's state."""


class CoordinatorDriver:
    """The driver of one coordinator process, as leader or on standby."""

    def __init__(
        self,
        name: str,
        open_metastore: Callable[[], Metastore],
        clock: Clock,
        peers: Peers,
        settings: CoordinatorSettings,
        mover: MakeMover,
        log: Log,
        failed: Failed,
        load_source: LoadSource | None = None,
    ) -> None:
        self.name = name
        self.brain = Coordinator(name, replace(settings, load_source=load_source is not None))
        self.peers = peers
        self.log = log
        self.now = clock.now
        self._pipeline: Pipeline | None = None
        """The state of Spark; None: copies need no Spark."""
        self._load = None if load_source is None else LoadAsking(load_source, self._tell_load, log)
        self._failed = failed
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._office = Office(name)
        self._trimmed_at = -1e9
        self._heartbeat = Heartbeat(
            COORDINATOR_KEY, open_metastore, clock, log, self._fail, self._office.due, self._renewed
        )
        self._watcher = Watcher(open_metastore, self._followed, log, self._fail)
        self._mover = mover(self._tell_of_pipeline)
        self._committing = False
        self.ticks = 0
        """Rises as long as the coordinator does not hang."""
        self.is_over = False
        """It has failed: it does nothing any more, and its process ends."""
        self._ticker = vital_thread(self._tick, "tick", self._fail)

    def start(self) -> None:
        self._watcher.start()
        self._ticker.start()

    @property
    def in_office(self) -> bool:
        return self.brain.office is not None

    def received(self, sender: str, message: Message) -> None:
        self.deliver(Received(sender, message))

    def deliver(self, event: CoordinatorEvent) -> None:
        with self._lock, self._fatal():
            if not self.is_over:
                self._carry_out(self.brain.handle(self.now(), event, time.time()))
                self._office.handled(self.now())

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """End the process on an error: it would keep its office and no longer do its work."""
        try:
            yield
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.is_over:
            self.is_over = True
            self._stopping.set()
            with suppress(Exception):
                self.log("the coordinator stops", error=error)
            self._failed(error)

    def _carry_out(self, effects: list[Effect]) -> None:
        waits: dict[str, list[str]] = {}
        for effect in effects:
            match effect:
                case Send(to=to, message=message):
                    self.peers.send(to, message)
                case MakeCommit(commit=commit):
                    self.brain.commits.put(commit)
                case StartPipeline():
                    self._mover.start()
                case StartCopy():
                    self._mover.begin(effect, self._size_of(effect))
                case Compare():
                    self._compare(effect)
                case AskForLoad():
                    assert self._load is not None
                    self._load.ask(effect)
                case Explain(partition=partition, stage=stage, why=why):
                    waits.setdefault(stage, []).append(f"{partition}: {why}")
                case _:
                    raise AssertionError(effect)
        for stage, reasons in waits.items():
            self.log("waits", stage=stage, why=summary(reasons))
        if self.brain.commits and not self._committing:
            self._committing = True
            self._watcher.do(self._commit_all)

    def _compare(self, job: Compare) -> None:
        def then(differences: tuple[str, ...], more: int) -> None:
            self.deliver(Compared(job.partition, job.session, differences, more))

        self._mover.compare(job, then)

    def _tell_load(self, told: dict[PartitionId, float]) -> None:
        self.deliver(LoadTold(told))

    def _size_of(self, job: StartCopy) -> int:
        """Approximate bytes to copy; 0: unknown yet."""
        status = self.brain.statuses.get(job.source.node)
        known = () if status is None else status.replicas.get(job.partition, ())
        return max((each.bytes for each in known if each.replica == job.source), default=0)

    # --- commits

    def _commit_all(self, store: AgreedStore) -> None:
        """Make all commits that wait, in as few transactions as possible."""
        while together := self._take(store.store.operations_max):
            begun = self.now()
            try:
                self._commit(store, together)
            except LimosaError:
                self.deliver(CommitLost())
                with self._lock:
                    self._committing = False  # the next tick continues with those that wait
                raise
            self._watcher.look()
            self._stopping.wait(min(self.now() - begun, PAUSE_SECONDS_MAX))

    def _take(self, operations_max: int) -> list[Commit]:
        with self._lock:
            together = self.brain.commits.take(operations_max)
            self._committing = bool(together)
            return together

    def _tell_nodes(self, generation: Revision) -> None:
        """Tell nodes to read the topology now: a hand-over waits until they have read it."""
        look = Look(generation, whole=False)
        for node in self.brain.agreed.leases:
            self.peers.send(node, look)

    def _commit(self, store: AgreedStore, together: list[Commit]) -> None:
        union = united(together)
        try:
            revision = store.commit(union)
        except StaleGuard as error:
            with self._lock:
                stale = self.brain.commits.stale(error.keys)
            why = summary(commit.why for commit in stale)
            keys = error.keys[:KEYS_SHOWN]
            self.log("stale", commits=len(stale), of=len(together), why=why, keys=keys)
            return
        with self._lock:
            self.brain.commits.made(revision)
        why = summary(commit.why for commit in together)
        self.log("committed", why=why, commits=len(together), revision=revision)
        if union.touches_topology():
            self._tell_nodes(revision)

    # --- leadership

    def _tick(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            self._keep_office()
            self._mover.tick()
            self.peers.cut_silent()
            self._trim_history()
            self.deliver(Ticked())
            self.ticks += 1

    def _trim_history(self) -> None:
        """Trim the history; a watch that is further behind reads everything again."""
        now = self.now()
        if self.in_office and now - self._trimmed_at > TRIM_SECONDS:
            self._trimmed_at = now
            before = self.brain.agreed.revision - REVISIONS_KEPT
            if before > 0:
                self._watcher.do(lambda store: store.store.trim(before))

    def _keep_office(self) -> None:
        if self._office.must_claim(self.now(), self.brain.agreed):
            self._heartbeat.acquire(LEASE_SECONDS, self._take_office, self._elect)

    def _renewed(self, lease: int, alive: bool, sent_at: float) -> None:
        if not alive:
            self._lose(lease)

    def _take_office(self, store: Metastore, lease: int, previous: int) -> int:
        try:
            return AgreedStore(store).commit(self._office.claim(lease), lease)
        except LimosaError:
            store.revoke(lease)
            raise

    def _elect(self, lease: int, revision: int, sent_at: float) -> None:
        self._office.taken(lease)
        self.log("became the active coordinator", revision=revision)
        if self._pipeline is not None:
            self._record_pipeline(self._pipeline)
        self._watcher.look()
        self.deliver(Elected(revision))

    def _lose(self, lease: int) -> None:
        if self._office.lost(lease):
            self.log("no longer the active coordinator")
            self.deliver(Deposed())

    def _followed(self, agreed: Agreed, asked: bool) -> None:
        self.peers.follow(agreed.topology)
        nodes = agreed.topology.nodes.values()
        self._mover.follow({node.id: node.address for node in nodes})
        run = agreed.runs.get(agreed.rebalance.run)
        self._mover.limit(0.0 if run is None else run.limits.bytes_per_second)
        self.deliver(AgreedRead(agreed))

    def _tell_of_pipeline(self, state: PipelineState, detail: str) -> None:
        """Record the pipeline's state, which moves wait for; the record ends with our lease."""
        self._pipeline = record = Pipeline(self.name, state, detail, time.time())
        self._record_pipeline(record)

    def _record_pipeline(self, record: Pipeline) -> None:
        def tell(store: AgreedStore) -> None:
            lease = self._office.lease
            if lease is not None:
                with suppress(LimosaError):
                    store.commit(Commit({}, (Put(record),), "the pipeline"), lease)

        self._watcher.do(tell)

    def stop(self) -> None:
        self._stopping.set()
        self._ticker.join(5.0)
        if self._office.lease is not None:
            self._heartbeat.revoke(self._office.lease)
        self._heartbeat.close()
        self._mover.close()  # last: a successor need not wait until Java has exited
        self._watcher.close()
        self.peers.close()
