"""What became of a change? An operation is a request's row, and the change that it led to."""

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query
from msgspec import Struct
from msgspec.structs import replace

from limosa.admin.moves import Wanted, ending
from limosa.admin.names import LIMIT, Limit, OperationInPath
from limosa.admin.problems import not_found
from limosa.admin.routing import Calling, Routes
from limosa.admin.service import Caller
from limosa.client.access import ClusterAccess
from limosa.core.model.requests import (
    CreateTable,
    DrainNodes,
    DropTable,
    LockCluster,
    MovePartition,
    MoveToVolume,
    Request,
    RunWish,
    StartRun,
    TransitionWish,
    UnlockCluster,
    WithdrawRequest,
)
from limosa.errors import LimosaError, UnknownTable

State: TypeAlias = Literal["waiting", "running", "done", "refused", "reverted", "replaced"]
OPEN: tuple[State, ...] = ("waiting", "running")
FOLLOWED_MAX = 1_000
PATIENCE = 0.1
"""An operation is polled again after this share of its age."""

routes = Routes("operations")


class OperationInBrief(Struct, frozen=True):
    """A requested change, and its answer."""

    operation: str
    kind: str
    about: str
    """The partition, table, zone or node that it concerns."""
    state: Literal["waiting", "done", "refused"]
    """`done`: the request was accepted; see the operation itself for the state of its move."""
    answer: str
    asked: float
    """Unix time, by the requester's clock; `answered` is by the coordinator's. 0: unknown, or not
    yet."""
    answered: float


class Operation(Struct, frozen=True):
    """A requested change, and its outcome."""

    operation: str
    kind: str
    about: str
    state: State
    """`reverted`: rolled back. `replaced`: by a later request, before the change started."""
    answer: str
    """The coordinator's answer, in words."""
    stage: str = ""
    """The stage of a running change."""
    why: str = ""
    """Why the change did not reach its goal."""
    next: str = ""
    """The path with more information."""
    asked: float = 0.0
    """Unix time, by the requester's clock; `answered` is by the coordinator's. 0: unknown, or not
    yet."""
    answered: float = 0.0


class Operations(Struct, frozen=True):
    operations: list[OperationInBrief]


@routes.get("/v1/operations", role="viewer", answers=Operations)
def operations(
    caller: Calling,
    state: Annotated[
        Literal["waiting", "done", "refused"] | None,
        Query(description="Only operations in this state."),
    ] = None,
    limit: Limit = LIMIT,
) -> Operations:
    """Recent operations, the latest first. About 1,000 answered ones are kept."""
    known = sorted(caller.cluster.agreed()["requests"], key=lambda each: -int(each["revision"]))
    wanted = [each for each in known if state in (None, each["state"])]
    return Operations([_in_brief(each) for each in wanted[:limit]])


def _in_brief(row: dict[str, Any]) -> OperationInBrief:
    names = ("id", "kind", "about", "state", "answer", "asked", "answered")
    return OperationInBrief(*(row[name] for name in names))


@routes.get("/v1/operations/{operation}", role="viewer", answers=Operation)
def operation(caller: Calling, operation: OperationInPath) -> Operation:
    """One operation, with the state of the change that it led to."""
    row = caller.cluster.request_state(operation)
    if row is None:
        raise not_found("operation", operation, "/v1/operations")
    return operation_of(caller.cluster, row)


def leads_to_transition(row: Request) -> bool:
    """Whether the request was accepted and started a change that takes time."""
    return bool(row.transition) and isinstance(row.what, TransitionWish)


def operation_of(cluster: ClusterAccess, row: Request) -> Operation:
    return replace(_followed(cluster, row), asked=row.asked, answered=row.answered)


def _followed(cluster: ClusterAccess, row: Request) -> Operation:
    if leads_to_transition(row):
        return _of_transition(cluster, row)
    if row.run and isinstance(row.what, StartRun | DrainNodes):
        return _of_run(cluster, row)
    return Operation(row.id, row.kind, row.about, row.state, row.answer)


