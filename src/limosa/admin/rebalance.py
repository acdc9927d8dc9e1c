"""How is a rebalance driven? The five routes of old for administrators, and routes by role.

The routes exist only if the service has `Runs`.
"""

from typing import Annotated, Any

from msgspec import Struct
from pydantic import ConfigDict, Field, model_validator

from limosa.admin.changes import ChangeBody
from limosa.admin.names import LIMIT, Limit, Name, PartitionName
from limosa.admin.requests import ChangeRequest, Changing
from limosa.admin.routing import Accepted, Calling, Routes
from limosa.admin.runs import MoveWanted, RunFacts, RunPreview, Runs, RunStatus, RunWanted
from limosa.admin.service import Caller

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


def runs_of(caller: Caller) -> Runs:
    runs = caller.service.runs
    assert runs is not None
    return runs


# --- the five of old, and the history; all for administrators


@routes.get("/admin/rebalance/status", role="admin", answers=RunStatus)
def rebalance_status(caller: Calling) -> RunStatus:
    """The state of the current run: total, completed and failed moves, and what moves now."""
    return runs_of(caller).status()


@routes.get("/admin/rebalance/history", role="admin", answers=RunHistory)
def rebalance_history(caller: Calling, limit: Limit = LIMIT) -> RunHistory:
    """All runs, the latest first."""
    return RunHistory(runs_of(caller).history()[:limit])


@routes.post("/admin/rebalance/start", role="admin")
def rebalance_start(caller: Calling, change: Changing, body: RunBody) -> Accepted:
    """Start a run that fills a node, removes a node, or makes the listed moves."""
    return _start(caller, change, body)


@routes.post("/admin/rebalance/pause", role="admin")
def rebalance_pause(caller: Calling, change: Changing) -> Accepted:
    """Pause the run: moves in flight finish, no others start."""
    return change.ask(runs_of(caller).pause, before=runs_of(caller).status())


@routes.post("/admin/rebalance/resume", role="admin")
def rebalance_resume(caller: Calling, change: Changing) -> Accepted:
    """Resume the paused run."""
    return change.ask(runs_of(caller).resume, before=runs_of(caller).status())


@routes.post("/admin/rebalance/cancel", role="admin")
def rebalance_cancel(caller: Calling, change: Changing) -> Accepted:
    """Cancel the run: committed moves stay, the others are rolled back."""
    return change.ask(runs_of(caller).cancel, before=runs_of(caller).status())


# --- the same by role


@routes.get("/v1/runs", role="viewer", answers=RunHistory)
def runs(caller: Calling, limit: Limit = LIMIT) -> RunHistory:
    """All runs, the latest first."""
    return RunHistory(runs_of(caller).history()[:limit])


@routes.get("/v1/runs/current", role="viewer", answers=RunStatus)
def current_run(caller: Calling) -> RunStatus:
    """The state of the current run: total, completed and failed moves, and what moves now."""
    return runs_of(caller).status()


@routes.post("/v1/runs", role="operator")
def start_run(caller: Calling, change: Changing, body: RunBody) -> Accepted:
    """Start a run; one that removes a node needs the role admin."""
    return _start(caller, change, body)


@routes.post("/v1/runs/plan", role="operator", answers=RunPreview)
def plan_run(caller: Calling, body: RunBody) -> RunPreview:
    """Preview a run; this changes nothing."""
    return runs_of(caller).plan(body.wanted)


@routes.post("/v1/runs/current/pause", role="operator")
def pause_run(caller: Calling, change: Changing) -> Accepted:
    """Pause the run: moves in flight finish, no others start."""
    return change.ask(runs_of(caller).pause, before=runs_of(caller).status())


@routes.post("/v1/runs/current/resume", role="operator")
def resume_run(caller: Calling, change: Changing) -> Accepted:
    """Resume the paused run."""
    return change.ask(runs_of(caller).resume, before=runs_of(caller).status())


@routes.post("/v1/runs/current/cancel", role="operator")
def cancel_run(caller: Calling, change: Changing) -> Accepted:
    """Cancel the run: committed moves stay, the others are rolled back."""
    return change.ask(runs_of(caller).cancel, before=runs_of(caller).status())


def _start(caller: Caller, change: ChangeRequest, body: RunBody) -> Accepted:
    if body.remove_node is not None:
        caller.must_be("admin")
    known = runs_of(caller)
    return change.ask(
        lambda id: known.start(id, body.wanted),
        body.model_dump(by_alias=True),
        known.status(),
    )
