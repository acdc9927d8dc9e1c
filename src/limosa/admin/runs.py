"""How are rebalance runs planned, started and controlled? What the routes about runs need.

`start` and `turn` build a request with the given id, or raise `IllegalRequest`; the request is
stored, audited and followed like every other change.
"""

from typing import Protocol, TypeAlias

from msgspec import Struct

from limosa.core.model.requests import CancelRun, PauseRun, Request, ResumeRun

TurnWish: TypeAlias = PauseRun | ResumeRun | CancelRun


class MoveWanted(Struct, frozen=True):
    """The move of one replica to another node."""

    partition: str
    source: str
    target: str


class RunWanted(Struct, frozen=True):
    """The purpose of a run: exactly one of these."""

    add_node: str = ""
    """Fill this node with its share of the load."""
    remove_node: str = ""
    """Move everything off this node, then remove it."""
    moves: tuple[MoveWanted, ...] = ()


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

    def plan(self, wanted: RunWanted) -> RunPreview: ...

    def start(self, id: str, wanted: RunWanted) -> Request: ...

    def turn(self, id: str, wish: TurnWish) -> Request: ...

    def status(self) -> RunStatus: ...

    def history(self) -> list[RunFacts]: ...
