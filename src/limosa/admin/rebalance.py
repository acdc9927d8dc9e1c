"""How is a rebalance driven? Routes that show, plan, start, pause, resume and cancel runs."""

from typing import Annotated, Any

from msgspec import Struct
from pydantic import ConfigDict, Field, model_validator

from limosa.admin.changes import ChangeBody
from limosa.admin.names import LIMIT, Limit, Name, PartitionName
from limosa.admin.requests import ChangeRequest, Changing
from limosa.admin.routing import Accepted, Calling, Routes
from limosa.admin.runs import MoveWanted, RunFacts, RunPreview, RunStatus, RunWanted, TurnWish
from limosa.admin.service import Caller
from limosa.core.model.requests import CancelRun, PauseRun, ResumeRun

MOVES_MAX = 10_000
KINDS = ("add_node", "remove_node", "moves")

routes = Routes("rebalance")


def _one_of(schema: dict[str, Any]) -> None:
    """Describe what the validator checks: exactly one of the fields, and no nulls."""
    for name, field in schema["properties"].items():
        kept = next(each for each in field.pop("anyOf") if each.get("type") != "null")
        field.pop("default", None)
        schema["properties"][name] = {**field, **kept}
    schema["oneOf"] = [{"required": [name]} for name in KINDS]


class MoveOfRun(ChangeBody):
    """The move of one replica to another node."""

    partition: PartitionName
    source: Annotated[Name, Field(alias="from")]
    to: Name


class RunBody(ChangeBody):
    """The purpose of a run: exactly one of the three."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_one_of)

    add_node: Name | None = None
    """Fill this node with its share of the load."""
    remove_node: Name | None = None
    """Move everything off this node, then remove it. Needs the role admin."""
    moves: Annotated[list[MoveOfRun], Field(min_length=1, max_length=MOVES_MAX)] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> "RunBody":
        given = [getattr(self, name) for name in self.model_fields_set]
        if len(given) != 1 or given[0] is None:
            raise ValueError("give exactly one of add_node, remove_node and moves")
        return self

    @property
    def wanted(self) -> RunWanted:
        moves = tuple(MoveWanted(e.partition, e.source, e.to) for e in self.moves or ())
        return RunWanted(self.add_node or "", self.remove_node or "", moves)


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
    return caller.service.runs.plan(body.wanted)


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
        lambda id: known.start(id, body.wanted), body.model_dump(by_alias=True), known.status()
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