def _of_run(cluster: ClusterAccess, row: Request) -> Operation:
    """A run that is no longer recorded has ended."""
    name = row.run
    run = cluster.runs(name).runs.get(name)
    where = "/v1/runs/current" if run is not None and not run.outcome else "/v1/runs"
    state: State = "running"
    if run is None or run.outcome:
        state = "done" if run is None or run.outcome == "done" else "reverted"
    why = "" if run is None or run.outcome in ("", "done") else f"{run.outcome}: {run.words}"
    return Operation(row.id, row.kind, name, state, row.answer, "", why.rstrip(": "), where)


def _of_transition(cluster: ClusterAccess, row: Request) -> Operation:
    def told(state: State, stage: str = "", why: str = "") -> Operation:
        where = f"/v1/partitions/{row.partition}/explain"
        return Operation(row.id, row.kind, row.partition, state, row.answer, stage, why, where)

    agreed = cluster.state(row.partition)
    record = agreed.topology.partitions.get(row.partition)
    if record is None:
        return told("replaced", why="the partition was dropped")
    wanted = Wanted(row.transition)
    if isinstance(row.what, MovePartition | MoveToVolume) and row.what.target is not None:
        to, source = row.what.target.node, row.what.source
        wanted = Wanted(row.transition, source if source != to else "", to)
    end = ending(agreed, record, wanted)
    if end is not None:
        return told(end.state, why=end.why)
    change = record.transition
    is_it = change is not None and change.id == wanted.transition
    return told("running", change.stage if change is not None and is_it else "not started")


# --- following operations for the audit log


def facts_about(cluster: ClusterAccess, row: Request) -> Any:
    """The current state of what a request concerns, to compare before and after."""
    if row.partition:
        record = cluster.state(row.partition).topology.partitions.get(row.partition)
        return None if record is None else record
    match row.what:
        case CreateTable() | DropTable():
            try:
                return cluster.describe(row.about)
            except UnknownTable:
                return None
        case StartRun() | DrainNodes():
            return cluster.runs(row.run).runs.get(row.run)
        case RunWish():
            return cluster.runs().rebalance
        case LockCluster() | UnlockCluster():
            return cluster.runs().controls
        case WithdrawRequest(request=request):
            return cluster.request_state(request)
    return cluster.refresh().nodes.get(row.about)


class Followed(Struct):
    caller: Caller
    operation: str
    since: float
    due: float


class Follower:
    """Writes the end of each operation into the audit log; operations that have not ended when
    the process stops are not recorded."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._followed: list[Followed] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="limosa-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def add(self, caller: Caller, operation: str) -> None:
        caller.body.clear()
        now = self._now()
        with self._lock:
            self._followed.append(Followed(caller, operation, now, now + self._seconds))
            forgotten = self._followed[:-FOLLOWED_MAX]
            self._followed = self._followed[-FOLLOWED_MAX:]
        for each in forgotten:
            each.caller.service.log("no longer followed", operation=each.operation)

    def look(self) -> None:
        """Poll the operations that are due."""
        now = self._now()
        with self._lock:
            due = [each for each in self._followed if each.due <= now]
        for each in due:
            each.due = now + max(self._seconds, PATIENCE * (now - each.since))
            if self._has_ended(each):
                with self._lock:
                    self._followed.remove(each)

    def _has_ended(self, each: Followed) -> bool:
        cluster, caller = each.caller.cluster, each.caller
        try:
            row = cluster.request_state(each.operation)
            if row is None:
                caller.note("ended", state="unknown", answer="no longer recorded")
                return True
            end = operation_of(cluster, row)
            if end.state in OPEN:
                return False
            caller.note(
                "ended",
                state=end.state,
                answer=end.answer,
                why=end.why,
                after=facts_about(cluster, row),
            )
        except LimosaError as error:
            caller.service.log("not followed", operation=each.operation, error=str(error))
            return False
        return True

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.look()
            except Exception as error:  # one operation must not stop the audit log
                self._log(error)

    def _log(self, error: Exception) -> None:
        with self._lock:
            some = self._followed[:1]
        for each in some:
            each.caller.service.log("polling operations failed", error=error)
