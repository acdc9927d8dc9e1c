"""How are rebalance runs planned, started and controlled? What the routes about runs need.

`start` and `turn` build a request with the given id, or raise `IllegalRequest`; the request is
stored, audited and followed like every other change.
"""

from typing import Annotated, Any, Protocol, TypeAlias

from msgspec import Struct
from pydantic import ConfigDict, Field, model_validator

from limosa.admin.names import ChangeBody, Name, PartitionName
from limosa.core.model.requests import CancelRun, PauseRun, Request, ResumeRun

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


class Runs(Protocol):
    """Plans, starts and controls runs; several threads may use it."""

    def plan(self, wanted: RunBody) -> RunPreview: ...

    def start(self, id: str, wanted: RunBody) -> Request: ...

    def turn(self, id: str, wish: TurnWish) -> Request: ...

    def status(self) -> RunStatus: ...

    def history(self) -> list[RunFacts]: ...
