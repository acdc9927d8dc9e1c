"""How is the cluster locked, and an operation aborted? Routes for both."""

from typing import Annotated

from msgspec import Struct
from pydantic import Field

from limosa.admin.names import ChangeBody, OperationInPath
from limosa.admin.operations import operation_of
from limosa.admin.problems import not_found
from limosa.admin.requests import Changing, checked
from limosa.admin.routing import Accepted, Calling, Routes
from limosa.core.coordinator.aborting import aborting
from limosa.core.model.requests import LockCluster, Request, UnlockCluster

routes = Routes("controls")

Words = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class LockBody(ChangeBody):
    """Why the cluster is locked."""

    why: Words
    """The reason, for other operators."""


class LockState(Struct, frozen=True):
    locked: bool
    why: str


# --- the lock


@routes.get("/v1/lock", role="viewer", answers=LockState)
def lock_state(caller: Calling) -> LockState:
    """Whether the cluster is locked, and why."""
    why = caller.cluster.runs().controls.locked
    return LockState(bool(why), why)


@routes.post("/v1/lock", role="operator")
def lock(caller: Calling, change: Changing, body: LockBody) -> Accepted:
    """Let no change of the topology start until the cluster is unlocked; running ones continue."""
    agreed = caller.cluster.runs()
    return change.ask(
        lambda id: checked(agreed, Request(id, LockCluster(body.why))),
        body.model_dump(),
        agreed.controls,
    )


@routes.delete("/v1/lock", role="operator")
def unlock(caller: Calling, change: Changing) -> Accepted:
    """Let changes of the topology start again."""
    agreed = caller.cluster.runs()
    return change.ask(
        lambda id: checked(agreed, Request(id, UnlockCluster())), before=agreed.controls
    )


# --- operations


@routes.post("/v1/operations/{operation}/abort", role="operator")
def abort(caller: Calling, change: Changing, operation: OperationInPath) -> Accepted:
    """Withdraw a waiting operation, or cancel its move or run.

    Moves that are committed or whose reads have switched stay.
    """
    row = caller.cluster.request_state(operation)
    if row is None:
        raise not_found("operation", operation, "/v1/operations")

    def build(id: str) -> Request:
        agreed = caller.cluster.runs()
        return checked(agreed, aborting(agreed, row, id))

    return change.ask(build, before=operation_of(caller.cluster, row))
