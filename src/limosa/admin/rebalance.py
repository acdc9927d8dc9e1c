"""How is a rebalance driven? Routes that show, plan, start, pause, resume and cancel runs."""

from msgspec import Struct

from limosa.admin.names import LIMIT, Limit
from limosa.admin.requests import ChangeRequest, Changing
from limosa.admin.routing import Accepted, Calling, Routes
from limosa.admin.runs import RunBody, RunFacts, RunPreview, RunStatus, TurnWish
from limosa.admin.service import Caller
from limosa.core.model.requests import CancelRun, PauseRun, ResumeRun

routes = Routes("rebalance")


class RunHistory(Struct, frozen=True):
    runs: list[RunFacts]
    """The latest first."""


# Each path of old, under /admin and for administrators, has a path by role under /v1.


@routes.get("/admin/rebalance/status", role="admin", answers=RunStatus, name="rebalance_status")
@routes.get("/v1/runs/current", role="viewer", answers=RunStatus)
def current_run(caller: Calling) -> RunStatus:
    """The state of the current run: total, completed and failed moves, and what moves now."""
    return caller.service.runs.status()


@routes.get("/admin/rebalance/history", role="admin", answers=RunHistory, name="rebalance_history")
@routes.get("/v1/runs", role="viewer", answers=RunHistory)
def runs(caller: Calling, limit: Limit = LIMIT) -> RunHistory:
    """All runs, the latest first."""
    return RunHistory(caller.service.runs.history()[:limit])


@routes.post("/v1/runs/plan", role="operator", answers=RunPreview)
def plan_run(caller: Calling, body: RunBody) -> RunPreview:
    """Preview a run; this changes nothing."""
    return caller.service.runs.plan(body)


@routes.post("/admin/rebalance/start", role="admin", name="rebalance_start")
@routes.post("/v1/runs", role="operator")
def start_run(caller: Calling, change: Changing, body: RunBody) -> Accepted:
    """Start a run that fills a node, removes a node, or makes the listed moves.

    To remove a node needs the role admin.
    """
    if body.remove_node is not None:
        caller.must_be("admin")
    known = caller.service.runs
    return change.ask(
        lambda id: known.start(id, body), body.model_dump(by_alias=True), known.status()
    )


@routes.post("/admin/rebalance/pause", role="admin", name="rebalance_pause")
@routes.post("/v1/runs/current/pause", role="operator")
def pause_run(caller: Calling, change: Changing) -> Accepted:
    """Pause the run: moves in flight finish, no others start."""
    return _turn(caller, change, PauseRun())


@routes.post("/admin/rebalance/resume", role="admin", name="rebalance_resume")
@routes.post("/v1/runs/current/resume", role="operator")
def resume_run(caller: Calling, change: Changing) -> Accepted:
    """Resume the paused run."""
    return _turn(caller, change, ResumeRun())


@routes.post("/admin/rebalance/cancel", role="admin", name="rebalance_cancel")
@routes.post("/v1/runs/current/cancel", role="operator")
def cancel_run(caller: Calling, change: Changing) -> Accepted:
    """Cancel the run: committed moves stay, the others are rolled back."""
    return _turn(caller, change, CancelRun())


def _turn(caller: Caller, change: ChangeRequest, wish: TurnWish) -> Accepted:
    known = caller.service.runs
    return change.ask(lambda id: known.turn(id, wish), before=known.status())
