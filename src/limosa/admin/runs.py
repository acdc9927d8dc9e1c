"""How does the service plan, start and describe runs? Like the commands, with the same rules.

`start` and `turn` build a request with the given id, or raise `IllegalRequest` if the coordinator
would refuse it now. The request is then stored, audited and followed like every other change.
"""

from typing import Annotated, Any, TypeAlias

from msgspec import Struct
from pydantic import ConfigDict, Field, model_validator

from limosa.admin.moves import volume_on
from limosa.admin.names import ChangeBody, Name, PartitionName
from limosa.client import cluster_view
from limosa.client.access import ClusterAccess
from limosa.core.coordinator import run_requests
from limosa.core.coordinator.view import ClusterView
from limosa.core.insight import proposing
from limosa.core.insight.progress import progress
from limosa.core.model.intent import Placement
from limosa.core.model.requests import (
    CancelRun,
    DrainNodes,
    PauseRun,
    Request,
    ResumeRun,
    StartRun,
)
from limosa.core.model.runs import IN_FLIGHT, PlannedMove, Run, RunMove, RunPlan

ENDED = {"done": "DONE", "cancelled": "CANCELLED", "failed-in-part": "FAILED"}

TurnWish: TypeAlias = PauseRun | ResumeRun | CancelRun


MOVES_MAX = 10_000
KINDS = ("add_node", "remove_node", "moves")


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


class MoveFacts(Struct, frozen=True):
    """One move of a run."""

    partition: str
    source: str
    target: str
    state: str
    """PENDING, DUAL_WRITE, COPYING, COMMITTED or FAILED."""
    attempts: int = 0
    detail: str = ""


class RunPreview(Struct, frozen=True):
    """What a run would do."""

    moves: tuple[MoveFacts, ...]
    bytes: int = 0
    """Approximate bytes of all moves."""


class RunFacts(Struct, frozen=True):
    """A current or earlier run."""

    id: str
    state: str
    """RUNNING, PAUSED, CANCELLING, DONE, FAILED or CANCELLED."""
    total: int
    completed: int
    failed: int
    current: tuple[str, ...] = ()
    """Partitions that move now."""
    started: float = 0.0
    """Unix time; 0: unknown, or not yet."""
    ended: float = 0.0
    moves: tuple[MoveFacts, ...] = ()


class RunStatus(Struct, frozen=True):
    """The state of rebalancing."""

    state: str
    """IDLE, RUNNING, PAUSED or CANCELLING."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    current: tuple[str, ...] = ()
    run: RunFacts | None = None


class Runs:
    """Plans, starts and controls runs; several threads may use it, and nothing is kept here."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster

    # --- requests

    def plan(self, wanted: RunBody) -> RunPreview:
        view = cluster_view.look(self._cluster)
        run = self._planned(view, wanted)
        moves = tuple(
            MoveFacts(move.partition, move.source, move.target.node, "PENDING")
            for move in run.moves
        )
        return RunPreview(moves, 0 if run.estimate is None else run.estimate.bytes)

    def start(self, id: str, wanted: RunBody) -> Request:
        view = cluster_view.look(self._cluster)
        run_requests.check_idle(view)
        run = self._planned(view, wanted)
        wish = DrainNodes(run) if run.drains else StartRun(run)
        run_requests.start(view, wish, 0)
        return Request(id, wish)

    def turn(self, id: str, wish: TurnWish) -> Request:
        run_requests.turn(ClusterView(self._cluster.runs(), {}, 0, 0.0), wish)
        return Request(id, wish)

    def _planned(self, view: ClusterView, wanted: RunBody) -> RunPlan:
        if wanted.add_node:
            like = RunPlan(f"fill {wanted.add_node}")
            return proposing.filling(view, [wanted.add_node], like)[1]
        if wanted.remove_node:
            name = wanted.remove_node
            like = RunPlan(f"decommission {name}", drains=(name,), decommission=True)
            return proposing.planned(view, like)[1]
        topology = view.agreed.topology
        moves = tuple(
            PlannedMove(
                move.partition,
                move.source,
                Placement(move.to, volume_on(topology, move.to, None)),
            )
            for move in wanted.moves or ()
        )
        return RunPlan(f"{len(moves)} moves", moves)

    # --- state

    def status(self) -> RunStatus:
        view = cluster_view.look(self._cluster)
        name = view.agreed.rebalance.run
        if not name:
            return RunStatus("IDLE")
        found = progress(view, name)
        facts = run_facts(view, found.run, found.state.upper())
        return RunStatus(
            found.state.upper(), facts.total, facts.completed, facts.failed, facts.current, facts
        )

    def history(self) -> list[RunFacts]:
        agreed = self._cluster.runs()
        view = ClusterView(agreed, {}, 0, 0.0)
        runs = sorted(agreed.runs.values(), key=lambda run: run.started, reverse=True)
        state = agreed.rebalance.state.upper()
        return [run_facts(view, run, ENDED.get(run.outcome, state)) for run in runs]


def run_facts(view: ClusterView, run: Run, state: str) -> RunFacts:
    moves = sorted(view.agreed.moves.get(run.id, {}).values(), key=lambda move: move.number)
    current = tuple(m.partition for m in moves if m.state in IN_FLIGHT)
    committed = sum(move.state == "COMMITTED" for move in moves)
    failed = sum(move.state == "FAILED" and move.final for move in moves)
    return RunFacts(
        run.id,
        state,
        run.moves,
        run.totals.committed if run.outcome else committed,
        run.totals.failed if run.outcome else failed,
        current,
        run.started,
        run.ended,
        tuple(map(move_facts, moves)),
    )


def move_facts(move: RunMove) -> MoveFacts:
    return MoveFacts(
        move.partition, move.source, move.target.node, move.state, move.attempts, move.detail
    )
